"""Which frames of a source one output shows: a cut, in ticks of the source, with the tolerance of `vidprep.formats.moments`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Self

from vidprep.formats.model import Cut
from vidprep.formats.moments import OutputClock, Pace, Tolerance, exact_seconds


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a source that one output shows. All times are in ticks and count from the first frame shown.

    Attributes:
        start: When the cut begins; None where it begins with the first frame, or with a frame that is known by its number.
        end: When it ends; None as above.
        begin: Earliest frame of the cut; with `holds` the latest frame that is on screen at `start`.
        stop: The first frame at or after this is no longer part of the cut.
        start_frame: Number of the first frame, from 0; None where times are given.
        end_frame: Number of the frame after the last; None where times are given.
        interval: A picture that was on screen longer than this before the first frame of the cut is shown first.
        tolerance: Of all comparisons with `start` and `end`.
        on_clock: Whether frames are shown on a constant clock (`--fps`), where a picture is held until the next one.
        holds: Whether the picture on screen at `start` always comes first.
        container_start: PTS at which the container begins, where `start` and `end` count from there; else None.
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
            cut: What a table asks for.
            pace: Of the source.
            time_base: Seconds per tick of the source.
            clock: Constant rate of the output; None keeps the source's own times.
            container_start: PTS from which the seconds of the cut count; None for the first frame shown.
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
        """Whether the output begins with the first frame of the source."""
        return self.start is None and not self.start_frame

    def counted_from(self, origin_pts: int) -> Window:
        """Return the same window, counted from the first frame shown, which has this PTS."""
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
        """Return the rest of this window from a frame that begins at exactly this tick."""
        return replace(
            self, start=Fraction(tick), begin=Fraction(tick), start_frame=None, holds=False, container_start=None
        )

    def is_before(self, tick: int, index: int) -> bool:
        """Return whether a frame is before the cut, or only the picture that is on screen when it begins."""
        if self.start_frame is not None:
            return index < self.start_frame
        if self.begin is None:
            return False
        return tick <= self.begin if self.holds else tick < self.begin

    def is_past(self, tick: int, index: int) -> bool:
        """Return whether a frame comes after the cut."""
        if self.end_frame is not None:
            return index >= self.end_frame
        return self.stop is not None and tick >= self.stop

    def shows_before(self, tick: int) -> bool:
        """Return whether the picture before the first frame of the cut is shown. tick: of that frame."""
        return self.start is not None and (self.holds or tick - self.start > self.interval)

    def outlasts_start(self, end_tick: int) -> bool:
        """Return whether a picture that is shown until this tick is on screen when the cut begins."""
        return self.start is not None and end_tick > self.start + self.tolerance

    def opening(self, tick: int, *, is_held: bool) -> Fraction:
        """Return time 0 of the output. tick: of its first frame. is_held: whether that was on screen before the cut began."""
        if self.start is None or not (self.holds or is_held):
            return Fraction(tick)
        return self.start if self.on_clock else Fraction(round(self.start))

    def end_of(self, tick: int, end_tick: int) -> int:
        """Return when a frame stops being shown: at the end of the cut, unless it ends within the tolerance of that."""
        if self.end is None or self.on_clock or end_tick <= self.end + self.tolerance:
            return end_tick
        return max(tick + 1, round(self.end))

    def is_settled(self, tick: int | None, stamps: Sequence[int], reorder: int) -> bool:
        """Return whether the first frame that is needed is known. tick: DTS of the last packet; stamps: of frames, ascending."""
        if self.start_frame is not None:
            return len(stamps) > self.start_frame + reorder
        assert self.start is not None
        return tick is not None and tick >= self.start + self.tolerance

    def may_begin_at(self, tick: int, stamps: Sequence[int]) -> bool:
        """Return whether the first frame that is needed is surely not before this tick. stamps: of all frames before it, ascending."""
        if self.start_frame is not None:
            return bisect_left(stamps, tick) <= self.start_frame
        assert self.begin is not None
        return tick <= self.begin if self.holds else tick < self.begin

    def first_needed(self, stamps: Sequence[int]) -> int:
        """Return the tick of the first frame that is needed. stamps: of frames, ascending, at least one."""
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
        """Return whether the picture before a frame is needed. tick: of the first frame that is not before the cut."""
        if self.is_past(tick, 0):
            return not self.begins_by_start(tick)
        return self.shows_before(tick)

    def begins_by_start(self, tick: int) -> bool:
        """Return whether a frame that begins at this tick is on screen when the cut begins, or later."""
        return tick <= (self.start or 0) + self.tolerance
