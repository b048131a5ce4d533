"""Settings of a run as one frozen value with one dict form and one digest; options that change no output; and keywords of
`transcode` and `burst`.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from itertools import chain, combinations
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from vidprep.formats.errors import MissingError, SettingsError
from vidprep.formats.manifest.row import show
from vidprep.formats.option import Declared, Option, check_options, document, options_of
from vidprep.formats.storage.base import is_url
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.settings.keep import check_condition
from vidprep.transcode.settings.options import FrameCount, Limits, QualityGate, Retime, Sampling, Scale, Target
from vidprep.transcode.settings.output import FrameOutput, Output, VideoOutput, output_of
from vidprep.transcode.settings.parse import (
    ALWAYS_SCORED,
    parse_names,
    parse_rate,
    parse_scores,
    parse_shares,
    parse_size,
)

BAD_ROWS = ("fail", "skip")
ACTION_RULES = ("last", "mean", "sum")
CLUSTER_PROTOCOLS = ("tcp", "tls", "ucx", "ucxx", "ws", "wss", "inproc", "ray")


@dataclass(frozen=True, slots=True)
class Backend:
    """A place where videos can be processed.

    Attributes:
        workers: `module:class` under `vidprep.transcode.workers`, imported when chosen; "" for this machine
        package: Package that it needs, which the extra of the backend's name installs
        address: Default address of the cluster; None if it must be given
    """

    workers: str = ""
    package: str = ""
    address: str | None = None
    address_example: str = ""


BACKENDS = {
    "local": Backend(),
    "dask": Backend("dask:DaskPool", "distributed", None, "tcp://host:8786"),
    "ray": Backend("ray:RayPool", "ray", "auto", "host:6379"),
}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options that select the sources of a run.

    Attributes:
        include: Globs on relative paths and names
        exclude: Globs on relative paths and names
        limit: Maximum number of sources, the first ones by id
        split_from_folder: Whether the first folder is the label `split`
        captions: Whether files beside the videos are the label `caption`
        labels: Columns of a table that are labels; None means all
        on_bad_row: What to do with invalid rows
        split_by: Name and share of each split; shares have a sum of 1
        split_group: Label whose values are never in two splits
        keep_source_suffix: Whether outputs are named x.avi.mp4
        keep: Condition on the columns of a table; rows for which it does not hold are left out
    """

    HEADING: ClassVar[str] = "Sources"

    include: Annotated[tuple[str, ...], Option("Take only files that match; may be repeated.", "GLOB")] = ()
    exclude: Annotated[tuple[str, ...], Option("Leave out files and folders that match; may be repeated.", "GLOB")] = ()
    limit: Annotated[int | None, Option("Take only the first N sources, ordered by name.", "N", least=1)] = None
    label_from_folder: Annotated[bool, Option("Fill column `label` from the parent folder.")] = False
    split_from_folder: Annotated[
        bool, Option("Fill column `split` from the first folder, such as train in train/cat/1.mp4.")
    ] = False
    labels: Annotated[
        tuple[str, ...] | None, Option("Use only these columns of a table as labels.", "A,B", parse=parse_names)
    ] = None
    on_bad_row: Annotated[
        str,
        Option(
            "What to do with invalid rows of a table. A missing file always counts as a failed video.", choices=BAD_ROWS
        ),
    ] = "fail"
    keep: Annotated[
        str | None,
        Option(
            "Take only rows of a table for which this holds, such as \"motion > 0.2 and label in ('run', 'jump')\".",
            "CONDITION",
            parse=check_condition,
        ),
    ] = None
    captions: Annotated[
        bool,
        Option(
            "Fill column `caption` from x.txt or x.json beside x.mp4; of several texts it has the first, and `captions` all."
        ),
    ] = False
    split_by: Annotated[
        Mapping[str, Fraction] | None,
        Option(
            "Fill column `split`: train=0.8,val=0.1,test=0.1. By source, with these shares in each class to within one video. "
            "Later sources move none.",
            "NAME=SHARE,…",
            parse=parse_shares,
        ),
    ] = None
    split_group: Annotated[
        str | None, Option("Keep all videos with the same value of this label in one split.", "COLUMN")
    ] = None
    split_seed: Annotated[int, Option("Seed of the random splits.", "N")] = 0
    keep_source_suffix: Annotated[
        bool, Option("Name outputs x.avi.mp4 instead of x.mp4, if x.avi and x.mov would collide.")
    ] = False

    def __post_init__(self) -> None:
        for name in ("include", "exclude"):
            globs = getattr(self, name)
            object.__setattr__(self, name, (globs,) if isinstance(globs, str) else tuple(globs))
        check_options(self)
        if self.split_from_folder and self.split_by is not None:
            shares = ",".join(f"{name}={float(share)}" for name, share in self.split_by.items())
            given: dict[str, Any] = {"split_by": shares, "split_from_folder": True}
            raise SettingsError("<split_by> and <split_from_folder> exclude each other; give one", **given)
        if self.split_group is not None and self.split_by is None:
            raise SettingsError("<split_group> needs <split_by>", split_group=self.split_group, split_by="train=0.8,…")
        if self.split_seed and self.split_by is None:
            raise SettingsError("<split_seed> needs <split_by>", split_seed=self.split_seed, split_by="train=0.8,…")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run that do not change its outputs."""

    HEADING: ClassVar[str] = "Run"

    backend: Annotated[
        str,
        Option(
            "Where videos are processed: on this machine, or on the workers of a cluster with the same paths.",
            choices=BACKENDS,
        ),
    ] = "local"
    cluster_address: Annotated[
        str | None,
        Option(
            "Address of the Dask scheduler (tcp://host:8786) or its scheduler file; or of the Ray head node "
            "(host:6379, default: this machine's cluster).",
            "ADDRESS",
        ),
    ] = None
    partition: Annotated[
        str | None,
        Option(
            "Process partition I (from 0) of N, as one task of an array; auto: the partition of this Slurm array task.",
            "I/N",
        ),
    ] = None
    jobs: Annotated[
        int | None,
        Option(
            "Videos at a time. Default: one per core available to this process (CPU affinity, container quota).",
            "N",
            least=1,
        ),
    ] = None
    actions: Annotated[
        str | None,
        Option(
            "Of a LeRobot dataset at a lower rate: a row that is kept gets the last action of the rows from it to the next one, "
            "their mean, or their sum. Default: last.",
            choices=ACTION_RULES,
        ),
    ] = None
    images_to_video: Annotated[
        bool,
        Option("Make videos of a LeRobot dataset's columns of pictures, too. They lie beside DST while the run lasts."),
    ] = False
    overwrite: Annotated[
        bool,
        Option(
            "Process the listed sources again. If these are all sources, start from scratch; other settings are allowed then."
        ),
    ] = False
    on_short: Annotated[
        str,
        Option(
            "What to do with videos that have too few frames for --frames: they fail, or are left out.",
            choices=("fail", "skip"),
        ),
    ] = "fail"
    skip_failed: Annotated[bool, Option("Do not retry videos that failed before.")] = False
    prune: Annotated[
        bool,
        Option(
            "Remove rows and outputs whose source or cut no longer exists. Needs all sources: refused with --include, --exclude, --limit."
        ),
    ] = False
    events: Annotated[
        str | Path | None,
        Option("Append events as JSON lines to FILE, for vidprep monitor; - means stdout.", "FILE", path="file"),
    ] = None
    metrics: Annotated[
        str | Path | None,
        Option(
            "Write counts, seconds and bytes to FILE every few seconds, as Prometheus' textfile collector reads them.",
            "FILE",
            path="file",
        ),
    ] = None
    ffmpeg: Annotated[
        str | Path | None,
        Option(
            "The ffmpeg for --engine ffmpeg. Default: VIDPREP_FFMPEG, PATH, imageio-ffmpeg.",
            "PATH",
            path="file",
            only="transcode",
            heading="Encoding",
        ),
    ] = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.prune and self.partition is not None:
            raise SettingsError(
                "<prune>: a task of an array sees only its partition; prune in a run of all",
                prune=True,
                partition=self.partition,
            )
        address = self.cluster_address
        if address and self.backend == "local":
            clusters = " or ".join(name for name, each in BACKENDS.items() if each.workers)
            raise SettingsError("<cluster_address> needs <backend>", cluster_address=address, backend=clusters)
        chosen = BACKENDS[self.backend]
        if chosen.workers and not address and chosen.address is None:
            raise SettingsError(
                "<backend> needs <cluster_address>", backend=self.backend, cluster_address=chosen.address_example
            )
        if address and is_url(address) and address.partition("://")[0] not in CLUSTER_PROTOCOLS:
            raise SettingsError("<cluster_address>: no cluster has such an address", cluster_address=address)


HDR = ("sdr", "keep")
# Settings that some videos do not depend on; see RunSettings.digest_of.
CONDITIONAL = ("source_fps", "video_stream", "cut_origin", "hdr", "audio", "on_damage")
TIME_RULE = 2  # how seconds become frames: 1 until 0.1, by exact comparison and nearest output frame
CLOCK_RULE = 2  # which source frame --fps shows: the nearest one. 1 was the one on screen


@document
@dataclass(frozen=True, slots=True)
class RunSettings:
    """Everything that decides the bytes of an output and the figures in its row, and the limits it is made under.

    Args:
        output: Kind of output: a VideoOutput, or a FrameOutput (`burst`).
        retime: When the output shows which frame of the source.
        scale: Size of the output.
        gate: Quality that an output must reach.
        limits: Limits for one source.
        target: A PSNR that decides the CRF or quality.
        sampling: Which frames are stored; None for all.
        count: How many frames an output may have; None for any number.
        clock_rule: Which source frame a constant rate shows: CLOCK_RULE, or that of an earlier version that made a destination.
    """

    output: Output = field(default_factory=VideoOutput)
    retime: Retime = field(default_factory=Retime)
    scale: Scale = field(default_factory=Scale)
    gate: QualityGate = field(default_factory=QualityGate)
    limits: Limits = field(default_factory=Limits)
    hdr: Annotated[
        str | None,
        Option(
            "PQ and HLG: tone-map to SDR (default for 8 bits), or keep (default for 10 bits).",
            choices=HDR,
            heading="Picture",
        ),
    ] = None
    on_damage: Annotated[
        str, Option("What to do when a source is damaged or cut short.", choices=("warn", "fail"), heading="Quality")
    ] = "warn"
    target: Target | None = None
    sampling: Sampling | None = None
    count: FrameCount | None = None
    clock_rule: int = CLOCK_RULE

    def __post_init__(self) -> None:
        check_options(self)
        if not isinstance(self.output, VideoOutput | FrameOutput):
            raise SettingsError(f"output is {show(self.output)}; give a VideoOutput or a FrameOutput")
        if self.sampling is not None and self.retime.frame_rate is not None:
            raise SettingsError(
                "<fps> and <sample_fps> exclude each other; give one",
                fps=str(self.retime.frame_rate),
                sample_fps=self.sampling.fps,
            )
        if self.sampling is not None and self.count is not None:
            raise SettingsError(
                "<frames> and <sample_fps> exclude each other; give one",
                frames=self.count.frames,
                sample_fps=self.sampling.fps,
            )
        needed: dict[str, Any] = {"score": self.gate.more_scores} if self.gate.scores_in_order else {}
        if self.target is not None:
            needed = self.target.option
        if needed and not self.output.has_loss:
            raise SettingsError(f"<{min(needed)}>: a tensor store has no loss; leave it out", **needed)
        if needed and self.output.segment not in ("auto", "off"):
            why = "VMAF and XPSNR look at neighbouring frames; leave out one"
            if self.target is not None:
                why = "split with the CRF that `vidprep tune` finds"
            raise SettingsError(
                f"<segment> and <{min(needed)}> exclude each other: {why}", segment=self.output.segment, **needed
            )

    @property
    def video(self) -> VideoOutput:
        """The output, if videos are made."""
        assert isinstance(self.output, VideoOutput)
        return self.output

    @property
    def stored_frames(self) -> FrameOutput:
        """The output, if frames are stored."""
        assert isinstance(self.output, FrameOutput)
        return self.output

    def segment_seconds(self, duration: float | None) -> float | None:
        """Return the length of segments in seconds; None if the video is not split.

        Args:
            duration: Length of the video in seconds; None if unknown.
        """
        if self.target is not None or self.gate.scores_in_order or self.count is not None:
            return None
        return self.output.segment_seconds(duration)

    def replace_quality(self, value: float) -> RunSettings:
        """Return the same settings with another CRF or JPEG quality."""
        return replace(self, output=self.output.replace_quality(value))

    def for_video(self, id_: str) -> RunSettings:
        """Return the settings of one video."""
        return replace(self, scale=self.scale.for_video(id_)) if self.scale.side_of else self

    @property
    def keeps_jpegs(self) -> bool:
        """Whether JPEGs of a folder are stored as they are: no option asks for another rate, size or quality."""
        output, scale, rate = self.output, self.scale, self.retime.frame_rate
        return (
            self.retime.source_rate is not None
            and isinstance(output, FrameOutput)
            and output.is_coded
            and output.quality is None
            and output.subsampling is None
            and self.target is None
            and scale.size is None
            and scale.short_side is None
            and not scale.side_of
            and scale.multiple_of is None
            and scale.buckets is None
            and rate in (None, self.retime.source_rate)
        )

    @property
    def keeps_hdr(self) -> bool:
        """Whether PQ and HLG are kept: by default with 10 bits, while they are tone-mapped for 8 bits."""
        if self.hdr is not None:
            return self.hdr == "keep"
        return self.output.is_deep

    def as_dict(self) -> dict[str, object]:
        """Return every setting that decides the bytes of an output, its acceptance, its figures or its place, with defaults filled in."""
        rate = self.retime.frame_rate
        target = {"target": self.target.as_dict()} if self.target else {}
        reading: dict[str, object] = {}  # what few runs ask for changes no digest of the others
        if rate and self.clock_rule > 1:
            reading["clock_rule"] = self.clock_rule
        if self.retime.source_rate is not None:
            reading |= {"source_fps": str(self.retime.source_rate), "keeps_jpegs": self.keeps_jpegs}
        if self.retime.video_stream is not None:
            reading["video_stream"] = self.retime.video_stream
        if self.sampling is not None:
            reading["sampling"] = self.sampling.as_dict()
        if self.count is not None:
            reading["count"] = asdict(self.count)
        return (
            self.output.as_dict()
            | target
            | reading
            | {
                "frame_rate": str(rate) if rate else None,
                "cut_origin": self.retime.cut_origin,
                "time_rule": TIME_RULE,
                "scale": self.scale.as_dict(),
                "gate": self.gate.as_dict(),
                "hdr": "keep" if self.keeps_hdr else "sdr",
                "audio": self.output.audio,
                "on_damage": self.on_damage,
                "engine": self.output.engine,
            }
        )

    @staticmethod
    def from_dict(values: dict[str, Any]) -> RunSettings:
        """Return the settings of `as_dict`, without limits. Raises SettingsError for an invalid dict."""
        try:
            scale = dict(values["scale"])
            size = scale.pop("size")
            rate = values["frame_rate"]
            source_rate, output = values.get("source_fps"), output_of(values)
            if values.get("keeps_jpegs") and isinstance(output, FrameOutput):
                output = replace(output, quality=None, subsampling=None)
            return RunSettings(
                output=output,
                retime=Retime(
                    parse_rate(_text(rate)) if rate else None,
                    _text(values.get("cut_origin", "picture")),
                    parse_rate(_text(source_rate)) if source_rate else None,
                    values.get("video_stream"),
                ),
                gate=QualityGate(**values["gate"]),
                scale=Scale(**scale | {"size": parse_size(_text(size)) if size else None}),
                target=Target(**values["target"]) if values.get("target") else None,
                sampling=Sampling(**values["sampling"]) if values.get("sampling") else None,
                count=FrameCount(**values["count"]) if values.get("count") else None,
                hdr=values["hdr"],
                on_damage=values["on_damage"],
                clock_rule=int(values.get("clock_rule", 1)) if rate else CLOCK_RULE,
            )
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise SettingsError(f"the settings of the run cannot be read: {error}") from error

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that change with any value of `as_dict` but `store`: a video in a shard has the same
        bytes as one in a file.
        """
        return self.digest_of(())

    def digest_of(self, unused: Collection[str]) -> str:
        """Return the digest of a video that does not depend on some settings of CONDITIONAL, whatever their values.

        A video stream above 0 always counts: a file with one stream has none of that number.
        """
        values = {name: value for name, value in self.as_dict().items() if name != "store"}
        for name in unused:
            if name != "video_stream" or not self.retime.video_stream:
                values[name] = "any"
        if "source_fps" in unused:
            values.pop("keeps_jpegs", None)
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def digests(self) -> frozenset[str]:
        """The digests of all videos whose output would be the same with these settings."""
        subsets = (combinations(CONDITIONAL, count) for count in range(len(CONDITIONAL) + 1))
        return frozenset(map(self.digest_of, chain.from_iterable(subsets)))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{show(value)} is not a string")
    return value


