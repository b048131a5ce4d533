"""Check the structure of a finished destination, and read it as a training run does: `open_store`, a video by id, frames
by number.

The structure is the set of files, the positions of units in shards, and the index.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.storage.untrusted import open_regular
from vidprep.formats.stores.base import FrameStore
from vidprep.formats.stores.encoded import VideoStore
from vidprep.formats.stores.gops import GOPS_NAME, differing_rows
from vidprep.formats.stores.registry import ENCODED, STORES_OF_FRAMES, VIDEO_SHARDS, layout_of, open_store
from vidprep.formats.stores.shards import StoreLayout
from vidprep.transcode.media.verify import frame_checksum
from vidprep.transcode.sources.outputs import STATE_DIR

LAST_BYTE, GOPS_NAMED = 2**60, 3
PLACES = ["id", "file_name", "offset", "stored_bytes"]


def files_without_row(destination: Path, names: Collection[str]) -> Iterator[str]:
    """Yield files of a destination that the manifest does not mention.

    Args:
        destination: The destination.
        names: Names of the outputs in the manifest.
    """
    suffixes = {os.path.splitext(name)[1] for name in names}  # noqa: PTH122
    root = os.path.join(destination, "")  # noqa: PTH118
    for folder, below, files in os.walk(root):
        below.sort()
        relative = os.path.join(folder, "").removeprefix(root)  # noqa: PTH118
        if not relative:
            below[:] = [name for name in below if name != STATE_DIR]
        strays = (file for file in files if f"{relative}{file}" not in names)
        for file in sorted(strays):
            path = Path(folder, file)
            if path.suffix in suffixes and path.is_file():
                yield f"{path}: no row of the manifest mentions it"


def faults_of_others(destination: Path, kept: str, names: Collection[str]) -> Iterator[str]:
    """Yield a line for each file that a store of another kind left.

    Args:
        destination: The destination.
        kept: Kind of its store.
        names: Names of its files, by its manifest.
    """
    there = sorted(path.name for path in destination.iterdir() if path.is_file())
    own = {*names, *(filter(layout_of(kept).is_file, there) if kept in STORES_OF_FRAMES else ())}
    for kind in STORES_OF_FRAMES:
        for name in filter(layout_of(kind).is_file, there) if kind != kept else ():
            if name not in own:
                yield f"{destination / name}: belongs to a {kind} store, and this is one of {kept}; remove it"


def faults_of_store(destination: Path, layout: StoreLayout, places: pa.Table, rows: list[ManifestRow]) -> Iterator[str]:
    """Yield a line for each fault in shards and index.

    Args:
        destination: The destination.
        layout: Layout of its store.
        places: PLACES of all units.
        rows: Rows whose entries in the index are checked.
    """
    shards = pc.unique(places["file_name"]).sort().to_pylist()
    for path in sorted(destination.iterdir()):
        if layout.is_shard(path.name) and path.name not in shards:
            yield f"{path}: no row of the manifest mentions it"
    for name in shards:
        units = places.filter(pc.equal(places["file_name"], name)).sort_by(
            [("offset", "ascending"), ("stored_bytes", "ascending"), ("id", "ascending")]
        )
        begins, sizes = (pc.fill_null(units[column], 0).to_numpy() for column in ("offset", "stored_bytes"))
        if min(begins.min(), sizes.min()) < 0 or max(begins.max(), sizes.max()) > LAST_BYTE:
            yield f"{destination / name}: the manifest has units at positions beyond the end of the file"
            continue
        due = np.concatenate([[0], (begins + sizes)[:-1]])
        for number in np.flatnonzero(begins != due if layout.shows_dead_bytes else begins < due):
            id_ = units["id"][number].as_py()
            yield f"{destination / name}: {id_}: begins at offset {begins[number]}, the unit before it ends at {due[number]}"
        if not (destination / name).is_file():
            yield f"{destination / name}: is not there"
            continue
        end = int(begins[-1] + sizes[-1])
        with open_regular(destination / name) as data:
            data.seek(end)
            if layout.shows_dead_bytes and data.read() != layout.tail:
                yield f"{destination / name}: from offset {end} is not the end of a shard"
    yield from layout.faults_of_index(destination, rows, are_all=len(rows) == len(places))


def faults_of_gop_index(destination: Path, kind: str) -> Iterator[str]:
    """Yield a line for each difference between `gops.parquet` and the manifest.

    Files that an earlier version made need no index: they are read by their containers.
    """
    path = destination / GOPS_NAME
    if not path.exists():
        if kind == VIDEO_SHARDS:
            yield f"{path}: is not there; `vidprep index {destination}` makes it"
        return
    try:
        cure = f"; `vidprep index {destination}` makes it again"
        yield from (f"{path}: {id_}: {why}{cure}" for id_, why in differing_rows(destination))
    except StoreError as error:
        yield f"{error}; `vidprep index {destination}` makes it again"


def faults_of_gops(destination: Path, row: ManifestRow, checksums: Sequence[int]) -> Iterator[str]:
    """Yield a line for each GOP whose bytes are damaged, or that decodes alone to other frames than in order.

    Args:
        destination: The destination.
        row: Row of the video.
        checksums: Checksum of every frame, decoded in order.
    """
    store = _open(destination, _state(destination))
    if not isinstance(store, VideoStore) or store.entry(row.id).packets is None:
        return
    num_faults = 0
    for begin, end in pairwise([*(store.facts(row.id).keyframes or ()), len(checksums)]):
        if num_faults == GOPS_NAMED:
            return
        try:
            for number, frame in store.decode(row.id, range(begin, end)):
                if frame_checksum(frame) != checksums[number]:
                    yield f"frame {number} is another picture if only its GOP is decoded, from frame {begin} on"
                    break
        except StoreError as error:
            num_faults += 1
            yield f"its GOP from frame {begin} on cannot be read alone: {error.message}"


ALL_OF, SEQUENCES, SEQUENCE_FRAMES = 64, 4, 8
MAX_FRAMES_IN_MEMORY = 64 << 20  # bytes


def open_ids(destination: Path, kind: str) -> tuple[pa.Array | None, str]:
    """Return the ids of the videos that `open_store` finds; None if it finds no store of this kind, and why.

    Args:
        destination: A finished destination.
        kind: Kind of store in the settings.
    """
    try:
        store = open_store(destination)
        ids = pa.array(store.ids, pa.string())
    except (StoreError, OSError) as error:
        return None, f"open_store does not open it: {error}"
    if store.kind != (ENCODED if kind == VIDEO_SHARDS else kind):
        due = "encoded videos" if kind in (ENCODED, VIDEO_SHARDS) else f"a {kind} store"
        return None, f"{destination}: was made as {due}, open_store opens it as {store.kind}: another store hides it"
    return ids, ""


def differing_ids(known: pa.ChunkedArray, found: pa.Array) -> tuple[list[str], list[str]]:
    """Return the ids of the manifest that the store lacks, and the ids of the store that the manifest lacks."""
    lost = known.filter(pc.invert(pc.is_in(known, found))).to_pylist()
    strange = found.filter(pc.invert(pc.is_in(found, known.combine_chunks()))).to_pylist()
    return sorted(lost), sorted(strange)


def sample_of(row: ManifestRow) -> list[int]:
    """Return the numbers of frames to read: all of a short video; else the first, the last, the two closest in time, and
    random sequences. They are the same each time.
    """
    count = row.num_frames or 0
    if count <= ALL_OF:
        return list(range(count))
    chosen = {0, count - 1}
    if row.pts and len(row.pts) == count:
        _, closest = min((later - one, number) for number, (one, later) in enumerate(pairwise(row.pts)))
        chosen |= {closest, closest + 1}
    rng = random.Random(row.id)
    for _ in range(SEQUENCES):
        first = rng.randrange(count - SEQUENCE_FRAMES)
        chosen.update(range(first, first + SEQUENCE_FRAMES))
    return sorted(chosen)


def faults_of_reading(destination: Path, row: ManifestRow, expected: Mapping[int, int]) -> Iterator[str]:
    """Yield a line for each wrong frame, read by number.

    Args:
        destination: The destination.
        row: Row of the video.
        expected: CRC-32 of the RGB of frames by number, decoded by other means.

    Raises:
        StoreError: It cannot be read.
    """
    store = _open(destination, _state(destination))
    video = store[row.id]
    if (len(video), video.width, video.height) != (row.num_frames, row.width, row.height):
        yield (
            f"open_store says {len(video)} frames of {video.width}x{video.height}, the manifest {row.num_frames} of "
            f"{row.width}x{row.height}"
        )
        return
    labels = store.labels(row.id)
    for name, value in row.labels.items():
        own_labels = labels.get(name)
        if value is not None and own_labels != value and str(own_labels) != str(value):
            yield f"open_store says {own_labels!r} for the label {name}, the manifest {value!r}"
    at_once = max(1, MAX_FRAMES_IN_MEMORY // (3 * video.width * video.height))
    numbers = list(expected)
    random.Random(row.id).shuffle(numbers)
    for begin in range(0, len(numbers), at_once):
        batch = numbers[begin : begin + at_once]
        for number, picture in zip(batch, video.frames(batch), strict=True):
            if zlib.crc32(picture) != expected[number]:
                yield f"open_store returns another picture for frame {number} than is stored"
                return


def _state(destination: Path) -> tuple[Any, ...]:
    """Return a value that changes when the files change that a store is opened from."""
    names = ("*.parquet", "*.json", "*.gmeta", "*.tar")
    stats = [(path.name, path.stat()) for name in names for path in sorted(destination.glob(name))]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


@lru_cache(maxsize=1)
def _open(destination: Path, _state: tuple[Any, ...]) -> FrameStore:
    return open_store(destination)
