"""Shard files: units back to back in files of bounded size, for any layout.

A shard belongs to the run that created it, whose number is in its name. Only that run appends to it, each unit
completely or not at all, and a closed shard never changes. A unit that is made again goes into another shard; bytes
without a row are dead bytes. Layouts differ in how the frames of a unit are arranged and in their index files.
"""

from __future__ import annotations

import fnmatch
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from vidprep.formats.manifest.row import ManifestRow, Recorded
from vidprep.formats.storage.local import open_unlinked

COPY_BYTES = 1 << 20
TAR_BLOCK = 512
FLUSH_BYTES = 32 << 20  # go to the disk while the workers work, so that closing a shard does not wait for all of it
NUMBERED_SHARD = re.compile(r"data-(\d{5,}(p\d{5})?-)?\d{5,}", re.ASCII)
PARTS_MAX = 100_000  # a run's number is that of its lease, times this, plus one and its index where it is a part of an array run


class StoreLayout(ABC):
    """Byte layout of a store. The default is frames back to back; subclasses override what differs.

    Attributes:
        tail: Bytes after the last unit that complete a shard
        index_files: Globs of the files that hold positions of units
        shows_dead_bytes: Whether other tools' readers see units without a row
        holds_labels: Whether shards contain ids and labels, so that each split is a separate store
    """

    name: str
    suffix: str
    tail = b""
    index_files: tuple[str, ...] = ()
    shows_dead_bytes = holds_labels = False

    def shard_name(self, run: int, number: int) -> str:
        """Return the name of a shard. `run` is 0 in a packed store."""
        return shard_name(run, number) + self.suffix

    def is_shard(self, name: str) -> bool:
        return NUMBERED_SHARD.fullmatch(name.removesuffix(self.suffix)) is not None and name.endswith(self.suffix)

    def is_file(self, name: str) -> bool:
        """Return whether a file name is that of a shard, of an index file, or of a partial index file."""
        patterns = [pattern for each in self.index_files for pattern in (each, f".{each}.partial")]
        return self.is_shard(name) or any(fnmatch.fnmatchcase(name, each) for each in patterns)

    def sidecars(self, _shard: str, /) -> tuple[str, ...]:
        """Return the files beside a shard."""
        return ()

    def serialize(self, _row: ManifestRow, frames: BinaryIO, /) -> Iterator[bytes]:
        """Return the bytes of a unit in a shard. `frames` are back to back, with sizes in `row.frame_sizes`; or a video."""
        return copy(frames)

    def offsets(self, row: ManifestRow) -> list[int]:
        """Return the position of each frame of a unit in its shard."""
        return list(accumulate(row.frame_sizes or (), initial=row.offset or 0))[:-1]

    def payload(self, row: ManifestRow) -> list[tuple[int, int]]:
        """Return position and size in the shard of what `serialize` takes: the frames of a unit, or its video."""
        return list(zip(self.offsets(row), row.frame_sizes or (), strict=True))

    @abstractmethod
    def write_index(self, root: Path, rows: Iterable[ManifestRow], about: Mapping[str, Any], /) -> Iterator[Path]:
        """Write the index files from the rows, sorted by id; yield the path of each file after it is written.

        After each step the store opens, with either the old or the new units. `about` contains settings and versions.
        """

    @abstractmethod
    def faults_of_index(self, root: Path, rows: Sequence[ManifestRow], /, *, are_all: bool) -> Iterator[str]:
        """Yield a line for each difference between the index files and rows of the manifest.

        Args:
            root: The store.
            rows: Rows.
            are_all: Whether the manifest has no other rows.
        """


class ShardWriter:
    """Writes shards of one run."""

    def __init__(self, root: Path, layout: StoreLayout, shard_bytes: int, run: int) -> None:
        self._root, self._layout, self._shard_bytes, self._run = root, layout, shard_bytes, run
        self._number = self._end = 0
        self._fd: int | None = None  # of the newest shard, which is incomplete
        self._to_disk = ThreadPoolExecutor(1)
        self._flushes: list[Future[None]] = []
        self._flushed = 0  # bytes of the newest shard that are on the disk, or on their way
        self.whole: list[str] = []  # names of shards that nothing more is appended to, in the order they were closed

    def append(self, row: ManifestRow, frames: BinaryIO) -> Recorded:
        """Append a unit to the newest shard or a new one; return its position. Raises OSError."""
        return self._append(self._layout.serialize(row, frames), row.size_bytes or 0)

    def copy(self, row: ManifestRow, stored: Iterator[bytes]) -> Recorded:
        """Copy a unit from another shard; return its position. Raises OSError."""
        return self._append(stored, row.stored_bytes or 0)

    def _append(self, pieces: Iterator[bytes], size: int) -> Recorded:
        if self._fd is not None and self._end + size > self._shard_bytes:
            self.close()
        if self._fd is None:
            self._fd, self._end = open_unlinked(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), 0
        end = self._end
        try:
            for piece in pieces:
                end = _write(self._fd, piece, end)
            _write(self._fd, self._layout.tail, end)
        except BaseException:
            self._cut_back(self._fd)
            raise
        place = Recorded(file_name=self._path.name, offset=self._end, stored_bytes=end - self._end)
        self._end = end
        if end - self._flushed >= FLUSH_BYTES:
            self._flushes.append(self._to_disk.submit(os.fsync, self._fd))
            self._flushed = end
        return place

    @property
    def _path(self) -> Path:
        return self._root / self._layout.shard_name(self._run, self._number)

    def _cut_back(self, fd: int) -> None:
        """Remove the part of a unit that could not be written completely."""
        os.ftruncate(fd, self._end)
        if self._end:
            _write(fd, self._layout.tail, self._end)
        else:
            os.close(fd)
            self._fd = None
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the newest shard: later units go into another one."""
        if self._fd is None:
            return
        for flush in self._flushes:
            flush.result()
        os.fsync(self._fd)
        os.close(self._fd)
        self.whole.append(self._path.name)
        self._fd, self._number = None, self._number + 1
        self._flushes, self._flushed = [], 0


def shuffle_ids(ids: Iterable[str]) -> list[str]:
    """Return ids in an order that looks random and is the same for the same ids: that of a hash of each.

    Ids are mostly sorted by class. Read in this order, neighbours in a shard are of many classes.
    """
    return sorted(ids, key=lambda id_: (blake2b(id_.encode("utf-8", "surrogateescape"), digest_size=8).digest(), id_))


def shard_name(run: int, number: int) -> str:
    """Return the name of a shard without suffix: data-00002-00000 is the first of run 2, data-00002p00003-00000 of its
    partition 3, data-00000 of a packed store.
    """
    lease, part = divmod(run, PARTS_MAX)
    maker = f"{lease:05d}-" if not part else f"{lease:05d}p{part - 1:05d}-"
    return f"data-{maker if run else ''}{number:05d}"


def _write(fd: int, data: bytes, offset: int) -> int:
    """Write all bytes and return the position after them. Raises OSError."""
    left = memoryview(data)
    while left:
        size = os.pwrite(fd, left, offset)
        left, offset = left[size:], offset + size
    return offset


def copy(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(COPY_BYTES):
        yield piece
