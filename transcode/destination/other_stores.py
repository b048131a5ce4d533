"""What runs with another layout left in a destination: shards, the files that say where frames lie, videos, rows.

A destination holds one store. What counts as left by a run is what its settings, its manifest, its journal or an index of ours
say; a file that merely has such a name is not touched.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from vidprep.formats.manifest.journal import Journal
from vidprep.formats.manifest.table import fence_of, manifest_paths, read_rows, read_table, write_rows
from vidprep.formats.storage.base import Storage
from vidprep.formats.storage.no_links import is_regular
from vidprep.formats.stores.registry import ENCODED, STORES_OF_FRAMES, kind_made_by_run, layout_of
from vidprep.transcode.destination.destination import Destination
from vidprep.transcode.settings.run import RunSettings


class _Output(NamedTuple):
    """The columns of a row that say what file holds an output."""

    file_name: str
    status: str
    container: str | None


def clear_other_stores(place: Destination, settings: RunSettings) -> None:
    """Before all is made anew: take away what runs of another layout made here. Raises DestinationError, ManifestError."""
    kept = settings.output.store_kind
    place.storage.remove(*_left_by_others(place.storage, place.journal, kept))
    place.storage.remove(*_forget_rows_of_others(place.root, kept))
    if any(_kind(row.container) != kept for row in place.journal.rows()):
        place.clear_journal()


def _left_by_others(storage: Storage, journal: Journal, kept: str) -> list[str]:
    """Files that runs of another kind than `kept` made, by name. Raises DestinationError for one that is a link, or no regular file."""
    root = storage.root
    rows = [*read_rows(root, _Output), *(_Output(row.file_name, row.status, row.container) for row in journal.rows())]
    kinds = {_kind(row.container) for row in rows} | {kind_made_by_run(root)}
    kinds |= {_indexed_as(storage, kind) for kind in STORES_OF_FRAMES}
    others = [layout_of(kind) for kind in STORES_OF_FRAMES if kind in kinds and kind != kept]
    left = {*storage.list(lambda name: any(layout.is_file(name) for layout in others))}
    if kept != ENCODED:
        left |= {row.file_name for row in rows if row.status == "ok" and _kind(row.container) == ENCODED}
    storage.list(left.__contains__)  # which refuses links and folders of these names, before anything goes
    return sorted(left)


def _forget_rows_of_others(root: Path, kept: str) -> list[str]:
    """Take rows of another kind out of the manifests in `root`. Returns the names of those in which no row is left."""
    gone = []
    for path in manifest_paths(root):
        is_kept = [_kind(row.container) == kept for row in read_rows(root, _Output, only=path)]
        if not any(is_kept):
            gone.append(path.name)
        elif not all(is_kept):
            table = read_table(root, only=path)
            assert table is not None
            write_rows(path, table.filter(is_kept), (), fence=fence_of(path))
    return gone


def _kind(container: str | None) -> str:
    return container if container in STORES_OF_FRAMES else ENCODED


def _indexed_as(storage: Storage, kind: str) -> str | None:
    """The kind, where an index file says that vidprep made it."""
    path = storage.local(f"{kind}.json")
    try:
        return (
            kind if path is not None and is_regular(path) and json.loads(path.read_bytes())["format"] == kind else None
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
