"""The options of a run in groups, each checked when it is built."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import count
from typing import Annotated, Any, ClassVar, cast

from vidprep.formats.errors import SettingsError
from vidprep.formats.model import FrameSize
from vidprep.formats.option import Option, check_options, document
from vidprep.formats.spread import FRAMES_AT_ONCE, RULES, are_possible, sample_frames
from vidprep.transcode.settings.parse import (
    ALWAYS_SCORED,
    parse_area,
    parse_bytes,
    parse_rate,
    parse_scores,
    parse_sides,
    parse_size,
    parse_source_rate,
    parse_stream,
)

FITS = ("pad", "crop", "stretch")
MIN_MEMORY_BYTES = 1 << 29
SCALERS = ("bicubic", "bilinear", "area", "lanczos")
INT32_MAX = 2**31 - 1
USUAL_VMAF_MODEL = "vmaf_v0.6.1"
DB_AT_VMAF, VMAF_PER_DB = (93.0, 41.0), 1.5  # 1st percentiles of real clips at 240 lines: where a search begins
MIN_TILES, MAX_TILES = 128, 768  # VIDEO_MIN_TOKEN_NUM and VIDEO_MAX_TOKEN_NUM of qwen_vl_utils 0.0.14


CUT_ORIGINS = ("picture", "container")


@document
@dataclass(frozen=True, slots=True)
class Retime:
    """Frames of a source that the output shows, and their times."""

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
    source_rate: Annotated[
        Fraction | None,
        Option(
            "Frame rate of sources that store none: raw streams such as .h264 and .mjpeg, and folders of numbered pictures "
            "(.jpg, .png, .bmp, .tif, .webp), each of which is one video.",
            "RATE",
            keyword="source_fps",
            parse=parse_source_rate,
            heading="Sources",
        ),
    ] = None
    video_stream: Annotated[
        int | None,
        Option(
            "Video stream of files with several, from 0; the column `video_stream` of a table wins. Default: best, ffmpeg's choice.",
            "N|best",
            parse=parse_stream,
            least=0,
            heading="Sources",
        ),
    ] = None

    def __post_init__(self) -> None:
        for name, parse in (("frame_rate", parse_rate), ("source_rate", parse_source_rate)):
            if isinstance(given := getattr(self, name), int | float | str):
                object.__setattr__(self, name, parse(given))
        check_options(self)
        for keyword, rate in (("fps", self.frame_rate), ("source_fps", self.source_rate)):
            if rate is not None and max(rate.numerator, rate.denominator) >= 1 << 31:  # libavcodec's limit
                raise SettingsError(
                    f"<{keyword}>: too long as a fraction; give fewer digits",
                    **cast("dict[str, Any]", {keyword: float(rate)}),
                )


@document
@dataclass(frozen=True, slots=True)
class Scale:
    """Size of the output. At most one of short_side, size, multiple_of and buckets is given; without them, pictures keep their size."""

    HEADING: ClassVar[str] = "Picture"

    short_side: Annotated[int | None, Option("Scale the shorter side to N pixels (even).", "N")] = None
    side_of: Annotated[
        tuple[tuple[str, int], ...],
        Option(
            "Another --short-side for the videos of a camera or a folder: a part of the output's name, or what follows a dot in it.",
            "NAME=N,…",
            parse=parse_sides,
        ),
    ] = ()
    size: Annotated[FrameSize | None, Option("Scale to exactly this size; see --fit.", "WxH", parse=parse_size)] = None
    fit: Annotated[
        str | None, Option("How a picture fills --size (default: pad) or its bucket (default: crop).", choices=FITS)
    ] = None
    multiple_of: Annotated[
        int | None,
        Option(
            "Scale both sides to multiples of N (even), with an area within --min-area and --max-area: smart_resize of Qwen's processors, "
            "N = 28 for Qwen2.5-VL, 32 for Qwen3-VL.",
            "N",
            least=2,
            most=1024,
        ),
    ] = None
    max_area: Annotated[
        int | None,
        Option(
            f"Largest area for --multiple-of N, in pixels. Default: {MAX_TILES} N².", "PIXELS", least=4, most=INT32_MAX
        ),
    ] = None
    min_area: Annotated[
        int | None,
        Option(
            f"Smallest area for --multiple-of N, in pixels. Default: {MIN_TILES} N².", "PIXELS", least=4, most=INT32_MAX
        ),
    ] = None
    buckets: Annotated[
        int | None,
        Option(
            "Scale each video to the bucket whose aspect ratio is nearest to its own: sides are multiples of N (even), the area is that of "
            "--bucket-area or a little less.",
            "N",
            least=2,
            most=1024,
        ),
    ] = None
    bucket_area: Annotated[
        FrameSize | None, Option("Size of the square bucket, or of any one with this area.", "WxH", parse=parse_area)
    ] = None
    scaler: Annotated[str, Option("Scaling algorithm.", choices=SCALERS)] = "bicubic"
    upscale: Annotated[bool, Option("Allow pictures to be enlarged.")] = False

    def __post_init__(self) -> None:
        for name, parse in (("size", parse_size), ("bucket_area", parse_area)):
            if (given_size := getattr(self, name)) is not None and not isinstance(given_size, FrameSize):
                object.__setattr__(self, name, parse(given_size))
        object.__setattr__(self, "side_of", parse_sides(self.side_of))
        check_options(self)
        size = None if self.size is None else str(self.size)
        options: dict[str, Any] = {"short_side": self.short_side, "size": size, "multiple_of": self.multiple_of}
        options |= {"buckets": self.buckets}
        given = {name: value for name, value in options.items() if value is not None}
        if len(given) > 1:
            raise SettingsError(f"{' and '.join(f'<{name}>' for name in given)} exclude each other; give one", **given)
        if self.side_of and given.keys() - {"short_side"}:
            name, value = next(iter(given.items()))
            raise SettingsError(
                f"<side_of> and <{name}> exclude each other; give one", **{"side_of": "NAME=N", name: value}
            )
        self._check_areas()
        self._check_sides()
        self._check_buckets()

    def _check_areas(self) -> None:
        if self.multiple_of is None:
            areas: dict[str, Any] = {"max_area": self.max_area, "min_area": self.min_area}
            for name, value in areas.items():
                if value is not None:
                    raise SettingsError(f"<{name}> needs <multiple_of>", **{name: value, "multiple_of": 28})
        elif self.multiple_of % 2:
            raise SettingsError("<multiple_of>: give an even number of pixels", multiple_of=self.multiple_of)
        elif self.areas[0] > self.areas[1]:
            raise SettingsError(
                "<min_area> is over <max_area>, or over what it is by default",
                min_area=self.areas[0],
                max_area=self.areas[1],
            )

    def _check_sides(self) -> None:
        sides = [("short_side", self.short_side)] if self.short_side is not None else []
        sides += [("side_of", pixels) for _, pixels in self.side_of] + [("size", side) for side in self.size or ()]
        for option, value in sides:
            named: dict[str, Any] = {option: str(self.size) if option == "size" else value}
            if value < 2 or value % 2 or value > 16384:
                raise SettingsError(f"<{option}>: give an even number of pixels from 2 to 16384", **named)

    def _check_buckets(self) -> None:
        area = None if self.bucket_area is None else str(self.bucket_area)
        if self.buckets is None and area is not None:
            raise SettingsError("<bucket_area> needs <buckets>", bucket_area=area, buckets=16)
        if self.buckets is not None:
            if self.bucket_area is None:
                raise SettingsError("<buckets> needs <bucket_area>", buckets=self.buckets, bucket_area="512x512")
            if self.buckets % 2 or self.bucket_area.width * self.bucket_area.height < self.buckets**2:
                raise SettingsError(
                    "<buckets>: give an even number of pixels, of which one square is within <bucket_area>",
                    buckets=self.buckets,
                    bucket_area=area,
                )

    @property
    def filling(self) -> str:
        """Return the way in which a picture fills its size."""
        return self.fit or ("pad" if self.buckets is None else "crop")

    @property
    def areas(self) -> tuple[int, int]:
        """Smallest and largest area for `multiple_of`, in pixels."""
        tile = (self.multiple_of or 0) ** 2
        return (
            MIN_TILES * tile if self.min_area is None else self.min_area,
            MAX_TILES * tile if self.max_area is None else self.max_area,
        )

    def as_dict(self) -> dict[str, object]:
        """Return the options; those that few runs give are left out where they are not given."""
        late = ("multiple_of", "max_area", "min_area", "side_of", "buckets", "bucket_area")
        values = {name: value for name, value in asdict(self).items() if name not in late or value not in (None, ())}
        sides = ",".join(f"{name}={pixels}" for name, pixels in self.side_of)
        values |= {"fit": self.filling, "size": str(self.size) if self.size else None}
        values |= {"bucket_area": str(self.bucket_area)} if self.bucket_area else {}
        return values | ({"side_of": sides} if sides else {})

    def for_video(self, name: str) -> Scale:
        """Return the size of one video, by its id."""
        parts = {*name.split("/"), *(part.rpartition(".")[2] for part in name.split("/"))}
        sides = [pixels for part, pixels in self.side_of if part in parts]
        return replace(self, short_side=sides[-1] if sides else self.short_side, side_of=())


COUNT = re.compile(r"(?:(\d{1,2})n(?:\+(\d{1,2}))?|(\d{1,9}))")
COUNTS = "give a number such as 81, or a form such as 4n+1 or 8n+1, with numbers up to 99"


@document
@dataclass(frozen=True, slots=True)
class FrameCount:
    """Number of frames of an output."""

    HEADING: ClassVar[str] = "Frames"

    frames: Annotated[
        str,
        Option(
            "Frames of each output: exactly N, or the largest number of the form An+B, such as 4n+1, that the video has. What is over at "
            "its end is cut off.",
            "N|An+B",
        ),
    ]
    least_frames: Annotated[
        int | None, Option("Of --frames An+B: a video with fewer is too short; see --on-short.", "N", least=1)
    ] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "frames", str(self.frames).replace(" ", "").lower())
        check_options(self)
        form = COUNT.fullmatch(self.frames)
        if form is None or not (int(form[3] or 0) or int(form[1] or 0)):
            raise SettingsError(f"<frames>: {COUNTS}", frames=self.frames)
        if self.most is not None and self.least_frames is not None:
            raise SettingsError(
                "<least_frames> goes with a form such as 4n+1", frames=self.frames, least_frames=self.least_frames
            )

    @property
    def most(self) -> int | None:
        """The exact number; None for a form."""
        return int(self.frames) if self.frames.isdigit() else None

    @property
    def least(self) -> int:
        """The least number of frames of an output."""
        if self.most is not None:
            return self.most
        return next(number for number in count(max(1, self.least_frames or 1)) if self.has(number))

    def has(self, number: int) -> bool:
        """Return whether an output may have so many frames, as far as the form says."""
        if self.most is not None:
            return number <= self.most
        step, _, first = self.frames.partition("n")
        return number >= int(first or 0) and (number - int(first or 0)) % int(step) == 0


@document
@dataclass(frozen=True, slots=True)
class Sampling:
    """Frames sampled for vision-language models; see `vidprep.formats.spread`.

    Attributes:
        max_frames: Largest number of frames of a video; with `qwen` rounded down to an even number
        min_frames: Least number of frames of a video that has so many; with `qwen` rounded up to an even number
    """

    HEADING: ClassVar[str] = "Frames"

    fps: Annotated[
        float,
        Option(
            "Store frames sampled at RATE a second, or fewer ones spread over the whole video: those of --sample-rule.",
            "RATE",
            keyword="sample_fps",
            above=0,
            most=1000,
        ),
    ]
    max_frames: Annotated[
        int, Option("Largest number of sampled frames of a video.", "N", keyword="sample_max", least=FRAMES_AT_ONCE)
    ] = 768
    min_frames: Annotated[
        int, Option("Least number of sampled frames of a video that has so many.", "N", keyword="sample_min", least=1)
    ] = 4
    rule: Annotated[
        str,
        Option(
            "Whose processor chooses the frames: qwen_vl_utils (even numbers of frames), or those of transformers, LLaVA-Video or "
            "LLaMA-Factory.",
            keyword="sample_rule",
            choices=tuple(RULES),
        ),
    ] = "qwen"

    def __post_init__(self) -> None:
        check_options(self)
        if not are_possible(self.rule, self.min_frames, self.max_frames):
            raise SettingsError(
                "<sample_max> is below <sample_min>, with qwen after both became even numbers",
                sample_max=self.max_frames,
                sample_min=self.min_frames,
            )

    def numbers(self, num_frames: int, seconds: float) -> list[int]:
        """Return which frames of a video are sampled, ascending.

        Args:
            num_frames: Frames of the video, at least 1.
            seconds: Its duration.
        """
        limits = {"min_frames": self.min_frames, "max_frames": self.max_frames}
        numbers: list[int] = sample_frames(self.rule, num_frames, seconds, self.fps, **limits).tolist()
        return numbers

    def as_dict(self) -> dict[str, object]:
        """Return what decides which frames; the usual rule is left out."""
        return {name: value for name, value in asdict(self).items() if name != "rule" or value != "qwen"}


@document
@dataclass(frozen=True, slots=True)
class QualityGate:
    """Quality that an output must reach."""

    HEADING: ClassVar[str] = "Quality"

    min_psnr_db: Annotated[
        float | None,
        Option("Fail outputs whose mean PSNR-Y is below DB.", "DB", keyword="min_psnr", above=0, most=100, unit="dB"),
    ] = None
    verify_every: Annotated[int, Option("Score every N-th frame; all are decoded.", "N", least=1)] = 1
    score: Annotated[
        tuple[str, ...],
        Option(
            "Scores of each frame against the frame that was encoded: psnr,ssim always, and vmaf, xpsnr, which see all frames in order.",
            "A,B",
            parse=parse_scores,
            written="psnr,ssim",
        ),
    ] = ALWAYS_SCORED
    vmaf_model: Annotated[
        str, Option("Model of libvmaf: vmaf_v0.6.1, which other tools use, vmaf_v1.0.16_3d0h, …", "NAME")
    ] = USUAL_VMAF_MODEL

    def __post_init__(self) -> None:
        object.__setattr__(self, "score", parse_scores(self.score))
        check_options(self)
        if self.scores_in_order and self.verify_every > 1:
            raise SettingsError(
                "<score>: VMAF and XPSNR see all frames in order, not some (<verify_every>)",
                score=self.more_scores,
                verify_every=self.verify_every,
            )
        if self.vmaf_model != USUAL_VMAF_MODEL and "vmaf" not in self.score:
            raise SettingsError("<vmaf_model> needs <score>", vmaf_model=self.vmaf_model, score="vmaf")
        if not re.fullmatch(r"vmaf_[a-z0-9_.]+", self.vmaf_model):
            raise SettingsError("<vmaf_model>: give a name such as vmaf_v0.6.1", vmaf_model=self.vmaf_model)

    @property
    def more_scores(self) -> str:
        """The names of the scores that are not always taken, as a user gives them."""
        return ",".join(name for name in self.score if name not in ALWAYS_SCORED)

    @property
    def scores_in_order(self) -> bool:
        """Whether a score depends on neighbouring frames."""
        return bool(self.more_scores)

    def as_dict(self) -> dict[str, object]:
        """Return the options; those of scores that few runs ask for only where they are given."""
        values: dict[str, object] = {"min_psnr_db": self.min_psnr_db, "verify_every": self.verify_every}
        if self.scores_in_order:
            values["score"] = list(self.score)
        if self.vmaf_model != USUAL_VMAF_MODEL:
            values["vmaf_model"] = self.vmaf_model
        return values


def _is_per_video(mode: str) -> bool:
    return _TARGET_MODES[mode]


_TARGET_MODES = {"dataset": False, "per-video": True}


@document
@dataclass(frozen=True, slots=True)
class Target:
    """Target for the 1st percentile over the frames of every output: of PSNR-Y, or of VMAF. Give one."""

    HEADING: ClassVar[str] = "Quality"

    psnr_db: Annotated[
        float | None,
        Option(
            "Find the coarsest CRF or quality at which the 1st percentile of PSNR-Y is at least DB for 99 % of a "
            "sample of videos. Videos below DB are encoded again, finer.",
            "DB",
            keyword="target_psnr",
            least=10,
            most=80,
            unit="dB",
        ),
    ] = None
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
    vmaf: Annotated[
        float | None,
        Option(
            "The same for the 1st percentile of VMAF, which adds it to --score. Without any loss vmaf_v0.6.1 is 97 to 100.",
            "V",
            keyword="target_vmaf",
            least=10,
            most=100,
        ),
    ] = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.psnr_db is not None and self.vmaf is not None:
            raise SettingsError(
                "<target_psnr> and <target_vmaf> exclude each other; give one",
                target_psnr=self.psnr_db,
                target_vmaf=self.vmaf,
            )
        if self.psnr_db is None and self.vmaf is None:
            raise SettingsError("a target is a PSNR or a VMAF; give one")

    @property
    def floor(self) -> float:
        """The least value of the 1st percentile."""
        floor = self.psnr_db if self.vmaf is None else self.vmaf
        assert floor is not None
        return floor

    @property
    def option(self) -> dict[str, Any]:
        """The keyword that gives it, and its value."""
        return {"target_psnr": self.psnr_db} if self.vmaf is None else {"target_vmaf": self.vmaf}

    @property
    def flag(self) -> str:
        return "--target-psnr" if self.vmaf is None else "--target-vmaf"

    @property
    def usual_db(self) -> float:
        """The PSNR-Y in dB at which this is reached in most videos; a search begins there."""
        return self.floor if self.vmaf is None else DB_AT_VMAF[1] + (self.floor - DB_AT_VMAF[0]) / VMAF_PER_DB

    @property
    def per_db(self) -> float:
        """Usual gain per dB of PSNR-Y."""
        return 1.0 if self.vmaf is None else VMAF_PER_DB

    def as_dict(self) -> dict[str, object]:
        """Return the options that are given."""
        values: dict[str, object] = {"psnr_db": self.psnr_db, "per_video": self.per_video}
        return values if self.vmaf is None else {"vmaf": self.vmaf, "per_video": self.per_video}


@document
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
