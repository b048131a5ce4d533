"""The rules by which seconds become frames, written down a second time, from the times of all frames and nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from fractions import Fraction

import numpy as np


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


def phase_of(times: Sequence[Fraction], rate: Fraction, tick: Fraction) -> Fraction:
    """The middle of the differences from a line through times that jitter by less than half a step, without a twentieth on each side."""
    at = np.array(times, float)
    if len(at) < 16:
        return Fraction(0)
    steps = np.diff(at)
    for numbers in (np.arange(len(at)), np.r_[0, np.maximum(1, np.round(steps / np.median(steps))).cumsum()]):
        slope = np.polyfit(numbers, at, 1)[0]
        if np.ptp(at - slope * numbers) <= max(0.002, 2 * float(tick)):
            return Fraction(0)
        ratio = slope * float(rate)
        whole = max(1, round(ratio)) if ratio >= 1 else 1 / max(1, round(1 / ratio))
        if abs(whole / ratio - 1) <= 0.005:
            slope = whole / float(rate)
        off = np.sort(at - slope * numbers)
        if np.ptp(off) < slope:
            few = len(off) // 20
            return round((off[few] + off[-1 - few]) / 2 / float(tick)) * tick
    return Fraction(0)


def lead_of(
    times: Sequence[Fraction], rate: Fraction, header_rate: Fraction | None = None, tick: Fraction = Fraction(1, 90_000)
) -> Fraction:
    """How early a frame may be shown at a constant rate: half of the usual interval or of an output frame, and the phase of a camera.

    times: of the first 64 frames or so, ascending. header_rate: more exact than the times where these are rounded. tick: of the times.
    """
    steps = sorted(after - before for before, after in zip(times, times[1:], strict=False) if after > before)
    if not steps:
        return min(1 / (header_rate or Fraction(25)), 1 / rate) / 2
    usual, varies = statistics.median_low(steps), steps[-1] - steps[0] > Fraction(25, 10_000) + steps[0] / 50
    if varies:
        alike: list[list[Fraction]] = [[]]
        for step in steps:
            if alike[-1] and step - alike[-1][-1] > Fraction(25, 10_000) + alike[-1][-1] / 50:
                alike.append([])
            alike[-1].append(step)
        usual = statistics.median_low(next((group for group in alike if len(group) >= len(steps) / 4), steps))
    elif header_rate and abs(1 / header_rate - usual) <= Fraction(25, 10_000):
        usual = 1 / header_rate
    return min(usual, 1 / rate) / 2 + phase_of(times, rate, tick)


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
    lead: Fraction,
    start: Fraction = Fraction(0),
    end: Fraction | None = None,
) -> list[int]:
    """The frames nearest to start + k / rate, for every k with k / rate < end - start - near, or less lead where the video ends first.

    last: when the last frame ends. Frames that begin at end - near or later are of the next cut.
    """
    near = near if near * rate < 1 else 1 / (4 * rate)
    is_cut = end is not None and end - near <= last
    stop = end - near if end is not None and is_cut else last - lead
    past = next((n for n, t in enumerate(times) if end is not None and t >= end - near), len(times))
    is_within = past < len(times) and times[past] <= start + near and not any(start + lead < t for t in times[:past])
    found, k = [], 0
    while not k or k / rate < stop - start:
        # A cut that lies within one frame shows the one that its start means.
        found.append(past if is_within else on_screen(times[: max(1, past)], start + k / rate, lead))
        k += 1
    return found
