"""The labels that sources give: columns of a table, the parent folder; and what their splits are drawn by."""
# ruff: noqa: PTH118, PTH119, PTH120, PTH122

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from vidprep.formats.errors import SourceError
from vidprep.transcode.sources.splits import Drawing
from vidprep.transcode.sources.tables import SourceTable, one_line
from vidprep.transcode.sources.unit import Unit

if TYPE_CHECKING:
    import pyarrow as pa

    from vidprep.formats.manifest.labels import Labels


@dataclass(frozen=True, slots=True)
class Given:
    """What was asked for beside the columns of a table. See `find_sources`."""

    label_from_folder: bool = False
    split_by: Mapping[str, Fraction] | None = None
    split_group: str | None = None
    split_seed: int = 0


def labels_of(
    units: Sequence[Unit], table: SourceTable | None, given: Given, path: str, base: str
) -> tuple[Labels | None, Drawing | None]:
    """Of these units, in their order; None where nothing gives any; and how splits are drawn. base: the folder that paths are relative to.

    Raises SourceError for a column that no manifest can hold, or that is there twice.
    """
    names = list(table.columns) if table is not None else []
    if not names and not given.label_from_folder and given.split_by is None:
        return None, None
    import pyarrow as pa

    from vidprep.formats.manifest.labels import CLASS_LABEL, SPLIT_LABEL, Labels, values_of

    columns: dict[str, pa.Array] = {}
    rows = pa.array([unit.row for unit in units], pa.int64())
    for name in names:
        assert table is not None
        try:
            columns[name] = table.array(name).take(rows)
        except ValueError as error:
            raise SourceError(f"{error}; leave it out with --labels, or change it", path=path) from error
    if given.label_from_folder:
        folders = [os.path.basename(os.path.dirname(unit.path)) for unit in units]
        columns[CLASS_LABEL] = pa.array(folders, pa.string())
    drawing = None
    if given.split_by is not None:
        if SPLIT_LABEL in columns:
            raise SourceError("has a column `split`: leave out the column, or --split-by", path=path)
        classes = values_of(columns[CLASS_LABEL]) if CLASS_LABEL in columns else [None] * len(units)
        groups = _groups(units, columns, given.split_group, path, base)
        drawing = Drawing(groups, classes, given.split_by, given.split_group, given.split_seed)
    return Labels([unit.id for unit in units], columns), drawing


def _groups(
    units: Sequence[Unit], columns: Mapping[str, pa.Array], column: str | None, path: str, base: str
) -> list[str]:
    """What is drawn as one: the value of a column, or the path of a source, relative and without its suffix."""
    if column is None:
        base = os.path.join(base, "")
        relative = (u.path[len(base) :] if u.path.startswith(base) else os.path.basename(u.path) for u in units)
        return [os.path.splitext(name)[0] for name in relative]
    if column not in columns:
        raise SourceError(f"--split-group: has no label {one_line(column)}", path=path)
    from vidprep.formats.manifest.labels import values_of

    values = values_of(columns[column])
    return [repr(value) if value is not None else f"alone {unit.id}" for value, unit in zip(values, units, strict=True)]
