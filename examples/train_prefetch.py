"""Learn what a clip shows, fed by PrefetchLoader: python examples/train_prefetch.py STORE [EPOCHS]

STORE: vidprep transcode CLASS_FOLDERS STORE --label-from-folder --split-by train=0.8,val=0.2
"""

import sys

import torch
from network import network_for
from torch.nn.functional import cross_entropy

from vidprep.formats import PrefetchLoader, VideoDataset, clips_at_regular_indices


def main() -> None:
    path, epochs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    picture = {"size": 64, "dtype": "float32", "normalize": "imagenet", "layout": "CTHW", "tensors": True}
    three_clips = clips_at_regular_indices(num_clips=3, num_frames_per_clip=8, num_indices_between_frames=2)
    train = VideoDataset(path, 8, stride=2, step=4, split="train", random_resized_crop=True, **picture)
    val = VideoDataset(path, clips=three_clips, split="val", crop=64, **picture)
    network = network_for(len(train.class_to_idx))
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    with PrefetchLoader(train, 8, shuffle=True, num_workers=2) as training, PrefetchLoader(val, 8) as validating:
        for epoch in range(epochs):
            for batch in training:
                optimizer.zero_grad()
                cross_entropy(network(batch["frames"]), batch["class_id"]).backward()
                optimizer.step()
            with torch.no_grad():
                right = [network(batch["frames"]).argmax(1) == batch["class_id"] for batch in validating]
            print(f"epoch {epoch}: accuracy on val {torch.cat(right).float().mean():.0%}")


if __name__ == "__main__":
    if set(sys.argv[1:]) <= {"-h", "--help"}:
        sys.exit(print(__doc__))
    main()
