"""The structure of a finished destination: which files are there, how units lie in shards, and what the index says of them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vidprep.formats.manifest.table import ManifestRow
from vidprep.formats.storage.untrusted import open_regular
from vidprep.formats.stores.registry import STORES_OF_FRAMES, layout_of
from vidprep.formats.stores.shards import Layout
from vidprep.transcode.sources.outputs import STATE_DIR

LAST_BYTE = 2**60
PLACES = ["id", "file_name", "offset", "stored_bytes"]


def files_without_row(destination: Path, names: Collection[str]) -> Iterator[str]:
    """names: of the outputs that the manifest mentions."""
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
    """What stores of other kinds left. kept: the kind of this one. names: of its files, by its manifest."""
    there = sorted(path.name for path in destination.iterdir() if path.is_file())
    own = {*names, *(filter(layout_of(kept).is_file, there) if kept in STORES_OF_FRAMES else ())}
    for kind in STORES_OF_FRAMES:
        for name in filter(layout_of(kind).is_file, there) if kind != kept else ():
            if name not in own:
                yield f"{destination / name}: belongs to a {kind} store, and this is one of {kept}; remove it"


def faults_of_store(destination: Path, layout: Layout, places: pa.Table, rows: list[ManifestRow]) -> Iterator[str]:
    """places: PLACES of all units. rows: what the index says of these is looked at."""
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
            yield f"{destination / name}: the manifest says that units lie where no file has bytes"
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
                yield f"{destination / name}: from offset {end} is something other than the end of a shard"
    yield from layout.faults_of_index(destination, rows, are_all=len(rows) == len(places))
