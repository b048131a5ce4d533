"""The manifest: one row per unit, failures too, in Parquet; and the journal that rows stand in until a run ends.

    DST/manifest.parquet                     COLUMNS, then one column per label; page checksums on
    DST/manifest-00003-of-00064.parquet      the part of one shard; parts are read as one
    DST/.vidprep/journal.jsonl               one JSON object per finished unit, in the order they finished

A journal line is written before its output takes its final name, so whatever has a final name has a row. A torn last
line (the run was killed while writing it) is dropped. Any other line that is no row is left out and counted, so that its
unit is made again; one that says whose row it is, with a value that its column cannot hold, is a failed row.
"""

from __future__ import annotations

import heapq
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidprep.formats.errors import ManifestError, TakenOverError
from vidprep.formats.files.local import replacing
from vidprep.formats.files.no_links import open_unlinked
from vidprep.formats.files.untrusted import arrow_file, as_parquet, check_regular, open_regular
from vidprep.formats.manifest.columns import shown
from vidprep.formats.manifest.row import COLUMN_NAMES as COLUMN_NAMES
from vidprep.formats.manifest.row import COLUMNS as COLUMNS
from vidprep.formats.manifest.row import (
    OUTSIDE,
    OUTSIDE_MESSAGE,
    REQUIRED,
    checked,
    row_of_line,
    unescaped_label,
    unwritable,
)
from vidprep.formats.manifest.row import ManifestRow as ManifestRow
from vidprep.formats.manifest.row import label_column as label_column
from vidprep.formats.manifest.row import row_from_dict as row_from_dict

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

MANIFEST_NAME = "manifest.parquet"
RANK_COLUMNS = ["id", "run"]
COLUMNS_KEY, FENCE_KEY = b"vidprep.columns_crc32", b"vidprep.fence"
ROWS_AT_A_TIME = 1000
LINE_BYTES_MAX = 256 << 20


class Journal:
    """Rows on their way to the manifest. One process appends; each row is one write.

    unreadable: numbers of the lines that were no rows when they were last read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unreadable: tuple[int, ...] = ()
        self._fd: int | None = None

    def append(self, row: ManifestRow) -> None:
        """Raises OSError when there is no room for the row; then nothing of it is left."""
        if self._fd is None:
            check_regular(self.path)
            self._drop_torn_end()
            self._fd = open_unlinked(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        line = (checked(row).as_journal_line() + "\n").encode()
        start, written = os.fstat(self._fd).st_size, 0
        try:
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError:
            os.ftruncate(self._fd, start)
            raise

    def rows(self) -> Iterator[ManifestRow]:
        """Rows in the order they were written, without lines that are no rows. Raises OSError for what is no regular file."""
        unreadable = []
        try:
            file = open_regular(self.path)
        except FileNotFoundError:
            return
        with file:
            lines = iter(lambda: file.readline(LINE_BYTES_MAX), b"")
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
                    break
                try:
                    row = row_of_line(line)
                except ValueError:
                    unreadable.append(number)
                else:
                    yield row
        self.unreadable = tuple(unreadable)

    def clear(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _drop_torn_end(self) -> None:
        try:
            with os.fdopen(open_unlinked(self.path, os.O_RDWR), "r+b") as file:
                position = file.seek(0, os.SEEK_END)
                while position:
                    step = min(position, 1 << 16)
                    file.seek(position - step)
                    newline = file.read(step).rfind(b"\n")
                    if newline >= 0:
                        file.truncate(position - step + newline + 1)
                        return
                    position -= step
                file.truncate(0)
        except FileNotFoundError:
            pass


def manifest_paths(destination: Path) -> list[Path]:
    """The manifest and its parts, sorted; none yet is an empty list."""
    return sorted(p for p in destination.glob("manifest*.parquet") if not p.name.startswith("."))


def read_table(destination: Path, columns: list[str] | None = None, only: Path | None = None) -> pa.Table | None:
    """All rows of a destination as one table, or None when there is no manifest. Page checksums are checked.

    columns: only these. only: of this one of its manifests. Raises ManifestError with the file's name when one cannot be read.
    """
    paths = manifest_paths(destination) if only is None else [only] if only.exists() else []
    if not paths:
        return None
    import pyarrow as pa

    asked = columns if columns is None or len(paths) < 2 else list(dict.fromkeys([*columns, *RANK_COLUMNS]))
    tables = []
    for path in paths:
        with _opened(path) as file:
            tables.append(_conformed(file.read(columns=asked)))
            if "file_name" in tables[-1].column_names:
                _check_names(tables[-1]["file_name"])
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise ManifestError(f"its parts do not fit together ({error})", path=destination) from error
    if len(tables) == 1:
        return table
    table = with_columns(table, RANK_COLUMNS)
    ids, runs = (table[name].to_pylist() for name in RANK_COLUMNS)
    best: dict[str, int] = {}
    for number, id_ in enumerate(ids):
        if (runs[number] or 0) > (runs[best.setdefault(id_, number)] or 0):
            best[id_] = number
    table = table.take(pa.array(sorted(best.values()), pa.int64())) if len(best) < len(ids) else table
    return table if columns is None else table.select(columns)


def read_manifest(destination: str | os.PathLike[str]) -> Iterator[ManifestRow]:
    """The rows of a destination in the order of their ids, a batch at a time: of several rows of a unit, in the whole and in parts,
    the one of the newest run. Raises ManifestError as `read_table`.
    """
    merged = heapq.merge(*map(_rows_of, manifest_paths(Path(destination))), key=attrgetter("id"))
    for _, rows in groupby(merged, key=attrgetter("id")):
        yield max(rows, key=_run_of)


def _check_names(names: pa.Array | pa.ChunkedArray) -> None:
    """Raises ValueError for a file that is not below the destination."""
    import pyarrow.compute as pc

    outside = pc.match_substring_regex(names, OUTSIDE)
    if pc.any(outside).as_py():
        raise ValueError(OUTSIDE_MESSAGE % names.filter(outside)[0].as_py())


def _conformed(table: pa.Table) -> pa.Table:
    """The same with the manifest's own columns in their types. Raises ValueError, TypeError for values that do not fit."""
    for column in arrow_schema():
        if column.name not in table.column_names:
            continue
        if table.schema.field(column.name).type != column.type:
            place = table.column_names.index(column.name)
            table = table.set_column(place, column.name, table[column.name].cast(column.type))
        if column.name in REQUIRED and table[column.name].null_count:
            raise ValueError(f"a row without {column.name}")
    return table


