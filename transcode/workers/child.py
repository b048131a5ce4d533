"""Process each video in a child process, so that a crash of a decoder costs one row.

The parent enforces the deadline by killing the child, which also stops a decoder that never returns to the interpreter.
A child that dies is replaced for the next video. Sources and outputs behind URLs go through local files, as many at a
time as there are workers.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from vidprep.formats.errors import (
    CrashedError,
    DeadlineError,
    DestinationError,
    ReadError,
    StorageError,
    TakenOverError,
    WorkerError,
)
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.processes import CORES, MEMORY, WORK, DiedError, Process, memory_of_each
from vidprep.formats.storage.base import split_url
from vidprep.formats.storage.local import is_disk_full
from vidprep.transcode.sources.scratch import fetch, remarks_on_pictures, remote_folder
from vidprep.transcode.unit.job import (
    Context,
    Job,
    JobNotDone,
    JobResult,
    JoinJob,
    SegmentJob,
    Split,
    Upload,
    discard,
    fail,
    new_row,
)
from vidprep.transcode.unit.queue import JobQueue
from vidprep.transcode.workers.host import classify_fault


def stage(job: Job, make: Callable[[Job], JobResult]) -> JobResult:
    """Run `make` with a local copy of the source, which all of its segments share; upload the output after it is verified."""
    source = Path(job.copied_source)
    local = job
    is_needed_again = isinstance(job, SegmentJob)
    is_shared = isinstance(job, SegmentJob | JoinJob)
    try:
        if job.unit.is_copied:
            local = replace(job, unit=replace(job.unit, path=str(source)))
            if not (is_shared and source.exists()):
                fetch(job.unit, source, job.settings.retime.source_rate)
        made = make(local)
        is_needed_again = is_needed_again or isinstance(made, Split)
        if isinstance(made, ManifestRow):
            made.source = job.unit.path
            if job.unit.is_series:
                made.source_size_bytes, made.source_mtime_ns = job.unit.state
                made.warn(*remarks_on_pictures(job.unit))
            if made.ok and job.upload is not None:
                _put(Path(job.partial), job.upload)
                discard(job)
        return made
    except (ReadError, StorageError, OSError) as error:
        row = new_row(job)
        fail(row, error)
        discard(job)
        return row
    finally:
        if not is_needed_again:
            source.unlink(missing_ok=True)


def _put(path: Path, upload: Upload) -> None:
    """Upload an output. Raises DestinationError, and TakenOverError if another run has taken over."""
    from vidprep.transcode.destination.lease import LeasePlace

    url, name = split_url(upload.url)
    try:
        lease = LeasePlace(remote_folder(upload.destination), upload.lease).read()
        if lease is not None and lease.holder is not None and lease.holder.token == upload.token:
            remote_folder(url).put(path, name)
            return
    except OSError as error:
        if is_disk_full(error):
            raise
        raise DestinationError(str(error), stage="storage") from error
    raise TakenOverError("another run has taken over; this output is not published", path=upload.url, stage="storage")


OPEN_SECONDS = 120
MIN_SECONDS = 300
SECONDS_PER_SECOND = 60
FRAMES_PER_SECOND = 25  # decoded or made
READ_BYTES_PER_SECOND = 1_000_000
VIDEOS_PER_CHILD = 2000  # the heap grows by 3 kB a video
TRIES = 8
LEAKING_STAGES = ("encode", "memory")  # libx264 leaks memory if it fails to start for lack of memory
NOT_OPENED = -1

A = TypeVar("A")
R = TypeVar("R")


class Interrupted(Exception):
    """The child was stopped on purpose; its video gets no row, and the next run makes it."""


def start_process() -> Process:
    """Start a process that imports what a video needs, which this process never imports. Raises OSError."""
    return Process("vidprep.transcode.unit.life")


class Child:
    """A child process that does one task at a time, and is replaced when it dies. Used by one thread at a time."""

    def __init__(self, giving_up: threading.Event, process: Process | None = None, *, count: int | None = None) -> None:
        """Prepare a child.

        Args:
            giving_up: Set when the run stops; a child that dies after that was stopped and did not crash.
            process: Process that has already been started.
            count: Number of children on this machine; None means one per core.
        """
        self._giving_up = giving_up
        self._stopped = threading.Event()
        self._process = process
        self._cores = 1
        self._share_bytes = memory_of_each(count or os.cpu_count() or 1)
        self._memory_bytes = self._share_bytes

    def limit_memory(self, memory_bytes: int | None) -> None:
        """Limit the memory of the next call; None means an even share of the machine's memory."""
        self._memory_bytes = memory_bytes or self._share_bytes

    def set_cores(self, cores: int) -> None:
        """Set the number of cores that the child may use, also during a call."""
        self._cores = cores
        if self._process is not None:
            self._process.numbers[CORES] = cores

    def call(self, function: Callable[[A], R], argument: A, seconds_allowed: Callable[[int], float]) -> R:
        """Call `function(argument)` in the child and return its result.

        Args:
            function: The function.
            argument: Its argument.
            seconds_allowed: Returns the time limit from the start, given the number of frames decoded or made;
                NOT_OPENED before the source is open.

        Raises:
            CrashedError: The child died.
            WorkerError: No child can be started.
            DeadlineError: The call took too long.
            MemoryError: Memory is exhausted.
            Interrupted: `stop` was called.
        """
        for may_start_again in (True, False):
            if self._stopped.is_set():
                raise Interrupted
            try:
                result: R = self._call(function, argument, seconds_allowed)
                return result
            except DiedError as error:
                # A signal to the process group kills the child before the parent handles it.
                if self._stopped.is_set() or self._giving_up.wait(0.5):
                    raise Interrupted from error
                self.end_process()
                if error.taken:
                    raise CrashedError(_how_it_died(error.exit_code)) from error
                if not may_start_again:
                    raise WorkerError(_why_none_starts()) from error
            except MemoryError:
                self.end_process()
                raise
        raise AssertionError

    def call_or(
        self,
        failed: Callable[[Exception], R],
        function: Callable[[A], R],
        argument: A,
        seconds_allowed: Callable[[int], float],
    ) -> R:
        """Return `call(…)`, or `failed(error)` if the child died, took too long or ran out of memory. Raises WorkerError,
        Interrupted.
        """
        try:
            return self.call(function, argument, seconds_allowed)
        except WorkerError:
            raise  # nothing is known of the argument
        except (CrashedError, DeadlineError, MemoryError) as error:
            return failed(error)

    def _call(self, function: Callable[[A], R], argument: A, seconds_allowed: Callable[[int], float]) -> Any:
        if self._process is not None and (self._process.num_calls >= VIDEOS_PER_CHILD or not self._process.lives):
            self.end_process()
        if self._process is None:
            try:
                self._process = self._start()
            except OSError as error:
                raise DiedError(taken=False, exit_code=error.errno or 1) from error
        process = self._process
        process.numbers[WORK], process.numbers[CORES], process.numbers[MEMORY] = (
            NOT_OPENED,
            self._cores,
            self._memory_bytes,
        )
        if self._stopped.is_set():  # `stop` may have been called before the process existed
            raise Interrupted
        allowed = 0.0

        def more_seconds() -> float:
            nonlocal allowed
            before, allowed = allowed, max(allowed, seconds_allowed(process.numbers[WORK]))
            return allowed - before

        try:
            return process.begin(function, argument).result(more_seconds)
        except TimeoutError:
            self.end_process()
            raise DeadlineError(f"stopped after {allowed:g} s; raise --timeout if it needs longer") from None

    def _start(self) -> Process:
        return start_process()

    def end_process(self) -> None:
        """End the process; the next call starts another one."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """Abandon the current task."""
        self._stopped.set()
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        self.stop()
        self.end_process()


def stops_the_run(made: JobResult) -> bool:
    return isinstance(made, JobNotDone) and made.stops


def make(child: Child, job: Job) -> JobResult:
    """Process a job; return a failed row if the child crashes or exceeds the time limit. Raises Interrupted."""
    return _make_with(_make_in_child, child, job)


def make_alone(child: Child, job: Job) -> JobResult:
    """Process a job like `make`, including its segments, where other hosts do not see this host's files."""
    return _make_with(_make_segments, child, job)