Built = TypeVar("Built")

SOURCES = (SourceOptions,)
SAMPLE = (*SOURCES, Retime, Scale)
SCORING = tuple(each for each in options_of(QualityGate) if each.keyword in ("score", "vmaf_model"))
_REST = (RunSettings, FrameCount, Target, QualityGate, RunOptions, Limits)
KINDS = {"transcode": (*SAMPLE, EncoderOptions, VideoOutput, *_REST), "burst": (*SAMPLE, FrameOutput, Sampling, *_REST)}


def options_of_command(name: str) -> list[Declared]:
    """Return the options of `transcode` or `burst`."""
    return [each for kind in KINDS[name] for each in options_of(kind) if each.option.only in ("", name)]


@functools.cache
def _homes() -> dict[str, tuple[type, Declared]]:
    return {each.keyword: (kind, each) for kinds in KINDS.values() for kind in kinds for each in options_of(kind)}


def decides_output(keyword: str) -> bool:
    """Return whether a keyword is a setting of the output rather than of how a run works."""
    return _homes()[keyword][0] not in (SourceOptions, RunOptions, Limits)


def build_options(kind: type[Built], keywords: Mapping[str, Any], **more: object) -> Built:
    """Build a dataclass from those of the keywords that are its fields. Raises SettingsError."""
    own = {}
    for declared in options_of(kind):  # type: ignore[arg-type]
        if declared.keyword in keywords:
            value = declared.option.parse_value(declared.keyword, keywords[declared.keyword])
            if type(value) is int and float in (declared.hint, *get_args(declared.hint)):
                value = float(value)  # otherwise settings would differ by how a number was written
            own[declared.name] = value
    return kind(**own, **more)


