"""Clips begin where torchcodec's samplers begin them, and what is too short is dealt with as asked."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import make_clip, make_clips, transcode, with_peers
from vidprep.formats import PrefetchLoader, VideoDataset, open_store
from vidprep.formats.errors import SettingsError, StoreError
from vidprep.formats.training.samplers import (
    Timing,
    clips_around,
    clips_at_random_indices,
    clips_at_random_timestamps,
    clips_at_regular_indices,
    clips_at_regular_timestamps,
)


def items(sampler, num_frames, seed=0) -> list[list[int]]:
    video, rng = Timing(num_frames), np.random.default_rng(seed)
    return [sampler.item(video, n, rng).tolist() for n in range(sampler.count(video))]


# ------------------------------------------------------------------------------------------------ torchcodec's

OF_TORCHCODEC = """
import random, sys
from dataclasses import replace
from fractions import Fraction
import numpy as np
import torch
from torchcodec.decoders import VideoDecoder
from torchcodec import samplers as theirs
from vidprep.formats import VideoDataset, open_store
from vidprep.formats.moments import Tolerance
from vidprep.formats.training import dataset, samplers as ours

# Theirs takes a time that falls a little short of a frame for the frame before; ours does so beyond its tolerance.
timing_of = ours.timing_of
ours.timing_of = dataset.timing_of = lambda video: replace(timing_of(video), tolerance=Tolerance(Fraction(1, 10**9)))

def shown(batch, begins):
    # The number of each frame by the time that torchcodec says it begins.
    return [[int(np.abs(begins - t).argmin()) for t in clip] for clip in batch.pts_seconds.numpy()]

def of_ours(path, sampler):
    found = VideoDataset(path, clips=sampler, ids=[id_])
    return [found.locate(n)[1].tolist() for n in range(len(found))]

def attempt(call):
    try:
        return call()
    except (ValueError, RuntimeError) as error:
        return type(error).__name__ and "refused"

path = sys.argv[1]
store = open_store(path)
id_ = store.ids[0]
decoder, begins = VideoDecoder(str(store.file(id_)), seek_mode="exact"), store[id_].timestamps
count, rng, compared, refused = len(store[id_]), random.Random(4), 0, 0
for _ in range(150):
    common = dict(num_frames_per_clip=rng.randint(1, 12), policy=rng.choice(["repeat_last", "wrap", "error"]))
    by_index = common | dict(num_indices_between_frames=rng.randint(1, 6))
    if rng.random() < 0.5:
        by_index |= dict(sampling_range_start=rng.randint(-count, count), sampling_range_end=rng.choice([None, rng.randint(-count, count + 5)]))
    # Not where sums of seconds fall on the beginning of a frame: there theirs sometimes gives the frame before.
    by_time = common | dict(seconds_between_frames=rng.uniform(0.01, 0.3))
    if rng.random() < 0.5:
        by_time |= dict(sampling_range_start=rng.uniform(0, 2.0), sampling_range_end=rng.choice([None, rng.uniform(0, 3.0)]))
    clips, between = rng.randint(1, 2 * count), rng.uniform(0.05, 0.8)
    # A range of one start leaves torchcodec's random samplers nothing to draw.
    start = rng.randint(0, count - 1)
    one = by_index | dict(sampling_range_start=start, sampling_range_end=start + 1)
    for name, how in (
        ("clips_at_regular_indices", by_index | dict(num_clips=clips)), ("clips_at_random_indices", one),
        ("clips_at_regular_timestamps", by_time | dict(seconds_between_clip_starts=between)),
    ):
        due = attempt(lambda: shown(getattr(theirs, name)(decoder, **how), begins))
        found = attempt(lambda: of_ours(path, getattr(ours, name)(**how)))
        if "timestamps" in name and due == "refused" and how["policy"] != "error":
            assert found == due or len(found) == 1, (name, how, found)  # too short, which ours deals with as asked
            continue
        assert found == due, (name, how, found, due)
        compared, refused = compared + 1, refused + (due == "refused")
    # Where each of ours begins is a start that torchcodec draws from, and what follows is the same.
    for clip in of_ours(path, ours.clips_at_random_indices(num_clips=3, num_frames_per_clip=4, num_indices_between_frames=2)):
        one = dict(sampling_range_start=clip[0], sampling_range_end=clip[0] + 1, num_frames_per_clip=4, num_indices_between_frames=2)
        assert shown(theirs.clips_at_random_indices(decoder, **one), begins) == [clip] and clip[-1] < count
