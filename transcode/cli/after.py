"""The commands that look at what was made, or at this machine: parse, call, print, exit code."""

from __future__ import annotations

import sys
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import click

from vidprep.formats.errors import MissingError
from vidprep.formats.files.local import check_writable
from vidprep.formats.profiles import JPEG_SUBSAMPLINGS
from vidprep.formats.stores.registry import STORES_OF_FRAMES
from vidprep.transcode.cli.options import SOURCE_OPTIONS, Command, FolderOrUrl, LocalPath, Viewer
from vidprep.transcode.run.text import printable
from vidprep.transcode.settings.options import FrameOptions
from vidprep.transcode.settings.parse import parse_bytes

EXPORTS = ("frames", "hf", "torchcodec", "dali", "mmaction")


@click.command(cls=Command)
@click.argument("paths", metavar="[SRC] DST", type=LocalPath(), nargs=-1, required=True)
@SOURCE_OPTIONS
@click.option(
    "--sample", type=click.IntRange(min=1), metavar="N", help="Read only N units again, the same ones each time."
)
@click.option(
    "--cross-check",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    metavar="K",
    help="With SRC: score so many videos by the ffmpeg command as well; both must agree.",
)
@click.option("--vmaf", is_flag=True, help="With SRC: score every video by libvmaf too, in the ffmpeg command.")
@click.option(
    "--seek-check",
    type=click.IntRange(min=1),
    metavar="K",
    help="K random seeks in each video, in PyAV and each of torchcodec, decord and OpenCV that is installed.",
)
@click.option(
    "--ffmpeg",
    type=LocalPath(str),
    metavar="PATH",
    help="Of --cross-check and --vmaf. Default: VIDPREP_FFMPEG, imageio-ffmpeg.",
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Units at a time. Default: one per core.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def validate(
    paths: tuple[Path, ...], sample: int | None, cross_check: int, vmaf: bool, seek_check: int | None,
    ffmpeg: str | None, jobs: int | None, quiet: bool, **chosen: Any,
) -> None:  # fmt: skip
    """Check a finished destination again, from its bytes: checksums, layout, keyframes, times, every frame decoded.

    With SRC (and --include, --limit and the like, as the run was given them), every source must have a row, and frames are made
    anew from the sources, compared and scored. A line for each fault on stdout, with file and offset; what was measured goes to
    DST/validation.parquet. Interrupted, the same command goes on.

    \b
    Exit codes: 0 nothing wrong, 1 faults, 2 wrong usage, 130 interrupted.
    """
    from tqdm import tqdm

    from vidprep.transcode.check.validate import Wanted
    from vidprep.transcode.check.validate import validate as check
    from vidprep.transcode.destination.folder import settings_of
    from vidprep.transcode.run.plan import unit_of_problem
    from vidprep.transcode.sources.listing import find_sources
    from vidprep.transcode.workers.local import default_jobs

    if len(paths) > 2:
        raise click.UsageError("give a destination, or its sources and the destination")
    *given, destination = paths
    sources = None
    if given:
        found = find_sources(given[0], destination, extension=settings_of(destination).extension, **chosen)
        sources = {unit.id: unit for unit in (*found.units, *map(unit_of_problem, found.problems, found.problem_units))}
    wanted = Wanted(sample, cross_check, vmaf, seek_check or 0, ffmpeg)
    with tqdm(unit="video", disable=True if quiet else None, file=sys.stderr, smoothing=0.1) as bar:
        report = check(
            destination, sources, wanted, jobs=jobs or default_jobs(), on_fault=lambda text: click.echo(printable(text)),
            on_start=bar.reset, on_unit=bar.update,
        )  # fmt: skip
    say = partial(click.echo, err=True)
    for name, seeks in report.seeks.items():
        unread = f"; {seeks.unread} videos it does not read ({printable(seeks.reason or '')})" if seeks.unread else ""
        say(f"vidprep: {name}: {seeks.tried} seeks, {seeks.wrong} to another picture than in order{unread}")
    parts = [f"{report.checked} units read again", f"{len(report.faults)} faults"]
    parts += [f"{report.resumed} of the units by the check that was interrupted"] if report.resumed else []
    parts += [f"{report.cross_checked} scored by ffmpeg too"] if report.cross_checked else []
    parts += [f"{report.failed_before} had failed in the run"] if report.failed_before else []
    say(f"vidprep: {', '.join(parts)}")
    if report.ffmpeg_failed:
        say(f"vidprep: the ffmpeg command could not score every video; the first: {printable(report.ffmpeg_failed)}")
    if report.unwritten:
        say(f"vidprep: nothing was recorded: {report.unwritten}")
    sys.exit(1 if report.faults else 0)


@click.command(cls=Command)
@click.argument("paths", metavar="DST…", type=LocalPath(), nargs=-1, required=True)
@click.option("--out", type=LocalPath(file_okay=False), metavar="FOLDER", help="Default: the first DST.")
@click.option("--title", default="vidprep report", show_default=True, metavar="TEXT", help="The heading of the page.")
@click.option(
    "--worst",
    type=click.IntRange(min=0),
    default=6,
    show_default=True,
    metavar="N",
    help="Worst frames shown of each DST.",
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Videos at a time. Default: one per core.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def report(paths: tuple[Path, ...], out: Path | None, title: str, worst: int, jobs: int | None, quiet: bool) -> None:
    """Show what was made, side by side when there are several: sizes, PSNR and SSIM, worst frames, failures, settings.

    Writes report.html (one file, no network), report.md and report.json; prints the path of the page on stdout.
    """
    from datetime import datetime

    from tqdm import tqdm

    from vidprep.transcode.workers.local import default_jobs

    try:
        from vidprep.transcode.report.report import report as write
    except ModuleNotFoundError as error:
        raise MissingError(f"a report needs {error.name}: pip install 'vidprep[report]'") from error
    check_writable(out or paths[0], "give --out another folder")
    with tqdm(unit="video", disable=True if quiet else None, file=sys.stderr) as bar:
        written = write(
            paths, out or paths[0], title=title, created=f"{datetime.now():%Y-%m-%d %H:%M}", jobs=jobs or default_jobs(),
            strips=worst, on_start=bar.reset, on_still=bar.update,
        )  # fmt: skip
    click.echo(written.html)


@click.command(cls=Viewer)
@click.argument("paths", metavar="FILE…", type=LocalPath(dir_okay=False), nargs=-1, required=True)
@click.option("--once", is_flag=True, help="Show what there is now, and end.")
def monitor(paths: tuple[Path, ...], once: bool) -> None:
    """Show runs live: rates, time left, what is at work, what failed, what is slowest; and loaders: waits, what is ready.

    FILE: what runs write with --events, and loaders with events=, one file for all of them or one for each; from any machine
    that sees it; a named pipe too. Ends when all runs have ended and all loaders are closed.
    """
    try:
        from rich.console import Console

        from vidprep.transcode.report.monitor import monitor as show
    except ModuleNotFoundError as error:
        raise MissingError(f"vidprep monitor needs {error.name}: pip install 'vidprep[monitor]'") from error
    show(paths, Console(), once=once)


@click.command(cls=Command)
@click.argument("destination", metavar="DST", type=FolderOrUrl())
def merge(destination: Path | str) -> None:
    """Join the parts of a run by --shard into one destination, when its tasks have ended.

    One manifest, the index of shards, nothing left of killed tasks. A line on stdout for each video of the run that is missing,
    with the reason; run the tasks that did not end again, then merge again. Videos that came after the run had begun are made by
    the next run: an array again, or the command without --shard.

    \b
    Exit codes: 0 all good, 1 some video failed or is missing, 2 wrong usage or a task is still at work.
    """
    from vidprep.transcode.destination.merge import merge as join
    from vidprep.transcode.destination.remote import merge_remote

    merged = join(destination) if isinstance(destination, Path) else merge_remote(destination)
    for id_, why in merged.missing.items():
        click.echo(printable(f"{id_}: {why}"))
    said = f"{merged.parts} parts joined; {merged.ok} ok, {merged.failed} failed"
    said += f", {len(merged.missing)} missing" if merged.missing else ""
    click.echo(f"vidprep: {said}", err=True)
    if merged.unended:
        parts = ", ".join(map(str, merged.unended[:10])) + " …" * (len(merged.unended) > 10)
        said = f"{len(merged.unended)} of {merged.count} parts did not end ({parts}); run them again, then merge"
        click.echo(f"vidprep: {said}", err=True)
    sys.exit(0 if merged.is_whole else 1)


@click.command(cls=Command)
@click.argument("store", metavar="STORE", type=LocalPath())
@click.argument("out", metavar="OUT", type=LocalPath())
@click.option("--to", "kind", type=click.Choice((*STORES_OF_FRAMES, *EXPORTS)), required=True, help="What OUT becomes.")
@click.option(
    "--quality", type=int, default=90, show_default=True, metavar="Q", help="Of JPEGs that STORE does not have."
)
@click.option(
    "--subsampling",
    type=click.Choice(tuple(JPEG_SUBSAMPLINGS)),
    default="420",
    show_default=True,
    help="Chroma of those.",
)
@click.option("--shard-size", default="1GiB", show_default=True, metavar="BYTES", help="Begin a new shard past this.")
@click.option(
    "--labels",
    type=LocalPath(),
    metavar="TABLE",
    help="Labels on frames or seconds of the sources, carried over into OUT/labels.csv.",
)
def pack(
    store: Path, out: Path, kind: str, quality: int, subsampling: str, shard_size: str, labels: Path | None
) -> None:
    """Make of STORE (any destination of transcode or burst, or a GulpIO or WebDataset folder) what another tool reads.

    \b
    burst, gulp, webdataset, tensor   another store; JPEGs are copied as they are, videos go into tar shards as they are
    frames                            a folder of img_00001.jpg … for each video
    hf                                a folder for load_dataset("videofolder"), labels included
    torchcodec                        custom_frame_mappings of each video
    dali, mmaction                    their lists of files and numbered labels
    """
    from vidprep.formats.stores.registry import open_store

    opened = open_store(store)
    if kind in STORES_OF_FRAMES:
        from vidprep.transcode.export.pack import pack_store

        count = pack_store(opened, out, FrameOptions(kind, quality, subsampling, parse_bytes(shard_size)))
    else:
        from vidprep.transcode.export.folders import export

        count = export(opened, out, kind, FrameOptions("burst", quality, subsampling))
    click.echo(f"vidprep: {count} videos packed into {out}", err=True)
    if labels is not None:
        from vidprep.transcode.export.labels import relabel

        written, unseen = relabel(store, labels, out)
        click.echo(
            f"vidprep: {written} labels in {out / 'labels.csv'}; {unseen} lie where no output has a frame", err=True
        )


@click.command(cls=Command)
@click.argument("destination", metavar="[DST]", type=FolderOrUrl(), required=False)
@click.option(
    "--ffmpeg",
    type=LocalPath(str),
    metavar="PATH",
    help="The ffmpeg to look at. Default: VIDPREP_FFMPEG, PATH, imageio-ffmpeg.",
)
def doctor(destination: Path | str | None, ffmpeg: str | None) -> None:
    """Try out what a run needs on this machine, and say what to do about what does not work.

    With DST, also what its file system or store can do: whether one run keeps another out.

    A rotated clip with sound is made in every codec, by both engines and as burst, validated, and read back.
    Exit 1 when a default is broken.
    """
    from vidprep.transcode.check.doctor import examine, examine_destination

    healthy = True
    for finding in chain(examine(ffmpeg), examine_destination(destination) if destination else ()):
        click.echo(f"{'ok  ' if finding.ok else 'no  ' if finding.needed else '-   '} {finding.what}: {finding.detail}")
        if not finding.ok:
            click.echo(f"     {finding.advice}")
        healthy &= finding.ok or not finding.needed
    sys.exit(0 if healthy else 1)
