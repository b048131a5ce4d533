"""Any value in any column, any line in the journal, any label: what cannot be held costs its row, never the table."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from vidprep.formats.manifest.journal import Journal
from vidprep.formats.manifest.table import (
    COLUMN_NAMES,
    MANIFEST_NAME,
    ManifestRow,
    read_manifest,
    read_table,
    write_rows,
)

QUICK = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text()
    | st.binary()
    | st.text(st.characters(codec=None), max_size=3)
    | st.complex_numbers()
    | st.dates()
    | st.datetimes()
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.just(object())
    | st.just(int)
    | st.just(Path("x"))
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(SCALARS.filter(_hashable := lambda v: v.__hash__ is not None), inner, max_size=2)
        | st.tuples(inner)
        | st.frozensets(SCALARS, max_size=2)
    ),
    max_leaves=4,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)


def good(name: str, **changes: Any) -> ManifestRow:
    row = ManifestRow(id=name, file_name=f"{name}.mp4", source=f"/src/{name}.avi", status="ok", width=64)
    for column, value in changes.items():
        setattr(row, column, value)
    return row


def written(folder: Path, *rows: ManifestRow) -> dict[str, ManifestRow]:
    write_rows(folder / MANIFEST_NAME, None, rows)
    assert len(pq.read_table(folder / MANIFEST_NAME)) == len(rows)
    return {row.id: row for row in read_manifest(folder)}


@pytest.mark.long
@QUICK
@given(column=st.sampled_from(COLUMN_NAMES), value=ANYTHING)
@example(column="source_rotation", value=-(2**31))
@example(column="source_mtime_ns", value=2**63)
@example(column="frame_rate_den", value=2**64)
@example(column="keyframes", value=[0, 2**31])
@example(column="source", value="/\udcff")
@example(column="psnr_y_db", value=2**60)
def test_a_value_that_its_column_cannot_hold_costs_that_row_and_says_so(column, value, tmp_path):
    there = written(tmp_path, good("a"), good("b", **{column: value}), good("c"))
    assert (there["a"], there["c"]) == (good("a"), good("c"))
    (odd,) = (row for name, row in there.items() if name not in ("a", "c")) if len(there) == 3 else (None,)
    if odd is not None and odd.stage == "manifest" and column not in ("stage", "id"):
        assert odd.status == "failed" and column in (odd.message or "")


@pytest.mark.long
@QUICK
@given(values=st.lists(ANYTHING, min_size=1, max_size=4), name=st.text(max_size=8))
@example(values=[2**70], name="n")
@example(values=[{}], name="n")
@example(values=[math.nan, 1.5], name="n")
def test_labels_of_any_value_lose_no_row(values, name, tmp_path):
    there = written(tmp_path, good("a"), *(good(f"b{n}", labels={name: value}) for n, value in enumerate(values)))
    assert there["a"].status == "ok"
    assert len(there) == 1 + len(values)


@pytest.mark.long
@QUICK
@given(line=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
@example(line=b"[" * 100_000)
@example(line=b'{"id": "x", "file_name": "../x", "source": "s"}')
def test_no_line_of_the_journal_loses_the_rows_beside_it(line, tmp_path):
    path = tmp_path / "journal.jsonl"
    path.unlink(missing_ok=True)
    journal = Journal(path)
    journal.append(good("a"))
    journal.close()
    first = path.read_bytes()
    path.write_bytes(
        first + line.replace(b"\n", b" ") + b"\n" + first.replace(b'"a', b'"c').replace(b"a.mp4", b"c.mp4")
    )
    there = written(tmp_path, *Journal(path).rows())
    assert there["a"] == good("a")
    assert "c" in there


@QUICK
@given(column=st.sampled_from(COLUMN_NAMES), value=JSON)
@example(column="source_rotation", value=-(2**31))
@example(column="status", value=3)
@example(column="pts", value=["x"])
@example(column="psnr_y_db", value=10**400)
def test_a_journal_line_with_an_odd_value_costs_its_own_row(column, value, tmp_path):
    path = tmp_path / "journal.jsonl"
    plain = json.loads(good("b").as_journal_line()) | {column: value}
    path.write_text("".join(json.dumps(each) + "\n" for each in (json.loads(good("a").as_journal_line()), plain)))
    there = {row.id: row for row in Journal(path).rows()}
    assert written(tmp_path, *there.values())["a"] == good("a")
    if column not in ("id", "file_name", "source"):
        assert "b" in there


NAMES = [
    *COLUMN_NAMES,
    *(f"label_{name}" for name in ("status", "id", "x", "label_status")),
    "x",
    "labels",
    "label_",
    "label",
]


def test_no_two_labels_share_a_column_and_each_comes_back(tmp_path):
    labels = {name: f"value of {name}" for name in NAMES}
    assert written(tmp_path, good("a", labels=labels))["a"].labels == labels
    assert read_table(tmp_path).column_names == [*COLUMN_NAMES, "labels"]


@pytest.mark.long
@QUICK
@given(labels=st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=6), st.integers(0, 9), max_size=6))
def test_labels_of_any_name_come_back(labels, tmp_path):
    odd = {
        name
        for name in labels
        if not name.isascii() and name != name.encode("utf-8", "ignore").decode("utf-8", "ignore")
    }
    assert written(tmp_path, good("a", labels=labels))["a"].labels == labels or odd
