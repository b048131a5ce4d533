"""`vidprep label`: labels of a finished destination are added, changed and removed, without its sources and without encoding."""
# ruff: noqa: PTH100, PTH109, PTH118, PTH120

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from vidprep.formats.errors import SourceError
from vidprep.formats.files.arrow import ArrowStream
from vidprep.formats.files.remote import is_url
from vidprep.formats.manifest.labels import Labels, differing, joined
from vidprep.formats.manifest.table import label_columns, read_table
from vidprep.transcode.destination.folder import Destination
from vidprep.transcode.sources.table_rows import chosen_labels, told_faults
from vidprep.transcode.sources.tables import (
    KEYS,
    SourceTable,
    checked_seconds,
    faults_of_columns,
    is_table,
    one_line,
    read_source_table,
)

SHOWN = 5
Cut = tuple[str, float | None, float | None]


@dataclass(frozen=True, slots=True)
class Relabelled:
    """videos: ids of those whose labels change. added, changed, removed: names of columns. skipped: why rows of the table were. examples:
    of some videos, their labels before and after.
    """

    videos: tuple[str, ...]
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    skipped: tuple[str, ...]
    examples: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...]


def relabel(
    place: Destination, table: Path | ArrowStream | None, *, labels: Sequence[str] | None, remove: Sequence[str],
    skips_bad_rows: bool, dry_run: bool,
) -> Relabelled:  # fmt: skip
    """Give videos the labels that a table has for them, by `id`, or by `path` and, where it has them, `start` and `end`. Columns and
    videos that are not in the table stay as they are, and so does a value where its cell is empty. To be called while the destination
    is held, but for a dry run.

    Raises SourceError, ManifestError, DestinationError.
    """
    kept = label_columns(place.root)
    new, skipped = kept, list[str]()
    if table is not None:
        found = read_source_table(table)
        where = "the table" if is_table(table) else str(table)
        names = chosen_labels([name for name in found.columns if name not in ("", *KEYS)], labels, where)
        if not names:
            raise SourceError(f"has no labels; columns: {', '.join(map(one_line, found.columns))}", path=where)
        rows, faults = _rows_of_units(found, names, where, place.root)
        skipped = told_faults(faults, where, skips_bad_rows=skips_bad_rows)
        new = _updated(kept, found, names, rows, where)
    if missing := [name for name in remove if name not in kept.columns]:
        there = ", ".join(map(one_line, kept.columns)) or "none"
        raise SourceError(f"--remove: there is no label {one_line(missing[0])}; labels: {there}", path=place.shown)
    columns = {name: array for name, array in new.columns.items() if name not in remove}
    new = replace(new, columns=columns, added=new.added & columns.keys())
    videos = differing(kept, new)
    if not dry_run:
        if videos or kept.columns.keys() != columns.keys() or kept.added != new.added:
            place.give_labels(new)
        place.finish()  # also what a call before left, when it was stopped
    return Relabelled(
        tuple(videos), tuple(name for name in columns if name not in kept.columns),
        tuple(name for name in columns if name in kept.columns and differing(kept.chosen([name]), new.chosen([name]))),
        tuple(remove), tuple(skipped), tuple((id_, kept.of(id_), new.of(id_)) for id_ in videos[:SHOWN]),
    )  # fmt: skip


def _rows_of_units(
    found: SourceTable, names: list[str], where: str, root: Path
) -> tuple[dict[str, list[int]], dict[int, str]]:
    """Which rows of the table speak of each unit, and why others speak of none."""
    if not found.num_rows:
        raise SourceError("has no rows", path=where)
    if not {"id", "path"} & found.columns.keys():
        raise SourceError(
            f"has no column `id` or `path`; columns: {', '.join(map(one_line, found.columns))}", path=where
        )
    state = read_table(root, ["id", "source", "start_seconds", "end_seconds"])
    columns = (
        [] if state is None else [state[name].to_pylist() for name in ("id", "source", "start_seconds", "end_seconds")]
    )
    ids, by_source, by_cut = set(columns[0] if columns else ()), defaultdict(list), defaultdict(list)
    for id_, source, start, end in zip(*columns, strict=True):
        by_source[source].append(id_)
        by_cut[source, start, end].append(id_)
    faults = faults_of_columns(SourceTable({name: found.columns[name] for name in names}, found.num_rows))
    base = "" if where == "the table" else os.path.dirname(os.path.abspath(where))
    has_cuts = bool({"start", "end"} & found.columns.keys())
    rows = defaultdict[str, list[int]](list)
    values = [found.values(name) for name in names]
    for number, (path, id_, start, end) in enumerate(zip(*map(found.values, KEYS), strict=True)):
        if number in faults:
            continue
        try:
            units = []
            if path or id_ is None:
                units = _units_of(path, start, end, base, by_cut if has_cuts else by_source, has_cuts=has_cuts)
            if id_ is not None:
                if str(id_) in ids and units and str(id_) not in units:
                    raise ValueError(f"its id is {str(id_)!r}, and its path is that of {units[0]!r}")
                units = [str(id_)] if str(id_) in ids else []
            if not units:
                raise ValueError(f"{id_ if id_ is not None else path!r} is not a video of {root}")
            for unit in units:
                if (
                    other := next((row for row in rows[unit] if any(_differ(c[row], c[number]) for c in values)), None)
                ) is not None:
                    raise ValueError(f"{unit} has other labels in row {other + 1}")
                rows[unit].append(number)
        except ValueError as error:
            faults[number] = str(error)
    return rows, faults


def _units_of(
    path: Any, start: Any, end: Any, base: str, units: Mapping[Any, list[str]], *, has_cuts: bool
) -> list[str]:
    if not isinstance(path, str) or not path:
        raise ValueError("has neither id nor path")
    source = path if is_url(path) else os.path.abspath(os.path.join(base or os.getcwd(), path))
    cut: Cut = source, checked_seconds("start", start), checked_seconds("end", end)
    return units.get(cut if has_cuts else source, [])


def _differ(one: object, other: object) -> bool:
    return one is not None and other is not None and repr(one) != repr(other)


def _updated(kept: Labels, found: SourceTable, names: list[str], rows: Mapping[str, list[int]], where: str) -> Labels:
    columns, added = dict(kept.columns), set(kept.added)
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
        added.add(name)
        given = Labels(list(taken), {name: values.take(pa.array(taken.values(), pa.int64()))})
        stays = kept.chosen([name]).taken([id_ for id_ in kept.ids if id_ not in taken])
        columns[name] = (joined([stays, given]) if stays.ids else given).taken(kept.ids).columns[name]
    return replace(kept, columns=columns, added=frozenset(added))
