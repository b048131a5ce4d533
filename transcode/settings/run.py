"""What a run was asked to do: one frozen value with one dict form and one digest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from vidprep.formats.errors import SettingsError
from vidprep.formats.manifest.columns import shown
from vidprep.formats.option import Option, check_options, documented
from vidprep.transcode.settings.options import Limits, QualityGate, Retime, Scale, Target
from vidprep.transcode.settings.output import FrameOutput, Output, VideoOutput, output_of
from vidprep.transcode.settings.parse import parse_rate, parse_size

HDR = ("sdr", "keep")
TIME_RULE = 2  # how seconds become frames: 1 until 0.1, by exact comparison and nearest output frame


@documented
@dataclass(frozen=True, slots=True)
class RunSettings:
    """Everything that decides the bytes of an output, and the limits it is made under.

    Args:
        output: What is made of each source: a VideoOutput, or a FrameOutput (`burst`).
        retime: When the output shows which frame of the source.
        scale: Size of the output.
        gate: What an output must reach.
        limits: What one source may cost.
        target: A PSNR that decides the CRF or quality.
    """

    output: Output = field(default_factory=VideoOutput)
    retime: Retime = field(default_factory=Retime)
    scale: Scale = field(default_factory=Scale)
    gate: QualityGate = field(default_factory=QualityGate)
    limits: Limits = field(default_factory=Limits)
    hdr: Annotated[
        str | None,
        Option("PQ and HLG: tone-map to SDR (default for 8 bits) or keep (for 10).", choices=HDR, heading="Picture"),
    ] = None
    on_damage: Annotated[
        str, Option("What to do when a source is damaged or cut short.", choices=("warn", "fail"), heading="Quality")
    ] = "warn"
    target: Target | None = None

    def __post_init__(self) -> None:
        check_options(self)
        if not isinstance(self.output, VideoOutput | FrameOutput):
            raise SettingsError(f"output is {shown(self.output)}; give a VideoOutput or a FrameOutput")
        if self.target is None:
            return
        if not self.output.has_loss:
            raise SettingsError(
                "<target_psnr>: a tensor store has no loss; leave it out", target_psnr=self.target.psnr_db
            )
        if self.output.split not in ("auto", "off"):
            raise SettingsError(
                "<split> and <target_psnr> exclude each other; split with the CRF that `vidprep tune` finds",
                split=self.output.split,
                target_psnr=self.target.psnr_db,
            )

    @property
    def video(self) -> VideoOutput:
        """The output, where only videos are made."""
        assert isinstance(self.output, VideoOutput)
        return self.output

    @property
    def stored_frames(self) -> FrameOutput:
        """The output, where only frames are stored."""
        assert isinstance(self.output, FrameOutput)
        return self.output

    def segment_seconds(self, duration: float | None) -> float | None:
        """Return how long the segments of a video are to be, in seconds; None where it is made whole.

        Args:
            duration: Length of the video in seconds; None where nothing tells.
        """
        return None if self.target is not None else self.output.segment_seconds(duration)

    def at(self, value: float) -> RunSettings:
        """Return the same settings with another CRF or JPEG quality."""
        return replace(self, output=self.output.at(value))

    @property
    def keeps_hdr(self) -> bool:
        """PQ and HLG go through untouched into 10 bits, and are tone-mapped into 8, unless --hdr says otherwise."""
        if self.hdr is not None:
            return self.hdr == "keep"
        return self.output.is_deep

    def as_dict(self) -> dict[str, object]:
        """Every setting that decides the bytes of an output or what counts as good, defaults filled in."""
        scale = asdict(self.scale)
        scale["size"] = str(self.scale.size) if self.scale.size else None
        rate = self.retime.frame_rate
        target = {"target": asdict(self.target)} if self.target else {}
        return (
            self.output.as_dict()
            | target
            | {
                "frame_rate": str(rate) if rate else None,
                "cut_origin": self.retime.cut_origin,
                "time_rule": TIME_RULE,
                "scale": scale,
                "gate": asdict(self.gate),
                "hdr": "keep" if self.keeps_hdr else "sdr",
                "audio": self.output.audio,
                "on_damage": self.on_damage,
                "engine": self.output.engine,
            }
        )

    @staticmethod
    def from_dict(values: dict[str, Any]) -> RunSettings:
        """The settings that `as_dict` told, limits aside. Raises SettingsError for what is no such dict."""
        try:
            scale = dict(values["scale"])
            size = scale.pop("size")
            rate = values["frame_rate"]
            return RunSettings(
                output=output_of(values),
                retime=Retime(parse_rate(_text(rate)) if rate else None, _text(values.get("cut_origin", "picture"))),
                gate=QualityGate(**values["gate"]),
                scale=Scale(**scale | {"size": parse_size(_text(size)) if size else None}),
                target=Target(**values["target"]) if values.get("target") else None,
                hdr=values["hdr"],
                on_damage=values["on_damage"],
            )
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise SettingsError(f"the settings of the run cannot be read: {error}") from error

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that change when any of `as_dict` does."""
        text = json.dumps(self.as_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)} is not a string")
    return value