def build_scale(keywords: Mapping[str, Any]) -> Scale:
    """Build the Scale from keywords. Raises SettingsError."""
    if keywords.get("fit") not in (None, "pad") and keywords.get("size") is None and keywords.get("buckets") is None:
        raise SettingsError("<fit> needs <size> or <buckets>", fit=keywords["fit"], size="WxH", buckets=16)
    return build_options(Scale, keywords)


def build_gate(keywords: Mapping[str, Any]) -> QualityGate:
    """Build the QualityGate from keywords. Raises SettingsError, and MissingError if libvmaf is needed and not there."""
    if keywords.get("target_vmaf") is not None:
        if keywords.get("verify_every", 1) != 1:
            raise SettingsError(
                "<target_vmaf>: VMAF sees all frames in order, not some (<verify_every>)",
                target_vmaf=keywords["target_vmaf"],
                verify_every=keywords["verify_every"],
            )
        scores = parse_scores(keywords.get("score", ALWAYS_SCORED))
        keywords = {**keywords, "score": (*scores, "vmaf")}
    gate = build_options(QualityGate, keywords)
    if "vmaf" in gate.score:
        import av.filter
        import av.logging

        if "libvmaf" not in av.filter.filters_available:
            raise MissingError(
                f"--score vmaf: PyAV {av.__version__} was built without libvmaf; install it for Python 3.12 or newer, whose wheels have it"
            )
        av.logging.set_libav_level(av.logging.ERROR)  # else libvmaf says it too
        try:
            av.filter.Graph().add("libvmaf", f"model=version={gate.vmaf_model}")
        except ValueError:
            raise SettingsError(
                "<vmaf_model>: libvmaf has no such model, or a set of models, which gives no single score",
                vmaf_model=gate.vmaf_model,
                score="vmaf",
            ) from None
        finally:
            av.logging.set_libav_level(av.logging.INFO)
    return gate


