"""Blocks of a file that read as zeros, in codecs whose decoders show whatever there is.

Disks, copies and downloads lose whole sectors. A run of zeros that begins and ends with sectors of the file is such a hole, unless
black pictures explain it: one before it, or whole lines. What cannot be told from black: a hole of less than MIN_BYTES, in what is black
anyway, of whole lines, or in the first picture where the second is black at the same place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from av.packet import Packet

SECTOR_BYTES = 512
MIN_BYTES = 2048
RUN = re.compile(rb"\0{%d,}" % MIN_BYTES)
HEAD_BYTES, MOST_HEADER_BYTES = 32, 64  # of a packet, and of what a container writes before it
SAME_SIZE = {"rawvideo", "v210", "v308", "v408", "v410", "r210", "r10k", "avrp", "ayuv", "yuv4", "y41p"}
ANY_SIZE = {"huffyuv", "ffvhuff", "cfhd", "dirac", "utvideo", "magicyuv", "hap", "dxv"}


class Holes:
    """Finds the packets of one stream that have a hole. Not thread-safe."""

    def __init__(self, path: str | Path, codec: str, height: int) -> None:
        """Prepare for the packets of a stream.

        Args:
            path: Of the file.
            codec: libavcodec's name.
            height: Lines of a picture.
        """
        self._path, self._codec, self._height = path, codec, max(1, height)
        self._is_raw = codec in SAME_SIZE
        self._looks = self._is_raw or codec in ANY_SIZE
        self._before: bytes | None = None
        self._doubtful: list[tuple[int, int]] = []  # runs of the first packet, until there is a second one

    def num_found(self, packet: Packet, data: bytes) -> int:  # type: ignore[type-arg]
        """Return how many packets are known to have a hole, now that this one has come. data: of the packet."""
        if not self._looks:
            return 0
        runs = list(self._runs(packet, data)) if RUN.search(data) else []
        if not self._is_raw:
            return bool(runs)
        before, self._before = self._before, data
        if before is None:
            self._doubtful = runs
            return 0
        first = any(not _is_black(data, run) for run in self._doubtful)
        self._doubtful = []
        return first + any(not _is_black(before, run) for run in runs)

    def _runs(self, packet: Packet, data: bytes) -> Iterator[tuple[int, int]]:  # type: ignore[type-arg]
        """Runs of zeros that begin and end with sectors of the file; in raw pictures, as long as they do not fill whole lines."""
        place = self._place(packet.pos, data)
        if place is None:
            return
        line = max(1, len(data) // self._height) if self._is_raw else len(data) + 1
        for found in RUN.finditer(data):
            begin, end = found.span()
            edges = () if self._codec == "dirac" else (0, len(data))  # whose black lines are zeros
            fits = [at in edges or not (place + at) % SECTOR_BYTES for at in (begin, end)]
            if all(fits) and (begin % line or end % line):
                yield begin, end

    def _place(self, position: int | None, data: bytes) -> int | None:
        """Where the data of a packet begins in the file, which is behind the header that the container writes."""
        if position is None or position < 0:
            return None
        with Path(self._path).open("rb") as file:
            file.seek(position)
            at = file.read(MOST_HEADER_BYTES + HEAD_BYTES).find(data[:HEAD_BYTES])
        return position + at if at >= 0 else None


def _is_black(data: bytes, run: tuple[int, int]) -> bool:
    """Whether a packet has zeros where another has a run of them."""
    part = data[run[0] : run[1]]
    return part.count(0) > 0.9 * len(part) or not part
