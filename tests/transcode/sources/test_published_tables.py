"""Tables and lists as published datasets have them: understood, or refused with what to change, before anything is made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import make_clip, manifest, table, transcode
from tests.transcode.sources.trees import find_sources
from vidprep.formats.errors import SourceError

EPIC = ("start_timestamp", "stop_timestamp", "start_frame", "stop_frame")


def _epic(path: Path, rows: list[tuple[str, str, int, int]]) -> Path:
    return table(path, [{"path": "P01_01.mp4", "verb": "open"} | dict(zip(EPIC, row, strict=True)) for row in rows])


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return make_clip(tmp_path / "P01_01.mp4", 60)


def test_cuts_in_seconds_and_in_frames_that_agree_are_cuts_in_seconds(clip, tmp_path, dst):
    """EPIC-Kitchens has both; the frames count from 0 or 1, at about 25 a second here."""
    rows = [("00:00:00.14", "00:00:01.00", 3, 25), ("00:00:01.20", "00:00:02.00", 31, 50)]
    ran = transcode(_epic(tmp_path / "t.csv", rows), dst)
    assert ran.code == 0 and "those in seconds were taken" in ran.err
    assert {(row["start_seconds"], row["end_seconds"], row["start_frame"]) for row in manifest(dst).values()} == {
        (0.14, 1.0, None),
        (1.2, 2.0, None),
    }


def test_cuts_in_seconds_and_in_frames_that_differ_are_one_line(clip, tmp_path, dst):
    """There was a line per row."""
    rows = [("00:00:00.14", "00:00:01.00", 3, 25)] + [("00:00:01.20", "00:00:02.00", 90, 100 + n) for n in range(50)]
    ran = transcode(_epic(tmp_path / "t.csv", rows), dst)
    assert ran.code == 2 and len(ran.err.splitlines()) == 1 and not dst.exists()
    assert "`start_timestamp` and `stop_timestamp` and by `start_frame` and `stop_frame`" in ran.err
    assert "in 50 rows, first in row 2; leave out one pair" in ran.err


def test_a_table_of_which_all_rows_are_skipped_says_why(clip, tmp_path, dst):
    rows = [{"path": clip, "start": 4, "end": 3}, {"path": clip, "start": "b", "end": 3}]
    ran = transcode(table(tmp_path / "t.csv", rows), dst, "--on-bad-row", "skip")
    assert (
        ran.code == 2
        and "no row left: 2 rows skipped as --on-bad-row skip asks; row 1: start 4.0 is not before" in ran.err
    )


def test_the_middle_of_a_cut_is_not_a_label(clip, tmp_path, dst):
    """AVA's; each row was a whole film, and the same as the first with other labels."""
    rows = [{"path": clip, "middle_frame_timestamp": 902 + n, "action_id": n} for n in range(3)]
    ran = transcode(table(tmp_path / "t.csv", rows), dst)
    assert ran.code == 2 and "`middle_frame_timestamp`: a cut has a start and an end; add the columns" in ran.err
    both = [{**row, "start": n / 2, "end": n / 2 + 0.5} for n, row in enumerate(rows)]
    assert transcode(table(tmp_path / "t.csv", both), dst).code == 0, "with a start and an end it is a label"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("k.txt", "videos/a.mp4 3\nvideos/b.mp4 4\n", "`path,label` and `videos/a.mp4,3`"),
        ("k.txt", "videos/a.mp4\r\n", "`path,label` and `videos/a.mp4,jumping`"),
        ("k.json", json.dumps([{"id": "74225", "label": "ü" * 5000}], ensure_ascii=False), "`videos/a.mp4,jumping`"),
    ],
)
def test_a_list_that_is_no_table_is_refused_with_the_first_lines_of_one(name, text, told, tmp_path, dst):
    """It was taken for a video, and the destination was made."""
    (tmp_path / name).write_text(text)
    ran = transcode(tmp_path / name, dst)
    assert ran.code == 2 and told in ran.err and not dst.exists()


@pytest.mark.parametrize("data", [b"", b"\x00\x01\x02" * 2000, b"\xff\xd8 of another kind" * 400])
def test_a_file_of_any_extension_that_is_no_text_may_be_a_video(data, tmp_path):
    (tmp_path / "x.bin").write_bytes(data)
    assert [unit.id for unit in find_sources(tmp_path / "x.bin", tmp_path / "d").units] == ["x"]
    make_clip(tmp_path / "y.mp4").rename(tmp_path / "y.odd")
    assert transcode(tmp_path / "y.odd", tmp_path / "d").code == 0


@pytest.mark.parametrize("url", ["dbfs://x/y.mp4", "nothing://x/y.mp4"])
def test_a_place_that_nothing_here_can_open_is_a_failed_row(url, clip, tmp_path, dst):
    """It ended the run."""
    ran = transcode(table(tmp_path / "t.csv", [{"path": url}, {"path": clip}]), dst, "--json")
    assert ran.code == 1 and {row["status"] for row in ran.rows.values()} == {"ok", "failed"}
    with pytest.raises(SourceError):
        find_sources(table(tmp_path / "u.csv", [{"path": "x", "start": "?"}]), dst)


def test_a_row_that_has_a_cut_in_frames_alone_keeps_it(clip, tmp_path, dst):
    """It became the whole video, since other rows of its source gave both."""
    rows = [{"path": clip, "start": 1, "end": 2, "start_frame": 25, "end_frame": 50}]
    rows += [{"path": clip, "start": "", "end": "", "start_frame": 10, "end_frame": 15}]
    assert transcode(table(tmp_path / "t.csv", rows), dst).code == 0
    assert {(row["start_seconds"], row["start_frame"]) for row in manifest(dst).values()} == {(1.0, None), (None, 10)}
    mixed = [*rows, {"path": clip, "start": 0, "end": "", "start_frame": "", "end_frame": 9}]
    ran = transcode(table(tmp_path / "t.csv", mixed), dst)
    assert ran.code == 2 and "row 3: gives" in ran.err


def test_a_path_that_is_no_text_is_an_invalid_row(tmp_path, dst):
    (tmp_path / "t.jsonl").write_text('{"path": ["a.mp4"], "start": 0, "start_frame": 0, "end": 1, "end_frame": 9}\n')
    ran = transcode(tmp_path / "t.jsonl", dst)
    assert ran.code == 2 and "row 1: " in ran.err


@pytest.mark.parametrize("name", ["mid_frame_path", "data_center_time", "middle_of_the_frame"])
def test_a_label_with_such_a_word_in_its_name_is_a_label(name, clip, tmp_path, dst):
    assert transcode(table(tmp_path / "t.csv", [{"path": clip, name: 5}]), dst).code == 0
