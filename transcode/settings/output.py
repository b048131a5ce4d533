"""The two kinds of output of a run: a video per source, or frames in a store. Each class knows everything that depends on
its kind.

CRFs of all codecs and JPEG's quality are also mapped to one scale along which dB falls about evenly.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated, Any, ClassVar

from vidprep.formats.errors import PictureError, SettingsError
from vidprep.formats.model import FrameSize
from vidprep.formats.moments import file_time_base
from vidprep.formats.option import Option, check_options, document
from vidprep.formats.profiles import CODECS, CONTAINERS, JPEG_SUBSAMPLINGS
from vidprep.formats.stores.registry import ENCODED, STORES_OF_FRAMES, VIDEO_SHARDS, VIDEO_STORES
from vidprep.formats.video.options import EncoderOptions as EncoderOptions
from vidprep.transcode.settings.parse import parse_bytes, parse_segment

# Start of a search for a CRF: medians over the clips that defaults were chosen on, accurate to a few dB.
DB_AT_DEFAULT = 41.0
USUAL_QUALITY, USUAL_SUBSAMPLING = 90, "420"
USUAL_JPEG = (USUAL_QUALITY, 43.0)
DB_PER_OCTAVE = 2.9


@dataclass(frozen=True, slots=True)
class QualityScale:
    """Values of a quality option, from the finest (step 0) to the coarsest.

    Attributes:
        positions: Position of each value on a scale along which dB falls about evenly
        usual: A value, and the 1st percentile of PSNR-Y that it usually has
        slope: Usual loss in dB from one position to the next
    """

    option: str
    values: tuple[int, ...]
    positions: tuple[float, ...]
    usual: tuple[int, float]
    slope: float

    def step_at(self, position: float) -> int:
        """Return the coarsest step that is not coarser than a position; the finest one if all are."""
        return max(0, bisect_right(self.positions, position) - 1)

    def step_of(self, value: float) -> int:
        return min(range(len(self.values)), key=lambda step: abs(self.values[step] - value))

    def guess(self, floor_db: float) -> int:
        """Return the first step of a search."""
        value, db = self.usual
        return self.step_at(self.positions[self.step_of(value)] + (db - floor_db) / self.slope)


def scale_of_crf(encoder: EncoderOptions) -> QualityScale:
    finest, coarsest = (int(end) for end in encoder.profile.crf_range)
    values = tuple(range(finest, coarsest + 1) if coarsest > finest else range(finest, coarsest - 1, -1))
    usual = int(encoder.profile.crf_default), DB_AT_DEFAULT
    slope = CODECS[encoder.codec].db_of_crf_range / (len(values) - 1)
    return QualityScale("--crf", values, tuple(float(n) for n in range(len(values))), usual, slope)


def scale_of_jpeg() -> QualityScale:
    qualities = tuple(range(100, 0, -1))
    return QualityScale("--quality", qualities, tuple(map(_jpeg_octaves, qualities)), USUAL_JPEG, DB_PER_OCTAVE)


def _jpeg_octaves(quality: int) -> float:
    """Return how often JPEG's quantisers double from quality 100 on, as libjpeg scales them: 200 - 2q percent, below 50
    5000 / q.
    """
    percent = 200 - 2 * quality if quality >= 50 else 5000 / quality
    return math.log2(max(1.0, percent))


AUDIO = ("drop", "copy", "aac", "opus")
ENGINES = ("av", "ffmpeg")
MIN_SEGMENT_SECONDS = 1
SEGMENTS = f"give auto, off, or seconds from {MIN_SEGMENT_SECONDS}, such as 60"
LONG_SECONDS, SEGMENT_SECONDS = 120, 20  # "auto" splits videos longer than this into segments of this length
MIN_SHARD_BYTES = 1 << 20
SHARD_SIZE = Option(
    "Start a new shard beyond this size.",
    "BYTES",
    keyword="shard_size",
    parse=parse_bytes,
    written="1GiB",
    least=MIN_SHARD_BYTES,
    must="give bytes, 1 MiB or more (such as 1GiB)",
)


@document
@dataclass(frozen=True, slots=True)
class VideoOutput:
    """A video for each source.

    Args:
        encoder: Options of the encoder.
    """

    HEADING: ClassVar[str] = "Encoding"
    quality_keyword: ClassVar[str] = "crf"
    has_loss: ClassVar[bool] = True
    is_jpeg: ClassVar[bool] = False
    is_full_range: ClassVar[bool] = False
    replaces_source: ClassVar[bool] = True  # its size is compared with the source's

    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    audio: Annotated[str, Option("What to do with the audio.", choices=AUDIO)] = "drop"
    engine: Annotated[str, Option("Encode in process, or with an ffmpeg command.", choices=ENGINES)] = "av"
    segment: Annotated[
        float | str,
        Option(
            "Encode longer videos in segments of about SECONDS in parallel, and join them without re-encoding; "
            "auto: only videos longer than two minutes; off: never.",
            "SECONDS|auto|off",
            parse=parse_segment,
            must=SEGMENTS,
        ),
    ] = "auto"
    store: Annotated[
        str,
        Option("A file for each video, or shards: tar files of many videos.", keyword="format", choices=VIDEO_STORES),
    ] = "files"
    shard_bytes: Annotated[int, SHARD_SIZE] = 1 << 30

    def __post_init__(self) -> None:
        check_options(self)
        if self.audio != "drop" and self.engine != "av":
            raise SettingsError("<audio> needs <engine>", audio=self.audio, engine="av")
        if self.segment not in ("auto", "off"):
            if isinstance(self.segment, str) or not MIN_SEGMENT_SECONDS <= self.segment < math.inf:
                raise SettingsError(f"<segment>: {SEGMENTS}", segment=self.segment)
            if self.engine != "av":
                raise SettingsError("<segment> needs <engine>", segment=self.segment, engine="av")
        box, profile = CONTAINERS[self.encoder.container_name], self.encoder.profile
        if self.audio != "drop" and self.audio not in box.audio:
            raise SettingsError(f"<audio>: {box.name} takes drop, {', '.join(box.audio)}", audio=self.audio)
        if not profile.in_process and self.engine == "av":
            raise SettingsError("<encoder> needs <engine>", encoder=profile.name, engine="ffmpeg")
        pixel_format = self.encoder.resolved.pixel_format
        if pixel_format in profile.only_ffmpeg and self.engine == "av":
            there = [each for each in profile.pixel_formats if each not in profile.only_ffmpeg]
            raise SettingsError(
                f"<pixel_format>: {profile.name} takes {', '.join(there)} in PyAV; take <engine>",
                pixel_format=pixel_format,
                engine="ffmpeg",
            )

    @property
    def store_kind(self) -> str:
        """The name of the store in the registry."""
        return ENCODED if self.store == "files" else VIDEO_SHARDS

    @property
    def extension(self) -> str:
        """Extension of its file, without a dot."""
        return self.encoder.container_name

    @property
    def pixel_format(self) -> str:
        """The pixel format that pictures are converted to."""
        return self.encoder.resolved.pixel_format or "yuv420p"

    @property
    def other_pixel_formats(self) -> tuple[str, ...]:
        """Pixel formats that could be chosen instead."""
        return tuple(self.encoder.profile.pixel_formats)

    @property
    def is_deep(self) -> bool:
        """Whether samples have 10 bits."""
        return "10" in (self.encoder.resolved.pixel_format or "")

    @property
    def quality_scale(self) -> QualityScale:
        """Return the scale of the CRF."""
        return scale_of_crf(self.encoder)

    @property
    def quality_value(self) -> float:
        """The CRF."""
        crf = self.encoder.resolved.crf
        assert crf is not None
        return crf

    def replace_quality(self, value: float) -> VideoOutput:
        """Return the same output with another CRF."""
        return replace(self, encoder=replace(self.encoder, crf=float(value)))

    def segment_seconds(self, duration: float | None) -> float | None:
        """Return the length of segments in seconds; None if the video is not split.

        Args:
            duration: Length of the video in seconds; None if unknown.
        """
        if not isinstance(self.segment, str):
            return self.segment if duration is None or duration > self.segment else None
        is_long = duration is not None and duration > LONG_SECONDS
        return SEGMENT_SECONDS if self.segment == "auto" and self.engine == "av" and is_long else None

    def file_time_base(self, time_base: Fraction, *, is_constant: bool) -> Fraction | None:
        """Return the time base of the file, in seconds per tick.

        Args:
            time_base: Time base of the frames.
            is_constant: Whether each frame lasts one tick.
        """
        return file_time_base(self.encoder.container_name, time_base, is_constant=is_constant)

    def check_size(self, size: FrameSize) -> None:
        """Raise PictureError if the encoder does not support the size."""
        profile = self.encoder.profile
        if size.width < profile.smallest[0] or size.height < profile.smallest[1]:
            low = "x".join(str(n) for n in profile.smallest)
            raise PictureError(
                f"{size} is below the smallest picture of {profile.name} ({low}); allow --upscale or take another --codec"
            )

    def name_after_move(self, id_: str, file_name: str) -> str:
        """Return the file name of an output whose id changed to `id_`: a new one, unless it is in the shard `file_name`."""
        return f"{id_}.{self.extension}" if self.store == "files" else file_name

    def row_values(self) -> dict[str, Any]:
        """Return the columns of each row that describe the encoding."""
        encoder = self.encoder.resolved
        return {name: getattr(encoder, name) for name in ("encoder", "crf", "preset", "codec", "container")}

    def as_dict(self) -> dict[str, object]:
        """Return the settings of this kind of output that decide its bytes."""
        return {
            "encoder": self.encoder.as_dict(),
            "library_options": self.encoder.library_options(),
            "split": self.segment,
            **({} if self.store == "files" else {"store": self.store}),
        }


@document
@dataclass(frozen=True, slots=True)
class FrameOutput:
    """Frames in a store.

    Attributes:
        shard_bytes: A shard gets no more units when it would exceed this size. The distribution over shards does not
            change a unit
    """

    HEADING: ClassVar[str] = "Frames"
    quality_keyword: ClassVar[str] = "quality"
    is_full_range: ClassVar[bool] = True
    replaces_source: ClassVar[bool] = False
    extension: ClassVar[str] = "frames"  # of files that are appended to a shard
    other_pixel_formats: ClassVar[tuple[str, ...]] = ()
    is_deep: ClassVar[bool] = False
    audio: ClassVar[str] = "drop"
    engine: ClassVar[str] = "av"
    segment: ClassVar[str] = "off"

    store: Annotated[str, Option("How frames are stored.", keyword="format", choices=STORES_OF_FRAMES)] = "burst"
    quality: Annotated[
        int | None, Option(f"JPEG quality, higher is better. Default: {USUAL_QUALITY}.", "Q", least=1, most=100)
    ] = None
    subsampling: Annotated[
        str | None, Option(f"Chroma subsampling of the JPEGs. Default: {USUAL_SUBSAMPLING}.", choices=JPEG_SUBSAMPLINGS)
    ] = None
    shard_bytes: Annotated[int, SHARD_SIZE] = 1 << 30

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def is_coded(self) -> bool:
        """Whether frames are JPEGs."""
        return STORES_OF_FRAMES[self.store].is_coded

    has_loss = is_jpeg = is_coded

    @property
    def resolved_subsampling(self) -> str:
        """The chroma subsampling of JPEGs that are encoded."""
        return self.subsampling or USUAL_SUBSAMPLING

    @property
    def store_kind(self) -> str:
        """The name of the store in the registry."""
        return self.store

    @property
    def pixel_format(self) -> str:
        """The pixel format that pictures are converted to."""
        return JPEG_SUBSAMPLINGS[self.resolved_subsampling] if self.is_coded else "rgb24"

    @property
    def quality_scale(self) -> QualityScale:
        """Return the scale of JPEG's quality."""
        return scale_of_jpeg()

    @property
    def quality_value(self) -> int:
        """The JPEG quality."""
        return self.quality or USUAL_QUALITY

    def replace_quality(self, value: float) -> FrameOutput:
        """Return the same output with another JPEG quality."""
        return replace(self, quality=int(value))

    def segment_seconds(self, _duration: float | None) -> None:
        """Return None: frames are never split into segments."""

    def file_time_base(self, _time_base: Fraction, *, is_constant: bool) -> None:
        """Return None for any `is_constant`: no file stores times of frames."""

    def check_size(self, _size: FrameSize) -> None:
        """Accept any size."""

    def name_after_move(self, _id: str, file_name: str) -> str:
        """Return `file_name`, the shard where the frames stay."""
        return file_name

    def row_values(self) -> dict[str, Any]:
        """Return the columns of each row that describe the encoding."""
        if not self.is_coded:
            return {"codec": "rawvideo", "container": self.store}
        return {
            "encoder": "simplejpeg",
            "codec": "jpeg",
            "container": self.store,
            "jpeg_quality": self.quality_value,
            "subsampling": self.resolved_subsampling,
        }

    def storage_options(self) -> dict[str, object]:
        """Return every option that decides what is stored, by name."""
        if not self.is_coded:
            return {"store": self.store}
        return {"store": self.store, "quality": self.quality_value, "subsampling": self.resolved_subsampling}

    def as_dict(self) -> dict[str, object]:
        """Return the settings of this kind of output that decide its bytes."""
        return {"frames": self.storage_options()}


Output = VideoOutput | FrameOutput


def output_of(values: Mapping[str, Any]) -> Output:
    """Return the output that `as_dict` described in the settings of a run. Raises KeyError, TypeError, SettingsError."""
    if "frames" in values:
        if (values["audio"], values["engine"]) != (FrameOutput.audio, FrameOutput.engine):
            raise SettingsError("it holds frames, and its audio or engine is that of videos")
        return FrameOutput(**values["frames"])
    split = values.get("split", values.get("split_seconds", "off"))  # its name in version 0.1
    encoder = EncoderOptions(**values["encoder"])
    return VideoOutput(encoder, values["audio"], values["engine"], split, values.get("store", "files"))
