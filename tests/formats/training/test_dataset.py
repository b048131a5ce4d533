"""VideoDataset: every sequence, transformed as asked, the same wherever it is made."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.formats.conftest import ENCODED, STORED
from tests.helpers import make_clip, make_clips, open_files, table, transcode, with_peers
from tests.sampling import in_turn
from vidprep.formats import (
    PrefetchLoader,
    VideoDataset,
    clips_at_random_indices,
    clips_at_regular_timestamps,
    open_store,
)
from vidprep.formats.errors import SettingsError, StoreError
from vidprep.formats.stores.raw_files import VideoFiles
from vidprep.formats.training.dataset import UNUSED
from vidprep.formats.training.samplers import Timing, Windows


def test_a_store_without_videos_and_a_list_of_stores_are_named(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "none.mp4").write_bytes(b"no video")
    assert transcode(tmp_path / "src", tmp_path / "dst").code == 1
    with pytest.raises(SettingsError, match="has no videos; `vidprep show` lists the failures"):
        VideoDataset(tmp_path / "dst", 8)
    with pytest.raises(SettingsError, match="give one folder"):
        open_store([tmp_path / "dst"])  # type: ignore[arg-type]


def expected(counts: dict[str, int], length: int, stride: int, step: int) -> list[tuple[str, list[int]]]:
    """(video, frames) of every sequence, counted out."""
    found = []
    for video, count in counts.items():
        start = 0
        while start + (length - 1) * stride < count:
            found.append((video, [start + stride * n for n in range(length)]))
            start += step
    return found


@pytest.mark.parametrize("kind", ["burst", "h264", "tensor", "gulp", "webdataset", "vp9"])
@pytest.mark.parametrize(("length", "stride", "step"), [(8, 1, 1), (4, 3, 2), (1, 1, 5), (21, 1, 1), (3, 10, 1)])
def test_every_sequence_of_every_store(kind, length, stride, step, store_of):
    store = open_store(store_of(kind))
    dataset = VideoDataset(store_of(kind), length, stride, step)
    whole = {id_: store[id_].frames() for id_ in store.ids}
    due = expected({id_: len(frames) for id_, frames in whole.items()}, length, stride, step)
    assert len(dataset) == len(due) > 0
    for index, (id_, numbers) in enumerate(due):
        item = dataset[index]
        assert (item["id"], item["indexes"].tolist(), item["labels"]) == (id_, numbers, {"label": "sub"})
        assert np.array_equal(item["frames"], whole[id_][numbers])
        if kind != "gulp":
            assert np.array_equal(item["timestamps"], store[id_].timestamps[numbers])
    assert np.array_equal(dataset[-1]["frames"], dataset[len(due) - 1]["frames"])
    for outside in (len(due), -len(due) - 1):
        with pytest.raises(IndexError):
            dataset[outside]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks for open files in /proc")
@pytest.mark.parametrize("kind", in_turn([*STORED, *ENCODED, "raw"], 3))
def test_files_close_with_their_dataset(kind, store_of, without_gc):
    folder = store_of("burst").parent / "src" if kind == "raw" else store_of(kind)
    source = sorted(folder.rglob("*.mp4")) if kind == "raw" else folder
    _ = VideoDataset(source, 4)[0]  # the first one in a process opens what all of them share
    files = open_files(folder)
    dataset = VideoDataset(source, 4)
    assert len(dataset[0]["frames"]) == len(dataset[-1]["frames"]) == 4
    assert len(open_files(folder)) > len(files)
    del dataset
    assert open_files(folder) == files


def test_all_stores_give_the_same_sequence_within_their_loss(store_of):
    options = {"crop": (40, 56), "random_crop": True, "flip": True, "seed": 3}
    kinds = [kind for kind in (*STORED, *ENCODED) if kind not in ("burst gray", "slow")]
    sets = {kind: VideoDataset(store_of(kind), 4, 2, 3, **options) for kind in kinds}
    for dataset in sets.values():
        dataset.set_epoch(0)
    for index in (0, 5, 17):
        truth = sets["tensor"][index]
        for kind, dataset in sets.items():
            item = dataset[index]
            assert item["indexes"].tolist() == truth["indexes"].tolist()
            error = np.mean((item["frames"].astype(float) - truth["frames"]) ** 2)
            assert 10 * np.log10(255**2 / max(error, 1e-9)) > 24, kind
            # A crop one pixel aside, or one unflipped, is far worse than any loss of these stores.
            for other in (np.roll(truth["frames"], 3, axis=2), truth["frames"][:, :, ::-1]):
                assert np.mean((item["frames"].astype(float) - other) ** 2) > 2 * error, kind


def test_random_choices_are_a_function_of_seed_epoch_and_index(store_of):
    options = {"crop": 32, "random_crop": True, "flip": True}
    first, again = (VideoDataset(store_of("burst"), 2, seed=1, **options) for _ in range(2))
    first.set_epoch(0)
    again.set_epoch(0)
    order = np.random.default_rng(0).permutation(len(first)).tolist()
    seen = {index: first[index]["frames"] for index in range(len(first))}
    assert all(np.array_equal(again[index]["frames"], seen[index]) for index in order)
    moved = pickle.loads(pickle.dumps(first))
    assert np.array_equal(moved[5]["frames"], seen[5])
    other_seed = VideoDataset(store_of("burst"), 2, seed=2, **options)
    other_seed.set_epoch(0)
    again.set_epoch(1)
    for other in (other_seed, again):
        changed = sum(not np.array_equal(other[index]["frames"], seen[index]) for index in order)
        assert changed > 0.9 * len(order)


@pytest.mark.long
def test_crops_and_flips_are_of_the_whole_sequence_and_everywhere(store_of):
    whole = VideoDataset(store_of("tensor"), 3)
    cut = VideoDataset(store_of("tensor"), 3, crop=(30, 50), random_crop=True, flip=True)
    places = set()
    for index in range(len(cut)):
        full, part = whole[index]["frames"], cut[index]["frames"]
        found = [
            (top, left, flip)
            for top in range(64 - 30 + 1)
            for left in range(96 - 50 + 1)
            for flip in (1, -1)
            if np.array_equal(full[:, top : top + 30, left : left + 50][:, :, ::flip], part)
        ]
        assert found
        places.update(found[:1])
    tops, lefts, flips = (set(values) for values in zip(*places, strict=True))
    assert len(tops) > 20
    assert len(lefts) > 25
    assert flips == {1, -1}
    middle = VideoDataset(store_of("tensor"), 3, crop=(30, 50))[4]["frames"]
    assert np.array_equal(middle, whole[4]["frames"][:, 17:47, 23:73])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_numbers_are_those_of_the_formula(dtype, store_of):
    plain = VideoDataset(store_of("tensor"), 2)[7]["frames"].astype(np.float64)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    for normalize, due in (
        (False, plain),
        (True, plain / 255),
        ((mean, std), (plain / 255 - np.array(mean)) / np.array(std)),
    ):
        made = VideoDataset(store_of("tensor"), 2, dtype=dtype, normalize=normalize)[7]["frames"]
        assert made.dtype == dtype
        assert np.abs(made - due.astype(dtype)).max() <= (1e-6 if dtype == "float32" else 0)


@pytest.mark.parametrize(("size", "due"), [(32, (32, 48)), ((20, 30), (20, 30)), (128, (128, 192))])
def test_scaling_is_that_of_pillow(size, due, store_of):
    plain = VideoDataset(store_of("tensor"), 1)[3]["frames"][0]
    made = VideoDataset(store_of("tensor"), 1, size=size)[3]["frames"][0]
    assert made.shape == (*due, 3)
    like = np.asarray(Image.fromarray(plain).resize(due[::-1], Image.Resampling.BICUBIC)).astype(float)
    assert 10 * np.log10(255**2 / np.mean((made - like) ** 2)) > 33
    shifted = np.roll(like, 1, axis=1)
    assert np.mean((made - shifted) ** 2) > 4 * np.mean((made - like) ** 2)


def test_ranks_share_all_sequences(store_of):
    whole = VideoDataset(store_of("burst"), 5)
    ranks = [VideoDataset(store_of("burst"), 5, rank=rank, world_size=3) for rank in range(3)]
    assert {len(rank) for rank in ranks} == {len(whole) // 3}
    seen = [rank.locate(index) for rank in ranks for index in range(len(rank))]
    names = {(id_, int(numbers[0])) for id_, numbers in seen}
    assert len(names) == len(seen) == len(whole) // 3 * 3
    assert names <= {(id_, int(n[0])) for id_, n in map(whole.locate, range(len(whole)))}
    # What is random does not depend on how many ranks there are.
    options = {"crop": 32, "random_crop": True}
    one, two = (VideoDataset(store_of("burst"), 5, world_size=size, rank=size - 1, **options) for size in (1, 2))
    one.set_epoch(2)
    two.set_epoch(2)
    assert np.array_equal(one[7]["frames"], two[3]["frames"])


def test_videos_that_are_too_short_are_left_out_and_counted(tmp_path):
    for name, frames in {"a": 3, "b": 12, "c": 8}.items():
        make_clip(tmp_path / "src" / f"{name}.mp4", frames)
    assert transcode(tmp_path / "src", tmp_path / "dst").code == 0
    with pytest.warns(
        UserWarning, match=r"1 of 3 videos have fewer than 8 frames, such as 'a'.*short='pad' or 'repeat'"
    ):
        dataset = VideoDataset(tmp_path / "dst")
    assert [dataset[n]["id"] for n in range(len(dataset))] == ["b"] * 5 + ["c"]
    assert "6 sequences of 8 frames from 3 videos, 1 of them too short" in repr(dataset)
    with pytest.raises(SettingsError, match="3 videos of at most 12 frames hold 0 sequences of 13 frames"):
        VideoDataset(tmp_path / "dst", 13)
    assert len(VideoDataset(tmp_path / "dst", short="drop")) == 6, "chosen, so without a warning"
    with pytest.raises(SettingsError, match="a: it has 3 frames, and a sequence needs 8; short='drop' leaves it out"):
        VideoDataset(tmp_path / "dst", short="error")
    for short, numbers in (("pad", [0, 1, 2, 2, 2, 2, 2, 2]), ("repeat", [0, 1, 2, 0, 1, 2, 0, 1])):
        filled = VideoDataset(tmp_path / "dst", short=short)
        item = filled[0]
        assert len(filled) == 7
        assert (item["id"], item["indexes"].tolist()) == ("a", numbers)
        assert item["frame_mask"].tolist() == [True] * 3 + [False] * 5
        assert filled[1]["frame_mask"].all()
        frames = filled.video("a").frames([0, 1, 2])
        assert np.array_equal(item["frames"], frames[numbers])
        with PrefetchLoader(filled, 7, processes=False) as loader:
            assert np.array_equal(next(iter(loader))["frame_mask"], [filled[n]["frame_mask"] for n in range(7)])
    with pytest.raises(SettingsError, match="short is 'wrap'; give drop, pad, repeat or error"):
        VideoDataset(tmp_path / "dst", short="wrap")
    with pytest.raises(SettingsError, match="give the sampler its own policy"):
        VideoDataset(tmp_path / "dst", short="pad", clips=clips_at_random_indices())


@pytest.mark.parametrize(
    ("frames", "stride", "step"), [(20, 1, 8), (20, 2, 3), (17, 1, 5), (16, 1, 8), (9, 1, 100), (8, 1, 3)]
)
def test_no_frame_at_the_end_is_left_out_where_that_is_asked(frames, stride, step, store_of):
    sampler, timing = Windows(8, stride, step, cover_end=True), Timing(frames)
    count = sampler.count(timing)
    if count == 0:
        assert frames < sampler.span
        return
    clips = [sampler.item(timing, number, UNUSED) for number in range(count)]
    plain = Windows(8, stride, step)
    assert [each.tolist() for each in clips[: plain.count(timing)]] == [
        plain.item(timing, number, UNUSED).tolist() for number in range(plain.count(timing))
    ]
    assert clips[-1][-1] == frames - 1
    assert count - plain.count(timing) <= 1
    assert len({tuple(each.tolist()) for each in clips}) == count, "no clip comes twice"


def test_clips_by_time_cover_the_end(store_of):
    for between in (0.05, 0.1, 0.3, 10.0):
        options = {"num_frames_per_clip": 4, "seconds_between_clip_starts": between}
        dataset = VideoDataset(store_of("h264"), clips=clips_at_regular_timestamps(**options, cover_end=True))
        plain = VideoDataset(store_of("h264"), clips=clips_at_regular_timestamps(**options))
        last = {}
        for number in range(len(dataset)):
            id_, numbers = dataset.locate(number)
            assert set(np.diff(numbers)) <= {0, 1}
            last[id_] = max(last.get(id_, 0), int(numbers[-1]))
        assert last == {id_: len(dataset.video(id_)) - 1 for id_ in dataset.ids}
        assert 0 <= len(dataset) - len(plain) <= len(dataset.ids)
    with pytest.raises(SettingsError, match="cover_end and sampling_range_end contradict"):
        clips_at_regular_timestamps(**options, sampling_range_end=1.0, cover_end=True)


def test_videos_of_two_sizes_are_named(tmp_path):
    for name, size in {"a": (64, 48), "b": (96, 48)}.items():
        make_clip(tmp_path / "src" / f"{name}.mp4", 9, size=size)
    assert transcode(tmp_path / "src", tmp_path / "dst").code == 0
    dataset = VideoDataset(tmp_path / "dst")
    assert dataset[0]["frames"].shape == (8, 48, 64, 3)
    assert dataset[2]["frames"].shape == (8, 48, 96, 3)
    with pytest.raises(
        SettingsError, match=r"'a' have the shape \(8, 48, 64, 3\), those of 'b' \(8, 48, 96, 3\).*give size or crop"
    ):
        _ = dataset.frame_size
    assert VideoDataset(tmp_path / "dst", crop=32).frame_size == (32, 32)
    with pytest.raises(SettingsError, match="'a': a crop of 40 lines of 80 pixels does not fit into 48 lines of 64"):
        VideoDataset(tmp_path / "dst", crop=(40, 80))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sequence_length": "8"}, "sequence_length is '8'; give a whole number, 1 or more"),
        ({"step": 1.5}, "step is 1.5"),
        ({"seed": -1}, "seed is -1; give a whole number, 0 or more"),
        ({"crop": (50,)}, "crop is (50,)"),
        ({"sequence_length": 0}, "sequence_length is 0"),
        ({"stride": -1}, "stride is -1"),
        ({"step": 0}, "step is 0"),
        ({"rank": 2, "world_size": 2}, "rank is 2; with world_size 2 it is 0 to 1"),
        ({"crop": 0}, "crop is 0"),
        ({"size": (1, 2, 3)}, "size is"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"normalize": True}, "normalize needs dtype"),
        ({"random_crop": True}, "random_crop needs crop"),
        ({"dtype": "float32", "normalize": ((0, 0, 0), (1, 0, 1))}, "no std of 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, said, store_of):
    with pytest.raises(SettingsError, match=re.escape(said)):
        VideoDataset(store_of("burst"), **options)


def test_labels_of_a_table_are_part_of_an_item(tmp_path):
    src = make_clips(tmp_path / "src", 2, 9)
    rows = [
        {"path": path, "id": path.stem, "label": n, "person": f"p{n}"} for n, path in enumerate(sorted(src.iterdir()))
    ]
    listed = table(tmp_path / "list.csv", rows)
    assert transcode(listed, tmp_path / "dst").code == 0
    items = [VideoDataset(tmp_path / "dst")[n] for n in (0, 2)]
    assert [item["labels"] for item in items] == [{"label": 0, "person": "p0"}, {"label": 1, "person": "p1"}]
    assert [item["class_id"] for item in items] == [0, 1]


# ------------------------------------------------------------------------------------------------ video files as they are


def seeks_loudly(name: str):
    """libavcodec logs errors ("mmco: unref short failure") when decoding begins inside an open GOP, and shows what is right."""
    return pytest.param(name, marks=pytest.mark.logs_errors)


@pytest.mark.parametrize(
    "name",
    [
        "cfr.mp4",
        seeks_loudly("open_gop.mp4"),
        seeks_loudly("open_gop.mkv"),
        "closed.mkv",
        "hevc.mp4",
        "vp9.webm",
        "altref.webm",
        "av1.mkv",
        "mjpeg.avi",
        "vfr.mp4",
        "vfr.webm",
        "ts_late.ts",
        "edit_list.mp4",
        "edit_list_late.mp4",
        "turned_90.mp4",
        "turned_180.mp4",
        "turned_270.mp4",
        "mirrored.mp4",
        "upside_down.mp4",
        "turned_90_mirrored.mp4",
        "one.mp4",
        "two.mkv",
        "palette.gif",
        "sorenson.flv",
        "program.mpg",
        "annexb.h264",
        "with_sound.mkv",
        "two_streams.mp4",
    ],
)
def test_any_frame_of_an_unprepared_file(name, media, cli):
    """Each is the one that ffmpeg shows, upright, from wherever it is reached."""
    store = VideoFiles([media[name]])
    stored = store[store.ids[0]]
    video = stored.frames()
    exact = ("-vf", "scale=flags=bilinear+accurate_rnd+full_chroma_int+full_chroma_inp")
    raw = ("-fps_mode", "passthrough", *exact, "-pix_fmt", "rgb24", "-f", "rawvideo", "-")
    shown = cli.run("-i", media[name], "-map", "0:v:0", *raw)
    assert len(shown) == video.nbytes, f"ffmpeg shows {len(shown) / video[0].nbytes} frames, {len(video)} were read"
    due = np.frombuffer(shown, np.uint8).reshape(video.shape)
    assert max(float(np.mean((a.astype(float) - b) ** 2)) for a, b in zip(video, due, strict=True)) < 6
    for number in np.random.default_rng(1).permutation(len(stored)).tolist():
        assert np.array_equal(stored.frames([number])[0], video[number])
    assert np.all(np.diff(stored.timestamps) > 0)


def test_a_dataset_of_files(media, tmp_path):
    names = ["cfr.mp4", "closed.mkv"]
    dataset = VideoDataset([media[name] for name in names], 4, size=(32, 48))
    store = VideoFiles([media[name] for name in names])
    assert list(store.ids) == ["cfr", "closed"]
    assert len(dataset) == sum(len(store[id_]) - 3 for id_ in store.ids)
    moved = pickle.loads(pickle.dumps(dataset))
    assert np.array_equal(moved[7]["frames"], dataset[7]["frames"])
    assert np.all(np.diff(dataset[7]["timestamps"]) > 0)
    one = VideoDataset(media["cfr.mp4"], 2)
    assert one.locate(0)[0] == "cfr"


@pytest.mark.logs_errors
def test_files_that_are_no_video_are_named(tmp_path):
    (tmp_path / "x.mp4").write_bytes(b"no video")
    (tmp_path / "playlist.mp4").write_text("ffconcat version 1.0\nfile secret.txt\n")
    for name in ("x.mp4", "playlist.mp4", "absent.mp4"):
        with pytest.raises(StoreError, match=name.replace(".", r"\.")):
            VideoDataset([tmp_path / name])
    with pytest.raises(StoreError, match=r"x\.avi: is given twice, or has the name of another|x\.mp4: is given twice"):
        VideoFiles([tmp_path / "x.mp4", tmp_path / "x.avi"])
    with pytest.raises(StoreError, match="no video files"):
        VideoFiles([])
    with pytest.raises(SettingsError, match="source is 42; give the path of a store"):
        VideoDataset(42)
    with pytest.raises(StoreError, match="or give VideoDataset a list of video files"):
        VideoDataset(tmp_path)
    with pytest.raises(StoreError, match=r"http://127\.0\.0\.1:9/frames/.*could not be read"):
        VideoDataset(open_store("http://127.0.0.1:9/frames", timeout_seconds=0.2, cache_dir=tmp_path / "cache"))


def test_times_that_run_backwards_are_put_in_order(media):
    """As `vidprep transcode` does; a guess by the rate of the header was wrong by a factor of two on a real clip."""
    import av

    for name in ("swapped.mkv", "doubled.mkv"):
        store = VideoFiles([media[name]])
        times = store[store.ids[0]].timestamps
        with av.open(str(media[name])) as container:
            shown = sorted(float(frame.pts * frame.time_base) for frame in container.decode(video=0))
        assert np.all(np.diff(times) > 0)
        assert np.abs(times - (np.array(shown) - shown[0])).max() <= 0.002


# ------------------------------------------------------------------------------------------------ under torch

UNDER_TORCH = """
import sys, numpy as np, torch
from torch.utils.data import DataLoader, SequentialSampler
from vidprep.formats import PrefetchLoader, VideoDataset
OPTIONS = dict(sequence_length=4, step=2, crop=(40, 56), random_crop=True, flip=True, seed=5, dtype="float16", normalize=True)

