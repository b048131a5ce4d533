"""Rows of LeRobot episodes at another rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from vidprep.transcode.audit.statistics import is_numeric, number_type

NUMBERED = ("timestamp", "frame_index", "episode_index", "index")
Numbers = npt.NDArray[np.int64]


def rows_at(table: pa.Table, kept: Numbers, actions: str, lost: Counter[str] | None = None) -> pa.Table:
    """Return the rows of an episode that are kept. Each stands for the rows from it to the next one that is kept.

    It keeps its states. Of actions it gets the last one of these rows, their mean, or their sum; of truth values whether one of them holds;
    of `next.reward` the sum, and of other columns `next.…` the last one. Lists that differ from row to row, such as events in words, are
    joined, and a text that stands in few rows is carried to it.

    Args:
        table: (L, …) all rows of the episode, in order.
        kept: (K,) which of them, ascending.
        actions: `last`, `mean` or `sum`.
        lost: Counts for each column the texts for which there is no place.
    """
    if np.array_equal(kept, np.arange(len(table))):
        return table
    columns = {}
    for name in table.column_names:
        column, kind = table[name], table.schema.field(name).type
        if name == "action" or name.startswith("action."):
            columns[name] = _group(column, kept, actions)
        elif pa.types.is_boolean(number_type(kind)):
            columns[name] = _any(column, kept)
        elif name.startswith("next."):
            columns[name] = _group(column, kept, "sum" if name == "next.reward" else "last")
        elif (
            pa.types.is_list(kind)
            and not is_numeric(kind)
            and not column.slice(1).equals(column.slice(0, len(column) - 1))
        ):
            columns[name] = _join(column, kept)
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            columns[name], count = _carry(column, kept)
            if lost is not None and count:
                lost[name] += count
        else:
            columns[name] = column.take(pa.array(kept))
    return pa.table(columns, schema=table.schema)


def _groups(column: pa.ChunkedArray, kept: Numbers) -> Iterator[list[Any]]:
    """Yield the values of the rows from one that is kept to the next."""
    values = column.to_pylist()
    for begin, end in pairwise([*kept.tolist(), len(values)]):
        yield values[begin:end]


def _any(column: pa.ChunkedArray, kept: Numbers) -> pa.Array:
    """Return whether a row of each group has a truth value; of lists, one by one."""
    if not pa.types.is_boolean(column.type):
        return pa.array(np.logical_or.reduceat(np.asarray(column.to_pylist()), kept).tolist(), column.type)
    return pa.array([True if True in group else group[0] for group in _groups(column, kept)], column.type)


def _join(column: pa.ChunkedArray, kept: Numbers) -> pa.Array:
    """Return the lists of each group as one."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    offsets = np.append(0, np.cumsum(lengths))[np.append(kept, len(column))]
    values = pc.list_flatten(column).combine_chunks()
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, type=column.type)


def _carry(column: pa.ChunkedArray, kept: Numbers) -> tuple[pa.Array, int]:
    """Return the first text of each group, and how many more there are. Where each row has one, it is a state: that of the row is kept."""
    groups = list(_groups(column, kept))
    if all(map(all, groups)):
        return column.take(pa.array(kept)), 0
    distinct = [list(dict.fromkeys(filter(None, group))) for group in groups]
    texts = [each[0] if each else group[0] for each, group in zip(distinct, groups, strict=True)]
    return pa.array(texts, column.type), sum(max(0, len(each) - 1) for each in distinct)


def _group(column: pa.ChunkedArray, kept: Numbers, rule: str) -> pa.ChunkedArray | pa.Array:
    """Return one value for each group of rows, which begins with a row that is kept."""
    if rule == "last" or not is_numeric(column.type):
        return column.take(pa.array(np.append(kept[1:], len(column)) - 1))
    values = np.asarray(column.to_pylist(), np.float64)  # an empty cell becomes NaN
    is_known = ~np.isnan(values) if values.ndim == 1 else np.ones(len(values), np.bool_)
    counts = np.add.reduceat(is_known, kept)
    sums = np.add.reduceat(values if values.ndim > 1 else np.where(is_known, values, 0.0), kept, axis=0)
    if rule == "mean":
        sums = sums / np.maximum(1, counts).reshape(-1, *[1] * (sums.ndim - 1))
    value_type = number_type(column.type)
    rounded = np.rint(sums) if pa.types.is_integer(value_type) else sums
    return pa.array(rounded.astype(value_type.to_pandas_dtype()).tolist(), column.type, mask=counts == 0)


def number_rows(table: pa.Table, episode: int, first: int, rate: float) -> pa.Table:
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
