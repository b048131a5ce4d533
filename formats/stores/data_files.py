"""Bytes of the files that a store consists of besides manifest and index: videos or shards.

Stores read by `DataFiles`, whatever holds them: a local folder (`LocalFiles`), or a folder behind a URL (`remote_files.py`).
"""

from __future__ import annotations

import io
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from vidprep.formats.errors import StoreError
from vidprep.formats.storage.ranges import Piece, Run, Wanted
from vidprep.formats.storage.untrusted import open_descriptor, weak_method

KEPT_HANDLES = 16
PAGE_BYTES, ENDLESS = 4096, 1 << 62
Handle = TypeVar("Handle")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of `open_store`; see there."""

    checksum: bool = True
    short_side: int | None = None
    fast: bool = False
    hardware: str | None = None

    def refuse(self, path: Path | str, option: str, takers: str) -> None:
        """Raise StoreError if an option was given that only other stores support."""
        if getattr(self, option):
            raise StoreError(f"{option} is for {takers}", path=path)


class DataFiles(Protocol):
    """Files of a store. It can be pickled, and used after fork and spawn.

    Attributes:
        is_remote: Whether they are behind a URL
        keeps_read: Whether what is read is kept in a cache of the program
    """

    is_remote: bool

    @property
    def keeps_read(self) -> bool: ...

    @property
    def path(self) -> Path | str:
        """The folder, or its URL."""
        ...

    @property
    def folder(self) -> Path:
        """Local folder with manifest and index: the same, or one with copies of them."""
        ...

    def place(self, name: str) -> Path | str:
        """Return the path or URL of a file."""
        ...

    def size(self, name: str) -> int:
        """Return the size of a file in bytes. Raises StoreError."""
        ...

    def read(self, name: str, runs: Sequence[Run], buffers: Sequence[memoryview] | None = None) -> list[memoryview]:
        """Return the bytes of runs of a file; fewer where the file ends before.

        Args:
            name: The file.
            runs: What to read.
            buffers: Where to read it to; None means new memory.

        Raises:
            StoreError: The file cannot be read.
        """
        ...

    def announce(self, done: int, wanted: Sequence[Wanted]) -> None:
        """Announce what this thread will read, positions ascending; local files ignore it.

        Args:
            done: All items up to this position have been read.
            wanted: What later ones need.
        """
        ...

    def open(self, name: str, offset: int = 0, size: int | None = None) -> io.BufferedReader:
        """Open part of a file as a seekable file object. Close it. Raises StoreError.

        Args:
            name: The file.
            offset: Position of the part.
            size: Size of the part in bytes; None for all that follows.
        """
        ...

    def forget(self, name: str) -> None:
        """Open a file anew at the next read."""
        ...


class LocalFiles:
    """Files of a local folder. Each thread opens files when it first needs them, and keeps at most KEPT_HANDLES open."""

    is_remote = keeps_read = False

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = self.folder = Path(folder)
        self._open_handles()

    def _open_handles(self) -> None:
        self._opened = Handles(self._open_one, ShardFile.close)

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path = self.folder = state["folder"]
        self._open_handles()

    def _open_one(self, name: str) -> ShardFile:
        return ShardFile(self.folder / name)

    def place(self, name: str) -> Path:
        return self.folder / name

    def size(self, name: str) -> int:
        return self._opened[name].size()

    def read(self, name: str, runs: Sequence[Run], buffers: Sequence[memoryview] | None = None) -> list[memoryview]:
        number, checksums = self._opened[name].number, []
        try:
            for place, run in enumerate(runs):
                if buffers is None:
                    checksums.append(memoryview(os.pread(number, run.size, run.offset)))
                else:
                    checksums.append(buffers[place][: os.preadv(number, [buffers[place]], run.offset)])
        except OSError as error:
            raise StoreError(cannot_be_read(error), path=self.folder / name) from error
        return checksums

    def announce(self, done: int, wanted: Sequence[Wanted]) -> None:
        pass

    def open(self, name: str, offset: int = 0, size: int | None = None) -> io.BufferedReader:
        return FilePart(self.folder / name, offset, size).open_buffered()

    def forget(self, name: str) -> None:
        self._opened.drop(name)


def adjacent_runs(pieces: Sequence[Piece]) -> list[Run]:
    """Return runs of pieces; pieces less than a page apart are in one run."""
    runs, begin = list[Run](), 0
    gaps = [other.offset - one.offset - one.size for one, other in pairwise(pieces)]
    breaks = [number for number, gap in enumerate(gaps, 1) if not 0 <= gap < PAGE_BYTES]
    for end in [*breaks, len(pieces)] if pieces else ():
        joined = tuple(pieces[begin:end])
        runs.append(Run(joined[0].offset, joined[-1].offset + joined[-1].size - joined[0].offset, joined))
        begin = end
    return runs


def read_pieces(files: DataFiles, name: str, pieces: Sequence[Piece]) -> list[memoryview]:
    """Return the bytes of each piece; those in one run are read at once. Raises StoreError at the end of the file."""
    runs, pieces_read = adjacent_runs(pieces), list[memoryview]()
    for run, data in zip(runs, files.read(name, runs), strict=True):
        if len(data) != run.size:
            raise StoreError(
                f"ends at byte {files.size(name)}; the index has frames up to byte {run.offset + run.size}",
                path=files.place(name),
            )
        pieces_read += [data[at - run.offset : at - run.offset + size] for at, size, _ in run.pieces]
    return pieces_read


def read_checked(
    files: DataFiles, name: str, pieces: Sequence[Piece], described: Callable[[int], str]
) -> list[memoryview]:
    """Return the bytes of each piece as `read_pieces` does, after comparing their CRC-32, where it is known.

    Args:
        files: The files.
        name: The file.
        pieces: What to read.
        described: Returns a description of the n-th piece, for messages.

    Raises:
        StoreError: They cannot be read, or are damaged.
    """
    blocks = read_pieces(files, name, pieces)
    for number, (piece, data) in enumerate(zip(pieces, blocks, strict=True)):
        if piece.crc32 is not None and zlib.crc32(data) != piece.crc32:
            raise StoreError(
                f"{described(number)} is damaged: its checksum does not hold; `vidprep validate` names every damaged video",
                path=files.place(name),
            )
    return blocks


def end_of(files: DataFiles, name: str) -> int:
    """Return where a file ends, by which positions are checked; behind a URL its reads check them. Raises StoreError."""
    return ENDLESS if files.is_remote else files.size(name)


def cannot_be_read(error: OSError) -> str:
    """Return the message for a shard that cannot be opened."""
    newer = (
        "; a newer run may have replaced it, so open the store again" if isinstance(error, FileNotFoundError) else ""
    )
    return f"cannot be read: {error.strerror}{newer}"


class ShardFile:
    """A file opened for reading. It is closed when nothing refers to it: when its thread or its store ends."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self.number = -1
        try:
            self.number = open_descriptor(self._path)
        except OSError as error:
            raise StoreError(cannot_be_read(error), path=self._path) from error

    def size(self) -> int:
        return os.fstat(self.number).st_size

    def close(self) -> None:
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)

    __del__ = close


