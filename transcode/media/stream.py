"""The frames of one source on their way from its decoder to an encoder, and what they showed on the way."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from fractions import Fraction
from itertools import chain, islice
from typing import NamedTuple

from av.video.frame import VideoFrame

from vidprep.formats.errors import LimitError
from vidprep.formats.model import Cut, OutputFormat, VideoInfo
from vidprep.formats.moments import OutputClock
from vidprep.formats.video.seek import SeekPoint
from vidprep.formats.video.source import Source
from vidprep.formats.video.window import Window
from vidprep.transcode.media.alpha import shows_never
from vidprep.transcode.media.frames import OutputFrame, SourceFacts, retimed, source_frames
from vidprep.transcode.media.picture_filter import PictureFilter
from vidprep.transcode.settings.run import RunSettings

MAX_NOMINAL_RATE = Fraction(240)


class Timing(NamedTuple):
    """Which frames of a source an output shows, and its constant rate; None keeps the source's own times."""

    window: Window
    clock: OutputClock | None


def timing_of(source: Source, settings: RunSettings, cut: Cut) -> Timing:
    """Return which frames of an opened source a cut shows, and when."""
    retime, info = settings.retime, source.info
    clock = None if retime.frame_rate is None else OutputClock.of(retime.frame_rate, source.pace)
    begin = info.start_seconds if retime.cut_origin == "container" else None
    container_start = None if begin is None else begin / info.time_base
    window = Window.of(cut, source.pace, info.time_base, clock=clock, container_start=container_start)
    return Timing(window, clock)


class FilteredFrame(NamedTuple):
    """A frame of the output. pts, duration: ticks of the output's time base."""

    frame: VideoFrame
    pts: int
    duration: int


class FrameStream:
    """Frames before they are filtered, at the times of the output; they can be drained once.

    Attributes:
        info: Header of the source.
        window: Frames of the source that the output shows.
        clock: Constant rate of the output; None keeps the source's own times.
        opening: Tick of the source that is time 0 of the output, from the first frame shown.
        first_tick: Tick of the first frame.
        picture_filter: Known from the first frame.
        output: Known from the first frame.
        facts: Of the source; complete when the last frame has been drained.
        source_indexes: Number of the source frame that each output frame shows; complete likewise.
        source_pts: When those source frames begin, in ticks from the first frame shown; complete likewise.
    """

    def __init__(
        self,
        source: Source,
        settings: RunSettings,
        timing: Timing,
        *,
        entry: SeekPoint | None = None,
        opening: Fraction | None = None,
        first: int = 0,
        first_pts: int = 0,
        num_frames: int | None = None,
        worked: Callable[[], None] = lambda: None,
    ) -> None:
        """Decode the first frame.

        Args:
            source: Just opened, or where `entry` left it.
            settings: Of the run.
            timing: Which frames, and when the output shows them.
            entry: Where decoding begins, if that is known.
            opening: Of a segment: tick of the source that is time 0 of the whole output.
            first: Of a segment: number of its first output frame in the whole.
            first_pts: Of a segment: tick of that frame in the whole.
            num_frames: Of a segment: number of its output frames; None to the end.
            worked: Called for each frame that is decoded, and for each that is given out.
        """
        self.info, self.facts = source.info, SourceFacts()
        self.source_indexes: list[int] = []
        self.source_pts: list[int] = []
        limit = settings.limits.max_frames
        decoded = source_frames(source, self.facts, timing.window, max_frames=limit, entry=entry, worked=worked)
        opened = next(decoded)
        self.picture_filter = PictureFilter(
            opened.frame,
            self.info,
            settings,
            settings.output.pixel_format,
            lambda: shows_never(source, settings.limits, worked),
        )
        self.output = _output_format(self.picture_filter, self.info, settings)
        is_constant = self.output.frame_rate is not None
        file_base = settings.output.file_time_base(self.output.time_base, is_constant=is_constant)
        self.window, self.clock = timing.window.counted_from(self.facts.origin_pts), timing.clock
        self.opening, self.first_tick = self.facts.opening if opening is None else opening, opened.pts
        frames = retimed(
            chain([opened], decoded),
            self.clock,
            self.info.time_base,
            self.facts,
            self.opening,
            self.window.end,
            first,
            file_base,
            max_frames=limit,
        )
        self._frames = self._counted(islice(frames, num_frames), first_pts, worked)

    def __iter__(self) -> Iterator[OutputFrame]:
        return self._frames

    def filtered(self) -> Generator[FilteredFrame, None, None]:
        """The frames as they are to be encoded."""
        for frame in self._frames:
            yield FilteredFrame(self.picture_filter.apply(frame.frame), frame.pts, frame.duration)

    def _counted(
        self, frames: Iterator[OutputFrame], first_pts: int, worked: Callable[[], None]
    ) -> Iterator[OutputFrame]:
        for frame in frames:
            worked()
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