def with_columns(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """The same with those of the manifest's own columns that it lacks, empty: older manifests have fewer."""
    import pyarrow as pa

    for column in arrow_schema():
        if column.name in names and column.name not in table.column_names:
            table = table.append_column(column, pa.nulls(table.num_rows, column.type))
    return table


def _run_of(row: ManifestRow) -> int:
    return row.run or 0


def _rows_of(path: Path) -> Iterator[ManifestRow]:
    with _opened(path) as file:
        for batch in file.iter_batches(batch_size=ROWS_AT_A_TIME, use_threads=False):
            yield from map(row_from_dict, batch.to_pylist())


def label_fields(destination: Path) -> pa.Schema:
    """The labels in a manifest, under their own names."""
    import pyarrow as pa

    found = []
    for path in manifest_paths(destination):
        with _opened(path) as file:
            columns = [field for field in file.schema_arrow if field.name not in COLUMNS]
            found.append(pa.schema([field.with_name(unescaped_label(field.name, COLUMNS)) for field in columns]))
    try:
        return pa.unify_schemas(found, promote_options="permissive") if found else pa.schema([])
    except pa.ArrowException as error:
        raise ManifestError(f"the labels of its parts do not fit together ({error})", path=destination) from error


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    import pyarrow as pa

    try:
        with arrow_file(path) as source, as_parquet(source, path) as file:
            names = file.schema_arrow.names
            stated = (file.schema_arrow.metadata or {}).get(COLUMNS_KEY)
            if (stated is not None and stated != columns_checksum(file.schema_arrow)) or len({*names}) < len(names):
                raise ValueError("the names of its columns are damaged")
            if missing := [name for name in REQUIRED if name not in names]:
                raise ValueError(f"it has no column {', '.join(missing)}")
            yield file
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, ArithmeticError, MemoryError) as error:
        raise ManifestError(
            f"cannot be read ({error}); move it away: its outputs are then made again", path=path
        ) from error


def fence_of(path: Path) -> int:
    """The number of the lease under which a manifest was written; 0 where none is there, or it says nothing."""
    if not path.exists():
        return 0
    with _opened(path) as file:
        written = (file.schema_arrow.metadata or {}).get(FENCE_KEY, b"")
    return int(written) if re.fullmatch(rb"\d{1,15}", written) else 0


