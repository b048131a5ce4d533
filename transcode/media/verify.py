"""Verify one output: compare what comes out of the encoder with what went in, and the closed file with that.

Packets are decoded as they leave the encoder, and frame n is compared with frame n that went in. A checksum per packet
is kept, so the closed file can be checked without decoding all of it again.
"""

from __future__ import annotations

import os
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from av.error import FFmpegError as AvError
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from vidprep.formats.errors import NotIndexedError, StoreError, VerifyError
from vidprep.formats.model import OutputFormat, StoredPackets, VideoFacts, rescale
from vidprep.formats.profiles import CODECS
from vidprep.formats.video.gop_frames import DecoderConfig, GopDecoders
from vidprep.formats.video.numbered import NumberedFrames
from vidprep.formats.video.packets import PacketIndex, PacketIndexer, spans_of
from vidprep.formats.video.picture_facts import Turn, turn_of
from vidprep.formats.video.pyav import reason_of, time_base_of, video_decoder, visible_bytes
from vidprep.formats.video.source import open_video
from vidprep.formats.video.writer import payload_checksum
from vidprep.transcode.media.metrics import FrameScorer, QualityReport, QualitySums
from vidprep.transcode.settings.options import QualityGate

KEPT_GOP_BYTES = 4 << 20


def peak_of(pixel_format: str) -> int:
    return 1023 if "10" in pixel_format else 255


def frame_checksum(frame: VideoFrame) -> int:
    """Return CRC-32 of the visible samples of all planes, without line padding."""
    checksum = 0
    sample_bytes = 2 if peak_of(frame.format.name) > 255 else 1
    for plane in frame.planes:
        checksum = zlib.crc32(visible_bytes(plane, plane.width * sample_bytes), checksum)
    return checksum


