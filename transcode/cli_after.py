"""The commands that look at what was made, or at this machine: parse, call, print, exit code."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from vidprep.formats.profiles import JPEG_SUBSAMPLINGS
from vidprep.transcode import settings as knobs
from vidprep.transcode.options import Command

EXPORTS = ("frames", "hf", "torchcodec", "dali", "mmaction")


@click.command(cls=Command)
@click.argument("paths", metavar="[SRC] DST", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--sample", type=click.IntRange(min=1), metavar="N", help="Read only N units again, the same ones each time."
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Units at a time. Default: one per core.")
def validate(paths: tuple[Path, ...], sample: int | None, jobs: int | None) -> None:
    """Check a finished destination again, from its bytes: checksums, layout, keyframes, times, every frame decoded.

    With SRC (what the run was given), frames are made anew from the sources, compared and scored. A line for each fault on
    stdout, with file and offset.

    \b
    Exit codes: 0 nothing wrong, 1 faults, 2 wrong usage.
    """
    from vidprep.transcode.run import default_jobs
    from vidprep.transcode.sources import find_sources
    from vidprep.transcode.validate import validate as check

    if len(paths) > 2:
        raise click.UsageError("give a destination, or its sources and the destination")
    *given, destination = paths
    sources = {unit.id: unit for unit in find_sources(given[0], destination).units} if given else None
    report = check(destination, sources, sample=sample, jobs=jobs or default_jobs(), on_fault=click.echo)
    click.echo(
        f"vidprep: {report.checked} units read again, {len(report.faults)} faults; {report.failed_before} had failed in the run",
        err=True,
    )
    sys.exit(1 if report.faults else 0)


@click.command(cls=Command)
@click.argument("store", metavar="STORE", type=click.Path(path_type=Path))
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--to", "kind", type=click.Choice((*knobs.STORES, *EXPORTS)), required=True, help="What OUT becomes.")
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
    type=click.Path(path_type=Path),
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
    from vidprep.formats.store import open_store

    opened = open_store(store)
    if kind in knobs.STORES:
        from vidprep.transcode.pack import pack_store

        count = pack_store(opened, out, knobs.FrameOptions(kind, quality, subsampling, knobs.parse_bytes(shard_size)))
    else:
        from vidprep.transcode.exports import export

        count = export(opened, out, kind, knobs.FrameOptions("burst", quality, subsampling))
    click.echo(f"vidprep: {count} videos packed into {out}", err=True)
    if labels is not None:
        from vidprep.transcode.relabel import relabel

        written, unseen = relabel(store, labels, out)
        click.echo(
            f"vidprep: {written} labels in {out / 'labels.csv'}; {unseen} lie where no output has a frame", err=True
        )


@click.command(cls=Command)
@click.option("--ffmpeg", metavar="PATH", help="The ffmpeg to look at. Default: VIDPREP_FFMPEG, PATH, imageio-ffmpeg.")
def doctor(ffmpeg: str | None) -> None:
    """Say what this machine can encode and decode, by doing it, and what is missing. Exit 1 when a default is broken."""
    from vidprep.transcode.doctor import examine

    healthy = True
    for finding in examine(ffmpeg):
        click.echo(f"{'ok  ' if finding.ok else 'no  '} {finding.what}: {finding.detail}")
        healthy &= finding.ok or not finding.needed
    sys.exit(0 if healthy else 1)
