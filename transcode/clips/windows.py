"""Cut shots into clips: whole shots, or windows of exactly so many frames at the rate that `transcode --fps` will give."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

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
        self._newest: Clip | None = None
        self._last: deque[Frame] = deque()  # of this shot, for "overlap"
        self._covered = 0  # the first frame that is in no clip
        self.rest = Counter[str]()

    def cut(self, placed: Iterable[Placed[Frame]]) -> Iterator[Clip]:
        """Yield the clips of a video, in the order of their ends."""
        shot: int | None = None
        frame: Frame | None = None
        for each in placed:
            if frame is not None and each.shot != shot:
                yield from self._end(frame, each.item.tick)
            frame, shot = each.item, each.shot
            if shot is None:
                self.rest["transition"] += 1
                continue
            if self._newest is None:
                self._covered = frame.index
                self._begin(frame, shot, each.confidence)
            else:
                yield from self._advance(frame)
            for window in self._open:
                window.add(frame)
            if self._windows.rest == "overlap":
                self._last.append(frame)
                while self._length_from(SPARE, frame.end_tick) > (self._windows.num_frames or 0):
                    self._last.popleft()
        if frame is not None:
            end = (
                frame.end_tick
                if self._clock is None
                else self._clock.end_of(frame.tick, frame.end_tick, self._time_base)
            )
            yield from self._end(frame, end)

    def _opening(self, frame: Frame) -> Fraction:
        """Return time 0 of an output that begins with a frame, in ticks."""
        if self._clock is None or not frame.index:
            return Fraction(frame.tick)
        return self._clock.start_of(frame.tick * self._time_base) / self._time_base

    def _begin(self, frame: Frame, shot: int, confidence: float = 1.0) -> None:
        self._newest = Clip(self._opening(frame), shot, confidence=confidence)
        self._open.append(self._newest)

    def _count(self, opening: Fraction, tick: int) -> int:
        """Return the number of output frames from an opening to a tick."""
        assert self._clock is not None
        return max(1, self._clock.first_output((tick - opening) * self._time_base))

    def _length(self, window: Clip, tick: int) -> int:
        return window.count if self._clock is None else self._count(window.opening, tick)

    def _advance(self, frame: Frame) -> Iterator[Clip]:
        """Yield the windows that are complete before a frame, and open one with it if it is time."""
        wanted = self._windows.num_frames
        if wanted is None:
            return
        step, newest = self._windows.step or wanted, self._newest
        assert newest is not None
        is_due = self._length(newest, frame.tick) >= step
        for window in [each for each in self._open if self._length(each, frame.tick) >= wanted]:
            self._open.remove(window)
            if self._length(window, frame.tick) == wanted:
                self._covered = window.end
                yield window
        if is_due:
            self._begin(frame, newest.shot)

    def _end(self, last: Frame, tick: int) -> Iterator[Clip]:
        """Yield what is left of a shot that ends at a tick."""
        wanted, rest = self._windows.num_frames, self._windows.rest
        for window in self._open:
            length = self._length(window, tick)
            if length == wanted or (length >= self._windows.least and (wanted is None or rest == "short")):
                self._covered = window.end
                yield window
                if length != wanted:
                    break  # the others are parts of this one
        left = last.index + 1 - self._covered if self._newest is not None else 0
        if left and rest == "overlap" and (clip := self._overlapping(tick)) is not None:
            left = 0
            yield clip
        self.rest["too_short" if wanted is None else "left_over"] += left
        self._open, self._newest = [], None
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
                clip = Clip(Fraction(0), self._newest.shot if self._newest else 0)
                for each in islice(self._last, place, None):
                    clip.add(each)
                return clip
        return None
