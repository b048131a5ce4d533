"""`--target-psnr`: find one CRF or JPEG quality for a whole dataset, the coarsest at which 99 % of a sample of videos
reach a PSNR.

Each video of the sample is encoded once at a guess; after that only the deciding few, at the step where the
interpolated line crosses the target. Trials are ordinary runs into folders beside the partial files, so they are
isolated, verified and resumed like any run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vidprep.formats.errors import SettingsError, StoppedError, count_of
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.manifest.table import manifest_rows
from vidprep.transcode.destination.opening import open_destination
from vidprep.transcode.media.ffmpeg_program import encoder_version, list_versions
from vidprep.transcode.run.plan import plan
from vidprep.transcode.run.run import run
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import SourceList, Unit, choose
from vidprep.transcode.unit.job import Job, JobResult
from vidprep.transcode.unit.target_search import Search, score_of_target, why_unscored
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
    """Make these units with these settings in `root`; existing outputs are kept. Return the rows. Raises StoppedError."""
    place = open_destination(root, settings.output)
    with place.lock():
        place.outputs.recover()
        made_by = encoder_version(settings, ffmpeg)
        sources = SourceList(tuple(units), ())
        todo = plan(sources, settings, place, ffmpeg=ffmpeg, encoder_version=made_by, skip_failed=True)
        place.write_settings(settings, list_versions(settings, ffmpeg))
        summary = run(todo, place, workers, on_row=on_row)
    if why := summary.disk_full or summary.stopped:
        raise StoppedError(why, exit_code=summary.exit_code)
    if summary.interrupted_by is not None:
        raise StoppedError("interrupted; run the same command again to go on", exit_code=summary.exit_code)
    wanted = {unit.id for unit in units}
    return [row for row in manifest_rows(root) if row.id in wanted]


def excerpt(unit: Unit, seconds: float) -> Unit:
    """Return the first seconds of a unit; all of it if it is shorter, or a cut by frame numbers, which has no duration."""
    cut = unit.cut
    if cut.start_frame is not None or cut.end_frame is not None:
        return unit
    end = (cut.start_seconds or 0.0) + seconds
    return (
        unit
        if cut.end_seconds is not None and cut.end_seconds <= end
        else replace(unit, cut=replace(cut, end_seconds=end))
    )


PROBE_SECONDS = 20.0
ALL_UP_TO = 50
SAMPLED_PART = 0.15
MAX_SAMPLED = 300
MISSES_ALLOWED = 0.01
DECIDING = 3
MAX_ROUNDS = 8
WIDE_STEPS = 2
NEAR_DB = 1.5


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of the search.

    Attributes:
        value: CRF or quality
        sampled: Number of videos in the sample
        misses: Number of sampled videos below the target
    """

    value: int
    sampled: int
    probes: int
    cpu_seconds: float
    misses: int


def sample_size(count: int) -> int:
    """Return the size of a sample: all of a small dataset; of a large one as many as keep trials below a third of the
    work.
    """
    return count if count <= ALL_UP_TO else min(MAX_SAMPLED, math.ceil(count * SAMPLED_PART))


def search_shared(
    settings: RunSettings,
    units: tuple[Unit, ...],
    state_dir: Path,
    *,
    workers: Pool[Job, JobResult],
    ffmpeg: str = "",
    say: Callable[[str], None],
) -> SearchResult:
    """Search the value.

    Args:
        settings: Settings of the run.
        units: All units.
        state_dir: Folder of the trials, each in a folder named by its value.
        workers: The pool.
        ffmpeg: The ffmpeg program of the second engine.
        say: Receives messages.

    Raises:
        SettingsError: No video can be probed.
        StoppedError: A trial was stopped.
    """
    target = settings.target
    assert target is not None
    scale = settings.output.quality_scale
    sampled = {unit.id: excerpt(unit, PROBE_SECONDS) for unit in choose(units, sample_size(len(units)))}
    searches = {id_: Search(scale, target) for id_ in sampled}
    probes, cpu_seconds = 0, 0.0

    def probe(step: int, ids: list[str]) -> None:
        nonlocal probes, cpu_seconds
        value = scale.values[step]
        say(f"{target.flag} {target.floor:g}: trying {scale.option} {value} on {len(ids)} of {len(sampled)} videos")
        probed = replace(settings.replace_quality(value), target=None, gate=replace(settings.gate, min_psnr_db=None))
        rows = run_trial(probed, [sampled[id_] for id_ in ids], state_dir / f"{value}", workers, ffmpeg=ffmpeg)
        probes += len(ids)
        why = dict.fromkeys(ids, "not tried")
        for row in rows:
            cpu_seconds += row.cpu_seconds or 0.0
            reached = score_of_target(row, target) if row.ok else None
            if reached is None:
                why[row.id] = row.message or why_unscored(row)
            elif step == 0 and reached < target.floor:
                why[row.id] = f"{reached:.2f} at best, at {scale.option} {value}"
            else:
                del why[row.id]
                searches[row.id].record(step, reached)
        for id_ in why:
            del searches[id_]  # it fails in the run too, and is reported there
        if not searches:
            first = min(why)
            raise SettingsError(
                f"<{min(target.option)}>: none of {count_of(len(sampled), 'sampled video')} reaches it; such as {first}: {why[first]}",
                **target.option,
            )

    probe(scale.guess(target.usual_db), list(sampled))
    rounds = 0
    while rounds < MAX_ROUNDS:
        allowed = math.floor(len(searches) * MISSES_ALLOWED)
        worst_first = sorted(searches, key=lambda id_: (searches[id_].crossing(), id_))
        deciding = worst_first[: allowed + DECIDING]
        step = scale.step_at(searches[deciding[allowed]].crossing())
        near = scale.positions[step] + NEAR_DB / scale.slope
        unknown = [id_ for id_ in deciding if step not in searches[id_].known and searches[id_].crossing() < near]
        decisive = searches[deciding[allowed]]
        if not unknown and decisive.first_miss is not None and decisive.first_miss - step > WIDE_STEPS:
            step, unknown = step + 1, [deciding[allowed]]
        if not unknown:
            break
        deciding_before = len(searches)
        probe(step, unknown)
        rounds += len(searches) == deciding_before
    misses = sum(search.crossing() < scale.positions[step] for search in searches.values())
    return SearchResult(scale.values[step], len(sampled), probes, cpu_seconds, misses)
