"""The second epoch has other crops than the first, whoever starts the workers, and the same program has the same epochs."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tests.helpers import with_peers
from vidprep.formats import PrefetchLoader, VideoDataset
from vidprep.formats.errors import SettingsError

CROPS = {"crop": 24, "random_crop": True, "flip": True}

# Each item is cut out of the whole sequence again, so what is compared is where crops lie, not what is in them.
EPOCHS = """
import itertools, sys, zlib, torch
from torch.utils.data import DataLoader
from vidprep.formats import VideoDataset

def epochs(dataset, count=3, told=False, **how):
    loader, found = DataLoader(dataset, 4, **how), []
    for epoch in range(count):
        if told:
            dataset.set_epoch(epoch)
        found.append([zlib.crc32(frames.numpy().tobytes()) for batch in loader for frames in batch["frames"]])
    return found

def changed(one, other):
    return sum(a != b for a, b in zip(one, other, strict=True)) / len(one)

if __name__ == "__main__":
    path = sys.argv[1]
    modes = [dict(num_workers=0)] + [dict(num_workers=2, multiprocessing_context=how, persistent_workers=stay)
             for how in ("fork", "spawn") for stay in (False, True)]
    made = lambda seed=0: VideoDataset(path, 2, step=3, crop=24, random_crop=True, flip=True, seed=seed)
    sure = None
    for mode in modes:
        torch.manual_seed(5)
        first = epochs(made(), **mode)
        assert all(changed(a, b) > 0.9 for a, b in itertools.combinations(first, 2)), mode
        torch.manual_seed(5)
        assert epochs(made(), **mode) == first, ("the same seeds, the same run", mode)
        told = epochs(made(1), 3, True, **mode)
        assert all(changed(a, b) > 0.9 for a, b in itertools.combinations(told, 2)), ("set_epoch reaches the workers", mode)
        sure = sure or told
        assert told == sure, ("set_epoch makes it the same in any mode", mode)
        assert changed(epochs(made(2), 1, True, **mode)[0], told[0]) > 0.9, mode
    print(len(modes), "modes")
"""


@pytest.mark.long
def test_epochs_differ_under_torch_in_all_modes(store_of, tmp_path):
    script = tmp_path / "epochs.py"  # spawn needs a file
    script.write_text(EPOCHS)
    assert "5 modes" in with_peers(script, store_of("tensor"), needs=["torch"])


@pytest.mark.parametrize("processes", [True, False])
def test_epochs_differ_in_our_loader_and_are_those_of_the_seed(processes, store_of):
    dataset = VideoDataset(store_of("tensor"), 2, step=3, **CROPS)
    runs = []
    for _ in range(2):
        with PrefetchLoader(dataset, 4, processes=processes) as loader:
            runs.append([np.concatenate([batch["frames"] for batch in loader]) for _ in range(3)])
    assert all(np.array_equal(a, b) for a, b in zip(*runs, strict=True))
    for one, other in ((0, 1), (1, 2), (0, 2)):
        same = sum(np.array_equal(a, b) for a, b in zip(runs[0][one], runs[0][other], strict=True))
        assert same < 0.1 * len(dataset)


def test_an_item_that_is_asked_for_twice_is_drawn_twice_until_an_epoch_is_set(store_of):
    dataset = VideoDataset(store_of("tensor"), 2, **CROPS)
    assert dataset.epoch is None
    assert sum(np.array_equal(dataset[n]["frames"], dataset[n]["frames"]) for n in range(20)) < 3
    dataset.set_epoch(4)
    assert all(np.array_equal(dataset[n]["frames"], dataset[n]["frames"]) for n in range(20))
    with pytest.raises(SettingsError, match="epoch is -1"):
        dataset.set_epoch(-1)


# ------------------------------------------------------------------------------------------------ going on in the middle


class Drawn:
    """A sampler as torch's SubsetRandomSampler: another order whenever it is asked."""

    def __init__(self, count: int) -> None:
        self._count, self._rng = count, np.random.default_rng(3)

    def __iter__(self):
        return iter(self._rng.permutation(self._count).tolist())

    def __len__(self) -> int:
        return self._count


class Distributed(Drawn):
    """A sampler as torch's DistributedSampler: the order is a function of the epoch."""

    def set_epoch(self, epoch: int) -> None:
        self._rng = np.random.default_rng(epoch)


def ids_of(batches) -> list[tuple[str, list[int]]]:
    return [
        (id_, numbers.tolist()) for batch in batches for id_, numbers in zip(batch["id"], batch["indexes"], strict=True)
    ]


@pytest.mark.parametrize("kind", [Drawn, Distributed])
def test_a_state_goes_on_in_the_order_of_its_sampler(kind, store_of):
    dataset = VideoDataset(store_of("tensor"), 2, step=4)
    with PrefetchLoader(dataset, 3, sampler=kind(len(dataset)), processes=False) as loader:
        list(loader)
        epoch = iter(loader)
        begun = [next(epoch) for _ in range(2)]
        state = loader.state_dict()
        rest = ids_of(epoch)
    assert ("order" in state) == (kind is Drawn)
    with PrefetchLoader(dataset, 3, sampler=kind(len(dataset)), processes=False) as again:
        again.load_state_dict(state)
        assert again.state_dict() == state, "also before a batch was asked for"
        assert ids_of(again) == rest
        assert sorted(map(str, ids_of(begun) + rest)) == sorted(map(str, ids_of(again))), (
            "the next epoch is a whole one"
        )


