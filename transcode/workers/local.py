"""The local pool, threads that each own a child process; and the choice of a pool by `--backend`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Self, TypeVar

from vidprep.formats.errors import MissingError
from vidprep.formats.processes import Process
from vidprep.transcode.settings.run import BACKENDS
from vidprep.transcode.unit.job import Job, JobResult
from vidprep.transcode.workers.child import Child, Interrupted, make, stops_the_run
from vidprep.transcode.workers.host import HostRequirements
from vidprep.transcode.workers.pool import Pool

# Control groups of version 2 and 1; "max" and -1 mean no limit.
CPU_QUOTAS = (Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"))

T = TypeVar("T")
R = TypeVar("R")


class LocalPool(Pool[T, R]):
    """Processes tasks in child processes of this process, each owned by a thread."""

    is_elsewhere = False

    def __init__(
        self,
        count: int,
        do: Callable[[Child, T], R],
        is_last: Callable[[R], bool] = lambda _result: False,
        *,
        started: Process | None = None,
    ) -> None:
        """Create a pool. Children live to the end of the block.

        Args:
            count: Number of parallel tasks.
            do: Does a task with a child.
            is_last: Returns whether no further task is started after a result.
            started: Process of the first child, if it has been started. It ends with the block.
        """
        self._do, self._count, self._is_last, self._started = do, count, is_last, started
        self._cores_each = 1
        self._children: list[Child] = []
        self._idle: list[Child] = []
        self._closing: list[Future[None]] = []
        self._guard = threading.Lock()
        self._stop = threading.Event()

    @property
    def stopping(self) -> bool:
        """Whether no more tasks are started."""
        return self._stop.is_set()

    def take_no_more(self) -> None:
        self._stop.set()

    def kill(self) -> None:
        self._stop.set()
        with self._guard:
            for child in self._children:
                child.stop()

    def results(
        self, tasks: Iterable[T], on_task: Callable[[T], object] = lambda _task: None
    ) -> Iterator[tuple[T, R | None]]:
        left = iter(tasks)
        flying: list[
            Future[tuple[T, R | None]]
        ] = []  # in the order of their tasks: one worker's results come in that order
        while True:
            # One more per thread, so that no thread waits while its last result is processed.
            while len(flying) < 2 * self._count and not self.stopping and (task := next(left, None)) is not None:
                flying.append(self._threads.submit(self._run, task, on_task))
            if not flying:
                return
            self._share_cores(len(flying))
            done, _ = wait(flying, return_when=FIRST_COMPLETED)
            ended = [future for future in flying if future in done]
            flying = [future for future in flying if future not in done]
            for future in ended:
                yield future.result()

    def _new_child(self) -> Child:
        started, self._started = self._started, None
        child = Child(self._stop, started, count=self._count)
        child.set_cores(self._cores_each)
        self._children.append(child)
        return child

    def _share_cores(self, num_flying: int) -> None:
        with self._guard:
            self._cores_each = max(1, -(-self._count // num_flying))
            for child in self._children:
                child.set_cores(self._cores_each)

    def _run(self, task: T, on_task: Callable[[T], object]) -> tuple[T, R | None]:
        if self.stopping:
            return task, None
        on_task(task)
        with self._guard:
            child = self._idle.pop() if self._idle else None
            if child is None:
                child = self._new_child()
        try:
            result = self._do(child, task)
            if self._is_last(result):
                self.take_no_more()
            return task, result
        except Interrupted:
            return task, None
        finally:
            with self._guard:
                self._idle.append(child)

    def __enter__(self) -> Self:
        self._threads = ThreadPoolExecutor(self._count)
        return self

    def release_idle(self) -> None:
        for child in self._children:
            child.stop()
        self._closing.extend(self._threads.submit(child.close) for child in self._children)

    def __exit__(self, *error: Any) -> None:
        self.release_idle()
        for each in self._closing:
            each.result()
        self._threads.shutdown()
        if self._started is not None:
            self._started.close()


def default_jobs() -> int:
    """Return the number of cores that this process may use, by its affinity and its control group's quota; at least one."""
    if hasattr(os, "sched_getaffinity") and not _has_quota() and "LOKY_MAX_CPU_COUNT" not in os.environ:
        return len(os.sched_getaffinity(0))
    from joblib import cpu_count  # importing it takes a quarter of a second of CPU time, and few machines need it

    return int(cpu_count())


def _has_quota() -> bool:
    for quota in CPU_QUOTAS:
        with suppress(OSError):
            return quota.read_text().split()[:1] not in (["max"], ["-1"])
    return False


def workers_of(
    backend: str,
    address: str | None,
    jobs: int,
    say: Callable[[str], None],
    expected: HostRequirements | None = None,
    *,
    started: Process | None = None,
) -> Pool[Job, JobResult]:
    """Return the pool of a backend.

    Args:
        backend: Name of the backend.
        address: Address of the cluster.
        jobs: Parallel videos in this process. A cluster processes as many as it has threads or CPUs.
        say: Receives messages.
        expected: What workers of a cluster must see and have.
        started: Process of the first child.

    Raises:
        BackendError: The cluster cannot be reached.
        MissingError: Its package is not installed.
    """
    if backend == "local":
        return LocalPool(jobs, make, stops_the_run, started=started)
    assert expected is not None
    chosen = BACKENDS[backend]
    module, _, name = chosen.workers.partition(":")
    try:
        kind = getattr(import_module(f"vidprep.transcode.workers.{module}"), name)
        pool: Pool[Job, JobResult] = kind(address or chosen.address, say, expected)
        return pool
    except ImportError as error:
        if error.name == chosen.package:
            raise MissingError(f"--backend {backend} needs {error.name}: pip install 'vidprep[{backend}]'") from error
        raise
