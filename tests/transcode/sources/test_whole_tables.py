"""Tables that cannot be read, and where they may lie."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.transcode.sources.trees import find_sources, ids, labels_of, touch
from tests.transcode.sources.written_tables import write_table
from vidprep.formats.errors import SourceError
from vidprep.transcode.sources import _search as search


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "has no rows"),
        ("t.csv", b"path,label\n", "has no rows"),
        ("t.csv", b"file,label\nx.mp4,1\n", "has no column `path`; columns: file, label; rename `file` to `path`"),
        ("t.csv", b"file;label\nx.mp4;1\n", "has no column `path`; columns: file;label"),
        ("t.csv", b"path,path\nx.mp4,x.mp4\n", "two columns with the same name"),
        ("t.csv", b"path,start,end\nx.mp4,1\n", "row 1: it does not have the 3 cells"),
        ("t.csv", b"path,label\nx.mp4,a\nx.mp4,a,b\n", "row 2: it does not have the 2 cells"),
        ("t.csv", b'path,label\nx.mp4,"a\n', "cannot be read"),
        ("t.csv", b"path,label\nx.mp4,caf\xe9\n", "not text in UTF-8"),
        ("t.jsonl", b"", "has no rows"),
        ("t.jsonl", b'{"path": "x.mp4"}\n{"path": \n', "row 2 is not a JSON object"),
        ("t.jsonl", b'{"path": "x.mp4"}\n["x.mp4"]\n', "row 2 is not a JSON object"),
        ("t.jsonl", b'{"path": ' + b"[" * 100_000 + b"\n", "cannot be read"),
        ("t.jsonl", b'{"file": "x.mp4"}\n', "has no column `path`; columns: file; rename `file` to `path`"),
        ("t.parquet", b"", "cannot be read"),
        ("t.parquet", b"PAR1 not at all PAR1", "cannot be read"),
    ],
)
def test_a_malformed_table_is_refused(src: Path, dst: Path, name: str, content: bytes, message: str) -> None:
    touch(src / "x.mp4")
    (src / name).write_bytes(content)
    with pytest.raises(SourceError, match=message) as error:
        find_sources(src / name, dst)
    assert error.value.path == str(src / name)


def test_a_parquet_table_with_two_columns_of_one_name_is_refused(src: Path, dst: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    touch(src / "x.mp4")
    column = pyarrow.array(["x.mp4"])
    parquet.write_table(pyarrow.table([column, column], names=["path", "path"]), src / "t.parquet")
    with pytest.raises(SourceError, match="two columns with the same name"):
        find_sources(src / "t.parquet", dst)


def test_a_parquet_table_gets_no_column_from_the_name_of_its_folder(src: Path, dst: Path) -> None:
    touch(src / "label=3" / "x.mp4")
    table = write_table(src / "label=3" / "t.parquet", [{"path": "x.mp4"}])
    assert find_sources(table, dst).labels is None


def test_a_table_that_is_a_fifo_is_not_opened(src: Path, dst: Path) -> None:
    os.mkfifo(src / "t.csv")
    with pytest.raises(SourceError, match="not a regular file: a FIFO"):
        find_sources(src / "t.csv", dst)


def test_label_from_folder_and_a_label_column_exclude_each_other(src: Path, dst: Path) -> None:
    touch(src / "run" / "x.mp4")
    table = write_table(src / "t.csv", [{"path": "run/x.mp4", "label": "walk"}])
    with pytest.raises(SourceError, match="has a column `label`"):
        find_sources(table, dst, label_from_folder=True)
    table = write_table(src / "t.csv", [{"path": "run/x.mp4", "split": "val"}])
    assert labels_of(find_sources(table, dst, label_from_folder=True)) == [{"split": "val", "label": "run"}]


@pytest.mark.parametrize(
    ("column", "told"),
    [("lable", "`label`"), ("Label", "`label`"), ("Split", "`split`"), ("labels", ""), ("class", "")],
)
def test_a_column_that_is_nearly_a_label_is_named(src: Path, dst: Path, column: str, told: str) -> None:
    touch(src / "x.mp4")
    found = find_sources(write_table(src / "t.csv", [{"path": "x.mp4", column: "a"}]), dst)
    assert labels_of(found) == [{column: "a"}]
    assert [told in note and column in note for note in found.notes] == [True] * bool(told)


def test_a_row_without_all_cells_is_skipped_alone(src: Path, dst: Path) -> None:
    touch(src / "x.mp4")
    (src / "t.csv").write_text("path,label,n\na.mp4,x\nx.mp4,y,1\nx.mp4,a,b,c\n")
    with pytest.raises(SourceError, match=r"row 1: it does not have the 3 cells[^;]*; quote(.|\n)*row 3: "):
        find_sources(src / "t.csv", dst)
    found = find_sources(src / "t.csv", dst, on_bad_row="skip")
    assert ids(found) == ["x"] and labels_of(found) == [{"label": "y", "n": 1}]
    assert sum(why.startswith("skipped row") for _, why in found.ignored) == 2


def test_a_list_without_names_of_columns_is_recognised(src: Path, dst: Path) -> None:
    (src / "t.csv").write_text("a/x.mp4\na/y.mp4\n")
    with pytest.raises(SourceError, match="its first line must name the columns"):
        find_sources(src / "t.csv", dst)
    (src / "t.csv").write_text("a/x.mp4\n")
    with pytest.raises(SourceError, match=r"no rows below its first line, which names the columns \(a/x\.mp4\)"):
        find_sources(src / "t.csv", dst)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"start": 1.0001}, {"start": 1.0002}),
        ({"id": "A"}, {"id": "a"}),
        ({"id": "caf\u00e9"}, {"id": "cafe\u0301"}),
        ({"id": "a"}, {"id": "a.mp4/b"}),
    ],
)
def test_rows_with_one_output_are_refused_with_the_way_out(
    src: Path, dst: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    touch(src / "x.mp4")
    table = write_table(src / "t.jsonl", [{"path": "x.mp4", **first}, {"path": "x.mp4", **second}])
    with pytest.raises(SourceError, match=r"1 pair of sources would write the same output file .*;.*column `id`"):
        find_sources(table, dst)


def test_a_row_inside_the_destination_is_refused(src: Path, tmp_path: Path) -> None:
    touch(src / "out" / "x.mp4")
    (src / "link.mp4").symlink_to("out/x.mp4")
    (src / "way").symlink_to("out")
    for path in ("out/x.mp4", "link.mp4", "way/x.mp4"):
        table = write_table(src / "t.csv", [{"path": path}])
        with pytest.raises(SourceError, match=r"row 1: .* is inside the destination"):
            find_sources(table, src / "out")


def test_a_table_may_lie_in_the_destination(src: Path, dst: Path) -> None:
    touch(src / "x.mp4")
    dst.mkdir()
    table = write_table(dst / "t.csv", [{"path": str(src / "x.mp4")}])
    assert ids(find_sources(table, dst)) == ["x"]


def test_progress_counts_rows(src: Path, dst: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "PROGRESS_EVERY", 2)
    touch(src / "x.mp4")
    table = write_table(src / "t.csv", [{"path": "x.mp4", "id": str(number)} for number in range(5)])
    told: list[int] = []
    find_sources(table, dst, progress=told.append)
    assert told == [2, 4]


def test_limit_takes_the_first_rows_by_id(src: Path, dst: Path) -> None:
    touch(src / "x.mp4")
    table = write_table(src / "t.csv", [{"path": "x.mp4", "id": name} for name in "dbca"])
    assert ids(find_sources(table, dst, limit=2)) == ["a", "b"]


def test_importing_the_module_does_not_import_pyarrow_or_av() -> None:
    """Each worker is a small child process that imports it."""
    code = (
        "import sys, vidprep.transcode.sources.listing; sys.exit(bool({'pyarrow', 'av', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
