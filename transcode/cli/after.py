"""The commands that look at what was made, or at this machine: parse, call, print, exit code."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vidprep.formats.errors import MissingError
from vidprep.formats.profiles import JPEG_SUBSAMPLINGS
from vidprep.formats.stores.registry import STORES_OF_FRAMES
from vidprep.transcode.check.api import doctor as examine
from vidprep.transcode.check.api import validate as check
from vidprep.transcode.cli.options import SOURCE_OPTIONS, Command, FolderOrUrl, LocalPath, Viewer, defaults_of
from vidprep.transcode.export.api import EXPORTS
from vidprep.transcode.export.api import pack as make
from vidprep.transcode.pages.api import report as write
from vidprep.transcode.run.api import compact as write_anew
from vidprep.transcode.run.api import label as write_labels
from vidprep.transcode.run.api import merge as join
from vidprep.transcode.run.text import number, printable
from vidprep.transcode.settings.run_options import BAD_ROWS

if TYPE_CHECKING:
    from vidprep.transcode.check.finding import Finding

OF_VALIDATE, OF_REPORT, OF_PACK = defaults_of(check), defaults_of(write), defaults_of(make)
OF_LABEL = defaults_of(write_labels)


@click.command(cls=Command)
@click.argument("paths", metavar="[SRC] DST", type=FolderOrUrl(), nargs=-1, required=True)
@SOURCE_OPTIONS
@click.option(
    "--sample", type=click.IntRange(min=1), metavar="N", help="Read only N units again, the same ones each time."
)
@click.option(
    "--cross-check",
    type=click.IntRange(min=0),
    default=OF_VALIDATE["cross_check"],
    show_default=True,
    metavar="K",
    help="With SRC: score K videos with the ffmpeg command as well; both must agree.",
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
    help="The ffmpeg for --cross-check and --vmaf. Default: VIDPREP_FFMPEG, imageio-ffmpeg.",
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Units at a time. Default: one per core.")
@click.option("--out", type=LocalPath(file_okay=False), metavar="FOLDER", help="Put validation.parquet there too.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def validate(
    paths: tuple[Path | str, ...], sample: int | None, cross_check: int, vmaf: bool, seek_check: int | None,
    ffmpeg: str | None, jobs: int | None, out: Path | None, quiet: bool, **chosen: Any,
) -> None:  # fmt: skip
    """Check a finished destination again, from its bytes: checksums, layout, keyframes, times, every frame decoded.

    With SRC (and --include, --limit and the like, as the run was given them), every source must have a row, and frames are made
    anew from the sources, compared and scored. A line for each fault on stdout, with file and offset; what was measured goes to
    DST/validation.parquet. Interrupted, the same command goes on. A DST behind a URL is copied to TMPDIR, and nothing is written there.

    \b
    Exit codes: 0 nothing wrong, 1 faults, 2 wrong usage, 130 interrupted.
    """
    if len(paths) > 2:
        raise click.UsageError("give a destination, or its sources and the destination")
    *source, destination = paths
    report = check(
        destination, source[0] if source else None, sample=sample, cross_check=cross_check, vmaf=vmaf, seek_check=seek_check,
        ffmpeg=ffmpeg, jobs=jobs, progress=not quiet, out=out, on_fault=lambda text: click.echo(printable(text)), **chosen,
    )  # fmt: skip
    say = partial(click.echo, err=True)
    for name, seeks in report.seeks.items():
        unread = f"; {seeks.unread} videos it does not read ({printable(seeks.reason or '')})" if seeks.unread else ""
        say(f"vidprep: {name}: {seeks.tried} seeks, {seeks.wrong} to another picture than in order{unread}")
    parts = [f"{number(report.checked, 'unit')} read again", number(len(report.faults), "fault")]
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
@click.argument("paths", metavar="DST…", type=FolderOrUrl(), nargs=-1, required=True)
@click.option(
    "--out", type=LocalPath(file_okay=False), metavar="FOLDER", help="Folder for the report. Default: the first DST."
)
@click.option("--title", default=OF_REPORT["title"], show_default=True, metavar="TEXT", help="The heading of the page.")
@click.option(
    "--worst",
    type=click.IntRange(min=0),
    default=OF_REPORT["worst"],
    show_default=True,
    metavar="N",
    help="Worst frames shown of each DST.",
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Videos at a time. Default: one per core.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def report(
    paths: tuple[Path | str, ...], out: Path | None, title: str, worst: int, jobs: int | None, quiet: bool
) -> None:
    """Make a report of one or more destinations, side by side: sizes, PSNR and SSIM, worst frames, failures, settings.

    Writes report.html (one file, no network), report.md and report.json; prints the path of the page on stdout.
    """
    click.echo(write(paths, out=out, title=title, worst=worst, jobs=jobs, progress=not quiet).html)


@click.command(cls=Viewer)
@click.argument("paths", metavar="FILE…", type=LocalPath(dir_okay=False), nargs=-1, required=True)
@click.option("--once", is_flag=True, help="Show the present state, and exit.")
def monitor(paths: tuple[Path, ...], once: bool) -> None:
    """Show runs live: rates, time left, what is at work, what failed, what is slowest; and loaders: waits, what is ready.

    FILE: what runs write with --events, and loaders with events=, one file for all of them or one for each; from any machine
    that sees it; a named pipe too. Ends when all runs have ended and all loaders are closed.
    """
    try:
        from rich.console import Console

        from vidprep.transcode.pages.monitor import monitor as show
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
    Exit codes: 0 all good, 1 some video failed or is missing, 2 wrong usage, 3 a task is still at work.
    """
    merged = join(destination)
    for id_, why in merged.missing.items():
        click.echo(printable(f"{id_}: {why}"))
    line = f"{merged.parts} parts joined; {merged.ok} ok, {merged.failed} failed"
    line += f", {len(merged.missing)} missing" if merged.missing else ""
    click.echo(f"vidprep: {line}", err=True)
    if merged.unended:
        parts = ", ".join(map(str, merged.unended[:10])) + " …" * (len(merged.unended) > 10)
        line = f"{len(merged.unended)} of {merged.count} parts did not end ({parts}); run them again, then merge"
        click.echo(f"vidprep: {line}", err=True)
    if merged.changed:
        named = printable(", ".join(merged.changed[:10])) + " …" * (len(merged.changed) > 10)
        line = f"{len(merged.changed)} sources changed after the array run was planned, and were made as they are now: {named}"
        click.echo(f"vidprep: {line}", err=True)
    sys.exit(0 if merged.is_whole else 1)


