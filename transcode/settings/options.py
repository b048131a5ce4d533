"""The options of a run in groups, each checked when it is built."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from vidprep.formats.errors import SettingsError
from vidprep.formats.model import FrameSize
from vidprep.formats.profiles import JPEG_SUBSAMPLINGS
from vidprep.formats.stores.registry import STORES_OF_FRAMES

FITS = ("pad", "crop", "stretch")
SCALERS = ("bicubic", "bilinear", "area", "lanczos")
MIN_SHARD_BYTES = 1 << 20
INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Retime:
    """frame_rate: constant rate of the output, frames per second; None keeps the source's own timestamps."""

    frame_rate: Fraction | None = None

    def __post_init__(self) -> None:
        rate = self.frame_rate
        if rate is not None and max(rate.numerator, rate.denominator) >= 1 << 31:  # what libavcodec counts with
            raise SettingsError("<fps>: too long as a fraction; give fewer digits", fps=float(rate))


@dataclass(frozen=True, slots=True)
class Scale:
    """Size of the output. At most one of short_side and size; neither keeps the size that the picture is shown at."""

    short_side: int | None = None
    size: FrameSize | None = None
    fit: str = "pad"
    scaler: str = "bicubic"
    upscale: bool = False

    def __post_init__(self) -> None:
        if self.short_side is not None and self.size is not None:
            raise SettingsError(
                "<short_side> and <size> exclude each other; give one", short_side=self.short_side, size=str(self.size)
            )
        for option, value in (("short_side", self.short_side), *zip(("size",) * 2, self.size or (), strict=False)):
            named: dict[str, Any] = {option: value}
            if value is not None and (value < 2 or value % 2 or value > 16384):
                raise SettingsError(f"<{option}>: give an even number of pixels from 2 to 16384", **named)
        if self.fit not in FITS:
            raise SettingsError(f"<fit>: not one of {', '.join(FITS)}", fit=self.fit)
        if self.scaler not in SCALERS:
            raise SettingsError(f"<scaler>: not one of {', '.join(SCALERS)}", scaler=self.scaler)


@dataclass(frozen=True, slots=True)
class QualityGate:
    """What an output must reach. min_psnr_db: floor for its mean PSNR-Y. verify_every: score each so many-th frame."""

    min_psnr_db: float | None = None
    verify_every: int = 1

    def __post_init__(self) -> None:
        if self.min_psnr_db is not None and not (math.isfinite(self.min_psnr_db) and 0 < self.min_psnr_db <= 100):
            raise SettingsError("<min_psnr>: give a number of dB above 0, at most 100", min_psnr=self.min_psnr_db)
        if self.verify_every < 1:
            raise SettingsError("<verify_every>: give 1 (each frame) or more", verify_every=self.verify_every)


@dataclass(frozen=True, slots=True)
class Target:
    """What the 1st percentile of the PSNR-Y of every output must reach; per_video: each with a CRF of its own."""

    psnr_db: float
    per_video: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.psnr_db) and 10 <= self.psnr_db <= 80):
            raise SettingsError("<target_psnr>: give dB from 10 to 80, such as 38", target_psnr=self.psnr_db)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one source may cost before it is stopped. timeout_seconds: None means from its size and the frames
    that are done. max_frames: of the source, and of the output.

    They protect the run and do not change an output, so they are no part of the settings digest.
    """

    timeout_seconds: float | None = None
    max_pixels: int = 36_000_000
    max_frames: int = 1_000_000

    def __post_init__(self) -> None:
        if self.timeout_seconds is not None and not 0 < self.timeout_seconds < 1e9:
            raise SettingsError("<timeout>: give seconds, above 0 and below 1000000000", timeout=self.timeout_seconds)
        if self.max_pixels < 1 or self.max_frames < 1:
            raise SettingsError("<max_pixels> and <max_frames>: give 1 or more", **asdict(self))
        if self.max_pixels > INT32_MAX or self.max_frames > INT32_MAX:
            raise SettingsError(
                f"<max_pixels> and <max_frames>: give at most {INT32_MAX}, which no decoder goes beyond", **asdict(self)
            )


@dataclass(frozen=True, slots=True)
class FrameOptions:
    """Frames stored one by one: which store, and how each is coded ("tensor" holds them uncoded).

    shard_bytes: a shard takes no more units once it would grow over this; how units fall into shards changes no unit.
    """

    store: str = "burst"
    quality: int = 90
    subsampling: str = "420"
    shard_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if self.store not in STORES_OF_FRAMES:
            raise SettingsError(f"<format>: not one of {', '.join(STORES_OF_FRAMES)}", format=self.store)
        if not 1 <= self.quality <= 100:
            raise SettingsError("<quality>: give a whole number from 1 to 100", quality=self.quality)
        if self.subsampling not in JPEG_SUBSAMPLINGS:
            raise SettingsError(
                f"<subsampling>: not one of {', '.join(JPEG_SUBSAMPLINGS)}", subsampling=self.subsampling
            )
        if self.shard_bytes < MIN_SHARD_BYTES:
            raise SettingsError("<shard_size>: give bytes, 1 MiB or more (such as 1GiB)", shard_size=self.shard_bytes)

    @property
    def is_coded(self) -> bool:
        return self.store != "tensor"

    @property
    def pixel_format(self) -> str:
        return JPEG_SUBSAMPLINGS[self.subsampling] if self.is_coded else "rgb24"

    def as_dict(self) -> dict[str, object]:
        """Every option that decides what is stored, by its name."""
        if not self.is_coded:
            return {"store": self.store}
        return {"store": self.store, "quality": self.quality, "subsampling": self.subsampling}
