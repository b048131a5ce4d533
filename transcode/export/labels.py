"""Carry labels of source frames or seconds over to the outputs, through changes of rate and cuts.

A table (.csv, .jsonl, .parquet) names an output by `id`, or one or many sources by `path`, and the part of the source
that its label covers, counted from the first frame displayed, half-open: `start_frame` and `end_frame`, or `start` and
`end` in seconds, or their other names that `cut_columns` knows.

labels.csv has a row for each output that shows some of that part: `id`, `first_frame` and `end_frame` of the output,
half-open, and the other columns unchanged.
"""

from __future__ import annotations

import csv
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from vidprep.formats.errors import SourceError
from vidprep.formats.manifest.row import ManifestRow, escape_label
from vidprep.formats.manifest.table import manifest_rows
from vidprep.formats.model import Cut
from vidprep.formats.moments import Tolerance, exact_seconds
from vidprep.formats.storage.untrusted import ArrowStream, check_regular
from vidprep.transcode.sources.table_rows import cut_columns
from vidprep.transcode.sources.tables import TableRow, csv_cell, one_line, read_source_table

OWN = ("id", "first_frame", "end_frame")


@dataclass(frozen=True, slots=True)
class CarriedLabels:
    """Content of labels.csv.

    Attributes:
        names: Columns besides OWN
        rows: A list of cells for each row
        unseen: Number of table rows that no output shows
    """

    names: list[str]
    rows: list[list[object]]
    unseen: int

    def write(self, out: Path) -> None:
        with (out / "labels.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(
                [[*OWN, *(csv_cell(escape_label(name, OWN)) for name in self.names)], *self.rows]
            )


def carry_over(store: Path, table: Path | ArrowStream) -> CarriedLabels:
    """Read a table of labels and find the frames of the outputs that show them.

    Raises SourceError for a table that cannot be used, ManifestError.
    """
    if isinstance(table, Path):
        try:
            check_regular(table)
        except OSError as error:
            raise SourceError(f"cannot be read: {error.strerror}", path=table) from error
    source = read_source_table(table)
    where = table if isinstance(table, Path) else Path("the table")
    by_id: dict[str, ManifestRow] = {}
    by_source: dict[str, list[ManifestRow]] = defaultdict(list)
    for row in manifest_rows(store):
        if row.ok:
            by_id[row.id] = row
            by_source[row.source].append(row)
    places = cut_columns(source.columns, str(where))
    if not places.names:
        columns = ", ".join(map(one_line, source.columns))
        raise SourceError(
            f"does not say where its labels hold: give columns start and end (seconds), or start_frame and end_frame; columns: {columns}",
            path=where,
        )
    kept = [name for name in source.columns if name not in ("id", "path") and name not in places.names]
    rows: list[list[object]] = []
    unseen = 0
    for number, (label, cells) in enumerate(zip(source.rows(), places.cuts(source), strict=True), 1):
        try:
            cut, outputs = places.cut(cells), _outputs(label, where, by_id, by_source)
            shown = [(row, *span) for row in outputs if (span := _span(cut, row))]
        except ValueError as error:
            raise SourceError(f"row {number}: {error}", path=where) from error
        unseen += not shown
        rows += [[csv_cell(row.id), *span, *(csv_cell(label.get(name)) for name in kept)] for row, *span in shown]
    return CarriedLabels(kept, rows, unseen)


def _outputs(
    label: TableRow, table: Path, by_id: dict[str, ManifestRow], by_source: dict[str, list[ManifestRow]]
) -> list[ManifestRow]:
    if label.get("id") is not None:
        id_ = str(label["id"])
        if id_ not in by_id:
            raise ValueError(f"id {id_!r} is not an output of the store")
        return [by_id[id_]]
    if label.get("path") is None:
        raise ValueError("has neither id nor path")
    path = str((table.parent / str(label["path"])).absolute())
    if path not in by_source:
        raise ValueError(f"{path} is the source of no output")
    return by_source[path]


def _span(cut: Cut, row: ManifestRow) -> tuple[int, int] | None:
    """Return the output frames [first, end) that show a span of the source; None if there are none."""
    count = row.num_frames or 0
    if cut.start_frame is not None or cut.end_frame is not None:
        shown = row.source_frames or range(count)
        first = bisect_left(shown, cut.start_frame or 0)
        end = count if cut.end_frame is None else bisect_left(shown, cut.end_frame)
    else:
        first = 0 if cut.start_seconds is None else _first_at(row, cut.start_seconds)
        end = count if cut.end_seconds is None else _first_at(row, cut.end_seconds)
    return (first, end) if first < end else None


def _first_at(row: ManifestRow, seconds: float) -> int:
    """Return the first output frame that shows the source at a time or later.

    That is the first frame that shows a source frame starting then or later, or that is itself displayed then or later,
    if an earlier picture is still on screen. The second comparison has half the tolerance, so that it never matches the
    frame before.
    """
    time, opening = exact_seconds(seconds), exact_seconds(row.source_start_seconds or 0.0)
    if row.source_time_base_num is None:  # version 0.1 counted times from the start of the cut
        return row.tolerance.first_from(*row.output_ticks(), time - exact_seconds(row.start_seconds or 0.0))
    half = Tolerance(row.tolerance.seconds / 2)
    return min(
        row.tolerance.first_from(*row.source_ticks(), time), half.first_from(*row.output_ticks(), time - opening)
    )
