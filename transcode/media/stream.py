"""Stream the frames of one source from its decoder to an encoder, with stages in parallel threads.

PyAV and libjpeg-turbo release the interpreter while they work, so threads of one process use several cores. Results do
not depend on it: each stage takes its items in order, one at a time.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing
from fractions import Fraction
from itertools import chain, islice, pairwise
from math import ceil
from queue import Full, Queue
from typing import Generic, NamedTuple, TypeVar

from av.video.frame import VideoFrame

from vidprep.formats.errors import LimitError, ShortError, count_of
from vidprep.formats.model import Cut, FrameSize, OutputFormat, VideoInfo
from vidprep.formats.moments import OutputClock, Window, is_variable
from vidprep.formats.video.seek import SeekPoint, survey_of
from vidprep.formats.video.source import Source
from vidprep.transcode.media._source_picture import is_never_visible
from vidprep.transcode.media.frames import OutputFrame, SourceFacts, retime, source_frames
from vidprep.transcode.media.picture_filter import PictureFilter
from vidprep.transcode.settings.options import FrameCount
from vidprep.transcode.settings.run import RunSettings

A = TypeVar("A")

# Capacity between two stages: enough to smooth slow frames, and little compared with an encoder's memory.
WAITING_BYTES = 8 << 20
WAITING_FRAMES = 16
LOOK_SECONDS = 0.05


def waiting_frames(size: FrameSize) -> int:
    """Return how many frames of this size fit into WAITING_BYTES, as 8-bit 4:2:0."""
    return max(1, min(WAITING_FRAMES, WAITING_BYTES // (size.width * size.height * 3 // 2)))


def make_ahead(items: Generator[A, None, None], waiting: int, cores: Callable[[], int]) -> Generator[A, None, None]:
    """Yield items. While there is one core they are made on request; then a thread makes up to `waiting` of them ahead.

    Errors of the producer are raised in their place. Closing the generator closes `items` after the thread has ended.
    """
    with closing(items):
        for item in items:
            yield item
            if cores() > 1:
                break
        else:
            return
        with closing(_Pipe(items, waiting)) as pipe:
            yield from pipe


class _Pipe(Generic[A]):
    """Queue between two stages, which also carries an error of the producing thread."""

    def __init__(self, items: Iterator[A], length: int) -> None:
        self._queue: Queue[tuple[A] | BaseException | None] = Queue(length)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(items,), daemon=True)
        self._thread.start()

    def _fill(self, items: Iterator[A]) -> None:
        try:
            for item in items:
                if not self._put((item,)):
                    return
        except BaseException as error:  # noqa: BLE001 (raised again where the items are taken)
            self._put(error)
        else:
            self._put(None)

    def _put(self, item: tuple[A] | BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=LOOK_SECONDS)
            except Full:
                continue
            return True
        return False

    def __iter__(self) -> Iterator[A]:
        while True:
            item = self._queue.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item[0]

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()


MAX_NOMINAL_RATE = Fraction(240)


class OutputTiming(NamedTuple):
    """Frames of a source that an output shows.

    Attributes:
        window: The part of the source
        clock: Constant rate; None keeps the source's own times
    """

    window: Window
    clock: OutputClock | None


def open_source(path: str, settings: RunSettings, cut: Cut) -> Source:
    """Open the video stream that a cut, or else the settings, ask for. Raises ReadError."""
    retime = settings.retime
    chosen = retime.video_stream if cut.video_stream is None else cut.video_stream
    return Source(path, max_pixels=settings.limits.max_pixels, raw_rate=retime.source_rate, video_stream=chosen)


def timing_of(source: Source, settings: RunSettings, cut: Cut) -> OutputTiming:
    """Return which frames of an opened source a cut shows, and when."""
    retime, info = settings.retime, source.info
    clock = None if retime.frame_rate is None else OutputClock.build(retime.frame_rate, source.pace)
    begin = info.start_seconds if retime.cut_origin == "container" else None
    container_start = None if begin is None else begin / info.time_base
    window = Window.build(cut, source.pace, info.time_base, clock=clock, container_start=container_start)
    return OutputTiming(window, clock)


def choose_sampled(
    source: Source, settings: RunSettings, cut: Cut, on_progress: Callable[[], None] = lambda: None
) -> frozenset[int] | None:
    """Return the numbers of the output frames that the settings sample; None for all frames.

    The file is opened again and read to its end: without decoding where its packets tell when frames are displayed.

    Args:
        source: The source; it is not read from.
        settings: Settings of the run.
        cut: Part of the source.
        on_progress: Called for each frame that is decoded.

    Raises:
        ReadError: There is no frame.
        LimitError: There are too many frames.
    """
    if settings.sampling is None:
        return None
    with source.again() as again:
        count, ticks = _count_by_packets(again, settings, cut)
    if not count:
        with source.again() as again:
            count, ticks = _count_by_decoding(again, settings, cut, on_progress)
    return frozenset(settings.sampling.numbers(count, float(ticks * source.info.time_base)))


def _count_by_packets(source: Source, settings: RunSettings, cut: Cut) -> tuple[int, Fraction]:
    """Return the number of frames of a cut and its duration in ticks; 0 if only decoding tells."""
    window, survey = timing_of(source, settings, cut).window, survey_of(source)
    if survey is None or source.damage(read_to_end=True):
        return 0, Fraction(0)
    shown, window = survey.shown, window.count_from(survey.origin_pts)
    before = 0 if window.is_whole else bisect_left(shown, window.first_needed(shown))
    past = next((number for number in range(before, len(shown)) if window.is_past(shown[number], number)), len(shown))
    starts = shown[before:past]
    if not starts or any(one == other for one, other in pairwise(starts)):
        return 0, Fraction(0)
    opening = window.opening(starts[0], is_held=window.is_before(starts[0], before))
    end = window.end_of(starts[-1], shown[past] if past < len(shown) else survey.end)
    return len(starts), end - opening


def _count_by_decoding(
    source: Source, settings: RunSettings, cut: Cut, on_progress: Callable[[], None]
) -> tuple[int, Fraction]:
    window, facts = timing_of(source, settings, cut).window, SourceFacts()
    frames = source_frames(source, facts, window, max_frames=settings.limits.max_frames, on_progress=on_progress)
    first = next(frames)
    count, end = 0, 0
    for frame in retime(chain([first], frames), None, source.info.time_base, facts, facts.opening):
        count, end = count + 1, frame.pts + frame.duration
    return count, Fraction(end)


class FilteredFrame(NamedTuple):
    """A frame of the output; times in ticks of the output's time base."""

    frame: VideoFrame
    pts: int
    duration: int


