"""Trainings that are stopped and continued by other numbers of processes and workers: every item once per epoch, in a known order.

python tests/formats/training/restarts.py STORE COUNT [SEED]        with torch and torchdata
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vidprep.formats import ElasticDistributedSampler, PrefetchLoader, VideoDataset, clips_at_random_indices

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.formats.training.loading import children  # after the path is known
from vidprep.formats.training import loader as loader_module
from vidprep.formats.training._joined_datasets import JoinedDatasets
from vidprep.formats.training._order import run_order

OURS = ("rank", "elastic", "runs")
OF_TORCH = ("DistributedSampler", "DataLoader", "StatefulDataLoader")
LISTS = ("DataLoader", "StatefulDataLoader")  # these call a dataset's __getitem__
EPOCHS, FRAMES = 2, 2
RUN_BYTES = 100_000


def name_of(id_: str, numbers: Any) -> tuple[str, tuple[int, ...]]:
    """Video, and first frame of each clip of an item."""
    return id_, tuple(np.asarray(numbers).reshape(-1, FRAMES)[:, 0].tolist())


def names(batch: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Names of the items that do not fill up the end."""
    mask = batch.get("item_mask", [True] * len(batch["id"]))
    items = zip(batch["id"], batch["indexes"], mask, strict=True)
    return [name_of(id_, numbers) for id_, numbers, is_real in items if is_real]


class ConcatDataset:
    """Datasets one after another, as torch's."""

    def __getitem__(self, _index: int) -> Any:
        raise AssertionError("its items are made by workers")

    def __init__(self, *datasets: VideoDataset) -> None:
        self.datasets = datasets

    def __len__(self) -> int:
        return sum(map(len, self.datasets))


def dataset_of(data: str, path: str, **divided: Any) -> Any:
    """A dataset: windows, two random clips as one item, or both kinds of datasets joined."""
    random_clips = clips_at_random_indices(num_clips=9, num_frames_per_clip=FRAMES)
    if data == "windows":
        return VideoDataset(path, FRAMES, **divided)
    if data == "clips":
        return VideoDataset(path, clips=random_clips, clips_per_video=2, seed=8, **divided)
    return ConcatDataset(
        VideoDataset(path, FRAMES, 3, **divided), VideoDataset(path, clips=random_clips, seed=8, **divided)
    )


def located(dataset: Any, item: int, epoch: int) -> tuple[str, tuple[int, ...]]:
    for part in dataset.datasets if isinstance(dataset, ConcatDataset) else [dataset]:
        if item < len(part):
            return name_of(*part.locate(item, epoch))
        item -= len(part)
    raise AssertionError(item)


class Process:
    """One of the processes of a training, with its loader.

    Args:
        kind: How items are divided and loaded.
        data: Name of the dataset.
        path: The store.
        rank: Its number.
        world_size: Number of processes.
        batch_size: Items of a batch.
        workers: Workers of the loader.
        processes: Whether workers are processes, if the kind has a choice.
    """

    def __init__(
        self,
        kind: str,
        data: str,
        path: str,
        rank: int,
        world_size: int,
        batch_size: int,
        workers: int,
        *,
        processes: bool,
    ) -> None:
        divided = {"rank": rank, "world_size": world_size, "tail": "pad"} if kind in ("rank", "runs") else {}
        dataset = dataset_of(data, path, **divided)
        self.items = 0
        options: dict[str, Any] = {}
        if kind in ("elastic", "DataLoader", "StatefulDataLoader"):
            options["sampler"] = ElasticDistributedSampler(dataset, world_size, rank, seed=5)
        elif kind == "DistributedSampler":
            from torch.utils.data import DistributedSampler

            options["sampler"] = DistributedSampler(dataset, world_size, rank, seed=5)
        else:
            options |= {"shuffle": True, "seed": 5}
        if kind == "runs":
            options |= {"shuffle": "runs", "window_bytes": 2 * RUN_BYTES}
            loader_module.RUN_BYTES = RUN_BYTES
        self.sampler: Any = options.get("sampler")
        self.loader: Any
        if kind == "DataLoader":
            from torch.utils.data import DataLoader

            self.loader = DataLoader(dataset, batch_size, num_workers=workers if processes else 0, **options)
        elif kind == "StatefulDataLoader":
            from torchdata.stateful_dataloader import StatefulDataLoader

            self.loader = StatefulDataLoader(dataset, batch_size, num_workers=1, **options)
        else:
            self.loader = PrefetchLoader(dataset, batch_size, num_workers=workers, processes=processes, **options)
        self.kind = kind

    def load(self, state: Any) -> None:
        (self.sampler if self.kind == "DataLoader" else self.loader).load_state_dict(json.loads(json.dumps(state)))

    def state(self) -> Any:
        if self.kind == "DataLoader":
            return self.sampler.state_dict(self.items)
        return self.loader.state_dict()

    def begin(self, epoch: int) -> Iterator[Any]:
        """Begin the epoch, as a loop over epochs does: whoever has a `set_epoch` is told."""
        (self.loader if self.sampler is None else self.sampler).set_epoch(epoch)
        self.items = 0
        return iter(self.loader)

    def close(self) -> None:
        if isinstance(self.loader, PrefetchLoader):
            self.loader.close()


