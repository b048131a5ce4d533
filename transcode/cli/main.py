"""The command line: parse, call, print, exit code. Says nothing to stdout but what machines read.

What not every command needs is imported late.
"""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Any

import click

from vidprep.formats.errors import SettingsError
from vidprep.transcode.cli import after as cli_after
from vidprep.transcode.cli import bench as cli_bench
from vidprep.transcode.cli import choose as cli_choose
from vidprep.transcode.cli.options import (
    CHECK_OPTIONS,
    ENCODE_OPTIONS,
    FRAME_OPTIONS,
    RUN_OPTIONS,
    SOURCE_OPTIONS,
    STORE_OPTIONS,
    USAGE_ERROR,
    Command,
    FolderOrUrl,
    LinePrinter,
)
from vidprep.transcode.settings.keywords import built, settings_of
from vidprep.transcode.settings.run_options import RunOptions, SourceOptions

if sys.platform == "win32":
    sys.exit("vidprep runs on Linux and macOS; on Windows run it in WSL")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="vidprep", prog_name="vidprep")
def main() -> None:
    """Make, once, the video dataset that training should read, and prove it.

    \b
    vidprep transcode raw/ ready/ --fps 15 --short-side 240 --gop 16
    vidprep transcode clips.csv ready/ --codec av1 --size 224x224 --fit crop
    vidprep doctor
    """


@main.command(cls=Command)
@click.argument("source", metavar="SRC", type=FolderOrUrl())
@click.argument("destination", metavar="DST", type=FolderOrUrl())
@SOURCE_OPTIONS
@FRAME_OPTIONS
@ENCODE_OPTIONS
@CHECK_OPTIONS
@RUN_OPTIONS
def transcode(source: Path | str, destination: Path | str, **given: Any) -> None:
    """Re-encode SRC (a folder, a file, or a table .csv/.tsv/.parquet/.jsonl with a column `path`) into DST, and verify it.

    Every output is decoded and compared with the frames it was made from before it takes its name. DST/manifest.parquet
    has one row per video. Run the same command again to go on after a stop: what is done is not done again.

    \b
    Exit codes: 0 all good, 1 some video failed, 2 wrong usage, 3 stopped by the destination, the workers or the cluster
    (run again), 130 or 143 interrupted.
    \b
    vidprep transcode raw/ ready/                                    H.264, keyframe every 16, own rate and size
    vidprep transcode raw/ ready/ --fps 15 --short-side 240 --gop 5  for short random sequences
    vidprep transcode clips.csv ready/ --size 224x224 --fit crop     cuts and labels from a table
    """
    _run(source, destination, given, of_frames=False)


@main.command(cls=Command)
@click.argument("source", metavar="SRC", type=FolderOrUrl())
@click.argument("destination", metavar="DST", type=FolderOrUrl())
@SOURCE_OPTIONS
@FRAME_OPTIONS
@STORE_OPTIONS
@CHECK_OPTIONS
@RUN_OPTIONS
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
    _run(source, destination, given, of_frames=True)


def _run(source: Path | str, destination: Path | str, given: dict[str, Any], *, of_frames: bool) -> None:
    from vidprep.transcode.cli.dry_run import print_dry_run
    from vidprep.transcode.run.events import Events
    from vidprep.transcode.run.progress import Progress
    from vidprep.transcode.run.session import carry_out, make_request, preview

    dry_run, as_json, quiet = (given.pop(name) for name in ("dry_run", "as_json", "quiet"))
    settings = settings_of(given, of_frames=of_frames)
    options = built(RunOptions, given)
    if options.events == "-" and as_json:
        raise SettingsError("--events - and --json both write to stdout; give --events a file")
    events = Events(options.events) if options.events and not dry_run else None
    printer = LinePrinter()
    on_row = (lambda row: printer.print(row.as_json())) if as_json else None
    progress = Progress(is_shown=True, has_bar=not quiet, events=events, on_row=on_row)
    request = make_request(source, destination, settings, built(SourceOptions, given), options, progress)
    if dry_run:
        print_dry_run(*preview(request), request.place)
        return
    summary = carry_out(request)
    if as_json:
        printer.print(summary.as_json())
    if printer.fault is not None and printer.fault.errno != errno.EPIPE:
        click.echo(f"vidprep: not all rows could be printed: {printer.fault.strerror}; the manifest has them", err=True)
        sys.exit(summary.exit_code or USAGE_ERROR)
    sys.exit(summary.exit_code)


main.add_command(cli_choose.sweep)
main.add_command(cli_choose.tune)
main.add_command(cli_bench.bench)
main.add_command(cli_after.validate)
main.add_command(cli_after.report)
main.add_command(cli_after.monitor)
main.add_command(cli_after.merge)
main.add_command(cli_after.compact)
main.add_command(cli_after.label)
main.add_command(cli_after.pack)
main.add_command(cli_after.doctor)
