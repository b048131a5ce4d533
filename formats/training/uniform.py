"""Samplers of frames spread over a whole video, as vision-language models get them: `sample_fps` and `clips_uniform`. The rule is that of
`vidprep.formats.spread`.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np

from vidprep.formats.errors import SettingsError
from vidprep.formats.option import suggesting, whole
from vidprep.formats.spread import FRAMES_AT_ONCE, RULES, are_possible, most_frames, sample_frames, spread
from vidprep.formats.training.samplers import ClipSampler, Mask, Numbers, PaddingSampler, Timing


@suggesting()
@dataclass(frozen=True)
class sample_fps(PaddingSampler):
    """One item per video: frames at a rate, or fewer ones spread over the whole video if there would be more than `max_frames`.

    An item has `max_frames` frames. If a video gives fewer, its last one is repeated, and `frame_mask` tells which frames are not padding.

    Args:
        fps: Frames per second.
        max_frames: Largest number of frames of a video; with "qwen" rounded down to an even number.
        min_frames: Least number of frames of a video that has so many; with "qwen" rounded up to an even number.
        rule: Whose processor chooses: "qwen" (qwen_vl_utils), "qwen3", "smolvlm", "internvl" (transformers), "llava" (LLaVA-Video) or
            "llamafactory".
    """

    fps: float
    _: KW_ONLY
    max_frames: int
    min_frames: int = 4
    rule: str = "qwen"

    needs_times: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.fps, bool) or not isinstance(self.fps, int | float) or not 0 < self.fps < math.inf:
            raise SettingsError(f"fps is {self.fps!r}; give frames per second, above 0")
        object.__setattr__(self, "max_frames", whole("max_frames", self.max_frames, FRAMES_AT_ONCE))
        object.__setattr__(self, "min_frames", whole("min_frames", self.min_frames, 1))
        if self.rule not in RULES:
            raise SettingsError(f"rule is {self.rule!r}; give one of {', '.join(RULES)}")
        if not are_possible(self.rule, self.min_frames, self.max_frames):
            raise SettingsError(
                f'max_frames={self.max_frames} is below min_frames={self.min_frames}, with "qwen" after both become even numbers; '
                "raise max_frames, or lower min_frames"
            )

    @property
    def num_frames(self) -> int:
        return most_frames(self.rule, self.max_frames)

    @property
    def pads(self) -> bool:
        return True

    def count(self, video: Timing) -> int:
        return int(video.num_frames > 0)

    def masked_item(self, video: Timing, number: int, rng: np.random.Generator) -> tuple[Numbers, Mask]:  # noqa: ARG002
        limits = {"min_frames": self.min_frames, "max_frames": self.max_frames}
        sampled = sample_frames(self.rule, video.num_frames, video.end_seconds, self.fps, **limits)
        count = len(sampled)
        numbers = np.full(self.num_frames, video.num_frames - 1 if count > 1 else 0, np.int64)
        numbers[:count] = sampled
        return numbers, np.arange(self.num_frames) < count


@suggesting()
@dataclass(frozen=True)
class clips_uniform(ClipSampler):
    """One item per video: `num_frames_per_clip` frames at equal distances from the first to the last one.

    A video with fewer frames shows some of them several times.

    Args:
        num_frames_per_clip: Frames of an item.
    """

    num_frames_per_clip: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_frames_per_clip", whole("num_frames_per_clip", self.num_frames_per_clip, 1))

    @property
    def num_frames(self) -> int:
        return self.num_frames_per_clip

    def count(self, video: Timing) -> int:
        return int(video.num_frames > 0)

    def item(self, video: Timing, number: int, rng: np.random.Generator) -> Numbers:  # noqa: ARG002
        return spread(video.num_frames, self.num_frames_per_clip)
