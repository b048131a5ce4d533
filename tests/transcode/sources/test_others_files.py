"""Files that others may have written: names and tables."""

from __future__ import annotations

import csv
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import make_clip, manifest, transcode
from vidprep.formats import open_store
from vidprep.formats.manifest.table import COLUMN_NAMES

STORES = ("burst", "gulp", "webdataset", "tensor")


FACTS = (
    "id",
    "frame_rate",
    "num_frames",
    "width",
    "height",
    "gop",
    "pts",
    "time_base",
    "shard",
    "offsets",
    "sizes",
    "crc32",
)


KEYS = ("path", "id", "start", "end")


CUTS = {
    "start_seconds",
    "end_seconds",
    "start_frame",
    "video_stream",
    "end_frame",
    "duration_seconds",
}  # which say where a cut is, in a table too


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, str]]:
    """A clip with a table whose columns are named as every column and fact; the encoded folder; the labels."""
    root = tmp_path_factory.mktemp("labelled")
    make_clip(root / "src" / "a.mp4", 6)
    names = dict.fromkeys(
        [
            *(name for name in COLUMN_NAMES if name not in CUTS),
            *FACTS,
            "label_status",
            "label_width",
            "label_shard",
            "labels",
            "vidprep_labels",
            "file_name",
            "plain",
        ]
    )
    labels = {name: f"the {name}" for name in names if name not in KEYS}
    with (root / "src" / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "start", *labels], ["a.mp4", "", *labels.values()]])
    assert transcode(root / "src" / "t.csv", root / "ready", "--quiet").code == 0
    return root / "src" / "t.csv", root / "ready", labels


def read_back(folder: Path, labels: dict[str, str]) -> None:
    video = open_store(folder)["a"]
    assert (len(video), video.height, video.width) == (6, 48, 64)
    assert video.frame_rate in (25, None)
    assert video.frames([5]).shape == (1, 48, 64, 3)
    assert {name: value for name, value in open_store(folder).labels("a").items() if value is not None} == labels


@pytest.mark.parametrize("store", STORES)
def test_labels_named_as_columns_and_facts_come_back_from_every_store(store, labelled, tmp_path):
    table, ready, labels = labelled
    read_back(ready, labels)
    assert transcode(table, tmp_path / "a", "--format", store, "--quiet", verb="burst").code == 0
    read_back(tmp_path / "a", labels)
    assert transcode(ready, tmp_path / "b", "--to", store, verb="pack").code == 0
    read_back(tmp_path / "b", labels)
    assert transcode(tmp_path / "a", tmp_path / "c", "--to", "webdataset", verb="pack").code == 0
    read_back(tmp_path / "c", labels)
    assert transcode(tmp_path / "a", "--quiet", verb="validate").code == 0


def test_a_store_without_such_labels_has_the_json_it_always_had(tmp_path):
    make_clip(tmp_path / "src" / "walk" / "a.mp4", 3)
    transcode(
        tmp_path / "src", tmp_path / "out", "--format", "webdataset", "--label-from-folder", "--quiet", verb="burst"
    )
    with tarfile.open(tmp_path / "out" / "data-00001-00000.tar") as tar:
        told = json.load(tar.extractfile("walk/a.json"))
    assert list(told.items()) == [
        ("id", "walk/a"),
        ("frame_rate", [25, 1]),
        ("num_frames", 3),
        ("width", 64),
        ("height", 48),
        ("label", "walk"),
    ]


def test_table_rows_that_name_one_missing_file_are_a_row_each_with_their_labels(tmp_path):
    make_clip(tmp_path / "there.mp4", 3)
    (tmp_path / "t.csv").write_text("path,mark\ngone.mp4,a\ngone.mp4,b\nthere.mp4,c\n")
    ran = transcode(tmp_path / "t.csv", tmp_path / "out", "--json")
    rows = manifest(tmp_path / "out")
    assert ran.summary["failed"] == 2
    assert sorted((row["status"], row["labels"]["mark"]) for row in rows.values()) == [
        ("failed", "a"),
        ("failed", "b"),
        ("ok", "c"),
    ]


