"""`report` for Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vidprep.formats.errors import MissingError, SettingsError
from vidprep.formats.files.local import check_writable
from vidprep.transcode.workers.unguarded import end_if_worker_starts

if TYPE_CHECKING:
    from vidprep.transcode.pages.report import ReportFiles


def report(
    destinations: str | Path | Sequence[str | Path], *, out: str | Path | None = None, title: str = "vidprep report",
    worst: int = 6, jobs: int | None = None, progress: bool = False,
) -> ReportFiles:  # fmt: skip
    """Write report.html, report.md and report.json about destinations of runs, side by side, and results of `sweep`.

    out: a folder; None takes the first destination. worst: so many of the worst frames of each destination are shown. Raises
    MissingError without `vidprep[report]`, SettingsError, ManifestError, StoreError; KeyboardInterrupt when it was interrupted.
    """
    end_if_worker_starts()
    from datetime import datetime

    from vidprep.transcode.run.progress import bar
    from vidprep.transcode.workers.local import default_jobs

    try:
        from vidprep.transcode.pages.report import write_report
    except ModuleNotFoundError as error:
        raise MissingError(f"a report needs {error.name}: pip install 'vidprep[report]'") from error
    given = [destinations] if isinstance(destinations, str | Path) else destinations
    paths = [Path(path) for path in given]
    if not paths:
        raise SettingsError("give one destination or more")
    folder = paths[0] if out is None else Path(out)
    check_writable(folder, "give --out another folder")
    with bar(is_shown=progress) as shown:
        return write_report(
            paths, folder, title=title, created=f"{datetime.now():%Y-%m-%d %H:%M}", jobs=jobs or default_jobs(),
            strips=worst, on_start=shown.reset, on_still=shown.update,
        )  # fmt: skip
