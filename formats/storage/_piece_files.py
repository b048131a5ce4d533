"""Pieces of objects on the disk, shared by all processes of a machine, and kept from one program to the next.

An object's pieces are in a sparse file of the same size, at their own positions. Nothing says which are there: a piece is there
if its CRC-32 is right. So a killed process leaves nothing that could be read as a piece, and an object that was replaced
replaces its pieces. When the bound is reached, files that nobody has read for a week make room, such as those of shards that were
replaced; otherwise nothing more is written: over epochs in random order, any pieces are as good as others, and evicting the
oldest would remove what comes next.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from vidprep.formats.storage.ranges import Piece

MEASURED_BYTES = 64 << 20  # other processes write, too: after this much, all is measured again
UNUSED_SECONDS, NOTED_SECONDS = 7 * 24 * 3600.0, 3600.0
DISK_BLOCK = 512  # POSIX's unit of st_blocks


class PieceFiles:
    """Pieces of the objects of a folder behind a URL. Thread-safe.

    Args:
        folder: Folder of the files, for this URL alone.
        limit_bytes: Bound of their sizes on the disk.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder, self._limit_bytes, self._lock = folder, limit_bytes, threading.Lock()
        self._noted: dict[Path, float] = {}
        self._left = self._until_measured = 0  # measured at the first write

    def _measure_room(self) -> int:
        """Return how many bytes may be written. Raises OSError."""
        files = list[tuple[float, int, str]]()
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    files.append((status.st_mtime, status.st_blocks * DISK_BLOCK, entry.path))
        left = self._limit_bytes - sum(size for _, size, _ in files)
        for last_use, size, path in sorted(files):
            if left > 0 or time.time() - last_use < UNUSED_SECONDS:
                break
            os.unlink(path)  # noqa: PTH108
            left += size
        return left

    def _note_use(self, file: int, path: Path) -> None:
        """Note once an hour that a file is in use."""
        now = time.monotonic()
        if now - self._noted.get(path, -math.inf) > NOTED_SECONDS:
            self._noted[path] = now
            os.utime(file)

    def _path(self, name: str) -> Path:
        return self._folder / hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:32]

    def read(self, name: str, offset: int, size: int, pieces: Sequence[Piece]) -> memoryview | None:
        """Return a range if all its pieces are there."""
        if any(piece.crc32 is None for piece in pieces):
            return None
        path = self._path(name)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            data = memoryview(os.pread(file, size, offset))
            self._note_use(file, path)
        except OSError:
            return None
        finally:
            os.close(file)
        if len(data) < size:
            return None
        for piece in pieces:
            begin = piece.offset - offset
            if zlib.crc32(data[begin : begin + piece.size]) != piece.crc32:
                return None
        return data

    def write(self, name: str, offset: int, data: memoryview, pieces: Sequence[Piece]) -> None:
        """Keep a range, if there is room and its pieces can be recognised. A full disk is no error."""
        if any(piece.crc32 is None for piece in pieces):
            return
        with self._lock, suppress(OSError):
            if self._until_measured <= 0:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._left, self._until_measured = self._measure_room(), MEASURED_BYTES
            if self._left < len(data):
                return
            self._left -= len(data)
            self._until_measured -= len(data)
            file = os.open(self._path(name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(file, data, offset)
            finally:
                os.close(file)
