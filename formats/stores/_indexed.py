"""Common code of stores with JPEGs or pictures: decode JPEGs into arrays; read and write shards with an `index.parquet`."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import simplejpeg
from av.error import FFmpegError as AvError
from av.packet import Packet
from av.video.frame import VideoFrame

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.labels import Labels, differing, labels_of_dicts
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.manifest.table import label_columns
from vidprep.formats.storage.ranges import Piece, Run
from vidprep.formats.stores._index import INDEX_NAME, FrameIndex, FrameLocations, IndexedVideo, write_index
from vidprep.formats.stores.base import Frames, FrameStore, SourceMap, StorageOrder, VideoFacts
from vidprep.formats.stores.data_files import DataFiles, Handles, adjacent_runs
from vidprep.formats.stores.shards import StoreLayout
from vidprep.formats.video.rgb import resize_picture, write_rgb

# A few kB can claim any size and any number of scans; encoders write about ten scans.
MAX_PIXELS, MAX_SCANS = 1 << 28, 100
JFIF_FORMATS = {"yuvj420p", "yuvj422p", "yuvj444p", "gray"}
START_OF_FRAME, START_OF_SCAN = range(0xC0, 0xC2), 0xDA


_mine = threading.local()


def decode_rows(
    coded: Iterable[memoryview],
    rows: Iterable[Frames],
    *,
    full: tuple[int, int],
    size: tuple[int, int],
    fast: bool,
    place: Callable[[int], str],
    path: Path | str,
) -> None:
    """Decode JPEGs into arrays of shape (h, w, 3), scaled to the arrays' size.

    Args:
        coded: JPEG files.
        rows: Arrays to fill.
        full: (height, width) of the JPEGs.
        size: (height, width) to decode at: `full`, or smaller by eighths. Other sizes are reached by scaling.
        fast: Convert colours faster and less exactly.
        place: Returns the position of the n-th JPEG, for messages.
        path: The file, for messages.

    Raises:
        StoreError: A JPEG is damaged.
    """
    for number, (data, row) in enumerate(zip(coded, rows, strict=True)):
        try:
            _refuse_many_scans(data)
            if row.shape[:2] == size:
                made = _decode(data, size if size != full else None, fast=fast, buffer=row).shape[:2]
            elif size == full and (frame := _planes(data)) is not None:
                made = frame.height, frame.width
                write_rgb(frame, row)
            else:
                picture = _decode(data, size if size != full else None, fast=fast)
                made = picture.shape[:2]
                resize_picture(picture, row)
        except (AvError, ValueError) as error:
            raise StoreError(f"{place(number)}: the JPEG does not decode: {error}", path=path) from error
        if made != size:
            raise StoreError(
                f"{place(number)}: the JPEG is {made[1]}x{made[0]}, {size[1]}x{size[0]} was expected", path=path
            )


def _decode(data: memoryview, size: tuple[int, int] | None, *, fast: bool, buffer: Frames | None = None) -> Frames:
    """Return a JPEG as RGB. `size` may be smaller by eighths. Raises ValueError."""
    height, width = size or (0, 0)
    made: Frames = simplejpeg.decode_jpeg(data, "RGB", fast, fast, height, width, buffer=buffer)
    return made


def _planes(data: memoryview) -> VideoFrame | None:
    """Return the YCbCr or grey planes of a JFIF file; None for other colour spaces. Raises PyAV's errors."""
    if "decoder" not in _mine.__dict__:
        _mine.decoder = av.CodecContext.create("mjpeg", "r")
        _mine.decoder.thread_count, _mine.decoder.options = 1, {"err_detect": "explode"}
    frames = _mine.decoder.decode(Packet(bytes(data)))
    frame = frames[0] if len(frames) == 1 else None
    return frame if frame is not None and frame.format.name in JFIF_FORMATS else None


