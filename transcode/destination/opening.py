"""Open destinations, and remove what runs of another store left in them.

A destination holds one store. A file belongs to an earlier run if its settings, its manifest, its journal or one of our
indexes says so; other files with such names are left alone.
"""

from __future__ import annotations

import atexit
import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from vidprep.formats.manifest.journal import Journal
from vidprep.formats.manifest.table import fence_of, manifest_paths, read_rows, read_table, write_rows
from vidprep.formats.storage.base import Storage
from vidprep.formats.storage.local import is_regular
from vidprep.formats.storage.remote import storage_of
from vidprep.formats.stores.gops import GOPS_NAME
from vidprep.formats.stores.registry import ENCODED, STORES_OF_FRAMES, VIDEO_SHARDS, kind_made_by_run, layout_of
from vidprep.transcode.destination.destination import Destination as Destination
from vidprep.transcode.destination.labels import (
    GIVEN_LABELS_NAME,
    PlannedLabels as PlannedLabels,
    plan_labels as plan_labels,
)
from vidprep.transcode.destination.lease import LeasePlace as LeasePlace
from vidprep.transcode.destination.outputs import Compacted as Compacted, Files, Shards as Shards
from vidprep.transcode.destination.partition import Partition
from vidprep.transcode.destination.run_file import (
    KnownUnit as KnownUnit,
    disk_of as disk_of,
    free_bytes as free_bytes,
    no_room as no_room,
    settings_of,
)
from vidprep.transcode.settings.output import Output
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.outputs import STATE_DIR
from vidprep.transcode.sources.scratch import scratch_folder

KINDS = (*STORES_OF_FRAMES, VIDEO_SHARDS)  # with shards


class _Output(NamedTuple):
    """Columns of a row with the file of its output."""

    file_name: str
    status: str
    container: str | None
    offset: int | None

    def kind(self, kept: str) -> str:
        """Return the kind of store that it belongs to. A failed video has no output, so it belongs to `kept` if that holds
        videos.
        """
        if self.container in STORES_OF_FRAMES:
            return str(self.container)
        if self.status != "ok" and kept in (ENCODED, VIDEO_SHARDS):
            return kept
        return ENCODED if self.offset is None else VIDEO_SHARDS


def clear_other_stores(place: Destination, settings: RunSettings) -> None:
    """Remove what runs of another store made, before everything is made again. Raises DestinationError, ManifestError."""
    kept = settings.output.store_kind
    place.storage.remove(*_list_foreign(place.storage, place.journal, kept))
    place.storage.remove(*_forget_rows_of_others(place.root, kept))
    if any(row.kind(kept) != kept for row in _read_journal(place.journal)):
        place.clear_journal()


def _read_journal(journal: Journal) -> list[_Output]:
    return [_Output(row.file_name, row.status, row.container, row.offset) for row in journal.rows()]


def _list_foreign(storage: Storage, journal: Journal, kept: str) -> list[str]:
    """Return files of stores of other kinds than `kept`. Raises DestinationError for a link or a special file."""
    root = storage.root
    rows = [*read_rows(root, _Output), *_read_journal(journal)]
    kinds = {row.kind(kept) for row in rows} | {kind_made_by_run(root)}
    kinds |= {_kind_of_index(storage, kind) for kind in STORES_OF_FRAMES}
    others = [layout_of(kind) for kind in KINDS if kind in kinds and kind != kept]
    left = {*storage.list(lambda name: any(layout.is_file(name) for layout in others))}
    if kept != ENCODED:
        left |= {row.file_name for row in rows if row.status == "ok" and row.kind(kept) == ENCODED}
    if kinds & {ENCODED, VIDEO_SHARDS} - {kept}:
        left |= {*storage.list(lambda name: name == GOPS_NAME)}
    storage.list(left.__contains__)  # raises for links and folders with these names, before anything is removed
    return sorted(left)


def _forget_rows_of_others(root: Path, kept: str) -> list[str]:
    """Remove rows of other stores from the manifests in `root`. Return the names of manifests that became empty."""
    gone = []
    for path in manifest_paths(root):
        is_kept = [row.kind(kept) == kept for row in read_rows(root, _Output, only=path)]
        if not any(is_kept):
            gone.append(path.name)
        elif not all(is_kept):
            table = read_table(root, only=path)
            assert table is not None
            write_rows(path, table.filter(is_kept), (), fence=fence_of(path))
    return gone


def _kind_of_index(storage: Storage, kind: str) -> str | None:
    """Return the kind of store if an index file says that vidprep made it."""
    path = storage.local(f"{kind}.json")
    try:
        return (
            kind if path is not None and is_regular(path) and json.loads(path.read_bytes())["format"] == kind else None
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def open_destination(where: Path | str, output: Output, part: Partition | None = None) -> Destination:
    """Return the destination in a folder or behind a URL, for a kind of output."""
    return _open(_storage(where), output, part)


def open_finished(where: Path | str) -> Destination:
    """Return a destination by its run.json. Raises StoreError if no run made it, StorageError."""
    storage = _storage(where)
    storage.local(f"{STATE_DIR}/run.json")
    return _open(storage, settings_of(storage.root, storage.shown).output)


def is_unfinished(root: Path) -> bool:
    """Return whether a run left rows or labels that are not in the manifest."""
    state_dir = root / STATE_DIR
    return bool(Journal(state_dir / "journal.jsonl").files()) or (state_dir / GIVEN_LABELS_NAME).exists()


def is_in_use(root: Path) -> bool:
    """Return whether a run works in a folder, or was killed there."""
    lease = LeasePlace(storage_of(root), STATE_DIR).read()
    return lease is not None and not lease.is_free


def _open(storage: Storage, output: Output, part: Partition | None = None) -> Destination:
    make_outputs = Files if output.store_kind == ENCODED else partial(Shards, options=output)
    place = Destination(storage, make_outputs, part)
    place.refresh()
    return place


def _storage(where: Path | str) -> Storage:
    """Return the storage of a destination. Local copies of a URL's files are removed with this process."""
    if isinstance(where, Path):
        return storage_of(where)
    stack = ExitStack()
    atexit.register(stack.close)
    return storage_of(where, stack.enter_context(scratch_folder()))
