"""`pack --to lerobot`: a LeRobot dataset from videos and tables of values.

Labels of the store say what a video shows:

episode_index   number of its episode (or `episode`, numbers or names in order)
camera          name of its camera; without this label, each episode has one
task            text of the task, if there is one
rows            a Parquet or CSV file of the values of the episode, if there is one: columns of numbers, texts or lists of numbers, one of
                them `frame` or `frame_index` (of the source video, from 0), or `time` or `timestamp` (s, from its first frame). A frame
                has the row that is nearest in time, as in `VideoDataset(rows=…)`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from vidprep.formats.errors import StoreError
from vidprep.formats.lerobot import INFO_NAME, TASKS_NAME, task_table
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.manifest.table import manifest_rows
from vidprep.formats.stores.base import FrameStore
from vidprep.formats.stores.encoded import VideoStore
from vidprep.formats.training.rows import RowsGap, read_rows, rows_at_times, rows_of_frames
from vidprep.transcode.audit.robot import TOLERANCE_SECONDS
from vidprep.transcode.audit.statistics import Statistics, join_statistics, statistics_of_rows
from vidprep.transcode.export._robot_files import (
    EPISODES_NAME,
    STATS_NAME,
    RowFiles,
    describe_episode,
    flat_statistics,
    plain_statistics,
    statistics_of_video,
    totals,
    video_info,
    write_json,
    write_table,
)
from vidprep.transcode.export._robot_rows import number_rows
from vidprep.transcode.export.pack import open_intact
from vidprep.transcode.export.targets import PackOptions
from vidprep.transcode.sources.robot import episode_video

EPISODE_LABELS, CAMERA_LABEL, TASK_LABEL, ROWS_LABEL = ("episode_index", "episode"), "camera", "task", "rows"
FRAME_NAMES, TIME_NAMES = ("frame", "frame_index"), ("time", "timestamp")
OWN_COLUMNS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
ONLY_CAMERA, PREFIX = "main", "observation.images."
TYPES = {"float": "float32", "double": "float64", "bool": "bool"}


def write_lerobot(store: FrameStore, out: Path, options: PackOptions) -> None:
    """Write a LeRobot dataset. Raises StoreError, OSError."""
    store = cast(VideoStore, store)
    episodes, rows = _episodes(store), _rows_of_store(store)
    rate = _rate(store, rows)
    tasks = sorted({_task(store, id_) for cameras in episodes.values() for id_ in cameras.values()})
    abouts, statistics = list[dict[str, Any]](), list[dict[str, Statistics]]()
    schema = _schema(
        store,
        {name: _table(store, name, each, tasks, rate, options.rows_gap).schema for name, each in episodes.items()},
    )
    with RowFiles(out) as files:
        for number, (name, cameras) in enumerate(episodes.items()):
            table = _table(store, name, cameras, tasks, rate, options.rows_gap)
            table = number_rows(table.cast(schema), number, sum(row["length"] for row in abouts), rate)
            abouts.append(describe_episode(table, tasks, files.write(table), cameras, number, rate))
            statistics.append(
                statistics_of_rows(table) | {camera: statistics_of_video(store, id_) for camera, id_ in cameras.items()}
            )
            for camera, id_ in cameras.items():
                path = out / f"{episode_video(camera, number)}.mp4"
                path.parent.mkdir(parents=True, exist_ok=True)
                with open_intact(store, id_, rows[id_].sha256) as video:
                    path.write_bytes(video.read())
    write_table(
        out / EPISODES_NAME,
        pa.Table.from_pylist([row | flat_statistics(own) for row, own in zip(abouts, statistics, strict=True)]),
    )
    write_table(out / TASKS_NAME, task_table(tasks))
    write_json(out / STATS_NAME, plain_statistics(join_statistics(statistics)))
    first = next(iter(episodes.values()))
    features = {camera: _camera_feature(store, rows[id_], rate) for camera, id_ in first.items()} | _features(schema)
    row = {
        "robot_type": None,
        **totals(abouts, len(tasks), rate),
        "splits": {"train": f"0:{len(abouts)}"},
        "features": features,
    }
    write_json(out / INFO_NAME, row)


def _episodes(store: VideoStore) -> dict[str, dict[str, str]]:
    """Return the id of each camera's video of each episode, in order. Raises StoreError."""
    columns = store.label_columns().columns
    key = next((name for name in EPISODE_LABELS if name in columns), None)
    if key is None:
        raise StoreError(
            f"has no label {EPISODE_LABELS[0]}, which says to which episode a video belongs; `vidprep label` adds it",
            path=store.path,
        )
    episodes = defaultdict[Any, dict[str, str]](dict)
    for id_ in store.ids:
        labels = store.labels(id_)
        camera = str(labels.get(CAMERA_LABEL) or ONLY_CAMERA)
        camera = camera if camera.startswith("observation.") else PREFIX + camera
        if "/" in camera or labels.get(key) is None:
            raise StoreError(f"{id_}: has no {key}, or a camera {camera!r} that is no name", path=store.path)
        if camera in episodes[labels[key]]:
            raise StoreError(f"{id_}: is a second video of {camera} in episode {labels[key]}", path=store.path)
        episodes[labels[key]][camera] = id_
    cameras = {tuple(sorted(each)) for each in episodes.values()}
    if len(cameras) > 1:
        raise StoreError(f"its episodes have different cameras: {sorted(cameras)[:2]}", path=store.path)
    return {str(name): dict(sorted(episodes[name].items())) for name in sorted(episodes, key=_natural_key)}