def test_a_state_without_the_order_is_refused(store_of):
    dataset = VideoDataset(store_of("tensor"), 2, step=4)
    with PrefetchLoader(dataset, 3, processes=False) as plain:
        next(iter(plain))
        state = plain.state_dict()
    with PrefetchLoader(dataset, 3, sampler=Drawn(len(dataset)), processes=False) as loader:
        with pytest.raises(SettingsError, match="saved with sampler None, this loader has Drawn"):
            loader.load_state_dict(state)
        next(iter(loader))
        drawn = loader.state_dict()
        with pytest.raises(SettingsError, match="the sampler gives 99999"):
            loader.load_state_dict(drawn | {"order": [99999]})
        with pytest.raises(SettingsError, match="the state has no order of the epoch"):
            loader.load_state_dict({name: value for name, value in drawn.items() if name != "order"})
    with (
        PrefetchLoader(dataset, 3, processes=False) as plain,
        pytest.raises(SettingsError, match="saved with sampler Drawn, this loader has None"),
    ):
        plain.load_state_dict(drawn)
    one, two = (VideoDataset(store_of("tensor"), 2, step=4, ids=[dataset.ids[n]]) for n in (0, 2))
    with (
        PrefetchLoader(two, 3, processes=False) as loader,
        pytest.raises(SettingsError, match=r"saved with (items|videos)"),
    ):
        loader.load_state_dict(PrefetchLoader(one, 3, processes=False).state_dict())
    with (
        PrefetchLoader(dataset, 3, processes=False) as loader,
        pytest.raises(SettingsError, match="which divided items among processes in another order"),
    ):
        loader.load_state_dict({"epoch": 1, "batches_given": 3})


OF_TORCH = """
import sys, torch
from torch.utils.data import RandomSampler, Subset, SubsetRandomSampler, random_split
from torchdata.stateful_dataloader import StatefulDataLoader
from vidprep.formats import PrefetchLoader, VideoDataset

def names(batches):
    return [(id_, int(numbers[0])) for batch in batches for id_, numbers in zip(batch["id"], batch["indexes"])]

def crops(batches):
    return [frames.numpy().tobytes() for batch in batches for frames in torch.as_tensor(batch["frames"])]

if __name__ == "__main__":
    dataset = VideoDataset(sys.argv[1], 2, step=3, crop=24, random_crop=True)
    train, val = random_split(dataset, [0.75, 0.25], generator=torch.Generator().manual_seed(1))
    for part in (train, val, Subset(train, range(5, 15)), Subset(dataset, [3, 1, 2])):
        with PrefetchLoader(part, 4, processes=False) as loader:
            found = names(loader)
        assert found == names(torch.utils.data.DataLoader(part, 4)) and len(found) == len(part)
    with PrefetchLoader(train, 4, shuffle=True, num_workers=1) as loader:
        assert sorted(names(loader)) == sorted(names(torch.utils.data.DataLoader(train, 4)))
    for sampler in (RandomSampler(train), SubsetRandomSampler(range(7)), RandomSampler(train, replacement=True, num_samples=9)):
        with PrefetchLoader(train, 4, sampler=sampler, processes=False) as loader:
            assert len(names(loader)) == len(sampler)

    def stateful(state=None, workers=2):
        dataset.set_epoch(1)
        torch.manual_seed(2)
        loader = StatefulDataLoader(dataset, 4, shuffle=True, num_workers=workers)
        if state:
            loader.load_state_dict(state)
        return loader
    for workers in (0, 2):
        loader = stateful(None, workers)
        batches = iter(loader)
        [next(batches) for _ in range(3)]
        state = loader.state_dict()
        rest = list(batches)
        again = list(stateful(state, workers))
        assert rest and names(again) == names(rest) and crops(again) == crops(rest)
    print("all well")
"""


@pytest.mark.long
def test_subsets_samplers_and_the_stateful_loader_of_torch(store_of, tmp_path):
    script = tmp_path / "of_torch.py"
    script.write_text(OF_TORCH)
    assert "all well" in with_peers(script, store_of("tensor"), needs=["torch", "torchdata"])


def test_invalid_arguments_of_a_loader_are_reported(store_of):
    dataset = VideoDataset(store_of("tensor"), 2, step=3)
    with pytest.raises(SettingsError, match=r"is no VideoDataset, (?s:.*) Several stores are VideoDataset"):
        PrefetchLoader([dataset], 4)
    with pytest.raises(SettingsError, match="workers and num_workers mean the same"):
        PrefetchLoader(dataset, 4, workers=1, num_workers=2)
    with PrefetchLoader(dataset, 4, num_workers=0) as loader:
        assert sum(len(batch["id"]) for batch in loader) == len(dataset)
    for indices in ([1, 99999], [0.5], []):
        with pytest.raises(SettingsError, match=f"are not numbers of items, 0 to {len(dataset) - 1}"):
            PrefetchLoader(SimpleNamespace(dataset=dataset, indices=indices), 4)
    with PrefetchLoader(dataset, 4, sampler=[], processes=False) as loader:
        assert list(loader) == []
    assert "batches of 4 by 3 workers from <VideoDataset" in repr(
        PrefetchLoader(dataset, 4, num_workers=3, processes=False)
    )
