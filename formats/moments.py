"""Map times to frames: which frame a time in seconds means, which frames a cut contains, and the ticks of output files.

Times that users write are rarely exact: k / fps as a double, running sums, float32 columns, microseconds, milliseconds.
Times in files are rounded too (Matroska stores milliseconds), and cameras jitter. So a time means a frame if the two
differ by no more than a tolerance: a quarter of the usual frame interval, and at most 5 ms if the rate varies.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from statistics import median_low
from typing import TYPE_CHECKING, Self

from vidprep.formats.model import Cut
from vidprep.formats.profiles import CONTAINERS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


# libavformat's mp4 demuxer drops all composition offsets of a file when one is larger, in ticks of the file.
MAX_OFFSET_TICKS = 1 << 28
# Its mp4 muxer aborts the process where a sample and the lead of its DTS together pass 2^31.
MAX_STEP_TICKS = 3 << 29
# Later than this, nanoseconds no longer fit into the 64 bits that readers of mkv count them in.
MAX_SECONDS = 1 << 32
REORDERED_FRAMES = 16
MIN_MP4_TIMESCALE = 10_000
EXACT_MP4_TIMESCALE, COARSE_MP4_TIMESCALE = 10_000_000, 1_000_000
MILLISECOND = Fraction(1, 1000)


def file_time_base(container: str, time_base: Fraction, *, is_constant: bool) -> Fraction:
    """Return the time base of an output file, in seconds per tick, to which PTS are rounded.

    Matroska and WebM count milliseconds. MP4 keeps the time base exactly, unless 32-bit differences between timestamps
    would then be too short: they must span 16 frames of one tick each (`is_constant`), or some minutes otherwise.

    Args:
        container: Name of the container.
        time_base: Seconds per tick of the frames.
        is_constant: Whether each frame lasts one tick.
    """
    if CONTAINERS[container].milliseconds:
        return MILLISECOND
    exact = time_base.denominator
    while exact < MIN_MP4_TIMESCALE:
        exact *= 2
    most = max(1, int(MAX_OFFSET_TICKS / (REORDERED_FRAMES * time_base)))
    if not is_constant and exact > EXACT_MP4_TIMESCALE:
        most = min(most, COARSE_MP4_TIMESCALE)
    if exact <= most:
        return Fraction(1, exact)
    return Fraction(1, most - most % time_base.denominator or most)


TOLERANCE = Fraction(1, 4)  # share of the usual frame interval
MAX_VARIABLE_TOLERANCE_SECONDS = Fraction(5, 1000)
WHOLE_TICKS_FROM = 4
USUAL_RATE = Fraction(25)  # if neither timestamps nor the header give one


def exact_seconds(seconds: float) -> Fraction:
    """Return the decimal number that was written: 0.04 is 1/25, not the double just below it."""
    return Fraction(repr(float(seconds)))


def is_variable(steps: Iterable[int], time_base: Fraction) -> bool:
    """Return whether frame intervals (in ticks) differ by more than 2.5 ms + 2 %, which is more than the rounding of a millisecond grid."""
    known = set(steps)
    if len(known) < 2:
        return False
    return differ(min(known) * time_base, max(known) * time_base)


def differ(low: Fraction, high: Fraction) -> bool:
    """Return whether two frame intervals in seconds differ; see `is_variable`."""
    return high - low > Fraction(25, 10_000) + low / 50


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Maximum difference, in seconds, between a time and the start of the frame that it means."""

    seconds: Fraction

    def earliest(self, time: Fraction) -> Fraction:
        """Return the earliest start of a frame that counts as starting at `time` or later."""
        return time - self.seconds

    def latest(self, time: Fraction) -> Fraction:
        """Return the latest start of a frame that counts as on screen at `time`."""
        return time + self.seconds

    def first_from(self, ticks: Sequence[int], time_base: Fraction, time: Fraction) -> int:
        """Return the number of the first frame that starts at `time` or later; ``len(ticks)`` if none does."""
        return bisect_left(ticks, self.earliest(time) / time_base)

    def shown_at(self, begins: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
        """Return the numbers of the frames on screen at these times; -1 before the first frame."""
        return begins.searchsorted(times + float(self.seconds), side="right") - 1

    def means_same(self, one: float | None, other: float | None) -> bool:
        """Return whether two times mean the same frame. None equals only None."""
        if one is None or other is None:
            return one is other
        return abs(exact_seconds(one) - exact_seconds(other)) <= self.seconds


LEAST_KNOWN = Tolerance(MAX_VARIABLE_TOLERANCE_SECONDS)  # for a video of which nothing is known


@dataclass(frozen=True, slots=True)
class Pace:
    """Distance between the frames of a video, which decides the frame that a time means.

    Attributes:
        interval: Usual time from one frame to the next, in seconds
        is_variable: Whether the rate varies
        shortest: Shortest time between two frames at a variable rate, in seconds; `interval` at a constant rate
        tolerance: A quarter of the interval, and at most 5 ms at a variable rate
    """

    interval: Fraction
    is_variable: bool
    shortest: Fraction
    tolerance: Tolerance

    @classmethod
    def of(
        cls, interval: Fraction, *, is_variable: bool, shortest: Fraction | None = None, tick: Fraction | None = None
    ) -> Self:
        """Build a pace from an interval in seconds.

        Args:
            interval: Usual time from one frame to the next.
            is_variable: Whether the rate varies.
            shortest: Shortest such time; None means `interval`.
            tick: Time base of the video. A tolerance of four ticks or more is rounded up to whole ticks, so that an ffmpeg
                filter, which counts in ticks, can apply the same one.
        """
        tolerance = interval * TOLERANCE
        if is_variable:
            tolerance = min(tolerance, MAX_VARIABLE_TOLERANCE_SECONDS)
        if tick is not None and tolerance >= WHOLE_TICKS_FROM * tick:
            tolerance = math.ceil(tolerance / tick) * tick
        return cls(interval, is_variable, interval if shortest is None else shortest, Tolerance(tolerance))

    @classmethod
    def of_pts(cls, pts: Sequence[int], time_base: Fraction, rate: Fraction | None, *, is_mean: bool) -> Self:
        """Build a pace from the first timestamps of a video and the rate in its header.

        Args:
            pts: Timestamps in ascending order, in ticks.
            time_base: Seconds per tick.
            rate: Frames per second by the header; None if it has none.
            is_mean: Whether `rate` is the mean over the whole video, which shows a rate that varies later.
        """
        steps = sorted(other - one for one, other in pairwise(pts) if other > one)
        claimed = 1 / rate if rate else None
        if not steps:
            return cls.of(claimed or 1 / USUAL_RATE, is_variable=False, tick=time_base)
        usual = median_low(steps) * time_base
        agrees = claimed is not None and not differ(min(usual, claimed), max(usual, claimed))
        varies = is_variable(steps, time_base) or (is_mean and claimed is not None and not agrees)
        interval = claimed if claimed is not None and agrees and not varies else usual
        return cls.of(interval, is_variable=varies, shortest=steps[0] * time_base if varies else None, tick=time_base)


@dataclass(frozen=True, slots=True)
class OutputClock:
    """A constant output rate: output k shows the frame that is on screen at k / rate.

    Attributes:
        rate: Output frames per second
        tolerance: That of the source in seconds; but a quarter of an output frame if it would be an output frame or more, since the
            output would then run ahead of its source
    """

    rate: Fraction
    tolerance: Fraction

    @classmethod
    def of(cls, rate: Fraction, pace: Pace) -> Self:
        tolerance = pace.tolerance.seconds
        return cls(rate, tolerance if tolerance * rate < 1 else TOLERANCE / rate)

    def first_output(self, seconds: Fraction) -> int:
        """Return the first output that shows a frame which begins at `seconds`: the lowest k with seconds <= k / rate + tolerance.

        A frame on screen before time 0 is first shown by output 0. Also the number of outputs of a video or cut of `seconds`.
        """
        return max(0, math.ceil((seconds - self.tolerance) * self.rate))


@dataclass(frozen=True, slots=True)
class Window:
    """Part of a source that one output shows. All times are in ticks and count from the first frame displayed.

    Attributes:
        start: Start of the cut; None if it starts with the first frame, or is given by frame numbers
        end: End of the cut; None if it ends with the last frame, or is given by frame numbers
        begin: Earliest start of a frame of the cut; with `holds`, latest start of a frame that is on screen at `start`
        stop: The first frame at or after this tick is no longer part of the cut
        start_frame: Number of the first frame, from 0; None if times are given
        end_frame: Number of the frame after the last; None if times are given
        interval: The frame on screen at `start` is shown first if the first frame of the cut starts more than this
            after `start`
        tolerance: Tolerance of all comparisons with `start` and `end`
        on_clock: Whether output frames follow a constant clock (`--fps`), so that a frame is held until the next one
        holds: Whether the frame on screen at `start` always comes first
        container_start: PTS of the container's start if `start` and `end` count from there, else None
    """

    start: Fraction | None
    end: Fraction | None
    begin: Fraction | None
    stop: Fraction | None
    start_frame: int | None
    end_frame: int | None
    interval: Fraction
    tolerance: Fraction
    on_clock: bool
    holds: bool
    container_start: Fraction | None = None

    @classmethod
    def of(
        cls,
        cut: Cut,
        pace: Pace,
        time_base: Fraction,
        *,
        clock: OutputClock | None,
        container_start: Fraction | None = None,
    ) -> Self:
        """Build the window of a cut.

        Args:
            cut: The requested part of the source.
            pace: Pace of the source.
            time_base: Seconds per tick of the source.
            clock: Constant rate of the output; None keeps the source's own times.
            container_start: PTS from which the seconds of the cut count; None means the first frame displayed.
        """
        start, end = (
            None if seconds is None else exact_seconds(seconds) for seconds in (cut.start_seconds, cut.end_seconds)
        )
        near = pace.tolerance if clock is None else Tolerance(clock.tolerance)
        on_clock = clock is not None
        low = None if start is None else (near.latest(start) if on_clock else near.earliest(start))
        return cls(
            start=None if start is None else start / time_base,
            end=None if end is None else end / time_base,
            begin=None if low is None else low / time_base,
            stop=None if end is None else (end if on_clock else near.earliest(end)) / time_base,
            start_frame=cut.start_frame,
            end_frame=cut.end_frame,
            interval=pace.shortest / time_base,
            tolerance=near.seconds / time_base,
            on_clock=on_clock,
            holds=on_clock and start is not None,
            container_start=container_start,
        )

    @property
    def is_whole(self) -> bool:
        """Whether the output starts with the first frame of the source."""
        return self.start is None and not self.start_frame

    def counted_from(self, origin_pts: int) -> Window:
        """Return the same window counted from the first frame displayed, which has this PTS."""
        if self.container_start is None:
            return self
        shift = self.container_start - origin_pts

        def moved(tick: Fraction | None, least: Fraction) -> Fraction | None:
            return None if tick is None else max(tick + shift, least)

        late = self.tolerance if self.holds else -self.tolerance
        least_stop = Fraction(0) if self.on_clock else -self.tolerance
        return replace(
            self,
            start=moved(self.start, Fraction(0)),
            begin=moved(self.begin, late),
            end=moved(self.end, Fraction(0)),
            stop=moved(self.stop, least_stop),
            container_start=None,
        )

    def from_tick(self, tick: int) -> Window:
        """Return the rest of this window from a frame that starts at exactly this tick."""
        return replace(
            self, start=Fraction(tick), begin=Fraction(tick), start_frame=None, holds=False, container_start=None
        )

    def is_before(self, tick: int, index: int) -> bool:
        """Return whether a frame is before the cut, or is the one on screen when it starts."""
        if self.start_frame is not None:
            return index < self.start_frame
        if self.begin is None:
            return False
        return tick <= self.begin if self.holds else tick < self.begin

    def is_past(self, tick: int, index: int) -> bool:
        """Return whether a frame is after the cut."""
        if self.end_frame is not None:
            return index >= self.end_frame
        return self.stop is not None and tick >= self.stop

    def shows_before(self, tick: int) -> bool:
        """Return whether the frame before the first frame of the cut is shown.

        Args:
            tick: Start of the first frame of the cut.
        """
        return self.start is not None and (self.holds or tick - self.start > self.interval)

    def outlasts_start(self, end_tick: int) -> bool:
        """Return whether a frame that ends at this tick is on screen when the cut starts."""
        return self.start is not None and end_tick > self.start + self.tolerance

    def opening(self, tick: int, *, is_held: bool) -> Fraction:
        """Return time 0 of the output, in ticks.

        Args:
            tick: Start of the first frame of the output.
            is_held: Whether that frame was on screen before the cut began.
        """
        if self.start is None or not (self.holds or is_held):
            return Fraction(tick)
        return self.start if self.on_clock else Fraction(round(self.start))

    def end_of(self, tick: int, end_tick: int) -> int:
        """Return the end of a frame, cut off at the end of the cut if the frame ends later than that by more than the
        tolerance. On a clock, frames are not cut off.
        """
        if self.end is None or self.on_clock or end_tick <= self.end + self.tolerance:
            return end_tick
        return max(tick + 1, round(self.end))

    def is_settled(self, tick: int | None, stamps: Sequence[int], reorder: int) -> bool:
        """Return whether the first frame that is needed is known.

        Args:
            tick: DTS of the last packet that was read.
            stamps: Timestamps of frames, ascending.
            reorder: Number of frames by which packets may be out of order.
        """
        if self.start_frame is not None:
            return len(stamps) > self.start_frame + reorder
        assert self.start is not None
        return tick is not None and tick >= self.start + self.tolerance

    def may_begin_at(self, tick: int, stamps: Sequence[int]) -> bool:
        """Return whether the first needed frame is certainly not before this tick. `stamps` are those of all frames before
        it, ascending.
        """
        if self.start_frame is not None:
            return bisect_left(stamps, tick) <= self.start_frame
        assert self.begin is not None
        return tick <= self.begin if self.holds else tick < self.begin

    def first_needed(self, stamps: Sequence[int]) -> int:
        """Return the start of the first needed frame. `stamps` are ascending, at least one."""
        if self.start_frame is not None:
            return stamps[min(self.start_frame, len(stamps) - 1)]
        assert self.begin is not None and self.start is not None
        if self.holds:
            return stamps[max(0, bisect_right(stamps, self.begin) - 1)]
        number = bisect_left(stamps, self.begin)
        if number and (number == len(stamps) or self._needs_before(stamps[number])):
            number -= 1
        return stamps[number]

    def _needs_before(self, tick: int) -> bool:
        """Return whether the frame before is needed. `tick` is the start of the first frame that is not before the cut."""
        if self.is_past(tick, 0):
            return not self.begins_by_start(tick)
        return self.shows_before(tick)

    def begins_by_start(self, tick: int) -> bool:
        """Return whether a frame that starts at this tick is on screen when the cut starts, or later."""
        return tick <= (self.start or 0) + self.tolerance
