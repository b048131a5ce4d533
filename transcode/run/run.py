"""One run: the plan's jobs through the workers, rows into the journal as they arrive, the manifest at the end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from vidprep.formats.errors import (
    STOPPED_CODE,
    CrashedError,
    DestinationError,
    DiskFullError,
    TakenOverError,
    VidprepError,
    WorkerError,
)
from vidprep.formats.manifest.remarks import NOTES, Remark
from vidprep.formats.manifest.row import ManifestRow, Recorded, check_row
from vidprep.formats.storage.local import is_disk_full
from vidprep.formats.storage.untrusted import import_pyarrow
from vidprep.transcode.destination.destination import Destination
from vidprep.transcode.destination.run_file import no_room
from vidprep.transcode.run.plan import Plan
from vidprep.transcode.unit.job import Job, JobNotDone, JobResult, WholeJob, discard, fail, new_row
from vidprep.transcode.unit.queue import JobQueue
from vidprep.transcode.workers.child import was_killed
from vidprep.transcode.workers.host import Sample, resolve_fault, why_not_writable
from vidprep.transcode.workers.pool import Pool, stop_on_signals

GRACE_SECONDS = 10.0
KEPT_FAILURES = 20
FAULTS_MAX = 3  # in a row: then other videos would fail too


@dataclass(slots=True)
class Summary:
    """Result of a run.

    Attributes:
        ok: Videos that this call finished
        failed: Videos that failed in this call
        done_before: Videos that an earlier call had finished
        skipped_failed: Videos that failed in an earlier call and were not retried
        short: Videos that are left out because they are too short
        not_started: Videos that were not started before the run was stopped
        warned: Videos with a warning; notes do not count
        warnings: Number of videos with each code of the column `warning_codes`
        examples: First message of each code
        larger_than_source: Outputs with more bytes than their source
        bytes_before: Size of the sources of all outputs that exist now
        bytes_after: Size of these outputs
        seconds: Duration of the call
        interrupted_by: Number of the signal that stopped the run
        disk_full: Message about the full disk; None if it was not full
        stopped: Why the run stopped for another reason than a source
        failures: (source, error) of the first 20 videos that failed
        ignored: Files in the source folder that are not videos
        ignored_reasons: Number of them for each reason
        absent: Videos that the plan of the array gave to this task and whose source no longer exists
        gone: Rows of the manifest whose source no longer exists and which were kept
        removed: Rows that were removed because their source no longer exists (`prune`)
        moved: Outputs that were renamed because their source was
        relabelled: Finished videos whose labels changed
        left_out: Why episodes are not in the LeRobot dataset that was made, by number
    """

    ok: int = 0
    failed: int = 0
    done_before: int = 0
    skipped_failed: int = 0
    short: int = 0
    not_started: int = 0
    warned: int = 0
    warnings: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    larger_than_source: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    seconds: float = 0.0
    interrupted_by: int | None = None
    disk_full: str | None = None
    stopped: str | None = None
    failures: list[tuple[str, str]] = field(default_factory=list)
    ignored: int = 0
    ignored_reasons: dict[str, int] = field(default_factory=dict)
    absent: int = 0
    gone: int = 0
    removed: int = 0
    moved: int = 0
    relabelled: int = 0
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether each job succeeded or failed."""
        return self.interrupted_by is None and not self.disk_full and not self.not_started

    @property
    def exit_code(self) -> int:
        if self.interrupted_by is not None:
            return 128 + self.interrupted_by
        if self.disk_full or self.stopped:
            return STOPPED_CODE
        return 1 if self.failed or self.absent or self.left_out else 0

    def as_json(self) -> str:
        """Return the line that `--json` prints after the rows."""
        return json.dumps({"summary": asdict(self) | {"exit_code": self.exit_code}})


