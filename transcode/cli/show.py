"""`vidprep show`."""

from __future__ import annotations

import shutil
import sys
from dataclasses import fields
from pathlib import Path

import click

from vidprep.formats.errors import SettingsError
from vidprep.formats.manifest.table import ManifestRow, manifest_paths, manifest_rows
from vidprep.formats.text import count_of, printable
from vidprep.transcode.cli.command import Command
from vidprep.transcode.cli.options import LocalPath

HEAD = f"{'size':>10}{'frames':>8}{'keyframes':>10}{'kB':>9}{'of source':>10}{'PSNR-Y':>8}{'worst':>7}{'SSIM':>8}  id"
PIPED_WIDTH = 160


@click.command(cls=Command)
@click.argument("destination", metavar="DST", type=LocalPath(file_okay=False))
@click.argument("id_", metavar="[ID]", required=False)
@click.option("--failed", is_flag=True, help="Show only failed videos.")
@click.option("--warnings", is_flag=True, help="Show only videos with warnings, and each warning.")
def show(destination: Path, id_: str | None = None, failed: bool = False, warnings: bool = False) -> None:
    """Print the manifest of DST: one line per video, or every column of the video ID.

    \b
    vidprep show ready/                what was made of each video, and why the others failed
    vidprep show ready/ --warnings     every warning, with its code
    vidprep show ready/ sub/clip       all about one video
    """
    if not manifest_paths(destination):
        raise SettingsError(f"{destination}: has no manifest; give the destination of a run")
    rows = manifest_rows(destination)
    if id_ is not None:
        row = next((row for row in rows if row.id == id_), None)
        if row is None:
            raise SettingsError(f"{destination}: has no video {id_!r}; `vidprep show {destination}` lists them")
        for each in fields(row):
            if (value := getattr(row, each.name)) not in (None, [], {}):
                click.echo(f"{each.name}: {_shortened(value)}")
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPED_WIDTH
    count, num_failed, is_headed = 0, 0, False
    for row in rows:
        count, num_failed = count + 1, num_failed + (not row.ok)
        if (failed and row.ok) or (warnings and not row.warnings):
            continue
        if not is_headed and row.ok:
            click.echo(HEAD)
            is_headed = True
        click.echo(_line(row)[:width])
        codes = row.warning_codes or ["-"] * len(row.warnings)  # which 0.1.0 did not write
        for code, text in zip(codes, row.warnings, strict=False) if warnings else ():
            click.echo(printable(f"    {code}: {text.removeprefix(f'{code}: ')}"))
    click.echo(f"vidprep: {count_of(count, 'video')}, {num_failed} failed", err=True)


def _line(row: ManifestRow) -> str:
    if not row.ok:
        return printable(f"failed: {row.id}: {row.stage}: {row.message}")
    size = f"{row.width}x{row.height}"
    share = f"{(row.size_bytes or 0) / row.source_size_bytes:.0%}" if row.source_size_bytes else "-"
    scores = f"{row.psnr_y_db:>8.2f}{row.psnr_y_min_db:>7.1f}" if row.psnr_y_db is not None else f"{'-':>8}{'-':>7}"
    ssim = f"{row.ssim:>8.4f}" if row.ssim is not None else f"{'-':>8}"
    keyframes = len(row.keyframes) if row.keyframes else "-"
    kilobytes = (row.size_bytes or 0) / 1e3
    return printable(
        f"{size:>10}{row.num_frames:>8}{keyframes:>10}{kilobytes:>9,.0f}{share:>10}{scores}{ssim}  {row.id}"
    )


def _shortened(value: object) -> str:
    text = printable(str(value))
    return text if len(text) <= PIPED_WIDTH else f"{text[:PIPED_WIDTH]}… ({len(text):,} characters)"