class FilePart(io.RawIOBase):
    """A part of a file as a seekable file object.

    Args:
        size: Size of the part in bytes; None for all that follows `offset`.

    Raises:
        StoreError: The file cannot be opened.
    """

    def __init__(self, path: Path, offset: int, size: int | None) -> None:
        self._file, self._offset, self._at = ShardFile(path), offset, 0
        self._size = self._file.size() - offset if size is None else size

    def open_buffered(self) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), max(0, self._size - self._at))
        read = os.preadv(self._file.number, [memoryview(buffer)[:size]], self._offset + self._at)
        self._at += read
        return read

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at


class Handles(Generic[Handle]):
    """Open objects by name, for each thread of each process. Recently used ones stay open.

    Args:
        open_one: Method that opens one; its owner is not kept alive.
    """

    def __init__(self, open_one: Callable[[str], Handle], close_one: Callable[[Handle], None]) -> None:
        self._open, self._close = weak_method(open_one), close_one
        self._mine = threading.local()

    def __getitem__(self, name: str) -> Handle:
        mine = self._mine
        if getattr(mine, "process", None) != os.getpid():
            # After a fork, do not use or free what the parent opened: its threads do not exist here.
            mine.of_parents = [*getattr(mine, "of_parents", ()), getattr(mine, "opened", None)]
            mine.process, mine.opened = os.getpid(), OrderedDict()
        opened: OrderedDict[str, Handle] = mine.opened
        if name not in opened:
            opened[name] = self._open(name)
            if len(opened) > KEPT_HANDLES:
                self._close(opened.popitem(last=False)[1])
        opened.move_to_end(name)
        return opened[name]

    def drop(self, name: str) -> None:
        opened = getattr(self._mine, "opened", {})
        if name in opened:
            self._close(opened.pop(name))
