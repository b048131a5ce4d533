"""Rows of a source table, `.csv`, `.tsv`, `.parquet` or `.jsonl`, and what their cells may hold.

Every fault is a ValueError whose text says what was found and what to give instead. pyarrow reads Parquet only: its
guesses about text would make 7 of a label `007`, and dates of others.
"""
# ruff: noqa: PTH123

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable
from contextlib import suppress

KEYS = ("path", "id", "start", "end")
LIKE_CUTS = re.compile(
    r"(start|begin|end|stop)[ _-]?(time|sec|secs|seconds|s|ms|frame)|begin|stop|onset", re.IGNORECASE
)
FORMULA = re.compile(r"[=+\-@\t\r\n＝＋－＠]")
VIDEO_EXTENSIONS = frozenset(
    "264 265 266 26l 360 3g2 3gp 3gp2 3gpp 3gpp2 amv apng apv asf av1 avc avi avs2 avs3 axv bik cavs dav dif divx drc dv dvr-ms evo"  # noqa: SIM905
    " f4v flc fli flv gif gxf h261 h263 h264 h265 h266 h26l hevc insv ismv ivf k3g lrv lvf m1v m2p m2t m2ts m2v m4s m4v mj2 mjp2 mjpeg"
    " mjpg mk3d mkv mod mov mp2v mp4 mp4v mpe mpeg mpeg4 mpg mpg4 mpv mpv2 mqv mts mxf nsv nut obu ogg ogm ogv ogx psp qt rm rmvb roq"
    " smk tod trp ts vc1 vob vp8 vp9 vro vvc webm wm wmv wtv xvid y4m".split()
)

Row = dict[str, object]


def is_animated(path: str) -> bool:
    """Whether a file is a WebP that says in its head that it moves: most are still pictures, which are no sources."""
    try:
        with open(path, "rb") as file:
            head = file.read(21)
    except OSError:
        return False
    return head[:4] == b"RIFF" and head[8:16] == b"WEBPVP8X" and len(head) == 21 and bool(head[20] & 2)


def storable(name: str) -> str:
    """The name, with escapes for what is not valid UTF-8 and Parquet and JSON cannot hold."""
    return name if name.isascii() else name.encode("utf-8", "backslashreplace").decode()


def one_line(name: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", storable(name))


def csv_cell(value: object) -> object:
    """The value for a table that others open: a text that a spreadsheet would run as a formula stands behind an apostrophe."""
    if not isinstance(value, str) or not FORMULA.match(value):
        return value
    with suppress(ValueError):
        float(value)
        return value
    return f"'{value}"


def checked_seconds(name: str, value: object) -> float | None:
    if value is None:
        return None
    with suppress(ValueError, OverflowError):
        is_plain = not isinstance(value, bool) and "_" not in str(value)  # float() would take True and 1_000
        if is_plain and isinstance(value, int | float | str) and 0 <= (seconds := float(value)) < math.inf:
            return seconds
    raise ValueError(f"{name} is {value!r}; give seconds, a number from 0, or leave it empty")


def checked_label(name: str, value: object, kinds: dict[str, type]) -> object:
    """The value, when one column of a manifest can hold it together with those before it."""
    if value is None:
        return None
    first = kinds.setdefault(name, type(value))
    if isinstance(value, str):
        fits = first is str and storable(value) == value
    elif isinstance(value, bool):
        fits = first is bool
    else:
        fits = first in (int, float) and (isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63))
    if not fits:
        raise ValueError(
            f"{one_line(name)} is {value!r} in a column of {first.__name__}; a column of labels holds only text, only"
            " numbers (of 64 bits) or only true and false"
        )
    return value


def _csv_rows(table: str) -> list[Row]:
    """Labels are whole numbers, numbers or booleans where all of a column are; empty cells are None. Cells are apart by what the header
    has after `path` or in front of it: a comma, a semicolon or a tab.
    """
    with open(table, encoding="utf-8-sig", newline="") as file:
        header = file.readline()
        file.seek(0)
        cells_by = {mark: [name.strip(' "\r\n') for name in header.split(mark)] for mark in ",;\t"}
        mark = next((mark for mark, names in cells_by.items() if "path" in names), ",")
        reader = csv.DictReader(file, strict=True, delimiter=mark)
        reader.fieldnames = names = _distinct([name.strip() for name in reader.fieldnames or ()])
        rows: list[Row] = list(reader)
    for number, row in enumerate(rows, 1):
        if None in row or None in row.values():
            raise ValueError(
                f"row {number} has not the {len(names)} cells of the header; quote cells that hold {mark!r}"
            )
    for name in names:
        convert = str if name in KEYS else _converter([str(row[name]) for row in rows if row[name]])
        for row in rows:
            row[name] = convert(str(row[name])) if row[name] else None
    return rows


def _converter(cells: list[str]) -> Callable[[str], object]:
    """What all these cells can be read as, and be written again as they stand: 007, 1.10 beside 1.1, and long digits stay text."""
    if all(re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", cell) and str(int(cell)) == cell for cell in cells):
        return int
    if all(re.fullmatch(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]+)?(e[+-]?[0-9]{2})?", cell) for cell in cells):
        written = [repr(float(cell)) for cell in cells]
        if cells in (written, [text.removesuffix(".0") for text in written]):
            return float
    return (lambda cell: cell.lower() == "true") if {c.lower() for c in cells} <= {"true", "false"} else str


def _jsonl_rows(table: str) -> list[Row]:
    rows: list[Row] = []
    with open(table, encoding="utf-8-sig") as file:
        for line in filter(str.strip, file):
            try:
                rows.append({**json.loads(line, parse_constant=_constant)})
            except (ValueError, TypeError) as error:
                raise ValueError(f"row {len(rows) + 1} is no JSON object: {error}") from error
    return rows


def _constant(name: str) -> float | None:
    """What pandas and Python write where there is no value is none."""
    return None if name == "NaN" else float(name)


def _parquet_rows(table: str) -> list[Row]:
    from pyarrow import parquet

    with parquet.ParquetFile(table) as file:  # read_table would add a column for each folder named like label=3
        _distinct(file.schema_arrow.names)
        rows: list[Row] = file.read().to_pylist()
    return rows


def _distinct(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError(f"two columns of one name: {', '.join(names)}")
    return names


READERS = {".csv": _csv_rows, ".tsv": _csv_rows, ".parquet": _parquet_rows, ".jsonl": _jsonl_rows}
