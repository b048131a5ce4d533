"""`merge`: join the partitions of an array run into one destination, as if one machine had made it; and report its status.

The status compares the plan of the array run with the rows: which partitions did not finish, which videos are missing,
and why.

DST/.vidprep/merged.json   {"plan": digest, "ended": [0, 2], "missing": {id: why}}: finished partitions of the plan that were
                           joined, and videos that running the same tasks again would not make
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vidprep.formats.errors import DestinationError, SettingsError, StoreError
from vidprep.formats.manifest.table import add_columns, manifest_paths, manifest_rows, read_rows, read_table, rows_of
from vidprep.formats.storage.local import refuse_links
from vidprep.formats.storage.untrusted import parse_json, read_regular, whole_between
from vidprep.transcode.destination.array_plan import ArrayPlan, PartitionEnd, State, read_array_plan, read_end
from vidprep.transcode.destination.destination import (
    MERGED_NAME,
    MERGED_PLAN_NAME,
    PART_END_NAME,
    PART_PLAN_NAME,
    PLAN_NAME,
    Destination,
    split_names,
)
from vidprep.transcode.destination.opening import open_destination, open_finished
from vidprep.transcode.destination.partition import MAX_PARTITIONS, Partition, partitions_in as partitions_in
from vidprep.transcode.destination.run_file import read_run
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.outputs import STATE_DIR

if TYPE_CHECKING:
    from vidprep.formats.manifest.labels import Labels


UNPLANNED = "no row: not in the plan of the array run; it was found among the sources later"
ABSENT = "no row: in the plan of the array run, but no longer among the sources"


@dataclass(frozen=True, slots=True)
class MergedParts:
    """Content of merged.json.

    Attributes:
        ended: Numbers of the finished partitions that were joined
        missing: Id of each missing video, and the reason
    """

    plan_digest: str = ""
    ended: frozenset[int] = frozenset()
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArrayStatus:
    """Status of an array run.

    Attributes:
        count: Number of partitions; 0 if no array run is open
        unended: Partitions that did not finish
        missing: Id of each missing video, and the reason
        changed: Videos whose source differs from that in the plan
        kept: Content of merged.json for the next merge
    """

    count: int
    unended: tuple[int, ...]
    missing: dict[str, str]
    changed: tuple[str, ...]
    kept: MergedParts


def array_status(root: Path, parts: Sequence[Partition] | None = None) -> ArrayStatus:
    """Compare the plan with the rows of all manifests of a destination.

    Args:
        root: The destination.
        parts: Its partitions; None searches for them.

    Raises:
        DestinationError: The plan cannot be read.
        ManifestError: A manifest cannot be read.
    """
    state_dir = root / STATE_DIR
    parts = partitions_in(root, state_dir) if parts is None else parts
    plan, before = _plan_of(state_dir), _read_merged(state_dir / MERGED_NAME)
    digests = _digests(plan, state_dir)
    missing = dict(_find_other_settings(root, digests))
    rows = {row.id: row for row in read_rows(root, _UnitRow)} if plan or before.missing else {}
    is_newer = plan is not None and plan.digest != before.plan_digest  # made from the sources of that time
    lasting = {id_: why for id_, why in before.missing.items() if id_ not in rows and not is_newer}
    if plan is None:
        count = max((part.count for part in parts), default=0)
        return ArrayStatus(count, tuple(range(count)), missing | lasting, (), MergedParts("", frozenset(), lasting))
    ends, begun = _ends_of(plan, [part for part in parts if part.count == plan.count], state_dir)
    ended = (frozenset() if is_newer else before.ended) - begun | ends.keys()
    lasting |= _find_left_out(ends, plan, rows)
    changed, lost = _not_done(plan, rows, ended, lasting.keys() | missing.keys())
    missing |= lost
    ended -= {plan.parts[id_] for id_ in missing if id_ in plan.parts}
    unended = tuple(sorted(set(range(plan.count)) - ended))
    kept = MergedParts(plan.digest, frozenset(ended), lasting)
    return ArrayStatus(plan.count, unended, missing | lasting, tuple(changed), kept)


class Fate(Enum):
    """Outcome of a planned video, with the reason if it is missing."""

    DONE = "its row is of the planned source"
    CHANGED = "its row is of a source that changed after the plan"
    LOST = "no row: partition {index} of {count} lost it"
    UNFINISHED = "no row: partition {index} of {count} did not finish"
    STALE = "its source has changed since, and partition {index} of {count} did not finish"


def fate(made: State | None, planned: State, *, has_ended: bool) -> Fate:
    """Return what became of a planned video.

    Args:
        made: State of the source of its row; None without a row.
        planned: State of the source in the plan.
        has_ended: Whether its partition ended.
    """
    if made is None:
        return Fate.LOST if has_ended else Fate.UNFINISHED
    if made == planned:
        return Fate.DONE
    return Fate.CHANGED if has_ended else Fate.STALE


def _not_done(
    plan: ArrayPlan, rows: Mapping[str, _UnitRow], ended: Container[int], apart: Container[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the planned videos whose source changed, and why others are missing; not those of `apart`."""
    changed, lost = [], {}
    for id_, index in plan.parts.items():
        made = rows[id_].state if id_ in rows else None
        became = Fate.DONE if id_ in apart else fate(made, plan.states[id_], has_ended=index in ended)
        if became is Fate.CHANGED:
            changed.append(id_)
        elif became is not Fate.DONE:
            lost[id_] = became.value.format(index=index, count=plan.count)
    return changed, lost


