"""Tables that say in a few bytes more than fits into memory are refused before they take it, by every command that reads one."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import command, environment, make_clip, transcode

MEMORY_BYTES = 1 << 30


def repeated(value: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([value]))


def write(path: Path, kind: str) -> str:
    """A table of at most a few in_bytes. Returns what is said of it."""
    if kind == "rows":
        part = pa.table({"path": repeated("a.mp4", 1_000_000)})
        with pq.ParquetWriter(path, part.schema, compression="zstd") as file:
            for _ in range(50):
                file.write_table(part)
        return "it has 50,000,000 rows, more than 20,000,000"
    if kind == "text":
        columns = {"path": repeated("a.mp4", 100_000), "label": repeated("x" * 1_000_000, 100_000)}
        pq.write_table(pa.table(columns), path, compression="zstd")
        return "its values take more than 4.29 GB"
    if kind == "lists":
        lists = pa.ListArray.from_arrays([0, 200_000_000], pa.array(np.zeros(200_000_000, np.int8)))
        pq.write_table(pa.table({"path": ["a.mp4"], "label": lists}), path, compression="zstd")
        return "its lists have 200,000,000 values, more than 50,000,000"
    names = [f"label {number}" for number in range(20_000)]
    if path.suffix == ".csv":
        path.write_text(f"path,{','.join(names)}\na.mp4{',1' * len(names)}\n")
    elif path.suffix == ".jsonl":
        path.write_text('{"path": "a.mp4", ' + ", ".join(f'"{name}": 1' for name in names) + "}\n")
    else:
        pq.write_table(pa.table({"path": ["a.mp4"]} | {name: [1] for name in names}), path)
    return "it has 20,001 columns, more than 10,000"


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux counts memory so")
@pytest.mark.parametrize(
    ("kind", "suffix"),
    [
        ("rows", "parquet"),
        ("text", "parquet"),
        ("lists", "parquet"),
        ("columns", "parquet"),
        ("columns", "csv"),
        ("columns", "jsonl"),
    ],
)
def test_a_table_that_does_not_fit_into_memory_is_refused_before_it_is_read(
    kind: str, suffix: str, tmp_path: Path
) -> None:
    """404 kB of 50,000,000 rows took 6.3 GB before anything was said."""
    clip = make_clip(tmp_path / "a.mp4", 2)
    assert transcode(clip, tmp_path / "made").code == 0
    listed = tmp_path / f"table.{suffix}"
    due = write(listed, kind)
    assert listed.stat().st_size < 8 << 20

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))

    for verb, given in {
        "transcode": (listed, tmp_path / "other"),
        "burst": (listed, tmp_path / "other"),
        "label": (tmp_path / "made", listed),
        "validate": (listed, tmp_path / "made"),
    }.items():
        ran = subprocess.run(
            command(*given, verb=verb), env=environment(), capture_output=True, text=True, timeout=300, preexec_fn=limit
        )
        assert ran.returncode == 2 and f"table cannot be read: {due}" in ran.stderr, ran.stderr
    assert not (tmp_path / "other").exists()
