"""Commands that help to choose settings: `sweep` and `tune`."""

from __future__ import annotations

import importlib.util
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import click

from vidprep.formats.errors import MissingError, SettingsError, count_of, format_bytes, printable
from vidprep.formats.option import Option, options_of
from vidprep.formats.profiles import CODECS
from vidprep.transcode.cli._command import BATCH_SIZE, LocalPath, command_of, ignore, missing_for_pages
from vidprep.transcode.settings.keyword_types import TrialKeywords
from vidprep.transcode.settings.options import Retime, Target
from vidprep.transcode.settings.parse import check_types, parse_by_codec, parse_names, parse_numbers
from vidprep.transcode.settings.run import HDR, SAMPLE, SCORING, SourceOptions, build_gate, build_options, build_scale

if TYPE_CHECKING:
    from vidprep.transcode.choose.tune import Tuned
    from vidprep.transcode.sources.unit import Unit

_SAMPLE_OPTIONS = tuple(chain.from_iterable(map(options_of, SAMPLE)))
# Key, title, width and decimals of a column.
COLUMNS = (
    ("value", "CRF", 6, 1),
    ("bytes_per_frame", "bytes/frame", 13, 0),
    ("png", "PNG÷size", 10, 1),
    ("jpeg", "JPEG÷size", 11, 1),
    ("ms_per_frame", "ms/frame", 10, 2),
)


def _crfs_of_codecs(written: Sequence[str]) -> dict[str, tuple[int, ...]]:
    return {codec: parse_numbers(values) for codec, values in parse_by_codec(written).items()}


def _presets_of_codecs(written: Sequence[str]) -> dict[str, tuple[str, ...]]:
    return {codec: parse_names(values) for codec, values in parse_by_codec(written).items()}


@check_types(*_SAMPLE_OPTIONS, *SCORING)
def sweep(
    source: str | Path,
    out: str | Path,
    *,
    hdr: Annotated[
        str | None, Option("Only sdr is accepted: 8 bits are compared, and PQ and HLG are tone-mapped.", choices=HDR)
    ] = None,
    codec: Annotated[Sequence[str], Option("Codecs to compare.", "LIST", parse=parse_names)] = (*CODECS, "jpeg", "png"),
    crf: Annotated[
        Mapping[str, Sequence[int]] | None,
        Option(
            "CRFs to try for a codec; BD-rates need four. Default: four values from about 32 to 44 dB.",
            "CODEC=LIST",
            repeated=True,
            parse=_crfs_of_codecs,
        ),
    ] = None,
    quality: Annotated[
        Sequence[int], Option("JPEG qualities to try. Default: four.", "LIST", parse=parse_numbers)
    ] = (),
    gop: Annotated[Sequence[int], Option("Keyframe intervals to try, in frames.", "LIST", parse=parse_numbers)] = (16,),
    preset: Annotated[
        Mapping[str, Sequence[str]] | None,
        Option(
            "Presets to try for a codec. Default: that of transcode.",
            "CODEC=LIST",
            repeated=True,
            parse=_presets_of_codecs,
        ),
    ] = None,
    anchor: Annotated[
        str | None,
        Option("Codec that the others are compared with. Default: h264 if it is tried, else the first.", "CODEC"),
    ] = None,
    at_psnr: Annotated[float, Option("Compare sizes at this PSNR-Y.", "DB", above=0, most=100, unit="dB")] = 36.0,
    sample: Annotated[int, Option("Number of sources to measure.", "N", least=1)] = 12,
    seconds: Annotated[
        float, Option("Length of the excerpt from the start of each source.", "SECONDS", least=0.1)
    ] = 10.0,
    sequence_length: Annotated[int, Option("Frames per sequence when reading is timed.", "N", least=1)] = BATCH_SIZE,
    stride: Annotated[int, Option("Distance between the frames of a sequence.", "N", least=1)] = 1,
    jobs: Annotated[int | None, Option("Videos at a time. Default: one per core.", "N", least=1)] = None,
    progress: bool = False,
    on_message: Callable[[str], object] | None = None,
    **keywords: Unpack[TrialKeywords],
) -> dict[str, Any]:
    """Encode a sample of the sources in many settings and compare size, quality and reading speed.

    Repeat the call to continue a sweep that was stopped.

    Args:
        source: The folder, file or table of videos.
        out: A folder for the trials and for sweep.json.
        progress: Show a progress bar on stderr.
        on_message: Called with each line that the command would print.

    Returns:
        The content of sweep.json.

    Raises:
        SettingsError: A value is not allowed.
        SourceError: `source` cannot be used.
        DestinationError: `out` holds files that are not of a sweep.
        MissingError: A library is not installed.
        StoppedError: The sweep was interrupted, or the disk is full.
    """
    from datetime import datetime

    from vidprep.transcode.choose.sweep import FILES, SweepOptions, check_out, measure
    from vidprep.transcode.run.progress import bar
    from vidprep.transcode.workers.child import make, stops_the_run
    from vidprep.transcode.workers.local import LocalPool, default_jobs

    if hdr == "keep":
        raise SettingsError("<hdr>: sweeps compare 8 bits; leave it out", hdr="keep")
    values = {name: tuple(each) for name, each in (crf or {}).items()}
    values |= {"jpeg": tuple(quality)} if quality else {}
    options = SweepOptions(
        codecs=tuple(codec),
        values=values,
        gops=tuple(gop),
        presets={name: tuple(each) for name, each in (preset or {}).items()},
        videos=sample,
        seconds=seconds,
        sequence_length=sequence_length,
        stride=stride,
        retime=build_options(Retime, keywords),
        scale=build_scale(keywords),
        gate=build_gate(keywords),
    )
    check_out(Path(out), FILES)
    units = _units(Path(source), Path(out), keywords)
    with LocalPool(jobs or default_jobs(), make, stops_the_run) as workers, bar(is_shown=progress) as shown:
        return measure(
            units,
            Path(out),
            options,
            workers,
            at_db=at_psnr,
            anchor=anchor,
            created=f"{datetime.now():%Y-%m-%d %H:%M}",
            on_start=shown.reset,
            on_row=shown.update,
            say=on_message or ignore,
        )


