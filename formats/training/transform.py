"""What is done to the frames of a sequence before a network gets them: scale, crop, flip, YCbCr, numbers.

All frames of a sequence get the same, and what is random comes from (seed, epoch, index) alone: one process or eight, the
result is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import SettingsError
from vidprep.formats.stores.base import Frames

DType = Literal["uint8", "float16", "float32"]
ColourModel = Literal["rgb", "ycbcr"]
Region = tuple[int, int, bool]

# JFIF 1.02: full range, ITU-R BT.601 weights; columns are R, G, B.
TO_YCBCR = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]], np.float32)
YCBCR_OFFSET = np.array([0, 128, 128], np.float32)


@dataclass(frozen=True)
class Transform:
    """size: (height, width), or the shorter side, to which frames are scaled; crop: (height, width) that is cut out then, in the
    middle or at random; flip: left and right, of every second sequence at random. colour: "ycbcr" is that of JPEGs (JFIF).
    normalize: True gives 0..1, and (mean, std), three values each, gives ((0..1) - mean) / std; only for float16 and float32.

    Raises SettingsError.
    """

    size: int | tuple[int, int] | None = None
    crop: int | tuple[int, int] | None = None
    random_crop: bool = False
    flip: bool = False
    dtype: DType = "uint8"
    normalize: bool | tuple[tuple[float, float, float], tuple[float, float, float]] = False
    colour: ColourModel = "rgb"

    def __post_init__(self) -> None:
        for name, value in (("size", self.size), ("crop", self.crop)):
            numbers = value if isinstance(value, tuple) else (value,)
            due = 2 if isinstance(value, tuple) else 1
            if value is not None and not (len(numbers) == due and all(isinstance(n, int) and n > 0 for n in numbers)):
                raise SettingsError(f"{name} is {value!r}; give pixels above 0, as one number or (height, width)")
        if self.dtype not in ("uint8", "float16", "float32"):
            raise SettingsError(f"dtype is {self.dtype!r}; give uint8, float16 or float32")
        if self.colour not in ("rgb", "ycbcr"):
            raise SettingsError(f"colour is {self.colour!r}; give rgb or ycbcr")
        if self.normalize and self.dtype == "uint8":
            raise SettingsError("normalize needs dtype float16 or float32")
        if self.random_crop and self.crop is None:
            raise SettingsError("random_crop needs crop")
        if not isinstance(self.normalize, bool) and (np.shape(self.normalize) != (2, 3) or 0 in self.normalize[1]):
            raise SettingsError(f"normalize is {self.normalize!r}; give (mean, std) of three values each, no std of 0")

    @property
    def is_identity(self) -> bool:
        """Whether frames pass as they are when they are scaled."""
        return replace(self, size=None) == Transform()

    def scaled(self, height: int, width: int) -> tuple[int, int]:
        """The size of frames after scaling."""
        if isinstance(self.size, int):
            short = min(height, width)
            return round(height * self.size / short), round(width * self.size / short)
        return self.size or (height, width)

    def result(self, height: int, width: int) -> tuple[int, int]:
        """The size of what comes out. Raises SettingsError when the crop is larger than the frames."""
        height, width = self.scaled(height, width)
        if self.crop is None:
            return height, width
        crop = (self.crop, self.crop) if isinstance(self.crop, int) else self.crop
        if crop[0] > height or crop[1] > width:
            raise SettingsError(
                f"a crop of {crop[1]}x{crop[0]} does not fit into frames of {width}x{height}; scale with size"
            )
        return crop

    def apply(self, frames: Frames, out: npt.NDArray[Any], rng: np.random.Generator | None) -> None:
        """frames: (T, H, W, 3) uint8 RGB, scaled. out: (T, h, w, 3) of `result` and dtype. rng: None is the middle, unflipped."""
        top, left, is_flipped = self._region(frames.shape[1], frames.shape[2], out.shape[1], out.shape[2], rng)
        frames = frames[:, top : top + out.shape[1], left : left + out.shape[2]]
        if is_flipped:
            frames = frames[:, :, ::-1]
        if self.colour == "ycbcr":
            frames = to_ycbcr(frames)
        if self.dtype == "uint8":
            out[...] = frames
        elif self.dtype == "float32":
            count, height, width, _ = out.shape
            lines, (mean, std) = out.reshape(count, height, width * 3), self._lines(width)
            np.subtract(frames.reshape(lines.shape), mean, out=lines, dtype=np.float32, casting="unsafe")
            np.divide(lines, std, out=lines)
        else:
            for channel, levels in enumerate(self._levels):
                out[..., channel] = levels[frames[..., channel]]

    def _region(self, high: int, wide: int, h: int, w: int, rng: np.random.Generator | None) -> Region:
        if rng is None:
            return (high - h) // 2, (wide - w) // 2, False
        top, left = rng.integers((high - h + 1, wide - w + 1)).tolist()
        is_flipped = bool(rng.integers(2))
        if not self.random_crop:
            top, left = (high - h) // 2, (wide - w) // 2
        return top, left, is_flipped and self.flip

    @property
    def is_random(self) -> bool:
        return self.random_crop or self.flip

    @cached_property
    def _mean_std(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """(3,) each, for values of 0..255."""
        if isinstance(self.normalize, bool):
            return np.zeros(3), np.full(3, 255.0 if self.normalize else 1.0)
        mean, std = (np.asarray(values, np.float64) * 255 for values in self.normalize)
        return mean, std

    def _lines(self, width: int) -> list[npt.NDArray[np.float32]]:
        """(width * 3,) each: lines are quicker to go through than pixels of three."""
        return [np.tile(values, width).astype(np.float32) for values in self._mean_std]

    @cached_property
    def _levels(self) -> npt.NDArray[np.float16]:
        """(3, 256): what each value becomes; numbers of 16 bits are slow to reckon with."""
        mean, std = (values[:, None] for values in self._mean_std)
        return ((np.arange(256, dtype=np.float64) - mean) / std).astype(np.float16)


def to_ycbcr(frames: Frames) -> Frames:
    """(…, 3) uint8 RGB to YCbCr as JPEGs hold it: JFIF 1.02, 0..255 each, rounded to nearest."""
    made = frames.astype(np.float32) @ TO_YCBCR.T + YCBCR_OFFSET
    return np.clip(np.rint(made, out=made), 0, 255, out=made).astype(np.uint8)


def column(values: list[Any]) -> Any:
    """Arrays on top of each other, numbers as an array, anything else as it is."""
    if isinstance(values[0], np.ndarray):
        return np.stack(values)
    if all(isinstance(value, bool | int | float) for value in values):
        return np.asarray(values)
    return values