def _ends_of(plan: ArrayPlan, own: Sequence[Partition], state_dir: Path) -> tuple[dict[int, PartitionEnd], set[int]]:
    """Return how the partitions of a plan that ended did so, and which ones have begun, by number."""
    ends_read = {part.index: read_end(state_dir / part.state_dir_name / PART_END_NAME) for part in own}
    sizes = Counter(plan.parts.values())
    ends = {
        index: end
        for index, end in ends_read.items()
        if end and end.plan_digest == plan.digest and end.units + len(end.absent) == sizes[index]
    }
    return ends, {part.index for part in own if (state_dir / part.state_dir_name / PART_PLAN_NAME).exists()}


def _find_left_out(ends: Mapping[int, PartitionEnd], plan: ArrayPlan, rows: Container[str]) -> dict[str, str]:
    """Return the videos without a row that partitions named as absent or as not planned, with the reason."""
    left_out: dict[str, str] = {}
    for end in ends.values():
        left_out |= {id_: ABSENT for id_ in end.absent if id_ not in rows and id_ in plan.parts}
        left_out |= {id_: UNPLANNED for id_ in end.unplanned if id_ not in rows}
    return left_out


def format_merged(root: Path, found: ArrayStatus) -> bytes | None:
    """Return merged.json, from which the next merge knows the partitions that were joined; None if there is nothing to
    store.
    """
    if not found.count and not (root / STATE_DIR / MERGED_NAME).exists():
        return None
    content = {"plan": found.kept.plan_digest, "ended": sorted(found.kept.ended), "missing": found.kept.missing}
    return json.dumps(content).encode()


def _plan_of(state_dir: Path) -> ArrayPlan | None:
    for name in (PLAN_NAME, MERGED_PLAN_NAME):
        if (state_dir / name).exists():
            return read_array_plan(state_dir / name)
    return None


def _read_merged(path: Path) -> MergedParts:
    if not path.exists():
        return MergedParts()
    try:
        content = parse_json(read_regular(path))
        missing = {str(id_): str(why) for id_, why in content["missing"].items()}
        ended = frozenset(whole_between("partition", index, 0, MAX_PARTITIONS) for index in content["ended"])
        return MergedParts(str(content["plan"]), ended, missing)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"cannot be read ({error}); remove it: the next merge then does not know what was joined before"
        raise DestinationError(why, path=path) from error


