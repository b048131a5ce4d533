"""Stores, tables and settings that came from elsewhere: bombs, nonsense, named pipes, names and labels of any kind."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.helpers import make_clip, manifest, transcode
from vidprep.formats import open_store
from vidprep.formats.errors import SettingsError, StoreError, VidprepError
from vidprep.formats.manifest.table import COLUMN_NAMES
from vidprep.transcode.settings.parse import parse_bytes, parse_rate, parse_size
from vidprep.transcode.settings.run import RunSettings

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
QUICK = settings(max_examples=100, deadline=None, derandomize=True)


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, str]]:
    """A clip with a table whose columns are named as every column and fact; the encoded folder; the labels."""
    root = tmp_path_factory.mktemp("labelled")
    make_clip(root / "src" / "a.mp4", 6)
    names = dict.fromkeys(
        [
            *COLUMN_NAMES,
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
        csv.writer(file).writerows([["path", *labels], ["a.mp4", *labels.values()]])
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
    with tarfile.open(tmp_path / "out" / "data-00000.tar") as tar:
        told = json.load(tar.extractfile("walk/a.json"))
    assert list(told.items()) == [
        ("id", "walk/a"), ("frame_rate", [25, 1]), ("num_frames", 3), ("width", 64), ("height", 48), ("label", "walk"),
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------------- names and tables


def test_table_rows_that_name_one_missing_file_are_a_row_each_with_their_labels(tmp_path):
    make_clip(tmp_path / "there.mp4", 3)
    (tmp_path / "t.csv").write_text("path,mark\ngone.mp4,a\ngone.mp4,b\nthere.mp4,c\n")
    ran = transcode(tmp_path / "t.csv", tmp_path / "out", "--json")
    rows = manifest(tmp_path / "out")
    assert ran.summary["failed"] == 2
    assert sorted((row["status"], row["mark"]) for row in rows.values()) == [
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
    assert {name: (row["status"], row["mark"]) for name, row in manifest(tmp_path / "out").items()} == {
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
    from vidprep.transcode.run import queue as queue

    make_clip(tmp_path / "src" / "a.mp4", 3)
    make_clip(tmp_path / "src" / "b.mp4", 3, seed=1)
    settle = queue.JobQueue.settle

    def hostile(self: Any, job: Any, made: Any) -> Any:
        row = settle(self, job, made)
        if row is not None and row.id == "b":
            row.source_rotation = -(2**31)
        return row

    monkeypatch.setattr(queue.JobQueue, "settle", hostile)
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


# ---------------------------------------------------------------------------------------------------- numbers in words


@pytest.mark.parametrize(
    "text",
    ["1e99999999", "1E+99999999", "1e-99999999", "9" * 5000, "1/" + "3" * 5000, "1e1_0_0_0_0_0_0", "1/0", "nan", ""],
)
def test_a_rate_that_would_take_for_ever_is_refused_at_once(text):
    began = time.monotonic()
    with pytest.raises(SettingsError, match="--fps"):
        parse_rate(text)
    assert time.monotonic() - began < 1


@QUICK
@given(text=st.text("0123456789/.eE+-_ x", max_size=30) | st.text(max_size=10))
@example(text="9" * 5000 + "x" + "9" * 5000)
@example(text="٣x٣")
@example(text="1" * 400)
@example(text="1" * 20 + "TiB")
def test_numbers_in_options_are_numbers_or_refused(text):
    for parse in (parse_rate, parse_size, parse_bytes):
        try:
            found = parse(text)
        except SettingsError as error:
            assert len(str(error)) < 300
        else:
            assert isinstance(found, Fraction | int | tuple) or (found.width >= 0 and found.height >= 0)


@pytest.mark.parametrize(
    "options",
    [
        ["--fps", "1e99999999"],
        ["--size", "9" * 5000 + "x2"],
        ["--max-pixels", "3000000000"],
        ["--max-frames", "9" * 30],
    ],
)
def test_numbers_out_of_range_are_wrong_usage_and_not_a_failure_of_every_video(options, tmp_path):
    make_clip(tmp_path / "src" / "a.mp4", 3)
    ran = transcode(tmp_path / "src", tmp_path / "out", "--quiet", *options)
    assert (ran.code, (tmp_path / "out").exists()) == (2, False)
    assert options[0] in ran.err


def test_a_shard_size_of_400_digits_is_wrong_usage(tmp_path):
    make_clip(tmp_path / "src" / "a.mp4", 3)
    assert transcode(tmp_path / "src", tmp_path / "out", "--shard-size", "1" * 400, verb="burst").code == 2


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["1e99999999", "9" * 5000]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2), max_leaves=3,
)  # fmt: skip


@QUICK
@given(data=st.data(), value=VALUES)
def test_settings_of_a_run_are_themselves_or_refused_whatever_stands_there(data, value):
    told = json.loads(json.dumps(RunSettings().as_dict()))
    place, key = data.draw(
        st.sampled_from(
            [(told, key) for key in told]
            + [(told[part], key) for part in ("encoder", "scale", "gate") for key in told[part]]
        )
    )
    place[key] = value
    try:
        found = RunSettings.from_dict(told)
    except SettingsError:
        return
    assert RunSettings.from_dict(json.loads(json.dumps(found.as_dict()))).digest == found.digest


# ---------------------------------------------------------------------------------------------------- bombs and pipes


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ready")
    make_clip(root / "src" / "a.mp4", 6)
    assert transcode(root / "src", root / "out", "--quiet").code == 0
    return root / "out"


READ = """
import resource, sys, time
from vidprep.formats.errors import VidprepError
from vidprep.formats import open_store
import vidprep.formats.stores.encoded
resource.setrlimit(resource.RLIMIT_AS, (10**9, 10**9))
began = time.monotonic()
try:
    store = open_store(sys.argv[1])
    for id_ in store.ids:
        video = store[id_]
        video.timestamps, video.frames([0]), video.frames()
