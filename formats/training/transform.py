"""What is done to the frames of a sequence before a network gets them: scale, crop, flip, YCbCr, numbers.

All frames of a sequence get the same, and what is random comes from (seed, epoch, index) alone: one process or eight, the
result is the same.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import av
import numpy as np
import numpy.typing as npt
from av.video.frame import VideoFrame

from vidprep.formats.errors import SettingsError
from vidprep.formats.stores.base import Frames

DType = Literal["uint8", "float16", "float32"]
ColourModel = Literal["rgb", "ycbcr"]
Region = tuple[int, int, bool]
KEPT_SCALERS = 16

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
        """Whether frames pass as they are, whatever their size."""
        return self == Transform()

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
        """frames: (T, H, W, 3) uint8 RGB. out: (T, h, w, 3) of `result` and dtype. chance: None is the middle, unflipped."""
        high, wide = self.scaled(*frames.shape[1:3])
        if (high, wide) != frames.shape[1:3]:
            frames = np.stack([scale(frame, high, wide) for frame in frames])
        top, left, is_flipped = self._region(high, wide, out.shape[1], out.shape[2], rng)
        frames = frames[:, top : top + out.shape[1], left : left + out.shape[2]]
        if is_flipped:
            frames = frames[:, :, ::-1]
        if self.colour == "ycbcr":
            frames = to_ycbcr(frames)
        if self._levels is None:
            out[...] = frames
        elif self._levels.ndim == 1:
            np.take(self._levels, frames, out=out, mode="clip")
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
    def _levels(self) -> npt.NDArray[Any] | None:
        """What each of the 256 values becomes, (256,), or (3, 256) where channels differ; None for uint8."""
        if self.dtype == "uint8":
            return None
        levels = np.arange(256, dtype=np.float64)
        if isinstance(self.normalize, bool):
            return (levels / 255 if self.normalize else levels).astype(self.dtype)
        mean, std = (np.asarray(values, np.float64)[:, None] for values in self.normalize)
        return ((levels / 255 - mean) / std).astype(self.dtype)


def to_ycbcr(frames: Frames) -> Frames:
    """(…, 3) uint8 RGB to YCbCr as JPEGs hold it: JFIF 1.02, 0..255 each, rounded to nearest."""
    made = frames.astype(np.float32) @ TO_YCBCR.T + YCBCR_OFFSET
    return np.clip(np.rint(made, out=made), 0, 255, out=made).astype(np.uint8)


def scale(frame: Frames, height: int, width: int) -> Frames:
    """(H, W, 3) uint8 RGB to (height, width, 3): bicubic, widened where it shrinks, each of R, G and B for itself."""
    kept: dict[tuple[int, ...], _Scaler] = _mine.__dict__.setdefault("scalers", {})
    key = (*frame.shape[:2], height, width)
    if key not in kept:
        if len(kept) >= KEPT_SCALERS:
            kept.clear()
        kept[key] = _Scaler(*key)
    return kept[key].run(frame)


class _Scaler:
    """libavfilter's scale over planes: rgb24 as it is would go through YUV and back."""

    def __init__(self, height: int, width: int, to_height: int, to_width: int) -> None:
        # The graph must outlive its contexts: without this reference the process crashes.
        self._graph = graph = av.filter.Graph()
        graph.threads = 1
        self._source = graph.add("buffer", f"video_size={width}x{height}:pix_fmt=rgb24:time_base=1/25:pixel_aspect=1/1")
        self._sink = graph.add("buffersink")
        flags = "flags=bicubic+accurate_rnd+bitexact"
        chain = [
            ("scale", flags), ("format", "gbrp"), ("scale", f"w={to_width}:h={to_height}:{flags}"), ("format", "gbrp"),
            ("scale", flags), ("format", "rgb24"),
        ]  # fmt: skip
        last = self._source
        for name, arguments in chain:
            added = graph.add(name, arguments)
            last.link_to(added)
            last = added
        last.link_to(self._sink)
        graph.configure()

    def run(self, frame: Frames) -> Frames:
        self._source.push(VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24"))
        made = self._sink.pull()
        assert isinstance(made, VideoFrame)
        return made.to_ndarray().astype(np.uint8, copy=False)


_mine = threading.local()


def column(values: list[Any]) -> Any:
    """Arrays on top of each other, numbers as an array, anything else as it is."""
    if isinstance(values[0], np.ndarray):
        return np.stack(values)
    if all(isinstance(value, bool | int | float) for value in values):
        return np.asarray(values)
    return values
