"""The manifest and its journal: what is written comes back, and what was damaged or torn is not taken for whole."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vidprep.formats import open_store
from vidprep.formats.errors import ManifestError, VidprepError
from vidprep.formats.manifest.journal import Journal
from vidprep.formats.manifest.table import (
    COLUMN_NAMES,
    COLUMNS,
    COLUMNS_KEY,
    MANIFEST_NAME,
    ManifestRow,
    arrow_schema,
    columns_checksum,
    manifest_paths,
    read_manifest,
    read_table,
    row_from_dict,
    write_rows,
)


def full_row(name: str = "a/b", **changes: Any) -> ManifestRow:
    """A row in which every column holds something that is not its default."""
    samples: dict[str, Any] = {
        "string": 'text, "quoted" and ünïcödé\nover two lines',
        "double": 1 / 3,
        "bool": True,
        "int16": 90,
        "int32": 2**31 - 1,
        "int64": 2**59 + 1,
        "list<int32>": [0, 16, 2**31 - 1],
        "list<int64>": [0, 2**31],
        "list<string>": ["one", "zwei"],
        "list<double>": [20.0, 1 / 3],
    }
    values = {column: samples[kind] for column, kind in COLUMNS.items()} | {"id": name, "psnr_y_db": math.inf}
    labels = {"label": "jump", "weight": 0.25, "count": 3, "crf": "a taken name"}
    return ManifestRow(**(values | {"labels": labels} | changes))


def bare_row(name: str) -> ManifestRow:
    return ManifestRow(id=name, file_name=f"{name}.mp4", source=f"/src/{name}.mkv")


def rows_of(folder: Path) -> list[ManifestRow]:
    return list(read_manifest(folder))


@pytest.mark.parametrize("row", [full_row(), bare_row("x")], ids=["full", "bare"])
def test_a_row_comes_back_from_json_as_it_was(row):
    text = row.as_json()
    assert "\n" not in text
    told = json.loads(text)
    assert told.pop("labels") == row.labels
    assert row_from_dict(told) == replace(row, labels={})


def test_json_holds_infinity_as_a_word_and_is_json_to_any_reader():
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    told = json.loads(full_row(ssim=-math.inf).as_json(), parse_constant=refuse)
    assert told["psnr_y_db"] == "inf"
    assert told["ssim"] == "-inf"
    assert told["labels"] == {"label": "jump", "weight": 0.25, "count": 3, "crf": "a taken name"}
    assert told["crf"] == pytest.approx(1 / 3)


def test_rows_come_back_from_parquet_as_they_were(tmp_path):
    rows = [
        full_row("a"),
        full_row(
            "b", psnr_y_db=-math.inf, keyframes=[], labels={"label": None, "weight": 1.5, "count": None, "crf": None}
        ),
    ]
    write_rows(tmp_path / MANIFEST_NAME, None, rows)
    assert rows_of(tmp_path) == rows


def test_parquet_has_the_promised_columns_and_types_for_any_reader(tmp_path):
    write_rows(tmp_path / MANIFEST_NAME, None, [full_row(), bare_row("x")])
    schema = pq.read_schema(tmp_path / MANIFEST_NAME)
    assert tuple(schema.names[: len(COLUMN_NAMES)]) == COLUMN_NAMES
    for field in arrow_schema():
        assert schema.field(field.name).type == field.type
    assert schema.names[len(COLUMN_NAMES) :] == ["labels"]
    assert {field.name for field in schema.field("labels").type} == {"label", "weight", "count", "crf"}
    told = pq.read_table(tmp_path / MANIFEST_NAME).to_pylist()
    assert told[0]["psnr_y_db"] == math.inf
    assert told[1]["psnr_y_db"] is None


def test_labels_of_unlike_types_become_text(tmp_path):
    rows = [bare_row("a"), bare_row("b"), bare_row("c")]
    rows[0].labels, rows[1].labels = {"mark": 1}, {"mark": "two"}
    write_rows(tmp_path / MANIFEST_NAME, None, rows)
    assert [row.labels["mark"] for row in rows_of(tmp_path)] == ["1", "two", None]


def test_the_last_row_of_an_id_wins(tmp_path):
    first, second = bare_row("a"), full_row("a")
    write_rows(tmp_path / MANIFEST_NAME, None, [first, bare_row("b"), second])
    assert [row.id for row in rows_of(tmp_path)] == ["a", "b"]
    assert rows_of(tmp_path)[0].status == second.status


def test_new_rows_replace_old_ones_and_leave_the_rest(tmp_path):
    path = tmp_path / MANIFEST_NAME
    write_rows(path, None, [full_row("a"), full_row("b"), full_row("c")])
    new = full_row("b", message="made again")
    write_rows(path, read_table(tmp_path), [new, full_row("d")])
    assert rows_of(tmp_path) == [full_row("a"), new, full_row("c"), full_row("d")]


def test_merging_the_same_rows_twice_changes_not_one_byte(tmp_path):
    path = tmp_path / MANIFEST_NAME
    rows = [full_row("b"), full_row("a"), bare_row("c")]
    write_rows(path, None, [bare_row("z")])
    write_rows(path, read_table(tmp_path), rows)
    once = path.read_bytes()
    write_rows(path, read_table(tmp_path), rows)
    assert path.read_bytes() == once
    assert list(tmp_path.iterdir()) == [path]


def test_parts_are_read_as_one(tmp_path):
    write_rows(tmp_path / "manifest-00000-of-00002.parquet", None, [full_row("a")])
    write_rows(tmp_path / "manifest-00001-of-00002.parquet", None, [bare_row("b")])
    (tmp_path / ".manifest.parquet.partial").write_bytes(b"torn")
    assert len(manifest_paths(tmp_path)) == 2
    assert [row.id for row in rows_of(tmp_path)] == ["a", "b"]
    assert [row.labels.get("label") for row in rows_of(tmp_path)] == ["jump", None]


def test_no_manifest_is_no_table(tmp_path):
    assert read_table(tmp_path) is None


@pytest.mark.long
def test_a_flipped_bit_is_never_read_as_other_values(tmp_path):
    """One bit in every place of a small file: refused, or where it carries nothing, read as it was."""
    path = tmp_path / MANIFEST_NAME
    write_rows(path, None, [full_row(f"id-{n}", crf=n * 1.25) for n in range(50)])
    whole, data = rows_of(tmp_path), path.read_bytes()
    refused = 0
    rng = np.random.default_rng(11)
    for position in rng.choice(len(data), 150, replace=False):
        broken = bytearray(data)
        broken[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        try:
            rows = rows_of(tmp_path)
        except ManifestError as error:
            assert str(path) in str(error)
            refused += 1
        else:
            assert rows == whole, f"byte {position} of {len(data)}"
    assert refused > 50


def test_flipped_bits_in_the_pages_are_refused(tmp_path):
    path = tmp_path / MANIFEST_NAME
    write_rows(path, None, [full_row(f"id-{n}") for n in range(50)])
    data = bytearray(path.read_bytes())
    column = pq.read_metadata(path).row_group(0).column(COLUMN_NAMES.index("crf"))
    data[column.data_page_offset + column.total_compressed_size // 2 + 8] ^= 4
    path.write_bytes(data)
    with pytest.raises(ManifestError, match="cannot be read"):
        read_table(tmp_path)


def test_a_manifest_cut_short_is_refused_by_name(tmp_path):
    path = tmp_path / MANIFEST_NAME
    write_rows(path, None, [full_row()])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ManifestError, match="restore it") as caught:
        read_table(tmp_path)
    assert caught.value.path == str(path)


# ------------------------------------------------------------------------------------------------ journal


def journal_of(path: Path, *rows: ManifestRow) -> Journal:
    journal = Journal(path)
    for row in rows:
        journal.append(row)
    journal.close()
    return journal


def test_the_journal_gives_rows_in_the_order_they_were_written(tmp_path):
    rows = [full_row("b"), bare_row("a"), full_row("b", message="again")]
    assert list(journal_of(tmp_path / "j", *rows).rows()) == [replace(row, labels={}) for row in rows]


def test_no_journal_holds_no_rows(tmp_path):
    assert list(Journal(tmp_path / "j").rows()) == []


def test_a_torn_last_line_is_dropped_wherever_it_was_torn(tmp_path):
    path = tmp_path / "j"
    rows = [bare_row("a"), bare_row("b")]
    journal_of(path, *rows)
    data = path.read_bytes()
    first = data.index(b"\n") + 1
    for length in (first, first + 1, first + 40, len(data) - 2, len(data) - 1):
        path.write_bytes(data[:length])
        assert list(Journal(path).rows()) == rows[:1]
        journal = journal_of(path, bare_row("c"))
        assert list(journal.rows()) == [rows[0], bare_row("c")]


def test_a_torn_line_longer_than_a_read_is_dropped_whole(tmp_path):
    path = tmp_path / "j"
    long = full_row("long", source_frames=list(range(40_000)))
    journal_of(path, bare_row("a"), long)
    path.write_bytes(path.read_bytes()[:-3])
    assert list(journal_of(path, bare_row("b")).rows()) == [bare_row("a"), bare_row("b")]


def test_a_journal_with_only_a_torn_line_starts_again(tmp_path):
    path = tmp_path / "j"
    path.write_bytes(b'{"id": "a", "file_na')
    assert list(journal_of(path, bare_row("b")).rows()) == [bare_row("b")]


@pytest.mark.parametrize("bad", [b"{}\n", b"nonsense\n", b"[1]\n", b"\xff\xfe\n", b"\n"])
def test_a_bad_line_in_the_middle_costs_no_other_row_and_is_counted(bad, tmp_path):
    path = tmp_path / "j"
    journal_of(path, bare_row("a"))
    path.write_bytes(path.read_bytes() + bad + path.read_bytes())
    journal = Journal(path)
    assert list(journal.rows()) == [bare_row("a"), bare_row("a")]
    assert journal.unreadable == (2,)


def test_a_cleared_journal_is_gone_and_can_be_cleared_again(tmp_path):
    journal = journal_of(tmp_path / "j", bare_row("a"))
    journal.clear()
    journal.clear()
    assert not (tmp_path / "j").exists()


def test_a_row_without_its_id_is_refused():
    with pytest.raises(ValueError, match="a row without source"):
        row_from_dict({"id": "a", "file_name": "a.mp4"})


@pytest.mark.parametrize(("name", "value"), [("file_name", None), ("id", None), ("psnr_y_db", [1.0])])
def test_a_manifest_whose_row_is_no_row_says_where_it_is(name, value, tmp_path):
    values = {"id": ["a"], "file_name": ["a.mp4"], "source": ["/src/a.mkv"], "status": ["ok"]} | {name: [value]}
    pq.write_table(pa.table(values), tmp_path / MANIFEST_NAME, write_page_checksum=True)
    with pytest.raises(ManifestError, match="cannot be read") as raised:
        list(read_manifest(tmp_path))
    assert raised.value.path == str(tmp_path / MANIFEST_NAME)


@pytest.mark.parametrize("name", ["../a.mp4", "/etc/passwd", "x/../../a.mp4", "x/.."])
def test_a_row_with_a_file_outside_is_refused_by_every_reader(name, tmp_path):
    row = ManifestRow(id="a", file_name=name, source="/src/a.mkv", status="ok")
    write_rows(tmp_path / MANIFEST_NAME, None, [bare_row("0"), row])
    for read in (read_table, lambda folder: list(read_manifest(folder)), open_store):
        with pytest.raises(VidprepError, match="is a file outside of the folder"):
            read(tmp_path)
    journal = journal_of(tmp_path / "j", bare_row("0"), row)
    assert (list(journal.rows()), journal.unreadable) == ([bare_row("0")], (2,))


@pytest.mark.parametrize("name", ["a..b.mp4", "..a/b.mp4", "x../b...mp4", "…/ü.mp4"])
def test_dots_in_a_name_are_no_harm(name, tmp_path):
    write_rows(tmp_path / MANIFEST_NAME, None, [ManifestRow(id="a", file_name=name, source="/src/a.mkv")])
    assert [row.file_name for row in read_manifest(tmp_path)] == [name]
    assert read_table(tmp_path, ["file_name"]).to_pylist() == [{"file_name": name}]


IMPORTS = """
import sys
from vidprep.formats.storage.untrusted import import_pyarrow
import_pyarrow()
import pyarrow as pa
table = pa.table({"a": ["x", None]})
assert "pandas" not in sys.modules
import pandas
assert table.to_pandas()["a"][0] == "x"
assert pa.array(pandas.Series([1.0, float("nan")])).null_count == 1
"""


def test_pyarrow_is_imported_without_pandas_which_is_left_to_others():
    pytest.importorskip("pandas")
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)


def test_a_manifest_of_0_1_0_gives_its_labels_under_their_own_names(tmp_path):
    """They stood among its columns, behind `label_` where the name was taken."""
    write_rows(tmp_path / MANIFEST_NAME, None, [bare_row("a"), bare_row("b")])
    old = pq.read_table(tmp_path / MANIFEST_NAME)
    for name, values in {"kind": ["x", None], "label_status": [1, 2]}.items():
        old = old.append_column(name, pa.array(values))
    old = old.replace_schema_metadata({COLUMNS_KEY: columns_checksum(old.schema)})
    pq.write_table(old, tmp_path / MANIFEST_NAME)
    due = {"a": {"kind": "x", "status": 1}, "b": {"kind": None, "status": 2}}
    assert {row.id: row.labels for row in read_manifest(tmp_path)} == due
    write_rows(tmp_path / MANIFEST_NAME, read_table(tmp_path), [])
    assert pq.read_schema(tmp_path / MANIFEST_NAME).names == [*COLUMN_NAMES, "labels"]
    assert {row.id: row.labels for row in read_manifest(tmp_path)} == due


@pytest.mark.parametrize(
    ("place", "said"),
    [("s3://bucket/ready", "is behind a URL"), ("nowhere", "is no folder"), (".", "has no manifest.parquet")],
)
def test_a_manifest_that_is_not_there_is_an_error(place: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=said):
        read_manifest(place if "://" in place else tmp_path / place)
