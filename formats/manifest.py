"""The manifest: one row per unit, failures too, in Parquet; and the journal that rows stand in until a run ends.

    DST/manifest.parquet                     COLUMNS, then one column per label; page checksums on
    DST/manifest-00003-of-00064.parquet      the part of one shard; parts are read as one
    DST/.vidprep/journal.jsonl               one JSON object per finished unit, in the order they finished

A journal line is written before its output takes its final name, so whatever has a final name has a row. A torn last
line (the run was killed while writing it) is dropped; any other unreadable line is an error.
"""

from __future__ import annotations

import heapq
import json
import math
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidprep.formats.errors import ManifestError
from vidprep.formats.files import replacing
from vidprep.formats.no_links import open_unlinked

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

MANIFEST_NAME = "manifest.parquet"
OUTSIDE = r"^/|(^|/)\.\.(/|$)"  # in RE2's syntax and in Python's
OUTSIDE_MESSAGE = "%r is a file outside of the folder, which would be read or removed"
RANK_COLUMNS = ["id", "status", "attempts"]
COLUMNS_KEY = b"vidprep.columns_crc32"
ROWS_AT_A_TIME = 1000


@dataclass(slots=True)
class ManifestRow:
    """One unit: where it came from, what was made of it, and what was measured. None where there is nothing to say.

    source_frames: index of the source frame of every output frame, counted from the first frame shown; None means all
    of them in order. keyframes: 0-based output frames. pts: ticks of time_base from 0; None means frame n is at n / rate.
    Of a unit inside a shard, offset and stored_bytes say which bytes of `file_name` are its own, padding and headers
    included; size_bytes and sha256 are of its frames back to back, frame_sizes and frame_crc32 of each. Of a target for the
    1st percentile of PSNR-Y: what was asked, each CRF or JPEG quality that was tried, and what each reached.
    """

    id: str
    file_name: str
    source: str
    start_seconds: float | None = None
    end_seconds: float | None = None
    status: str = "failed"
    stage: str | None = None
    error: str | None = None
    message: str | None = None
    attempts: int = 1
    warnings: list[str] = field(default_factory=list)
    verified_in: str | None = None
    source_size_bytes: int | None = None
    source_mtime_ns: int | None = None
    source_codec: str | None = None
    source_width: int | None = None
    source_height: int | None = None
    source_frame_rate: float | None = None
    source_num_frames: int | None = None
    source_duration_seconds: float | None = None
    source_rotation: int | None = None
    source_is_vfr: bool | None = None
    source_is_interlaced: bool | None = None
    settings_digest: str | None = None
    engine: str | None = None
    encoder: str | None = None
    encoder_version: str | None = None
    crf: float | None = None
    preset: str | None = None
    jpeg_quality: int | None = None
    subsampling: str | None = None
    codec: str | None = None
    container: str | None = None
    width: int | None = None
    height: int | None = None
    frame_rate_num: int | None = None
    frame_rate_den: int | None = None
    num_frames: int | None = None
    duration_seconds: float | None = None
    pixel_format: str | None = None
    keyframe_interval_max: int | None = None
    keyframes: list[int] | None = None
    source_frames: list[int] | None = None
    duplicated_frames: int | None = None
    dropped_frames: int | None = None
    pts: list[int] | None = None
    time_base_num: int | None = None
    time_base_den: int | None = None
    size_bytes: int | None = None
    sha256: str | None = None
    offset: int | None = None
    stored_bytes: int | None = None
    frame_sizes: list[int] | None = None
    frame_crc32: list[int] | None = None
    psnr_y_db: float | None = None
    psnr_yuv_db: float | None = None
    psnr_y_p1_db: float | None = None
    psnr_y_min_db: float | None = None
    worst_frame: int | None = None
    ssim: float | None = None
    target_psnr_y_p1_db: float | None = None
    target_tried: list[float] | None = None
    target_reached_db: list[float] | None = None
    encode_seconds: float | None = None
    cpu_seconds: float | None = None
    labels: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def as_dict(self) -> dict[str, Any]:
        """Columns in order, labels under their own names (`label_` in front of a name that a column has)."""
        values = {name: getattr(self, name) for name in COLUMN_NAMES}
        return values | {label_column(name): value for name, value in self.labels.items()}

    def as_json(self) -> str:
        """One line of JSON; infinity is "inf", since JSON has no number for it."""
        return json.dumps({name: _to_json(value) for name, value in self.as_dict().items()}, ensure_ascii=False)


