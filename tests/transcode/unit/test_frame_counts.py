"""Outputs of exactly so many frames: the first ones of what the video has, counted by other readers."""

from __future__ import annotations

import random
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import imageio_ffmpeg
import pytest

from tests.helpers import manifest, transcode
from tests.numbered_pictures import constant, numbers_in, write
from tests.witness import Ffmpeg

COUNTS = {"4n+1": [*range(1, 400, 4)], "8n+1": [*range(1, 400, 8)], "5n": [*range(5, 400, 5)], "9": [9]}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("counts") / "raw", random.Random(3)
    times, steps = Fraction(0), []
    for _ in range(47):
        steps.append(times)
        times += rng.choice((Fraction(1, 30), Fraction(1, 24), Fraction(1, 15)))
    for name, stamps in {
        "a25.mp4": constant(48, 25),
        "b2997.mkv": constant(50, Fraction(30000, 1001)),
        "variable.mp4": steps,
        "late.mkv": [time + Fraction(7, 10) for time in constant(31, 30)],
        "short.mp4": constant(12, 25),
    }.items():
        write(folder / name, stamps)
    return folder


def counted(path: Path) -> int:
    video, count = cv2.VideoCapture(str(path)), 0
    while video.read()[0]:
        count += 1
    return count


@pytest.mark.parametrize("frames", COUNTS)
@pytest.mark.parametrize("rate", [(), ("--fps", "16"), ("--fps", "24000/1001")])
def test_every_output_has_such_a_count(raw: Path, tmp_path: Path, frames: str, rate: tuple[str, ...]) -> None:
    assert transcode(raw, tmp_path / "plain", *rate).code == 0
    ran = transcode(raw, tmp_path / "out", *rate, "--frames", frames)
    rows, plain = manifest(tmp_path / "out"), manifest(tmp_path / "plain")
    fitting = {id_: max([n for n in COUNTS[frames] if n <= row["num_frames"]], default=0) for id_, row in plain.items()}
    assert ran.code == (0 if all(fitting.values()) else 1)
    shown, all_shown = numbers_in(tmp_path / "out"), numbers_in(tmp_path / "plain")
    for id_, row in rows.items():
        if not fitting[id_]:
            assert (row["status"], row["error"]) == ("failed", "ShortError")
            continue
        path = tmp_path / "out" / row["file_name"]
        assert row["num_frames"] == counted(path) == fitting[id_]
        assert shown[id_] == all_shown[id_][: fitting[id_]]
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            seconds = float((stream.duration or 0) * stream.time_base)
        if id_ != "variable":  # with B-frames MP4 gives the last frame another duration
            assert seconds == pytest.approx(row["duration_seconds"], abs=0.002)


@pytest.mark.parametrize("program", [imageio_ffmpeg.get_ffmpeg_exe(), shutil.which("ffmpeg")])
@pytest.mark.parametrize("frames", [(), ("--frames", "4n+1")])
def test_every_ffmpeg_shows_the_last_frame_as_long_as_it_lasts(
    tmp_path: Path, program: str | None, frames: tuple[str, ...]
) -> None:
    if program is None:
        pytest.skip("no ffmpeg on PATH")
    for name, last in (("short", Fraction(11, 600)), ("usual", Fraction(1, 20)), ("long", Fraction(3, 2))):
        write(tmp_path / "raw" / f"{name}.mov", constant(22, 20), last=last)
    for engine in (("--engine", "av"), ("--engine", "ffmpeg", "--ffmpeg", program)):
        assert transcode(tmp_path / "raw", tmp_path / engine[1], "--fps", "16", *frames, *engine).code == 0
    assert numbers_in(tmp_path / "ffmpeg") == numbers_in(tmp_path / "av")
    again = transcode(tmp_path / "raw", tmp_path / "av", "--cross-check", "3", "--ffmpeg", program, verb="validate")
    assert again.code == 0, again.out