def write_rows(path: Path, kept: pa.Table | None, rows: Iterable[ManifestRow], *, fence: int = 0) -> None:
    """Write a manifest: the rows of `kept` and the new ones, sorted by id. Of several of an id the one of the newest run counts, of one
    run the last. A row with a value that its column cannot hold becomes a failed row that says so. fence: the number of the
    lease under which it is written, which is kept in it. Raises ManifestError when the new rows do not fit the old, TakenOverError when
    a later lease has written a manifest.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables: list[pa.Table] = [_table_of([]) if kept is None else kept]
    ids_and_runs = (with_columns(tables[0], RANK_COLUMNS)[name].to_pylist() for name in RANK_COLUMNS)
    newest = {id_: (run or 0, number) for number, (id_, run) in enumerate(zip(*ids_and_runs, strict=True))}
    given, count = map(checked, rows), len(tables[0])
    while batch := list(islice(given, ROWS_AT_A_TIME)):
        tables += _tables_of(batch)
        for number, row in enumerate(batch, count):
            newest[row.id] = max(newest.get(row.id, (0, 0)), (row.run or 0, number))
        count += len(batch)
    order = pa.array([newest[id_][1] for id_ in sorted(newest)], pa.int64())
    table = _joined(tables, path).take(order)
    table = table.replace_schema_metadata({COLUMNS_KEY: columns_checksum(table.schema), FENCE_KEY: str(fence).encode()})
    with replacing(path) as file:
        pq.write_table(table, file, compression="zstd", write_page_checksum=True)
        if fence and fence_of(path) > fence:
            raise TakenOverError(
                "was written by a run that took over from this one; this one writes nothing more", path=path
            )


def _tables_of(rows: list[ManifestRow]) -> list[pa.Table]:
    """The rows in order. One that pyarrow refuses all the same is replaced by a failed row."""
    import pyarrow as pa

    try:
        return [_table_of(rows)]
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError, AttributeError) as error:
        if len(rows) > 1:
            half = len(rows) // 2
            return _tables_of(rows[:half]) + _tables_of(rows[half:])
        bare = ManifestRow(rows[0].id, rows[0].file_name, rows[0].source)
        return [_table_of([unwritable(bare, f"its row cannot be written: {shown(str(error))}")])]


def _table_of(rows: list[ManifestRow]) -> pa.Table:
    """The columns of rows, labels behind; text where the values of a label have no common type."""
    import pyarrow as pa

    labels = dict.fromkeys(label_column(name) for row in rows for name in row.labels)
    dicts = [row.as_dict() for row in rows]
    schema = arrow_schema()
    arrays = [pa.array([d[name] for d in dicts], type=schema.field(name).type) for name in COLUMN_NAMES]
    arrays += [_label_array([d.get(label) for d in dicts]) for label in labels]
    return pa.table(arrays, names=[*COLUMN_NAMES, *labels])


def _label_array(values: list[Any]) -> pa.Array:
    """Objects are text, since Parquet has none without a fixed set of names."""
    import pyarrow as pa

    try:
        array = pa.array(values)
        if not _holds_objects(array.type):
            return array
    except (pa.ArrowException, OverflowError):
        pass
    return pa.array([None if value is None else _as_words(value) for value in values], type=pa.string())


def _holds_objects(kind: pa.DataType) -> bool:
    import pyarrow as pa

    while pa.types.is_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_nested(kind))


def _as_words(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def _joined(tables: list[pa.Table], path: Path) -> pa.Table:
    """All rows, with text where a label has types that no common type holds: 3 in one run, "walk" in the next."""
    import pyarrow as pa

    for name in {name for table in tables for name in table.column_names}.difference(COLUMN_NAMES):
        kinds = [pa.schema([table.schema.field(name)]) for table in tables if name in table.column_names]
        try:
            pa.unify_schemas(kinds, promote_options="permissive")
        except pa.ArrowException:
            tables = [_as_text(table, name) if name in table.column_names else table for table in tables]
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise ManifestError(f"the new rows do not fit the old manifest: {error}", path=path) from error


def _as_text(table: pa.Table, name: str) -> pa.Table:
    import pyarrow as pa

    column = table[name]
    try:
        text = column.cast(pa.string())
    except pa.ArrowException:
        text = pa.array([None if v is None else _as_words(v) for v in column.to_pylist()], type=pa.string())
    return table.set_column(table.column_names.index(name), name, text)


def columns_checksum(schema: pa.Schema) -> bytes:
    """Parquet's page checksums do not cover the footer: a flipped bit there renames a column, which then reads as empty."""
    kinds = [(column.name, str(column.type).replace("<item:", "<element:")) for column in schema]
    return b"%08x" % zlib.crc32(repr(kinds).encode())


def arrow_schema() -> pa.Schema:
    """The manifest's own columns, without labels."""
    import pyarrow as pa

    def kind(text: str) -> pa.DataType:
        if text.startswith("list<"):
            return pa.list_(kind(text[5:-1]))
        return pa.float64() if text == "double" else pa.bool_() if text == "bool" else getattr(pa, text)()

    return pa.schema([(name, kind(text)) for name, text in COLUMNS.items()])
