"""Samplers choose the frames of clips, under the names and rules of torchcodec.samplers.

    VideoDataset("ready/", clips=clips_at_random_indices(num_frames_per_clip=16, num_indices_between_frames=4))

is one random clip of each video, another one in each epoch. An item of a dataset is one clip, so `num_clips=10` makes
ten items per video.

`policy` decides what happens to a clip that would go past the end of its video: "repeat_last" repeats the last frame,
"wrap" repeats the clip from its start, "error" rejects the video when the dataset is created, and "drop" omits such
clips, and videos without any other.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import ClassVar, Literal, SupportsIndex, get_args

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import SettingsError
from vidprep.formats.moments import LEAST_KNOWN, Tolerance
from vidprep.formats.option import suggesting, whole
from vidprep.formats.stores.base import StoredVideo

Policy = Literal["repeat_last", "wrap", "error", "drop"]
POLICIES = get_args(Policy)
Short = Literal["drop", "pad", "repeat", "error"]
SHORTS = get_args(Short)
Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
PADDING: tuple[Policy, ...] = ("repeat_last", "wrap")
ROUNDING_SECONDS = 1e-9


@dataclass(frozen=True)
class Timing:
    """Times at which the frames of a video are displayed.

    Attributes:
        begins: (N,) start of each frame in seconds from the first one; None if the sampler needs no times
        end_seconds: End of the last frame. At a variable rate it is displayed for the average frame duration
        tolerance: Maximum distance between a time and the start of the frame that it means
        id: Id of the video; "" if the sampler needs no times
    """

    num_frames: int
    begins: npt.NDArray[np.float64] | None = None
    end_seconds: float = 0.0
    tolerance: Tolerance = LEAST_KNOWN
    id: str = ""


def timing_of(video: StoredVideo) -> Timing:
    """Return the times of a video's frames. Raises StoreError if the store does not know them."""
    return Timing(len(video), video.timestamps, video.end_seconds, video.tolerance, video.id)


class ClipSampler(ABC):
    """Chooses the frames of each item of a dataset. Subclass it to add a rule.

    Make it a frozen dataclass: the saved state of a loader identifies a sampler by its repr.

    Attributes:
        needs_times: Whether it needs the times of frames; otherwise `Timing` contains only their number
    """

    needs_times: ClassVar[bool] = False

    @property
    @abstractmethod
    def num_frames(self) -> int:
        """Number of frames in an item."""

    @property
    def is_random(self) -> bool:
        """Whether clips differ from epoch to epoch."""
        return False

    def __str__(self) -> str:
        return f"clips of {self.num_frames} frames"

    @abstractmethod
    def count(self, video: Timing) -> int:
        """Return how many items a video has. Raises ValueError if it has none and the policy does not drop it."""

    @abstractmethod
    def item(self, video: Timing, number: int, rng: np.random.Generator) -> Numbers:
        """Return the frames of an item.

        Args:
            video: Times of the video's frames.
            number: Number of the item in the video, from 0.
            rng: Random generator, a function of seed, epoch and item.

        Returns:
            (num_frames,) frame numbers, from 0.
        """

    @property
    def pads(self) -> bool:
        """Whether items may contain padding: frames in place of those past the end of a video."""
        return False

    def masked_item(self, video: Timing, number: int, rng: np.random.Generator) -> tuple[Numbers, Mask]:
        """Return the frames of an item as `item` does, and (num_frames,) which of them are not padding.

        Args:
            video: Times of the video's frames.
            number: Number of the item in the video, from 0.
            rng: Random generator, a function of seed, epoch and item.
        """
        numbers = self.item(video, number, rng)
        return numbers, np.ones(len(numbers), np.bool_)

    def seconds(self, frame_rate: Fraction | None) -> Fraction | None:  # noqa: ARG002
        """Return the duration of an item; None if it is unknown, or frames are not equidistant."""
        return None

    def starts(self, items: Numbers) -> Numbers | None:  # noqa: ARG002
        """Return the first frame of items of any video; None if it depends on the video or is random."""
        return None


class PaddingSampler(ClipSampler):
    """A sampler whose `masked_item` makes the frames and tells which are padding."""

    @abstractmethod
    def masked_item(self, video: Timing, number: int, rng: np.random.Generator) -> tuple[Numbers, Mask]: ...

    def item(self, video: Timing, number: int, rng: np.random.Generator) -> Numbers:
        return self.masked_item(video, number, rng)[0]


