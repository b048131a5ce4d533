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
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as DeadlinePassed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeVar

import pebble

from vidprep.formats.errors import CrashedError, DeadlineError, WorkerError
from vidprep.formats.files.remote import is_url
from vidprep.transcode.unit.job import Job, Made, Undone, discard, fail, new_row
from vidprep.transcode.workers.host import blamed

OPEN_SECONDS = 120
MIN_SECONDS = 300
SECONDS_PER_SECOND = 60
FRAMES_PER_SECOND = 25  # decoded or made
READ_BYTES_PER_SECOND = 1_000_000
VIDEOS_PER_CHILD = 2000  # the heap grows by 3 kB a video
TRIES = 8
PR_SET_PDEATHSIG = 1
LEFT_TO_PARENT = {signal.SIGINT, signal.SIGUSR1}
NOT_OPENED = -1

A = TypeVar("A")
R = TypeVar("R")


class Interrupted(Exception):
    """The child was stopped on purpose; its video has no row and is taken up again by the next run."""


class Child:
    """One child process that works on one thing at a time, replaced when it dies. Used by one thread at a time."""

    def __init__(self, giving_up: threading.Event) -> None:
        """giving_up: set when the run takes no more; a child that dies after that was stopped, and did not crash."""
        self._giving_up = giving_up
        self._stopped = threading.Event()
        self._pool: pebble.ProcessPool | None = None
        self._future: pebble.ProcessFuture | None = None
        self._context = multiprocessing.get_context("spawn")
        self._work = self._context.Value("q", NOT_OPENED, lock=False)

    def start(self) -> None:
        """Begin its process before there is a task for it."""
        with contextlib.suppress(CrashedError, DeadlineError, MemoryError, Interrupted):
            self.call(_nothing, None, lambda _work: OPEN_SECONDS)

    def call(self, function: Callable[[A], R], argument: A, seconds_allowed: Callable[[int], float]) -> R:
        """What `function` makes of `argument` there.

        seconds_allowed: from its start, when so many frames have been decoded or made; NOT_OPENED before the source is open.
        Raises CrashedError when the child dies, WorkerError when none starts, DeadlineError, MemoryError, Interrupted after `stop`.
        """
        for may_start_again in (True, False):
            if self._stopped.is_set():
                raise Interrupted
            try:
                result: R = self._result(self._schedule(function, argument), seconds_allowed)
                return result
            except CancelledError:
                raise Interrupted from None
            except (pebble.ProcessExpired, BrokenProcessPool) as error:
                # A signal to the whole group kills the child before the parent has heard of it.
                if self._giving_up.wait(0.5):
                    raise Interrupted from error
                self._discard()
                # A pool that is broken lost its child before that took the task: the task is not to blame.
                if isinstance(error, BrokenProcessPool):
                    if may_start_again:
                        continue
                    raise WorkerError(_why_none_starts()) from error
                raise CrashedError(_how_it_died(error.exitcode)) from error
            except MemoryError:
                self._discard()
                raise
        raise AssertionError

    def _schedule(self, function: Callable[[A], R], argument: A) -> pebble.ProcessFuture:
        # Blocked while a pool starts, so blocked in its threads, in the child from its first instruction, and in the ffmpeg
        # that it may run: Ctrl-C goes to the whole group, and the videos in flight have the grace time to finish.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_PARENT)
        try:
            if self._pool is None:
                resource_tracker.ensure_running()
                signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_PARENT)  # the tracker, a process too, unblocks some
                self._pool = pebble.ProcessPool(
                    max_workers=1,
                    max_tasks=VIDEOS_PER_CHILD,
                    initializer=_start_child,
                    initargs=(os.getpid(), self._work),
                    context=self._context,
                )
            self._work.value = NOT_OPENED
            self._future = self._pool.schedule(function, args=(argument,))
        except RuntimeError as error:
            raise BrokenProcessPool(str(error)) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if self._stopped.is_set():
            self._future.cancel()
        return self._future

    def _result(self, future: pebble.ProcessFuture, seconds_allowed: Callable[[int], float]) -> Any:
        """Wait until the deadline, which grows with the work that the child has done."""
        started, deadline = time.monotonic(), seconds_allowed(NOT_OPENED)
        while True:
            try:
                return future.result(timeout=max(0.0, started + deadline - time.monotonic()))
            except DeadlinePassed:
                longer = seconds_allowed(self._work.value)
                if longer <= deadline:
                    future.cancel()
                    self._discard()
                    raise DeadlineError(f"stopped after {deadline:g} s; raise --timeout if it needs longer") from None
                deadline = longer

    def _discard(self) -> None:
        """Kill the child, and drop the pool with it: whoever dies may hold the lock of its channel."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()
            pool.join()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """Abandon what the child is doing; `close` kills it."""
        self._stopped.set()
        if self._future is not None:
            self._future.cancel()

    def close(self) -> None:
        self.stop()
        self._discard()


def stops_the_run(made: Made) -> bool:
    return isinstance(made, Undone) and made.stops


def make(child: Child, job: Job) -> Made:
    """What comes of a job; a failed row when the child crashes or runs out of time. Raises Interrupted."""
    if job.upload is None and not is_url(job.unit.path):
        return blamed(job, _made_by(child, job))
    from vidprep.transcode.workers.staging import staged

    return blamed(job, staged(job, partial(_made_by, child)))


def _made_by(child: Child, job: Job) -> Made:
    limits = job.settings.limits
    joined, stored = sum(made.measured.num_frames for made in job.segments), _stored_bytes(job.unit.path)

    def seconds_allowed(work: int) -> float:
        """What a source claims counts for nothing: the bytes that it has, and the frames that were done."""
        if limits.timeout_seconds is not None:
            return limits.timeout_seconds
        if work == NOT_OPENED:
            return OPEN_SECONDS
        reading = MIN_SECONDS + stored / READ_BYTES_PER_SECOND
        tries = TRIES if job.settings.target else 1
        return reading * tries + SECONDS_PER_SECOND * (work + joined) / FRAMES_PER_SECOND

    try:
        return child.call(_run_in_child, job, seconds_allowed)
    except (CrashedError, DeadlineError, MemoryError) as error:
        row = new_row(job)
        fail(row, error)
        discard(job)
        return row


def _stored_bytes(path: str) -> int:
    """The size of a file without its holes, which a few bytes can make as long as they like."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return 0
    # A file system that tells no blocks has them all the same.
    return min(found.st_size, found.st_blocks * 512 or found.st_size)


