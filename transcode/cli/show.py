"""`vidprep show`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path

import click

from vidprep.formats.errors import SettingsError
from vidprep.formats.manifest.remarks import NOTES
from vidprep.formats.manifest.table import ManifestRow, manifest_paths, manifest_rows
from vidprep.formats.text import count_of, printable
from vidprep.transcode.cli.command import Command
from vidprep.transcode.cli.options import LocalPath
from vidprep.transcode.destination.run_file import made_by_run

HEAD = f"{'size':>10}{'frames':>8}{'keyframes':>10}{'kB':>9}{'of source':>10}{'PSNR-Y':>8}{'worst':>7}{'SSIM':>8}  id"
PIPED_WIDTH = 160


@click.command("show", cls=Command)
@click.argument("destination", metavar="DST", type=LocalPath(file_okay=False))
@click.argument("id_", metavar="[ID]", required=False)
@click.option("--failed", is_flag=True, help="Show only failed videos.")
@click.option("--warnings", is_flag=True, help="Show only videos with warnings, and each warning.")
def show_command(destination: Path, id_: str | None = None, failed: bool = False, warnings: bool = False) -> None:
    """Print the manifest of DST: one line per video, or every column of the video ID.

    \b
    vidprep show ready/                what was made of each video, and why the others failed
    vidprep show ready/ --warnings     every warning, with its code
    vidprep show ready/ sub/clip       all about one video
    """
    if not manifest_paths(destination):
        if made_by_run(destination):
            raise SettingsError(f"{destination}: has no manifest yet; its first run is at work, or was stopped")
        raise SettingsError(f"{destination}: has no manifest; give the destination of a run")
    rows = manifest_rows(destination)
    if id_ is not None:
        _show_one(_find(rows, id_, destination))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPED_WIDTH
    count, num_failed, is_headed = 0, 0, False
    for row in rows:
        count, num_failed = count + 1, num_failed + (not row.ok)
        if (failed and row.ok) or (warnings and not row.warnings):
            continue
        if not is_headed and not failed:
            click.echo(HEAD)
            is_headed = True
        click.echo(_line(row)[:width])
        for line in _warnings(row) if warnings else ():
            click.echo(f"    {line}")
    click.echo(f"vidprep: {count_of(count, 'video')}, {num_failed} failed", err=True)


def _find(rows: Iterable[ManifestRow], name: str, destination: Path) -> ManifestRow:
    """Return the row of an id, or of an output by its file name. Raises SettingsError."""
    names: list[str] = []
    for row in rows:
        if name in (row.id, row.file_name):
            return row
        names += [row.id, *([row.file_name] if row.file_name else [])]
    near = get_close_matches(name, names, 1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise SettingsError(f"{destination}: has no video {name!r}; {meant}`vidprep show {destination}` lists them")


def _show_one(row: ManifestRow) -> None:
    for each in fields(row):
        value = getattr(row, each.name)
        if each.name in ("warnings", "warning_codes"):
            continue
        if value not in (None, [], {}):
            click.echo(f"{each.name}: {_shortened(value)}")
    for line in _warnings(row):
        click.echo(line)


def _warnings(row: ManifestRow) -> list[str]:
    codes = row.warning_codes or ["-"] * len(row.warnings)  # which 0.1.0 did not write
    return [
        printable(f"{'note' if code in NOTES else 'warning'}: {code}: {text.removeprefix(f'{code}: ')}")
        for code, text in zip(codes, row.warnings, strict=False)
    ]


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
