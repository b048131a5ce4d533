"""Small files that claim hours: what they would cost is bounded before it is spent, and the deadline follows the work."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests import points
from tests.helpers import environment, fault, leftovers, make_clip, manifest, outputs, transcode
from tests.recipes import Media
from tests.witness import Ffmpeg
from vidprep.formats.errors import LimitError
from vidprep.formats.moments import OutputClock
from vidprep.transcode.media.bounds import MAX_REPEATS
from vidprep.transcode.media.frames import SourceFacts, SourceFrame, retime

HOUR = 3600


def gapped(path: Path, times: Sequence[float], *, last: float = 0.04, audio: Sequence[float] = ()) -> Path:
    """Frames at these seconds, the last shown for `last`; a tenth of a second of audio at each of `audio`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    base = Fraction(1, 1000)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        heard = container.add_stream("pcm_s16le", rate=8000, layout="mono") if audio else None
        container.start_encoding()
        packets = []
        for number, seconds in enumerate(times):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 40 * number % 255, np.uint8), format="rgb24")
            for packet in stream.encode(frame.reformat(format="yuv420p")):
                packet.pts = packet.dts = round(seconds / base)
                packet.time_base, packet.duration = base, round(last / base)
                packets.append(packet)
        for seconds in audio if heard else ():
            samples = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
            samples.sample_rate = 8000
            for packet in heard.encode(samples):
                packet.pts = packet.dts = round(seconds * 8000)
                packet.time_base = Fraction(1, 8000)
                packets.append(packet)
        for packet in sorted(packets, key=lambda packet: packet.pts * packet.time_base):
            container.mux_one(packet)
    assert path.stat().st_size < 20_000
    return path


WAYS = {
    "transcode": ("transcode",),
    "burst": ("burst",),
    "tensor": ("burst", "--format", "tensor"),
    "ffmpeg": ("transcode", "--engine", "ffmpeg"),
    "split": ("transcode", "--segment", 60),
    "target": ("transcode", "--target-psnr", 30, "--target-mode", "per-video"),
}
BOMBS = {
    "gap.mkv": ([0, 100 * HOUR], 0.04),
    "gap.mp4": ([0, 0.04, 20 * HOUR, 20 * HOUR + 0.04], 0.04),
    "last.mkv": ([0, 0.04], 50 * HOUR),
    "within.mkv": ([0, 0.5 * HOUR], 0.04),
}


@pytest.mark.parametrize("way", WAYS)
def test_hours_between_two_frames_are_refused_before_they_are_written(tmp_path: Path, cli: Ffmpeg, way: str) -> None:
    for name, (times, last) in BOMBS.items():
        gapped(tmp_path / "src" / name, times, last=last)
    make_clip(tmp_path / "src" / "whole.mp4", 5)
    verb, *options = WAYS[way]
    begun = time.monotonic()
    environ = ["--ffmpeg", cli.exe] if "ffmpeg" in options else []
    ran = transcode(
        tmp_path / "src",
        tmp_path / "dst",
        "--fps",
        30,
        "--keep-source-suffix",
        "--json",
        "--jobs",
        1,
        *options,
        *environ,
        verb=verb,
    )
    assert time.monotonic() - begun < 200
    assert ran.code == 1
    rows = manifest(tmp_path / "dst")
    assert rows.pop("whole.mp4")["status"] == "ok"
    assert {row["error"] for row in rows.values()} == {"LimitError"}, rows
    for row in rows.values():
        assert "--max-frames" in row["message"]
    assert sum(map(len, outputs(tmp_path / "dst").values())) < 100_000
    assert not leftovers(tmp_path / "dst")


@pytest.mark.parametrize("way", ["burst", "ffmpeg"])
def test_max_frames_counts_output_frames_too(media: Media, cli: Ffmpeg, tmp_path: Path, way: str) -> None:
    """36 frames at 30/s are 72 at 60/s, says ffmpeg."""
    (tmp_path / "src").mkdir()
    shutil.copy(media["cfr.mp4"], tmp_path / "src" / "clip.mp4")
    verb, *options = WAYS[way]
    options += ["--fps", 60, "--overwrite", *(["--ffmpeg", cli.exe] if way == "ffmpeg" else [])]
    due = len(cli.frames(media["cfr.mp4"], "setpts=PTS-STARTPTS,fps=60:round=near"))
    assert due == 72
    for allowed, code in ((due - 1, 1), (due, 0)):
        ran = transcode(tmp_path / "src", tmp_path / "dst", *options, "--max-frames", allowed, verb=verb)
        assert ran.code == code, ran.err
    assert manifest(tmp_path / "dst")["clip"]["num_frames"] == due