@command_of(
    sweep,
    click.argument("source", metavar="SRC", type=LocalPath()),
    click.argument("out", metavar="OUT", type=LocalPath()),
    first=(
        "codec",
        "crf",
        "quality",
        "gop",
        "preset",
        "fps",
        "short_side",
        "size",
        "sample",
        "seconds",
        "score",
        "jobs",
    ),
)
def sweep_command(source: Path, out: Path, quiet: bool = False, **given: Any) -> None:
    """Measure a sample of SRC in many settings: size against PNG and JPEG, PSNR, SSIM, encoding and reading times.

    Sources are decoded and scaled once. The results in OUT are sweep.parquet (a row for each setting and video),
    sweep.json, and report.html with rate-distortion curves. To continue after a stop, run the same command again; run
    it with more settings to add these.

    \b
    vidprep sweep raw/ choose/ --short-side 240 --gop 5,16
    vidprep sweep raw/ choose/ --codec h264,av1 --crf av1=20,30 --preset av1=6,8
    """
    from tqdm import tqdm

    if (absent := missing_for_pages()) is not None:
        click.echo(f"vidprep: no report.html: it needs {absent}: pip install 'vidprep[report]'", err=True)
    summary = sweep(
        source,
        out,
        progress=not quiet,
        on_message=lambda text: tqdm.write(f"vidprep: {text}", file=sys.stderr),
        **given,
    )
    _print_table(summary)
    if absent is None:
        from vidprep.transcode.cli.pages import report

        click.echo(report(out, title="vidprep sweep", worst=0, jobs=given.get("jobs")).html)


def _print_table(summary: dict[str, Any]) -> None:
    """Print sizes at equal PSNR."""
    from vidprep.transcode.choose.sweep_tables import common_rows

    frames = len(summary["compared_videos"]), summary["num_frames"]
    click.echo(
        f"at {summary['at_psnr']['psnr_y_db']:g} dB PSNR-Y, {count_of(frames[0], 'video')}, {count_of(frames[1], 'frame')}:",
        err=True,
    )
    rows = common_rows(summary)
    for row in rows:
        row["bytes_per_frame"] = row["size_bytes"] / summary["num_frames"] if row["size_bytes"] else None
    shown = [column for column in COLUMNS if any(row.get(column[0]) is not None for row in rows)]
    click.echo(f"{'':30}" + "".join(f"{title:>{width}}" for _, title, width, _ in shown), err=True)
    for row in rows:
        texts = []
        for key, _, width, decimals in shown:
            value = row.get(key)
            texts.append(f"{'-' if value is None else f'{value:,.{decimals}f}':>{width}}")
        click.echo(f"{row['curve']:30}" + "".join(texts), err=True)
    if any(row["bytes_per_frame"] is None for row in rows):
        click.echo(
            f"-: the values tried do not lie on both sides of {summary['at_psnr']['psnr_y_db']:g} dB; give others, or --at-psnr",
            err=True,
        )