def _natural_key(name: object) -> list[tuple[str, int]]:
    """Return a key by which `ep_2` comes before `ep_10`."""
    return [(other, int(digits or -1)) for other, digits in re.findall(r"(\D*)(\d*)", str(name))]


def _rows_of_store(store: VideoStore) -> dict[str, ManifestRow]:
    return {row.id: row for row in manifest_rows(store.folder) if row.ok}


def _rate(store: VideoStore, rows: Mapping[str, ManifestRow]) -> float:
    """Return the frame rate of all videos. Raises StoreError."""
    rates = {(row.frame_rate_num, row.frame_rate_den) for row in rows.values()}
    if len(rates) > 1 or None in (rate := next(iter(rates))) or rate[1] != 1:
        raise StoreError("has no common whole frame rate, which LeRobot needs; make it with --fps", path=store.path)
    if odd := next((row for row in rows.values() if row.container != "mp4" or row.codec == "vp9"), None):
        raise StoreError(
            f"{odd.id}: is {odd.codec} in {odd.container}; LeRobot reads h264, hevc and av1 in mp4", path=store.path
        )
    return float(rate[0] or 0)


def _task(store: VideoStore, id_: str) -> str:
    return str(store.labels(id_).get(TASK_LABEL) or "")


def _table(
    store: VideoStore, name: str, cameras: Mapping[str, str], tasks: Sequence[str], rate: float, gap: RowsGap
) -> pa.Table:
    """Return the values of an episode's frames, with columns for the numbers of the rows. Raises StoreError."""
    for id_ in cameras.values():
        _check_times(store, id_, rate)
    counts = {camera: len(store[id_]) for camera, id_ in cameras.items()}
    if len(set(counts.values())) > 1:
        raise StoreError(f"episode {name}: its cameras have different numbers of frames: {counts}", path=store.path)
    id_ = next(iter(cameras.values()))
    values = {}
    if (place := store.labels(id_).get(ROWS_LABEL)) is not None:
        values = _values(store, id_, Path(str(place)), gap)
    count = counts[next(iter(cameras))]
    columns = {
        **values,
        "timestamp": pa.nulls(count, pa.float32()),
        **{column: pa.nulls(count, pa.int64()) for column in OWN_COLUMNS[1:4]},
        "task_index": pa.array([tasks.index(_task(store, id_))] * count, pa.int64()),
    }
    return pa.table(columns)


