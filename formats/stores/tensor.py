"""Tensor format 1: uncompressed frames. A shard can be mapped into memory.

    DST/data-RRRRR-NNNNN.raw   frames as (H, W, 3) uint8 RGB in C order, back to back: a video is one (N, H, W, 3) array.
                               RRRRR is the number of the run, NNNNN that of the shard
    DST/index.parquet          position and CRC-32 of each frame: formats/stores/index.py
    DST/tensor.json            format name and version, settings, versions, totals

Every frame is checked when it is read, unless `checksum=False`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vidprep.formats.errors import StoreError
from vidprep.formats.stores.base import Frames
from vidprep.formats.stores.indexed import IndexedLayout, IndexedStore
from vidprep.formats.stores.registry import ReadOptions
from vidprep.formats.video import resized_picture

LAYOUT = IndexedLayout("tensor", ".raw")


def open_here(folder: Path, options: ReadOptions) -> TensorStore:
    options.refuse(folder, "short_side", "stores of JPEGs")
    options.refuse(folder, "fast", "stores of JPEGs and encoded videos")
    return TensorStore(folder, checksum=options.checksum)


class TensorStore(IndexedStore):
    """Reads tensor format 1. Bytes are read directly into the array: mapping would read ahead around each missed page."""

    kind = LAYOUT.name

    def fill(self, id_: str, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
        places = self._index.places(id_)
        path, file = self.path / places.shard, self._files[places.shard]
        offsets, sizes = self._spans(id_, places, numbers)
        shape = places.height, places.width, 3
        for number, offset, size, row in zip(numbers, offsets, sizes, rows, strict=True):
            picture = row if row.shape == shape else np.empty(shape, np.uint8)
            if size != picture.size:
                raise StoreError(
                    f"frame {number} of {id_} at offset {offset} is {size} bytes, {picture.size} make {places.width}x{places.height}",
                    path=path,
                )
            data = picture.data.cast("B")
            try:
                read = os.preadv(file.number, [data], offset)
            except OSError as error:
                raise StoreError(f"cannot be read: {error.strerror}", path=path) from error
            if read != size:
                raise StoreError(
                    f"ends at byte {file.size()}; frame {number} of {id_} extends to {offset + size}", path=path
                )
            self._check(data, places, number, id_)
            if picture is not row:
                resized_picture(picture, row)
