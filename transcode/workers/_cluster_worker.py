"""Code that runs on a cluster's worker. Each video is processed in a child process, as on one machine."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from vidprep.formats.errors import CrashedError, DeadlineError, WorkerError
from vidprep.transcode.sources.scratch import scratch_folder
from vidprep.transcode.unit.job import Job, JobNotDone, JobResult
from vidprep.transcode.workers.child import Child, Interrupted, make, make_alone, stops_the_run
from vidprep.transcode.workers.host import HostRequirements, why_unfit

LOOK_SECONDS = 60.0  # a file system that does not answer within this time is considered unreachable

_idle: list[Child] = []
_busy: list[Child] = []
_guard = threading.Lock()
_giving_up = threading.Event()


def name_here() -> str:
    return f"{socket.gethostname()} (process {os.getpid()})"


def why_not_here(expected: HostRequirements) -> tuple[str, str | None]:
    """Return the name of this host, and why it cannot work on a run (None if it can). A child process tests it."""
    child = _take()
    try:
        return name_here(), child.call(why_unfit, expected, lambda _work: LOOK_SECONDS)
    except (CrashedError, MemoryError, Interrupted) as error:
        return name_here(), str(error)
    except DeadlineError:
        return name_here(), f"does not see sources and destination within {LOOK_SECONDS:g} s; look at its file systems"
    finally:
        _give_back(child)


def work(jobs: list[Job]) -> list[JobResult | None]:
    """Process jobs in a child of this worker; None for each that was not begun or was abandoned."""
    made: list[JobResult] = []
    with scratch_folder() if jobs[0].upload is not None else nullcontext() as scratch:
        for job in jobs:
            try:
                made.append(_work(job, scratch))
            except Interrupted:
                break
            except Exception as error:  # noqa: BLE001 (the others of its task are not to fail with it)
                made.append(JobNotDone("worker", WorkerError.__name__, f"{type(error).__name__}: {error}", stops=False))
            if stops_the_run(made[-1]):
                break
    return [*made, *[None] * (len(jobs) - len(made))]


def _work(job: Job, scratch: Path | None) -> JobResult:
    """Process a job.

    Args:
        job: The job.
        scratch: Folder for files that other hosts do not need to see.

    Raises:
        Interrupted: It was abandoned.
    """
    child = _take()
    # A separate file: a worker that was considered lost may still be writing while another processes the same job.
    folder = scratch or Path(job.partial).parent
    own = folder / f"{uuid.uuid4().hex}-{Path(job.partial).name}"
    try:
        do = make if scratch is None and not job.unit.is_copied else make_alone
        made = do(child, replace(job, partial=str(own)))
        if scratch is None and own.exists():
            own.replace(job.partial)
        return made
    finally:
        _give_back(child)


def _take() -> Child:
    with _guard:
        child = _idle.pop() if _idle else Child(_giving_up)
        _busy.append(child)
    return child


def _give_back(child: Child) -> None:
    with _guard:
        _busy.remove(child)
        if not child.stopped:
            _idle.append(child)


def stop_children() -> None:
    """Abandon all current tasks."""
    with _guard:
        for child in (*_idle, *_busy):
            child.stop()
        _idle.clear()
