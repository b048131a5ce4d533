"""What there is to do: sources and settings against what the destination already holds. Opens no video."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from vidprep.formats.errors import SourceError
from vidprep.formats.manifest.table import ManifestRow
from vidprep.transcode.destination.folder import Destination
from vidprep.transcode.destination.known_units import KnownUnit
from vidprep.transcode.run.ignored import counted
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import SourceList, Unit
from vidprep.transcode.unit.job import Job, fail, new_row


@dataclass(frozen=True, slots=True)
class Plan:
    """jobs: to be run, largest first. done: units whose output is there and current. skipped: failed before, and left.

    rejected: rows of units that cannot even be started. before: the file names of what other units than the done ones were before.
    other_versions: done units that another encoder version made. bytes_before, bytes_after: of the done units. ignored: files
    that are no sources, by why. gone: ids of rows whose source was not listed, where all were to be.
    """

    jobs: tuple[Job, ...]
    done: int
    skipped: int
    rejected: tuple[ManifestRow, ...]
    before: dict[str, str]
    other_versions: int
    bytes_before: int
    bytes_after: int
    ignored: dict[str, int] = field(default_factory=dict)
    gone: tuple[str, ...] = ()


def plan(
    sources: SourceList,
    settings: RunSettings,
    destination: Destination,
    *,
    ffmpeg: str,
    encoder_version: str,
    overwrite: bool = False,
    skip_failed: bool = False,
    takes_all: bool = False,
) -> Plan:
    """Jobs for the units that are not done. A unit is done when its id, cut, source size and time, and settings digest
    are those of its row, and its output is there at the recorded size. takes_all: whether the sources are all that there are.
    """
    extension = settings.extension
    digest = settings.digest
    known = destination.known_units()
    jobs: list[Job] = []
    done = skipped = other_versions = bytes_before = bytes_after = 0
    for unit in sources.units:
        row = known.get(unit.id)
        file_name = f"{unit.id}.{extension}"
        if row is not None and not overwrite:
            if _is_done(row, unit, digest, file_name, destination):
                done += 1
                other_versions += row.encoder_version != encoder_version
                bytes_before += unit.size_bytes
                bytes_after += row.size_bytes or 0
                continue
            if skip_failed and not row.ok and _same_source(row, unit, digest):
                skipped += 1
                continue
        partial = str(destination.partial(unit.id, extension))
        attempt = 1 + (row.attempts if row is not None and not row.ok and _same_source(row, unit, digest) else 0)
        upload = destination.upload(file_name)
        jobs.append(Job(unit, settings, file_name, partial, attempt, ffmpeg, upload))
    asked = sources.problem_units or (None,) * len(sources.problems)
    rejected = tuple(
        _rejected(problem, unit, settings)
        for problem, unit in zip(sources.problems, asked[: len(sources.problems)], strict=True)
    )
    to_settle = (*(job.unit.id for job in jobs), *(row.id for row in rejected))
    before = {id_: known[id_].file_name for id_ in to_settle if id_ in known and known[id_].file_name}
    ignored = counted(sources.ignored)
    gone = (
        sorted(known.keys() - {unit.id for unit in sources.units} - {row.id for row in rejected}) if takes_all else ()
    )
    return Plan(
        tuple(jobs), done, skipped, rejected, before, other_versions, bytes_before, bytes_after, ignored, tuple(gone)
    )  # fmt: skip


def _same_source(row: KnownUnit, unit: Unit, digest: str) -> bool:
    return (
        row.settings_digest == digest
        and row.source_size_bytes == unit.size_bytes
        and row.source_mtime_ns == unit.mtime_ns
        and row.start_seconds == unit.start_seconds
        and row.end_seconds == unit.end_seconds
    )


def _is_done(row: KnownUnit, unit: Unit, digest: str, file_name: str, destination: Destination) -> bool:
    return row.ok and _same_source(row, unit, digest) and destination.holds(row, file_name)


def unit_of_problem(problem: tuple[str, str], asked: Unit | None) -> Unit:
    """What should have been a source and cannot be opened at all. asked: by the row of a table."""
    path, _ = problem
    return replace(asked, path=path) if asked else Unit(id=path.lstrip("/"), path=path, size_bytes=0, mtime_ns=0)


def _rejected(problem: tuple[str, str], asked: Unit | None, settings: RunSettings) -> ManifestRow:
    _, reason = problem
    row = new_row(Job(unit_of_problem(problem, asked), settings, "", ""))
    row.source_size_bytes = row.source_mtime_ns = None
    fail(row, SourceError(reason))
    return row
