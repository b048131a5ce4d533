"""Encoded videos, in files of their own or in tar shards, with a manifest and an index of every GOP.

    DST/manifest.parquet          a row per video
    DST/gops.parquet              position of each GOP: formats/stores/gops.py
    DST/a/b.mp4                   the videos, with `--format files`; or
    DST/data-RRRRR-NNNNN.tar      shards of them, with `--format shards`: formats/stores/webdataset.py

Frames are read from the bytes of their GOPs, each run of adjacent GOPs by one read, after checking their CRC-32. A
video that is not indexed is read by its container: a seek to the keyframe before the frame, which its PTS identifies.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from io import BufferedReader
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from av.error import FFmpegError as AvError
from av.video.frame import VideoFrame

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.labels import Labels
from vidprep.formats.manifest.table import MANIFEST_NAME, label_columns, manifest_paths
from vidprep.formats.model import NO_CROPPING, Cropping, Orientation, rescale
from vidprep.formats.storage.ranges import Piece, Run
from vidprep.formats.stores._manifest_videos import ManifestVideos
from vidprep.formats.stores.base import (
    Frames,
    FrameStore,
    ManifestSources,
    Samples,
    SourceMap,
    StorageOrder,
    VideoFacts,
    digest_of,
)
from vidprep.formats.stores.data_files import DataFiles, Handles, ReadOptions
from vidprep.formats.stores.gops import FRAMES_UNASKED, GOPS_NAME, GopsFile, VideoEntry, size_of
from vidprep.formats.stores.ids import Ids
from vidprep.formats.video.gop_frames import GopDecoders
from vidprep.formats.video.numbered import NumberedFrames
from vidprep.formats.video.packets import PacketIndex, PacketSpan, spans_of
from vidprep.formats.video.pyav import plane_lines, reason_of
from vidprep.formats.video.rgb import ToRgb, resize_picture, write_rgb
from vidprep.formats.video.rgb16 import deep_resized, deep_rgb
from vidprep.formats.video.sound import Sound

KIND = "encoded"
BATCH_FRAMES = 16  # decoded before their colours are converted: taking turns frame by frame takes 3 % longer


def open_here(files: DataFiles, options: ReadOptions) -> VideoStore:
    options.refuse(files.path, "short_side", "stores of JPEGs")
    return VideoStore(files, checksum=options.checksum, hardware=options.hardware, fast=options.fast)


class VideoStore(FrameStore):
    """Reads the output of `vidprep transcode`.

    Args:
        checksum: Check the CRC-32 of every GOP that is read.
        hardware: libavutil's name of a hardware decoder: "cuda" is NVDEC. None decodes on the CPU.
        fast: Convert colours faster and less exactly.

    Raises:
        StoreError: The store, or the hardware, is unavailable.
    """

    kind = KIND
    reads_uint16 = True

    def __init__(
        self,
        place: str | os.PathLike[str] | DataFiles,
        *,
        checksum: bool = True,
        hardware: str | None = None,
        fast: bool = False,
    ) -> None:
        super().__init__(place)
        self._checksum, self._hardware, self._fast = checksum, hardware, fast
        manifests = manifest_paths(self.folder)
        if not manifests:
            raise StoreError(
                "has no manifest.parquet: a run is in progress or was stopped, or it was lost; run the same command again. Of videos that "
                "vidprep did not make, `vidprep transcode` makes a dataset, and VideoDataset reads a list of the files",
                path=self.folder,
            )
        has_parts = any(path.name != MANIFEST_NAME for path in manifests)  # of a run that is not merged
        is_indexed = (self.folder / GOPS_NAME).exists() and not has_parts
        self._of_manifest = None if is_indexed else ManifestVideos(self.folder)
        self._sources = ManifestSources(self.folder)
        self._open_handles()
        self._index  # noqa: B018 (report a damaged index when the store is opened)
        if hardware is not None and len(self):
            self._open(self.ids[0]).close()

    def _open_handles(self) -> None:
        self._indexes = Handles(self._open_index, GopsFile.close)
        self._decoders = Handles(self._new_decoders, GopDecoders.close)
        self._readers = Handles(self._open, VideoReader.close)
        self._sounds = Handles(self._open_sound, Sound.close)

    def _open_index(self, _: str) -> GopsFile:
        return GopsFile(self.folder)

    def _new_decoders(self, _: str) -> GopDecoders:
        return GopDecoders()

    @property
    def _index(self) -> GopsFile | ManifestVideos:
        return self._of_manifest or self._indexes[""]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name not in ("_labels", "_sources")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._sources = ManifestSources(self.folder)
        self._open_handles()

    def _ids(self) -> Ids:
        return self._index.ids()

    def sizes(self) -> npt.NDArray[np.int64]:
        return self._index.sizes()

    def storage(self) -> StorageOrder:
        return StorageOrder.build(*self._index.storage())

    def version(self) -> str:
        return self._index.version

    def content_digest(self, places: npt.NDArray[np.int64]) -> str:
        return digest_of(self._index.sha256().take(pa.array(places)))

    @cached_property
    def _labels(self) -> Labels:
        return label_columns(self.folder).select(self.ids)

    def labels(self, id_: str) -> dict[str, Any]:
        self.entry(id_)
        return self._labels.values_of(id_)

    def label_columns(self) -> Labels:
        return self._labels

    def source_map(self, id_: str) -> SourceMap | None:
        self.entry(id_)
        return self._sources.source_map(id_)

    def entry(self, id_: str) -> VideoEntry:
        """Return what the index says of a video. Raises KeyError, StoreError."""
        entry = self._index.entry(id_)
        count = entry.facts.num_frames
        if entry.packets is None and count > FRAMES_UNASKED and count > (size := self.files.size(entry.file_name)):
            raise StoreError(
                f"{id_}: {count} frames are claimed of {size} bytes; make it again",
                path=self.files.place(entry.file_name),
            )
        return entry

    def facts(self, id_: str) -> VideoFacts:
        return self.entry(id_).facts

    def file(self, id_: str) -> Path | str:
        """Return the path or URL of the file that contains a video: its own, or a shard. Raises KeyError."""
        return self.files.place(self.entry(id_).file_name)

    def open_file(self, id_: str) -> BufferedReader:
        """Open a video as a seekable file object, also if it is inside a shard. Close it. Raises KeyError, StoreError."""
        entry = self.entry(id_)
        return self.files.open(entry.file_name, entry.offset, entry.size_bytes)

    def frame_mappings(self, id_: str, origin_pts: int = 0) -> str:
        """Return the times and keyframes of a video as torchcodec's `custom_frame_mappings` takes them. Raises KeyError.

        ``VideoDecoder(store.open_file(id), custom_frame_mappings=store.frame_mappings(id))`` opens without scanning.

        Args:
            id_: Id of the video.
            origin_pts: PTS of frame 0 in the file.
        """
        facts = self.facts(id_)
        base, keyframes = facts.time_base or Fraction(1), set(facts.keyframes or ())
        pts = [facts.tick_of(number, base) for number in range(facts.num_frames)]
        last = pts[-1] - pts[-2] if len(pts) > 1 else 1
        if facts.frame_rate is not None:
            last = rescale(len(pts), 1 / facts.frame_rate, base) - rescale(len(pts) - 1, 1 / facts.frame_rate, base)
        durations = [*(later - one for one, later in pairwise(pts)), last]
        frames = [
            {"pts": origin_pts + one, "duration": duration, "key_frame": int(number in keyframes)}
            for number, (one, duration) in enumerate(zip(pts, durations, strict=True))
        ]
        return json.dumps({"frames": frames})

    def runs(self, id_: str, numbers: Sequence[int]) -> tuple[str, list[Run]]:
        entry = self.entry(id_)
        if (packets := entry.packets) is None:
            return entry.file_name, []
        return entry.file_name, [_run_of(entry, packets, span) for span, _ in spans_of(packets, numbers)]

    def fill(self, id_: str, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
        entry = self.entry(id_)
        if entry.packets is None or self._hardware is not None:
            fill_from(self._readers, id_, numbers, rows)
            return
        path, wanted = self.files.place(entry.file_name), dict(zip(numbers, rows, strict=True))
        writer, decoded = RgbRows(path, id_, entry.facts, fast=self._fast), self.decode(id_, numbers)
        try:
            while batch := list(islice(decoded, BATCH_FRAMES)):
                for number, frame in batch:
                    writer.write(frame, wanted[number], number)
        except AvError as error:
            raise StoreError(f"{id_}: its colours cannot be converted: {reason_of(error)}", path=path) from error

    def decode(self, id_: str, numbers: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        """Yield frames of an indexed video as the decoder gives them, with their numbers, each run of adjacent GOPs by one
        read.

        Args:
            id_: Id of the video.
            numbers: Frame numbers, ascending.

        Raises:
            KeyError: There is no such video.
            StoreError: It is damaged, or not indexed.
        """
        entry, path = self.entry(id_), self.file(id_)
        if entry.packets is None or entry.config is None:
            raise StoreError(f"{id_}: has no index of its GOPs; `vidprep index` makes one", path=path)
        missing = set(numbers)
        for span, inside in spans_of(entry.packets, numbers):
            data = self._read(id_, entry, span)
            try:
                for number, frame in self._decoders[""].frames(entry.config, entry.packets, span, data, inside):
                    missing.discard(number)
                    yield number, frame
            except (AvError, ValueError) as error:
                if isinstance(error, StoreError):
                    raise
                raise StoreError(f"{id_}: does not decode: {reason_of(error)}", path=path) from error
        if missing:
            raise StoreError(f"{id_}: frames {sorted(missing)} do not come out of their GOPs", path=path)

    def _read(self, id_: str, entry: VideoEntry, span: PacketSpan) -> memoryview:
        """Return the bytes of some GOPs after checking them. Raises StoreError."""
        packets, path = entry.packets, self.files.place(entry.file_name)
        assert packets is not None
        try:
            (data,) = self.files.read(entry.file_name, [_run_of(entry, packets, span)])
        except MemoryError as error:
            raise StoreError(f"{id_}: a GOP of {span.size} bytes does not fit into memory", path=path) from error
        for gop in range(*span.gops) if self._checksum or len(data) < span.size else ():
            _, offset, size = packets.span(gop)
            part = data[offset - span.offset : offset - span.offset + size]
            if len(part) < size or zlib.crc32(part) != packets.crc32[gop]:
                frames = f"frames {packets.keyframes[gop]} to {packets.gop_end(gop) - 1}"
                self.files.forget(entry.file_name)
                raise StoreError(
                    f"{id_}: the {size} bytes from {entry.offset + offset} on ({frames}) are not those that were written: the file "
                    "is damaged, or was made again after the store was opened; open the store again, and if it is still so, `vidprep "
                    "validate` names every damaged video",
                    path=path,
                )
        return data

    def _open(self, id_: str) -> VideoReader:
        entry = self.entry(id_)
        path, data = self.files.place(entry.file_name), None
        if entry.offset or self.files.is_remote:
            data = self.open_file(id_)
        elif entry.size_bytes is not None and (size := size_of(Path(path))) != entry.size_bytes:
            raise StoreError(
                f"is {size} bytes long, and the index that was read says {entry.size_bytes}: it was made again, or damaged; open "
                "the store again, or run the same command again",
                path=path,
            )
        return VideoReader(data, path, id_, entry.facts, hardware=self._hardware, fast=self._fast)

    def _open_sound(self, id_: str) -> Sound:
        entry = self.entry(id_)
        data = self.open_file(id_) if entry.offset or self.files.is_remote else None
        return Sound(self.files.place(entry.file_name), id_, Fraction(0), data)

    def sample_rate(self, id_: str) -> int | None:
        return self._sounds[id_].rate

    def samples(self, id_: str, span: tuple[Fraction, Fraction], rate: int | None, num_channels: int | None) -> Samples:
        return samples_from(self._sounds, id_, span, rate, num_channels)


def _run_of(entry: VideoEntry, packets: PacketIndex, span: PacketSpan) -> Run:
    """Return the bytes of GOPs in the file that contains their video."""
    gops = [packets.span(gop) for gop in range(*span.gops)]
    pieces = (Piece(entry.offset + gop.offset, gop.size, packets.crc32[gop.gops[0]]) for gop in gops)
    return Run(entry.offset + span.offset, span.size, tuple(pieces))


class RgbRows:
    """Writes decoded frames of one video into arrays as RGB.

    Args:
        path: The file, for messages.
        id_: Id of the video, for messages.
        facts: Properties of the video.
        orientations: Orientation by number of the first frame that has it, ascending from 0; None for no turning.
        cropping: Cropping before turning.
        fast: See `open_store`.
    """

    def __init__(
        self,
        path: Path | str,
        id_: str,
        facts: VideoFacts,
        *,
        orientations: dict[int, Orientation] | None = None,
        cropping: Cropping = NO_CROPPING,
        fast: bool = False,
    ) -> None:
        self._path, self._id, self._facts, self._cropping = path, id_, facts, cropping
        self._orientations = orientations or {0: Orientation()}
        self._fast, self._to_rgb = fast, ToRgb(fast=fast)

    def write(self, frame: VideoFrame, row: Frames, number: int) -> None:
        """Write frame `number` into an array (h, w, 3), scaled to its size. Raises StoreError, PyAV's errors."""
        turn = next(turn for first, turn in reversed(self._orientations.items()) if first <= number)
        crop, facts = self._cropping, self._facts
        size = frame.height - crop.top - crop.bottom, frame.width - crop.left - crop.right
        shown = size[::-1] if turn.transpose else size
        if shown != (facts.height, facts.width):
            raise StoreError(
                f"{self._id}: a frame is {shown[1]}x{shown[0]}, {facts.width}x{facts.height} was expected",
                path=self._path,
            )
        row = row[:: -1 if turn.flip_vertical else 1, :: -1 if turn.flip_horizontal else 1]
        if turn.transpose:
            row = row.swapaxes(0, 1)
        size_made = None if row.shape[:2] == size else row.shape[:2]
        shown_part = slice(crop.top, frame.height - crop.bottom), slice(crop.left, frame.width - crop.right)
        if row.dtype == np.uint16:
            if crop == NO_CROPPING:
                row[...] = deep_rgb(frame, size_made)
            else:
                deep = deep_rgb(frame, None)[shown_part]
                row[...] = deep if size_made is None else deep_resized(deep, size_made)
        elif crop == NO_CROPPING and (size_made is not None or not self._fast):
            write_rgb(frame, row)
        else:
            lines = plane_lines(self._to_rgb.plane(frame))
            picture = lines[:, : frame.width * 3].reshape(frame.height, frame.width, 3)[shown_part]
            if size_made is None:
                row[:] = picture
            else:
                resize_picture(picture, row)


