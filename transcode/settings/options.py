"""The options of a run in groups, each checked when it is built."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar

from vidprep.formats.errors import SettingsError
from vidprep.formats.model import FrameSize
from vidprep.formats.option import Option, check_options, documented
from vidprep.transcode.settings.parse import parse_bytes, parse_rate, parse_size

FITS = ("pad", "crop", "stretch")
MIN_MEMORY_BYTES = 1 << 29
SCALERS = ("bicubic", "bilinear", "area", "lanczos")
INT32_MAX = 2**31 - 1


CUT_ORIGINS = ("picture", "container")


@documented
@dataclass(frozen=True, slots=True)
class Retime:
    """Frame rate of the output, and origin of cut times."""

    HEADING: ClassVar[str] = "Picture"

    frame_rate: Annotated[
        Fraction | None,
        Option(
            "Constant frame rate, such as 15, 29.97 or 30000/1001. Without it, the source's own times are kept.",
            "RATE",
            keyword="fps",
            parse=parse_rate,
        ),
    ] = None
    cut_origin: Annotated[
        str,
        Option(
            "Origin of the times of cuts: the first picture, or the start of the container, where audio may begin before the pictures.",
            choices=CUT_ORIGINS,
        ),
    ] = "picture"

    def __post_init__(self) -> None:
        if isinstance(self.frame_rate, int | float | str):
            object.__setattr__(self, "frame_rate", parse_rate(self.frame_rate))
        check_options(self)
        rate = self.frame_rate
        if rate is not None and max(rate.numerator, rate.denominator) >= 1 << 31:  # libavcodec's limit
            raise SettingsError("<fps>: too long as a fraction; give fewer digits", fps=float(rate))


@documented
@dataclass(frozen=True, slots=True)
class Scale:
    """Size of the output. Give at most one of short_side and size; without them, the picture keeps its displayed size."""

    HEADING: ClassVar[str] = "Picture"

    short_side: Annotated[int | None, Option("Scale the shorter side to N pixels (even).", "N")] = None
    size: Annotated[FrameSize | None, Option("Scale to exactly this size; see --fit.", "WxH", parse=parse_size)] = None
    fit: Annotated[str, Option("How a picture fills --size.", choices=FITS)] = "pad"
    scaler: Annotated[str, Option("Scaling algorithm.", choices=SCALERS)] = "bicubic"
    upscale: Annotated[bool, Option("Allow pictures to be enlarged.")] = False

    def __post_init__(self) -> None:
        if self.size is not None and not isinstance(self.size, FrameSize):
            object.__setattr__(self, "size", parse_size(self.size))
        check_options(self)
        if self.short_side is not None and self.size is not None:
            raise SettingsError(
                "<short_side> and <size> exclude each other; give one", short_side=self.short_side, size=str(self.size)
            )
        for option, value in (("short_side", self.short_side), *zip(("size",) * 2, self.size or (), strict=False)):
            named: dict[str, Any] = {option: value if option == "short_side" else str(self.size)}
            if value is not None and (value < 2 or value % 2 or value > 16384):
                raise SettingsError(f"<{option}>: give an even number of pixels from 2 to 16384", **named)


@documented
@dataclass(frozen=True, slots=True)
class QualityGate:
    """Quality that an output must reach."""

    HEADING: ClassVar[str] = "Quality"

    min_psnr_db: Annotated[
        float | None,
        Option("Fail outputs whose mean PSNR-Y is below DB.", "DB", keyword="min_psnr", above=0, most=100, unit="dB"),
    ] = None
    verify_every: Annotated[int, Option("Score every N-th frame; all are decoded.", "N", least=1)] = 1

    def __post_init__(self) -> None:
        check_options(self)


def _is_per_video(mode: str) -> bool:
    return _TARGET_MODES[mode]


_TARGET_MODES = {"dataset": False, "per-video": True}


@documented
@dataclass(frozen=True, slots=True)
class Target:
    """Target for the 1st percentile of the PSNR-Y of every output."""

    HEADING: ClassVar[str] = "Quality"

    psnr_db: Annotated[
        float,
        Option(
            "Find the coarsest CRF or quality at which the 1st percentile of PSNR-Y is at least DB for 99 % of a "
            "sample of videos. Videos below DB are encoded again, finer.",
            "DB",
            keyword="target_psnr",
            least=10,
            most=80,
            unit="dB",
        ),
    ]
    per_video: Annotated[
        bool,
        Option(
            "One value for all videos, or one for each.",
            keyword="target_mode",
            choices=_TARGET_MODES,
            parse=_is_per_video,
            written="dataset",
        ),
    ] = False

    def __post_init__(self) -> None:
        check_options(self)


@documented
@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for one source.

    They protect the run and do not change an output, so they are not part of the settings digest.
    """

    HEADING: ClassVar[str] = "Run"

    timeout_seconds: Annotated[
        float | None,
        Option(
            "Time limit per video. Default: depends on its size and progress.",
            "SECONDS",
            keyword="timeout",
            above=0,
            most=1e9,
            unit="seconds",
        ),
    ] = None
    max_memory: Annotated[
        int | None,
        Option(
            "Memory limit per video. Default: an even share of the machine's memory, at least 2 GiB.",
            "BYTES",
            parse=parse_bytes,
            least=MIN_MEMORY_BYTES,
            must="give bytes, 512 MiB or more (such as 4GiB)",
        ),
    ] = None
    max_pixels: Annotated[int, Option("Refuse frames with more pixels.", "N", least=1, most=INT32_MAX)] = 36_000_000
    max_frames: Annotated[int, Option("Refuse videos with more frames, in or out.", "N", least=1, most=INT32_MAX)] = (
        1_000_000
    )

    def __post_init__(self) -> None:
        check_options(self)