@dataclass(frozen=True)
class Windows(PaddingSampler):
    """All clips of `sequence_length` frames with distance `stride` that fit into a video; clips start every `step` frames.

    `short` decides about videos that are shorter than a clip. With `cover_end`, one more clip ends at the last frame
    where the others leave frames out.
    """

    sequence_length: int
    stride: int
    step: int
    short: Short = "drop"
    cover_end: bool = False

    def __str__(self) -> str:
        return f"sequences of {self.num_frames} frames"

    @property
    def num_frames(self) -> int:
        return self.sequence_length

    @property
    def pads(self) -> bool:
        return self.short in ("pad", "repeat")

    @property
    def span(self) -> int:
        """Number of frames from the first to the last one of a clip."""
        return (self.num_frames - 1) * self.stride + 1

    def count(self, video: Timing) -> int:
        room = video.num_frames - self.span
        if room >= 0:
            return room // self.step + 1 + (self.cover_end and room % self.step > 0)
        if self.short == "error":
            raise ValueError(f"it has {video.num_frames} frames, and a sequence needs {self.span}")
        return int(self.pads and video.num_frames > 0)

    def item(self, video: Timing, number: int, rng: np.random.Generator) -> Numbers:
        if self.pads:
            return super().item(video, number, rng)
        start = min(number * self.step, video.num_frames - self.span) if self.cover_end else number * self.step
        return start + self.stride * np.arange(self.num_frames, dtype=np.int64)

    def masked_item(self, video: Timing, number: int, rng: np.random.Generator) -> tuple[Numbers, Mask]:  # noqa: ARG002
        start = min(number * self.step, max(0, video.num_frames - self.span))
        numbers = start + self.stride * np.arange(self.num_frames, dtype=np.int64)
        there = numbers < video.num_frames
        if not there.all():
            numbers = np.asarray(
                _extend(numbers[there], self.num_frames, "wrap" if self.short == "repeat" else "repeat_last")
            )
        return numbers, there

    def seconds(self, frame_rate: Fraction | None) -> Fraction | None:
        return None if frame_rate is None else self.sequence_length * self.stride / frame_rate

    def starts(self, items: Numbers) -> Numbers:
        return items * self.step


@dataclass(frozen=True, kw_only=True)
class _AtIndices(PaddingSampler):
    """Clips of equidistant frames, which start within a range of frames."""

    num_clips: int = 1
    num_frames_per_clip: int = 1
    num_indices_between_frames: int = 1
    sampling_range_start: int = 0
    sampling_range_end: int | None = None
    policy: Policy = "repeat_last"

    def __post_init__(self) -> None:
        _make_whole(self, "num_clips", "num_frames_per_clip", "num_indices_between_frames")
        _check_policy(self.policy)
        for name in ("sampling_range_start", "sampling_range_end"):
            value = getattr(self, name)
            if (value is not None or name == "sampling_range_start") and not isinstance(value, SupportsIndex):
                raise SettingsError(f"{name} is {value!r}; give the number of a frame")

    @property
    def _span(self) -> int:
        return (self.num_frames_per_clip - 1) * self.num_indices_between_frames + 1

    @property
    def pads(self) -> bool:
        return self.policy in PADDING

    @property
    def num_frames(self) -> int:
        return self.num_frames_per_clip

    def seconds(self, frame_rate: Fraction | None) -> Fraction | None:
        span = self.num_frames_per_clip * self.num_indices_between_frames
        return None if frame_rate is None else span / frame_rate

    def _range(self, num_frames: int) -> tuple[int, int]:
        """Return where clips may begin, as [low, high)."""
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

    def masked_item(self, video: Timing, number: int, rng: np.random.Generator) -> tuple[Numbers, Mask]:
        low, high = self._range(video.num_frames)
        start = (
            int(rng.integers(low, high)) if self.is_random else _linspace_item(low, high - 1, self.num_clips, number)
        )
        start = min(start, video.num_frames - 1)
        inside = range(start, min(start + self._span, video.num_frames), self.num_indices_between_frames)
        numbers = np.asarray(_extend(inside, self.num_frames, self.policy), np.int64)
        return numbers, np.arange(self.num_frames) < len(inside)


