"""Encode and mux outputs; and compare packets of an encoder with those of a container.

H.264 and HEVC leave the encoder with start codes (ITU-T H.264 and H.265, annex B); MP4 and Matroska store four-byte
lengths instead (ISO/IEC 14496-15). MP4's hvc1 keeps HEVC's parameter sets only in its header, and x265 repeats them in
every packet if each frame is a keyframe: comparisons ignore them. AV1 loses its temporal delimiters in a container (AV1
in ISOBMFF, 2.4). VP9 is the same in both.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import cast

from av.container import OutputContainer
from av.error import FFmpegError as AvError
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from vidprep.formats.errors import EncodeError
from vidprep.formats.model import NO_HDR_METADATA, OutputFormat, rescale
from vidprep.formats.moments import MAX_OFFSET_TICKS, MAX_SECONDS, MAX_STEP_TICKS, REORDERED_FRAMES, file_time_base
from vidprep.formats.profiles import CODECS, CONTAINERS, EncoderProfile
from vidprep.formats.video.options import EncoderOptions
from vidprep.formats.video.picture_facts import write_hdr_metadata
from vidprep.formats.video.pyav import open_output, reason_of
from vidprep.formats.video.source import file_url

_TEMPORAL_DELIMITER = b"\x12\x00"
_START_CODE = b"\x00\x00\x01"
_HEVC_PARAMETER_SETS = (32, 33, 34)


def payload_checksum(packet: bytes, codec: str, framing: str) -> int:
    """Return the CRC-32 of the payload that encoder and container share.

    Args:
        packet: The packet.
        codec: Name of the codec.
        framing: "encoder" or "container".

    Raises:
        ValueError: Lengths are broken.
    """
    if CODECS[codec].has_units:
        units = _units_by_start_code(packet) if framing == "encoder" else _units_by_length(packet)
        units = [unit.rstrip(b"\x00") for unit in units]
        if codec == "hevc":
            units = [unit for unit in units if not unit or unit[0] >> 1 & 63 not in _HEVC_PARAMETER_SETS]
        checksum = 0
        for unit in units:
            checksum = zlib.crc32(unit, zlib.crc32(struct.pack("<I", len(unit)), checksum))
        return checksum
    if codec == "av1":
        return zlib.crc32(packet.removeprefix(_TEMPORAL_DELIMITER))
    return zlib.crc32(packet)


def add_start_codes(packet: bytes) -> bytes:
    """Return an H.264 or HEVC packet of MP4 with start codes, as it left the encoder. Raises ValueError if lengths are
    broken.
    """
    return b"".join(b"\x00" + _START_CODE + unit for unit in _units_by_length(packet))


def _units_by_start_code(packet: bytes) -> list[bytes]:
    """Return NAL units. Emulation prevention keeps start codes out of them, and none ends with a zero byte."""
    head, *units = packet.split(_START_CODE)
    if head.strip(b"\x00"):
        raise ValueError("a coded packet does not begin with a start code")
    return units


def _units_by_length(packet: bytes) -> list[bytes]:
    units, position = [], 0
    while position < len(packet):
        if position + 4 > len(packet):
            raise ValueError("a coded packet ends inside a length")
        (size,) = struct.unpack_from(">I", packet, position)
        position += 4
        if position + size > len(packet):
            raise ValueError("a coded packet is shorter than its lengths say")
        units.append(packet[position : position + size])
        position += size
    return units


# libx265 takes a DTS from a frame this much later; without one, from uninitialised memory.
DELAYED_BY_X265 = 2
FINEST_TICKS_PER_SECOND = 10**9  # finest clock with which libvpx starts
UNTOLD = "Generic error in an external library"  # AVERROR_EXTERNAL, where the encoder logs no reason


@contextmanager
def _ordinary_priority() -> Iterator[None]:
    """Restore the thread's priority after the block.

    SVT-AV1, when opened by root, sets the calling thread and its own to the highest real-time priority (SCHED_FIFO 99),
    which starves the machine and is inherited by later processes.
    """
    if not hasattr(os, "sched_getscheduler") or not Path("/proc/self/task").is_dir():
        yield
        return
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        if os.sched_getscheduler(0) != policy:
            for thread in Path("/proc/self/task").iterdir():
                with suppress(ProcessLookupError):
                    os.sched_setscheduler(int(thread.name), policy, parameters)


def _keeps_times(profile: EncoderProfile, output: OutputFormat) -> bool:
    """Return whether an encoder returns the PTS of frames; otherwise frames are numbered, and packets get their PTS back
    here.
    """
    if not profile.ticks_per_second:
        return True
    own = output.time_base * profile.ticks_per_second
    return (
        output.time_base <= 1
        and output.time_base * output.nominal_rate <= 2
        and output.time_base.denominator <= FINEST_TICKS_PER_SECOND
        and (own.denominator == 1 or (own >= 2 and own.denominator <= 10**5))
    )


def _open(
    stream: VideoStream, options: EncoderOptions, output: OutputFormat, time_base: Fraction, cores: int
) -> VideoCodecContext:
    """Open the encoder of a stream with all options. Raises EncodeError."""
    name = options.profile.name
    context = stream.codec_context
    context.width, context.height = output.size
    context.pix_fmt = output.pixel_format
    context.time_base = time_base
    context.framerate = output.nominal_rate
    context.sample_aspect_ratio = Fraction(1)
    context.colorspace = output.colour.matrix
    context.color_primaries = output.colour.primaries
    context.color_trc = output.colour.transfer
    context.color_range = 2 if output.colour.full_range else 1
    context.thread_count = options.num_threads(output.size)
    if (tag := CODECS[options.codec].tags.get(options.container_name)) is not None:
        context.codec_tag = tag
    library_options = options.library_options(output.light, output.size, cores)
    context.options = library_options
    try:
        with _ordinary_priority():
            context.open()
    except (AvError, OSError, ValueError) as error:
        reason = reason_of(error)
        if reason.startswith(UNTOLD):
            reason += "; perhaps for lack of memory"
        raise EncodeError(f"{name} does not start at {output.size} {output.pixel_format}: {reason}") from error
    unknown = [name for name in context.options if name in library_options]
    if unknown:
        raise EncodeError(f"{name} of this libavcodec does not know {', '.join(unknown)}")
    return context


class VideoWriter:
    """Encodes frames and muxes packets into one file, which is valid only after `close` returns.

    Between `encode` and `mux` packets belong to the caller, who measures them. Packets that an equal encoder made
    elsewhere may be muxed instead, after `take_order`.
    """

    def __init__(
        self,
        path: Path,
        options: EncoderOptions,
        output: OutputFormat,
        cores: int = 1,
        template: VideoStream | None = None,
    ) -> None:
        """Open the encoder and the file.

        Args:
            path: The file.
            options: Options of the encoder.
            output: Properties of the frames.
            cores: Idle cores that the encoder may use.
            template: A stream like that of the file, of which packets will be muxed. Then there is no encoder.
        """
        self.path = path
        self._time_base = output.time_base
        profile, box = options.profile, CONTAINERS[options.container_name]
        counts = not _keeps_times(profile, output)
        file_base = file_time_base(box.name, output.time_base, is_constant=output.frame_rate is not None)
        asked_of_muxer = dict(box.options)
        if not box.milliseconds:
            asked_of_muxer["video_track_timescale"] = str(file_base.denominator)
        self._container = open_output(file_url(path), format=box.muxer, options=asked_of_muxer)
        # Readers seek in mp4 by DTS. DTS that are the PTS in rising order, all moved ahead by the same time (which
        # the muxer takes back), equal PTS at every keyframe, so a seek lands there also at a variable rate.
        self._lead, self._longest_offset, self._longest_step = 0, sys.maxsize, sys.maxsize
        if not box.milliseconds:
            per_tick = file_base / output.time_base
            self._lead = min(max(REORDERED_FRAMES, int(3600 / output.time_base)), int(MAX_OFFSET_TICKS * per_tick))
            self._longest_offset, self._longest_step = self._lead, int(MAX_STEP_TICKS * per_tick)
        self._latest_pts = int(MAX_SECONDS / output.time_base)
        if profile.ticks_per_second and not counts:
            self._latest_pts = min(
                self._latest_pts, sys.maxsize // (output.time_base * profile.ticks_per_second).numerator
            )
        self._last_due: int | None = None
        is_exact = (output.time_base / file_base).denominator == 1
        self._rounded_to = None if is_exact or box.milliseconds else file_base
        self._in_order: deque[int] = deque()
        by_number = (1 / output.nominal_rate).limit_denominator(FINEST_TICKS_PER_SECOND)
        self._encoder_base = by_number if counts else output.time_base
        self._by_number: dict[int, int] | None = {} if counts else None
        self._num_encoded = 0
        self._ahead = self._lead or None  # lead of DTS; None keeps the encoder's DTS
        try:
            if template is not None:
                self.stream = self._container.add_stream_from_template(template, opaque=True)
                self.stream.time_base = output.time_base
                return
            stream = self._container.add_stream(profile.name, rate=output.nominal_rate)
            assert isinstance(stream, VideoStream)
            self.stream = stream
            if output.light != NO_HDR_METADATA:
                write_hdr_metadata(stream, options.codec, output.light)
            stream.time_base = output.time_base
            self.context = _open(stream, options, output, self._encoder_base, cores)
        except BaseException:
            self._container.close()
            raise

    @property
    def container(self) -> OutputContainer:
        return self._container

    @property
    def lead_seconds(self) -> Fraction:
        """Time by which DTS are moved ahead. Other streams must move by as much, so that the muxer can interleave them."""
        return self._lead * self._time_base

    def take_order(self, pts: Sequence[int]) -> None:
        """Take the PTS of all packets that will be muxed, in their order."""
        self._in_order.extend(sorted(pts))
        if not self._lead:
            self._ahead = max(due - shown for due, shown in zip(self._in_order, pts, strict=True))

    def encode(self, frame: VideoFrame, pts: int) -> list[Packet[VideoStream]]:
        """Encode a frame, whose PTS and picture type are overwritten; return the packets that are ready."""
        if pts > self._latest_pts:
            raise EncodeError(
                f"a frame is shown after {float(pts * self._time_base):g} s, the limit is "
                f"{float(self._latest_pts * self._time_base):g} s; if the times of the source are wrong, give --fps"
            )
        frame.pts = pts
        if self._by_number is not None:
            frame.pts, self._by_number[self._num_encoded] = self._num_encoded, pts
        self._num_encoded += 1
        frame.time_base = self._encoder_base
        frame.pict_type = 0
        self._in_order.append(pts)
        return list(self._packets(frame))

    def flush(self) -> Iterator[Packet[VideoStream]]:
        """Yield the remaining packets, each as soon as it is encoded."""
        has_no_dts = self.context.name == "libx265" and self._num_encoded <= DELAYED_BY_X265
        for packet in self._packets(None):
            if has_no_dts:
                packet.dts = packet.pts
            yield packet

    def _packets(self, frame: VideoFrame | None) -> Iterator[Packet[VideoStream]]:
        try:
            for packet in cast("Iterator[Packet[VideoStream]]", self.context.encode_lazy(frame)):
                if self._by_number is not None:
                    assert packet.pts is not None
                    packet.pts = packet.dts = self._by_number.pop(packet.pts)
                    packet.time_base = self._time_base
                yield packet
        except (AvError, ValueError) as error:
            raise EncodeError(f"{self.context.name} failed: {reason_of(error)}") from error

    def mux(self, packet: Packet[VideoStream], duration: int) -> None:
        """Mux a packet. Raises EncodeError if the container cannot store its time, OSError if the disk is full."""
        assert packet.pts is not None
        due = self._in_order.popleft()
        self._check_distance(packet.pts, due, duration)
        packet.stream = self.stream
        packet.duration = duration
        if self._ahead is not None:
            packet.dts = due - self._ahead
        if self._rounded_to is not None:  # round like the muxer, but keep equal distances equal
            base, own = self._rounded_to, self._time_base
            packet.pts, packet.dts = (
                rescale(packet.pts, own, base),
                rescale(due, own, base) - rescale(self._lead, own, base),
            )
            packet.duration, packet.time_base = rescale(duration, own, base), base
        try:
            self._container.mux_one(packet)
        except ValueError as error:
            raise EncodeError(f"the muxer refuses the packet at tick {packet.pts}: {reason_of(error)}") from error

    def _check_distance(self, pts: int, due: int, duration: int) -> None:
        """Raise an error if a packet is too far from its place. Beyond these limits MP4 is written wrongly, or the muxer
        aborts the process.
        """
        step = duration if self._last_due is None else max(duration, due - self._last_due)
        offset = abs(pts - due)
        self._last_due = due
        if step > self._longest_step or offset > self._longest_offset:
            gap, limit = (step, self._longest_step) if step > self._longest_step else (offset, self._longest_offset)
            raise EncodeError(
                f"two frames lie {float(gap * self._time_base):g} s apart, over the {float(limit * self._time_base):g} s that "
                "mp4 can hold at these ticks; take --container mkv or give --fps"
            )

    def close(self) -> None:
        """Write the index and close the file. Raises OSError if the disk is full, which mkv notices only here."""
        self._container.close()
