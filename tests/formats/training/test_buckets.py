"""Batches of one bucket: every item once an epoch, over ranks and restarts, and frames that are those of the dataset."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import make_clip
from vidprep.formats import PrefetchLoader, VideoDataset
from vidprep.formats.errors import SettingsError
from vidprep.transcode import transcode

SIZES = {"wide": (96, 64), "tall": (64, 96), "square": (80, 80)}
COUNTS = {"wide": 7, "tall": 4, "square": 2}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("buckets")
    for name, size in SIZES.items():
        for number in range(COUNTS[name]):
            make_clip(root / "raw" / f"{number}_{name}.mp4", 8, size=size, seed=number)
    done = transcode(root / "raw", root / "ready", buckets=16, bucket_area="80x80", frames="4n+1", upscale=True)
    assert done.ok == 13
    return root / "ready"


def loader_of(store: Path, rank: int = 0, world_size: int = 1, **more: Any) -> PrefetchLoader:
    dataset = VideoDataset(store, sequence_length=5, rank=rank, world_size=world_size, tail=more.pop("tail", "pad"))
    options = {"batch_size": 3, "shuffle": True, "seed": 4, "num_workers": 0} | more
    return PrefetchLoader(dataset, batch_by="bucket", **options)


def ids_of(batch: Any) -> list[str]:
    mask = batch.get("item_mask", np.ones(len(batch["id"]), bool))
    return [id_ for id_, is_real in zip(batch["id"], mask, strict=True) if is_real]


def check_one_bucket(batch: Any) -> None:
    assert len({id_.split("_")[1] for id_ in batch["id"]}) == 1
    assert len(batch["frames"]) == len(batch["id"]) <= 3


@pytest.mark.parametrize("shuffle", [False, True])
def test_every_item_once_with_its_frames(store: Path, shuffle: bool) -> None:
    dataset = VideoDataset(store, sequence_length=5)
    items = {dataset[number]["id"]: dataset[number]["frames"] for number in range(len(dataset))}
    with loader_of(store, shuffle=shuffle) as loader:
        epochs = [[*loader] for _ in range(2)]
    for batches in epochs:
        assert len(batches) == len(loader) == 3 + 2 + 1
        assert Counter(id_ for batch in batches for id_ in batch["id"]) == Counter([*items])
        for batch in batches:
            check_one_bucket(batch)
            for id_, frames in zip(batch["id"], batch["frames"], strict=True):
                np.testing.assert_array_equal(frames, items[id_])
    orders = [[batch["id"] for batch in batches] for batches in epochs]
    assert (orders[0] != orders[1]) == shuffle


def test_worker_processes_give_the_same(store: Path) -> None:
    with loader_of(store) as one, loader_of(store, num_workers=2) as two:
        for mine, others in zip(one, two, strict=True):
            assert mine["id"] == others["id"]
            np.testing.assert_array_equal(mine["frames"], others["frames"])


def test_a_batch_that_is_not_full_can_be_left_out(store: Path) -> None:
    with loader_of(store, drop_last=True) as loader:
        assert [len(batch["id"]) for batch in loader] == [3, 3, 3]


@pytest.mark.parametrize("seed", range(4))
def test_every_item_once_over_ranks_and_restarts(store: Path, seed: int) -> None:
    """Some ranks load some batches, and others, more or fewer of them, go on from the state of any, several times."""
    chance = random.Random(seed)
    state: dict[str, Any] | None = None
    seen = Counter[str]()
    worlds = [chance.randint(1, 4) for _ in range(3)]
    for turn, world in enumerate(worlds):
        steps = chance.randint(0, 2) if turn < 2 else 100
        states = list[dict[str, Any]]()
        for rank in range(world):
            with loader_of(store, rank, world, seed=seed) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                for _, batch in zip(range(steps), loader, strict=False):
                    check_one_bucket(batch)
                    seen.update(ids_of(batch))
                states.append(loader.state_dict())
        assert all(each["items_given"] == states[0]["items_given"] for each in states)
        state = states[0]
        if state["epoch"] > 0 or state["items_given"] == 13:
            break
    assert set(seen.values()) == {1}
    assert len(seen) == 13


def test_a_state_needs_the_same_batches(store: Path) -> None:
    with loader_of(store) as loader:
        next(iter(loader))
        state = loader.state_dict()
    for more in ({"batch_size": 2}, {"drop_last": True}):
        with loader_of(store, **more) as other, pytest.raises(SettingsError, match="the state was saved with"):
            other.load_state_dict(state)
    one_size = VideoDataset(store, sequence_length=5, size=(64, 64))
    with PrefetchLoader(one_size, 3, shuffle=True, seed=4, num_workers=0) as plain, pytest.raises(SettingsError):
        plain.load_state_dict(state)


def test_what_cannot_go_with_it(store: Path) -> None:
    for more in ({"sampler": [0, 1], "shuffle": False}, {"shuffle": "runs"}):
        with pytest.raises(SettingsError, match="batch_by sets the order"):
            loader_of(store, **more)
    dataset = VideoDataset(store, sequence_length=5)
    with pytest.raises(SettingsError, match="give 'bucket'"):
        PrefetchLoader(dataset, 2, batch_by="size")  # type: ignore[arg-type]


def test_joined_datasets(store: Path) -> None:
    joined = VideoDataset({"a": store, "b": store}, sequence_length=5)
    with PrefetchLoader(joined, 4, batch_by="bucket", num_workers=0) as loader:
        batches = [*loader]
    for batch in batches:
        assert len({id_.split("_")[-1] for id_ in batch["id"]}) == 1
    assert sum(len(batch["id"]) for batch in batches) == 26
