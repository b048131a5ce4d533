"""Keywords of `transcode` and `burst`, and flags of their commands: the options of the dataclasses that they fill."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from vidprep.formats.errors import SettingsError
from vidprep.formats.option import Declared, options_of
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.settings.options import Limits, QualityGate, Retime, Scale, Target
from vidprep.transcode.settings.output import FrameOutput, Output, VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.settings.run_options import RunOptions, SourceOptions

Built = TypeVar("Built")

SOURCES = (SourceOptions,)
SAMPLE = (*SOURCES, Retime, Scale)
_REST = (RunSettings, Target, QualityGate, RunOptions, Limits)
KINDS = {"transcode": (*SAMPLE, EncoderOptions, VideoOutput, *_REST), "burst": (*SAMPLE, FrameOutput, *_REST)}


def options_of_command(name: str) -> list[Declared]:
    """Of `transcode` or `burst`."""
    return [each for kind in KINDS[name] for each in options_of(kind) if each.option.only in ("", name)]


@functools.cache
def _homes() -> dict[str, tuple[type, Declared]]:
    return {each.keyword: (kind, each) for kinds in KINDS.values() for kind in kinds for each in options_of(kind)}


def decides_output(keyword: str) -> bool:
    """Whether a keyword is part of the settings of a run, and not of how it works."""
    return _homes()[keyword][0] not in (SourceOptions, RunOptions, Limits)


def build_options(kind: type[Built], keywords: Mapping[str, Any], **more: object) -> Built:
    """A dataclass from those of the keywords that are its own. Raises SettingsError."""
    own = {}
    for keyword, value in keywords.items():
        home, declared = _homes()[keyword]
        if home is kind:
            value = declared.option.parsed(keyword, value)
            if type(value) is int and float in (declared.hint, *get_args(declared.hint)):
                value = float(value)  # or settings would differ by how a number was written
            own[declared.name] = value
    return kind(**own, **more)


def build_scale(keywords: Mapping[str, Any]) -> Scale:
    """Raises SettingsError."""
    if keywords.get("fit") not in (None, Scale().fit) and keywords.get("size") is None:
        raise SettingsError("<fit> needs <size>", fit=keywords["fit"], size="WxH")
    return build_options(Scale, keywords)


def build_settings(keywords: Mapping[str, Any], kind: type[Output]) -> RunSettings:
    """What these keywords ask for. kind: of the output. Raises SettingsError."""
    target = None
    if keywords.get("target_psnr") is not None:
        value = kind.quality_keyword
        if keywords.get(value) is not None:
            raise SettingsError(
                f"<{value}> and <target_psnr> exclude each other; give one",
                **{value: keywords[value], "target_psnr": keywords["target_psnr"]},
            )
        target = build_options(Target, keywords)
    elif (mode := keywords.get("target_mode")) is not None:
        usual = {"target_psnr": 40.0}
        if build_options(Target, usual | {"target_mode": mode}) != build_options(Target, usual):
            raise SettingsError("<target_mode> needs <target_psnr>", target_mode=mode, target_psnr=40)
    more = {"encoder": build_options(EncoderOptions, keywords)} if kind is VideoOutput else {}
    return build_options(
        RunSettings,
        keywords,
        output=build_options(kind, keywords, **more),
        target=target,
        retime=build_options(Retime, keywords),
        scale=build_scale(keywords),
        gate=build_options(QualityGate, keywords),
        limits=build_options(Limits, keywords),
    )
