"""Clips of exactly N frames at the rate of the output, counted in what `transcode` makes of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from tests.helpers import manifest, transcode
from tests.numbered_pictures import constant, numbers_in, write
from vidprep.transcode import scan
from vidprep.transcode.sources.tables import read_source_table

TIMES: dict[str, Callable[[random.Random], list[Fraction]]] = {
    "25": lambda _rng: constant(100, 25),
    "29.97": lambda _rng: constant(120, Fraction(30000, 1001)),
    "variable": lambda rng: _steps(rng, 100),
    "variable2": lambda rng: _steps(rng, 100),
    "variable3": lambda rng: _steps(rng, 100),
    "late": lambda _rng: [time + Fraction(7, 10) for time in constant(90, 30)],
    "60": lambda _rng: constant(200, 60),
}


def _steps(rng: random.Random, count: int) -> list[Fraction]:
    time, times = Fraction(0), []
    for _ in range(count):
        times.append(time)
        time += rng.choice((Fraction(1, 30), Fraction(1, 24), Fraction(1, 15)))
    return times


@pytest.mark.long
@pytest.mark.parametrize("fps", ["12", "10", "24000/1001"])
def test_every_clip_has_exactly_so_many_frames(tmp_path: Path, fps: str) -> None:
    rng = random.Random(1)
    for name, times in TIMES.items():
        for suffix in (".mp4", ".mkv"):
            write(tmp_path / "raw" / f"{name}{suffix}", times(rng))
    done = scan(
        tmp_path / "raw",
        tmp_path / "clips.csv",
        clip_frames=17,
        clip_step=9,
        fps=fps,
        keep_source_suffix=True,
        rest="overlap",
    )
    assert done.clips >= 20
    if fps != "24000/1001":  # above the rate of a source, not each number of frames can be had
        assert not done.rest["left_over"]
    ran = transcode(tmp_path / "clips.csv", tmp_path / "out", "--fps", fps, "--quiet")
    assert ran.code == 0, ran.err
    assert {row["num_frames"] for row in manifest(tmp_path / "out").values()} == {17}
    assert len(manifest(tmp_path / "out")) == done.clips


@pytest.mark.parametrize("step", [4, 10, 13])
def test_windows_begin_step_frames_after_each_other(tmp_path: Path, step: int) -> None:
    write(tmp_path / "raw/a.mp4", constant(36, 30))
    scan(tmp_path / "raw", tmp_path / "clips.csv", clip_frames=10, clip_step=step)
    rows = list(read_source_table(tmp_path / "clips.csv").rows())
    assert [(row["start_frame"], row["end_frame"]) for row in rows] == [(n, n + 10) for n in range(0, 27, step)]
    assert transcode(tmp_path / "clips.csv", tmp_path / "out").code == 0
    assert numbers_in(tmp_path / "out") == {row["id"]: [*range(row["start_frame"], row["end_frame"])] for row in rows}


@pytest.mark.parametrize(
    ("rest", "clips", "left"),
    [
        ("drop", [(0, 10), (10, 20)], 6),
        ("short", [(0, 10), (10, 20), (20, 26)], 0),
        ("overlap", [(0, 10), (10, 20), (16, 26)], 0),
    ],
)
def test_what_is_left_over(tmp_path: Path, rest: str, clips: list[tuple[int, int]], left: int) -> None:
    write(tmp_path / "raw/a.mp4", constant(26, 30))
    done = scan(tmp_path / "raw", tmp_path / "clips.csv", clip_frames=10, rest=rest)
    rows = read_source_table(tmp_path / "clips.csv").rows()
    assert [(row["start_frame"], row["end_frame"]) for row in rows] == clips
    assert done.rest["left_over"] == left


def test_a_source_that_is_too_short_is_listed_and_is_no_failure(tmp_path: Path) -> None:
    write(tmp_path / "raw/long.mp4", constant(26, 30))
    write(tmp_path / "raw/short.mp4", constant(5, 30))
    done = scan(tmp_path / "raw", tmp_path / "clips.csv", min_frames=6)
    assert (done.clips, done.failed, done.without_clips) == (1, {}, 1)
    assert "short" in (tmp_path / "clips.csv.failed.csv").read_text()
    ran = transcode(tmp_path / "raw", tmp_path / "other.csv", "--min-frames", "6", verb="scan")
    assert ran.code == 0
    assert "1 source without a clip" in ran.err


def test_clips_of_a_part_of_a_source_are_numbered_as_the_source(tmp_path: Path) -> None:
    write(tmp_path / "raw/a.mp4", constant(60, 30))
    (tmp_path / "parts.csv").write_text("path,id,start_frame,end_frame,label\nraw/a.mp4,x,15,52,run\n")
    scan(tmp_path / "parts.csv", tmp_path / "clips.csv", clip_frames=10)
    rows = list(read_source_table(tmp_path / "clips.csv").rows())
    assert [(row["start_frame"], row["end_frame"], row["label"]) for row in rows] == [
        (15, 25, "run"),
        (25, 35, "run"),
        (35, 45, "run"),
    ]
    assert transcode(tmp_path / "clips.csv", tmp_path / "out").code == 0
    assert sorted(numbers_in(tmp_path / "out").values()) == [[*range(n, n + 10)] for n in (15, 25, 35)]


@pytest.mark.parametrize(("frames", "step", "fps"), [(1, None, "1"), (2, 1, "1"), (17, 12, "12"), (4, 2, "5")])
def test_a_step_counts_at_the_rate_of_the_output(tmp_path: Path, frames: int, step: int | None, fps: str) -> None:
    write(tmp_path / "raw/a.mp4", constant(150, 25))
    scan(tmp_path / "raw", tmp_path / "clips.csv", clip_frames=frames, clip_step=step, fps=fps)
    starts = [row["start_frame"] for row in read_source_table(tmp_path / "clips.csv").rows()]
    apart = Fraction(step or frames) / Fraction(fps) * 25
    assert len(starts) > 1
    assert all(abs(start - number * apart) <= 1 for number, start in enumerate(starts)), starts


def test_frames_between_windows_are_left_over(tmp_path: Path) -> None:
    write(tmp_path / "raw/a.mp4", constant(50, 30))
    done = scan(tmp_path / "raw", tmp_path / "clips.csv", clip_frames=10, clip_step=15)
    assert (done.clips, done.rest["left_over"]) == (3, 20)
