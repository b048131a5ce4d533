"""What a run was asked to do: small frozen dataclasses, checked when built, with one dict form and one digest."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeVar, get_args, get_type_hints

from vidprep.formats.errors import SettingsError
from vidprep.formats.files.untrusted import INT64_MAX, MAX_NUMBER_LENGTH, bounded_fraction
from vidprep.formats.manifest.columns import shown
from vidprep.formats.model import FrameSize
from vidprep.formats.profiles import CONTAINERS, JPEG_SUBSAMPLINGS, EncoderOptions
from vidprep.formats.stores.registry import STORES_OF_FRAMES
from vidprep.transcode.unit.target_search import Knob

FITS = ("pad", "crop", "stretch")
SCALERS = ("bicubic", "bilinear", "area", "lanczos")
HDR = ("sdr", "keep")
AUDIO = ("drop", "copy", "aac", "opus")
ENGINES = ("av", "ffmpeg")
LEAST_SHARD_BYTES = 1 << 20
LEAST_SPLIT_SECONDS = 1
INT32_MAX = 2**31 - 1
# Where a search for a CRF begins: medians over the real clips that defaults were chosen on, to within a few dB.
DB_AT_DEFAULT = 41.0
DB_OF_CRF_RANGE = {"h264": 31.6, "hevc": 31.6, "vp9": 19.5, "av1": 18.0}
USUAL_JPEG = (90, 43.0)
DB_PER_OCTAVE = 2.9
Built = TypeVar("Built")

# What people write for the rates of NTSC, and what they mean.
NTSC_RATES = {
    "23.976": Fraction(24000, 1001),
    "23.98": Fraction(24000, 1001),
    "29.97": Fraction(30000, 1001),
    "47.952": Fraction(48000, 1001),
    "47.95": Fraction(48000, 1001),
    "59.94": Fraction(60000, 1001),
    "119.88": Fraction(120000, 1001),
}


def parse_rate(text: str) -> Fraction:
    """Frames per second, exactly: `15`, `12.5`, `30000/1001`; 23.976, 29.97 and 59.94 mean N·1000/1001."""
    if text in NTSC_RATES:
        return NTSC_RATES[text]
    try:
        rate = bounded_fraction(text)
    except ValueError:
        raise SettingsError(
            f"--fps {shortened(text)}: give a number or a fraction, such as 15, 29.97 or 30000/1001"
        ) from None
    if not Fraction(1, 1000) <= rate <= 1000:
        raise SettingsError(f"--fps {text}: give a rate from 0.001 to 1000")
    return rate


def parse_size(text: str) -> FrameSize:
    """`WxH` in pixels."""
    found = re.fullmatch(r"(\d{1,9})[xX](\d{1,9})", text)
    if found is None:
        raise SettingsError(f"--size {shortened(text)}: give WIDTHxHEIGHT in pixels, such as 224x224")
    return FrameSize(int(found[1]), int(found[2]))


def parse_bytes(text: str) -> int:
    """A number of bytes: `1000000`, `500MB` (10**6), `1GiB` (2**30)."""
    found = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?) ?(?:([kKMGT])(i?)B?|B)?", text)
    if found is None:
        raise SettingsError(f"--shard-size {shortened(text)}: give bytes, such as 500MB or 1GiB")
    number, prefix, binary = found.groups()
    power = " kMGT".index(prefix.replace("K", "k")) if prefix else 0
    size = int(float(number) * (1024 if binary else 1000) ** power)
    if size > INT64_MAX:
        raise SettingsError(f"--shard-size {text}: no file is so long; give bytes, such as 500MB or 1GiB")
    return size


def shortened(text: str) -> str:
    """For a message: what was given may be thousands of digits."""
    return text if len(text) <= MAX_NUMBER_LENGTH else f"{text[:MAX_NUMBER_LENGTH]}…"


def _jpeg_octaves(quality: int) -> float:
    """Doublings of JPEG's quantisers from quality 100 on, as libjpeg scales them: 200 - 2q percent, below 50 5000 / q."""
    percent = 200 - 2 * quality if quality >= 50 else 5000 / quality
    return math.log2(max(1.0, percent))


@dataclass(frozen=True, slots=True)
class Retime:
    """frame_rate: constant rate of the output, frames per second; None keeps the source's own timestamps."""

    frame_rate: Fraction | None = None

    def __post_init__(self) -> None:
        rate = self.frame_rate
        if rate is not None and max(rate.numerator, rate.denominator) >= 1 << 31:  # what libavcodec counts with
            raise SettingsError(f"--fps {float(rate):g}: too long as a fraction; give fewer digits")


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
            raise SettingsError("--short-side and --size exclude each other; give one")
        for option, value in (("--short-side", self.short_side), *zip(("--size",) * 2, self.size or (), strict=False)):
            if value is not None and (value < 2 or value % 2 or value > 16384):
                raise SettingsError(f"{option} {value}: give an even number of pixels from 2 to 16384")
        if self.fit not in FITS:
            raise SettingsError(f"--fit {self.fit}: not one of {', '.join(FITS)}")
        if self.scaler not in SCALERS:
            raise SettingsError(f"--scaler {self.scaler}: not one of {', '.join(SCALERS)}")


