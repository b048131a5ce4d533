"""GulpIO's format, as GulpIO2 writes and reads it: JPEGs in data files, JSON beside them.

    DST/data_S.gulp      JPEG files, each followed by zero bytes up to a multiple of 4
    DST/meta_S.gmeta     JSON {id: {"frame_info": [[offset, pad, length with pad], …], "meta_data": [{…}]}}
    DST/label2idx.json   numbers of the labels

S is the number of the run and of the shard, as in `data_10000000000.gulp`.

The format has no checksums; where there is a manifest, frames are compared with those in it. It does not store the size of
frames, which is taken from the first frame of a video.
"""

from __future__ import annotations

import json
import operator
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import simplejpeg

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.labels import Labels
from vidprep.formats.manifest.row import ManifestRow, is_text, show
from vidprep.formats.manifest.table import label_columns, manifest_paths, read_rows
from vidprep.formats.storage.local import replacing
from vidprep.formats.storage.ranges import Piece, Run
from vidprep.formats.storage.untrusted import cache_method, exact_ratio, read_json
from vidprep.formats.stores._indexed import decode_rows, scale_size
from vidprep.formats.stores.base import (
    Frames,
    FrameStore,
    ManifestSources,
    SourceMap,
    StorageOrder,
    VideoFacts,
    describe_unit,
    labels_in,
)
from vidprep.formats.stores.data_files import DataFiles, ReadOptions, adjacent_runs, end_of, read_checked
from vidprep.formats.stores.shards import StoreLayout

OWN_FACTS = ("id", "frame_rate", "num_frames", "width", "height")
SIZE_MAX = 1 << 32
SHARDS_MAX = 100_000  # per run
LABELS_NAME = "label2idx.json"


class GulpLayout(StoreLayout):
    name, suffix = "gulp", ".gulp"
    index_files: tuple[str, ...] = ("meta_*.gmeta", LABELS_NAME)

    def shard_name(self, run: int, number: int) -> str:
        return f"data_{run * SHARDS_MAX + number}.gulp"

    def is_shard(self, name: str) -> bool:
        return re.fullmatch(r"data_\d+\.gulp", name, re.ASCII) is not None

    def sidecars(self, shard: str) -> tuple[str, ...]:
        return (meta_name(shard),)

    def serialize(self, row: ManifestRow, frames: BinaryIO) -> Iterator[bytes]:
        for size in row.frame_sizes or ():
            yield frames.read(size) + bytes(-size % 4)

    def offsets(self, row: ManifestRow) -> list[int]:
        return list(accumulate((size + -size % 4 for size in row.frame_sizes or ()), initial=row.offset or 0))[:-1]

    def write_index(self, root: Path, rows: Iterable[ManifestRow], _about: Mapping[str, Any]) -> Iterator[Path]:
        by_place = sorted(rows, key=lambda row: (row.file_name, row.offset or 0))
        for shard, units in groupby(by_place, key=lambda row: row.file_name):
            meta = {row.id: self._entry(row) for row in units}
            path = root / meta_name(shard)
            with replacing(path, unless_same=True) as file:
                file.write(json.dumps(meta, ensure_ascii=False, default=str).encode())
            yield path
        labels = sorted({str(row.labels["label"]) for row in by_place if row.labels.get("label") is not None})
        with replacing(root / LABELS_NAME, unless_same=True) as file:
            file.write(json.dumps({label: number for number, label in enumerate(labels)}, ensure_ascii=False).encode())
        yield root / LABELS_NAME

    def _entry(self, row: ManifestRow) -> dict[str, Any]:
        return {"frame_info": self._places(row), "meta_data": [describe_unit(row)]}

    def _places(self, row: ManifestRow) -> list[list[int]]:
        sizes = row.frame_sizes or []
        return [[at, -size % 4, size + -size % 4] for at, size in zip(self.offsets(row), sizes, strict=True)]

    def faults_of_index(self, root: Path, rows: Sequence[ManifestRow], *, are_all: bool) -> Iterator[str]:
        entries: dict[str, Any] = {}
        paths = root.glob("*.gmeta") if are_all else {root / meta_name(row.file_name) for row in rows}
        for path in sorted(path for path in paths if path.is_file()):
            try:
                entries |= {id_: entry["frame_info"] for id_, entry in read_json(path).items()}
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                yield f"{path}: is damaged: {error}"
        for row in rows:
            if entries.pop(row.id, None) != self._places(row):
                yield f"{root}/*.gmeta: {row.id}: the manifest has other positions of its frames"
        if are_all:
            yield from (f"{root}/*.gmeta: {id_}: is not in the manifest" for id_ in entries)


