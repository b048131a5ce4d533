"""Files of a LeRobot dataset of version 3.0 with one video for each episode and camera."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vidprep.formats.lerobot import DATA, VIDEO
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.storage.local import replacing
from vidprep.formats.stores.base import FrameStore
from vidprep.transcode.audit.statistics import Statistics, statistics_of_pictures
from vidprep.transcode.sources.robot import EPISODES_PER_CHUNK

VERSION = "v3.0"
DATA_BYTES = 100 << 20  # of a file of rows
FRAMES_MEASURED = 16  # of each video, for the statistics of pictures
EPISODES_NAME, STATS_NAME = "meta/episodes/chunk-000/file-000.parquet", "meta/stats.json"


class RowFiles:
    """Writes rows of episodes into files of bounded size, a row group for each episode."""

    def __init__(self, root: Path) -> None:
        self._root, self._number, self._size = root, -1, 0
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, rows: pa.Table) -> tuple[int, int]:
        """Write the rows of an episode. Return chunk and number of the file."""
        writer = self._writer
        if writer is None or self._size + rows.nbytes > DATA_BYTES:
            if writer is not None:
                writer.close()
            self._number, self._size = self._number + 1, 0
            chunk, number = divmod(self._number, EPISODES_PER_CHUNK)
            path = self._root / DATA.format(chunk_index=chunk, file_index=number)
            path.parent.mkdir(parents=True, exist_ok=True)
            writer = self._writer = pq.ParquetWriter(path, rows.schema)
        if set(rows.column_names) != set(writer.schema.names):
            raise ValueError(f"the columns {rows.column_names}, and episodes before have {writer.schema.names}")
        writer.write_table(rows.select(writer.schema.names).cast(writer.schema))
        self._size += rows.nbytes
        return divmod(self._number, EPISODES_PER_CHUNK)


def describe_episode(
    rows: pa.Table, tasks: Sequence[str], place: tuple[int, int], cameras: Iterable[str], video: int, rate: float
) -> dict[str, Any]:
    """Return what the table of episodes says of one.

    Args:
        rows: Its rows, numbered.
        tasks: Text of each task.
        place: Chunk and number of the file of its rows.
        cameras: Names of its cameras.
        video: Number of its videos.
        rate: Rows per second.
    """
    first = rows["index"][0].as_py()
    row: dict[str, Any] = {
        "episode_index": rows["episode_index"][0].as_py(),
        "tasks": [tasks[task] for task in sorted(set(rows["task_index"].to_pylist()))],
        "length": len(rows),
        "data/chunk_index": place[0],
        "data/file_index": place[1],
        "dataset_from_index": first,
        "dataset_to_index": first + len(rows),
        "meta/episodes/chunk_index": 0,
        "meta/episodes/file_index": 0,
    }
    chunk, file = divmod(video, EPISODES_PER_CHUNK)
    for camera in cameras:
        row |= {f"videos/{camera}/chunk_index": chunk, f"videos/{camera}/file_index": file}
        row |= {f"videos/{camera}/from_timestamp": 0.0, f"videos/{camera}/to_timestamp": len(rows) / rate}
    return row


def statistics_of_video(store: FrameStore, id_: str) -> Statistics:
    """Return the statistics of frames of a video, evenly distributed. Raises StoreError."""
    count = len(store[id_])
    numbers = sorted(set(np.linspace(0, count - 1, min(count, FRAMES_MEASURED)).round().astype(int).tolist()))
    return statistics_of_pictures(list(store[id_].frames(numbers)))


def video_info(store: FrameStore, row: ManifestRow, rate: float) -> dict[str, Any]:
    """Return `info` of a camera in info.json."""
    return {
        "video.height": row.height,
        "video.width": row.width,
        "video.codec": row.codec,
        "video.pix_fmt": row.pixel_format,
        "is_depth_map": False,
        "video.fps": int(rate),
        "video.channels": 3,
        "has_audio": store.sample_rate(row.id) is not None,
    }


def totals(abouts: Sequence[Mapping[str, Any]], num_tasks: int, rate: float) -> dict[str, Any]:
    """Return the part of info.json that any dataset has."""
    return {
        "codebase_version": VERSION,
        "fps": int(rate),
        "total_episodes": len(abouts),
        "total_frames": sum(row["length"] for row in abouts),
        "total_tasks": num_tasks,
        "chunks_size": EPISODES_PER_CHUNK,
        "data_files_size_in_mb": DATA_BYTES >> 20,
        "video_files_size_in_mb": 200,
        "data_path": DATA,
        "video_path": VIDEO,
    }


def flat_statistics(statistics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return statistics as columns of the table of episodes."""
    return {
        f"stats/{name}/{kind}": np.asarray(values).tolist()
        for name, kinds in statistics.items()
        for kind, values in kinds.items()
    }


def plain_statistics(statistics: Mapping[str, Statistics]) -> dict[str, Any]:
    """Return statistics for stats.json."""
    return {name: {kind: values.tolist() for kind, values in kinds.items()} for name, kinds in statistics.items()}


def write_table(path: Path, table: pa.Table) -> None:
    """Write a Parquet file, and its folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        pq.write_table(table, file)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file, and its folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write((json.dumps(value, indent=4, ensure_ascii=False) + "\n").encode())
