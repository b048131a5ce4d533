"""`vidprep label`: labels of a finished destination are added, changed and removed, without its sources and without encoding."""
# ruff: noqa: PTH100, PTH109, PTH118, PTH120

from __future__ import annotations

import os
from bisect import bisect
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from vidprep.formats.errors import DestinationError, SourceError
from vidprep.formats.manifest.labels import Labels, concatenate, differing, fit
from vidprep.formats.manifest.table import label_columns, read_rows
from vidprep.formats.model import Cut
from vidprep.formats.moments import LEAST_KNOWN, Tolerance, exact_seconds
from vidprep.formats.storage.base import is_url
from vidprep.formats.storage.untrusted import ArrowStream
from vidprep.transcode.destination.destination import Destination
from vidprep.transcode.sources.table_rows import CutColumns, choose_labels, cut_columns, fault_lines
from vidprep.transcode.sources.tables import KEYS, SourceTable, faults_of_columns, is_table, one_line, read_source_table

SHOWN = 5
MICROSECOND = 1e-6


class _CutRow(NamedTuple):
    """Columns of a row with its source and cut."""

    id: str
    source: str
    tolerance_seconds: float | None
    start_seconds: float | None
    end_seconds: float | None
    start_frame: int | None
    end_frame: int | None
    video_stream: int | None


@dataclass(frozen=True, slots=True)
class _KnownCut:
    """A unit of a destination.

    Attributes:
        tolerance: Tolerance of the times of its cut
    """

    id: str
    cut: Cut
    tolerance: Tolerance

    @property
    def begins(self) -> float:
        return self.cut.start_seconds or 0.0

    def means(self, cut: Cut) -> bool:
        """Return whether its frames are those of a cut."""
        own, near = self.cut, self.tolerance
        same_stream = own.video_stream == cut.video_stream
        return (
            same_stream
            and (own.start_frame or 0, own.end_frame) == (cut.start_frame or 0, cut.end_frame)
            and (
                near.means_same(own.start_seconds or 0.0, cut.start_seconds or 0.0)
                and near.means_same(own.end_seconds, cut.end_seconds)
            )
        )


@dataclass(frozen=True, slots=True)
class Relabelled:
    """Result of `label`.

    Attributes:
        videos: Ids of the videos whose labels changed
        added: Names of new columns
        changed: Names of columns in which values changed
        removed: Names of columns that were removed
        skipped: A message for each row of the table that was not used
        examples: (id, labels before, labels after) of a few videos
        notes: A message for each column of numbers that one cell turns to text
    """

    videos: tuple[str, ...]
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    skipped: tuple[str, ...]
    examples: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...]
    notes: tuple[str, ...] = ()


def relabel(
    place: Destination,
    table: Path | ArrowStream | None,
    *,
    labels: Sequence[str] | None,
    remove: Sequence[str],
    skips_bad_rows: bool,
    dry_run: bool,
) -> Relabelled:
    """Give videos the labels that a table has for them, by `id`, or by `path` (and `start` and `end`, if it has these
    columns).

    Columns and videos that are not in the table stay unchanged, and so does a value whose cell is empty. Call it
    while the destination's lease is held, except for a dry run.

    Args:
        place: The destination.
        table: The table; None if labels are only removed.
        labels: Columns to use; None means all.
        remove: Columns to remove.
        skips_bad_rows: Skip invalid rows instead of raising.
        dry_run: Only return what would change.

    Raises:
        SourceError: The table is invalid.
        ManifestError: The manifest cannot be read.
        DestinationError: The manifest cannot be written.
    """
    kept = label_columns(place.root)
    new, skipped, notes = kept, list[str](), tuple[str, ...]()
    if table is not None:
        new, skipped, notes = _read_given(kept, table, labels, place.root, skips_bad_rows=skips_bad_rows)
    if missing := [name for name in remove if name not in kept.columns]:
        there = ", ".join(map(one_line, kept.columns)) or "none"
        raise SourceError(f"--remove: there is no label {one_line(missing[0])}; labels: {there}", path=place.shown)
    columns = {name: array for name, array in new.columns.items() if name not in remove}
    new = replace(new, columns=columns)
    videos = differing(kept, new)
    if not dry_run:
        if videos or kept.columns.keys() != columns.keys():
            place.labels.give(new)
        try:
            place.finish()  # completes an earlier call that was stopped, too
        except (DestinationError, OSError):
            place.labels.give(None)  # the next run must not apply labels whose writing failed
            raise
    return Relabelled(
        tuple(videos),
        tuple(name for name in columns if name not in kept.columns),
        tuple(
            name
            for name in columns
            if name in kept.columns and differing(kept.select_columns([name]), new.select_columns([name]))
        ),
        tuple(remove),
        tuple(skipped),
        tuple((id_, kept.values_of(id_), new.values_of(id_)) for id_ in videos[:SHOWN]),
        notes,
    )


def _read_given(
    kept: Labels, table: Path | ArrowStream, labels: Sequence[str] | None, root: Path, *, skips_bad_rows: bool
) -> tuple[Labels, list[str], tuple[str, ...]]:
    """Return the labels that a table makes of those of before, the rows that were skipped, and what is noted."""
    source = read_source_table(table, with_faults=True)
    where = "the table" if is_table(table) else str(table)
    places = cut_columns(source.columns, where)
    others = {"", *KEYS, *places.names}
    names = choose_labels([name for name in source.columns if name not in others], labels, where)
    if not names:
        raise SourceError(f"has no labels; columns: {', '.join(map(one_line, source.columns))}", path=where)
    if not source.num_rows:
        raise SourceError("has no rows", path=where)
    if not {"id", "path"} & source.columns.keys():
        raise SourceError(
            f"has no column `id` or `path`; columns: {', '.join(map(one_line, source.columns))}", path=where
        )
    rows, faults = _rows_of_units(source, places, names, where, root)
    skipped = fault_lines(faults, where, skips_bad_rows=skips_bad_rows)
    return _update(kept, source, names, rows, where), skipped, tuple(source.select(names).notes.values())


