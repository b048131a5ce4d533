"""`vidprep sweep`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from vidprep.formats.option import options_of
from vidprep.transcode.choose.api import sweep as measure
from vidprep.transcode.cli.command import Command
from vidprep.transcode.cli.options import QUIET, LocalPath, options
from vidprep.transcode.pages.api import missing_for_pages, report
from vidprep.transcode.settings.keywords import SAMPLE


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
    click.echo(f"at {summary['at_psnr']['psnr_y_db']:g} dB PSNR-Y, {frames[0]} videos, {frames[1]:,} frames:", err=True)
    click.echo(f"{'':30}{'CRF':>6}{'bytes/frame':>13}{'PNG÷size':>10}{'JPEG÷size':>11}{'ms/frame':>10}", err=True)

    def text(value: float | None, decimals: int) -> str:
        return "-" if value is None else f"{value:,.{decimals}f}"

    for name, value, size, png, jpeg, frame, *_ in at_rows(summary):
        each = size / summary["num_frames"] if size else None
        columns = f"{text(value, 1):>6}{text(each, 0):>13}{text(png, 1):>10}{text(jpeg, 1):>11}{text(frame, 2):>10}"
        click.echo(f"{name:30}{columns}", err=True)
