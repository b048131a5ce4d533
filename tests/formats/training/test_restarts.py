"""Trainings over several processes: one order for all of them, which a restart continues whatever their number."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.formats.training import restarts
from tests.formats.training.loading import located, names
from tests.helpers import with_peers
from vidprep.formats import ElasticDistributedSampler, PrefetchLoader, VideoDataset, clips_at_random_indices
from vidprep.formats.errors import SettingsError
from vidprep.formats.training._order import epoch_order, run_order, share


@pytest.mark.parametrize("pads", [True, False])
@pytest.mark.parametrize(
    ("count", "seen", "world_size"), [(161, 0, 2), (161, 40, 4), (10, 9, 3), (10, 10, 3), (3, 1, 7)]
)
def test_processes_take_turns_in_what_is_left_of_an_order(count, seen, world_size, pads):
    order = epoch_order(count, 3, 1, shuffle=True)
    assert sorted(order.tolist()) == list(range(count))
    shares = [share(order, seen, rank, world_size, pads=pads) for rank in range(world_size)]
    assert len({len(items) for items, _ in shares}) == 1, "equally many for each"
    together = [int(items[place]) for place in range(len(shares[0][0])) for items, _ in shares]
    real = [int(items[place]) for place in range(len(shares[0][0])) for items, mask in shares if mask[place]]
    left = order[seen:].tolist()
    if pads:
        assert real == left
        assert together[len(left) :] == (order.tolist() * world_size)[: len(together) - len(left)]
    else:
        assert real == together == left[: len(left) // world_size * world_size]


@pytest.mark.parametrize(
    ("count", "world_size", "window"), [(5000, 4, 256), (1000, 3, 1), (17, 4, 100), (3000, 1, 640)]
)
def test_an_order_by_runs_has_every_item_once_and_moves_none_far(count, world_size, window):
    rng = np.random.default_rng(count)
    runs = np.unique(rng.integers(0, max(1, count // 50), count), return_inverse=True)[1]
    orders = [run_order(runs, epoch, 7, world_size, window) for epoch in range(3)]
    lengths = np.bincount(runs)
    for epoch, order in enumerate(orders):
        assert sorted(order.tolist()) == list(range(count))
        assert np.array_equal(order, run_order(runs, epoch, 7, world_size, window))
        least = count // world_size - 2 * int(lengths.max())
        for rank in range(world_size):
            own = runs[order[rank::world_size][: max(0, least)]]
            spans = [np.flatnonzero(own == run) for run in np.unique(own)]
            assert all(span[-1] - span[0] < len(span) + 2 * window for span in spans)
            assert window == 1 or not spans or max(span[-1] - span[0] for span in spans) > window // 2
    assert count < 100 or not np.array_equal(orders[0], orders[1])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_trainings_that_are_restarted_see_every_item_once_per_epoch(seed, store_of, monkeypatch):
    monkeypatch.setattr(restarts.loader_module, "RUN_BYTES", restarts.RUN_BYTES)  # which is undone after the test
    assert "6 trainings" in restarts.main(str(store_of("tensor")), 6, seed, restarts.OURS)


@pytest.mark.long
def test_trainings_with_samplers_and_loaders_of_torch_see_every_item_once_per_epoch(store_of):
    script = Path(restarts.__file__)
    assert "30 trainings" in with_peers(script, store_of("tensor"), 30, 3, needs=["torch", "torchdata"])


def test_a_state_of_one_process_is_that_of_all(store_of):
    """Also with batches of another size, which keeps the size of the global batch."""
    path = store_of("tensor")
    whole = VideoDataset(path, 2)
    order = located(whole, epoch_order(len(whole), 0, 4, shuffle=True).tolist())

    def loader(rank: int, world_size: int, batch_size: int) -> PrefetchLoader:
        dataset = VideoDataset(path, 2, rank=rank, world_size=world_size)
        return PrefetchLoader(dataset, batch_size, shuffle=True, seed=4, processes=False)

    with loader(1, 2, 8) as one:
        batches = iter(one)
        found = names([next(batches), next(batches)])
        state = json.loads(json.dumps(one.state_dict()))
    assert found == order[1:32:2]
    assert state["items_given"] == 32
    for rank in range(4):
        with loader(rank, 4, 4) as one:
            one.load_state_dict(state)
            assert names([next(iter(one))]) == order[32:][rank:16:4]


def test_the_tail_of_an_evaluation_is_marked(store_of):
    path = store_of("burst")
    whole = VideoDataset(path, 3)
    world_size = next(size for size in (3, 4, 5) if len(whole) % size)
    seen, marks = [], []
    for rank in range(world_size):
        part = VideoDataset(path, 3, rank=rank, world_size=world_size, tail="pad")
        assert len(part) == -(-len(whole) // world_size)
        items = [part[n] for n in range(len(part))]
        with PrefetchLoader(part, 4, processes=False) as loader:
            batches = list(loader)
        assert names(batches) == [(item["id"], int(item["indexes"][0])) for item in items]
        assert np.concatenate([batch["item_mask"] for batch in batches]).tolist() == [i["item_mask"] for i in items]
        seen += [(item["id"], int(item["indexes"][0])) for item in items if item["item_mask"]]
        marks += [item["item_mask"] for item in items]
    assert sorted(seen) == sorted(located(whole, range(len(whole)))), "each exactly once"
    assert marks.count(False) == -len(whole) % world_size
    with pytest.raises(SettingsError, match="tail is 'even'; give drop or pad"):
        VideoDataset(path, 3, tail="even")


class Told:
    """A sampler as torch's DistributedSampler of one process."""

    def __init__(self, count: int) -> None:
        self.count, self.epoch = count, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        return iter(np.random.default_rng(self.epoch).permutation(self.count).tolist())

    def __len__(self) -> int:
        return self.count