def meta_name(shard: str) -> str:
    return f"meta_{shard.removeprefix('data_').removesuffix('.gulp')}.gmeta"


LAYOUT = GulpLayout()


def open_here(files: DataFiles, options: ReadOptions) -> GulpStore:
    return GulpStore(files, short_side=options.short_side, fast=options.fast)


class _UnitShard(NamedTuple):
    """Columns of a row with the shard of a video."""

    id: str
    file_name: str


class _UnitChecksums(NamedTuple):
    """Columns of a row with the CRC-32 of each frame."""

    id: str
    frame_crc32: list[int] | None


@dataclass(frozen=True, slots=True)
class _Entry:
    data: str
    frame_info: list[list[int]]
    meta_data: dict[str, Any]


class GulpStore(FrameStore):
    """Reads stores of GulpIO2's ingestor, and of `vidprep burst --format gulp`."""

    kind = LAYOUT.name

    def __init__(
        self, place: str | os.PathLike[str] | DataFiles, *, short_side: int | None = None, fast: bool = False
    ) -> None:
        super().__init__(place)
        self._short_side, self._fast = short_side, fast
        self._entries = self._read_meta()
        self._open_handles()

    def _open_handles(self) -> None:
        self._labels = label_columns(self.folder) if manifest_paths(self.folder) else None
        self._sources = ManifestSources(self.folder)
        self._crc32 = dict(read_rows(self.folder, _UnitChecksums))
        self._first_size = cache_method(self._size_of_first, 100_000)

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in super().__getstate__().items()
            if name not in ("_entries", "_first_size", "_labels", "_sources", "_crc32")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._entries = self._read_meta()
        self._open_handles()

    def _read_meta(self) -> dict[str, _Entry]:
        entries: dict[str, _Entry] = {}
        named: dict[str, str] | None = None
        for path in sorted(path for path in self.folder.glob("*.gmeta") if path.is_file()):
            data = path.name.replace("meta", "data", 1).removesuffix(".gmeta") + ".gulp"
            try:
                for id_, entry in read_json(path, SIZE_MAX).items():
                    if id_ in entries:
                        named = self._shards_in_manifest() if named is None else named
                        if named.get(id_) not in (data, entries[id_].data):
                            raise ValueError(f"{id_} appears in two files")
                        if named[id_] != data:
                            continue
                    meta = entry["meta_data"][0] if entry["meta_data"] else {}
                    if not is_text(id_):
                        raise ValueError(f"{id_!r} is not valid Unicode")
                    entries[id_] = _Entry(data, _list_of(entry["frame_info"]), dict(meta))
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                raise StoreError(f"is damaged: {error}", path=path) from error
        return entries

    def _shards_in_manifest(self) -> dict[str, str]:
        """Return the current shard of each video: a stopped run may have left old files beside the new ones."""
        return dict(read_rows(self.folder, _UnitShard))

    def _ids(self) -> Sequence[str]:
        return sorted(self._entries)

    def labels(self, id_: str) -> dict[str, Any]:
        entry = self._entry(id_)
        return self._labels.values_of(id_) if self._labels else labels_in(entry.meta_data, OWN_FACTS)

    def label_columns(self) -> Labels:
        return self._labels.select(self.ids) if self._labels else super().label_columns()

    def storage(self) -> StorageOrder:
        entries = [self._entries[id_] for id_ in self.ids]
        firsts = [int(each.frame_info[0][0]) if each.frame_info else 0 for each in entries]
        sizes = [sum(int(size) for _, _, size in each.frame_info) for each in entries]
        return StorageOrder.build(pa.array([each.data for each in entries]), pa.array(firsts), pa.array(sizes))

    def source_map(self, id_: str) -> SourceMap | None:
        self._entry(id_)
        return self._sources.source_map(id_)

    def facts(self, id_: str) -> VideoFacts:
        entry = self._entry(id_)
        height, width = scale_size(*self._first_size(id_), self._short_side)
        rate = entry.meta_data.get("frame_rate")
        try:
            exact = exact_ratio("frame_rate", rate) if isinstance(rate, list) else None
        except ValueError as error:
            raise StoreError(f"{id_}: {show(rate)} is not a frame rate", path=self.files.place(entry.data)) from error
        return VideoFacts(len(entry.frame_info), height, width, exact)

    def _entry(self, id_: str) -> _Entry:
        if id_ not in self._entries:
            raise KeyError(f"{id_!r} is not in {self.path}")
        return self._entries[id_]

    def _size_of_first(self, id_: str) -> tuple[int, int]:
        if not self._entry(id_).frame_info:
            raise StoreError(f"{id_} has no frames", path=self.files.place(self._entry(id_).data))
        (data,) = self._bytes(id_, [0])
        try:
            height, width, *_ = simplejpeg.decode_jpeg_header(data)
        except ValueError as error:
            raise StoreError(f"frame 0 of {id_}: {error}", path=self.files.place(self._entry(id_).data)) from error
        return height, width

    def runs(self, id_: str, numbers: Sequence[int]) -> tuple[str, list[Run]]:
        return self._entry(id_).data, adjacent_runs(self._pieces(id_, numbers))

    def _pieces(self, id_: str, numbers: Sequence[int]) -> list[Piece]:
        """Return the positions of frames, without padding. Raises StoreError if they are not in the shard."""
        entry, pieces = self._entry(id_), list[Piece]()
        end, crc32 = end_of(self.files, entry.data), self._crc32.get(id_)
        try:
            for number in numbers:
                offset, pad, size = map(operator.index, _list_of(entry.frame_info[number]))
                if not (0 <= pad < size and 0 <= offset <= end - size):
                    raise ValueError(
                        f"{size} bytes at offset {offset}, {pad} of them padding, are not in the {end} there"
                    )
                pieces.append(Piece(offset, size - pad, None if crc32 is None else crc32[number]))
        except (IndexError, TypeError, ValueError) as error:
            raise StoreError(f"frame {number} of {id_}: {error}", path=self.files.place(entry.data)) from error
        return pieces

    def _bytes(self, id_: str, numbers: Sequence[int]) -> list[memoryview]:
        pieces = self._pieces(id_, numbers)
        return read_checked(self.files, self._entry(id_).data, pieces, partial(self._describe, id_, numbers))

    def _describe(self, id_: str, numbers: Sequence[int], place: int) -> str:
        number = numbers[place]
        return f"frame {number} of {id_} at offset {self._entry(id_).frame_info[number][0]}"

    def stored_jpegs(self, id_: str) -> list[memoryview]:
        return self._bytes(id_, range(len(self._entry(id_).frame_info)))

    def fill(self, id_: str, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
        entry, full = self._entry(id_), self._first_size(id_)
        decode_rows(
            self._bytes(id_, numbers),
            rows,
            full=full,
            size=scale_size(*full, self._short_side),
            fast=self._fast,
            place=partial(self._describe, id_, numbers),
            path=self.files.place(entry.data),
        )


def _list_of(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"a list was expected, not {type(value).__name__}")
    return value
