"""The manifest: one row per unit, including failed ones, in Parquet.

DST/manifest.parquet                     COLUMNS, then `labels`, a struct with a field for each label; page checksums on
DST/manifest-00003-of-00064.parquet      the rows of one partition; all partitions are read as one manifest
"""

from __future__ import annotations

import heapq
import json
import math
import os
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from vidprep.formats.errors import ManifestError, TakenOverError
from vidprep.formats.manifest.row import (
    BOUNDS,
    COLUMN_NAMES as COLUMN_NAMES,
    COLUMNS as COLUMNS,
    OUTSIDE,
    OUTSIDE_MESSAGE,
    REMOVED,
    REQUIRED,
    ManifestRow as ManifestRow,
    check_row,
    row_from_dict as row_from_dict,
    show,
    unescape_label,
    unwritable,
)
from vidprep.formats.storage.base import is_url
from vidprep.formats.storage.local import replacing
from vidprep.formats.storage.untrusted import arrow_file, open_parquet, read_json, seal_footer

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from vidprep.formats.manifest.labels import Labels

Columns = TypeVar("Columns", bound=NamedTuple)
MANIFEST_NAME = "manifest.parquet"
CLASSES_NAME = "class_to_idx.json"
RANK_COLUMNS = ["id", "run"]
LABELS = "labels"
COLUMNS_KEY, FENCE_KEY = b"vidprep.columns_crc32", b"vidprep.fence"
ROWS_AT_A_TIME = 1000
GROUP_ROWS = 10_000  # of which those with other ids are not read


def manifest_paths(destination: Path) -> list[Path]:
    """Return the manifest or the manifests of partitions, sorted; empty if there are none."""
    return sorted(p for p in destination.glob("manifest*.parquet") if not p.name.startswith("."))


def read_table(destination: Path, columns: list[str] | None = None, only: Path | None = None) -> pa.Table | None:
    """Read all rows of a destination as one table, and check page checksums. Return None if there is no manifest. If
    several manifests have a row of one id, that of the newest run counts.

    Args:
        destination: The destination.
        columns: Columns to read; None means all.
        only: The single manifest file to read.

    Raises:
        ManifestError: A file cannot be read; the message names it.
    """
    paths = manifest_paths(destination) if only is None else [only] if only.exists() else []
    if not paths:
        return None
    wanted = columns if columns is None or len(paths) < 2 else list(dict.fromkeys([*columns, *RANK_COLUMNS]))
    tables = []
    for path in paths:
        with _open(path) as file:
            tables.append(_conform(_read(file, wanted)))
            if "file_name" in tables[-1].column_names:
                _check_names(tables[-1]["file_name"])
    if len(tables) == 1:
        return tables[0]
    import pyarrow as pa

    table = _concatenate(tables, destination)
    table = add_columns(table, RANK_COLUMNS)
    ids, runs = (table[name].to_pylist() for name in RANK_COLUMNS)
    best: dict[str, int] = {}
    for number, id_ in enumerate(ids):
        if (runs[number] or 0) > (runs[best.setdefault(id_, number)] or 0):
            best[id_] = number
    table = table.take(pa.array(sorted(best.values()), pa.int64())) if len(best) < len(ids) else table
    return table if columns is None else table.select([name for name in columns if name in table.column_names])


def read_rows(destination: Path, kind: type[Columns], only: Path | None = None) -> Iterator[Columns]:
    """Read some columns of all rows of a destination; no row where there is no manifest.

    Args:
        destination: Folder of the manifests.
        kind: A NamedTuple whose fields are named as the columns. They are None in a manifest that has no such column.
        only: The one manifest to read.

    Raises:
        ManifestError: A manifest cannot be read.
    """
    table = read_table(destination, list(kind._fields), only)
    return iter(()) if table is None else rows_of(table, kind)


def rows_of(table: pa.Table, kind: type[Columns]) -> Iterator[Columns]:
    """Return the rows of a table as `kind`, a NamedTuple of column names. Raises KeyError for an unknown column."""
    table = add_columns(table, kind._fields)
    columns = (table[name].to_pylist() for name in kind._fields)
    return map(kind._make, zip(*columns, strict=True))


def _labels_among_columns(schema: pa.Schema) -> list[str]:
    """Return the label columns of a manifest of version 0.1.0; empty for newer ones, which store labels separately."""
    import pyarrow as pa

    others = [name for name in schema.names if name not in COLUMNS]
    return [] if LABELS in others and pa.types.is_struct(schema.field(LABELS).type) else others


