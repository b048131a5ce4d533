"""`gops.parquet`: where each GOP of each video is, so that any sequence is one read, without opening a container.

One row per video, sorted by id, in groups of at most 128 rows: a video is found by the first id of each group.

    id, file_name             the video, and the file that contains it: its own, or a shard
    offset, size_bytes        position of the video in that file, and its size
    sha256                    of the video
    codec, container          such as h264 and mp4
    extradata                 the decoder's configuration record as the container stores it (avcC, hvcC, av1C)
    width, height, num_frames
    frame_rate_num, …_den     exact rate of a constant-rate video, else null
    time_base_num, …_den      seconds per tick of `pts` and of the container
    pts                       start of each frame in ticks, from 0; null: frame n starts at n / rate
    keyframes                 numbers of the keyframes, where `packets` is null
    packets                   position and order of each packet, checksum of each GOP: formats/video/packets.py has the layout
    not_indexed               why `packets` is null; such a video is read by its container

A row describes bytes: it belongs to the video with its `sha256`, whatever its id and wherever it moves. So the rows of a
new file are made from the manifest and from the packets that are known for each SHA-256: of the journal, and of the
file before. Page checksums are on, and the footer is sealed.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.row import OUTSIDE, ManifestRow, is_text
from vidprep.formats.manifest.table import add_columns, read_table
from vidprep.formats.model import VideoFacts
from vidprep.formats.profiles import CODECS
from vidprep.formats.storage.local import replacing
from vidprep.formats.storage.untrusted import PICTURE_SIDE_MAX, arrow_file, check_regular, seal_footer
from vidprep.formats.stores._groups import KEPT_BYTES, SortedGroups
from vidprep.formats.stores.ids import Ids
from vidprep.formats.stores.shards import TAR_BLOCK
from vidprep.formats.video.gop_frames import DecoderConfig
from vidprep.formats.video.packets import PacketIndex

GOPS_NAME = "gops.parquet"
GROUP_ROWS, GROUP_BYTES = 128, 512 << 10
LAST_BYTE = 2**60
FRAMES_UNASKED = 1_000_000  # above this, the size of the video is checked: a frame takes at least one byte
FACTS = pa.schema(
    [
        ("id", pa.string()),
        ("file_name", pa.string()),
        ("offset", pa.int64()),
        ("size_bytes", pa.int64()),
        ("sha256", pa.string()),
        ("codec", pa.string()),
        ("container", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("num_frames", pa.int64()),
        ("frame_rate_num", pa.int64()),
        ("frame_rate_den", pa.int64()),
        ("time_base_num", pa.int64()),
        ("time_base_den", pa.int64()),
        ("pts", pa.list_(pa.int64())),
        ("keyframes", pa.list_(pa.int32())),
    ]
)
COLUMNS = pa.schema([*FACTS, ("extradata", pa.binary()), ("packets", pa.binary()), ("not_indexed", pa.string())])
# In memory; the packets of a million videos may have more than the two gigabytes of a column of pa.binary().
KNOWN = pa.schema(
    [("sha256", pa.string()), ("extradata", pa.binary()), ("packets", pa.large_binary()), ("not_indexed", pa.string())]
)
PLACE = ("file_name", "offset", "size_bytes")
READ = tuple(name for name in COLUMNS.names if name not in ("id", "sha256", "not_indexed"))
# A compressed page costs 20 µs however small it is, so only large columns are compressed; the others have compact encodings.
LEAVES = {field.name: f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name for field in COLUMNS}
COMPRESSION = dict.fromkeys(LEAVES.values(), "none") | {"packets": "lz4", "sha256": "zstd"}
DICTIONARIES = ["codec", "container", "extradata", "not_indexed"]
ENCODINGS = dict.fromkeys(("id", "file_name"), "DELTA_BYTE_ARRAY") | {
    LEAVES[field.name]: "DELTA_BINARY_PACKED"
    for field in COLUMNS
    if pa.types.is_integer(field.type) or pa.types.is_list(field.type)
}


@dataclass(frozen=True, slots=True)
class VideoEntry:
    """One video of an index.

    Attributes:
        file_name: File that contains it, relative to the store
        offset: Position of its first byte in that file
        size_bytes: Its size; None if unknown
        container: Its container, such as mp4
        config: Configuration of its decoder; None if it is not indexed
        packets: Its packets; None if it is not indexed
    """

    file_name: str
    offset: int
    size_bytes: int | None
    container: str
    config: DecoderConfig | None
    packets: PacketIndex | None
    facts: VideoFacts


class GopsFile:
    """An open `gops.parquet`. Not thread-safe.

    Attributes:
        version: Text that differs if the file was written again

    Raises:
        StoreError: It is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / GOPS_NAME
        try:
            status = self.path.stat()
            self._source = arrow_file(self.path)
        except OSError as error:
            raise StoreError(f"cannot be read: {error}", path=self.path) from error
        self._rows = SortedGroups(self._source, self.path, COLUMNS)
        self.version = json.dumps([status.st_size, status.st_mtime_ns, status.st_ino])
        self._kept: OrderedDict[str, VideoEntry] = OrderedDict()
        self._kept_frames = 0

    def close(self) -> None:
        source = getattr(self, "_source", None)
        if source is not None:
            source.close()

    __del__ = close

    def ids(self) -> Ids:
        return self._rows.ids()

    def sizes(self) -> npt.NDArray[np.int64]:
        return self._rows.sizes()

    def sha256(self) -> pa.ChunkedArray:
        return self._rows.column("sha256")

    def storage(self) -> tuple[pa.ChunkedArray, ...]:
        """Return file, position and size of each video."""
        return tuple(self._rows.all(PLACE)[name] for name in PLACE)

    def entry(self, id_: str) -> VideoEntry:
        """Return a video. Raises KeyError, StoreError."""
        entry = self._kept.get(id_)
        if entry is None:
            entry = self._kept[id_] = self._read(id_)
            self._kept_frames += entry.facts.num_frames
            while self._kept_frames * 32 > KEPT_BYTES and len(self._kept) > 1:
                self._kept_frames -= self._kept.popitem(last=False)[1].facts.num_frames
        return entry

    def _read(self, id_: str) -> VideoEntry:
        row = self._rows.row(id_, READ)
        values = {name: row[name][0].as_py() for name in READ}
        try:
            return entry_of(values)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise StoreError(f"{id_}: {error}; `vidprep index` makes it again", path=self.path) from error


