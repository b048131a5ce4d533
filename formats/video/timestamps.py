"""One true time line for decoded frames, whoever reads them: timestamps in order, none missing.

Decoded frames come in display order, and that order is kept. Their timestamps may be missing, doubled or permuted (AVI, and MP4
of some writers, number B-frames in decode order; packed B-frames, VC-1 in WMV): they are sorted onto the frames. Frames are held
back while an earlier timestamp is on its way, and the packets ahead of the decoder tell whether one is.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

if TYPE_CHECKING:  # PyAV's packets are generic for type checkers only
    VideoPacket = Packet[VideoStream]
else:
    VideoPacket = Packet

# By how many frames a timestamp may be away from its place, as decoders reorder no more; packets read ahead of a decoder.
REORDER_FRAMES = 16
# Frames that are always held back, whatever the packets tell.
NEIGHBOURS = 2
# Frames by which a clock that was set back is behind at least: program streams step back by one.
LEAST_JUMP = 1.5
# Packets as large as pictures are not read ahead any further than this.
AHEAD_BYTES = 16 << 20


class Timed(NamedTuple):
    """A frame on the time line. pts: ticks. duration: what its packet says, 0 when it says nothing."""

    frame: VideoFrame
    pts: int
    duration: int


@dataclass(slots=True)
class StampCounts:
    """Timestamps that were mended. sorted: earlier than the one before. joined: the clock jumped back. guessed: missing."""

    stamps_sorted: int = 0
    stamps_joined: int = 0
    stamps_guessed: int = 0


class PacketsAhead:
    """Packets on their way to a decoder, read a little ahead of it, and the timestamps that are still to come out of it.

    delays: whether the decoder may keep a frame for later; one that does not gives it at once or never. from_middle: whether
    they begin at a keyframe that is not the first, where frames that are shown before it cannot be decoded.
    """

    def __init__(self, packets: Iterator[VideoPacket], *, delays: bool, from_middle: bool = False) -> None:
        self._packets = packets
        self._delays = delays
        self._from_middle = from_middle
        self._queue: deque[VideoPacket] = deque()
        self._queued_bytes = 0
        self._num_read = self._num_fed = 0
        self._coming: dict[int, int] = {}  # timestamp: number of its packet
        self._earliest: list[int] = []  # a heap of these timestamps, and of some that have come
        self.num_lost = 0

    def __iter__(self) -> Iterator[VideoPacket]:
        first: int | None = None
        for packet in self._packets:
            self._queue.append(packet)
            self._queued_bytes += packet.size
            if first is None and self._from_middle:
                first = packet.pts
            if packet.pts is not None and not packet.is_discard and (first is None or packet.pts >= first):
                self._coming[packet.pts] = self._num_read
                heapq.heappush(self._earliest, packet.pts)
            self._num_read += 1
            while len(self._queue) > REORDER_FRAMES or (self._queued_bytes > AHEAD_BYTES and len(self._queue) > 1):
                yield self._feed()
        while self._queue:
            yield self._feed()

    def _feed(self) -> VideoPacket:
        packet = self._queue.popleft()
        self._queued_bytes -= packet.size
        self._num_fed += 1
        if not self._delays and packet.pts is not None:
            self._coming.pop(packet.pts, None)
        return packet

    def came(self, stamp: int) -> None:
        """A frame with this timestamp came out of the decoder."""
        self._coming.pop(stamp, None)

    def expects_before(self, stamp: int) -> bool:
        """Whether a timestamp before this one is still to come. One that has not come when it must have is lost."""
        while self._earliest and self._earliest[0] < stamp:
            number = self._coming.get(self._earliest[0])
            if number is not None:
                if self._num_fed - number <= 2 * REORDER_FRAMES:
                    return True
                del self._coming[self._earliest[0]]
                self.num_lost += 1
            heapq.heappop(self._earliest)
        return False


class _Clock:
    """Timestamps as they are read, and as they are given out. step: ticks of a frame whose time nobody knows."""

    def __init__(self, step: int) -> None:
        self.waiting: list[int] = []  # a heap
        self.usual = step
        self._shift = 0
        self._newest: int | None = None
        self._newest_duration = 0
        self._given: int | None = None  # as it was read; None when this clock has given none
        self._last: int | None = None  # the same on the time line

    def guess(self) -> int:
        """For a frame that has none."""
        return 0 if self._newest is None else self._newest + (self._newest_duration or self.usual)

    def take(self, stamp: int, duration: int) -> None:
        heapq.heappush(self.waiting, stamp)
        if self._newest is None or stamp >= self._newest:
            self._newest, self._newest_duration = stamp, duration

    def jumps_at(self, stamp: int, following: int | None) -> bool:
        """Whether the clock was set back: by more than reordering can, or to what it has told already and tells again."""
        if self._given is not None and stamp < self._given:
            return True
        if following is None or self._newest is None or stamp >= min(self._newest, following):
            return False
        if self._newest - stamp < LEAST_JUMP * self.usual:  # a slip of the writer, and not another clock
            return False
        return self._has_told(stamp) and self._has_told(following)

    def _has_told(self, stamp: int) -> bool:
        return stamp == self._given or stamp in self.waiting

    def begin_anew(self) -> None:
        """After a jump: time goes on where it left off."""
        self._newest = self._given = None

    def give(self) -> int:
        first = self._given is None
        self._given = heapq.heappop(self.waiting)
        if first and self._last is not None:
            self._shift = self._last + self.usual - self._given
        stamp = self._given + self._shift
        if self._last is not None and stamp > self._last:
            self.usual = stamp - self._last
        self._last = stamp
        return stamp


def on_time_line(
    frames: Iterable[VideoFrame], step: int, counts: StampCounts, ahead: PacketsAhead | None = None
) -> Iterator[Timed]:
    """Each frame with its timestamp: in order, none missing.

    step: ticks of a frame whose time nobody knows. ahead: the packets of these frames; without them as many frames are held
    back as ever may be needed.
    """
    clock = _Clock(step)
    held: deque[VideoFrame] = deque()
    fresh: int | None = None  # timestamp of the last frame held: what follows shows whether it is a jump
    before: int | None = None

    def give() -> Timed:
        stamp = clock.give()
        frame = held.popleft()
        return Timed(frame, stamp, frame.duration or 0)

    def may_give() -> bool:
        if fresh is None or fresh < clock.waiting[0]:
            return False
        if len(held) > REORDER_FRAMES:
            return True
        if ahead is None:
            return False
        return ahead.num_lost > counts.stamps_sorted or not ahead.expects_before(clock.waiting[0])

    for frame in chain(frames, (None,)):
        if fresh is not None:
            if clock.jumps_at(fresh, None if frame is None else frame.pts):
                while clock.waiting:
                    yield give()
                clock.begin_anew()
                counts.stamps_joined += 1
            elif before is not None and fresh < before:
                counts.stamps_sorted += 1
            clock.take(fresh, held[-1].duration or 0)
            before = fresh
        if frame is None:
            break
        held.append(frame)
        fresh = frame.pts
        if fresh is None:
            fresh = clock.guess()
            counts.stamps_guessed += 1
        elif ahead is not None:
            ahead.came(fresh)
        while len(held) > NEIGHBOURS and may_give():
            yield give()
    while held:
        yield give()
