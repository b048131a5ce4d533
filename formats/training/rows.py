"""Values that belong to frames, such as states and actions of a robot: for each clip those of exactly its frames."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from vidprep.formats.errors import SettingsError, count_of
from vidprep.formats.lerobot import INFO_NAME, LeRobotDataset
from vidprep.formats.storage.shared import SharedTable
from vidprep.formats.storage.untrusted import ArrowStream, open_regular, read_parquet, use_plain_types
from vidprep.formats.stores.ids import Ids
from vidprep.formats.training.items import ItemLabels

ID, FRAME, TIME = "id", "frame", "time"
OF_LEROBOT = ("episode_index", "frame_index")
USUAL = 0.9  # quantile of the distances between rows
HOLE = 1.5  # usual distances between rows; more is a hole
UNITS = {"milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
SINCE_1970 = 1e8  # seconds; no video lasts three years
RowSource = str | os.PathLike[str] | ArrowStream
RowsGap = Literal["error", "hold"]
Numbers = npt.NDArray[np.int64]
Times = npt.NDArray[np.float64]


def rows_at_times(times: Times, due: Times, gap: RowsGap) -> Numbers:
    """Return for each frame the row that is nearest in time; of rows at the same time the last one.

    Args:
        times: (R,) when rows were recorded, in seconds from the first frame of the source, in any order.
        due: (T,) when frames are shown in the source, ascending.
        gap: "hold" gives frames in a hole, or past the end, the row before.

    Raises:
        ValueError: A time is no number, or in another unit; or a frame has no row near it.
    """
    if not len(times) or not np.isfinite(times).all():
        raise ValueError("a time that is no number" if len(times) else "no row")
    order = np.argsort(times, kind="stable")
    order = order[np.append(np.diff(times[order]) > 0, True)]
    there = times[order]
    # Most distances are at most this. The median of rows that are written in bursts would be too small.
    usual = float(np.quantile(np.diff(there), USUAL, method="lower")) if len(there) > 1 else 0.0
    _check_unit(there, due, usual)
    after = np.searchsorted(there, due)
    before, after = np.clip(after - 1, 0, len(there) - 1), np.clip(after, 0, len(there) - 1)
    nearest = np.where(due - there[before] <= there[after] - due, before, after)
    is_outside = (due < there[0]) | (due > there[-1])
    is_far = np.abs(there[nearest] - due) > usual * np.where(is_outside, HOLE, HOLE / 2) + 1e-6
    if is_far.any() and gap == "error":
        raise ValueError(_hole(there, due, int(np.argmax(is_far)), usual))
    return np.asarray(order[np.where(is_far, before, nearest)])


def _check_unit(there: Times, due: Times, usual: float) -> None:
    """Raise ValueError if times seem to be in another unit, or to count from another moment."""
    seconds = float(due[-1]) if len(due) > 1 else 0.0
    if there[0] > SINCE_1970:
        unit = "of a clock"
    elif seconds and there[-1] > 300 * seconds and usual > 10 * float(np.median(np.diff(due))):
        unit = "in " + min(UNITS, key=lambda name: abs(np.log(there[-1] / seconds / UNITS[name])))
    else:
        return
    raise ValueError(
        f"times from {there[0]:.6g} to {there[-1]:.6g}, and the video ends at {due[-1]:.4g} s: they seem to be {unit}; times count "
        "from the first frame of the source, in seconds"
    )


def _hole(there: Times, due: Times, frame: int, usual: float) -> str:
    """Say where rows are missing."""
    at = int(np.searchsorted(there, due[frame]))
    begin = there[at - 1] if at else 0.0
    end = there[at] if at < len(there) else due[-1]
    apart = f", usually {usual:.3g} s apart" if usual else ""
    return (
        f"no row from {begin:.4g} to {end:.4g} s ({end - begin:.3g} s), where the frame at {due[frame]:.4g} s of the source needs one; "
        f"{count_of(len(there), 'row')}{apart}; rows_gap='hold' (--rows-gap hold) takes the row before"
    )


def rows_of_frames(numbers: Times, due: Numbers) -> Numbers:
    """Return the row of each frame. Raises ValueError if a frame has none, or two.

    Args:
        numbers: (R,) number of the frame of each row, in any order.
        due: (T,) numbers of frames.
    """
    if not len(numbers):
        raise ValueError("no row")
    order = np.argsort(numbers, kind="stable")
    there = numbers[order]
    if (same := np.flatnonzero(np.diff(there) == 0)).size:
        raise ValueError(f"two rows of frame {there[same[0]]}")
    places = np.clip(np.searchsorted(there, due), 0, len(there) - 1)
    if (lacking := np.flatnonzero(there[places] != due)).size:
        raise ValueError(f"no row of frame {due[lacking[0]]} of the source, and {len(there)} of others")
    return np.asarray(order[places])


class FrameRows:
    """The rows of a table, by video and frame. Shared with worker processes.

    Args:
        source: A table with the columns `id`, and `frame` (from 0) or `time` (s), both of the source and from its first frame: a Parquet or
            CSV file, or a table of Arrow, pandas or polars; or the folder of the LeRobot dataset that the videos belong to. Its other
            columns are the values: numbers, texts, or lists of as many numbers in all rows.
        ids: Ids of the videos of the dataset.
        gap: What happens to a frame without a row near it: "error", or "hold", which takes the row before.
        deltas: For some columns, which rows to give, counted from that of the first frame of a clip.

    Raises:
        SettingsError: The table does not fit.
    """

    def __init__(
        self, source: RowSource, ids: Ids, gap: RowsGap = "error", deltas: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        table, self.is_of_store = _table(source)
        names = [name for name in table.column_names if name not in (ID, FRAME, TIME)]
        if ID not in table.column_names or (FRAME in table.column_names) == (TIME in table.column_names) or not names:
            raise SettingsError(
                f"rows has the columns {', '.join(table.column_names)}; give id, and frame or time, and values of the frames"
            )
        if gap not in get_args(RowsGap):
            raise SettingsError(f"rows_gap is {gap!r}; give error or hold")
        self.gap, self.deltas = gap, {name: _check_deltas(name, each, names) for name, each in (deltas or {}).items()}
        self.by = TIME if TIME in table.column_names else FRAME
        try:
            places = ids.places(Ids.build(pc.cast(table[ID], pa.string())))
            table, places = table.filter(pa.array(places >= 0)), places[places >= 0]
            by = table[self.by].cast(pa.float64()).to_numpy()
        except (KeyError, ValueError, pa.ArrowException) as error:
            raise SettingsError(f"rows has a column {ID} or {self.by} that is not text and numbers: {error}") from error
        if not len(table):
            raise SettingsError(f"rows has no row of the {len(ids)} videos, such as {ids[0]!r}")
        order = np.lexsort((by, places))
        self._firsts = np.concatenate([[0], np.cumsum(np.bincount(places, minlength=len(ids)))])
        taken = table.take(pa.array(order))
        values = {name: _values(name, taken[name]) for name in names} | {self.by: pa.array(by[order])}
        self._table = SharedTable(pa.table(values))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_columns"}

    @cached_property
    def _columns(self) -> dict[str, Any]:
        assert self._table.table is not None
        return {name: _convert_column(self._table.table[name]) for name in self._table.table.column_names}

    def places_in_video(self, video: int, id_: str, source_frames: Numbers, source_times: Times) -> Numbers:
        """Return the place of the row of each frame of a video among all rows.

        Args:
            video: Number of the video among the ids.
            id_: Its id, for messages.
            source_frames: (N,) numbers of its frames in the source; -1 where the store does not say, and is its own source.
            source_times: (N,) times of its frames in the source.

        Raises:
            SettingsError: The rows do not fit.
        """
        first, end = map(int, self._firsts[video : video + 2])
        own = self._columns[self.by][first:end]
        try:
            if self.by == TIME:
                return first + rows_at_times(own, source_times, self.gap)
            is_stored = self.is_of_store or (source_frames[:1] < 0).any()
            due = np.arange(len(source_frames)) if is_stored else source_frames
            if self.is_of_store and len(own) != len(due):
                raise ValueError(
                    f"{count_of(len(own), 'row')}, and the video has {len(due)} frames; where= leaves it out"
                )
            return first + rows_of_frames(own, due)
        except ValueError as error:
            raise SettingsError(f"rows has for {id_!r} {error}") from error

    def values_in_clip(self, video: int, places: Numbers) -> ItemLabels:
        """Return the values of the rows of a clip: (T, …) each, or as many as `deltas` asks for, with NAME_is_pad beside them.

        Args:
            video: Number of the video among the ids.
            places: (T,) places of the rows of its frames.
        """
        labels = ItemLabels()
        first, end = self._firsts[video : video + 2].tolist()
        for name, values in self._columns.items():
            if name == FRAME:
                continue
            chosen = places
            if name in self.deltas:
                wanted = places[0] + self.deltas[name]
                chosen = np.clip(wanted, first, end - 1)
                labels[f"{name}_is_pad"] = wanted != chosen
            is_text = isinstance(values, pa.ChunkedArray)
            labels[name] = values.take(pa.array(chosen)).to_pylist() if is_text else values[chosen]
        labels.arrays = frozenset(name for name, values in labels.items() if isinstance(values, np.ndarray))
        return labels


def _check_deltas(name: str, deltas: Sequence[int], names: list[str]) -> Numbers:
    """Return numbers of rows. Raises SettingsError."""
    made = np.asarray(deltas)
    if name not in names or made.ndim != 1 or not len(made) or made.dtype.kind not in "iu":
        raise SettingsError(f"delta_rows[{name!r}] is {deltas!r}; give whole numbers for one of {', '.join(names)}")
    return made.astype(np.int64)


def _table(source: RowSource) -> tuple[pa.Table, bool]:
    """Return the table of a source, and whether its frames are those of the store. Raises SettingsError."""
    try:
        if not isinstance(source, str | os.PathLike):
            return use_plain_types(pa.table(source)), False
        path = Path(source)
        if (path / INFO_NAME).is_file():
            if not (dataset := LeRobotDataset.read(path)).cameras:
                raise SettingsError(f"rows={str(source)!r}: this LeRobot dataset has no videos")
            return pa.concat_tables(_read_robot_rows(dataset), promote_options="default"), True
        return read_rows(path), False
    except (OSError, ValueError, TypeError, LookupError, pa.ArrowException) as error:
        raise SettingsError(f"rows={str(source)[:200]!r} cannot be read: {error}") from error


def read_rows(path: Path) -> pa.Table:
    """Return a file of rows as a table. Raises OSError, ValueError."""
    if path.suffix != ".csv":
        return use_plain_types(read_parquet(path))
    with open_regular(path) as file:
        return pyarrow.csv.read_csv(file)


def _read_robot_rows(found: LeRobotDataset) -> Iterator[pa.Table]:
    """Yield the rows of each episode and camera, with the id that the camera's video has in a store of the dataset."""
    tables: dict[str, dict[int, pa.Table]] = {}
    for episode in found.episodes:
        if episode.data not in tables:
            tables = {episode.data: found.tables_of(episode.data)}
        rows = tables[episode.data][episode.number]
        kept = [
            name
            for name in rows.column_names
            if name not in (ID, FRAME, TIME, *OF_LEROBOT) and _is_value(rows.schema.field(name).type)
        ]
        frames = rows["frame_index"].to_numpy()
        for part in episode.videos.values():
            id_ = part.path.rpartition(".")[0]
            first = round(part.start * found.rate)
            named = {ID: [id_] * len(rows), FRAME: frames + first}
            yield pa.table({**named, **{name: rows[name] for name in kept}})


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_value(kind: pa.DataType) -> bool:
    """Return whether values are texts, numbers, truth values, or lists of the latter."""
    if _is_text(kind):
        return True
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _values(name: str, column: pa.ChunkedArray) -> pa.Array:
    """Return values as numbers, texts, or lists of one length. Raises SettingsError."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if _is_text(array.type):
        return array
    if array.null_count or not _is_value(array.type):
        raise SettingsError(
            f"rows has a column {name} of {array.type}, or with empty cells; give numbers, texts, or lists of numbers"
        )
    if pa.types.is_boolean(array.type):
        return array.cast(pa.uint8())
    if not (pa.types.is_list(array.type) or pa.types.is_fixed_size_list(array.type)):
        return array
    lengths = pc.unique(pc.list_value_length(array))
    if len(lengths) != 1:
        raise SettingsError(f"rows has lists of different lengths in the column {name}")
    return pa.FixedSizeListArray.from_arrays(pc.list_flatten(array), lengths[0].as_py())


def _convert_column(column: pa.ChunkedArray) -> Any:
    """Return (N,) or (N, D) values; texts as they are."""
    if _is_text(column.type):
        return column
    if not pa.types.is_fixed_size_list(column.type):
        return np.asarray(column.to_numpy())
    return np.asarray(pc.list_flatten(column).to_numpy()).reshape(-1, column.type.list_size)
