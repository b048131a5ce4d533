"""Complete a destination of a LeRobot dataset: beside the videos that a run made, write the rows of exactly their frames.

DST is then a LeRobot dataset of version 3.0 with one video for each episode and camera, and a destination of vidprep as well.

data/chunk-000/file-000.parquet             the rows, a row group for each episode
meta/episodes/chunk-000/file-000.parquet    the episodes, with statistics
meta/tasks.parquet, meta/stats.json         tasks, and statistics of the whole dataset
meta/info.json                              written last: without it LeRobot opens nothing
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vidprep.formats.errors import SettingsError, StoreError, count_of
from vidprep.formats.lerobot import DATA, INFO_NAME, TASKS_NAME, VIDEO, Episode, LeRobotDataset, task_table
from vidprep.formats.manifest import ManifestRow, manifest_rows
from vidprep.formats.storage import read_json, replacing
from vidprep.formats.stores import FrameStore, open_store
from vidprep.transcode.export.robot_rows import (
    Numbers,
    Statistics,
    joined_statistics,
    numbered,
    rows_at,
    statistics_of_pictures,
    statistics_of_rows,
)
from vidprep.transcode.settings import RunSettings, VideoOutput
from vidprep.transcode.sources import EPISODES_PER_CHUNK, STATE_DIR, episode_video

VERSION = "v3.0"
DATA_BYTES = 100 << 20  # of a file of rows
FRAMES_MEASURED = 16  # of each video, for the statistics of pictures
STATE_NAME = "lerobot.json"  # in the folder of the run's state
EPISODES_NAME, STATS_NAME = "meta/episodes/chunk-000/file-000.parquet", "meta/stats.json"
OF_OLD_VERSIONS = ("total_chunks", "total_videos")


@dataclass(frozen=True, slots=True)
class KeptEpisode:
    """An episode of the result.

    Attributes:
        episode: The episode of the source
        videos: Row of the manifest of each camera
        rows: (L,) which rows of the source are kept, counted from the start of the episode
    """

    episode: Episode
    videos: dict[str, ManifestRow]
    rows: Numbers


def check_robot_output(source: Path, settings: RunSettings) -> float:
    """Return the frame rate of the result.

    Raises:
        SettingsError: The output cannot be a LeRobot dataset.
        StoreError: The source cannot be read.
    """
    rate, asked = LeRobotDataset.read(source).rate, settings.retime.frame_rate
    if asked is None:
        return rate
    if asked.denominator != 1:
        raise SettingsError(
            f"<fps>: rates of LeRobot are whole numbers; give {round(asked)}", fps=f"{float(asked):.6g}"
        )
    if asked > Fraction(rate):
        raise SettingsError(
            f"<fps>: the dataset has {rate:g} rows per second, and others cannot be invented", fps=str(asked)
        )
    return float(asked)


def is_robot_output(settings: RunSettings) -> bool:
    """Return whether LeRobot can read the videos of a run: a file for each, in mp4."""
    output = settings.output
    return isinstance(output, VideoOutput) and output.store == "files" and output.extension == "mp4"


def complete_robot_dataset(
    source: Path, destination: Path, settings: RunSettings, actions: str, say: Callable[[str], object]
) -> None:
    """Write rows and metadata of a finished run. Nothing is written again if nothing has changed.

    Args:
        source: The LeRobot dataset.
        destination: The destination of the run.
        settings: Its settings.
        actions: What becomes of actions between two rows that are kept; see `rows_at`.
        say: Receives messages.

    Raises:
        StoreError, ManifestError: The source or the destination cannot be read.
        OSError: A file cannot be written.
    """
    found, rate = LeRobotDataset.read(source), check_robot_output(source, settings)
    videos = {row.id: row for row in manifest_rows(destination) if row.ok}
    state = {"digest": _digest(found, videos, actions)}
    state_path = destination / STATE_DIR / STATE_NAME
    if (destination / INFO_NAME).is_file() and state_path.is_file() and read_json(state_path) == state:
        return
    store, kept, left_out = open_store(destination), list[KeptEpisode](), dict[int, str]()
    for episode in found.episodes:
        try:
            kept.append(_kept(found, episode, videos, store))
        except StoreError as error:
            left_out[episode.number] = error.message
    if left_out:
        number, why = next(iter(left_out.items()))
        say(f"{count_of(len(left_out), 'episode')} left out of the LeRobot dataset: episode {number} {why}")
    if not kept:
        raise StoreError("has no episode whose videos are all there", path=destination)
    (destination / INFO_NAME).unlink(missing_ok=True)
    for name in ("data", "meta"):
        shutil.rmtree(destination / name, ignore_errors=True)
    episodes, statistics = list[dict[str, Any]](), list[dict[str, Statistics]]()
    for about, measured in _written_rows(destination, found, kept, rate, actions):
        measured |= {camera: _of_pictures(store, row) for camera, row in kept[len(episodes)].videos.items()}
        episodes.append(about | _flat(measured))
        statistics.append(measured)
    _write_table(destination / EPISODES_NAME, pa.Table.from_pylist(episodes))
    _write_table(destination / TASKS_NAME, task_table(found.tasks))
    _write_json(destination / STATS_NAME, _plain(joined_statistics(statistics)))
    _write_json(destination / INFO_NAME, _info(found, kept, episodes, rate))
    _write_json(state_path, state)


def _digest(found: LeRobotDataset, videos: Mapping[str, ManifestRow], actions: str) -> str:
    """Return a digest of all that decides what is written."""
    of_data = [(name, (found.root / name).stat()) for name in sorted({episode.data for episode in found.episodes})]
    known = [
        json.dumps(found.info),
        repr(found.episodes),
        repr(found.tasks),
        repr([(name, about.st_size, about.st_mtime_ns) for name, about in of_data]),
        repr(sorted((row.id, row.sha256) for row in videos.values())),
        actions,
    ]
    return hashlib.sha256("\0".join(known).encode()).hexdigest()


def _kept(found: LeRobotDataset, episode: Episode, videos: Mapping[str, ManifestRow], store: FrameStore) -> KeptEpisode:
    """Return which rows have a frame in the videos of an episode. Raises StoreError if its cameras do not agree, or lack one."""
    own, rows = dict[str, ManifestRow](), None
    for camera, part in episode.videos.items():
        id_ = episode_video(camera, episode.number)
        if id_ not in videos:
            raise StoreError(f"has no video of {camera}")
        own[camera] = videos[id_]
        shown = store.source_map(id_)
        if shown is None or shown.pts is None:
            numbers = np.arange(videos[id_].num_frames or 0)
        else:
            seconds = np.asarray(shown.pts, np.float64) * float(shown.time_base)
            numbers = np.rint((seconds - part.start) * found.rate).astype(np.int64)
        if rows is not None and not np.array_equal(rows, numbers):
            raise StoreError(f"has other frames in {camera} than in its other cameras")
        rows = numbers
    if rows is None or not len(rows) or rows[0] < 0 or rows[-1] >= episode.length or np.any(np.diff(rows) <= 0):
        raise StoreError("has frames without a row")
    return KeptEpisode(episode, own, rows)


def _written_rows(
    destination: Path, found: LeRobotDataset, kept: Sequence[KeptEpisode], rate: float, actions: str
) -> Iterator[tuple[dict[str, Any], dict[str, Statistics]]]:
    """Write the rows of all episodes. Yield what the table of episodes says of each, and the statistics of its rows."""
    file, written, writer = 0, 0, None
    table, name, first = pa.table({}), "", 0
    for number, each in enumerate(kept):
        if each.episode.data != name:
            name = each.episode.data
            table = pq.read_table(found.root / name, partitioning=None)
        rows = table.filter(pc.equal(table["episode_index"], each.episode.number))
        rows = numbered(rows_at(rows, each.rows, actions), number, first, rate)
        if writer is not None and written + rows.nbytes > DATA_BYTES:
            writer.close()
            file, written, writer = file + 1, 0, None
        chunk, place = divmod(file, EPISODES_PER_CHUNK)
        if writer is None:
            path = destination / DATA.format(chunk_index=chunk, file_index=place)
            path.parent.mkdir(parents=True, exist_ok=True)
            writer = pq.ParquetWriter(path, rows.schema)
        writer.write_table(rows.cast(writer.schema))
        written += rows.nbytes
        tasks = sorted(set(rows["task_index"].to_pylist()))
        about: dict[str, Any] = {
            "episode_index": number,
            "tasks": [found.tasks[task] for task in tasks if 0 <= task < len(found.tasks)],
            "length": len(rows),
            "data/chunk_index": chunk,
            "data/file_index": place,
            "dataset_from_index": first,
            "dataset_to_index": first + len(rows),
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }
        video_chunk, video_file = divmod(each.episode.number, EPISODES_PER_CHUNK)
        for camera in each.videos:
            about |= {f"videos/{camera}/chunk_index": video_chunk, f"videos/{camera}/file_index": video_file}
            about |= {f"videos/{camera}/from_timestamp": 0.0, f"videos/{camera}/to_timestamp": len(rows) / rate}
        yield about, statistics_of_rows(rows)
        first += len(rows)
    if writer is not None:
        writer.close()


def _of_pictures(store: FrameStore, row: ManifestRow) -> Statistics:
    """Return the statistics of frames of a video, evenly distributed."""
    count = row.num_frames or 1
    numbers = sorted(set(np.linspace(0, count - 1, min(count, FRAMES_MEASURED)).round().astype(int).tolist()))
    return statistics_of_pictures(list(store[row.id].frames(numbers)))


def _info(
    found: LeRobotDataset, kept: Sequence[KeptEpisode], episodes: Sequence[Mapping[str, Any]], rate: float
) -> dict[str, Any]:
    """Return info.json: that of the source, with what has changed."""
    features = found.features
    for camera, row in kept[0].videos.items():
        names = features[camera].get("names") or ["height", "width", "channels"]
        size = {"height": row.height, "width": row.width}
        before = list(features[camera].get("shape") or [0, 0, 3])
        features[camera]["shape"] = [size.get(name, value) for name, value in zip(names, before, strict=False)]
        features[camera]["info"] = {
            **(features[camera].get("info") or {}),
            "video.height": row.height,
            "video.width": row.width,
            "video.codec": row.codec,
            "video.pix_fmt": row.pixel_format,
            "video.fps": int(rate),
            "has_audio": False,
        }
    kept_info = {name: value for name, value in found.info.items() if name not in OF_OLD_VERSIONS}
    return {
        **kept_info,
        "codebase_version": VERSION,
        "fps": int(rate),
        "total_episodes": len(episodes),
        "total_frames": sum(about["length"] for about in episodes),
        "total_tasks": len(found.tasks),
        "chunks_size": EPISODES_PER_CHUNK,
        "data_files_size_in_mb": DATA_BYTES >> 20,
        "video_files_size_in_mb": 200,
        "data_path": DATA,
        "video_path": VIDEO,
        "splits": {"train": f"0:{len(episodes)}"},
        "features": features,
    }


def _flat(statistics: Mapping[str, Statistics]) -> dict[str, Any]:
    return {
        f"stats/{name}/{kind}": values.tolist() for name, found in statistics.items() for kind, values in found.items()
    }


def _plain(statistics: Mapping[str, Statistics]) -> dict[str, Any]:
    return {name: {kind: values.tolist() for kind, values in found.items()} for name, found in statistics.items()}


def _write_table(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        pq.write_table(table, file)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write((json.dumps(value, indent=4, ensure_ascii=False) + "\n").encode())
