"""Labels on frames or seconds of the sources, carried over to the outputs through a change of rate or a cut.

A table (.csv, .jsonl, .parquet) names an output by `id`, or the source of one or many by `path`, and says where its label
holds in the source, counted from the first frame shown, half-open: `start_frame` and `end_frame`, or `start` and `end` in
seconds. labels.csv has a row for each output that shows some of it: `id`, `first_frame` and `end_frame` of the output,
half-open, and the other columns as they were.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

from vidprep.formats.errors import SourceError
from vidprep.formats.files.arrow import ArrowStream
from vidprep.formats.files.untrusted import check_regular
from vidprep.formats.manifest.row import escaped_label
from vidprep.formats.manifest.table import ManifestRow, read_manifest
from vidprep.formats.video.ticks import MILLISECOND
from vidprep.transcode.sources.tables import Row, checked_seconds, csv_cell, read_source_table

OWN = ("id", "first_frame", "end_frame")
PLACE = ("id", "path", "start_frame", "end_frame", "start", "end")


def carry_over(store: Path, table: Path | ArrowStream, out: Path) -> tuple[int, int]:
    """Write `out`/labels.csv. Returns how many rows it has, and how many of the table no output shows.

    Raises SourceError for a table that cannot be used, ManifestError.
    """
    if isinstance(table, Path):
        try:
            check_regular(table)
        except OSError as error:
            raise SourceError(f"cannot be read: {error.strerror}", path=table) from error
    found = read_source_table(table)
    where = table if isinstance(table, Path) else Path("the table")
    by_id: dict[str, ManifestRow] = {}
    by_source: dict[str, list[ManifestRow]] = defaultdict(list)
    for row in read_manifest(store):
        if row.ok:
            by_id[row.id] = row
            by_source[row.source].append(row)
    kept = [name for name in found.columns if name not in PLACE]
    written = unseen = 0
    with (out / "labels.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*OWN, *(csv_cell(escaped_label(name, OWN)) for name in kept)])
        for number, label in enumerate(found.rows(), 1):
            try:
                shown = [
                    (row, *span) for row in _outputs(label, where, by_id, by_source) if (span := _span(label, row))
                ]
            except ValueError as error:
                raise SourceError(f"row {number}: {error}", path=where) from error
            unseen += not shown
            for row, first, end in shown:
                writer.writerow([csv_cell(row.id), first, end, *(csv_cell(label.get(name)) for name in kept)])
                written += 1
    return written, unseen


def _outputs(
    label: Row, table: Path, by_id: dict[str, ManifestRow], by_source: dict[str, list[ManifestRow]]
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


def _span(label: Row, row: ManifestRow) -> tuple[int, int] | None:
    """[first, end) of the output's frames; None when it shows none of it."""
    count = row.num_frames or 0
    if label.get("start_frame") is not None or label.get("end_frame") is not None:
        shown = row.source_frames or range(count)
        low, high = _frame(label, "start_frame"), _frame(label, "end_frame")
        first = 0 if low is None else bisect_left(shown, low)
        end = count if high is None else bisect_left(shown, high)
    else:
        start, stop = (checked_seconds(name, label.get(name)) for name in ("start", "end"))
        first = 0 if start is None else _first_at(row, start)
        end = count if stop is None else _first_at(row, stop)
    return (first, end) if first < end else None


def _frame(label: Row, name: str) -> int | None:
    value = label.get(name)
    if value is None:
        return None
    try:
        frame = int(str(value))
    except ValueError:
        frame = -1
    if frame < 0:
        raise ValueError(f"{name} is {value!r}; give a frame of the source, from 0")
    return frame


def _first_at(row: ManifestRow, seconds: float) -> int:
    """The first frame of the output at or after a time of the source."""
    time = Fraction(repr(seconds)) - Fraction(repr(row.start_seconds or 0.0))
    count = row.num_frames or 0
    if row.pts is not None:
        base = Fraction(row.time_base_num or 1, row.time_base_den or 1)
        rounding = min(base, MILLISECOND) / 2  # of the times of frames in a file
        return bisect_left(row.pts, (time - rounding) / base)
    rate = Fraction(row.frame_rate_num or 1, row.frame_rate_den or 1)
    return min(count, max(0, math.ceil(time * rate)))
