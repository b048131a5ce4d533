"""A LeRobot dataset as an audit sees it: the declared part of each video, and what metadata and rows contradict."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vidprep.formats.errors import StoreError, count_of
from vidprep.formats.lerobot import INFO_NAME, Episode, LeRobotDataset, video_info_of
from vidprep.transcode.audit._robot_values import faults_of_statistics, motion_of_rows, wrong_values
from vidprep.transcode.audit.dataset import ERROR, WARNING, Clip, Dataset, Finding, VideoFile
from vidprep.transcode.audit.statistics import Statistics, statistics_of_rows

TOLERANCE_SECONDS = 1e-4  # of LeRobot's reader: LeRobotDataset(tolerance_s=1e-4)
EXACT_SECONDS = 2048.0  # from here on float32 is coarser than that
Numbers = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Rows:
    """The rows of a dataset, read file by file.

    Attributes:
        times: (L,) timestamps of each episode
        motion: (L,) how far its states move from row to row
        unreadable: Files that cannot be read
    """

    times: dict[int, npt.NDArray[np.float64]] = field(default_factory=dict)
    motion: dict[int, npt.NDArray[np.float64]] = field(default_factory=dict)
    statistics: dict[int, dict[str, Statistics]] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)


def robot_dataset(root: Path) -> Dataset:
    """Return a LeRobot dataset. Raises StoreError if its metadata cannot be read."""
    dataset, rows = LeRobotDataset.read(root), _Rows()
    findings = list[Finding]()
    if (rate := _rate_of_rows(dataset)) is not None:
        text = f"declares {dataset.rate:g} frames per second, and the rows run at {rate:g}"
        findings.append(Finding(ERROR, "rate", INFO_NAME, "", None, text))
        dataset = replace(dataset, rate=rate)
    findings += _faults_of_totals(dataset)
    findings += _faults_of_files(dataset, rows)
    for episode in dataset.episodes:
        if episode.length and episode.number not in rows.times and episode.data not in rows.unreadable:
            findings.append(_finding_in(episode, "rows", f"has no rows, {episode.length} are declared"))
    findings += faults_of_statistics(dataset, rows.statistics)
    parts = defaultdict[str, list[Clip]](list)
    for episode in dataset.episodes:
        times = rows.times.get(episode.number)
        for part in episode.videos.values():
            name = f"episode {episode.number}"
            parts[part.path].append(Clip(name, part.start, part.end, episode.length, times=times, episode=episode))
    cameras = {part.path: camera for episode in dataset.episodes for camera, part in episode.videos.items()}
    videos = [_video(dataset, path, cameras[path], clips) for path, clips in sorted(parts.items())]
    for video in videos:
        if cameras[video.name] not in dataset.depth_cameras:
            findings += _faults_of_parts(video)
    description = (
        f"{count_of(len(dataset.episodes), 'episode')}, {count_of(len(dataset.cameras), 'camera')}, "
        f"{count_of(sum(episode.length for episode in dataset.episodes), 'row')} at {dataset.rate:g} per second"
    )
    return Dataset(f"LeRobot dataset {dataset.version}", description, root, videos, findings, dataset, rows.motion)


def _video(found: LeRobotDataset, path: str, camera: str, clips: list[Clip]) -> VideoFile:
    """Return a video with its episodes. One of depth may have more frames than rows."""
    rate = found.rate_of(camera)
    if rate != found.rate:
        clips = [replace(clip, num_frames=None) for clip in clips]
    own = tuple(sorted(clips, key=lambda clip: clip.start))
    return VideoFile(found.root / path, path, own, rate, size=_size_of_camera(found, camera))


def _size_of_camera(found: LeRobotDataset, camera: str) -> tuple[int, int] | None:
    """Return (width, height) of a camera's pictures; None if that is not declared."""
    description = found.features[camera]
    with suppress(TypeError, ValueError):  # names that are lists, sizes that are null
        sizes = dict(zip(description.get("names") or (), description.get("shape") or (), strict=False))
        return (int(sizes["width"]), int(sizes["height"])) if {"width", "height"} <= sizes.keys() else None
    return None


