"""Each row of a table: a unit, or a problem that has a row of its own in the manifest."""
# ruff: noqa: PTH100, PTH114, PTH116, PTH118, PTH119, PTH120, PTH122

from __future__ import annotations

import csv
import os
from decimal import ROUND_HALF_UP, Decimal

from vidprep.formats.errors import SourceError, StorageError
from vidprep.formats.files.remote import is_url
from vidprep.transcode.sources.outputs import IN_SHARDS, fault_of_output
from vidprep.transcode.sources.remote import RemoteFiles
from vidprep.transcode.sources.search import SourceSearch, fault_of_file, state_of, why_not
from vidprep.transcode.sources.tables import (
    KEYS,
    LIKE_CUTS,
    READERS,
    Row,
    checked_label,
    checked_seconds,
    one_line,
    storable,
)
from vidprep.transcode.sources.unit import Cut, Labels, Unit

FAULTS_SHOWN = 20


def read_table(search: SourceSearch, table: str) -> None:
    """Each row of a table, counted from 1, is a unit or a problem. Columns that are no KEYS are labels."""
    try:
        rows = READERS[os.path.splitext(table)[1].lower()](table)
    except (OSError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, csv.Error) as error:
        # RuntimeError: what pyarrow or recursion refuses
        raise SourceError(f"table cannot be read: {error}", path=table) from error
    names = dict.fromkeys(name for row in rows for name in row)
    if "path" not in names:
        columns = ", ".join(map(one_line, names))
        raise SourceError(f"has no column `path`; columns: {columns}" if rows else "has no rows", path=table)
    if search.label_from_folder and "label" in names:
        raise SourceError("has a column `label`: leave out the column, or --label-from-folder", path=table)
    if names.pop("", 0) is None:  # what pandas writes for its row numbers
        search.ignored.append((table, "a column without a name"))
    label_names = [name for name in names if name not in KEYS]
    if odd := [name for name in label_names if storable(name) != name]:
        raise SourceError(f"has a column {one_line(odd[0])}, whose name is not valid Unicode; rename it", path=table)
    if (asked := [name for name in label_names if LIKE_CUTS.fullmatch(name)]) and not {"start", "end"} & names.keys():
        raise SourceError(
            f"has a column {one_line(asked[0])}: is it where cuts begin or end? Then call it `start` or `end`, in seconds; if it is a "
            "label, give it a name that says of what",
            path=table,
        )
    kinds: dict[str, type] = {}
    faults: list[str] = []
    remote = RemoteFiles()
    for number, row in enumerate(rows, 1):
        try:
            labels = tuple((name, checked_label(name, row.get(name), kinds)) for name in label_names)
            _add_row(search, remote, table, number, row, labels)
        except ValueError as error:
            faults.append(f"row {number}: {error}")
        search.count()
    if faults:
        more = [f"and {len(faults) - FAULTS_SHOWN} more"] if len(faults) > FAULTS_SHOWN else []
        raise SourceError("\n  ".join([*faults[:FAULTS_SHOWN], *more]), path=table)
    if remote.fault is not None and not remote.answered:
        raise remote.fault


def _add_row(search: SourceSearch, remote: RemoteFiles, table: str, number: int, row: Row, labels: Labels) -> None:
    """File one row under units, ignored or problems. Raises ValueError for a row that cannot mean anything."""
    where = f"{os.path.basename(table)} row {number}: "
    given_path, given_id, start, end = map(row.get, KEYS)
    if not isinstance(given_path, str) or not given_path or "\0" in given_path:
        raise ValueError(f"path is {given_path!r}; give the path of a video")
    base = os.path.join(os.path.dirname(table), "")
    path = (
        given_path if is_url(given_path) else os.path.abspath(base + given_path if given_path[0] != "/" else given_path)
    )
    relative = path[len(base) :] if path.startswith(base) else os.path.basename(path)
    cut = checked_seconds("start", start), checked_seconds("end", end)
    if cut[1] is not None and (cut[0] or 0.0) >= cut[1]:
        raise ValueError(f"start {cut[0] or 0.0!r} is not before end {cut[1]!r}; a cut is [start, end) in seconds")
    unit_id = _id_of_cut(search.id_of(relative), cut) if given_id is None else _checked_id(given_id)
    if reason := search.why_left_out(relative, os.path.basename(path)):
        search.ignored.append((path, where + reason))
        return
    if is_url(given_path):
        try:
            state, why = remote.state(path), "no such file"
        except StorageError as error:
            state, why = None, str(error)
        if state is None:
            search.refuse(number, Unit(unit_id, path, 0, 0, *cut, labels), where + why)
        else:
            search.add(unit_id, path, state, cut, labels)
        return
    try:
        status = os.stat(path)
        fault = fault_of_file(path, status)
    except OSError as error:
        fault = why_not(error, is_link=os.path.islink(path))
    if fault:
        search.refuse(number, Unit(unit_id, path, 0, 0, *cut, labels), where + fault)
    elif search.in_destination(path if os.path.islink(path) else os.path.dirname(path)):
        raise ValueError(f"{one_line(path)} lies in the destination; give a destination outside of the sources")
    else:
        search.add(unit_id, path, state_of(status), cut, labels)


def _id_of_cut(unit_id: str, cut: Cut) -> str:
    """In milliseconds of the number as a person writes it, halves up: 1.0005 is 1001, whatever its binary digits."""
    if cut == (None, None):
        return unit_id
    start, end = (None if s is None else int((Decimal(repr(s)) * 1000).to_integral_value(ROUND_HALF_UP)) for s in cut)
    return f"{unit_id}_{start or 0:08d}_" + ("end" if end is None else f"{end:08d}")


def _checked_id(value: object) -> str:
    unit_id = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    fault = fault_of_output(unit_id, IN_SHARDS)
    if not unit_id.strip() or not {"", ".", ".."}.isdisjoint(unit_id.split("/")):
        fault = "is no plain relative name"
    elif "\\" in unit_id or one_line(unit_id) != unit_id:
        fault = "has a backslash, a control character or what is not Unicode"
    if fault:
        raise ValueError(f"id {value!r} {fault}; give a name such as a/b, without extension")
    return unit_id
