"""Frozen value types that several packages share. This module does no I/O and imports only the standard library."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


Point = tuple[Fraction, Fraction]
CHROMATICITY_UNIT, LUMINANCE_UNIT = 50_000, 10_000  # units of the integers in HEVC's SEI message and in mp4's mdcv


class SourceState(NamedTuple):
    """Size and modification time (ns since 1970) of a source. A source in another state has changed."""

    size_bytes: int
    mtime_ns: int

    @classmethod
    def build(cls, status: os.stat_result) -> SourceState:
        """Return the state of a file."""
        return cls(status.st_size, status.st_mtime_ns)


class FrameSize(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


@dataclass(frozen=True, slots=True)
class Colour:
    """Meaning of sample values, as code points of ITU-T H.273.

    Attributes:
        matrix: 1 for BT.709, 5 and 6 for BT.601, 9 for BT.2020, 0 for RGB
        full_range: Whether luma of 8 bits spans 0 to 255; False means 16 to 235
    """

    matrix: int
    primaries: int
    transfer: int
    full_range: bool = False


@dataclass(frozen=True, slots=True)
class Orientation:
    """Steps that turn a stored picture upright: transpose first, then mirror. They cover all eight combinations of
    right-angle rotations and flips.
    """

    transpose: bool = False
    flip_horizontal: bool = False
    flip_vertical: bool = False


class Cropping(NamedTuple):
    """Lines and columns of the stored picture that are not displayed."""

    top: int
    bottom: int
    left: int
    right: int


NO_CROPPING = Cropping(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Cut:
    """Part of a source, as a half-open interval of times or of frame numbers. None means from the start, or to the end.

    Attributes:
        start_frame: Number of the first frame, from 0
        end_frame: Number of the frame after the last one
        video_stream: Number of the video stream, from 0 and without covers; None for the best, or that of the settings
    """

    start_seconds: float | None = None
    end_seconds: float | None = None
    start_frame: int | None = None
    end_frame: int | None = None
    video_stream: int | None = None

    def __bool__(self) -> bool:
        """Return whether the cut is less than the whole source."""
        return self != WHOLE

    def __str__(self) -> str:
        if self.video_stream is not None:
            return f"stream {self.video_stream}, {replace(self, video_stream=None)}"
        if self.start_frame is not None or self.end_frame is not None:
            end = "the end" if self.end_frame is None else f"frame {self.end_frame}"
            return f"frame {self.start_frame or 0} to {end}"
        end = "the end" if self.end_seconds is None else f"{self.end_seconds:g} s"
        return f"{self.start_seconds or 0:g} s to {end}"


WHOLE = Cut()


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """Properties of a video stream according to its header. They are often wrong: real counts and durations come from
    decoding.

    Attributes:
        format_name: libavformat's name of the container
        num_video_streams: Number of video streams, without cover pictures
        codec: libavcodec's name of the codec
        decoder: libavcodec's name of the decoder to use
        pixel_format: libavutil's name of the pixel format
        time_base: Seconds per tick of the packets' timestamps
        frame_rate: Average rate; None if unknown
        sample_aspect_ratio: Shape of a pixel, width by height
        duration_seconds: Duration of the container; None if unknown
        num_frames: Number of frames; 0 if unknown
        has_alpha_layer: Whether a WebM file has a second layer for alpha
        cropping: Cropping by the container. Cropping by the codec is done by its decoder
        start_seconds: First timestamp of the container, in any of its streams; None if unknown
        has_alpha_track: Whether another track holds the alpha
        has_unused_byte: Whether the fourth byte of each pixel has no meaning although libavcodec calls it alpha
        rate_origin: "guessed" for a raw stream that tells no rate, "given" if `frame_rate` is that of the caller; else ""
    """

    format_name: str
    stream_index: int
    num_video_streams: int
    codec: str
    decoder: str
    width: int
    height: int
    pixel_format: str
    time_base: Fraction
    frame_rate: Fraction | None
    sample_aspect_ratio: Fraction
    duration_seconds: float | None
    num_frames: int
    has_alpha_layer: bool
    cropping: Cropping = NO_CROPPING
    start_seconds: Fraction | None = None
    has_unused_byte: bool = False
    has_alpha_track: bool = False
    rate_origin: str = ""

    @property
    def usual_step(self) -> int:
        """Ticks of a frame, from the header's rate; 1 if there is none."""
        return max(1, round(1 / (self.frame_rate * self.time_base))) if self.frame_rate else 1


