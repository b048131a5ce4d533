"""A column is added by one line, as CONTRIBUTING says; one that does not say what it is, is refused at import."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.helpers import copy_packages, make_clips
from vidprep.formats.manifest.row import column, columns_table, kinds_of

ROOT = Path(__file__).parents[3]


@pytest.mark.long
def test_one_line_makes_a_column(tmp_path):
    copy_packages(tmp_path)
    (line,) = re.findall(r"^    (\w+: .* = column\(.*\))$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    row = tmp_path / "vidprep" / "formats" / "manifest" / "row.py"
    row.write_text(row.read_text().replace("    # fmt: on\n", f"    {line}\n    # fmt: on\n"))
    src = make_clips(tmp_path / "src", 1)
    ran = subprocess.run(
        [sys.executable, "-m", "vidprep.transcode", "transcode", src, tmp_path / "dst"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    (made,) = pq.read_table(tmp_path / "dst" / "manifest.parquet").select(["status", "license"]).to_pylist()
    assert made == {"status": "ok", "license": None}
    assert str(pq.read_schema(tmp_path / "dst" / "manifest.parquet").field("license").type) == "string"


@dataclass
class Good:
    name: str | None = column("string", "what it is called")
    sizes: list[int] | None = column("list<int64>", "bytes of each")
    crc: list[int] | None = column("list<int32>", "bytes of each")


@dataclass
class Silent:
    name: str | None = None


@dataclass
class Wrong:
    name: str | None = column("double", "what it is called")


def test_a_column_is_declared_in_its_field():
    assert kinds_of(Good) == {"name": "string", "sizes": "list<int64>", "crc": "list<int32>"}
    assert columns_table(Good).splitlines()[2:] == [
        "| `name` | string | what it is called |",
        "| `sizes`, `crc` | list<int64>, list<int32> | bytes of each |",
    ]
    for wrong in (Silent, Wrong):
        with pytest.raises(
            TypeError, match=r"name: str \| None has metadata .*; give column\(Arrow's type, what it holds\)"
        ):
            kinds_of(wrong)
