"""Read files that others may have written: only regular files, bounded numbers, JSON errors of one type; and import
pyarrow cheaply.

Opening a named pipe would block, a device never ends, a number with a large exponent takes minutes to expand, and a few
kilobytes of Parquet can claim more values than memory holds.

pyarrow imports pandas, if installed, when it converts its first value, which costs seconds of CPU time per process;
this is prevented.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import sys
import threading
import zlib
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar, cast
from weakref import WeakMethod

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def weak_method(method: Callable[[Key], Value]) -> Callable[[Key], Value]:
    """Return a bound method that does not keep its object alive.

    An object with a reference to its own method is a cycle: its files would stay open until the garbage collector runs.
    """
    reference = WeakMethod(method)

    def call(key: Key) -> Value:
        bound = reference()
        assert bound is not None, "called by nobody but its object"
        return bound(key)

    return call


def cache_method(method: Callable[[Key], Value], count: int) -> Callable[[Key], Value]:
    """Return a thread-safe cache of a method with one argument, for the `count` most recent arguments."""
    return lru_cache(maxsize=count)(weak_method(method))


class ArrowStream(Protocol):
    """A table in memory that supports Arrow's PyCapsule interface: of Arrow, pandas, polars and others."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


@cache
def import_pyarrow() -> None:
    """Import pyarrow without pandas. pyarrow imports pandas later if a table is converted to a data frame."""
    import pyarrow as pa
    import pyarrow.compute
    import pyarrow.parquet

    finder: Any = _NoPandas(threading.get_ident())
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


class _NoPandas:
    """Import hook that hides pandas from one thread; other threads may import it meanwhile."""

    def __init__(self, thread: int) -> None:
        self._thread = thread

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(name=name)


MAX_JSON_BYTES = 256 << 20
MAX_NUMBER_LENGTH = 64
INT64_MAX = 2**63 - 1
PICTURE_SIDE_MAX = 1 << 16
# Real manifests and indexes stay far below this. Above it, the sizes of the files that the values refer to are checked.
VALUES_PER_BYTE, VALUES_ALLOWED = 64, 1_000_000
ROWS_ALLOWED = 1000
LFS_BEGIN = b"version https://git-lfs"
MAX_TABLE_BYTES = 4 << 30
SEAL, FOOTER_END = b"vidprep footer", 8  # FOOTER_END: length of a Parquet footer in four bytes, then PAR1


class NotRegularError(OSError):
    """A folder, FIFO, socket or device, where a file was expected."""

    def __str__(self) -> str:
        return f"{self.filename}: is {self.strerror}"


def check_regular(path: str | Path) -> None:
    """Raise OSError if a path exists and is not a regular file."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise NotRegularError(errno.EINVAL, f"not a regular file: a {_kind(mode)}", str(path))


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "folder", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")


def open_descriptor(path: str | Path) -> int:
    """Open a regular file for reading, and return its descriptor. Raises OSError, also if the file is not regular; never
    blocks.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        raise NotRegularError(errno.EINVAL, f"not a regular file: a {_kind(mode)}", str(path))
    return number


def open_regular(path: str | Path) -> BufferedReader:
    """Open a regular file for reading. Raises OSError as `open_descriptor`."""
    return os.fdopen(open_descriptor(path), "rb")


