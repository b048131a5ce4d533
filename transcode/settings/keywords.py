"""The keywords of the Python functions: the names of the command line's flags. Defaults stand in the dataclasses that they fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from vidprep.formats.errors import SettingsError
from vidprep.formats.model import FrameSize
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.settings.options import FrameOptions, Limits, QualityGate, Retime, Scale, Target
from vidprep.transcode.settings.parse import parse_bytes, parse_rate, parse_shares, parse_size, parse_split
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.settings.run_options import RunOptions, SourceOptions

Built = TypeVar("Built")


class SourceKeywords(TypedDict, total=False):
    include: Sequence[str]
    exclude: Sequence[str]
    limit: int | None
    label_from_folder: bool
    labels: str | Sequence[str] | None
    on_bad_row: str
    split_by: str | Mapping[str, float] | None
    split_group: str | None
    split_seed: int
    keep_source_suffix: bool


class PictureKeywords(TypedDict, total=False):
    fps: str | float | Fraction | None
    short_side: int | None
    size: str | tuple[int, int] | None
    fit: str
    scaler: str
    upscale: bool
    hdr: str | None


class EncodeKeywords(TypedDict, total=False):
    codec: str
    encoder: str | None
    container: str | None
    gop: int
    crf: float | None
    preset: str | None
    tune: str
    pixel_format: str | None
    audio: str
    split: float | str
    encoder_threads: int | None
    engine: str
    ffmpeg: str | Path | None


class StoreKeywords(TypedDict, total=False):
    format: str
    quality: int | None
    subsampling: str
    shard_size: str | int


class CheckKeywords(TypedDict, total=False):
    target_psnr: float | None
    target_mode: str
    min_psnr: float | None
    verify_every: int
    on_damage: str


class WorkKeywords(TypedDict, total=False):
    backend: str
    cluster_address: str | None
    shard: str | None
    jobs: int | None
    timeout: float | None
    max_pixels: int
    max_frames: int
    overwrite: bool
    skip_failed: bool
    prune: bool
    events: str | Path | None


class TranscodeKeywords(SourceKeywords, PictureKeywords, EncodeKeywords, CheckKeywords, WorkKeywords):
    """Of `transcode`."""


class BurstKeywords(SourceKeywords, PictureKeywords, StoreKeywords, CheckKeywords, WorkKeywords):
    """Of `burst`."""


# Where each keyword goes, where that is not the field of its own name.
_RENAMED = {
    "fps": (Retime, "frame_rate"), "encoder_threads": (EncoderOptions, "threads"),
    "format": (FrameOptions, "store"), "shard_size": (FrameOptions, "shard_bytes"), "target_psnr": (Target, "psnr_db"),
    "target_mode": (Target, "per_video"), "min_psnr": (QualityGate, "min_psnr_db"), "timeout": (Limits, "timeout_seconds"),
}  # fmt: skip
_KINDS = (EncoderOptions, FrameOptions, Retime, Scale, QualityGate, Limits, SourceOptions, RunOptions, RunSettings)
_TARGET_MODES = {"dataset": False, "per-video": True}


def _home(keyword: str) -> tuple[type, str]:
    if keyword in _RENAMED:
        return _RENAMED[keyword]
    for kind in _KINDS:
        if keyword in {field.name for field in fields(kind)}:
            return kind, keyword
    raise TypeError(f"there is no keyword {keyword!r}")


def default_of(keyword: str) -> Any:
    """What a keyword is when it is not given: what the dataclass has, as people write it."""
    kind, name = _home(keyword)
    default = next(field.default for field in fields(kind) if field.name == name)
    if default is MISSING:
        return None
    if keyword == "shard_size":
        return f"{default >> 30}GiB"
    return (
        next(mode for mode, value in _TARGET_MODES.items() if value is default) if keyword == "target_mode" else default
    )


def _as_rate(value: str | float | Fraction | None) -> Fraction | None:
    return None if value is None else parse_rate(str(value))


def _as_size(value: str | tuple[int, int] | None) -> FrameSize | None:
    return value if value is None else parse_size(value) if isinstance(value, str) else FrameSize(*value)


def _as_split(value: str | float) -> float | str:
    return parse_split(value) if isinstance(value, str) else value


def _as_bytes(value: str | int) -> int:
    return parse_bytes(str(value))


def _as_names(value: str | Sequence[str] | None) -> tuple[str, ...] | None:
    return value if value is None else tuple(value.split(",") if isinstance(value, str) else value)


def _as_shares(value: str | Mapping[str, float] | None) -> dict[str, Fraction] | None:
    return None if value is None else parse_shares(value)


def _as_per_video(mode: str) -> bool:
    if mode not in _TARGET_MODES:
        raise SettingsError(f"<target_mode>: not one of {', '.join(_TARGET_MODES)}", target_mode=mode)
    return _TARGET_MODES[mode]


_CONVERTED: dict[str, Callable[[Any], object]] = {
    "labels": _as_names, "split_by": _as_shares,
    "fps": _as_rate, "size": _as_size, "shard_size": _as_bytes, "target_mode": _as_per_video, "split": _as_split,
}  # fmt: skip


def built(kind: type[Built], keywords: Mapping[str, Any], **more: object) -> Built:
    """A dataclass from those of the keywords that are its own. Raises SettingsError."""
    own = {}
    for keyword, value in keywords.items():
        home, field = _home(keyword)
        if home is kind:
            own[field] = _CONVERTED[keyword](value) if keyword in _CONVERTED else value
    return kind(**own, **more)


def settings_of(keywords: Mapping[str, Any], *, of_frames: bool) -> RunSettings:
    """What these keywords ask for. of_frames: frames stored one by one, instead of videos. Raises SettingsError."""
    target = None
    if keywords.get("target_psnr") is not None:
        value = "quality" if of_frames else "crf"
        if keywords.get(value) is not None:
            raise SettingsError(
                f"<{value}> and <target_psnr> exclude each other; give one",
                **{value: keywords[value], "target_psnr": keywords["target_psnr"]},
            )
        target = built(Target, keywords)
    given = {name: value for name, value in keywords.items() if (name, value) != ("quality", None)}
    frames = built(FrameOptions, given) if of_frames else None
    return built(
        RunSettings, given, encoder=built(EncoderOptions, given), frames=frames, retime=built(Retime, given),
        scale=built(Scale, given), gate=built(QualityGate, given), limits=built(Limits, given), target=target,
    )  # fmt: skip
