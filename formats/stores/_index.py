"""The index of a store of frames: position, size and checksum of each frame.

    index.parquet   one row per video, sorted by id, in groups of 128 rows: a video is found by the first id of each group, and read
                    with its group. Page checksums are on.
    burst.json      (tensor.json) format name and version, settings, versions, totals, end of the last unit in each shard; size of the
                    index, CRC-32 of its footer (a number) and of its row groups (eight hexadecimal digits each), because page checksums
                    cover neither the footer nor page headers; and a checksum of all that.

While an index is replaced, the JSON file holds the checksums of both versions (the other under `before`) and the shards
of both, so the store opens with either index.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.labels import LABELS, Labels, concatenate, labels_in
from vidprep.formats.manifest.row import COLUMN_NAMES, unescape_label
from vidprep.formats.model import SourceMap
from vidprep.formats.storage.local import partial_of, replacing
from vidprep.formats.storage.untrusted import PICTURE_SIDE_MAX, arrow_file, cache_method, read_json, weak_method
from vidprep.formats.stores._groups import SortedGroups
from vidprep.formats.stores.ids import Ids

INDEX_NAME = "index.parquet"
VERSION = 1
GROUP_ROWS = 128
KEPT_VIDEOS = 128
FOOTER_END = 8  # its length in four bytes, then PAR1
CHECKSUMS = ("index_size_bytes", "index_footer_crc32", "index_groups_crc32")
COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("shard", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("num_frames", pa.int64()),
        ("frame_rate_num", pa.int64()),
        ("frame_rate_den", pa.int64()),
        ("pts", pa.list_(pa.int64())),
        ("time_base_num", pa.int64()),
        ("time_base_den", pa.int64()),
        ("offsets", pa.list_(pa.int64())),
        ("sizes", pa.list_(pa.int32())),
        ("crc32", pa.list_(pa.uint32())),
        ("source_frames", pa.list_(pa.int32())),
    ]
)
# Columns that version 0.1 lacks: it stored numbers of source frames without times.
LATER = pa.schema(
    [("source_pts", pa.list_(pa.int64())), ("source_time_base_num", pa.int64()), ("source_time_base_den", pa.int64())]
)
WRITTEN = pa.schema([*COLUMNS, *LATER])
TAKEN = frozenset([*WRITTEN.names, *COLUMN_NAMES])  # columns of a manifest, and those of the index
FrameTimes = tuple[npt.NDArray[np.int64], Fraction, Fraction | None]
PLACES = ("shard", "width", "height", "offsets", "sizes", "crc32")


@dataclass(frozen=True, slots=True)
class IndexedVideo:
    """One row of the index.

    Attributes:
        shard: File that contains its frames
        frame_rate: Exact rate of a constant-rate video, else None
        pts: (N,) int64, ticks of `time_base`
        time_base: Seconds per tick
        offsets: (N,) int64, position of each frame in bytes
        sizes: (N,) int32, size of each frame in bytes
        crc32: (N,) uint32, CRC-32 of each frame
        source_frames: Number of the source frame of each frame; None means all in order
        source_pts: Start of those source frames in ticks of `source_time_base`; None means at `pts`
        source_time_base: Seconds per tick of `source_pts`; None if an index of version 0.1 does not store it
    """

    id: str
    shard: str
    width: int
    height: int
    frame_rate: Fraction | None
    pts: npt.NDArray[np.int64]
    time_base: Fraction
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]
    crc32: npt.NDArray[np.uint32]
    source_frames: list[int] | None
    source_pts: list[int] | None = None
    source_time_base: Fraction | None = None


@dataclass(frozen=True, slots=True)
class FrameLocations:
    """Positions that are needed to read the frames of a video."""

    shard: str
    width: int
    height: int
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]
    crc32: npt.NDArray[np.uint32]


def write_index(
    folder: Path, kind: str, videos: Iterable[IndexedVideo], *, labels: Labels, about: Mapping[str, Any]
) -> Iterator[Path]:
    """Write an index in three steps; yield the path of each file after it is written.

    First the JSON file for the old and the new index, then index.parquet, then the JSON file for the new index alone.

    Args:
        folder: The store.
        kind: Name of the store and of the JSON file.
        videos: Rows, sorted by id.
        labels: Labels of these videos; others are ignored.
        about: More entries of the JSON file.

    Raises:
        StoreError: The ids are not sorted.
        OSError: A file cannot be written.
    """
    struct = labels.select([]).struct()
    schema = WRITTEN if struct is None else WRITTEN.append(pa.field(LABELS, struct.type))
    totals = {"num_videos": 0, "num_frames": 0}
    shards: dict[str, int] = {}
    last = ""
    path = folder / INDEX_NAME
    with replacing(path, unless_same=True) as file:
        with pq.ParquetWriter(
            file,
            schema,
            compression="zstd",
            use_dictionary=["shard"],
            write_page_checksum=True,
            write_statistics=["id"],
            column_encoding=_DELTA,
        ) as writer:
            source = iter(videos)
            while group := list(islice(source, GROUP_ROWS)):
                for one, other in pairwise([last, *(video.id for video in group)]):
                    if other <= one:
                        raise StoreError(f"{other!r} comes after {one!r}; ids must ascend", path=path)
                last = group[-1].id
                totals["num_videos"] += len(group)
                totals["num_frames"] += sum(len(video.sizes) for video in group)
                for video in group:
                    ends = (video.offsets + video.sizes).tolist()
                    shards[video.shard] = max(shards.get(video.shard, 0), *ends)
                writer.write_table(_table(group, schema, labels))
        file.flush()
        content = {"format": kind, "version": VERSION, **about, **totals, "shards": dict(sorted(shards.items()))}
        content |= _checksums(partial_of(path))
        if (before := _before(folder, kind, content)) is not None:
            _write_about(folder, kind, content | before)
            yield folder / f"{kind}.json"
    yield path
    _write_about(folder, kind, content)
    yield folder / f"{kind}.json"


def _checksums(path: Path) -> dict[str, Any]:
    """Return the size and checksums of an index, as the JSON file stores them."""
    with arrow_file(path) as written:
        begin, footer_crc32 = _footer(written, path)
        starts = [*_group_starts(pq.read_metadata(written)), begin]
        groups_crc32 = [zlib.crc32(written.read_at(after - at, at)) for at, after in pairwise(starts)]
        size = written.size()
    groups = "".join(f"{crc32:08x}" for crc32 in groups_crc32)
    return {"index_size_bytes": size, "index_footer_crc32": footer_crc32, "index_groups_crc32": groups}


def _before(folder: Path, kind: str, content: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the checksums and shards of the previous index, which the JSON file stores while that may still exist.

    Return None without one, or if it is the same.
    """
    try:
        before = read_about(folder, kind)
    except StoreError:
        return None
    checksums = {name: before.get(name) for name in CHECKSUMS}
    if checksums == {name: content[name] for name in CHECKSUMS}:
        return None
    return {"before": checksums, "shards": dict(before["shards"]) | content["shards"]}


