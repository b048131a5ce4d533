"""Read source tables (`.csv`, `.tsv`, `.parquet`, `.jsonl`) and check their cells.

Every fault is a ValueError that says what was found and what to give instead. pyarrow reads only Parquet: its type
inference for text would turn a label `007` into 7, and others into dates.
"""
# ruff: noqa: PTH100, PTH118, PTH120, PTH122, PTH123

from __future__ import annotations

import csv
import json
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeGuard

from vidprep.formats.errors import SourceError
from vidprep.formats.storage.untrusted import ArrowStream, open_regular, read_parquet

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import FileMetaData

STILL_OR_ANIMATED = frozenset(("webp", "avif"))  # extensions of both
BRANDS_BYTES = 128
KEYS, ROWS = ("path", "id"), "rows"
MAX_ROWS, MAX_COLUMNS, MAX_NESTED = 20_000_000, 10_000, 50_000_000
STAYS_TEXT = frozenset(("path", "id", "start", "end"))
FORMULA = re.compile(r"[=+\-@\t\r\n＝＋－＠]")
VIDEO_EXTENSIONS = frozenset(
    "264 265 266 26l 360 3g2 3gp 3gp2 3gpp 3gpp2 amv apng apv asf av1 avc avi avs2 avs3 axv bik cavs dav dif divx drc dv dvr-ms evo"  # noqa: SIM905
    " f4v flc fli flv gif gxf h261 h263 h264 h265 h266 h26l hevc insv ismv ivf k3g lrv lvf m1v m2p m2t m2ts m2v m4s m4v mj2 mjp2 mjpeg"
    " mjpg mk3d mkv mod mov mp2v mp4 mp4v mpe mpeg mpeg4 mpg mpg4 mpv mpv2 mqv mts mxf nsv nut obu ogg ogm ogv ogx psp qt rm rmvb roq"
    " smk tod trp ts vc1 vob vp8 vp9 vro vvc webm wm wmv wtv xvid y4m".split()
)

TableRow = dict[str, object]


def is_animated(path: str) -> bool:
    """Return whether a WebP or AVIF file declares that it is animated; most are still pictures, which are not sources."""
    try:
        with open_regular(path) as file:
            head = file.read(BRANDS_BYTES)
    except OSError:
        return False
    if head[4:8] == b"ftyp":
        return b"avis" in head[8 : int.from_bytes(head[:4])]  # brand of an image sequence (AV1 Image File Format, 6.3)
    head = head[:21]
    return head[:4] == b"RIFF" and head[8:16] == b"WEBPVP8X" and len(head) == 21 and bool(head[20] & 2)


def storable(name: str) -> str:
    """Return a name with invalid UTF-8 escaped, which Parquet and JSON cannot store."""
    return name if name.isascii() else name.encode("utf-8", "backslashreplace").decode()