@click.command(cls=Command)
@click.argument("destination", metavar="DST", type=FolderOrUrl())
def compact(destination: Path | str) -> None:
    """Free the bytes in shards that no video needs any more, and join small shards.

    What a run replaces stays in its shard until a quarter of that is dead; then the run itself writes the shard anew. This
    writes all shards with dead bytes anew. The store can be read at any moment, and a kill loses nothing.
    """
    done = write_anew(destination)
    click.echo(f"vidprep: {done.shards} shards written anew; {done.dead_bytes} dead bytes freed", err=True)


@click.command(cls=Command)
@click.argument("destination", metavar="DST", type=FolderOrUrl())
@click.argument("table", metavar="[TABLE]", type=LocalPath(dir_okay=False), required=False)
@click.option("--labels", metavar="A,B", help="Take only these columns of TABLE.")
@click.option("--remove", metavar="A,B", default="", help="Remove these labels.")
@click.option(
    "--on-bad-row",
    type=click.Choice(BAD_ROWS),
    default=OF_LABEL["on_bad_row"],
    show_default=True,
    help="What to do with rows that speak of no video.",
)
@click.option("--dry-run", is_flag=True, help="Show what would change; write nothing.")
def label(
    destination: Path | str, table: Path | None, labels: str | None, remove: str, on_bad_row: str, dry_run: bool
) -> None:
    """Add, change and remove labels of DST, without its sources. No output is touched.

    TABLE (.csv, .tsv, .parquet, .jsonl) has a column `id`, or `path` and, for cuts, `start` and `end`; its other columns are labels.
    Videos and labels that are not in it stay as they are, and so do those whose cell is empty. A later run gives its sources' labels
    again.

    \b
    vidprep label ready/ corrected.csv --dry-run
    vidprep label ready/ --remove split,notes
    """
    done = write_labels(destination, table, labels=labels, remove=remove, on_bad_row=on_bad_row, dry_run=dry_run)
    for id_, before, after in done.examples if dry_run else ():
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                click.echo(printable(f"{id_}: {name}: {before.get(name)!r} -> {after.get(name)!r}"))
    for why in done.skipped:
        click.echo(printable(f"skipped: {why}"), err=True)
    parts = [f"{number(len(done.videos), 'video')} {'would be ' * dry_run}relabelled"]
    for what in ("added", "changed", "removed"):
        parts += [f"{what}: {printable(', '.join(getattr(done, what)))}"] if getattr(done, what) else []
    click.echo(f"vidprep: {'; '.join(parts)}", err=True)


