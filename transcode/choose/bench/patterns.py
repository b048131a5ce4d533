"""Which frames are asked for, in which order, and how many packets that takes: the same for every loader of a place."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from vidprep.transcode.choose.bench.places import Video

PATTERNS = ("whole", "consecutive", "strided", "single")


Request: TypeAlias = "tuple[Video, range]"


@dataclass(frozen=True, slots=True)
class Access:
    """One of PATTERNS. frames: of a sequence, whole videos excepted; stride: from one to the next of `strided`."""

    pattern: str
    frames: int
    stride: int

    @property
    def step(self) -> int:
        return self.stride if self.pattern == "strided" else 1

    @property
    def length(self) -> int:
        """Frames of a sequence that is no whole video."""
        return 1 if self.pattern == "single" else self.frames

    @property
    def span(self) -> int:
        """From the first frame of a sequence to the last."""
        return (self.length - 1) * self.step + 1

    def numbers(self, video: Video, rng: random.Random) -> range:
        """A sequence of a video that is not read whole."""
        start = rng.randrange(max(1, video.num_frames - self.span + 1))
        return range(start, min(start + self.span, video.num_frames), self.step)

    def __str__(self) -> str:
        named = {"whole": "whole video", "single": "1 random", "consecutive": f"{self.frames} consecutive"}
        return named.get(self.pattern, f"{self.frames} strided by {self.stride}")


def rounds(
    videos: Sequence[Video], access: Access, seed: int, worker: int, workers: int
) -> Iterator[Sequence[Request]]:
    """Without end; each round asks once for each video. Whole videos as they lie, each worker from a place of its own; else
    videos in a random order and a random start in each; one that is too short is read from its start to its end.
    """
    if access.pattern == "whole":
        first = len(videos) * worker // workers
        yield from repeat([(video, range(video.num_frames)) for video in (*videos[first:], *videos[:first])])
    rng = random.Random(f"{seed} {worker}")
    while True:
        yield [(video, access.numbers(video, rng)) for video in rng.sample(videos, len(videos))]


def packets_needed(video: Video, numbers: Sequence[int]) -> int:
    """From the keyframe of each GOP that has wanted frames to the last of them: the fewest that a decoder can do with, up to
    what is reordered. numbers: ascending.
    """
    if video.keyframes is None:
        return len(numbers)
    last_of_gop = {bisect_right(video.keyframes, number): number for number in numbers}
    return sum(last - video.keyframes[gop - 1] + 1 for gop, last in last_of_gop.items())
