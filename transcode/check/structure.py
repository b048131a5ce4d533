"""The structure of a finished destination: which files are there, how units lie in shards, and what the index says of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from vidprep.formats.errors import StoreError
from vidprep.formats.files.untrusted import read_json
from vidprep.formats.manifest.labels import differing
from vidprep.formats.manifest.table import ManifestRow, label_columns
from vidprep.formats.stores.gulp import GulpLayout
from vidprep.formats.stores.index import FrameIndex, IndexedVideo
from vidprep.formats.stores.indexed import IndexedLayout, indexed_video
from vidprep.formats.stores.registry import STORES_OF_FRAMES
from vidprep.formats.stores.shards import Layout
from vidprep.transcode.destination.other_stores import files_of


def files_without_row(destination: Path, rows: list[ManifestRow]) -> Iterator[str]:
    known = {row.file_name for row in rows}
    suffixes = {Path(name).suffix for name in known}
    for path in sorted(destination.rglob("*")):
        name = path.relative_to(destination).as_posix()
        if path.is_file() and path.suffix in suffixes and not name.startswith(".vidprep/") and name not in known:
            yield f"{path}: no row of the manifest speaks of it"


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
            yield f"{path}: no row of the manifest speaks of it"
    for name, units in sorted(spans.items()):
        end = 0
        for offset, size, id_ in sorted(units):
            if offset < end or (offset > end and layout.shows_dead_bytes):
                yield f"{destination / name}: {id_}: begins at offset {offset}, the unit before it ends at {end}"
            end = offset + size
        data = (destination / name).open("rb") if (destination / name).is_file() else None
        if data is None:
            yield f"{destination / name}: is not there"
            continue
        with data:
            data.seek(end)
            if layout.shows_dead_bytes and data.read() != layout.tail:
                yield f"{destination / name}: from offset {end} stands something else than the end of a shard"
    yield from _faults_of_index(destination, layout, rows)


def _faults_of_index(destination: Path, layout: Layout, rows: list[ManifestRow]) -> Iterator[str]:
    """The files that say where frames lie, against the manifest."""
    if isinstance(layout, GulpLayout):
        found: dict[str, Any] = {}
        for path in sorted(path for path in destination.glob("*.gmeta") if path.is_file()):
            try:
                found |= {id_: entry["frame_info"] for id_, entry in read_json(path).items()}
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                yield f"{path}: is damaged: {error}"
        for row in rows:
            sizes = row.frame_sizes or ()
            due = [[at, -size % 4, size + -size % 4] for at, size in zip(layout.offsets(row), sizes, strict=True)]
            if found.pop(row.id, None) != due:
                yield f"{destination}/*.gmeta: {row.id}: its frames are said to lie elsewhere than the manifest says"
        yield from (f"{destination}/*.gmeta: {id_}: is not in the manifest" for id_ in found)
    elif isinstance(layout, IndexedLayout):
        try:
            index = FrameIndex(destination, layout.name)
            indexed = {video.id: video for video in index.videos()}
            relabelled = differing(index.label_columns(), label_columns(destination))
        except StoreError as error:
            yield str(error)
            return
        for row in rows:
            video, due_video = indexed.pop(row.id, None), indexed_video(row, layout.offsets(row))
            if video is None or not _same(video, due_video):
                yield f"{index.path}: {row.id}: its row says something else than the manifest"
        yield from (f"{index.path}: {id_}: is not in the manifest" for id_ in indexed)
        yield from (f"{index.path}: {id_}: its labels are others than in the manifest" for id_ in relabelled)


def _same(one: IndexedVideo, other: IndexedVideo) -> bool:
    pairs = ((getattr(one, part.name), getattr(other, part.name)) for part in fields(IndexedVideo))
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)
