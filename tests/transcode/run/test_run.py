"""The command line end to end: what lands on disk, what is printed, how it exits, what a second run does."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
import unicodedata
from pathlib import Path

import av
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import (
    environment,
    fault,
    identities,
    leftovers,
    make_clip,
    make_clips,
    manifest,
    outputs,
    start,
    table,
    transcode,
)  # fmt: skip
from vidprep.formats.manifest.table import COLUMN_NAMES


@pytest.fixture
def src(tmp_path: Path) -> Path:
    """Three clips, one of them in a folder below."""
    make_clip(tmp_path / "src" / "a.mp4", 12, seed=1)
    make_clip(tmp_path / "src" / "b.mkv", 8, seed=2)
    make_clip(tmp_path / "src" / "deep" / "er" / "c.MOV", 6, seed=3)
    return tmp_path / "src"


@pytest.fixture
def dst(tmp_path: Path) -> Path:
    return tmp_path / "dst"


def redone(before: dict[str, tuple[int, int]], dst: Path) -> set[str]:
    after = identities(dst)
    return {name for name in after if after[name] != before.get(name)}


def test_outputs_mirror_the_tree_and_decode_to_what_their_rows_say(src: Path, dst: Path) -> None:
    (src / "notes.txt").write_text("no video")
    ran = transcode(src, dst, "--gop", 5, "--jobs", 2)
    assert ran.code == 0, ran.err
    assert ran.out == ""
    assert set(outputs(dst)) == {"a.mp4", "b.mp4", "deep/er/c.mp4"}
    rows = manifest(dst)
    assert list(rows) == ["a", "b", "deep/er/c"]
    for row in rows.values():
        path = dst / row["file_name"]
        with av.open(str(path)) as container:
            kinds = [frame.key_frame for frame in container.decode(video=0)]
        assert len(kinds) == row["num_frames"] == row["source_num_frames"]
        assert [number for number, is_key in enumerate(kinds) if is_key] == row["keyframes"]
        assert row["keyframes"] == list(range(0, len(kinds), 5))
        assert row["size_bytes"] == path.stat().st_size
        assert row["status"] == "ok" and row["error"] is None and row["attempts"] == 1
        assert row["psnr_y_db"] > 30
    assert leftovers(dst) == []


def test_json_prints_a_line_per_row_then_the_summary_and_nothing_else(src: Path, dst: Path) -> None:
    (src / "broken.mp4").write_bytes(b"no video at all")
    ran = transcode(src, dst, "--json")
    assert ran.code == 1
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert len(lines) == 5
    assert [set(line) == set(COLUMN_NAMES) for line in lines[:-1]] == [True] * 4
    assert {line["id"]: line["status"] for line in lines[:-1]} == {
        "a": "ok", "b": "ok", "deep/er/c": "ok", "broken": "failed",
    }  # fmt: skip
    summary = ran.summary
    assert (summary["ok"], summary["failed"], summary["exit_code"]) == (3, 1, 1)
    assert summary["failures"][0][0].endswith("broken.mp4")
    assert "failed: " in ran.err and "broken.mp4" in ran.err
    again = transcode(src, dst, "--json", "--skip-failed")
    assert again.code == 0
    assert (again.summary["done_before"], again.summary["skipped_failed"]) == (3, 1)


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
def test_infinite_psnr_is_a_string_in_json(tmp_path: Path, dst: Path, engine: str) -> None:
    """JSON has no infinity; `Infinity` would break every strict reader."""
    make_clip(tmp_path / "src" / "a.mp4", 4)
    ran = transcode(tmp_path / "src", dst, "--json", "--crf", 0, "--engine", engine)
    assert ran.code == 0, ran.err
    assert ran.rows["a"]["psnr_y_db"] == "inf"
    assert manifest(dst)["a"]["psnr_y_db"] == float("inf")


def test_dry_run_opens_and_writes_nothing(src: Path, dst: Path) -> None:
    (src / "notes.txt").write_text("no video")
    make_clip(src / "fifo_like.mp4", 2)
    opened = "sys.stderr.write('OPENED')"
    ran = transcode(
        src, dst, "--dry-run", env=environment(src.parent / "hook", fault("av", "open", at=-1, code=opened))
    )
    assert ran.code == 0
    assert not dst.exists()
    assert "OPENED" not in ran.err
    assert sorted(ran.out.splitlines()) == sorted(
        f"{src / name} -> {output}"
        for name, output in
        (("a.mp4", "a.mp4"), ("b.mkv", "b.mp4"), ("deep/er/c.MOV", "deep/er/c.mp4"), ("fifo_like.mp4", "fifo_like.mp4"))
    )  # fmt: skip
    assert "notes.txt: unknown extension" in ran.err
    assert "4 to do, 0 done" in ran.err and f"free in {dst}: " in ran.err


def test_a_second_run_does_nothing_for_what_is_finished(src: Path, dst: Path) -> None:
    transcode(src, dst)
    before, table_before = identities(dst), (dst / "manifest.parquet").stat().st_mtime_ns
    ran = transcode(src, dst, "--json")
    assert ran.code == 0
    assert ran.rows == {}
    assert ran.summary["done_before"] == 3
    assert redone(before, dst) == set()
    assert (dst / "manifest.parquet").stat().st_mtime_ns == table_before


def test_other_settings_are_refused_with_the_difference_and_overwrite_redoes(src: Path, dst: Path) -> None:
    transcode(src, dst, "--gop", 5)
    before, rows = identities(dst), manifest(dst)
    ran = transcode(src, dst, "--gop", 7, "--crf", 30)
    assert ran.code == 2
    assert "gop 5 -> 7" in ran.err and "crf" in ran.err and "-> 30" in ran.err and "--overwrite" in ran.err
    assert redone(before, dst) == set() and manifest(dst) == rows
    assert transcode(src, dst, "--gop", 7, "--crf", 30, "--overwrite").code == 0
    assert redone(before, dst) == set(before)
    assert {row["keyframe_interval_max"] for row in manifest(dst).values()} <= {6, 7}
    assert transcode(src, dst, "--gop", 7, "--crf", 30, "--json").summary["done_before"] == 3


def test_overwrite_into_another_container_leaves_no_output_of_the_old_one(src: Path, dst: Path) -> None:
    transcode(src, dst)
    ran = transcode(src, dst, "--container", "mkv", "--overwrite")
    assert ran.code == 0, ran.err
    assert set(outputs(dst)) == {"a.mkv", "b.mkv", "deep/er/c.mkv"}
    assert {row["file_name"] for row in manifest(dst).values()} == set(outputs(dst))


def test_limits_are_no_settings(src: Path, dst: Path) -> None:
    transcode(src, dst)
    ran = transcode(src, dst, "--max-pixels", 10_000, "--timeout", 77, "--jobs", 1, "--json")
    assert (ran.code, ran.summary["done_before"]) == (0, 3)


def test_another_encoder_version_only_warns(src: Path, dst: Path) -> None:
    transcode(src, dst)
    rows = pq.read_table(dst / "manifest.parquet")
    at = rows.column_names.index("encoder_version")
    older = rows.set_column(at, "encoder_version", pa.array(["PyAV 0.1"] * len(rows)))
    pq.write_table(older, dst / "manifest.parquet")
    before = identities(dst)
    ran = transcode(src, dst)
    assert ran.code == 0
    assert "3 outputs were made by another version" in ran.err
    assert redone(before, dst) == set()


@pytest.mark.parametrize("change", ["touched", "replaced"])
def test_a_changed_source_is_redone(src: Path, dst: Path, change: str) -> None:
    transcode(src, dst)
    before = identities(dst)
    if change == "touched":
        os.utime(src / "b.mkv", ns=(1, 1))
    else:
        make_clip(src / "b.mkv", 9, seed=77)
    ran = transcode(src, dst, "--json")
    assert list(ran.rows) == ["b"] and ran.rows["b"]["attempts"] == 1
    assert redone(before, dst) == {"b.mp4"}


@pytest.mark.parametrize("change", ["deleted", "cut short", "emptied"])
def test_an_output_that_is_gone_or_cut_short_is_redone(src: Path, dst: Path, change: str) -> None:
    transcode(src, dst)
    before, content = identities(dst), outputs(dst)
    path = dst / "deep/er/c.mp4"
    if change == "deleted":
        path.unlink()
    else:
        os.truncate(path, 0 if change == "emptied" else path.stat().st_size - 1)
    assert transcode(src, dst).code == 0
    assert redone(before, dst) == {"deep/er/c.mp4"}
    assert outputs(dst) == content


def test_failed_rows_are_tried_again_and_attempts_counted(src: Path, dst: Path) -> None:
    bad = src / "bad.mp4"
    bad.write_bytes(b"nothing to see")
    for attempt in (1, 2):
        assert transcode(src, dst).code == 1
        assert manifest(dst)["bad"]["attempts"] == attempt
    ran = transcode(src, dst, "--skip-failed", "--json")
    assert (ran.code, ran.rows, ran.summary["skipped_failed"]) == (0, {}, 1)
    assert manifest(dst)["bad"]["attempts"] == 2
    make_clip(bad, 5)
    ran = transcode(src, dst, "--skip-failed", "--json")
    assert ran.code == 0, "another source is another try"
    assert (ran.rows["bad"]["status"], ran.rows["bad"]["attempts"]) == ("ok", 1)


def test_limit_and_include_take_a_part_and_rows_of_the_rest_stay(src: Path, dst: Path) -> None:
    assert set(transcode(src, dst, "--limit", 1, "--json").rows) == {"a"}
    assert set(transcode(src, dst, "--include", "*.MOV", "--json").rows) == {"deep/er/c"}
    assert set(manifest(dst)) == {"a", "deep/er/c"}
    assert set(transcode(src, dst, "--exclude", "deep", "--json").rows) == {"b"}
    assert set(manifest(dst)) == {"a", "b", "deep/er/c"}


def test_cuts_and_labels_come_from_a_table(src: Path, dst: Path) -> None:
    rows = table(
        src.parent / "clips.csv",
        [
            {"path": "src/a.mp4", "start": 0.08, "end": 0.2, "label": "walk", "fold": 1, "status": "mine"},
            {"path": "src/a.mp4", "start": 0.2, "end": "", "label": "run", "fold": 2, "status": "mine"},
            {"path": "src/b.mkv", "id": "whole/b", "label": "", "fold": 3, "status": "mine"},
        ],
    )
    ran = transcode(rows, dst, "--json")
    assert ran.code == 0, ran.err
    assert set(ran.rows) == {"src/a_00000080_00000200", "src/a_00000200_end", "whole/b"}
    found = manifest(dst)
    assert found["src/a_00000080_00000200"]["source_frames"] == [2, 3, 4]
    assert found["src/a_00000200_end"]["source_frames"] == [5, 6, 7, 8, 9, 10, 11]
    assert found["whole/b"]["source_frames"] is None
    assert [row["label"] for row in found.values()] == ["walk", "run", None]
    assert [row["fold"] for row in found.values()] == [1, 2, 3]
    assert {row["label_status"] for row in found.values()} == {"mine"}
    assert {row["status"] for row in found.values()} == {"ok"}
    assert transcode(rows, dst, "--json").summary["done_before"] == 3


def test_label_from_folder_fills_a_column(src: Path, dst: Path) -> None:
    transcode(src, dst, "--label-from-folder")
    assert {row["id"]: row["label"] for row in manifest(dst).values()} == {"a": "src", "b": "src", "deep/er/c": "er"}


def test_min_psnr_fails_an_output_and_leaves_nothing(src: Path, dst: Path) -> None:
    ran = transcode(src, dst, "--crf", 45, "--min-psnr", 60, "--json")
    assert ran.code == 1
    assert {(row["status"], row["error"], row["stage"]) for row in ran.rows.values()} == {
        ("failed", "GateError", "gate")
    }
    assert "below --min-psnr 60" in ran.rows["a"]["message"]
    assert 10 < ran.rows["a"]["psnr_y_db"] < 60, "the row says what it reached"
    assert outputs(dst) == {} and leftovers(dst) == []


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
@pytest.mark.parametrize(("how", "said"), [("f9 flipped bytes", "decoding errors"), ("f10 cut short", "cut short")])
def test_on_damage_decides_whether_a_damaged_source_fails(tmp_path: Path, how: str, said: str, engine: str) -> None:
    clip = make_clip(tmp_path / "src" / "a.mp4", 20, muxing={"movflags": "faststart"})
    make_clip(tmp_path / "src" / "good.mp4", 5)
    data = bytearray(clip.read_bytes())
    for at in random.Random(3).sample(range(len(data) // 2, len(data) - 200), 20):
        data[at] ^= 0x55
    clip.write_bytes(data if "flipped" in how else clip.read_bytes()[: len(data) * 2 // 3])
    options = ("--json", "--engine", engine)
    warned = transcode(tmp_path / "src", tmp_path / "warned", *options, "--on-damage", "warn")
    assert warned.code == 0, warned.err
    assert any(text.startswith("damaged: ") and said in text for text in warned.rows["a"]["warnings"])
    assert not any(text.startswith("damaged: ") for text in warned.rows["good"]["warnings"])
    failed = transcode(tmp_path / "src", tmp_path / "failed", *options, "--on-damage", "fail")
    assert failed.code == 1
    assert failed.rows["a"]["error"] == "DamagedError" and said in failed.rows["a"]["message"]
    assert set(outputs(tmp_path / "failed")) == {"good.mp4"} and leftovers(tmp_path / "failed") == []


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
def test_an_output_larger_than_its_source_stays_and_is_named(tmp_path: Path, dst: Path, engine: str) -> None:
    make_clip(tmp_path / "src" / "a.mp4", 10, (128, 96), options={"qp": "45"}, noise=True)
    ran = transcode(tmp_path / "src", dst, "--crf", 5, "--gop", 1, "--json", "--engine", engine)
    assert ran.code == 0
    assert any(text.startswith("larger than its source") for text in ran.rows["a"]["warnings"])
    assert ran.summary["larger_than_source"] == 1 and "1 larger than their source" in ran.err
    assert set(outputs(dst)) == {"a.mp4"}


def test_verify_every_scores_fewer_frames_and_still_decodes_all(src: Path, dst: Path) -> None:
    assert transcode(src, dst, "--verify-every", 4).code == 0
    assert {row["num_frames"] for row in manifest(dst).values()} == {12, 8, 6}
    assert all(row["worst_frame"] % 4 == 0 for row in manifest(dst).values())


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
        (["--include", "*.nothing"], "no video found"),
    ],
)
def test_wrong_usage_exits_2_before_any_work(src: Path, dst: Path, args: list[str], said: str) -> None:
    ran = transcode(src, dst, *args)
    assert ran.code == 2
    assert said in ran.err
    assert not dst.exists() and ran.out == ""


def test_sources_that_want_one_output_are_refused_before_any_work(src: Path, dst: Path) -> None:
    make_clip(src / "a.avi", 3, codec="mpeg4")
    ran = transcode(src, dst)
    assert ran.code == 2
    assert "a.avi" in ran.err and "a.mp4" in ran.err and "--keep-source-suffix" in ran.err
    assert not dst.exists()
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
            "does not tell them apart",
        ),
    ],
)
def test_names_that_cannot_all_be_outputs_are_refused_before_any_work(
    tmp_path: Path, dst: Path, one: str, two: str, said: str
) -> None:
    """No clip is one: nothing may be opened to find out."""
    for name in (one, two):
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_bytes(b"x")
    if len([path for path in (tmp_path / "src").rglob("*") if path.is_file()]) < 2:
        pytest.skip("this file system takes the names for the same")
    ran = transcode(tmp_path / "src", dst)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err and not dst.exists()


def hold(src: Path, dst: Path, hook: Path) -> subprocess.Popen[str]:
    """A run that has taken the destination and works on its first clip for a long time."""
    slow = fault("vidprep.transcode.unit.run_job", "run_job", at=-1, code="time.sleep(60)", only="child")
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
        assert (dst / ".vidprep" / "lock").read_text().startswith(f"process {holder.pid} on ")
    finally:
        holder.kill()
        holder.communicate()
    ran = transcode(src, dst)
    assert ran.code == 0, ran.err
    assert set(outputs(dst)) == {"a.mp4", "b.mp4", "deep/er/c.mp4"}


def test_of_two_runs_started_at_once_one_works_and_one_exits_2(src: Path, dst: Path, tmp_path: Path) -> None:
    slow = fault("vidprep.transcode.unit.run_job", "run_job", at=-1, code="time.sleep(0.7)", only="child")
    both = [start(src, dst, env=environment(tmp_path / "hook", slow)) for _ in range(2)]
    told = [process.communicate(timeout=60) for process in both]
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


def test_a_label_that_changes_its_type_between_runs_is_no_lost_run(src: Path, dst: Path) -> None:
    """3 in one table and "walk" in the next: the manifest could not be written, in this run and in every later one."""
    rows = table(src.parent / "one.csv", [{"path": "src/a.mp4", "label": 3}])
    assert transcode(rows, dst).code == 0
    rows = table(src.parent / "two.csv", [{"path": "src/b.mkv", "label": "walk"}])
    ran = transcode(rows, dst)
    assert ran.code == 0, ran.err
    assert {row["label"] for row in manifest(dst).values()} == {"3", "walk"}
