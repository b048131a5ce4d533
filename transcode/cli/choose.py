"""The commands that help to choose settings: many are measured on a sample of the sources."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from vidprep.formats.errors import MissingError, SettingsError
from vidprep.formats.profiles import CODECS
from vidprep.transcode.choose.api import sweep as measure
from vidprep.transcode.choose.api import tune as recommend
from vidprep.transcode.cli.options import FRAME_OPTIONS, SOURCE_OPTIONS, Command, Finite, LocalPath, defaults_of
from vidprep.transcode.pages.api import report
from vidprep.transcode.run.text import megabytes, printable

OF_SWEEP, OF_TUNE = defaults_of(measure), defaults_of(recommend)
CARRIED_OVER = {
    "include", "exclude", "limit", "label_from_folder", "labels", "on_bad_row", "split_by", "split_group", "split_seed",
    "keep_source_suffix",
    "fps", "short_side", "size", "fit", "scaler", "upscale", "hdr",
}  # fmt: skip

if TYPE_CHECKING:
    from vidprep.transcode.choose.tune import Tuned


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SettingsError(f"{option} {text}: give whole numbers with commas between") from None


def _by_codec(option: str, given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in given:
        codec, equals, values = text.partition("=")
        if not equals or codec not in CODECS:
            raise SettingsError(f"{option} {text}: give CODEC=VALUE,VALUE with a codec of {', '.join(CODECS)}")
        found[codec] = values
    return found


@click.command(cls=Command)
@click.argument("source", metavar="SRC", type=LocalPath())
@click.argument("out", metavar="OUT", type=LocalPath())
@SOURCE_OPTIONS
@FRAME_OPTIONS
@click.option(
    "--codec", default=",".join(OF_SWEEP["codec"]), show_default=True, metavar="LIST", help="Codecs to compare."
)
@click.option(
    "--crf",
    multiple=True,
    metavar="CODEC=LIST",
    help="CRFs to try for a codec, four or more. Default: four that span about 32 to 44 dB.",
)
@click.option("--quality", metavar="LIST", help="JPEG qualities to try. Default: four.")
@click.option(
    "--gop",
    default=",".join(map(str, OF_SWEEP["gop"])),
    show_default=True,
    metavar="LIST",
    help="Keyframe intervals to try, in frames.",
)
@click.option(
    "--preset",
    multiple=True,
    metavar="CODEC=LIST",
    help="Presets to try for a codec. Default: the one that transcode takes.",
)
@click.option(
    "--anchor",
    default=OF_SWEEP["anchor"],
    show_default=True,
    metavar="CODEC",
    help="The codec that the others are compared with first.",
)
@click.option(
    "--at-psnr",
    type=float,
    default=OF_SWEEP["at_psnr"],
    show_default=True,
    metavar="DB",
    help="Compare sizes at this PSNR-Y.",
)
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    default=OF_SWEEP["sample"],
    show_default=True,
    metavar="N",
    help="How many of the sources to measure.",
)
@click.option(
    "--seconds",
    type=Finite(min=0.1),
    default=OF_SWEEP["seconds"],
    show_default=True,
    help="How much of each source to take, from its start.",
)
@click.option(
    "--sequence-length",
    type=click.IntRange(min=1),
    default=OF_SWEEP["sequence_length"],
    show_default=True,
    metavar="N",
    help="Frames per sequence when reading is timed.",
)
@click.option(
    "--stride",
    type=click.IntRange(min=1),
    default=OF_SWEEP["stride"],
    show_default=True,
    metavar="N",
    help="Distance between the frames of a sequence.",
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Videos at a time. Default: one per core.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def sweep(source: Path, out: Path, **given: Any) -> None:
    """Measure a sample of SRC in many settings: size against PNG and JPEG, PSNR, SSIM, encoding and reading times.

    Sources are decoded and scaled once. OUT gets sweep.parquet (a row for each setting and video), sweep.json, and
    report.html with rate-distortion curves. Run the same command again to go on after a stop, or with more settings to
    measure those as well.

    \b
    vidprep sweep raw/ choose/ --short-side 240 --gop 5,16
    vidprep sweep raw/ choose/ --codec h264,av1 --crf av1=20,30,40,50 --preset av1=6,8,10
    """
    from tqdm import tqdm

    crf = {codec: _numbers("--crf", text) for codec, text in _by_codec("--crf", given.pop("crf")).items()}
    preset = {codec: text.split(",") for codec, text in _by_codec("--preset", given.pop("preset")).items()}
    quality, jobs, progress = given.pop("quality"), given.pop("jobs"), not given.pop("quiet")
    summary = measure(
        source, out, codec=given.pop("codec").split(","), gop=_numbers("--gop", given.pop("gop")), crf=crf, preset=preset,
        quality=_numbers("--quality", quality) if quality else (), jobs=jobs, progress=progress,
        on_message=lambda text: tqdm.write(f"vidprep: {text}", file=sys.stderr), **given,
    )  # fmt: skip
    _print_table(summary)
    try:
        page = report(out, title="vidprep sweep", worst=0, jobs=jobs)
    except MissingError as error:
        raise MissingError(f"all is measured; {error.message}") from error
    click.echo(page.html)


def _print_table(summary: dict[str, Any]) -> None:
    """Sizes at equal PSNR, for people."""
    from vidprep.transcode.pages.sweep_section import at_rows

    frames = len(summary["compared_videos"]), summary["num_frames"]
    click.echo(f"at {summary['at_psnr']['psnr_y_db']:g} dB PSNR-Y, {frames[0]} videos, {frames[1]:,} frames:", err=True)
    click.echo(f"{'':30}{'CRF':>6}{'bytes/frame':>13}{'PNG /':>8}{'JPEG /':>8}{'ms/frame':>10}", err=True)

    def text(value: float | None, decimals: int) -> str:
        return "-" if value is None else f"{value:,.{decimals}f}"

    for name, value, size, png, jpeg, frame, *_ in at_rows(summary):
        each = size / summary["num_frames"] if size else None
        columns = f"{text(value, 1):>6}{text(each, 0):>13}{text(png, 1):>8}{text(jpeg, 1):>8}{text(frame, 2):>10}"
        click.echo(f"{name:30}{columns}", err=True)


@click.command(cls=Command)
@click.argument("source", metavar="SRC", type=LocalPath())
@SOURCE_OPTIONS
@FRAME_OPTIONS
@click.option(
    "--target-psnr",
    type=float,
    default=OF_TUNE["target_psnr"],
    show_default=True,
    metavar="DB",
    help="The quality to reach, as in transcode --target-psnr.",
)
@click.option(
    "--sequence-length",
    type=click.IntRange(min=1),
    default=OF_TUNE["sequence_length"],
    show_default=True,
    metavar="N",
    help="Frames per sequence.",
)
@click.option(
    "--stride",
    type=click.IntRange(min=1),
    default=OF_TUNE["stride"],
    show_default=True,
    metavar="N",
    help="Distance between the frames of a sequence.",
)
@click.option(
    "--storage", type=Finite(min=0, min_open=True), metavar="MB/S", help="How fast the storage serves one reader."
)
@click.option(
    "--loader",
    type=click.Choice(("torchcodec", "decord")),
    help="The library that training will read videos with. Default: vidprep's own reader.",
)
@click.option("--codec", default=",".join(OF_TUNE["codec"]), show_default=True, metavar="LIST", help="Codecs to try.")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    default=OF_TUNE["sample"],
    show_default=True,
    metavar="N",
    help="How many of the sources to measure.",
)
@click.option(
    "--seconds",
    type=Finite(min=0.1),
    default=OF_TUNE["seconds"],
    show_default=True,
    help="How much of each source to take, from its start.",
)
@click.option(
    "--work", type=LocalPath(), metavar="FOLDER", help="Keep the trials here, so that a stopped command can go on."
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Videos at a time. Default: one per core.")
def tune(source: Path, **given: Any) -> None:
    """Measure a sample of SRC in several formats, and recommend one for how your network reads.

    Prints every choice that no other beats in both size and time, and the command that makes the recommended one, with the reason.

    \b
    vidprep tune raw/ --short-side 240 --sequence-length 8 --target-psnr 38
    vidprep tune raw/ --fps 15 --sequence-length 16 --stride 2 --storage 200 --loader torchcodec
    """
    codec, target_psnr = given.pop("codec").split(","), given["target_psnr"]
    tuned = recommend(source, codec=codec, on_message=lambda text: click.echo(f"vidprep: {text}", err=True), **given)
    _print_choices(tuned)
    best = tuned.best
    coded = ["burst"] if best.gop is None else ["transcode"]
    own = [] if best.gop is None else ["--codec", best.codec, "--gop", str(best.gop)]
    command = shlex.join(
        ["vidprep", *coded, str(source), "DST", *_given_again(), *own, "--target-psnr", f"{target_psnr:g}"]
    )
    click.echo(f"\n{command}\nbecause: {tuned.reason}.")


def _given_again() -> list[str]:
    """The options of sources and frames that were given, as they were."""
    context = click.get_current_context()
    words = []
    for option in context.command.params:
        name, value = option.name or "", context.params.get(option.name or "")
        if name not in CARRIED_OVER or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        for each in value if isinstance(value, tuple) else (value,):
            words += [option.opts[0]] if each is True else [option.opts[0], str(each)]
    return words


def _print_choices(tuned: Tuned) -> None:
    """What no other beats, as a table on stdout."""
    click.echo(f"{'':16}{'CRF/q':>6}{'p1 dB':>8}{'bytes/frame':>13}{'all':>10}{'ms/sequence':>13}{'CPU hours':>11}")
    for choice in tuned.pareto:
        name = choice.codec if choice.gop is None else f"{choice.codec} GOP {choice.gop}"
        row = f"{choice.value:6}{choice.psnr_y_p1_db:8.2f}{choice.bytes_per_frame:13,.0f}{megabytes(choice.total_bytes):>10}"
        click.echo(f"{name:16}{row}{choice.ms_per_sequence:13.2f}{choice.encode_hours:11.3g}")
    beaten = len(tuned.choices) - len(tuned.pareto)
    click.echo(
        f"Measured on {tuned.sampled} of {tuned.num_videos} videos; {beaten} choices that others beat in size and time are not shown."
    )
    for text in tuned.left_out:
        click.echo(f"left out: {printable(text)}")