@dataclass(frozen=True, slots=True)
class QualityGate:
    """What an output must reach. min_psnr_db: floor for its mean PSNR-Y. verify_every: score each so many-th frame."""

    min_psnr_db: float | None = None
    verify_every: int = 1

    def __post_init__(self) -> None:
        if self.min_psnr_db is not None and not (math.isfinite(self.min_psnr_db) and 0 < self.min_psnr_db <= 100):
            raise SettingsError(f"--min-psnr {self.min_psnr_db:g}: give a number of dB above 0, at most 100")
        if self.verify_every < 1:
            raise SettingsError(f"--verify-every {self.verify_every}: give 1 (each frame) or more")


@dataclass(frozen=True, slots=True)
class Target:
    """What the 1st percentile of the PSNR-Y of every output must reach; per_video: each with a CRF of its own."""

    psnr_db: float
    per_video: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.psnr_db) and 10 <= self.psnr_db <= 80):
            raise SettingsError(f"--target-psnr {self.psnr_db:g}: give dB from 10 to 80, such as 38")


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
            raise SettingsError(f"--timeout {self.timeout_seconds:g}: give seconds above 0")
        if self.max_pixels < 1 or self.max_frames < 1:
            raise SettingsError("--max-pixels and --max-frames: give 1 or more")
        if self.max_pixels > INT32_MAX or self.max_frames > INT32_MAX:
            raise SettingsError(
                f"--max-pixels and --max-frames: give at most {INT32_MAX}, which no decoder goes beyond"
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
            raise SettingsError(f"--format {self.store}: not one of {', '.join(STORES_OF_FRAMES)}")
        if not 1 <= self.quality <= 100:
            raise SettingsError(f"--quality {self.quality}: give a whole number from 1 to 100")
        if self.subsampling not in JPEG_SUBSAMPLINGS:
            raise SettingsError(f"--subsampling {self.subsampling}: not one of {', '.join(JPEG_SUBSAMPLINGS)}")
        if self.shard_bytes < LEAST_SHARD_BYTES:
            raise SettingsError(f"--shard-size {self.shard_bytes}: give bytes, 1 MiB or more (such as 1GiB)")

    @property
    def is_coded(self) -> bool:
        return self.store != "tensor"

    @property
    def pixel_format(self) -> str:
        return JPEG_SUBSAMPLINGS[self.subsampling] if self.is_coded else "rgb24"

    def as_dict(self) -> dict[str, object]:
        if not self.is_coded:
            return {"store": self.store}
        return {"store": self.store, "quality": self.quality, "subsampling": self.subsampling}


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Everything that decides the bytes of an output, and the limits it is made under.

    frames: None makes a video of each unit with `encoder`, else its frames are stored one by one. split_seconds: longer
    videos are encoded in pieces of that length, in whole GOPs.
    """

    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    frames: FrameOptions | None = None
    retime: Retime = field(default_factory=Retime)
    scale: Scale = field(default_factory=Scale)
    gate: QualityGate = field(default_factory=QualityGate)
    limits: Limits = field(default_factory=Limits)
    hdr: str | None = None
    audio: str = "drop"
    on_damage: str = "warn"
    engine: str = "av"
    target: Target | None = None
    split_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.hdr is not None and self.hdr not in HDR:
            raise SettingsError(f"--hdr {self.hdr}: not one of {', '.join(HDR)}")
        if self.on_damage not in ("fail", "warn"):
            raise SettingsError(f"--on-damage {self.on_damage}: fail or warn")
        if self.engine not in ENGINES:
            raise SettingsError(f"--engine {self.engine}: not one of {', '.join(ENGINES)}")
        if self.target is not None and self.frames is not None and not self.frames.is_coded:
            raise SettingsError("--target-psnr: a tensor store has no loss; leave it out")
        if self.audio != "drop" and self.engine != "av":
            raise SettingsError("--audio goes with --engine av")
        if self.split_seconds is not None:
            if not (math.isfinite(self.split_seconds) and self.split_seconds >= LEAST_SPLIT_SECONDS):
                raise SettingsError(
                    f"--split {self.split_seconds:g}: give {LEAST_SPLIT_SECONDS} seconds or more, such as 60"
                )
            if self.engine != "av":
                raise SettingsError("--split goes with --engine av")
            if self.target is not None:
                raise SettingsError(
                    "--split and --target-psnr exclude each other; give --split the CRF that `vidprep tune` finds"
                )
        box = CONTAINERS[self.encoder.container_name]
        if self.audio != "drop" and self.audio not in box.audio:
            raise SettingsError(f"--audio {self.audio}: {box.name} takes drop, {', '.join(box.audio)}")
        if not self.encoder.profile.in_process and self.engine == "av":
            raise SettingsError(f"--encoder {self.encoder.profile.name} needs --engine ffmpeg")
        pixel_format = self.encoder.resolved.pixel_format
        if pixel_format in self.encoder.profile.only_ffmpeg and self.engine == "av":
            there = [p for p in self.encoder.profile.pixel_formats if p not in self.encoder.profile.only_ffmpeg]
            raise SettingsError(
                f"--pixel-format {pixel_format}: {self.encoder.profile.name} takes {', '.join(there)} in PyAV; "
                "take --engine ffmpeg"
            )

    @property
    def pixel_format(self) -> str:
        return self.frames.pixel_format if self.frames else self.encoder.resolved.pixel_format or "yuv420p"

    @property
    def extension(self) -> str:
        """Of what a unit becomes, without a dot: `frames` for what goes into a shard."""
        return "frames" if self.frames else self.encoder.container_name

    @property
    def knob(self) -> Knob:
        """What the quality is set with."""
        if self.frames is not None:
            qualities = tuple(range(100, 0, -1))
            return Knob("--quality", qualities, tuple(map(_jpeg_octaves, qualities)), USUAL_JPEG, DB_PER_OCTAVE)
        finest, coarsest = (int(end) for end in self.encoder.profile.crf_range)
        values = tuple(range(finest, coarsest + 1) if coarsest > finest else range(finest, coarsest - 1, -1))
        usual = int(self.encoder.profile.crf_default), DB_AT_DEFAULT
        return Knob(
            "--crf",
            values,
            tuple(float(n) for n in range(len(values))),
            usual,
            DB_OF_CRF_RANGE[self.encoder.codec] / (len(values) - 1),
        )

    @property
    def knob_value(self) -> float:
        if self.frames is not None:
            return self.frames.quality
        assert self.encoder.resolved.crf is not None
        return self.encoder.resolved.crf

    def at(self, value: float) -> RunSettings:
        """The same with another CRF or JPEG quality."""
        if self.frames is not None:
            return replace(self, frames=replace(self.frames, quality=int(value)))
        return replace(self, encoder=replace(self.encoder, crf=float(value)))

    @property
    def keeps_hdr(self) -> bool:
        """PQ and HLG go through untouched into 10 bits, and are tone-mapped into 8, unless --hdr says otherwise."""
        if self.hdr is not None:
            return self.hdr == "keep"
        return self.frames is None and "10" in (self.encoder.resolved.pixel_format or "")

    def as_dict(self) -> dict[str, object]:
        """Every setting that decides the bytes of an output or what counts as good, defaults filled in."""
        scale = asdict(self.scale)
        scale["size"] = str(self.scale.size) if self.scale.size else None
        rate = self.retime.frame_rate
        coded: dict[str, object] = {"frames": self.frames.as_dict()} if self.frames else {
            "encoder": self.encoder.as_dict(),
            "library_options": self.encoder.library_options(),
        }  # fmt: skip
        target = {"target": asdict(self.target)} if self.target else {}
        split = {"split_seconds": self.split_seconds} if self.split_seconds is not None else {}
        return (
            coded
            | target
            | split
            | {
                "frame_rate": str(rate) if rate else None,
                "scale": scale,
                "gate": asdict(self.gate),
                "hdr": "keep" if self.keeps_hdr else "sdr",
                "audio": self.audio,
                "on_damage": self.on_damage,
                "engine": self.engine,
            }
        )

    @staticmethod
    def from_dict(values: dict[str, Any]) -> RunSettings:
        """The settings that `as_dict` told, limits aside. Raises SettingsError for what is no such dict."""
        try:
            scale = dict(values["scale"])
            size = scale.pop("size")
            rate = values["frame_rate"]
            coded: dict[str, Any] = {}
            if "frames" in values:
                coded["frames"] = _built(FrameOptions, values["frames"])
            else:
                coded["encoder"] = _built(EncoderOptions, values["encoder"])
            if split := values.get("split_seconds"):
                coded["split_seconds"] = split
            plain = {name: values[name] for name in ("hdr", "audio", "on_damage", "engine")}
            built = {
                "retime": Retime(parse_rate(_text(rate)) if rate else None), "gate": _built(QualityGate, values["gate"]),
                "scale": _built(Scale, scale | {"size": parse_size(_text(size)) if size else None}),
                "target": _built(Target, values["target"]) if values.get("target") else None,
            }  # fmt: skip
            return _built(RunSettings, plain | built | coded)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise SettingsError(f"the settings of the run cannot be read: {error}") from error

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that change when any of `as_dict` does."""
        text = json.dumps(self.as_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _built(kind: type[Built], values: Mapping[str, Any]) -> Built:
    """A dataclass from a dict of its fields. Raises TypeError for a value of another type than the field's."""
    types = get_type_hints(kind)
    for name, value in values.items():
        due = types.get(name, object)
        allowed = get_args(due) or (due,)
        is_right = isinstance(value, allowed) or (float in allowed and type(value) is int)
        if not is_right or (isinstance(value, bool) and bool not in allowed):
            raise TypeError(f"{name} is {shown(value)}, {getattr(due, '__name__', due)} was expected")
    return kind(**values)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)} is no text")
    return value