def _rate_of_rows(found: LeRobotDataset) -> float | None:
    """Return the rate at which the rows of the first file run; None if it is the declared one, or is not known."""
    try:
        table = found.table(found.episodes[0].data, ())
    except (StoreError, LookupError):
        return None
    numbers, times = (table[name].to_numpy() for name in ("episode_index", "timestamp"))
    steps = np.diff(times)[np.diff(numbers) == 0]
    usual = float(np.median(steps)) if len(steps) else 0.0
    if usual <= 0 or abs(usual - 1 / found.rate) <= TOLERANCE_SECONDS:
        return None
    return round(1 / usual, 3) or None  # in another unit than seconds


def _faults_of_files(found: LeRobotDataset, rows: _Rows) -> Iterator[Finding]:
    """Read the data files. Yield those that no episode names, what is wrong with their columns and rows, and rows that LeRobot would take
    for others: it addresses them by their place in all files.
    """
    episodes = {episode.number: episode for episode in found.episodes}
    named = {episode.data for episode in found.episodes}
    following: int | None = 0  # not known after a file that cannot be read
    for name in sorted({*found.data_files(), *named}):
        try:
            table = found.table(name)
        except StoreError as error:
            yield Finding(ERROR, "rows" if (found.root / name).exists() else "missing", name, "", None, error.message)
            rows.unreadable.add(name)
            following = None
            continue
        if name not in named:
            yield Finding(ERROR, "unlisted", name, "", None, "belongs to no episode, and LeRobot reads its rows")
        wrong_columns = dict(wrong_values(found, table))
        yield from (Finding(ERROR, "columns", name, "", None, text) for text in wrong_columns.values())
        indexes = table["index"].to_numpy()
        following = int(indexes[0]) if following is None and len(indexes) else following or 0
        if (wrong := _first_other(indexes, following + np.arange(len(indexes)))) is not None:
            text = f"at place {following + wrong} of the dataset is row {indexes[wrong]}, and LeRobot addresses rows by their place"
            yield Finding(ERROR, "order", name, "", None, text)
        following += len(indexes)
        for number, own in found.split(table).items():
            if number in episodes and episodes[number].data == name:
                yield from _read_rows(found, episodes[number], own, rows, wrong_columns)


def _read_rows(
    found: LeRobotDataset, episode: Episode, table: pa.Table, rows: _Rows, wrong_columns: Collection[str]
) -> Iterator[Finding]:
    """Note the rows of an episode, and yield what is wrong with them."""
    number, times = episode.number, table["timestamp"].to_numpy()
    off = times - np.arange(len(times)) / found.rate
    is_moved = times[0] > TOLERANCE_SECONDS and np.ptp(off) <= TOLERANCE_SECONDS  # a finding of its own reports this
    rows.times[number] = times - times[0] if is_moved else times
    rows.motion[number] = motion_of_rows(table)
    faults = list(_faults_of_rows(found, episode, table))
    if not any(fault.kind == "rows" for fault in faults):
        statistics = statistics_of_rows(table)
        rows.statistics[number] = {name: each for name, each in statistics.items() if name not in wrong_columns}
    yield from faults


def _finding_in(episode: Episode, kind: str, text: str) -> Finding:
    return Finding(ERROR, kind, episode.data, f"episode {episode.number}", None, text)