@check_types(*_SAMPLE_OPTIONS, *SCORING)
def tune(
    source: str | Path,
    *,
    hdr: Annotated[
        str | None, Option("Only sdr is accepted: 8 bits are compared, and PQ and HLG are tone-mapped.", choices=HDR)
    ] = None,
    target_psnr: Annotated[
        float | None, Option("The quality to reach, as in transcode. Default: 38.", "DB", least=10, most=80, unit="dB")
    ] = None,
    target_vmaf: Annotated[
        float | None, Option("Instead, the VMAF to reach, as in transcode.", "V", least=10, most=100)
    ] = None,
    sequence_length: Annotated[int, Option("Frames per sequence.", "N", least=1)] = BATCH_SIZE,
    stride: Annotated[int, Option("Distance between the frames of a sequence.", "N", least=1)] = 1,
    storage: Annotated[float | None, Option("Speed of the storage for one reader.", "MB/S", above=0)] = None,
    loader: Annotated[
        str | None,
        Option(
            "The library that training will read videos with. Default: vidprep's own reader.",
            choices=("torchcodec", "decord"),
        ),
    ] = None,
    codec: Annotated[Sequence[str], Option("Codecs to try.", "LIST", parse=parse_names)] = (*CODECS, "jpeg"),
    sample: Annotated[int, Option("Number of sources to measure.", "N", least=1)] = 6,
    seconds: Annotated[
        float, Option("Length of the excerpt from the start of each source.", "SECONDS", least=0.1)
    ] = 5.0,
    work: Annotated[
        str | Path | None,
        Option("Keep the trials here, so that a stopped command can be continued.", "FOLDER", path="any"),
    ] = None,
    jobs: Annotated[int | None, Option("Videos at a time. Default: one per core.", "N", least=1)] = None,
    on_message: Callable[[str], object] | None = None,
    **keywords: Unpack[TrialKeywords],
) -> Tuned:
    """Measure on a sample of the sources which format, codec, CRF and keyframe interval suit a network's way of reading.

    Args:
        source: The folder, file or table of videos.
        on_message: Called with each line that the command would print.

    Returns:
        Tuned, with the options to use and what was measured.

    Raises:
        SettingsError: A value is not allowed.
        SourceError: `source` cannot be used.
        DestinationError: `work` holds files that are not of such a search.
        MissingError: A library is not installed.
        StoppedError: The search was interrupted, or the disk is full.
    """
    from vidprep.transcode.choose.sweep import SweepOptions, check_out
    from vidprep.transcode.choose.tune import Reading, recommend
    from vidprep.transcode.workers.child import make, stops_the_run
    from vidprep.transcode.workers.local import LocalPool, default_jobs

    if hdr == "keep":
        raise SettingsError("<hdr>: 8 bits are tried; leave it out", hdr="keep")
    options = SweepOptions(
        codecs=tuple(codec),
        videos=sample,
        seconds=seconds,
        scale=build_scale(keywords),
        retime=build_options(Retime, keywords),
        gate=build_gate({**keywords, "target_vmaf": target_vmaf}),
    )
    target = Target(38.0 if target_psnr is None and target_vmaf is None else target_psnr, vmaf=target_vmaf)
    if "png" in options.codecs:
        raise SettingsError("<codec>: give codecs and jpeg", codec="png")
    if loader and importlib.util.find_spec(loader) is None:
        raise MissingError(f"--loader {loader}: not installed: pip install {loader}")
    reading = Reading(sequence_length, stride, storage * 1e6 if storage else None, loader)
    with tempfile.TemporaryDirectory(prefix="vidprep-tune-") as temporary:
        folder = Path(work or temporary)
        check_out(folder, ("prepared", "lossless", *CODECS, "jpeg"))
        units = _units(Path(source), folder, keywords)
        with LocalPool(jobs or default_jobs(), make, stops_the_run) as workers:
            return recommend(units, folder, options, reading, target, workers, say=on_message or ignore)


