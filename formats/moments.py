"""Map times to frames: which frame a time in seconds means, which frames a cut contains, and the ticks of output files.

Times that users write are rarely exact: k / fps as a double, running sums, float32 columns, microseconds, milliseconds.
Times in files are rounded too (Matroska stores milliseconds), and cameras jitter. So a time means a frame if the two
differ by no more than a tolerance: a quarter of the usual frame interval, and at most 5 ms if the rate varies. A constant output
rate has a wider one: it shows the nearest frame (`OutputClock`).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from statistics import linear_regression, median_low
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

    def frames_at(self, begins: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
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
        usual: The shorter typical time between two frames, in seconds: 1/29.97 for film with 3:2 pulldown
        starts: Start of each of the first frames, in seconds from the first one
        tick: Seconds per tick of these starts
    """

    interval: Fraction
    is_variable: bool
    shortest: Fraction
    tolerance: Tolerance
    usual: Fraction
    starts: tuple[Fraction, ...] = ()
    tick: Fraction = MILLISECOND

    @classmethod
    def build(
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
        return cls(interval, is_variable, interval if shortest is None else shortest, Tolerance(tolerance), interval)

    @classmethod
    def build_by_pts(cls, pts: Sequence[int], time_base: Fraction, rate: Fraction | None, *, is_mean: bool) -> Self:
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
            return cls.build(claimed or 1 / USUAL_RATE, is_variable=False, tick=time_base)
        usual = median_low(steps) * time_base
        agrees = claimed is not None and not differ(min(usual, claimed), max(usual, claimed))
        varies = is_variable(steps, time_base) or (is_mean and claimed is not None and not agrees)
        interval = claimed if claimed is not None and agrees and not varies else usual
        pace = cls.build(
            interval, is_variable=varies, shortest=steps[0] * time_base if varies else None, tick=time_base
        )
        return replace(
            pace,
            usual=_shorter_typical(steps, time_base) if varies else interval,
            starts=tuple((tick - pts[0]) * time_base for tick in pts),
            tick=time_base,
        )


def _shorter_typical(steps: Sequence[int], time_base: Fraction) -> Fraction:
    """Return the median of the shortest steps that are alike, if they are a quarter of all; else that of the next ones.

    Args:
        steps: Frame intervals in ticks, ascending.
        time_base: Seconds per tick.
    """
    groups = [[steps[0]]]
    for one, other in pairwise(steps):
        if differ(one * time_base, other * time_base):
            groups.append([])
        groups[-1].append(other)
    typical = next((group for group in groups if 4 * len(group) >= len(steps)), steps)
    return median_low(typical) * time_base


# Fewer frames are on a regular grid by chance. Times rounded twice to milliseconds are 2 ms off it.
LEAST_ON_GRID, ROUNDING_SECONDS = 16, Fraction(2, 1000)
SAME_RATE = Fraction(1, 200)  # rates that differ by less are taken for one that was measured inexactly


@dataclass(frozen=True, slots=True)
class FrameGrid:
    """The regular times around which those of a camera jitter, or film whose fields are repeated (pulldown).

    Attributes:
        step: Seconds from one time to the next
        phase: The first of them, in seconds from the first frame
    """

    step: Fraction
    phase: Fraction

    @classmethod
    def build(cls, pace: Pace, rate: Fraction) -> Self | None:
        """Return the grid of the first frames; None if their times are regular, or more than half a step away from any grid.

        The step is that of `rate`, of a multiple or of a fraction of it, where the times fit one. The phase is in the middle of their
        differences from the grid, without the largest and smallest twentieth.
        """
        count = len(pace.starts)
        if count < LEAST_ON_GRID:
            return None
        times = [float(start) for start in pace.starts]
        usual = median_low(other - one for one, other in pairwise(times))
        with_holes = accumulate(
            (max(1, round((other - one) / usual)) if usual else 1 for one, other in pairwise(times)), initial=0
        )
        for numbers in (list(range(count)), list(with_holes)):
            own_step = linear_regression(numbers, times).slope
            off = _differences(numbers, times, own_step)
            if off[-1] - off[0] <= max(2 * pace.tick, ROUNDING_SECONDS):
                return None
            step = _near_rate(own_step, rate)
            off = _differences(numbers, times, float(step))
            if off[-1] - off[0] >= step:
                continue
            left_out = count // 20
            middle = (off[left_out] + off[-1 - left_out]) / 2
            return cls(step, round(middle / float(pace.tick)) * pace.tick)
        return None


def _differences(numbers: Sequence[int], times: Sequence[float], step: float) -> list[float]:
    return sorted(time - number * step for number, time in zip(numbers, times, strict=True))


def _near_rate(step: float, rate: Fraction) -> Fraction:
    """Return the whole multiple or fraction of 1 / rate that is nearly `step` seconds; `step` if there is none."""
    ratio = step * float(rate)
    near = Fraction(max(1, round(ratio))) if ratio >= 1 else Fraction(1, max(1, round(1 / ratio)))
    return near / rate if abs(float(near) - ratio) <= SAME_RATE * ratio else exact_seconds(step)


@dataclass(frozen=True, slots=True)
class OutputClock:
    """A constant output rate: output k shows the source frame that is nearest to k / rate, counted in source frames.

    That is the last frame which begins at k / rate + lead or earlier.

    Attributes:
        rate: Output frames per second
        lead: Longest time, in seconds, by which a frame is shown before its own: half of the usual source interval, and at most half of
            an output frame. The phase of the grid is added if there is one
        grid: Times around which those of the source jitter; None if they do not
    """

    rate: Fraction
    lead: Fraction
    grid: FrameGrid | None = None

    @classmethod
    def build(cls, rate: Fraction, pace: Pace) -> Self:
        """Return the clock of an output rate for a source of this pace."""
        grid = FrameGrid.build(pace, rate)
        return cls(rate, min(pace.usual, 1 / rate) / 2 + (grid.phase if grid else 0), grid)

    def first_output(self, seconds: Fraction) -> int:
        """Return the first output that shows a frame which begins at `seconds`: the lowest k with seconds <= k / rate + lead.

        A frame on screen before time 0 is first shown by output 0. Also the number of outputs of a video of `seconds`.
        """
        return max(0, math.ceil((seconds - self.lead) * self.rate))

    def end_of(self, begin: int, end: int, time_base: Fraction) -> int:
        """Return the end of the last frame, in ticks. On a grid its duration jitters too: it lasts one step, unless it is held."""
        if self.grid is None or (end - begin) * time_base >= 2 * self.grid.step:
            return end
        return begin + round(self.grid.step / time_base)

    def start_of(self, seconds: Fraction) -> Fraction:
        """Return the time on the grid at which the frame that begins at `seconds` would begin without jitter, less the phase."""
        if self.grid is None:
            return seconds
        return round((seconds - self.grid.phase) / self.grid.step) * self.grid.step


@dataclass(frozen=True, slots=True)
class Window:
    """Part of a source that one output shows. All times are in ticks and count from the first frame displayed.

    Attributes:
        start: Start of the cut; None if it starts with the first frame, or is given by frame numbers
        end: End of the cut; None if it ends with the last frame, or is given by frame numbers
        begin: Earliest start of a frame of the cut; with a clock, latest start of the frame that comes first
        stop: The first frame at or after this tick is no longer part of the cut
        start_frame: Number of the first frame, from 0; None if times are given
        end_frame: Number of the frame after the last; None if times are given
        interval: The frame on screen at `start` is shown first if the first frame of the cut starts more than this
            after `start`
        tolerance: Tolerance of all comparisons with `start` and `end`
        clock: Constant output rate (`--fps`): a frame is held until the next one, until `end`
        holds: Whether the frame nearest to `start` always comes first
        time_base: Seconds per tick
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
    clock: OutputClock | None
    holds: bool
    time_base: Fraction
    container_start: Fraction | None = None

    @classmethod
    def build(
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
        near = pace.tolerance
        if clock is not None and near.seconds * clock.rate >= 1:  # the cut would lose its last output frames
            near = Tolerance(TOLERANCE / clock.rate)
        low = None if start is None else (near.earliest(start) if clock is None else start + clock.lead)
        return cls(
            start=None if start is None else start / time_base,
            end=None if end is None else end / time_base,
            begin=None if low is None else low / time_base,
            stop=None if end is None else near.earliest(end) / time_base,
            start_frame=cut.start_frame,
            end_frame=cut.end_frame,
            interval=pace.shortest / time_base,
            tolerance=near.seconds / time_base,
            clock=clock,
            holds=clock is not None and start is not None,
            time_base=time_base,
            container_start=container_start,
        )

    @property
    def is_whole(self) -> bool:
        """Whether the output starts with the first frame of the source."""
        return self.start is None and not self.start_frame

    def count_from(self, origin_pts: int) -> Window:
        """Return the same window counted from the first frame displayed, which has this PTS."""
        if self.container_start is None:
            return self
        shift = self.container_start - origin_pts

        def moved(tick: Fraction | None, least: Fraction) -> Fraction | None:
            return None if tick is None else max(tick + shift, least)

        late = self.clock.lead / self.time_base if self.clock and self.holds else -self.tolerance
        return replace(
            self,
            start=moved(self.start, Fraction(0)),
            begin=moved(self.begin, late),
            end=moved(self.end, Fraction(0)),
            stop=moved(self.stop, -self.tolerance),
            container_start=None,
        )

    def start_at(self, tick: int) -> Window:
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
        if self.start is not None and (self.holds or is_held):
            return Fraction(round(self.start)) if self.clock is None else self.start
        if self.clock is not None and self.start_frame:
            return self.clock.start_of(tick * self.time_base) / self.time_base
        return Fraction(tick)

    def first_output(self, tick: int, opening: Fraction) -> int:
        """Return the first output that shows a frame which begins at this tick, or does not show one that ends there.

        Call it for windows with a clock, which ends with the cut. A frame that is on screen when the cut ends is shown until then.

        Args:
            tick: Start or end of a frame.
            opening: Tick that is time 0 of the output.
        """
        assert self.clock is not None
        number = self.clock.first_output((tick - opening) * self.time_base)
        if self.end is None or self.stop is None:
            return number
        last = max(1, math.ceil((self.end - opening - self.tolerance) * self.time_base * self.clock.rate))
        return last if tick >= self.stop else min(last, number)

    def end_of(self, tick: int, end_tick: int) -> int:
        """Return the end of a frame, cut off at the end of the cut if the frame ends later than that by more than the
        tolerance. On a clock, frames are not cut off.
        """
        if self.end is None or self.clock is not None or end_tick <= self.end + self.tolerance:
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
        assert self.start is not None and self.begin is not None
        return tick is not None and tick >= max(self.start + self.tolerance, self.begin)

    def may_begin_at(self, tick: int, stamps: Sequence[int]) -> bool:
        """Return whether the first needed frame is certainly not before this tick. `stamps` are those of all frames before
        it, ascending.
        """
        if self.start_frame is not None:
            return bisect_left(stamps, tick) <= self.start_frame
        assert self.begin is not None
        return self.is_before(tick, 0) and not self.is_past(tick, 0)

    def first_needed(self, stamps: Sequence[int]) -> int:
        """Return the start of the first needed frame. `stamps` are ascending, at least one."""
        if self.start_frame is not None:
            return stamps[min(self.start_frame, len(stamps) - 1)]
        assert self.begin is not None and self.start is not None
        if self.holds:
            past = len(stamps) if self.stop is None else bisect_left(stamps, self.stop)
            return stamps[max(0, min(past, bisect_right(stamps, self.begin)) - 1)]
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
