"""`vidprep transcode` and `vidprep burst`."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Any

import click

from vidprep.formats.errors import SettingsError
from vidprep.transcode.cli.command import USAGE_ERROR, Command, LinePrinter
from vidprep.transcode.cli.options import QUIET, Decorator, FolderOrUrl, options
from vidprep.transcode.run.api import request_of
from vidprep.transcode.settings.keywords import options_of_command
from vidprep.transcode.settings.output import FrameOutput, Output, VideoOutput


def _command(name: str) -> Decorator:
    """Arguments and flags that both have."""

    def apply(function: Any) -> Any:
        for decorate in (
            QUIET,
            click.option(
                "--json", "as_json", is_flag=True, help="Write one JSON line per row to stdout, then the summary."
            ),
            click.option(
                "--dry-run", is_flag=True, help="Show what would be done and what is ignored; open and write nothing."
            ),
            options(options_of_command(name)),
            click.argument("destination", metavar="DST", type=FolderOrUrl()),
            click.argument("source", metavar="SRC", type=FolderOrUrl()),
            click.command(cls=Command),
        ):
            function = decorate(function)
        return function

    return apply


@_command("transcode")
def transcode(source: Path | str, destination: Path | str, **given: Any) -> None:
    """Re-encode SRC (a folder, a file, or a table .csv/.tsv/.parquet/.jsonl with a column `path`) into DST, and verify it.

    Every output is decoded and compared with the frames it was made from before it is renamed into place. DST/manifest.parquet
    has one row per video. Run the same command again to go on after a stop: what is done is not done again.

    \b
    Exit codes: 0 all good, 1 some video failed, 2 wrong usage, 3 stopped by the destination, the workers or the cluster
    (run again), 130 or 143 interrupted.
    \b
    vidprep transcode raw/ ready/                                    H.264, keyframe every 16, own rate and size
    vidprep transcode raw/ ready/ --fps 15 --short-side 240 --gop 5  for short random sequences
    vidprep transcode clips.csv ready/ --size 224x224 --fit crop     cuts and labels from a table
    """
    _run(source, destination, given, VideoOutput)


@_command("burst")
def burst(source: Path | str, destination: Path | str, **given: Any) -> None:
    """Store the frames of SRC (a folder, a file, or a table) one by one in large shards in DST, and verify them.

    One JPEG generation, straight from the decoded frames; each is decoded back and scored. Colours are BT.601 full range,
    as every reader of JPEG expects. DST/manifest.parquet has one row per video. Run the same command again to go on.

    \b
    Exit codes: 0 all good, 1 some video failed, 2 wrong usage, 3 stopped by the destination, the workers or the cluster
    (run again), 130 or 143 interrupted.
    \b
    vidprep burst raw/ frames/ --fps 15 --short-side 240      JPEGs back to back, index.parquet beside
    vidprep burst raw/ frames/ --format webdataset            tar shards that webdataset reads
    vidprep burst raw/ frames/ --format tensor --size 112x112 raw uint8 frames, memory-mapped
    """
    _run(source, destination, given, FrameOutput)


def _run(source: Path | str, destination: Path | str, given: dict[str, Any], kind: type[Output]) -> None:
    from vidprep.transcode.run.progress import Progress
    from vidprep.transcode.run.session import execute, preview

    dry_run, as_json, quiet = (given.pop(name, False) for name in ("dry_run", "as_json", "quiet"))
    if given.get("events") == "-" and as_json:
        raise SettingsError("--events - and --json both write to stdout; give --events a file")
    printer = LinePrinter()
    on_row = (lambda row: printer.print(row.as_json())) if as_json else None
    progress = Progress(is_shown=True, has_bar=not quiet, on_row=on_row)
    request = request_of(source, destination, given, progress, kind, dry_run=dry_run)
    if dry_run:
        from vidprep.transcode.cli.dry_run import print_dry_run

        print_dry_run(request.place, *preview(request), as_json=as_json)
        return
    summary = execute(request)
    if as_json:
        printer.print(summary.as_json())
    if printer.fault is not None and printer.fault.errno != errno.EPIPE:
        click.echo(f"vidprep: not all rows could be printed: {printer.fault.strerror}; the manifest has them", err=True)
        sys.exit(summary.exit_code or USAGE_ERROR)
    sys.exit(summary.exit_code)
