"""Unprepared video files, read like a store: any frame by number, upright, in display order.

Each file is scanned when it is first needed. If one packet is one frame (H.264, HEVC, AV1, VP9 in MP4, MOV, MKV or
WebM), the packets tell when every frame is displayed, and a frame is decoded from the keyframe before it. Any other
file is decoded from its first frame each time, which is slow; `vidprep transcode` produces files that read fast.
Cropping and display matrices are applied; pixels keep their shape, interlaced frames stay interlaced, and HDR is not
tone-mapped.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from av.error import FFmpegError as AvError
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from vidprep.formats.errors import ReadError, SettingsError, StoreError
from vidprep.formats.model import NO_CROPPING, Cropping, Orientation
from vidprep.formats.pictures import PictureSeries, list_pictures
from vidprep.formats.storage.untrusted import rate_of
from vidprep.formats.stores.base import Frames, FrameStore, Samples, SourceMap, VideoFacts
from vidprep.formats.stores.data_files import Handles
from vidprep.formats.stores.encoded import RgbRows, VideoReader, fill_from, samples_from
from vidprep.formats.video.midway import HeldBackFrames
from vidprep.formats.video.picture_facts import round_crop, turn_of
from vidprep.formats.video.pyav import demux
from vidprep.formats.video.seek import survey_of
from vidprep.formats.video.series import decode_picture
from vidprep.formats.video.sound import Sound
from vidprep.formats.video.source import Source
from vidprep.formats.video.timestamps import StampCounts, add_timestamps

MAX_PIXELS = 36_000_000


@dataclass(frozen=True, slots=True)
class ScanResult:
    """Result of scanning a file.

    Attributes:
        facts: Properties of its frames
        orientations: Orientation after cropping, by number of the first frame that has it, ascending from 0
        origin_pts: PTS of frame 0; None if packets do not tell and frames are counted from the first
        origin_seconds: Time of frame 0
    """

    facts: VideoFacts
    stream_index: int
    cropping: Cropping
    orientations: dict[int, Orientation]
    origin_pts: int | None
    origin_seconds: Fraction


class VideoFiles(FrameStore):
    """Reads unprepared videos, and folders of numbered pictures. Ids are their paths below a common folder.

    Args:
        paths: Files, and folders of numbered pictures.
        source_fps: Frames a second of what stores none: raw streams, and folders of numbered pictures.
        video_stream: Number of the video stream to read, from 0; None for the best one.
        keep_source_suffix: Ids are `x.avi` instead of `x`, as with the option of `transcode`.
        fast: See `open_store`.

    Raises:
        StoreError: Two files would have the same id, or a folder of pictures is given without `source_fps`.
        SettingsError: A value is not allowed.
    """

    kind = "raw"
    reads_uint16 = True

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        *,
        source_fps: float | str | Fraction | None = None,
        video_stream: int | None = None,
        keep_source_suffix: bool = False,
        fast: bool = False,
    ) -> None:
        if not paths:
            raise StoreError("no video files were given")
        files = [Path(path).absolute() for path in paths]
        super().__init__(os.path.commonpath([file.parent for file in files]))
        self.keep_source_suffix, self._fast = keep_source_suffix, fast
        self._files = {self._id_of(file): file for file in files}
        if len(self._files) < len(files):
            twin = next(file for file in files if self._files[self._id_of(file)] != file or files.count(file) > 1)
            raise StoreError("is given twice, or differs from another only in its extension; rename one", path=twin)
        try:
            rate = None if source_fps is None else rate_of(str(source_fps))
            if rate is not None and not Fraction(1, 1000) <= rate <= 1000:
                raise ValueError(f"{rate} is no rate")
        except ValueError as error:
            raise SettingsError(
                f"source_fps is {source_fps!r}; give frames a second, such as 12, 29.97 or 30000/1001"
            ) from error
        if video_stream is not None and video_stream < 0:
            raise SettingsError(f"video_stream is {video_stream!r}; give a number from 0")
        self._opening: dict[str, Any] = {"raw_rate": rate, "video_stream": video_stream}
        self._series = {id_: _series(file, rate) for id_, file in self._files.items() if file.is_dir()}
        self._scanned: dict[str, ScanResult] = {}
        self._prepare()

    def _prepare(self) -> None:
        self._readers = Handles(self._open, lambda reader: reader.close())
        self._sounds = Handles(self._open_sound, Sound.close)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    def _id_of(self, file: Path) -> str:
        below = file.relative_to(self.folder)
        return (below if self.keep_source_suffix or file.is_dir() else below.with_suffix("")).as_posix()

    def _ids(self) -> Sequence[str]:
        return sorted(self._files)

    def file(self, id_: str) -> Path:
        """Return the path of the video. Raises KeyError."""
        if id_ not in self._files:
            raise KeyError(f"{id_!r} is not among the {len(self._files)} files below {self.path}")
        return self._files[id_]

    def labels(self, id_: str) -> dict[str, Any]:
        self.file(id_)
        return {}

    def source_map(self, id_: str) -> SourceMap:
        self.file(id_)
        return SourceMap()

    def facts(self, id_: str) -> VideoFacts:
        return self.scan(id_).facts

    def close(self) -> None:
        """Close the files that are open."""
        self._prepare()

    def scan(self, id_: str) -> ScanResult:
        """Return what the packets of a file tell. Raises KeyError, StoreError."""
        if id_ not in self._scanned:
            path = self.file(id_)
            try:
                series = self._series.get(id_)
                scanned = (
                    _scan(path, self._opening) if series is None else _scan_pictures(series, self._opening["raw_rate"])
                )
                self._scanned[id_] = scanned
            except ReadError as error:
                raise StoreError(error.message, path=path) from error
        return self._scanned[id_]

    def _open(self, id_: str) -> VideoReader | _PictureReader:
        scan = self.scan(id_)
        if id_ in self._series:
            return _PictureReader(self._series[id_], id_, scan.facts, fast=self._fast)
        kind = _CountingReader if scan.origin_pts is None else _SurveyedReader
        return kind(
            None,
            self.file(id_),
            id_,
            scan.facts,
            origin_pts=scan.origin_pts or 0,
            stream_index=scan.stream_index,
            cropping=scan.cropping,
            orientations=scan.orientations,
            fast=self._fast,
        )

    def fill(self, id_: str, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
        fill_from(self._readers, id_, numbers, rows)

    def _open_sound(self, id_: str) -> Sound:
        return Sound(self.file(id_), id_, self.scan(id_).origin_seconds)

    def sample_rate(self, id_: str) -> int | None:
        return None if id_ in self._series else self._sounds[id_].rate

    def samples(self, id_: str, span: tuple[Fraction, Fraction], rate: int | None, num_channels: int | None) -> Samples:
        return samples_from(self._sounds, id_, span, rate, num_channels)


class _PictureReader:
    """Reads numbered pictures, each from its own file."""

    def __init__(self, pictures: PictureSeries, id_: str, facts: VideoFacts, *, fast: bool) -> None:
        self._pictures, self._id, self._facts, self._fast = pictures, id_, facts, fast

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def fill(self, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
        """Decode pictures into arrays of shape (h, w, 3), scaled to the size of the arrays. Raises StoreError."""
        for number, row in zip(numbers, rows, strict=True):
            path = self._pictures.path_of(number)
            try:
                frame = decode_picture(path, self._pictures.extension)
                turn = {0: turn_of(frame).orientation}
                RgbRows(path, self._id, self._facts, orientations=turn, fast=self._fast).write(frame, row, number)
            except (ReadError, AvError, ValueError) as error:
                if isinstance(error, StoreError):
                    raise
                raise StoreError(f"{self._id}: frame {number} {error}", path=path) from error


class _SurveyedReader(VideoReader):
    """Reads frames by timestamp. A damaged packet costs only its own frame."""

    def _decode(self, packet: Packet[VideoStream] | None, due: dict[int, int]) -> Iterator[tuple[int, VideoFrame]]:
        with suppress(AvError):
            yield from super()._decode(packet, due)


class _CountingReader(VideoReader):
    """Reads frames by counting those that the decoder returns, from the first one on."""

    _probes = True

    def _read_from_keyframe(self, wanted: Collection[int]) -> Iterator[tuple[int, VideoFrame]]:
        last = max(wanted)
        self.close()  # seeking may be unreliable, reopening is not
        self._open()
        number = 0
        decoder = self._stream.codec_context
        held_back = HeldBackFrames(decoder.name)
        for packet in chain(demux(self._container, self._stream), [None]):
            frames: list[VideoFrame] = []
            with suppress(AvError):  # the scan skipped the damaged packet too
                frames = [] if packet is None else held_back.before(packet, decoder)
                frames += decoder.decode(packet)
            for frame in frames:
                if number in wanted:
                    yield number, frame
                number += 1
            if number > last:
                return
        raise StoreError(
            f"{self._id}: has {number} frames, {last} was wanted; it changed since it was scanned", path=self._path
        )


def _series(folder: Path, rate: Fraction | None) -> PictureSeries:
    try:
        pictures = list_pictures(str(folder))
    except ReadError as error:
        raise StoreError(error.message, path=folder) from error
    if rate is None:
        raise StoreError("is a folder of numbered pictures; give source_fps, its pictures a second", path=folder)
    return pictures


def _scan_pictures(pictures: PictureSeries, rate: Fraction) -> ScanResult:
    """Scan a folder: its first picture tells the size of all. Raises ReadError."""
    frame = decode_picture(pictures.path_of(0), pictures.extension)
    orientation, count = turn_of(frame).orientation, len(pictures.names)
    facts = VideoFacts(count, *_display_size(frame, NO_CROPPING, orientation), rate)
    return ScanResult(facts, 0, NO_CROPPING, {0: orientation}, None, Fraction(0))


def _scan(path: Path, opening: dict[str, Any]) -> ScanResult:
    """Scan a file. Raises ReadError.

    Args:
        path: The file.
        opening: Arguments of `Source`.
    """
    with Source(path, max_pixels=MAX_PIXELS, **opening) as source:
        info = source.info
        survey = survey_of(source)
        if survey is None:
            return _scan_by_decoding(path, opening)
    with Source(path, max_pixels=MAX_PIXELS, **opening) as source:
        frame = next(source.decode(source.packets()), None)
        if frame is None or not survey.shown:
            raise ReadError("holds no picture that can be decoded", path=path)
        cropping, orientation = round_crop(info.cropping, frame), turn_of(frame).orientation
    pts = np.asarray(survey.shown, np.int64)
    known = set(survey.keyframes)
    keyframes = [number for number, ticks in enumerate(survey.shown) if ticks in known]
    if not keyframes or keyframes[0] != 0 or len(set(survey.shown)) < len(pts):
        return _scan_by_decoding(path, opening)
    size = _display_size(frame, cropping, orientation)
    duration = survey.end * info.time_base
    facts = VideoFacts(len(pts), *size, None, pts, info.time_base, keyframes, duration)
    origin_seconds = survey.origin_pts * info.time_base
    return ScanResult(facts, info.stream_index, cropping, {0: orientation}, survey.origin_pts, origin_seconds)


def _scan_by_decoding(path: Path, opening: dict[str, Any]) -> ScanResult:
    """Scan a file by decoding all of it, with the timestamp rules of `vidprep transcode`. Without timestamps, use the
    header's rate.
    """
    counts, pts = StampCounts(), array("q")
    with Source(path, max_pixels=MAX_PIXELS, **opening) as source:
        info = source.info
        size, cropping, orientations = (0, 0), NO_CROPPING, dict[int, Orientation]()
        orientation: Orientation | None = None
        ahead = source.packets_ahead(source.packets())
        for frame, stamp, _ in add_timestamps(source.decode(iter(ahead)), info.usual_step, counts, ahead):
            if (turned := turn_of(frame).orientation) != orientation:
                orientation = orientations[len(pts)] = turned
            if not pts:
                cropping = round_crop(info.cropping, frame)
                size = _display_size(frame, cropping, turned)
            pts.append(stamp)
    if not pts:
        raise ReadError("holds no picture that can be decoded", path=path)
    facts = VideoFacts(len(pts), *size, info.frame_rate, keyframes=[0])
    if counts.stamps_guessed < len(pts) or info.frame_rate is None:
        rising = [stamp + later for stamp, later in zip(pts, _nudges(pts), strict=True)]
        facts = replace(facts, frame_rate=None, pts=np.asarray(rising, np.int64) - pts[0], time_base=info.time_base)
    return ScanResult(facts, info.stream_index, cropping, orientations, None, pts[0] * info.time_base)


def _nudges(ascending: Sequence[int]) -> Iterator[int]:
    """Yield ticks to add to each timestamp so that they ascend."""
    last: int | None = None
    for pts in ascending:
        nudge = 0 if last is None else max(0, last + 1 - pts)
        last = pts + nudge
        yield nudge


def _display_size(frame: VideoFrame, crop: Cropping, orientation: Orientation) -> tuple[int, int]:
    """Return height and width of a frame after cropping and turning."""
    height, width = frame.height - crop.top - crop.bottom, frame.width - crop.left - crop.right
    return (width, height) if orientation.transpose else (height, width)