def _faults_of_totals(found: LeRobotDataset) -> Iterator[Finding]:
    """Yield what info.json and the list of episodes contradict."""

    def said(kind: str, text: str) -> Finding:
        return Finding(ERROR, kind, INFO_NAME, "", None, text)

    declared, there = int(found.info["total_episodes"]), [episode.number for episode in found.episodes]
    if declared != len(there):
        yield said("count", f"declares {count_of(declared, 'episode')}, {len(there)} are listed")
    if there != list(range(len(there))):
        wrong = next(number for number, other in enumerate(there) if number != other)
        yield said("count", f"episodes are not numbered from 0: at place {wrong} is episode {there[wrong]}")
    declared, total = int(found.info["total_frames"]), sum(episode.length for episode in found.episodes)
    if declared != total:
        yield said("count", f"declares {count_of(declared, 'row')}, the episodes have {total}")
    yield from (said("tasks", text) for text in _wrong_tasks(found))
    yield from (said("rate", text) for text in _wrong_rates(found))
    yield from (said("splits", text) for text in _wrong_splits(found))
    has_images = any(description.get("dtype") == "image" for description in found.features.values())
    if not has_images and (left := len([*(found.root / "images").glob("*/*/*.png")])):
        text = f"{count_of(left, 'picture')} in images/ were not encoded: a recording was interrupted"
        yield Finding(WARNING, "unlisted", "images", "", None, text)
    following = 0
    for episode in found.episodes:
        if episode.first is not None and episode.last is not None:
            if (episode.first, episode.last) != (following, following + episode.length):
                text = f"the metadata says rows {episode.first} to {episode.last}; it has {episode.length}, and begins at row {following}"
                yield _finding_in(episode, "rows", text)
            following = episode.last


def _wrong_rates(found: LeRobotDataset) -> Iterator[str]:
    """Yield cameras that are declared at another rate than the dataset."""
    for name, description in found.features.items():
        rate = video_info_of(description).get("video.fps")
        if (
            name not in found.depth_cameras
            and isinstance(rate, int | float)
            and abs(rate - found.rate) > 0.01 * found.rate
        ):
            yield f"{name} declares {rate:g} frames per second, the dataset {found.rate:g}"


def _wrong_splits(found: LeRobotDataset) -> Iterator[str]:
    """Yield splits that are empty, or go beyond the last episode."""
    declared = found.info.get("splits")
    for name, part in declared.items() if isinstance(declared, dict) else ():
        match = re.fullmatch(r"(\d{1,18}):(\d{1,18})", str(part))
        if match is not None and not int(match[1]) < int(match[2]) <= len(found.episodes):
            yield f"the split {name} is episodes {part}, {len(found.episodes)} are listed"


def _wrong_tasks(found: LeRobotDataset) -> Iterator[str]:
    """Yield what is wrong with the list of tasks."""
    texts = list(found.tasks.values())
    if not texts:
        yield "no task is listed: meta/tasks is missing or empty"
        return
    if sorted(found.tasks) != list(range(len(texts))):
        yield f"tasks are not numbered from 0: {sorted(found.tasks)[:5]}"
    for text, count in Counter(texts).most_common(1):
        if count > 1:
            yield f"the task {text!r} is listed {count} times"
    declared = found.info.get("total_tasks")
    if declared is not None and declared != len(texts):
        yield f"declares {declared} tasks, {len(texts)} are listed"


def _faults_of_rows(found: LeRobotDataset, episode: Episode, table: pa.Table) -> Iterator[Finding]:
    """Yield what the rows of an episode contradict."""
    count, times = len(table), table["timestamp"].to_numpy()
    frames, indexes, tasks = (table[name].to_numpy() for name in ("frame_index", "index", "task_index"))
    if count != episode.length:
        yield _finding_in(episode, "rows", f"has {count_of(count, 'row')}, {episode.length} are declared")
    if (wrong := _first_other(frames, np.arange(count))) is not None:
        yield _finding_in(episode, "rows", f"frame_index of row {wrong} is {frames[wrong]}")
    first = episode.first if episode.first is not None else int(indexes[0])
    if (wrong := _first_other(indexes, first + np.arange(count))) is not None:
        yield _finding_in(episode, "rows", f"index of row {wrong} is {indexes[wrong]}, not {first + wrong}")
    yield from _faults_of_row_times(found, episode, times)
    unknown = tasks[~np.isin(tasks, list(found.tasks))]
    if len(unknown) and found.tasks:
        yield _finding_in(episode, "tasks", f"names task {unknown[0]}, {count_of(len(found.tasks), 'task')} are listed")
    elif (
        found.tasks
        and episode.tasks
        and (texts := {found.tasks[task] for task in set(tasks.tolist())}) != set(episode.tasks)
    ):
        yield _finding_in(
            episode, "tasks", f"is listed with the tasks {sorted(episode.tasks)}, and its rows have {sorted(texts)}"
        )


