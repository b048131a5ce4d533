"""Burst format 1: JPEGs back to back in a few large files, and an index of their positions.

    DST/data-RRRRR-NNNNN.bin   JPEG files, nothing else: `dd` with an offset and a size from the index extracts a picture.
                               RRRRR is the number of the run, NNNNN that of the shard
    DST/index.parquet          position and CRC-32 of each frame: formats/stores/_index.py
    DST/burst.json             format name and version, settings, versions, totals

Every frame is checked when it is read (3 µs for 20 kB), unless `checksum=False`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from vidprep.formats.stores._index import FrameLocations
from vidprep.formats.stores._indexed import IndexedLayout, IndexedStore, decode_rows, scale_size
from vidprep.formats.stores.base import Frames
from vidprep.formats.stores.data_files import DataFiles, ReadOptions, read_pieces

LAYOUT = IndexedLayout("burst", ".bin")


def open_here(files: DataFiles, options: ReadOptions) -> BurstStore:
    return BurstStore(files, checksum=options.checksum, short_side=options.short_side, fast=options.fast)


class BurstStore(IndexedStore):
    """Reads burst format 1."""

    kind = LAYOUT.name

    def __init__(
        self,
        place: str | os.PathLike[str] | DataFiles,
        *,
        checksum: bool = True,
        short_side: int | None = None,
        fast: bool = False,
    ) -> None:
        self._short_side, self._fast = short_side, fast
        super().__init__(place, checksum=checksum)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        return scale_size(height, width, self._short_side)

    def stored_jpegs(self, id_: str) -> list[memoryview]:
        places = self._index.places(id_)
        return self._read(id_, places, range(len(places.sizes)))

    def fill(self, id_: str, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
        places = self._index.places(id_)
        decode_rows(
            self._read(id_, places, numbers),
            rows,
            full=(places.height, places.width),
            size=self._size(places.height, places.width),
            fast=self._fast,
            place=lambda n: f"frame {numbers[n]} of {id_} at offset {places.offsets[numbers[n]]}",
            path=self.files.place(places.shard),
        )

    def _read(self, id_: str, places: FrameLocations, numbers: Sequence[int]) -> list[memoryview]:
        self._check_shard(places.shard)
        pieces = read_pieces(self.files, places.shard, self._pieces(id_, places, numbers))
        for number, data in zip(numbers, pieces, strict=True):
            self._check(data, places, number, id_)
        return pieces
