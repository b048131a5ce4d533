"""Statistics of rows and pictures of robots in the form that LeRobot reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
Values = npt.NDArray[np.float64]
Statistics = dict[str, Values]


def number_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of values, or of what is in their lists."""
    while pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind


def is_numeric(kind: pa.DataType) -> bool:
    """Return whether values are numbers or truth values, or lists of them."""
    kind = number_type(kind)
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def statistics_of(values: npt.NDArray[Any]) -> Statistics:
    """Return statistics of (L,) values, (1,) each, or of (L, …, D) values, (D,) each; those that are no number do not count.
    Quantiles are exact.
    """
    array = np.asarray(values, np.float64)
    array = array.reshape(-1, 1 if array.ndim == 1 else array.shape[-1])
    array = array[np.isfinite(array).all(1)] if np.isfinite(array).all(1).any() else np.zeros((1, array.shape[1]))
    quantiles = {name: np.quantile(array, at, axis=0) for name, at in QUANTILES.items()}
    return {
        "min": array.min(0),
        "max": array.max(0),
        "mean": array.mean(0),
        "std": array.std(0),
        "count": np.array([len(values)]),
        **quantiles,
    }


def statistics_of_pictures(frames: Sequence[npt.NDArray[np.uint8]]) -> Statistics:
    """Return statistics of (H, W, 3) frames for each channel, (3, 1, 1), from 0 to 1; `count` is the number of frames."""
    counts = np.array(
        [
            np.sum([np.bincount(frame[..., channel].reshape(-1), minlength=256) for frame in frames], 0)
            for channel in range(3)
        ]
    )
    levels, shares = np.arange(256) / 255.0, counts / counts.sum(1, keepdims=True)
    mean = shares @ levels
    there = counts > 0
    upto = np.cumsum(shares, 1)
    made = {
        "min": levels[there.argmax(1)],
        "max": levels[255 - there[:, ::-1].argmax(1)],
        "mean": mean,
        "std": np.sqrt(np.maximum(0.0, shares @ levels**2 - mean**2)),
        **{name: levels[(upto >= at - 1e-12).argmax(1)] for name, at in QUANTILES.items()},
    }
    return {**{name: each.reshape(3, 1, 1) for name, each in made.items()}, "count": np.array([len(frames)])}


def numbers_of(column: pa.ChunkedArray) -> Values:
    """Return numbers as (L, 1), and lists of them as (…, D); empty cells become NaN. Raises ValueError for lists of different lengths."""
    width = 1
    while pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
        lengths = pc.unique(pc.list_value_length(column)).to_pylist()
        if len(lengths) > 1 or None in lengths:
            raise ValueError(f"lists of different lengths: {lengths[:5]}")
        width, column = lengths[0] if lengths else width, pc.list_flatten(column)
    return np.asarray(column.cast(pa.float64()).to_numpy()).reshape(-1, max(1, width))


def statistics_of_rows(table: pa.Table) -> dict[str, Statistics]:
    """Return statistics of all columns of numbers, if all rows have as many."""
    statistics = {}
    for name in table.column_names:
        if is_numeric(table.schema.field(name).type):
            with suppress(ValueError, pa.ArrowException):  # lists of different lengths
                statistics[name] = statistics_of(numbers_of(table[name])) | {"count": np.array([len(table)])}
    return statistics


def join_statistics(several: Sequence[Mapping[str, Statistics]]) -> dict[str, Statistics]:
    """Return the statistics of a dataset from those of its episodes, by LeRobot's rules: moments are exact, quantiles are the outermost
    of the episodes (`aggregate_feature_stats` in lerobot/datasets/compute_stats.py).
    """
    joined = {}
    for name in dict.fromkeys(name for episode in several for name in episode):
        each = [episode[name] for episode in several if name in episode]
        if len({stats["mean"].shape for stats in each}) > 1:
            continue  # lists of other lengths in other episodes
        counts = np.stack([stats["count"].astype(np.float64) for stats in each])
        means, deviations = (np.stack([stats[kind] for stats in each]) for kind in ("mean", "std"))
        weights = counts.reshape(-1, *[1] * (means.ndim - 1))
        mean = (means * weights).sum(0) / weights.sum()
        variance = ((deviations**2 + (means - mean) ** 2) * weights).sum(0) / weights.sum()
        joined[name] = {
            "min": np.min([stats["min"] for stats in each], 0),
            "max": np.max([stats["max"] for stats in each], 0),
            "mean": mean,
            "std": np.sqrt(variance),
            "count": counts.sum(0).astype(np.int64),
        }
        for quantile, at in QUANTILES.items():
            outermost = np.min if at <= 0.5 else np.max
            if all(quantile in stats for stats in each):
                joined[name][quantile] = outermost([stats[quantile] for stats in each], 0)
    return joined
