"""Burst format 1: JPEGs back to back in a few large files, and an index that says where each one lies.

DST/data-00000.bin …   JPEG files, nothing else: `dd` with an offset and a size from the index gives a picture
DST/index.parquet      where the frames of each video lie, with a CRC-32 of each: formats/stores/index.py
DST/burst.json         format name and version, settings, versions, totals

Every frame is checked when it is read (3 µs for 20 kB), unless `checksum=False`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import StoreError
from vidprep.formats.stores.base import Frames, FrameStore, Handles, ShardFile, VideoFacts
from vidprep.formats.stores.index import FrameIndex, FramePlaces
from vidprep.formats.stores.jpeg_decode import decode_rows, read_runs, scaled_size


class IndexedStore(FrameStore):
    """What burst and tensor stores share: shards, and an index of their frames."""

    kind: str

    def __init__(self, path: str | os.PathLike[str], *, checksum: bool = True) -> None:
        super().__init__(path)
        self._checksum = checksum
        self._open_handles()
        self._index  # noqa: B018 (a damaged index is told when the store is opened)

    def _open_handles(self) -> None:
        self._indexes = Handles(self._open_index, FrameIndex.close)
        self._files = Handles(self._open_shard, ShardFile.close)

    def _open_index(self, _: str) -> FrameIndex:
        return FrameIndex(self.path, self.kind)

    def _open_shard(self, name: str) -> ShardFile:
        return ShardFile(self._shard(name))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open_handles()

    @property
    def _index(self) -> FrameIndex:
        return self._indexes[""]

    def __len__(self) -> int:
        return len(self._index)

    def _ids(self) -> Sequence[str]:
        return self._index.ids()

    def labels(self, id_: str) -> dict[str, Any]:
        return self._index.labels(id_)

    def facts(self, id_: str) -> VideoFacts:
        places = self._index.places(id_)
        pts, time_base, rate = self._index.times(id_)
        height, width = self._size(places.height, places.width)
        return VideoFacts(len(places.sizes), height, width, rate, pts, time_base)

    def sizes(self) -> npt.NDArray[np.int64]:
        stored = self._index.sizes()
        found = stored.copy()
        for size in np.unique(stored[:, 1:], axis=0):
            found[(stored[:, 1:] == size).all(1), 1:] = self._size(*size.tolist())
        return found

    def _size(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def _shard(self, name: str) -> Path:
        """The path of a shard that is as long as it was. Raises StoreError."""
        path, due = self.path / name, self._index.about["shards"].get(name)
        try:
            size = path.stat().st_size
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", path=path) from error
        if due is None or size < due:
            raise StoreError(f"ends at byte {size}, and was {due} long", path=path)
        return path

    def _spans(self, id_: str, places: FramePlaces, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """Offsets and sizes of frames, all of them inside the shard. Raises StoreError."""
        chosen, due = list(numbers), self._index.about["shards"].get(places.shard, 0)
        offsets, sizes = places.offsets[chosen].tolist(), places.sizes[chosen].tolist()
        for number, offset, size in zip(chosen, offsets, sizes, strict=True):
            if offset < 0 or size < 0 or offset + size > due:
                raise StoreError(
                    f"frame {number} of {id_}: {size} bytes at offset {offset} are not in the {due} of the shard",
                    path=self.path / places.shard,
                )
        return offsets, sizes

    def _check(self, data: memoryview, places: FramePlaces, number: int, id_: str) -> None:
        if self._checksum and zlib.crc32(data) != places.crc32[number]:
            raise StoreError(
                f"frame {number} of {id_} at offset {places.offsets[number]} is damaged: its checksum does not hold",
                path=self.path / places.shard,
            )


class BurstStore(IndexedStore):
    """Reads burst format 1."""

    kind = "burst"

    def __init__(
        self, path: str | os.PathLike[str], *, checksum: bool = True, short_side: int | None = None, fast: bool = False
    ) -> None:
        self._short_side, self._fast = short_side, fast
        super().__init__(path, checksum=checksum)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        return scaled_size(height, width, self._short_side)

    def coded(self, id_: str) -> list[memoryview]:
        places = self._index.places(id_)
        return self._read(id_, places, range(len(places.sizes)))

    def fill(self, id_: str, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
        places = self._index.places(id_)
        decode_rows(
            self._read(id_, places, numbers), rows,
            is_scaled=self._size(places.height, places.width) != (places.height, places.width), fast=self._fast,
            place=lambda n: f"frame {numbers[n]} of {id_} at offset {places.offsets[numbers[n]]}",
            path=self.path / places.shard,
        )  # fmt: skip

    def _read(self, id_: str, places: FramePlaces, numbers: Sequence[int]) -> list[memoryview]:
        offsets, sizes = self._spans(id_, places, numbers)
        found = read_runs(self._files[places.shard].number, self.path / places.shard, offsets, sizes)
        for number, data in zip(numbers, found, strict=True):
            self._check(data, places, number, id_)
        return found