def _write_about(folder: Path, kind: str, content: Mapping[str, Any]) -> None:
    with replacing(folder / f"{kind}.json", unless_same=True) as file:
        file.write(json.dumps({**content, "crc32": _content_crc32(content)}, indent=1).encode())


_DELTA = {
    f"{name}.list.element": "DELTA_BINARY_PACKED" for name in ("pts", "offsets", "sizes", "source_frames", "source_pts")
}


def _table(group: list[IndexedVideo], schema: pa.Schema, labels: Labels) -> pa.Table:
    def flat(arrays: list[Any], column: str) -> pa.Array:
        ends = np.cumsum([0, *map(len, arrays)]).astype(np.int32)
        return pa.ListArray.from_arrays(ends, pa.array(np.concatenate(arrays)), type=schema.field(column).type)

    plain = ("id", "shard", "width", "height", "source_frames", "source_pts")
    values: dict[str, Any] = {name: [getattr(video, name) for video in group] for name in plain}
    values["num_frames"] = [len(video.sizes) for video in group]
    for name in ("frame_rate", "time_base", "source_time_base"):
        fractions = [getattr(video, name) for video in group]
        values[f"{name}_num"] = [each and each.numerator for each in fractions]
        values[f"{name}_den"] = [each and each.denominator for each in fractions]
    arrays = {name: pa.array(entries, schema.field(name).type) for name, entries in values.items()}
    for name in ("pts", "offsets", "sizes", "crc32"):
        arrays[name] = flat([getattr(video, name) for video in group], name)
    if LABELS in schema.names:
        arrays[LABELS] = labels.select([video.id for video in group]).struct()
    return pa.table([arrays[name] for name in schema.names], schema=schema)