class FrameStream:
    """Frames of an output before filtering, with their times. It can be drained once.

    Attributes:
        info: Header of the source
        window: Frames of the source that the output shows
        clock: Constant rate of the output; None keeps the source's own times
        opening: Time 0 of the output, in source ticks from the first frame displayed
        picture_filter: Filters, planned from the first frame
        facts: Facts about the source; complete after the last frame
        source_indexes: Number of the source frame that each output frame shows; complete after the last frame
        source_pts: Start of those source frames, in ticks from the first frame displayed; complete after the last frame
    """

    def __init__(
        self,
        source: Source,
        settings: RunSettings,
        timing: OutputTiming,
        *,
        entry: SeekPoint | None = None,
        opening: Fraction | None = None,
        first: int = 0,
        first_pts: int = 0,
        num_frames: int | None = None,
        only: Collection[int] | None = None,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """Decode the first frame.

        Args:
            source: The source, just opened or positioned by `entry`.
            settings: Settings of the run.
            timing: Frames of the output, and their times.
            entry: Where decoding begins, if known.
            opening: For a segment: source tick that is time 0 of the whole output.
            first: For a segment: number of its first output frame in the whole.
            first_pts: For a segment: tick of that frame in the whole.
            num_frames: For a segment: number of its output frames; None to the end.
            only: Numbers of the output frames to yield, 0 among them; None for all.
            on_progress: Called for each decoded frame.
        """
        self._path, self.info, self.facts = source.path, source.info, SourceFacts()
        self.source_indexes: list[int] = []
        self.source_pts: list[int] = []
        limit = settings.limits.max_frames
        decoded = source_frames(
            source, self.facts, timing.window, max_frames=limit, entry=entry, on_progress=on_progress
        )
        opened = next(decoded)
        self.picture_filter = PictureFilter(
            opened.frame,
            self.info,
            settings,
            settings.output.pixel_format,
            lambda: is_never_visible(source, settings.limits, on_progress),
        )
        self.output = _output_format(self.picture_filter, self.info, settings)
        is_constant = self.output.frame_rate is not None
        file_base = settings.output.file_time_base(self.output.time_base, is_constant=is_constant)
        self.window, self.clock = timing.window.count_from(self.facts.origin_pts), timing.clock
        self.opening, self.first_tick = self.facts.opening if opening is None else opening, opened.pts
        frames = retime(
            chain([opened], decoded),
            self.clock,
            self.info.time_base,
            self.facts,
            self.opening,
            self.window,
            first,
            file_base,
            max_frames=limit,
        )
        if settings.count is not None:
            frames = self._cut_to(settings.count, frames)
        if only is not None:
            frames = (frame for number, frame in enumerate(frames) if number in only)
        self._frames = self._count(islice(frames, num_frames), first_pts, on_progress)

    def __iter__(self) -> Iterator[OutputFrame]:
        return self._frames

    def filter(self) -> Generator[FilteredFrame, None, None]:
        """Yield the frames to encode."""
        for frame in self._frames:
            yield FilteredFrame(self.picture_filter.apply(frame.frame), frame.pts, frame.duration)

    def _cut_to(self, wanted: FrameCount, frames: Iterator[OutputFrame]) -> Iterator[OutputFrame]:
        """Yield frames up to a number that is wanted. Raises ShortError."""
        given, held = 0, list[OutputFrame]()
        last: OutputFrame | None = None
        for frame in frames:
            held.append(frame)
            if given == wanted.most:
                break
            if wanted.has(given + len(held)):
                yield from held
                given, last = given + len(held), frame
                held.clear()
        if last is None or given < wanted.least:
            raise ShortError(
                f"its output has {count_of(given + len(held), 'frame')}, and --frames {wanted.frames} asks for {wanted.least} or more",
                path=self._path,
            )
        if held:
            self._end_before(held[0], last.source_index, given)

    def _end_before(self, after: OutputFrame, last: int, num_frames: int) -> None:
        """Take what follows the last frame of the output out of the facts."""
        facts = self.facts
        facts.num_frames = last - self.source_indexes[0] + 1
        facts.is_vfr = is_variable(facts.steps, self.info.time_base)
        if self.clock is None:
            facts.last_end = after.source_pts
        else:
            facts.last_end = ceil(self.opening + num_frames / self.clock.rate / self.info.time_base)
        facts.span = facts.span[0], facts.last_end
        facts.is_trimmed = True

    def _count(
        self, frames: Iterator[OutputFrame], first_pts: int, on_progress: Callable[[], None]
    ) -> Iterator[OutputFrame]:
        for frame in frames:
            on_progress()
            frame.pts -= first_pts
            self.source_indexes.append(frame.source_index)
            self.source_pts.append(frame.source_pts)
            yield frame


def _output_format(picture_filter: PictureFilter, info: VideoInfo, settings: RunSettings) -> OutputFormat:
    rate = settings.retime.frame_rate
    size = picture_filter.picture.size
    settings.output.check_size(size)
    if size.width * size.height > settings.limits.max_pixels:
        raise LimitError(f"the output would be {size}, over --max-pixels {settings.limits.max_pixels}")
    nominal = rate or info.frame_rate or Fraction(25)
    return OutputFormat(
        size=size,
        pixel_format=picture_filter.picture.pixel_format,
        colour=picture_filter.picture.colour,
        time_base=1 / rate if rate else info.time_base,
        frame_rate=rate,
        nominal_rate=min(max(nominal, Fraction(1)), MAX_NOMINAL_RATE),
        light=picture_filter.picture.light,
    )