def read_regular(path: str | Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """Return the content of a regular file. Raises OSError, and ValueError for more than `limit` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ValueError(f"{size} bytes long, more than {limit}")
        return file.read(size)


def is_lfs_pointer(path: str | Path) -> bool:
    """Return whether a file is what Git leaves in its place where Git LFS did not fetch it."""
    try:
        with open_regular(path) as file:
            return file.read(len(LFS_BEGIN)) == LFS_BEGIN
    except OSError:
        return False


def parse_json(data: bytes | str) -> Any:
    """Return parsed JSON. Raises ValueError for any invalid input."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("brackets nested too deep") from error


def read_json(path: str | Path, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return the JSON object in a regular file. Raises OSError, ValueError."""
    return parse_object(read_regular(path, limit))


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError."""
    value = parse_json(data)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object was expected, not {type(value).__name__}")
    return value


def parse_fraction(text: str) -> Fraction:
    """Parse a decimal number or a fraction exactly. Raises ValueError, also if its expansion would take long."""
    plain = text.replace("_", "")
    if len(text) > MAX_NUMBER_LENGTH or re.search(r"[eE][+-]?0*\d{3}", plain):
        raise ValueError(f"{text[:MAX_NUMBER_LENGTH]!r} is not a number of a usual length")
    try:
        return Fraction(text)
    except ZeroDivisionError as error:
        raise ValueError(f"{text} divides by zero") from error


# The rates of NTSC as people write them, and what they mean.
NTSC_RATES = {
    "23.976": Fraction(24000, 1001),
    "23.98": Fraction(24000, 1001),
    "29.97": Fraction(30000, 1001),
    "47.952": Fraction(48000, 1001),
    "47.95": Fraction(48000, 1001),
    "59.94": Fraction(60000, 1001),
    "119.88": Fraction(120000, 1001),
}


def rate_of(text: str) -> Fraction:
    """Parse frames per second exactly; 23.976, 29.97 and 59.94 mean N·1000/1001. Raises ValueError."""
    return NTSC_RATES.get(text) or parse_fraction(text)


def exact_ratio(name: str, value: object) -> Fraction:
    """Return [numerator, denominator] as a Fraction; both must be positive 64-bit integers. Raises ValueError."""
    if (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(type(part) is int and 0 < part <= INT64_MAX for part in value)
    ):
        return Fraction(*value)
    raise ValueError(f"{name} is {_show(value)}, two whole numbers above 0 were expected")


def whole_between(name: str, value: object, low: int, high: int) -> int:
    """Return a whole number in [low, high]. Raises ValueError for other values."""
    if type(value) is int and low <= value <= high:
        return value
    raise ValueError(f"{name} is {_show(value)}, a whole number from {low} to {high} was expected")


def _show(value: object) -> str:
    try:
        return repr(value)[:80]
    except (ValueError, RecursionError):  # an integer of thousands of digits, a deep list
        return f"a {type(value).__name__} too long to show"


def arrow_file(path: Path) -> pa.NativeFile:
    """Open a regular file for pyarrow, even if its name is not valid UTF-8. Raises OSError."""
    import_pyarrow()
    import pyarrow as pa

    check_regular(path)
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        return pa.PythonFile(open_regular(path), mode="r")
    return pa.OSFile(os.fspath(path))


def check_counts(metadata: pq.FileMetaData, path: Path) -> None:
    """Raise ValueError if a Parquet file claims more rows, or longer lists, than it can contain.

    A row takes at least one byte of the file. A list value belongs to a frame, which takes at least one byte of a file
    beside it.
    """
    size = path.stat().st_size
    if metadata.num_rows > ROWS_ALLOWED + size:
        raise ValueError(f"{metadata.num_rows} rows are claimed in {size} bytes")
    counts: dict[str, int] = {}
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            counts[column.path_in_schema] = counts.get(column.path_in_schema, 0) + column.num_values
    most = max(counts.values(), default=0)
    if most > VALUES_ALLOWED + VALUES_PER_BYTE * size and most > (held := _bytes_below(path.parent, most)):
        raise ValueError(f"{most} values are claimed of frames, and the files beside it have {held} bytes")


def _bytes_below(folder: Path, enough: int) -> int:
    """Return the size of all regular files below a folder, without following links; counting stops at a limit."""
    total, waiting = 0, [os.fspath(folder)]
    while waiting and total < enough:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total


def seal_footer(file: BinaryIO) -> None:
    """Put a checksum in front of the footer of a Parquet file that was just written: SEAL and the CRC-32 of what follows.

    Page checksums do not cover the footer, and pyarrow (26) aborts the process at some flipped bits there. Other readers find the footer
    from the end of the file, and the pages by their offsets from its start, so what stands between is nothing to them.
    """
    end = file.seek(-FOOTER_END, os.SEEK_END)
    begin = end - int.from_bytes(file.read(4), "little")
    file.seek(begin)
    footer = file.read()
    file.seek(begin)
    file.write(SEAL + zlib.crc32(footer).to_bytes(4, "little") + footer)


def _check_seal(file: pa.NativeFile) -> None:
    """Raise ValueError if a footer differs from the sealed one. Footers without a seal are from other writers, or from
    vidprep 0.1.
    """
    size = file.size()
    if size < FOOTER_END:
        return
    begin = size - FOOTER_END - int.from_bytes(file.read_at(4, size - FOOTER_END), "little")
    if begin >= len(SEAL) + 4:
        seal = bytes(file.read_at(len(SEAL) + 4, begin - len(SEAL) - 4))
        if seal.startswith(SEAL) and zlib.crc32(file.read_at(size - begin, begin)) != int.from_bytes(
            seal[-4:], "little"
        ):
            raise ValueError("the checksum of its footer does not hold")


def open_parquet(file: pa.NativeFile, path: Path) -> pq.ParquetFile:
    """Open a Parquet file and check page checksums. Raises ValueError if it claims more than it can hold, and pyarrow's
    errors.
    """
    import pyarrow.parquet as pq

    _check_seal(file)
    opened = pq.ParquetFile(file, page_checksum_verification=True, pre_buffer=False)  # which costs local reads 0.1 ms
    check_counts(opened.metadata, path)
    return cast("pq.ParquetFile", opened)


def read_parquet(path: str | Path, columns: Sequence[str] | None = None, *, is_counted: bool = False) -> pa.Table:
    """Return a Parquet file as a table. Text is counted before it is loaded: a few bytes can repeat a word of a megabyte a million times.

    Args:
        path: A regular file.
        columns: Read these only; those that are not there are left out.
        is_counted: The numbers of its rows and values were checked already.

    Raises:
        OSError: The file cannot be read, or is not regular.
        ValueError: It claims more than it can hold, or its values take more than MAX_TABLE_BYTES.
    """
    with arrow_file(Path(path)) as file:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not is_counted:
            check_counts(pq.ParquetFile(file).metadata, Path(path))
        schema = pq.read_schema(file)
        fields = [field for field in schema if columns is None or field.name in columns]
        text = [field.name for field in fields if pa.types.is_string(field.type) or pa.types.is_binary(field.type)]
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise ValueError(f"two columns with the same name: {', '.join(names)}")
        size, parts = 0, list[pa.RecordBatch]()
        for batch in pq.ParquetFile(file, read_dictionary=text, page_checksum_verification=True).iter_batches(
            columns=names
        ):
            size += sum(map(_bytes_of, batch.columns))
            if size > MAX_TABLE_BYTES:
                raise ValueError(f"its values take more than {MAX_TABLE_BYTES / 1e9:.2f} GB; give it in parts")
            parts.append(batch)
        plain = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in fields]
        present = [
            pa.chunked_array([_plain(batch.column(place)) for batch in parts], kind) for place, kind in enumerate(plain)
        ]
        return pa.table(dict(zip(names, present, strict=True))).replace_schema_metadata(schema.metadata)


def use_plain_types(table: pa.Table) -> pa.Table:
    """Return a table whose texts, bytes and lists have the plain types of Arrow, whichever of their kinds a writer chose."""
    import pyarrow as pa

    def plain(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_dictionary(kind):
            return plain(kind.value_type)
        if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return pa.string()
        if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
            return pa.binary()
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(plain(kind.value_type), kind.list_size)
        return pa.list_(plain(kind.value_type)) if pa.types.is_list(kind) or pa.types.is_large_list(kind) else kind

    return table.cast(pa.schema([field.with_type(plain(field.type)) for field in table.schema], table.schema.metadata))


def _plain(array: pa.Array) -> pa.Array:
    import pyarrow as pa

    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _bytes_of(array: pa.Array) -> int:
    """Return the size of an array without its dictionary."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type.value_type if pa.types.is_dictionary(array.type) else None
    if kind is None or not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        return int(array.nbytes)
    return int(pc.sum(pc.take(pc.binary_length(array.dictionary), array.indices)).as_py() or 0)