def build_settings(keywords: Mapping[str, Any], kind: type[Output]) -> RunSettings:
    """Build the settings from keywords, for a kind of output. Raises SettingsError."""
    target = None
    if given := [name for name in ("target_psnr", "target_vmaf") if keywords.get(name) is not None]:
        value = kind.quality_keyword
        if keywords.get(value) is not None:
            raise SettingsError(
                f"<{value}> and <{given[0]}> exclude each other; give one",
                **{value: keywords[value], given[0]: keywords[given[0]]},
            )
        target = build_options(Target, keywords)
    elif (mode := keywords.get("target_mode")) is not None:
        at_40 = {"target_psnr": 40.0}
        if build_options(Target, at_40 | {"target_mode": mode}) != build_options(Target, at_40):
            raise SettingsError(
                "<target_mode> needs <target_psnr> or <target_vmaf>", target_mode=mode, target_psnr=40, target_vmaf=93
            )
    sampling = None
    if keywords.get("sample_fps") is not None:
        sampling = build_options(Sampling, keywords)
    else:
        usual = Sampling(1.0)
        usually: dict[str, int | str] = {
            "sample_max": usual.max_frames,
            "sample_min": usual.min_frames,
            "sample_rule": usual.rule,
        }
        for name, unset in usually.items():
            if keywords.get(name, unset) != unset:
                raise SettingsError(f"<{name}> needs <sample_fps>", **{name: keywords[name], "sample_fps": 2})
    if keywords.get("frames") is None and keywords.get("least_frames") is not None:
        raise SettingsError("<least_frames> needs <frames>", least_frames=keywords["least_frames"], frames="4n+1")
    more = {"encoder": build_options(EncoderOptions, keywords)} if kind is VideoOutput else {}
    return build_options(
        RunSettings,
        keywords,
        output=build_options(kind, keywords, **more),
        target=target,
        sampling=sampling,
        count=None if keywords.get("frames") is None else build_options(FrameCount, keywords),
        retime=build_options(Retime, keywords),
        scale=build_scale(keywords),
        gate=build_gate(keywords),
        limits=build_options(Limits, keywords),
    )
