"""What shows that a video is not whole: what libav says, what it marks, and what the file claims and does not hold.

libav tells most losses as warnings, and many of them while it probes the file. So everything that the demuxer and the video's
decoder say counts from the opening on, but for what HARMLESS lists: that is said of whole files too.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from fractions import Fraction

import av.logging
from av.packet import Packet
from av.video.frame import VideoFrame

KEPT_LOG_LINES = 3
LogLine = tuple[int, str, str]

# Where packets follow one another, but for small headers, and a hole is passed over in silence.
CONTIGUOUS = {"nut", "yuv4mpegpipe", "dv"}
SMALL_HEADER_BYTES = 64

# What no coder of these writes and no decoder of the last three notices: a block of a file that reads as zeros.
ZEROS = bytes(256)
WITHOUT_ZEROS = {"h264", "hevc", "vp8", "vp9", "av1"}
MAY_END_IN_ZEROS = {"h264", "hevc"}  # trailing_zero_8bits (ITU-T H.264 and H.265, annex B)
SOUND_SECONDS = 0.06
MIN_STEP_SECONDS = 0.04  # headers claim 1000 frames a second
MAX_STEP_SECONDS = 0.1
MAX_TOLERANCE_SECONDS = 0.5
GUESSED_DURATION = r"estimating duration from bitrate"

# Guesses, odd but complete headers, features that are not read, and timestamps, which are held by their own rules.
HARMLESS = re.compile(
    "|".join(
        (
            r"guessed channel layout",
            r"keyframe not correctly marked",
            r"all samples in data stream",
            r"broken or empty index",
            GUESSED_DURATION,
            r"duration not set|start time for stream|no (pts|ts) found at",
            r"failed to open codec",
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
        self.duration_is_guessed = False
        self._first_byte: int | None = None
        self.end_byte = 0
        self._passed_over = 0
        self._zeroed_packets = 0
        self._opening: int | None = None
        self._due_frames = 0
        self.num_frames = 0

    def hear(self, log: list[LogLine], others: Collection[str] = (), own: Collection[str] | None = None) -> None:
        """Take the lines of the log. others: decoders of other streams, whose damage is not the picture's. own: the demuxer and
        the decoder, whose warnings count; of filters and encoders, which work meanwhile, only errors do. None: all count.
        """
        for level, name, text in log:
            said = text.strip()
            self.duration_is_guessed |= GUESSED_DURATION in said.lower()
            if not said or name in others or HARMLESS.search(said):
                continue
            if own is not None and name not in own and level > av.logging.ERROR:
                continue
            self._num_lines += 1
            if len(self.lines) < KEPT_LOG_LINES:
                self.lines.append(f"{name}: {said}" if name else said)
        log.clear()

    def see_place(self, packet: Packet) -> None:  # type: ignore[type-arg]
        """Of every packet of a contiguous container, whichever its stream."""
        if packet.pos is None or packet.pos < 0:
            return
        if self._first_byte is None:
            self._first_byte = self.end_byte = packet.pos
        if packet.pos - self.end_byte > self._first_byte + SMALL_HEADER_BYTES:  # the file's headers may be repeated
            self._passed_over += packet.pos - self.end_byte
        self.end_byte = max(self.end_byte, packet.pos + packet.size)

    def see_packet(self, packet: Packet, codec: str) -> None:  # type: ignore[type-arg]
        self._corrupt_packets += packet.is_corrupt
        if codec in WITHOUT_ZEROS:
            self._zeroed_packets += _has_zeros(bytes(packet), codec)
        if packet.pts is None or packet.is_discard:
            return
        if self._opening is None:
            if not packet.is_keyframe:
                return
            self._opening = packet.pts
        self._due_frames += packet.pts >= self._opening  # what is shown before leans on what was cut off

    def see_frames(self, frames: list[VideoFrame]) -> None:
        self.num_frames += len(frames)
        for frame in frames:
            self._corrupt_frames += frame.is_corrupt

    @property
    def missing_frames(self) -> int:
        """Where one packet is one frame: packets from the first keyframe on that gave none."""
        return max(0, self._due_frames - self.num_frames)

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
        if self._zeroed_packets:
            found.append(f"{self._zeroed_packets} packets hold a block of zeros")
        if self._passed_over:
            found.append(f"{self._passed_over} bytes between its packets are unreadable")
        if self._stopped:
            found.append(f"reading stopped: {self._stopped}")
        return found


def _has_zeros(data: bytes, codec: str) -> bool:
    at = data.find(ZEROS)
    return at >= 0 and not (codec in MAY_END_IN_ZEROS and ZEROS not in data.rstrip(b"\0"))


def span_tolerance(claimed_seconds: float, frame_rate: Fraction | None) -> float:
    """By how much data may end before a header says: the last frame, whose length is not always written, and some sound."""
    step = max(MIN_STEP_SECONDS, min(MAX_STEP_SECONDS, float(1 / frame_rate))) if frame_rate else MAX_STEP_SECONDS
    return max(step + SOUND_SECONDS, min(MAX_TOLERANCE_SECONDS, 0.02 * claimed_seconds))


def tagged_seconds(text: str | None) -> float | None:
    """Seconds of Matroska's DURATION tag, as in 00:00:05.000000000; None where there is none."""
    match = re.fullmatch(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)", text or "")
    return int(match[1]) * 3600 + int(match[2]) * 60 + float(match[3]) if match else None