def test_a_missing_file_of_a_table_is_ok_under_the_same_id_once_it_is_there(tmp_path):
    (tmp_path / "t.csv").write_text("path,id,start,end,mark\ngone.mp4,x/y,0,0.2,a\n")
    assert transcode(tmp_path / "t.csv", tmp_path / "out", "--quiet").code == 1
    assert manifest(tmp_path / "out")["x/y"]["end_seconds"] == 0.2
    make_clip(tmp_path / "gone.mp4", 10)
    assert transcode(tmp_path / "t.csv", tmp_path / "out", "--quiet").code == 0
    assert {name: (row["status"], row["labels"]["mark"]) for name, row in manifest(tmp_path / "out").items()} == {
        "x/y": ("ok", "a")
    }


@pytest.mark.parametrize("store", ["video", "burst"])
def test_a_destination_whose_name_is_not_utf8_is_read_again(store, tmp_path):
    make_clip(tmp_path / "src" / "a.mp4", 3)
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/ou\xff"))
    for _ in range(2):
        assert (
            transcode(tmp_path / "src", folder, "--quiet", verb="transcode" if store == "video" else "burst").code == 0
        )
    assert open_store(folder)["a"].frames().shape == (3, 48, 64, 3)
    assert transcode(folder, "--quiet", verb="validate").code == 0
    assert transcode(folder, tmp_path / "packed", "--to", "gulp", verb="pack").code == 0


def test_a_source_from_the_year_2300_fails_alone_and_says_why(tmp_path):
    for name in ("a", "b"):
        make_clip(tmp_path / "src" / f"{name}.mp4", 3)
    try:
        os.utime(tmp_path / "src" / "b.mp4", ns=(0, 2**63 + 10**9))
    except OverflowError:
        pytest.skip("the file system has no such time")
    if (tmp_path / "src" / "b.mp4").stat().st_mtime_ns < 2**63:
        pytest.skip("the file system has no such time")
    for _ in range(2):
        assert transcode(tmp_path / "src", tmp_path / "out", "--quiet").code == 1
        rows = manifest(tmp_path / "out")
        assert (rows["a"]["status"], rows["b"]["status"]) == ("ok", "failed")
        assert "source_mtime_ns" in rows["b"]["message"]


def test_a_row_whose_value_no_column_holds_costs_that_video(tmp_path, monkeypatch):
    """As a singular display matrix did, whose angle is -2147483648."""
    from vidprep.transcode.unit import queue as queue

    make_clip(tmp_path / "src" / "a.mp4", 3)
    make_clip(tmp_path / "src" / "b.mp4", 3, seed=1)
    settle = queue.JobQueue.take_result

    def hostile(self: Any, job: Any, made: Any) -> Any:
        row = settle(self, job, made)
        if row is not None and row.id == "b":
            row.source_rotation = -(2**31)
        return row

    monkeypatch.setattr(queue.JobQueue, "take_result", hostile)
    assert transcode(tmp_path / "src", tmp_path / "out", "--quiet").code == 1
    rows = manifest(tmp_path / "out")
    assert (rows["a"]["status"], rows["b"]["status"], rows["b"]["stage"]) == ("ok", "failed", "manifest")
    assert "source_rotation is -2147483648" in rows["b"]["message"]
    assert not (tmp_path / "out" / "b.mp4").exists()


FORMULAS = ['=HYPERLINK("http://x","y")', "+1+cmd", "-1+cmd", "@SUM(A1)", "\t=1", "＝1"]


def test_texts_that_a_spreadsheet_would_run_stand_behind_an_apostrophe(tmp_path):
    make_clip(tmp_path / "a.mp4", 3)
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["path", "=name", "number", *map(str, range(len(FORMULAS)))], ["a.mp4", "x", -5, *FORMULAS]]
        )
    assert transcode(tmp_path / "t.csv", tmp_path / "out", "--quiet").code == 0
    with (tmp_path / "marks.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "start_frame", "mark"], *(["a", 0, text] for text in FORMULAS)])
    assert (
        transcode(tmp_path / "out", tmp_path / "hf", "--to", "hf", "--labels", tmp_path / "marks.csv", verb="pack").code
        == 0
    )
    for name in ("metadata.csv", "labels.csv"):
        with (tmp_path / "hf" / name).open(newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        assert not [cell for cell in cells if cell[:1] in "=+@\t\r＝" and cell], cells
        assert {f"'{text}" for text in FORMULAS} <= set(cells)
    assert "-5" in (tmp_path / "hf" / "metadata.csv").read_text()
