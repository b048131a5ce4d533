"""Stages in threads of their own: the same items, errors and outputs as one after the other."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import fields, replace
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from vidprep.formats.manifest.table import ManifestRow
from vidprep.formats.model import Cut, FrameSize
from vidprep.formats.video.options import EncoderOptions
from vidprep.formats.video.writer import VideoWriter
from vidprep.transcode.media.picture_filter import PictureFilter
from vidprep.transcode.media.stream import WAITING_BYTES, make_ahead, waiting_frames
from vidprep.transcode.media.verify import Verifier
from vidprep.transcode.settings.options import Limits, Retime, Scale
from vidprep.transcode.settings.output import FrameOutput, VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.unit.job import Context, WholeJob
from vidprep.transcode.unit.life import run_job

TIMES = {"encode_seconds", "cpu_seconds"}


def one() -> int:
    return 1


def two() -> int:
    return 2


def numbers(end: int, *, until: int | None = None, seen: list[int] | None = None) -> Generator[int, None, None]:
    for number in range(end):
        if number == until:
            raise ValueError(f"at {number}")
        if seen is not None:
            seen.append(number)
        yield number


@pytest.mark.parametrize("after", [0, 3, 99])
def test_items_come_in_order_whenever_a_core_becomes_idle(after: int) -> None:
    asked = count()
    inner = make_ahead(numbers(20), 2, lambda: 1 + (next(asked) >= after))
    assert list(make_ahead((2 * n for n in inner), 3, lambda: 1 + (next(asked) >= after))) == list(range(0, 40, 2))


@pytest.mark.parametrize("cores", [one, two])
def test_an_error_is_raised_at_its_place(cores: Callable[[], int]) -> None:
    got = []
    with pytest.raises(ValueError, match="at 7"):
        for number in make_ahead((n for n in make_ahead(numbers(20, until=7), 2, cores)), 2, cores):
            got.append(number)
    assert got == list(range(7))


def test_no_more_is_made_ahead_than_may_wait() -> None:
    seen: list[int] = []
    items = make_ahead(numbers(100, seen=seen), 4, two)
    assert [next(items), next(items)] == [0, 1]
    deadline = time.monotonic() + 120
    while len(seen) < 7 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert seen == list(range(7))  # two were taken, four wait, and one is in the hands of the thread
    items.close()


def test_closing_ends_threads_and_their_sources() -> None:
    closed = []

    def source() -> Generator[int, None, None]:
        try:
            yield from numbers(1000)
        finally:
            closed.append(threading.current_thread())

    before = threading.active_count()
    items = make_ahead((n for n in make_ahead(source(), 2, two)), 2, two)
    assert next(items) == 0
    assert next(items) == 1
    assert threading.active_count() == before + 2
    items.close()
    assert threading.active_count() == before
    assert closed == [threading.current_thread()]


def test_queues_are_bounded_in_bytes() -> None:
    assert waiting_frames(FrameSize(426, 240)) == 16
    assert waiting_frames(FrameSize(1280, 720)) * 1280 * 720 * 1.5 <= WAITING_BYTES
    assert waiting_frames(FrameSize(7680, 4320)) == 1


def made(
    path: Path, settings: RunSettings, partial: Path, cli: Any, cores: Callable[[], int], **cut: float
) -> tuple[dict[str, Any], str | None]:
    """The row but its times, and the SHA-256 of the file."""
    info = path.stat()
    unit = Unit("x", str(path), info.st_size, info.st_mtime_ns, Cut(cut.get("start"), cut.get("end")))
    row = run_job(WholeJob(unit, settings, "x.bin", str(partial), ffmpeg=cli.exe), Context(cores=cores))
    assert isinstance(row, ManifestRow)
    told = {each.name: getattr(row, each.name) for each in fields(row) if each.name not in TIMES}
    return told, hashlib.sha256(partial.read_bytes()).hexdigest() if partial.exists() else None


WAYS = {
    "h264": RunSettings(VideoOutput(EncoderOptions(gop=5))),
    "hevc": RunSettings(VideoOutput(EncoderOptions(codec="hevc", gop=5, preset="ultrafast"))),
    "vp9": RunSettings(VideoOutput(EncoderOptions(codec="vp9", gop=5, preset="8"))),
    "av1": RunSettings(VideoOutput(EncoderOptions(codec="av1", gop=5, preset="12"))),
    "retimed": RunSettings(retime=Retime(Fraction(120)), scale=Scale(short_side=48)),
    "audio": RunSettings(VideoOutput(audio="aac")),
    "burst": RunSettings(FrameOutput()),
    "tensor": RunSettings(FrameOutput(store="tensor")),
    "repeated in a burst": RunSettings(FrameOutput(), retime=Retime(Fraction(120))),
    "ffmpeg": RunSettings(VideoOutput(engine="ffmpeg")),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_bytes_and_row_one_after_the_other_and_in_threads(way, media, cli, tmp_path) -> None:
    path, settings = media["cfr.mp4"], WAYS[way]
    partial = tmp_path / f"x.{settings.output.extension}"
    asked = count()
    alone, *others = (made(path, settings, partial, cli, cores) for cores in (one, two, lambda: 1 + (next(asked) > 9)))
    assert alone[0]["status"] == "ok", alone[0]["message"]
    assert alone[1] is not None
    assert others == [alone, alone]


FAILING = {
    "while it is read": ("cfr.mp4", RunSettings(limits=Limits(max_frames=9))),
    "damaged": ("cut_short.mp4", RunSettings(on_damage="fail")),
    "below its floor": ("cfr.mp4", replace(RunSettings(), gate=replace(RunSettings().gate, min_psnr_db=90.0))),
}


@pytest.mark.parametrize("case", FAILING)
def test_the_same_failure_one_after_the_other_and_in_threads(case, media, cli, tmp_path) -> None:
    name, settings = FAILING[case]
    partial = tmp_path / "x.mp4"
    alone, side_by_side = (made(media[name], settings, partial, cli, cores) for cores in (one, two))
    assert alone[0]["status"] == "failed"
    assert side_by_side == alone
    assert alone[1] is None


@pytest.mark.parametrize(("where", "name"), [(VideoWriter, "encode"), (Verifier, "check"), (PictureFilter, "apply")])
def test_a_stage_that_fails_ends_the_others(where, name, media, cli, tmp_path, monkeypatch) -> None:
    calls, whole = count(), getattr(where, name)

    def broken(*args: Any) -> Any:
        if next(calls) == 12:
            raise MemoryError
        return whole(*args)

    monkeypatch.setattr(where, name, broken)
    before = threading.active_count()
    row, output = made(media["cfr.mp4"], RunSettings(), tmp_path / "x.mp4", cli, two)
    assert (row["status"], row["stage"]) == ("failed", "memory")
    assert output is None
    assert threading.active_count() == before