def _find_other_settings(root: Path, digests: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield units with other settings, and the reason; none if no settings are known."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if digests and (table := read_table(root, list(_UnitSettings._fields))) is not None:
        table = add_columns(table, _UnitSettings._fields)
        is_known = pc.is_in(pc.fill_null(table["settings_digest"], ""), pa.array(digests, pa.string()))
        for id_, digest in rows_of(table.filter(pc.invert(is_known)), _UnitSettings):
            yield (
                id_,
                f"made with different settings than this destination (their digest is {digest}, not {digests[0]})",
            )


class _UnitRow(NamedTuple):
    """Columns of a row with its settings and source."""

    id: str
    settings_digest: str | None
    source_size_bytes: int | None
    source_mtime_ns: int | None
    start_seconds: float | None
    end_seconds: float | None
    start_frame: int | None
    end_frame: int | None
    video_stream: int | None

    @property
    def state(self) -> tuple[object, ...]:
        """State of the source, and the cut, as in a plan."""
        return self[2:]


class _UnitSettings(NamedTuple):
    """Columns of a row with its settings."""

    id: str
    settings_digest: str | None


def _digests(plan: ArrayPlan | None, state_dir: Path) -> tuple[str, ...]:
    """Return the digests of videos that were made with the settings of a plan, or of the last run; theirs first."""
    run: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        run = {"settings": plan.settings, "digest": plan.settings_digest} if plan else read_run(state_dir)
    if not isinstance(digest := run.get("digest"), str):
        return ()
    try:
        return digest, *map(str, run.get("digests") or RunSettings.from_dict(run["settings"]).digests)
    except (SettingsError, TypeError):
        return (digest,)


@dataclass(frozen=True, slots=True)
class Merged:
    """Result of `merge`.

    Attributes:
        parts: Partitions that this call joined
        ok: Finished videos in the merged manifest
        failed: Failed videos in the merged manifest
        count: Partitions of the array
        unended: Numbers of the partitions whose task did not finish
        missing: Id of each video without a valid row, and the reason
        changed: Ids of the videos whose source changed after the array was planned
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
    """Join the manifests of all partitions, repair what killed tasks left, write the index of shards, and report the
    status of every planned video.

    A repeated call is harmless, and completes a merge that was stopped.

    Raises:
        DestinationError: A task is still running, or the destination cannot be written.
        ManifestError: A manifest cannot be read.
        StoreError: No run made the destination.
    """
    whole = _open_unmerged(where)
    with whole.lock(merging=True):
        parts = partitions_in(whole.root, whole.shared)
        given = []
        for part in parts:
            one = whole.open_part(part)
            refuse_links(one.state_dir)
            if one.state_dir.is_dir():
                one.partials.mkdir(exist_ok=True)
                one.outputs.recover()
                one.merge_journal()
            given += [one.labels.read_given()]
        if parts and manifest_paths(whole.root):
            _join(whole, [labels for labels in given if labels is not None])
        for name in (PLAN_NAME, MERGED_PLAN_NAME, MERGED_NAME):
            whole.fetch_shared(name)
        status = array_status(whole.root, parts)
        if (merged := format_merged(whole.root, status)) is not None:
            whole.write_own(MERGED_NAME, merged)
        _forget_parts(whole, parts)
        _keep_unfinished_plan(whole, is_done=not status.unended)
        whole.outputs.recover()
        whole.finish()
        ok = failed = 0
        for row in manifest_rows(whole.root):
            ok, failed = ok + row.ok, failed + (not row.ok)
    return Merged(
        len(parts), ok, failed, status.count, status.unended, dict(sorted(status.missing.items())), status.changed
    )


def _join(whole: Destination, given: list[Labels]) -> None:
    """Write one manifest with all rows whose output exists, and the labels of the partitions."""
    import pyarrow as pa

    from vidprep.formats.manifest.labels import concatenate

    rows = read_table(whole.root)
    assert rows is not None
    there = {row.id for row in manifest_rows(whole.root) if whole.outputs.has(row)}
    rows = rows.filter(pa.array([id_ in there for id_ in rows["id"].to_pylist()], pa.bool_()))
    whole.write_manifest(rows, (), concatenate(given) if given else None)
    whole.outputs.write_gops(())


def _forget_parts(whole: Destination, parts: Iterable[Partition]) -> None:
    """Delete the state of joined partitions. Delete plans first: a partition without a plan is not reported as unfinished."""
    storage = whole.storage
    folders = [f"{STATE_DIR}/{name}" for name in storage.folders(STATE_DIR) if name.startswith("part-")]
    storage.remove(*(f"{folder}/{name}" for name in (PART_PLAN_NAME, PART_END_NAME) for folder in folders))
    storage.remove(*(part.gops_name for part in parts))
    storage.remove(*(part.manifest_name for part in parts))
    for folder in folders:
        if storage.is_remote:
            storage.remove(*(f"{folder}/{name}" for name in storage.list(lambda _name: True, folder)))
        shutil.rmtree(whole.root / folder, ignore_errors=True)


def _keep_unfinished_plan(whole: Destination, *, is_done: bool) -> None:
    """Keep the plan only while some tasks are unfinished."""
    plan = whole.fetch_shared(PLAN_NAME)
    if not is_done and plan is not None:
        whole.write_own(MERGED_PLAN_NAME, plan.read_bytes())
    gone = (MERGED_PLAN_NAME, PLAN_NAME, *split_names(whole.storage)) if is_done else (PLAN_NAME,)
    whole.storage.remove(*(f"{STATE_DIR}/{name}" for name in gone))


def _open_unmerged(where: Path | str) -> Destination:
    """Open a destination to merge. It may have a plan but no settings, if all tasks were stopped before they began."""
    try:
        return open_finished(where)
    except StoreError:
        place = open_destination(where, VideoOutput())
        has_plan = place.root.is_dir() and place.fetch_shared(PLAN_NAME) is not None
        if not has_plan or manifest_paths(place.root) or (place.shared / "run.json").exists():
            raise
        return place
