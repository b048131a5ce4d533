"""Which frame a time in seconds means: the one place where seconds that users write are compared with the times of frames.

Such seconds are rarely exact: k / fps as a double, running sums, float32 columns, microseconds, milliseconds. Times in files are rounded
too (Matroska keeps milliseconds), and cameras jitter. So a time means a frame if the two differ by no more than a tolerance: a quarter of
the usual frame interval, and at most 5 ms where the rate varies.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from statistics import median_low
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

TOLERANCE = Fraction(1, 4)  # of the usual frame interval
MAX_VARIABLE_TOLERANCE_SECONDS = Fraction(5, 1000)
WHOLE_TICKS_FROM = 4
USUAL_RATE = Fraction(25)  # where neither timestamps nor the header give one


def exact_seconds(seconds: float) -> Fraction:
    """Return the decimal number that was written: 0.04 is 1/25, not the double below it."""
    return Fraction(repr(float(seconds)))


def is_variable(steps: Iterable[int], time_base: Fraction) -> bool:
    """Return whether frame intervals (in ticks) differ by more than 2.5 ms + 2 %, which is more than the rounding of a millisecond grid."""
    known = set(steps)
    if len(known) < 2:
        return False
    return differ(min(known) * time_base, max(known) * time_base)


def differ(low: Fraction, high: Fraction) -> bool:
    """Return whether two frame intervals in seconds are different ones; see `is_variable`."""
    return high - low > Fraction(25, 10_000) + low / 50


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest difference, in seconds, between a time and the start of the frame that it means."""

    seconds: Fraction

    def earliest(self, time: Fraction) -> Fraction:
        """Return when a frame must begin, at the earliest, to count as beginning at `time` or later."""
        return time - self.seconds

    def latest(self, time: Fraction) -> Fraction:
        """Return when a frame may begin, at the latest, to be on screen at `time`."""
        return time + self.seconds

    def first_from(self, ticks: Sequence[int], time_base: Fraction, time: Fraction) -> int:
        """Return the number of the first frame that begins at `time` or later; ``len(ticks)`` if none does."""
        return bisect_left(ticks, self.earliest(time) / time_base)

    def shown_at(self, begins: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
        """Return the numbers of the frames that are on screen at these times; -1 before the first frame."""
        return begins.searchsorted(times + float(self.seconds), side="right") - 1

    def means_same(self, one: float | None, other: float | None) -> bool:
        """Return whether two times mean the same frame; None, which is no time, means the same as None alone."""
        if one is None or other is None:
            return one is other
        return abs(exact_seconds(one) - exact_seconds(other)) <= self.seconds


LEAST_KNOWN = Tolerance(MAX_VARIABLE_TOLERANCE_SECONDS)  # where nothing is known of a video


@dataclass(frozen=True, slots=True)
class Pace:
    """How far apart the frames of a video are, and so which frame a time means.

    Attributes:
        interval: Usual time from one frame to the next, in seconds.
        is_variable: Whether the rate varies.
        shortest: Shortest such time at a variable rate, in seconds; `interval` at a constant one.
        tolerance: A quarter of the interval, and at most 5 ms at a variable rate.
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

        tick: Time base of the video. The tolerance is rounded up to whole ticks where it is four or more, so that an ffmpeg filter, which
        counts in ticks, can apply the same one.
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
        rate: Output frames per second.
        tolerance: That of the source in seconds; but a quarter of an output frame if it would be an output frame or more, since the
            output would then run ahead of its source.
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