@lru_cache(maxsize=256)
def scale_size(height: int, width: int, short_side: int | None) -> tuple[int, int]:
    """Return the smallest n/8 of a size (n = 1 to 8) whose shorter side is at least `short_side`, rounded up as libjpeg
    does; the full size if none is.

    Raises:
        StoreError: The size is not positive, or exceeds MAX_PIXELS.
    """
    if not (height > 0 < width and height * width <= MAX_PIXELS):
        raise StoreError(f"a frame of {width}x{height} is over the limit of {MAX_PIXELS} pixels, or none")
    if short_side is None:
        return height, width
    for eighths in range(1, 8):
        scaled = -(-height * eighths // 8), -(-width * eighths // 8)
        if min(scaled) >= short_side:
            return scaled
    return height, width


def _refuse_many_scans(data: memoryview) -> None:
    """Raise ValueError for a JPEG with too many scans. They are counted only if the first scan lacks components."""
    at, components = 2, 0
    while at + 10 <= len(data) and data[at] == 0xFF:
        kind = data[at + 1]
        if kind in START_OF_FRAME:
            components = data[at + 9]
        elif kind == START_OF_SCAN:
            if data[at + 4] == components:
                return
            break
        at += 2 + (data[at + 2] << 8 | data[at + 3])
    count = bytes(data).count(b"\xff\xda")
    if count > MAX_SCANS:
        raise ValueError(f"{count} scans, over the limit of {MAX_SCANS}")


class IndexedLayout(StoreLayout):
    """Layout with frames back to back and an index file."""

    def __init__(self, name: str, suffix: str) -> None:
        self.name, self.suffix = name, suffix
        self.index_files = (f"{name}.json", INDEX_NAME)

    def write_index(self, root: Path, rows: Iterable[ManifestRow], about: Mapping[str, Any]) -> Iterator[Path]:
        videos = (index_video(row, self.offsets(row)) for row in rows)
        kept = {name: about[name] for name in ("settings", "versions")}
        return write_index(root, self.name, videos, labels=label_columns(root), about=kept)

    def faults_of_index(self, root: Path, rows: Sequence[ManifestRow], *, are_all: bool) -> Iterator[str]:
        try:
            index = FrameIndex(root, self.name)
            ids = [row.id for row in rows]
            indexed = {video.id: video for video in index.videos(None if are_all else set(ids))}
            labels = label_columns(root) if are_all else labels_of_dicts(ids, [row.labels for row in rows])
            relabelled = differing(index.label_columns(None if are_all else ids), labels)
        except StoreError as error:
            yield str(error)
            return
        for row in rows:
            video, due = indexed.pop(row.id, None), index_video(row, self.offsets(row))
            if video is None or not _same(video, due):
                yield f"{index.path}: {row.id}: its row differs from the manifest"
        yield from (f"{index.path}: {id_}: is not in the manifest" for id_ in indexed)
        yield from (f"{index.path}: {id_}: its labels differ from the manifest" for id_ in relabelled)


def _same(one: IndexedVideo, other: IndexedVideo) -> bool:
    pairs = ((getattr(one, part.name), getattr(other, part.name)) for part in fields(IndexedVideo))
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)


def index_video(row: ManifestRow, offsets: list[int]) -> IndexedVideo:
    """Return the index row of a unit."""
    count, rate = len(offsets), None
    if row.frame_rate_num and row.frame_rate_den:
        rate = Fraction(row.frame_rate_num, row.frame_rate_den)
    return IndexedVideo(
        id=row.id,
        shard=row.file_name,
        width=row.width or 0,
        height=row.height or 0,
        frame_rate=rate,
        pts=np.arange(count, dtype=np.int64) if row.pts is None else np.array(row.pts, np.int64),
        time_base=Fraction(row.time_base_num or 1, row.time_base_den or 1),
        offsets=np.array(offsets, np.int64),
        sizes=np.array(row.frame_sizes, np.int32),
        crc32=np.array(row.frame_crc32, np.uint32),
        source_frames=row.source_frames,
        source_pts=row.source_pts,
        source_time_base=_source_time_base(row),
    )


