"""Several clips of one video as one item: which they are, their transforms, and that they share the decoding."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tests.formats.training.loading import BOTH
from tests.helpers import with_peers
from vidprep.formats import PrefetchLoader, VideoDataset, clips_at_random_indices, clips_at_regular_indices, open_store
from vidprep.formats.errors import SettingsError

RANDOM = clips_at_random_indices(num_frames_per_clip=4, num_indices_between_frames=2)
AUGMENTED = {"crop": (40, 56), "random_crop": True, "flip": 0.5, "dtype": "float32", "normalize": True}


def test_each_clip_is_drawn_anew_and_the_first_is_the_one_of_a_single_clip(store_of):
    store = open_store(store_of("h264"))
    one, three = (VideoDataset(store_of("h264"), clips=RANDOM, clips_per_video=count) for count in (1, 3))
    differ = 0
    for epoch in range(3):
        one.set_epoch(epoch)
        three.set_epoch(epoch)
        for number in range(len(three)):
            item, single = three[number], one[number]
            assert item["frames"].shape == (3, 4, 64, 96, 3) and item["indexes"].shape == (3, 4)
            for frames, indexes, times in zip(item["frames"], item["indexes"], item["timestamps"], strict=True):
                assert np.array_equal(frames, store[item["id"]].frames(indexes))
                assert np.array_equal(times, store[item["id"]].timestamps[indexes])
            assert np.array_equal(item["frames"][0], single["frames"])
            assert item["frame_mask"].shape == (3, 4) and item["frame_mask"].all()
            assert item["labels"] == single["labels"] and item["clip"] == single["clip"]
            assert np.array_equal(three.locate(number)[1], item["indexes"])
            differ += len({tuple(each) for each in item["indexes"].tolist()}) > 1
    assert differ > 6


def test_the_transforms_of_each_clip_are_drawn_anew(store_of):
    """Also where all clips are the same frames, as in contrastive pairs of one clip."""
    dataset = VideoDataset(store_of("burst"), 4, 2, clips_per_video=2, **AUGMENTED, layout="CTHW")
    single = VideoDataset(store_of("burst"), 4, 2, **AUGMENTED, layout="CTHW")
    pairs = [dataset[number] for number in range(12)]
    assert all(np.array_equal(*item["indexes"]) for item in pairs)
    assert sum(np.array_equal(*item["frames"]) for item in pairs) < 3
    dataset.set_epoch(4)
    single.set_epoch(4)
    assert dataset[5]["frames"].shape == (2, 3, 4, 40, 56)
    assert np.array_equal(dataset[5]["frames"][0], single[5]["frames"])


@BOTH
@pytest.mark.parametrize("options", [{}, AUGMENTED], ids=["plain", "augmented"])
def test_batches_are_the_items(processes, options, store_of):
    dataset = VideoDataset(store_of("h264"), clips=RANDOM, clips_per_video=3, **options)
    with PrefetchLoader(dataset, 2, shuffle=True, processes=processes) as loader:
        for epoch in range(2):
            dataset.set_epoch(epoch)
            items = {item["id"]: item for item in map(dataset.__getitem__, range(len(dataset)))}
            for batch in loader:
                assert batch["indexes"].shape == (2, 3, 4)
                for id_, frames, indexes in zip(batch["id"], batch["frames"], batch["indexes"], strict=True):
                    assert np.array_equal(frames, items[id_]["frames"])
                    assert np.array_equal(indexes, items[id_]["indexes"])


def test_frames_that_clips_share_are_decoded_once(store_of, monkeypatch):
    clips = clips_at_random_indices(num_frames_per_clip=12)
    dataset = VideoDataset(store_of("h264"), clips=clips, clips_per_video=8)
    decoded = []
    fill = type(dataset.store).fill

    def counted(self, id_, numbers, rows):
        decoded.append((id_, tuple(numbers)))
        return fill(self, id_, numbers, rows)

    monkeypatch.setattr(type(dataset.store), "fill", counted)
    with PrefetchLoader(dataset, 4, workers=1, processes=False) as loader:
        batch = next(iter(loader))
    own = decoded[: len(batch["id"])]
    for (id_, numbers), of_item, wanted in zip(own, batch["id"], batch["indexes"], strict=True):
        assert id_ == of_item and len(numbers) == len(set(numbers)) <= 23 < wanted.size
        assert set(numbers) >= set(wanted.ravel().tolist())


def test_random_clips_of_a_video_belong_to_one_worker(store_of):
    """So that frames which several of them show are decoded once."""
    dataset = VideoDataset(store_of("h264"), clips=clips_at_random_indices(num_clips=6, num_frames_per_clip=8))
    blocks = dataset.blocks(np.arange(len(dataset)), 128)
    ids = [dataset.locate(number, 0)[0] for number in range(len(dataset))]
    assert len(set(zip(ids, blocks.tolist(), strict=True))) == len(set(ids)) == len(set(blocks.tolist()))


def test_rows_of_each_clip(store_of):
    store = open_store(store_of("burst"))
    rows = pa.table(
        {
            "id": [id_ for id_ in store.ids for _ in range(len(store[id_]))],
            "frame": [frame for id_ in store.ids for frame in range(len(store[id_]))],
            "state": [float(frame) for id_ in store.ids for frame in range(len(store[id_]))],
            "word": [f"w{frame}" for id_ in store.ids for frame in range(len(store[id_]))],
        }
    )
    dataset = VideoDataset(store, clips=RANDOM, clips_per_video=2, rows=rows, delta_rows={"state": [0, 1, 2]})
    item = dataset[1]
    assert np.array_equal(item["rows"]["state"], item["indexes"][:, :1] + [0, 1, 2])
    assert item["rows"]["word"] == [[f"w{number}" for number in each] for each in item["indexes"]]
    with PrefetchLoader(dataset, 2, processes=False) as loader:
        batch = next(iter(loader))
    assert batch["rows"]["state"].shape == (2, 2, 3)
    assert np.array_equal(batch["rows"]["state"][..., 0], batch["indexes"][..., 0])


def test_what_does_not_go_together_is_refused(store_of):
    clips = clips_at_regular_indices(num_frames_per_clip=4)
    with pytest.raises(SettingsError, match="num_crops is for tests, clips_per_video for random clips"):
        VideoDataset(store_of("burst"), clips=clips, clips_per_video=2, crop=32, num_crops=3)
    with pytest.raises(SettingsError, match="clips_per_video"):
        VideoDataset(store_of("burst"), clips=clips, clips_per_video=0)
    two, three = (VideoDataset(store_of("burst"), clips=RANDOM, clips_per_video=count) for count in (2, 3))
    with PrefetchLoader(two, 2, processes=False) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with PrefetchLoader(three, 2, processes=False) as loader, pytest.raises(SettingsError, match="saved with clips"):
        loader.load_state_dict(state)


TORCH = """
import sys
import torch
from torch.utils.data import DataLoader
from vidprep.formats import PrefetchLoader, VideoDataset, clips_at_random_indices
clips = clips_at_random_indices(num_frames_per_clip=4)
dataset = VideoDataset(sys.argv[1], clips=clips, clips_per_video=2, tensors=True, layout="TCHW", transform=torch.Tensor.float)
dataset.set_epoch(3)
batch = next(iter(DataLoader(dataset, 3, num_workers=2)))
assert batch["frames"].shape == (3, 2, 4, 3, 64, 96) and batch["frames"].dtype == torch.float32
with PrefetchLoader(dataset, 3) as loader:
    loader.set_epoch(3)
    other = next(iter(loader))
assert torch.equal(batch["frames"], other["frames"]) and torch.equal(batch["indexes"], other["indexes"])
print("equal")
"""


@pytest.mark.long
def test_torch_stacks_them(store_of, tmp_path):
    script = tmp_path / "torch_clips.py"
    script.write_text(TORCH)
    assert "equal" in with_peers(script, store_of("h264"), needs=["torch"])
