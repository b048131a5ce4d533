"""Runs that are refused before any work, and destinations in use."""

from __future__ import annotations

import json
import subprocess
import time
import unicodedata
from pathlib import Path

import pytest

from tests import points
from tests.helpers import (
    environment,
    fault,
    leftovers,
    make_clip,
    make_clips,
    manifest,
    outputs,
    start,
    table,
    transcode,
)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--fps", "fast"], "--fps fast"),
        (["--size", "7x7"], "--size 7"),
        (["--short-side", "8", "--size", "8x8"], "exclude each other"),
        (["--gop", "0"], "--gop"),
        (["--codec", "vp9", "--container", "mp4", "--audio", "opus", "--crf", "99"], "--crf"),
        (["--jobs", "0"], "--jobs"),
        (["--nonsense"], "--nonsense"),
        (["--ffmpeg", "/bin/true"], "--engine ffmpeg"),
        (["--engine", "ffmpeg", "--ffmpeg", "/nowhere/ffmpeg"], "/nowhere/ffmpeg"),
        (["--encoder", "h264_nvenc"], "--engine ffmpeg"),
        (["--include", "*.nothing"], "no video left"),
    ],
)
def test_wrong_usage_exits_2_before_any_work(src: Path, dst: Path, args: list[str], said: str) -> None:
    ran = transcode(src, dst, *args)
    assert ran.code == 2
    assert said in ran.err
    assert not dst.exists() and ran.out == ""


def test_sources_that_want_one_output_fail_and_the_others_are_made(src: Path, dst: Path) -> None:
    make_clip(src / "a.avi", 3, codec="mpeg4")
    ran = transcode(src, dst)
    assert ran.code == 1
    assert "a.avi" in ran.err and "a.mp4" in ran.err and "--keep-source-suffix" in ran.err
    assert set(outputs(dst)) == {"b.mp4", "deep/er/c.mp4"}
    assert transcode(src, dst, "--keep-source-suffix").code == 0
    assert {"a.avi.mp4", "a.mp4.mp4"} <= set(outputs(dst))


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        ("a/x.mp4", "a/x.avi", "--keep-source-suffix"),
        ("X.mp4", "x.mkv", "--keep-source-suffix"),
        (
            unicodedata.normalize("NFC", "café.mp4"),
            unicodedata.normalize("NFD", "café.mp4"),
            "does not make all names unique",
        ),
    ],
)
def test_names_that_cannot_all_be_outputs_fail_before_any_is_opened(
    tmp_path: Path, dst: Path, one: str, two: str, said: str
) -> None:
    """No clip is one: nothing may be opened to find out."""
    for name in (one, two):
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_bytes(b"x")
    if len([path for path in (tmp_path / "src").rglob("*") if path.is_file()]) < 2:
        pytest.skip("this file system takes the names for the same")
    ran = transcode(tmp_path / "src", dst)
    assert (ran.code, outputs(dst)) == (1, {})
    assert said in ran.err and {row["stage"] for row in manifest(dst).values()} == {"plan"}


def hold(src: Path, dst: Path, hook: Path) -> subprocess.Popen[str]:
    """A run that has taken the destination and works on its first clip for a long time."""
    slow = fault(*points.RUN_JOB, at=-1, code="time.sleep(60)", only="child")
    holder = start(src, dst, env=environment(hook, slow))
    deadline = time.monotonic() + 20
    while not (dst / ".vidprep" / "run.json").exists():
        assert time.monotonic() < deadline and holder.poll() is None
        time.sleep(0.02)
    return holder


