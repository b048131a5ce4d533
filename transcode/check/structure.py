"""The structure of a finished destination: which files are there, how units lie in shards, and what the index says of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from vidprep.formats.files.untrusted import open_regular
from vidprep.formats.manifest.table import ManifestRow
from vidprep.formats.stores.registry import STORES_OF_FRAMES
from vidprep.formats.stores.shards import Layout
from vidprep.transcode.destination.other_stores import files_of


def files_without_row(destination: Path, rows: list[ManifestRow]) -> Iterator[str]:
    known = {row.file_name for row in rows}
    suffixes = {Path(name).suffix for name in known}
    for path in sorted(destination.rglob("*")):
        name = path.relative_to(destination).as_posix()
        if path.is_file() and path.suffix in suffixes and not name.startswith(".vidprep/") and name not in known:
            yield f"{path}: no row of the manifest mentions it"


def faults_of_others(destination: Path, kept: str, rows: list[ManifestRow]) -> Iterator[str]:
    """What stores of other kinds left. kept: the kind of this one."""
    names = sorted(path.name for path in destination.iterdir() if path.is_file())
    own = {row.file_name for row in rows} | set(files_of(kept, names) if kept in STORES_OF_FRAMES else ())
    for kind in STORES_OF_FRAMES:
        for name in files_of(kind, names) if kind != kept else ():
            if name not in own:
                yield f"{destination / name}: belongs to a {kind} store, and this is one of {kept}; remove it"


def faults_of_store(destination: Path, layout: Layout, rows: list[ManifestRow]) -> Iterator[str]:
    spans: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for row in rows:
        spans[row.file_name].append((row.offset or 0, row.stored_bytes or 0, row.id))
    for path in sorted(destination.iterdir()):
        if layout.is_shard(path.name) and path.name not in spans:
            yield f"{path}: no row of the manifest mentions it"
    for name, units in sorted(spans.items()):
        end = 0
        for offset, size, id_ in sorted(units):
            if offset < end or (offset > end and layout.shows_dead_bytes):
                yield f"{destination / name}: {id_}: begins at offset {offset}, the unit before it ends at {end}"
            end = offset + size
        data = open_regular(destination / name) if (destination / name).is_file() else None
        if data is None:
            yield f"{destination / name}: is not there"
            continue
        with data:
            data.seek(end)
            if layout.shows_dead_bytes and data.read() != layout.tail:
                yield f"{destination / name}: from offset {end} is something other than the end of a shard"
    yield from layout.faults_of_index(destination, rows)