except VidprepError as error:
    print("refused", error)
assert time.monotonic() - began < 10
"""


def refused_in_a_gigabyte(folder: Path) -> str:
    ran = subprocess.run([sys.executable, "-c", READ, folder], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0 and ran.stdout.startswith("refused"), ran.stdout + ran.stderr[-2000:]
    return ran.stdout


def test_a_manifest_of_4_million_times_of_six_frames_is_refused_before_they_are_read(ready, tmp_path):
    shutil.copytree(ready, tmp_path / "x")
    path = tmp_path / "x" / "manifest.parquet"
    table = pq.read_table(path).replace_schema_metadata({})
    many = pa.ListArray.from_arrays([0, 4_000_000], pa.array(memoryview(bytes(8 * 4_000_000)).cast("q")))
    table = table.set_column(table.column_names.index("pts"), "pts", many)
    pq.write_table(table, path, compression="zstd")
    assert path.stat().st_size < 100_000
    assert "values are claimed" in refused_in_a_gigabyte(tmp_path / "x")
    for verb in ("validate", "report"):
        began = time.monotonic()
        assert transcode(tmp_path / "x", "--quiet", verb=verb).code == 2
        assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_frames", 10**8), ("num_frames", 10**30), ("frame_rate", ["1e99999999"]), ("frame_rate", "1e99999999"), ("width", 10**9), ("gop", 0),
     ("time_base", [1, 0]), ("pts", [1, 2]), ("num_frames", True)],
)  # fmt: skip
def test_a_json_that_claims_what_its_video_cannot_hold_is_refused(key, value, ready, tmp_path):
    transcode(ready, tmp_path / "packed", "--to", "webdataset", verb="pack")
    path = tmp_path / "packed" / "data-00000.tar"
    with tarfile.open(path) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            content = json.dumps(json.loads(data) | {key: value}).encode() if name.endswith(".json") else data
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, BytesIO(content))
    began = time.monotonic()
    with pytest.raises(StoreError, match=key if key != "pts" else "pts|times"):
        _ = open_store(tmp_path / "packed")["a"]
    assert time.monotonic() - began < 2


PIPES = [
    (name, verb)
    for name in (".vidprep/run.json", "manifest.parquet")
    for verb in ("transcode", "validate", "report", "merge")
]


@pytest.mark.parametrize(("name", "verb"), [*PIPES, ("a.mp4", "validate")])
def test_a_named_pipe_in_place_of_a_file_is_not_waited_for(name, verb, ready, tmp_path):
    shutil.copytree(ready, tmp_path / "x")
    (tmp_path / "x" / name).unlink()
    os.mkfifo(tmp_path / "x" / name)
    given = {"transcode": [ready.parent / "src", tmp_path / "x", "--quiet"], "merge": [tmp_path / "x"]}.get(
        verb, [tmp_path / "x", "--quiet"]
    )
    began = time.monotonic()
    ran = transcode(*given, verb=verb)
    assert ran.code in (0, 1, 2)
    assert time.monotonic() - began < 20
    if name != "a.mp4":
        assert (ran.code, "not a regular file: a FIFO" in ran.err) == (2, True)


def test_reading_a_video_that_is_a_named_pipe_is_an_error_of_the_store(ready, tmp_path):
    shutil.copytree(ready, tmp_path / "x")
    (tmp_path / "x" / "a.mp4").unlink()
    os.mkfifo(tmp_path / "x" / "a.mp4")
    with pytest.raises(VidprepError, match="not a regular file"):
        open_store(tmp_path / "x")["a"].frames([0])


@pytest.mark.parametrize(
    "change",
    [{"cells": 1}, {"cells": [{}]}, {"at_psnr": None, "cells": [{"curve": "x"}]}, {"cells": [[]], "at_psnr": {}}],
)
def test_a_summary_of_a_sweep_that_makes_no_sense_is_refused_by_name(change, tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps({"format": "vidprep sweep 1"} | change))
    ran = transcode(tmp_path, "--quiet", verb="report")
    assert (ran.code, "sweep.json: makes no sense" in ran.err) == (2, True)


def test_a_device_is_not_monitored_for_ever(tmp_path):
    ran = transcode("/dev/zero", "--once", verb="monitor")
    assert (ran.code, "not a regular file: a device" in ran.err) == (2, True)


def test_events_of_many_megabytes_and_a_line_without_end_are_read_in_parts(tmp_path):
    line = (
        json.dumps({"time": 1.0, "event": "begun", "run": "r", "destination": "here", "total": 3, "total_bytes": 9})
        + "\n"
    )
    (tmp_path / "events").write_text(
        line + "x" * (40 << 20) + "\n" + line.replace("here", "there").replace('"r"', '"s"')
    )
    ran = transcode(tmp_path / "events", "--once", verb="monitor")
    assert ran.code == 0 and "here" in ran.out and "there" in ran.out