def test_an_epoch_that_was_set_is_the_one_that_is_played(store_of):
    path = store_of("tensor")
    dataset = VideoDataset(path, 2, crop=24, random_crop=True)

    def epochs(loader: PrefetchLoader, count: int) -> list[bytes]:
        return [b"".join(batch["frames"].tobytes() for batch in loader) for _ in range(count)]

    with PrefetchLoader(dataset, 4, sampler=Told(len(dataset)), processes=False) as loader:
        played = epochs(loader, 9)
    sampler, dataset = Told(len(dataset)), VideoDataset(path, 2, crop=24, random_crop=True)
    with PrefetchLoader(dataset, 4, sampler=sampler, processes=False) as loader:
        dataset.set_epoch(7)
        sampler.set_epoch(7)
        assert epochs(loader, 2) == played[7:], "and the one after it"
        sampler.set_epoch(2)
        assert epochs(loader, 2) == played[2:4]
        dataset.set_epoch(5)
        assert epochs(loader, 1) == played[5:6]
        dataset.set_epoch(5)
        next(iter(loader))
        dataset.set_epoch(5)
        assert epochs(loader, 1) == played[5:6], "again, from its first batch"
        loader.set_epoch(1)
        assert (loader.epoch, loader.state_dict()["epoch"], loader.state_dict()["items_given"]) == (1, 1, 0)
        assert epochs(loader, 1) == played[1:2]
        dataset.set_epoch(3)
        sampler.set_epoch(4)
        for _ in range(2):
            with pytest.raises(SettingsError, match=r"set_epoch\(3\) and the sampler's set_epoch\(4\) contradict"):
                iter(loader)
    dataset = VideoDataset(path, 2, crop=24, random_crop=True)
    dataset.set_epoch(6)  # before there is a loader
    with PrefetchLoader(dataset, 4, sampler=Told(len(dataset)), processes=False) as loader:
        assert epochs(loader, 1) == played[6:7]


class Chunks(Told):
    """A sampler that gives each process a part of the order, not every n-th item."""

    def __init__(self, count: int, num_replicas: int, rank: int) -> None:
        super().__init__(count)
        self.num_replicas, self.rank = num_replicas, rank

    def __iter__(self):
        return iter(np.array_split(list(super().__iter__()), self.num_replicas)[self.rank].tolist())

    def __len__(self) -> int:
        return len(list(iter(self)))