def _footer(file: pa.NativeFile, path: Path) -> tuple[int, int]:
    """Return the position of the footer of a Parquet file, and its CRC-32."""
    size = file.size()
    length = int.from_bytes(file.read_at(4, size - FOOTER_END), "little") if size >= FOOTER_END else size
    begin = size - FOOTER_END - length
    if begin < 0:
        raise StoreError(f"is damaged: {size} bytes do not hold its footer", path=path)
    return begin, zlib.crc32(file.read_at(size - begin, begin))


def _group_starts(metadata: pq.FileMetaData) -> list[int]:
    """Return the position of each row group; groups are adjacent."""
    first_columns = (metadata.row_group(number).column(0) for number in range(metadata.num_row_groups))
    return [column.dictionary_page_offset or column.data_page_offset for column in first_columns]


def _content_crc32(content: Mapping[str, Any]) -> int:
    plain = {name: value for name, value in content.items() if name != "crc32"}
    return zlib.crc32(json.dumps(plain, sort_keys=True).encode())


def read_about(folder: Path, kind: str) -> dict[str, Any]:
    """Return the JSON object of a store after checking its checksum and version. Raises StoreError."""
    path = folder / f"{kind}.json"
    try:
        content = read_json(path)
        sound = content["crc32"] == _content_crc32(content)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"cannot be read ({error}); make the store again, or restore the file", path=path) from error
    if not sound:
        raise StoreError("is damaged: its checksum does not hold; restore the file", path=path)
    format_, version, shards = (content.get(name) for name in ("format", "version", "shards"))
    if version != VERSION or format_ != kind:
        raise StoreError(f"is {format_} version {version}; this vidprep reads {kind} {VERSION}", path=path)
    if not isinstance(shards, dict) or not all(type(size) is int for size in shards.values()):
        raise StoreError("does not list its shards and their lengths; make the store again", path=path)
    if outside := [name for name in shards if Path(name).name != name]:
        raise StoreError(f"{outside[0]!r} is a shard outside of the folder, which is not read", path=path)
    return content


