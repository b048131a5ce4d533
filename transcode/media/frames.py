"""Frames of a source: in order, with correct timestamps, progressive, cut, and at the requested rate.

Decoders return frames in display order, which is kept. `vidprep.formats.video.timestamps` corrects timestamps;
`vidprep.formats.moments` decides which frames a cut or a constant rate shows. Ticks of the source count from the first
frame displayed.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import median_low

import av
from av.error import FFmpegError as AvError
from av.video.frame import VideoFrame

from vidprep.formats.errors import LimitError, NoVideoError, ReadError
from vidprep.formats.model import Cut, rescale
from vidprep.formats.moments import MILLISECOND, OutputClock, Window, is_variable
from vidprep.formats.video.seek import SeekPoint, seek_to
from vidprep.formats.video.source import Source
from vidprep.formats.video.timestamps import StampCounts, TimedFrame, add_timestamps
from vidprep.transcode.media.bounds import check_repeats

UNSPECIFIED, NAMED_MATRICES = 2, {0, 1, 2, *range(4, 18)}
CODED_AS_FIELDS = {"hevc"}  # libavcodec marks only such HEVC frames as interlaced (pic_struct 1 and 2; H.265, D.3.3)
RECENT_STEPS, PAUSE_STEPS = 16, Fraction(5, 2)
DEINTERLACER = ("bwdif", "mode=send_frame:parity=auto:deint=interlaced")


@dataclass(slots=True)
class SourceFrame:
    """A frame of the source.

    Attributes:
        pts: Start in ticks from the first frame displayed
        end_pts: End in such ticks
        index: Number from the first frame displayed, also in a cut
    """

    frame: VideoFrame
    pts: int
    end_pts: int
    index: int


@dataclass(slots=True)
class OutputFrame:
    """A frame of the output before scaling.

    Attributes:
        frame: The decoded, deinterlaced frame
        pts: Start in ticks of the output
        duration: Duration in ticks of the output
        source_index: Number of the source frame that it shows
        source_pts: Start of that source frame, in ticks from the first frame displayed
    """

    frame: VideoFrame
    pts: int
    duration: int
    source_index: int
    source_pts: int


@dataclass(slots=True)
class SourceFacts(StampCounts):
    """Facts found while reading a source; complete after the last frame.

    Attributes:
        num_frames: Source frames in the cut, including the one on screen at its start
        origin_pts: PTS of the first frame displayed
        opening: Time 0 of the output, in ticks from the first frame displayed
        last_end: End of the last frame of the cut, in ticks from the first frame displayed
        end_tick: End of the last frame that was read, likewise
        span: Begin of the first and end of the last frame of the cut, whole frames, likewise
        is_vfr: Whether the rate varies
        is_interlaced: Whether a frame was interlaced
        num_deinterlaced: Frames that were deinterlaced
        num_fields: Frames that are single fields
        stamps_nudged: Timestamps that were moved by a tick
        stamps_spaced: Timestamps that were moved because the container cannot tell them apart
        stamps_crowded: Frames that were dropped because they shared a timestamp
        read_to_end: Whether the source was read to its end
        is_trimmed: Whether the output ends before the cut does, for its number of frames
        steps: Distinct distances between frames, in ticks
    """

    num_frames: int = 0
    origin_pts: int = 0
    opening: Fraction = Fraction(0)
    last_end: int = 0
    end_tick: int = 0
    span: tuple[int, int] = (0, 0)
    is_vfr: bool = False
    is_interlaced: bool = False
    num_deinterlaced: int = 0
    num_fields: int = 0
    stamps_nudged: int = 0
    stamps_spaced: int = 0
    stamps_crowded: int = 0
    read_to_end: bool = False
    is_trimmed: bool = False
    steps: set[int] = field(default_factory=set)

    @property
    def duration(self) -> Fraction:
        """Ticks from time 0 of the output to the end of the last frame."""
        return self.last_end - self.opening


def source_frames(
    source: Source,
    facts: SourceFacts,
    window: Window,
    *,
    max_frames: int,
    entry: SeekPoint | None = None,
    on_progress: Callable[[], None] = lambda: None,
) -> Iterator[SourceFrame]:
    """Yield the progressive frames of a window, in order.

    Args:
        source: The source, just opened or positioned by `entry`.
        facts: Filled while frames are read.
        window: Frames to yield.
        max_frames: Limit on the source's frames, as far as it is decoded.
        entry: Where decoding begins, if known.
        on_progress: Called for each decoded frame.

    Raises:
        NoVideoError: There are none.
        LimitError: There are more than `max_frames`.
    """
    entry = entry or seek_to(source, window)
    step = source.info.usual_step
    ahead = source.packets_ahead(entry.packets, from_middle=entry.frames_before is not None)
    decoded = source.decode(iter(ahead))
    placed = add_timestamps(_limit(decoded, max_frames, on_progress), step, facts, ahead)
    frames = _number(_add_ends(_deinterlace(placed, facts, source.info.codec), source, facts), entry, facts)

    before: SourceFrame | None = None  # the last one before the cut
    has_frame = False
    is_bounded = window.stop is not None or window.end_frame is not None

    def counted(frame: SourceFrame, *, is_held: bool = False) -> SourceFrame:
        nonlocal has_frame
        if not has_frame:
            has_frame, facts.opening = True, window.opening(frame.pts, is_held=is_held)
            facts.span = frame.pts, frame.end_pts
        facts.num_frames, facts.span = facts.num_frames + 1, (facts.span[0], frame.end_pts)
        facts.steps.add(frame.end_pts - frame.pts)
        if is_bounded:
            frame.end_pts = window.end_of(frame.pts, frame.end_pts)
        facts.last_end = frame.end_pts
        return frame

    for frame in frames:
        facts.end_tick = frame.end_pts
        if not has_frame:
            window = window.count_from(facts.origin_pts)
            if window.is_before(frame.pts, frame.index) and not window.is_past(frame.pts, frame.index):
                before = frame
                continue
        if is_bounded and window.is_past(frame.pts, frame.index):
            # If a cut lies within one frame, the frame on screen at its start.
            held = frame if window.begins_by_start(frame.pts) else before
            if not has_frame and held is not None and window.end_frame is None:
                yield counted(held, is_held=held is before)
            break
        if not has_frame and before is not None and window.shows_before(frame.pts):
            yield counted(before, is_held=True)
        yield counted(frame)
    else:
        facts.read_to_end = True
        if not has_frame and before is not None and window.outlasts_start(before.end_pts):
            yield counted(before, is_held=True)
    facts.is_vfr = is_variable(facts.steps, source.info.time_base)
    if not has_frame:
        raise NoVideoError(_nothing_found(source, window, facts), path=source.path)


def _number(
    frames: Iterable[tuple[VideoFrame, int, int]], entry: SeekPoint, facts: SourceFacts
) -> Iterator[SourceFrame]:
    """Yield frames with numbers and times from the first frame displayed. Frames before the first needed one are dropped."""
    index = entry.frames_before or 0
    origin = entry.origin_pts
    for frame, pts, end_pts in frames:
        if origin is None:
            origin = pts
        if pts - origin < entry.first_tick:
            continue
        facts.origin_pts = origin
        yield SourceFrame(frame, pts - origin, end_pts - origin, index)
        index += 1


def _nothing_found(source: Source, window: Window, facts: SourceFacts) -> str:
    damage = "; ".join(source.damage(read_to_end=facts.read_to_end))
    if source.has_headers_alone:
        return "holds headers and no frames; join it with its media segments, as `cat init.m4s *.m4s` does"
    if window.is_whole and window.end is None and window.end_frame is None:
        return f"no frame could be decoded{': ' + damage if damage else ''}"
    if window.start_frame is not None or window.end_frame is not None:
        cut = Cut(start_frame=window.start_frame, end_frame=window.end_frame)
    else:
        start, end = (None if t is None else float(t * source.info.time_base) for t in (window.start, window.end))
        cut = Cut(start, end)
    long = facts.end_tick * source.info.time_base
    length = f"; the source is {float(long):.3f} s long" if facts.read_to_end and long else ""
    return f"the cut from {cut} holds no frame{length}{': ' + damage if damage else ''}"


def _limit(frames: Iterator[VideoFrame], max_frames: int, on_progress: Callable[[], None]) -> Iterator[VideoFrame]:
    for count, frame in enumerate(frames, 1):
        on_progress()
        if count > max_frames:
            raise LimitError(f"holds more than {max_frames} frames; raise --max-frames if that is intended")
        yield frame


def _deinterlace(frames: Iterable[TimedFrame], facts: SourceFacts, codec: str) -> Iterator[TimedFrame]:
    """Yield progressive frames: bwdif deinterlaces, which needs one frame before and one after; the number of frames is
    unchanged.

    HEVC codes single fields without lines of the other field between; these are kept. The filter starts at the first
    interlaced frame, after it got the frame before: the result equals filtering from the beginning, at no cost for
    progressive video.
    """
    previous: VideoFrame | None = None
    running: _Bwdif | None = None
    for timed in frames:
        frame = timed.frame
        is_field = frame.interlaced_frame and codec in CODED_AS_FIELDS
        interlaced = frame.interlaced_frame and not is_field
        facts.num_fields += is_field
        facts.num_deinterlaced += interlaced
        if running is not None and not running.takes(frame):
            yield from running.finish()
            running = previous = None
        if running is None and interlaced:
            facts.is_interlaced = True
            running = _Bwdif(frame)
            if previous is not None and running.takes(previous):
                running.prime(previous)
        if running is None:
            yield timed
            previous = frame
        else:
            yield from running.push(timed)
    if running is not None:
        yield from running.finish()


class _Bwdif:
    def __init__(self, frame: VideoFrame) -> None:
        self._shape = (frame.width, frame.height, frame.format.name)
        # The graph must outlive its contexts: without this reference the process crashes.
        self._graph = av.filter.Graph()
        self._graph.threads = 1
        self._source = self._graph.add("buffer", buffer_arguments(frame))
        name, args = DEINTERLACER
        filter_ = self._graph.add(name, args)
        self._sink = self._graph.add("buffersink")
        self._source.link_to(filter_)
        filter_.link_to(self._sink)
        self._graph.configure()
        self._inside: deque[TimedFrame | None] = deque()
        self._count = 0

    def takes(self, frame: VideoFrame) -> bool:
        return self._shape == (frame.width, frame.height, frame.format.name)

    def prime(self, frame: VideoFrame) -> None:
        """Filter the frame before the first one that counts, and drop its output."""
        for _ in self._step(frame, None):
            raise ReadError("the deinterlacer gave a frame too early")

    def push(self, timed: TimedFrame) -> Iterator[TimedFrame]:
        yield from self._step(timed.frame, timed)

    def finish(self) -> Iterator[TimedFrame]:
        yield from self._step(None, None)
        if self._inside:
            raise ReadError(f"the deinterlacer kept {len(self._inside)} frames")

    def _step(self, frame: VideoFrame | None, timed: TimedFrame | None) -> Iterator[TimedFrame]:
        if frame is not None:
            frame.pts = self._count
            frame.time_base = Fraction(1)
            self._count += 1
            self._inside.append(timed)
        self._source.push(frame)
        while True:
            try:
                done = self._sink.pull()
            except (BlockingIOError, EOFError):
                return
            except AvError as error:
                raise ReadError(f"deinterlacing failed: {error}") from error
            assert isinstance(done, VideoFrame)
            entered = self._inside.popleft()
            if entered is not None:
                yield TimedFrame(done, entered.pts, entered.duration)


def buffer_arguments(frame: VideoFrame) -> str:
    """Return arguments of a buffer source with all properties of a frame. PyAV's own template omits some, so that scale
    guesses colours. A reserved matrix code is omitted, as the filter rejects it.
    """
    matrix = int(frame.colorspace)
    return (
        f"video_size={frame.width}x{frame.height}:pix_fmt={frame.format.name}:time_base=1/1:pixel_aspect=1/1"
        f":colorspace={matrix if matrix in NAMED_MATRICES else UNSPECIFIED}:range={frame.color_range}"
    )


def _add_ends(
    frames: Iterable[TimedFrame], source: Source, facts: SourceFacts
) -> Iterator[tuple[VideoFrame, int, int]]:
    """Yield each frame with its start and end. The end is the next frame's start; for the last frame, its own duration.

    A duration that is missing or one short tick (FLV, Matroska) is not reliable, and a field is no frame: the previous
    step is used instead, or the usual one if that was a pause.
    """
    base = source.info.time_base
    held: TimedFrame | None = None
    steps: deque[int] = deque(maxlen=RECENT_STEPS)
    for timed in frames:
        if held is not None:
            yield held.frame, held.pts, timed.pts
            if timed.pts > held.pts:
                steps.append(timed.pts - held.pts)
        held = timed
    if held is not None:
        typical = median_low(steps or [source.info.usual_step])
        usual = steps[-1] if steps and steps[-1] <= PAUSE_STEPS * typical else typical
        is_field = facts.is_interlaced and abs(2 * held.duration - usual) <= 2
        is_known = held.duration > 1 or (held.duration == 1 and base > 2 * MILLISECOND)
        duration = held.duration if is_known and not is_field else usual
        yield held.frame, held.pts, held.pts + duration + source.empty_ticks_at_end


def retime(
    frames: Iterable[SourceFrame],
    clock: OutputClock | None,
    time_base: Fraction,
    facts: SourceFacts,
    opening: Fraction,
    window: Window | None = None,
    first: int = 0,
    file_base: Fraction | None = None,
    *,
    max_frames: int = sys.maxsize,
) -> Iterator[OutputFrame]:
    """Yield frames at a constant rate, or with their own times if `clock` is None. Any input gives at least one output
    frame.

    At a constant rate, output k is the frame that is nearest to k / rate, the last one with PTS <= k / rate + lead: the
    frames of ffmpeg's `setpts=PTS-STARTPTS-lead/TB,fps=rate:round=up`. One tick of the output is 1 / rate.

    Args:
        frames: Source frames, in order.
        clock: Constant rate of the output.
        time_base: Seconds per tick of the source.
        facts: Filled while frames are read.
        opening: Tick of the source that is time 0 of the output.
        window: The cut that they are of, with the same clock; None means the whole source.
        first: Number of the first output frame.
        file_base: Seconds per tick of the file that they go into; None means the same as `time_base`.
        max_frames: Limit on the output's frames.

    Raises:
        LimitError: `check_repeats` refuses what would come next.
    """
    if clock is None:
        yield from _own_times(frames, facts, round(opening), time_base, file_base or time_base)
        return
    current: SourceFrame | None = None
    count = first

    def first_output(tick: int) -> int:
        return (
            clock.first_output((tick - opening) * time_base) if window is None else window.first_output(tick, opening)
        )

    for frame in frames:
        due = first_output(frame.pts)
        if due > count:
            check_repeats(count, due, clock.rate, max_frames)
        while current is not None and count < due:
            yield OutputFrame(current.frame, count, 1, current.index, current.pts)
            count += 1
        current = frame
    if current is not None:
        total = max(1, first_output(clock.end_of(current.pts, current.end_pts, time_base)))
        check_repeats(count, total, clock.rate, max_frames)
        for number in range(count, total):
            yield OutputFrame(current.frame, number, 1, current.index, current.pts)


def _own_times(
    frames: Iterable[SourceFrame], facts: SourceFacts, origin: int, time_base: Fraction, file_base: Fraction
) -> Iterator[OutputFrame]:
    """Yield frames at the source's own times from 0. A frame on screen before that begins at 0.

    A frame that would not be later than the one before, in ticks of the file too, is moved one tick later. If ticks are
    long and the next frame is at that tick, it replaces the one before, whose duration would be zero.
    """
    held: OutputFrame | None = None
    own_before = 0
    is_coarser = file_base > time_base
    for frame in frames:
        own = max(0, frame.pts - origin)
        pts = own
        if held is not None:
            earliest = _next_file_tick(held.pts, time_base, file_base) if is_coarser else held.pts + 1
            if pts <= held.pts and time_base > MILLISECOND and frame.end_pts - origin <= earliest:
                held.frame, held.source_index, held.source_pts = frame.frame, frame.index, frame.pts
                held.duration = max(1, frame.end_pts - origin - held.pts)
                facts.stamps_crowded += 1
                continue
            if pts < earliest:
                pts = earliest
                if is_coarser and own > own_before:
                    facts.stamps_spaced += 1
                else:
                    facts.stamps_nudged += 1
            held.duration = pts - held.pts
            yield held
        held = OutputFrame(frame.frame, pts, max(1, frame.end_pts - origin - pts), frame.index, frame.pts)
        own_before = own
    if held is not None:
        yield held


def _next_file_tick(pts: int, time_base: Fraction, file_base: Fraction) -> int:
    """Return the first tick that the file rounds to a later file tick than `pts`. `file_base` is longer than `time_base`."""
    return math.ceil((rescale(pts, time_base, file_base) + Fraction(1, 2)) * file_base / time_base)
