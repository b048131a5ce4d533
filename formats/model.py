"""Frozen values that cross modules. No I/O here, and no library but the standard one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


Point = tuple[Fraction, Fraction]
CHROMATICITY_UNIT, LUMINANCE_UNIT = 50_000, 10_000  # of the integers in HEVC's SEI message and in mp4's mdcv


class SourceState(NamedTuple):
    """Size and time of change of a source, in ns since 1970. A source with another state has changed."""

    size_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> SourceState:
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
    """What the numbers of a picture mean, as code points of ITU-T H.273.

    matrix: 1 BT.709, 5 and 6 BT.601, 9 BT.2020 ...; 0 for RGB. full_range: False is 16-235.
    """

    matrix: int
    primaries: int
    transfer: int
    full_range: bool = False


@dataclass(frozen=True, slots=True)
class Orientation:
    """What makes a stored picture upright: transpose first, then mirror. Covers all eight display matrices."""

    transpose: bool = False
    flip_horizontal: bool = False
    flip_vertical: bool = False


class Cropping(NamedTuple):
    """Lines and columns of a picture that are not to be shown, as it is stored."""

    top: int
    bottom: int
    left: int
    right: int


NO_CROPPING = Cropping(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a source that is wanted, half-open, by time or by frame number; None means from the start, or to the end.

    Attributes:
        start_seconds: When it begins.
        end_seconds: When it ends.
        start_frame: Number of its first frame, from 0.
        end_frame: Number of the frame after its last.
    """

    start_seconds: float | None = None
    end_seconds: float | None = None
    start_frame: int | None = None
    end_frame: int | None = None

    def __bool__(self) -> bool:
        """Whether it is less than the whole source."""
        return self != WHOLE

    def __str__(self) -> str:
        if self.start_frame is not None or self.end_frame is not None:
            end = "the end" if self.end_frame is None else f"frame {self.end_frame}"
            return f"frame {self.start_frame or 0} to {end}"
        end = "the end" if self.end_seconds is None else f"{self.end_seconds:g} s"
        return f"{self.start_seconds or 0:g} s to {end}"


WHOLE = Cut()


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """What the header of a source claims. Often wrong: counts and durations come from decoding.

    cropping: of the container; what the stream itself crops, its decoder does. duration_seconds: of the container, None when it
    says nothing. num_frames: 0 when it says nothing. start_seconds: first timestamp of the container, whichever its stream.
    has_unused_byte: whether the fourth byte of its pixels has no meaning, though libavcodec takes it for alpha.
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

    @property
    def usual_step(self) -> int:
        """Ticks of a frame, by the rate; 1 when the header has none."""
        return max(1, round(1 / (self.frame_rate * self.time_base))) if self.frame_rate else 1


@dataclass(frozen=True, slots=True)
class MasteringDisplay:
    """The screen that a video was graded on. primaries: red, green, blue, as x and y; white too. Luminance in cd/m²."""

    primaries: tuple[Point, Point, Point]
    white: Point
    min_luminance: Fraction
    max_luminance: Fraction

    @property
    def in_units(self) -> str:
        """As x265, x264 and the manifest have it: in 0.00002 and 0.0001 cd/m²."""
        return self._text(lambda xy: f"{round(xy * CHROMATICITY_UNIT)}", lambda cd: f"{round(cd * LUMINANCE_UNIT)}")

    @property
    def in_decimals(self) -> str:
        """As SVT-AV1 has it."""
        return self._text(lambda xy: f"{float(xy):.5f}", lambda cd: f"{float(cd):.4f}")

    def _text(self, place: Callable[[Fraction], str], light: Callable[[Fraction], str]) -> str:
        red, green, blue = self.primaries
        points = (("G", green), ("B", blue), ("R", red), ("WP", self.white))
        text = "".join(f"{name}({place(x)},{place(y)})" for name, (x, y) in points)
        return f"{text}L({light(self.max_luminance)},{light(self.min_luminance)})"


@dataclass(frozen=True, slots=True)
class ContentLight:
    """How bright a video gets: MaxCLL and MaxFALL, in cd/m²; 0 is unknown."""

    brightest: int
    average: int

    def __str__(self) -> str:
        return f"{self.brightest},{self.average}"


@dataclass(frozen=True, slots=True)
class HdrMetadata:
    """What a video says of these, as far as it is to be believed."""

    mastering: MasteringDisplay | None = None
    content: ContentLight | None = None


NO_HDR_METADATA = HdrMetadata()


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """What one output is: the same for every frame of it.

    time_base: seconds per tick of the frames' PTS. frame_rate: exact for constant rate, else None.
    nominal_rate: what rate control may assume, never above 240. light: of high dynamic range that is kept.
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
    """What is known of a video before a frame of it is read. pts: ticks of time_base; None means frame n is at n / rate."""

    num_frames: int
    height: int
    width: int
    frame_rate: Fraction | None = None
    pts: Sequence[int] | npt.NDArray[np.int64] | None = None
    time_base: Fraction | None = None
    keyframes: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class SourceMap:
    """Which frames of its source a stored video shows.

    Attributes:
        frames: (N,) their numbers, from the first frame shown; None means all of them, in order.
        pts: (N,) when they begin, in ticks from the first frame shown; None means when they are shown here.
        time_base: Seconds per tick of `pts`.
    """

    frames: Sequence[int] | npt.NDArray[np.int64] | None = None
    pts: Sequence[int] | npt.NDArray[np.int64] | None = None
    time_base: Fraction = Fraction(1)


def round_half_away(value: Fraction) -> int:
    """Nearest integer, halves away from zero: AV_ROUND_NEAR_INF, the `round=near` of ffmpeg's fps filter."""
    return int(value + Fraction(1, 2)) if value >= 0 else -int(Fraction(1, 2) - value)


def rescale(ticks: int, from_base: Fraction, to_base: Fraction) -> int:
    """Ticks of another time base, to the nearest, as av_rescale_q does."""
    due = ticks * from_base.numerator * to_base.denominator
    per_tick = from_base.denominator * to_base.numerator
    nearest = (2 * abs(due) + per_tick) // (2 * per_tick)
    return nearest if due >= 0 else -nearest
