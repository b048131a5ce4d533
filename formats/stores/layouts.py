"""The layouts of the stores that vidprep writes: how the frames of a unit stand in a shard, and what says where.

burst       data-00000.bin: JPEG files back to back, nothing else. index.parquet and burst.json: formats/stores/index.py.
tensor      data-00000.raw: frames as (H, W, 3) uint8 RGB, back to back. index.parquet and tensor.json, as burst.
gulp        data_0.gulp: JPEG files, each followed by zero bytes up to a multiple of 4. meta_0.gmeta: JSON
            {id: {"frame_info": [[offset, pad, length with pad], …], "meta_data": [{…}]}} in the order of the shard.
            label2idx.json: the labels in alphabetical order, numbered. GulpIO2 reads it.
webdataset  data-00000.tar: ustar with owner, group and time zero. A sample is `key.000000.jpg` …, one for each frame, and
            `key.json` (id, rate, size, labels: see `described`). The key is the id with `.` and `%` as %2E and %25: it ends at
            the first dot.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from vidprep.formats.files.local import replacing
from vidprep.formats.files.no_links import remove_file
from vidprep.formats.manifest.table import ManifestRow, label_fields
from vidprep.formats.stores.shards import Layout, copy

if TYPE_CHECKING:
    from vidprep.formats.stores.index import IndexedVideo

TAR_BLOCK = 512
LABELS_KEY = "vidprep_labels"
FACTS = frozenset(["id", "frame_rate", "num_frames", "width", "height", "gop", "pts", "time_base"])
RESERVED = FACTS | {LABELS_KEY}


def _number(name: str, prefix: str, suffix: str) -> int | None:
    middle = name[len(prefix) : -len(suffix)]
    return int(middle) if name.startswith(prefix) and name.endswith(suffix) and middle.isdecimal() else None


class PlainLayout:
    """Frames back to back, and an index of its own beside: burst and tensor."""

    tail = b""

    def __init__(self, name: str, suffix: str) -> None:
        self.name, self._suffix = name, suffix

    def shard_name(self, number: int) -> str:
        return f"data-{number:05d}{self._suffix}"

    def shard_number(self, name: str) -> int | None:
        return _number(name, "data-", self._suffix)

    def pieces(self, _row: ManifestRow, frames: BinaryIO) -> Iterator[bytes]:
        return copy(frames)

    def offsets(self, row: ManifestRow) -> list[int]:
        return list(accumulate(row.frame_sizes or (), initial=row.offset or 0))[:-1]

    def write_index(self, root: Path, rows: Iterable[ManifestRow], about: Mapping[str, Any]) -> None:
        from vidprep.formats.stores.index import write_index

        videos = (indexed_video(row, self.offsets(row)) for row in rows)
        write_index(
            root,
            self.name,
            videos,
            labels=label_fields(root),
            about={name: about[name] for name in ("settings", "versions")},
            far_shards=about.get("far_shards", {}),
        )


def indexed_video(row: ManifestRow, offsets: list[int]) -> IndexedVideo:
    """What the index says of a unit."""
    import numpy as np

    from vidprep.formats.stores.index import IndexedVideo

    count, rate = len(offsets), None
    if row.frame_rate_num and row.frame_rate_den:
        rate = Fraction(row.frame_rate_num, row.frame_rate_den)
    return IndexedVideo(
        id=row.id, shard=row.file_name, width=row.width or 0, height=row.height or 0, frame_rate=rate,
        pts=np.arange(count, dtype=np.int64) if row.pts is None else np.array(row.pts, np.int64),
        time_base=Fraction(row.time_base_num or 1, row.time_base_den or 1),
        offsets=np.array(offsets, np.int64), sizes=np.array(row.frame_sizes, np.int32), crc32=np.array(row.frame_crc32, np.uint32),
        source_frames=row.source_frames, labels=row.labels,
    )  # fmt: skip


class GulpLayout:
    name = "gulp"
    tail = b""

    def shard_name(self, number: int) -> str:
        return f"data_{number}.gulp"

    def shard_number(self, name: str) -> int | None:
        return _number(name, "data_", ".gulp")

    def pieces(self, row: ManifestRow, frames: BinaryIO) -> Iterator[bytes]:
        for size in row.frame_sizes or ():
            yield frames.read(size) + bytes(-size % 4)

    def offsets(self, row: ManifestRow) -> list[int]:
        return list(accumulate((size + -size % 4 for size in row.frame_sizes or ()), initial=row.offset or 0))[:-1]

    def write_index(self, root: Path, rows: Iterable[ManifestRow], _about: Mapping[str, Any]) -> None:
        by_place = sorted(rows, key=lambda row: (row.file_name, row.offset or 0))
        written = set()
        for shard, units in groupby(by_place, key=lambda row: row.file_name):
            meta = {row.id: self._entry(row) for row in units}
            name = f"meta_{self.shard_number(shard)}.gmeta"
            written.add(name)
            with replacing(root / name, unless_same=True) as file:
                file.write(json.dumps(meta, ensure_ascii=False).encode())
        for orphan in set(root.glob("meta_*.gmeta")) - {root / name for name in written}:
            remove_file(orphan)
        labels = sorted({str(row.labels["label"]) for row in by_place if row.labels.get("label") is not None})
        with replacing(root / "label2idx.json", unless_same=True) as file:
            file.write(json.dumps({label: number for number, label in enumerate(labels)}, ensure_ascii=False).encode())

    def _entry(self, row: ManifestRow) -> dict[str, Any]:
        sizes = row.frame_sizes or []
        return {
            "frame_info": [
                [at, -size % 4, size + -size % 4] for at, size in zip(self.offsets(row), sizes, strict=True)
            ],
            "meta_data": [described(row)],
        }


class TarLayout:
    name = "webdataset"
    tail = bytes(2 * TAR_BLOCK)

    def shard_name(self, number: int) -> str:
        return f"data-{number:05d}.tar"

    def shard_number(self, name: str) -> int | None:
        return _number(name, "data-", ".tar")

    def pieces(self, row: ManifestRow, frames: BinaryIO) -> Iterator[bytes]:
        key = sample_key(row.id)
        for number, size in enumerate(row.frame_sizes or ()):
            yield from tar_member(f"{key}.{number:06d}.jpg", frames.read(size))
        yield from tar_member(f"{key}.json", json.dumps(described(row), ensure_ascii=False).encode())

    def offsets(self, row: ManifestRow) -> list[int]:
        steps = (TAR_BLOCK + size + -size % TAR_BLOCK for size in row.frame_sizes or ())
        return list(accumulate(steps, initial=(row.offset or 0) + TAR_BLOCK))[:-1]

    def write_index(self, root: Path, rows: Iterable[ManifestRow], _about: Mapping[str, Any]) -> None:
        """Its shards say everything themselves."""


def facts_of(row: ManifestRow) -> dict[str, Any]:
    """What goes beside the frames of a unit, but for its labels."""
    rate = None if row.frame_rate_num is None else [row.frame_rate_num, row.frame_rate_den]
    size = {"num_frames": row.num_frames, "width": row.width, "height": row.height}
    return {"id": row.id, "frame_rate": rate, **size}


def described(row: ManifestRow) -> dict[str, Any]:
    """Facts and labels of a unit in one JSON object, as other people's readers expect them.

    A label with the name of a fact is not among them: then all labels stand under LABELS_KEY too, and are read from there.
    """
    labels = {name: value for name, value in row.labels.items() if value is not None}
    apart = {LABELS_KEY: labels} if RESERVED.intersection(labels) else {}
    return facts_of(row) | {name: value for name, value in labels.items() if name not in RESERVED} | apart


def labels_in(content: Mapping[str, Any], facts: Collection[str] = FACTS) -> dict[str, Any]:
    """The labels in such a JSON object, whoever wrote it. facts: the names that are none."""
    apart = content.get(LABELS_KEY)
    if isinstance(apart, dict):
        return dict(apart)
    return {name: value for name, value in content.items() if name not in facts}


def sample_key(unit_id: str) -> str:
    """The id as WebDataset takes keys: without a dot, and short enough for ustar; else a hash of it."""
    key = unit_id.replace("%", "%25").replace(".", "%2E")
    head, _, base = key.rpartition("/")
    fits = key.isascii() and len(head) <= 155 and len(base) <= 100 - len(".000000.jpg")
    return key if fits else hashlib.sha256(unit_id.encode()).hexdigest()


def tar_member(name: str, data: bytes) -> Iterator[bytes]:
    """A file in a tar archive: header, bytes, zero bytes up to the next block."""
    header = tarfile.TarInfo(name)
    header.size, header.mtime, header.mode = len(data), 0, 0o644
    yield header.tobuf(tarfile.USTAR_FORMAT)
    yield data + bytes(-len(data) % TAR_BLOCK)


LAYOUTS: dict[str, Layout] = {
    "burst": PlainLayout("burst", ".bin"),
    "tensor": PlainLayout("tensor", ".raw"),
    "gulp": GulpLayout(),
    "webdataset": TarLayout(),
}
