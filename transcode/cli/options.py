"""What commands share: how they end, their options in groups, and their help."""

from __future__ import annotations

import errno
import inspect
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from vidprep.formats.errors import SettingsError, VidprepError
from vidprep.formats.files.remote import is_url
from vidprep.formats.profiles import CODECS, CONTAINERS, ENCODERS, JPEG_SUBSAMPLINGS, TUNES
from vidprep.formats.stores.registry import STORES_OF_FRAMES
from vidprep.transcode.run.text import printable
from vidprep.transcode.settings.keywords import default_of
from vidprep.transcode.settings.options import FITS, SCALERS
from vidprep.transcode.settings.parse import as_place, given
from vidprep.transcode.settings.run import AUDIO, ENGINES, HDR
from vidprep.transcode.settings.run_options import BACKENDS, BAD_ROWS


def _crf_help() -> str:
    rows = (ENCODERS[codec.encoder] for codec in CODECS.values())
    return "; ".join(
        f"{row.codec} {row.crf_range[0]:g}-{row.crf_range[1]:g}, default {row.crf_default:g}" for row in rows
    )


def _preset_help() -> str:
    x26x, vp9, av1 = ENCODERS["libx264"], ENCODERS["libvpx-vp9"], ENCODERS["libsvtav1"]
    return (
        f"Speed of the encoder. h264, hevc: {x26x.presets[0]} to {x26x.presets[-1]}, default {x26x.preset_default} and "
        f"{ENCODERS['libx265'].preset_default}; vp9: cpu-used 0 (slow) to 8, default {vp9.preset_default}; av1: 0 (slow) "
        f"to 13, default {av1.preset_default}."
    )


def defaults_of(function: Callable[..., object]) -> dict[str, Any]:
    """Of its keywords, as its signature has them."""
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


USAGE_ERROR = 2
INTERRUPTED = 130

Option = Callable[[Callable[..., None]], Callable[..., None]]