print(compared, "compared", refused, "refused by both")
"""


@pytest.mark.long
def test_clips_are_those_of_torchcodec(tmp_path):
    make_clips(tmp_path / "src", 1, 41)
    # At a constant rate every FFmpeg gives packets a duration; torchcodec takes the end of the video from the last one.
    assert transcode(tmp_path / "src", tmp_path / "dst", "--gop", 5, "--fps", 15).code == 0
    said = with_peers(OF_TORCHCODEC, tmp_path / "dst", needs=["torch", "torchcodec"])
    compared, refused = map(int, re.findall(r"\d+", said))
    assert 400 < compared <= 450 and 20 < refused < 225, said


def test_random_clips_begin_everywhere_in_their_range():
    starts = {
        items(clips_at_random_indices(num_frames_per_clip=4, num_indices_between_frames=3), 30, seed)[0][0]
        for seed in range(600)
    }
    assert starts == set(range(21))
    given = clips_at_random_indices(num_clips=2, sampling_range_start=-5, sampling_range_end=-1)
    assert {n for seed in range(200) for clip in items(given, 30, seed) for n in clip} == {25, 26, 27, 28}


def test_random_times_are_uniform_and_show_the_frame_of_then():
    sampler = clips_at_random_timestamps(num_frames_per_clip=2, seconds_between_frames=0.25)
    begins = np.array([0.0, 0.1, 0.5, 0.9])
    video = Timing(4, begins, 1.0)
    found = [sampler.item(video, 0, np.random.default_rng(seed)).tolist() for seed in range(2000)]
    # A start of [0, 0.75) s, and the frame a quarter of a second later: by hand.
    shares = {(0, 1): 0.1 / 0.75, (1, 1): 0.15 / 0.75, (1, 2): 0.25 / 0.75, (2, 2): 0.15 / 0.75, (2, 3): 0.1 / 0.75}
    assert {tuple(clip) for clip in found} == set(shares)
    for clip, share in shares.items():
        assert found.count(list(clip)) / 2000 == pytest.approx(share, abs=0.04)


# ------------------------------------------------------------------------------------------------ in a dataset


@pytest.fixture(scope="module")
def lengths(tmp_path_factory) -> Path:
    """Videos of 5, 12 and 30 frames."""
    root = tmp_path_factory.mktemp("lengths")
    for name, frames in {"a": 5, "b": 12, "c": 30}.items():
        make_clip(root / "src" / f"{name}.mp4", frames, size=(64, 48))
    assert transcode(root / "src", root / "dst", "--gop", 4).code == 0
    return root / "dst"


def test_one_random_clip_of_each_video_in_each_epoch(lengths):
    dataset = VideoDataset(lengths, clips=clips_at_random_indices(num_frames_per_clip=4, num_indices_between_frames=2))
    assert len(dataset) == 3 and "3 clips of 4 frames from 3 videos" in repr(dataset)
    whole = {id_: open_store(lengths)[id_].frames() for id_ in "abc"}
    with PrefetchLoader(dataset, 3, processes=False) as loader:
        seen = [next(iter(loader)) for _ in range(8)]
    for epoch, batch in enumerate(seen):
        assert batch["id"] == ["a", "b", "c"]
        for place, id_ in enumerate("abc"):
            assert np.array_equal(batch["frames"][place], whole[id_][batch["indexes"][place]])
            assert batch["indexes"][place].tolist() == dataset.locate(place, epoch)[1].tolist()
    assert all(batch["indexes"][0].tolist() == [0, 2, 4, 4] for batch in seen), "too short: the last one again"
    assert len({int(batch["indexes"][2][0]) for batch in seen}) > 3


@pytest.mark.long
@pytest.mark.parametrize("processes", [True, False])
def test_our_loader_gives_the_items_of_the_dataset_whatever_the_sampler(processes, lengths):
    for sampler in (
        clips_at_regular_indices(num_clips=4, num_frames_per_clip=6, policy="wrap"),
        clips_at_random_timestamps(num_clips=2, num_frames_per_clip=3),
    ):
        dataset = VideoDataset(lengths, clips=sampler, crop=32, num_crops=1 if sampler.is_random else 3)
        with PrefetchLoader(dataset, 4, shuffle=True, processes=processes) as loader:
            for epoch in range(1 if processes else 2):
                dataset.set_epoch(epoch)
                due = [dataset[n] for n in range(len(dataset))]
                found = [
                    (id_, numbers.tolist(), frames.tobytes())
                    for batch in loader
                    for id_, numbers, frames in zip(batch["id"], batch["indexes"], batch["frames"], strict=True)
                ]
                assert sorted(found) == sorted(
                    (item["id"], item["indexes"].tolist(), item["frames"].tobytes()) for item in due
                )


def test_short_videos_are_repeated_wrapped_refused_or_dropped(lengths):
    def clips(policy):
        return clips_at_regular_indices(num_frames_per_clip=4, num_indices_between_frames=2, policy=policy)

    assert VideoDataset(lengths, clips=clips("repeat_last")).locate(0)[1].tolist() == [0, 2, 4, 4]
    assert VideoDataset(lengths, clips=clips("wrap")).locate(0)[1].tolist() == [0, 2, 4, 0]
    by_times = {"num_frames_per_clip": 7, "seconds_between_frames": 0.04}
    for sampler in (
        clips_at_random_timestamps(**by_times),
        clips_at_regular_timestamps(seconds_between_clip_starts=0.1, **by_times),
    ):
        assert VideoDataset(lengths, clips=sampler).locate(0)[1].tolist() == [0, 1, 2, 3, 4, 4, 4]
    with pytest.raises(
        SettingsError, match=r"a: a clip from frame 0 needs 7 frames, and it has 5; policy='drop' leaves it out"
    ):
        VideoDataset(lengths, clips=clips("error"))
    dropped = VideoDataset(lengths, clips=clips("drop"))
    assert [dropped.locate(n)[0] for n in range(len(dropped))] == ["b", "c"] and "1 of them too short" in repr(dropped)
    for made, said in (
        (clips_at_random_timestamps(num_frames_per_clip=7, policy="error"), "a: its clips would start in [0.000, -"),
        (
            clips_at_regular_timestamps(seconds_between_clip_starts=1, sampling_range_start=9),
            "a: its clips would start in [9.000",
        ),
        (clips_at_random_indices(sampling_range_start=9), "a: its clips would start in [9, 5)"),
    ):
        with pytest.raises(SettingsError, match=re.escape(said)):
            VideoDataset(lengths, clips=made)
    ends = clips_at_random_indices(num_frames_per_clip=4, sampling_range_start=-3, sampling_range_end=30, policy="drop")
    with pytest.raises(SettingsError, match="3 videos of at most 30 frames hold 0 clips of 4 frames"):
        VideoDataset(lengths, clips=ends)


def test_samplers_that_cannot_work_are_refused(lengths):
    for make, said in (
        (lambda: clips_at_random_indices(num_clips=0), "num_clips is 0"),
        (lambda: clips_at_random_indices(num_frames_per_clip=1.5), "num_frames_per_clip is 1.5"),
        (lambda: clips_at_random_indices(policy="loop"), "policy is 'loop'; give repeat_last, wrap, error or drop"),
        (
            lambda: clips_at_regular_timestamps(seconds_between_clip_starts=0),
            "seconds_between_clip_starts is 0; give seconds above 0",
        ),
        (
            lambda: clips_at_random_indices(sampling_range_start=0.5),
            "sampling_range_start is 0.5; give the number of a frame",
        ),
        (lambda: clips_at_regular_timestamps(seconds_between_clip_starts=None), "seconds_between_clip_starts is None"),
        (lambda: clips_at_random_timestamps(sampling_range_end="1"), "sampling_range_end is '1'; give seconds"),
        (
            lambda: VideoDataset(lengths, clips=clips_at_random_indices(), crop=8, num_crops=3),
            "each crop would be of another random clip",
        ),
        (lambda: VideoDataset([1, 2]), "source has 1; give paths or stores"),
        (lambda: VideoDataset(lengths, clips=16), "clips is 16; give a sampler, such as clips_at_random_indices"),
        (
            lambda: VideoDataset(lengths, 16, clips=clips_at_random_indices()),
            "leave out sequence_length, stride and step",
        ),
    ):
        with pytest.raises(SettingsError, match=re.escape(said)):
            make()


def test_k_clips_and_three_crops_are_items_of_one_video(lengths):
    clips = clips_at_regular_indices(num_clips=4, num_frames_per_clip=2, num_indices_between_frames=3)
    dataset, whole = VideoDataset(lengths, clips=clips, crop=(48, 32), num_crops=3), VideoDataset(lengths, clips=clips)
    assert len(dataset) == 3 * len(whole) == 36
    for number in range(len(whole)):
        frames = whole[number]["frames"]
        for which, left in enumerate((0, 16, 32)):
            item = dataset[3 * number + which]
            assert item["id"] == whole[number]["id"] and item["indexes"].tolist() == whole[number]["indexes"].tolist()
            assert np.array_equal(item["frames"], frames[:, :, left : left + 32])
    upright = VideoDataset(lengths, 1, size=(64, 40), crop=40, num_crops=3)
    full = VideoDataset(lengths, 1, size=(64, 40))[0]["frames"]
    for which, top in enumerate((0, 12, 24)):
        assert np.array_equal(upright[which]["frames"], full[:, top : top + 40])


def test_the_crop_is_independent_of_the_clip_position(lengths):
    dataset = VideoDataset(
        lengths,
        clips=clips_at_random_indices(num_frames_per_clip=2),
        crop=(48, 20),
        random_crop=True,
        flip=True,
        ids=["c"],
    )
    whole = open_store(lengths)["c"].frames()
    starts, lefts, flips = [], [], []
    for epoch in range(120):
        dataset.set_epoch(epoch)
        item = dataset[0]
        full = whole[item["indexes"]]
        found = [
            (left, flip)
            for left in range(45)
            for flip in (1, -1)
            if np.array_equal(full[:, :, left : left + 20][:, :, ::flip], item["frames"])
        ]
        starts.append(int(item["indexes"][0]))
        lefts.append(found[0][0])
        flips.append(found[0][1])
    of = np.corrcoef([starts, lefts, flips])
    assert np.abs(of[np.triu_indices(3, 1)]).max() < 0.3, (
        "three standard deviations of 120 pairs without anything in common"
    )


def test_one_frame_is_a_clip_also_by_times(tmp_path):
    make_clip(tmp_path / "src" / "one.mp4", 1, size=(64, 48))
    assert transcode(tmp_path / "src", tmp_path / "dst").code == 0
    for sampler in (
        clips_at_random_timestamps(num_clips=2),
        clips_at_regular_timestamps(seconds_between_clip_starts=1.0),
    ):
        for source in (tmp_path / "dst", tmp_path / "src" / "one.mp4"):
            dataset = VideoDataset(source, clips=sampler)
            assert dataset[0]["indexes"].tolist() == [0]


def test_clips_of_one_video_are_shared_out_among_workers(lengths):
    dataset = VideoDataset(lengths, clips=clips_at_regular_indices(num_clips=200, num_frames_per_clip=2), ids=["c"])
    owners = PrefetchLoader(dataset, 4, workers=4, processes=False)._owners
    assert np.bincount(owners).min() >= 32


def test_several_stores_are_one_dataset(lengths, store_of, tmp_path):
    other = store_of("burst")
    with pytest.warns(UserWarning, match="3 of 7 videos have no label"):
        both = VideoDataset([lengths, other], 4, crop=32)
    alone = [VideoDataset(path, 4, crop=32) for path in (lengths, other)]
    assert len(both) == sum(map(len, alone)) and both.ids == sorted([*alone[0].ids, *alone[1].ids])
    for one in alone:
        for index in (0, len(one) - 1):
            at = next(n for n in range(len(both)) if str(both.locate(n)) == str(one.locate(index)))
            assert (
                np.array_equal(both[at]["frames"], one[index]["frames"])
                and both[at]["timestamps"].tolist() == one[index]["timestamps"].tolist()
            )
    named = VideoDataset({"x": lengths, "y": lengths}, 4, crop=32)
    assert named.ids == ["x/a", "x/b", "x/c", "y/a", "y/b", "y/c"] and len(named) == 2 * len(alone[0])
    with pytest.raises(StoreError, match=r"'a' is in .*dst too; give the stores names"):
        VideoDataset([lengths, lengths], 4)
    with pytest.raises(SettingsError, match="source is 42; give the path of a store, a store, several of them"):
        VideoDataset(42)
    assert both.class_to_idx == {"sub": 0} and {"labels": {"label": None}}.items() <= both[0].items()
    with PrefetchLoader(both, 4, shuffle=True, processes=False) as loader:
        assert sum(len(batch["id"]) for batch in loader) == len(both)


def test_no_stores_are_no_dataset():
    with pytest.raises(StoreError, match="no stores were given"):
        VideoDataset({}, 4)


def test_classes_of_several_stores_are_numbered_together(tmp_path):
    for name, label in {"one": "walk", "two": "run"}.items():
        make_clips(tmp_path / name / label, 2, 6)
        assert transcode(tmp_path / name, tmp_path / f"{name}-made", "--label-from-folder").code == 0
    dataset = VideoDataset([tmp_path / "one-made", tmp_path / "two-made"], 4)
    assert dataset.class_to_idx == {"run": 0, "walk": 1}
    assert {dataset[n]["id"].split("/")[0]: dataset[n]["class_id"] for n in range(len(dataset))} == {
        "run": 0,
        "walk": 1,
    }


@pytest.mark.parametrize("processes", [True, False])
def test_items_of_several_views_say_which_clip_and_crop_they_are(processes, lengths):
    """Scores of the views of a video are averaged by them."""
    clips = clips_at_regular_indices(num_clips=4, num_frames_per_clip=2)
    dataset = VideoDataset(lengths, clips=clips, crop=(48, 32), num_crops=3)
    with PrefetchLoader(dataset, 5, shuffle=True, processes=processes) as loader:
        views = [
            view
            for batch in loader
            for view in zip(batch["id"], batch["clip"].tolist(), batch["crop"].tolist(), strict=True)
        ]
    assert sorted(views) == [(id_, clip, crop) for id_ in dataset.ids for clip in range(4) for crop in range(3)]
    one = VideoDataset(lengths, clips=clips)
    assert [one[number]["clip"] for number in range(8)] == [0, 1, 2, 3] * 2 and "crop" not in one[0]


def test_clips_around_times_have_the_frame_of_that_time_in_their_middle(lengths):
    store = open_store(lengths)
    first, second = sorted(sorted(store.ids, key=lambda id_: len(store[id_]))[-2:])
    begins, count = store[first].timestamps, len(store[first])
    times = {
        first: [float(begins[0]), float(begins[5]), float(begins[-1])],
        second: [float(store[second].timestamps[2])],
    }
    clips = clips_around(times=times, num_frames_per_clip=4, num_indices_between_frames=2)
    dataset = VideoDataset(lengths, clips=clips)
    assert [(item["id"], item["clip"]) for item in dataset] == [(first, 0), (first, 1), (first, 2), (second, 0)]
    due = [[middle + 2 * place for place in (-2, -1, 0, 1)] for middle in (0, 5, count - 1)]
    for number, numbers in enumerate(due):
        item = dataset[number]
        assert item["indexes"].tolist() == [min(max(each, 0), count - 1) for each in numbers]
        assert item["frame_mask"].tolist() == [0 <= each < count for each in numbers]
        assert np.array_equal(item["frames"][2], store[first].frames_at(times[first][number : number + 1])[0])
    everywhere = VideoDataset(lengths, clips=clips_around(times=[0.0, 0.05], num_frames_per_clip=1))
    assert len(everywhere) == 2 * len(store)
    with PrefetchLoader(dataset, 4) as loader:
        assert [batch["indexes"].tolist() for batch in loader] == [[item["indexes"].tolist() for item in dataset]]


def test_times_that_no_video_shows_are_refused_or_dropped(lengths):
    store = open_store(lengths)
    times = {store.ids[0]: [0.0, 1000.0]}
    with pytest.raises(
        SettingsError, match=f"{store.ids[0]}: it shows nothing at 1000 s, .*policy='drop' leaves it out"
    ):
        VideoDataset(lengths, clips=clips_around(times=times))
    assert len(VideoDataset(lengths, clips=clips_around(times=times, policy="drop"))) == 1
    for wrong, said in (
        ({"times": ["1"]}, "times is '1'; give seconds"),
        ({"times": [1], "policy": "wrap"}, "give error or drop"),
    ):
        with pytest.raises(SettingsError, match=said):
            clips_around(**wrong)
    one, other = clips_around(times=[1.0]), clips_around(times=[1.5])
    assert repr(one) != repr(other) and repr(one) == repr(clips_around(times=(1,)))


def test_the_sampler_of_the_training_guide_draws_from_each_part(lengths, monkeypatch):
    guide = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
    (block,) = (block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "class segments" in block)
    names: dict[str, object] = {"__name__": __name__}
    monkeypatch.chdir(lengths.parent)
    exec(block.replace('"ready/"', repr(str(lengths))), names)
    dataset = names["dataset"]
    assert isinstance(dataset, VideoDataset)
    seen = set()
    length = {id_: len(open_store(lengths)[id_]) for id_ in "abc"}
    for epoch in range(20):
        dataset.set_epoch(epoch)
        for item in dataset:
            edges = np.linspace(0, length[item["id"]], 9)
            assert (np.floor(edges[:-1]) <= item["indexes"]).all() and (item["indexes"] < edges[1:]).all()
            seen.add((item["id"], *item["indexes"].tolist()))
    assert len(seen) > 30
