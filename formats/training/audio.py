"""The audio of items: as long for each, so that they make a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from vidprep.formats.errors import SettingsError, StoreError
from vidprep.formats.option import whole
from vidprep.formats.stores import MAX_RATE, StoredVideo
from vidprep.formats.training.samplers import ClipSampler

LOOKED_AT, LEAST_RATE = 1000, 100


@dataclass(frozen=True)
class Audio:
    """rate: samples per second. num_samples: of an item. clips: as long as which it is; None where its length was asked for."""

    rate: int
    num_channels: Literal[1, 2]
    num_samples: int
    clips: ClipSampler | None

    @classmethod
    def of(
        cls,
        rate: int,
        num_channels: Literal[1, 2],
        seconds: float | None,
        clips: ClipSampler,
        ids: Sequence[str],
        video: Callable[[str], StoredVideo],
    ) -> Audio:
        """seconds: None is as long as the clips. ids: of videos that have items. Raises SettingsError, StoreError."""
        if whole("audio_rate", rate, LEAST_RATE) > MAX_RATE:
            raise SettingsError(f"audio_rate is {rate}; give samples per second, at most {MAX_RATE}")
        if num_channels not in (1, 2):
            raise SettingsError(f"audio_channels is {num_channels!r}; give 1 or 2")
        if seconds is not None and not (isinstance(seconds, int | float) and 1 / rate <= seconds < math.inf):
            raise SettingsError(f"audio_seconds is {seconds!r}; give seconds, at least one sample")
        some = dict.fromkeys(np.linspace(0, len(ids) - 1, LOOKED_AT).round().astype(int).tolist())
        heard = next((each for each in (video(ids[place]) for place in some) if each.sample_rate), None)
        if heard is None:
            raise SettingsError(
                f"{ids[0]!r} and {len(some) - 1} others have no audio; vidprep transcode --audio copy keeps it"
            )
        due = clips.seconds(heard.frame_rate) if seconds is None else Fraction(seconds)
        if due is None:
            raise SettingsError("audio_seconds is needed: clips are not all of one length, or not known to be")
        return cls(rate, num_channels, round(due * rate), clips if seconds is None else None)

    @property
    def num_bytes(self) -> int:
        return 4 * self.num_channels * self.num_samples

    def item(self, video: StoredVideo, start_seconds: float) -> dict[str, Any]:
        """audio: (C, num_samples) float32, from a frame on; silent where the video has none, which has_audio tells. Raises StoreError."""
        if video.sample_rate is None:
            return {"audio": np.zeros((self.num_channels, self.num_samples), np.float32), "has_audio": False}
        due = None if self.clips is None else self.clips.seconds(video.frame_rate)
        if self.clips is not None and (due is None or round(due * self.rate) != self.num_samples):
            raise StoreError(
                f"{video.id}: its clips do not last {self.num_samples / self.rate:.3f} s, as those of others do; give audio_seconds",
                path=video.store.path,
            )
        begin = Fraction(round(start_seconds * self.rate), self.rate)
        span = begin, begin + Fraction(self.num_samples, self.rate)
        return {"audio": video.store.samples(video.id, span, self.rate, self.num_channels), "has_audio": True}
