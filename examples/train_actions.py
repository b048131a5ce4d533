"""Learn which action a clip shows: python examples/train_actions.py STORE [EPOCHS]

STORE: made with labels, from a table or by `--label-from-folder`. The same network is trained from the same sequences twice, fed by
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

FRAMES, STRIDE, SIZE, BATCH, WORKERS = 8, 2, 64, 8, 2
MAX_BATCHES = 100
MEAN, STD = (0.45, 0.45, 0.45), (0.225, 0.225, 0.225)


def network_for(num_classes: int) -> nn.Module:
    """(B, 3, T, H, W) to scores of the classes: three convolutions over space and time."""
    return nn.Sequential(
        nn.Conv3d(3, 16, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2)), nn.ReLU(),
        nn.Conv3d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv3d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(64, num_classes),
    )  # fmt: skip


def epoch(
    network: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[dict[str, Any]]
) -> tuple[float, float]:
    """Seconds, and the part of the clips that were told right."""
    started, right, count = time.perf_counter(), 0, 0
    for batch in itertools.islice(batches, MAX_BATCHES):
        frames = torch.as_tensor(batch["frames"]).permute(0, 4, 1, 2, 3)  # (B, T, H, W, 3)
        classes = torch.as_tensor(batch["class_id"])
        scores = network(frames)
        loss = functional.cross_entropy(scores, classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right += int((scores.argmax(1) == classes).sum())
        count += len(classes)
    return time.perf_counter() - started, right / count


def main() -> None:
    path, epochs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    dataset = VideoDataset(
        path, FRAMES, STRIDE, step=4, size=SIZE, crop=SIZE, random_crop=True,
        dtype="float32", normalize=(MEAN, STD), tensors=True,
    )  # fmt: skip
    if not dataset.class_to_idx:
        sys.exit(
            f"{path} has videos without a label; make it with --label-from-folder, or from a table with a column label"
        )
    print(dataset, "of", len(dataset.class_to_idx), "classes")
    plain = DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
    with PrefetchLoader(dataset, BATCH, shuffle=True, workers=WORKERS) as ahead:
        for name, loader in {"DataLoader": plain, "PrefetchLoader": ahead}.items():
            torch.manual_seed(0)
            network = network_for(len(dataset.class_to_idx))
            optimizer = torch.optim.Adam(network.parameters(), 3e-3)
            for number in range(epochs):
                seconds, right = epoch(network, optimizer, loader)
                print(f"{name:14} epoch {number}: {seconds:6.2f} s, {right:.0%} told right")


if __name__ == "__main__":
    main()
