"""Blocks of a file that read as zeros, in codecs whose decoders show whatever there is.

Disks, copies and downloads lose whole sectors. A run of zeros that begins and ends with sectors of the file is such a hole, unless
black pictures explain it: one before it, or whole lines. What cannot be told from black: in raw pictures a hole of less than
MIN_RAW_BYTES, in what is black anyway, of whole lines, or in the first picture where the second is black at the same place. Codecs that
never write so many zeros are held to that instead (`vidprep.formats.video.damage`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from av.packet import Packet

SECTOR_BYTES = 512
MIN_RAW_BYTES = 2048
RUN, RAW_RUN = re.compile(rb"\0{%d,}" % SECTOR_BYTES), re.compile(rb"\0{%d,}" % MIN_RAW_BYTES)
MOST_ZEROS_BESIDE = 8  # that belong to pictures
HEAD_BYTES, MOST_HEADER_BYTES = 32, 64  # of a packet, and of what a container writes before it
# Where black is zero: RGB, grey, and luma of full range in a plane of its own.
RGB_CODECS = {"r210", "r10k", "avrp"}
MAY_BE_BLACK = (
    "rgb",
    "bgr",
    "gbr",
    "argb",
    "abgr",
    "0rgb",
    "0bgr",
    "gray",
    "ya",
    "pal",
    "mono",
    "x2",
    "yuv4",
    "yuvj",
    "nv",
)
SAME_SIZE = {"rawvideo", "v210", "v308", "v408", "v410", "r210", "r10k", "avrp", "ayuv", "yuv4", "y41p"}
ANY_SIZE = {"mjpeg", "dirac", "hap", "dxv", "targa", "tiff"}
SCAN, END_OF_PICTURE = b"\xff\xda", b"\xff\xd9"  # of JPEG (ITU-T T.81, B.1.1.3); zeros may stand before and behind


class Holes:
    """Finds the packets of one stream that have a hole. Not thread-safe."""

    def __init__(self, path: str | Path, codec: str, pixel_format: str, height: int) -> None:
        """Prepare for the packets of a stream.

        Args:
            path: Of the file.
            codec: libavcodec's name.
            pixel_format: Of the pictures, as libavutil names it.
            height: Lines of a picture.
        """
        self._path, self._codec, self._height = path, codec, max(1, height)
        self._is_raw = codec in SAME_SIZE
        self._may_be_black = codec in RGB_CODECS or (codec == "rawvideo" and pixel_format.startswith(MAY_BE_BLACK))
        self._pattern = RAW_RUN if self._is_raw else RUN if codec in ANY_SIZE else None
        self._before: bytes | None = None
        self._doubtful: list[tuple[int, int]] = []  # runs of the first packet, until there is a second one

    def num_found(self, packet: Packet, data: bytes) -> int:  # type: ignore[type-arg]
        """Return how many packets are known to have a hole, now that this one has come. data: of the packet."""
        if self._pattern is None:
            return 0
        runs = list(self._runs(packet, data, self._pattern)) if self._pattern.search(data) else []
        if not self._may_be_black:
            return bool(runs)
        before, self._before = self._before, data
        if before is None:
            self._doubtful = runs
            return 0
        first = any(not _is_black(data, run) for run in self._doubtful)
        self._doubtful = []
        return first + any(not _is_black(before, run) for run in runs)

    def _runs(self, packet: Packet, data: bytes, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, int]]:  # type: ignore[type-arg]
        """Runs of zeros that begin and end with sectors of the file; in raw pictures, as long as they do not fill whole lines."""
        place = self._place(packet.pos, data)
        if place is None:
            return
        line = max(1, len(data) // self._height) if self._may_be_black else len(data) + 1
        first, last = (data.find(SCAN), data.rfind(END_OF_PICTURE)) if self._codec == "mjpeg" else (0, len(data))
        for found in pattern.finditer(data, max(0, first), max(0, last)):
            begin, end = found.span()
            edges = (0, len(data)) if self._is_raw else ()
            beside = 0 if self._may_be_black or not self._is_raw else MOST_ZEROS_BESIDE
            before, behind = -(place + begin) % SECTOR_BYTES, (place + end) % SECTOR_BYTES
            fits = begin in edges or before <= beside, end in edges or behind <= beside
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
