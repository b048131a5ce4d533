"""Our frames, just before they would be encoded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from av.video.frame import VideoFrame

from vidprep.formats.model import WHOLE, Cut, OutputFormat, VideoInfo
from vidprep.formats.moments import Pace
from vidprep.formats.video.source import Source
from vidprep.transcode.media import frames
from vidprep.transcode.media.frames import SourceFacts, SourceFrame
from vidprep.transcode.media.picture_filter import PictureFilter
from vidprep.transcode.media.stream import FrameStream, timing_of
from vidprep.transcode.settings.run import RunSettings


def frame_bytes(frame: VideoFrame) -> bytes:
    """Visible samples of all planes, one behind the other: what ffmpeg's rawvideo holds."""
    out = []
    one_plane = len(frame.planes) == 1
    for plane in frame.planes:
        deep = any(component.bits > 8 for component in frame.format.components)
        sample_bytes = frame.format.padded_bits_per_pixel // 8 if one_plane else 2 if deep else 1
        rows = np.frombuffer(plane, np.uint8).reshape(plane.height, abs(plane.line_size))
        if plane.line_size < 0:  # vflip turns a picture by walking backwards through it
            rows = rows[::-1]
        out.append(rows[:, : plane.width * sample_bytes].tobytes())
    return b"".join(out)


def frame_md5(frame: VideoFrame) -> str:
    return hashlib.md5(frame_bytes(frame), usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class OurFrame:
    md5: str
    pts: int
    duration: int
    source_index: int
    source_pts: int


def source_frames(
    source: Source, facts: SourceFacts | None = None, cut: Cut = WHOLE, *, max_frames: int = 1_000_000
) -> Iterator[SourceFrame]:
    """The frames of a cut at their own times."""
    window = timing_of(source, RunSettings(), cut).window
    return frames.source_frames(source, facts or SourceFacts(), window, max_frames=max_frames)


@dataclass
class Pipeline:
    """What comes out of our pipeline just before the encoder."""

    info: VideoInfo
    picture_filter: PictureFilter
    facts: SourceFacts
    output: OutputFormat
    frames: list[OurFrame]
    pictures: list[bytes]
    stream: FrameStream
    pace: Pace

    @property
    def time_base(self) -> Fraction:
        """Of the frames' PTS."""
        return self.output.time_base

    def array(self) -> np.ndarray:
        return np.stack([np.frombuffer(p, np.uint8) for p in self.pictures])


class Run:
    """Runs our pipeline up to the encoder."""

    def __call__(
        self,
        path: Path,
        settings: RunSettings | None = None,
        *,
        start: Fraction | None = None,
        end: Fraction | None = None,
        keep: bool = False,
        apply: bool = True,
    ) -> Pipeline:
        settings = settings or RunSettings()
        with Source(path, max_pixels=36_000_000) as source:
            cut = Cut(*(None if seconds is None else float(seconds) for seconds in (start, end)))
            stream = FrameStream(source, settings, timing_of(source, settings, cut))
            made, pictures, seen = [], [], {}
            for item in stream:
                # An output frame that repeats shares its picture; frames are reused by nobody else.
                picture = stream.picture_filter.apply(item.frame) if apply else item.frame
                key = seen.get(item.source_index) or frame_md5(picture)
                seen = {item.source_index: key}
                made.append(OurFrame(key, item.pts, item.duration, item.source_index, item.source_pts))
                if keep:
                    pictures.append(frame_bytes(picture))
            return Pipeline(
                source.info, stream.picture_filter, stream.facts, stream.output, made, pictures, stream, source.pace
            )
