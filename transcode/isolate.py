"""A child process for every worker: what a video does to its decoder, it does to a child, and costs one row.

The parent enforces the deadline by killing the child, so a decoder that spins while it holds the interpreter is stopped
too. A child that dies is replaced for the next video.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as DeadlinePassed
from pathlib import Path

import pebble

from vidprep.formats.errors import CrashedError, DeadlineError
from vidprep.formats.manifest import ManifestRow
from vidprep.transcode.job import Job, claimed_seconds, fail, new_row, run_job

OPEN_SECONDS = 120
LEAST_SECONDS = 300
SECONDS_PER_SECOND = 60
UNKNOWN_BYTES_PER_SECOND = 10_000
VIDEOS_PER_CHILD = 1000
PR_SET_PDEATHSIG = 1


class Interrupted(Exception):
    """The child was stopped on purpose; its video has no row and is taken up again by the next run."""


class Child:
    """One child process that works on one video at a time, replaced when it dies. Used by one thread at a time."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._pool: pebble.ProcessPool | None = None

    def run(self, job: Job) -> ManifestRow:
        """The row of a job, also when the child crashes or runs out of time. Raises Interrupted after `stop`."""
        try:
            return self._run(job)
        except CancelledError:
            raise Interrupted from None

    def _run(self, job: Job) -> ManifestRow:
        try:
            seconds = job.settings.limits.timeout_seconds or self._deadline(job)
            row: ManifestRow = self._call(run_job, job, seconds)
        except DeadlinePassed as error:
            limit = error.args[1] if len(error.args) > 1 else job.settings.limits.timeout_seconds
            return self._failed(job, DeadlineError(f"stopped after {limit:g} s; raise --timeout if it needs longer"))
        except pebble.ProcessExpired as error:
            # A signal to the whole group kills the child before the parent has heard of it.
            if self._stopped.wait(0.5):
                raise Interrupted from error
            return self._failed(job, CrashedError(_how_it_died(error.exitcode)))
        return row

    def _deadline(self, job: Job) -> float:
        claimed: float | None = self._call(claimed_seconds, job, OPEN_SECONDS)
        length = claimed if claimed is not None else job.unit.size_bytes / UNKNOWN_BYTES_PER_SECOND
        return LEAST_SECONDS + SECONDS_PER_SECOND * length

    def _call(self, function, job: Job, seconds: float):  # type: ignore[no-untyped-def]
        if self._stopped.is_set():
            raise Interrupted
        if self._pool is None:
            self._pool = pebble.ProcessPool(
                max_workers=1,
                max_tasks=2 * VIDEOS_PER_CHILD,
                initializer=_start_child,
                initargs=(os.getpid(),),
                context=multiprocessing.get_context("spawn"),
            )
        return self._pool.schedule(function, args=(job,), timeout=seconds).result()

    def _failed(self, job: Job, error: CrashedError | DeadlineError) -> ManifestRow:
        row = new_row(job)
        fail(row, error)
        Path(job.partial).unlink(missing_ok=True)
        return row

    def stop(self) -> None:
        """Kill the child now; what it was doing is abandoned."""
        self._stopped.set()
        if self._pool is not None:
            self._pool.stop()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.stop() if self._stopped.is_set() else self._pool.close()
            self._pool.join()


def _how_it_died(exit_code: int) -> str:
    if exit_code >= 0:
        return f"the process that held it ended with code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = "; the machine may be short of memory, allow fewer --jobs" if -exit_code == signal.SIGKILL else ""
    return f"the process that held it was killed by {name}{hint}"


def _start_child(parent: int) -> None:
    """Leave Ctrl-C to the parent, die with it, and be the first to go when memory runs out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("500")
