"""Learn what a clip shows, with torch alone: python examples/train_torch.py STORE [EPOCHS]

STORE: vidprep transcode CLASS_FOLDERS STORE --label-from-folder --split-by train=0.8,val=0.2
"""

import sys

import torch
from network import network_for
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from vidprep.formats import VideoDataset, clips_at_random_indices, clips_at_regular_indices


def main() -> None:
    path, epochs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    clip = {"num_frames_per_clip": 8, "num_indices_between_frames": 2}
    picture = {"dtype": "float32", "normalize": "imagenet", "layout": "CTHW"}
    random_clips, three_clips = clips_at_random_indices(**clip), clips_at_regular_indices(num_clips=3, **clip)
    train = VideoDataset(path, clips=random_clips, split="train", size=64, random_resized_crop=True, **picture)
    val = VideoDataset(path, clips=three_clips, split="val", size=64, crop=64, **picture)
    training = DataLoader(train, 8, shuffle=True, num_workers=2, persistent_workers=True)
    network = network_for(len(train.class_to_idx))
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for epoch in range(epochs):
        for batch in training:
            optimizer.zero_grad()
            cross_entropy(network(batch["frames"]), batch["class_id"]).backward()
            optimizer.step()
        with torch.no_grad():
            right = [network(batch["frames"]).argmax(1) == batch["class_id"] for batch in DataLoader(val, 8)]
        print(f"epoch {epoch}: accuracy on val {torch.cat(right).float().mean():.0%}")


if __name__ == "__main__":
    if set(sys.argv[1:]) <= {"-h", "--help"}:
        sys.exit(print(__doc__))
    main()
