"""Files of a store behind a URL. They are read by ranges; manifest and index are copied to the machine once (`_fetched.py`)."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from vidprep.formats.errors import StorageError, StoreError
from vidprep.formats.storage.memory_ranges import MemoryConnection
from vidprep.formats.storage.range_access import connection_to
from vidprep.formats.storage.range_reader import RangeReader
from vidprep.formats.storage.ranges import (
    Piece,
    RangeConnection,
    RangeCounts,
    RangePlace,
    Run,
    Wanted,
    server_address,
    use_server,
)
from vidprep.formats.storage.shared import is_for_child
from vidprep.formats.stores._fetched import FetchedFolder, InUse, default_cache_dir as default_cache_dir, list_copies
from vidprep.formats.stores.data_files import Handles

BUFFER_BYTES = 1 << 18
COPIES, DATA = "copies", "data"  # what a connection reads
CONNECTIONS_TRIED, DYING_SECONDS = 3, 0.1  # a process that is killed still accepts connections for a moment
Connection = RangeConnection | RangeReader | MemoryConnection
T = TypeVar("T")


class RemoteFiles:
    """Files behind a URL.

    Args:
        place: The URL, and how it is read.
        cache_dir: Folder for copies of manifest and index.

    Raises:
        MissingError: obstore is not installed.
        StoreError: The URL cannot be reached, or there is no store.
    """

    is_remote = True

    def __init__(self, place: RangePlace, cache_dir: Path) -> None:
        self._range_place, self._cache_dir, self._added = place, cache_dir, tuple[str, ...]()
        self._open_handles()
        self._copy = self._current()

    def _open_handles(self) -> None:
        self._copies = FetchedFolder(self._range_place.url, self._cache_dir)
        self._connections = Handles(self._connect, lambda connection: connection.close())
        self._sizes: dict[str, int] = {}

    def _current(self) -> InUse:
        """Return the copies of manifest and index, as they are now."""
        with self._copies.lock():
            return self._call(lambda connection: self._copies.current(connection), COPIES)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "place": self._range_place,
            "cache_dir": self._cache_dir,
            "folder": self.folder,
            "added": self._added,
            "server": server_address() if is_for_child() else None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        use_server(state["server"])
        self._range_place, self._cache_dir, self._added = state["place"], state["cache_dir"], ()
        self._open_handles()
        there = InUse.mark(state["folder"])
        if there is None:  # on another machine
            there = self._current()
            if there.folder.name != state["folder"].name:
                raise StoreError("was made again after the store was opened; open it again", path=self.path)
        self._copy = there
        self.add(state["added"])

    def _connect(self, of: str) -> Connection:
        version = "" if of == COPIES else self.folder.name
        return connection_to(replace(self._range_place, version=version))

    def _call(self, do: Callable[[Connection], T], of: str = DATA) -> T:
        """Call a function with this thread's connection; again with a new one if the process that reads was killed. Raises
        StoreError.
        """
        try:
            for _ in range(CONNECTIONS_TRIED):
                try:
                    return do(self._connections[of])
                except ConnectionError:
                    self._connections.drop(of)
                    time.sleep(DYING_SECONDS)
        except StorageError as error:
            made = StoreError(error.message, path=error.path)
            made.exit_code = error.exit_code
            raise made from error
        raise StoreError(f"the process that reads it was killed {CONNECTIONS_TRIED} times", path=self.path)

    def add(self, names: Sequence[str]) -> None:
        """Copy more files to the folder. Raises StoreError."""
        if names:
            self._added = (*self._added, *names)
            with self._copies.lock():
                self._call(lambda connection: self._copies.add(self.folder, connection, names), COPIES)
            for name in names:
                if not (self.folder / name).exists():
                    raise StoreError(
                        "is not there, and belongs to a shard that the manifest names", path=self.place(name)
                    )

    def settle(self, root: str) -> None:
        """Record that the copies are of one run; see `FetchedFolder.settle`."""
        with self._copies.lock():
            self._copies.settle(self.folder, root)

    def counts(self) -> RangeCounts:
        """Return what was read from the URL by this program and its children."""
        return self._call(lambda connection: connection.counts())

    @property
    def keeps_read(self) -> bool:
        return self._range_place.cache_bytes > 0

    @property
    def path(self) -> str:
        return self._range_place.url

    @property
    def folder(self) -> Path:
        return self._copy.folder

    def place(self, name: str) -> str:
        return self._range_place.show(name)

    def list_copies(self) -> list[str]:
        """Return the names of the copies."""
        return list_copies(self.folder)

    def size(self, name: str) -> int:
        if name not in self._sizes:
            size = self.size_if_there(name)
            if size is None:
                raise StoreError(
                    "is not there; a newer run may have replaced it, so open the store again", path=self.place(name)
                )
            self._sizes[name] = size
        return self._sizes[name]

    def size_if_there(self, name: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist. Raises StoreError."""
        remote = self._call(lambda connection: connection.stat(name))
        return None if remote is None else remote.size_bytes

    def read(self, name: str, runs: Sequence[Run], buffers: Sequence[memoryview] | None = None) -> list[memoryview]:
        return self._call(lambda connection: connection.read(name, runs, buffers))

    def announce(self, done: int, wanted: Sequence[Wanted]) -> None:
        self._call(lambda connection: connection.announce(done, wanted))

    def open(self, name: str, offset: int = 0, size: int | None = None) -> io.BufferedReader:
        whole = self.size(name) - offset if size is None else size
        return io.BufferedReader(_RemotePart(self, name, offset, whole), BUFFER_BYTES)

    def forget(self, name: str) -> None:
        self._sizes.pop(name, None)


class _RemotePart(io.RawIOBase):
    """A part of a file behind a URL."""

    def __init__(self, files: RemoteFiles, name: str, offset: int, size: int) -> None:
        self._files, self._name, self._offset, self._size, self._at = files, name, offset, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), max(0, self._size - self._at))
        if size:
            offset = self._offset + self._at
            run = Run(offset, size, (Piece(offset, size, None),))
            self._files.read(self._name, [run], [memoryview(buffer)[:size]])
            self._at += size
        return size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at
