"""Files that others may have written: numbers, bombs and pipes."""

from __future__ import annotations

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

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings, strategies as st

from tests.helpers import make_clip, transcode
from vidprep.formats import open_store
from vidprep.formats.errors import SettingsError, StoreError, VidprepError
from vidprep.transcode.settings.parse import parse_bytes, parse_rate, parse_size
from vidprep.transcode.settings.run import RunSettings

QUICK = settings(max_examples=100, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    "text",
    ["1e99999999", "1E+99999999", "1e-99999999", "9" * 5000, "1/" + "3" * 5000, "1e1_0_0_0_0_0_0", "1/0", "nan", ""],
)
def test_a_rate_that_would_take_for_ever_is_refused_at_once(text):
    began = time.monotonic()
    with pytest.raises(SettingsError, match="fps="):
        parse_rate(text)
    assert time.monotonic() - began < 200


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
        except ValueError as error:
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
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["1e99999999", "9" * 5000]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


@QUICK
@given(data=st.data(), value=VALUES)
def test_damaged_settings_of_a_run_are_unchanged_or_refused(data, value):
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
assert time.monotonic() - began < 200
"""


def refused_in_a_gigabyte(folder: Path) -> str:
    ran = subprocess.run([sys.executable, "-c", READ, folder], capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0 and ran.stdout.startswith("refused"), ran.stdout + ran.stderr[-2000:]
    return ran.stdout


def test_a_manifest_of_4_million_times_of_six_frames_is_refused_before_they_are_read(ready, tmp_path):
    shutil.copytree(ready, tmp_path / "x")
    (tmp_path / "x" / "gops.parquet").unlink()
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
        assert time.monotonic() - began < 200


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_frames", 10**8),
        ("num_frames", 10**30),
        ("frame_rate", ["1e99999999"]),
        ("frame_rate", "1e99999999"),
        ("width", 10**9),
        ("gop", 0),
        ("time_base", [1, 0]),
        ("pts", [1, 2]),
        ("num_frames", True),
    ],
)
def test_a_json_with_impossible_claims_is_refused(key, value, ready, tmp_path):
    transcode(ready, tmp_path / "packed", "--to", "webdataset", verb="pack")
    path = tmp_path / "packed" / "data-00000.tar"
    for name in ("gops.parquet", "manifest.parquet"):  # without these, the .json of each video is read
        (tmp_path / "packed" / name).unlink()
    shutil.rmtree(tmp_path / "packed" / ".vidprep")
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
    assert time.monotonic() - began < 200


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
    assert time.monotonic() - began < 200
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