def one_line(name: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", storable(name))


def csv_cell(value: object) -> object:
    """Return a value for a CSV file that others open: text that a spreadsheet would run as a formula gets an apostrophe."""
    if not isinstance(value, str) or not FORMULA.match(value):
        return value
    with suppress(ValueError):
        float(value)
        return value
    return f"'{value}"


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table that names sources.

    Attributes:
        columns: Values of each column by name: Python values, or Arrow's if the table has types
        notes: For a text column in which most cells are numbers, the first cell that is not a number; "" for the table
        faults: Why rows (from 0) could not be read; their cells are None
    """

    columns: Mapping[str, Sequence[Any] | pa.ChunkedArray]
    num_rows: int
    notes: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[int, str] = field(default_factory=dict)

    def select(self, names: Sequence[str]) -> SourceTable:
        """Return the table with these columns only."""
        notes = {name: note for name, note in self.notes.items() if not name or name in names}
        return replace(self, columns={name: self.columns[name] for name in names}, notes=notes)

    def values(self, name: str) -> Sequence[Any]:
        """Return Python values; None for each row if the column does not exist."""
        column = self.columns.get(name)
        if column is None:
            return [None] * self.num_rows
        if isinstance(column, Sequence):
            return column
        from vidprep.formats.manifest.labels import values_of

        return values_of(column)

    def rows(self) -> Iterator[TableRow]:
        for values in zip(*map(self.values, self.columns), strict=True):
            yield dict(zip(self.columns, values, strict=True))

    def array(self, name: str) -> pa.Array:
        """Return an array as a manifest stores it. Raises ValueError if a manifest cannot hold it."""
        import pyarrow as pa

        from vidprep.formats.manifest.labels import storable as in_parquet

        column = self.columns[name]
        try:
            return in_parquet(column if not isinstance(column, Sequence) else pa.array(column))
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            why = _first_odd_one(column) if isinstance(column, Sequence) else None
            raise ValueError(f"column {one_line(name)}: {why or error}") from error


def faults_of_columns(table: SourceTable) -> dict[int, str]:
    """Return why rows (from 0) could not be read, or their labels cannot be stored, for columns without types."""
    faults = dict(table.faults)
    for name, column in table.columns.items():
        if isinstance(column, list):
            faults |= dict(_faults_of_labels(name, column))
    return faults


def _first_odd_one(values: Sequence[Any]) -> str | None:
    """Return the first value for which Arrow finds no common type with the values before it."""
    import pyarrow as pa

    def goes(count: int) -> bool:
        try:
            pa.array(values[:count])
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            return False
        return True

    count = bisect_left(range(len(values) + 1), x=True, key=lambda count: not goes(count))
    if count > len(values):
        return None
    return f"row {count} is {values[count - 1]!r}, which has no type in common with the rows before it"


def _faults_of_labels(name: str, values: Sequence[Any]) -> Iterator[tuple[int, str]]:
    """Yield rows (from 0) whose value does not fit those before it, and why."""
    first: str | None = None
    for number, value in enumerate(values):
        if value is None:
            continue
        kind = _kind(value)
        first = kind if first is None else first
        if kind != first:
            yield (
                number,
                f"{one_line(name)} is {value!r} in a column of {first}; all values of a label must be of one kind",
            )
        elif (isinstance(value, int) and not -(2**63) <= value < 2**63) or (
            isinstance(value, str) and storable(value) != value
        ):
            yield number, f"{one_line(name)} is {value!r}, which no column can hold"


def _kind(value: object) -> str:
    kinds = {bool: "true and false", int: "numbers", float: "numbers", str: "text", list: "lists", dict: "objects"}
    return kinds.get(type(value), type(value).__name__)


def _csv_table(table: str) -> SourceTable:
    """Read a CSV file. A column becomes numbers or booleans if all its cells are; empty cells become None.

    The separator is the character after `path` or `id` in the header, or before it: a comma, a semicolon or a tab.
    """
    with open(table, encoding="utf-8-sig", newline="") as file:
        header = file.readline()
        file.seek(0)
        cells_by = {mark: [name.strip(' "\r\n') for name in header.split(mark)] for mark in ",;\t"}
        mark = next((mark for mark, names in cells_by.items() if {"path", "id"} & {*names}), ",")
        reader = csv.DictReader(file, strict=True, delimiter=mark)
        reader.fieldnames = names = _distinct([name.strip() for name in reader.fieldnames or ()])
        _check_size(0, len(names))
        rows: list[TableRow] = list(islice(reader, MAX_ROWS + 1))
        _check_size(len(rows), 0)
    faults = {}
    for number, row in enumerate(rows):
        if None in row or None in row.values():
            faults[number] = f"it does not have the {len(names)} cells of the header; quote cells that hold {mark!r}"
            rows[number] = dict.fromkeys(names)
    notes = {name: note for name in names if (note := _convert(name, rows)) is not None}
    return SourceTable({name: [row[name] for row in rows] for name in names}, len(rows), notes, faults)


def _convert(name: str, rows: list[TableRow]) -> str | None:
    """Convert the cells of a column in place. Return a note if it stays text because of few cells."""
    cells = {number: str(row[name]) for number, row in enumerate(rows, 1) if row[name]}
    convert = str if name in STAYS_TEXT else _converter([*cells.values()])
    odd = _odd_cell(cells) if convert is str and name not in STAYS_TEXT else None
    for row in rows:
        row[name] = convert(str(row[name])) if row[name] else None
    if odd is None:
        return None
    return f"column {one_line(name)} is kept as text, since row {odd} has {cells[odd]!r} among numbers"


def _odd_cell(cells: Mapping[int, str]) -> int | None:
    """Return the first row whose cell is not a number, if most cells are numbers."""
    odd = [number for number, cell in cells.items() if _converter([cell]) not in (int, float)]
    return odd[0] if 0 < len(odd) < len(cells) - len(odd) else None


def _converter(cells: list[str]) -> Callable[[str], object]:
    """Return a type that all cells can be parsed as and written back unchanged: 007, 1.10 beside 1.1, and long numbers
    stay text.
    """
    if all(re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", cell) and str(int(cell)) == cell for cell in cells):
        return int
    if all(re.fullmatch(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]+)?(e[+-]?[0-9]{2})?", cell) for cell in cells):
        written = [repr(float(cell)) for cell in cells]
        if cells in (written, [text.removesuffix(".0") for text in written]):
            return float
    return (lambda cell: cell.lower() == "true") if {c.lower() for c in cells} <= {"true", "false"} else str


def _jsonl_table(table: str) -> SourceTable:
    rows: list[TableRow] = []
    with open(table, encoding="utf-8-sig") as file:
        for line in filter(str.strip, file):
            _check_size(len(rows) + 1, 0)
            try:
                rows.append({**json.loads(line, parse_constant=_constant)})
            except (ValueError, TypeError) as error:
                raise ValueError(f"row {len(rows) + 1} is not a JSON object: {error}") from error
    names = dict.fromkeys(name for row in rows for name in row)
    _check_size(0, len(names))
    return SourceTable({name: [row.get(name) for row in rows] for name in names}, len(rows))


def _constant(name: str) -> float | None:
    """Return infinities as numbers; None for NaN, which pandas and Python write for missing values."""
    return None if name == "NaN" else float(name)


def _parquet_table(table: str) -> SourceTable:
    """Read a Parquet file."""
    from pyarrow import parquet

    with parquet.ParquetFile(table) as file:
        _check_size(file.metadata.num_rows, file.metadata.num_columns)
        _distinct(file.schema_arrow.names)
        if (count := _num_nested(file.metadata)) > MAX_NESTED:
            raise ValueError(f"its lists have {count:,} values, more than {MAX_NESTED:,}; leave them out")
    return _arrow_table(read_parquet(table, is_counted=True))


def _num_nested(metadata: FileMetaData) -> int:
    """Return the number of values in the lists of a file."""
    count = 0
    for place in range(metadata.num_columns):
        if metadata.schema.column(place).max_repetition_level:
            groups = range(metadata.num_row_groups)
            count += sum(metadata.row_group(number).column(place).num_values for number in groups)
    return count


def _check_size(num_rows: int, num_columns: int) -> None:
    """Raise ValueError for more rows than MAX_ROWS or more columns than MAX_COLUMNS: a few bytes of Parquet can claim any
    number.
    """
    if num_rows > MAX_ROWS:
        raise ValueError(f"it has {num_rows:,} rows, more than {MAX_ROWS:,}; give it in parts")
    if num_columns > MAX_COLUMNS:
        raise ValueError(f"it has {num_columns:,} columns, more than {MAX_COLUMNS:,}; keep those that are labels")


def _arrow_table(table: pa.Table) -> SourceTable:
    """Convert an Arrow table, without the columns `__index_level_N__` in which pandas stores an index."""
    _check_size(table.num_rows, table.num_columns)
    names = [name for name in _distinct(table.column_names) if not re.fullmatch(r"__index_level_\d+__", name)]
    return SourceTable({name: table[name] for name in names}, table.num_rows)


def is_table(source: object) -> TypeGuard[ArrowStream]:
    """Return whether an object is a table in memory."""
    return hasattr(source, "__arrow_c_stream__")


def read_source_table(table: object, *, with_faults: bool = False) -> SourceTable:
    """Read a table, in memory or from a file. Raises SourceError, also for a row that cannot be read, unless `with_faults`."""
    path = str(table) if isinstance(table, str | os.PathLike) else "the table"
    try:
        if is_table(table):
            import pyarrow as pa

            return _arrow_table(pa.table(table))
        suffix = os.path.splitext(path)[1].lower()
        if suffix not in READERS:
            raise SourceError(f"is not a table; give one of {', '.join(READERS)}", path=path)
        source = _resolve_rows(READERS[suffix](path), os.path.dirname(os.path.abspath(path)))
        for number, fault in () if with_faults else source.faults.items():
            raise SourceError(f"row {number + 1}: {fault}", path=path)
        return source
    except (OSError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, csv.Error) as error:
        # RuntimeError: what pyarrow or recursion refuses
        if isinstance(error, SourceError):
            raise
        if isinstance(error, UnicodeDecodeError):
            raise SourceError(f"is not text in UTF-8, as tables are ({error}); save it so", path=path) from error
        raise SourceError(f"table cannot be read: {error}", path=path) from error


def _resolve_rows(table: SourceTable, folder: str) -> SourceTable:
    """Return a table in which files of rows are relative to its folder, as `path` is."""
    if ROWS not in table.columns:
        return table
    cells = [
        os.path.join(folder, cell)
        if isinstance(cell, str) and cell.endswith((".csv", ".parquet")) and "://" not in cell
        else cell
        for cell in table.values(ROWS)
    ]
    return replace(table, columns={**table.columns, ROWS: cells})


def _distinct(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError(f"two columns with the same name: {', '.join(names)}")
    return names


READERS = {".csv": _csv_table, ".tsv": _csv_table, ".parquet": _parquet_table, ".jsonl": _jsonl_table}
