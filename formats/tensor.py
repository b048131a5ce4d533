"""Tensor format 1: frames uncoded, to be mapped into memory.

DST/data-00000.raw …   frames as (H, W, 3) uint8 RGB in C order, back to back: a video is one (N, H, W, 3) array
DST/index.parquet      where the frames of each video lie, with a CRC-32 of each: formats/frame_index.py
DST/tensor.json        format name and version, settings, versions, totals
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vidprep.formats.burst import IndexedStore
from vidprep.formats.errors import StoreError
from vidprep.formats.store import Frames, Handles


class TensorStore(IndexedStore):
    """Reads tensor format 1."""

    kind = "tensor"

    def _open_handles(self) -> None:
        super()._open_handles()
        self._maps = Handles(lambda name: np.memmap(self._shard(name), np.uint8, "r"), lambda _: None)

    def fill(self, id_: str, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
        places = self._index.places(id_)
        shard, shape = self._maps[places.shard], (places.height, places.width, 3)
        offsets, sizes = self._spans(id_, places, numbers)
        for number, offset, size, row in zip(numbers, offsets, sizes, rows, strict=True):
            data = shard[offset : offset + size]
            if size != row.size:
                raise StoreError(
                    f"frame {number} of {id_} at offset {offset} is {size} bytes, {row.size} make {shape[1]}x{shape[0]}",
                    path=self.path / places.shard,
                )
            self._check(data.data, places, number, id_)
            row[:] = data.reshape(shape)
