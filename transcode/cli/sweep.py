"""`vidprep sweep`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from vidprep.formats.option import options_of
from vidprep.formats.text import count_of
from vidprep.transcode.choose.api import sweep as measure
from vidprep.transcode.cli.command import Command
from vidprep.transcode.cli.options import QUIET, LocalPath, options
from vidprep.transcode.pages.api import missing_for_pages, report
from vidprep.transcode.settings.keywords import SAMPLE

# Title, width and decimals.
COLUMNS = (("CRF", 6, 1), ("bytes/frame", 13, 0), ("PNG÷size", 10, 1), ("JPEG÷size", 11, 1), ("ms/frame", 10, 2))


@click.command(cls=Command)
@click.argument("source", metavar="SRC", type=LocalPath())
@click.argument("out", metavar="OUT", type=LocalPath())
@options(each for kind in SAMPLE for each in options_of(kind))
@options(options_of(measure))
@QUIET
def sweep(source: Path, out: Path, quiet: bool = False, **given: Any) -> None:
    """Measure a sample of SRC in many settings: size against PNG and JPEG, PSNR, SSIM, encoding and reading times.

    Sources are decoded and scaled once. OUT gets sweep.parquet (a row for each setting and video), sweep.json, and
    report.html with rate-distortion curves. Run the same command again to go on after a stop, or with more settings to
    measure those as well.

    \b
    vidprep sweep raw/ choose/ --short-side 240 --gop 5,16
    vidprep sweep raw/ choose/ --codec h264,av1 --crf av1=20,30,40,50 --preset av1=6,8,10
    """
    from tqdm import tqdm

    if (absent := missing_for_pages()) is not None:
        click.echo(f"vidprep: no report.html: it needs {absent}: pip install 'vidprep[report]'", err=True)
    summary = measure(
        source,
        out,
        progress=not quiet,
        on_message=lambda text: tqdm.write(f"vidprep: {text}", file=sys.stderr),
        **given,
    )
    _print_table(summary)
    if absent is None:
        click.echo(report(out, title="vidprep sweep", worst=0, jobs=given.get("jobs")).html)


def _print_table(summary: dict[str, Any]) -> None:
    """Sizes at equal PSNR, for people."""
    from vidprep.transcode.pages.sweep_section import at_rows

    frames = len(summary["compared_videos"]), summary["num_frames"]
    click.echo(
        f"at {summary['at_psnr']['psnr_y_db']:g} dB PSNR-Y, {count_of(frames[0], 'video')}, {count_of(frames[1], 'frame')}:",
        err=True,
    )
    rows = [
        (name, value, size / summary["num_frames"] if size else None, png, jpeg, frame)
        for name, value, size, png, jpeg, frame, *_ in at_rows(summary)
    ]
    shown = [column for number, column in enumerate(COLUMNS, 1) if any(row[number] is not None for row in rows)]
    click.echo(f"{'':30}" + "".join(f"{title:>{width}}" for title, width, _ in shown), err=True)
    for name, *values in rows:
        cells = zip(COLUMNS, values, strict=True)
        texts = [
            f"{'-' if value is None else f'{value:,.{decimals}f}':>{width}}"
            for (title, width, decimals), value in cells
            if (title, width, decimals) in shown
        ]
        click.echo(f"{name:30}" + "".join(texts), err=True)
    if any(size is None for _, _, size, *_ in rows):
        click.echo(
            f"-: the values tried do not lie on both sides of {summary['at_psnr']['psnr_y_db']:g} dB; give others, or --at-psnr",
            err=True,
        )