# Column -> type, in pyarrow's own names; `list<…>` marks lists.
_INTS = {
    "attempts": "int16", "source_size_bytes": "int64", "source_mtime_ns": "int64", "source_width": "int32",
    "source_height": "int32", "source_num_frames": "int64", "source_rotation": "int16", "width": "int32",
    "height": "int32", "frame_rate_num": "int64", "frame_rate_den": "int64", "num_frames": "int64",
    "keyframe_interval_max": "int32", "keyframes": "list<int32>", "source_frames": "list<int32>",
    "duplicated_frames": "int64", "dropped_frames": "int64", "size_bytes": "int64", "worst_frame": "int64",
    "pts": "list<int64>", "time_base_num": "int64", "time_base_den": "int64", "offset": "int64", "stored_bytes": "int64",
    "frame_sizes": "list<int32>", "frame_crc32": "list<int64>", "jpeg_quality": "int16",
}  # fmt: skip
_STRINGS = (
    "id", "file_name", "source", "status", "stage", "error", "message", "verified_in", "source_codec",
    "settings_digest", "engine", "encoder", "encoder_version", "preset", "codec", "container", "pixel_format", "sha256",
    "subsampling",
)  # fmt: skip
_BOOLS = ("source_is_vfr", "source_is_interlaced")
_DOUBLE_LISTS = ("target_tried", "target_reached_db")
COLUMN_NAMES = tuple(f.name for f in fields(ManifestRow) if f.name != "labels")
COLUMNS: dict[str, str] = {
    name: _INTS.get(name)
    or (
        "string"
        if name in _STRINGS
        else "bool"
        if name in _BOOLS
        else "list<string>"
        if name == "warnings"
        else "list<double>"
        if name in _DOUBLE_LISTS
        else "double"
    )
    for name in COLUMN_NAMES
}
_DOUBLES = frozenset(name for name, kind in COLUMNS.items() if kind == "double")


def label_column(name: str) -> str:
    """The column that a label stands in."""
    return f"label_{name}" if name in COLUMNS else name


def _to_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list) and value and isinstance(value[0], float):
        return [_to_json(item) for item in value]
    return value


def row_from_dict(values: Mapping[str, Any]) -> ManifestRow:
    """The row of one JSON object. Raises ValueError when id, file_name or source is no string, and for a file_name that leads
    out of the destination; TypeError for a value of another kind than its column's.
    """
    known = {name: values[name] for name in COLUMN_NAMES if name in values}
    for name in _DOUBLES & known.keys():
        if known[name] is not None:
            known[name] = float(known[name])
    for name in _DOUBLE_LISTS:
        if known.get(name) is not None:
            known[name] = [float(item) for item in known[name]]
    known["warnings"] = list(known.get("warnings") or ())
    labels = {}
    for name, value in values.items():
        if name not in COLUMNS:
            bare = name.removeprefix("label_")
            labels[bare if bare in COLUMNS else name] = value
    for required in ("id", "file_name", "source"):
        if not isinstance(known.get(required), str):
            raise ValueError(f"a row without {required}")
    if re.search(OUTSIDE, known["file_name"]):
        raise ValueError(OUTSIDE_MESSAGE % known["file_name"])
    return ManifestRow(**known, labels=labels)


class Journal:
    """Rows on their way to the manifest. One process appends; each row is one write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def append(self, row: ManifestRow) -> None:
        """Raises OSError when there is no room for the row; then nothing of it is left."""
        if self._fd is None:
            self._drop_torn_end()
            self._fd = open_unlinked(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        line = (row.as_json() + "\n").encode()
        start, written = os.fstat(self._fd).st_size, 0
        try:
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError:
            os.ftruncate(self._fd, start)
            raise

    def rows(self) -> Iterator[ManifestRow]:
        """Rows in the order they were written. Raises ManifestError on a line that is not the torn last one."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield row_from_dict(json.loads(line))
                except (ValueError, TypeError, AttributeError) as error:
                    raise ManifestError(
                        f"line {number} is no row ({error}); move the file away to begin again without its rows",
                        path=self.path,
                    ) from error

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
            tables.append(file.read(columns=asked))
            if "file_name" in tables[-1].column_names:
                _check_names(tables[-1]["file_name"])
    table = pa.concat_tables(tables, promote_options="permissive")
    if len(tables) == 1:
        return table
    ids, statuses, attempts = (table[name].to_pylist() for name in RANK_COLUMNS)
    best: dict[str, int] = {}
    for number, id_ in enumerate(ids):
        other = best.setdefault(id_, number)
        if _rank(statuses[number], attempts[number]) > _rank(statuses[other], attempts[other]):
            best[id_] = number
    table = table.take(pa.array(sorted(best.values()), pa.int64())) if len(best) < len(ids) else table
    return table if columns is None else table.select(columns)


