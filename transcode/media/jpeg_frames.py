"""The in-process engine for stored frames: encode, decode and score each frame in one pass, and append it to one file."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from av.video.frame import VideoFrame

from vidprep.formats.errors import VerifyError
from vidprep.formats.video import JpegCoder, jpeg_coder, visible_bytes
from vidprep.transcode.media.metrics import FrameScore, FrameScorer, QualityReport, QualitySums
from vidprep.transcode.media.stream import FilteredFrame, FrameStream, made_ahead, waiting_frames
from vidprep.transcode.settings import RunSettings

LOSSLESS = FrameScore(0.0, 0.0, 1.0)


@dataclass(slots=True)
class StoredFrames:
    """Stored frames, with one entry for each frame in order.

    Attributes:
        pts: Start of each frame in ticks
        sizes: Size of each frame in bytes
        crc32: CRC-32 of each frame
        quality: Scores; set after the last frame
    """

    pts: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("l"))
    crc32: array[int] = field(default_factory=lambda: array("L"))
    quality: QualityReport = field(init=False)

    @property
    def num_frames(self) -> int:
        return len(self.pts)


def store_frames(settings: RunSettings, partial: Path, stream: FrameStream, cores: Callable[[], int]) -> StoredFrames:
    """Write and verify `partial`. A repeated frame is encoded and scored once. Raises EncodeError, VerifyError, OSError."""
    options, every, output = settings.stored_frames, settings.gate.verify_every, stream.output
    coder = jpeg_coder(options.quality) if options.is_coded else None
    scorer = FrameScorer(output.size, output.pixel_format, output.colour) if coder else None
    stored, sums = StoredFrames(), QualitySums()
    previous: tuple[VideoFrame, FrameScore] | None = None
    waiting = waiting_frames(output.size)
    filtered = made_ahead(stream.filtered(), waiting, cores)
    with partial.open("wb") as file, closing(made_ahead(_coded(filtered, coder), waiting, cores)) as coded:
        for number, ((frame, pts, _), data) in enumerate(coded):
            if number % every == 0:
                if previous is not None and previous[0] is frame:
                    _, score = previous
                else:
                    score = scorer.score(frame, coder.decode(data, frame)) if coder and scorer else LOSSLESS
                sums.add(number, score)
                previous = (frame, score)
            stored.pts.append(pts)
            stored.sizes.append(len(data))
            stored.crc32.append(zlib.crc32(data))
            file.write(data)
    stored.quality = sums.report(255)
    _check_file(partial, stored)
    return stored


def _coded(
    frames: Generator[FilteredFrame, None, None], coder: JpegCoder | None
) -> Generator[tuple[FilteredFrame, bytes], None, None]:
    previous: tuple[VideoFrame, bytes] | None = None
    with closing(frames):
        for frame in frames:
            if previous is None or previous[0] is not frame.frame:
                previous = frame.frame, coder.encode(frame.frame) if coder else _raw(frame.frame)
            yield frame, previous[1]


def _raw(frame: VideoFrame) -> bytes:
    """Return (H, W, 3) uint8 RGB in C order."""
    (plane,) = frame.planes
    return bytes(visible_bytes(plane, frame.width * 3))


def _check_file(partial: Path, stored: StoredFrames) -> None:
    with partial.open("rb") as file:
        for number, (size, crc32) in enumerate(zip(stored.sizes, stored.crc32, strict=True)):
            if zlib.crc32(file.read(size)) != crc32:
                raise VerifyError(f"frame {number} has other bytes in the file than were measured")
        if file.read(1):
            raise VerifyError("the file holds more than the frames that were written")
