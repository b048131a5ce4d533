"""What shows that a video is not whole: what libav says, what it marks, and what the file claims and does not hold.

libav tells most losses as warnings, and many of them while it probes the file. So everything that the demuxer and the video's
decoder say counts from the opening on, but for what HARMLESS lists: that is said of whole files too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from av.packet import Packet
from av.video.frame import VideoFrame

KEPT_LOG_LINES = 3
LogLine = tuple[int, str, str]

# Guesses, odd but complete headers, features that are not read, and timestamps, which are held by their own rules.
HARMLESS = re.compile(
    "|".join(
        (
            r"guessed channel layout",
            r"keyframe not correctly marked",
            r"all samples in data stream",
            r"broken or empty index",
            r"estimating duration from bitrate",
            r"duration not set|start time for stream|no (pts|ts) found at",
            r"could not find codec parameters for stream \d+ \((?!video)",
            r"consider increasing|max_analyze_duration|not enough frames to estimate rate",
            r"misdetection possible",
            r"edit list|editlist",
            r"packed b-frames",
            r"dolby vision",
            r"increasing reorder buffer",
            r"parser not found",
            r"pixel format used|deprecated",
            r"sample aspect ratio already set|pixel aspect ratio|overriding|overwriting",
            r"duplicated moov|chapter track|unknown cover type|timecode",
            r"requested \d+ threads",
            r"is not implemented|if you want to help, upload",
            r"app fields",
            r"bits left in packet",
            r"(not matching first dts|out of order|invalid timestamps|non.monoton\w+)",
        )
    ),
    re.IGNORECASE,
)


class Witnesses:
    """Counts what says that something is lost while a video is read."""

    def __init__(self) -> None:
        self._num_lines = 0
        self.lines: list[str] = []
        self._corrupt_packets = 0
        self._corrupt_frames = 0
        self._undecodable_packets = 0
        self._stopped: str | None = None

    def hear(self, log: list[LogLine], others: Iterable[str] = ()) -> None:
        """Take the lines of the log. others: decoders of other streams, whose damage is not the picture's."""
        for _, name, text in log:
            said = text.strip()
            if not said or name in others or HARMLESS.search(said):
                continue
            self._num_lines += 1
            if len(self.lines) < KEPT_LOG_LINES:
                self.lines.append(f"{name}: {said}" if name else said)
        log.clear()

    def see_packet(self, packet: Packet) -> None:  # type: ignore[type-arg]
        self._corrupt_packets += packet.is_corrupt

    def see_frames(self, frames: list[VideoFrame]) -> None:
        for frame in frames:
            self._corrupt_frames += frame.is_corrupt

    def refused(self) -> None:
        self._undecodable_packets += 1

    def stopped(self, reason: str) -> None:
        self._stopped = reason

    def found(self) -> list[str]:
        found = []
        if self._num_lines:
            found.append(f"{self._num_lines} decoding errors ({'; '.join(self.lines)})")
        if self._undecodable_packets:
            found.append(f"{self._undecodable_packets} packets could not be decoded")
        if self._corrupt_packets:
            found.append(f"{self._corrupt_packets} packets are marked corrupt")
        if self._corrupt_frames:
            found.append(f"{self._corrupt_frames} frames are marked corrupt")
        if self._stopped:
            found.append(f"reading stopped: {self._stopped}")
        return found
