"""Shard files: units back to back in files of a bounded size, whichever layout they have.

A unit is appended whole or not at all. Nothing that an index points at ever moves or changes inside a shard: what is
replaced stays as dead bytes until `rewrite` copies the living ones into a new shard. Layouts differ in how the frames
of one unit stand in a shard, and in which files beside the shards say where.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from vidprep.formats.errors import DestinationError
from vidprep.formats.files.no_links import IS_A_LINK, NOT_REGULAR, is_regular, open_unlinked
from vidprep.formats.manifest.table import ManifestRow

COPY_BYTES = 1 << 20


class Layout(Protocol):
    """How units stand in shards. name: of the store. tail: what follows the last unit of a shard, to make it whole.
    index_files: what says where they are, as globs.
    """

    @property
    def name(self) -> str: ...

    @property
    def tail(self) -> bytes: ...

    @property
    def index_files(self) -> tuple[str, ...]: ...

    def shard_name(self, number: int) -> str: ...

    def shard_number(self, name: str) -> int | None:
        """None for what is no shard."""
        ...

    def serialize(self, row: ManifestRow, frames: BinaryIO, /) -> Iterator[bytes]:
        """The bytes of a unit in a shard; frames: its frames back to back, `row.frame_sizes` tells them apart."""
        ...

    def offsets(self, row: ManifestRow) -> list[int]:
        """Where each frame of a unit begins in its shard."""
        ...

    def write_index(self, root: Path, rows: Iterable[ManifestRow], about: Mapping[str, Any], /) -> None:
        """The files that say where everything is, from the rows of the units in the order of their ids.

        about: settings, versions, and far_shards where there are some: bytes of shards that are elsewhere, by name.
        """
        ...


@dataclass(slots=True)
class Shards:
    """The shards of a folder, and the one that takes the next unit. mine: (first, step) of the numbers that are touched."""

    root: Path
    layout: Layout
    shard_bytes: int
    mine: tuple[int, int]
    _ends: dict[str, int]

    @staticmethod
    def of(
        root: Path, layout: Layout, shard_bytes: int, rows: Iterable[tuple[str, int]], mine: tuple[int, int] = (0, 1)
    ) -> Shards:
        """rows: (shard, end of the unit in it) of every unit that counts."""
        shards = Shards(root, layout, shard_bytes, mine, {})
        for name, end in rows:
            if shards._is_mine(layout.shard_number(name)):
                shards._ends[name] = max(end, shards._ends.get(name, 0))
        return shards

    def _is_mine(self, number: int | None) -> bool:
        first, step = self.mine
        return number is not None and number % step == first

    def cut_back(self) -> None:
        """Take away what a stopped run left behind the last unit that counts, and shards in which nothing counts."""
        for path in self.paths():
            end = self._ends.get(path.name)
            if end is None:
                path.unlink()
            elif path.stat().st_size != end + len(self.layout.tail):
                self._close_at(path, end)

    def paths(self) -> list[Path]:
        """Those that are touched, by their numbers. Raises DestinationError for one that is a link, or no regular file."""
        found = ((self.layout.shard_number(path.name), path) for path in self.root.iterdir())
        paths = [path for number, path in sorted((n, p) for n, p in found if n is not None and self._is_mine(n))]
        for path in paths:
            if not is_regular(path):
                raise DestinationError(IS_A_LINK if path.is_symlink() else NOT_REGULAR, path=path)
        return paths

    def append(self, row: ManifestRow, frames: BinaryIO) -> None:
        """Put a unit at the end of the newest shard, or of a new one; its row says where. Raises OSError."""
        self._append(row, self.layout.serialize(row, frames))

    def rewrite(self, name: str, rows: Iterable[ManifestRow]) -> None:
        """Copy the units of a shard behind the others; their rows say where. The old shard stays."""
        with (self.root / name).open("rb") as shard:
            for row in sorted(rows, key=lambda row: row.offset or 0):
                assert row.offset is not None and row.stored_bytes is not None
                self._append(row, _span(shard, row.offset, row.stored_bytes), besides=name)

    def _append(self, row: ManifestRow, pieces: Iterator[bytes], besides: str = "") -> None:
        name, offset = self._room_for(sum(row.frame_sizes or ()), besides)
        path = self.root / name
        try:
            with os.fdopen(open_unlinked(path, os.O_RDWR | os.O_CREAT), "r+b") as shard:
                shard.seek(offset)
                for piece in pieces:
                    shard.write(piece)
                end = shard.tell()
                shard.write(self.layout.tail)
                shard.truncate()
        except BaseException:
            if path.exists():
                self._close_at(path, offset)
            raise
        row.file_name, row.offset, row.stored_bytes = name, offset, end - offset
        self._ends[name] = end

    def _room_for(self, size: int, besides: str) -> tuple[str, int]:
        numbers = {self.layout.shard_number(name) or 0: name for name in self._ends}
        newest, (first, step) = max(numbers, default=None), self.mine
        if newest is not None and numbers[newest] != besides:
            end = self._ends[numbers[newest]]
            if (
                end + size <= self.shard_bytes and (self.root / numbers[newest]).exists()
            ):  # else it is elsewhere, and whole
                return numbers[newest], end
        return self.layout.shard_name(first if newest is None else newest + step), 0

    def _close_at(self, path: Path, end: int) -> None:
        if end == 0:
            path.unlink()
            return
        with os.fdopen(open_unlinked(path, os.O_RDWR), "r+b") as shard:
            shard.truncate(end)
            shard.seek(end)
            shard.write(self.layout.tail)

    def forget(self, name: str) -> None:
        """Remove a shard in which nothing counts any more."""
        self._ends.pop(name, None)
        (self.root / name).unlink(missing_ok=True)


def copy(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(COPY_BYTES):
        yield piece


def _span(file: BinaryIO, offset: int, size: int) -> Iterator[bytes]:
    file.seek(offset)
    while size:
        piece = file.read(min(size, COPY_BYTES))
        if not piece:
            raise OSError(f"{file.name} ends before the unit does")
        size -= len(piece)
        yield piece


def number_in(name: str, prefix: str, suffix: str) -> int | None:
    middle = name[len(prefix) : -len(suffix)]
    return int(middle) if name.startswith(prefix) and name.endswith(suffix) and middle.isdecimal() else None