def entry_of(values: dict[str, Any]) -> VideoEntry:
    """Return the video of a row. Raises ValueError, TypeError for values that no run writes, and that may be hostile."""
    file_name, container, count = values["file_name"], values["container"] or "", values["num_frames"]
    _check_place(file_name, container, values["offset"] or 0, values["size_bytes"] or 0)
    for name in ("num_frames", "width", "height", "time_base_num", "time_base_den"):
        if not (values[name] and values[name] > 0) or (name in ("width", "height") and values[name] > PICTURE_SIDE_MAX):
            raise ValueError(f"its {name} is {values[name]}")
    rate = _rate_of(values)
    packets = None if values["packets"] is None else PacketIndex.from_bytes(values["packets"])
    keyframes = values["keyframes"] if packets is None else packets.keyframes
    if not keyframes or keyframes[0] != 0 or None in keyframes:
        raise ValueError(f"its packets or keyframes are not those of {count} frames")
    if packets is not None:
        _check_packets(packets, values["codec"], count, values["size_bytes"] or LAST_BYTE)
    config = None if packets is None else DecoderConfig(values["codec"], values["extradata"] or b"")
    base = Fraction(values["time_base_num"], values["time_base_den"])
    facts = VideoFacts(count, values["height"], values["width"], rate, values["pts"], base, keyframes)
    return VideoEntry(file_name, values["offset"] or 0, values["size_bytes"], container, config, packets, facts)


