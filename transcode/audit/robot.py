"""A LeRobot dataset as an audit sees it: the declared part of each video, and what metadata and rows contradict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import StoreError, count_of
from vidprep.formats.lerobot import INFO_NAME, Episode, EpisodeRows, LeRobotDataset
from vidprep.transcode.audit.dataset import ERROR, WARNING, Clip, Dataset, Finding, VideoFile

TOLERANCE_SECONDS = 1e-4  # of LeRobot's reader: LeRobotDataset(tolerance_s=1e-4)
EXACT_SECONDS = 2048.0  # from here on float32 is coarser than that
Numbers = npt.NDArray[np.int64]


def robot_dataset(root: Path) -> Dataset:
    """Return a LeRobot dataset. Raises StoreError if its metadata cannot be read."""
    found = LeRobotDataset.read(root)
    findings = list(_faults_of_totals(found))
    rows, unreadable = dict[int, EpisodeRows](), set[str]()
    for name in sorted({episode.data for episode in found.episodes}):
        try:
            rows |= found.rows_of(name)
        except FileNotFoundError:
            findings.append(Finding(ERROR, "missing", name, "", None, "is not there"))
            unreadable.add(name)
        except StoreError as error:
            findings.append(Finding(ERROR, "rows", name, "", None, error.message))
            unreadable.add(name)
    findings += _faults_of_files(found, unreadable)
    for episode in found.episodes:
        if episode.number in rows:
            findings += _faults_of_rows(found, episode, rows[episode.number])
        elif episode.data not in unreadable:
            findings.append(_of(episode, "rows", f"has no rows, {episode.length} are declared"))
    parts = defaultdict[str, list[Clip]](list)
    for episode in found.episodes:
        times = rows[episode.number].times if episode.number in rows else None
        for part in episode.videos.values():
            name = f"episode {episode.number}"
            parts[part.path].append(Clip(name, part.start, part.end, episode.length, times=times, episode=episode))
    sizes = {
        part.path: _declared_size(found, camera)
        for episode in found.episodes
        for camera, part in episode.videos.items()
    }
    videos = [
        VideoFile(root / path, path, tuple(sorted(clips, key=lambda clip: clip.start)), found.rate, size=sizes[path])
        for path, clips in sorted(parts.items())
    ]
    for video in videos:
        findings += _faults_of_parts(video)
    about = (
        f"{count_of(len(found.episodes), 'episode')}, {count_of(len(found.cameras), 'camera')}, "
        f"{count_of(sum(episode.length for episode in found.episodes), 'row')} at {found.rate:g} per second"
    )
    return Dataset(f"LeRobot dataset {found.version}", about, root, videos, findings, found)


def _declared_size(found: LeRobotDataset, camera: str) -> tuple[int, int] | None:
    """Return (width, height) of a camera's pictures; None if that is not declared."""
    about = found.features[camera]
    sizes = dict(zip(about.get("names") or (), about.get("shape") or (), strict=False))
    return (int(sizes["width"]), int(sizes["height"])) if {"width", "height"} <= sizes.keys() else None


def _faults_of_files(found: LeRobotDataset, unreadable: Set[str]) -> Iterator[Finding]:
    """Yield data files that no episode names, columns that are not as declared, and rows that LeRobot would take for others: it
    addresses them by their place in all files.
    """
    named, following = {episode.data for episode in found.episodes}, 0
    for name in found.data_files():
        if name in unreadable:
            continue
        if name not in named:
            yield Finding(ERROR, "unlisted", name, "", None, "belongs to no episode, and LeRobot reads its rows")
        try:
            for text in found.wrong_columns(name):
                yield Finding(ERROR, "columns", name, "", None, text)
            indexes = found.indexes_of(name)
        except StoreError as error:
            yield Finding(ERROR, "rows", name, "", None, error.message)
            continue
        if (wrong := _first_other(indexes, following + np.arange(len(indexes)))) is not None:
            text = f"at place {following + wrong} of the dataset is row {indexes[wrong]}, and LeRobot addresses rows by their place"
            yield Finding(ERROR, "order", name, "", None, text)
        following += len(indexes)


def _of(episode: Episode, kind: str, text: str) -> Finding:
    return Finding(ERROR, kind, episode.data, f"episode {episode.number}", None, text)


def _faults_of_totals(found: LeRobotDataset) -> Iterator[Finding]:
    """Yield what info.json and the list of episodes contradict."""
    declared, there = int(found.info["total_episodes"]), [episode.number for episode in found.episodes]
    if declared != len(there):
        text = f"declares {count_of(declared, 'episode')}, {len(there)} are listed"
        yield Finding(ERROR, "count", INFO_NAME, "", None, text)
    if there != list(range(len(there))):
        wrong = next(number for number, other in enumerate(there) if number != other)
        text = f"episodes are not numbered from 0: at place {wrong} is episode {there[wrong]}"
        yield Finding(ERROR, "count", INFO_NAME, "", None, text)
    if sorted(found.tasks) != list(range(len(found.tasks))):
        text = f"tasks are not numbered from 0: {sorted(found.tasks)[:5]}"
        yield Finding(ERROR, "tasks", INFO_NAME, "", None, text)
    declared, total = int(found.info["total_frames"]), sum(episode.length for episode in found.episodes)
    if declared != total:
        text = f"declares {count_of(declared, 'row')}, the episodes have {total}"
        yield Finding(ERROR, "count", INFO_NAME, "", None, text)
    following = 0
    for episode in found.episodes:
        if episode.first is not None and episode.last is not None:
            if (episode.first, episode.last) != (following, following + episode.length):
                text = f"the metadata says rows {episode.first} to {episode.last}; it has {episode.length}, and begins at row {following}"
                yield _of(episode, "rows", text)
            following = episode.last


def _faults_of_rows(found: LeRobotDataset, episode: Episode, rows: EpisodeRows) -> Iterator[Finding]:
    """Yield what the rows of an episode contradict."""
    count = len(rows.times)
    if count != episode.length:
        yield _of(episode, "rows", f"has {count_of(count, 'row')}, {episode.length} are declared")
    if (wrong := _first_other(rows.frame_indexes, np.arange(count))) is not None:
        yield _of(episode, "rows", f"frame_index of row {wrong} is {rows.frame_indexes[wrong]}")
    first = episode.first if episode.first is not None else int(rows.indexes[0])
    if (wrong := _first_other(rows.indexes, first + np.arange(count))) is not None:
        yield _of(episode, "rows", f"index of row {wrong} is {rows.indexes[wrong]}, not {first + wrong}")
    off = np.abs(rows.times - np.arange(count) / found.rate)
    if off.max(initial=0) > TOLERANCE_SECONDS:
        late = bool(count / found.rate > EXACT_SECONDS and off.max() < 0.25 / found.rate)
        row = int(np.argmax(off > TOLERANCE_SECONDS))
        if late:
            text = f"lasts over {EXACT_SECONDS:g} s, where a float32 timestamp is off by {off.max():.1e} s; split it"
            yield Finding(WARNING, "times", episode.data, f"episode {episode.number}", None, text)
        else:
            text = (
                f"timestamp of row {row} is {rows.times[row]:.6g} s; at {found.rate:g} rows per second it is "
                f"{row / found.rate:.6g} s"
            )
            yield _of(episode, "times", text)
    tasks = rows.tasks[~np.isin(rows.tasks, list(found.tasks))]
    if len(tasks):
        yield _of(episode, "tasks", f"names task {tasks[0]}, {count_of(len(found.tasks), 'task')} are listed")


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
