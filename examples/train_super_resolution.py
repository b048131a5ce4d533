"""Learn to double the size of a frame from the frames around it: python examples/train_super_resolution.py STORE [EPOCHS]

STORE: any store that `vidprep transcode` or `vidprep burst` made. The same network is trained from the same sequences twice, fed by
torch's DataLoader and by PrefetchLoader; both epoch times are printed. Needs torch.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from vidprep.formats import PrefetchLoader, VideoDataset

FRAMES, CROP, BATCH, WORKERS, SCALE = 5, 64, 8, 2, 2
MAX_BATCHES = 100


class Network(nn.Module):
    """(B, T, 3, h, w) small frames to the middle one at twice the size: bicubic, and what three convolutions add to it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3 * FRAMES, 32, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 3 * SCALE**2, 3, padding=1),
            nn.PixelShuffle(SCALE),
        )

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        middle = functional.interpolate(frames[:, FRAMES // 2], scale_factor=SCALE, mode="bicubic", align_corners=False)
        made: torch.Tensor = middle + self.layers(frames.flatten(1, 2))
        return made


def shrunk(frames: torch.Tensor) -> torch.Tensor:
    """(B, T, 3, H, W) to half the size, by the mean of each 2x2."""
    return functional.avg_pool2d(frames.flatten(0, 1), SCALE).unflatten(0, frames.shape[:2])


def epoch(network: Network, optimizer: torch.optim.Optimizer, batches: Iterable[dict[str, Any]]) -> tuple[float, float]:
    """Seconds, and the mean PSNR in dB of what was made."""
    started, errors = time.perf_counter(), []
    for batch in itertools.islice(batches, MAX_BATCHES):
        frames = torch.as_tensor(batch["frames"]).permute(0, 1, 4, 2, 3)  # (B, T, H, W, 3), 0 to 1
        loss = functional.mse_loss(network(shrunk(frames)), frames[:, FRAMES // 2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        errors.append(loss.item())
    mean = torch.tensor(errors).mean()
    return time.perf_counter() - started, float(-10 * mean.log10())


def main() -> None:
    path, epochs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    dataset = VideoDataset(
        path, FRAMES, step=2, crop=CROP, random_crop=True, flip=True, dtype="float32", normalize=True, tensors=True
    )
    print(dataset)
    plain = DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True, drop_last=True)
    with PrefetchLoader(dataset, BATCH, shuffle=True, workers=WORKERS, drop_last=True) as ahead:
        for name, loader in {"DataLoader": plain, "PrefetchLoader": ahead}.items():
            torch.manual_seed(0)
            network = Network()
            optimizer = torch.optim.Adam(network.parameters(), 1e-3)
            for number in range(epochs):
                seconds, psnr_db = epoch(network, optimizer, loader)
                print(f"{name:14} epoch {number}: {seconds:6.2f} s, {psnr_db:.2f} dB")


if __name__ == "__main__":
    if set(sys.argv[1:]) <= {"-h", "--help"}:
        sys.exit(print(__doc__))
    main()