class Restless(Told):
    """A sampler that gives another order whenever it is asked, whatever the epoch."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._rng = np.random.default_rng(0)

    def __iter__(self):
        return iter(self._rng.permutation(self.count).tolist())


def test_orders_that_cannot_be_continued_are_refused(store_of):
    dataset = VideoDataset(store_of("tensor"), 2)
    count = len(dataset)

    def loader(sampler: Told) -> PrefetchLoader:
        return PrefetchLoader(dataset, 4, sampler=sampler, processes=False)

    with loader(Chunks(count, 2, 1)) as one:
        whole = names(one)
    with loader(Chunks(count, 2, 1)) as one:
        next(iter(one))
        state = one.state_dict()
    with loader(Chunks(count, 2, 1)) as one:
        one.load_state_dict(state)
        assert names(one) == whole[4:], "by as many processes"
    with loader(Chunks(count, 1, 0)) as one:
        one.load_state_dict(state)
        with pytest.raises(SettingsError, match="only be continued by 2 processes, as before"):
            iter(one)
    with loader(Restless(count)) as one:
        next(iter(one))
        state = one.state_dict()
    with loader(Restless(count)) as one:
        one.load_state_dict(state)
        with pytest.raises(SettingsError, match="gives another order whenever it is asked"):
            iter(one)


def test_a_state_that_is_loaded_after_a_later_epoch_was_set_does_not_undo_that():
    """As torchdata's StatefulDataLoader does it: it loads the state when its loop begins."""
    done = ElasticDistributedSampler(range(20))
    list(done)
    late = ElasticDistributedSampler(range(20))
    late.set_epoch(1)
    late.load_state_dict(done.state_dict())
    assert list(late) == epoch_order(20, 1, 0, shuffle=True).tolist()
    half = ElasticDistributedSampler(range(20)).state_dict(5)
    late.set_epoch(3)
    late.load_state_dict(half)
    assert list(late) == epoch_order(20, 0, 0, shuffle=True)[5:].tolist(), "a step back to what is not done yet"


def test_two_divisions_of_the_items_are_refused(store_of):
    part = VideoDataset(store_of("tensor"), 2, rank=0, world_size=2)
    with pytest.raises(SettingsError, match="ElasticDistributedSampler divides them again"):
        ElasticDistributedSampler(part, 2, 0)
    sampler = ElasticDistributedSampler(range(len(part)), 2, 0)
    with pytest.raises(SettingsError, match="leave out one of the two"):
        PrefetchLoader(part, 4, sampler=sampler, processes=False)
    with PrefetchLoader(part, 4, sampler=ElasticDistributedSampler(range(len(part)), 1, 0), processes=False) as loader:
        assert sorted(names(loader)) == sorted(located(part, range(len(part))))


def test_a_sampler_of_another_order_is_refused():
    sampler = ElasticDistributedSampler(range(20), 2, 1)
    assert (len(sampler), len(list(sampler))) == (10, 10)
    state = sampler.state_dict(3)
    assert state["items_given"] == 6
    for other, message in (
        (ElasticDistributedSampler(range(21)), "items 20, this sampler has 21"),
        (ElasticDistributedSampler(range(20), seed=1), "seed 0, this sampler has 1"),
        (ElasticDistributedSampler(range(20), shuffle=False), "shuffle True, this sampler has False"),
    ):
        with pytest.raises(SettingsError, match=message):
            other.load_state_dict(state)
    for wrong in ({}, None, state | {"epoch": -1}, state | {"items_given": 0.5}):
        with pytest.raises(SettingsError, match=r"is not the state of a sampler|give a whole number"):
            sampler.load_state_dict(wrong)
    alone = ElasticDistributedSampler(range(20))
    alone.load_state_dict(state)
    alone.set_epoch(0)
    assert len(alone) == 14
    assert list(alone) == epoch_order(20, 0, 0, shuffle=True)[6:].tolist()
    assert len(list(alone)) == 20, "the next loop is a whole one"
    with pytest.raises(SettingsError, match="rank is 2; with 2 processes"):
        ElasticDistributedSampler(range(20), 2, 2)


