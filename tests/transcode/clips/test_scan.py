"""The table of a scan: what it says, what stops and second calls leave, and what is refused."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import command, environment, make_clip, make_clips, manifest, no_processes_left, transcode
from tests.numbered_pictures import constant, write
from vidprep.formats.errors import DestinationError, SettingsError
from vidprep.transcode import ScanSummary, scan
from vidprep.transcode.sources.tables import read_source_table

FORMATS = (".csv", ".parquet", ".jsonl")


def rows_of(table: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if value is not None} for row in read_source_table(table).rows()
    ]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return make_clips(tmp_path / "raw", 4, frames=20)


def again(raw: Path, table: Path, **options: Any) -> ScanSummary:
    return scan(raw, table, clip_frames=6, **options)


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_says_the_same_and_is_a_source(raw: Path, tmp_path: Path, suffix: str) -> None:
    table = tmp_path / f"clips{suffix}"
    done = again(raw, table)
    assert (done.clips, done.sources, done.scanned, done.failed) == (12, 4, 4, {})
    again(raw, tmp_path / "other.jsonl")
    assert rows_of(table) == rows_of(tmp_path / "other.jsonl")
    assert rows_of(table)[0]["path"] == "raw/c00.mp4"
    assert transcode(table, tmp_path / "out").code == 0
    assert {row["num_frames"] for row in manifest(tmp_path / "out").values()} == {6}


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_second_call_reads_what_is_new_or_changed_alone(raw: Path, tmp_path: Path, suffix: str) -> None:
    table = tmp_path / f"clips{suffix}"
    again(raw, table)
    first, state = table.read_bytes(), table.stat()
    assert again(raw, table).scanned == 0
    assert (table.read_bytes(), table.stat().st_mtime_ns) == (first, state.st_mtime_ns)
    make_clip(raw / "new.mp4", 12, seed=9)
    make_clip(raw / "c01.mp4", 14, seed=8)
    (raw / "c02.mp4").unlink()
    (raw / "broken.mp4").write_bytes(b"no video")
    done = again(raw, table)
    assert (done.scanned, done.clips, list(done.failed)) == (3, 3 + 2 + 3 + 2, ["broken"])
    assert again(raw, table).scanned == 0
    again(raw, tmp_path / f"fresh{suffix}")
    assert table.read_bytes() == (tmp_path / f"fresh{suffix}").read_bytes()
    assert (tmp_path / f"clips{suffix}.failed.csv").read_text() == (tmp_path / f"fresh{suffix}.failed.csv").read_text()
    (raw / "broken.mp4").unlink()
    assert again(raw, table).failed == {}
    assert not (tmp_path / f"clips{suffix}.failed.csv").exists()


@pytest.mark.long
def test_a_killed_scan_goes_on_and_gives_the_same_bytes(tmp_path: Path) -> None:
    raw, table = make_clips(tmp_path / "raw", 12, frames=200), tmp_path / "clips.csv"
    again(raw, tmp_path / "whole.csv")
    journal = tmp_path / ".clips.csv.scan"
    for wanted in (1, 4):
        process = start_scan(raw, table)
        deadline = time.monotonic() + 60
        while not journal.exists() or journal.read_bytes().count(b"\n") < wanted:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        no_processes_left(process.pid)
        assert not table.exists()
    done = again(raw, table)
    assert 0 < done.scanned < 12
    assert table.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not journal.exists()


def start_scan(raw: Path, table: Path) -> Any:
    import subprocess

    return subprocess.Popen(
        command(raw, table, "--clip-frames", 6, "--jobs", 1, verb="scan"), env=environment(), start_new_session=True
    )


def test_a_line_that_a_kill_tore_is_scanned_again(raw: Path, tmp_path: Path) -> None:
    table, journal = tmp_path / "clips.csv", tmp_path / ".clips.csv.scan"
    again(raw, table)
    digest = rows_of(table)[0]["scan"].split(" ")[0]
    whole = table.read_bytes()
    table.unlink()
    journal.write_text(f'{digest}\n{{"id": "c00", "sta')
    assert again(raw, table).scanned == 4
    assert table.read_bytes() == whole


def test_another_table_is_not_replaced(raw: Path, tmp_path: Path) -> None:
    table = tmp_path / "clips.csv"
    again(raw, table)
    before = table.read_bytes()
    with pytest.raises(DestinationError, match="a scan with other options"):
        scan(raw, table, clip_frames=7)
    assert table.read_bytes() == before
    table.write_text("path,label\nraw/c00.mp4,x\n")
    with pytest.raises(DestinationError, match="no scan wrote it"):
        again(raw, table)
    assert again(raw, table, overwrite=True).clips == 12


def test_two_scans_of_one_table_at_a_time_are_refused(raw: Path, tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / ".clips.csv.scan").open("w") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        with pytest.raises(DestinationError, match="another scan"):
            again(raw, tmp_path / "clips.csv")
    assert again(raw, tmp_path / "clips.csv").clips == 12


def test_labels_of_a_table_go_along_and_a_clash_is_refused(raw: Path, tmp_path: Path) -> None:
    sources = tmp_path / "sources.csv"
    sources.write_text("path,label,score\nraw/c00.mp4,a,1.5\nraw/c01.mp4,b,2\n")
    scan(sources, tmp_path / "clips.parquet", clip_frames=6, keep="label == 'b'")
    rows = rows_of(tmp_path / "clips.parquet")
    assert [(row["label"], row["score"]) for row in rows] == [("b", 2.0)] * 3
    sources.write_text("path,motion\nraw/c00.mp4,a\n")
    with pytest.raises(SettingsError, match="column motion"):
        scan(sources, tmp_path / "other.csv")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clip_step": 4}, "clip_frames"),
        ({"rest": "short"}, "clip_frames"),
        ({"detector": "pixels"}, "shots"),
        ({"transitions": "keep"}, "shots"),
        ({"mirrored": True}, "duplicates"),
    ],
)
def test_options_that_need_others(raw: Path, tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        scan(raw, tmp_path / "clips.csv", **options)


@pytest.mark.parametrize("name", ["clips", "clips.txt", "clips.tsv"])
def test_the_name_says_the_format(raw: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=r"\.csv, \.parquet, \.jsonl"):
        scan(raw, tmp_path / name)


def test_odd_names_stay_readable(tmp_path: Path) -> None:
    for name in ("-a", "=b", "c,d", 'e"f', "g_f1_f2", "ü ñ"):
        make_clip(tmp_path / "raw" / f"{name}.mp4", 8)
    scan(tmp_path / "raw", tmp_path / "clips.csv", clip_frames=4)
    assert scan(tmp_path / "raw", tmp_path / "clips.csv", clip_frames=4).scanned == 0
    ran = transcode(tmp_path / "clips.csv", tmp_path / "out")
    assert ran.code == 0, ran.err
    assert len(manifest(tmp_path / "out")) == 12


def test_a_damaged_source_has_clips_and_is_listed(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "raw/a.mkv", 60, noise=True)
    data = bytearray(clip.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 400] = bytes(400)
    clip.write_bytes(data)
    done = scan(tmp_path / "raw", tmp_path / "clips.csv")
    assert done.clips == 1
    assert list(done.damaged) == ["a"]
    assert done.failed == {}
    again = scan(tmp_path / "raw", tmp_path / "clips.csv")
    assert (again.scanned, again.damaged) == (0, done.damaged)
    assert "damage" in (tmp_path / "clips.csv.failed.csv").read_text()


@pytest.mark.parametrize("options", [{"limit": 2}, {"include": "c01*"}])
def test_clips_of_sources_that_are_still_there_are_not_lost(raw: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    again(raw, tmp_path / "clips.csv")
    before = (tmp_path / "clips.csv").read_bytes()
    with pytest.raises(DestinationError, match=r"that this scan does not list, such as .*raw/c"):
        again(raw, tmp_path / "clips.csv", **options)
    make_clips(tmp_path / "elsewhere", 2, frames=20)
    with pytest.raises(DestinationError, match="clips of 4 sources that this scan does not list"):
        again(tmp_path / "elsewhere", tmp_path / "clips.csv")
    assert (tmp_path / "clips.csv").read_bytes() == before
    assert again(raw, tmp_path / "clips.csv", overwrite=True, **options).clips < 12


def test_a_source_that_was_replaced_after_its_scan_fails(raw: Path, tmp_path: Path) -> None:
    again(raw, tmp_path / "clips.csv")
    make_clip(raw / "c01.mp4", 24, seed=8)
    ran = transcode(tmp_path / "clips.csv", tmp_path / "out")
    assert ran.code == 1
    rows = manifest(tmp_path / "out").values()
    assert {row["source"].rpartition("/")[2]: row["status"] for row in rows}["c01.mp4"] == "failed"
    assert sum(row["status"] == "ok" for row in rows) == 9
    assert "another file than the one that was scanned" in ran.err


def test_a_narrower_condition_narrows_the_dataset(raw: Path, tmp_path: Path) -> None:
    again(raw, tmp_path / "clips.csv")
    assert transcode(tmp_path / "clips.csv", tmp_path / "out").code == 0
    keep = ("--keep", "start_frame > 0")
    ran = transcode(tmp_path / "clips.csv", tmp_path / "out", *keep)
    assert "4 videos whose source or cut is gone, or which --keep leaves out" in ran.err
    assert len(manifest(tmp_path / "out")) == 12
    assert transcode(tmp_path / "clips.csv", tmp_path / "out", *keep, "--prune").code == 0
    assert len(manifest(tmp_path / "out")) == 8


def test_moved_together_with_its_videos_the_table_is_still_a_source(raw: Path, tmp_path: Path) -> None:
    again(raw, tmp_path / "clips.csv")
    (tmp_path / "there").mkdir()
    shutil.move(raw, tmp_path / "there/raw")
    shutil.move(tmp_path / "clips.csv", tmp_path / "there/clips.csv")
    assert transcode(tmp_path / "there/clips.csv", tmp_path / "out").code == 0


def test_a_stream_of_several_is_the_stream_of_the_clips(tmp_path: Path, shared_media: Path) -> None:
    source = shared_media / "motion_photo_two_video_tracks.mp4"
    scan(source, tmp_path / "clips.csv", video_stream=1)
    rows = rows_of(tmp_path / "clips.csv")
    assert {row["video_stream"] for row in rows} == {1}
    assert transcode(tmp_path / "clips.csv", tmp_path / "out").code == 0


def test_a_split_of_duplicates_is_kept_whole(tmp_path: Path) -> None:
    for number in range(12):
        write(tmp_path / "raw" / f"{number}.mp4", constant(20, 25), numbers=range(number * 20, number * 20 + 20))
    table = tmp_path / "clips.csv"
    scan(tmp_path / "raw", table, clip_frames=5)
    groups = tmp_path / "groups.csv"
    lines = table.read_text().splitlines()
    groups.write_text("\n".join([f"{lines[0]},scene", *(f"{line},{n // 8}" for n, line in enumerate(lines[1:]))]))
    ran = transcode(groups, tmp_path / "out", "--split-by", "train=0.5,val=0.5", "--split-group", "scene")
    assert ran.code == 0, ran.err
    import pyarrow.parquet as pq

    rows = pq.read_table(tmp_path / "out/manifest.parquet").to_pylist()
    split_of: dict[str, set[str]] = {}
    for row in rows:
        split_of.setdefault(str(row["labels"]["scene"]), set()).add(row["labels"]["split"])
    assert all(len(splits) == 1 for splits in split_of.values())
