"""Read rows of a Parquet file that is sorted by id, a row group at a time, and keep the last groups."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vidprep.formats.errors import StoreError
from vidprep.formats.storage.untrusted import open_parquet
from vidprep.formats.stores.ids import Ids

KEPT_BYTES = 8 << 20


class SortedGroups:
    """An open file with a column `id`, in ascending order. Not thread-safe.

    Args:
        source: The open file.
        path: Its path, for messages.
        columns: Columns that it must have.
        check: Called with the number of a group before it is read for the first time; raises StoreError if it is
            damaged. None if page checksums suffice.

    Raises:
        StoreError: The file is damaged, or lacks columns.
    """

    def __init__(
        self, source: pa.NativeFile, path: Path, columns: pa.Schema, check: Callable[[int], None] | None = None
    ) -> None:
        self.path, self._source, self._check = path, source, check
        try:
            with _system_allocator():
                self._file = open_parquet(source, path)
            self.metadata = self._file.metadata
            numbers = range(self.metadata.num_row_groups)
            id_column = self._file.schema_arrow.names.index("id")
            self._first_ids = [self.metadata.row_group(number).column(id_column).statistics.min for number in numbers]
        except (pa.ArrowException, OSError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
            raise StoreError(f"is damaged: {error}", path=path) from error
        self.schema = self._file.schema_arrow
        if missing := set(columns.names).difference(self.schema.names):
            raise StoreError(f"has no {', '.join(sorted(missing))}; make the store again", path=path)
        wrong = [field.name for field in columns if self.schema.field(field.name).type != field.type]
        if wrong:
            raise StoreError(f"has {', '.join(wrong)} of another type; make the store again", path=path)
        self._is_sound = bytearray(len(self._first_ids))
        self._kept: OrderedDict[tuple[int, tuple[str, ...] | None], pa.Table] = OrderedDict()
        self._kept_bytes = 0

    def close(self) -> None:
        self._source.close()

    def __len__(self) -> int:
        return int(self.metadata.num_rows)

    @property
    def count(self) -> int:
        """Number of row groups."""
        return len(self._first_ids)

    def ids(self) -> Ids:
        """Return the ids in order. Raises StoreError."""
        return Ids.build(self.column("id"))

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return (V, 3): number of frames, height and width of each video, in order. Raises StoreError."""
        columns = [self.column(name).to_numpy() for name in ("num_frames", "height", "width")]
        return np.stack(columns, 1).astype(np.int64)

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column of all rows. Raises StoreError."""
        return self.all((name,))[name]

    def all(self, columns: tuple[str, ...]) -> pa.Table:
        """Return columns of all rows. Raises StoreError."""
        for number in range(self.count):
            self._check_once(number)
        try:
            return self._file.read(columns=list(columns), use_threads=False)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise StoreError(f"is damaged: {error}", path=self.path) from error

    def tables(self, columns: tuple[str, ...] | None = None) -> Iterator[pa.Table]:
        """Yield the row groups in order. Raises StoreError."""
        return (self.read(number, columns) for number in range(self.count))

    def row(self, id_: str, columns: tuple[str, ...]) -> pa.Table:
        """Return columns of a row as a table. Raises KeyError, StoreError."""
        number = bisect_right(self._first_ids, id_) - 1
        if number >= 0:
            table = self.read(number, ("id", *columns))
            if (place := Ids.build(table["id"]).place(id_)) is not None:
                return table.slice(place, 1)
        raise KeyError(f"{id_!r} is not in {self.path.parent}")

    def read(self, number: int, columns: tuple[str, ...] | None) -> pa.Table:
        """Return columns of a row group; all for None. Raises StoreError."""
        key = number, columns
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        self._check_once(number)
        try:
            names = None if columns is None else list(columns)
            table = self._file.read_row_group(number, columns=names, use_threads=False)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise StoreError(f"is damaged in row group {number}: {error}", path=self.path) from error
        is_whole = all(column.num_chunks == 1 for column in table.columns)  # combining would copy it
        self._kept[key] = table if is_whole else table.combine_chunks()
        self._kept_bytes += self._kept[key].get_total_buffer_size()
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1].get_total_buffer_size()
        return self._kept[key]

    def _check_once(self, number: int) -> None:
        if self._check is not None and not self._is_sound[number]:
            self._check(number)
            self._is_sound[number] = 1


@contextmanager
def _system_allocator() -> Iterator[None]:
    """Let a Parquet file opened in this block use the system's allocator. Arrow's keeps 40 MB that it does not need, in
    each process that reads.
    """
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)
