"""`vidprep compact`."""

from __future__ import annotations

from pathlib import Path

import click

from vidprep.formats.text import count_of
from vidprep.transcode.cli.command import Command
from vidprep.transcode.cli.options import FolderOrUrl
from vidprep.transcode.run.api import compact as write_anew


@click.command(cls=Command)
@click.argument("destination", metavar="DST", type=FolderOrUrl())
def compact(destination: Path | str) -> None:
    """Free the bytes in shards that no video needs any more, and join small shards.

    What a run replaces stays in its shard until a quarter of that is dead; then the run itself writes the shard anew. This
    writes all shards with dead bytes anew. The store can be read at any moment, and a kill loses nothing.
    """
    done = write_anew(destination)
    click.echo(
        f"vidprep: {count_of(done.shards, 'shard')} rewritten or joined; {count_of(done.dead_bytes, 'dead byte')} freed",
        err=True,
    )
