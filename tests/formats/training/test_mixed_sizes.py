"""Videos of several sizes: one at a time, padded to a batch, or refused with their names."""

from __future__ import annotations

import numpy as np
import pytest

from tests.formats.training.loading import BOTH, located, names
from tests.helpers import make_clip, transcode, with_peers
from vidprep.formats import PrefetchLoader, VideoDataset, pad_collate
from vidprep.formats.errors import SettingsError

SIZES = {"a": (64, 48), "b": (96, 48), "c": (48, 80)}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    root = tmp_path_factory.mktemp("mixed")
    for name, size in SIZES.items():
        make_clip(root / "src" / f"{name}.mp4", 9, size=size)
    assert transcode(root / "src", root / "dst").code == 0
    return root / "dst"


@BOTH
@pytest.mark.parametrize("options", [{}, {"layout": "CTHW", "dtype": "float32"}, {"flip": 1.0}])
def test_one_item_at_a_time_has_its_own_size(processes, options, mixed):
    dataset = VideoDataset(mixed, 4, step=2, **options)
    dataset.set_epoch(0)
    with PrefetchLoader(dataset, 1, processes=processes) as loader:
        batches = [(batch["frames"], batch) for batch in loader]
    assert names([batch for _, batch in batches]) == located(dataset, range(len(dataset)))
    for number, (frames, _) in enumerate(batches):
        due = dataset[number]["frames"]
        assert frames.shape == (1, *due.shape)
        assert np.array_equal(frames[0], due), "also those that were kept while others came"
    assert len({frames.shape for frames, _ in batches}) == 3


@BOTH
def test_batches_are_padded_to_the_largest_of_their_items(processes, mixed):
    dataset = VideoDataset(mixed, 4, step=2)
    items = [dataset[number] for number in range(len(dataset))]
    with PrefetchLoader(dataset, 4, collate="pad", processes=processes) as loader:
        batches = list(loader)
        assert list(map(len, (batch["id"] for batch in batches))) == [4, 4, 1]
    for number, batch in enumerate(batches):
        part = items[4 * number : 4 * number + 4]
        assert batch["frames"].shape[1:] == tuple(np.max([item["frames"].shape for item in part], 0))
        assert batch["frames_shape"].tolist() == [list(item["frames"].shape) for item in part]
        for padded, item in zip(batch["frames"], part, strict=True):
            _, height, width, _ = item["frames"].shape
            assert np.array_equal(padded[:, :height, :width], item["frames"])
            assert not padded[:, height:].any()
            assert not padded[:, :, width:].any()
        by_hand = pad_collate(part)
        assert by_hand.keys() == batch.keys()
        assert np.array_equal(by_hand["frames"], batch["frames"])
        assert by_hand["id"] == batch["id"]


def test_batches_of_several_sizes_are_refused_with_names_and_remedy(mixed):
    dataset = VideoDataset(mixed, 4)
    with pytest.raises(
        SettingsError,
        match=r"frames of 'a' have the shape \(4, 48, 64, 3\), those of 'b' \(4, 48, 96, 3\).*size or crop as \(height, width\), or collate='pad'",
    ):
        PrefetchLoader(dataset, 2)
    with pytest.raises(SettingsError, match="collate is 'crop'; give stack or pad"):
        PrefetchLoader(dataset, 2, collate="crop")
    with PrefetchLoader(VideoDataset(mixed, 4, crop=32), 2, processes=False) as loader:
        assert next(iter(loader))["frames"].shape == (2, 4, 32, 32, 3)
    # A transform may make them equal.
    with PrefetchLoader(VideoDataset(mixed, 4, transform=_corner), 2, processes=False) as loader:
        assert next(iter(loader))["frames"].shape == (2, 4, 8, 8, 3)


def _corner(frames):
    return frames[:, :8, :8]


UNDER_TORCH = """
import sys
import torch
from torch.utils.data import DataLoader
from vidprep.formats import VideoDataset, pad_collate

path = sys.argv[1]
for tensors in (False, True):
    for workers in (0, 1):
        dataset = VideoDataset(path, 4, step=2, tensors=tensors)
        assert [batch["frames"].shape[2:4] for batch in DataLoader(dataset, 1, num_workers=workers)][::3] == [(48, 64), (48, 96), (80, 48)]
        try:
            list(DataLoader(dataset, 4, num_workers=workers))
            raise AssertionError("stacked")
        except AssertionError:
            raise
        except Exception as error:
            assert "frames of 'a' have the shape (4, 48, 64, 3), those of 'b' (4, 48, 96, 3)" in str(error), error
            assert "collate_fn=pad_collate" in str(error)
        batches = list(DataLoader(dataset, 4, num_workers=workers, collate_fn=pad_collate))
        assert [tuple(batch["frames"].shape[2:4]) for batch in batches] == [(48, 96), (80, 96), (80, 48)]
        assert isinstance(batches[0]["frames"], torch.Tensor) and isinstance(batches[0]["timestamps"], torch.Tensor)
        assert batches[0]["frames_shape"].tolist() == [[4, 48, 64, 3]] * 3 + [[4, 48, 96, 3]]
        assert batches[0]["id"] == ["a", "a", "a", "b"] and set(batches[0]["labels"]) == set(dataset[0]["labels"])
        fitting = DataLoader(VideoDataset(path, 4, size=(24, 32), tensors=tensors), 4, num_workers=workers)
        assert all(type(batch) is dict and batch["frames"].shape[1:] == (4, 24, 32, 3) for batch in fitting)
print("all well")
"""


@pytest.mark.long
def test_batches_of_several_sizes_under_torch(mixed):
    assert "all well" in with_peers(UNDER_TORCH, mixed, needs=["torch"])