def _read(file: pq.ParquetFile, columns: list[str] | None) -> pa.Table:
    """Read these columns of a manifest, or all."""
    import pyarrow as pa

    others = _labels_among_columns(file.schema_arrow)
    if not others or (columns is not None and LABELS not in columns):
        return file.read(columns=columns)
    table = file.read(columns=None if columns is None else [*columns, *others])
    arrays = [pa.concat_arrays(table[name].chunks) if table[name].num_chunks else pa.nulls(0) for name in others]
    struct = pa.StructArray.from_arrays(arrays, names=[unescape_label(name, COLUMNS) for name in others])
    return table.drop_columns(others).append_column(LABELS, struct)


def _concatenate(tables: list[pa.Table], destination: Path) -> pa.Table:
    """Return all rows of several manifests. Raises ManifestError."""
    import pyarrow as pa

    from vidprep.formats.manifest.labels import concatenate, labels_in

    facts = [table.drop_columns([LABELS]) if LABELS in table.column_names else table for table in tables]
    try:
        table = pa.concat_tables(facts, promote_options="permissive")
    except pa.ArrowException as error:
        raise ManifestError(f"its parts do not fit together ({error})", path=destination) from error
    if not any(LABELS in each.column_names for each in tables):
        return table
    struct = concatenate([labels_in(each) for each in tables]).struct()
    return table if struct is None else table.append_column(LABELS, struct)


def read_manifest(destination: str | os.PathLike[str]) -> Iterator[ManifestRow]:
    """Read the rows of a destination in the order of their ids, a batch at a time.

    Args:
        destination: Folder of a run, or of an array run.

    Returns:
        An iterator over the rows, including those of failed videos. If several rows belong to one video, only that of the newest
        run is returned.

    Raises:
        ManifestError: There is no manifest, or one cannot be read.
    """
    if is_url(str(destination)):
        raise ManifestError(
            "is behind a URL; copy its manifest.parquet into a folder and read that", path=str(destination)
        )
    if not manifest_paths(Path(destination)):
        missing = "has no manifest.parquet" if Path(destination).is_dir() else "is no folder"
        raise ManifestError(f"{missing}; give the destination of a run", path=str(destination))
    return manifest_rows(destination)


def manifest_rows(destination: str | os.PathLike[str], only: Collection[str] | None = None) -> Iterator[ManifestRow]:
    """Yield rows as `read_manifest` does; nothing if there is no manifest yet.

    Args:
        destination: The destination.
        only: Ids of the rows; None means all.

    Raises:
        ManifestError: A manifest cannot be read.
    """
    of_each = (_rows_of(path, only) for path in manifest_paths(Path(destination)))
    merged = heapq.merge(*of_each, key=attrgetter("id"))
    for _, rows in groupby(merged, key=attrgetter("id")):
        yield max(rows, key=_run_of)


def _check_names(names: pa.Array | pa.ChunkedArray) -> None:
    """Raise ValueError for a file that is not below the destination."""
    import pyarrow.compute as pc

    outside = pc.match_substring_regex(names, OUTSIDE)
    if pc.any(outside).as_py():
        raise ValueError(OUTSIDE_MESSAGE % names.filter(outside)[0].as_py())


def _conform(table: pa.Table) -> pa.Table:
    """Convert the manifest's own columns to their types. Raises ValueError, TypeError for values that do not fit."""
    for column in arrow_schema():
        if column.name not in table.column_names:
            continue
        if table.schema.field(column.name).type != column.type:
            place = table.column_names.index(column.name)
            table = table.set_column(place, column.name, table[column.name].cast(column.type))
        if column.name in REQUIRED and table[column.name].null_count:
            raise ValueError(f"a row without {column.name}")
        if (wrong := _out_of_bounds(table[column.name], *BOUNDS[column.name])) is not None:
            raise ValueError(f"{column.name} is {wrong}")
    return table


def _out_of_bounds(values: pa.ChunkedArray, low: int | None, high: int | None) -> Any:
    """Return a value of a column outside its bounds; None without one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_list(values.type):
        values = pc.list_flatten(values)
        if values.null_count:
            return "a list without a value"
    if pa.types.is_floating(values.type):
        return math.nan if pc.any(pc.is_nan(values)).as_py() else None
    if not pa.types.is_integer(values.type):
        return None
    least, most = pc.min_max(values).as_py().values()
    if low is not None and least is not None and least < low:
        return least
    return most if high is not None and most is not None and most > high else None


def add_columns(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Add missing columns of the manifest, as null: older manifests have fewer."""
    import pyarrow as pa

    for column in arrow_schema():
        if column.name in names and column.name not in table.column_names:
            table = table.append_column(column, pa.nulls(table.num_rows, column.type))
    return table


def _run_of(row: ManifestRow) -> int:
    return row.run or 0