class FrameReader(Protocol):
    """A reader of the frames of one open video."""

    def fill(self, numbers: Sequence[int], rows: Sequence[Frames]) -> None: ...


R = TypeVar("R", bound=FrameReader)


class VideoReader(NumberedFrames):
    """Frames of one open video as RGB."""

    def __init__(
        self,
        data: BinaryIO | None,
        path: Path | str,
        id_: str,
        facts: VideoFacts,
        *,
        origin_pts: int = 0,
        stream_index: int | None = None,
        orientations: dict[int, Orientation] | None = None,
        cropping: Cropping = NO_CROPPING,
        hardware: str | None = None,
        fast: bool = False,
    ) -> None:
        """Open the video.

        Args:
            path: The file.
            id_: Id of the video, for messages.
            facts: Properties of the video.
            orientations: See `RgbRows`.
            cropping: See `RgbRows`.
            fast: See `open_store`.
            data: See `NumberedFrames`.
            origin_pts: See `NumberedFrames`.
            stream_index: See `NumberedFrames`.
            hardware: See `NumberedFrames`.
        """
        self._writer = RgbRows(path, id_, facts, orientations=orientations, cropping=cropping, fast=fast)
        super().__init__(data, path, id_, facts, origin_pts=origin_pts, stream_index=stream_index, hardware=hardware)

    def fill(self, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
        """Decode frames into arrays of shape (h, w, 3), scaled to the size of the arrays. `numbers` must ascend."""
        wanted = dict(zip(numbers, rows, strict=True))
        try:
            for number, frame in self.read(numbers):
                self._writer.write(frame, wanted[number], number)
        except StoreError:
            raise
        except (AvError, ValueError) as error:
            raise self._undecodable(error) from error


def samples_from(
    sounds: Handles[Sound], id_: str, span: tuple[Fraction, Fraction], rate: int | None, num_channels: int | None
) -> Samples:
    """Return audio samples of a video; close its decoder if that fails. Raises StoreError."""
    try:
        return sounds[id_].read(*span, rate=rate, num_channels=num_channels)
    except StoreError:
        sounds.drop(id_)
        raise


def fill_from(readers: Handles[R], id_: str, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
    """Fill arrays by the reader of a video, which is closed if it fails. Raises StoreError."""
    try:
        readers[id_].fill(numbers, rows)
    except StoreError:
        readers.drop(id_)
        raise
