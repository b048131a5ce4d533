"""Frames one by one: each coded, decoded back and scored in the same pass, back to back in one file until a shard takes it."""

from __future__ import annotations

import zlib
from array import array
from dataclasses import dataclass, field
from pathlib import Path

from av.video.frame import VideoFrame

from vidprep.formats.errors import VerifyError
from vidprep.formats.video.jpeg import jpeg_coder
from vidprep.formats.video.planes import visible_bytes
from vidprep.transcode.media.metrics import FrameScore, FrameScorer, QualityReport, QualitySums
from vidprep.transcode.media.stream import FrameStream
from vidprep.transcode.settings.run import RunSettings

LOSSLESS = FrameScore(0.0, 0.0, 1.0)


@dataclass(slots=True)
class StoredFrames:
    """What was written and measured: an entry for each frame, in order. quality: set when the last one is written."""

    pts: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("l"))
    crc32: array[int] = field(default_factory=lambda: array("L"))
    quality: QualityReport = field(init=False)

    @property
    def num_frames(self) -> int:
        return len(self.pts)


def store_frames(settings: RunSettings, partial: Path, stream: FrameStream) -> StoredFrames:
    """Write `partial` and prove it.

    A frame that stands twice in a row is coded and scored once. Raises EncodeError, VerifyError, OSError.
    """
    options, every, output = settings.frames, settings.gate.verify_every, stream.output
    assert options is not None
    coder = jpeg_coder(options.quality) if options.is_coded else None
    scorer = FrameScorer(output.size, output.pixel_format, output.colour) if coder else None
    stored, sums = StoredFrames(), QualitySums()
    previous: tuple[VideoFrame, bytes, FrameScore | None] | None = None
    with partial.open("wb") as file:
        for number, item in enumerate(stream):
            frame = stream.picture_filter.apply(item.frame)
            if previous is not None and previous[0] is frame:
                _, data, score = previous
            else:
                data = coder.encode(frame) if coder else _raw(frame)
                score = None
            if number % every == 0:
                if score is None:
                    score = scorer.score(frame, coder.decode(data, frame)) if coder and scorer else LOSSLESS
                sums.add(number, score)
            previous = (frame, data, score)
            stored.pts.append(item.pts)
            stored.sizes.append(len(data))
            stored.crc32.append(zlib.crc32(data))
            file.write(data)
    stored.quality = sums.report(255)
    _check_file(partial, stored)
    return stored


def _raw(frame: VideoFrame) -> bytes:
    """(H, W, 3) uint8 RGB, C order."""
    (plane,) = frame.planes
    return bytes(visible_bytes(plane, frame.width * 3))


def _check_file(partial: Path, stored: StoredFrames) -> None:
    with partial.open("rb") as file:
        for number, (size, crc32) in enumerate(zip(stored.sizes, stored.crc32, strict=True)):
            if zlib.crc32(file.read(size)) != crc32:
                raise VerifyError(f"frame {number} has other bytes in the file than were measured")
        if file.read(1):
            raise VerifyError("the file holds more than the frames that were written")