def _rate_of(values: dict[str, Any]) -> Fraction | None:
    """Return the frame rate; None without one. Raises ValueError if neither it nor times say when frames are shown."""
    rate, pts, count = None, values["pts"], values["num_frames"]
    if min(values["frame_rate_num"] or 0, values["frame_rate_den"] or 0) > 0:
        rate = Fraction(values["frame_rate_num"], values["frame_rate_den"])
    if rate is None if pts is None else len(pts) != count or None in pts:
        raise ValueError(f"it has neither a frame rate nor times of its {count} frames")
    return rate


def _check_place(file_name: str, container: str, begin: int, size: int) -> None:
    """Raise ValueError for a file outside the folder, or bytes that no file has."""
    if not is_text(file_name) or re.search(OUTSIDE, file_name):
        raise ValueError(f"its file is {file_name!r}, which is not in the folder")
    if container and not re.fullmatch(r"[a-z0-9]{1,8}", container):
        raise ValueError(f"its container is {container!r}")
    if not (0 <= begin <= LAST_BYTE and 0 <= size <= LAST_BYTE):
        raise ValueError(f"it is {size} bytes from {begin} on")


def _check_packets(packets: PacketIndex, codec: str, num_frames: int, most_bytes: int) -> None:
    """Raise ValueError for packets of another number of frames, of a codec that is not known, or past the end of the file."""
    if len(packets) != num_frames:
        raise ValueError(f"its packets or keyframes are not those of {num_frames} frames")
    end = packets.offsets[-1] + packets.sizes[-1]
    if codec not in CODECS or end > most_bytes:
        raise ValueError(f"its packets are of {codec}, and end at byte {end}")


def size_of(path: Path) -> int:
    """Return the size of a regular file. Raises StoreError."""
    try:
        check_regular(path)
        return path.stat().st_size
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", path=path) from error


def facts_in(folder: Path, only: Path | None = None) -> pa.Table | None:
    """Return the columns FACTS of the good rows of a manifest, sorted by id; None if there is no manifest.

    Args:
        folder: The destination.
        only: The single manifest to read.

    Raises:
        ManifestError: It cannot be read.
    """
    table = read_table(folder, [*FACTS.names, "status"], only)
    if table is None:
        return None
    table = add_columns(table, FACTS.names)
    is_good = pc.equal(table["status"], "ok")
    table = (table if pc.all(is_good).as_py() else table.filter(is_good)).select(FACTS.names)
    in_file = pc.add(table["offset"], TAR_BLOCK)  # a shard has a header in front of each video
    table = table.set_column(FACTS.get_field_index("offset"), "offset", pc.fill_null(in_file, 0))
    return table.cast(FACTS).sort_by("id")


