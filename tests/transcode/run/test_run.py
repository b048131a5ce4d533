"""What a run makes of its sources, again and again."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import av
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import environment, fault, identities, leftovers, make_clip, manifest, outputs, table, transcode
from vidprep.formats.manifest.table import COLUMN_NAMES


def redone(before: dict[str, tuple[int, int]], dst: Path) -> set[str]:
    after = identities(dst)
    return {name for name in after if after[name] != before.get(name)}


def test_outputs_mirror_the_tree_and_match_their_rows(src: Path, dst: Path) -> None:
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
    assert [set(line) == {*COLUMN_NAMES, "labels"} for line in lines[:-1]] == [True] * 4
    assert {line["id"]: line["status"] for line in lines[:-1]} == {
        "a": "ok",
        "b": "ok",
        "deep/er/c": "ok",
        "broken": "failed",
    }
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
        for name, output in (
            ("a.mp4", "a.mp4"),
            ("b.mkv", "b.mp4"),
            ("deep/er/c.MOV", "deep/er/c.mp4"),
            ("fifo_like.mp4", "fifo_like.mp4"),
        )
    )
    assert "notes.txt: unknown extension" in ran.err
    assert "4 to do, 0 done" in ran.err and f"free in {dst}: " in ran.err


def test_a_second_run_skips_finished_videos(src: Path, dst: Path) -> None:
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
    assert "3 outputs made by a version other than" in ran.err
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
    assert [row["labels"]["label"] for row in found.values()] == ["walk", "run", None]
    assert [row["labels"]["fold"] for row in found.values()] == [1, 2, 3]
    assert {row["labels"]["status"] for row in found.values()} == {"mine"}
    assert {row["status"] for row in found.values()} == {"ok"}
    assert transcode(rows, dst, "--json").summary["done_before"] == 3


def test_label_from_folder_fills_a_column(src: Path, dst: Path) -> None:
    transcode(src, dst, "--label-from-folder")
    assert {row["id"]: row["labels"]["label"] for row in manifest(dst).values()} == {
        "a": "src",
        "b": "src",
        "deep/er/c": "er",
    }


def test_min_psnr_fails_an_output_and_leaves_nothing(src: Path, dst: Path) -> None:
    ran = transcode(src, dst, "--crf", 45, "--min-psnr", 60, "--json")
    assert ran.code == 1
    assert {(row["status"], row["error"], row["stage"]) for row in ran.rows.values()} == {
        ("failed", "GateError", "gate")
    }
    assert "below --min-psnr 60" in ran.rows["a"]["message"]
    assert 10 < ran.rows["a"]["psnr_y_db"] < 60, "the row says what it reached"
    assert outputs(dst) == {} and leftovers(dst) == []


@pytest.mark.long
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
    assert ran.summary["larger_than_source"] == 1 and "larger_than_source: 1 video" in ran.err
    assert set(outputs(dst)) == {"a.mp4"}


def test_verify_every_scores_fewer_frames_and_still_decodes_all(src: Path, dst: Path) -> None:
    assert transcode(src, dst, "--verify-every", 4).code == 0
    assert {row["num_frames"] for row in manifest(dst).values()} == {12, 8, 6}
    assert all(row["worst_frame"] % 4 == 0 for row in manifest(dst).values())