def order_of(kind: str, data: str, path: str, epoch: int, world_size: int) -> list[tuple[str, tuple[int, ...]]]:
    """The items of an epoch as one process alone sees them, by torch's own sampler where that is used; by runs for the processes
    with which it began.
    """
    dataset = dataset_of(data, path)
    if kind == "DistributedSampler":
        from torch.utils.data import DistributedSampler

        sampler = DistributedSampler(dataset, 1, 0, seed=5)
        sampler.set_epoch(epoch)
        order = list(sampler)
    elif kind == "runs":
        whole = JoinedDatasets(dataset.datasets) if isinstance(dataset, ConcatDataset) else dataset
        runs, total = whole.runs(np.arange(len(dataset)), RUN_BYTES)
        assert runs.max() > 3
        window = math.ceil(2 * RUN_BYTES * len(dataset) / total)
        order = run_order(runs, epoch, 5, world_size, window).tolist()
    else:
        order = np.random.default_rng((5, epoch)).permutation(len(dataset)).tolist()
    return [located(dataset, item, epoch) for item in order]


def kill_a_worker(rng: random.Random) -> None:
    if workers := children():
        workers[rng.randrange(len(workers))].kill()


def run(kind: str, path: str, rng: random.Random, say: Callable[[str], None]) -> None:
    """Train for some epochs, stop at random steps, and compare what was seen with the order."""
    epoch, state, seen = 0, None, list[tuple[str, tuple[int, ...]]]()
    data = rng.choice(["windows", "clips"] if kind in LISTS else ["windows", "clips", "joined"])
    say(data)
    begun_by = 0  # processes with which the epoch began
    while epoch < EPOCHS:
        world_size, batch_size, workers = rng.randint(1, 4), rng.randint(1, 7), rng.randint(1, 2)
        # The state of StatefulDataLoader wants the same number of workers and size of batches.
        batch_size = 4 if kind == "StatefulDataLoader" else batch_size
        processes = rng.random() < 0.3
        steps, kills = rng.choice([1, 2, 4, 1000]), 2  # a third one at the same item would be taken for its fault
        say(f"epoch {epoch}, {len(seen)} seen: {world_size} x {batch_size} by {workers}, {processes=}, {steps} steps")
        training = [
            Process(kind, data, path, rank, world_size, batch_size, workers, processes=processes)
            for rank in range(world_size)
        ]
        if state is not None:
            for process in training:
                process.load(state)
        while epoch < EPOCHS and steps:
            begun_by = begun_by if seen else world_size
            loops = [process.begin(epoch) for process in training]
            is_over = False
            while steps and not is_over:
                batches = [next(loop, None) for loop in loops]
                is_over = batches[0] is None
                assert all((batch is None) == is_over for batch in batches), "all processes have equally many batches"
                if is_over:
                    break
                steps -= 1
                for process, batch in zip(training, batches, strict=True):
                    process.items += len(batch["id"])
                if processes and kills and isinstance(training[0].loader, PrefetchLoader) and rng.random() < 0.2:
                    kill_a_worker(rng)
                    kills -= 1
                found = [names(batch) for batch in batches]
                seen += [each[slot] for slot in range(batch_size) for each in found if slot < len(each)]
            if is_over:
                order = order_of(kind, data, path, epoch, begun_by)
                filled = seen[len(order) :]
                assert seen[: len(order)] == order, "in the order of one process"
                assert filled == order[: len(filled)], "filled up with the first ones"
                assert len(filled) < 4
                epoch, seen = epoch + 1, []
        state = rng.choice(training).state()
        for process in training:
            process.close()
        if not seen:
            state = None if rng.random() < 0.5 else state


def main(path: str, count: int, seed: int, kinds: tuple[str, ...], say: Callable[[str], None] = lambda _: None) -> str:
    for number in range(count):
        kind = kinds[number % len(kinds)]
        say(f"run {number}: {kind}")
        run(kind, path, random.Random(seed * 1000 + number), say)
    return f"{count} trainings, every item once per epoch"


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else 0, OURS + OF_TORCH, print))
