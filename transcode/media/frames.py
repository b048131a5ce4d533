"""The frames of a source: in order, on a true time line, progressive, cut, and at the rate that was asked.

Decoded frames come in display order, and that order is kept; how their timestamps are put in order, and that it is said, is in
`vidprep.formats.video.timestamps`. Time 0 is the first frame shown.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import av
from av.error import FFmpegError as AvError
from av.video.frame import VideoFrame

from vidprep.formats.errors import LimitError, NoVideoError, ReadError
from vidprep.formats.model import rescale, round_half_away
from vidprep.formats.video.seek import SeekPoint, seek_to
from vidprep.formats.video.source import Source
from vidprep.formats.video.ticks import MILLISECOND
from vidprep.formats.video.timestamps import PacketsAhead, StampCounts, Timed, on_time_line
from vidprep.transcode.media.bounds import check_repeats

UNSPECIFIED, NAMED_MATRICES = 2, {0, 1, 2, *range(4, 18)}
CODED_AS_FIELDS = {"hevc"}  # libavcodec marks nothing else of it as interlaced (pic_struct 1 and 2; H.265, D.3.3)
DEINTERLACER = ("bwdif", "mode=send_frame:parity=auto:deint=interlaced")


@dataclass(slots=True)
class SourceFrame:
    """A frame of the source. pts, end_pts: ticks from the first frame shown. index: 0-based from there, also in a cut."""

    frame: VideoFrame
    pts: int
    end_pts: int
    index: int


@dataclass(slots=True)
class OutputFrame:
    """A frame of the output before scaling. pts, duration: ticks of the output's time base."""

    frame: VideoFrame
    pts: int
    duration: int
    source_index: int


@dataclass(slots=True)
class SourceFacts(StampCounts):
    """What reading showed; complete when the frames have been drained.

    origin_pts: the source's own PTS of the first frame of the cut; first_pts: the same from the first frame shown.
    duration: ticks from there to the end of the last.
    """

    num_frames: int = 0
    origin_pts: int = 0
    first_pts: int = 0
    duration: int = 0
    is_vfr: bool = False
    is_interlaced: bool = False
    num_deinterlaced: int = 0
    num_fields: int = 0
    stamps_nudged: int = 0
    stamps_spaced: int = 0
    stamps_crowded: int = 0
    read_to_end: bool = False
    steps: set[int] = field(default_factory=set)


def source_frames(
    source: Source,
    facts: SourceFacts,
    *,
    start: Fraction | None,
    end: Fraction | None,
    max_frames: int,
    entry: SeekPoint | None = None,
    worked: Callable[[], None] = lambda: None,
) -> Iterator[SourceFrame]:
    """Progressive frames of the cut [start, end), seconds from the first frame shown; all of them without a cut.

    entry: where decoding begins, when that is known. worked: called for each frame that was decoded.
    Raises NoVideoError when there are none, LimitError past max_frames.
    """
    entry = entry or seek_to(source, start)
    time_base = source.info.time_base
    step = source.info.usual_step
    ahead = PacketsAhead(entry.packets, delays=source.delays, from_middle=entry.frames_before is not None)
    decoded = source.decode(iter(ahead))
    placed = on_time_line(_limited(decoded, max_frames, worked), step, facts, ahead)
    frames = _with_ends(_deinterlaced(placed, facts, source.info.codec), step, facts)

    origin = entry.origin_pts
    first_tick = -sys.maxsize if start is None else math.ceil(start / time_base)
    end_tick = sys.maxsize if end is None else math.ceil(end / time_base)
    index = -1
    found = False
    for frame, pts, end_pts in frames:
        if origin is None:
            origin = pts
        if entry.frames_before is None:
            index += 1
        if pts - origin < first_tick:
            continue
        if pts - origin >= end_tick:
            break
        if entry.frames_before is not None:
            index = index + 1 if found else entry.frames_before
        if not found:
            found, facts.origin_pts = True, pts
        facts.num_frames += 1
        facts.duration = end_pts - facts.origin_pts
        facts.steps.add(end_pts - pts)
        yield SourceFrame(frame, pts - origin, end_pts - origin, index)
    else:
        facts.read_to_end = True
    facts.is_vfr = is_vfr(facts.steps, time_base)
    if not found:
        raise NoVideoError(_nothing_found(source, start, end), path=source.path)


def _nothing_found(source: Source, start: Fraction | None, end: Fraction | None) -> str:
    damage = "; ".join(source.damage(read_to_end=True))
    if source.has_headers_alone:
        return "holds headers and no frames; join it with its media segments, as `cat init.m4s *.m4s` does"
    if start is None and end is None:
        return f"no frame could be decoded{': ' + damage if damage else ''}"
    span = f"{float(start or 0):g} s to {'the end' if end is None else f'{float(end):g} s'}"
    claimed = source.info.duration_seconds
    length = "" if claimed is None else f"; the source is {claimed:.3f} s long"
    return f"the cut from {span} holds no frame{length}{': ' + damage if damage else ''}"


def is_vfr(steps: set[int], time_base: Fraction) -> bool:
    """Frame intervals differ by more than 2.5 ms + 2 %: more than the rounding of a millisecond grid."""
    if len(steps) < 2:
        return False
    low, high = min(steps) * time_base, max(steps) * time_base
    return high - low > Fraction(25, 10_000) + low / 50


def _limited(frames: Iterator[VideoFrame], max_frames: int, worked: Callable[[], None]) -> Iterator[VideoFrame]:
    for count, frame in enumerate(frames, 1):
        worked()
        if count > max_frames:
            raise LimitError(f"holds more than {max_frames} frames; raise --max-frames if that is intended")
        yield frame