# What Lightning does: it makes the user's DataLoader again with a DistributedSampler of its dataset. What accelerate does:
# it lets each process take every n-th batch of the DataLoader's own batch sampler, and asks the dataset nothing.
HABITS = """
import sys, types, warnings
import torch.distributed as dist
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler, Subset
from vidprep.formats import ElasticDistributedSampler, PrefetchLoader, VideoDataset, clips_at_random_indices
from vidprep.formats.errors import SettingsError

path, rank, port = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def as_lightning(loader, world_size):
    sampler = loader.sampler
    if not isinstance(sampler, DistributedSampler):
        sampler = DistributedSampler(loader.dataset, world_size, 0, shuffle=False)
    return DataLoader(loader.dataset, loader.batch_size, sampler=sampler)

part = VideoDataset(path, 2, rank=0, world_size=2)
try:
    as_lightning(DataLoader(part, 4), 2)
    raise AssertionError("divided twice")
except SettingsError as error:
    assert "DistributedSampler divides them again" in str(error), error
assert len(as_lightning(DataLoader(part, 4), 1)) == len(DataLoader(part, 4)), "one process divides nothing"
whole = VideoDataset(path, 2)
again = as_lightning(DataLoader(whole, 4, sampler=ElasticDistributedSampler(whole, 2, 0)), 2)
assert type(again.sampler) is ElasticDistributedSampler, "left as it is"
half = Subset(whole, range(10))
with PrefetchLoader(half, 4, sampler=DistributedSampler(half, 2, 1), processes=False) as loader:
    assert sum(len(batch["id"]) for batch in loader) == 5
try:
    PrefetchLoader(Subset(part, range(10)), 4, sampler=DistributedSampler(range(10), 2, 0), processes=False)
    raise AssertionError("divided twice")
except SettingsError as error:
    assert "leave out one of the two" in str(error), error

dist.init_process_group("gloo", init_method="tcp://127.0.0.1:" + port, rank=rank, world_size=2)
class Shard:
    def __init__(self, batches):
        self.batches = batches
    def __iter__(self):
        return (batch for number, batch in enumerate(self.batches) if number % 2 == dist.get_rank())
def seen(dataset):
    batches = Shard(BatchSampler(SequentialSampler(dataset), 4, drop_last=False))
    return [(id_, int(n[0])) for batch in DataLoader(dataset, batch_sampler=batches) for id_, n in zip(batch["id"], batch["indexes"])]
sys.modules["accelerate"] = types.ModuleType("accelerate")
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    seen(VideoDataset(path, 2, rank=rank, world_size=2))
assert ["accelerate's prepare divides them again" in str(each.message) for each in told].count(True) == 1, told
with warnings.catch_warnings():
    warnings.simplefilter("error")
    found = [None, None]
    dist.all_gather_object(found, seen(whole))
    assert sorted(found[0] + found[1]) == sorted((i, int(n[0])) for i, n in map(whole.locate, range(len(whole))))
sampler = ElasticDistributedSampler(whole)
assert (sampler.rank, sampler.num_replicas) == (rank, 2), "asked from torch.distributed"
dist.destroy_process_group()
print("all well")
"""


@pytest.mark.long
def test_habits_of_lightning_and_accelerate_do_not_divide_twice(store_of, tmp_path):
    script = tmp_path / "habits.py"
    script.write_text(
        "import socket, subprocess, sys\n"
        "if len(sys.argv) == 2:\n"
        "    with socket.socket() as found:\n"
        "        found.bind(('127.0.0.1', 0))\n"
        "        port = str(found.getsockname()[1])\n"
        "    both = [subprocess.Popen([sys.executable, *sys.argv, str(rank), port]) for rank in range(2)]\n"
        "    sys.exit(max(each.wait(120) for each in both))\n" + HABITS
    )
    assert with_peers(script, store_of("tensor"), needs=["torch"]).count("all well") == 2


@pytest.mark.parametrize(("saved", "own"), [("runs", True), (True, "runs"), ("runs", False)])
def test_a_state_of_another_order_is_refused(saved, own, store_of):
    dataset = VideoDataset(store_of("tensor"), 2)
    with PrefetchLoader(dataset, 3, shuffle=saved, processes=False) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with (
        PrefetchLoader(dataset, 3, shuffle=own, processes=False) as other,
        pytest.raises(SettingsError, match="the state was saved with"),
    ):
        other.load_state_dict(state)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_state_of_a_sampler_restores_the_clips_in_torchs_loader(num_workers, store_of):
    """It restored the videos, and other windows of them."""
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    clips = clips_at_random_indices(num_clips=3, num_frames_per_clip=2)

    def opened(seed: int) -> tuple[VideoDataset, ElasticDistributedSampler]:
        torch.manual_seed(seed)
        dataset = VideoDataset(store_of("tensor"), clips=clips)
        return dataset, ElasticDistributedSampler(dataset)

    def batches(dataset: VideoDataset, sampler: ElasticDistributedSampler) -> list[tuple[list[str], list[int]]]:
        loader = DataLoader(dataset, 2, sampler=sampler, num_workers=num_workers)
        return [(list(batch["id"]), batch["indexes"][:, 0].tolist()) for batch in loader]

    dataset, sampler = opened(0)
    epochs = [batches(dataset, sampler) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2], "epochs are counted"
    for epoch, played in enumerate(epochs):
        dataset, sampler = opened(1)
        sampler.load_state_dict({"epoch": epoch, "items_given": 4, **sampler._identity()})
        assert batches(dataset, sampler) == played[2:]
        if epoch < 2:
            assert batches(dataset, sampler) == epochs[epoch + 1]
        dataset, sampler = opened(2)
        sampler.set_epoch(epoch)
        assert batches(dataset, sampler) == played
    dataset, sampler = opened(3)
    dataset.set_epoch(5)
    assert batches(dataset, sampler) != epochs[0], "what the program sets counts"