@command_of(
    tune,
    click.argument("source", metavar="SRC", type=LocalPath()),
    first=(
        "sequence_length",
        "stride",
        "target_psnr",
        "target_vmaf",
        "fps",
        "short_side",
        "size",
        "codec",
        "storage",
        "loader",
        "sample",
        "jobs",
    ),
)
def tune_command(source: Path, **given: Any) -> None:
    """Measure a sample of SRC in several formats, and recommend one for how your network reads.

    Prints the Pareto-optimal settings (size against time), and the command for the recommended one, with the reason.

    \b
    vidprep tune raw/ --short-side 240 --sequence-length 8 --target-psnr 38
    vidprep tune raw/ --fps 15 --sequence-length 16 --stride 2 --storage 200
    """
    tuned = tune(source, on_message=lambda text: click.echo(f"vidprep: {text}", err=True), **given)
    _print_choices(tuned)
    best = tuned.best
    coded = ["burst"] if best.gop is None else ["transcode"]
    own = [] if best.gop is None else ["--codec", best.codec, "--gop", str(best.gop)]
    target = [tuned.target.flag, f"{tuned.target.floor:g}"]
    command = shlex.join(["vidprep", *coded, str(source), "DST", *_again(given), *own, *target])
    click.echo(f"\n{command}\nbecause: {tuned.reason}.")


def _again(given: dict[str, Any]) -> list[str]:
    """Return the flags for sources and pictures that were given, unchanged."""
    words = []
    for keyword in (
        each.keyword
        for each in (*_SAMPLE_OPTIONS, *SCORING, *(each for each in options_of(tune) if each.name == "hdr"))
        if each.keyword in given
    ):
        flag, value = f"--{keyword.replace('_', '-')}", given[keyword]
        for each in value if isinstance(value, tuple) else (value,):
            words += [flag] if each is True else [flag, str(each)]
    return words


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:,.1f} h"


def _print_choices(tuned: Tuned) -> None:
    """Print the Pareto-optimal choices as a table on stdout."""
    scores = {"psnr_y_p1_db": "p1 dB", "vmaf": "VMAF", "vmaf_p1": "p1", "xpsnr_db": "XPSNR"}
    taken = [name for name in scores if any(getattr(choice, name) is not None for choice in tuned.pareto)]
    titles = "".join(f"{scores[name]:>8}" for name in taken)
    click.echo(f"{'':16}{'CRF/q':>6}{titles}{'bytes/frame':>13}{'all':>10}{'ms/sequence':>13}{'CPU time':>11}")
    for choice in tuned.pareto:
        name = choice.codec if choice.gop is None else f"{choice.codec} GOP {choice.gop}"
        values = [getattr(choice, name) for name in taken]
        row = f"{choice.value:6}" + "".join(f"{'-':>8}" if score is None else f"{score:8.2f}" for score in values)
        row += f"{choice.bytes_per_frame:13,.0f}{format_bytes(choice.total_bytes):>10}"
        click.echo(f"{name:16}{row}{choice.ms_per_sequence:13.2f}{_duration(choice.encode_hours * 3600):>11}")
    beaten = len(tuned.choices) - len(tuned.pareto)
    sampled = f"{tuned.sampled} of {count_of(tuned.num_videos, 'video')}"
    click.echo(f"Measured on {sampled}. Not shown: {count_of(beaten, 'choice')} that others beat in size and time.")
    click.echo("Times vary from run to run; --sample and --seconds measure more.")
    for word, texts in (("left out", tuned.left_out), ("not scored", tuned.not_scored)):
        for text in texts:
            click.echo(f"{word}: {printable(text)}")


def _units(source: Path, out: Path, keywords: Mapping[str, Any]) -> tuple[Unit, ...]:
    from vidprep.transcode.sources.listing import find_sources

    options = build_options(SourceOptions, keywords)
    return find_sources(source, out, options, takes_pictures=keywords.get("source_fps") is not None).units
