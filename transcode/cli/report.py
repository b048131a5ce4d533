"""`vidprep report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vidprep.formats.option import options_of
from vidprep.transcode.cli.command import Command
from vidprep.transcode.cli.options import QUIET, FolderOrUrl, options
from vidprep.transcode.pages.api import report as write


@click.command(cls=Command)
@click.argument("paths", metavar="DST…", type=FolderOrUrl(), nargs=-1, required=True)
@options(options_of(write))
@QUIET
def report(paths: tuple[Path | str, ...], quiet: bool = False, **given: Any) -> None:
    """Make a report of one or more destinations, side by side: sizes, PSNR and SSIM, worst frames, failures, settings.

    Writes report.html (one file, no network), report.md and report.json; prints the path of the page on stdout.
    """
    click.echo(write(paths, progress=not quiet, **given).html)