class FrameIndex:
    """An open index. Not thread-safe.

    Raises:
        StoreError: The index is damaged.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self.path = folder / INDEX_NAME
        self.about = read_about(folder, kind)
        try:
            self._source = arrow_file(self.path)
            begin, footer_crc32 = _footer(self._source, self.path)
            seal = self._source.size(), footer_crc32
        except OSError as error:
            raise StoreError(f"cannot be read: {error}", path=self.path) from error
        before = self.about.get("before")
        if isinstance(before, dict) and seal == (before.get(CHECKSUMS[0]), before.get(CHECKSUMS[1])):
            self.about |= before
        if seal != (self.about.get(CHECKSUMS[0]), self.about.get(CHECKSUMS[1])):
            raise StoreError(
                f"is damaged, or not of the same run as {kind}.json; run the same command again, or restore both",
                path=self.path,
            )
        self._rows = SortedGroups(self._source, self.path, COLUMNS, weak_method(self._check_group))
        try:
            self._starts = [*_group_starts(self._rows.metadata), begin]
            self._groups_crc32 = memoryview(bytes.fromhex(self.about["index_groups_crc32"]))
        except KeyError as error:
            raise StoreError(
                f"{kind}.json has no {error}: an older vidprep made it; run the same command again", path=self.path
            ) from error
        except (ValueError, TypeError) as error:
            raise StoreError(f"is damaged: {error}", path=self.path) from error
        self.version = json.dumps([self.about[name] for name in CHECKSUMS])
        names = self._rows.schema.names
        self._has_times_of_sources = set(LATER.names) <= set(names)
        self._label_names = [name for name in names if name not in WRITTEN.names]
        self._kept_places = cache_method(self._read_places, KEPT_VIDEOS)
        self._kept_times = cache_method(self._read_times, KEPT_VIDEOS)

    def close(self) -> None:
        source = getattr(self, "_source", None)
        if source is not None:
            source.close()

    __del__ = close  # one of Arrow's threads may hold the file for a moment after the last read

    def __len__(self) -> int:
        return len(self._rows)

    def ids(self) -> Ids:
        """Ids in order."""
        return self._rows.ids()

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return (V, 3): number of frames, height and width of each video, in order."""
        return self._rows.sizes()

    def storage(self) -> tuple[pa.ChunkedArray, pa.ChunkedArray, pa.ChunkedArray]:
        """Return shard, position of the first frame, and size in bytes of each video. Raises StoreError."""
        shards, firsts, sizes = list[pa.Array](), list[pa.Array](), list[pa.Array]()
        try:
            for table in self._rows.tables(("id", "shard", "offsets", "sizes")):
                of_each = pc.list_parent_indices(table["sizes"]).to_numpy(), pc.list_flatten(table["sizes"]).to_numpy()
                shards += table["shard"].chunks
                firsts += pc.list_element(table["offsets"], 0).chunks
                sizes.append(pa.array(np.bincount(*of_each, len(table)).astype(np.int64)))
        except (pa.ArrowException, ValueError) as error:
            raise StoreError(f"is damaged: {error}", path=self.path) from error
        return tuple(
            pa.chunked_array(*each) for each in ((shards, pa.string()), (firsts, pa.int64()), (sizes, pa.int64()))
        )

    def places(self, id_: str) -> FrameLocations:
        """Return the positions of the frames of a video. Raises KeyError."""
        return self._kept_places(id_)

    def _read_places(self, id_: str) -> FrameLocations:
        row = self._rows.row(id_, PLACES)
        offsets, sizes, crc32 = (_values(row, name) for name in ("offsets", "sizes", "crc32"))
        if not len(offsets) == len(sizes) == len(crc32):
            raise StoreError(
                f"{id_}: {len(offsets)} offsets, {len(sizes)} sizes, {len(crc32)} checksums", path=self.path
            )
        shard, width, height = (row[name][0].as_py() for name in ("shard", "width", "height"))
        is_sized = width and height and min(width, height) > 0 and max(width, height) <= PICTURE_SIDE_MAX
        if shard not in self.about["shards"] or not is_sized:
            raise StoreError(
                f"{id_}: the index has frames of {width}x{height} in shard {shard}, which cannot be", path=self.path
            )
        return FrameLocations(shard, width, height, offsets, sizes, crc32)

    def times(self, id_: str) -> FrameTimes:
        """Return PTS, time base and constant frame rate of a video. Raises KeyError."""
        return self._kept_times(id_)

    def _read_times(self, id_: str) -> FrameTimes:
        names = ("pts", "time_base_num", "time_base_den", "frame_rate_num", "frame_rate_den")
        row = self._rows.row(id_, names)
        base_num, base_den, rate_num, rate_den = (row[name][0].as_py() for name in names[1:])
        if not all(part and part > 0 for part in (base_num, base_den, *((rate_num, rate_den) if rate_num else ()))):
            raise StoreError(
                f"{id_}: its times are recorded as {base_num}/{base_den}, {rate_num}/{rate_den} a second",
                path=self.path,
            )
        pts, sizes = _values(row, "pts"), self.places(id_).sizes
        if len(pts) != len(sizes):
            raise StoreError(f"{id_}: {len(sizes)} frames, times for {len(pts)}", path=self.path)
        return pts, Fraction(base_num, base_den), Fraction(rate_num, rate_den) if rate_num else None

    def source_map(self, id_: str) -> SourceMap | None:
        """Return the source frames that a video shows; None if the index does not store them. Raises KeyError."""
        if not self._has_times_of_sources:
            return None
        row = self._rows.row(id_, ("source_frames", *LATER.names))
        base = [row[name][0].as_py() for name in LATER.names[1:]]
        if not all(part and part > 0 for part in base):
            return None
        frames, pts = (
            _values(row, name) if row[name][0].is_valid else None for name in ("source_frames", "source_pts")
        )
        return SourceMap(frames, pts, Fraction(*base))

    def labels(self, id_: str) -> dict[str, Any]:
        return self._labels_in(self._rows.row(id_, tuple(self._label_names))).values_of(id_)

    def label_columns(self, only: Collection[str] | None = None) -> Labels:
        """Return the labels of all videos in order, or of the ids in `only`."""
        tables = [*self._rows.tables(("id", *self._label_names))]
        if only is not None:
            tables = [table.filter(pc.is_in(table["id"], pa.array(only, pa.string()))) for table in tables]
        return concatenate([self._labels_in(table) for table in tables]) if tables else Labels(())

    def _labels_in(self, table: pa.Table) -> Labels:
        """Return the labels of a table; an index of version 0.1.0 stores them among its columns."""
        if self._label_names == [LABELS] and pa.types.is_struct(table.schema.field(LABELS).type):
            return labels_in(table)
        columns = {unescape_label(name, TAKEN): table[name].combine_chunks() for name in self._label_names}
        return Labels(table["id"].to_pylist(), columns)

    def videos(self, only: Collection[str] | None = None) -> Iterator[IndexedVideo]:
        """Yield rows in order, all or those of some ids. Raises StoreError."""
        try:
            yield from self._videos(only)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise StoreError(f"is damaged: {error}", path=self.path) from error

    def _videos(self, only: Collection[str] | None) -> Iterator[IndexedVideo]:
        wanted = None if only is None else pa.array(only, pa.string())
        for number in range(self._rows.count):
            if wanted is not None and not pc.any(pc.is_in(self._rows.read(number, ("id",))["id"], wanted)).as_py():
                continue
            table = self._rows.read(number, None)
            table = table if wanted is None else table.filter(pc.is_in(table["id"], wanted))
            for place in range(len(table)):
                row = table.slice(place, 1)
                one = {
                    name: row[name][0].as_py()
                    for name in table.column_names
                    if name not in ("pts", *PLACES[3:], *self._label_names)
                }
                rate = Fraction(one["frame_rate_num"], one["frame_rate_den"]) if one["frame_rate_num"] else None
                yield IndexedVideo(
                    one["id"],
                    one["shard"],
                    one["width"],
                    one["height"],
                    rate,
                    _values(row, "pts"),
                    Fraction(one["time_base_num"], one["time_base_den"]),
                    _values(row, "offsets"),
                    _values(row, "sizes"),
                    _values(row, "crc32"),
                    one["source_frames"],
                    one.get("source_pts"),
                    Fraction(one["source_time_base_num"], one["source_time_base_den"])
                    if one.get("source_time_base_num")
                    else None,
                )

    def _check_group(self, number: int) -> None:
        start, end = self._starts[number : number + 2]
        try:
            checksum = zlib.crc32(self._source.read_at(end - start, start))
        except OSError as error:
            raise StoreError(f"cannot be read at offset {start}: {error}", path=self.path) from error
        if checksum != int.from_bytes(self._groups_crc32[4 * number : 4 * number + 4], "big"):
            raise StoreError(
                f"is damaged between offsets {start} and {end}: the checksum of row group {number} does not hold; "
                "run the same command again, or restore the file",
                path=self.path,
            )


def _values(row: pa.Table, column: str) -> Any:
    """Return the list in a one-row table as its own array."""
    return row[column].chunk(0).flatten().to_numpy(zero_copy_only=False).copy()
