"""Destinations by where they are, and by what they hold."""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from vidprep.formats.manifest.journal import Journal
from vidprep.formats.storage.base import Storage
from vidprep.formats.storage.remote import storage_of
from vidprep.transcode.destination.destination import Destination as Destination
from vidprep.transcode.destination.files import Files
from vidprep.transcode.destination.labels import GIVEN_LABELS_NAME
from vidprep.transcode.destination.labels import PlannedLabels as PlannedLabels
from vidprep.transcode.destination.labels import plan_labels as plan_labels
from vidprep.transcode.destination.lease import LeasePlace as LeasePlace
from vidprep.transcode.destination.other_stores import clear_other_stores as clear_other_stores
from vidprep.transcode.destination.partition import Partition
from vidprep.transcode.destination.room import disk_of as disk_of
from vidprep.transcode.destination.room import free_bytes as free_bytes
from vidprep.transcode.destination.room import no_room as no_room
from vidprep.transcode.destination.run_file import KnownUnit as KnownUnit
from vidprep.transcode.destination.run_file import settings_of
from vidprep.transcode.destination.shards import Compacted as Compacted
from vidprep.transcode.destination.shards import Shards as Shards
from vidprep.transcode.settings.output import FrameOutput, Output
from vidprep.transcode.sources.outputs import STATE_DIR
from vidprep.transcode.sources.scratch import scratch_folder


def open_destination(where: Path | str, output: Output, part: Partition | None = None) -> Destination:
    """Return the destination in a folder or behind a URL, for outputs of this kind."""
    return _opened(_storage(where), output, part)


def open_finished(where: Path | str) -> Destination:
    """Return a destination as its run.json says that it is. Raises StoreError for what is no destination of a run, StorageError."""
    storage = _storage(where)
    storage.local(f"{STATE_DIR}/run.json")
    return _opened(storage, settings_of(storage.root, storage.shown).output)


def is_unfinished(root: Path) -> bool:
    """Whether a run left rows or labels in a folder that are not in the manifest."""
    state_dir = root / STATE_DIR
    return bool(Journal(state_dir / "journal.jsonl").files()) or (state_dir / GIVEN_LABELS_NAME).exists()


def is_at_work(root: Path) -> bool:
    """Whether a run works in a folder, or was killed in it."""
    lease = LeasePlace(storage_of(root), STATE_DIR).read()
    return lease is not None and not lease.is_free


def _opened(storage: Storage, output: Output, part: Partition | None = None) -> Destination:
    make_outputs = partial(Shards, options=output) if isinstance(output, FrameOutput) else Files
    place = Destination(storage, make_outputs, part)
    place.refresh()
    return place


def _storage(where: Path | str) -> Storage:
    """The storage of a destination. Files from behind a URL are kept in a folder that goes with this process."""
    if isinstance(where, Path):
        return storage_of(where)
    stack = ExitStack()
    atexit.register(stack.close)
    return storage_of(where, stack.enter_context(scratch_folder()))
