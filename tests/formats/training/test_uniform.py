"""Frames for vision-language models are those that qwen_vl_utils chooses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import transcode, with_peers
from tests.numbered_pictures import number_on
from tests.robots import write_video
from vidprep.formats import PrefetchLoader, VideoDataset, clips_uniform, sample_fps
from vidprep.formats.errors import SettingsError
from vidprep.formats.training.samplers import Timing
from vidprep.formats.training.uniform import spread

RNG = np.random.default_rng(0)


def chosen(sampler: sample_fps, num_frames: int, seconds: float) -> list[int]:
    """Return the frames of an item that are not padding."""
    numbers, mask = sampler.masked_item(Timing(num_frames, end_seconds=seconds), 0, RNG)
    assert len(numbers) == len(mask) == sampler.num_frames
    assert (numbers[~mask] == numbers[mask][-1]).all()
    found: list[int] = numbers[mask].tolist()
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("num_frames", "seconds", "frames"),
    [
        (90, 3.0, [0, 18, 36, 53, 71, 89]),  # two a second
        (90, 1.0, [0, 30, 59, 89]),  # at least min_frames
        (1000, 40.0, [0, 143, 285, 428, 571, 714, 856, 999]),  # at most max_frames
        (5, 0.2, [0, 1, 3, 4]),
        (3, 0.1, [0, 2]),  # even, and no more than there are
        (1, 0.04, [0]),
    ],
)
def test_sample_fps_spreads_an_even_number_of_frames(num_frames, seconds, frames):
    assert chosen(sample_fps(2.0, max_frames=9), num_frames, seconds) == frames


def test_frames_are_those_of_torch_linspace():
    script = """
import json, torch
counts = [2, 3, 4, 6, 8, 10, 16, 24, 32, 64, 100, 256, 768]
lengths = [*range(2, 120), 239, 250, 299, 300, 1000, 1501]  # in very long videos the last bit depends on the CPU
print(json.dumps([[n, c, torch.linspace(0, n - 1, c).round().long().tolist()] for n in lengths for c in counts]))
"""
    cases = json.loads(with_peers(script, needs=["torch"]))
    assert len(cases) > 1000
    assert all(spread(num_frames, count).tolist() == frames for num_frames, count, frames in cases)


def test_an_odd_least_number_of_frames_is_rounded_up():
    assert chosen(sample_fps(2.0, max_frames=8, min_frames=1), 90, 0.1) == [0, 89]
    assert chosen(sample_fps(2.0, max_frames=8, min_frames=5), 90, 0.1) == [0, 18, 36, 53, 71, 89]


def test_clips_uniform_repeats_frames_of_short_videos():
    assert clips_uniform(4).item(Timing(10), 0, RNG).tolist() == [0, 3, 6, 9]
    assert clips_uniform(4).item(Timing(2), 0, RNG).tolist() == [0, 0, 1, 1]
    assert clips_uniform(1).item(Timing(10), 0, RNG).tolist() == [0]


@pytest.mark.parametrize(
    ("fps", "limits"),
    [
        (0, {"max_frames": 8}),
        (float("nan"), {"max_frames": 8}),
        (2.0, {"max_frames": 1}),
        (2.0, {"max_frames": 5, "min_frames": 5}),
    ],
)
def test_values_that_give_no_frames_are_refused(fps, limits):
    with pytest.raises(SettingsError):
        sample_fps(fps, **limits)


def test_sampled_frames_are_read_from_raw_encoded_and_burst_stores_and_loaded_in_batches(tmp_path: Path):
    for name, num_frames in (("a", 90), ("b", 36)):
        write_video(tmp_path / "src" / f"{name}.mp4", range(num_frames), 30)
    transcode(tmp_path / "src", tmp_path / "dst", "--gop", 5)
    expected = {"a": [0, 18, 36, 53, 71, 89], "b": [0, 12, 23, 35]}
    sampler = sample_fps(2.0, max_frames=8)
    transcode(tmp_path / "src", tmp_path / "burst", "--quality", 95, verb="burst")
    for place in (sorted((tmp_path / "src").iterdir()), tmp_path / "dst", tmp_path / "burst"):
        clips = VideoDataset(place, clips=sampler)
        assert len(clips) == 2
        for item in (clips[0], clips[1]):
            kept = item["frame_mask"]
            assert [number_on(frame) for frame in item["frames"][kept]] == expected[Path(item["id"]).stem]
    batches = list(
        PrefetchLoader(VideoDataset(tmp_path / "dst", clips=sampler), batch_size=2, workers=1, shuffle=False)
    )
    assert [batch["frames"].shape[:2] for batch in batches] == [(2, 8)]
    assert batches[0]["frame_mask"].sum(axis=1).tolist() == [6, 4]
