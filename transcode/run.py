"""One run: the plan's jobs through the workers, rows into the journal as they arrive, the manifest at the end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from vidprep.formats.arrow import import_pyarrow
from vidprep.formats.errors import DiskFullError
from vidprep.formats.files import is_disk_full
from vidprep.formats.manifest import ManifestRow
from vidprep.formats.row import checked
from vidprep.transcode.agenda import Agenda
from vidprep.transcode.destination import Destination
from vidprep.transcode.plan import Plan
from vidprep.transcode.task import Job, Made, discard, fail
from vidprep.transcode.workers import Workers, stopped_by_signals

GRACE_SECONDS = 10.0
KEPT_FAILURES = 20


@dataclass(slots=True)
class Summary:
    """What a run did. bytes_before and bytes_after: of all outputs that are there now, whole sources and cuts alike.

    ignored: files that are no sources; ignored_reasons: how many for which reason. absent: videos that an array run planned for
    this part, and that are no longer among the sources.
    """

    ok: int = 0
    failed: int = 0
    done_before: int = 0
    skipped_failed: int = 0
    not_started: int = 0
    warned: int = 0
    larger_than_source: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    seconds: float = 0.0
    interrupted_by: int | None = None
    disk_full: str | None = None
    failures: list[tuple[str, str]] = field(default_factory=list)
    ignored: int = 0
    ignored_reasons: dict[str, int] = field(default_factory=dict)
    absent: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether each job was done, well or not."""
        return self.interrupted_by is None and not self.disk_full and not self.not_started

    @property
    def exit_code(self) -> int:
        if self.interrupted_by is not None:
            return 128 + self.interrupted_by
        return 1 if self.failed or self.disk_full or self.absent else 0

    def as_json(self) -> str:
        return json.dumps({"summary": asdict(self) | {"exit_code": self.exit_code}})


def run(
    plan: Plan, destination: Destination, workers: Workers[Job, Made], *, on_row: Callable[[ManifestRow], object],
    on_job: Callable[[Job], object] = lambda _job: None, on_made: Callable[[], object] = lambda: None,
) -> Summary:  # fmt: skip
    """Do what the plan says. on_row: called with every row when it is safe on disk; on_job: when a worker takes a job;
    on_made: when the workers have no more to do, before the manifest is written.

    A row goes to the journal before its output takes its final name: a kill between the two is mended by the next run.
    """
    started = time.monotonic()
    summary = Summary(done_before=plan.done, skipped_failed=plan.skipped)
    summary.bytes_before, summary.bytes_after = plan.bytes_before, plan.bytes_after
    summary.ignored, summary.ignored_reasons = sum(plan.ignored.values()), plan.ignored
    finished = 0
    abandoned: list[Job] = []
    agenda = Agenda(plan.jobs, on_job)
    if plan.jobs:
        threading.Thread(target=import_pyarrow).start()  # while the workers work
    try:
        for rejected in map(checked, plan.rejected):
            _settle(rejected, None, destination, plan, summary)
            on_row(rejected)
        with stopped_by_signals(workers, GRACE_SECONDS) as stop:
            for job, made in workers.results(agenda):
                if made is None:
                    abandoned.append(job)
                    continue
                row = agenda.settle(job, made)
                if row is None:
                    continue
                row = _fitting(row, Path(job.partial))
                try:
                    _settle(row, Path(job.partial), destination, plan, summary)
                except OSError as error:
                    if not is_disk_full(error):
                        raise
                    abandoned.append(job)
                    summary.disk_full = _no_room(destination, plan, summary)
                    workers.take_no_more()
                    continue
                finished += 1
                on_row(row)
                if row.error == DiskFullError.__name__:
                    summary.disk_full = _no_room(destination, plan, summary)
                    workers.take_no_more()
        on_made()
        summary.interrupted_by = stop.signal
    except OSError as error:
        if not is_disk_full(error):
            raise
        summary.disk_full = _no_room(destination, plan, summary)
    for job in abandoned:
        discard(job)
    summary.not_started = len(plan.jobs) - finished
    try:
        if not abandoned:
            destination.remove_leftovers()
        destination.finish()
    except OSError as error:
        if not is_disk_full(error):
            raise
        summary.disk_full = _no_room(destination, plan, summary)
    summary.seconds = time.monotonic() - started
    return summary


def _no_room(destination: Destination, plan: Plan, summary: Summary) -> str:
    needed = sum(job.unit.size_bytes for job in plan.jobs) + plan.bytes_before - summary.bytes_before
    return (
        f"no room left in {destination.disk}: {destination.free_bytes()} bytes are free, the sources still "
        f"to do hold {needed}; make room and run the same command again"
    )


def _fitting(row: ManifestRow, partial: Path) -> ManifestRow:
    """The row, or the failed one in its place when the manifest cannot hold it: whatever came from a child or a cluster."""
    fitting = checked(row)
    if fitting is not row:
        partial.unlink(missing_ok=True)
    return fitting


def _settle(row: ManifestRow, partial: Path | None, destination: Destination, plan: Plan, summary: Summary) -> None:
    destination.check_held()
    if row.ok and partial is not None:
        destination.place(row, partial)
    destination.journal.append(row)
    if row.ok and partial is not None:
        try:
            destination.name(row, partial)
        except OSError as error:
            partial.unlink(missing_ok=True)
            fail(row, error)
            destination.journal.append(row)
        else:
            old = plan.replaced.get(row.id)
            if old:
                destination.remove_output(old)
    summary.warned += bool(row.warnings)
    if row.ok:
        summary.ok += 1
        summary.bytes_before += row.source_size_bytes or 0
        summary.bytes_after += row.size_bytes or 0
        summary.larger_than_source += any(text.startswith("larger than") for text in row.warnings)
    else:
        summary.failed += 1
        if len(summary.failures) < KEPT_FAILURES:
            summary.failures.append((row.source, f"{row.stage}: {row.message}"))
