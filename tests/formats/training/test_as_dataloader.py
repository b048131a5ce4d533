"""PrefetchLoader takes what torch's DataLoader takes: joined datasets, samplers of batches, functions that make batches."""

from __future__ import annotations

import contextlib
import gc
import json
import random

import numpy as np
import pytest

from tests.formats.training.loading import BOTH, names
from tests.helpers import with_peers
from vidprep.formats import (
    ElasticDistributedSampler,
    PrefetchLoader,
    VideoDataset,
    clips_at_random_indices,
    pad_collate,
    sample_fps,
)
from vidprep.formats.errors import SettingsError
from vidprep.transcode import burst

RANDOM = clips_at_random_indices(num_frames_per_clip=4)


class ConcatDataset:
    """As torch's keeps its parts."""

    def __init__(self, datasets) -> None:
        self.datasets = list(datasets)

    def __getitem__(self, _index):
        raise AssertionError("its items are made by workers")


def Joined(*datasets) -> ConcatDataset:
    return ConcatDataset(datasets)


class Part:
    """As torch's Subset keeps its items."""

    def __init__(self, dataset, indices) -> None:
        self.dataset, self.indices = dataset, indices


class Buckets:
    """Batches of several sizes, in another order whenever it is asked."""

    def __init__(self, count: int) -> None:
        self._count, self._rng = count, random.Random(3)

    def __iter__(self):
        return self._batches(self._rng)

    def _batches(self, rng: random.Random):
        left = rng.sample(range(self._count), self._count)
        while left:
            size = rng.randint(1, 5)
            yield left[:size]
            left = left[size:]


