"""Each row of a table: a unit, or a problem that has a row of its own in the manifest."""
# ruff: noqa: PTH100, PTH109, PTH114, PTH116, PTH118, PTH119, PTH120

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from vidprep.formats.errors import SourceError, StorageError
from vidprep.formats.model import Cut, SourceState
from vidprep.formats.storage.base import check_no_password, is_url
from vidprep.formats.text import count_of
from vidprep.transcode.sources.cut_columns import cut_columns
from vidprep.transcode.sources.outputs import IN_SHARDS, fault_of_output
from vidprep.transcode.sources.remote import RemoteFiles
from vidprep.transcode.sources.search import SourceSearch, fault_of_file, why_not
from vidprep.transcode.sources.tables import KEYS, faults_of_columns, is_table, one_line, read_source_table, storable
from vidprep.transcode.sources.unit import Unit

FAULTS_SHOWN = 20
IN_MEMORY = "the table"
SKIPPED = "skipped "
NAMES_OF_PATH = (
    "path",
    "file",
    "filename",
    "file_name",
    "file_path",
    "filepath",
    "video",
    "video_path",
    "video_file",
    "source",
    "src",
)


def read_table(
    search: SourceSearch, table: object, *, labels: Sequence[str] | None, label_from_folder: bool, skips_bad_rows: bool
) -> None:
    """Each row of a table, a file or in memory, is a unit or a problem. labels: the columns that are; None for all that are no KEYS.

    skips_bad_rows: rows that cannot mean anything are ignored. Raises SourceError.
    """
    found = read_source_table(table)
    path = str(table) if isinstance(table, str) else IN_MEMORY
    names = list(found.columns)
    if not found.num_rows:
        raise SourceError("has no rows", path=path)
    if "path" not in names:
        columns = ", ".join(map(one_line, names))
        like = next((name for name in names if name.strip().lower().replace(" ", "_") in NAMES_OF_PATH), None)
        meant = f"; rename `{one_line(like)}` to `path`" if like is not None else ""
        raise SourceError(f"has no column `path`; columns: {columns}{meant}", path=path)
    if "" in names:  # what pandas writes for its row numbers
        names.remove("")
        search.ignored.append((path, "a column without a name"))
    places = cut_columns(names, path)
    chosen = chosen_labels([name for name in names if name not in KEYS and name not in places.names], labels, path)
    _check_names(chosen, path, label_from_folder=label_from_folder)
    search.table = found.chosen(chosen)
    faults = faults_of_columns(search.table)
    rows = zip(*(found.values(name) for name in KEYS), places.cuts(found), strict=True)
    remote = RemoteFiles()
    for number, (given_path, given_id, cells) in enumerate(rows):
        try:
            if number in faults:
                raise ValueError(faults[number])
            _add_row(search, remote, "" if is_table(table) else path, number, given_path, given_id, places.cut(cells))
        except ValueError as error:
            faults[number] = str(error)
        search.count()
    faults |= _same_cuts(search)
    if skipped := told_faults(faults, path, skips_bad_rows=skips_bad_rows):
        search.why_partial = f"{count_of(len(skipped), 'row')} of the table skipped"
        search.ignored += [(path, f"{SKIPPED}{why}") for why in skipped]
    if remote.fault is not None and not remote.answered and not search.units:
        raise remote.fault


def told_faults(faults: Mapping[int, str], path: str, *, skips_bad_rows: bool) -> list[str]:
    """A line for each row, from 0, that means nothing. Raises SourceError with the first of them, unless they are to be skipped."""
    lines = [f"row {number + 1}: {why}" for number, why in sorted(faults.items())]
    if not lines or skips_bad_rows:
        return lines
    more = [f"and {len(lines) - FAULTS_SHOWN} more"] if len(lines) > FAULTS_SHOWN else []
    raise SourceError(
        "\n  ".join([*lines[:FAULTS_SHOWN], *more, "fix the table, or give --on-bad-row skip"]), path=path
    )


def chosen_labels(names: list[str], labels: Sequence[str] | None, path: str) -> list[str]:
    """Those of the columns that are to be labels. Raises SourceError."""
    if labels is None:
        return names
    if missing := [name for name in labels if name not in names]:
        columns = ", ".join(map(one_line, names)) or "none"
        raise SourceError(f"--labels: has no column {one_line(missing[0])}; its labels: {columns}", path=path)
    return list(dict.fromkeys(labels))