@suggesting()
@dataclass(frozen=True, kw_only=True)
class clips_at_random_indices(_AtIndices):
    """Random clips that start anywhere in [sampling_range_start, sampling_range_end), as torchcodec's sampler of the same
    name.

    Examples:
        Two clips of three frames of a video of ten, two frames apart, as some epoch may draw them::

            frames   0  1  2  3  4  5  6  7  8  9
            clip 0            x     x     x
            clip 1   x     x     x

        >>> from vidprep.formats import VideoDataset, clips_at_random_indices
        >>> clips = clips_at_random_indices(num_clips=2, num_frames_per_clip=3, num_indices_between_frames=2)
        >>> item = VideoDataset("ready/", clips=clips)[0]
        >>> (item["indexes"] - item["indexes"][0]).tolist()
        [0, 2, 4]

    Args:
        num_clips: Clips per video; each is an item.
        num_frames_per_clip: Frames of a clip.
        num_indices_between_frames: Distance between frames of a clip; 1 means consecutive frames.
        policy: What happens to a clip that would go past the end of its video: "repeat_last", "wrap", "error" or
            "drop".
        sampling_range_start: First frame at which a clip may start; negative numbers count from the end.
        sampling_range_end: Frame before which clips start; None means the last start of a complete clip.
    """

    @property
    def is_random(self) -> bool:
        return True


@suggesting()
@dataclass(frozen=True, kw_only=True)
class clips_at_regular_indices(_AtIndices):
    """Clips with equidistant starts, the first and the last at the ends of the range: the K test clips of many papers.

    The rule is that of torchcodec's sampler of the same name.

    Args:
        num_clips: Clips per video; each is an item.
        num_frames_per_clip: Frames of a clip.
        num_indices_between_frames: Distance between frames of a clip; 1 means consecutive frames.
        policy: What happens to a clip that would go past the end of its video: "repeat_last", "wrap", "error" or
            "drop".
        sampling_range_start: First frame at which a clip may start; negative numbers count from the end.
        sampling_range_end: Frame before which clips start; None means the last start of a complete clip.
    """


@dataclass(frozen=True, kw_only=True)
class _AtTimes(PaddingSampler):
    """One item per clip, with the frames on screen at certain times."""

    num_frames_per_clip: int = 1
    seconds_between_frames: float | None = None
    sampling_range_start: float | None = None
    sampling_range_end: float | None = None
    policy: Policy = "repeat_last"
    needs_times: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _make_whole(self, "num_frames_per_clip")
        _check_policy(self.policy)
        if self.seconds_between_frames is not None:
            _check_seconds("seconds_between_frames", self.seconds_between_frames, above=0)
        for name in ("sampling_range_start", "sampling_range_end"):
            if getattr(self, name) is not None:
                _check_seconds(name, getattr(self, name))

    @property
    def num_frames(self) -> int:
        return self.num_frames_per_clip

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
            high = np.nextafter(low, end)  # for a video that is too short: start at its beginning
        return low, min(high, end)

    @abstractmethod
    def _extent(self, low: float, high: float) -> tuple[int, float]:
        """Return the number of clips in [low, high), and the latest start of one in seconds."""

    @abstractmethod
    def _start(self, low: float, high: float, number: int, rng: np.random.Generator) -> float:
        """Return the start of a clip in seconds."""

    def count(self, video: Timing) -> int:
        low, high = self._range(video)
        if not 0 <= low < high:
            if self.policy == "drop":
                return 0
            raise ValueError(
                f"its clips would start in [{low:.3f}, {high:.3f}) s, and it ends at {video.end_seconds:.3f} s"
            )
        num_clips, latest = self._extent(low, high)
        whole_until = video.end_seconds - (self.num_frames_per_clip - 1) * self._step(video)
        if self.policy == "error" and latest > whole_until + ROUNDING_SECONDS:
            raise ValueError(f"a clip from {latest:.3f} s goes past its end at {video.end_seconds:.3f} s")
        return num_clips

    @property
    def pads(self) -> bool:
        return self.policy in PADDING

    def masked_item(self, video: Timing, number: int, rng: np.random.Generator) -> tuple[Numbers, Mask]:
        return self._frames_from(video, self._start(*self._range(video), number, rng))

    def _frames_from(self, video: Timing, start: float) -> tuple[Numbers, Mask]:
        """Return the frames of a clip that starts at a time in seconds."""
        times = start + self._step(video) * np.arange(self.num_frames_per_clip, dtype=np.float64)
        assert video.begins is not None
        there = times < video.end_seconds
        shown = video.tolerance.frames_at(video.begins, times[there])
        return np.asarray(_extend(shown.tolist(), self.num_frames_per_clip, self.policy), np.int64), there


