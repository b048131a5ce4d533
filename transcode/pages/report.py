"""`report`: one page about finished destinations, as HTML, Markdown and JSON.

Figures come from manifests (_figures.py). Frames are decoded only for the worst frames and for a sample that measures
the size as PNG and JPEG, by child processes with a deadline (_stills.py).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from vidprep.formats.errors import SettingsError, for_json
from vidprep.formats.model import Cut
from vidprep.transcode.pages._figures import FinishedDestination, figures, open_destination, pixels
from vidprep.transcode.pages._run_section import run_sections
from vidprep.transcode.pages._stills import (
    JPEG_QUALITY,
    CompareTask,
    SizeTask,
    StillResult,
    StillSizes,
    StillTask,
    take_in,
)
from vidprep.transcode.pages.page import Page, ReportFiles, Section, write_page
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit, choose
from vidprep.transcode.workers.local import LocalPool
from vidprep.transcode.workers.pool import stop_on_signals

DRAWN = 3  # random frames of each destination
SAMPLED_VIDEOS = 12


# Modules with sections of folders that no run made.
OTHER_SECTIONS = ("sweep_section",)


def write_report(
    paths: Sequence[Path],
    out: Path,
    *,
    title: str,
    created: str,
    jobs: int,
    strips: int,
    on_start: Callable[[int], None] = lambda _count: None,
    on_still: Callable[[], object] = lambda: None,
    names: Mapping[str, str] = MappingProxyType({}),
) -> ReportFiles:
    """Write out/report.html, .md and .json about destinations, and about results of `vidprep sweep`.

    Args:
        paths: Destinations and results of sweeps.
        out: The output folder.
        title: Title of the page.
        created: Date to show.
        jobs: Number of processes.
        strips: Number of worst frames per destination.
        on_start: Called with the number of videos that are decoded.
        on_still: Called after each video.
        names: Names of `paths` in the report.

    Raises:
        KeyboardInterrupt: A signal stopped it.
        ManifestError: A manifest cannot be read.
        MissingError: A package for pages is not installed.
        StoreError: A path is no destination.
        SettingsError: A destination was given twice.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise SettingsError("a destination was given twice")
    shown_as = {path: names.get(str(path), str(path)) for path in paths}
    modules = [import_module(f"vidprep.transcode.pages.{name}") for name in OTHER_SECTIONS]
    sections, all_figures, sweeps = list[Section](), [], dict[str, Any]()
    for path, module in product(paths, modules):
        if (summary := module.summary_in(path)) is not None:
            sweeps[shown_as[path]] = summary
            sections += module.sections_of(summary, shown_as[path], several=len(paths) > 1)
    runs = [open_destination(path, shown_as[path]) for path in paths if shown_as[path] not in sweeps]
    if runs:
        all_figures = [figures(destination) for destination in runs]
        worst = [_worst(destination, strips) for destination in runs]
        drawn = [_draw_frames(destination, min(strips, DRAWN)) for destination in runs]
        samples = _samples(runs)
        shown = _decode([*worst, *drawn], samples, jobs, on_start, on_still)
        for destination, figure, sample, tasks in zip(runs, all_figures, samples, worst, strict=True):
            sizes = [shown[task] for task in sample]
            figure["stills"] = _stills(destination, [each for each in sizes if isinstance(each, StillSizes)])
            figure["worst_frames"] = [{"id": task.unit.id, "frame": task.number} for task in tasks]
        sections += run_sections(runs, all_figures, worst, drawn, shown)
    page = Page(title, f"{' · '.join(shown_as.values())} — {created}", sections)
    known = {"format": "vidprep report 1", "created": created, "destinations": for_json(all_figures), "sweeps": sweeps}
    return write_page(page, out, known)


def _worst(destination: FinishedDestination, count: int) -> list[CompareTask]:
    """Return the frames with the lowest PSNR-Y, one per video, lowest first."""
    good = _comparable(destination)
    good = good.filter(pc.is_finite(pc.fill_null(good["psnr_y_min_db"], float("inf"))))
    rows = good.take(pc.sort_indices(good, [("psnr_y_min_db", "ascending"), ("id", "ascending")])[:count]).to_pylist()
    return [_compare_task(destination, row, row["worst_frame"]) for row in rows]