def _source_time_base(row: ManifestRow) -> Fraction | None:
    """Return the time base of a row's source; None for a row of version 0.1, which does not store it."""
    num, den = row.source_time_base_num, row.source_time_base_den
    return Fraction(num, den) if num and den else None


class IndexedStore(FrameStore):
    """Reads shards through an index.

    Attributes:
        kind: Name of the store
    """

    def __init__(self, place: str | os.PathLike[str] | DataFiles, *, checksum: bool = True) -> None:
        super().__init__(place)
        self._checksum = checksum
        self._open_handles()
        self._index  # noqa: B018 (report a damaged index when the store is opened)

    def _open_handles(self) -> None:
        self._indexes = Handles(self._open_index, FrameIndex.close)
        self._checked: set[str] = set()  # shards that are long enough

    def _open_index(self, _: str) -> FrameIndex:
        return FrameIndex(self.folder, self.kind)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open_handles()

    @property
    def _index(self) -> FrameIndex:
        return self._indexes[""]

    def __len__(self) -> int:
        return len(self._index)

    def _ids(self) -> Sequence[str]:
        return self._index.ids()

    def storage(self) -> StorageOrder:
        return StorageOrder.build(*self._index.storage())

    def version(self) -> str:
        return self._index.version

    def labels(self, id_: str) -> dict[str, Any]:
        return self._index.labels(id_)

    def label_columns(self) -> Labels:
        return self._index.label_columns()

    def facts(self, id_: str) -> VideoFacts:
        places = self._index.places(id_)
        pts, time_base, rate = self._index.times(id_)
        height, width = self._size(places.height, places.width)
        return VideoFacts(len(places.sizes), height, width, rate, pts, time_base)

    def source_map(self, id_: str) -> SourceMap | None:
        return self._index.source_map(id_)

    def sizes(self) -> npt.NDArray[np.int64]:
        stored = self._index.sizes()
        sizes = stored.copy()
        for size in np.unique(stored[:, 1:], axis=0):
            sizes[(stored[:, 1:] == size).all(1), 1:] = self._size(*size.tolist())
        return sizes

    def _size(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def _check_shard(self, name: str) -> None:
        """Raise StoreError if a shard is shorter than the index says; one behind a URL is checked by its reads."""
        if self.files.is_remote or name in self._checked:
            return
        size, due = self.files.size(name), self._index.about["shards"].get(name)
        if due is None or size < due:
            raise StoreError(f"ends at byte {size}, and was {due} long", path=self.files.place(name))
        self._checked.add(name)

    def runs(self, id_: str, numbers: Sequence[int]) -> tuple[str, list[Run]]:
        places = self._index.places(id_)
        return places.shard, adjacent_runs(self._pieces(id_, places, numbers))

    def _pieces(self, id_: str, places: FrameLocations, numbers: Sequence[int]) -> list[Piece]:
        """Return the positions of frames, all within the shard. Raises StoreError."""
        chosen, due = list(numbers), self._index.about["shards"].get(places.shard, 0)
        columns = (places.offsets[chosen].tolist(), places.sizes[chosen].tolist(), places.crc32[chosen].tolist())
        pieces = list(map(Piece, *columns))
        for number, (offset, size, _) in zip(chosen, pieces, strict=True):
            if offset < 0 or size < 0 or offset + size > due:
                raise StoreError(
                    f"frame {number} of {id_}: {size} bytes at offset {offset} are not in the {due} of the shard",
                    path=self.files.place(places.shard),
                )
        return pieces

    def _check(self, data: memoryview, places: FrameLocations, number: int, id_: str) -> None:
        if self._checksum and zlib.crc32(data) != places.crc32[number]:
            raise StoreError(
                f"frame {number} of {id_} at offset {places.offsets[number]} is damaged: its checksum does not hold",
                path=self.files.place(places.shard),
            )