def _options(*options: Option) -> Option:
    def apply(function: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            function = option(function)
        return function

    return apply


def _say(error: Exception) -> None:
    """What names, ids and labels from elsewhere would do to a terminal is shown, not done."""
    text = error.on_command_line if isinstance(error, SettingsError) else str(error)
    click.echo("vidprep: " + "\n".join(map(printable, text.split("\n"))), err=True)


class LinePrinter:
    """Prints lines for machines. A stdout that takes no more ends no work that is under way: fault says why it took none."""

    def __init__(self) -> None:
        self.fault: OSError | None = None

    def print(self, line: str) -> None:
        if self.fault is not None:
            return
        try:
            click.echo(line)
        except OSError as error:
            self.fault = error
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 (what is left in its buffer goes there when Python ends)
                os.dup2(nowhere.fileno(), sys.stdout.fileno())


class Command(click.Command):
    """Turns our own errors and the file system's into one line on stderr, and 2 for what stops a run before it starts."""

    interrupted = "interrupted; run the same command again to go on"

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except VidprepError as error:
            _say(error)
            ctx.exit(error.exit_code)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            _say(error if error.filename is None else OSError(f"{os.fsdecode(error.filename)}: {error.strerror}"))
            ctx.exit(USAGE_ERROR)
        except MemoryError:
            click.echo("vidprep: ran out of memory; allow fewer --jobs, or look at what was given", err=True)
            ctx.exit(USAGE_ERROR)
        except KeyboardInterrupt:
            click.echo(f"vidprep: {self.interrupted}", err=True)
            ctx.exit(INTERRUPTED)


class Viewer(Command):
    """Shows something until it is stopped."""

    interrupted = "no longer shown"


class BriefCommand(Command):
    """Writes all or nothing, at its end."""

    interrupted = "interrupted; nothing was written"


class Finite(click.FloatRange):
    """A range of numbers that are some: no infinity, no NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


class LocalPath(click.Path):
    """A path on this machine, where a URL would become a folder of that name; it is refused before anything is done."""

    def __init__(self, path_type: type[str] | type[Path] = Path, **more: Any) -> None:
        super().__init__(path_type=path_type, **more)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            path = given(str(value)).removeprefix("file://")
        except SettingsError as error:
            self.fail(f"{error}.", param, ctx)
        if is_url(path):
            self.fail(f"{path} is a URL; give a path on this machine.", param, ctx)
        return super().convert(path, param, ctx)


class FolderOrUrl(click.Path):
    """A path here, or a URL that fsspec knows, which stays text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        try:
            return as_place(value)
        except SettingsError as error:
            self.fail(f"{error}.", param, ctx)


SOURCE_OPTIONS = _options(
    click.option("--include", metavar="GLOB", multiple=True, help="Take only files that match; may be repeated."),
    click.option(
        "--exclude", metavar="GLOB", multiple=True, help="Leave out files and folders that match; may be repeated."
    ),
    click.option(
        "--limit", type=click.IntRange(min=1), metavar="N", help="Take only the first N, in the order of their names."
    ),
    click.option(
        "--label-from-folder", is_flag=True, help="Fill the column `label` with the name of the parent folder."
    ),
    click.option("--labels", metavar="A,B", help="Take only these columns of a table as labels."),
    click.option(
        "--on-bad-row",
        type=click.Choice(BAD_ROWS),
        default=default_of("on_bad_row"),
        show_default=True,
        help="What to do with rows of a table that cannot mean anything. A missing file is a failed video all the same.",
    ),
    click.option(
        "--split-by",
        metavar="NAME=SHARE,…",
        help="Fill the column `split`, such as train=0.8,val=0.1,test=0.1: by source, of each class its share.",
    ),
    click.option("--split-group", metavar="COLUMN", help="Keep videos of one value of this label in one split."),
    click.option(
        "--split-seed",
        type=int,
        default=default_of("split_seed"),
        show_default=True,
        metavar="N",
        help="Draw other splits.",
    ),
    click.option(
        "--keep-source-suffix", is_flag=True, help="Name outputs x.avi.mp4, where x.avi and x.mov would collide."
    ),
)
FRAME_OPTIONS = _options(
    click.option(
        "--fps",
        metavar="RATE",
        help="Constant frame rate: 15, 29.97, 30000/1001. Without it the source's own times stay.",
    ),
    click.option("--short-side", type=int, metavar="N", help="Scale the shorter side to N pixels (even)."),
    click.option("--size", metavar="WxH", help="Scale to exactly this size; see --fit."),
    click.option(
        "--fit",
        type=click.Choice(FITS),
        default=default_of("fit"),
        show_default=True,
        help="How a picture fills --size.",
    ),
    click.option(
        "--scaler",
        type=click.Choice(SCALERS),
        default=default_of("scaler"),
        show_default=True,
        help="Scaling algorithm.",
    ),
    click.option("--upscale", is_flag=True, help="Allow pictures to be enlarged."),
    click.option(
        "--hdr", type=click.Choice(HDR), help="PQ and HLG: tone-map to SDR (default for 8 bits) or keep (for 10)."
    ),
)
ENCODE_OPTIONS = _options(
    click.option(
        "--codec",
        type=click.Choice(tuple(CODECS)),
        default=default_of("codec"),
        show_default=True,
        help="Codec of the outputs.",
    ),
    click.option(
        "--encoder", metavar="NAME", help="Another encoder of that codec, such as h264_nvenc with --engine ffmpeg."
    ),
    click.option(
        "--container", type=click.Choice(tuple(CONTAINERS)), help="Default: webm for vp9, mp4 for the others."
    ),
    click.option(
        "--gop",
        type=int,
        default=default_of("gop"),
        show_default=True,
        metavar="N",
        help="A keyframe exactly every N output frames.",
    ),
    click.option("--crf", type=float, metavar="Q", help=f"Quality, lower is better. {_crf_help()}."),
    click.option("--preset", metavar="NAME", help=_preset_help()),
    click.option(
        "--tune",
        type=click.Choice(TUNES),
        default=default_of("tune"),
        show_default=True,
        help="What the encoder optimises for.",
    ),
    click.option(
        "--pixel-format",
        metavar="NAME",
        help="yuv420p (default), yuv420p10le to keep 10 bits, or any other that the encoder takes.",
    ),
    click.option(
        "--audio",
        type=click.Choice(AUDIO),
        default=default_of("audio"),
        show_default=True,
        help="What to do with the audio.",
    ),
    click.option(
        "--split",
        default=default_of("split"),
        show_default=True,
        metavar="SECONDS|auto|off",
        help="Encode longer videos in segments of about SECONDS, several at a time, joined without another generation; auto: those of "
        "more than two minutes.",
    ),
    click.option(
        "--encoder-threads",
        type=int,
        default=default_of("encoder_threads"),
        metavar="N",
        help="Threads per encoder; the number changes the output bytes. By default as many as change none, and 2 for h264 from 480 "
        "lines up, whatever the machine.",
    ),
    click.option(
        "--engine",
        type=click.Choice(ENGINES),
        default=default_of("engine"),
        show_default=True,
        help="Encode in process, or with an ffmpeg command.",
    ),
    click.option(
        "--ffmpeg",
        type=LocalPath(str),
        metavar="PATH",
        help="The ffmpeg for --engine ffmpeg. Default: VIDPREP_FFMPEG, PATH, imageio-ffmpeg.",
    ),
)
STORE_OPTIONS = _options(
    click.option(
        "--format",
        type=click.Choice(STORES_OF_FRAMES),
        default=default_of("format"),
        show_default=True,
        help="How frames are stored.",
    ),
    click.option("--quality", type=int, metavar="Q", help="JPEG quality, 1 to 100, higher is better. Default: 90."),
    click.option(
        "--subsampling",
        type=click.Choice(tuple(JPEG_SUBSAMPLINGS)),
        default=default_of("subsampling"),
        show_default=True,
        help="Chroma subsampling of the JPEGs.",
    ),
    click.option(
        "--shard-size",
        default=default_of("shard_size"),
        show_default=True,
        metavar="BYTES",
        help="Start a new shard beyond this size.",
    ),
)
CHECK_OPTIONS = _options(
    click.option(
        "--target-psnr",
        type=float,
        metavar="DB",
        help="Find the coarsest CRF or quality at which 99 % of the videos have a 1st percentile of PSNR-Y of DB or "
        "more, on a sample; what is still below is made again, finer.",
    ),
    click.option(
        "--target-mode",
        type=click.Choice(("dataset", "per-video")),
        default=default_of("target_mode"),
        show_default=True,
        help="One value for all videos, or one for each.",
    ),
    click.option("--min-psnr", type=float, metavar="DB", help="Fail outputs whose mean PSNR-Y is below DB."),
    click.option(
        "--verify-every",
        type=int,
        default=default_of("verify_every"),
        show_default=True,
        metavar="N",
        help="Score every N-th frame; all are decoded.",
    ),
    click.option(
        "--on-damage",
        type=click.Choice(("warn", "fail")),
        default=default_of("on_damage"),
        show_default=True,
        help="What to do when a source is damaged or cut short.",
    ),
)
RUN_OPTIONS = _options(
    click.option(
        "--backend",
        type=click.Choice(tuple(BACKENDS)),
        default=default_of("backend"),
        show_default=True,
        help="Work on this machine, or on the workers of a cluster that see the same paths.",
    ),
    click.option(
        "--cluster-address",
        "--scheduler",
        "--address",
        "cluster_address",
        metavar="ADDRESS",
        help="Of the dask scheduler (tcp://host:8786), or its file; of the ray head (host:6379), by default the one that this machine "
        "belongs to.",
    ),
    click.option(
        "--shard",
        metavar="I/N",
        help="Make part I (from 0) of N, as one task of an array; auto: the part of this Slurm array task.",
    ),
    click.option(
        "--jobs",
        type=click.IntRange(min=1),
        metavar="N",
        help="Videos at a time. Default: one per core that this process may use (CPU affinity, container quota).",
    ),
    click.option(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="Give up on a video after this time. Default: depends on its size and progress.",
    ),
    click.option(
        "--max-pixels",
        type=int,
        default=default_of("max_pixels"),
        show_default=True,
        help="Refuse frames with more pixels.",
    ),
    click.option(
        "--max-frames",
        type=int,
        default=default_of("max_frames"),
        show_default=True,
        help="Refuse videos with more frames, in or out.",
    ),
    click.option(
        "--overwrite",
        is_flag=True,
        help="Make everything anew, even with other settings than before; only what this makes stays.",
    ),
    click.option(
        "--prune",
        is_flag=True,
        help="Remove rows and outputs whose source or cut is gone; never where only some sources are listed.",
    ),
    click.option("--skip-failed", is_flag=True, help="Do not retry videos that failed before."),
    click.option(
        "--dry-run", is_flag=True, help="Show what would be done and what is ignored; open and write nothing."
    ),
    click.option(
        "--events",
        type=LocalPath(str),
        metavar="FILE",
        help="Append events as JSON lines, for vidprep monitor; - is stdout.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Write one JSON line per row to stdout, then the summary."),
    click.option("--quiet", is_flag=True, help="No progress bar."),
)
