"""The plan of an array run: which partition makes which video. It is written once, and each task records its progress.

DST/.vidprep/plan.parquet                    every video and its partition; the settings of all partitions
DST/.vidprep/part-00003-of-00064/plan.json   what partition 3 is about to do, and by which plan
DST/.vidprep/part-00003-of-00064/end.json    partition 3 did all of it
DST/.vidprep/splits-RULE.parquet             the split of each video, as the first task drew them (--split-by)
DST/.vidprep/merged-plan.parquet             the plan of a run that `vidprep merge` found incomplete

The first task writes the plan before any task works. So the partition of a video never depends on the sources that
exist when a task starts, and all partitions have the same settings. A task that runs again after a merge resumes the
incomplete plan; one with another number of partitions begins a new plan.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from vidprep.formats.errors import DestinationError
from vidprep.formats.manifest.table import rows_of
from vidprep.formats.storage.local import sha256_of
from vidprep.formats.storage.untrusted import (
    arrow_file,
    open_parquet,
    parse_json,
    read_json,
    seal_footer,
    whole_between,
)
from vidprep.transcode.destination.destination import (
    MERGED_NAME,
    MERGED_PLAN_NAME,
    PART_END_NAME,
    PART_PLAN_NAME,
    PLAN_NAME as PLAN_NAME,
    Destination,
    split_names,
)
from vidprep.transcode.destination.partition import (
    MAX_PARTITIONS,
    Partition as Partition,
    assign_partitions,
    parse_partition as parse_partition,
)
from vidprep.transcode.destination.run_file import RUN_BYTES_MAX, differences
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.outputs import STATE_DIR
from vidprep.transcode.sources.unit import SourceList, Unit

ABOUT_KEY = b"vidprep.array_plan"


class PlannedUnit(NamedTuple):
    """Columns of a plan."""

    id: str
    part: int
    source_size_bytes: int | None
    source_mtime_ns: int | None
    start_seconds: float | None
    end_seconds: float | None
    start_frame: int | None
    end_frame: int | None
    video_stream: int | None


State = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """Options by which the run selects its sources.

    Attributes:
        source: The source folder, table or URL
        include: Patterns of names to take
        exclude: Patterns of names to skip
        limit: Maximum number of videos
    """

    source: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    limit: int | None = None

    @property
    def narrowing(self) -> tuple[tuple[str, ...], tuple[str, ...], int | None] | None:
        """Return the options that leave sources out; None if there are none."""
        options = self.include, self.exclude, self.limit
        return options if any(options) else None


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """Plan of an array run.

    Attributes:
        selection: Options by which sources were selected
        parts: Number of the partition of each video, by id
        states: Size, modification time and cut of each source when the plan was made, by id
        digest: Digest of the whole plan
    """

    count: int
    settings: dict[str, Any]
    settings_digest: str
    selection: Selection
    parts: dict[str, int]
    states: dict[str, State]
    digest: str

    def ids_of(self, index: int) -> list[str]:
        return [id_ for id_, part in self.parts.items() if part == index]


@dataclass(frozen=True, slots=True)
class TaskShare:
    """The work of one task.

    Attributes:
        absent: Planned videos whose source no longer exists
        unplanned: Sources that the plan lacks
    """

    sources: SourceList
    plan_digest: str
    absent: tuple[str, ...]
    unplanned: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """Record of a finished partition.

    Attributes:
        absent: Planned videos whose source no longer existed
        unplanned: Sources that the plan lacked
    """

    plan_digest: str
    units: int
    absent: tuple[str, ...]
    unplanned: tuple[str, ...]


def preview_part(place: Destination, sources: SourceList, settings: RunSettings, *, overwrite: bool) -> SourceList:
    """Return the share of this partition without writing anything. Raises DestinationError like `begin_part`."""
    assert place.part is not None
    if place.fetch_shared(PLAN_NAME) is not None:
        return _share(sources, place.part, _plan_in_force(place, place.part, settings).parts)
    merged = _incomplete_plan(place, place.part, settings, overwrite=overwrite)
    if merged is not None:
        return _share(sources, place.part, read_array_plan(merged).parts)
    place.check_settings(settings, overwrite=overwrite)
    return _share(
        sources, place.part, {unit.id: part for unit, part in assign_partitions(sources.units, place.part.count)}
    )


def begin_part(
    place: Destination, sources: SourceList, settings: RunSettings, selection: Selection, *, overwrite: bool
) -> TaskShare:
    """Return the share of this partition from the plan. The first task makes the plan. Call it while the partition's lease
    is held.

    Raises:
        DestinationError: Other partitions have other settings, or the plan cannot be read.
    """
    part = place.part
    assert part is not None
    if place.fetch_shared(PLAN_NAME) is None:
        merged = _incomplete_plan(place, part, settings, overwrite=overwrite)
        if merged is not None:
            data = merged.read_bytes()
        else:
            place.check_settings(settings, overwrite=overwrite)
            _check_not_narrower(place, selection)
            data = _write_plan(part.count, settings, selection, sources.units)
        place.create_shared(PLAN_NAME, data)
    plan = _plan_in_force(place, part, settings)
    mine = _share(sources, part, plan.parts)
    _check_same_sources(place, plan, mine.units, selection)
    if sources.units and not any(unit.id in plan.parts for unit in sources.units):
        raise DestinationError(
            f"an array run was begun here with the sources of {plan.selection.source}, none of which is in {selection.source}; give all "
            f"its tasks the same sources, or let them end and `vidprep merge {place.shown}` first",
            path=place.shown,
        )
    ids, ids_here = plan.ids_of(part.index), {unit.id for unit in mine.units}
    place.storage.remove(f"{place.own}/{PART_END_NAME}")
    own = hashlib.sha256("\n".join(ids).encode()).hexdigest()
    content = {"plan": plan.digest, "source": selection.source, "units": len(ids), "digest": own}
    place.write_own(PART_PLAN_NAME, json.dumps(content).encode())
    return TaskShare(
        mine,
        plan.digest,
        tuple(id_ for id_ in ids if id_ not in ids_here),
        tuple(unit.id for unit in sources.units if unit.id not in plan.parts),
    )


def end_part(place: Destination, share: TaskShare) -> None:
    """Record that a partition is finished, after its rows are in its manifest."""
    content = {
        "plan": share.plan_digest,
        "units": len(share.sources.units),
        "absent": share.absent,
        "unplanned": share.unplanned,
    }
    place.write_own(PART_END_NAME, json.dumps(content).encode())


def forget_plan(place: Destination, selection: Selection) -> None:
    """Delete the plan after a whole run, which did the unfinished work of all partitions, unless it was given fewer
    sources.
    """
    names = (PLAN_NAME, MERGED_PLAN_NAME)
    if selection.narrowing is not None:
        for path in filter(None, map(place.fetch_shared, names)):
            if read_array_plan(path).selection.narrowing != selection.narrowing:
                return
    place.storage.remove(*(f"{STATE_DIR}/{name}" for name in (*names, MERGED_NAME, *split_names(place.storage))))


def _incomplete_plan(place: Destination, part: Partition, settings: RunSettings, *, overwrite: bool) -> Path | None:
    """Return the unfinished plan left by a merge, if this task belongs to it."""
    path = None if overwrite else place.fetch_shared(MERGED_PLAN_NAME)
    if path is None:
        return None
    plan = read_array_plan(path)
    return path if plan.count == part.count and not differences(plan.settings, settings) else None


def _check_not_narrower(place: Destination, selection: Selection) -> None:
    """Raise DestinationError if a new plan would replace an incomplete one with a narrower selection."""
    path = place.fetch_shared(MERGED_PLAN_NAME)
    if path is None or selection.narrowing is None:
        return
    before = read_array_plan(path)
    if before.selection.narrowing != selection.narrowing:
        raise DestinationError(
            f"an array run of {before.count} partitions is incomplete here, and --include, --exclude or --limit would leave out some of"
            " its videos; run its partitions that did not finish, or an array of all videos",
            path=place.shown,
        )


def _plan_in_force(place: Destination, part: Partition, settings: RunSettings) -> ArrayPlan:
    path = place.fetch_shared(PLAN_NAME)
    if path is None:
        raise DestinationError("could not be written: start this task again", path=place.shared / PLAN_NAME)
    plan = read_array_plan(path)
    first = f"let its tasks end and `vidprep merge {place.shown}` first"
    if plan.count != part.count:
        raise DestinationError(f"is running for an array run of {plan.count} partitions; {first}", path=place.shown)
    if difference := "; ".join(differences(plan.settings, settings)):
        raise DestinationError(
            f"an array run was started here with different settings: {difference}. Give all its tasks the same, or {first}",
            path=place.shown,
        )
    return plan


def _check_same_sources(place: Destination, plan: ArrayPlan, units: Sequence[Unit], selection: Selection) -> None:
    """Refuse other sources; the same files under another mount path are accepted."""
    if selection.source == plan.selection.source:
        return
    others = [unit.id for unit in units if state_of(unit) != plan.states[unit.id]]
    if others:
        raise DestinationError(
            f"an array run was begun here with the sources of {plan.selection.source}, and {len(others)} of the {len(units)} videos of "
            f"this part are others in {selection.source}, such as {others[0]}; give all its tasks the same sources, or let them end and "
            f"`vidprep merge {place.shown}` first",
            path=place.shown,
        )


def state_of(unit: Unit) -> State:
    return *unit.state, *astuple(unit.cut)


def _share(sources: SourceList, part: Partition, parts: Mapping[str, int]) -> SourceList:
    """Return the sources of a partition. Sources that cannot be started at all go to the first one."""
    units = tuple(unit for unit in sources.units if parts.get(unit.id) == part.index)
    problems = sources.problems if part.index == 0 else ()
    return replace(sources, units=units, problems=problems, listing=sources.units)


def _write_plan(count: int, settings: RunSettings, selection: Selection, units: tuple[Unit, ...]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = sorted(assign_partitions(units, count), key=lambda pair: pair[0].id)
    states = {
        "source_size_bytes": pa.array([unit.size_bytes for unit, _ in rows], pa.int64()),
        "source_mtime_ns": pa.array([unit.mtime_ns for unit, _ in rows], pa.int64()),
        "start_seconds": pa.array([unit.cut.start_seconds for unit, _ in rows], pa.float64()),
        "end_seconds": pa.array([unit.cut.end_seconds for unit, _ in rows], pa.float64()),
        "start_frame": pa.array([unit.cut.start_frame for unit, _ in rows], pa.int64()),
        "end_frame": pa.array([unit.cut.end_frame for unit, _ in rows], pa.int64()),
        "video_stream": pa.array([unit.cut.video_stream for unit, _ in rows], pa.int64()),
    }
    header = {
        "count": count,
        "settings": settings.as_dict(),
        "settings_digest": settings.digest,
        "selection": {name: getattr(selection, name) for name in Selection.__slots__},
    }
    table = pa.table(
        {
            "id": pa.array([unit.id for unit, _ in rows], pa.string()),
            "part": pa.array([index for _, index in rows], pa.int32()),
        }
        | states
    ).replace_schema_metadata({ABOUT_KEY: json.dumps(header, sort_keys=True).encode()})
    file = io.BytesIO()
    pq.write_table(table, file, compression="snappy", use_dictionary=False, write_page_checksum=True)
    seal_footer(file)
    return file.getvalue()


def read_array_plan(path: Path) -> ArrayPlan:
    """Read a plan. Raises DestinationError if it is invalid."""
    import pyarrow as pa

    try:
        with arrow_file(path) as source, open_parquet(source, path) as file:
            header = parse_json((file.schema_arrow.metadata or {})[ABOUT_KEY])
            table = file.read()  # version 0.1 had no cuts by frames
        if lacking := {*PlannedUnit._fields[:4]} - {*table.column_names}:
            raise KeyError(min(lacking))
        ids, parts, states = [], [], dict[str, State]()
        for unit in rows_of(table, PlannedUnit):
            ids.append(unit.id)
            parts.append(unit.part)
            states[unit.id] = unit[2:]
        count = whole_between("number of partitions", header["count"], 1, MAX_PARTITIONS)
        numbers = [whole_between("partition", part, 0, count - 1) for part in parts]
        if len({*ids}) < len(ids) or not all(type(id_) is str for id_ in ids):
            raise ValueError("its ids are not unique strings")
        chosen = header["selection"]
        selection = Selection(
            str(chosen["source"]), texts(chosen["include"]), texts(chosen["exclude"]), chosen["limit"]
        )
        RunSettings.from_dict(header["settings"])
        return ArrayPlan(
            count,
            header["settings"],
            str(header["settings_digest"]),
            selection,
            dict(zip(ids, numbers, strict=True)),
            states,
            sha256_of(path),
        )
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        why = f"cannot be read ({error}); remove it, and run all tasks of the array again"
        raise DestinationError(why, path=path) from error


def read_end(path: Path) -> PartitionEnd | None:
    """Read what a finished partition recorded; None if it is missing or invalid."""
    try:
        content = read_json(path, RUN_BYTES_MAX)
        return PartitionEnd(
            str(content["plan"]), int(content["units"]), texts(content["absent"]), texts(content["unplanned"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def texts(values: Iterable[Any]) -> tuple[str, ...]:
    """Return a tuple of strings. Raises ValueError for other values."""
    words = tuple(values)
    if not all(type(value) is str for value in words):
        raise ValueError("a list of texts was expected")
    return words