def same(batches, alone):
    count = 0
    for batch in batches:
        for frames, indexes, id_ in zip(batch["frames"], batch["indexes"], batch["id"], strict=True):
            assert isinstance(frames, torch.Tensor) and frames.dtype == torch.float16
            item = alone[count]
            assert torch.equal(frames, torch.from_numpy(item["frames"])), count
            assert indexes.tolist() == item["indexes"].tolist() and id_ == item["id"]
            count += 1
    assert count == len(alone)

if __name__ == "__main__":
    for path in sys.argv[1:]:
        dataset, tensors = VideoDataset(path, **OPTIONS), VideoDataset(path, tensors=True, **OPTIONS)
        dataset.set_epoch(0)
        tensors.set_epoch(0)
        alone = [dataset[n] for n in range(len(dataset))]
        for workers, context in ((0, None), (4, "fork"), (1, "spawn" if path == sys.argv[1] else "fork")):
            same(DataLoader(dataset, 5, num_workers=workers, multiprocessing_context=context), alone)
        for workers, processes in ((3 if path == sys.argv[1] else 2, True), (2, False)):
            with PrefetchLoader(tensors, 5, workers=workers, processes=processes) as loader:
                same(loader, alone)
        with PrefetchLoader(tensors, 5, sampler=SequentialSampler(dataset), processes=False) as loader:
            same(loader, alone)
        item = tensors[3]
        item["frames"].numpy()[...] = 7
        assert (item["frames"] == 7).all(), "a tensor shares the memory of its array"
        print("equal", len(alone))
"""


@pytest.mark.long
def test_torch_gets_the_same_in_one_process_or_several_forked_and_spawned(store_of, tmp_path):
    script = tmp_path / "loads.py"  # spawn needs a file
    script.write_text(UNDER_TORCH)
    said = with_peers(script, store_of("h264"), store_of("burst"), needs=["torch"])
    assert said.count("equal") == 2