def _faults_of_row_times(found: LeRobotDataset, episode: Episode, times: npt.NDArray[np.float64]) -> Iterator[Finding]:
    """Yield rows whose time is not that of their number."""
    off = times - np.arange(len(times)) / found.rate
    if np.abs(off).max(initial=0) <= TOLERANCE_SECONDS:
        return
    if len(times) / found.rate > EXACT_SECONDS and np.abs(off).max() < 0.25 / found.rate:
        text = (
            f"lasts over {EXACT_SECONDS:g} s, where a float32 timestamp is off by {np.abs(off).max():.1e} s; split it"
        )
        yield Finding(WARNING, "times", episode.data, f"episode {episode.number}", None, text)
    elif np.ptp(off) <= TOLERANCE_SECONDS:
        yield _finding_in(episode, "times", f"its timestamps begin at {times[0]:.6g} s, and not at 0")
    else:
        row = int(np.argmax(np.abs(off) > TOLERANCE_SECONDS))
        due = f"at {found.rate:g} rows per second it is {row / found.rate:.6g} s"
        yield _finding_in(episode, "times", f"timestamp of row {row} is {times[row]:.6g} s; {due}")


def _first_other(values: Numbers, due: Numbers) -> int | None:
    """Return the first place at which two arrays differ."""
    wrong = np.flatnonzero(values != due)
    return int(wrong[0]) if len(wrong) else None


def _faults_of_parts(video: VideoFile) -> Iterator[Finding]:
    """Yield where the episodes of a video leave a gap, or share frames."""
    frame = 1 / (video.rate or 1.0)
    following = 0.0
    for clip in video.clips:
        assert clip.end is not None
        if not np.isfinite([clip.start, clip.end]).all():
            yield Finding(ERROR, "range", video.name, clip.name, None, "has no start or no end in the video")
            continue
        if abs(clip.start - following) > frame / 4:
            kind = "a gap of" if clip.start > following else "an overlap of"
            text = (
                f"starts at {clip.start:.6g} s, and what is before it ends at {following:.6g} s: {kind} "
                f"{abs(clip.start - following) / frame:.3g} frames"
            )
            yield Finding(ERROR, "range", video.name, clip.name, clip.start, text)
        if clip.num_frames is not None and abs((clip.end - clip.start) / frame - clip.num_frames) > 0.5:
            text = f"{clip.start:.6g} to {clip.end:.6g} s are {(clip.end - clip.start) / frame:.3g} frames, {clip.num_frames} are declared"
            yield Finding(ERROR, "range", video.name, clip.name, clip.start, text)
        following = clip.end


def one_line_each(findings: list[Finding]) -> Iterator[Finding]:
    """Yield findings; those that differ in numbers alone as one, with the names of their episodes."""
    groups = defaultdict[tuple[str, ...], list[Finding]](list)
    for finding in findings:
        groups[finding.level, finding.kind, finding.path, NAMES.sub("", finding.text)].append(finding)
    for several in groups.values():
        parts = [finding.part.removeprefix("episode ") for finding in several]
        if len(several) > MOST_LINES and all(map(str.isdecimal, parts)):
            numbers = _ranges(sorted(map(int, parts)))
            yield several[0]._replace(part=f"episodes {numbers}", text=f"the first: {several[0].text}")
        else:
            yield from several


MOST_LINES = 3  # of one kind about one file
NAMES = re.compile(r"\[[^]]*\]|'[^']*'|\d[\d.e+-]*")


def _ranges(numbers: list[int]) -> str:
    """Return ascending numbers as 0-3, 7."""
    runs: list[list[int]] = []
    for before, number in pairwise([-2, *numbers]):
        if number == before + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
