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
import re
import shutil
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vidprep.formats.errors import DestinationError, SettingsError, StoreError, count_of
from vidprep.formats.lerobot import INFO_NAME, MOMENTS, TASKS_NAME, Episode, LeRobotDataset, task_table, video_info_of
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.manifest.table import manifest_rows
from vidprep.formats.storage.local import sha256_of
from vidprep.formats.storage.untrusted import read_json
from vidprep.formats.stores.base import FrameStore
from vidprep.formats.stores.registry import open_store
from vidprep.transcode.audit.robot import EXACT_SECONDS
from vidprep.transcode.audit.statistics import Statistics, join_statistics, statistics_of_rows
from vidprep.transcode.check.robot_files import STATE_NAME, faults_of_files, read_record
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
from vidprep.transcode.export._robot_rows import Numbers, number_rows, rows_at
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.outputs import STATE_DIR
from vidprep.transcode.sources.robot import EPISODES_PER_CHUNK, episode_video

STAGE_NAME = "lerobot.new"  # in the folder of the run's state
OF_OLD_VERSIONS = ("total_chunks", "total_videos")
WRITTEN = ("info.json", "stats.json", "tasks.parquet", "tasks.jsonl", "episodes.jsonl", "episodes_stats.jsonl")
FORMAT = 2  # version of the written files; files of another version are written again


@dataclass(frozen=True, slots=True)
class KeptEpisode:
    """An episode of the result.

    Attributes:
        videos: Row of the manifest of each camera
        rows: (L,) which rows of the source are kept, counted from the start of the episode
    """

    episode: Episode
    videos: dict[str, ManifestRow]
    rows: Numbers


@dataclass(slots=True)
class _Result:
    """Result of writing the rows of episodes, so far.

    Attributes:
        abouts: What the table of episodes says of each
        left_out: Why episodes were left out, by number
        lost_texts: Number of texts of rows that are left out for which there is no place, by column
        depth: Number of each video of depth, by camera and path
    """

    kept: list[KeptEpisode] = field(default_factory=list)
    abouts: list[dict[str, Any]] = field(default_factory=list)
    statistics: list[dict[str, Statistics]] = field(default_factory=list)
    left_out: dict[int, str] = field(default_factory=dict)
    lost_texts: Counter[str] = field(default_factory=Counter)
    depth: dict[tuple[str, str], int] = field(default_factory=dict)


def is_robot_output(settings: RunSettings) -> bool:
    """Return whether LeRobot can read the videos of a run: a file for each, in mp4."""
    output = settings.output
    return isinstance(output, VideoOutput) and output.store == "files" and output.extension == "mp4"


def check_robot_output(source: Path, destination: Path, settings: RunSettings) -> float:
    """Return the frame rate of the result.

    Raises:
        SettingsError: The output cannot be a LeRobot dataset.
        DestinationError: The destination holds files of others where rows and metadata belong.
        StoreError: The source cannot be read.
    """
    dataset, rate = LeRobotDataset.read(source), settings.retime.frame_rate
    if not (destination / STATE_DIR / STATE_NAME).is_file():
        for name in ("data", "meta"):
            if (destination / name).exists():
                raise DestinationError(
                    f"holds {name}/, which vidprep did not write; take another folder", path=destination
                )
    if dataset.depth_cameras and rate is not None and dataset.rate % rate:
        raise SettingsError(
            f"<fps>: the depth of {dataset.depth_cameras[0]} is copied as it is, at {dataset.rate:g} frames per second; give a rate that "
            "divides it",
            fps=str(rate),
        )
    output = settings.output
    if isinstance(output, VideoOutput) and output.encoder.codec == "vp9":
        raise SettingsError("<codec>: LeRobot takes h264, hevc and av1", codec="vp9")
    if rate is None and dataset.rate != int(dataset.rate):
        raise SettingsError(
            f"{source}: has {dataset.rate:g} frames per second, and LeRobot's rates are whole numbers; give <fps>",
            fps=int(dataset.rate),
        )
    if rate is None:
        return dataset.rate
    if rate.denominator != 1:
        raise SettingsError(f"<fps>: LeRobot's rates are whole numbers; give {round(rate)}", fps=f"{float(rate):.6g}")
    if rate > Fraction(dataset.rate):
        raise SettingsError(
            f"<fps>: the dataset has {dataset.rate:g} rows per second; give as much or less", fps=str(rate)
        )
    return float(rate)


def forget_robot_dataset(destination: Path) -> None:
    """Let LeRobot open nothing while videos change, as rows and videos would not fit, and note that the rows are missing."""
    (destination / INFO_NAME).unlink(missing_ok=True)
    write_json(destination / STATE_DIR / STATE_NAME, {"files": read_record(destination).get("files", {})})