def _rows_of_units(
    found: SourceTable, places: CutColumns, names: list[str], where: str, root: Path
) -> tuple[dict[str, list[int]], dict[int, str]]:
    """Return the table rows of each unit, and why the remaining rows match none."""
    known = _read_cuts(root)
    ids = {unit.id for units in known.values() for unit in units}
    faults = faults_of_columns(found.select(names))
    base = "" if where == "the table" else os.path.dirname(os.path.abspath(where))
    rows = defaultdict[str, list[int]](list)
    values = [found.values(name) for name in names]
    for number, (path, id_, cells) in enumerate(zip(*map(found.values, KEYS), places.cuts(found), strict=True)):
        if number in faults:
            continue
        try:
            for unit in _units_of_row(path, id_, cells, places, base, known, ids, root):
                other = next((row for row in rows[unit] if any(_differ(c[row], c[number]) for c in values)), None)
                if other is not None:
                    raise ValueError(f"{unit} has other labels in row {other + 1}")
                rows[unit].append(number)
        except ValueError as error:
            faults[number] = str(error)
    return rows, faults


def _suggest(id_: str, ids: Collection[str]) -> str:
    without = id_.rpartition(".")[0]
    return f"; did you mean {without!r}?" if without in ids else ""


def _unit_of_id(id_: str, of_path: Sequence[str], ids: Collection[str]) -> list[str]:
    """Return the unit of an id, none if there is none. Raises ValueError if its path is that of others."""
    if id_ in ids and of_path and id_ not in of_path:
        raise ValueError(f"its id is {id_!r}, and its path is that of {of_path[0]!r}")
    return [id_] if id_ in ids else []


def _read_cuts(root: Path) -> dict[str, list[_KnownCut]]:
    """Return the units of a destination by source, sorted by start."""
    cuts: dict[str, list[_KnownCut]] = defaultdict(list)
    for row in read_rows(root, _CutRow):
        near = LEAST_KNOWN if row.tolerance_seconds is None else Tolerance(exact_seconds(row.tolerance_seconds))
        cut = Cut(row.start_seconds, row.end_seconds, row.start_frame, row.end_frame, row.video_stream)
        cuts[row.source].append(_KnownCut(row.id, cut, near))
    for units in cuts.values():
        units.sort(key=attrgetter("begins"))
    return cuts


def _units_of_row(
    path: Any,
    id_: Any,
    cells: tuple[Any, ...],
    places: CutColumns,
    base: str,
    known: Mapping[str, list[_KnownCut]],
    ids: Collection[str],
    root: Path,
) -> list[str]:
    """Return the ids of the units that a row of a table is about. Raises ValueError if there are none."""
    by_path = path or id_ is None
    cut = places.cut(cells) if places.names and by_path else None
    units = _units_of(path, cut, base, known) if by_path else []
    if id_ is not None:
        units = _unit_of_id(str(id_), units, ids)
    if not units:
        shown = f"{path!r}{f', {cut},' if cut is not None else ''}" if id_ is None else repr(id_)
        raise ValueError(f"{shown} is not a video of {root}{_suggest(str(id_), ids)}")
    return units


def _units_of(path: Any, cut: Cut | None, base: str, known: Mapping[str, list[_KnownCut]]) -> list[str]:
    """Return the ids of the units of a source, or of those with the same frames as `cut`."""
    if not isinstance(path, str) or not path:
        raise ValueError("has neither id nor path")
    source = path if is_url(path) else os.path.abspath(os.path.join(base or os.getcwd(), path))
    units = known.get(source, [])
    if cut is None:
        return [unit.id for unit in units]
    near = max((float(unit.tolerance.seconds) for unit in units), default=0.0) + MICROSECOND
    begins = cut.start_seconds or 0.0
    low, high = (bisect(units, at, key=attrgetter("begins")) for at in (begins - near, begins + near))
    alike = [unit.id for unit in units[low:high] if unit.means(cut)]
    return [unit.id for unit in units[low:high] if unit.cut == cut] or alike


def _differ(one: object, other: object) -> bool:
    return one is not None and other is not None and repr(one) != repr(other)


def _update(kept: Labels, found: SourceTable, names: list[str], rows: Mapping[str, list[int]], where: str) -> Labels:
    columns = dict(kept.columns)
    for name in names:
        try:
            values = found.array(name)
        except ValueError as error:
            raise SourceError(f"{error}; leave it out with --labels, or change it", path=where) from error
        filled = values.is_valid().to_pylist()
        of_units = {id_: next((row for row in several if filled[row]), several[0]) for id_, several in rows.items()}
        taken = {id_: row for id_, row in of_units.items() if filled[row] or name not in kept.columns}
        if not taken:
            continue
        given = Labels(list(taken), {name: values.take(pa.array(taken.values(), pa.int64()))})
        stays = kept.select_columns([name]).select([id_ for id_ in kept.ids if id_ not in taken])
        given = fit(given, stays) if stays.ids else given
        columns[name] = (concatenate([stays, given]) if stays.ids else given).select(kept.ids).columns[name]
    return replace(kept, columns=columns)
