"""Encoded outputs into containers."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import cast

from av.container import OutputContainer
from av.error import FFmpegError as AvError
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from vidprep.formats.errors import EncodeError
from vidprep.formats.model import OutputFormat
from vidprep.formats.profiles import CONTAINERS, MUXERS, EncoderOptions
from vidprep.formats.pyav import open_output
from vidprep.formats.video import file_url


@contextmanager
def _ordinary_priority() -> Iterator[None]:
    """Takes back what SVT-AV1 does when root opens it: it gives the calling thread and its own the highest real-time
    priority (SCHED_FIFO 99), which starves the machine, and every process that is started afterwards inherits it.
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


class VideoWriter:
    """Encodes frames and muxes packets into one file. What it wrote counts only after `close` returns.

    Between `encode` and `mux` the packets belong to the caller, who measures them there. Packets that such an encoder made
    elsewhere may be muxed instead, after `take_order`. Raises EncodeError, OSError.
    """

    def __init__(self, path: Path, options: EncoderOptions, output: OutputFormat) -> None:
        self.path = path
        self._time_base = output.time_base
        profile, box = options.profile, CONTAINERS[options.container_name]
        self._container = open_output(file_url(path), format=MUXERS[box.name], options=dict(box.options))
        # Readers seek in mp4 by DTS. DTS that are the PTS in rising order, all moved ahead by the same time (which
        # the muxer takes back), equal PTS at every keyframe, so a seek lands there also at a variable rate.
        self._lead = min(int(3600 / output.time_base), 1 << 30) if box.name == "mp4" else 0
        self._in_order: deque[int] = deque()
        self._ahead = self._lead or None  # of DTS; None leaves what the encoder gave
        try:
            stream = self._container.add_stream(profile.name, rate=output.nominal_rate)
            assert isinstance(stream, VideoStream)
            self.stream = stream
            stream.time_base = output.time_base
            context = stream.codec_context
            context.width, context.height = output.size
            context.pix_fmt = output.pixel_format
            context.time_base = output.time_base
            context.framerate = output.nominal_rate
            context.sample_aspect_ratio = Fraction(1)
            context.colorspace = output.colour.matrix
            context.color_primaries = output.colour.primaries
            context.color_trc = output.colour.transfer
            context.color_range = 2 if output.colour.full_range else 1
            context.thread_count = options.threads
            if options.codec == "hevc" and box.name == "mp4":
                context.codec_tag = "hvc1"
            asked = options.library_options()
            context.options = asked
            try:
                with _ordinary_priority():
                    context.open()
            except (AvError, OSError, ValueError) as error:
                raise EncodeError(
                    f"{profile.name} does not start at {output.size} {output.pixel_format}: {error}"
                ) from error
            unknown = [name for name in context.options if name in asked]
            if unknown:
                raise EncodeError(f"{profile.name} of this libavcodec does not know {', '.join(unknown)}")
            self.context = context
        except BaseException:
            self._container.close()
            raise

    @property
    def container(self) -> OutputContainer:
        return self._container

    @property
    def lead_seconds(self) -> Fraction:
        """How far DTS are moved ahead. Other streams must move by as much, so that the muxer can interleave them."""
        return self._lead * self._time_base

    def take_order(self, pts: Sequence[int]) -> None:
        """The PTS of all packets that will be muxed, in their order."""
        self._in_order.extend(sorted(pts))
        if not self._lead:
            self._ahead = max(due - shown for due, shown in zip(self._in_order, pts, strict=True))

    def encode(self, frame: VideoFrame | None, pts: int = 0) -> list[Packet[VideoStream]]:
        """Packets that are ready after this frame; None flushes. The frame's own PTS and picture type are overwritten."""
        if frame is not None:
            frame.pts = pts
            frame.time_base = self._time_base
            frame.pict_type = 0
            self._in_order.append(pts)
        try:
            return cast("list[Packet[VideoStream]]", self.context.encode(frame))
        except (AvError, ValueError) as error:
            raise EncodeError(f"{self.context.name} failed: {error}") from error

    def mux(self, packet: Packet[VideoStream], duration: int) -> None:
        packet.stream = self.stream
        packet.duration = duration
        due = self._in_order.popleft()
        if self._ahead is not None:
            packet.dts = due - self._ahead
        self._container.mux_one(packet)

    def close(self) -> None:
        """Write the index and close. Raises OSError when there is no room: mkv notices only here."""
        self._container.close()