@pytest.mark.parametrize("rate", [(), ("--fps", "16")])
@pytest.mark.parametrize("more", [("--engine", "ffmpeg"), ("--gop", "4", "--audio", "copy"), ("--segment", "1")])
def test_with_other_engines_and_options(
    raw: Path, tmp_path: Path, rate: tuple[str, ...], more: tuple[str, ...]
) -> None:
    assert transcode(raw, tmp_path / "plain", *rate, "--frames", "8n+1").code == 0
    assert transcode(raw, tmp_path / "out", *rate, *more, "--frames", "8n+1").code == 0
    assert numbers_in(tmp_path / "out") == numbers_in(tmp_path / "plain")
    assert {row["num_frames"] % 8 for row in manifest(tmp_path / "out").values()} == {1}


@pytest.mark.parametrize("rate", [(), ("--fps", "16")])
def test_stored_frames(raw: Path, tmp_path: Path, rate: tuple[str, ...]) -> None:
    assert transcode(raw, tmp_path / "videos", *rate, "--frames", "4n+1").code == 0
    assert transcode(raw, tmp_path / "frames", *rate, "--frames", "4n+1", verb="burst").code == 0
    names = ("num_frames", "source_frames", "duration_seconds", "source_num_frames")
    videos, frames = (
        {id_: [row[name] for name in names] for id_, row in manifest(tmp_path / kind).items()}
        for kind in ("videos", "frames")
    )
    assert videos == frames


def test_a_cut_is_cut_further(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "cuts.csv").write_text(f"path,start_frame,end_frame\n{raw}/a25.mp4,5,25\n{raw}/a25.mp4,30,48\n")
    assert transcode(tmp_path / "cuts.csv", tmp_path / "out", "--frames", "8n+1").code == 0
    assert sorted(numbers_in(tmp_path / "out").values()) == [[*range(5, 22)], [*range(30, 47)]]


def test_short_videos_are_left_out_where_that_is_asked_for(raw: Path, tmp_path: Path) -> None:
    command: tuple[Any, ...] = (raw, tmp_path / "out", "--frames", "4n+1", "--least-frames", "20")
    ran = transcode(*command)
    assert ran.code == 1
    assert "has 12 frames, and --frames 4n+1 asks for 21 or more" in ran.err
    ran = transcode(*command, "--on-short", "skip")
    assert ran.code == 0
    assert "failed: " not in ran.err
    assert "1 too short and left out" in ran.err
    again = transcode(*command, "--on-short", "skip")
    assert "4 done before, 1 too short and left out" in again.err
    assert manifest(tmp_path / "out")["short"]["attempts"] == 1
    assert transcode(*command).code == 1


def test_the_output_is_that_of_its_first_frames_when_it_is_checked_again(raw: Path, tmp_path: Path) -> None:
    assert transcode(raw, tmp_path / "out", "--fps", "16", "--frames", "4n+1").code == 0
    ran = transcode(raw, tmp_path / "out", verb="validate")
    assert ran.code == 0, ran.err


def end_of(path: Path, kind: str) -> float:
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(**{kind: 0}) if packet.size and packet.pts is not None]
        return max(float((packet.pts + (packet.duration or 0)) * packet.time_base) for packet in packets)


@pytest.mark.parametrize("audio", ["aac", "copy"])
@pytest.mark.parametrize("rate", [(), ("--fps", "16")])
@pytest.mark.parametrize("hertz", ["44100", "8000"])
def test_the_audio_ends_with_the_pictures(
    tmp_path: Path, cli: Ffmpeg, audio: str, rate: tuple[str, ...], hertz: str
) -> None:
    sources = (
        "-f",
        "lavfi",
        "-i",
        "testsrc2=size=96x64:rate=25:duration=4",
        "-f",
        "lavfi",
        "-i",
        "sine=500:duration=4",
    )
    (tmp_path / "raw").mkdir()
    cli.run(*sources, "-pix_fmt", "yuv420p", "-c:a", "aac", "-ar", hertz, tmp_path / "raw" / "a.mp4")
    for frames in ("17", "8n+1"):
        out = tmp_path / f"out{frames}"
        assert transcode(tmp_path / "raw", out, *rate, "--frames", frames, "--audio", audio).code == 0
        video, sound = (end_of(out / "a.mp4", kind) for kind in ("video", "audio"))
        assert abs(sound - video) <= 1024 / int(hertz) + 0.02, (sound, video)
