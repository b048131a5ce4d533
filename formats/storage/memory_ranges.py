"""Ranges of files of fsspec's `memory://`, which only this process and its forks have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vidprep.formats.errors import MissingError, StorageError
from vidprep.formats.storage.ranges import RangeCounts, RangePlace, RemoteObject, Run, Wanted


class MemoryConnection:
    """Reads `memory://` as `RangeConnection` reads other URLs. Raises MissingError without fsspec."""

    def __init__(self, place: RangePlace) -> None:
        self._place, self._counts = place, RangeCounts()
        try:
            import fsspec
        except ImportError as error:
            raise MissingError("memory:// needs fsspec: pip install fsspec") from error
        self._files: Any = fsspec.filesystem("memory")

    def read(self, name: str, runs: Sequence[Run], buffers: Sequence[memoryview] | None) -> list[memoryview]:
        data = memoryview(self._content(name))
        pieces = [data[run.offset : run.offset + run.size] for run in runs]
        if any(len(part) < run.size for part, run in zip(pieces, runs, strict=True)):
            raise StorageError(f"ends at byte {len(data)}", path=self._place.show(name))
        for buffer, part in zip(buffers or (), pieces, strict=False):
            buffer[:] = part
        size = sum(run.size for run in runs)
        self._counts = RangeCounts(
            self._counts.requests + len(runs), 0, self._counts.fetched_bytes + size, self._counts.read_bytes + size
        )
        return pieces if buffers is None else list(buffers)

    def _content(self, name: str) -> bytes:
        try:
            data: bytes = self._files.cat_file(self._place.show(name))
        except FileNotFoundError as error:
            raise StorageError(
                "is not there; memory:// is known only to the process that wrote it, and to its forks",
                path=self._place.show(name),
            ) from error
        return data

    def announce(self, done: int, wanted: Sequence[Wanted]) -> None:
        pass

    def stat(self, name: str) -> RemoteObject | None:
        try:
            info = self._files.info(self._place.show(name))
        except FileNotFoundError:
            return None
        return RemoteObject(int(info["size"]), str(info.get("created")))

    def fetch(self, names: Sequence[str], folder: Path) -> dict[str, RemoteObject]:
        objects = {name: remote for name in names if (remote := self.stat(name)) is not None}
        for name in objects:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._content(name))
        return objects

    def counts(self) -> RangeCounts:
        return self._counts

    def close(self) -> None:
        pass
