"""What is taken for video, and what is passed over and said to be."""

from __future__ import annotations

import os
from pathlib import Path

import av
import pytest

from tests.helpers import make_clip, manifest, transcode
from tests.transcode.sources.trees import find_sources
from tests.witness import Ffmpeg
from vidprep.transcode.run.plan import count_ignored, describe_ignored

QUICK = ("--gop", 4, "--preset", "ultrafast", "--quiet")
MOVING = ("-f", "lavfi", "-i", "testsrc=size=96x64:rate=25:duration=0.4", "-pix_fmt", "yuv420p")
# What writes a file of this name, as ffmpeg's program is told.
WRITTEN = {
    "mj2": ("-c:v", "jpeg2000", "-f", "mov"),
    "apng": ("-f", "apng"),
    "avc": ("-f", "h264"),
    "26l": ("-f", "h264"),
    "h26l": ("-f", "h264"),
    "axv": ("-c:v", "libtheora", "-f", "ogg"),
    "ogx": ("-c:v", "libtheora", "-f", "ogg"),
    "ogm": ("-c:v", "libtheora", "-f", "ogg"),
    "dvr-ms": ("-c:v", "wmv2", "-f", "asf"),
    "wm": ("-c:v", "wmv2", "-f", "asf"),
    "m2p": ("-c:v", "mpeg2video", "-f", "vob"),
    "mp2v": ("-c:v", "mpeg2video", "-f", "mpeg2video"),
    "mpv2": ("-c:v", "mpeg2video", "-f", "mpeg2video"),
    "mpeg4": ("-f", "mp4"),
    "mpg4": ("-f", "mp4"),
    "mqv": ("-f", "mov"),
    "psp": ("-f", "mp4"),
    "insv": ("-f", "mp4"),
    "lrv": ("-f", "mp4"),
    "360": ("-f", "mp4"),
    "3gp2": ("-c:v", "libx264", "-f", "3g2"),
    "3gpp2": ("-c:v", "libx264", "-f", "3g2"),
    "y4m": ("-f", "yuv4mpegpipe"),
    "nut": (),
    "gif": (),
    "ivf": ("-c:v", "libvpx-vp9"),
    "obu": ("-c:v", "libaom-av1", "-cpu-used", "8", "-f", "obu"),
    "mxf": ("-c:v", "mpeg2video"),
    "wtv": ("-c:v", "mpeg2video"),
    "rm": ("-c:v", "rv10"),
    "dv": ("-s", "720x576", "-c:v", "dvvideo"),
    "mjpg": ("-c:v", "mjpeg"),
    "h263": ("-c:v", "h263", "-s", "128x96"),
    "m4v": ("-c:v", "mpeg4", "-f", "m4v"),
    "flv": ("-c:v", "flv"),
}


@pytest.mark.long
def test_every_container_that_is_read_safely_is_a_source(cli: Ffmpeg, tmp_path: Path) -> None:
    """Held against what ffmpeg itself decodes of them."""
    source = tmp_path / "raw"
    source.mkdir()
    for extension, how in WRITTEN.items():
        cli.run(*MOVING, *how, source / f"in_{extension}.{extension}")
    found = find_sources(source, tmp_path / "out", keep_source_suffix=True)
    assert not found.ignored and not found.problems
    assert len(found.units) == len(WRITTEN)
    done = transcode(source, tmp_path / "out", *QUICK)
    assert {id_: row["message"] for id_, row in manifest(tmp_path / "out").items() if row["status"] != "ok"} == {}
    assert done.code == 0
    for extension in WRITTEN:
        name = f"in_{extension}"
        frames = cli.run(
            "-i", source / f"{name}.{extension}", "-f", "framecrc", "-fps_mode", "passthrough", "-"
        ).decode()
        due = sum(not line.startswith("#") for line in frames.splitlines())
        assert manifest(tmp_path / "out")[name]["num_frames"] == due == 10, name


def test_a_webp_is_a_source_if_it_moves(cli: Ffmpeg, tmp_path: Path) -> None:
    source = tmp_path / "raw"
    source.mkdir()
    cli.run(*MOVING, "-c:v", "libwebp_anim", source / "moves.webp")
    cli.run(*MOVING, "-frames:v", 1, "-c:v", "libwebp", source / "still.webp")
    os.mkfifo(source / "pipe.webp")
    (source / "empty.webp").touch()
    found = find_sources(source, tmp_path / "out")
    assert [unit.id for unit in found.units] == ["moves"]
    reasons = {Path(path).name: reason for path, reason in found.ignored}
    assert reasons == {
        "still.webp": "a still picture",
        "empty.webp": "a still picture",
        "pipe.webp": "unknown extension",
    }
    if "webp_anim" not in av.formats_available:
        pytest.skip("FFmpeg 8, which PyAV 18 brings, does not read them")
    assert transcode(source, tmp_path / "out", *QUICK).code == 0
    assert manifest(tmp_path / "out")["moves"]["num_frames"] == 10


def test_a_run_says_how_many_files_it_ignored_and_why(tmp_path: Path) -> None:
    source = tmp_path / "raw"
    make_clip(source / "a.mp4", 3, (32, 32))
    for name in ("b.txt", "c.TXT", "d.nfo"):
        (source / name).touch()
    done = transcode(source, tmp_path / "out", *QUICK, "--json")
    assert "3 files ignored (unknown extension: .txt 2, .nfo 1)" in done.err.splitlines()[-2]
    assert done.summary["ignored"] == 3
    assert done.summary["ignored_reasons"] == {"unknown extension: .txt": 2, "unknown extension: .nfo": 1}
    for name in (".hidden.mp4", "none"):
        (source / name).touch()
    again = transcode(source, tmp_path / "out", *QUICK, "--exclude", "a*", "--json")
    assert again.code == 2, "nothing is left to do it with"
    (source / "e.mp4").write_bytes((source / "a.mp4").read_bytes())
    again = transcode(source, tmp_path / "out", *QUICK, "--exclude", "a*", "--json")
    assert "6 files ignored (unknown extension: .txt 2" in again.err
    assert again.summary["ignored_reasons"]["excluded"] == again.summary["ignored_reasons"]["hidden name"] == 1
    assert again.summary["ignored_reasons"]["unknown extension: none"] == 1


def test_nothing_ignored_is_not_spoken_of(tmp_path: Path) -> None:
    make_clip(tmp_path / "raw" / "a.mp4", 3, (32, 32))
    done = transcode(tmp_path / "raw", tmp_path / "out", *QUICK, "--json")
    assert "ignored" not in done.err
    assert done.summary["ignored"] == 0


def test_ignored_files_are_summarised() -> None:
    assert (
        describe_ignored(count_ignored([("a/b.txt", "unknown extension")]))
        == "1 file ignored (unknown extension: .txt 1)"
    )
    many = count_ignored((f"{number}.x{number}", "unknown extension") for number in range(1000))
    assert sum(many.values()) == 1000
    assert len(many) == 11 and many["unknown extension: others"] == 990
    rows = [("a.mp4", f"t.csv row {number}: excluded") for number in range(5)]
    assert (
        describe_ignored(count_ignored([*rows, ("t.csv", "a column without a name")]))
        == "5 files ignored (excluded: 5)"
    )
    skipped = [("t.csv", f"skipped row {n}: path is empty") for n in (3, 8)]
    assert describe_ignored(count_ignored(skipped)) == "2 rows ignored (a row of the table: path is empty: 2)"
    assert "\x1b" not in describe_ignored(count_ignored([("a.\x1b[31m", "unknown extension")]))