def test_a_picture_that_stands_for_long_is_made_with_a_larger_max_frames_as_its_message_says(tmp_path: Path) -> None:
    gapped(tmp_path / "src" / "slides.mkv", [0, 1001, 1002])
    ran = transcode(tmp_path / "src", tmp_path / "dst", "--fps", 10, "--json", verb="burst")
    message = ran.rows["slides"]["message"]
    assert "10010 frames" in message and "1001.0 s" in message
    allowed = message.split("--max-frames ")[1].split()[0]
    ran = transcode(tmp_path / "src", tmp_path / "dst", "--fps", 10, "--json", "--max-frames", allowed, verb="burst")
    assert ran.rows["slides"]["num_frames"] == 10020  # the last picture ends 0.04 s after it begins
    ran = transcode(tmp_path / "src", tmp_path / "dst", "--jobs", 1, verb="validate")
    assert ran.code == 0, ran.out


def test_hours_between_two_frames_cost_nothing_where_frames_keep_their_times(tmp_path: Path) -> None:
    gapped(tmp_path / "src" / "gap.mkv", [0, 5 * HOUR])
    ran = transcode(tmp_path / "src", tmp_path / "dst", "--jobs", 1, "--json")
    assert ran.rows["gap"]["num_frames"] == 2, ran.err


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(st.integers(1, 3_000_000), min_size=1, max_size=8),
    rate=st.fractions(Fraction(1, 1000), 1000, max_denominator=1001),
    max_frames=st.integers(1, 60_000),
)
def test_nothing_beyond_the_bounds_is_given_out(steps: list[int], rate: Fraction, max_frames: int) -> None:
    pts = [sum(steps[:number]) for number in range(len(steps))]
    frames = [SourceFrame(None, at, at + step, n) for n, (at, step) in enumerate(zip(pts, steps, strict=True))]  # type: ignore[arg-type]
    due = [math.ceil(at * rate / 1000) for at in (*pts, sum(steps))]
    given_out = 0
    try:
        for given_out, frame in enumerate(
            retime(
                frames,
                OutputClock(rate, Fraction(0)),
                Fraction(1, 1000),
                SourceFacts(),
                Fraction(0),
                max_frames=max_frames,
            ),
            1,
        ):
            assert frame.pts == given_out - 1
    except LimitError as error:
        repeats = max(after - before for before, after in zip(due, due[1:], strict=False))
        assert due[-1] > max_frames - 2 or repeats > MAX_REPEATS - 2, str(error)
    assert given_out <= max_frames


# ------------------------------------------------------------------------------------------------ deadlines


def hurried(**values: float) -> str:
    """A fault that shortens what the parent allows."""
    code = "; ".join(
        f"sys.modules['vidprep.transcode.workers.child'].{name} = {value}" for name, value in values.items()
    )
    return fault(*points.CHILD_INIT, code=code, only="parent")


@pytest.mark.long
def test_the_deadline_grows_neither_with_what_a_source_claims_nor_with_its_holes(tmp_path: Path) -> None:
    """Two frames, 100 h apart, in a file that is 4 TB long; and an encoder that hangs."""
    with gapped(tmp_path / "src" / "gap.mkv", [0, 100 * HOUR]).open("r+b") as file:
        file.truncate(4 << 40)
    hang = fault(*points.VIDEO_WRITER_ENCODE, at=1, code="time.sleep(60)", only="child")
    env = environment(tmp_path / "hook", hurried(OPEN_SECONDS=4, MIN_SECONDS=4, SECONDS_PER_SECOND=1), hang)
    ran = transcode(tmp_path / "src", tmp_path / "dst", "--jobs", 1, "--json", env=env)
    assert ran.rows["gap"]["error"] == "DeadlineError"


@pytest.mark.long
def test_the_deadline_grows_with_the_frames_that_are_done(tmp_path: Path) -> None:
    """40 frames of one millisecond each, for which an encoder takes a seventh of a second."""
    gapped(tmp_path / "src" / "dense.mkv", [number / 1000 for number in range(40)], last=0.001)
    slow = fault(*points.PICTURE_FILTER_APPLY, at=-1, code="time.sleep(0.15)", only="child")
    env = environment(tmp_path / "hook", hurried(OPEN_SECONDS=4, MIN_SECONDS=4, SECONDS_PER_SECOND=10), slow)
    ran = transcode(tmp_path / "src", tmp_path / "dst", "--jobs", 1, "--json", env=env)
    assert ran.rows["dense"]["status"] == "ok", ran.rows["dense"]["message"]


# ------------------------------------------------------------------------------------------------ audio


def test_hours_of_silence_are_not_encoded(tmp_path: Path) -> None:
    gapped(tmp_path / "src" / "gap.mkv", [0, 100 * HOUR], audio=[0, 100 * HOUR])
    code = "sys.modules['vidprep.transcode.media.audio'].MAX_SILENT_HOURS = 0.1"
    env = environment(tmp_path / "hook", fault(*points.RUN_JOB, code=code, only="child"))
    ran = transcode(
        tmp_path / "src", tmp_path / "dst", "--jobs", 1, "--json", "--audio", "aac", "--container", "mkv", env=env
    )
    assert ran.rows["gap"]["error"] == "LimitError", ran.rows
    assert "--audio drop" in ran.rows["gap"]["message"]
