"""Values that belong to frames, such as states and actions of a robot: for each clip those of exactly its frames."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from vidprep.formats.errors import SettingsError, StoreError
from vidprep.formats.lerobot import INFO_NAME, LeRobotDataset
from vidprep.formats.storage import ArrowStream, SharedTable
from vidprep.formats.stores import Ids

ID, FRAME, TIME = "id", "frame", "time"
OF_LEROBOT = ("episode_index", "frame_index")
RowSource = str | os.PathLike[str] | ArrowStream


class FrameRows:
    """The rows of a table, by video and frame. Shared with worker processes.

    Args:
        source: A table with the columns `id`, and `frame` (from 0) or `time` (s): a Parquet or CSV file, or a table of Arrow, pandas or
            polars; or the folder of a LeRobot dataset. Its other columns are the values: numbers, or lists of as many numbers in all rows.
        ids: Ids of the videos of the dataset.
        num_frames: (V,) number of frames of each.

    Raises:
        SettingsError: The table does not fit, or a video or a frame has no row, or two.
    """

    def __init__(self, source: RowSource, ids: Ids, num_frames: npt.NDArray[np.int64]) -> None:
        table = _table(source)
        names = [name for name in table.column_names if name not in (ID, FRAME, TIME)]
        if ID not in table.column_names or (FRAME in table.column_names) == (TIME in table.column_names) or not names:
            raise SettingsError(
                f"rows has the columns {', '.join(table.column_names)}; give id, and frame or time, and values of the frames"
            )
        self.is_by_time = TIME in table.column_names
        places = ids.places(Ids.of_column(pc.cast(table[ID], pa.string())))
        table, places = table.filter(pa.array(places >= 0)), places[places >= 0]
        by = table[TIME if self.is_by_time else FRAME].to_numpy().astype(np.float64)
        order = np.lexsort((by, places))
        counts = np.bincount(places, minlength=len(num_frames))
        self._firsts = np.concatenate([[0], np.cumsum(counts)])
        self._check(ids, num_frames, counts, by[order])
        values = {name: _values(name, table[name].take(pa.array(order))) for name in names}
        if self.is_by_time:
            values[TIME] = pa.array(by[order])
        self._table = SharedTable(pa.table(values))

    def _check(
        self, ids: Ids, num_frames: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], by: npt.NDArray[np.float64]
    ) -> None:
        """Raise SettingsError unless each frame has one row, or each video has rows in time."""
        if self.is_by_time:
            if not counts.all():
                raise SettingsError(f"rows has none of {ids[int(np.argmin(counts))]!r}")
            return
        if (wrong := np.flatnonzero(counts != num_frames)).size:
            at = int(wrong[0])
            raise SettingsError(f"rows has {counts[at]} of {ids[at]!r}, which has {num_frames[at]} frames")
        due = np.arange(len(by)) - np.repeat(self._firsts[:-1], counts)
        if (wrong := np.flatnonzero(by != due)).size:
            at = int(np.searchsorted(self._firsts, wrong[0], side="right")) - 1
            raise SettingsError(f"rows has none, or two, of frame {due[wrong[0]]} of {ids[at]!r}")

    def __getstate__(self) -> dict[str, Any]:
        return {"is_by_time": self.is_by_time, "_firsts": self._firsts, "_table": self._table}

    @cached_property
    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        assert self._table.table is not None
        return {name: _as_array(self._table.table[name]) for name in self._table.table.column_names}

    def of(
        self, video: int, id_: str, numbers: npt.NDArray[np.int64], timestamps: npt.NDArray[np.float64]
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the values of frames, (T,) or (T, D) each. By time, a frame has the row that is nearest.

        Args:
            video: Number of the video among the ids.
            id_: Its id, for messages.
            numbers: (T,) numbers of the frames.
            timestamps: (T,) their times in seconds.

        Raises:
            StoreError: A frame is farther from the nearest row than rows are from each other.
        """
        part = slice(self._firsts[video], self._firsts[video + 1])
        if not self.is_by_time:
            return {name: values[part][numbers] for name, values in self._columns.items()}
        times = self._columns[TIME][part]
        after = np.searchsorted(times, timestamps)
        left, right = (np.clip(each, 0, len(times) - 1) for each in (after - 1, after))
        nearest = np.where(timestamps - times[left] <= times[right] - timestamps, left, right)
        off = np.abs(times[nearest] - timestamps)
        worst = int(np.argmax(off))
        if len(times) > 1 and off[worst] > np.diff(times).max():
            raise StoreError(f"{id_}: frame {numbers[worst]} at {timestamps[worst]:.6g} s has no row near it")
        return {name: values[part][nearest] for name, values in self._columns.items()}


def _table(source: RowSource) -> pa.Table:
    """Return the table of a source. Raises SettingsError."""
    try:
        if not isinstance(source, str | os.PathLike):
            return pa.table(source)
        path = Path(source)
        if (path / INFO_NAME).is_file():
            return pa.concat_tables(_of_robot(LeRobotDataset.read(path)), promote_options="default")
        return pyarrow.csv.read_csv(path) if path.suffix == ".csv" else pq.read_table(path, partitioning=None)
    except (OSError, ValueError, TypeError, LookupError, pa.ArrowException) as error:
        raise SettingsError(f"rows={str(source)[:200]!r} cannot be read: {error}") from error


def _of_robot(found: LeRobotDataset) -> Iterator[pa.Table]:
    """Yield the rows of each episode and camera, with the id that the camera's video has in a store of the dataset."""
    tables: dict[str, dict[int, pa.Table]] = {}
    for episode in found.episodes:
        if episode.data not in tables:
            tables = {episode.data: found.tables_of(episode.data)}
        rows = tables[episode.data][episode.number]
        kept = [
            name
            for name in rows.column_names
            if name not in (ID, FRAME, TIME) and _is_numeric(rows.schema.field(name).type)
        ]
        frames = rows["frame_index"].to_numpy()
        for part in episode.videos.values():
            id_ = part.path.rpartition(".")[0]
            first = round(part.start * found.rate)
            named = {ID: pa.array([id_] * len(rows)), FRAME: pa.array(frames + first)}
            yield pa.table({**named, **{name: rows[name] for name in kept if name not in OF_LEROBOT}})


def _is_numeric(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _values(name: str, column: pa.ChunkedArray) -> pa.Array:
    """Return values as numbers, or as lists of one length. Raises SettingsError."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if array.null_count or not _is_numeric(array.type):
        raise SettingsError(
            f"rows has a column {name} of {array.type}, or with empty cells; give numbers, or lists of numbers"
        )
    if pa.types.is_boolean(array.type):
        return array.cast(pa.uint8())
    if not (pa.types.is_list(array.type) or pa.types.is_fixed_size_list(array.type)):
        return array
    lengths = pc.unique(pc.list_value_length(array))
    if len(lengths) != 1:
        raise SettingsError(f"rows has lists of different lengths in the column {name}")
    return pa.FixedSizeListArray.from_arrays(pc.list_flatten(array), lengths[0].as_py())


def _as_array(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return (N,) or (N, D) values."""
    if not pa.types.is_fixed_size_list(column.type):
        return np.asarray(column.to_numpy())
    return np.asarray(pc.list_flatten(column).to_numpy()).reshape(-1, column.type.list_size)
