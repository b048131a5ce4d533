"""Options of the encoder, checked against its row in `profiles`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar

from vidprep.formats.errors import SettingsError
from vidprep.formats.model import NO_HDR_METADATA, FrameSize, HdrMetadata
from vidprep.formats.option import Option, check_options, document
from vidprep.formats.profiles import CODECS, CONTAINERS, ENCODERS, OTHER_NAMES, SHORT_GOP, TUNES, EncoderProfile

NO_SIZE = FrameSize(0, 0)
LARGE_LINES = 480


def _crf_help() -> str:
    rows = (ENCODERS[codec.encoder] for codec in CODECS.values())
    return "; ".join(
        f"{row.codec} {row.crf_range[0]:g}-{row.crf_range[1]:g}, default {row.crf_default:g}" for row in rows
    )


def _preset_help() -> str:
    rows = [ENCODERS[codec.encoder] for codec in CODECS.values() if ENCODERS[codec.encoder].presets]
    slow = {row.codec: " (slow)" if row.presets[0].isdecimal() else "" for row in rows}
    return "; ".join(
        f"{row.codec} {row.presets[0]}{slow[row.codec]} to {row.presets[-1]}, default {row.preset_default}"
        for row in rows
    )


def _is_large(size: FrameSize) -> bool:
    """Return whether encoding is so slow that several threads are worth a few bytes."""
    return min(size) >= LARGE_LINES


@document
@dataclass(frozen=True, slots=True)
class EncoderOptions:
    """Options of the encoder. None means the encoder's default.

    Raises:
        SettingsError: The encoder does not support a value.
    """

    HEADING: ClassVar[str] = "Encoding"

    codec: Annotated[str, Option("Codec of the outputs.", choices=CODECS, other_names=OTHER_NAMES)] = "h264"
    encoder: Annotated[
        str | None, Option("Another encoder for the codec, such as h264_nvenc with --engine ffmpeg.", "NAME")
    ] = None
    container: Annotated[
        str | None, Option("Default: webm for vp9, mp4 for the others.", choices=CONTAINERS, other_names=OTHER_NAMES)
    ] = None
    gop: Annotated[
        int, Option("A keyframe exactly every N output frames.", "N", least=1, most=10_000, unit="frames")
    ] = 16
    crf: Annotated[float | None, Option(f"Quality, lower is better: {_crf_help()}.", "Q")] = None
    preset: Annotated[str | None, Option(f"Speed of the encoder: {_preset_help()}.", "NAME")] = None
    tune: Annotated[str, Option("What the encoder optimises for.", choices=TUNES)] = "psnr"
    pixel_format: Annotated[
        str | None,
        Option("yuv420p (default), yuv420p10le to keep 10 bits, or another one that the encoder supports.", "NAME"),
    ] = None
    threads: Annotated[
        int | None,
        Option(
            "Threads per encoder; the number changes the output bytes. The default does not depend on the "
            "machine: 2 for h264 from 480 lines, otherwise only threads that do not change the bytes.",
            "N",
            keyword="encoder_threads",
            least=1,
            most=256,
        ),
    ] = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.encoder is not None and self.encoder not in ENCODERS:
            known = ", ".join(name for name, row in ENCODERS.items() if row.codec == self.codec)
            raise SettingsError(
                f"<encoder>: unknown; for <codec> there are {known}", encoder=self.encoder, codec=self.codec
            )
        row = self.profile
        if row.codec != self.codec:
            raise SettingsError(
                f"<encoder> makes {row.codec}; give <codec>, or leave it out", encoder=row.name, codec=row.codec
            )
        box = CONTAINERS[self.container_name]
        if box.codecs and self.codec not in box.codecs:
            raise SettingsError(f"<container> holds {', '.join(box.codecs)}, not {self.codec}", container=box.name)
        if self.crf is not None:
            low, high = sorted(row.crf_range)
            if not low <= self.crf <= high:
                raise SettingsError(f"<crf>: {row.name} takes {low:g} to {high:g}", crf=self.crf)
            if row.crf_is_whole and self.crf != int(self.crf):
                raise SettingsError(f"<crf>: {row.name} takes whole numbers from {low:g} to {high:g}", crf=self.crf)
        if self.preset is not None and self.preset not in row.presets:
            allowed = ", ".join(row.presets) or "no presets"
            raise SettingsError(f"<preset>: {row.name} has {allowed}", preset=self.preset)
        if self.pixel_format is not None and self.pixel_format not in row.pixel_formats:
            allowed = ", ".join(row.pixel_formats)
            raise SettingsError(f"<pixel_format>: {row.name} takes {allowed}", pixel_format=self.pixel_format)

    @property
    def profile(self) -> EncoderProfile:
        return ENCODERS[self.encoder or CODECS[self.codec].encoder]

    @property
    def container_name(self) -> str:
        return self.container or CODECS[self.codec].container

    @property
    def resolved(self) -> EncoderOptions:
        """Options with all defaults filled in, from which the settings digest is computed."""
        row = self.profile
        return EncoderOptions(
            codec=self.codec,
            encoder=row.name,
            container=self.container_name,
            gop=self.gop,
            crf=row.crf_default
            if self.crf in (None, row.crf_default)
            else self.crf,  # 20, and not 20.0, which has another digest
            preset=row.preset_default if self.preset is None and row.presets else self.preset,
            tune=self.tune,
            pixel_format=self.pixel_format or row.pixel_formats[0],
            threads=self.threads,
        )

    def num_threads(self, size: FrameSize) -> int:
        """Return libavcodec's number of threads for pictures of this size."""
        return self.threads or (self.profile.threads_when_large if _is_large(size) else 1)

    def library_options(
        self, light: HdrMetadata = NO_HDR_METADATA, size: FrameSize = NO_SIZE, cores: int = 1
    ) -> dict[str, str]:
        """Return libavcodec's options by name, for PyAV and for the ffmpeg command.

        Args:
            light: HDR metadata to store in the stream.
            size: Size of the pictures.
            cores: Idle cores that may be used. They do not change the bytes.
        """
        row, full = self.profile, self.resolved
        assert full.crf is not None
        values = {
            "gop": full.gop,
            "threads": full.threads or 1,
            "rows": int(has_rows := full.threads is None and _is_large(size)),
            "pools": cores if has_rows else "none",
            "short": (is_short := int(full.gop <= SHORT_GOP)),
            "qmin": f"{max(0.0, full.crf - 13) if is_short else 0:g}",
            "long": 1 - is_short,
        }

        def fill(options: Mapping[str, str]) -> dict[str, str]:
            return {name: text.format(**values) for name, text in options.items()}

        options = {row.crf_option: f"{full.crf:g}"}
        if full.preset:
            options[row.preset_option] = full.preset
        options |= fill(row.options) | fill(row.tune_options.get(full.tune, {}))
        params = fill(row.params) | fill(row.tune_params.get(full.tune, {})) | row.params_of_light(light)
        if params:
            options[row.params_option] = ":".join(f"{name}={value}" for name, value in params.items())
        return options

    def as_dict(self) -> dict[str, object]:
        """Return all options by name, with defaults filled in."""
        return asdict(self.resolved)
