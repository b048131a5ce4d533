"""`vidprep merge`: the parts of an array run become one destination, as if one machine had made it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.table import manifest_paths, manifest_rows, read_table
from vidprep.formats.storage.no_links import refuse_links
from vidprep.transcode.destination.array_status import array_status as array_status
from vidprep.transcode.destination.array_status import merged_json
from vidprep.transcode.destination.destination import (
    MERGED_NAME,
    MERGED_PLAN_NAME,
    PART_END_NAME,
    PART_PLAN_NAME,
    PLAN_NAME,
    Destination,
)
from vidprep.transcode.destination.opening import open_destination, open_finished
from vidprep.transcode.destination.partition import Partition
from vidprep.transcode.destination.partition import partitions_in as partitions_in
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.sources.outputs import STATE_DIR

if TYPE_CHECKING:
    from vidprep.formats.manifest.labels import Labels


@dataclass(frozen=True, slots=True)
class Merged:
    """What `merge` joined.

    Attributes:
        parts: Partitions that this call joined.
        ok: Finished videos in them.
        failed: Failed videos in them.
        count: Partitions of the array.
        unended: Numbers of the partitions whose task did not finish.
        missing: Id of each video without a valid row, and the reason.
        changed: Ids of the videos whose source changed after the array was planned.
    """

    parts: int
    ok: int
    failed: int
    count: int
    unended: tuple[int, ...]
    missing: Mapping[str, str]
    changed: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        return not (self.failed or self.unended or self.missing)


def merge(where: Path | str) -> Merged:
    """Join the manifests of all parts, mend what killed tasks left, write the index of shards, and account for every video of
    the plan. The same again is harmless: what a stopped merge leaves, the next one does.

    Raises DestinationError while a task still works in there, StoreError for what is no destination of a run.
    """
    whole = _to_be_merged(where)
    with whole.lock(merging=True):
        parts = partitions_in(whole.root, whole.shared)
        given = []
        for part in parts:
            one = whole.of_part(part)
            refuse_links(one.state_dir)
            if one.state_dir.is_dir():
                one.partials.mkdir(exist_ok=True)
                one.outputs.recover()
                one.merge_journal()
            given += [one.labels.given()]
        if parts and manifest_paths(whole.root):
            _join(whole, [labels for labels in given if labels is not None])
        for name in (PLAN_NAME, MERGED_PLAN_NAME, MERGED_NAME):
            whole.shared_file(name)
        found = array_status(whole.root, parts)
        if (merged := merged_json(whole.root, found)) is not None:
            whole.write_own(MERGED_NAME, merged)
        _forget_parts(whole, parts)
        _put_plan_away(whole, is_done=not found.unended)
        whole.outputs.recover()
        whole.finish()
        ok = failed = 0
        for row in manifest_rows(whole.root):
            ok, failed = ok + row.ok, failed + (not row.ok)
    return Merged(
        len(parts), ok, failed, found.count, found.unended, dict(sorted(found.missing.items())), found.changed
    )


def _join(whole: Destination, given: list[Labels]) -> None:
    """All rows that name what is there in one manifest, with the labels that the parts give."""
    import pyarrow as pa

    from vidprep.formats.manifest.labels import joined

    rows = read_table(whole.root)
    assert rows is not None
    there = {row.id for row in manifest_rows(whole.root) if whole.outputs.has(row)}
    rows = rows.filter(pa.array([id_ in there for id_ in rows["id"].to_pylist()], pa.bool_()))
    whole.write_manifest(rows, (), joined(given) if given else None)


def _forget_parts(whole: Destination, parts: Iterable[Partition]) -> None:
    """All of them are joined. Before anything else their plans go: without one nobody asks for the end of a part."""
    storage = whole.storage
    folders = [f"{STATE_DIR}/{name}" for name in storage.folders(STATE_DIR) if name.startswith("part-")]
    storage.remove(*(f"{folder}/{name}" for name in (PART_PLAN_NAME, PART_END_NAME) for folder in folders))
    storage.remove(*(part.manifest_name for part in parts))
    for folder in folders:
        if storage.is_remote:
            storage.remove(*(f"{folder}/{name}" for name in storage.list(lambda _name: True, folder)))
        shutil.rmtree(whole.root / folder, ignore_errors=True)


def _put_plan_away(whole: Destination, *, is_done: bool) -> None:
    """What is left of the plan of an array run is for tasks that did not finish."""
    plan = whole.shared_file(PLAN_NAME)
    if not is_done and plan is not None:
        whole.write_own(MERGED_PLAN_NAME, plan.read_bytes())
    gone = (MERGED_PLAN_NAME, PLAN_NAME) if is_done else (PLAN_NAME,)
    whole.storage.remove(*(f"{STATE_DIR}/{name}" for name in gone))


def _to_be_merged(where: Path | str) -> Destination:
    """Also one whose tasks were stopped before any of them began to work, which has a plan and no settings yet."""
    try:
        return open_finished(where)
    except StoreError:
        place = open_destination(where, VideoOutput())
        has_plan = place.root.is_dir() and place.shared_file(PLAN_NAME) is not None
        if not has_plan or manifest_paths(place.root) or (place.shared / "run.json").exists():
            raise
        return place
