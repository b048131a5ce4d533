"""Open a source video safely; yield its packets and frames.

Sources are untrusted. A file is opened by absolute path with the `file:` prefix, so that no name is taken for a
protocol or an option. Only the demuxers in DEMUXERS are allowed, so no playlist or script is followed; only the file
protocol is allowed, so nothing else is read. libav silently ignores misspelt options, so each of them has a test that
fails without it.
"""

from __future__ import annotations

import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, chain, islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import av
import av.logging
from av.codec.codec import Capabilities
from av.codec.context import Flags
from av.container import InputContainer
from av.error import FFmpegError as AvError
from av.packet import Packet
from av.stream import Disposition
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from vidprep.formats.errors import LimitError, NoVideoError, ReadError, RefusedError
from vidprep.formats.model import NO_CROPPING, FrameSize, VideoInfo
from vidprep.formats.moments import Pace
from vidprep.formats.video._not_video import text_in_place, undecodable_tag, why_refused
from vidprep.formats.video._shown_frames import PacketInfo, displayed_by, frame_counter
from vidprep.formats.video.damage._log import DamageLog
from vidprep.formats.video.damage._mp4_tables import has_alpha_track, has_dolby_colours, num_edits
from vidprep.formats.video.damage._watch import INDEXED, DamageWatch
from vidprep.formats.video.edit_list import EditedTimes, demuxer_options, why_not_followed
from vidprep.formats.video.midway import HeldBackFrames, MidwayChanges
from vidprep.formats.video.picture_facts import cropping_of
from vidprep.formats.video.pyav import demux, fraction, open_input, reason_of, time_base_of, video_decoder
from vidprep.formats.video.timestamps import PacketsAhead

# SVT-AV1 prints thirty lines a file otherwise; 1 is errors only.
os.environ.setdefault("SVT_LOG", "1")

DEMUXERS = (
    "mov,matroska,avi,asf,flv,mpeg,mpegts,mpegvideo,mxf,ogg,yuv4mpegpipe,gif,apng,dv,rm,ivf,h264,hevc,obu,m4v,mjpeg,"
    "jpeg_pipe,vc1,h263,nut,gxf,wtv,bink,smk,roq,cavsvideo,vvc,webp_anim,dhav"
)
READ_OPTIONS = {"format_whitelist": DEMUXERS, "protocol_whitelist": "file"}
UNKNOWN_LENGTH = (1 << 31) - 1  # so many frames, or 2^32 - 1, are in the header of an AVI that was never completed

# Warning of H.264's decoder when it should forget pictures from before the first one that it decoded.
MISSED_BEFORE = "mmco: unref short failure"

# Decoders that know the alpha layer a WebM carries beside the picture; the native ones drop it and show what is below.
ALPHA_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}

BI_RGB = "\0\0\0\0"  # the tag of uncompressed RGB in AVI; its fourth byte is not used (BITMAPINFOHEADER, Windows GDI)
THEORA_HEADER = (
    0x80  # bit of the first byte that marks a header, which chained files repeat in the middle (Theora I, 6.1)
)
# Demuxers of raw streams, which store no times; some codecs tell a rate.
RAW_STREAMS = {"h264", "hevc", "vvc", "mjpeg", "jpeg_pipe", "m4v", "mpegvideo", "obu", "vc1", "cavsvideo"}
# vidprep counts their packets itself (damage/_transport.py): libavformat marks those before the seam of joined recordings as corrupt.
COUNTED_ITSELF = {"mpegts"}
# Containers that store a PTS for each packet.
OWN_TIMES = {"mov", "matroska", "mpegts", "flv", "nut"}
HEAD_PACKETS, HEAD_BYTES = 64, 16 << 20  # read to find the distance of frames
STREAM_PACKETS = 2000  # read to find a stream with more than one picture


def file_url(path: str | Path) -> str:
    """Return the name of a file for libav and ffmpeg: absolute, with the protocol."""
    return f"file:{os.path.abspath(path)}"  # noqa: PTH100 (Path.absolute keeps '..', which a symlink may change)


def open_video(path: str | Path) -> InputContainer:
    """Open a file that vidprep or a test made, with the options for sources. Raises PyAV's errors and OSError."""
    return open_input(file_url(path), READ_OPTIONS)


