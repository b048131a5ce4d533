"""What a run was asked to do: one frozen value with one dict form and one digest."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from vidprep.formats.errors import SettingsError
from vidprep.formats.manifest.columns import shown
from vidprep.formats.option import Option, check_options, documented
from vidprep.formats.profiles import CONTAINERS
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.settings.options import FrameOptions, Limits, QualityGate, Retime, Scale, Target
from vidprep.transcode.settings.parse import parse_rate, parse_size, parse_split
from vidprep.transcode.settings.quality_scale import QualityScale, scale_of_crf, scale_of_jpeg

HDR = ("sdr", "keep")
AUDIO = ("drop", "copy", "aac", "opus")
ENGINES = ("av", "ffmpeg")
MIN_SPLIT_SECONDS = 1
SPLITS = f"give auto, off, or seconds from {MIN_SPLIT_SECONDS}, such as 60"
LONG_SECONDS, SEGMENT_SECONDS = 120, 20  # what "auto" splits, and into what
TIME_RULE = 2  # how seconds become frames: 1 until 0.1, by exact comparison and nearest output frame
Built = TypeVar("Built")


@documented
@dataclass(frozen=True, slots=True)
class RunSettings:
    """Everything that decides the bytes of an output, and the limits it is made under.

    Args:
        encoder: How videos are encoded.
        frames: How frames are stored one by one (`burst`); None makes videos.
        retime: When the output shows which frame of the source.
        scale: Size of the output.
        gate: What an output must reach.
        limits: What one source may cost.
        target: A PSNR that decides the CRF or quality.
    """

    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    frames: FrameOptions | None = None
    retime: Retime = field(default_factory=Retime)
    scale: Scale = field(default_factory=Scale)
    gate: QualityGate = field(default_factory=QualityGate)
    limits: Limits = field(default_factory=Limits)
    hdr: Annotated[
        str | None,
        Option("PQ and HLG: tone-map to SDR (default for 8 bits) or keep (for 10).", choices=HDR, heading="Picture"),
    ] = None
    audio: Annotated[str, Option("What to do with the audio.", choices=AUDIO, only="transcode", heading="Encoding")] = (
        "drop"
    )
    on_damage: Annotated[
        str, Option("What to do when a source is damaged or cut short.", choices=("warn", "fail"), heading="Quality")
    ] = "warn"
    engine: Annotated[
        str,
        Option("Encode in process, or with an ffmpeg command.", choices=ENGINES, only="transcode", heading="Encoding"),
    ] = "av"
    target: Target | None = None
    split: Annotated[
        float | str,
        Option(
            "Encode longer videos in segments of about SECONDS, several at a time, joined without re-encoding; auto: those of more "
            "than two minutes; off: none.", "SECONDS|auto|off", parse=parse_split, must=SPLITS, only="transcode", heading="Encoding",
        ),
    ] = "auto"  # fmt: skip

    def __post_init__(self) -> None:
        check_options(self)
        if self.target is not None and self.frames is not None and not self.frames.is_coded:
            raise SettingsError(
                "<target_psnr>: a tensor store has no loss; leave it out", target_psnr=self.target.psnr_db
            )
        if self.audio != "drop" and self.engine != "av":
            raise SettingsError("<audio> needs <engine>", audio=self.audio, engine="av")
        self._check_split()
        box = CONTAINERS[self.encoder.container_name]
        if self.audio != "drop" and self.audio not in box.audio:
            raise SettingsError(f"<audio>: {box.name} takes drop, {', '.join(box.audio)}", audio=self.audio)
        if not self.encoder.profile.in_process and self.engine == "av":
            raise SettingsError("<encoder> needs <engine>", encoder=self.encoder.profile.name, engine="ffmpeg")
        pixel_format = self.encoder.resolved.pixel_format
        if pixel_format in self.encoder.profile.only_ffmpeg and self.engine == "av":
            there = [p for p in self.encoder.profile.pixel_formats if p not in self.encoder.profile.only_ffmpeg]
            raise SettingsError(
                f"<pixel_format>: {self.encoder.profile.name} takes {', '.join(there)} in PyAV; take <engine>",
                pixel_format=pixel_format,
                engine="ffmpeg",
            )

    def _check_split(self) -> None:
        if self.split in ("auto", "off"):
            return
        if isinstance(self.split, str) or not MIN_SPLIT_SECONDS <= self.split < math.inf:
            raise SettingsError(f"<split>: {SPLITS}", split=self.split)
        if self.engine != "av":
            raise SettingsError("<split> needs <engine>", split=self.split, engine="av")
        if self.target is not None:
            raise SettingsError(
                "<split> and <target_psnr> exclude each other; split with the CRF that `vidprep tune` finds",
                split=self.split,
                target_psnr=self.target.psnr_db,
            )

    def segment_seconds(self, duration: float | None) -> float | None:
        """How long the segments of a video are to be; None where it is made whole. duration: seconds, None where nothing tells."""
        if not isinstance(self.split, str):
            return self.split if duration is None or duration > self.split else None
        is_fit = self.engine == "av" and self.frames is None and self.target is None
        is_long = duration is not None and duration > LONG_SECONDS
        return SEGMENT_SECONDS if self.split == "auto" and is_fit and is_long else None

    @property
    def pixel_format(self) -> str:
        """Of the output: of the encoder, or of what goes into JPEGs."""
        return self.frames.pixel_format if self.frames else self.encoder.resolved.pixel_format or "yuv420p"

    @property
    def extension(self) -> str:
        """Of what a unit becomes, without a dot: `frames` for what goes into a shard."""
        return "frames" if self.frames else self.encoder.container_name

    @property
    def quality_scale(self) -> QualityScale:
        """What the quality is set with."""
        return scale_of_jpeg() if self.frames is not None else scale_of_crf(self.encoder)

    @property
    def quality_value(self) -> float:
        """The CRF, or the JPEG quality."""
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
            "split": self.split,
        }  # fmt: skip
        target = {"target": asdict(self.target)} if self.target else {}
        return (
            coded
            | target
            | {
                "frame_rate": str(rate) if rate else None,
                "cut_origin": self.retime.cut_origin,
                "time_rule": TIME_RULE,
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
                coded["split"] = values.get("split", values.get("split_seconds", "off"))  # as 0.1 called it
            plain = {name: values[name] for name in ("hdr", "audio", "on_damage", "engine")}
            built = {
                "retime": Retime(parse_rate(_text(rate)) if rate else None, _text(values.get("cut_origin", "picture"))),
                "gate": _built(QualityGate, values["gate"]),
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
        raise TypeError(f"{shown(value)} is not a string")
    return value
