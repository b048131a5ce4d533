"""The page of a table of clips: their pictures by source, the distribution of each fact with pictures, and duplicates side by side."""

from __future__ import annotations

import tempfile
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from vidprep.formats.errors import SourceError, count_of
from vidprep.transcode.pages._stills import ClipTask, ComparedFrame, StillTask, take_in
from vidprep.transcode.pages.page import Chart, Page, ReportFiles, Section, Strip, Tile, chart_text, layout, write_page
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings, SourceOptions
from vidprep.transcode.sources.listing import find_sources
from vidprep.transcode.sources.tables import read_source_table
from vidprep.transcode.workers.local import LocalPool
from vidprep.transcode.workers.pool import stop_on_signals

Row = dict[str, Any]
LABELS = ("clips", "sources", "groups of clips of one shot, or that show the same", "groups in two splits")
NO_FACTS = ("start_frame", "end_frame", "video_stream", "shot", "duplicate_offset")
PERCENTILES = (1, 5, 50, 95, 99)
SOURCES, CLIPS_OF_SOURCE, GROUPS, CLIPS_OF_GROUP = 20, 12, 20, 5  # that are shown, at most


def write_clips(
    table: Path,
    out: Path,
    *,
    title: str,
    created: str,
    jobs: int,
    on_start: Callable[[int], None] = lambda _count: None,
    on_still: Callable[[], object] = lambda: None,
) -> ReportFiles:
    """Write out/report.html, .md and .json about a table that `scan` wrote.

    Raises:
        KeyboardInterrupt: A signal stopped it.
        MissingError: A package for pages is not installed.
        SourceError: It is no table of clips.
    """
    rows: list[Row] = [dict(row) for row in read_source_table(table).rows()]
    if not rows:
        raise SourceError("has no clips", path=table)
    if not {"id", "start_frame", "end_frame", "motion"} <= rows[0].keys():
        raise SourceError("is no table of clips, such as `vidprep scan` writes", path=table)
    sheets, groups = _by(rows, "path"), [group for group in _by(rows, "duplicate_group") if len(group) > 1]
    chosen = {name: _percentiles(rows, name) for name in rows[0] if name not in NO_FACTS and _is_fact(rows, name)}
    shown = [*_first(sheets, SOURCES, CLIPS_OF_SOURCE), *_first(groups, GROUPS, CLIPS_OF_GROUP)]
    shown += [row for clips in chosen.values() for _, row in clips]
    pictures = _pictures(table, {row["id"] for row in shown}, jobs, on_start, on_still)
    across = [group[0]["duplicate_group"] for group in groups if len({row.get("split") for row in group}) > 1]
    known = {"clips": len(rows), "sources": len(sheets), "groups": len(groups), "groups_in_two_splits": across}
    sections = [
        Section(
            "At a glance",
            tiles=[Tile(f"{count:,}", label) for count, label in zip(_counts(known), LABELS, strict=True)],
        ),
        *(_fact(name, rows, clips, pictures) for name, clips in chosen.items()),
        _strips("Duplicates", groups, GROUPS, CLIPS_OF_GROUP, "duplicate_group", pictures),
        _strips("Clips by source", sheets, SOURCES, CLIPS_OF_SOURCE, "path", pictures),
    ]
    page = Page(title, f"{table} — {created}", sections)
    return write_page(page, out, {"format": "vidprep report 1", "created": created} | known)


def _counts(known: dict[str, Any]) -> list[int]:
    return [value if isinstance(value, int) else len(value) for value in known.values()]


def _first(groups: Sequence[Sequence[Row]], most: int, of_each: int) -> list[Row]:
    return [row for group in groups[:most] for row in group[:of_each]]


def _is_fact(rows: Sequence[Row], name: str) -> bool:
    return any(isinstance(row[name], int | float) for row in rows)


def _by(rows: Iterable[Row], name: str) -> list[list[Row]]:
    found = defaultdict[Any, list[Row]](list)
    for row in rows:
        found[row.get(name)].append(row)
    return [group for key, group in found.items() if key is not None]


def _percentiles(rows: Sequence[Row], name: str) -> list[tuple[int, Row]]:
    """Return the clips at the percentiles of a fact."""
    ordered = sorted((row for row in rows if row[name] is not None), key=lambda row: row[name])
    return [(percent, ordered[round((len(ordered) - 1) * percent / 100)]) for percent in PERCENTILES]


def _fact(name: str, rows: list[Row], chosen: list[tuple[int, Row]], pictures: dict[str, ComparedFrame]) -> Section:
    values = [row[name] for row in rows if row[name] is not None]
    counts, edges = np.histogram(np.array(values, float), 40)
    trace = {
        "type": "bar",
        "x": ((edges[:-1] + edges[1:]) / 2).tolist(),
        "y": counts.tolist(),
        "name": chart_text(name),
    }
    chart = Chart({"data": [trace], "layout": layout(name, "clips")}, f"{count_of(len(values), 'clip')}")
    middles = [
        (f"{percent} % have less than {row[name]:.4g}", found.pictures[len(found.pictures) // 2])
        for percent, row in chosen
        if (found := pictures[row["id"]]).pictures
    ]
    return Section(name, charts=[chart], strips=[Strip("Middle frames of clips at percentiles", middles)])


def _strips(
    title: str, groups: list[list[Row]], most: int, of_each: int, name: str, pictures: dict[str, ComparedFrame]
) -> Section:
    text = f"The first {most:,} of {len(groups):,}." if len(groups) > most else ""
    strips = []
    for group in groups[:most]:
        failed = [why for row in group[:of_each] if (why := pictures[row["id"]].failed)]
        shown = [(row["id"], picture) for row in group[:of_each] for picture in pictures[row["id"]].pictures]
        strips.append(
            Strip(
                f"{group[0][name]}, {count_of(len(group), 'clip')}", shown, failed[0] if failed and not shown else None
            )
        )
    return Section(title, text, strips=strips)


def _pictures(
    table: Path, ids: set[str], jobs: int, on_start: Callable[[int], None], on_still: Callable[[], object]
) -> dict[str, ComparedFrame]:
    unused = Path(tempfile.gettempdir(), f"vidprep-{uuid.uuid4().hex}")  # nothing is written there
    sources = find_sources(table, unused, SourceOptions(), takes_pictures=False)
    settings = RunSettings(VideoOutput())
    found = {id_: ComparedFrame(failed="its source cannot be read") for id_ in ids}
    tasks: list[StillTask] = [ClipTask(unit, settings) for unit in sources.units if unit.id in ids]
    on_start(len(tasks))
    with LocalPool(max(1, min(jobs, len(tasks))), take_in) as workers, stop_on_signals(workers, 0) as stop:
        for task, taken in workers.results(tasks):
            if taken is not None:
                found[cast("ClipTask", task).unit.id] = cast("ComparedFrame", taken)
                on_still()
    if stop.signal is not None:
        raise KeyboardInterrupt
    return found
