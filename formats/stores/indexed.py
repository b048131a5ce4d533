"""What stores with an index of their own share: frames back to back in shards, and `index.parquet` that says where each lies."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.labels import Labels, differing, labels_of_dicts
from vidprep.formats.manifest.table import ManifestRow, label_columns
from vidprep.formats.stores.base import FrameStore, Handles, ShardFile, SourceMap, VideoFacts
from vidprep.formats.stores.index import INDEX_NAME, FrameIndex, FrameLocations, IndexedVideo, write_index
from vidprep.formats.stores.shards import Layout


class IndexedLayout(Layout):
    """Frames back to back, and an index of its own beside."""

    def __init__(self, name: str, suffix: str) -> None:
        self.name, self.suffix = name, suffix
        self.index_files = (f"{name}.json", INDEX_NAME)

    def write_index(self, root: Path, rows: Iterable[ManifestRow], about: Mapping[str, Any]) -> Iterator[Path]:
        videos = (indexed_video(row, self.offsets(row)) for row in rows)
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
            video, due = indexed.pop(row.id, None), indexed_video(row, self.offsets(row))
            if video is None or not _same(video, due):
                yield f"{index.path}: {row.id}: its row differs from the manifest"
        yield from (f"{index.path}: {id_}: is not in the manifest" for id_ in indexed)
        yield from (f"{index.path}: {id_}: its labels differ from the manifest" for id_ in relabelled)


def _same(one: IndexedVideo, other: IndexedVideo) -> bool:
    pairs = ((getattr(one, part.name), getattr(other, part.name)) for part in fields(IndexedVideo))
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)


def indexed_video(row: ManifestRow, offsets: list[int]) -> IndexedVideo:
    """What the index says of a unit."""
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
    """None for a row of 0.1, which says nothing of the times of its source."""
    num, den = row.source_time_base_num, row.source_time_base_den
    return Fraction(num, den) if num and den else None


class IndexedStore(FrameStore):
    """Reads shards by an index of their frames. `kind` names the store."""

    def __init__(self, path: str | os.PathLike[str], *, checksum: bool = True) -> None:
        super().__init__(path)
        self._checksum = checksum
        self._open_handles()
        self._index  # noqa: B018 (a damaged index is told when the store is opened)

    def _open_handles(self) -> None:
        self._indexes = Handles(self._open_index, FrameIndex.close)
        self._files = Handles(self._open_shard, ShardFile.close)

    def _open_index(self, _: str) -> FrameIndex:
        return FrameIndex(self.path, self.kind)

    def _open_shard(self, name: str) -> ShardFile:
        return ShardFile(self._shard(name))

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
        found = stored.copy()
        for size in np.unique(stored[:, 1:], axis=0):
            found[(stored[:, 1:] == size).all(1), 1:] = self._size(*size.tolist())
        return found

    def _size(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def _shard(self, name: str) -> Path:
        """The path of a shard that is as long as it was. Raises StoreError."""
        path, due = self.path / name, self._index.about["shards"].get(name)
        try:
            size = path.stat().st_size
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", path=path) from error
        if due is None or size < due:
            raise StoreError(f"ends at byte {size}, and was {due} long", path=path)
        return path

    def _spans(self, id_: str, places: FrameLocations, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """Offsets and sizes of frames, all of them inside the shard. Raises StoreError."""
        chosen, due = list(numbers), self._index.about["shards"].get(places.shard, 0)
        offsets, sizes = places.offsets[chosen].tolist(), places.sizes[chosen].tolist()
        for number, offset, size in zip(chosen, offsets, sizes, strict=True):
            if offset < 0 or size < 0 or offset + size > due:
                raise StoreError(
                    f"frame {number} of {id_}: {size} bytes at offset {offset} are not in the {due} of the shard",
                    path=self.path / places.shard,
                )
        return offsets, sizes

    def _check(self, data: memoryview, places: FrameLocations, number: int, id_: str) -> None:
        if self._checksum and zlib.crc32(data) != places.crc32[number]:
            raise StoreError(
                f"frame {number} of {id_} at offset {places.offsets[number]} is damaged: its checksum does not hold",
                path=self.path / places.shard,
            )