class _GopFrames:
    """The decoded frames of one GOP; beyond KEPT_GOP_BYTES only their checksums."""

    def __init__(self) -> None:
        self._frames: list[VideoFrame | int] = []
        self._bytes = 0

    def add(self, frame: VideoFrame) -> None:
        self._bytes += sum(plane.buffer_size for plane in frame.planes)
        self._frames.append(frame if self._bytes <= KEPT_GOP_BYTES else frame_checksum(frame))

    def checksums(self) -> list[int]:
        return [item if isinstance(item, int) else frame_checksum(item) for item in self._frames]


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measurements of one output, with one entry for each packet in decode order.

    Attributes:
        is_keyframe: Keyframe flag of each packet
        gops: (first frame, checksums of its decoded frames) of some GOPs, including the first and the last
        samples: Checksums of single decoded frames by number: 1, 2, 4, 8 and so on, and the two closest in time
        keyframe_interval_max: Largest distance between keyframes
    """

    scores: QualitySums
    quality: QualityReport
    num_frames: int
    pts: array[int]
    is_keyframe: bytearray
    checksums: array[int]
    gops: tuple[tuple[int, list[int]], ...]
    samples: dict[int, int]
    keyframes: tuple[int, ...]
    keyframe_interval_max: int


@dataclass(frozen=True, slots=True)
class FileTimes:
    """Times of the frames in a file, and where they are.

    Attributes:
        time_base: Seconds per tick
        pts: Start of each frame in ticks, in order
        packets: Position of each packet; None for frames in a store
    """

    time_base: Fraction
    pts: list[int]
    packets: StoredPackets | None = None


class Verifier:
    """Compares what leaves an encoder with what went in, frame by frame, in bounded memory.

    Call `expect` for each frame before its packets come, `check` for each packet, then `finish`. Raises VerifyError.
    """

    def __init__(
        self, output: OutputFormat, codec: str, decoder: VideoCodecContext, *, gop: int, gate: QualityGate
    ) -> None:
        self._output = output
        self._codec = codec
        self._decoder = decoder
        self._gop = gop
        self._every = gate.verify_every
        self._scorer = FrameScorer(output, gate)
        self._sums = QualitySums()
        self._expected: deque[tuple[int, VideoFrame]] = deque()
        self._num_decoded = 0
        self._pts = array("q")
        self._is_keyframe = bytearray()
        self._checksums = array("L")
        self._first_gop: list[int] = []
        self._gop_frames = _GopFrames()
        self._samples: dict[int, int] = {}
        self._closest: dict[int, int] = {}
        self._closest_ticks: int | None = None
        self._previous: tuple[int, VideoFrame] | None = None
        self._keyframe_pts: set[int] = set()
        self._keyframes: list[int] = []

    def expect(self, frame: VideoFrame, pts: int) -> None:
        """Record a frame before it is encoded. One of another shape is rejected: the encoder would convert it."""
        size, format_ = self._output.size, self._output.pixel_format
        if (frame.width, frame.height) != size or frame.format.name != format_:
            raise VerifyError(
                f"a picture of {frame.width}x{frame.height} {frame.format.name} was made for {size} {format_}"
            )
        self._expected.append((pts, frame))

    def check(self, packet: Packet[VideoStream], framing: str = "encoder") -> None:
        """Decode and compare a packet.

        Args:
            packet: The packet.
            framing: "encoder" for packets of an encoder, "container" for demuxed ones.
        """
        if packet.pts is None:
            raise VerifyError("the encoder gave a packet without a timestamp")
        self._pts.append(packet.pts)
        self._is_keyframe.append(packet.is_keyframe)
        self._checksums.append(_checksum(bytes(packet), packet, self._codec, framing))
        if packet.is_keyframe:
            self._keyframe_pts.add(packet.pts)
        self._decode(packet)

    def finish(self) -> Measurements:
        """Drain the decoder, check that every frame came out, and check the keyframe interval."""
        self._decode(None)
        count = self._num_decoded
        if self._expected:
            raise VerifyError(f"{count + len(self._expected)} frames went in, {count} came out")
        self._sums.vmaf = self._scorer.finish()
        if len(self._pts) != count:
            raise VerifyError(f"{count} frames are in {len(self._pts)} packets")
        due = list(range(0, count, self._gop))
        if self._keyframes != due:
            wrong = sorted(set(self._keyframes) ^ set(due))[0]
            state = "missing" if wrong in due else "too many"
            raise VerifyError(f"a keyframe every {self._gop} frames was requested; at frame {wrong} one is {state}")
        ends = [*due[1:], count]
        gops = [(due[-1], self._gop_frames.checksums())] if due else []
        if len(due) > 1:
            gops.insert(0, (0, self._first_gop))
        return Measurements(
            scores=self._sums,
            quality=self._sums.report(peak_of(self._output.pixel_format)),
            num_frames=count,
            pts=self._pts,
            is_keyframe=self._is_keyframe,
            checksums=self._checksums,
            gops=tuple(gops),
            samples=self._samples | self._closest,
            keyframes=tuple(due),
            keyframe_interval_max=max((end - start for start, end in zip(due, ends, strict=True)), default=0),
        )

    def _decode(self, packet: Packet[VideoStream] | None) -> None:
        try:
            frames = self._decoder.decode(packet)
        except (AvError, ValueError) as error:
            raise VerifyError(f"the output does not decode at frame {self._num_decoded}: {reason_of(error)}") from error
        for frame in frames:
            self._compare(frame)

    def _compare(self, frame: VideoFrame) -> None:
        number = self._num_decoded
        if not self._expected:
            raise VerifyError(f"frame {number} came out and none more went in")
        pts, reference = self._expected.popleft()
        size, format_ = self._output.size, self._output.pixel_format
        if frame.pts != pts:
            raise VerifyError(f"frame {number} went in at tick {pts} and came out at {frame.pts}")
        if (frame.width, frame.height) != size or frame.format.name != format_:
            raise VerifyError(
                f"frame {number} went in as {size} {format_} and came out as {frame.width}x{frame.height} {frame.format.name}"
            )
        if pts in self._keyframe_pts:
            self._keyframe_pts.discard(pts)
            self._keyframes.append(number)
        if number % self._gop == 0:
            if number == self._gop:
                self._first_gop = self._gop_frames.checksums()
            self._gop_frames = _GopFrames()
        self._gop_frames.add(frame)
        self._sample(number, pts, frame)
        if number % self._every == 0:
            self._sums.add(number, self._scorer.score(reference, frame))
        self._num_decoded += 1

    def _sample(self, number: int, pts: int, frame: VideoFrame) -> None:
        if number & (number - 1) == 0:
            self._samples[number] = frame_checksum(frame)
        if self._previous is not None:
            before, neighbour = self._previous
            if self._closest_ticks is None or pts - before < self._closest_ticks:
                self._closest_ticks = pts - before
                self._closest = {number - 1: frame_checksum(neighbour), number: frame_checksum(frame)}
        self._previous = pts, frame


def _checksum(data: bytes, packet: Packet[VideoStream], codec: str, framing: str) -> int:
    try:
        return payload_checksum(data, codec, framing)
    except ValueError as error:
        raise VerifyError(f"the packet at tick {packet.pts} is broken: {error}") from error


def check_file(path: Path, measured: Measurements, codec: str, time_base: Fraction, cores: int = 1) -> FileTimes:
    """Compare the closed file with what was measured, and return the times of its frames.

    The file must have the same number of packets, distinct times, PTS, keyframe flags and coded bytes (apart from
    container framing). Then frames are read by number, as a store reads them: of the first GOP and the last, on both
    sides of joins, the two closest in time, and frames 1, 2, 4, 8 and so on, each from the bytes of its GOP; and those of
    the first GOP and the last once more by a seek in the container, as other readers do. With several cores two threads
    read them.

    Args:
        path: The file.
        measured: Its measurements.
        codec: Its codec.
        time_base: Seconds per tick of `measured`.
        cores: Idle cores.

    Raises:
        VerifyError: Something differs.
    """
    try:
        with open_video(path) as container, path.open("rb") as file:
            if len(container.streams.video) != 1:
                raise VerifyError(f"the file has {len(container.streams.video)} video streams")
            stream = container.streams.video[0]
            config = DecoderConfig(codec, stream.codec_context.extradata or b"")
            indexer = PacketIndexer(codec, config.extradata, file)
            times = _check_packets(container.demux(stream), measured, codec, time_base, time_base_of(stream), indexer)
            index = indexer.finish()
    except NotIndexedError as error:
        raise VerifyError(f"its GOPs cannot be read alone: {error.message}") from error
    except (AvError, OSError) as error:
        raise VerifyError(f"the file does not read back: {reason_of(error)}") from error
    in_gops: dict[int, int] = {}
    for first, checksums in measured.gops:
        in_gops |= enumerate(checksums, first)
    halves = [_Half(measured, path, time_base, index, config, numbers) for numbers in _halves(measured, in_gops, cores)]
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(half.check, in_gops) for half in halves]:
            done.result()
    return replace(times, packets=StoredPackets(config.extradata, index.to_bytes()))


def _halves(measured: Measurements, in_gops: dict[int, int], cores: int) -> list[list[int]]:
    """Return the numbers of the frames to read, in one list or, if there are cores for that, in two without a common GOP."""
    numbers, keyframes, later = sorted(measured.samples.keys() | in_gops.keys()), measured.keyframes, 0
    if cores > 1 and numbers:
        gops = sorted({bisect_right(keyframes, number) - 1 for number in numbers})
        later = bisect_left(numbers, keyframes[gops[len(gops) // 2]])
    return [half for half in (numbers[:later], numbers[later:]) if half]


@dataclass(frozen=True, slots=True)
class _Half:
    """Frames of a closed file to be read by one thread.

    Attributes:
        measured: Measurements of the file
        time_base: Seconds per tick of `measured`
        config: Configuration of its decoder
        numbers: Numbers of the frames, ascending
    """

    measured: Measurements
    path: Path
    time_base: Fraction
    index: PacketIndex
    config: DecoderConfig
    numbers: list[int]

    def check(self, in_gops: dict[int, int]) -> None:
        """Compare frames with their checksums. Raises VerifyError.

        Args:
            in_gops: Checksums of the frames of whole GOPs, by number.
        """
        expected = self.measured.samples | in_gops
        try:
            self._compare(self._read_gops(), expected)
            by_seeks = [number for number in self.numbers if number in in_gops]
            with closing(NumberedFrames(None, self.path, self.path.stem, self._facts())) as reader:
                self._compare(reader.read(by_seeks), expected)
        except StoreError as error:
            raise VerifyError(f"the file does not read back by number: {error.message}") from error
        except (AvError, OSError) as error:
            raise VerifyError(f"the file does not read back: {reason_of(error)}") from error

    def _facts(self) -> VideoFacts:
        measured = self.measured
        return VideoFacts(
            measured.num_frames, 0, 0, pts=sorted(measured.pts), time_base=self.time_base, keyframes=measured.keyframes
        )

    def _read_gops(self) -> Iterator[tuple[int, VideoFrame]]:
        decoders, wanted = GopDecoders(), set(self.numbers)
        with self.path.open("rb") as file:
            for span, inside in spans_of(self.index, self.numbers):
                data = memoryview(os.pread(file.fileno(), span.size, span.offset))
                for number, frame in decoders.frames(self.config, self.index, span, data, inside):
                    wanted.remove(number)
                    yield number, frame
        if wanted:
            raise VerifyError(f"frames {sorted(wanted)} do not come out of their GOPs")

    @staticmethod
    def _compare(frames: Iterator[tuple[int, VideoFrame]], expected: dict[int, int]) -> None:
        for number, frame in frames:
            if frame_checksum(frame) != expected[number]:
                raise VerifyError(f"frame {number}, read by its number, is another picture than was measured")
            if turn_of(frame) != Turn():
                raise VerifyError("the file has a display matrix, by which players would turn its upright pictures")


def _check_packets(
    packets: Iterator[Packet[VideoStream]],
    measured: Measurements,
    codec: str,
    time_base: Fraction,
    file_base: Fraction,
    indexer: PacketIndexer,
) -> FileTimes:
    count = 0
    times: set[int] = set()
    for packet in packets:
        if not packet.size:
            continue
        if count >= measured.num_frames:
            raise VerifyError(f"the file has more than the {measured.num_frames} packets that were measured")
        due = rescale(measured.pts[count], time_base, file_base)
        times.add(due)
        if packet.pts != due:
            raise VerifyError(f"packet {count} has PTS {packet.pts} in the file, {due} was written")
        if packet.is_keyframe != bool(measured.is_keyframe[count]):
            raise VerifyError(f"packet {count} has another keyframe flag in the file than was written")
        data = bytes(packet)
        if _checksum(data, packet, codec, "container") != measured.checksums[count]:
            raise VerifyError(f"packet {count} has other bytes in the file than were measured")
        indexer.add(packet, data)
        count += 1
    if count != measured.num_frames:
        raise VerifyError(f"the file has {count} packets, {measured.num_frames} were written")
    if len(times) != count:
        raise VerifyError(f"{count - len(times)} frames share a timestamp in the file")
    return FileTimes(file_base, sorted(times))


def check_decoder(codec: str, extradata: bytes | None) -> VideoCodecContext:
    """Return the single-threaded decoder with which packets of this codec are verified."""
    decoder = video_decoder(CODECS[codec].check_decoder)
    decoder.extradata = extradata
    decoder.thread_count = 1
    return decoder
