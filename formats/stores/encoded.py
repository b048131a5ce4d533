"""A folder of encoded videos and its manifest. A frame is read by decoding from the keyframe before it.

The manifest holds the keyframes and the PTS of each frame, so opening scans nothing and a frame is identified by its
PTS. Only packets up to the last wanted frame are decoded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from av.error import FFmpegError as AvError
from av.video.frame import VideoFrame

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest import LABELS, Labels, labels_in, read_table, value_of, with_columns
from vidprep.formats.model import NO_CROPPING, Cropping, Orientation
from vidprep.formats.profiles import CONTAINERS
from vidprep.formats.storage import PICTURE_SIDE_MAX, SharedTable, check_regular
from vidprep.formats.stores.base import (
    SOURCE_COLUMNS,
    Frames,
    FrameStore,
    Handles,
    Samples,
    SourceMap,
    VideoFacts,
    source_map_of,
)
from vidprep.formats.stores.ids import Ids
from vidprep.formats.stores.registry import ReadOptions
from vidprep.formats.video import (
    NumberedFrames,
    Sound,
    ToRgb,
    deep_resized,
    deep_rgb,
    plane_lines,
    resized,
    resized_picture,
)

NEEDED = [
    "id",
    "file_name",
    "status",
    "width",
    "height",
    "num_frames",
    "frame_rate_num",
    "frame_rate_den",
    "keyframes",
    "pts",
    "time_base_num",
    "time_base_den",
    "container",
]
STEPS = {"keyframes": "keyframe_step", "pts": "pts_step"}
ROWS_AT_A_TIME = 4096
ASKED = [*NEEDED, *SOURCE_COLUMNS, "size_bytes", LABELS]  # these may be missing
KIND = "encoded"
FRAMES_UNASKED = 1_000_000  # above this, the size of the video is checked: a frame takes at least one byte


def open_here(folder: Path, options: ReadOptions) -> VideoStore:
    options.refuse(folder, "short_side", "stores of JPEGs")
    return VideoStore(folder, hardware=options.hardware, fast=options.fast)


class VideoStore(FrameStore):
    """Reads the output of `vidprep transcode`.

    Args:
        hardware: libavutil's name of a hardware decoder: "cuda" is NVDEC. None decodes on the CPU.
        fast: Convert colours faster and less exactly.

    Raises:
        StoreError: The store, or the hardware, is unavailable.
    """

    kind = KIND
    reads_uint16 = True

    def __init__(self, path: str | os.PathLike[str], *, hardware: str | None = None, fast: bool = False) -> None:
        super().__init__(path)
        self._hardware, self._fast = hardware, fast
        self._prepare()
        if hardware is not None and len(self):
            self._open(self.ids[0]).close()

    def _prepare(self) -> None:
        table = read_table(self.path, ASKED)
        if table is None:
            raise StoreError("has no manifest.parquet", path=self.path)
        if missing := [name for name in NEEDED if name not in table.column_names]:
            raise StoreError(f"its manifest has no {', '.join(missing)}; make it again", path=self.path)
        if in_shards := {*pc.unique(table["container"]).to_pylist()}.difference({*CONTAINERS, None}):
            raise StoreError(
                f"the index of its {' and '.join(sorted(in_shards))} store is not there; restore it, or run the same command again",
                path=self.path,
            )
        is_good = pc.equal(table["status"], "ok")
        table = table.drop_columns(["status", "container"])
        table = table if pc.all(is_good).as_py() else table.filter(is_good)
        table = with_columns(table, [*SOURCE_COLUMNS, "size_bytes"])
        self._check_values(table)
        for name in STEPS:
            table = _with_steps(table, name)
        self._read_as = uuid4().hex  # what other processes map was read once
        self._shared = SharedTable(table.sort_by("id").combine_chunks(), can_be_read_again=True)
        self._open_handles()

    @property
    def _table(self) -> pa.Table:
        table = self._shared.table
        assert table is not None
        return table

    def _open_handles(self) -> None:
        self._readers = Handles(self._open, VideoReader.close)
        self._sounds = Handles(self._open_sound, Sound.close)

    def _check_values(self, table: pa.Table) -> None:
        """Raise StoreError for rows that no run writes."""
        if not len(table):
            return
        for name in ("id", "file_name", "width", "height", "num_frames", "keyframes", "time_base_num", "time_base_den"):
            if table[name].null_count:
                raise StoreError(f"its manifest has a video without {name}; make it again", path=self.path)
        for name in ("width", "height", "num_frames", "time_base_num", "time_base_den"):
            if (least := pc.min(table[name]).as_py()) < 1:
                raise StoreError(f"its manifest has a video whose {name} is {least}; make it again", path=self.path)
        for name in ("width", "height"):
            if (most := pc.max(table[name]).as_py()) > PICTURE_SIDE_MAX:
                raise StoreError(f"its manifest has a video whose {name} is {most}; make it again", path=self.path)
        self._check_lists(table)
        rates = (pc.fill_null(table[name], 0) for name in ("frame_rate_num", "frame_rate_den"))
        has_rate = pc.and_(*(pc.greater(part, 0) for part in rates))
        if pc.any(pc.and_not(pc.is_null(table["pts"]), has_rate)).as_py():
            raise StoreError(
                "its manifest has a video with neither a frame rate nor times; make it again", path=self.path
            )
        if pc.count_distinct(table["id"]).as_py() < len(table):
            raise StoreError("its manifest has several videos of one id; make it again", path=self.path)

    def _check_lists(self, table: pa.Table) -> None:
        """Raise StoreError if times or keyframes do not match the frames."""
        counts = table["num_frames"]
        times = pc.coalesce(pc.cast(pc.list_value_length(table["pts"]), counts.type), counts)
        keyframes = table["keyframes"]
        first = pc.list_element(keyframes.filter(pc.greater(pc.list_value_length(keyframes), 0)), 0)
        if not pc.all(pc.equal(times, counts)).as_py():
            raise StoreError("its manifest has a video with times for other frames; make it again", path=self.path)
        if len(first) < len(table) or not pc.all(pc.equal(first, 0)).as_py():
            raise StoreError(
                "its manifest has a video that does not begin with a keyframe; make it again", path=self.path
            )

    @cached_property
    def _labels(self) -> Labels:
        return labels_in(self._table, self.ids)

    def __getstate__(self) -> dict[str, Any]:
        names = ("path", "_hardware", "_fast", "_shared", "_read_as")
        return {name: self.__dict__[name] for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._shared.table is None:
            self._prepare()
        else:
            self._open_handles()

    def _ids(self) -> Ids:
        return Ids.of_column(self._table["id"])

    def sizes(self) -> npt.NDArray[np.int64]:
        columns = [self._table[name].to_numpy() for name in ("num_frames", "height", "width")]
        return np.stack(columns, 1).astype(np.int64)

    def _row(self, id_: str) -> int:
        row = self.ids.place(id_)
        if row is None:
            raise KeyError(f"{id_!r} is not in {self.path}")
        return row

    def _value(self, id_: str, column: str) -> Any:
        return self._table[column][self._row(id_)].as_py()

    def labels(self, id_: str) -> dict[str, Any]:
        row = self._row(id_)
        return {name: value_of(array[row]) for name, array in self._labels.columns.items()}

    def label_columns(self) -> Labels:
        return self._labels

    def version(self) -> str:
        return self._read_as

    def source_map(self, id_: str) -> SourceMap | None:
        return source_map_of({name: self._value(id_, name) for name in SOURCE_COLUMNS})

    def facts(self, id_: str) -> VideoFacts:
        row, table = self._row(id_), self._table
        names = ("num_frames", "height", "width", "frame_rate_num", "frame_rate_den", "time_base_num", "time_base_den")
        count, height, width, rate_num, rate_den, base_num, base_den = (table[name][row].as_py() for name in names)
        rate = Fraction(rate_num, rate_den) if rate_num and rate_den else None
        if count > FRAMES_UNASKED and count > (size := self._size_of(id_)):
            raise StoreError(f"{id_}: {count} frames are claimed of {size} bytes; make it again", path=self.file(id_))
        base, pts, keyframes = (
            Fraction(base_num, base_den),
            self._list(row, "pts", count),
            self._list(row, "keyframes", count),
        )
        return VideoFacts(count, height, width, rate, pts, base, keyframes)

    def _list(self, row: int, name: str, num_frames: int) -> Any:
        """Return the values of a list column; None if it has none."""
        step = self._table[STEPS[name]][row].as_py()
        if not step:
            return self._table[name][row].as_py()
        return range(0, num_frames, step) if name == "keyframes" else range(0, num_frames * step, step)

    def _size_of(self, id_: str) -> int:
        try:
            check_regular(self.file(id_))
            return self.file(id_).stat().st_size
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", path=self.file(id_)) from error

    def file(self, id_: str) -> Path:
        """Return the path of the video. Raises KeyError."""
        return self.path / str(self._value(id_, "file_name"))

    def _open(self, id_: str) -> VideoReader:
        due = self._value(id_, "size_bytes")
        if due is not None and (size := self._size_of(id_)) != due:
            raise StoreError(
                f"is {size} bytes long, and the manifest that was read says {due}: it was made again, or damaged; open the "
                "store again, or run the same command again",
                path=self.file(id_),
            )
        return VideoReader(None, self.file(id_), id_, self.facts(id_), hardware=self._hardware, fast=self._fast)

    def fill(self, id_: str, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
        fill_from(self._readers, id_, numbers, rows)

    def _open_sound(self, id_: str) -> Sound:
        return Sound(self.file(id_), id_, Fraction(0))

    def sample_rate(self, id_: str) -> int | None:
        return self._sounds[id_].rate

    def samples(self, id_: str, span: tuple[Fraction, Fraction], rate: int | None, num_channels: int | None) -> Samples:
        return samples_from(self._sounds, id_, span, rate, num_channels)


class VideoReader(NumberedFrames):
    """Frames of one open video as RGB."""

    def __init__(
        self,
        data: BinaryIO | None,
        path: Path,
        id_: str,
        facts: VideoFacts,
        *,
        origin_pts: int = 0,
        stream_index: int | None = None,
        orientations: dict[int, Orientation] | None = None,
        cropping: Cropping = NO_CROPPING,
        hardware: str | None = None,
        fast: bool = False,
    ) -> None:
        """Open the video.

        Args:
            orientations: Orientation by number of the first frame that has it, ascending from 0; None for no turning.
            cropping: Cropping before turning.
            fast: See `open_store`.
            path: The file.
            id_: Id of the video, for messages.
            facts: Properties of the video.
            data: See `NumberedFrames`.
            origin_pts: See `NumberedFrames`.
            stream_index: See `NumberedFrames`.
            hardware: See `NumberedFrames`.
        """
        self._cropping = cropping
        self._orientations = orientations or {0: Orientation()}
        self._to_rgb = ToRgb(fast=fast)
        super().__init__(data, path, id_, facts, origin_pts=origin_pts, stream_index=stream_index, hardware=hardware)

    def fill(self, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
        """Decode frames into arrays of shape (h, w, 3), scaled to the size of the arrays. `numbers` must ascend."""
        wanted = dict(zip(numbers, rows, strict=True))
        try:
            for number, frame in self.read(numbers):
                turn = next(turn for first, turn in reversed(self._orientations.items()) if first <= number)
                self._write(frame, wanted[number], turn)
        except StoreError:
            raise
        except (AvError, ValueError) as error:
            raise self._undecodable(error) from error

    def _write(self, frame: VideoFrame, row: Frames, turn: Orientation) -> None:
        crop, facts = self._cropping, self._facts
        size = frame.height - crop.top - crop.bottom, frame.width - crop.left - crop.right
        shown = size[::-1] if turn.transpose else size
        if shown != (facts.height, facts.width):
            raise StoreError(
                f"{self._id}: a frame is {shown[1]}x{shown[0]}, {facts.width}x{facts.height} was expected",
                path=self._path,
            )
        row = row[:: -1 if turn.flip_vertical else 1, :: -1 if turn.flip_horizontal else 1]
        if turn.transpose:
            row = row.swapaxes(0, 1)
        size_made = None if row.shape[:2] == size else row.shape[:2]
        shown_part = slice(crop.top, frame.height - crop.bottom), slice(crop.left, frame.width - crop.right)
        if row.dtype == np.uint16:
            if crop == NO_CROPPING:
                row[...] = deep_rgb(frame, size_made)
            else:
                deep = deep_rgb(frame, None)[shown_part]
                row[...] = deep if size_made is None else deep_resized(deep, size_made)
        elif size_made is not None and crop == NO_CROPPING:
            resized(frame, row)
        else:
            lines = plane_lines(self._to_rgb.plane(frame))
            picture = lines[:, : frame.width * 3].reshape(frame.height, frame.width, 3)[shown_part]
            if size_made is None:
                row[:] = picture
            else:
                resized_picture(picture, row)


def _with_steps(table: pa.Table, name: str) -> pa.Table:
    """Replace lists 0, n, 2 n, ... in a column by their step n in another column, which is 0 for other lists.

    Most videos have one frame interval and one keyframe interval, and a list for each takes most of the memory.
    """
    lists, steps, last = [], [], pa.scalar(None, table.schema.field(name).type)
    for batch in table.select([name, "num_frames"]).to_batches(max_chunksize=ROWS_AT_A_TIME):
        array = batch.column(0)
        starts, flat = array.offsets.to_numpy(), array.values.to_numpy()
        lengths = np.diff(starts)
        found = np.zeros(len(array), np.int64)
        several = np.flatnonzero(lengths > 1)
        found[several] = flat[starts[several] + 1]
        due = (np.arange(starts[0], starts[-1]) - np.repeat(starts[:-1], lengths)) * np.repeat(found, lengths)
        differs = np.concatenate([[0], np.cumsum(due != flat[starts[0] : starts[-1]])])
        found[differs[starts[1:] - starts[0]] > differs[starts[:-1] - starts[0]]] = 0
        if name == "keyframes":  # the step says how many there are
            frames = batch.column(1).to_numpy()
            found[(found > 0) & (lengths != -(-frames // np.maximum(found, 1)))] = 0
        found = np.maximum(found, 0)
        steps.append(pa.array(found))
        lists.append(pc.if_else(pa.array(found > 0), last, array))
    at = table.column_names.index(name)
    kept = pa.chunked_array(lists, table.schema.field(name).type)
    return table.set_column(at, name, kept).append_column(STEPS[name], pa.chunked_array(steps, pa.int64()))


def samples_from(
    sounds: Handles[Sound], id_: str, span: tuple[Fraction, Fraction], rate: int | None, num_channels: int | None
) -> Samples:
    """Return audio samples of a video; close its decoder if that fails. Raises StoreError."""
    try:
        return sounds[id_].read(*span, rate=rate, num_channels=num_channels)
    except StoreError:
        sounds.drop(id_)
        raise


def fill_from(readers: Handles[VideoReader], id_: str, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
    """Fill arrays by the reader of a video, which is closed if it fails. Raises StoreError."""
    try:
        readers[id_].fill(numbers, rows)
    except StoreError:
        readers.drop(id_)
        raise