def _deinterlaced(frames: Iterable[Timed], facts: SourceFacts, codec: str) -> Iterator[Timed]:
    """Interlaced frames made progressive by bwdif, which looks one frame back and one ahead; the count stays. Those of HEVC are
    single fields, with no lines of the other one between theirs, and stay as they are.

    The filter starts at the first interlaced frame, fed with the one before it: the same frames as if it had run from
    the beginning, and no cost for progressive video.
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
        self._inside: deque[Timed | None] = deque()
        self._count = 0

    def takes(self, frame: VideoFrame) -> bool:
        return self._shape == (frame.width, frame.height, frame.format.name)

    def prime(self, frame: VideoFrame) -> None:
        """The frame before the first one that counts; what comes out for it is dropped."""
        for _ in self._step(frame, None):
            raise ReadError("the deinterlacer gave a frame too early")

    def push(self, timed: Timed) -> Iterator[Timed]:
        yield from self._step(timed.frame, timed)

    def finish(self) -> Iterator[Timed]:
        yield from self._step(None, None)
        if self._inside:
            raise ReadError(f"the deinterlacer kept {len(self._inside)} frames")

    def _step(self, frame: VideoFrame | None, timed: Timed | None) -> Iterator[Timed]:
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
                yield Timed(done, entered.pts, entered.duration)


def buffer_arguments(frame: VideoFrame) -> str:
    """A buffer source that says everything about the frame: what PyAV's own template drops makes scale guess colours.

    But for a matrix of a reserved code, which it does not take.
    """
    matrix = int(frame.colorspace)
    return (
        f"video_size={frame.width}x{frame.height}:pix_fmt={frame.format.name}:time_base=1/1:pixel_aspect=1/1"
        f":colorspace={matrix if matrix in NAMED_MATRICES else UNSPECIFIED}:range={frame.color_range}"
    )


def _with_ends(frames: Iterable[Timed], step: int, facts: SourceFacts) -> Iterator[tuple[VideoFrame, int, int]]:
    """Each frame with its start and its end: the next frame's start; for the last one its own duration.

    A duration that is missing or one tick says nothing (FLV, Matroska), and one field is not a frame: the step before it stands in.
    """
    held: Timed | None = None
    usual = step
    for timed in frames:
        if held is not None:
            yield held.frame, held.pts, timed.pts
            usual = timed.pts - held.pts or usual
        held = timed
    if held is not None:
        is_field = facts.is_interlaced and abs(2 * held.duration - usual) <= 2
        yield held.frame, held.pts, held.pts + (held.duration if held.duration > 1 and not is_field else usual)


def retimed(
    frames: Iterable[SourceFrame],
    rate: Fraction | None,
    time_base: Fraction,
    facts: SourceFacts,
    opening: int | None = None,
    first: int = 0,
    file_base: Fraction | None = None,
    *,
    max_frames: int = sys.maxsize,
) -> Iterator[OutputFrame]:
    """At a constant rate, or with their own times when `rate` is None. At least one frame comes out of one.

    opening: tick that is time 0 of the output; None means the first frame. first: number of the first output frame.
    file_base: seconds per tick of the file that they go into; None means the same as `time_base`.

    Constant: with o(t) = round(t · rate), output k is the last source frame with o(PTS) <= k, and there are o(end) of
    them: the frames of ffmpeg's `setpts=PTS-STARTPTS,fps=rate:round=near`. One tick of the output is 1/rate.

    Raises LimitError before it gives out frames that `check_repeats` refuses.
    """
    if rate is None:
        yield from _own_times(frames, facts, opening, time_base, file_base or time_base)
        return
    origin = opening
    current: SourceFrame | None = None
    count = first
    for frame in frames:
        if origin is None:
            origin = frame.pts
        due = round_half_away((frame.pts - origin) * time_base * rate)
        if due > count:
            check_repeats(count, due, rate, max_frames)
        while current is not None and count < due:
            yield OutputFrame(current.frame, count, 1, current.index)
            count += 1
        current = frame
    if current is not None:
        assert origin is not None
        total = max(1, round_half_away((current.end_pts - origin) * time_base * rate))
        check_repeats(count, total, rate, max_frames)
        for number in range(count, total):
            yield OutputFrame(current.frame, number, 1, current.index)


def _own_times(
    frames: Iterable[SourceFrame], facts: SourceFacts, origin: int | None, time_base: Fraction, file_base: Fraction
) -> Iterator[OutputFrame]:
    """The source's own times from 0. A frame that would not come after the one before it, in ticks of the file too, is moved
    one tick behind it; where ticks are long and the next frame stands there, it takes the place of the one before, which is shown
    for no time.
    """
    held: OutputFrame | None = None
    own_before = 0
    is_coarser = file_base > time_base
    for frame in frames:
        if origin is None:
            origin = frame.pts
        own = frame.pts - origin
        pts = own
        if held is not None:
            earliest = _next_file_tick(held.pts, time_base, file_base) if is_coarser else held.pts + 1
            if pts <= held.pts and time_base > MILLISECOND and frame.end_pts - origin <= earliest:
                held.frame, held.source_index = frame.frame, frame.index
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
        held = OutputFrame(frame.frame, pts, max(1, frame.end_pts - origin - pts), frame.index)
        own_before = own
    if held is not None:
        yield held


def _next_file_tick(pts: int, time_base: Fraction, file_base: Fraction) -> int:
    """The first tick that the file rounds to a later one of its own than `pts`. file_base: longer than time_base."""
    return math.ceil((rescale(pts, time_base, file_base) + Fraction(1, 2)) * file_base / time_base)