def run(
    plan: Plan,
    destination: Destination,
    workers: Pool[Job, JobResult],
    *,
    on_row: Callable[[ManifestRow], object],
    on_job: Callable[[Job], object] = lambda _job: None,
    on_segment: Callable[[Job, int, int], object] = lambda _job, _made, _count: None,
    on_made: Callable[[], object] = lambda: None,
    on_stop: Callable[[], object] = lambda: None,
    sources: Sample = (),
) -> Summary:
    """Do the jobs of a plan.

    A row is journalled before its output gets its final name: the next run repairs a kill between the two.

    Args:
        plan: The work.
        destination: The destination, with its lease held.
        workers: The pool.
        on_row: Called with every row after it is written.
        on_job: See `Pool.results`.
        on_segment: Called with the progress of a video in segments.
        on_made: Called when the workers have no more work, before the manifest is written.
        on_stop: Called at the first signal.
        sources: A sample of sources, which distinguishes a deleted source from an unreachable folder.
    """
    started = time.monotonic()
    queue = JobQueue(plan.jobs, on_segment)
    course = RunState(plan, destination, workers, queue, sources)
    if plan.jobs:
        threading.Thread(target=import_pyarrow).start()  # while the workers work
    for rejected in map(check_row, plan.rejected):
        settled = course.commit_row(rejected, None)
        if settled is None:
            break
        on_row(settled)
    with stop_on_signals(workers, GRACE_SECONDS, on_stop) as stop:
        for job, made in workers.results(queue, on_job):
            done = course.accept_result(job, made)
            row = None if done is None else queue.take_result(job, done)
            if row is None or course.retry_alone(job, row):
                continue
            settled = course.commit_row(_fitting(row, Path(job.partial)), job)
            if settled is not None:
                on_row(settled)
    on_made()
    summary = course.summary
    summary.interrupted_by = stop.signal
    summary.not_started = len(plan.jobs) - course.finished
    course.end()
    summary.seconds = time.monotonic() - started
    return summary


class RunState:
    """State of all jobs, and whether more are started."""

    def __init__(
        self, plan: Plan, destination: Destination, workers: Pool[Job, JobResult], queue: JobQueue, sources: Sample
    ) -> None:
        self._plan, self._destination, self._workers, self._sources = plan, destination, workers, sources
        self._queue = queue
        self.summary = Summary(
            done_before=plan.done,
            skipped_failed=plan.skipped,
            short=plan.short or 0,
            bytes_before=plan.bytes_before,
            bytes_after=plan.bytes_after,
            ignored=sum(plan.ignored.values()),
            ignored_reasons=plan.ignored,
            gone=len(set(plan.gone) - set(plan.removed)),
            removed=len(plan.removed),
            moved=len(plan.moved),
        )
        self.finished = self._faults = 0
        self._abandoned: list[Job] = []
        self._killed: dict[str, str] = {}

    def accept_result(self, job: Job, made: JobResult | None) -> JobResult | None:
        """Return the result of a job; None if it did not finish, after which it is recorded or retried."""
        is_elsewhere = self._workers.is_elsewhere
        done = resolve_fault(job, made, self._sources, elsewhere=is_elsewhere) if isinstance(made, JobNotDone) else made
        if self._queue.take_back(job, done, is_elsewhere=is_elsewhere):
            if not self._workers.stopping:
                return None
            done = None  # it is left to the next run
        if isinstance(done, JobNotDone) and done.deaths:
            row = new_row(job)
            fail(row, CrashedError(done.message))
            return row
        if done is not None and not isinstance(done, JobNotDone):
            return done
        self._abandoned.append(job)
        if done is not None:
            self._undone(done)
        return None

    def retry_alone(self, job: Job, row: ManifestRow) -> bool:
        """Schedule a video again, alone, if its process was killed while others ran. Return whether it is.

        The row of the second attempt mentions it. On a cluster there is no second attempt, as all its machines would
        wait for one video.
        """
        first, is_here = self._killed.get(row.id), not self._workers.is_elsewhere
        if first is None and was_killed(row) and is_here:
            self._killed[row.id] = row.message or ""
            again = job.unsplit(job.why_not_split if isinstance(job, WholeJob) else None)
            if self._workers.stopping:  # it is left to the next run
                self._abandoned.append(again)
            else:
                self._queue.retry_alone(again)
            return True
        if first is not None and row.ok:
            row.warn(Remark("second_try", f"made in a second attempt, alone; in the first {first}"))
        elif first is not None:
            row.message = f"{row.message}; so was a first attempt, beside others" if was_killed(row) else row.message
        return False

    def commit_row(self, row: ManifestRow, job: Job | None) -> ManifestRow | None:
        """Return the row after it is written and its output has its name; None if that failed. `job` is None for a unit
        that was not started.
        """
        settled = _commit_row(row, job, self._destination, self._plan)
        if isinstance(settled, JobNotDone):
            self._abandoned += [job] if job is not None else []
            self._undone(settled)
            return None
        _count(settled, self._plan, self.summary)
        if job is not None:
            self.finished, self._faults = self.finished + 1, 0
        return settled

    def _undone(self, fault: JobNotDone) -> None:
        self._faults += 1
        if fault.error == TakenOverError.__name__:
            self._destination.check_held()  # raises TakenOverError with the other run's identity
        _explain(fault, self._destination, self._plan, self.summary)
        if fault.stops or self._faults >= FAULTS_MAX:
            self._workers.take_no_more()

    def end(self) -> None:
        """Remove unfinished files, and write the journal to the manifest."""
        destination = self._destination
        try:
            for job in self._abandoned:
                discard(job)
            if not self._queue.discard_unfinished() and not self._abandoned:
                destination.remove_leftovers()
            destination.finish(is_complete=self.summary.is_complete)
        except OSError as error:
            _explain(_blame_destination(error, destination), destination, self._plan, self.summary)