def complete_robot_dataset(
    source: Path, destination: Path, settings: RunSettings, actions: str, jobs: int, say: Callable[[str], object]
) -> dict[str, str]:
    """Write rows and metadata of a finished run. Nothing is written again if nothing has changed.

    All files are written beside their places first. Those of an earlier result are removed when the new ones are complete.

    Args:
        source: The LeRobot dataset.
        destination: The destination of the run.
        settings: Its settings.
        actions: What becomes of actions between two rows that are kept; see `rows_at`.
        jobs: Number of threads that read frames.
        say: Receives messages.

    Returns:
        Why episodes are left out, by number.

    Raises:
        StoreError, ManifestError: The source or the destination cannot be read.
        DestinationError: The destination holds files of others where these belong.
        OSError: A file cannot be written.
    """
    return write_robot_dataset(LeRobotDataset.read(source), destination, settings, actions, jobs, say)


def tell_left_out(left_out: Mapping[str, str], say: Callable[[str], object]) -> None:
    """Say which episodes are left out, and why."""
    for why in dict.fromkeys(left_out.values()):
        numbers = [number for number, other in left_out.items() if other == why]
        say(
            f"{count_of(len(numbers), 'episode')} left out of the LeRobot dataset: "
            f"episode{'s' * (len(numbers) > 1)} {', '.join(numbers)} {why}"
        )


def write_robot_dataset(
    dataset: LeRobotDataset,
    destination: Path,
    settings: RunSettings,
    actions: str,
    jobs: int,
    say: Callable[[str], object],
) -> dict[str, str]:
    """Write the rows and metadata of the episodes of a dataset; see `complete_robot_dataset`."""
    rate = check_robot_output(dataset.root, destination, settings)
    videos = {row.id: row for row in manifest_rows(destination) if row.ok}
    digest, before = _digest(dataset, videos, actions), read_record(destination)
    if before.get("digest") == digest and not any(faults_of_files(destination)):
        return dict(before["left_out"])
    stage = destination / STATE_DIR / STAGE_NAME
    shutil.rmtree(stage, ignore_errors=True)
    store, made = open_store(destination), _Result()
    _write_rows(stage, dataset, videos, store, rate, actions, made)
    for name, count in made.lost_texts.items():
        say(
            f"{count_of(count, 'text')} of {name} in rows that are left out could not be kept; a column of lists keeps all"
        )
    left_out = {str(number): why for number, why in made.left_out.items()}
    if made.kept:
        _write_metadata(stage, dataset, store, made, rate, jobs, say)
    _put_in_place(destination, stage, {"digest": digest, "left_out": left_out}, before)
    return left_out


def _write_metadata(
    stage: Path,
    found: LeRobotDataset,
    store: FrameStore,
    made: _Result,
    rate: float,
    jobs: int,
    say: Callable[[str], object],
) -> None:
    """Write all files but the rows."""
    if (longest := max(row["length"] for row in made.abouts) / rate) > EXACT_SECONDS:
        say(
            f"an episode lasts {longest:.0f} s: after {EXACT_SECONDS:.0f} s LeRobot's float32 times are too coarse for its reader; cut it"
        )
    _add_statistics_of_pictures(store, made, jobs)
    _add_depth(stage, found, made)
    abouts = [row | flat_statistics(own) for row, own in zip(made.abouts, made.statistics, strict=True)]
    write_table(stage / EPISODES_NAME, pa.Table.from_pylist(abouts))
    write_table(stage / TASKS_NAME, task_table([found.tasks[number] for number in sorted(found.tasks)]))
    write_json(stage / STATS_NAME, _read_statistics(found.root) | plain_statistics(join_statistics(made.statistics)))
    for path in sorted((found.root / "meta").glob("*")):
        if path.is_file() and path.name not in WRITTEN:
            shutil.copyfile(path, stage / "meta" / path.name)
    write_json(stage / INFO_NAME, _info(found, store, made, rate))


