"""Which frames of a video a network is shown: clips, under the names of torchcodec.samplers and mmaction2.

    VideoDataset("ready/", clips=clips_at_random_indices(num_frames_per_clip=16, num_indices_between_frames=4))

is one random clip of each video, another one in each epoch. An item of a dataset is one clip, so `num_clips=10` makes ten items of a
video; only `sample_frames` and `dense_sample_frames` put the frames of all clips into one item, one after the other, as mmaction2 does.

policy: what is done where a clip would go past the end of its video: "repeat_last" repeats its last frame, "wrap" begins the clip again,
"error" refuses the video when the dataset is made, and "drop" leaves such clips, and videos without any other, out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal, SupportsIndex, get_args

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import SettingsError
from vidprep.formats.moments import LEAST_KNOWN, Pace, Tolerance, exact_seconds
from vidprep.formats.stores.base import StoredVideo
from vidprep.formats.validation import whole

Policy = Literal["repeat_last", "wrap", "error", "drop"]
POLICIES = get_args(Policy)
Numbers = npt.NDArray[np.int64]
ROUNDING_SECONDS = 1e-9


@dataclass(frozen=True)
class Timing:
    """When the frames of a video are shown.

    Attributes:
        num_frames: How many there are.
        begins: (N,) seconds at which frames begin to be shown, from the first; None where a sampler asks for no times.
        end_seconds: Of the last frame, which is shown as long as the others in the mean, where frames have times of their own.
        tolerance: How far a time may be from the start of the frame that it means.
    """

    num_frames: int
    begins: npt.NDArray[np.float64] | None = None
    end_seconds: float = 0.0
    tolerance: Tolerance = LEAST_KNOWN


def timing_of(video: StoredVideo) -> Timing:
    """Raises StoreError where the store says nothing of times."""
    interval = exact_seconds(video.end_seconds / max(1, len(video)))
    pace = Pace.of(interval, is_variable=video.frame_rate is None)
    return Timing(len(video), video.timestamps, video.end_seconds, pace.tolerance)


class ClipSampler(ABC):
    """num_frames: of an item. is_random: whether clips differ from epoch to epoch. needs_times: whether it asks for them."""

    needs_times: ClassVar[bool] = False

    @property
    @abstractmethod
    def num_frames(self) -> int: ...

    @property
    def is_random(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"clips of {self.num_frames} frames"

    @abstractmethod
    def count(self, video: Timing) -> int:
        """Items of a video. Raises ValueError for a video that has none, and is not left out by policy."""

    @abstractmethod
    def item(self, video: Timing, number: int, rng: np.random.Generator) -> Numbers:
        """(num_frames,) the frames of one of its items, from 0."""

    def seconds(self, frame_rate: Fraction | None) -> Fraction | None:  # noqa: ARG002
        """That an item lasts; None where that is not known, or its frames do not follow one another equally far apart."""
        return None

    def starts(self, items: Numbers) -> Numbers | None:  # noqa: ARG002
        """The first frames of items of any video; None where they depend on the video or on chance."""
        return None


@dataclass(frozen=True)
class Windows(ClipSampler):
    """Every clip of `sequence_length` frames, `stride` apart, that fits into a video; clips begin `step` frames apart."""

    sequence_length: int
    stride: int
    step: int

    def __str__(self) -> str:
        return f"sequences of {self.num_frames} frames"

    @property
    def num_frames(self) -> int:
        return self.sequence_length

    def count(self, video: Timing) -> int:
        return max(0, (video.num_frames - (self.num_frames - 1) * self.stride - 1) // self.step + 1)

    def item(self, video: Timing, number: int, rng: np.random.Generator) -> Numbers:  # noqa: ARG002
        return number * self.step + self.stride * np.arange(self.num_frames, dtype=np.int64)

    def seconds(self, frame_rate: Fraction | None) -> Fraction | None:
        return None if frame_rate is None else self.sequence_length * self.stride / frame_rate

    def starts(self, items: Numbers) -> Numbers:
        return items * self.step


def clips_at_random_indices(
    *, num_clips: int = 1, num_frames_per_clip: int = 1, num_indices_between_frames: int = 1,
    sampling_range_start: int = 0, sampling_range_end: int | None = None, policy: Policy = "repeat_last",
) -> ClipSampler:  # fmt: skip
    """Clips that begin anywhere in [sampling_range_start, sampling_range_end), frames counted from the end where they are negative.

    num_indices_between_frames: from one frame of a clip to the next; 1 is consecutive frames. sampling_range_end: None is as late as
    a whole clip can begin. The rule is that of torchcodec's sampler of the same name.
    """
    return _AtIndices(
        num_clips=num_clips, num_frames_per_clip=num_frames_per_clip, num_indices_between_frames=num_indices_between_frames,
        sampling_range_start=sampling_range_start, sampling_range_end=sampling_range_end, policy=policy, random=True,
    )  # fmt: skip


def clips_at_regular_indices(
    *, num_clips: int = 1, num_frames_per_clip: int = 1, num_indices_between_frames: int = 1,
    sampling_range_start: int = 0, sampling_range_end: int | None = None, policy: Policy = "repeat_last",
) -> ClipSampler:  # fmt: skip
    """Clips that begin equally far apart, the first and the last at the ends of the range: the K test clips of many papers.

    The arguments are those of `clips_at_random_indices`.
    """
    return _AtIndices(
        num_clips=num_clips, num_frames_per_clip=num_frames_per_clip, num_indices_between_frames=num_indices_between_frames,
        sampling_range_start=sampling_range_start, sampling_range_end=sampling_range_end, policy=policy, random=False,
    )  # fmt: skip


def clips_at_random_timestamps(
    *, num_clips: int = 1, num_frames_per_clip: int = 1, seconds_between_frames: float | None = None,
    sampling_range_start: float | None = None, sampling_range_end: float | None = None, policy: Policy = "repeat_last",
) -> ClipSampler:  # fmt: skip
    """Clips that begin anywhere in [sampling_range_start, sampling_range_end) seconds from the first frame; of each time the frame that is
    shown then.

    seconds_between_frames: None is the mean duration of a frame. sampling_range_end: None is as late as a whole clip can begin.
    The rule is that of torchcodec's sampler of the same name, but that torchcodec refuses videos which are too short whatever the policy,
    and that here a time which falls short of a frame by no more than a quarter of the frame interval (5 ms at most at a variable rate)
    shows that frame, as everywhere in vidprep (`vidprep.formats.moments`); torchcodec shows the one before.
    """
    return _AtTimes(
        num_clips=num_clips, seconds_between_clip_starts=None, num_frames_per_clip=num_frames_per_clip,
        seconds_between_frames=seconds_between_frames, sampling_range_start=sampling_range_start, sampling_range_end=sampling_range_end,
        policy=policy,
    )  # fmt: skip


def clips_at_regular_timestamps(
    *, seconds_between_clip_starts: float, num_frames_per_clip: int = 1, seconds_between_frames: float | None = None,
    sampling_range_start: float | None = None, sampling_range_end: float | None = None, policy: Policy = "repeat_last",
) -> ClipSampler:  # fmt: skip
    """Clips that begin `seconds_between_clip_starts` apart, as many as there is room for. The other arguments are those of
    `clips_at_random_timestamps`.
    """
    return _AtTimes(
        num_clips=None, seconds_between_clip_starts=seconds_between_clip_starts, num_frames_per_clip=num_frames_per_clip,
        seconds_between_frames=seconds_between_frames, sampling_range_start=sampling_range_start, sampling_range_end=sampling_range_end,
        policy=policy,
    )  # fmt: skip


def sample_frames(
    *, num_clips: int = 1, num_frames_per_clip: int = 1, num_indices_between_frames: int = 1, test_mode: bool = False,
    policy: Policy = "repeat_last",
) -> ClipSampler:  # fmt: skip
    """One item of each video: of each of `num_clips` equal segments a clip that begins in it at random (TSN); with `test_mode` the
    frames in the middle of segments, or, of several frames, clips equally far apart. The rule is that of mmaction2's SampleFrames
    (clip_len, frame_interval), but that a clip of a very short video that would begin behind its end begins with its last frame,
    not its first.
    """
    return _Segments(
        num_clips=num_clips, num_frames_per_clip=num_frames_per_clip, num_indices_between_frames=num_indices_between_frames,
        policy=policy, random=not test_mode,
    )  # fmt: skip


def dense_sample_frames(
    *, num_clips: int = 1, num_frames_per_clip: int = 1, num_indices_between_frames: int = 1, sample_range: int = 64,
    num_sample_positions: int = 10, test_mode: bool = False, policy: Policy = "repeat_last",
) -> ClipSampler:  # fmt: skip
    """One item of each video: `num_clips` clips that begin equally far apart within `sample_range` frames, which lie anywhere; with
    `test_mode` an item for each of `num_sample_positions` of these ranges, equally far apart. The rule is that of mmaction2's
    DenseSampleFrames.
    """
    return _Dense(
        num_clips=num_clips, num_frames_per_clip=num_frames_per_clip, num_indices_between_frames=num_indices_between_frames,
        policy=policy, random=not test_mode,
        sample_range=whole("sample_range", sample_range, 1), num_sample_positions=whole("num_sample_positions", num_sample_positions, 1),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _OfIndices(ClipSampler):
    num_clips: int
    num_frames_per_clip: int
    num_indices_between_frames: int
    policy: Policy
    random: bool

    def __post_init__(self) -> None:
        for name in ("num_clips", "num_frames_per_clip", "num_indices_between_frames"):
            whole(name, getattr(self, name), 1)
        _check_policy(self.policy)

    @property
    def is_random(self) -> bool:
        return self.random

    @property
    def _span(self) -> int:
        return (self.num_frames_per_clip - 1) * self.num_indices_between_frames + 1

    def _clip(self, start: int, num_frames: int) -> list[int]:
        """Its frames, and others for those that lie behind the end of the video."""
        start = min(start, num_frames - 1)
        found = range(start, min(start + self._span, num_frames), self.num_indices_between_frames)
        return _extended(found, self.num_frames_per_clip, self.policy)


@dataclass(frozen=True, kw_only=True)
class _AtIndices(_OfIndices):
    sampling_range_start: int
    sampling_range_end: int | None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("sampling_range_start", "sampling_range_end"):
            value = getattr(self, name)
            if (value is not None or name == "sampling_range_start") and not isinstance(value, SupportsIndex):
                raise SettingsError(f"{name} is {value!r}; give the number of a frame")

    @property
    def num_frames(self) -> int:
        return self.num_frames_per_clip

    def seconds(self, frame_rate: Fraction | None) -> Fraction | None:
        span = self.num_frames_per_clip * self.num_indices_between_frames
        return None if frame_rate is None else span / frame_rate

    def _range(self, num_frames: int) -> tuple[int, int]:
        """Where clips may begin, [low, high)."""
        low, high = self.sampling_range_start, self.sampling_range_end
        last = num_frames - self._span + 1
        low = low + num_frames if low < 0 else low
        if high is None:
            high = max(last, 1)
        else:
            high = min(high + num_frames if high < 0 else high, num_frames)
        return low, min(high, last) if self.policy == "drop" else high

    def count(self, video: Timing) -> int:
        low, high = self._range(video.num_frames)
        if not 0 <= low < high:
            if self.policy == "drop":
                return 0
            raise ValueError(
                f"its clips would start in [{low}, {high}), which holds none of its {video.num_frames} frames"
            )
        latest = low if self.num_clips == 1 and not self.is_random else high - 1
        if self.policy == "error" and latest + self._span > video.num_frames:
            raise ValueError(f"a clip from frame {latest} needs {self._span} frames, and it has {video.num_frames}")
        return self.num_clips

    def item(self, video: Timing, number: int, rng: np.random.Generator) -> Numbers:
        low, high = self._range(video.num_frames)
        start = int(rng.integers(low, high)) if self.is_random else _of_linspace(low, high - 1, self.num_clips, number)
        return np.asarray(self._clip(start, video.num_frames), np.int64)


@dataclass(frozen=True, kw_only=True)
class _Segments(_OfIndices):
    @property
    def num_frames(self) -> int:
        return self.num_clips * self.num_frames_per_clip

    @property
    def _least_frames(self) -> int:
        """Of a video that is not too short."""
        return self._span

    def count(self, video: Timing) -> int:
        if self._least_frames <= video.num_frames or self.policy in ("repeat_last", "wrap"):
            return 1
        if self.policy == "drop":
            return 0
        raise ValueError(f"its clips need {self._least_frames} frames, and it has {video.num_frames}")

    def item(self, video: Timing, number: int, rng: np.random.Generator) -> Numbers:
        starts = self._starts(video.num_frames, number, rng)
        return np.asarray([frame for start in starts for frame in self._clip(start, video.num_frames)], np.int64)

    def _starts(self, num_frames: int, number: int, rng: np.random.Generator) -> Sequence[int]:  # noqa: ARG002
        clips = np.arange(self.num_clips)
        if not self.is_random and self.num_frames_per_clip == 1:
            between = num_frames / self.num_clips
            return [int(between * clip + between / 2) for clip in range(self.num_clips)]
        if not self.is_random:
            room = max(num_frames - self._span, 0)
            between = room / max(1, self.num_clips - 1)
            return [room // 2] if self.num_clips == 1 else [int(start) for start in np.round(clips * between)]
        room = num_frames - self.num_frames_per_clip * self.num_indices_between_frames + 1
        segment = room // self.num_clips
        if segment > 0:
            found = clips * segment + rng.integers(segment, size=self.num_clips)
        elif room > 1 and num_frames > self.num_clips:
            found = np.sort(rng.integers(room, size=self.num_clips))
        else:
            found = np.around(clips * max(room, 0) / self.num_clips).astype(int)
        return [int(start) for start in found]


@dataclass(frozen=True, kw_only=True)
class _Dense(_Segments):
    sample_range: int
    num_sample_positions: int

    @property
    def _least_frames(self) -> int:
        """A range, or what its clips need where that is more."""
        return max(self.sample_range // self.num_clips * (self.num_clips - 1) + self._span, self.sample_range)

    def count(self, video: Timing) -> int:
        return super().count(video) * (1 if self.is_random else self.num_sample_positions)

    def _starts(self, num_frames: int, number: int, rng: np.random.Generator) -> Sequence[int]:
        is_whole = self.policy in ("error", "drop")
        room = max(0, num_frames - (self._least_frames if is_whole else self.sample_range))
        if self.is_random:
            first = int(rng.integers(room)) if room else 0
        else:
            first = int(np.linspace(0, room, self.num_sample_positions, dtype=int)[number])
        between = self.sample_range // self.num_clips
        return [(first + between * clip) % num_frames for clip in range(self.num_clips)]


@dataclass(frozen=True, kw_only=True)
class _AtTimes(ClipSampler):
    num_clips: int | None
    seconds_between_clip_starts: float | None
    num_frames_per_clip: int
    seconds_between_frames: float | None
    sampling_range_start: float | None
    sampling_range_end: float | None
    policy: Policy
    needs_times: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.num_clips is None:
            _check_seconds("seconds_between_clip_starts", self.seconds_between_clip_starts, above=0)
        else:
            whole("num_clips", self.num_clips, 1)
        whole("num_frames_per_clip", self.num_frames_per_clip, 1)
        _check_policy(self.policy)
        if self.seconds_between_frames is not None:
            _check_seconds("seconds_between_frames", self.seconds_between_frames, above=0)
        for name in ("sampling_range_start", "sampling_range_end"):
            if getattr(self, name) is not None:
                _check_seconds(name, getattr(self, name))

    @property
    def num_frames(self) -> int:
        return self.num_frames_per_clip

    @property
    def is_random(self) -> bool:
        return self.num_clips is not None

    def seconds(self, frame_rate: Fraction | None) -> Fraction | None:
        step = self.seconds_between_frames
        if step is None and frame_rate is None:
            return None
        return self.num_frames_per_clip * (Fraction(step) if step is not None else 1 / Fraction(frame_rate or 1))

    def _step(self, video: Timing) -> float:
        return self.seconds_between_frames or video.end_seconds / video.num_frames

    def _range(self, video: Timing) -> tuple[float, float]:
        low, high, end = self.sampling_range_start or 0.0, self.sampling_range_end, video.end_seconds
        last = end - (self.num_frames_per_clip - 1) * self._step(video)
        if high is None or self.policy == "drop":
            high = min(last, np.inf if high is None else high)
        if self.sampling_range_end is None and self.policy in ("repeat_last", "wrap") and high <= low < end:
            high = np.nextafter(low, end)  # of a video that is too short, the clip from its beginning on
        return low, min(high, end)

    def _regular(self, video: Timing) -> npt.NDArray[np.float64]:
        low, high = self._range(video)
        until = max(high - ROUNDING_SECONDS, float(np.nextafter(low, high)))
        return np.arange(low, until, self.seconds_between_clip_starts, dtype=np.float64)

    def count(self, video: Timing) -> int:
        low, high = self._range(video)
        if not 0 <= low < high:
            if self.policy == "drop":
                return 0
            raise ValueError(
                f"its clips would start in [{low:.3f}, {high:.3f}) s, and it ends at {video.end_seconds:.3f} s"
            )
        latest = high if self.is_random else float(self._regular(video)[-1])
        whole_until = video.end_seconds - (self.num_frames_per_clip - 1) * self._step(video)
        if self.policy == "error" and latest > whole_until + ROUNDING_SECONDS:
            raise ValueError(f"a clip from {latest:.3f} s goes past its end at {video.end_seconds:.3f} s")
        return len(self._regular(video)) if self.num_clips is None else self.num_clips

    def item(self, video: Timing, number: int, rng: np.random.Generator) -> Numbers:
        low, high = self._range(video)
        start = low + float(rng.random()) * (high - low) if self.is_random else float(self._regular(video)[number])
        times = start + self._step(video) * np.arange(self.num_frames_per_clip, dtype=np.float64)
        assert video.begins is not None
        shown = video.tolerance.shown_at(video.begins, times[times < video.end_seconds])
        return np.asarray(_extended(shown.tolist(), self.num_frames_per_clip, self.policy), np.int64)


def counts(
    sampler: ClipSampler, ids: Sequence[str], num_frames: Numbers, video: Callable[[str], StoredVideo]
) -> Numbers:
    """(V,) items of each video. Raises SettingsError for a video that has none and is not left out, StoreError."""
    if sampler.needs_times:
        return np.asarray([_count(sampler, id_, timing_of(video(id_))) for id_ in ids], np.int64)
    lengths, first, place = np.unique(num_frames, return_index=True, return_inverse=True)
    found = [
        _count(sampler, ids[at], Timing(length)) for length, at in zip(lengths.tolist(), first.tolist(), strict=True)
    ]
    return np.asarray(found, np.int64)[place]


def _count(sampler: ClipSampler, id_: str, video: Timing) -> int:
    try:
        return sampler.count(video)
    except ValueError as error:
        raise SettingsError(f"{id_}: {error}; policy='drop' leaves it out") from error


def _check_policy(policy: str) -> None:
    if policy not in POLICIES:
        raise SettingsError(f"policy is {policy!r}; give {', '.join(POLICIES[:-1])} or {POLICIES[-1]}")


def _check_seconds(name: str, value: object, *, above: float = -np.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction) or not above < value < np.inf:
        raise SettingsError(f"{name} is {value!r}; give seconds" + (" above 0" if above == 0 else ""))


def _extended(numbers: Iterable[int], count: int, policy: Policy) -> list[int]:
    """As many as there should be, the last one again and again, or all of them."""
    found = list(numbers)
    if policy == "wrap":
        return (found * (count // len(found) + 1))[:count]
    return found + found[-1:] * (count - len(found))


def _of_linspace(first: int, last: int, count: int, number: int) -> int:
    """As torch.linspace counts in whole numbers: from either end to the middle, what is left over cut off."""
    if count == 1:
        return first
    step = (last - first) / (count - 1)
    return int(first + step * number) if number < count // 2 else int(last - step * (count - 1 - number))
