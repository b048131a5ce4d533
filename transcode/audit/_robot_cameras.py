"""Pictures of a LeRobot dataset against what it declares of them: cameras that are exchanged, another episode's video, exchanged channels,
and cameras that are late.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from itertools import combinations

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import StoreError, count_of
from vidprep.formats.lerobot import LeRobotDataset
from vidprep.transcode.audit._video import VideoFacts
from vidprep.transcode.audit.dataset import ERROR, WARNING, Finding, VideoFile

FAR = 0.02  # of statistics from 0 to 1: what encoding and choosing some frames changes is less
TIMES_AS_NEAR = 3.0
MOST_LATE = 12  # frames
LEAST_FRAMES, LEAST_LIKENESS, LEAST_GAIN, LEAST_PEAK = 100, 0.4, 0.15, 0.03
REACTION = 3  # frames that a robot may move after it was told to
ROWS = "the rows"
PERMUTED = [2, 1, 0, 5, 4, 3]
Signal = npt.NDArray[np.float64]


class Cameras:
    """Measurements of the pictures of each camera and episode.

    Args:
        dataset: The dataset.
        motion: (L,) how far the states of each episode move from row to row.
    """

    def __init__(self, dataset: LeRobotDataset, motion: Mapping[int, Signal]) -> None:
        self._dataset, self._rows = dataset, motion
        self._paths = {
            (camera, each.number): part.path for each in dataset.episodes for camera, part in each.videos.items()
        }
        self._levels: dict[str, dict[int, Signal]] = {}  # (6,) mean and deviation of three channels
        self._motion: dict[str, dict[int, Signal]] = {}
        self._shown: dict[tuple[str, bytes], list[int]] = {}  # episodes by camera and checksums of the frames

    def see(self, video: VideoFile, facts: VideoFacts) -> None:
        """Add the episodes of a video that was read."""
        frame = 0.5 / (video.rate or 1.0)
        for clip in video.clips:
            assert clip.episode is not None
            camera = next(name for name, part in clip.episode.videos.items() if part.path == video.name)
            inside = (facts.times >= clip.start - frame) & (facts.times < (clip.end or np.inf) - frame)
            if not inside.any() or camera in self._dataset.depth_cameras:
                continue
            mean, square = facts.levels[inside].mean(0).reshape(2, 3)
            deviation = np.sqrt(np.maximum(0.0, square - mean**2))
            self._levels.setdefault(camera, {})[clip.episode.number] = np.concatenate([mean, deviation])
            if np.ptp(sums := facts.sums[inside]):
                content = hashlib.sha256(sums.tobytes()).digest()
                self._shown.setdefault((camera, content), []).append(clip.episode.number)
            motion = facts.motion[inside].copy()
            motion[0] = 0.0  # the frame before is of another episode
            self._motion.setdefault(camera, {})[clip.episode.number] = motion

    def findings(self) -> Iterator[Finding]:
        """Yield cameras that show what is declared of something else, or the same twice, and those that are late."""
        for (camera, _), (first, *others) in sorted(self._shown.items()):
            for number in others:
                is_whole = np.array_equal(self._rows.get(number, ()), self._rows.get(first, ()))
                text = (
                    f"{camera} shows the same frames as in episode {first}" + ", and its rows are the same" * is_whole
                )
                level = WARNING if is_whole else ERROR
                yield Finding(level, "pictures", self._paths[camera, number], f"episode {number}", None, text)
        yield from self._find_exchanged()
        yield from self._late()

    def _declared_statistics(self) -> dict[str, dict[int, Signal]]:
        """Return (6,) declared mean and deviation of the channels of each camera and episode."""
        try:
            episodes = self._dataset.episode_statistics() if self._dataset.version != "v2.0" else {}
        except StoreError:
            return {}  # said of the metadata
        declared: dict[str, dict[int, Signal]] = {}
        for number, statistics in episodes.items():
            for camera in self._levels:
                try:
                    both = [np.asarray(statistics[camera][kind], np.float64).reshape(3) for kind in ("mean", "std")]
                except (KeyError, ValueError, TypeError):
                    continue
                if np.isfinite(both).all():
                    declared.setdefault(camera, {})[number] = np.concatenate(both)
        return declared

    def _find_exchanged(self) -> Iterator[Finding]:
        declared = self._declared_statistics()
        for camera, levels in self._levels.items():
            own = declared.get(camera, {})
            far = {number: _distance(levels[number], own[number]) for number in levels if number in own}
            usual = float(np.median(list(far.values()))) if far else 0.0
            episodes = np.array(list(own.values())).reshape(-1, 6)
            for number, distance in far.items():
                if distance <= (FAR if usual > FAR else max(FAR, 4 * usual)):
                    continue
                others = {f"{other} in this episode": of[number] for other, of in declared.items() if number in of}
                nearest = list(own)[int(np.argmin(np.abs(episodes - levels[number]).max(axis=1)))]
                others[f"episode {nearest}"] = own[nearest]
                others["it with red and blue exchanged"] = own[number][PERMUTED]
                name = min(others, key=lambda name: _distance(levels[number], others[name]))
                if _distance(levels[number], others[name]) * TIMES_AS_NEAR < distance:
                    level, text = ERROR, f"shows what the metadata says of {name}"
                else:
                    means = _format_values(levels[number][:3]), _format_values(own[number][:3])
                    level, text = WARNING, f"its pictures have the mean {means[0]}, and {means[1]} is declared"
                path = self._paths[camera, number]
                yield Finding(level, "pictures", path, f"episode {number}", None, text)

    def _late(self) -> Iterator[Finding]:
        """Yield estimates of cameras that are late against states, or against each other."""
        signals = dict(self._motion)
        pairs = [(camera, ROWS, signals[camera], dict(self._rows)) for camera in signals]
        pairs += [(one, other, signals[one], signals[other]) for one, other in combinations(sorted(signals), 2)]
        for camera, other, own, reference in pairs:
            late = _lateness(own, reference)
            if late is not None and (abs(late[0]) >= REACTION or other != ROWS):
                frames, likeness, unmoved = late
                when = "later" if frames > 0 else "earlier"
                text = (
                    f"seems to be {count_of(abs(frames), 'frame')} {when} than {other}: an estimate by what moves (correlation "
                    f"{likeness:.2f}, and {unmoved:.2f} as they are)"
                )
                yield Finding(WARNING, "late", "", camera, None, text)


def _distance(one: Signal, other: Signal) -> float:
    return float(np.abs(one - other).max())


def _format_values(values: Signal) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def _lateness(own: Mapping[int, Signal], reference: Mapping[int, Signal]) -> tuple[int, float, float] | None:
    """Return by how many frames a signal is late, with its correlation then and as it is; None if that is not known, or it is not."""
    both = [(own[number], reference[number]) for number in own if number in reference]
    both = [
        (one, other) for one, other in both if len(one) == len(other) > 3 * MOST_LATE and np.ptp(one) and np.ptp(other)
    ]
    if sum(len(one) for one, _ in both) < LEAST_FRAMES:
        return None
    lags = range(-MOST_LATE, MOST_LATE + 1)
    likeness = np.array([_likeness(both, lag) for lag in lags])
    best = int(np.argmax(likeness))
    unmoved, elsewhere = likeness[MOST_LATE], np.delete(likeness, range(max(0, best - 2), min(len(lags), best + 3)))
    if likeness[best] < max(LEAST_LIKENESS, unmoved + LEAST_GAIN, elsewhere.max() + LEAST_PEAK):
        return None
    return lags[best], float(likeness[best]), float(unmoved)


def _likeness(both: list[tuple[Signal, Signal]], lag: int) -> float:
    """Return the correlation of signals if the first is moved back."""
    ones, others = [], []
    for one, other in both:
        one, other = (one[lag:], other[: len(other) - lag]) if lag >= 0 else (one[:lag], other[-lag:])
        ones.append(one - one.mean())
        others.append(other - other.mean())
    first, second = np.concatenate(ones), np.concatenate(others)
    scale = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum() / scale) if scale else 0.0