def _put_in_place(destination: Path, stage: Path, record: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Replace the files of an earlier result. The one that makes LeRobot open the dataset goes first and comes last."""
    names = sorted(str(path.relative_to(stage)) for path in stage.rglob("*") if path.is_file())
    files = {name: [(stage / name).stat().st_size, sha256_of(stage / name)] for name in names}
    state, known = destination / STATE_DIR / STATE_NAME, set(before.get("files", ())) | set(names)
    write_json(state, {"files": dict.fromkeys(sorted(known))})
    for name in (INFO_NAME, *sorted(known)):
        (destination / name).unlink(missing_ok=True)
    for name in sorted(names, key=lambda name: name == INFO_NAME):
        (destination / name).parent.mkdir(parents=True, exist_ok=True)
        (stage / name).replace(destination / name)
    write_json(state, {**record, "files": files})
    shutil.rmtree(stage, ignore_errors=True)


def _digest(found: LeRobotDataset, videos: Mapping[str, ManifestRow], actions: str) -> str:
    """Return a digest of all that decides what is written."""
    of_data = list[tuple[str, int, int]]()
    for name in sorted({episode.data for episode in found.episodes}):
        if (found.root / name).exists():
            status = (found.root / name).stat()
            of_data.append((name, status.st_size, status.st_mtime_ns))
    known = [
        str(FORMAT),
        json.dumps(found.info),
        repr(found.episodes),
        repr(found.tasks),
        repr(of_data),
        repr(sorted((row.id, row.sha256) for row in videos.values())),
        actions,
    ]
    return hashlib.sha256("\0".join(known).encode()).hexdigest()


def _find_kept(
    found: LeRobotDataset, episode: Episode, videos: Mapping[str, ManifestRow], store: FrameStore
) -> KeptEpisode:
    """Return which rows have a frame in the videos of an episode. Raises StoreError if its cameras do not agree, or lack one."""
    own, rows = dict[str, ManifestRow](), None
    for camera, part in episode.videos.items():
        if camera in found.depth_cameras:
            if not (found.root / part.path).is_file():
                raise StoreError(f"has no video of {camera}")
            continue
        id_ = episode_video(camera, episode.number)
        if id_ not in videos:
            raise StoreError(f"has no video of {camera}")
        own[camera] = videos[id_]
        shown = store.source_map(id_)
        if shown is None:
            raise StoreError(f"has a video of {camera} whose source frames are not known")
        if own[camera].selected_from == str(found.root.absolute()):
            first = (own[camera].selected_start_frame or 0) - round(part.start * found.rate)
            numbers = first + np.arange(own[camera].num_frames or 0)
        elif shown.pts is None:
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


def _write_rows(
    stage: Path,
    found: LeRobotDataset,
    videos: Mapping[str, ManifestRow],
    store: FrameStore,
    rate: float,
    actions: str,
    made: _Result,
) -> None:
    """Write the rows of all episodes that can be kept, and note what there is to say of them."""
    new_tasks = {task: number for number, task in enumerate(sorted(found.tasks))}
    with RowFiles(stage) as files:
        for name, episodes in groupby(found.episodes, lambda episode: episode.data):
            try:
                tables: dict[int, pa.Table] | StoreError = found.tables_of(name)
            except StoreError as error:
                tables = StoreError(f"has no rows: {name} {error.message}")
            for episode in episodes:
                first = made.abouts[-1]["dataset_to_index"] if made.abouts else 0
                try:
                    if isinstance(tables, StoreError):
                        raise tables
                    if made.kept and made.kept[-1].episode.number == episode.number:
                        raise StoreError("is listed twice")
                    each = _find_kept(found, episode, videos, store)
                    rows = _rows_of(episode, tables.get(episode.declared_number), new_tasks)
                    rows = number_rows(rows_at(rows, each.rows, actions, made.lost_texts), len(made.kept), first, rate)
                    measured, place = statistics_of_rows(rows), files.write(rows)
                except StoreError as error:
                    made.left_out[episode.number] = error.message
                    continue
                except (
                    pa.ArrowException,
                    ValueError,
                    TypeError,
                    LookupError,
                ) as error:  # values that do not fit their columns
                    made.left_out[episode.number] = f"has rows that cannot be changed: {error}"
                    continue
                made.kept.append(each)
                made.statistics.append(measured)
                texts = [found.tasks[task] for task in sorted(found.tasks)]
                row = describe_episode(rows, texts, place, each.videos, episode.number, rate)
                made.abouts.append(row | _describe_depth(found, each, made))


def _describe_depth(found: LeRobotDataset, kept: KeptEpisode, made: _Result) -> dict[str, Any]:
    """Return what the table of episodes says of the cameras of depth, whose videos stay as they are."""
    row: dict[str, Any] = {}
    for camera in found.depth_cameras:
        part = kept.episode.videos[camera]
        begin, end = part.start, part.end
        if kept.episode.rows_of is not None:  # a clip
            begin, end = (part.start + float(at) / found.rate for at in (kept.rows[0], kept.rows[-1] + 1))
        number = made.depth.setdefault((camera, part.path), sum(name == camera for name, _ in made.depth))
        chunk, file = divmod(number, EPISODES_PER_CHUNK)
        row |= {f"videos/{camera}/chunk_index": chunk, f"videos/{camera}/file_index": file}
        row |= {f"videos/{camera}/from_timestamp": begin, f"videos/{camera}/to_timestamp": end}
    return row


def _rows_of(episode: Episode, rows: pa.Table | None, new_tasks: Mapping[int, int]) -> pa.Table:
    """Return the rows of an episode in order, with the new numbers of tasks. Raises StoreError if one is missing or doubled."""
    if rows is None:
        raise StoreError("has no rows")
    rows = rows.take(pc.sort_indices(rows["frame_index"]))
    if len(rows) != episode.length or not np.array_equal(rows["frame_index"].to_numpy(), np.arange(len(rows))):
        raise StoreError(f"has rows that are not numbered 0 to {episode.length - 1}")
    tasks = rows["task_index"].to_pylist()
    if unknown := set(tasks) - new_tasks.keys():
        raise StoreError(f"names task {min(unknown)}, which is not listed")
    at = rows.column_names.index("task_index")
    return rows.set_column(at, pa.field("task_index", pa.int64()), pa.array([new_tasks[task] for task in tasks]))


def _add_statistics_of_pictures(store: FrameStore, made: _Result, jobs: int) -> None:
    """Add statistics of frames of each video, evenly distributed."""
    places = [(number, camera, row) for number, each in enumerate(made.kept) for camera, row in each.videos.items()]
    with ThreadPoolExecutor(jobs) as pool:
        for (number, camera, _), own in zip(
            places, pool.map(partial(statistics_of_video, store), [row.id for *_, row in places]), strict=True
        ):
            made.statistics[number][camera] = own


def _add_depth(stage: Path, found: LeRobotDataset, made: _Result) -> None:
    """Copy the videos of depth, with what the source says of them."""
    for (camera, path), number in made.depth.items():
        copy = stage / f"{episode_video(camera, number)}.mp4"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found.root / path, copy)
    declared: dict[int, dict[str, Any]] = {}
    with suppress(StoreError):  # statistics that LeRobot's merge alone needs
        declared = found.episode_statistics() if found.depth_cameras and found.version != "v2.0" else {}
    for each, statistics in zip(made.kept, made.statistics, strict=True):
        for camera in found.depth_cameras:
            known = declared.get(each.episode.declared_number, {}).get(camera) or {}
            if all(known.get(kind) is not None for kind in (*MOMENTS, "count")):  # others came later
                own = {kind: np.asarray(values, np.float64) for kind, values in known.items() if values is not None}
                statistics[camera] = own


def _read_statistics(source: Path) -> dict[str, Any]:
    """Return statistics of the source, for columns of which none are computed, such as pictures among the rows."""
    path = source / STATS_NAME
    try:
        return read_json(path) if path.is_file() else {}
    except (OSError, ValueError):
        return {}


def _info(found: LeRobotDataset, store: FrameStore, made: _Result, rate: float) -> dict[str, Any]:
    """Return info.json: that of the source, with what has changed."""
    features = found.features
    for feature in features.values():
        if "fps" in feature:
            feature["fps"] = int(rate)
    for camera in found.depth_cameras:
        features[camera]["info"] = {"video.fps": found.rate, **video_info_of(features[camera])}
    for camera, row in made.kept[0].videos.items():
        feature = features[camera]
        feature.pop("video_info", None)
        feature["shape"] = _shape(feature, row)
        feature["info"] = video_info(store, row, rate)
    kept_info = {name: value for name, value in found.info.items() if name not in OF_OLD_VERSIONS}
    return {
        **kept_info,
        **totals(made.abouts, len(found.tasks), rate),
        "splits": _splits(found, made),
        "features": features,
    }


def _shape(about: Mapping[str, Any], row: ManifestRow) -> list[Any]:
    """Return the shape of a camera's pictures, in the order of its axes."""
    before = list(about.get("shape") or [])
    is_channels_first = len(before) == 3 and before[0] in (1, 3) and before[2] not in (1, 3)
    names = ["channels", "height", "width"] if is_channels_first else ["height", "width", "channels"]
    declared = about.get("names")
    if isinstance(declared, list) and sorted(map(str, declared)) == sorted(names):
        names = declared
    sizes = {"height": row.height, "width": row.width}
    return [sizes.get(name, 3) for name in names]


def _splits(found: LeRobotDataset, made: _Result) -> dict[str, str]:
    """Return the splits of the source with the new numbers of their episodes; `train` is all without any."""
    numbers, splits = [each.episode.declared_number for each in made.kept], {}
    declared = found.info.get("splits")
    for name, part in declared.items() if isinstance(declared, dict) else ():
        if (match := re.fullmatch(r"(\d{1,9}):(\d{1,9})", str(part))) is not None:
            first, last = (bisect_left(numbers, int(at)) for at in match.groups())
            if first < last:
                splits[str(name)] = f"{first}:{last}"
    return splits or {"train": f"0:{len(numbers)}"}