def _rows_of(path: Path, only: Collection[str] | None) -> Iterator[ManifestRow]:
    import pyarrow as pa
    import pyarrow.compute as pc

    from vidprep.formats.manifest.labels import labels_in

    with _open(path) as file:
        is_old = bool(_labels_among_columns(file.schema_arrow))
        wanted = None if only is None else pa.array(only, pa.string())
        groups = [*range(file.num_row_groups)] if is_old or not only else _groups_with(file, min(only), max(only))
        batches = file.iter_batches(batch_size=ROWS_AT_A_TIME, row_groups=groups, use_threads=False)
        count = 0
        for table in [_read(file, None)] if is_old else (pa.Table.from_batches([batch]) for batch in batches):
            count += table.num_rows
            chosen = table if wanted is None else table.filter(pc.is_in(table["id"], wanted))
            labels = labels_in(chosen)
            facts = chosen.drop_columns([LABELS]) if LABELS in chosen.column_names else chosen
            for values, id_ in zip(facts.to_pylist(), labels.ids, strict=True):
                row = row_from_dict(values)
                row.labels = labels.values_of(id_)
                yield row
        due = sum(file.metadata.row_group(group).num_rows for group in groups)
        if count != due:  # for a damaged column pyarrow returns the rows that all columns have
            raise ValueError(f"{count} of {due} rows can be read")


def _groups_with(file: pq.ParquetFile, first: str, last: str) -> list[int]:
    """Return the row groups that may have an id from `first` to `last`."""
    place = file.schema_arrow.get_field_index("id")
    of_ids = [file.metadata.row_group(group).column(place).statistics for group in range(file.num_row_groups)]
    return [
        group
        for group, ids in enumerate(of_ids)
        if ids is None or not ids.has_min_max or (ids.min <= last and first <= ids.max)
    ]


def label_columns(destination: Path) -> Labels:
    """Return the labels of all units of a destination. Raises ManifestError."""
    from vidprep.formats.manifest.labels import Labels, labels_in

    table = read_table(destination, ["id", LABELS])
    return Labels(()) if table is None else labels_in(table)


def class_names(destination: Path) -> list[str] | None:
    """Return the classes of a store in the order of their numbers, from its manifest or from `pack`; None if neither
    stores them.
    """
    from vidprep.formats.manifest.labels import notes_of

    for path in manifest_paths(destination):
        with _open(path) as file:
            if (names := notes_of(file.schema_arrow).get("classes")) is not None:
                return [str(name) for name in names]
    if (path := destination / CLASSES_NAME).is_file():
        try:
            numbers = {name: int(number) for name, number in read_json(path).items()}
        except (OSError, ValueError, TypeError) as error:
            raise ManifestError(f"cannot be read ({error}); remove it", path=path) from error
        return sorted(numbers, key=numbers.__getitem__)
    return None


@contextmanager
def _open(path: Path) -> Iterator[pq.ParquetFile]:
    import pyarrow as pa

    try:
        with arrow_file(path) as source, open_parquet(source, path) as file:
            names = file.schema_arrow.names
            stated = (file.schema_arrow.metadata or {}).get(COLUMNS_KEY)
            if (stated is not None and stated != columns_checksum(file.schema_arrow)) or len({*names}) < len(names):
                raise ValueError("the names of its columns are damaged")
            if missing := [name for name in REQUIRED if name not in names]:
                raise ValueError(f"it has no column {', '.join(missing)}")
            yield file
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, ArithmeticError, MemoryError) as error:
        raise ManifestError(
            f"cannot be read ({error}); restore it, or fetch or make the dataset again", path=path
        ) from error


def fence_of(path: Path) -> int:
    """Return the number of the lease under which a manifest was written; 0 if it is missing or unknown."""
    if not path.exists():
        return 0
    with _open(path) as file:
        written = (file.schema_arrow.metadata or {}).get(FENCE_KEY, b"")
    return int(written) if re.fullmatch(rb"\d{1,15}", written) else 0


