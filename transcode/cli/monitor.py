"""`vidprep monitor`."""

from __future__ import annotations

from pathlib import Path

import click

from vidprep.formats.errors import MissingError
from vidprep.transcode.cli.command import Viewer
from vidprep.transcode.cli.options import LocalPath


@click.command(cls=Viewer)
@click.argument("paths", metavar="FILE…", type=LocalPath(dir_okay=False), nargs=-1, required=True)
@click.option("--once", is_flag=True, help="Show the present state, and exit.")
def monitor(paths: tuple[Path, ...], once: bool = False) -> None:
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
