"""Read frames of one encoded video by number: seek to the keyframe before and decode no more than needed.

All readers of encoded stores use it, and the verification of outputs too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from av.codec.context import Flags
from av.codec.hwaccel import HWAccel
from av.error import FFmpegError as AvError
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from vidprep.formats.errors import StoreError
from vidprep.formats.model import VideoFacts
from vidprep.formats.video.edit_list import demuxer_options
from vidprep.formats.video.pyav import demux, fraction, open_input, reason_of
from vidprep.formats.video.source import READ_OPTIONS, file_url

# If H.264 does not declare its reordering, libavcodec guesses it and drops later frames; this option makes it assume the maximum.
DECODER_OPTIONS = {"h264": {"strict": "1"}}


def set_store_options(decoder: VideoCodecContext) -> None:
    """Set the options with which stores decode."""
    decoder.thread_count = 1
    decoder.flags |= Flags.unaligned  # as `Source` decodes
    decoder.options = DECODER_OPTIONS.get(decoder.name, {})


class NumberedFrames:
    """Random access to the frames of one video. Must be closed.

    Args:
        data: File object of a video inside a shard.
        origin_pts: PTS of frame 0.
        stream_index: Index of the video stream; None means the first one.
        hardware: libavutil's name of a hardware decoder; None decodes on the CPU.

    Raises:
        StoreError: The video cannot be opened.
    """

    _probes = False

    def __init__(
        self,
        data: BinaryIO | None,
        path: Path | str,
        id_: str,
        facts: VideoFacts,
        *,
        origin_pts: int = 0,
        stream_index: int | None = None,
        hardware: str | None = None,
    ) -> None:
        self._path, self._id, self._facts = path, id_, facts
        self._origin_pts = origin_pts
        self._keyframes = list(facts.keyframes or ())
        self._source, self._stream_index, self._hardware = data or file_url(path), stream_index, hardware
        self._open()

    def _open(self) -> None:
        on = None if self._hardware is None else HWAccel(self._hardware, allow_software_fallback=False)
        if not isinstance(self._source, str):
            self._source.seek(0)
        options = READ_OPTIONS
        if self._origin_pts < 0:  # a frame that begins before its edit
            options = options | demuxer_options(self._path)
        try:
            self._container = open_input(self._source, options, hwaccel=on, probes=self._probes or on is not None)
        except (AvError, OSError, ValueError) as error:
            if on is not None:
                raise StoreError(
                    f"cannot be decoded by {self._hardware} here ({reason_of(error)}): no such device or driver, or not for this codec; "
                    "leave hardware out",
                    path=self._path,
                ) from error
            raise StoreError(f"cannot be read: {reason_of(error)}", path=self._path) from error
        streams = [s for s in self._container.streams.video if self._stream_index in (None, s.index)]
        base = fraction(streams[0].time_base) if streams else None
        if base is None or streams[0].codec_context is None:
            self.close()
            raise StoreError("has no video that can be decoded; it is damaged, restore it", path=self._path)
        self._stream, self._base = streams[0], base
        set_store_options(streams[0].codec_context)

    def close(self) -> None:
        container = getattr(self, "_container", None)
        if container is not None:
            container.close()

    __del__ = close

    def read(self, numbers: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        """Yield frames with their numbers; `numbers` must ascend. Raises StoreError."""
        wanted = dict.fromkeys(numbers)
        try:
            while wanted:
                for number, frame in self._read_from_keyframe(wanted):
                    del wanted[number]
                    yield number, frame
        except StoreError:
            raise
        except (AvError, OSError, ValueError) as error:
            raise self._undecodable(error) from error

    def _undecodable(self, error: Exception) -> StoreError:
        return StoreError(f"{self._id}: does not decode: {reason_of(error)}", path=self._path)

    def _read_from_keyframe(self, wanted: Collection[int]) -> Iterator[tuple[int, VideoFrame]]:
        """Yield the first wanted frames, up to a GOP that contains none."""
        first = next(iter(wanted))
        start = self._keyframes[bisect_right(self._keyframes, first) - 1]
        last, gop_of_last = first, bisect_right(self._keyframes, first)
        for number in wanted:
            gop = bisect_right(self._keyframes, number)
            if gop > gop_of_last + 1:
                break
            last, gop_of_last = number, gop
        begin, end = self._ticks(start), self._ticks(last)
        due = {self._ticks(number): number for number in wanted if number <= last}
        self._container.seek(begin, stream=self._stream)
        needed = last - start + 1
        packets = demux(self._container, self._stream)
        while needed:
            packet = next(packets, None)
            if packet is None or packet.pts is None:
                break
            if packet.pts < begin:
                continue  # a seek by DTS may land one GOP early
            needed -= packet.pts <= end and not packet.is_discard
            yield from self._decode(packet, due)
        yield from self._decode(None, due)
        if due:
            raise StoreError(
                f"{self._id}: frames {sorted(due.values())} are not there: no picture at their times after keyframe {start}",
                path=self._path,
            )

    def _decode(self, packet: Packet[VideoStream] | None, due: dict[int, int]) -> Iterator[tuple[int, VideoFrame]]:
        """Yield the wanted frames, identified by PTS."""
        for frame in self._stream.codec_context.decode(packet):
            number = None if frame.pts is None else due.pop(frame.pts, None)
            if number is not None:
                yield number, frame

    def _ticks(self, number: int) -> int:
        """Return the PTS of a frame in the file."""
        return self._origin_pts + self._facts.tick_of(number, self._base)