class Source:
    """An open source: one of its video streams, decoded in display order, and signs of damage. Not thread-safe.

    Close it, or use it in a `with` block.

    Args:
        path: The file.
        max_pixels: Limit of a frame.
        threads: Threads of the decoder.
        raw_rate: Frames a second of a raw stream; files that store times keep them.
        video_stream: Number of the video stream, from 0, not counting covers; None for the best one.

    Raises:
        ReadError: The file cannot be opened; also subclasses of it.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        max_pixels: int,
        threads: int = 1,
        raw_rate: Fraction | None = None,
        video_stream: int | None = None,
    ) -> None:
        self.path = str(path)
        self._arguments: dict[str, Any] = {
            "max_pixels": max_pixels,
            "threads": threads,
            "raw_rate": raw_rate,
            "video_stream": video_stream,
        }
        self._level_before = av.logging.get_level()
        av.logging.set_level(av.logging.WARNING)
        av.logging.set_skip_repeated(False)
        self._capture = av.logging.Capture(local=False)
        self._log = self._capture.__enter__()
        self._damage_log = DamageLog()
        self._other_decoders: frozenset[str] = frozenset()
        self._own_names: frozenset[str] | None = None
        self._head: deque[Packet[VideoStream]] = deque()  # packets that were read ahead
        self._reading = self._read()
        self.begins_inside = False  # whether decoding began in the middle, so that earlier pictures are missing
        try:
            self._container = self._open(max_pixels)
            self._stream = self._choose_stream(video_stream)
            self.info = self._info(raw_rate)
            if self.info.width * self.info.height > max_pixels:
                raise LimitError(
                    f"{self.info.width}x{self.info.height} is over the limit of {max_pixels} pixels; "
                    "raise --max-pixels if it is meant to be that large",
                    path=self.path,
                )
            if self.info.pixel_format.endswith("10le") and has_dolby_colours(self.path, self._stream.id):
                raise RefusedError(
                    "is Dolby Vision whose colours (IPTPQc2) only Dolby's own decoders show; take a version in HDR10, HLG or SDR",
                    path=self.path,
                )
            self._edited = None
            if self.info.format_name == "mov":
                if what := why_not_followed(self.path, self._stream.id):
                    raise RefusedError(
                        f"its edit list {what}, which ffmpeg's readers do not show; save it without edits (ffmpeg -ignore_editlist 1 "
                        "-i IN -c copy OUT keeps every picture), or export it again",
                        path=self.path,
                    )
                self._edited = EditedTimes.read(self.path, self._stream.id)
            self._decoder = self._make_decoder(max_pixels, threads)
            self._held_back = HeldBackFrames(self.info.codec)
            self._midway = MidwayChanges(self.info.sample_aspect_ratio, self.info.codec)
            self._count = frame_counter(self.info.codec, self._stream.codec_context.extradata)
            self._damage_log.counts_marks = self.info.format_name not in COUNTED_ITSELF
            self._watch = DamageWatch(
                self.path,
                self.info,
                self._stream,
                self._moving_streams(),
                self._damage_log,
                start_seconds=(self._container.start_time or 0) / av.time_base,
                counts_shown_frames=self._count is not None,
            )
            self._other_decoders = self._names_of_other_decoders()
            self._harvest()
            self._own_names = frozenset(
                {self._container.format.name, self._decoder.name, self._stream.codec_context.name}
            )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        container = getattr(self, "_container", None)
        if container is not None:
            container.close()
        if self._capture is not None:
            self._capture.__exit__(None, None, None)
            self._capture = None  # type: ignore[assignment]
            av.logging.set_level(self._level_before)

    def again(self) -> Source:
        """Open the same stream of the file a second time. Raises ReadError."""
        return Source(self.path, **self._arguments)

    def _open(self, max_pixels: int) -> InputContainer:
        try:
            options = READ_OPTIONS | demuxer_options(self.path) | {"max_pixels": str(max_pixels)}
            return open_input(file_url(self.path), options)
        except (AvError, OSError, ValueError) as error:
            self._harvest()
            logged = "; ".join(self._damage_log.lines)
            if "not on whitelist" in logged:
                kind = re.search(r"([\w,]+): [^;]*not on whitelist", logged)
                raise RefusedError(why_refused(self.path, kind[1] if kind else ""), path=self.path) from error
            if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
                raise ReadError(f"cannot be read: {error.strerror}", path=self.path) from error
            if os.path.getsize(self.path) == 0:  # noqa: PTH202
                raise ReadError("is empty (0 bytes); fetch it again", path=self.path) from error
            reason = text_in_place(self.path) or logged or getattr(error, "strerror", None) or str(error)
            raise ReadError(f"is not a readable video: {reason}", path=self.path) from error

    def _moving_streams(self) -> list[VideoStream]:
        stills = Disposition.attached_pic | Disposition.timed_thumbnails
        return [stream for stream in self._container.streams.video if not stream.disposition & stills]

    def _choose_stream(self, number: int | None) -> VideoStream:
        streams = self._moving_streams()
        if not streams:
            kinds = ("a cover" if s.type == "video" else s.type for s in self._container.streams)
            held = ", ".join(sorted(set(kinds))) or "nothing"
            raise NoVideoError(f"holds no video (it holds {held})", path=self.path)
        if number is not None and number >= len(streams):
            count = f"{len(streams)} video streams" if len(streams) > 1 else "one video stream, number 0"
            raise NoVideoError(f"holds {count}; --video-stream asks for stream {number}", path=self.path)
        best = self._container.streams.best("video")
        stream = best if isinstance(best, VideoStream) and best in streams else streams[0]
        if number is not None:
            stream = streams[number]
        elif len(streams) > 1:
            counts = self._num_frames_each(streams, stream.index)
            if counts[stream.index] <= 1 < max(counts.values()):  # a cover that is not marked as one
                stream = max(streams, key=lambda each: counts[each.index])
        if stream.codec_context is None:
            tag = undecodable_tag(self._log) or "unknown"
            raise ReadError(
                f"libavcodec has no decoder for its video (codec tag {tag!r}); convert it with the program that wrote it",
                path=self.path,
            )
        return stream

    def _num_frames_each(self, streams: list[VideoStream], best: int) -> Counter[int]:
        """Return the number of frames of streams, by index: from headers, else counted until the best stream has a second
        one.
        """
        if all(stream.frames for stream in streams):
            return Counter({stream.index: stream.frames for stream in streams})
        counts = Counter({stream.index: 0 for stream in streams})
        with suppress(AvError, OSError), open_input(file_url(self.path), READ_OPTIONS) as again:
            for packet in islice(demux(again), STREAM_PACKETS):
                counts[packet.stream_index] += packet.stream_index in counts
                if counts[best] > 1:
                    break
        return counts

    def _info(self, raw_rate: Fraction | None) -> VideoInfo:
        stream, context = self._stream, self._stream.codec_context
        name = self._container.format.name.split(",")[0]
        codec = context.codec.canonical_name if hasattr(context.codec, "canonical_name") else context.codec.name
        alpha = stream.metadata.get("alpha_mode") == "1" and codec in ALPHA_DECODERS
        duration, num_frames = self._container.duration, stream.frames
        if name == "avi" and num_frames >= UNKNOWN_LENGTH:
            duration, num_frames = None, 0
        rate, origin = fraction(stream.average_rate) or fraction(stream.guessed_rate), ""
        if name in RAW_STREAMS and raw_rate is not None:
            rate, origin = raw_rate, "given"
        elif name in RAW_STREAMS and fraction(context.framerate) is None:
            origin = "guessed"
        return VideoInfo(
            format_name=name,
            stream_index=stream.index,
            num_video_streams=len(self._moving_streams()),
            codec=codec,
            decoder=ALPHA_DECODERS[codec] if alpha else context.codec.name,
            width=context.width,
            height=context.height,
            pixel_format=context.pix_fmt or "",
            time_base=time_base_of(stream),
            frame_rate=rate,
            sample_aspect_ratio=fraction(stream.sample_aspect_ratio) or Fraction(1),
            duration_seconds=duration / av.time_base if duration and duration > 0 else None,
            num_frames=num_frames,
            has_alpha_layer=alpha,
            cropping=cropping_of(stream) if name in INDEXED else NO_CROPPING,
            has_alpha_track=name == "mov" and has_alpha_track(self.path),
            has_unused_byte=codec == "rawvideo" and context.codec_tag == BI_RGB,
            start_seconds=None if (begin := self._container.start_time) is None else Fraction(begin, av.time_base),
            rate_origin=origin,
        )

    def _make_decoder(self, max_pixels: int, threads: int) -> VideoCodecContext:
        context = self._stream.codec_context
        if self.info.has_alpha_layer:
            context = video_decoder(self.info.decoder)
            context.extradata = self._stream.codec_context.extradata
        context.options = {"max_pixels": str(max_pixels)}
        context.thread_count = threads
        context.flags |= Flags.unaligned  # otherwise cropping on the left is rounded to a multiple of 64
        return context

    def _names_of_other_decoders(self) -> frozenset[str]:
        contexts = [stream.codec_context for stream in self._container.streams if stream.type != "video"]
        return frozenset(context.name for context in contexts if context is not None)

    @property
    def coded_size(self) -> FrameSize | None:
        """Size of the last decoded frame before cropping; None if the decoder does not tell."""
        size = FrameSize(self._decoder.coded_width, self._decoder.coded_height)
        return size if min(size) else None

    @property
    def delays(self) -> bool:
        """Whether the decoder may hold frames back to put them in order."""
        return bool(self._decoder.codec.capabilities & Capabilities.delay) or self._decoder.thread_count > 1

    def packets_ahead(self, packets: Iterator[Packet[VideoStream]], *, from_middle: bool = False) -> PacketsAhead:
        """Return packets for `decode`, read ahead to give its frames their times.

        Args:
            packets: Packets of this source.
            from_middle: Whether they begin at a later keyframe.
        """
        return PacketsAhead(
            packets, delays=self.delays, from_middle=from_middle, reorder_depth=self._depth_where_times_are_right
        )

    def _depth_where_times_are_right(self) -> int | None:
        if self.info.format_name not in OWN_TIMES or self._watch.table_contradictions:
            return None
        return self.reorder_depth

    def _harvest(self) -> None:
        if self.begins_inside:
            self._log[:] = [line for line in self._log if MISSED_BEFORE not in line[2]]
        self._damage_log.add_lines(self._log, self._other_decoders, self._own_names)

    def packets(self) -> Iterator[Packet[VideoStream]]:
        """Yield the packets of the video stream in decode order. Damage that ends them early is reported by `damage`."""
        while self._head:
            yield self._head.popleft()
        yield from self._reading

    @cached_property
    def pace(self) -> Pace:
        """Distance between frames, from the first timestamps and the header, before packets are read."""
        size = 0
        for packet in self._reading:
            self._head.append(packet)
            size += packet.size
            if len(self._head) >= HEAD_PACKETS or size > HEAD_BYTES:
                break
        known = sorted({p.pts for p in self._head if p.pts is not None and not p.is_discard})
        is_sparse = any(p.pts is None for p in self._head)  # as in program streams with several frames per packet
        if not known or is_sparse:  # raw streams have no timestamps
            known = list(accumulate(p.duration or 0 for p in self._head))
        if len(self._head) >= HEAD_PACKETS and (latest := self._head[-1].dts) is not None:
            known = [pts for pts in known if pts <= latest]  # later packets may come between the others
        rate, name = self.info.frame_rate, self.info.format_name
        return Pace.build_by_pts(known, self.info.time_base, rate, is_mean=name == "mov")

    def _read(self) -> Iterator[Packet[VideoStream]]:
        packets = demux(self._container)
        is_numbered = (
            self.info.format_name == "avi"
        )  # the number of a packet is its time, and the decoder puts it in order
        while True:
            self._log.clear()  # messages of encoders and filters
            try:
                packet = next(packets)
            except StopIteration:
                self._harvest()
                return
            except (AvError, OSError) as error:
                self._harvest()
                self._damage_log.record_stop(reason_of(error))
                return
            if self._log:
                self._harvest()
            if is_numbered and packet.dts is not None:  # libavformat invents the PTS
                packet.pts = packet.dts
            if self.info.rate_origin == "given":  # times follow from the number of a frame alone
                packet.pts = packet.dts = None
                packet.duration = self.info.usual_step
            if (
                self._edited
                and packet.stream_index == self._stream.index
                and (pts := self._edited.pts_of(packet)) is not None
            ):
                packet.pts = pts
            self._watch.see_packet(packet)
            if packet.stream_index != self._stream.index:
                continue
            if packet.has_sidedata("encryption_info"):
                raise ReadError("its video is encrypted (Common Encryption); decrypt it first", path=self.path)
            data = bytes(packet)
            if self.info.codec == "theora" and data[0] & THEORA_HEADER:
                continue
            self._watch.see_payload(packet, data)
            if self._count is not None:
                packet.opaque = [
                    self._displayed(packet, data, self._count)
                ]  # PyAV 18 finds an opaque object by identity, so each packet needs its own
            self._watch.see_shown(packet, displayed_by(packet))
            yield cast("Packet[VideoStream]", packet)

    def _displayed(self, packet: Packet[Any], data: bytes, count: Callable[[bytes], PacketInfo]) -> PacketInfo:
        """Return what a packet displays. It may contain another sample description (ISO/IEC 14496-12, 8.5.2), which
        applies to later packets.
        """
        if not packet.is_keyframe or not packet.has_sidedata("new_extradata"):
            return count(data)
        self._count = frame_counter(self.info.codec, bytes(packet.get_sidedata("new_extradata"))) or count
        return self._count(data)._replace(needed_later=True)

    def decode(self, packets: Iterator[Packet[VideoStream]]) -> Iterator[VideoFrame]:
        """Yield the frames of these packets in display order. PTS may be missing or wrong."""
        decoded = chain.from_iterable(map(self._decode, chain(packets, [None])))
        return self._midway.mark(decoded)

    def _decode(self, packet: Packet[VideoStream] | None) -> list[VideoFrame]:
        if packet is not None:
            self._damage_log.record_decoded(packet, displayed_by(packet))
        frames: list[VideoFrame] = []
        try:
            if packet is not None:
                frames = self._held_back.before(packet, self._decoder)
            frames += self._decoder.decode(packet)
        except (AvError, OSError, ValueError) as error:  # one bad packet: the decoder continues with the next
            if isinstance(error, MemoryError):
                raise
            self._damage_log.record_refusal(reason_of(error))
        if self._log:
            self._raise_if_too_large()
            self._harvest()
        if packet is not None and displayed_by(packet).turns:
            self._midway.record_orientation(packet)
        if packet is not None and packet.is_keyframe:
            self._midway.see(packet, self._decoder)
        self._damage_log.record_frames(frames)
        return frames

    def _raise_if_too_large(self) -> None:
        if any("exceeds specified max pixel count" in text for _, _, text in self._log):
            raise LimitError("a frame is over --max-pixels; raise it if it is meant to be that large", path=self.path)

    @cached_property
    def tells_shown_frames(self) -> bool:
        """Whether each packet tells how many frames it displays, and when. With several edits, frames may be displayed
        twice.
        """
        if self._count is None or self.info.format_name not in INDEXED:
            return False
        return self.info.format_name != "mov" or num_edits(self.path, self._stream.id) <= 1

    def seek(self, ticks: int) -> None:
        """Seek to a keyframe at or before a PTS. Raises ReadError."""
        self.begins_inside = True
        self._watch.restart()
        self._head.clear()
        self._reading = self._read()
        try:
            self._container.seek(ticks, stream=self._stream)
        except (AvError, OSError) as error:
            raise ReadError(f"no seek to tick {ticks}: {reason_of(error)}", path=self.path) from error

    @property
    def reorder_depth(self) -> int:
        """Number of frames by which packets are out of order, according to the stream."""
        return self._decoder.reorder_depth

    def peek_timestamps(self, packets: Iterable[Packet[VideoStream] | None]) -> list[int | None]:
        """Decode packets and return the PTS of their frames in the decoder's order; then reset the decoder."""
        shown: list[int | None] = []
        with av.logging.Capture():  # damage is reported when these packets are decoded for display
            for packet in packets:
                with suppress(AvError):
                    shown += [frame.pts for frame in self._decoder.decode(packet)]
        self._decoder.flush_buffers()
        return shown

    def damage(self, *, read_to_end: bool) -> list[str]:
        """Return one line for each kind of damage; an empty list if there is none.

        Args:
            read_to_end: False if reading stopped on purpose; then a missing end is no damage.
        """
        return self._watch.damage(read_to_end=read_to_end)

    def contradictions(self, *, read_to_end: bool) -> list[str]:
        """Return one line for each contradiction of headers with each other or with the data, although no frame is known to be lost."""
        return self._watch.contradictions(read_to_end=read_to_end)

    @property
    def has_sound(self) -> bool:
        return bool(self._container.streams.audio)

    def missing_frames(self, *, read_to_end: bool) -> str | None:
        """Return packets that are missing although no frame behind is known to be wrong; None if none are. Valid when reading stopped."""
        return self._watch.missing_frames(read_to_end=read_to_end)

    @property
    def empty_ticks_at_end(self) -> int:
        """Number of ticks for which the last picture is repeated after its own duration. Valid when the source was read to its end."""
        return self._watch.empty_ticks_at_end

    @property
    def has_headers_alone(self) -> bool:
        """Whether the file, read to its end, is what DASH calls an initialization segment."""
        return self._watch.has_headers_alone
