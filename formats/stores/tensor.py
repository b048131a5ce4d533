"""Tensor format 1: uncompressed frames. A shard can be mapped into memory.

    DST/data-RRRRR-NNNNN.raw   frames as (H, W, 3) uint8 RGB in C order, back to back: a video is one (N, H, W, 3) array.
                               RRRRR is the number of the run, NNNNN that of the shard
    DST/index.parquet          position and CRC-32 of each frame: formats/stores/_index.py
    DST/tensor.json            format name and version, settings, versions, totals

Every frame is checked when it is read, unless `checksum=False`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vidprep.formats.errors import StoreError
from vidprep.formats.storage.ranges import Run
from vidprep.formats.stores._indexed import IndexedLayout, IndexedStore
from vidprep.formats.stores.base import Frames
from vidprep.formats.stores.data_files import DataFiles, ReadOptions
from vidprep.formats.video.rgb import resize_picture

LAYOUT = IndexedLayout("tensor", ".raw")


def open_here(files: DataFiles, options: ReadOptions) -> TensorStore:
    options.refuse(files.path, "short_side", "stores of JPEGs")
    options.refuse(files.path, "fast", "stores of JPEGs and encoded videos")
    return TensorStore(files, checksum=options.checksum)


class TensorStore(IndexedStore):
    """Reads tensor format 1. Bytes are read directly into the array: mapping would read ahead around each missed page."""

    kind = LAYOUT.name

    def fill(self, id_: str, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
        places = self._index.places(id_)
        path, shape = self.files.place(places.shard), (places.height, places.width, 3)
        self._check_shard(places.shard)
        pieces = self._pieces(id_, places, numbers)
        for number, piece in zip(numbers, pieces, strict=True):
            if piece.size != math.prod(shape):
                raise StoreError(
                    f"frame {number} of {id_} at offset {piece.offset} is {piece.size} bytes, {math.prod(shape)} make "
                    f"{places.width}x{places.height}",
                    path=path,
                )
        pictures = [row if row.shape == shape else np.empty(shape, np.uint8) for row in rows]
        runs = [Run(piece.offset, piece.size, (piece,)) for piece in pieces]
        checksums = self.files.read(places.shard, runs, [picture.data.cast("B") for picture in pictures])
        for number, piece, data, picture, row in zip(numbers, pieces, checksums, pictures, rows, strict=True):
            if len(data) != piece.size:
                raise StoreError(
                    f"ends at byte {self.files.size(places.shard)}; frame {number} of {id_} extends to {piece.offset + piece.size}",
                    path=path,
                )
            self._check(data, places, number, id_)
            if picture is not row:
                resize_picture(picture, row)
