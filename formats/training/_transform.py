"""Transforms of the frames of an item: scale, crop, flip, dtype and layout.

All frames of an item get the same transform. Random numbers come from the generator that is passed in.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import SettingsError
from vidprep.formats.video.rgb import resize_picture
from vidprep.formats.video.rgb16 import deep_resized

DType = Literal["uint8", "uint16", "float16", "float32"]
Layout = Literal["THWC", "TCHW", "CTHW"]
Size = int | tuple[int, int]
MeanStd = tuple[tuple[float, float, float], tuple[float, float, float]]
Range = tuple[float, float]

# Mean and standard deviation of ImageNet, scaled to 0..1, as torchvision's models expect.
IMAGENET: MeanStd = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
AXES = {"THWC": (0, 1, 2, 3), "TCHW": (0, 2, 3, 1), "CTHW": (1, 2, 3, 0)}  # positions of T, H, W and C
RESIZED_CROP = (0.08, 1.0), (3 / 4, 4 / 3)
TRIES = 10


@dataclass(frozen=True)
class Transform:
    """Transform of all frames of an item. Sizes are (height, width).

    Attributes:
        size: Size to scale to, or length of the shorter side; with `random_resized_crop`, one number is the side of a
            square
        crop: Size to crop after scaling, or side of a square
        random_crop: Crop at a random position instead of the centre
        flip: Probability of a horizontal flip; True means 0.5
        dtype: "uint8"; "uint16" for stores of more than 8 bits, 0 to 65535; "float16" or "float32"
        normalize: True scales to 0..1; (mean, std) of three values each, or "imagenet", gives ((0..1) - mean) / std.
            Only for floats
        random_resized_crop: Crop a random part and scale it to `size`. True uses torchvision's defaults; (scale, ratio)
            are two ranges: the part's share of the area, and its width / height
        num_crops: 3 makes three items: crops at both ends and the centre of the side of which the crop leaves more
        layout: Order of the axes: T frames, H lines, W columns, C channels

    Raises:
        SettingsError: A value is invalid, or options contradict each other.
    """

    size: Size | None = None
    crop: Size | None = None
    random_crop: bool = False
    flip: bool | float = False
    dtype: DType = "uint8"
    normalize: bool | Literal["imagenet"] | MeanStd = False
    random_resized_crop: bool | tuple[Range, Range] = False
    num_crops: Literal[1, 3] = 1
    layout: Layout = "THWC"

    def __post_init__(self) -> None:
        for name in ("size", "crop"):
            object.__setattr__(self, name, _size(name, getattr(self, name)))
        choices: tuple[tuple[str, object, tuple[object, ...]], ...] = (
            ("dtype", self.dtype, ("uint8", "uint16", "float16", "float32")),
            ("layout", self.layout, tuple(AXES)),
            ("num_crops", self.num_crops, (1, 3)),
        )
        for name, given, known in choices:
            if given not in known or isinstance(given, bool):
                *most, last = map(str, known)
                raise SettingsError(f"{name} is {given!r}; give {', '.join(most)} or {last}")
        if not isinstance(self.flip, bool | int | float) or not 0 <= self.flip <= 1:
            raise SettingsError(f"flip is {self.flip!r}; give a probability, 0 to 1, or True for 0.5")
        self._check_crops()
        if self.normalize and self.dtype not in ("float16", "float32"):
            raise SettingsError("normalize needs dtype float16 or float32")
        if isinstance(self.normalize, str) and self.normalize != "imagenet":
            raise SettingsError(f"normalize is {self.normalize!r}; give True, 'imagenet' or (mean, std)")
        if not isinstance(self.normalize, bool | str) and (
            np.shape(self.normalize) != (2, 3) or 0 in self.normalize[1]
        ):
            raise SettingsError(f"normalize is {self.normalize!r}; give (mean, std) of three values each, no std of 0")
        if not isinstance(self.normalize, bool | str) and np.max(self.normalize[0]) > 1:
            raise SettingsError(
                f"normalize is {self.normalize!r}; mean and std are of values of 0 to 1: divide them by 255"
            )

    def _check_crops(self) -> None:
        if self.random_crop and self.crop is None:
            raise SettingsError("random_crop needs crop")
        if self.num_crops > 1 and (self.crop is None or self.random_crop):
            raise SettingsError("num_crops needs crop, and no random_crop")
        if isinstance(self.random_resized_crop, bool) and not self.random_resized_crop:
            return
        if self.size is None or self.crop is not None:
            raise SettingsError("random_resized_crop needs size, to which the part is scaled, and no crop")
        if not isinstance(self.random_resized_crop, bool):
            given = self.random_resized_crop
            if not (isinstance(given, tuple) and len(given) == 2 and all(map(_is_range, given)) and given[0][1] <= 1):
                raise SettingsError(
                    f"random_resized_crop is {self.random_resized_crop!r}; give True, or (scale, ratio), each (from, to), scale at most 1"
                )

    @property
    def is_identity(self) -> bool:
        """Whether frames stay unchanged after scaling."""
        return self.is_whole and self == Transform(self.size, dtype=self.dtype)

    @property
    def is_whole(self) -> bool:
        """Whether results are whole numbers, as in stores."""
        return self.dtype in ("uint8", "uint16")

    @property
    def stored_dtype(self) -> Literal["uint8", "uint16"]:
        """Dtype in which frames are read from the store."""
        return "uint16" if self.dtype == "uint16" else "uint8"

    @property
    def is_random(self) -> bool:
        return bool(self.random_crop or self.flip or self.random_resized_crop)

    def scale(self, height: int, width: int) -> tuple[int, int]:
        """Return the size to which the store scales frames."""
        if self.size is None or self.random_resized_crop:
            return height, width
        if isinstance(self.size, int):
            short = min(height, width)
            return round(height * self.size / short), round(width * self.size / short)
        return self.size

    def result(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of results. Raises SettingsError if the crop is larger than the frames."""
        if self.random_resized_crop:
            assert self.size is not None
            return _pair(self.size)
        height, width = self.scale(height, width)
        if self.crop is None:
            return height, width
        crop = _pair(self.crop)
        if crop[0] > height or crop[1] > width:
            raise SettingsError(
                f"a crop of {crop[0]} lines of {crop[1]} pixels does not fit into {height} lines of {width}; scale with size"
            )
        return crop

    def shape(self, count: int, height: int, width: int) -> tuple[int, ...]:
        """Return the shape of a result with `count` frames, in the order of the layout."""
        sides = {"T": count, "H": height, "W": width, "C": 3}
        return tuple(sides[axis] for axis in self.layout)

    def apply(self, frames: npt.NDArray[Any], out: npt.NDArray[Any], rng: np.random.Generator, which: int = 0) -> None:
        """Transform frames.

        Args:
            frames: (T, H, W, 3) RGB, already scaled.
            out: Array of the result's `shape` and dtype.
            rng: Source of random numbers.
            which: Number of the crop if there are several.
        """
        out = out.transpose(AXES[self.layout])
        frames = self._part(frames, out.shape[1], out.shape[2], rng, which)
        if self.flip and rng.random() < (0.5 if self.flip is True else self.flip):
            frames = frames[:, :, ::-1]
        if self.is_whole:
            out[...] = frames
        elif self.dtype == "float16":
            for channel, levels in enumerate(self._levels):
                out[..., channel] = levels[frames[..., channel]]
        elif self.layout == "THWC":
            count, height, width, _ = out.shape
            lines, (mean, std) = out.reshape(count, height, width * 3), self._lines(width)
            np.subtract(frames.reshape(lines.shape), mean, out=lines, dtype=np.float32, casting="unsafe")
            np.divide(lines, std, out=lines)
        else:
            for channel, (mean, std) in enumerate(zip(*self._mean_std, strict=True)):
                plane = out[..., channel]
                np.subtract(frames[..., channel], np.float32(mean), out=plane, dtype=np.float32, casting="unsafe")
                np.divide(plane, np.float32(std), out=plane)

    def _part(
        self, frames: npt.NDArray[Any], height: int, width: int, rng: np.random.Generator, which: int
    ) -> npt.NDArray[Any]:
        """Return (T, height, width, 3) of the frames; a view if nothing is scaled."""
        high, wide = frames.shape[1] - height, frames.shape[2] - width
        if self.random_resized_crop:
            top, left, high, wide = self._random_part(frames.shape[1], frames.shape[2], rng)
            made = np.empty((len(frames), height, width, 3), frames.dtype)
            for frame, row in zip(frames[:, top : top + high, left : left + wide], made, strict=True):
                if frames.dtype == np.uint16:
                    row[...] = deep_resized(frame, (height, width))
                else:
                    resize_picture(frame, row)
            return made
        if self.random_crop:
            top, left = rng.integers((high + 1, wide + 1)).tolist()
        elif self.num_crops == 3:
            top, left = (high * which // 2, wide // 2) if high > wide else (high // 2, wide * which // 2)
        else:
            top, left = high // 2, wide // 2
        return frames[:, top : top + height, left : left + width]

    def _random_part(self, high: int, wide: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """Return top, left, height and width of a crop, by the rule of torchvision's RandomResizedCrop."""
        scale, ratio = RESIZED_CROP if self.random_resized_crop is True else self.random_resized_crop or RESIZED_CROP
        for _ in range(TRIES):
            area = high * wide * rng.uniform(*scale)
            shape = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
            height, width = round(math.sqrt(area / shape)), round(math.sqrt(area * shape))
            if 0 < height <= high and 0 < width <= wide:
                top, left = rng.integers((high - height + 1, wide - width + 1)).tolist()
                return top, left, height, width
        shape = min(max(wide / high, ratio[0]), ratio[1])
        height, width = min(high, round(wide / shape)), min(wide, round(high * shape))
        return (high - height) // 2, (wide - width) // 2, height, width

    @cached_property
    def _mean_std(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """(3,) mean and standard deviation for values of 0..255."""
        if isinstance(self.normalize, bool):
            return np.zeros(3), np.full(3, 255.0 if self.normalize else 1.0)
        mean, std = IMAGENET if isinstance(self.normalize, str) else self.normalize
        return np.asarray(mean, np.float64) * 255, np.asarray(std, np.float64) * 255

    def _lines(self, width: int) -> list[npt.NDArray[np.float32]]:
        """Return mean and standard deviation as arrays of (width * 3,): whole lines are faster than pixels of three."""
        return [np.tile(values, width).astype(np.float32) for values in self._mean_std]

    @cached_property
    def _levels(self) -> npt.NDArray[np.float16]:
        """(3, 256) result of each value; arithmetic with 16-bit floats is slow."""
        mean, std = (values[:, None] for values in self._mean_std)
        return ((np.arange(256, dtype=np.float64) - mean) / std).astype(np.float16)


def _is_range(value: object) -> bool:
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and all(isinstance(each, int | float) for each in value)
        and 0 < value[0] <= value[1]
    )


def _size(name: str, value: object) -> Size | None:
    """Return a size; lists come from configuration files."""
    if value is None:
        return None
    numbers = list(value) if isinstance(value, tuple | list) else [value]
    whole = [operator.index(each) for each in numbers if isinstance(each, SupportsIndex) and not isinstance(each, bool)]
    if len(whole) < len(numbers) or len(whole) != 1 + isinstance(value, tuple | list) or min(whole) < 1:
        raise SettingsError(f"{name} is {value!r}; give pixels above 0, as one number or (height, width)")
    return whole[0] if len(whole) == 1 else (whole[0], whole[1])


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def column(values: list[Any]) -> Any:
    """Combine values of a batch: arrays are stacked, numbers become an array, other values stay a list."""
    if isinstance(values[0], np.ndarray):
        return np.stack(values)
    if all(isinstance(value, bool | int | float) for value in values):
        return np.asarray(values)
    return values
