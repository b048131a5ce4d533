"""Commands that show what runs made and do: `report` and `monitor`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from vidprep.formats.errors import MissingError, SettingsError
from vidprep.formats.option import Option
from vidprep.formats.storage.local import check_writable
from vidprep.transcode.cli._command import FolderOrUrl, LocalPath, Viewer, command_of, missing_for_pages
from vidprep.transcode.settings.parse import check_types

if TYPE_CHECKING:
    from vidprep.transcode.pages.page import ReportFiles


@check_types()
def report(
    destinations: str | Path | Sequence[str | Path],
    *,
    out: Annotated[
        str | Path | None, Option("Folder for the report. Default: the first DST.", "FOLDER", path="folder")
    ] = None,
    title: Annotated[str, Option("The heading of the page.", "TEXT")] = "vidprep report",
    worst: Annotated[int, Option("Number of worst frames shown per DST.", "N", least=0)] = 6,
    jobs: Annotated[int | None, Option("Videos at a time. Default: one per core.", "N", least=1)] = None,
    progress: bool = False,
) -> ReportFiles:
    """Write report.html, report.md and report.json about destinations of runs and results of `sweep`, side by side, or about a table of
    clips that `scan` wrote.

    Args:
        destinations: One folder or URL, or several; or one table of clips.
        progress: Show a progress bar on stderr.

    Returns:
        ReportFiles, the paths of the three files.

    Raises:
        MissingError: `vidprep[report]` is not installed.
        SettingsError: A value is not allowed.
        StoreError, ManifestError: A destination cannot be read.
        KeyboardInterrupt: The call was interrupted; nothing was written.
    """
    from contextlib import ExitStack
    from datetime import datetime

    from vidprep.transcode.run.progress import bar
    from vidprep.transcode.settings.parse import parse_place
    from vidprep.transcode.sources.scratch import local_folder
    from vidprep.transcode.sources.tables import READERS
    from vidprep.transcode.workers.local import default_jobs

    if (missing := missing_for_pages()) is not None:
        raise MissingError(f"a report needs {missing}: pip install 'vidprep[report]'")
    try:
        from vidprep.transcode.pages.clips_page import write_clips
        from vidprep.transcode.pages.report import write_report
    except ModuleNotFoundError as error:
        raise MissingError(f"a report needs {error.name}: pip install 'vidprep[report]'") from error
    places = [parse_place(each) for each in ([destinations] if isinstance(destinations, str | Path) else destinations)]
    if not places:
        raise SettingsError("give one destination or more")
    is_table = len(places) == 1 and Path(places[0]).suffix.lower() in READERS and Path(places[0]).is_file()
    folder = (Path(places[0]).parent if is_table else places[0]) if out is None else Path(out)
    if isinstance(folder, str):
        raise SettingsError(f"{folder}: nothing is written behind a URL; give <out>", out="FOLDER")
    check_writable(folder, "give --out another folder")
    about: dict[str, Any] = {
        "title": title,
        "created": f"{datetime.now():%Y-%m-%d %H:%M}",
        "jobs": jobs or default_jobs(),
    }
    with ExitStack() as copies, bar(is_shown=progress) as shown:
        if is_table:
            return write_clips(Path(places[0]), folder, on_start=shown.reset, on_still=shown.update, **about)
        paths = [copies.enter_context(local_folder(place)) for place in places]
        return write_report(
            paths,
            folder,
            **about,
            strips=worst,
            on_start=shown.reset,
            on_still=shown.update,
            names=dict(zip(map(str, paths), map(str, places), strict=True)),
        )


@command_of(report, click.argument("paths", metavar="DST…", type=FolderOrUrl(), nargs=-1, required=True))
def report_command(paths: tuple[Path | str, ...], quiet: bool = False, **given: Any) -> None:
    """Make a report of one or more destinations, side by side: sizes, PSNR and SSIM, worst frames, failures, settings. Or of a table of
    clips (`vidprep scan`): pictures of each clip, facts, duplicates.

    Writes report.html (one file, no network), report.md and report.json; prints the path of the page on stdout.
    """
    click.echo(report(paths, progress=not quiet, **given).html)


@click.command("monitor", cls=Viewer)
@click.argument("paths", metavar="FILE…", type=LocalPath(dir_okay=False), nargs=-1, required=True)
@click.option("--once", is_flag=True, help="Show the current state, and exit.")
def monitor_command(paths: tuple[Path, ...], once: bool = False) -> None:
    """Show runs live (rates, time left, running, failed and slowest videos) and loaders (waiting times, ready
    batches).

    FILE is written by runs with --events and by loaders with events=: one file for all of them or one each, or a
    named pipe. It may be on another machine's disk. The command ends when all runs have ended and all loaders are
    closed.
    """
    try:
        from rich.console import Console

        from vidprep.transcode.pages.live import monitor as show
    except ModuleNotFoundError as error:
        raise MissingError(f"vidprep monitor needs {error.name}: pip install 'vidprep[monitor]'") from error
    show(paths, Console(), once=once)