@suggesting()
@dataclass(frozen=True, kw_only=True)
class clips_at_random_timestamps(_AtTimes):
    """Random clips that start anywhere in [sampling_range_start, sampling_range_end), with the frame on screen at each
    time.

    The rule is that of torchcodec's sampler of the same name, with two exceptions. torchcodec rejects videos that are
    too short with any policy. And here a time that falls short of a frame by at most a quarter of the frame interval (5
    ms at most at a variable rate) means that frame, as everywhere in vidprep (`vidprep.formats.moments`); torchcodec
    takes the frame before.

    Args:
        num_frames_per_clip: Frames of a clip.
        seconds_between_frames: Time between frames of a clip; None means the average duration of a frame.
        sampling_range_start: Earliest start of a clip, in seconds from the first frame.
        sampling_range_end: Time before which clips start; None means the last start of a complete clip.
        policy: What happens to a clip that would go past the end of its video: "repeat_last", "wrap", "error" or
            "drop".
        num_clips: Clips per video; each is an item.
    """

    num_clips: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _make_whole(self, "num_clips")

    @property
    def is_random(self) -> bool:
        return True

    def _extent(self, low: float, high: float) -> tuple[int, float]:  # noqa: ARG002
        return self.num_clips, high

    def _start(self, low: float, high: float, number: int, rng: np.random.Generator) -> float:  # noqa: ARG002
        return low + float(rng.random()) * (high - low)


@suggesting()
@dataclass(frozen=True, kw_only=True)
class clips_at_regular_timestamps(_AtTimes):
    """Clips that start every `seconds_between_clip_starts`, as many as fit.

    The rule is that of torchcodec's sampler of the same name, with the exceptions of `clips_at_random_timestamps`.

    Args:
        seconds_between_clip_starts: Time from the start of a clip to the start of the next one.
        num_frames_per_clip: Frames of a clip.
        seconds_between_frames: Time between frames of a clip; None means the average duration of a frame.
        sampling_range_start: Start of the first clip, in seconds from the first frame.
        sampling_range_end: Time before which clips start; None means the last start of a complete clip.
        policy: What happens to a clip that would go past the end of its video: "repeat_last", "wrap", "error" or
            "drop".
        cover_end: Add a clip that ends at the last frame, where the others leave frames out. Not with
            sampling_range_end.
    """

    seconds_between_clip_starts: float
    cover_end: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_seconds("seconds_between_clip_starts", self.seconds_between_clip_starts, above=0)
        if self.cover_end and self.sampling_range_end is not None:
            raise SettingsError("cover_end and sampling_range_end contradict each other; give one of them")

    def count(self, video: Timing) -> int:
        count = super().count(video)
        return count + (self.cover_end and count > 0 and self._covering_start(video) is not None)

    def masked_item(self, video: Timing, number: int, rng: np.random.Generator) -> tuple[Numbers, Mask]:
        start = self._covering_start(video) if self.cover_end else None
        if start is None or number < len(self._starts(*self._range(video))):
            return super().masked_item(video, number, rng)
        return self._frames_from(video, start)

    def _covering_start(self, video: Timing) -> float | None:
        """Return the start of a clip that ends at the last frame; None if another clip shows that frame."""
        assert video.begins is not None
        length = (self.num_frames_per_clip - 1) * self._step(video)
        last = float(video.begins[-1])
        latest = float(self._starts(*self._range(video))[-1])
        return max(0.0, last - length) if latest + length + ROUNDING_SECONDS < last else None

    def _extent(self, low: float, high: float) -> tuple[int, float]:
        starts = self._starts(low, high)
        return len(starts), float(starts[-1])

    def _starts(self, low: float, high: float) -> npt.NDArray[np.float64]:
        until = max(high - ROUNDING_SECONDS, float(np.nextafter(low, high)))
        return np.arange(low, until, self.seconds_between_clip_starts, dtype=np.float64)

    def _start(self, low: float, high: float, number: int, rng: np.random.Generator) -> float:  # noqa: ARG002
        return float(self._starts(low, high)[number])