@click.command(cls=Command)
@click.argument("store", metavar="STORE", type=LocalPath())
@click.argument("out", metavar="OUT", type=LocalPath())
@click.option("--to", "kind", type=click.Choice((*STORES_OF_FRAMES, *EXPORTS)), required=True, help="What to make.")
@click.option(
    "--quality",
    type=int,
    default=OF_PACK["quality"],
    show_default=True,
    metavar="Q",
    help="JPEG quality, where STORE has no JPEGs to copy.",
)
@click.option(
    "--subsampling",
    type=click.Choice(tuple(JPEG_SUBSAMPLINGS)),
    default=OF_PACK["subsampling"],
    show_default=True,
    help="Chroma subsampling, where STORE has no JPEGs to copy.",
)
@click.option(
    "--shard-size",
    default=OF_PACK["shard_size"],
    show_default=True,
    metavar="BYTES",
    help="Start a new shard beyond this size.",
)
@click.option(
    "--labels",
    type=LocalPath(),
    metavar="TABLE",
    help="Labels on frames or seconds of the sources, carried over into OUT/labels.csv.",
)
def pack(
    store: Path, out: Path, kind: str, quality: int, subsampling: str, shard_size: str, labels: Path | None
) -> None:
    """Convert STORE (what transcode or burst made, or a GulpIO or WebDataset folder) into what another tool reads.

    \b
    burst, gulp, webdataset, tensor   another store; JPEGs are copied as they are, videos go into tar shards as they are
    frames                            a folder of img_00001.jpg … for each video
    hf                                a folder for load_dataset("videofolder"), labels included
    torchcodec                        custom_frame_mappings of each video
    dali, mmaction                    their lists of files and numbered labels
    """
    packed = make(store, out, to=kind, quality=quality, subsampling=subsampling, shard_size=shard_size, labels=labels)
    click.echo(f"vidprep: {packed.num_videos} videos packed into {out}", err=True)
    if labels is not None:
        where = out / "labels.csv"
        click.echo(
            f"vidprep: {packed.labels} labels in {where}; {packed.labels_unseen} lie where no output has a frame",
            err=True,
        )


@click.command(cls=Command)
@click.argument("destination", metavar="[DST]", type=FolderOrUrl(), required=False)
@click.option(
    "--ffmpeg",
    type=LocalPath(str),
    metavar="PATH",
    help="The ffmpeg to examine. Default: VIDPREP_FFMPEG, PATH, imageio-ffmpeg.",
)
def doctor(destination: Path | str | None, ffmpeg: str | None) -> None:
    """Try out what a run needs on this machine, and say what to do about what does not work.

    With DST, also what its file system or store can do: whether one run keeps another out.

    A rotated clip with audio is made in every codec, by both engines and as burst, validated, and read back.
    Exit 1 when a default is broken.
    """
    findings = examine(destination, ffmpeg=ffmpeg, on_finding=_print)
    sys.exit(0 if all(finding.ok or not finding.needed for finding in findings) else 1)


def _print(finding: Finding) -> None:
    click.echo(f"{'ok  ' if finding.ok else 'no  ' if finding.needed else '-   '} {finding.what}: {finding.detail}")
    if not finding.ok:
        click.echo(f"     {finding.advice}")
