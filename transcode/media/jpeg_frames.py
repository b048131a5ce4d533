"""The in-process engine for stored frames: encode, decode and score each frame in one pass, and append it to one file."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import simplejpeg
from av.video.frame import VideoFrame

from vidprep.formats.errors import VerifyError
from vidprep.formats.model import FrameSize, Orientation
from vidprep.formats.video.jpeg import JpegCoder, jpeg_coder
from vidprep.formats.video.picture_facts import turn_of
from vidprep.formats.video.pyav import demux, visible_bytes
from vidprep.formats.video.source import open_video
from vidprep.transcode.media.metrics import FrameScore, FrameScorer, QualityReport, QualitySums
from vidprep.transcode.media.stream import FilteredFrame, FrameStream, make_ahead, waiting_frames
from vidprep.transcode.settings.run import RunSettings

LOSSLESS = FrameScore(0.0, 0.0, 1.0)


@dataclass(slots=True)
class StoredFrames:
    """Stored frames, with one entry for each frame in order.

    Attributes:
        pts: Start of each frame in ticks
        sizes: Size of each frame in bytes
        crc32: CRC-32 of each frame
        num_kept: Number of frames that are JPEGs of the source as they are
        quality: Scores; set after the last frame
    """

    pts: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("l"))
    crc32: array[int] = field(default_factory=lambda: array("L"))
    num_kept: int = 0
    quality: QualityReport = field(init=False)

    @property
    def num_frames(self) -> int:
        return len(self.pts)


class CodedFrame(NamedTuple):
    """A frame of the output: as it was encoded, its time, its bytes, and whether these are the source's own JPEG."""

    frame: VideoFrame
    pts: int
    data: bytes
    is_kept: bool = False


def store_frames(
    settings: RunSettings, partial: Path, stream: FrameStream, cores: Callable[[], int], own: str | None
) -> StoredFrames:
    """Write and verify `partial`. A repeated frame is encoded and scored once.

    Args:
        settings: Settings of the run.
        partial: The file.
        stream: The frames.
        cores: Returns how many cores may be used now.
        own: File with the JPEGs of the source, which are kept where they fit; None to encode all frames.

    Raises:
        EncodeError: A frame cannot be encoded.
        VerifyError: The file holds something else.
        OSError: It cannot be written.
    """
    options, every, output = settings.stored_frames, settings.gate.verify_every, stream.output
    coder = jpeg_coder(options.quality_value) if options.is_coded else None
    scorer = FrameScorer(output, settings.gate) if coder else None
    stored, sums = StoredFrames(), QualitySums()
    previous: tuple[VideoFrame, FrameScore] | None = None
    waiting = waiting_frames(output.size)
    if own is not None and coder is not None:
        frames = keep_or_encode(stream, own, coder)
    else:
        frames = _encode(make_ahead(stream.filter(), waiting, cores), coder)
    with partial.open("wb") as file, closing(make_ahead(frames, waiting, cores)) as coded:
        for number, (frame, pts, data, is_kept) in enumerate(coded):
            stored.num_kept += is_kept
            remembers = scorer is not None and scorer.has_memory
            if is_kept and number % every == 0:
                sums.add(number, scorer.score(frame, frame) if scorer and remembers else LOSSLESS)
            elif number % every == 0:
                if previous is not None and previous[0] is frame and not remembers:
                    _, score = previous
                else:
                    score = scorer.score(frame, coder.decode(data, frame)) if coder and scorer else LOSSLESS
                sums.add(number, score)
                previous = (frame, score)
            stored.pts.append(pts)
            stored.sizes.append(len(data))
            stored.crc32.append(zlib.crc32(data))
            file.write(data)
    sums.vmaf = scorer.finish() if scorer else None
    stored.quality = sums.report(255)
    _check_file(partial, stored)
    return stored


def _encode(frames: Generator[FilteredFrame, None, None], coder: JpegCoder | None) -> Generator[CodedFrame, None, None]:
    previous: tuple[VideoFrame, bytes] | None = None
    with closing(frames):
        for frame in frames:
            if previous is None or previous[0] is not frame.frame:
                previous = frame.frame, coder.encode(frame.frame) if coder else _raw(frame.frame)
            yield CodedFrame(frame.frame, frame.pts, previous[1])


def own_jpegs(settings: RunSettings, stream: FrameStream, path: str, *, is_series: bool) -> str | None:
    """Return the file whose JPEGs are to be kept; None if all frames are to be encoded.

    Args:
        settings: Settings of the run.
        stream: The frames.
        path: The source.
        is_series: Whether it was made of a folder of pictures.
    """
    return path if is_series and settings.keeps_jpegs and stream.info.codec == "mjpeg" else None


def keep_or_encode(stream: FrameStream, own: str, coder: JpegCoder) -> Generator[CodedFrame, None, None]:
    """Yield each frame with the JPEG that the source has for it, or with a new one if that one does not fit: it has another
    size, is turned by EXIF, or does not decode completely.

    Args:
        stream: The frames.
        own: File of the source, whose packets are JPEGs.
        coder: Encoder of the others.
    """
    with open_video(own) as container:
        packets = demux(container, container.streams.video[0])
        packet = next(packets)
        for item in stream:
            due = stream.facts.origin_pts + item.source_pts
            while packet.pts is not None and packet.pts < due:
                packet = next(packets)
            data, filtered = bytes(packet), stream.picture_filter.apply(item.frame)
            if packet.pts == due and _fits(data, item.frame, stream.output.size):
                yield CodedFrame(filtered, item.pts, data, is_kept=True)
            else:
                yield CodedFrame(filtered, item.pts, coder.encode(filtered))


def _fits(data: bytes, frame: VideoFrame, size: FrameSize) -> bool:
    if (frame.width, frame.height) != size or turn_of(frame).orientation != Orientation():
        return False
    try:
        return bool(simplejpeg.decode_jpeg(data, "RGB", strict=True).shape[:2] == (size.height, size.width))
    except ValueError:
        return False


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
