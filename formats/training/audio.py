"""The audio of items: as long for each, so that they make a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from vidprep.formats.errors import SettingsError
from vidprep.formats.stores.base import StoredVideo
from vidprep.formats.training.samplers import ClipSampler
from vidprep.formats.validation import whole

LOOKED_AT = 8


@dataclass(frozen=True)
class Audio:
    """rate: samples per second. num_samples: of an item."""

    rate: int
    num_channels: Literal[1, 2]
    num_samples: int

    @classmethod
    def of(
        cls, rate: int, num_channels: Literal[1, 2], seconds: float | None, clips: ClipSampler, ids: Sequence[str],
        video: Callable[[str], StoredVideo],
    ) -> Audio:  # fmt: skip
        """seconds: None is as long as the clips. Raises SettingsError, StoreError."""
        whole("audio_rate", rate, 1)
        if num_channels not in (1, 2):
            raise SettingsError(f"audio_channels is {num_channels!r}; give 1 or 2")
        few = [video(id_) for id_ in ids[:LOOKED_AT]]
        if all(each.sample_rate is None for each in few):
            raise SettingsError(f"{ids[0]!r} and others have no audio; vidprep transcode --audio copy keeps it")
        rates = {each.frame_rate for each in few}
        due = None if seconds is None else Fraction(seconds)
        if due is None and len(rates) == 1 and (frame_rate := rates.pop()) is not None:
            due = clips.seconds(frame_rate)
        if due is None or due <= 0:
            raise SettingsError(
                f"audio_seconds is {seconds!r}, and clips are not all as long as one another; give how much is heard"
            )
        return cls(rate, num_channels, round(due * rate))

    def item(self, video: StoredVideo, start_seconds: float) -> dict[str, Any]:
        """audio: (C, num_samples) float32, from a frame on; silent where the video has none, which has_audio tells."""
        if video.sample_rate is None:
            return {"audio": np.zeros((self.num_channels, self.num_samples), np.float32), "has_audio": False}
        begin = Fraction(round(start_seconds * self.rate), self.rate)
        end = begin + Fraction(self.num_samples, self.rate)
        found = video.store.sound(video.id).read(begin, end, rate=self.rate, num_channels=self.num_channels)
        return {"audio": found, "has_audio": True}