def _check_names(labels: list[str], path: str, *, label_from_folder: bool) -> None:
    """Raises SourceError for columns that cannot be labels, or may mean something else."""
    if label_from_folder and "label" in labels:
        raise SourceError("has a column `label`: leave out the column, or --label-from-folder", path=path)
    if odd := [name for name in labels if storable(name) != name]:
        raise SourceError(f"has a column {one_line(odd[0])}, whose name is not valid Unicode; rename it", path=path)


def _same_cuts(search: SourceSearch) -> dict[int, str]:
    """Leave one unit of those that ask for the same cut of the same source under the same name. Returns faults by row: of those that
    give it other labels.
    """
    assert search.table is not None
    first: dict[tuple[Any, ...], Unit] = {}
    twins: list[tuple[Unit, Unit]] = []
    for unit in search.units:
        key = unit.id, unit.path, unit.cut
        if (one := first.setdefault(key, unit)) is not unit:
            twins.append((one, unit))
    if not twins:
        return {}
    search.units = list(first.values())
    columns = [search.table.values(name) for name in search.table.columns]
    faults = {}
    for one, other in twins:
        if all(repr(values[one.row]) == repr(values[other.row]) for values in columns):
            search.ignored.append((other.path, f"row {other.row + 1}: the same cut again"))
        else:
            faults[other.row] = f"the same cut as row {one.row + 1}, with other labels"
    return faults


def _add_row(
    search: SourceSearch, remote: RemoteFiles, table: str, number: int, given_path: Any, given_id: Any, cut: Cut
) -> None:
    """File one row, from 0, under units, ignored or problems. Raises ValueError for a row that cannot mean anything."""
    where = f"{os.path.basename(table) or IN_MEMORY} row {number + 1}: "
    if given_path is None or given_path == "":
        raise ValueError("path is empty; give the path of a video")
    if not isinstance(given_path, str) or "\0" in given_path:
        raise ValueError(f"path is {given_path!r}; give the path of a video")
    given_path = given_path.removeprefix("file://")
    if is_url(given_path):
        check_no_password(given_path)
    base = os.path.join(os.path.dirname(table) or os.getcwd(), "")
    path = (
        given_path if is_url(given_path) else os.path.abspath(base + given_path if given_path[0] != "/" else given_path)
    )
    relative = path[len(base) :] if path.startswith(base) else os.path.basename(path)
    unit_id = _id_of_cut(search.id_of(relative), cut) if given_id is None else checked_id(given_id)
    if reason := search.why_left_out(relative, os.path.basename(path)):
        search.ignored.append((path, where + reason))
        return
    if is_url(given_path):
        try:
            state, why = remote.state(path), "no such file"
        except StorageError as error:
            state, why = None, str(error)
        if state is None:
            search.refuse(number + 1, Unit(unit_id, path, 0, 0, cut, row=number), where + why)
        else:
            search.add(unit_id, path, state, cut, number)
        return
    try:
        status = os.stat(path)
        fault = fault_of_file(path, status)
    except OSError as error:
        fault = why_not(error, is_link=os.path.islink(path))
    if fault:
        search.refuse(number + 1, Unit(unit_id, path, 0, 0, cut, row=number), where + fault)
    elif search.in_destination(path if os.path.islink(path) else os.path.dirname(path)):
        raise ValueError(f"{one_line(path)} is inside the destination; give a destination outside of the sources")
    else:
        search.add(unit_id, path, SourceState.of(status), cut, number)


def _id_of_cut(unit_id: str, cut: Cut) -> str:
    """In milliseconds of the number as a person writes it, halves up: 1.0005 is 1001, whatever its binary digits. Or in frames."""
    if not cut:
        return unit_id
    if cut.start_frame is not None or cut.end_frame is not None:
        return f"{unit_id}_f{cut.start_frame or 0:08d}_" + ("end" if cut.end_frame is None else f"f{cut.end_frame:08d}")
    start, end = (
        None if s is None else int((Decimal(repr(s)) * 1000).to_integral_value(ROUND_HALF_UP))
        for s in (cut.start_seconds, cut.end_seconds)
    )
    return f"{unit_id}_{start or 0:08d}_" + ("end" if end is None else f"{end:08d}")


def checked_id(value: object) -> str:
    unit_id = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    fault = fault_of_output(unit_id, IN_SHARDS)
    if not unit_id.strip() or not {"", ".", ".."}.isdisjoint(unit_id.split("/")):
        fault = "is not a plain relative name"
    elif "\\" in unit_id or one_line(unit_id) != unit_id:
        fault = "has a backslash, a control character, or a character that is not Unicode"
    if fault:
        raise ValueError(f"id {value!r} {fault}; give a name such as a/b, without extension")
    return unit_id
