"""Changes in the middle of a stream: pixel shape (broadcasts between 4:3 and 16:9), display matrix (a phone that is
turned), frame size.

The decoder reports a change only at the first changed frame; later frames are marked here with the values that hold for
them. At a change of the frame size, libavcodec's decoder of MPEG-1 and MPEG-2 loses the frame that it holds back,
unless it is requested before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import NamedTuple, cast

from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from vidprep.formats.video.pyav import display_matrix, fraction

CODECS = {"mpeg1video", "mpeg2video"}
SEQUENCE_HEADER = b"\0\0\1\xb3"  # 12 bits of width and of height follow (ISO/IEC 13818-2, 6.2.2.1)
LOOKED_AT = 4096


class HeldBackFrames:
    """Requests the frame that a decoder holds back, before a packet that changes the size."""

    def __init__(self, codec: str) -> None:
        """Prepare for the packets of one stream, of libavcodec's codec name."""
        self._looks = codec in CODECS
        self._size: bytes | None = None

    def before(self, packet: Packet[VideoStream], decoder: VideoCodecContext) -> list[VideoFrame]:
        """Return frames to take before a packet is decoded; nearly always none. Raises PyAV's errors."""
        if not self._looks:
            return []
        head = bytes(packet)[:LOOKED_AT]
        at = head.find(SEQUENCE_HEADER)
        size = head[at + 4 : at + 7] if at >= 0 else self._size
        changes, self._size = self._size not in (None, size), size
        if not changes:
            return []
        frames = decoder.decode(None)
        decoder.flush_buffers()
        return frames


HOLD_TURNS = {
    "h264",
    "hevc",
}  # codecs in which a display matrix holds for later frames too; in others each frame has its own


class FrameProperties(NamedTuple):
    """Values that earlier frames set for a frame.

    Attributes:
        shape: Sample aspect ratio; None while it equals the header's
        matrix: Display matrix if packets carry some; None if none holds, or if only the container or each frame carries
            one
    """

    shape: Fraction | None = None
    matrix: bytes | None = None


def properties_of(frame: VideoFrame) -> FrameProperties:
    """Return the values that earlier frames set for a frame of `Source.decode`."""
    carried = cast("list[FrameProperties] | None", frame.opaque)
    return FrameProperties() if carried is None else carried[0]


class MidwayChanges:
    """Attaches pixel shape and display matrix to frames."""

    def __init__(self, declared: Fraction, codec: str) -> None:
        """Set the initial values.

        Args:
            declared: Sample aspect ratio of the header. If container and stream differ, the container counts.
            codec: libavcodec's name of the codec.
        """
        self._shapes = _Shapes(declared)
        self._turns = _Turns() if codec in HOLD_TURNS else None

    def see(self, keyframe: Packet[VideoStream], decoder: VideoCodecContext) -> None:
        """Record a keyframe that was sent to the decoder."""
        self._shapes.see(keyframe, decoder)

    def record_orientation(self, packet: Packet[VideoStream]) -> None:
        """Record a packet with an orientation. libavcodec returns no matrix for an upright or cancelled one."""
        if self._turns is not None:
            self._turns.see(packet.pts)

    def mark(self, frames: Iterable[VideoFrame]) -> Iterator[VideoFrame]:
        """Yield the frames of the decoder, in order."""
        for frame, matrix in self._turn(frames):
            shape = self._shapes.aspect_at(frame)
            if shape is not None or matrix is not None:
                frame.opaque = [
                    FrameProperties(shape, matrix)
                ]  # PyAV 18 finds an opaque object by identity, so each frame needs its own
            yield frame

    def _turn(self, frames: Iterable[VideoFrame]) -> Iterator[tuple[VideoFrame, bytes | None]]:
        return ((frame, None) for frame in frames) if self._turns is None else self._turns.iterate(frames)


class _Shapes:
    """Sample aspect ratios. They change at a keyframe; frames displayed before it may come out after it."""

    def __init__(self, declared: Fraction) -> None:
        self._declared = self._last = declared
        self._is_followed: bool | None = None
        self._has_told = False  # a stream without a ratio from here on has square pixels
        self._waiting: list[tuple[int | None, Fraction]] = []  # PTS of the keyframe that contained it
        self._now: Fraction | None = None

    def see(self, keyframe: Packet[VideoStream], decoder: VideoCodecContext) -> None:
        aspect = fraction(decoder.sample_aspect_ratio)
        if aspect is None and self._has_told:
            aspect = Fraction(1)
        self._has_told |= aspect is not None
        if self._is_followed is None:
            self._is_followed = aspect in (None, self._declared)
        if self._is_followed and aspect is not None and aspect != self._last:
            self._waiting.append((keyframe.pts, aspect))
            self._last = aspect

    def aspect_at(self, frame: VideoFrame) -> Fraction | None:
        if self._waiting and (frame.key_frame or frame.pts == self._waiting[0][0]):
            _, self._now = self._waiting.pop(0)
        return self._now


class _Turns:
    """Display matrices of H.264 and HEVC, which libavcodec gives with the very frame whose packet brought one.

    They hold until the next keyframe (ITU-T H.264, D.2.27). Some writers give one with the frame behind a keyframe instead (ffmpeg's
    h264_metadata), some only once: a keyframe ends it where the frame behind has none either, and keyframes had one before.
    """

    def __init__(self) -> None:
        self._held: bytes | None = None
        self._times_given = 0
        self._looks = False  # whether to inspect frames, which takes as long as decoding a small one
        self._told: list[int] = []  # PTS of packets with an orientation

    def see(self, pts: int | None) -> None:
        """Record a packet with an orientation, by its PTS."""
        self._looks = True
        if pts is not None:
            self._told.append(pts)

    def iterate(self, frames: Iterable[VideoFrame]) -> Iterator[tuple[VideoFrame, bytes | None]]:
        """Yield each frame with the matrix that holds for it."""
        doubtful: VideoFrame | None = None  # a keyframe without a matrix
        for frame in frames:
            own = display_matrix(frame) if self._looks else None
            if own is None and self._has_orientation(frame):
                self._held = None
            if doubtful is not None:
                if own is None and self._times_given > 1:
                    self._held = None
                yield doubtful, self._held
                doubtful = None
            if own is not None:
                self._times_given = 1 if own != self._held else self._times_given + 1
                self._held = own
            if own is None and self._held is not None and frame.key_frame:
                doubtful = frame
            else:
                yield frame, self._held
        if doubtful is not None:
            yield doubtful, self._held

    def _has_orientation(self, frame: VideoFrame) -> bool:
        """Return whether a frame's packet contains an orientation."""
        if frame.pts is None or frame.pts not in self._told:
            return False
        self._told.remove(frame.pts)
        return True
