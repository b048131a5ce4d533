"""Give each decoded frame a timestamp: ascending, none missing.

Decoders return frames in display order. Their timestamps may be missing, doubled or permuted (AVI, and MP4 of some
writers, number B-frames in decode order; packed B-frames, VC-1 in WMV): then that order is kept, and the sorted timestamps are
assigned to the frames. If the timestamps are right and the order is not (segments that were joined in the wrong order, frames behind a
loss), the frames are sorted by them: see `PacketsAhead.are_right`. A frame is held back while an earlier timestamp may still
come, which the packets ahead of the decoder tell.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
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
# Smallest jump back, in frames, that counts as a reset clock: program streams step back by one frame.
LEAST_JUMP = 1.5
# Packets as large as pictures are not read ahead any further than this.
AHEAD_BYTES = 16 << 20


class TimedFrame(NamedTuple):
    """A frame with its time.

    Attributes:
        pts: Start in ticks
        duration: Duration that its packet states, in ticks; 0 if it states none
    """

    frame: VideoFrame
    pts: int
    duration: int


@dataclass(slots=True)
class StampCounts:
    """Numbers of corrected timestamps.

    Attributes:
        stamps_sorted: Earlier than the one before
        stamps_joined: After a jump of the clock
        stamps_replaced: Of frames that are shown at the time of another one
        most_replaced: Largest difference of those, in ticks
        most_joined: Largest jump back of the clock, in ticks
    """

    stamps_sorted: int = 0
    stamps_joined: int = 0
    stamps_guessed: int = 0
    stamps_replaced: int = 0
    most_replaced: int = 0
    most_joined: int = 0


class PacketsAhead:
    """Packets on their way to a decoder, read a little ahead, and timestamps of frames that the decoder has not returned
    yet.

    Args:
        packets: The packets.
        delays: Whether the decoder may hold a frame back; otherwise it returns a frame at once or never.
        from_middle: Whether they begin at a later keyframe, so that frames displayed before it cannot be decoded.
        reorder_depth: Returns by how many frames packets are out of order, according to the stream; None if the container stores no
            PTS of its own for each packet, or other tables contradict it.
    """

    def __init__(
        self,
        packets: Iterator[VideoPacket],
        *,
        delays: bool,
        from_middle: bool = False,
        reorder_depth: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._packets = packets
        self._reorder_depth = reorder_depth
        self._num_descents = 0  # packets with an earlier timestamp than the packet before
        self._before: int | None = None
        self._delays = delays
        self._from_middle = from_middle
        self._queue: deque[VideoPacket] = deque()
        self._queued_bytes = 0
        self._num_read = self._num_fed = 0
        self._coming: dict[int, int] = {}  # timestamp: number of its packet
        self._earliest: list[int] = []  # a heap of these timestamps, and of some that were already returned
        self.num_lost = 0

    def __iter__(self) -> Iterator[VideoPacket]:
        first: int | None = None
        for packet in self._packets:
            self._queue.append(packet)
            self._queued_bytes += packet.size
            if first is None and self._from_middle:
                first = packet.pts
            if packet.pts is not None:
                self._num_descents += self._before is not None and packet.pts < self._before
                self._before = packet.pts
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

    def are_right(self, stamp: int, key_stamp: int | None, num_against: int) -> bool:
        """Return whether timestamps are right where the decoder's order contradicts them.

        Segments in the wrong order begin at a keyframe that is earlier than the one before it; if it is later, two recordings overlap
        where they were joined. Frames between keyframes come out in order: if they contradict it in a stream that reorders nothing, or
        nearly as often as packets are reordered, their timestamps are wrong. Those that merely number the packets never reorder them.

        Args:
            stamp: Timestamp of a keyframe.
            key_stamp: That of the keyframe before it; None if the contradiction is not at a keyframe.
            num_against: Other frames, up to here, with an earlier timestamp than the frame that the decoder returned before.
        """
        depth = self._reorder_depth()
        if depth is None:
            return False
        return stamp < key_stamp if key_stamp is not None else depth > 0 and self._num_descents > 2 * num_against

    def record_returned(self, stamp: int) -> None:
        """Record that the decoder returned a frame with this timestamp."""
        self._coming.pop(stamp, None)

    def expects_before(self, stamp: int) -> bool:
        """Return whether a timestamp before this one may still come. One that is overdue is lost."""
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
    """Timestamps as they are read, and as they are assigned.

    Args:
        step: Ticks of a frame without a timestamp.
    """

    def __init__(self, step: int) -> None:
        self.waiting: list[int] = []  # a heap
        self.usual = step
        self._shift = 0
        self._newest: int | None = None
        self._newest_duration = 0
        self._given: int | None = None  # last assigned timestamp as it was read; None before the first
        self._last: int | None = None  # the same on the time line

    def guess(self) -> int:
        """Return a timestamp for a frame that has none."""
        return 0 if self._newest is None else self._newest + (self._newest_duration or self.usual)

    def take(self, stamp: int, duration: int) -> None:
        heapq.heappush(self.waiting, stamp)
        if self._newest is None or stamp >= self._newest:
            self._newest, self._newest_duration = stamp, duration

    def jumps_at(self, stamp: int, following: int | None) -> bool:
        """Return whether the clock jumped back: by more than reordering can, or to times that were already assigned."""
        if self._given is not None and stamp < self._given:
            return True
        if following is None or self._newest is None or stamp >= min(self._newest, following):
            return False
        if self._newest - stamp < LEAST_JUMP * self.usual:  # an inaccuracy of the writer, not a reset clock
            return False
        return self._has_told(stamp) and self._has_told(following)

    def _has_told(self, stamp: int) -> bool:
        return stamp == self._given or stamp in self.waiting

    def restart(self) -> None:
        """Continue after a jump of the clock, without a gap."""
        self._newest = self._given = None

    def give(self) -> tuple[int, int]:
        """Return the earliest timestamp as it was read, and as it is assigned."""
        first = self._given is None
        self._given = own = heapq.heappop(self.waiting)
        if first and self._last is not None:
            self._shift = self._last + self.usual - own
        stamp = own + self._shift
        if self._last is not None and stamp > self._last:
            self.usual = stamp - self._last
        self._last = stamp
        return own, stamp


def add_timestamps(
    frames: Iterable[VideoFrame], step: int, counts: StampCounts, ahead: PacketsAhead | None = None
) -> Iterator[TimedFrame]:
    """Yield each frame with a timestamp: ascending, none missing.

    Args:
        frames: Decoded frames.
        step: Ticks of a frame without a timestamp.
        counts: Counts corrections.
        ahead: Packets of these frames; None holds back as many frames as could ever be needed.
    """
    held = _HeldFrames(step, counts, ahead)
    for frame in frames:
        yield from held.place_last(frame.pts)
        held.add(frame)
        while held.may_give():
            yield held.give()
    yield from held.place_last(None)
    while held.frames:
        yield held.give()


class _HeldFrames:
    """Frames that wait for earlier timestamps. That of the last one is placed when the next frame shows whether the clock jumped.

    Attributes:
        frames: The frames in the decoder's order, each with the timestamp that it had
    """

    def __init__(self, step: int, counts: StampCounts, ahead: PacketsAhead | None) -> None:
        self.frames: deque[tuple[int, VideoFrame]] = deque()
        self._clock, self._counts, self._ahead = _Clock(step), counts, ahead
        self._unplaced: int | None = None  # timestamp of the last frame
        self._before: int | None = None
        self._key_stamp: int | None = None  # timestamp of the last keyframe
        self._num_against = 0
        self._are_right = False  # whether frames keep their own timestamps

    def add(self, frame: VideoFrame) -> None:
        stamp = frame.pts
        if stamp is None:
            stamp = self._clock.guess()
            self._counts.stamps_guessed += 1
        elif self._ahead is not None:
            self._ahead.record_returned(stamp)
        self._unplaced = stamp
        self.frames.append((stamp, frame))

    def place_last(self, following: int | None) -> Iterator[TimedFrame]:
        """Place the timestamp of the last frame; yield all frames before it if the clock jumped.

        Args:
            following: Timestamp of the next frame.
        """
        stamp, self._unplaced = self._unplaced, None
        if stamp is None:
            return
        frame = self.frames[-1][1]
        if self._clock.jumps_at(stamp, following):
            while self._clock.waiting:
                yield self.give()
            self._clock.restart()
            self._counts.stamps_joined += 1
            self._counts.most_joined = max(self._counts.most_joined, (self._before or 0) - stamp)
        elif self._before is not None and stamp < self._before:
            self._counts.stamps_sorted += 1
            self._num_against += not frame.key_frame
            key_stamp = self._key_stamp if frame.key_frame else None
            self._are_right = self._ahead is not None and self._ahead.are_right(stamp, key_stamp, self._num_against)
        if frame.key_frame:
            self._key_stamp = stamp
        self._clock.take(stamp, frame.duration or 0)
        self._before = stamp

    def may_give(self) -> bool:
        """Return whether the first frame has its final timestamp."""
        if len(self.frames) <= NEIGHBOURS or self._unplaced is None or self._unplaced < self._clock.waiting[0]:
            return False
        if len(self.frames) > REORDER_FRAMES:
            return True
        if self._ahead is None:
            return False
        return self._ahead.num_lost > self._counts.stamps_sorted or not self._ahead.expects_before(
            self._clock.waiting[0]
        )

    def give(self) -> TimedFrame:
        """Remove and return the next frame."""
        own, stamp = self._clock.give()
        place = 0
        if self._are_right and self.frames[0][0] != own:
            place = next((number for number, (other, _) in enumerate(self.frames) if other == own), 0)
        given, frame = self.frames[place]
        del self.frames[place]
        if given != own:
            self._counts.stamps_replaced += 1
            self._counts.most_replaced = max(self._counts.most_replaced, abs(given - own))
        return TimedFrame(frame, stamp, frame.duration or 0)
