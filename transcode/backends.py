"""Where videos are worked on: threads of this process, or the workers of a dask or ray cluster.

On a cluster each worker hands a video to a child process of its own, as here: the same isolation, deadlines and rows. Workers
need this package, and the paths of sources and destination. A worker that is lost loses nothing: what it had in hand runs
again elsewhere, a few times. The clusters' own clients carry the work and not joblib, of whose backends
dask's never returns when a task has killed its workers, and ray's streams nothing and ends with an actor.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
import uuid
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from itertools import chain, islice
from multiprocessing import current_process
from pathlib import Path
from typing import Any, Self

from vidprep.formats.errors import BackendError, CrashedError, MissingError
from vidprep.formats.manifest import ManifestRow
from vidprep.formats.remote import is_url
from vidprep.transcode.isolate import Child, Interrupted, found_no_room, make
from vidprep.transcode.task import Job, Made, fail, new_row
from vidprep.transcode.workers import Workers

BACKENDS = ("local", "dask", "ray")
TRIES = 3
READY_SECONDS, QUEUE_SECONDS = 15, 3600
POLL_SECONDS, WIDTH_SECONDS = 0.5, 1.0
TASKS_PER_WORKER = 2
TASK_SECONDS, MOST_JOBS = (
    0.5,
    16,
)  # a task costs a scheduler and a worker of dask some 10 ms of CPU time, whatever it does
SETTLE_SECONDS, SETTLE_POLL_SECONDS = 60.0, 0.1


def workers_of(backend: str, address: str | None, jobs: int, say: Callable[[str], None]) -> Workers[Job, Made]:
    """jobs: videos at a time in this process; a cluster has as many as it has threads or CPUs.

    Raises BackendError for a cluster that is not there or has another version, MissingError.
    """
    if backend == "dask":
        return DaskWorkers(address or "", say)
    if backend == "ray":
        return RayWorkers(address or "auto")
    return Workers(jobs, make, found_no_room)


class ClusterWorkers(Workers[Job, Made]):
    """Keeps a few more tasks in flight than the cluster can do at once, so that none of it waits. A task is a job, or
    as many short ones as take half a second.
    """

    def __init__(self) -> None:
        super().__init__(1, make)
        self._flying: dict[Any, list[Job]] = {}
        self._jobs_per_task = 1
        self._killed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def start_children(self) -> None:
        """The cluster's workers start theirs."""

    def results(self, tasks: Iterable[Job]) -> Iterator[tuple[Job, Made | None]]:
        left = iter(tasks)
        suspects: deque[Job] = deque()  # each runs once more, with no other on the cluster: so only a killer fails
        alone = False
        while not self._killed.is_set():
            few, alone = self.width() * TASKS_PER_WORKER, alone and bool(self._flying)
            if len(self._flying) <= few and not alone and not self.stopping:
                jobs = list(islice(left, few * self._jobs_per_task))
                self._send(jobs, min(self._jobs_per_task, len(jobs) // few))  # at the end, something for every worker
            if not self._flying and suspects and not self.stopping:
                alone = True
                self._send([suspects.popleft()])
            if not self._flying:
                break
            for future in self.ended():
                jobs = self._flying.pop(future)
                try:
                    made = self.result(future)
                except Exception as error:  # noqa: BLE001 (its workers died too often, or cannot run it at all)
                    if not alone and self.was_beside_a_death(error):
                        suspects.extend(jobs)
                    else:
                        yield from ((job, _not_done(job, error)) for job in jobs)
                else:
                    self._jobs_per_task = _jobs_per_task(made)
                    yield from zip(jobs, made, strict=True)
        for future in self._flying:
            self.cancel(future)
        for job in (*chain(*self._flying.values()), *suspects):
            yield job, None
        self._flying.clear()
        self.settle()

    def _send(self, jobs: list[Job], per_task: int = 1) -> None:
        size = max(1, per_task)
        tasks = [jobs[at : at + size] for at in range(0, len(jobs), size)]
        if tasks:
            sent = self.submit([[_with_absolute_paths(job) for job in task] for task in tasks])
            self._flying.update(zip(sent, tasks, strict=True))

    def kill(self) -> None:
        self._stop.set()
        self._killed.set()

    @abstractmethod
    def width(self) -> int:
        """Videos that the cluster can work on at once now."""

    @abstractmethod
    def submit(self, tasks: list[list[Job]]) -> list[Any]:
        """A future for each task."""

    @abstractmethod
    def ended(self) -> list[Any]:
        """Futures that have ended, waiting a moment for the first."""

    @abstractmethod
    def result(self, future: Any) -> list[Made | None]:
        """As `work` gives it. Raises what the cluster's client does when its workers died too often."""

    @abstractmethod
    def cancel(self, future: Any) -> None: ...

    @abstractmethod
    def was_beside_a_death(self, error: Exception) -> bool:
        """Whether a task's workers died too often, though another of its jobs, or another task, may have killed them."""

    def settle(self) -> None:
        """Wait for what the cluster still does though nobody asked for it."""


class DaskWorkers(ClusterWorkers):
    """address: of the scheduler, or the file that it wrote."""

    def __init__(self, address: str, say: Callable[[str], None]) -> None:
        try:
            import distributed
        except ImportError as error:
            raise MissingError("--backend dask needs distributed: pip install 'vidprep[dask]'") from error
        super().__init__()
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._width, self._ask_again = 1, 0.0
        self._distributed, self._prefix = distributed, f"vidprep-{uuid.uuid4().hex}"
        logging.getLogger("distributed").setLevel(logging.ERROR)  # a lost worker is no news here
        place = {"scheduler_file": address} if Path(address).is_file() else {"address": address}
        try:
            self._client = distributed.Client(**place, timeout=READY_SECONDS)
            if not self._client.nthreads():
                say(f"{address} has no workers yet; waiting up to {QUEUE_SECONDS} s for the first")
                self._client.wait_for_workers(1, timeout=QUEUE_SECONDS)
        except (OSError, TimeoutError, ValueError) as error:
            raise BackendError(f"no dask cluster with workers at {address}: {error}") from error

    def width(self) -> int:
        """Asked for once in a while: it is a question to the scheduler."""
        if time.monotonic() >= self._ask_again:
            self._width = sum(self._client.nthreads().values()) or 1
            self._ask_again = time.monotonic() + WIDTH_SECONDS
        return self._width

    def submit(self, tasks: list[list[Job]]) -> list[Any]:
        """Together: a message of one costs the scheduler as much as one of several."""
        keys = [f"{self._prefix}-{uuid.uuid4().hex}" for _ in tasks]
        futures: list[Any] = self._client.map(work, tasks, version_there=version_here(), key=keys, pure=False)
        for future in futures:
            future.add_done_callback(self._ended.put)
        return futures

    def ended(self) -> list[Any]:
        try:
            return [self._ended.get(timeout=POLL_SECONDS)]
        except queue.Empty:
            return []

    def result(self, future: Any) -> list[Made | None]:
        found: list[Made | None] = future.result()
        future.release()
        return found

    def cancel(self, future: Any) -> None:
        future.cancel()

    def was_beside_a_death(self, error: Exception) -> bool:
        """A death counts against all that were on the worker, waiting ones too."""
        return isinstance(error, self._distributed.scheduler.KilledWorker)

    def settle(self) -> None:
        """A worker that is lost with a result that was fetched a moment ago makes dask do it again elsewhere: what that leaves must be
        there before leftovers are removed.
        """
        over = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < over and not self._killed.is_set():
            if not any(
                str(key).startswith(self._prefix) for keys in self._client.processing().values() for key in keys
            ):
                return
            time.sleep(SETTLE_POLL_SECONDS)

    def __exit__(self, *_: object) -> None:
        if self._killed.is_set():
            self._client.run(stop_children, on_error="ignore")  # a worker may be lost by now
        self._client.close()


class RayWorkers(ClusterWorkers):
    """address: of the head node, or "auto"."""

    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingError("--backend ray needs ray: pip install 'vidprep[ray]'") from error
        super().__init__()
        self._ray = ray
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise BackendError(f"no ray cluster at {address}: {error}") from error
        self._work = ray.remote(num_cpus=1, max_retries=TRIES - 1)(work)

    def width(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 1)) or 1

    def submit(self, tasks: list[list[Job]]) -> list[Any]:
        return [self._work.remote(jobs, version_here()) for jobs in tasks]

    def ended(self) -> list[Any]:
        done, _ = self._ray.wait(list(self._flying), num_returns=1, timeout=POLL_SECONDS)
        return list(done)

    def result(self, future: Any) -> list[Made | None]:
        found: list[Made | None] = self._ray.get(future)
        return found

    def cancel(self, future: Any) -> None:
        self._ray.cancel(future, force=True)

    def was_beside_a_death(self, error: Exception) -> bool:
        errors = self._ray.exceptions
        return isinstance(error, errors.RayError) and not isinstance(error, errors.RayTaskError)

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()


def _jobs_per_task(made: Sequence[Made | None]) -> int:
    """How many such jobs take as long as a task should."""
    seconds = [each.encode_seconds for each in made if isinstance(each, ManifestRow) and each.encode_seconds]
    return max(1, min(round(TASK_SECONDS * len(seconds) / sum(seconds)), MOST_JOBS)) if seconds else 1


def _not_done(job: Job, error: Exception) -> ManifestRow:
    row = new_row(job)
    said = str(error).strip().partition("\n")[0]
    fail(row, CrashedError(f"no worker of the cluster could do it: {type(error).__name__}: {said}"))
    return row


def _with_absolute_paths(job: Job) -> Job:
    unit = job.unit if is_url(job.unit.path) else replace(job.unit, path=str(Path(job.unit.path).absolute()))
    return replace(job, unit=unit, partial=str(Path(job.partial).absolute()))


# ------------------------------------------------------------------------------------------------ in a worker of a cluster

_idle: list[Child] = []
_busy: list[Child] = []
_guard = threading.Lock()
_giving_up = threading.Event()


def work(jobs: list[Job], version_there: str) -> list[Made | None]:
    """What comes of each job, made by a child of this worker; None for what was not begun or abandoned. Raises BackendError where this
    worker has another version.
    """
    if version_here() != version_there:
        raise BackendError(f"{socket.gethostname()} has {version_here()}, not {version_there}")
    current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # dask's workers may have no children otherwise
    made: list[Made] = []
    for job in jobs:
        try:
            made.append(_work(job))
        except Interrupted:
            break
        except Exception as error:  # noqa: BLE001 (the others of its task are not to fail with it)
            made.append(_not_done(job, error))
        if found_no_room(made[-1]):
            break
    return [*made, *[None] * (len(jobs) - len(made))]


def _work(job: Job) -> Made:
    """Raises Interrupted."""
    with _guard:
        child = _idle.pop() if _idle else Child(_giving_up)
        _busy.append(child)
    # Of its own: a worker that was given up may still be writing when another has the same job.
    own = Path(job.partial).with_name(f"{uuid.uuid4().hex}-{Path(job.partial).name}")
    try:
        own.parent.mkdir(parents=True, exist_ok=True)
        made = make(child, replace(job, partial=str(own)))
        if own.exists():
            own.replace(job.partial)
        return made
    finally:
        with _guard:
            _busy.remove(child)
            if not child.stopped:
                _idle.append(child)


def stop_children() -> None:
    """Abandon what is being worked on."""
    with _guard:
        for child in (*_idle, *_busy):
            child.stop()
        _idle.clear()


@cache
def version_here() -> str:
    """Kept, for it reads files: 3 ms."""
    return f"vidprep {version('vidprep')}, PyAV {version('av')}"
