"""Rows of LeRobot episodes at another rate, and their statistics in the form that LeRobot reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
NUMBERED = ("timestamp", "frame_index", "episode_index", "index")
Numbers = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
Statistics = dict[str, Values]


def rows_at(table: pa.Table, kept: Numbers, actions: str) -> pa.Table:
    """Return the rows of an episode that are kept.

    A row keeps its states. Its action is that of the rows from it to the next one that is kept: the last of them, their mean, or their sum.
    Of columns `next.…`, which say what follows, truth values hold if one of these rows has them, `next.reward` is summed up, and of others
    the last one is taken.

    Args:
        table: (L, …) all rows of the episode, in order.
        kept: (K,) which of them, ascending.
        actions: `last`, `mean` or `sum`.
    """
    if np.array_equal(kept, np.arange(len(table))):
        return table
    columns = {}
    for name in table.column_names:
        column = table[name]
        if name == "action" or name.startswith("action."):
            columns[name] = _grouped(column, kept, actions)
        elif name.startswith("next."):
            rule = "any" if pa.types.is_boolean(column.type) else "sum" if name == "next.reward" else "last"
            columns[name] = _grouped(column, kept, rule)
        else:
            columns[name] = column.take(pa.array(kept))
    return pa.table(columns, schema=table.schema)


def _grouped(column: pa.ChunkedArray, kept: Numbers, rule: str) -> pa.ChunkedArray | pa.Array:
    """Return one value for each group of rows, which begins with a row that is kept."""
    if rule == "last" or not _is_numeric(column.type):
        return column.take(pa.array(np.append(kept[1:], len(column)) - 1))
    values = np.asarray(column.to_pylist())
    if rule == "any":
        return pa.array(np.logical_or.reduceat(values, kept))
    sums = np.add.reduceat(values.astype(np.float64), kept, axis=0)
    if rule == "mean":
        counts = np.diff(np.append(kept, len(column)))
        sums = sums / counts.reshape(-1, *[1] * (sums.ndim - 1))
    value_type = column.type.value_type if sums.ndim > 1 else column.type
    rounded = np.rint(sums) if pa.types.is_integer(value_type) else sums
    return pa.array(rounded.astype(value_type.to_pandas_dtype()).tolist(), column.type)


def _is_numeric(kind: pa.DataType) -> bool:
    """Return whether values are numbers or truth values, or lists of them."""
    while pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def numbered(table: pa.Table, episode: int, first: int, rate: float) -> pa.Table:
    """Return rows with new numbers and times.

    Args:
        table: (L, …) rows of an episode.
        episode: Number of the episode.
        first: Number of its first row in the dataset.
        rate: Rows per second.
    """
    frames = np.arange(len(table))
    values: dict[str, npt.NDArray[Any]] = {
        "timestamp": (frames / rate).astype(np.float32),
        "frame_index": frames.astype(np.int64),
        "episode_index": np.full(len(table), episode, np.int64),
        "index": (frames + first).astype(np.int64),
    }
    for name in NUMBERED:
        made = pa.array(values[name])  # one value in each row, as LeRobot reads them
        table = table.set_column(table.column_names.index(name), pa.field(name, made.type), made)
    return table


def statistics_of(values: npt.NDArray[Any]) -> Statistics:
    """Return statistics of (L,) values, (1,) each, or of (L, …, D) values, (D,) each; those that are no number do not count.
    Quantiles are exact.
    """
    found = np.asarray(values, np.float64)
    found = found.reshape(-1, 1 if found.ndim == 1 else found.shape[-1])
    found = found[np.isfinite(found).all(1)] if np.isfinite(found).all(1).any() else np.zeros((1, found.shape[1]))
    quantiles = {name: np.quantile(found, at, axis=0) for name, at in QUANTILES.items()}
    return {
        "min": found.min(0),
        "max": found.max(0),
        "mean": found.mean(0),
        "std": found.std(0),
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


def statistics_of_rows(table: pa.Table) -> dict[str, Statistics]:
    """Return statistics of all columns of numbers, if all rows have as many."""
    found = {}
    for name in table.column_names:
        if _is_numeric(table.schema.field(name).type):
            with suppress(ValueError):  # lists of different lengths
                found[name] = statistics_of(np.asarray(table[name].to_pylist(), np.float64))
    return found


def joined_statistics(several: Sequence[Mapping[str, Statistics]]) -> dict[str, Statistics]:
    """Return the statistics of a dataset from those of its episodes, by LeRobot's rules: moments are exact, quantiles are the outermost
    of the episodes (`aggregate_feature_stats` in lerobot/datasets/compute_stats.py).
    """
    joined = {}
    for name in several[0] if several else ():
        each = [episode[name] for episode in several if name in episode]
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
            joined[name][quantile] = outermost([stats[quantile] for stats in each], 0)
    return joined
