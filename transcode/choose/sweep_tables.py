"""Summarise the cells of a sweep: rate-distortion curves, sizes at equal PSNR, Bjøntegaard deltas.

A curve is a list of (bytes, dB), one point for each CRF or quality, in any order.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

Curve = Sequence[tuple[float, float]]

OTHER_SCORES = ("vmaf", "xpsnr_db")  # besides those that are always taken
MIN_POINTS = 4
# One grey level is 1/255 of the range of a JPEG's luma and 1/219 of a video's (chroma 1/224): the same error in the picture
# scores so many dB less there. ITU-T H.273, "VideoFullRangeFlag".
LUMA_GAIN_DB = 20 * math.log10(255 / 219)
CHROMA_GAIN_DB = 20 * math.log10(255 / 224)


def bd_rate(anchor: Curve, test: Curve) -> float | None:
    """Return how much more (0.1: 10 %) or less the test takes than the anchor at equal PSNR, on average over the dB that
    both reach.

    G. Bjøntegaard, "Calculation of average PSNR differences between RD-curves", ITU-T VCEG-M33, 2001: log10 of the rate
    as a cubic of the PSNR, integrated over the common interval. None with fewer than four finite points on a side, or
    nothing in common.
    """
    curves = [_finite(anchor), _finite(test)]
    if any(len(curve) < MIN_POINTS for curve in curves):
        return None
    low = max(min(db for _, db in curve) for curve in curves)
    high = min(max(db for _, db in curve) for curve in curves)
    if low >= high:
        return None
    means = []
    for curve in curves:
        middle = (low + high) / 2
        db = np.array([point[1] for point in curve]) - middle
        integral = np.polynomial.Polynomial.fit(db, np.log10([point[0] for point in curve]), 3).integ()
        means.append((integral(high - middle) - integral(low - middle)) / (high - low))
    return float(10 ** (means[1] - means[0]) - 1)


def size_at(curve: Curve, db: float) -> float | None:
    """Return the size in bytes at a PSNR, interpolated between neighbouring points, with its logarithm linear in dB. None
    outside.
    """
    log_size = value_at([(math.log(size), point_db) for size, point_db in _finite(curve)], db)
    return None if log_size is None else math.exp(log_size)


def value_at(values: Sequence[tuple[float, float]], db: float) -> float | None:
    """Return a CRF, quality or other figure at a PSNR, interpolated linearly between neighbouring points. None outside."""
    points = sorted((point for point in values if math.isfinite(point[1])), key=lambda point: point[1])
    for (low_value, low), (high_value, high) in pairwise(points):
        if low <= db <= high:
            part = (db - low) / (high - low) if high > low else 0.0
            return low_value + part * (high_value - low_value)
    return None


def scale_to_limited(luma_db: float, planes_db: float) -> tuple[float, float]:
    """Convert PSNR-Y and PSNR-YUV of full-range 4:2:0 planes to the values of limited range."""
    luma, planes = (10 ** (-db / 10) for db in (luma_db, planes_db))
    chroma = max(0.0, 6 * planes - 4 * luma)
    luma, chroma = luma * 10 ** (-LUMA_GAIN_DB / 10), chroma * 10 ** (-CHROMA_GAIN_DB / 10)
    both = (4 * luma + chroma) / 6
    return (-10 * math.log10(luma) if luma else math.inf), (-10 * math.log10(both) if both else math.inf)


def _finite(curve: Curve) -> list[tuple[float, float]]:
    return [point for point in curve if point[0] > 0 and math.isfinite(point[1])]


SUMMARY_NAME, SWEEP_FORMAT = "sweep.json", "vidprep sweep 1"
SweepRow = Mapping[str, Any]
# A still scene may lose nothing at all: so that it does not carry the mean off, more than this counts as this.
MAX_DB = 60.0
MIN_CPU_SECONDS = 0.001  # if CPU time is counted in ticks of 10 ms, it may be 0 for short clips


def curves_of(
    rows: Sequence[SweepRow],
    timed: Sequence[SweepRow],
    png: Mapping[str, Mapping[str, float]],
    *,
    at_db: float,
    anchor: str,
) -> dict[str, Any]:
    """Return a curve for each codec, GOP and preset, from the videos that all cells have.

    Args:
        rows: Rows of the cells.
        timed: Read times of the cells.
        png: Sizes of the same frames as PNG.
        at_db: PSNR at which sizes are compared.
        anchor: Name of the curve that others are compared with.
    """
    by_cell: dict[str, dict[str, SweepRow]] = defaultdict(dict)
    for row in rows:
        by_cell[row["cell"]][row["id"]] = row
    ids = sorted(set.intersection(*(set(points) for points in by_cell.values()))) if by_cell else []
    times = {row["cell"]: row for row in timed}
    cells = [_cell(name, [points[id_] for id_ in ids], times[name]) for name, points in by_cell.items()] if ids else []
    names = list(dict.fromkeys(cell["curve"] for cell in cells))
    png_bytes = sum(png[id_]["size_bytes"] for id_ in ids) if png else None
    frames = sum(by_cell[cells[0]["cell"]][id_]["num_frames"] for id_ in ids) if cells else 0
    return {
        "compared_videos": ids,
        "num_frames": frames,
        "png": {
            "size_bytes": png_bytes,
            "ms_per_frame": statistics.median(png[id_]["ms_per_frame"] for id_ in ids),
            "measured_frames": sum(png[id_]["measured"] for id_ in ids),
        }
        if png_bytes
        else None,
        "cells": cells,
        "at_psnr": {"psnr_y_db": at_db, "curves": [_figures_at(name, cells, at_db) for name in names]},
        "bd_rate": {
            "anchor": anchor,
            "curves": _deltas(rows, names, ids, "psnr_y_db"),
            "by_score": {
                score: _deltas(rows, names, ids, score)
                for score in OTHER_SCORES
                if any(row.get(score) is not None for row in rows)
            },
        },
    }


def _deltas(rows: Sequence[SweepRow], names: Sequence[str], ids: Sequence[str], score: str) -> dict[str, Any]:
    """Return the delta of each curve against each other one, by a score."""
    per_video: dict[str, dict[str, list[tuple[float, float]]]] = {name: defaultdict(list) for name in names}
    for row in rows:
        if row.get(score) is not None:
            per_video[row["curve"]][row["id"]].append((row["size_bytes"], row[score]))
    return {name: {other: _mean_delta(per_video[other], per_video[name], ids) for other in names} for name in names}


def _cell(name: str, rows: list[SweepRow], times: SweepRow) -> dict[str, Any]:
    frames = sum(row["num_frames"] for row in rows)
    means = {
        key: statistics.mean(min(score, MAX_DB) if key.endswith("_db") else score for score in scores)
        for key in ("psnr_y_db", "psnr_yuv_db", "psnr_y_p1_db", "ssim", *OTHER_SCORES)
        if (scores := [row[key] for row in rows if row.get(key) is not None])
    }
    sums = {key: sum(row[key] for row in rows) for key in ("size_bytes", "cpu_seconds", "encode_seconds")}
    first = {key: rows[0][key] for key in ("curve", "codec", "gop", "preset", "value")}
    return (
        {"cell": name}
        | first
        | means
        | sums
        | {
            "bytes_per_frame": sums["size_bytes"] / frames,
            "frames_per_cpu_second": frames / max(sums["cpu_seconds"], MIN_CPU_SECONDS),
            "ms_per_frame": times["ms_per_frame"],
            "ms_per_sequence": times["ms_per_sequence"],
        }
    )


def _figures_at(name: str, cells: Sequence[SweepRow], db: float) -> dict[str, Any]:
    """Return the figures of a curve at one PSNR, each None if the cells do not lie on both sides of it, and the range that
    the curve reaches.
    """
    mine = [cell for cell in cells if cell["curve"] == name]
    return {
        "curve": name,
        "size_bytes": size_at([(cell["size_bytes"], cell["psnr_y_db"]) for cell in mine], db),
        "reaches": [min(cell["psnr_y_db"] for cell in mine), max(cell["psnr_y_db"] for cell in mine)],
    } | {
        key: value_at([(cell[key], cell["psnr_y_db"]) for cell in mine], db)
        for key in ("value", "ms_per_frame", "ms_per_sequence", "frames_per_cpu_second", "ssim")
    }


def _mean_delta(
    anchor: Mapping[str, list[tuple[float, float]]], test: Mapping[str, list[tuple[float, float]]], ids: Sequence[str]
) -> dict[str, Any]:
    """Return the mean delta over videos on which both curves have four points and a common range of PSNR."""
    deltas = [delta for id_ in ids if (delta := bd_rate(anchor[id_], test[id_])) is not None]
    return {"mean": statistics.mean(deltas) if deltas else None, "videos": len(deltas)}


def common_rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each curve at the common quality: value, size, ratios to PNG and JPEG, read times."""
    curves, png = summary["at_psnr"]["curves"], summary["png"]
    jpeg = next((curve["size_bytes"] for curve in curves if curve["curve"] == "jpeg"), None)
    rows = []
    for curve in curves:
        size = curve["size_bytes"]
        less = {
            name: other / size if other and size else None
            for name, other in (("png", png and png["size_bytes"]), ("jpeg", jpeg))
        }
        rows.append({**curve, **less})
    if png:
        rows.append({"curve": "png", **png, "png": 1.0, "jpeg": jpeg / png["size_bytes"] if jpeg else None})
    return rows
