"""Find sectors of a file that read as zeros, for codecs whose decoders accept any bytes.

Disks, copies and downloads lose whole sectors. A run of zeros that begins and ends at sector boundaries is a hole
unless black pictures explain it: those before or after it, or whole lines. Not distinguishable from black: a hole in a
raw picture of less than MIN_RAW_BYTES, of whole lines, in an area that is black anyway, or where the next picture is
black. Codecs that never write so many zeros are checked in `vidprep.formats.video.damage._log`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from av.packet import Packet

from vidprep.formats.errors import count_of
from vidprep.formats.storage.untrusted import open_regular

SECTOR_BYTES = 512
MIN_RAW_BYTES = 2048
RUN, RAW_RUN = re.compile(rb"\0{%d,}" % SECTOR_BYTES), re.compile(rb"\0{%d,}" % MIN_RAW_BYTES)
MOST_ZEROS_BESIDE = 8  # zeros beside a hole that belong to pictures
HEAD_BYTES, MOST_HEADER_BYTES = 32, 64  # compared bytes of a packet, and largest header of a container before it
RAW = {"rawvideo", "v210", "v308", "v408", "v410", "r210", "r10k", "avrp", "ayuv", "yuv4", "y41p"}
# Interleaved YCbCr: cameras never produce the colour that zeros mean.
NEVER_BLACK = {"v210", "v308", "v408", "v410", "ayuv", "yuv4", "y41p", "uyvy422", "yuyv422", "yvyu422", "uyyvyy411"}
CODED = {"mjpeg", "dirac"}
# Header of a JPEG's scan, and the marker that ends it; anything may be between scans (ITU-T T.81, B.1.1).
SCAN, SCAN_END = re.compile(rb"\xff\xda"), re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
PICTURE_END, PICTURE_BEGIN = b"\xff\xd9", b"\xff\xd8"


class _PacketZeros(NamedTuple):
    """A packet's data, and its runs of zeros between sector boundaries."""

    data: bytes
    runs: list[tuple[int, int]]


class Holes:
    """Finds packets with holes in one stream. Not thread-safe."""

    def __init__(self, path: str | Path, codec: str, pixel_format: str, height: int) -> None:
        """Prepare for the packets of a stream.

        Args:
            path: The file.
            codec: libavcodec's name of the codec.
            pixel_format: libavutil's name of the pixel format.
            height: Height of a picture.
        """
        self._path, self._codec = path, codec
        self._num_lines = max(1, height) * (
            3 if pixel_format.startswith("gbr") else 1
        )  # these store planes one after the other
        self._is_raw = codec in RAW
        self._may_be_black = self._is_raw and not {codec, pixel_format} & NEVER_BLACK
        self._pattern = RAW_RUN if self._is_raw else RUN if codec in CODED else None
        self._before: bytes | None = None
        self._last: _PacketZeros | None = None
        self._num_found = 0

    def see(self, packet: Packet, data: bytes) -> None:  # type: ignore[type-arg]
        """Check a packet with these bytes."""
        if self._pattern is None:
            return
        runs = list(self._runs(packet, data, self._pattern)) if self._pattern.search(data) else []
        if not self._may_be_black:
            self._num_found += bool(runs)
            return
        if self._last is not None:
            self._num_found += self._is_holed(data)
            self._before = self._last.data
        self._last = _PacketZeros(data, runs)

    def describe(self) -> list[str]:
        """Return a line with the number of packets with holes; nothing without any."""
        count = self._num_found + self._is_holed(None)
        return [f"{count_of(count, 'packet')} in which sectors of the file read as zeros"] if count else []

    def _is_holed(self, behind: bytes | None) -> bool:
        """Return whether the last packet has zeros where its neighbours have none."""
        if self._last is None or self._before is behind is None:
            return False
        others = [data for data in (self._before, behind) if data is not None]
        return any(not any(_is_black(data, run) for data in others) for run in self._last.runs)

    def _runs(self, packet: Packet, data: bytes, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, int]]:  # type: ignore[type-arg]
        """Yield runs of zeros between sector boundaries; in raw pictures only those that do not fill whole lines."""
        place = self._place(packet.pos, data)
        if place is None:
            return
        line = max(1, len(data) // self._num_lines) if self._may_be_black else len(data) + 1
        edges = (0, len(data)) if self._is_raw else ()
        beside = MOST_ZEROS_BESIDE if self._is_raw and not self._may_be_black else 0
        for first, last in _scans(data) if self._codec == "mjpeg" else [(0, len(data))]:
            for match in pattern.finditer(data, first, last):
                begin, end = match.span()
                before, behind = -(place + begin) % SECTOR_BYTES, (place + end) % SECTOR_BYTES
                fits = (begin in edges or before <= beside) and (end in edges or behind <= beside)
                if fits and (begin % line or end % line):
                    yield begin, end

    def _place(self, position: int | None, data: bytes) -> int | None:
        """Return the file position of a packet's data, after the header that the container writes; None if it is unknown."""
        if position is None or position < 0:
            return None
        with open_regular(self._path) as file:
            file.seek(position)
            at = file.read(MOST_HEADER_BYTES + HEAD_BYTES).find(data[:HEAD_BYTES])
        return position + at if at >= 0 else None


def _scans(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the spans of coded samples in consecutive JPEGs, without thumbnails in their segments."""
    at = data.find(PICTURE_BEGIN) + 2
    while 1 < at < len(data) - 4:
        if data[at] != 0xFF:
            at += 1
            continue
        marker = data[at : at + 2]
        if marker == PICTURE_END:
            at = data.find(PICTURE_BEGIN, at + 2) + 2
            continue
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if SCAN.match(marker):
            end = SCAN_END.search(data, at)
            yield at, end.start() if end else len(data)
            at = end.start() if end else len(data)


def _is_black(data: bytes, run: tuple[int, int]) -> bool:
    """Return whether a packet has zeros at the position of a run."""
    part = data[run[0] : run[1]]
    return part.count(0) > 0.9 * len(part) or not part