def read_rows(destination: Path) -> Iterator[ManifestRow]:
    """The rows of a destination in the order of their ids, a batch at a time. Raises ManifestError as `read_table`.

    A unit that two parts have a row of, since its sources changed between two tasks, is the one that is ok, else the one of more attempts;
    of equal ones that of a part, which is newer than the whole.
    """
    merged = heapq.merge(*map(_rows_of, manifest_paths(destination)), key=attrgetter("id"))
    for _, rows in groupby(merged, key=attrgetter("id")):
        yield max(rows, key=lambda row: _rank(row.status, row.attempts))


def _check_names(names: pa.Array | pa.ChunkedArray) -> None:
    """Raises ValueError for a file that is not below the destination."""
    import pyarrow.compute as pc

    outside = pc.match_substring_regex(names, OUTSIDE)
    if pc.any(outside).as_py():
        raise ValueError(OUTSIDE_MESSAGE % names.filter(outside)[0].as_py())


def _rank(status: str | None, attempts: int | None) -> tuple[bool, int]:
    return status == "ok", attempts or 0


def _rows_of(path: Path) -> Iterator[ManifestRow]:
    with _opened(path) as file:
        for batch in file.iter_batches(batch_size=ROWS_AT_A_TIME, use_threads=False):
            yield from map(row_from_dict, batch.to_pylist())


def import_writer() -> None:
    """What writing a manifest imports, and not pandas: pyarrow looks for it with its first array, which takes 0.4 s."""
    import pyarrow as pa
    import pyarrow.parquet

    finder: Any = _NoPandas
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


class _NoPandas:
    """A finder of modules to which it is not installed. pyarrow asks again when a table is to be a data frame."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def label_fields(destination: Path) -> pa.Schema:
    """The columns of a manifest that are labels."""
    import pyarrow as pa

    found = []
    for path in manifest_paths(destination):
        with _opened(path) as file:
            found.append(pa.schema([field for field in file.schema_arrow if field.name not in COLUMNS]))
    return pa.unify_schemas(found, promote_options="permissive") if found else pa.schema([])


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            stated = (file.schema_arrow.metadata or {}).get(COLUMNS_KEY)
            if stated is not None and stated != _columns_checksum(file.schema_arrow):
                raise ValueError("the names of its columns are damaged")
            yield file
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise ManifestError(
            f"cannot be read ({error}); move it away: its outputs are then made again", path=path
        ) from error


def write_rows(path: Path, kept: pa.Table | None, rows: Iterable[ManifestRow]) -> None:
    """Write a manifest: the rows of `kept` that no new row replaces, then the new ones; sorted by id. The last row of
    an id wins. Raises ManifestError when a label has values of unlike types.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables: list[pa.Table] = [_table_of([]) if kept is None else kept]
    place: dict[str, int] = {id_: number for number, id_ in enumerate(tables[0]["id"].to_pylist())}
    given, count = iter(rows), len(tables[0])
    while batch := list(islice(given, ROWS_AT_A_TIME)):
        tables.append(_table_of(batch))
        place |= {row.id: count + number for number, row in enumerate(batch)}
        count += len(batch)
    order = pa.array([place[id_] for id_ in sorted(place)], pa.int64())
    table = _joined(tables, path).take(order)
    table = table.replace_schema_metadata({COLUMNS_KEY: _columns_checksum(table.schema)})
    with replacing(path) as file:
        pq.write_table(table, file, compression="zstd", write_page_checksum=True)


def _table_of(rows: list[ManifestRow]) -> pa.Table:
    """The columns of rows, labels behind; text where the values of a label have no common type."""
    import pyarrow as pa

    labels = dict.fromkeys(label_column(name) for row in rows for name in row.labels)
    dicts = [row.as_dict() for row in rows]
    schema = arrow_schema()
    arrays = [pa.array([d[name] for d in dicts], type=schema.field(name).type) for name in COLUMN_NAMES]
    for label in labels:
        values = [d.get(label) for d in dicts]
        try:
            arrays.append(pa.array(values))
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            arrays.append(pa.array([None if v is None else str(v) for v in values], type=pa.string()))
    return pa.table(arrays, names=[*COLUMN_NAMES, *labels])


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

    return table.set_column(table.column_names.index(name), name, table[name].cast(pa.string()))


def _columns_checksum(schema: pa.Schema) -> bytes:
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
