"""Episodes of a LeRobot dataset that `select` takes: by a table, or without the stretches in which nothing moves."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import SourceError, count_of
from vidprep.formats.lerobot import Episode, LeRobotDataset
from vidprep.formats.model import Cut
from vidprep.transcode.sources.robot import episode_video

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


def with_videos(dataset: LeRobotDataset, ids: Collection[str]) -> LeRobotDataset:
    """Return a dataset with only the episodes of which some camera has a video."""
    episodes = [
        episode
        for episode in dataset.episodes
        if any(episode_video(camera, episode.number) in ids for camera in episode.videos)
    ]
    return replace(dataset, episodes=episodes)