def test_a_destination_in_use_is_refused_and_the_holder_named_and_a_dead_one_never_blocks(
    src: Path, dst: Path, tmp_path: Path
) -> None:
    holder = hold(src, dst, tmp_path / "hook")
    try:
        ran = transcode(src, dst)
        assert ran.code == 2
        assert f"in use by process {holder.pid} on " in ran.err
        (lease,) = (dst / ".vidprep").glob("lease-*")
        assert json.loads(lease.read_text())["holder"].startswith(f"process {holder.pid} on ")
    finally:
        holder.kill()
        holder.communicate()
    ran = transcode(src, dst)
    assert ran.code == 0, ran.err
    assert set(outputs(dst)) == {"a.mp4", "b.mp4", "deep/er/c.mp4"}


@pytest.mark.long
def test_of_two_runs_started_at_once_one_works_and_one_exits_2(src: Path, dst: Path, tmp_path: Path) -> None:
    slow = fault(*points.RUN_JOB, at=-1, code="time.sleep(0.7)", only="child")
    both = [start(src, dst, env=environment(tmp_path / "hook", slow)) for _ in range(2)]
    told = [process.communicate(timeout=300) for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], told
    loser = next(err for process, (_, err) in zip(both, told, strict=True) if process.returncode == 2)
    assert "in use by " in loser
    assert len(manifest(dst)) == 3 and leftovers(dst) == []


def test_jobs_do_not_change_the_bytes(tmp_path: Path) -> None:
    make_clips(tmp_path / "src", 5)
    for jobs in (1, 3):
        assert transcode(tmp_path / "src", tmp_path / f"jobs{jobs}", "--jobs", jobs).code == 0
    assert outputs(tmp_path / "jobs1") == outputs(tmp_path / "jobs3")


@pytest.mark.parametrize("codec", ["hevc", "vp9", "av1"])
def test_every_codec_goes_end_to_end(src: Path, dst: Path, codec: str) -> None:
    ran = transcode(src, dst, "--codec", codec, "--upscale", "--size", "64x64", "--json")
    assert ran.code == 0, ran.err
    extension = "webm" if codec == "vp9" else "mp4"
    assert set(outputs(dst)) == {f"a.{extension}", f"b.{extension}", f"deep/er/c.{extension}"}
    assert ran.summary["ok"] == 3


def test_a_label_that_changes_its_type_changes_no_video_that_is_not_listed(src: Path, dst: Path) -> None:
    """3 in one table and "walk" in the next: one column cannot hold both, and 3 became "3"."""
    first = {"path": "src/a.mp4", "label": 3}
    assert transcode(table(src.parent / "one.csv", [first]), dst).code == 0
    before = manifest(dst)
    second = {"path": "src/b.mkv", "label": "walk"}
    rows = table(src.parent / "two.csv", [second])
    for more in ((), ("--limit", 1)):
        ran = transcode(rows, dst, *more)
        assert ran.code == 2, ran.err
        assert (
            "label 'label': values here are of type string, such as 'walk', and those of 1 video not listed here of type int64"
            in ran.err
        )
        assert manifest(dst) == before
    labelled = transcode(dst, table(src.parent / "three.csv", [{"path": "src/a.mp4", "label": "run"}]), verb="label")
    assert labelled.code == 0, labelled.err
    assert transcode(rows, dst).code == 0
    assert {row["labels"]["label"] for row in manifest(dst).values()} == {"run", "walk"}
    for relabelled in (1, 0):
        again = transcode(table(src.parent / "one.csv", [first]), dst, "--json")
        assert (again.code, again.summary["relabelled"]) == (0, relabelled), "3 beside text is text"
    assert transcode(table(src.parent / "four.csv", [first, second | {"label": 4}]), dst).code == 0
    assert {row["labels"]["label"] for row in manifest(dst).values()} == {3, 4}
    assert transcode(table(src.parent / "one.csv", [first | {"label": "x"}]), dst, "--prune").code == 0
    assert {row["labels"]["label"] for row in manifest(dst).values()} == {"x"}
    told = transcode(dst, table(src.parent / "three.csv", [{"path": "src/a.mp4", "label": "run"}]), verb="label")
    assert told.code == 0, told.err
