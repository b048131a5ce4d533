"""Small runs that are made to be measured: ordinary ones, isolated, verified and taken up again after a stop like any other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from vidprep.formats.errors import StoppedError
from vidprep.formats.manifest.table import ManifestRow, manifest_rows
from vidprep.transcode.destination.opening import open_destination
from vidprep.transcode.media.versions import encoder_version, used_versions
from vidprep.transcode.run.plan import plan
from vidprep.transcode.run.run import run
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import SourceList, Unit
from vidprep.transcode.unit.job import Job, JobResult
from vidprep.transcode.workers.pool import Pool


def run_trial(
    settings: RunSettings,
    units: Sequence[Unit],
    root: Path,
    workers: Pool[Job, JobResult],
    *,
    ffmpeg: str = "",
    on_row: Callable[[ManifestRow], object] = lambda _row: None,
) -> list[ManifestRow]:
    """The rows of these units, made with these settings into `root`; what is there already is not made again. Raises StoppedError."""
    place = open_destination(root, settings.output)
    with place.lock():
        place.outputs.recover()
        made_by = encoder_version(settings, ffmpeg)
        sources = SourceList(tuple(units), ())
        todo = plan(sources, settings, place, ffmpeg=ffmpeg, encoder_version=made_by, skip_failed=True)
        place.write_settings(settings, used_versions(settings, ffmpeg))
        summary = run(todo, place, workers, on_row=on_row)
    if why := summary.disk_full or summary.stopped:
        raise StoppedError(why, exit_code=summary.exit_code)
    if summary.interrupted_by is not None:
        raise StoppedError("interrupted; run the same command again to go on", exit_code=summary.exit_code)
    wanted = {unit.id for unit in units}
    return [row for row in manifest_rows(root) if row.id in wanted]


def excerpt(unit: Unit, seconds: float) -> Unit:
    """Return the first seconds of a unit, or all of it if it is shorter, or a cut by frame numbers, which tell no time."""
    cut = unit.cut
    if cut.start_frame is not None or cut.end_frame is not None:
        return unit
    end = (cut.start_seconds or 0.0) + seconds
    return (
        unit
        if cut.end_seconds is not None and cut.end_seconds <= end
        else replace(unit, cut=replace(cut, end_seconds=end))
    )