def _explain(fault: JobNotDone, destination: Destination, plan: Plan, summary: Summary) -> None:
    if fault.error == DiskFullError.__name__ and fault.fault == "destination":
        summary.disk_full = _no_room(destination, plan, summary)
    elif summary.stopped is None:
        summary.stopped = f"{fault.message}; no video is at fault; run the same command again when this is fixed"


def _blame_destination(error: OSError, destination: Destination) -> JobNotDone:
    kind = DiskFullError if is_disk_full(error) else DestinationError
    why = error.message if isinstance(error, VidprepError) else error.strerror
    return JobNotDone("destination", kind.__name__, f"the destination {destination.shown} cannot be written: {why}")


def _no_room(destination: Destination, plan: Plan, summary: Summary) -> str:
    needed = sum(job.unit.share_bytes for job in plan.jobs) + plan.bytes_before - summary.bytes_before
    return no_room(destination.storage, needed)


def _fitting(row: ManifestRow, partial: Path) -> ManifestRow:
    """Return the row, or a failed one if the manifest cannot hold it: it may come from a child process or a cluster."""
    fitting = check_row(row)
    if fitting is not row:
        partial.unlink(missing_ok=True)
    return fitting


def _commit_row(row: ManifestRow, job: Job | None, destination: Destination, plan: Plan) -> ManifestRow | JobNotDone:
    """Journal a row and give its output its name. Return the row, or why that failed.

    Args:
        row: The row.
        job: Its job; None for a unit that was not started.
        destination: The destination.
        plan: The work.
    """
    partial = Path(job.partial) if job is not None and row.ok else None
    if job is not None and partial is not None and job.upload is None and not partial.exists():
        message = f"the output of {row.source} never reached {destination.shown}: its worker writes elsewhere"
        return JobNotDone("worker", WorkerError.__name__, message, stops=False)
    row = row.record(Recorded(run=destination.run))
    old = plan.before.get(row.id)
    destination.check_held()
    try:
        if partial is not None:
            row = destination.outputs.prepare(row, partial)
            destination.check_held()  # otherwise the row would be among those of a successor
        destination.journal.append(row)
        if partial is not None:
            try:
                destination.outputs.publish(row, partial)
            except OSError as error:
                if is_disk_full(error) or why_not_writable(destination.partials):
                    raise
                # The name is taken by a foreign file. A retry would fail too, so this becomes a failed row.
                partial.unlink(missing_ok=True)
                fail(row, error)
                destination.journal.append(row)
        if old is not None and not (row.ok and old == row.file_name):
            destination.outputs.remove(old)
    except OSError as error:
        return _blame_destination(error, destination)
    return row


def _count(row: ManifestRow, plan: Plan, summary: Summary) -> None:
    summary.warned += not NOTES.issuperset(row.warning_codes)
    for code, text in dict(zip(reversed(row.warning_codes), reversed(row.warnings), strict=False)).items():
        summary.warnings[code] = summary.warnings.get(code, 0) + 1
        summary.examples.setdefault(code, f"{row.id}: {text.removeprefix(f'{code}: ')}")
    if row.ok:
        summary.ok += 1
        summary.bytes_before += plan.source_bytes(row)
        summary.bytes_after += row.size_bytes or 0
        summary.larger_than_source += "larger_than_source" in row.warning_codes
    elif plan.leaves_out(row):
        summary.short += 1
    else:
        summary.failed += 1
        if len(summary.failures) < KEPT_FAILURES:
            summary.failures.append((row.source, f"{row.stage}: {row.message}"))
