"""The same on two processes: python examples/train_ddp.py STORE [EPOCHS]

STORE: vidprep transcode CLASS_FOLDERS STORE --label-from-folder --split-by train=0.8,val=0.2
"""

import os
import sys

import torch
import torch.distributed as dist
from network import network_for
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from vidprep.formats import VideoDataset, clips_at_random_indices

WORLD = 2


def work(rank: int, path: str, epochs: int) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    clips = clips_at_random_indices(num_clips=2, num_frames_per_clip=8, num_indices_between_frames=2)
    picture = {"size": 64, "random_resized_crop": True, "dtype": "float32", "normalize": "imagenet", "layout": "CTHW"}
    train = VideoDataset(path, clips=clips, split="train", **picture)
    sampler = DistributedSampler(train, drop_last=True)
    loader = DataLoader(train, 4, sampler=sampler, num_workers=1, persistent_workers=True)
    network = DistributedDataParallel(network_for(len(train.class_to_idx)))
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # another order
        train.set_epoch(epoch)  # clips and crops that are a function of the epoch, whatever the number of workers
        seen, loss = 0, torch.zeros(())
        for batch in loader:
            optimizer.zero_grad()
            loss = cross_entropy(network(batch["frames"]), batch["class_id"])
            loss.backward()
            optimizer.step()
            seen += len(batch["id"])
        print(f"rank {rank}, epoch {epoch}: {seen} of {len(train)} clips, loss {loss:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if set(sys.argv[1:]) <= {"-h", "--help"}:
        sys.exit(print(__doc__))
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ.get("MASTER_PORT", "29512")}
    torch.multiprocessing.spawn(work, (sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3), WORLD)