def differing_rows(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the id of each video whose row in the index is not what the manifest says, and how it differs.

    Raises:
        ManifestError: The manifest cannot be read.
        StoreError: The index cannot be read.
    """
    due, path = facts_in(folder), folder / GOPS_NAME
    assert due is not None
    names = [name for name in FACTS.names if name != "keyframes"]
    try:
        with arrow_file(path) as source:
            stored = SortedGroups(source, path, COLUMNS).all(tuple(names)).combine_chunks()
    except OSError as error:
        raise StoreError(f"cannot be read: {error}", path=path) from error
    due = due.select(names).combine_chunks()
    if stored.equals(due):
        return
    places = pc.index_in(due["id"], stored["id"]).combine_chunks()
    there, differs = stored.take(places), pa.array(np.zeros(len(due), np.bool_))
    for name in names:
        if name == "pts":
            same = pa.array([a == b for a, b in zip(there[name].to_pylist(), due[name].to_pylist(), strict=True)])
        else:
            same = pc.fill_null(pc.equal(there[name], due[name]), False)
            same = pc.or_(same, pc.and_(pc.is_null(there[name]), pc.is_null(due[name])))
        differs = pc.or_(differs, pc.invert(same))
    for number in np.flatnonzero(np.asarray(differs)).tolist():
        why = "its row differs from the manifest" if places[number].is_valid else "is not in it"
        yield due["id"][number].as_py(), why
    for id_ in stored["id"].filter(pc.invert(pc.is_in(stored["id"], due["id"].combine_chunks()))).to_pylist():
        yield id_, "is not in the manifest"


def num_not_indexed(folder: Path) -> int:
    """Return how many good videos of a destination have neither packets nor a reason for it. Raises ManifestError."""
    facts, path = facts_in(folder), folder / GOPS_NAME
    try:
        known = read_known(path) if path.is_file() else KNOWN.empty_table()
    except StoreError:  # reported otherwise
        return 0
    explained = known.filter(pc.or_(pc.is_valid(known["packets"]), pc.is_valid(known["not_indexed"])))
    if facts is None:
        return 0
    return len(facts) - int(pc.sum(pc.is_in(facts["sha256"], explained["sha256"].combine_chunks())).as_py() or 0)


def read_known(path: Path) -> pa.Table:
    """Return the columns KNOWN of an index. Raises StoreError."""
    try:
        with arrow_file(path) as source:
            table: pa.Table = SortedGroups(source, path, COLUMNS).all(tuple(KNOWN.names))
            return table.cast(KNOWN)
    except OSError as error:
        raise StoreError(f"cannot be read: {error}", path=path) from error


def list_known(rows: Iterable[ManifestRow]) -> pa.Table:
    """Return the columns KNOWN of rows that have packets."""
    pairs = [(row.sha256, row.packets) for row in rows if row.packets is not None]
    columns = [
        [sha256 for sha256, _ in pairs],
        *([getattr(packets, name) for _, packets in pairs] for name in KNOWN.names[1:]),
    ]
    return pa.table([pa.array(values, field.type) for values, field in zip(columns, KNOWN, strict=True)], schema=KNOWN)


def write_gops(path: Path, facts: pa.Table, known: pa.Table) -> int:
    """Write an index. Return how many videos are not in `known`: they are read by their containers.

    Args:
        path: The file to write.
        facts: Columns FACTS, sorted by id.
        known: Columns KNOWN. If several have one SHA-256, the first one with packets counts.

    Raises:
        OSError: It cannot be written.
    """
    has_packets = pc.is_valid(known["packets"])
    refused = known.filter(pc.and_not(pc.is_valid(known["not_indexed"]), has_packets))
    known = pa.concat_tables([known.filter(has_packets), refused])
    known = known.filter(pc.is_valid(known["sha256"])).combine_chunks()
    places = pc.index_in(facts["sha256"], known["sha256"]).combine_chunks()
    with replacing(path, unless_same=True) as file:
        with pq.ParquetWriter(
            file,
            COLUMNS,
            compression=COMPRESSION,
            use_dictionary=DICTIONARIES,
            write_page_checksum=True,
            write_statistics=["id"],
            column_encoding=ENCODINGS,
        ) as writer:
            for begin, end in _groups(facts, places, known):
                rows, place = facts.slice(begin, end - begin), places.slice(begin, end - begin)
                for name in COLUMNS.names[len(FACTS) :]:
                    rows = rows.append_column(name, known[name].take(place))
                keyframes = pc.if_else(
                    pc.is_valid(rows["packets"]), pa.scalar(None, pa.list_(pa.int32())), rows["keyframes"]
                )
                at = rows.schema.get_field_index("keyframes")
                writer.write_table(rows.set_column(at, COLUMNS.field("keyframes"), keyframes).cast(COLUMNS))
        seal_footer(file)
    return int(places.null_count)


def _groups(facts: pa.Table, places: pa.Array, known: pa.Table) -> Iterator[tuple[int, int]]:
    """Yield row groups: at most GROUP_ROWS rows, and GROUP_BYTES of packets, times and keyframes unless one video has
    more.
    """
    sizes = pc.fill_null(pc.binary_length(known["packets"]).take(places), 0).to_numpy().astype(np.int64)
    for name, item_bytes in (("pts", 8), ("keyframes", 4)):
        sizes = sizes + item_bytes * pc.fill_null(pc.list_value_length(facts[name]), 0).to_numpy()
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(ends):
        before = int(ends[begin - 1]) if begin else 0
        fits = int(np.searchsorted(ends, before + GROUP_BYTES, "right"))
        end = min(len(ends), begin + GROUP_ROWS, max(begin + 1, fits))
        yield begin, end
        begin = end
