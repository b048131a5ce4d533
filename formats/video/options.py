"""How one output is encoded, checked against the row of its encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from vidprep.formats.errors import SettingsError
from vidprep.formats.model import NO_LIGHT, FrameSize, Light
from vidprep.formats.profiles import (
    CODECS,
    CONTAINERS,
    ENCODERS,
    TUNES,
    EncoderProfile,
)

NO_SIZE = FrameSize(0, 0)
LARGE_LINES = 480


def _is_large(size: FrameSize) -> bool:
    """Whether encoding takes so much of the time that it is worth a few bytes to have it done by several threads."""
    return min(size) >= LARGE_LINES


@dataclass(frozen=True, slots=True)
class EncoderOptions:
    """How one output is encoded. None means the default of the codec's row; `resolved` fills them in.

    gop: a keyframe exactly every so many output frames. crf: in the encoder's own scale, lower is better. threads: None leaves them
    to the encoder's row, which knows how many change no byte, and how many a large picture is worth.
    Raises SettingsError when built with values that its row does not have.
    """

    codec: str = "h264"
    encoder: str | None = None
    container: str | None = None
    gop: int = 16
    crf: float | None = None
    preset: str | None = None
    tune: str = "psnr"
    pixel_format: str | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise SettingsError(f"<codec>: not one of {', '.join(CODECS)}", codec=self.codec)
        if self.encoder is not None and self.encoder not in ENCODERS:
            known = ", ".join(name for name, row in ENCODERS.items() if row.codec == self.codec)
            raise SettingsError(
                f"<encoder>: unknown; for <codec> there are {known}", encoder=self.encoder, codec=self.codec
            )
        row = self.profile
        if row.codec != self.codec:
            raise SettingsError(
                f"<encoder> makes {row.codec}; say <codec>, or leave it out", encoder=row.name, codec=row.codec
            )
        box = CONTAINERS.get(self.container_name)
        if box is None:
            raise SettingsError(f"<container>: not one of {', '.join(CONTAINERS)}", container=self.container)
        if box.codecs and self.codec not in box.codecs:
            raise SettingsError(f"<container> holds {', '.join(box.codecs)}, not {self.codec}", container=box.name)
        if not 1 <= self.gop <= 10_000:
            raise SettingsError("<gop>: give 1 to 10000 frames", gop=self.gop)
        if self.crf is not None:
            low, high = sorted(row.crf_range)
            if not low <= self.crf <= high:
                raise SettingsError(f"<crf>: {row.name} takes {low:g} to {high:g}", crf=self.crf)
            if row.crf_is_whole and self.crf != int(self.crf):
                raise SettingsError(f"<crf>: {row.name} takes whole numbers from {low:g} to {high:g}", crf=self.crf)
        if self.preset is not None and self.preset not in row.presets:
            allowed = ", ".join(row.presets) or "no presets"
            raise SettingsError(f"<preset>: {row.name} has {allowed}", preset=self.preset)
        if self.tune not in TUNES:
            raise SettingsError(f"<tune>: not one of {', '.join(TUNES)}", tune=self.tune)
        if self.pixel_format is not None and self.pixel_format not in row.pixel_formats:
            allowed = ", ".join(row.pixel_formats)
            raise SettingsError(f"<pixel_format>: {row.name} takes {allowed}", pixel_format=self.pixel_format)
        if self.threads is not None and not 1 <= self.threads <= 256:
            raise SettingsError("<encoder_threads>: give 1 to 256", encoder_threads=self.threads)

    @property
    def profile(self) -> EncoderProfile:
        return ENCODERS[self.encoder or CODECS[self.codec].encoder]

    @property
    def container_name(self) -> str:
        return self.container or CODECS[self.codec].container

    @property
    def resolved(self) -> EncoderOptions:
        """The same, with every default filled in: what the settings digest is taken over."""
        row = self.profile
        return EncoderOptions(
            codec=self.codec,
            encoder=row.name,
            container=self.container_name,
            gop=self.gop,
            crf=row.crf_default if self.crf is None else self.crf,
            preset=row.preset_default if self.preset is None and row.presets else self.preset,
            tune=self.tune,
            pixel_format=self.pixel_format or row.pixel_formats[0],
            threads=self.threads,
        )

    def num_threads(self, size: FrameSize) -> int:
        """What libavcodec is told for pictures of this size."""
        return self.threads or (self.profile.threads_when_large if _is_large(size) else 1)

    def library_options(self, light: Light = NO_LIGHT, size: FrameSize = NO_SIZE, cores: int = 1) -> dict[str, str]:
        """Option names and values as libavcodec takes them, for PyAV and for the ffmpeg command alike.

        light: of the high dynamic range that is to be kept. cores: that have nothing else to do; they change no byte.
        """
        row, full = self.profile, self.resolved
        assert full.crf is not None
        values = {
            "gop": full.gop,
            "threads": full.threads or 1,
            "cores": full.threads or cores,
            "rows": int(has_rows := full.threads is None and _is_large(size)),
            "pools": cores if has_rows else "none",
            "crf": f"{full.crf:g}",
            "qmin": f"{max(0.0, full.crf - 10):g}",
        }

        def fill(options: Mapping[str, str]) -> dict[str, str]:
            return {name: text.format(**values) for name, text in options.items()}

        options = {row.crf_option: f"{full.crf:g}"}
        if full.preset:
            options[row.preset_option] = full.preset
        options |= fill(row.options) | fill(row.tune_options.get(full.tune, {}))
        params = fill(row.params) | fill(row.tune_params.get(full.tune, {})) | row.of_light(light)
        if params:
            options[row.params_option] = ":".join(f"{name}={value}" for name, value in params.items())
        return options

    def as_dict(self) -> dict[str, object]:
        """Every option by its name, defaults filled in."""
        return asdict(self.resolved)
