"""One CRF, or one JPEG quality, for a whole dataset: the coarsest at which 99 % of a sample of its videos reach a PSNR.

Each video of the sample is encoded once at a guess; from then on only the few that decide, at the step where the line
through what is known crosses the floor. Probes are ordinary runs into folders beside the partial files, so they are
isolated, verified and taken up again after a stop like any other.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from vidprep.formats.errors import SettingsError
from vidprep.formats.manifest import ManifestRow, read_rows
from vidprep.transcode.destination import Destination
from vidprep.transcode.packed import PackedDestination
from vidprep.transcode.plan import plan
from vidprep.transcode.run import run
from vidprep.transcode.sample import choose
from vidprep.transcode.search import Search
from vidprep.transcode.settings import RunSettings
from vidprep.transcode.sources import SourceList, Unit

PROBE_SECONDS = 20.0
ALL_UP_TO = 50
SAMPLED_PART = 0.15
MOST_SAMPLED = 300
MISSES_ALLOWED = 0.01
DECIDING = 3
MOST_ROUNDS = 8
WIDE_STEPS = 2


class Stopped(Exception):
    """A probe run was interrupted, or the disk is full. exit_code: what the whole run ends with."""

    def __init__(self, exit_code: int, why: str) -> None:
        super().__init__(why)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Found:
    """value: the CRF or quality. sampled: videos. probes, cpu_seconds: what it took. misses: sampled videos below there."""

    value: int
    sampled: int
    probes: int
    cpu_seconds: float
    misses: int


def sample_size(count: int) -> int:
    """All of a small set; of a larger one so many that probing them stays under a third of the work."""
    return count if count <= ALL_UP_TO else min(MOST_SAMPLED, math.ceil(count * SAMPLED_PART))


def shared_value(
    settings: RunSettings,
    units: tuple[Unit, ...],
    house: Path,
    *,
    jobs: int,
    ffmpeg: str = "",
    encoder_version: str,
    say: Callable[[str], None],
) -> Found:
    """Probe. house: where the probes are made; removed in the end. Raises SettingsError when no video can be probed, Stopped."""
    target = settings.target
    assert target is not None
    knob = settings.knob
    sampled = {unit.id: _excerpt(unit) for unit in choose(units, sample_size(len(units)))}
    searches = {id_: Search(knob, target.psnr_db) for id_ in sampled}
    probes, cpu_seconds = 0, 0.0

    def probe(step: int, ids: list[str]) -> None:
        nonlocal probes, cpu_seconds
        value = knob.values[step]
        say(f"--target-psnr {target.psnr_db:g}: trying {knob.option} {value} on {len(ids)} of {len(sampled)} videos")
        rows = _run_probe(
            replace(settings.at(value), target=None), [sampled[id_] for id_ in ids], house / f"{value}",
            jobs=jobs, ffmpeg=ffmpeg, encoder_version=encoder_version,
        )  # fmt: skip
        probes += len(ids)
        for row in rows:
            cpu_seconds += row.cpu_seconds or 0.0
            if row.ok and row.psnr_y_p1_db is not None:
                searches[row.id].tell(step, row.psnr_y_p1_db)
        for id_ in ids:
            if id_ in searches and step not in searches[id_].known:
                del searches[id_]  # it fails in the run as well, and is told there
        if not searches:
            raise SettingsError(
                f"--target-psnr {target.psnr_db:g}: none of the {len(sampled)} videos of the sample can be encoded; give {knob.option}"
            )

    probe(knob.guess(target.psnr_db), list(sampled))
    for _ in range(MOST_ROUNDS):
        allowed = math.floor(len(searches) * MISSES_ALLOWED)
        worst_first = sorted(searches, key=lambda id_: (searches[id_].crossing(), id_))
        deciding = worst_first[: allowed + DECIDING]
        step = knob.step_at(searches[deciding[allowed]].crossing())
        unknown = [id_ for id_ in deciding if step not in searches[id_].known]
        decisive = searches[deciding[allowed]]
        if not unknown and decisive.first_miss is not None and decisive.first_miss - step > WIDE_STEPS:
            step, unknown = step + 1, [deciding[allowed]]
        if not unknown:
            break
        probe(step, unknown)
    misses = sum(search.crossing() < knob.positions[step] for search in searches.values())
    shutil.rmtree(house, ignore_errors=True)
    return Found(knob.values[step], len(sampled), probes, cpu_seconds, misses)


def _excerpt(unit: Unit) -> Unit:
    end = (unit.start_seconds or 0.0) + PROBE_SECONDS
    return unit if unit.end_seconds is not None and unit.end_seconds <= end else replace(unit, end_seconds=end)


def _run_probe(
    settings: RunSettings, units: list[Unit], root: Path, *, jobs: int, ffmpeg: str, encoder_version: str
) -> list[ManifestRow]:
    place = PackedDestination(root, settings.frames) if settings.frames else Destination(root)
    with place.hold():
        place.recover()
        todo = plan(
            SourceList(tuple(units), ()),
            settings,
            place,
            ffmpeg=ffmpeg,
            encoder_version=encoder_version,
            skip_failed=True,
        )
        place.write_settings(settings, {})
        summary = run(todo, place, jobs=jobs, on_row=lambda _row: None)
    if summary.interrupted_by is not None or summary.disk_full:
        raise Stopped(summary.exit_code, summary.disk_full or "interrupted; run the same command again to go on")
    wanted = {unit.id for unit in units}
    return [row for row in read_rows(root) if row.id in wanted]
