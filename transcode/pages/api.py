"""`report` for Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vidprep.formats.errors import MissingError, SettingsError
from vidprep.formats.option import Option
from vidprep.formats.storage.local import check_writable
from vidprep.transcode.settings.typed import typed

if TYPE_CHECKING:
    from vidprep.transcode.pages.report import ReportFiles


def missing_for_pages() -> str | None:
    """The library that a page needs and that is not there; None where all are."""
    try:
        import itables  # noqa: F401
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
    except ImportError as error:
        return str(error.name)
    return None


@typed()
def report(
    destinations: str | Path | Sequence[str | Path],
    *,
    out: Annotated[
        str | Path | None, Option("Folder for the report. Default: the first DST.", "FOLDER", path="folder")
    ] = None,
    title: Annotated[str, Option("The heading of the page.", "TEXT")] = "vidprep report",
    worst: Annotated[int, Option("Worst frames shown of each DST.", "N", least=0)] = 6,
    jobs: Annotated[int | None, Option("Videos at a time. Default: one per core.", "N", least=1)] = None,
    progress: bool = False,
) -> ReportFiles:  # fmt: skip
    """Write report.html, report.md and report.json about destinations of runs and results of `sweep`, side by side.

    Args:
        destinations: One folder or URL, or several. URLs are copied to TMPDIR.
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
    from vidprep.transcode.settings.parse import as_place
    from vidprep.transcode.sources.scratch import as_folder
    from vidprep.transcode.workers.local import default_jobs

    try:
        from vidprep.transcode.pages.report import write_report
    except ModuleNotFoundError as error:
        raise MissingError(f"a report needs {error.name}: pip install 'vidprep[report]'") from error
    places = [as_place(each) for each in ([destinations] if isinstance(destinations, str | Path) else destinations)]
    if not places:
        raise SettingsError("give one destination or more")
    folder = places[0] if out is None else Path(out)
    if isinstance(folder, str):
        raise SettingsError(f"{folder}: nothing is written behind a URL; give <out>", out="FOLDER")
    check_writable(folder, "give --out another folder")
    with ExitStack() as copies, bar(is_shown=progress) as shown:
        paths = [copies.enter_context(as_folder(place)) for place in places]
        return write_report(
            paths, folder, title=title, created=f"{datetime.now():%Y-%m-%d %H:%M}", jobs=jobs or default_jobs(), strips=worst,
            on_start=shown.reset, on_still=shown.update, names=dict(zip(map(str, paths), map(str, places), strict=True)),
        )  # fmt: skip