def _make_with(do: Callable[[Child, Job], JobResult], child: Child, job: Job) -> JobResult:
    if job.upload is None and not job.unit.is_copied:
        return classify_fault(job, do(child, job))
    return classify_fault(job, stage(job, partial(do, child)))


def _make_segments(child: Child, job: Job) -> JobResult:
    """Process the segments of a job one after another."""
    queue = JobQueue([job])
    try:
        for each in queue:
            made = _make_in_child(child, each)
            if isinstance(made, JobNotDone):
                return made
            if (row := queue.take_result(each, made)) is not None:
                return row
    finally:
        queue.discard_unfinished()
    raise AssertionError


def _make_in_child(child: Child, job: Job) -> JobResult:
    limits = job.settings.limits
    stored = _count_bytes(job.unit.path)
    joined = sum(made.measured.num_frames for made in job.segments) if isinstance(job, JoinJob) else 0

    def seconds_allowed(work: int) -> float:
        """Return the time limit: only the size of the source and the finished frames count, not what the source claims."""
        if limits.timeout_seconds is not None:
            return limits.timeout_seconds
        if work == NOT_OPENED:
            return OPEN_SECONDS
        reading = MIN_SECONDS + stored / READ_BYTES_PER_SECOND
        tries = TRIES if job.settings.target else 1
        return reading * tries + SECONDS_PER_SECOND * (work + joined) / FRAMES_PER_SECOND

    child.limit_memory(limits.max_memory)
    try:
        made: JobResult = child.call(_run_in_child, job, seconds_allowed)
        if isinstance(made, ManifestRow) and made.stage in LEAKING_STAGES:
            child.end_process()
        return made
    except (CrashedError, DeadlineError, MemoryError) as error:
        row = new_row(job)
        fail(row, error)
        discard(job)
        return row


def _count_bytes(path: str) -> int:
    """Return the size of a file without its holes: a sparse file may have any length."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return 0
    # A file system that tells no blocks has them all the same.
    return min(status.st_size, status.st_blocks * 512 or status.st_size)


def _why_none_starts() -> str:
    """Return why this machine cannot start a child."""
    try:
        Path.cwd()
    except OSError:
        return (
            "no process starts for the videos: the current folder was deleted; change to one that exists, and run again"
        )
    limits = "memory, processes (ulimit -u) and open files (ulimit -n)"
    return f"no process starts for the videos: each ends before it takes one; look at {limits}, and run vidprep doctor"


def was_killed(row: ManifestRow) -> bool:
    """Return whether a child was killed by SIGKILL, as the kernel does when memory is exhausted; another process may have
    caused that.
    """
    return row.error == CrashedError.__name__ and signal.SIGKILL.name in (row.message or "")


def _how_it_died(exit_code: int) -> str:
    if exit_code >= 0:
        return f"the process that held it ended with code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = "; the machine may be short of memory, allow fewer --jobs" if -exit_code == signal.SIGKILL else ""
    return f"the process that held it was killed by {name}{hint}"


def _run_in_child(job: Job) -> JobResult:
    from vidprep.formats.processes import cores, count_progress
    from vidprep.transcode.unit.life import run_job

    return run_job(job, Context(count_progress, cores))
