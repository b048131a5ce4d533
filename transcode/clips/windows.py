"""Cut shots into clips: whole shots, or windows of exactly so many frames at the rate that `transcode --fps` will give."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import NamedTuple

from vidprep.formats.moments import OutputClock
from vidprep.transcode.clips._measure import Clip, Frame
from vidprep.transcode.clips._shots import Placed

SPARE = 4  # frames that "overlap" may begin before the ideal place


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of a shot; numbers of frames count at the rate of the output.

    Attributes:
        num_frames: Frames of a window; None for whole shots
        step: Frames from the beginning of one to that of the next
        rest: What happens to frames that fill no window: "drop", "short" (a shorter clip) or "overlap" (one more that ends with the shot)
        least: Least number of frames of a clip
    """

    num_frames: int | None = None
    step: int | None = None
    rest: str = "drop"
    least: int = 1


class _Shot(NamedTuple):
    """The shot that is being cut.

    Attributes:
        first: Number of its first frame
        opening: Time 0 of an output that begins with it, in ticks
    """

    number: int
    first: int
    opening: Fraction
    confidence: float


class Cutter:
    """Cuts the frames of one video into clips. Memory grows with the length of a window, not with that of the video.

    Args:
        windows: The windows.
        clock: Clock of the output; None keeps the source's own times.
        time_base: Seconds per tick.

    Attributes:
        rest: Numbers of frames that are in no clip, by reason: "transition", "left_over", "too_short"
    """

    def __init__(self, windows: Windows, clock: OutputClock | None, time_base: Fraction) -> None:
        self._windows, self._clock, self._time_base = windows, clock, time_base
        self._open: list[Clip] = []
        self._shot: _Shot | None = None
        self._due = 0  # the output frame of the shot with which the next window begins
        self._last: deque[Frame] = deque()  # of this shot, for "overlap"
        self._covered = 0  # the first frame that may be in no clip
        self._left = 0  # frames before it that are in none
        self.rest = Counter[str]()

    def cut(self, placed: Iterable[Placed[Frame]]) -> Iterator[Clip]:
        """Yield the clips of a video, in the order of their ends."""
        shot: int | None = None
        frame: Frame | None = None
        for each in placed:
            if frame is not None and each.shot != shot:
                yield from self._end(frame)
            frame, shot = each.item, each.shot
            if shot is None:
                self.rest["transition"] += 1
                continue
            self._open_due(frame, shot, each.confidence)
            for window in self._open:
                window.add(frame)
            yield from self._complete(frame)
            if self._windows.rest == "overlap":
                self._last.append(frame)
                while self._length_from(SPARE, self._end_of(frame)) > (self._windows.num_frames or 0):
                    self._last.popleft()
        if frame is not None:
            yield from self._end(frame)

    def _end_of(self, frame: Frame) -> int:
        """Return the end of a frame, as that of the last one of a cut."""
        if self._clock is None:
            return frame.end_tick
        return self._clock.end_of(frame.tick, frame.end_tick, self._time_base)

    def _opening(self, frame: Frame) -> Fraction:
        """Return time 0 of an output that begins with a frame, in ticks."""
        if self._clock is None or not frame.index:
            return Fraction(frame.tick)
        return self._clock.start_of(frame.tick * self._time_base) / self._time_base

    def _count(self, opening: Fraction, tick: int) -> int:
        """Return the number of output frames from an opening to a tick."""
        assert self._clock is not None
        return max(1, self._clock.first_output((tick - opening) * self._time_base))

    def _length(self, window: Clip, index: int, tick: int) -> int:
        """Return the length of a window that ends before a frame of this number, at a tick."""
        return index - window.first if self._clock is None else self._count(window.opening, tick)

    def _open_due(self, frame: Frame, shot: int, confidence: float) -> None:
        """Open a window with a frame if a shot begins, or if it is time for the next one."""
        if self._shot is None:
            self._shot = _Shot(shot, frame.index, self._opening(frame), confidence)
            self._due, self._covered = 0, frame.index
        shown = self._shown(self._shot, frame)
        if shown <= self._due:
            return
        self._open.append(Clip(self._opening(frame), shot, confidence=1.0 if self._due else self._shot.confidence))
        step = self._windows.step or self._windows.num_frames
        self._due = sys.maxsize if step is None else self._due + ((shown - self._due - 1) // step + 1) * step

    def _shown(self, shot: _Shot, frame: Frame) -> int:
        """Return the number of output frames from the begin of a shot to the end of a frame."""
        return frame.index + 1 - shot.first if self._clock is None else self._count(shot.opening, frame.end_tick)

    def _take(self, clip: Clip) -> Clip:
        """Count the frames up to a clip that are in none, and return it."""
        self._left += max(0, clip.first - self._covered)
        self._covered = max(self._covered, clip.end)
        return clip

    def _complete(self, last: Frame) -> Iterator[Clip]:
        """Yield the windows that a frame completes."""
        wanted = self._windows.num_frames
        if wanted is None:
            return
        for window in list(self._open):
            if (length := self._length(window, last.index + 1, self._end_of(last))) >= wanted:
                self._open.remove(window)
                if length == wanted:
                    yield self._take(window)

    def _end(self, last: Frame) -> Iterator[Clip]:
        """Yield what is left of a shot that ends with a frame."""
        wanted, rest, end = self._windows.num_frames, self._windows.rest, self._end_of(last)
        if self._open and (wanted is None or rest == "short"):
            longest = self._open[0]  # the others are parts of this one
            if self._length(longest, last.index + 1, end) >= self._windows.least:
                yield self._take(longest)
        if last.index + 1 > self._covered and rest == "overlap" and (clip := self._overlapping(end)) is not None:
            yield self._take(clip)
        if self._shot is not None:
            left = self._left + max(0, last.index + 1 - self._covered)
            self.rest["too_short" if wanted is None else "left_over"] += left
        self._open, self._shot, self._left = [], None, 0
        self._last.clear()

    def _length_from(self, place: int, tick: int) -> int:
        """Return the length of a clip from one of the last frames to a tick; 0 if there are not so many."""
        if place >= len(self._last):
            return 0
        return len(self._last) - place if self._clock is None else self._count(self._opening(self._last[place]), tick)

    def _overlapping(self, tick: int) -> Clip | None:
        """Return the window that ends with the shot; None if none has the right length."""
        for place in range(len(self._last)):
            if self._length_from(place, tick) == self._windows.num_frames:
                clip = Clip(Fraction(0), self._shot.number if self._shot else 0)
                for each in islice(self._last, place, None):
                    clip.add(each)
                return clip
        return None
