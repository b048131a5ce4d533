"""Figures of a finished destination for the report, computed from its manifest alone.

Columns are read instead of rows: 100,000 videos take a second. Infinite dB (lossless) count in quantiles; `for_json`
turns them into "inf".
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.labels import CLASS_LABEL, LABELS, SPLIT_LABEL, labels_in, values_of
from vidprep.formats.manifest.remarks import NOTES
from vidprep.formats.manifest.table import add_columns, read_table
from vidprep.formats.storage.base import is_url
from vidprep.transcode.check.results import VALIDATION_NAME, read_results
from vidprep.transcode.destination.run_file import read_run, settings_of
from vidprep.transcode.sources.outputs import STATE_DIR

GROUP_LABEL = "duplicate_group"  # of `vidprep scan --duplicates`
COLUMNS = [
    "id",
    "file_name",
    "source",
    "start_seconds",
    "end_seconds",
    "start_frame",
    "end_frame",
    "video_stream",
    "status",
    "stage",
    "error",
    "message",
    "warnings",
    "warning_codes",
    "source_size_bytes",
    "source_mtime_ns",
    "source_width",
    "source_height",
    "source_rotation",
    "source_is_vfr",
    "source_is_interlaced",
    "encoder_version",
    "crf",
    "jpeg_quality",
    "width",
    "height",
    "num_frames",
    "duration_seconds",
    "keyframe_interval_max",
    "keyframes",
    "size_bytes",
    "psnr_y_db",
    "psnr_yuv_db",
    "psnr_y_p1_db",
    "psnr_y_min_db",
    "worst_frame",
    "ssim",
    "encode_seconds",
    "cpu_seconds",
    "vmaf",
    "vmaf_p1",
    "vmaf_model",
    "xpsnr_db",
    "target_psnr_y_p1_db",
    "target_vmaf_p1",
    "tolerance_seconds",
    LABELS,
]
SCORES = ("psnr_y_db", "psnr_yuv_db", "psnr_y_p1_db", "psnr_y_min_db", "ssim", "vmaf", "vmaf_p1", "xpsnr_db")
QUANTILES = {"lowest": 0.0, "p1": 0.01, "p5": 0.05, "p95": 0.95, "highest": 1.0}
EXAMPLES = 3

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FinishedDestination:
    """A finished destination to report.

    Attributes:
        run: Content of run.json
        table: COLUMNS of all units
        good: COLUMNS of the units that succeeded
        shown: Its name in the report
    """

    path: Path
    run: dict[str, Any]
    table: pa.Table
    good: pa.Table
    shown: str

    @property
    def place(self) -> Path | str:
        """The folder or URL from which its frames are read."""
        return self.shown if is_url(self.shown) else self.path

    @property
    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.run["settings"]
        return settings

    @property
    def holds_frames(self) -> bool:
        """Whether it holds JPEGs or raw frames in shards instead of videos."""
        return "frames" in self.settings


def open_destination(path: Path, shown: str) -> FinishedDestination:
    """Open a destination. Raises ManifestError, and StoreError if no run made it."""
    settings_of(path, shown)
    run = read_run(path / STATE_DIR)
    table = read_table(path, COLUMNS)
    if table is None or not table.num_rows:
        raise StoreError("has no manifest with rows; let the run finish first", path=path)
    table = add_columns(table, COLUMNS)
    return FinishedDestination(path, run, table, table.filter(pc.equal(table["status"], "ok")), shown)


def figures(destination: FinishedDestination) -> dict[str, Any]:
    """Return totals, distributions and groups of a destination. Sizes are in bytes, scores as in the manifest."""
    table, good = destination.table, destination.good
    larger = pc.sum(pc.greater(good["size_bytes"], good["source_size_bytes"])).as_py() or 0
    each = good.group_by("source").aggregate([("source_size_bytes", "max")])  # cuts of one film share it
    source_bytes, output_bytes = _sum(each, "source_size_bytes_max"), _sum(good, "size_bytes")
    frames, cpu, wall = _sum(good, "num_frames"), _sum(good, "cpu_seconds"), _sum(good, "encode_seconds")
    warnings, notes = _remarks(good)
    return {
        "path": destination.shown,
        "holds": "frames" if destination.holds_frames else "videos",
        "videos": {
            "ok": good.num_rows,
            "failed": table.num_rows - good.num_rows,
            "warned": len({id_ for id_, _ in warnings}),
        },
        "bytes": {"sources": source_bytes, "outputs": output_bytes},
        "larger_than_source": larger,
        "frames": frames,
        "pixels": int(sum(pixels(good))),
        "duration_seconds": _sum(good, "duration_seconds"),
        "scores": {name: _distribution(numbers(good, name)) for name in SCORES},
        "classes": _classes(good),
        "keyframes": None if destination.holds_frames else _keyframes(destination),
        "sources": {
            "variable frame rate": _count(good, "source_is_vfr"),
            "interlaced": _count(good, "source_is_interlaced"),
            "rotated": pc.sum(pc.not_equal(pc.fill_null(good["source_rotation"], 0), 0)).as_py() or 0,
        },
        "warnings": _group(warnings),
        "notes": _group(notes),
        "failures": _group(
            (id_, text)
            for id_, status, text in zip(*(table[n].to_pylist() for n in ("id", "status", "message")), strict=True)
            if status != "ok"
        ),
        "throughput": {
            "cpu_seconds": cpu,
            "encode_seconds": wall,
            "frames_per_cpu_second": frames / cpu if cpu else None,
            "video_seconds_per_cpu_second": _sum(good, "duration_seconds") / cpu if cpu else None,
        },
        "target_psnr_y_p1_db": next((v for v in good["target_psnr_y_p1_db"].to_pylist() if v is not None), None),
        "target_vmaf_p1": next((v for v in good["target_vmaf_p1"].to_pylist() if v is not None), None),
        "vmaf_model": _models(good),
        "settings": destination.settings,
        "versions": destination.run["versions"]
        | {"made by": ", ".join(sorted({v for v in good["encoder_version"].to_pylist() if v}))},
        "validation": _validation(destination.path),
    }


def numbers(table: pa.Table, name: str) -> Doubles:
    """Return the values of a column without nulls."""
    column: Doubles = table[name].drop_null().to_numpy().astype(np.float64)
    return column


def pixels(table: pa.Table) -> Doubles:
    """Return the number of pixels in all frames of each unit."""
    counts = [np.nan_to_num(table[name].to_numpy().astype(np.float64)) for name in ("width", "height", "num_frames")]
    product: Doubles = counts[0] * counts[1] * counts[2]
    return product


def _distribution(values: Doubles) -> dict[str, float] | None:
    """Return quantiles (nearest rank), the median, and the mean of finite values."""
    if not len(values):
        return None
    ordered = np.sort(values)
    quantiles = {name: float(ordered[max(0, math.ceil(q * len(ordered)) - 1)]) for name, q in QUANTILES.items()}
    finite = ordered[np.isfinite(ordered)]
    return quantiles | {
        "median": float(np.median(ordered)),
        "mean": float(finite.mean()) if len(finite) else math.inf,
        "lossless": int(len(ordered) - len(finite)),
    }


def _classes(good: pa.Table) -> dict[str, Any] | None:
    """Return videos and seconds of each class and of its splits; None if there is neither a label `label` nor `split`."""
    columns = labels_in(good).columns
    if not {CLASS_LABEL, SPLIT_LABEL} & columns.keys():
        return None
    names, splits = (
        [None if value is None else str(value) for value in values_of(columns[name])]
        if name in columns
        else [None] * len(good)
        for name in (CLASS_LABEL, SPLIT_LABEL)
    )
    seconds = good["duration_seconds"].to_pylist()
    cells: dict[tuple[str | None, str | None], list[float]] = defaultdict(lambda: [0, 0.0])
    for name, split, length in zip(names, splits, seconds, strict=True):
        cells[name, split][0] += 1
        cells[name, split][1] += length or 0.0
    groups = values_of(columns[GROUP_LABEL]) if GROUP_LABEL in columns else []
    of_group = pa.table({"group": pa.array(groups, pa.string()), "split": pa.array(splits[: len(groups)], pa.string())})
    counts = of_group.drop_null().group_by("group").aggregate([("split", "count_distinct")])
    return {
        "has_classes": CLASS_LABEL in columns,
        "groups_in_two_splits": sorted(counts.filter(pc.field("split_count_distinct") > 1)["group"].to_pylist()),
        "splits": sorted({split for split in splits if split is not None}),
        "cells": [
            {"class": name, "split": split, "videos": int(count), "seconds": length}
            for (name, split), (count, length) in sorted(cells.items(), key=lambda cell: tuple(map(str, cell[0])))
        ],
    }


def _keyframes(destination: FinishedDestination) -> dict[str, int]:
    """Return the requested and the longest keyframe interval, the number of videos that do not exceed the requested one,
    and the number of keyframes.
    """
    good, gop = destination.good, int(destination.settings["encoder"]["gop"])
    longest = pc.fill_null(good["keyframe_interval_max"], 0)
    return {
        "asked_interval": gop,
        "longest_interval": pc.max(longest).as_py() or 0,
        "videos_that_hold_it": pc.sum(pc.less_equal(longest, gop)).as_py() or 0,
        "count": pc.sum(pc.list_value_length(good["keyframes"])).as_py() or 0,
    }


def _group(texts: Iterable[tuple[str, str | None]]) -> list[dict[str, Any]]:
    """Group texts that differ only in numbers and after a colon, semicolon or bracket; largest group first."""
    counts: Counter[str] = Counter()
    examples: dict[str, list[dict[str, str]]] = defaultdict(list)
    for id_, text in texts:
        kind = kind_of(text or "no reason was recorded")
        counts[kind] += 1
        if len(examples[kind]) < EXAMPLES:
            examples[kind].append({"id": id_, "text": text or ""})
    return [{"reason": kind, "videos": count, "examples": examples[kind]} for kind, count in counts.most_common()]


def kind_of(text: str) -> str:
    """Return a text without its numbers: `N frames had no timestamp`, for one frame too."""
    numbered = re.sub(r"(?<![\w.])\d[\d.,]*(?!\w)", "N", re.split(r"[:;(]", text)[0].strip())
    return re.sub(r"\bN ((?:[a-z]+ed )?[a-z]{3,}?)s?\b", r"N \1s", numbered)


def _validation(path: Path) -> dict[str, Any] | None:
    """Return the results of `vidprep validate`; None if it never ran."""
    table = read_results(path)
    if table is None:
        return None
    seeks: dict[str, Counter[str]] = defaultdict(Counter)
    for each in table["seeks"].to_pylist():
        for loader in each or ():
            seeks[loader["loader"]].update({name: loader[name] for name in ("tried", "wrong", "unread")})
    return {
        "when": _span(table, "checked_at") or _format_time((path / VALIDATION_NAME).stat().st_mtime),
        "videos": table.num_rows,
        "faults": [fault for faults in table["faults"].to_pylist() for fault in faults or ()],
        "scored_against_source": len(numbers(table, "psnr_y_db")),
        "scored_when": _span(table, "scored_at"),
        "scored_by_ffmpeg": len(numbers(table, "ffmpeg_psnr_y_db")),
        "vmaf": _distribution(numbers(table, "vmaf")),
        "vmaf_model": _models(table),
        "xpsnr_db": _distribution(numbers(table, "xpsnr_db")),
        "seeks": {name: dict(counts) for name, counts in seeks.items()},
    }


def _models(table: pa.Table) -> str:
    """Return the VMAF models in a table, one after the other."""
    return ", ".join(sorted({model for model in table["vmaf_model"].to_pylist() if model}))


def _span(table: pa.Table, name: str) -> str | None:
    """Return the first and last time by the minute; None without times."""
    first, last = (
        None if (seconds := end(table[name]).as_py()) is None else _format_time(seconds) for end in (pc.min, pc.max)
    )
    return first if first == last else f"{first} to {last}"


def _format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _sum(table: pa.Table, name: str) -> Any:
    return pc.sum(table[name]).as_py() or 0


def _count(table: pa.Table, name: str) -> int:
    return pc.sum(table[name]).as_py() or 0


def _remarks(table: pa.Table) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return (id, text) of all warnings, and of all notes."""
    warnings: list[tuple[str, str]] = []
    notes: list[tuple[str, str]] = []
    for id_, texts, codes in zip(
        *(table[name].to_pylist() for name in ("id", "warnings", "warning_codes")), strict=True
    ):
        for text, code in zip_longest(texts or (), codes or ()):  # vidprep 0.1 wrote no codes
            (notes if code in NOTES else warnings).append((id_, text or ""))
    return warnings, notes
