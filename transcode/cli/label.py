"""`vidprep label`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vidprep.formats.option import options_of
from vidprep.formats.text import count_of, printable
from vidprep.transcode.cli.command import Command
from vidprep.transcode.cli.options import FolderOrUrl, LocalPath, options
from vidprep.transcode.run.api import label as write_labels


@click.command(cls=Command)
@click.argument("destination", metavar="DST", type=FolderOrUrl())
@click.argument("table", metavar="[TABLE]", type=LocalPath(dir_okay=False), required=False)
@options(options_of(write_labels))
def label(destination: Path | str, table: Path | None = None, dry_run: bool = False, **given: Any) -> None:
    """Add, change and remove labels of DST, without its sources. No output is touched.

    TABLE (.csv, .tsv, .parquet, .jsonl) has a column `id`, or `path`, relative to the folder of TABLE, and for cuts `start` and `end`.
    Its other columns are labels.
    Videos and labels that are not in it stay as they are, and so do those whose cell is empty. A later run gives its sources' labels
    again.

    \b
    vidprep label ready/ corrected.csv --dry-run
    vidprep label ready/ --remove split,notes
    """
    done = write_labels(destination, table, dry_run=dry_run, **given)
    for id_, before, after in done.examples if dry_run else ():
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                click.echo(printable(f"{id_}: {name}: {before.get(name)!r} -> {after.get(name)!r}"))
    for why in done.skipped:
        click.echo(printable(f"skipped: {why}"), err=True)
    for note in done.notes:
        click.echo(printable(f"vidprep: note: {note}"), err=True)
    parts = [f"{count_of(len(done.videos), 'video')} {'would be ' * dry_run}relabelled"]
    for what in ("added", "changed", "removed"):
        parts += [f"{what}: {printable(', '.join(getattr(done, what)))}"] if getattr(done, what) else []
    click.echo(f"vidprep: {'; '.join(parts)}", err=True)