def _schema(store: VideoStore, schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """Return the columns of all episodes. Whole numbers in one and others in another are float32. Raises StoreError."""
    first, *others = schemas.items()
    common = first[1]
    for name, schema in others:
        if schema.names != common.names:
            raise StoreError(f"{name}: has the columns {schema.names}, others have {common.names}", path=store.path)
        for place, (one, other) in enumerate(zip(common, schema, strict=True)):
            if one.type == other.type:
                continue
            if _use_float(one.type) != _use_float(other.type):
                raise StoreError(
                    f"{name}: has {other.type} in the column {one.name}, others have {one.type}", path=store.path
                )
            common = common.set(place, one.with_type(_use_float(one.type)))
    return common


def _use_float(kind: pa.DataType) -> pa.DataType:
    """Return float32 for whole numbers, alone and in lists; other types as they are."""
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_use_float(kind.value_type), kind.list_size)
    return pa.float32() if pa.types.is_integer(kind) else kind


def _check_times(store: VideoStore, id_: str, rate: float) -> None:
    """Raise StoreError if frames are not shown when LeRobot's reader looks for them."""
    times = store[id_].timestamps
    off = float(np.abs(times - np.arange(len(times)) / rate).max(initial=0.0))
    if off > TOLERANCE_SECONDS:
        raise StoreError(
            f"{id_}: its frames are up to {off * 1e3:.2g} ms off {rate:g} a second, and LeRobot's reader takes "
            f"{TOLERANCE_SECONDS * 1e3:g} ms; make it with --fps {rate:g}",
            path=store.path,
        )


def _values(store: VideoStore, id_: str, path: Path, gap: RowsGap) -> dict[str, pa.Array]:
    """Return the values of each frame from a file of rows. Raises StoreError."""
    try:
        table = read_rows(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise StoreError(f"{id_}: its rows cannot be read: {error}", path=path) from error
    frame = next((name for name in FRAME_NAMES if name in table.column_names), None)
    time = next((name for name in TIME_NAMES if name in table.column_names), None)
    video = store[id_]
    try:
        if frame is not None:
            chosen = rows_of_frames(np.asarray(table[frame].to_numpy(), np.float64), video.source_frames)
        elif time is not None:
            chosen = rows_at_times(np.asarray(table[time].to_numpy(), np.float64), video.source_timestamps, gap)
        else:
            raise ValueError(f"no column {', '.join((*FRAME_NAMES, *TIME_NAMES))}")
    except ValueError as error:
        raise StoreError(f"has for {id_} {error}", path=path) from error
    kept = [name for name in table.column_names if name not in (*FRAME_NAMES, *TIME_NAMES, *OWN_COLUMNS)]
    return {name: _convert_column(table[name].take(pa.array(chosen)), name, path) for name in kept}


def _convert_column(column: pa.ChunkedArray, name: str, path: Path) -> pa.Array:
    """Return values as LeRobot stores them: texts, numbers, or lists of one length above 1. Raises StoreError."""
    try:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return column.cast(pa.string()).fill_null("").combine_chunks()
        if column.null_count:
            raise ValueError(f"has an empty cell in the column {name}")
        values = np.asarray(column.to_pylist())
        if values.dtype.kind == "f":
            values = values.astype(np.float32)
        if values.dtype.kind not in "bif" or values.ndim > 2:
            raise ValueError(f"has the column {name} of {column.type}")
        if values.ndim == 1 or values.shape[1] == 1:
            return pa.array(values.reshape(-1))
        return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    except (ValueError, TypeError) as error:
        raise StoreError(f"{error}; give texts, numbers, or lists of as many numbers in each row", path=path) from error


def _features(schema: pa.Schema) -> dict[str, Any]:
    """Return what info.json says of the columns."""
    features = {}
    for field in schema:
        is_list = pa.types.is_fixed_size_list(field.type)
        kind = str(field.type.value_type if is_list else field.type)
        features[field.name] = {
            "dtype": TYPES.get(kind, kind),
            "shape": [field.type.list_size if is_list else 1],
            "names": None,
        }
    return features


def _camera_feature(store: VideoStore, row: ManifestRow, rate: float) -> dict[str, Any]:
    """Return what info.json says of a camera."""
    return {
        "dtype": "video",
        "shape": [row.height, row.width, 3],
        "names": ["height", "width", "channels"],
        "info": video_info(store, row, rate),
    }