@suggesting()
@dataclass(frozen=True, kw_only=True)
class clips_around(PaddingSampler):
    """Clips around given times, each an item: centre frames as in AVA, actions, sentences, events.

    The frame in the middle of a clip, number num_frames_per_clip // 2, is the one that is shown at the time. Where a clip
    would begin before its video or go past its end, the first or the last frame is repeated.

    Args:
        times: Seconds from the first frame: a sequence for each video by id, or one for all videos. Videos that are not
            named have no item.
        num_frames_per_clip: Frames of a clip.
        num_indices_between_frames: Distance between frames of a clip; 1 means consecutive frames.
        policy: What happens to a time at which a video shows nothing: "error" or "drop".
    """

    needs_times: ClassVar[bool] = True

    times: Mapping[str, Sequence[float]] | Sequence[float]
    num_frames_per_clip: int = 1
    num_indices_between_frames: int = 1
    policy: Literal["error", "drop"] = "error"

    def __post_init__(self) -> None:
        _make_whole(self, "num_frames_per_clip", "num_indices_between_frames")
        if self.policy not in ("error", "drop"):
            raise SettingsError(f"policy is {self.policy!r}; give error or drop")
        of_all = self.times.values() if isinstance(self.times, Mapping) else [self.times]
        for time in chain.from_iterable(of_all):
            _check_seconds("times", time)

    def __repr__(self) -> str:
        named = (
            [[*map(float, self.times)]]
            if not isinstance(self.times, Mapping)
            else sorted((id_, [*map(float, times)]) for id_, times in self.times.items())
        )
        digest = hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]
        return f"clips_around({digest}, {self.num_frames_per_clip}, {self.num_indices_between_frames}, {self.policy!r})"

    @property
    def num_frames(self) -> int:
        return self.num_frames_per_clip

    @property
    def pads(self) -> bool:
        return True

    def _times_of(self, video: Timing) -> list[float]:
        given = self.times.get(video.id, ()) if isinstance(self.times, Mapping) else self.times
        return [float(time) for time in given if self.policy == "error" or 0 <= time < video.end_seconds]

    def count(self, video: Timing) -> int:
        times = self._times_of(video)
        if outside := [time for time in times if not 0 <= time < video.end_seconds]:
            raise ValueError(f"it shows nothing at {outside[0]:g} s, and ends at {video.end_seconds:g} s")
        return len(times)

    def masked_item(self, video: Timing, number: int, rng: np.random.Generator) -> tuple[Numbers, Mask]:  # noqa: ARG002
        assert video.begins is not None
        middle = int(video.tolerance.frames_at(video.begins, np.asarray(self._times_of(video)[number : number + 1]))[0])
        places = np.arange(self.num_frames_per_clip, dtype=np.int64) - self.num_frames_per_clip // 2
        numbers = middle + self.num_indices_between_frames * places
        kept = numbers.clip(0, video.num_frames - 1)
        return kept, kept == numbers

    def seconds(self, frame_rate: Fraction | None) -> Fraction | None:
        span = self.num_frames_per_clip * self.num_indices_between_frames
        return None if frame_rate is None else span / frame_rate


def counts(
    sampler: ClipSampler, ids: Sequence[str], num_frames: Numbers, video: Callable[[str], StoredVideo]
) -> Numbers:
    """Return (V,) the number of items of each video.

    Raises:
        SettingsError: A video has no item and the policy is not "drop".
        StoreError: A video cannot be read.
    """
    named = sampler.times if isinstance(sampler, clips_around) and isinstance(sampler.times, Mapping) else ids
    if named is not ids and {*named}.isdisjoint(ids):
        raise SettingsError(f"times names no video of these {len(ids)}, but {min(named, default='none')!r}")
    if sampler.needs_times:
        return np.asarray([_count(sampler, id_, timing_of(video(id_))) for id_ in ids], np.int64)
    lengths, first, place = np.unique(num_frames, return_index=True, return_inverse=True)
    counts_of_lengths = [
        _count(sampler, ids[at], Timing(length)) for length, at in zip(lengths.tolist(), first.tolist(), strict=True)
    ]
    return np.asarray(counts_of_lengths, np.int64)[place]


def _count(sampler: ClipSampler, id_: str, video: Timing) -> int:
    try:
        return sampler.count(video)
    except ValueError as error:
        option = "short" if isinstance(sampler, Windows) else "policy"
        raise SettingsError(f"{id_}: {error}; {option}='drop' leaves it out") from error


def _make_whole(sampler: ClipSampler, *names: str) -> None:
    """Convert fields to int. Raises SettingsError for other values than whole numbers from 1."""
    for name in names:
        object.__setattr__(sampler, name, whole(name, getattr(sampler, name), 1))


def _check_policy(policy: str) -> None:
    if policy not in POLICIES:
        raise SettingsError(f"policy is {policy!r}; give {', '.join(POLICIES[:-1])} or {POLICIES[-1]}")


def _check_seconds(name: str, value: object, *, above: float = -np.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction) or not above < value < np.inf:
        raise SettingsError(f"{name} is {value!r}; give seconds" + (" above 0" if above == 0 else ""))


def _extend(numbers: Iterable[int], count: int, policy: Policy) -> list[int]:
    """Extend numbers to `count`: repeat the last one, or all of them, as the policy says."""
    extended = list(numbers)
    if policy == "wrap":
        return (extended * (count // len(extended) + 1))[:count]
    return extended + extended[-1:] * (count - len(extended))


def _linspace_item(first: int, last: int, count: int, number: int) -> int:
    """Return element `number` of torch.linspace with integers: counted from the nearer end, truncated."""
    if count == 1:
        return first
    step = (last - first) / (count - 1)
    return int(first + step * number) if number < count // 2 else int(last - step * (count - 1 - number))
