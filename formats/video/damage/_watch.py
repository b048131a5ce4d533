"""Collect every sign of damage while one source is read, and report it when reading stops.

Damage means that something of the video is known to be lost. A contradiction means that headers disagree with each other or with the
data, although no frame is known to be lost.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cached_property
from typing import Any

from av.packet import Packet
from av.video.stream import VideoStream

from vidprep.formats.errors import count_of
from vidprep.formats.model import VideoInfo
from vidprep.formats.video._shown_frames import PacketInfo
from vidprep.formats.video.damage._file_end import empty_chunks_at_end, missing_end, zeros_at_end
from vidprep.formats.video.damage._holes import Holes
from vidprep.formats.video.damage._log import CONTIGUOUS, MAX_STEP_SECONDS, DamageLog, parse_tag, span_tolerance
from vidprep.formats.video.damage._missing import MissingPackets
from vidprep.formats.video.damage._mp4_tables import (
    contradictions,
    frames_left_out,
    is_fragmented,
    last_sample_end,
    lost_samples,
    num_empty_samples,
)
from vidprep.formats.video.damage._transport import missing_packets
from vidprep.formats.video.damage._unread import bytes_behind, parts_passed_over, second_file
from vidprep.formats.video.pyav import time_base_of

# Containers that store packets one by one, so that frames can be counted without being decoded.
INDEXED = {"mov", "matroska"}
# A clock that goes back by more than this has wrapped, or another file follows. Reordering moves it back by less.
RESTART_SECONDS = 10.0


class DamageWatch:
    """Observes the packets of one source and reports what is damaged. Not thread-safe.

    Attributes:
        log: Warnings of libav, and counts of damaged packets and frames
    """

    def __init__(
        self,
        path: str,
        info: VideoInfo,
        stream: VideoStream,
        moving_streams: Collection[VideoStream],
        log: DamageLog,
        *,
        start_seconds: float,
        counts_shown_frames: bool,
    ) -> None:
        """Prepare for the packets of a file.

        Args:
            path: The file.
            info: Properties of its video stream.
            stream: The same stream in the opened container.
            moving_streams: All video streams, without cover pictures.
            log: Receives the warnings of libav; it may hold those of opening the file.
            start_seconds: Start time of the container.
            counts_shown_frames: Whether packets carry how many frames they display.
        """
        self.log = log
        self._path, self._info, self._stream = path, info, stream
        self._moving_streams = moving_streams
        self._start_seconds = start_seconds
        self._counts_shown_frames = counts_shown_frames
        self._is_contiguous = info.format_name in CONTIGUOUS
        self._has_start_codes = not (stream.codec_context.extradata or b"").startswith(b"\1")
        self._holes = Holes(path, info.codec, info.pixel_format, info.height)
        self._missing = MissingPackets(info.codec)
        self._num_packets = self._num_discarded = 0
        self._last_byte = self._last_byte_of_any = 0
        self._tick_seconds: dict[int, float] = {}  # this and the next four: by index of the stream
        self._starts: dict[int, float] = {}
        self._ends: dict[int, float] = {}
        self._latest_pts: dict[int, int] = {}
        self._num_timed = Counter[int]()
        self._clock_restarted = False

    def see_packet(self, packet: Packet[Any]) -> None:
        """Record the position and the times of a packet of any stream."""
        if self._is_contiguous:
            self.log.record_position(packet)
        if packet.pts is not None:
            self._record_times(packet, packet.pts)
        elif packet.stream_index in self._ends:
            self._ends[packet.stream_index] += (packet.duration or 0) * self._tick_seconds[packet.stream_index]
        is_own = packet.stream_index == self._stream.index
        if packet.pos is not None:
            end = packet.pos + packet.size
            self._last_byte_of_any = max(self._last_byte_of_any, end)
            if is_own:
                self._last_byte = max(self._last_byte, end)
        self._num_discarded += is_own and packet.is_discard

    def see_payload(self, packet: Packet[Any], data: bytes) -> None:
        """Check the bytes of a packet of the video stream."""
        self._num_packets += 1
        self.log.check_payload(packet, data, self._info.codec, has_start_codes=self._has_start_codes)
        self._holes.see(packet, data)

    def see_shown(self, packet: Packet[Any], shown: PacketInfo) -> None:
        """Record which frames a packet of the video stream displays."""
        if not packet.is_discard and shown.frames:
            self._missing.see(packet.pts, packet.dts, is_keyframe=packet.is_keyframe, follows_loss=shown.follows_loss)

    def restart(self) -> None:
        """Record that packets are passed over by a seek."""
        self._missing.restart()

    def _missing_packets(self, *, read_to_end: bool) -> tuple[str | None, str | None]:
        """Return what is damaged by missing packets, and what else is missing. Valid when reading stopped.

        An empty chunk of AVI, or sample of MP4, repeats the picture before. Libavformat makes up the times of DHAV.
        """
        name = self._info.format_name
        if name in ("avi", "dhav") or (name == "mov" and num_empty_samples(self._path, self._stream.id)):
            return None, None
        return self._missing.describe(read_to_end=read_to_end)

    @cached_property
    def table_contradictions(self) -> list[str]:
        """Contradictions between the tables of an MP4, one line each."""
        return contradictions(self._path, self._stream.id) if self._info.format_name == "mov" else []

    @cached_property
    def _left_out(self) -> list[str]:
        """Return the frames of an MP4 that a wrong table hides, in a line. Valid when the source was read to its end."""
        return frames_left_out(self._path, self._stream.id, self._num_packets - self._num_discarded)

    def missing_frames(self, *, read_to_end: bool) -> str | None:
        """Return packets that are missing although no frame behind is known to be wrong; None if none are. Valid when reading stopped."""
        return self._missing_packets(read_to_end=read_to_end)[1]

    def _record_times(self, packet: Packet[Any], pts: int) -> None:
        stream = packet.stream_index
        tick = self._tick_seconds.get(stream)
        if tick is None:
            tick = self._tick_seconds[stream] = float(time_base_of(packet))
        # FLV, WMV and ASF do not store how long the last frame is displayed: assume as long as the one before.
        duration = packet.duration or max(0, pts - self._latest_pts.get(stream, pts))
        self._latest_pts[stream] = max(pts, self._latest_pts.get(stream, pts))
        self._num_timed[stream] += 1
        begin, end = pts * tick, (pts + duration) * tick
        self._starts[stream] = min(begin, self._starts.get(stream, begin))
        latest = max(end, self._ends.get(stream, end))
        self._clock_restarted |= latest - end > RESTART_SECONDS
        self._ends[stream] = latest

    @property
    def has_headers_alone(self) -> bool:
        """Whether the file, read to its end, is what DASH calls an initialization segment."""
        return self._info.format_name == "mov" and not self._num_packets and not self._info.num_frames

    @cached_property
    def empty_ticks_at_end(self) -> int:
        """Number of ticks for which the last picture is repeated after its own duration. Valid when the source was read to its end."""
        if self._info.format_name != "avi" or self._info.num_frames <= self._num_packets:
            return 0
        return empty_chunks_at_end(self._path, self._stream.index)

    def damage(self, *, read_to_end: bool) -> list[str]:
        """Return one line for each kind of damage.

        Args:
            read_to_end: False if reading stopped on purpose; then a missing end is no damage.
        """
        name = self._info.format_name
        lines = self.log.findings() + self._holes.describe()
        if lost := self._missing_packets(read_to_end=read_to_end)[0]:
            lines.append(lost)
        if name == "mpegts":
            lines += missing_packets(self._path, self._stream.id, self._zeros_at_end, read_to_end=read_to_end)
        elif read_to_end:
            lines += self._other_parts()
        if name == "mov" and read_to_end:
            lines += lost_samples(self._path, self._stream.id, self._num_packets, self._num_discarded)
            lines += self._left_out
        if read_to_end:
            lines += parts_passed_over(self._path, name)
            lines += second_file(self._path, name, self._last_byte_of_any)
            indexed = len(self._stream.index_entries)  # excludes what an edit list hides, and empty chunks of AVI
            claimed_frames = min(self._info.num_frames, indexed or self._info.num_frames)
            if claimed_frames > self._num_packets and name == "mov":
                claimed_frames -= num_empty_samples(self._path, self._stream.id)
            if claimed_frames > self._num_packets:
                lines.append(
                    f"cut short: the header says {count_of(claimed_frames, 'frame')}, the file has {self._num_packets}"
                )
            decoded = self.log.num_frames
            missing = self.log.missing_frames(begins_whole=name in INDEXED)
            if decoded and self._counts_shown_frames and missing:
                lines.append(f"{missing} of {decoded + missing} frames could not be decoded")
            if self._zeros_at_end and self._last_byte > self._size_bytes - self._zeros_at_end:
                lines.append(f"cut short: its last {self._zeros_at_end} bytes are zeros, and frames lie there")
            if not self._has_index_of_frames:
                lines += self._short_spans()
            if self._loses_its_end:
                lines += self._missing_end
        return lines

    def contradictions(self, *, read_to_end: bool) -> list[str]:
        """Return one line for each contradiction between headers, or between headers and data."""
        name = self._info.format_name
        lines: list[str] = []
        if name == "mov" and not (read_to_end and self._left_out):
            lines = list(self.table_contradictions)
        if read_to_end and self._has_index_of_frames and not self._loses_its_end:
            lines += self._missing_end or self._short_spans()
        if read_to_end:
            lines += self._long_spans()
            lines += bytes_behind(self._path, name, self._last_byte_of_any)
        if read_to_end and not lines and self._zeros_at_end:
            begin = self._size_bytes - self._zeros_at_end
            if name != "mov" or self._last_byte_of_any > begin:
                lines.append(
                    f"its last {self._zeros_at_end} bytes are zeros: padding, silence, or a download that did not end"
                )
        return lines

    def _other_parts(self) -> Iterator[str]:
        """Yield one line for each video stream before or after this one: such streams are parts of one video, not alternatives."""
        own = self._stream.index
        step = min(MAX_STEP_SECONDS, float(1 / self._info.frame_rate)) if self._info.frame_rate else 0.0
        for stream in self._moving_streams:
            count = self._num_timed[stream.index]
            if stream.index == own or count < 2 or own not in self._starts:
                continue
            begin, end = self._starts[stream.index], self._ends[stream.index]
            if begin >= self._ends[own] - step or end <= self._starts[own] + step:
                yield f"its video has another part in stream {stream.index}, from {begin:.2f} to {end:.2f} s, which was not read"

    @property
    def _size_bytes(self) -> int:
        return os.path.getsize(self._path)  # noqa: PTH202

    @cached_property
    def _has_index_of_frames(self) -> bool:
        """Whether the file has a table with the position of each frame, which shows lost frames whatever other headers claim."""
        return self._info.format_name == "mov" and not is_fragmented(self._path)

    @cached_property
    def _missing_end(self) -> list[str]:
        """Return a line for each part that headers announce and the end of the file lacks; call it after reading to the end."""
        return missing_end(self._path, self._info.format_name, self.log.end_byte)

    @cached_property
    def _loses_its_end(self) -> bool:
        """Whether samples lie beyond the end of the file."""
        if not self._missing_end or not self._has_index_of_frames:
            return bool(self._missing_end)
        end = last_sample_end(self._path)
        return end is None or end > self._size_bytes

    @cached_property
    def _zeros_at_end(self) -> int:
        return zeros_at_end(self._path, self._info.format_name)

    def _short_spans(self) -> Iterator[str]:
        """Yield a line if a header claims a longer duration than the data has, for the whole file or for the video stream."""
        for claimed, end, tolerance in self._spans():
            if claimed - end > tolerance:
                yield f"cut short: the header says {claimed:.2f} s, the data ends at {end:.2f} s"
                return

    def _long_spans(self) -> Iterator[str]:
        """Yield a line if the data of a Matroska file is longer than a header claims."""
        for claimed, end, tolerance in self._spans() if self._info.format_name == "matroska" else ():
            if end - claimed > tolerance:
                yield f"the header says {claimed:.2f} s, a timestamp {end:.2f} s"
                return

    def _spans(self) -> Iterator[tuple[float, float, float]]:
        """Yield (seconds that a header claims, seconds that the data has, tolerance in seconds)."""
        start = self._start_seconds
        if self._info.format_name not in ("mpegts", "mpeg", "mov"):
            start = max(0.0, start)  # the clock of the first two wraps, and frames of MP4 may begin before their edit
        empty = self.empty_ticks_at_end * float(self._info.time_base)
        stream = self._stream.index
        own_end = self._ends.get(stream, 0.0) + empty
        spans = [(self._info.duration_seconds, start, max([own_end, *self._ends.values()]))]
        if self._info.format_name == "matroska":
            tagged = parse_tag(self._stream.metadata.get("DURATION"))
            spans.append((tagged, self._starts.get(stream, 0.0), self._ends.get(stream, 0.0)))
        for claimed, start, end in spans:
            is_guessed = self.log.duration_is_guessed or self._num_timed[stream] < self._num_packets
            if claimed is None or is_guessed or self._clock_restarted:
                continue
            tolerance = span_tolerance(claimed, self._info.frame_rate, self._info.format_name)
            counts_from_zero = self._info.format_name in ("matroska", "nut", "flv") and end - claimed <= tolerance
            end -= 0.0 if counts_from_zero else start  # some writers of Matroska count from the first timestamp
            yield claimed, end, tolerance
