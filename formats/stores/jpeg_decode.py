"""JPEGs of a store into arrays: what the burst, gulp and webdataset readers share."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import av
import simplejpeg
from av.error import FFmpegError as AvError
from av.packet import Packet
from av.video.frame import VideoFrame

from vidprep.formats.errors import StoreError
from vidprep.formats.stores.base import Frames
from vidprep.formats.video.rgb import resized, resized_picture

# A few kB can claim any size, and can ask for it to be gone through any number of times; an encoder makes some ten scans.
MAX_PIXELS, MAX_SCANS = 1 << 28, 100
JFIF_FORMATS = {"yuvj420p", "yuvj422p", "yuvj444p", "gray"}
START_OF_FRAME, START_OF_SCAN = range(0xC0, 0xC2), 0xDA


_mine = threading.local()


def read_runs(file: int, path: Path, offsets: Sequence[int], sizes: Sequence[int]) -> list[memoryview]:
    """The bytes of each frame; frames that lie back to back are read at once. Raises StoreError at the end of the file."""
    found: list[memoryview] = []
    begin = 0
    breaks = [n for n, (a, b) in enumerate(pairwise(range(len(offsets))), 1) if offsets[b] != offsets[a] + sizes[a]]
    for end in [*breaks, len(offsets)]:
        start, size = offsets[begin], offsets[end - 1] + sizes[end - 1] - offsets[begin]
        data = memoryview(os.pread(file, size, start))
        if len(data) != size:
            end_byte = os.fstat(file).st_size
            raise StoreError(f"ends at byte {end_byte}; frames lie there up to byte {start + size}", path=path)
        found += [data[offsets[n] - start : offsets[n] - start + sizes[n]] for n in range(begin, end)]
        begin = end
    return found


def decode_rows(
    coded: Iterable[memoryview],
    rows: Iterable[Frames],
    *,
    full: tuple[int, int],
    size: tuple[int, int],
    fast: bool,
    place: Callable[[int], str],
    path: Path,
) -> None:
    """JPEGs into arrays of (h, w, 3). full: (height, width) that they have. size: that they are decoded at, the same or smaller by
    eighths; to any other they are scaled. place: says where the n-th lies. Raises StoreError.
    """
    for number, (data, row) in enumerate(zip(coded, rows, strict=True)):
        try:
            _refuse_many_scans(data)
            if row.shape[:2] == size:
                made = _decoded(data, size if size != full else None, fast=fast, buffer=row).shape[:2]
            elif size == full and (frame := _planes(data)) is not None:
                made = frame.height, frame.width
                resized(frame, row)
            else:
                picture = _decoded(data, size if size != full else None, fast=fast)
                made = picture.shape[:2]
                resized_picture(picture, row)
        except (AvError, ValueError) as error:
            raise StoreError(f"{place(number)}: the JPEG does not decode: {error}", path=path) from error
        if made != size:
            raise StoreError(
                f"{place(number)}: the JPEG is {made[1]}x{made[0]}, {size[1]}x{size[0]} was expected", path=path
            )


def _decoded(data: memoryview, size: tuple[int, int] | None, *, fast: bool, buffer: Frames | None = None) -> Frames:
    """RGB. size: smaller by eighths. Raises ValueError."""
    height, width = size or (0, 0)
    made: Frames = simplejpeg.decode_jpeg(data, "RGB", fast, fast, height, width, buffer=buffer)
    return made


def _planes(data: memoryview) -> VideoFrame | None:
    """YCbCr as a JFIF file holds it, or grey; None for what is neither. Raises PyAV's errors."""
    if "decoder" not in _mine.__dict__:
        _mine.decoder = av.CodecContext.create("mjpeg", "r")
        _mine.decoder.thread_count, _mine.decoder.options = 1, {"err_detect": "explode"}
    frames = _mine.decoder.decode(Packet(bytes(data)))
    frame = frames[0] if len(frames) == 1 else None
    return frame if frame is not None and frame.format.name in JFIF_FORMATS else None


@lru_cache(maxsize=256)
def scaled_size(height: int, width: int, short_side: int | None) -> tuple[int, int]:
    """The smallest eighth of a size whose shorter side is at least `short_side`, as libjpeg rounds it: upwards.

    Raises StoreError for a size that is none, or that no frame has.
    """
    if not (height > 0 < width and height * width <= MAX_PIXELS):
        raise StoreError(f"a frame of {width}x{height} is over the limit of {MAX_PIXELS} pixels, or none")
    if short_side is None:
        return height, width
    for eighths in range(1, 8):
        scaled = -(-height * eighths // 8), -(-width * eighths // 8)
        if min(scaled) >= short_side:
            return scaled
    return height, width


def _refuse_many_scans(data: memoryview) -> None:
    """Raises ValueError. The scans are counted only where the first does not hold all components whole."""
    at, components = 2, 0
    while at + 10 <= len(data) and data[at] == 0xFF:
        kind = data[at + 1]
        if kind in START_OF_FRAME:
            components = data[at + 9]
        elif kind == START_OF_SCAN:
            if data[at + 4] == components:
                return
            break
        at += 2 + (data[at + 2] << 8 | data[at + 3])
    count = bytes(data).count(b"\xff\xda")
    if count > MAX_SCANS:
        raise ValueError(f"{count} scans, over the limit of {MAX_SCANS}")