def _comparable(destination: FinishedDestination) -> pa.Table:
    """Return videos whose frames can be made from their sources again. Those that `pack` made have no sources, and vidprep 0.1
    chose other frames for cuts and --fps.
    """
    good = destination.good.filter(pc.is_valid(destination.good["source_size_bytes"]))
    cuts = [pc.is_valid(good[each.name]) for each in fields(Cut)]
    chosen = functools.reduce(pc.or_, cuts, pa.scalar(destination.settings.get("frame_rate") is not None))
    return good.filter(pc.or_(pc.is_valid(good["tolerance_seconds"]), pc.invert(chosen)))


def _draw_frames(destination: FinishedDestination, count: int) -> list[CompareTask]:
    """Return random frames of random videos, the same each time."""
    good, chance = _comparable(destination), random.Random(0)
    drawn = pa.array(chance.sample(range(good.num_rows), min(count, good.num_rows)), pa.int64())
    rows = good.take(drawn).to_pylist()
    return [_compare_task(destination, row, chance.randrange(row["num_frames"])) for row in rows if row["num_frames"]]


def _compare_task(destination: FinishedDestination, row: dict[str, Any], number: int) -> CompareTask:
    state = row["source_size_bytes"], row["source_mtime_ns"]
    cut, is_series = Cut(*(row[each.name] for each in fields(Cut))), Path(row["source"]).is_dir()
    unit = Unit(row["id"], row["source"], *state, cut, is_series=is_series)
    return CompareTask(destination.place, unit, RunSettings.from_dict(destination.settings), number)


def _samples(destinations: list[FinishedDestination]) -> list[list[SizeTask]]:
    """Return sample videos of each destination. Shared frames are measured in the first one, so that their sizes agree."""
    tasks: dict[_Sized, SizeTask] = {}
    samples = []
    for destination in destinations:
        rows = destination.good.select([field.name for field in fields(_Sized)]).to_pylist()
        chosen = choose([_Sized(**row) for row in rows], SAMPLED_VIDEOS)
        samples.append([tasks.setdefault(item, SizeTask(destination.place, item.id)) for item in chosen])
    return samples


@dataclass(frozen=True, slots=True)
class _Sized:
    id: str
    num_frames: int | None
    width: int | None
    height: int | None
    source_size_bytes: int | None

    @property
    def size_bytes(self) -> int | None:
        """Size of the source, so that `choose` takes the same videos of every destination."""
        return self.source_size_bytes


def _decode(
    compared: list[list[CompareTask]],
    samples: list[list[SizeTask]],
    jobs: int,
    on_start: Callable[[int], None],
    on_still: Callable[[], object],
) -> dict[StillTask, StillResult]:
    tasks: list[StillTask] = [
        *(task for group in compared for task in group),
        *dict.fromkeys(task for group in samples for task in group),
    ]
    on_start(len(tasks))
    shown: dict[StillTask, StillResult] = {}
    with (
        LocalPool(max(1, min(jobs, len(tasks))), take_in) as workers,
        stop_on_signals(workers, grace_seconds=0) as stop,
    ):
        for task, taken in workers.results(tasks):
            if taken is not None:
                shown[task] = taken
                on_still()
    if stop.signal is not None:
        raise KeyboardInterrupt
    return shown


def _stills(destination: FinishedDestination, taken: list[StillSizes]) -> dict[str, Any]:
    """Return the estimated size of all frames as single pictures, by the bytes per pixel of the sample."""
    sampled = sum(still.pixels for still in taken)
    scale = float(pixels(destination.good).sum()) / sampled if sampled else 0.0
    return {
        "sampled_videos": sum(still.frames > 0 for still in taken),
        "sampled_frames": sum(still.frames for still in taken),
        "png_bytes": round(scale * sum(still.png_bytes for still in taken)) or None,
        "jpeg_bytes": round(scale * sum(still.jpeg_bytes for still in taken)) or None,
        "jpeg_quality": JPEG_QUALITY,
    }
