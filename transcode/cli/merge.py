"""`vidprep merge`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from vidprep.formats.text import count_of, printable
from vidprep.transcode.cli.command import Command
from vidprep.transcode.cli.options import FolderOrUrl
from vidprep.transcode.run.api import merge as join


@click.command(cls=Command)
@click.argument("destination", metavar="DST", type=FolderOrUrl())
def merge(destination: Path | str) -> None:
    """Join the parts of a run by --partition into one destination, when its tasks have ended.

    One manifest, the index of shards, nothing left of killed tasks. A line on stdout for each video of the run that is missing,
    with the reason; run the tasks that did not finish again, then merge again. Videos that came after the run had begun are made by
    the next run: an array again, or the command without --partition.

    \b
    Exit codes: 0 all good, 1 some video failed or is missing, 2 wrong usage, 3 a task is still at work.
    """
    merged = join(destination)
    for id_, why in merged.missing.items():
        click.echo(printable(f"{id_}: {why}"))
    joined = f"{count_of(merged.parts, 'part')} joined" if merged.parts else "no parts to join"
    line = f"{joined}; {merged.ok} ok, {merged.failed} failed"
    line += f", {len(merged.missing)} missing" if merged.missing else ""
    click.echo(f"vidprep: {line}", err=True)
    if merged.unended:
        parts = ", ".join(map(str, merged.unended[:10])) + " …" * (len(merged.unended) > 10)
        line = f"{len(merged.unended)} of {merged.count} parts did not finish ({parts}); run them again, then merge"
        click.echo(f"vidprep: {line}", err=True)
    if merged.changed:
        named = printable(", ".join(merged.changed[:10])) + " …" * (len(merged.changed) > 10)
        line = f"{len(merged.changed)} sources changed after the array run was planned, and were made as they are now: {named}"
        click.echo(f"vidprep: {line}", err=True)
    sys.exit(0 if merged.is_whole else 1)
