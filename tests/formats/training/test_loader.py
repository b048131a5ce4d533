"""PrefetchLoader: order, content, resuming, and what is decoded once."""

from __future__ import annotations

import json
import random
import threading
import time
from itertools import islice

import numpy as np
import pytest

from tests.formats.training.loading import BOTH, FRAME, located, names
from tests.helpers import open_files
from tests.sampling import in_turn
from vidprep.formats import PrefetchLoader, VideoDataset, open_store
from vidprep.formats.errors import SettingsError
from vidprep.formats.storage.local import memory_bytes
from vidprep.formats.stores.encoded import RgbRows
from vidprep.formats.training._worker import FrameCache


@pytest.mark.parametrize(
    ("kind", "processes", "cache_frames"),
    in_turn(
        [
            ("burst", False, 100),
            ("burst", True, 100_000),
            ("h264", True, 100),
            ("h264", False, 100_000),
            ("tensor", False, 100),
            ("webdataset", False, 100_000),
            ("gulp", False, 100),
        ],
        2,
    ),
)
def test_an_epoch_is_every_sequence_once_in_a_known_order(kind, processes, cache_frames, store_of):
    dataset = VideoDataset(store_of(kind), 4, 2)
    store = open_store(store_of(kind))
    with PrefetchLoader(
        dataset, 3, shuffle=True, seed=9, workers=3, processes=processes, cache_bytes=cache_frames * FRAME
    ) as loader:
        assert len(loader) == -(-len(dataset) // 3)
        orders = []
        for _ in range(3):
            seen = []
            for batch in loader:
                assert batch["frames"].shape == (len(batch["id"]), 4, 64, 96, 3)
                for id_, numbers, frames in zip(batch["id"], batch["indexes"], batch["frames"], strict=True):
                    assert np.array_equal(frames, store[id_].frames(numbers))
                assert batch["labels"] == {"label": ["sub"] * len(batch["id"])}
                assert batch["timestamps"].shape == (len(batch["id"]), 4)
                seen.append(batch)
            orders.append(names(seen))
    every = sorted(located(dataset, range(len(dataset))))
    assert all(sorted(order) == every for order in orders)
    assert orders[0] != orders[1] != orders[2]
    with PrefetchLoader(dataset, 3, shuffle=True, seed=9, workers=1, processes=False) as again:
        assert names(again) == orders[0]
        assert names(again) == orders[1]
    with PrefetchLoader(dataset, 3, shuffle=True, seed=10, workers=1, processes=False) as other:
        assert names(other) != orders[0]


@BOTH
def test_transforms_are_those_of_the_dataset(processes, store_of):
    options = {"crop": (40, 56), "random_crop": True, "flip": True, "dtype": "float32", "normalize": True, "size": 70}
    dataset = VideoDataset(store_of("h264"), 4, **options)
    with PrefetchLoader(dataset, 5, shuffle=True, processes=processes) as loader:
        for epoch in range(2):
            dataset.set_epoch(epoch)
            at = {located(dataset, [n])[0]: n for n in range(len(dataset))}
            for batch in loader:
                for name, frames in zip(names([batch]), batch["frames"], strict=True):
                    assert np.array_equal(frames, dataset[at[name]]["frames"])


def test_a_plain_order_drop_last_and_a_sampler(store_of):
    dataset = VideoDataset(store_of("burst"), 6)
    count = len(dataset)
    with PrefetchLoader(dataset, 7, drop_last=True, processes=False) as loader:
        assert names(loader) == located(dataset, range(count // 7 * 7))
        assert len(loader) == count // 7

    class Sampler:
        def __init__(self):
            self.epochs = []

        def set_epoch(self, epoch):
            self.epochs.append(epoch)

        def __iter__(self):
            return iter([5, 5, 3, self.epochs[-1]])

    sampler = Sampler()
    with PrefetchLoader(dataset, 3, sampler=sampler, processes=False) as loader:
        assert names(loader) == located(dataset, [5, 5, 3, 0])
        assert names(loader) == located(dataset, [5, 5, 3, 1])
    assert sampler.epochs == [0, 1]


@BOTH
def test_a_loop_that_is_left_is_continued_by_the_next_one_as_after_a_resume(processes, store_of):
    dataset = VideoDataset(store_of("burst"), 4)
    with PrefetchLoader(dataset, 4, shuffle=True, processes=processes) as loader:
        epochs = [names(loader) for _ in range(4)]
    with PrefetchLoader(dataset, 4, shuffle=True, processes=processes) as loader:
        left = iter(loader)
        assert names([next(left), next(left)]) == epochs[0][:8]
        state = loader.state_dict()
        assert names(loader) == epochs[0][8:]
        with pytest.raises(SettingsError, match="a newer iteration over this loader began"):
            next(left)
        assert names(loader) == epochs[1]
        for batch in loader:
            assert names([batch]) == epochs[2][:4]
            break
        loader.set_epoch(2)
        assert (loader.epoch, names(loader)) == (2, epochs[2]), "set, so from its first batch"
        next(iter(loader))
        loader.set_epoch(1)
        assert [names(loader) for _ in range(3)] == epochs[1:]
    with PrefetchLoader(dataset, 4, shuffle=True, processes=processes) as again:
        again.load_state_dict(state)
        again.set_epoch(0)
        assert names(again) == epochs[0][8:], "the epoch of the state, as loops over epochs set it"
        assert names(again) == epochs[1]


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_loop_that_is_left_after_its_last_batch_is_followed_by_the_next_epoch(drop_last, store_of):
    dataset = VideoDataset(store_of("tensor"), 2)
    options = {"shuffle": True, "drop_last": drop_last, "processes": False}
    with PrefetchLoader(dataset, 7, **options) as loader:
        epochs = [names(loader) for _ in range(3)]
    with PrefetchLoader(dataset, 7, **options) as loader:
        assert [names(islice(loader, len(loader))) for _ in range(3)] == epochs
    with PrefetchLoader(dataset, 7, **options) as loader:
        names(islice(loader, len(loader)))
        state = loader.state_dict()
    for is_told in (False, True):
        with PrefetchLoader(dataset, 7, **options) as again:
            again.load_state_dict(state)
            if is_told:
                again.set_epoch(0)
                assert names(again) == [], "nothing is left of the epoch that the loop asks for"
            assert names(again) == epochs[1]


@BOTH
def test_a_loop_without_shuffling_begins_with_the_first_item(processes, store_of):
    dataset = VideoDataset(store_of("burst"), 4)
    with PrefetchLoader(dataset, 4, processes=processes) as loader:
        first = names([next(iter(loader))])
        assert names(loader) == located(dataset, range(len(dataset)))
        assert first == located(dataset, range(4))


@pytest.mark.long
@pytest.mark.parametrize(("given", "processes"), in_turn([(0, False), (1, False), (5, True), (12, False)], 2))
def test_a_state_goes_on_where_it_was_saved(given, processes, store_of):
    dataset = VideoDataset(store_of("burst"), 4, 2, crop=32, random_crop=True)
    options = {"batch_size": 4, "shuffle": True, "seed": 3, "processes": processes}
    with PrefetchLoader(dataset, **options) as loader:
        whole = [[(batch["frames"].tobytes(), names([batch])) for batch in loader] for _ in range(3)]
    with PrefetchLoader(dataset, **options) as loader:
        first = [batch["frames"].tobytes() for batch in loader]
        running = iter(loader)
        for _ in range(given):
            next(running)
        state = json.loads(json.dumps(loader.state_dict()))
    assert first == [frames for frames, _ in whole[0]]
    with PrefetchLoader(dataset, **options) as loader:
        loader.load_state_dict(state)
        loader.set_epoch(1)
        assert [(batch["frames"].tobytes(), names([batch])) for batch in loader] == whole[1][given:]
        assert [(batch["frames"].tobytes(), names([batch])) for batch in loader] == whole[2]
        loader.load_state_dict(state)
        loader.set_epoch(1)
        assert names(loader) == [name for _, batch in whole[1][given:] for name in batch]


def test_a_state_of_other_batches_is_refused(store_of):
    dataset = VideoDataset(store_of("burst"), 4)
    state = PrefetchLoader(dataset, 4, shuffle=True, seed=3, processes=False).state_dict()
    cropped = PrefetchLoader(VideoDataset(store_of("burst"), 4, crop=32), 4, shuffle=True, seed=3, processes=False)
    with pytest.raises(SettingsError, match=r"saved with transform .*crop=None"):
        cropped.load_state_dict(state)
    for wrong in (None, {}, state | {"epoch": -1}, state | {"items_given": 1.5}, state | {"items_given": 10**9}):
        with pytest.raises(
            SettingsError, match=r"is not the state of a loader|give a whole number|an epoch of this loader has"
        ):
            PrefetchLoader(dataset, 4, shuffle=True, seed=3, processes=False).load_state_dict(wrong)
    for other in ({"seed": 4}, {"shuffle": False}):
        loader = PrefetchLoader(dataset, **({"batch_size": 4, "shuffle": True, "seed": 3, "processes": False} | other))
        with pytest.raises(SettingsError, match=next(iter(other))):
            loader.load_state_dict(state)


def test_frames_decoded_once_serve_every_request(store_of, monkeypatch):
    """Overlapping sequences in random order want each frame up to 8 times; with room for all, each is made once."""
    made: list[int] = []
    write = RgbRows.write
    monkeypatch.setattr(RgbRows, "write", lambda self, *args: (made.append(1), write(self, *args))[1])
    dataset = VideoDataset(store_of("h264"), 8)
    frames = int(dataset.store.sizes()[:, 0].sum())
    with PrefetchLoader(dataset, 4, shuffle=True, workers=1, processes=False) as loader:
        assert len(names(loader)) * 8 > 5 * frames
        assert len(made) == frames
        names(loader)
        assert len(made) == frames, "the next epoch finds all of them"
    made.clear()
    for index in range(len(dataset)):
        _ = dataset[index]
    one_by_one = len(made)
    made.clear()
    # Room for a third of the frames, beside the least of batches.
    cache_bytes = 3 * 4 * 8 * FRAME + frames // 3 * FRAME + 3 * 4096
    with PrefetchLoader(dataset, 4, shuffle=True, workers=1, processes=False, cache_bytes=cache_bytes) as loader:
        assert len(names(loader)) == len(dataset)
    assert len(made) < 0.6 * one_by_one


def test_the_cache_is_optimal():
    """Against Belady's rule counted out: of what is kept and what comes, that goes whose next use is farthest."""
    rng = random.Random(4)
    for room in (1, 3, 8, 20):
        order = [rng.randrange(30) for _ in range(600)]
        cache, misses = FrameCache(room * 12), 0
        for position, number in enumerate(order):
            cache.announce(("v", number), position)
        for number in order:
            found = cache.take(("v", number))
            if found is None:
                misses += 1
                place = cache.place(("v", number), (2, 2, 3))
                if place is not None:
                    place[...] = number
            else:
                assert (found == number).all()
            assert cache.size_bytes <= room * 12
        kept: set[int] = set()
        due = 0
        for position, number in enumerate(order):
            if number in kept:
                continue
            due += 1
            kept.add(number)
            if len(kept) > room:
                rest = order[position + 1 :]
                kept.remove(max(kept, key=lambda one: rest.index(one) if one in rest else len(rest)))
        assert misses == due


@BOTH
def test_memory_stays_within_its_bound(processes, store_of, tmp_path):
    """A consumer that never comes back for more, and one that is slow."""
    dataset = VideoDataset(store_of("tensor"), 8)
    cache_bytes, said = 150 * FRAME, tmp_path / "events"
    with PrefetchLoader(dataset, 4, shuffle=True, processes=processes, cache_bytes=cache_bytes, events=said) as loader:
        for _ in range(2):
            for number, _ in enumerate(loader):
                if number % 5 == 0:
                    time.sleep(0.05)
        arena = loader._places * loader._batch_bytes
    told = [line for line in map(json.loads, said.read_text().splitlines()) if line["event"] == "batch"]
    assert max(line["cache_bytes"] for line in told) + arena <= cache_bytes
    assert max(line["cache_bytes"] for line in told) > 0.5 * (cache_bytes - arena), "and it is used"


def test_too_small_a_cache_is_refused_with_the_needed_size(store_of):
    dataset = VideoDataset(store_of("burst"), 8)
    with pytest.raises(SettingsError, match=r"3 batches of 1,179,648 bytes must fit: give 3,538,944 or more"):
        PrefetchLoader(dataset, 8, cache_bytes=1_000_000)
    with pytest.raises(SettingsError, match="no full batch of 1000"):
        PrefetchLoader(dataset, 1000, drop_last=True)
    with pytest.raises(SettingsError, match="give one of them"):
        PrefetchLoader(dataset, 2, shuffle=True, sampler=[1])
    for options, said in (
        ({"workers": 0}, "workers is 0"),
        ({"batch_size": "4"}, "batch_size is '4'; give a whole number, 1 or more"),
        ({"seed": -1}, "seed is -1"),
        ({"sampler": 5}, "sampler is 5"),
        ({"sampler": iter([1, 2])}, "again in each epoch"),
    ):
        with pytest.raises(SettingsError, match=said):
            PrefetchLoader(dataset, **options)
    with pytest.raises(SettingsError, match="is no VideoDataset"):
        PrefetchLoader(store_of("burst"), 2)
    for sampler, said in (
        ([0, 10**6], "the sampler gives 1000000"),
        ([[0, 1], [2]], r"the sampler gives \[0, 1\]"),
        ([0, -1], "gives -1"),
    ):
        with (
            PrefetchLoader(dataset, 2, sampler=sampler, processes=False) as loader,
            pytest.raises(SettingsError, match=said),
        ):
            iter(loader)


def test_missing_shared_memory_is_reported_with_the_remedy(store_of):
    with pytest.raises(
        SettingsError,
        match=r"3 batches need [0-9,]+ bytes of shared memory, and .* smaller batch_size, processes=False",
    ):
        PrefetchLoader(VideoDataset(store_of("burst"), 8), 1 << 22, cache_bytes=1 << 60)


def test_less_shared_memory_than_cache_bytes_makes_fewer_batches_in_advance(store_of, monkeypatch):
    dataset = VideoDataset(store_of("burst"), 8)
    monkeypatch.setattr("vidprep.formats.training.loader.free_shared_memory", lambda: 5 * 4 * 8 * FRAME)
    with pytest.warns(UserWarning, match=r"is room for 5 batches instead of the 16 that cache_bytes.*--shm-size"):
        loader = PrefetchLoader(dataset, 4)
    with loader:
        assert names(loader) == located(dataset, range(len(dataset)))
    with PrefetchLoader(dataset, 4, processes=False) as loader:  # threads share all memory anyway
        assert names(loader) == located(dataset, range(len(dataset)))


@BOTH
def test_batches_that_are_kept_stay_as_they_were(processes, store_of):
    dataset = VideoDataset(store_of("tensor"), 4)
    with PrefetchLoader(dataset, 4, cache_bytes=8 * 4 * 4 * FRAME, processes=processes) as loader:
        kept = [(batch["frames"], batch["frames"].copy()) for batch in loader]
        kept += [(batch["frames"], batch["frames"].copy()) for batch in loader]
    assert len(kept) > 30
    assert all(np.array_equal(now, then) for now, then in kept), "also after the loader is closed"


@BOTH
def test_memory_is_flat_over_epochs(processes, store_of):
    dataset = VideoDataset(store_of("h264"), 4, 1, 4)
    with PrefetchLoader(dataset, 4, shuffle=True, processes=processes, cache_bytes=200 * FRAME) as loader:
        seen = []
        for epoch in range(51):
            for _ in loader:
                pass
            if epoch in (3, 50):
                seen.append((memory_bytes(), len(open_files()), threading.active_count()))
    (early, files, threads), (late, later_files, later_threads) = seen
    assert late - early < 4_000_000
    assert later_files <= files
    assert later_threads == threads
