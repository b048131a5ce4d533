"""`vidprep validate`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from vidprep.formats.errors import SettingsError
from vidprep.formats.option import options_of
from vidprep.formats.text import count_of, printable
from vidprep.transcode.check.api import validate as check
from vidprep.transcode.cli.command import Command
from vidprep.transcode.cli.options import QUIET, FolderOrUrl, options
from vidprep.transcode.settings.run_options import SourceOptions


@click.command(cls=Command)
@click.argument("paths", metavar="[SRC] DST", type=FolderOrUrl(), nargs=-1, required=True)
@options(options_of(SourceOptions))
@options(options_of(check))
@QUIET
def validate(paths: tuple[Path | str, ...], quiet: bool = False, **given: Any) -> None:
    """Check a finished destination again, from its bytes: checksums, layout, keyframes, times, every frame decoded.

    With SRC (and --include, --limit and the like, as the run was given them), every source must have a row, and frames are made
    anew from the sources, compared and scored. A line for each fault on stdout, with file and offset; what was measured goes to
    DST/validation.parquet. Interrupted, the same command goes on. A DST behind a URL is copied to TMPDIR, and nothing is written there.

    \b
    Exit codes: 0 nothing wrong, 1 faults, 2 wrong usage, 130 interrupted.
    """
    if len(paths) > 2:
        raise SettingsError("give a destination, or its sources and the destination")
    *sources, destination = paths
    source = sources[0] if sources else None
    report = check(
        destination, source=source, progress=not quiet, on_fault=lambda text: click.echo(printable(text)), **given
    )
    say = partial(click.echo, err=True)
    for name, seeks in report.seeks.items():
        unread = f"; {seeks.unread} videos it does not read ({printable(seeks.reason or '')})" if seeks.unread else ""
        say(f"vidprep: {name}: {count_of(seeks.tried, 'seek')}, {seeks.wrong} to a wrong picture{unread}")
    parts = [f"{count_of(report.checked, 'video')} read again", count_of(len(report.faults), "fault")]
    parts += [f"{report.resumed} of them by the check that was interrupted"] if report.resumed else []
    parts += [f"{report.cross_checked} scored by ffmpeg too"] if report.cross_checked else []
    parts += [f"{report.failed_before} had failed in the run"] if report.failed_before else []
    say(f"vidprep: {', '.join(parts)}")
    if report.ffmpeg_failed:
        say(f"vidprep: the ffmpeg command did not score every video; the first: {printable(report.ffmpeg_failed)}")
    if report.unwritten:
        say(f"vidprep: nothing was recorded: {report.unwritten}")
    sys.exit(1 if report.faults else 0)