def write_rows(
    path: Path,
    kept: pa.Table | None,
    rows: Iterable[ManifestRow],
    *,
    labels: Labels | None = None,
    classes: Sequence[str] | None = None,
    fence: int = 0,
) -> None:
    """Write a manifest with the rows of `kept` and the new ones, sorted by id.

    If several rows have one id, that of the newest run counts, and within a run the last one. A row of status `removed`
    deletes the unit. A row with a value that its column cannot hold becomes a failed row that names the value.

    Args:
        path: The manifest.
        kept: Rows to keep; None for none.
        rows: New rows.
        labels: Labels that replace those in `kept`, for the units that they contain; None takes those of the rows.
        classes: Names of classes in the order of their numbers; None takes the sorted values of `label`.
        fence: Number of the lease under which it is written. It is stored in the file.

    Raises:
        ManifestError: New rows do not match the old ones.
        TakenOverError: A later lease has written a manifest.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from vidprep.formats.manifest.labels import (
        NOTES_KEY as LABEL_NOTES_KEY,
        Labels,
        classes_of,
        labels_in,
        labels_of_dicts,
        parquet_schema,
        update,
    )

    before = Labels(()) if kept is None else labels_in(kept)
    tables: list[pa.Table] = [_table_of([]) if kept is None else kept]
    if LABELS in tables[0].column_names:
        tables = [tables[0].drop_columns([LABELS])]
    newest = _newest_of(tables[0])
    given, count, removed = map(check_row, rows), len(tables[0]), set()
    of_rows: dict[str, dict[str, Any]] = {}
    while batch := list(islice(given, ROWS_AT_A_TIME)):
        tables += _tables_of(batch)
        for number, row in enumerate(batch, count):
            newest[row.id] = max(newest.get(row.id, (0, 0)), (row.run or 0, number))
            if row.status == REMOVED:
                removed.add(number)
            if row.labels:
                of_rows[row.id] = row.labels
        count += len(batch)
    ids = sorted(id_ for id_, (_, number) in newest.items() if number not in removed)
    table = _join(tables, path).take(pa.array([newest[id_][1] for id_ in ids], pa.int64()))
    if labels is None:
        of_dicts = labels_of_dicts(list(of_rows), list(of_rows.values())) if of_rows else Labels(())
        labels = replace(of_dicts, split_rule=before.split_rule)
    updated = update(before, labels, ids)
    if (struct := updated.struct()) is not None:
        table = table.append_column(LABELS, struct)
    notes = updated.notes() | {"classes": classes_of(updated) if classes is None else list(classes)}
    table = table.replace_schema_metadata(
        {
            COLUMNS_KEY: columns_checksum(parquet_schema(table.schema)),
            FENCE_KEY: str(fence).encode(),
            LABEL_NOTES_KEY: json.dumps(notes, ensure_ascii=False).encode(),
        }
    )
    with replacing(path) as file:
        pq.write_table(table, file, compression="zstd", write_page_checksum=True, row_group_size=GROUP_ROWS)
        seal_footer(file)
        if fence and fence_of(path) > fence:
            raise TakenOverError(
                "was written by a run that took over from this one; this one writes nothing more", path=path
            )


def _newest_of(table: pa.Table) -> dict[str, tuple[int, int]]:
    """Return the run and the place of each id; a later row of one id counts."""
    ids_and_runs = (add_columns(table, RANK_COLUMNS)[name].to_pylist() for name in RANK_COLUMNS)
    return {id_: (run or 0, number) for number, (id_, run) in enumerate(zip(*ids_and_runs, strict=True))}


def _tables_of(rows: list[ManifestRow]) -> list[pa.Table]:
    """Return tables of the rows, in order. A row that pyarrow rejects is replaced by a failed row."""
    import pyarrow as pa

    try:
        return [_table_of(rows)]
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError, AttributeError) as error:
        if len(rows) > 1:
            half = len(rows) // 2
            return _tables_of(rows[:half]) + _tables_of(rows[half:])
        bare = ManifestRow(rows[0].id, rows[0].file_name, rows[0].source)
        return [_table_of([unwritable(bare, f"its row cannot be written: {show(str(error))}")])]


def _table_of(rows: list[ManifestRow]) -> pa.Table:
    """Return a table of rows, without labels."""
    import pyarrow as pa

    schema = arrow_schema()
    return pa.table(
        [
            pa.array([getattr(row, name) for row in rows], field.type)
            for name, field in zip(COLUMN_NAMES, schema, strict=True)
        ],
        schema,
    )


def _join(tables: list[pa.Table], path: Path) -> pa.Table:
    import pyarrow as pa

    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise ManifestError(f"the new rows do not fit the old manifest: {error}", path=path) from error


def columns_checksum(schema: pa.Schema) -> bytes:
    """Return a checksum of the names and types of the columns. Page checksums do not cover the footer, where a flipped bit
    renames a column, which then reads as null.
    """
    kinds = [(column.name, str(column.type).replace("<item:", "<element:")) for column in schema]
    return b"%08x" % zlib.crc32(repr(kinds).encode())


def arrow_schema() -> pa.Schema:
    """Return the manifest's own columns, without labels."""
    import pyarrow as pa

    def kind(text: str) -> pa.DataType:
        if text.startswith("list<"):
            return pa.list_(kind(text[5:-1]))
        return pa.float64() if text == "double" else pa.bool_() if text == "bool" else getattr(pa, text)()

    return pa.schema([(name, kind(text)) for name, text in COLUMNS.items()])
