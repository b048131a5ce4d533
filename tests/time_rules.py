"""The rules by which seconds become frames, written down a second time, from the times of all frames and nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from fractions import Fraction


def tolerance_of(times: Sequence[Fraction], tick: Fraction, rate: Fraction | None = None) -> Fraction:
    """A quarter of the usual interval, at most 5 ms at a variable rate; in whole ticks, as ffmpeg's setpts has them, where four or more.

    times: of all frames, ascending. rate: of the header, which is more exact than the times where these are rounded.
    """
    steps = [after - before for before, after in zip(times, times[1:], strict=False) if after > before]
    if not steps:
        return Fraction(1, 4) / rate if rate else Fraction(1, 100)
    low, high = min(steps), max(steps)
    usual = statistics.median_low(steps)
    varies = high - low > Fraction(25, 10_000) + low / 50
    if not varies and rate and abs(1 / rate - usual) <= Fraction(25, 10_000):
        usual = 1 / rate
    found = min(usual / 4, Fraction(5, 1000)) if varies else usual / 4
    return -(-found // tick) * tick if found >= 4 * tick else found


def in_cut(times: Sequence[Fraction], start: Fraction | None, end: Fraction | None, near: Fraction) -> list[int]:
    """Frames with times in [start - near, end - near)."""
    return [n for n, t in enumerate(times) if (start is None or t >= start - near) and (end is None or t < end - near)]


def on_screen(times: Sequence[Fraction], at: Fraction, near: Fraction) -> int:
    """The last frame that begins at `at` or before; the first where none does."""
    return max((n for n, t in enumerate(times) if t <= at + near), default=0)


def at_rate(
    times: Sequence[Fraction],
    last: Fraction,
    rate: Fraction,
    near: Fraction,
    start: Fraction = Fraction(0),
    end: Fraction | None = None,
) -> list[int]:
    """The frames on screen at start + k / rate, for every k with k / rate < end - start - near. last: when the last frame ends."""
    near = near if near * rate < 1 else 1 / (4 * rate)
    stop = min(last, end) if end is not None else last
    found, k = [], 0
    while not k or k / rate < stop - start - near:
        found.append(on_screen(times, start + k / rate, near))
        k += 1
    return found
