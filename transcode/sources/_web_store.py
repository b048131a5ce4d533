"""A store on a web server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from vidprep.formats.manifest.table import read_rows
from vidprep.formats.storage.ranges import Piece, Run
from vidprep.formats.stores.registry import open_store
from vidprep.formats.stores.remote_files import RemoteFiles

PIECE_BYTES = 8 << 20
REQUESTS_AT_ONCE = 32


class _Output(NamedTuple):
    """Columns of a row with the file of a unit."""

    file_name: str
    status: str


class WebStore:
    """A store on a web server. A server need not list folders, so only those files are known that the manifest names.

    Raises:
        StoreError: There is no store, or it cannot be read.
        MissingError: obstore is not installed.
    """

    def __init__(self, url: str) -> None:
        files = open_store(url).files
        assert isinstance(files, RemoteFiles)
        self._files = files

    def sizes(self) -> dict[str, int]:
        """Return the size of each file in bytes; those that are not there are left out. Raises StoreError."""
        bytes_of = {name: (self._files.folder / name).stat().st_size for name in self._files.list_copies()}
        names = sorted({row.file_name for row in read_rows(self._files.folder, _Output) if row.status == "ok"})
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            sizes = list(pool.map(self._files.size_if_there, names))
        return bytes_of | {name: size for name, size in zip(names, sizes, strict=True) if size is not None}

    def fetch(self, name: str, path: Path) -> None:
        """Copy a file of the manifest or index. Raises OSError."""
        shutil.copyfile(self._files.folder / name, path)

    def read_range(self, name: str, offset: int, size: int) -> Iterator[memoryview]:
        """Yield part of a file in pieces. Raises StoreError."""
        end = offset + size
        for start in range(offset, end, PIECE_BYTES):
            size = min(PIECE_BYTES, end - start)
            yield from self._files.read(name, [Run(start, size, (Piece(start, size, None),))])
