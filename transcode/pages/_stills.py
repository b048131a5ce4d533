"""Decode single frames of a finished destination, to show them and to measure their size.

This runs in a child process with a deadline, since sources are untrusted.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import simplejpeg
from av.error import FFmpegError as AvError
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from PIL import Image

from vidprep.formats import open_store
from vidprep.formats.errors import (
    CrashedError,
    DeadlineError,
    DiskFullError,
    ReadError,
    StorageError,
    StoreError,
    VidprepError,
    WorkerError,
)
from vidprep.formats.model import SourceState
from vidprep.formats.stores.base import Frames
from vidprep.transcode.media.bounds import ANY_FRAMES
from vidprep.transcode.media.frames import SourceFacts, source_frames
from vidprep.transcode.media.stream import FrameStream, choose_sampled, open_source, timing_of
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.scratch import local_file
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.workers.child import Child

TIMEOUT_SECONDS = 120.0
SHOWN_PIXELS = 360
SMALL_PIXELS = 160
SHOWN_QUALITY = 85
DIFFERENCE_GAIN = 8
STILLS_PER_VIDEO = 3
JPEG_QUALITY = 90


@dataclass(frozen=True, slots=True)
class ComparedFrame:
    """A frame as three JPEGs at most SHOWN_PIXELS wide.

    Attributes:
        pictures: The frame before encoding, after it, and DIFFERENCE_GAIN times the difference
        failed: Why there are none
    """

    pictures: tuple[bytes, ...] = ()
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class StillSizes:
    """Sizes of a few frames of a video as PNG, and as JPEG of JPEG_QUALITY in 4:2:0."""

    frames: int = 0
    pixels: int = 0
    png_bytes: int = 0
    jpeg_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CompareTask:
    """Request to compare a frame of an output with the frame that its source makes."""

    destination: Path | str
    unit: Unit
    settings: RunSettings
    number: int

    def take(self) -> ComparedFrame:
        try:
            if not self.unit.is_series and SourceState.build(Path(self.unit.path).stat()) != self.unit.state:
                return ComparedFrame(failed=f"{self.unit.path} is not the file that was read")
            stored = open_store(self.destination)[self.unit.id].frames([self.number])[0]
            source = _source_frame(self)
        except (VidprepError, AvError, OSError, ValueError, LookupError, TypeError) as error:
            return ComparedFrame(failed=str(error))
        gap = np.abs(source.astype(np.int16) - stored) * DIFFERENCE_GAIN
        return ComparedFrame(
            tuple(_encode_png(frame) for frame in (source, stored, np.minimum(gap, 255).astype(np.uint8)))
        )

    def failure(self, why: str) -> ComparedFrame:
        return ComparedFrame(failed=why)


@dataclass(frozen=True, slots=True)
class SizeTask:
    """Request to measure a few frames of an output. An unreadable one is skipped: `validate` reports it."""

    destination: Path | str
    id: str

    def take(self) -> StillSizes:
        try:
            video = open_store(self.destination)[self.id]
            spread = {(2 * n + 1) * len(video) // (2 * STILLS_PER_VIDEO) for n in range(STILLS_PER_VIDEO)}
            frames = video.frames(sorted(spread))
        except (VidprepError, AvError, OSError, ValueError, LookupError):
            return StillSizes()
        png = jpeg = 0
        for frame in frames:
            file = io.BytesIO()
            Image.fromarray(frame).save(file, "PNG")
            png += file.tell()
            jpeg += len(simplejpeg.encode_jpeg(frame, JPEG_QUALITY, colorsubsampling="420"))
        return StillSizes(len(frames), frames[..., 0].size, png, jpeg)

    def failure(self, _why: str) -> StillSizes:
        return StillSizes()


@dataclass(frozen=True, slots=True)
class ClipTask:
    """Request for the first, the middle and the last frame of a clip, as JPEGs."""

    unit: Unit
    settings: RunSettings

    def take(self) -> ComparedFrame:
        cut = self.unit.cut
        first, past = cut.start_frame or 0, cut.end_frame or 1
        wanted, pictures = {first, (first + past) // 2, past - 1}, list[bytes]()
        try:
            with open_source(self.unit.path, self.settings, cut) as source:
                window, facts = timing_of(source, self.settings, cut).window, SourceFacts()
                for each in source_frames(source, facts, window, max_frames=ANY_FRAMES, on_progress=lambda: None):
                    pictures += [_encode_small(each.frame)] if each.index in wanted else []
        except (VidprepError, AvError, OSError, ValueError) as error:
            return ComparedFrame(failed=str(error))
        return ComparedFrame(tuple(pictures))

    def failure(self, why: str) -> ComparedFrame:
        return ComparedFrame(failed=why)


StillTask = CompareTask | SizeTask | ClipTask
StillResult = ComparedFrame | StillSizes


def take_in(child: Child, task: StillTask) -> StillResult:
    try:
        if isinstance(task, SizeTask):
            return child.call(_take, task, lambda _work: TIMEOUT_SECONDS)
        with local_file(task.unit, task.settings.retime.source_rate) as local:
            return child.call(_take, replace(task, unit=local), lambda _work: TIMEOUT_SECONDS)
    except WorkerError:
        raise  # nothing is known of the video
    except (CrashedError, DeadlineError, MemoryError, ReadError, StorageError, DiskFullError) as error:
        return task.failure(str(error) or type(error).__name__)


def _take(task: StillTask) -> StillResult:
    return task.take()


def _source_frame(task: CompareTask) -> Frames:
    """Return the frame before encoding, (H, W, 3) uint8."""
    unit = task.unit
    settings = replace(task.settings, limits=replace(task.settings.limits, max_frames=ANY_FRAMES))
    number = -1
    with open_source(unit.path, settings, unit.cut) as source:
        only = choose_sampled(source, settings, unit.cut)
        stream = FrameStream(source, settings, timing_of(source, settings, unit.cut), only=only)
        for number, item in enumerate(stream):
            frame = stream.picture_filter.apply(
                item.frame
            )  # filter every frame: a filter may depend on the previous one
            if number == task.number:
                return _rgb(frame)
    raise StoreError(f"its source makes {number + 1} frames, frame {task.number} is not among them", path=unit.path)


def _rgb(frame: VideoFrame, size: tuple[int, int] | None = None) -> Frames:
    width, height = size or (frame.width, frame.height)
    return np.asarray(VideoReformatter().reformat(frame, width, height, "rgb24").to_ndarray(), np.uint8)


def _encode_png(frame: Frames) -> bytes:
    height, width = frame.shape[:2]
    if width > SHOWN_PIXELS:
        size = SHOWN_PIXELS, max(1, round(height * SHOWN_PIXELS / width))
        frame = _rgb(VideoFrame.from_ndarray(frame, format="rgb24"), size)
    return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(frame), SHOWN_QUALITY, colorsubsampling="444"))


def _encode_small(frame: VideoFrame) -> bytes:
    """Return a frame as it is shown, as a small JPEG."""
    size = SMALL_PIXELS, max(1, round(frame.height * SMALL_PIXELS / frame.width))
    shown = np.rot90(_rgb(frame, size), round(frame.rotation / 90))
    return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(shown), SHOWN_QUALITY, colorsubsampling="444"))
