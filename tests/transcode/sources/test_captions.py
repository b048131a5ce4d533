"""Captions beside videos become a label of theirs, and of no other video."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import make_clips, manifest, transcode
from vidprep import VideoDataset
from vidprep.transcode.sources.captions import read_captions


def captions_in(destination: Path) -> dict[str, object]:
    return {id_: row["labels"].get("caption") for id_, row in manifest(destination).items() if row["status"] == "ok"}


def test_each_video_has_its_own_caption_whatever_fails(tmp_path: Path) -> None:
    raw = make_clips(tmp_path / "raw", 4)
    for number in range(4):
        (raw / f"c0{number}.txt").write_text(f" clip {number}, \u00e9t\u00e9\n")
    (raw / "c01.mp4").write_bytes(b"no video")
    (raw / "c02.txt").unlink()
    ran = transcode(raw, tmp_path / "out", "--captions")
    assert ran.code == 1
    assert "ignored" not in ran.err
    assert captions_in(tmp_path / "out") == {
        "c00": "clip 0, \u00e9t\u00e9",
        "c02": None,
        "c03": "clip 3, \u00e9t\u00e9",
    }
    (raw / "c02.txt").write_text("late")
    ran = transcode(raw, tmp_path / "out", "--captions")
    assert "relabelled" in ran.err
    assert captions_in(tmp_path / "out")["c02"] == "late"


def test_several_captions_are_a_list(tmp_path: Path) -> None:
    raw = make_clips(tmp_path / "raw", 4)
    (raw / "c00.txt").write_text("one")
    (raw / "c01.json").write_text(json.dumps(["first", "second"]))
    (raw / "c02.json").write_text(json.dumps({"caption": "only"}))
    assert transcode(raw, tmp_path / "out", "--captions").code == 0
    assert captions_in(tmp_path / "out") == {"c00": "one", "c01": "first", "c02": "only", "c03": None}
    dataset = VideoDataset(tmp_path / "out", sequence_length=4)
    labels = {item["id"]: item["labels"] for item in map(dataset.__getitem__, range(len(dataset)))}
    assert labels["c01"] == {"caption": "first", "captions": ["first", "second"]}
    assert labels["c00"]["captions"] == ["one"]
    # The type of a column does not depend on which videos are listed.
    (raw / "c00.txt").write_text("another")
    (raw / "c01.json").unlink()
    assert "relabelled" in transcode(raw, tmp_path / "out", "--captions", "--include", "c00*").err
    ran = transcode(raw, tmp_path / "out", "--captions")
    assert ran.code == 0, ran.err
    assert captions_in(tmp_path / "out") == {"c00": "another", "c01": None, "c02": "only", "c03": None}


def test_files_without_a_text_are_no_captions(tmp_path: Path) -> None:
    raw = make_clips(tmp_path / "raw", 4)
    (raw / "c00.txt").write_text(" \n")
    (raw / "c00.json").write_text('{"text": "of the other file"}')
    (raw / "c01.json").write_text('["", "second"]')
    (raw / "c02.TXT").write_text("in capitals")
    (raw / "c03.txt").write_text("")
    ran = transcode(raw, tmp_path / "out", "--captions")
    assert ran.code == 0
    assert "1 of 4 videos without a caption, such as" in ran.err
    assert captions_in(tmp_path / "out") == {
        "c00": "of the other file",
        "c01": "second",
        "c02": "in capitals",
        "c03": None,
    }


@pytest.mark.parametrize(
    ("text", "captions"),
    [
        ('{"caption": "", "text": "t"}', ["t"]),
        ('{"caption": null, "text": "t"}', ["t"]),
        ('{"caption": ["", "x"], "text": "t"}', ["x"]),
        ('{"captions": ["x", "y"], "caption": "one"}', ["x", "y"]),
        ('{"caption": ""}', []),
    ],
)
def test_the_first_key_with_a_text_counts(tmp_path: Path, text: str, captions: list[str]) -> None:
    (tmp_path / "c.json").write_text(text)
    assert read_captions(str(tmp_path / "c.mp4")) == captions


@pytest.mark.parametrize("text", ["{", "3", '{"label": "x"}', "[1, 2]", '{"caption": "half \\ud83d"}'])
def test_a_video_fails_whose_caption_cannot_be_read(tmp_path: Path, text: str) -> None:
    raw = make_clips(tmp_path / "raw", 2)
    (raw / "c00.json").write_text(text)
    (raw / "c01.json").write_text('"fine"')
    ran = transcode(raw, tmp_path / "out", "--captions")
    assert ran.code == 1
    rows = manifest(tmp_path / "out")
    assert rows["c00"]["status"] == "failed"
    assert "c00.json: is no caption of a video" in rows["c00"]["message"]
    assert captions_in(tmp_path / "out") == {"c01": "fine"}
    (raw / "c00.json").write_text('"mended"')
    assert transcode(raw, tmp_path / "out", "--captions").code == 0
    assert captions_in(tmp_path / "out") == {"c00": "mended", "c01": "fine"}
    (raw / "c00.json").write_text(text)
    ran = transcode(raw, tmp_path / "out", "--captions")
    assert (
        "1 output kept whose source or caption cannot be read now, such as c00: " in ran.err and "c00.json" in ran.err
    )
    assert captions_in(tmp_path / "out") == {"c00": "mended", "c01": "fine"}


def test_cuts_of_one_video_have_its_caption_and_a_column_stays(tmp_path: Path) -> None:
    raw = make_clips(tmp_path / "raw", 1)
    (raw / "c00.txt").write_text("all of it")
    (tmp_path / "cuts.csv").write_text("path,start_frame,end_frame\nraw/c00.mp4,0,3\nraw/c00.mp4,3,6\n")
    assert transcode(tmp_path / "cuts.csv", tmp_path / "out", "--captions").code == 0
    assert [*captions_in(tmp_path / "out").values()] == ["all of it"] * 2
    (tmp_path / "own.csv").write_text("path,caption\nraw/c00.mp4,mine\n")
    assert transcode(tmp_path / "own.csv", tmp_path / "own").code == 0
    assert captions_in(tmp_path / "own") == {"raw/c00": "mine"}
    assert transcode(tmp_path / "own.csv", tmp_path / "x", "--captions").code == 2
