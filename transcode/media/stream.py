"""The frames of one source on their way from its decoder to an encoder, and what they showed on the way."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from fractions import Fraction
from itertools import chain, islice
from typing import NamedTuple

from av.video.frame import VideoFrame

from vidprep.formats.errors import LimitError, PictureError
from vidprep.formats.model import OutputFormat, VideoInfo
from vidprep.formats.video.seek import SeekPoint
from vidprep.formats.video.source import Source
from vidprep.formats.video.ticks import file_time_base
from vidprep.transcode.media.frames import OutputFrame, SourceFacts, retimed, source_frames
from vidprep.transcode.media.picture_filter import PictureFilter
from vidprep.transcode.settings.run import RunSettings

MAX_NOMINAL_RATE = Fraction(240)


class FilteredFrame(NamedTuple):
    """A frame of the output. pts, duration: ticks of the output's time base."""

    frame: VideoFrame
    pts: int
    duration: int


class FrameStream:
    """Frames before they are filtered, at the times of the output; they can be drained once.

    info: of the source. picture_filter, output: known from the first frame. facts, source_indexes: of the source, and which of its frames
    each output frame is; complete when the last frame has been drained.
    """

    def __init__(
        self, source: Source, settings: RunSettings, start: Fraction | None, end: Fraction | None, *,
        entry: SeekPoint | None = None, opening_ticks: int | None = None, first: int = 0, first_pts: int = 0,
        num_frames: int | None = None, worked: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """[start, end): seconds from the first frame shown. entry: where decoding begins, when that is known. worked: called for each
        frame that was decoded, and for each that is given out.

        Of a segment: first, first_pts: number and tick of its first output frame in the whole, whose time 0 is opening_ticks of the
        source; num_frames: None to the end.
        """
        self.info, self.facts = source.info, SourceFacts()
        self.source_indexes: list[int] = []
        limit = settings.limits.max_frames
        decoded = source_frames(
            source, self.facts, start=start, end=end, max_frames=limit, entry=entry, worked=worked
        )  # fmt: skip
        opening = next(decoded)
        self.facts.first_pts = opening.pts
        self.picture_filter = PictureFilter(opening.frame, self.info, settings, settings.pixel_format)
        self.output = _output_format(self.picture_filter, self.info, settings)
        file_base = None
        if settings.frames is None:
            is_constant = self.output.frame_rate is not None
            box = settings.encoder.container_name
            file_base = file_time_base(box, self.output.time_base, is_constant=is_constant)
        frames = retimed(
            chain([opening], decoded), settings.retime.frame_rate, self.info.time_base, self.facts, opening_ticks, first,
            file_base, max_frames=limit,
        )  # fmt: skip
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
            yield frame


def _output_format(picture_filter: PictureFilter, info: VideoInfo, settings: RunSettings) -> OutputFormat:
    rate = settings.retime.frame_rate
    profile = settings.encoder.profile
    size = picture_filter.picture.size
    if settings.frames is None and (size.width < profile.smallest[0] or size.height < profile.smallest[1]):
        low = "x".join(str(n) for n in profile.smallest)
        raise PictureError(
            f"{size} is below the smallest picture of {profile.name} ({low}); allow --upscale or take another --codec"
        )
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
