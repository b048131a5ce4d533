"""`vidprep merge`: the parts of an array run become one destination, as if one machine had made it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vidprep.formats.errors import StoreError
from vidprep.formats.files.no_links import refuse_links
from vidprep.formats.manifest.table import read_manifest, write_rows
from vidprep.transcode.destination.account import account, put_plan_away, record
from vidprep.transcode.destination.array_plan import PART_PLAN_NAME, PLAN_NAME
from vidprep.transcode.destination.folder import Destination
from vidprep.transcode.destination.partition import Part, parts_in
from vidprep.transcode.destination.run_file import STATE_DIR, settings_of
from vidprep.transcode.destination.sharded import PackedDestination
from vidprep.transcode.settings.run import RunSettings


@dataclass(frozen=True, slots=True)
class Merged:
    """parts: joined now. count: of the parts of the array run, unended: those that did not do all of theirs, now or before.

    missing: videos that have no row, or not the one that they should have, and why; by id.
    """

    parts: int
    ok: int
    failed: int
    count: int
    unended: tuple[int, ...]
    missing: Mapping[str, str]

    @property
    def is_whole(self) -> bool:
        return not (self.failed or self.unended or self.missing)


def merge(root: Path, far_shards: Mapping[str, int] | None = None) -> Merged:
    """Join the manifests of all parts, mend what killed tasks left, write the index of shards, and account for every video of
    the plan. The same again is harmless: what a stopped merge leaves, the next one does. far_shards: bytes of shards that are
    elsewhere, by name.

    Raises DestinationError while a task still works in there, StoreError for what is no destination of a run.
    """
    try:
        settings: RunSettings | None = settings_of(root)
    except StoreError:
        if not (root / STATE_DIR / PLAN_NAME).exists():
            raise
        settings = None  # its tasks were stopped before any of them began to work

    def place(part: Part | None) -> Destination:
        if settings is not None and settings.frames:
            return PackedDestination(root, settings.frames, part, far_shards)
        return Destination(root, part)

    whole = place(None)
    with whole.lock(merging=True):
        parts = parts_in(root, whole.shared)
        for part in parts:
            one = place(part)
            refuse_links(one.state_dir)
            if one.partials.is_dir():
                one.recover()
                one.finish()
        if settings is not None:
            write_rows(whole.manifest, None, read_manifest(root), fence=whole.fence)
        found = account(root, parts)
        record(root, found)
        for part in parts:
            state_dir = whole.shared / part.state_dir_name
            (state_dir / PART_PLAN_NAME).unlink(missing_ok=True)  # first: without it nobody asks for its end
            place(part).manifest.unlink(missing_ok=True)
            shutil.rmtree(state_dir, ignore_errors=True)
        for refused in whole.shared.glob("part-*"):
            shutil.rmtree(refused, ignore_errors=True)
        put_plan_away(root, found)
        whole.recover()
        whole.finish()
    ok = failed = 0
    for row in read_manifest(root):
        ok, failed = ok + row.ok, failed + (not row.ok)
    return Merged(len(parts), ok, failed, found.count, found.unended, dict(sorted(found.missing.items())))
