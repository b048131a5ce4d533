"""JPEGs of a store into arrays: what the burst, gulp and webdataset readers share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import simplejpeg

from vidprep.formats.errors import StoreError
from vidprep.formats.store import Frames


def read_runs(file: int, path: Path, offsets: Sequence[int], sizes: Sequence[int]) -> list[memoryview]:
    """The bytes of each frame; frames that lie back to back are read at once. Raises StoreError at the end of the file."""
    found: list[memoryview] = []
    begin = 0
    breaks = [n for n, (a, b) in enumerate(pairwise(range(len(offsets))), 1) if offsets[b] != offsets[a] + sizes[a]]
    for end in [*breaks, len(offsets)]:
        start, size = offsets[begin], offsets[end - 1] + sizes[end - 1] - offsets[begin]
        data = memoryview(os.pread(file, size, start))
        if len(data) != size:
            raise StoreError(f"ends at byte {start + len(data)}; frames lie there up to byte {start + size}", path=path)
        found += [data[offsets[n] - start : offsets[n] - start + sizes[n]] for n in range(begin, end)]
        begin = end
    return found


def decode_into(data: memoryview, row: Frames, full: tuple[int, int], where: str, path: Path) -> None:
    """One JPEG of (height, width) `full` into an array that may be smaller by eighths. Raises StoreError."""
    try:
        height, width, *_ = simplejpeg.decode_jpeg_header(data)
        if (height, width) != full:
            raise ValueError(f"it is {width}x{height}, {full[1]}x{full[0]} was expected")
        scaled = row.shape[:2] != full
        simplejpeg.decode_jpeg(
            data, "RGB", min_height=row.shape[0] if scaled else 0, min_width=row.shape[1] if scaled else 0, buffer=row
        )
    except ValueError as error:
        raise StoreError(f"{where}: the JPEG does not decode: {error}", path=path) from error


@lru_cache(maxsize=256)
def scaled_size(height: int, width: int, short_side: int | None) -> tuple[int, int]:
    """The smallest eighth of a size whose shorter side is at least `short_side`, as libjpeg rounds it: upwards."""
    if short_side is None:
        return height, width
    for eighths in range(1, 8):
        scaled = -(-height * eighths // 8), -(-width * eighths // 8)
        if min(scaled) >= short_side:
            return scaled
    return height, width