def _why_none_starts() -> str:
    """Of this machine, not of a video."""
    try:
        Path.cwd()
    except OSError:
        return (
            "no process starts for the videos: the current folder was deleted; change to one that exists, and run again"
        )
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is not None and Path(script).stem not in ("vidprep", "__main__"):
        return (
            f"no process starts for the videos: each imports {script} and ends there; put what calls vidprep under "
            '`if __name__ == "__main__":`'
        )
    limits = "memory, processes (ulimit -u) and open files (ulimit -n)"
    return f"no process starts for the videos: each ends before it takes one; look at {limits}, and run vidprep doctor"


def _how_it_died(exit_code: int) -> str:
    if exit_code >= 0:
        return f"the process that held it ended with code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = "; the machine may be short of memory, allow fewer --jobs" if -exit_code == signal.SIGKILL else ""
    return f"the process that held it was killed by {name}{hint}"


def _nothing(_: None) -> None:
    """What starts a child."""


_work_here: Any = None


def _run_in_child(job: Job) -> Made:
    from vidprep.transcode.unit.run_job import run_job

    return run_job(job, _worked)


def _worked() -> None:
    _work_here.value += 1


def _start_child(parent: int, work: Any) -> None:
    """Die at once when told to, and with the parent, and be the first to go when memory runs out."""
    global _work_here
    _work_here = work
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("500")
    import vidprep.transcode.unit.run_job  # noqa: F401 (before the first video, and not in the parent, which needs no decoder)