@dataclass(frozen=True, slots=True)
class MasteringDisplay:
    """Mastering display of a video: chromaticities (x, y) of primaries and white, luminance in cd/m²."""

    primaries: tuple[Point, Point, Point]
    white: Point
    min_luminance: Fraction
    max_luminance: Fraction

    @property
    def in_units(self) -> str:
        """Return the values as x265, x264 and the manifest store them, in units of 0.00002 (chromaticity) and 0.0001
        cd/m².
        """
        return self._text(lambda xy: f"{round(xy * CHROMATICITY_UNIT)}", lambda cd: f"{round(cd * LUMINANCE_UNIT)}")

    @property
    def in_decimals(self) -> str:
        """Return the values as SVT-AV1 expects them, as decimal numbers."""
        return self._text(lambda xy: f"{float(xy):.5f}", lambda cd: f"{float(cd):.4f}")

    def _text(self, place: Callable[[Fraction], str], light: Callable[[Fraction], str]) -> str:
        red, green, blue = self.primaries
        points = (("G", green), ("B", blue), ("R", red), ("WP", self.white))
        text = "".join(f"{name}({place(x)},{place(y)})" for name, (x, y) in points)
        return f"{text}L({light(self.max_luminance)},{light(self.min_luminance)})"


@dataclass(frozen=True, slots=True)
class ContentLight:
    """Content light level of a video in cd/m².

    Attributes:
        brightest: MaxCLL; 0 if unknown
        average: MaxFALL; 0 if unknown
    """

    brightest: int
    average: int

    def __str__(self) -> str:
        return f"{self.brightest},{self.average}"


@dataclass(frozen=True, slots=True)
class HdrMetadata:
    """HDR metadata of a video, without values that cannot be true."""

    mastering: MasteringDisplay | None = None
    content: ContentLight | None = None


NO_HDR_METADATA = HdrMetadata()


class Selected(NamedTuple):
    """Frames of a video of a finished destination.

    Attributes:
        place: Absolute path or URL of the destination
        id: The video
        start_frame: Number of the first frame, from 0; None for the whole video
        end_frame: Number of the frame after the last one; None for the whole video
        sha256: SHA-256 of the video's bytes
    """

    place: str
    id: str
    start_frame: int | None
    end_frame: int | None
    sha256: str


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """Properties that all frames of one output share.

    Attributes:
        size: Width and height in pixels
        pixel_format: libavutil's name of the pixel format
        time_base: Seconds per tick of the frames' PTS
        frame_rate: Exact rate of a constant-rate output, else None
        nominal_rate: Rate that rate control assumes, at most 240
        light: HDR metadata, if HDR is kept
    """

    size: FrameSize
    pixel_format: str
    colour: Colour
    time_base: Fraction
    frame_rate: Fraction | None
    nominal_rate: Fraction
    light: HdrMetadata = NO_HDR_METADATA


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """Properties of a stored video that are known before a frame is read.

    Attributes:
        frame_rate: Exact rate of a constant-rate video, else None
        pts: Start of each frame in ticks of `time_base`; None means that frame n starts at n / `frame_rate`
        time_base: Seconds per tick of `pts`
        keyframes: Numbers of the keyframes, ascending; None if every frame is decoded independently
        duration: Duration in seconds; None if only `pts` and `frame_rate` tell
    """

    num_frames: int
    height: int
    width: int
    frame_rate: Fraction | None = None
    pts: Sequence[int] | npt.NDArray[np.int64] | None = None
    time_base: Fraction | None = None
    keyframes: Sequence[int] | None = None
    duration: Fraction | None = None

    def tick_of(self, number: int, time_base: Fraction) -> int:
        """Return the start of a frame in ticks of a time base, from the start of frame 0."""
        if self.pts is not None and self.time_base is not None:
            return rescale(int(self.pts[number]), self.time_base, time_base)
        assert self.frame_rate is not None
        return rescale(number, 1 / self.frame_rate, time_base)


@dataclass(frozen=True, slots=True)
class StoredPackets:
    """Packets of a video as `gops.parquet` stores them.

    Attributes:
        extradata: Configuration record of the decoder; empty if the codec has none
        packets: Bytes of a `PacketIndex`; None if its GOPs cannot be read alone
        not_indexed: Why they cannot
    """

    extradata: bytes = b""
    packets: bytes | None = None
    not_indexed: str | None = None


@dataclass(frozen=True, slots=True)
class SourceMap:
    """Source frames that the frames of a stored video show.

    Attributes:
        frames: (N,) number of each source frame, counted from the first one displayed; None means all of them in order
        pts: (N,) start of each source frame, in ticks from the first one displayed; None means the same times as in the
            store
        time_base: Seconds per tick of `pts`
    """

    frames: Sequence[int] | npt.NDArray[np.int64] | None = None
    pts: Sequence[int] | npt.NDArray[np.int64] | None = None
    time_base: Fraction = Fraction(1)


def round_half_away(value: Fraction) -> int:
    """Round to the nearest integer, halves away from zero: AV_ROUND_NEAR_INF, the `round=near` of ffmpeg's fps filter."""
    return int(value + Fraction(1, 2)) if value >= 0 else -int(Fraction(1, 2) - value)


def rescale(ticks: int, from_base: Fraction, to_base: Fraction) -> int:
    """Convert ticks to another time base, rounded to nearest, as av_rescale_q does."""
    due = ticks * from_base.numerator * to_base.denominator
    per_tick = from_base.denominator * to_base.numerator
    nearest = (2 * abs(due) + per_tick) // (2 * per_tick)
    return nearest if due >= 0 else -nearest
