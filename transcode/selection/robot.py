"""Episodes of a LeRobot dataset that `select` takes: by a table, or without the stretches in which nothing moves."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache, lru_cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from av.error import FFmpegError as AvError

from vidprep.formats.errors import SettingsError, SourceError, StoreError, count_of
from vidprep.formats.lerobot import Episode, LeRobotDataset
from vidprep.formats.model import Cut, Selected
from vidprep.formats.storage.local import digest_samples
from vidprep.formats.video.options import EncoderOptions
from vidprep.formats.video.source import open_video
from vidprep.transcode.settings.options import Retime
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.robot import episode_video
from vidprep.transcode.sources.unit import SourceList, Unit

if TYPE_CHECKING:
    import pyarrow as pa

IDLE_SHARE = 0.01  # of the range of a value in its episode: one that stays within it does not move


class Clip(NamedTuple):
    """Frames [begin, end) of an episode, which are an episode of the result; and the row of the table that asks for them."""

    episode: Episode
    begin: int
    end: int
    row: int = -1


def clips_by_table(dataset: LeRobotDataset, cuts: Sequence[tuple[int, str, Cut]], path: str) -> list[Clip]:
    """Return the clips of a table whose ids are numbers of episodes. Raises SourceError for frames that do not exist."""
    episodes, clips = {str(episode.number): episode for episode in dataset.episodes}, list[Clip]()
    for number, name, cut in cuts:
        episode = episodes.get(name)
        if episode is None:
            raise SourceError(f"row {number + 1}: there is no episode {name}", path=path)
        begin, end = cut.start_frame or 0, episode.length if cut.end_frame is None else cut.end_frame
        if not begin < end <= episode.length:
            raise SourceError(
                f"row {number + 1}: episode {name} has {count_of(episode.length, 'frame')}, not [{begin}, {end})",
                path=path,
            )
        clips.append(Clip(episode, begin, end, number))
    clips.sort(key=lambda clip: (clip.episode.number, clip.begin, clip.end))
    for one, other in pairwise(clips):
        if one[:3] == other[:3]:
            raise SourceError(f"rows {one.row + 1} and {other.row + 1} are the same frames", path=path)
    return clips


def clips_that_move(dataset: LeRobotDataset, seconds: float, *, drops: bool) -> list[Clip]:
    """Return the clips of episodes in which states or actions move.

    Args:
        dataset: The dataset.
        seconds: A stretch of this length, in which no value leaves IDLE_SHARE of its range in the episode, is idle.
        drops: Whether idle stretches are left out within episodes, too, which become several; else only at their ends.

    Raises:
        StoreError: The rows cannot be read.
    """
    return [
        Clip(episode, begin, end)
        for episode in dataset.episodes
        for begin, end in _spans(dataset.states_of(episode), max(2, round(seconds * dataset.rate)), drops=drops)
    ]


def _spans(states: npt.NDArray[np.float64], length: int, *, drops: bool) -> Iterator[tuple[int, int]]:
    """Yield the spans of (L, D) states in which something moves: from the last frame before it does to the first one that rests."""
    is_idle = np.zeros(len(states), np.bool_)
    if length <= len(states) and states.shape[1]:
        windows = np.lib.stride_tricks.sliding_window_view(states, length, axis=0)
        still = np.all(np.ptp(windows, axis=2) <= IDLE_SHARE * np.ptp(states, axis=0), axis=1)
        for begin in np.flatnonzero(still):
            is_idle[begin : begin + length] = True
    spans = [
        (numbers[0], numbers[-1] + 1)
        for idle, run in groupby(range(len(states)), key=lambda number: bool(is_idle[number]))
        if not idle and (numbers := list(run))
    ]
    if spans and not drops:
        spans = [(spans[0][0], spans[-1][1])]
    yield from ((max(0, begin - 1), min(len(states), end + 1)) for begin, end in spans)


def with_clips(dataset: LeRobotDataset, clips: Sequence[Clip]) -> LeRobotDataset:
    """Return a dataset whose episodes are clips, numbered from 0, in the rows of the episodes that they are of."""
    episodes = [replace(clip.episode, number=number, rows_of=clip.episode.number) for number, clip in enumerate(clips)]
    return replace(dataset, episodes=episodes)


def widen(clips: Sequence[Clip], keyframes_of: Callable[[str, Episode], Collection[int]]) -> list[Clip]:
    """Return clips that begin and end at keyframes of all cameras, or with their episodes, with as few more frames as that takes.

    Args:
        clips: The clips.
        keyframes_of: Returns the keyframes of a camera's video, counted from the start of an episode.
    """
    _keyframes.cache_clear()  # of earlier calls, since files may have changed
    wider = []
    for clip in clips:
        common = {*range(clip.episode.length + 1)}
        for camera in clip.episode.videos:
            common &= {*keyframes_of(camera, clip.episode), clip.episode.length}
        places = sorted(common | {0})
        begin, end = places[bisect_right(places, clip.begin) - 1], places[bisect_left(places, clip.end)]
        wider.append(clip._replace(begin=begin, end=end))
    return wider


def list_episodes(
    dataset: LeRobotDataset, clips: Sequence[Clip], columns: Mapping[str, pa.Array]
) -> tuple[SourceList, RunSettings]:
    """Return the videos of clips of a dataset that vidprep did not make, and settings like those of its videos.

    Args:
        dataset: The dataset.
        clips: The clips, which are numbered from 0.
        columns: Further labels of each clip.

    Raises:
        StoreError: It has no video, or videos of a codec that vidprep does not make.
    """
    import pyarrow as pa

    from vidprep.formats.manifest.labels import Labels

    digest = cache(digest_samples)
    units, numbers, cameras = list[Unit](), list[int](), list[str]()
    for number, clip in enumerate(clips):
        for camera, part in clip.episode.videos.items():
            path = dataset.root / part.path
            if camera in dataset.depth_cameras or not path.is_file():
                continue
            first, status = round(part.start * dataset.rate), path.stat()
            frames = first + clip.begin, first + clip.end
            selected = Selected(str(dataset.root), part.path, *frames, digest(path))
            cut = Cut(part.start, part.end)
            unit_id = episode_video(camera, number)
            units.append(Unit(unit_id, str(path), status.st_size, status.st_mtime_ns, cut, selected=selected))
            numbers.append(number)
            cameras.append(camera)
    if not units:
        raise StoreError("has no video of an episode that is selected", path=dataset.root)
    rows = pa.array(numbers, pa.int64())
    labels = {
        "episode_index": rows,
        "camera": pa.array(cameras, pa.string()),
        "task": pa.array(["; ".join(clips[number].episode.tasks) for number in numbers], pa.string()),
        **{name: column.take(rows) for name, column in columns.items()},
    }
    readable = next((Path(unit.path) for unit in units if _keyframes(Path(unit.path))), None)
    if readable is None:
        raise StoreError("has no video that can be read", path=dataset.root)
    settings = _settings_like(readable, dataset.rate)
    return SourceList(tuple(units), (), labels=Labels([unit.id for unit in units], labels)), settings


def keyframes_in(dataset: LeRobotDataset, camera: str, episode: Episode) -> list[int]:
    """Return the keyframes of a camera's video, counted from the start of an episode, as the index of its file has them; all frames of
    maps of depth, which are not cut, and of a file that cannot be read, which fails later.
    """
    part = episode.videos[camera]
    first = round(part.start * dataset.rate)
    if camera in dataset.depth_cameras or not _keyframes(dataset.root / part.path):
        return [*range(episode.length)]
    return [number - first for number in _keyframes(dataset.root / part.path) if 0 <= number - first < episode.length]


@lru_cache(maxsize=256)
def _keyframes(path: Path) -> list[int]:
    try:
        with open_video(path) as container:
            return [number for number, each in enumerate(container.streams.video[0].index_entries) if each.is_keyframe]
    except (AvError, OSError, IndexError):
        return []


def _settings_like(path: Path, rate: float) -> RunSettings:
    """Return settings that make videos like a file, as far as it tells. Raises StoreError for a codec that is not made."""
    with open_video(path) as container:
        context = container.streams.video[0].codec_context
        codec, pixel_format = context.codec.canonical_name, context.pix_fmt
    steps = [other - one for one, other in pairwise(_keyframes(path))]
    try:
        encoder = EncoderOptions(codec, gop=max(steps, default=1), container="mp4", pixel_format=pixel_format)
        return RunSettings(VideoOutput(encoder), Retime(Fraction(rate)))
    except SettingsError as error:
        raise StoreError(f"{error}: its packets cannot be kept; `vidprep transcode` encodes it", path=path) from error


def with_videos(dataset: LeRobotDataset, ids: Collection[str]) -> LeRobotDataset:
    """Return a dataset with only the episodes of which some camera has a video."""
    episodes = [
        episode
        for episode in dataset.episodes
        if any(episode_video(camera, episode.number) in ids for camera in episode.videos)
    ]
    return replace(dataset, episodes=episodes)