class EpochBuckets(Buckets):
    """The same, as a function of the epoch."""

    batch_size = 5

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        return self._batches(random.Random(getattr(self, "epoch", 0)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def items_of(batches) -> list[tuple[str, bytes]]:
    return [
        (id_, frames.tobytes()) for batch in batches for id_, frames in zip(batch["id"], batch["frames"], strict=True)
    ]


@BOTH
@pytest.mark.parametrize("shuffle", [True, "runs"])
def test_joined_datasets_keep_their_clips_and_transforms(processes, shuffle, store_of):
    parts = [
        VideoDataset(store_of("h264"), 4, 2, crop=40),
        VideoDataset(store_of("burst"), clips=RANDOM, crop=40, random_crop=True, flip=0.5, seed=4),
        VideoDataset(store_of("h264"), 4, size=(40, 40)),
    ]
    joined = Joined(Joined(parts[0], Part(parts[1], [3, 1])), parts[2])
    with PrefetchLoader(joined, 3, shuffle=shuffle, processes=processes, workers=2) as loader:
        for epoch in range(2):
            for part in parts:
                part.set_epoch(epoch)
            expected = [parts[0][n] for n in range(len(parts[0]))]
            expected += [parts[1][n] for n in (3, 1)] + [parts[2][n] for n in range(len(parts[2]))]
            assert len(loader) == -(-len(expected) // 3)
            found = items_of(loader)
            assert sorted(found) == sorted((item["id"], item["frames"].tobytes()) for item in expected)


def test_joined_datasets_of_other_shapes_are_refused_or_padded(store_of):
    small, large = (VideoDataset(store_of("burst"), 2, crop=crop) for crop in (24, 40))
    with pytest.raises(SettingsError, match="cannot be stacked"):
        PrefetchLoader(Joined(small, large), 3)
    with PrefetchLoader(Joined(small, large), 3, collate="pad", shuffle=True, processes=False) as loader:
        shapes = {tuple(shape) for batch in loader for shape in batch["frames_shape"].tolist()}
    assert shapes == {(2, 24, 24, 3), (2, 40, 40, 3)}
    floats = VideoDataset(store_of("burst"), 2, crop=24, dtype="float32")
    with pytest.raises(SettingsError, match=r"different dtype: uint8 of .*, float32 of"):
        PrefetchLoader(Joined(small, floats), 3)


@pytest.mark.parametrize("shuffle", [True, "runs"])
def test_ranks_of_joined_datasets_see_every_item_once_and_their_states_are_of_all(shuffle, store_of):
    def loader(rank, world_size):
        divided = {"rank": rank, "world_size": world_size, "tail": "pad"}
        parts = [VideoDataset(store_of(kind), 4, stride, **divided) for kind, stride in (("h264", 3), ("burst", 1))]
        return PrefetchLoader(Joined(*parts), 3, shuffle=shuffle, processes=False)

    def real(batch):
        return [name for name, kept in zip(names([batch]), batch["item_mask"], strict=True) if kept]

    whole = [VideoDataset(store_of("h264"), 4, 3), VideoDataset(store_of("burst"), 4)]
    every = [(id_, int(numbers[0])) for one in whole for id_, numbers in map(one.locate, range(len(one)))]
    for world_size in (2, 3, 5):
        with contextlib.ExitStack() as opened:
            loaders = [opened.enter_context(loader(rank, world_size)) for rank in range(world_size)]
            loops = [iter(each) for each in loaders]
            seen = [name for loop in loops for name in real(next(loop))]
            state = loaders[1].state_dict()
        for rank in range(world_size + 1):
            with loader(rank, world_size + 1) as other:
                other.load_state_dict(state)
                seen += [name for batch in other for name in real(batch)]
        assert sorted(seen) == sorted(every)


def test_parts_that_do_not_fit_together_are_refused(store_of):
    whole, part = VideoDataset(store_of("burst"), 4), VideoDataset(store_of("burst"), 4, rank=0, world_size=2)
    for dataset, options, said in (
        (Joined(whole, part), {}, "different rank or world_size"),
        (Joined(part, Part(part, [0, 1])), {}, "not divided equally"),
        (Joined(whole, VideoDataset(store_of("burst"), 3)), {"collate": "pad"}, "different numbers of frames"),
    ):
        with pytest.raises(SettingsError, match=said):
            PrefetchLoader(dataset, 2, **options)

    class Pairs(ConcatDataset):
        """Two clips at a time: no concatenation, though it keeps datasets."""

        def __getitem__(self, index):
            return [each[index] for each in self.datasets]

    with pytest.raises(SettingsError, match="is no VideoDataset"):
        PrefetchLoader(Pairs([whole, whole]), 2)


@BOTH
@pytest.mark.parametrize("kind", [Buckets, EpochBuckets])
def test_batches_are_those_of_a_batch_sampler_and_go_on_after_a_restart(kind, processes, store_of):
    dataset = VideoDataset(store_of("burst"), 4)
    where = [(id_, int(numbers[0])) for id_, numbers in map(dataset.locate, range(len(dataset)))]

    def loader(sampler) -> PrefetchLoader:
        return PrefetchLoader(dataset, 5, batch_sampler=sampler, processes=processes)

    reference, sampler = kind(len(dataset)), kind(len(dataset))
    with loader(sampler) as one:
        for epoch in range(2):
            if kind is EpochBuckets:
                reference.set_epoch(epoch)
                one.set_epoch(epoch)
                assert len(one) == len(reference)
            expected = [[where[number] for number in batch] for batch in reference]
            found, states = [], []
            for batch in one:
                found.append(names([batch]))
                states.append(json.loads(json.dumps(one.state_dict())))
            assert found == expected
    for stop in (1, len(expected) // 2, len(expected) - 1):
        with loader(kind(len(dataset))) as other:
            other.load_state_dict(states[stop - 1])
            assert [names([batch]) for batch in other] == expected[stop:]


def test_a_batch_that_is_too_large_or_empty_is_refused(store_of):
    dataset = VideoDataset(store_of("burst"), 4)
    for options, said in (
        ({"batch_sampler": [[0, 1], [2, 3, 4]]}, "a batch of 3 items, and batch_size is 2: give batch_size=3"),
        ({"batch_sampler": [[0, 1], []]}, r"batch_sampler gives \[\]"),
        ({"sampler": [[0, 1]]}, "a sampler of lists is a batch_sampler"),
    ):
        with PrefetchLoader(dataset, 2, **options) as loader, pytest.raises(SettingsError, match=said):
            iter(loader)
    with pytest.raises(SettingsError, match="give batch_size, the most items of a batch"):
        PrefetchLoader(dataset, batch_sampler=[[0, 1]])
    with pytest.raises(SettingsError, match="leave out shuffle, sampler and drop_last"):
        PrefetchLoader(dataset, 2, batch_sampler=[[0, 1]], shuffle=True)


@BOTH
def test_a_function_makes_the_batches(processes, store_of):
    """Also if it keeps the items: their memory is not used again while it does."""
    dataset = VideoDataset(store_of("h264"), 4)
    dataset.set_epoch(0)
    with PrefetchLoader(dataset, 3, collate_fn=list, processes=processes, cache_bytes=3_000_000) as loader:
        kept = [item for batch in loader for item in batch]
        again = [item["frames"].copy() for batch in loader for item in batch]
    assert len(kept) == len(dataset)
    for number, (item, frames) in enumerate(zip(kept, again, strict=True)):
        expected = dataset[number]
        assert item["id"] == expected["id"] and item.keys() == expected.keys()
        assert np.array_equal(item["frames"], expected["frames"])
        assert np.array_equal(frames, expected["frames"])
    del kept, item
    gc.collect()


def test_pad_collate_is_such_a_function(store_of):
    small, large = (VideoDataset(store_of("burst"), 2, crop=crop) for crop in (24, 40))
    with PrefetchLoader(Joined(small, large), 4, collate_fn=pad_collate, processes=False) as loader:
        assert sum(len(batch["id"]) for batch in loader) == len(small) + len(large)


def test_a_function_that_fails_costs_its_batch(store_of):
    dataset, calls = VideoDataset(store_of("burst"), 4), []

    def of_items(items):
        calls.append(items[0]["id"])
        if len(calls) == 2:
            raise ValueError("no")
        return items

    with PrefetchLoader(dataset, 3, collate_fn=of_items) as loader:
        batches, found = iter(loader), []
        while True:
            try:
                found.append(next(batches))
            except StopIteration:
                break
            except ValueError:
                found.append(None)
    assert len(found) == len(loader) and found.index(None) == 1 and found.count(None) == 1
    with pytest.raises(SettingsError, match="collate_fn is a function"):
        PrefetchLoader(dataset, 3, collate_fn=list, collate="pad")


def test_other_datasets_are_refused_with_the_lines_that_load_them(store_of):
    class Mine:
        def __init__(self, inner) -> None:
            self.inner = inner

    with pytest.raises(SettingsError, match=r"(?s)collate_fn=of_items.*torch\.utils\.data\.DataLoader\(dataset"):
        PrefetchLoader(Mine(VideoDataset(store_of("burst"), 4)))


TORCH = """
import sys
import torch
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, RandomSampler, SequentialSampler, Subset, default_collate
from vidprep.formats import ElasticDistributedSampler, PrefetchLoader, VideoDataset, clips_at_random_indices

path = sys.argv[1]
first = VideoDataset(path, 4, 2, crop=40, tensors=True)
second = VideoDataset(path, clips=clips_at_random_indices(num_frames_per_clip=4, policy="drop"), crop=40, random_crop=True, tensors=True)
joined = ConcatDataset([first, Subset(second, [1, 0])]) + second
for dataset in (first, second):
    dataset.set_epoch(2)

def equal(one, other):
    assert one.keys() == other.keys(), (one.keys(), other.keys())
    return all(torch.equal(one[name], other[name]) if isinstance(one[name], torch.Tensor) else one[name] == other[name] for name in one)

for options in ({"batch_size": 3, "collate_fn": default_collate}, {"batch_size": 3}, {"batch_sampler": BatchSampler(SequentialSampler(joined), 4, True)}):
    with PrefetchLoader(joined, num_workers=2, **options) as loader:
        loader.set_epoch(2)
        ours, theirs = list(loader), list(DataLoader(joined, num_workers=0, **options))
    assert len(ours) == len(theirs) == len(loader) > 3
    assert all(equal(*pair) for pair in zip(ours, theirs))

# A BatchSampler over a sampler of ranks: another number of them continues.
def loader(rank, world, size):
    return PrefetchLoader(joined, batch_sampler=BatchSampler(ElasticDistributedSampler(joined, world, rank, seed=3), size, False))
with loader(0, 1, 4) as whole:
    order = [(id_, tuple(numbers.tolist())) for batch in whole for id_, numbers in zip(batch["id"], batch["indexes"])]
with loader(0, 2, 4) as one:
    next(iter(one))
    state = one.state_dict()
rest = []
for rank in range(4):
    with loader(rank, 4, 2) as part:
        part.load_state_dict(state)
        rest.append([(id_, tuple(numbers.tolist())) for batch in part for id_, numbers in zip(batch["id"], batch["indexes"])])
assert [each for turn in zip(*rest) for each in turn][: len(order) - 8] == order[8:]
print("equal")
"""


@pytest.mark.long
def test_the_batches_of_torch(store_of, tmp_path):
    script = tmp_path / "as_torch.py"
    script.write_text(TORCH)
    assert "equal" in with_peers(script, store_of("h264"), needs=["torch"])


def test_a_name_that_an_item_lacks_is_answered(store_of, tmp_path):
    with pytest.raises(KeyError, match=r"frame: there are frames, id, indexes"):
        VideoDataset(store_of("burst"), 4)[0]["frame"]
    burst(store_of("burst").parent / "src", tmp_path / "unlabelled")
    item = VideoDataset(tmp_path / "unlabelled", 4)[0]
    with pytest.raises(KeyError, match="the label `label`, which no video of this dataset has"):
        item["class_id"]
    assert item.get("class_id") is None


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda path: VideoDataset(path, sequence_lenght=4), "'sequence_lenght'; did you mean 'sequence_length'?"),
        (lambda path: PrefetchLoader(VideoDataset(path, 4), batchsize=4), "'batchsize'; did you mean 'batch_size'?"),
        (
            lambda path: PrefetchLoader(VideoDataset(path, 4), prefetch_factor=2),
            "cache_bytes bounds what is made ahead",
        ),
        (lambda _: clips_at_random_indices(num_frame_per_clip=4), "did you mean 'num_frames_per_clip'?"),
        (lambda _: sample_fps(2.0, max_frame=4), "did you mean 'max_frames'?"),
        (lambda _: ElasticDistributedSampler([1], num_replica=2), "did you mean 'num_replicas'?"),
        (lambda path: VideoDataset(path, batch_size=4), "belongs to PrefetchLoader"),
        (lambda path: VideoDataset(path, num_frames=4), "give sequence_length"),
        (lambda _: clips_at_random_indices(nonsense=4), r"has no keyword 'nonsense'$"),
    ],
)
def test_the_keyword_that_may_be_meant_is_named(call, said, store_of):
    with pytest.raises(TypeError, match=said):
        call(store_of("burst"))
