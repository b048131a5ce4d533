"""Learn from videos without labels which sound belongs to which pictures: python examples/pretrain.py STORE [EPOCHS]

STORE: vidprep transcode RAW STORE --fps 15 --short-side 112 --gop 5 --audio aac
Each item is a clip of one second at a random time of a video, with its sound; an epoch has four clips of every video.
"""

import sys

import torch
from network import network_for
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader

from vidprep.formats import VideoDataset, clips_at_random_timestamps

FEATURES, SECONDS = 32, 1.0


def overlapping(batch: dict) -> torch.Tensor:
    """(B, B) bool: clips of one video that share pictures or sound; neither is a wrong answer for the other."""
    starts, ids = batch["timestamps"][:, 0], batch["id"]
    same = torch.tensor([[one == other for other in ids] for one in ids])
    return same & ((starts[:, None] - starts).abs() < SECONDS) & ~torch.eye(len(ids), dtype=torch.bool)


def main() -> None:
    torch.manual_seed(0)  # the same weights and order each time
    path, epochs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    clips = clips_at_random_timestamps(num_clips=4, num_frames_per_clip=8, seconds_between_frames=SECONDS / 8)
    dataset = VideoDataset(
        path,
        clips=clips,
        size=64,
        crop=64,
        random_crop=True,
        dtype="float32",
        normalize="imagenet",
        layout="CTHW",
        audio_rate=16000,
        audio_seconds=SECONDS,
    )
    loader = DataLoader(dataset, 8, shuffle=True, num_workers=2, persistent_workers=True, drop_last=len(dataset) > 8)
    eye = network_for(FEATURES)
    ear = nn.Sequential(
        nn.Conv1d(1, 16, 400, 160),
        nn.ReLU(),
        nn.Conv1d(16, 32, 9, 4),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(32, FEATURES),
    )
    optimizer = torch.optim.Adam([*eye.parameters(), *ear.parameters()], 1e-3)
    for epoch in range(epochs):
        losses = []
        for batch in loader:
            seen, heard = normalize(eye(batch["frames"])), normalize(ear(batch["audio"]))
            scores = (seen @ heard.T / 0.1).masked_fill(overlapping(batch), -torch.inf)
            heard_at_all = batch["has_audio"].nonzero().flatten()  # videos without sound teach nothing here
            if not len(heard_at_all):
                continue
            loss = cross_entropy(scores[heard_at_all], heard_at_all)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: {len(dataset)} clips, loss {sum(losses) / max(1, len(losses)):.3f}")


if __name__ == "__main__":
    if set(sys.argv[1:]) <= {"-h", "--help"}:
        sys.exit(print(__doc__))
    main()
