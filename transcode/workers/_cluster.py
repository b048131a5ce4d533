"""Send videos to the workers of a cluster, and collect results, even if workers, the scheduler or file systems fail.

A worker gets its first video after it has shown that it sees the same files as this machine (host.py). Jobs of a lost
worker run again elsewhere, a few times; if the cluster itself is lost, unfinished jobs are left to the next run. The
clusters' own clients are used instead of joblib, whose Dask backend never returns when a task has killed its workers,
and whose Ray backend does not stream and ends with an actor.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar

from vidprep.formats.errors import ClusterError, WorkerError
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.storage.base import is_url
from vidprep.transcode.sources.scratch import current_state
from vidprep.transcode.unit.job import Job, JobNotDone, JobResult
from vidprep.transcode.unit.queue import TRIES
from vidprep.transcode.workers.host import HostRequirements
from vidprep.transcode.workers.pool import Pool

QUEUE_SECONDS = 3600
NOBODY_SECONDS, LOST_SECONDS = 10.0, 30.0
POLL_SECONDS, ASK_SECONDS = 0.5, 1.0
RESULT_SECONDS = 10.0  # a result is fetched at once, unless it was lost with its worker and is made again
TASKS_PER_WORKER = 2
TASK_SECONDS, MAX_JOBS = 0.5, 16  # a task costs Dask's scheduler and worker 10 ms of CPU time

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SentTask:
    """Jobs that were sent together.

    Attributes:
        hosts: Hosts that may process them
    """

    jobs: list[Job]
    hosts: frozenset[str]


class ClusterPool(Pool[Job, JobResult]):
    """Keeps slightly more tasks in flight than the cluster can process, so that it never waits.

    A task is one job, or several short ones of half a second in total. A host is a unit that a task can be sent to: a
    worker of Dask, a node of Ray.
    """

    def __init__(self, name: str, remedy: str, say: Callable[[str], None], expected: HostRequirements) -> None:
        """Prepare a pool.

        Args:
            name: Name of the cluster in messages.
            remedy: What to do if it is lost, or has no workers.
            say: Receives messages.
            expected: What workers must see and have.
        """
        self._name, self._remedy, self._say, self._expected = name, remedy, say, expected
        self._stop, self._killed = threading.Event(), threading.Event()
        self._flying: dict[Any, SentTask] = {}
        self._checks: dict[Any, str] = {}
        self._imports: set[str] = set()
        self._good: set[str] = set()
        self._refused: dict[str, str] = {}
        self._waiting: deque[Job] = deque()  # for the first host that is ready
        self._worked, self._told = time.monotonic(), False
        self._jobs_per_task = 1
        self._on_task: Callable[[Job], object] = lambda _job: None

    is_elsewhere = True

    @property
    def stopping(self) -> bool:
        """Whether no more tasks are started."""
        return self._stop.is_set()

    def take_no_more(self) -> None:
        self._stop.set()

    def __enter__(self) -> Self:
        return self

    def release_idle(self) -> None:
        """Do nothing: the cluster's workers keep their children."""

    def kill(self) -> None:
        self._stop.set()
        self._killed.set()

    # ------------------------------------------------------------------------------------------- what a client of a cluster does

    @abstractmethod
    def hosts(self) -> dict[str, int]:
        """Return the current workers, and how many videos each can process at once. Called by a separate thread."""

    def ask_first(self, _host: str) -> Any | None:
        """Return a future of the expression that `importing` builds, which needs no vidprep on the host; None if calling
        `check` there is harmless.
        """
        return None

    @abstractmethod
    def check(self, host: str, expected: HostRequirements) -> Any:
        """Return a future of `why_not_here` on a host."""

    @abstractmethod
    def submit(self, tasks: list[list[Job]], hosts: dict[str, int]) -> list[tuple[Any, frozenset[str]]]:
        """Return a future for each task, and the hosts that may process it."""

    @abstractmethod
    def wait_ended(self) -> list[Any]:
        """Return futures that have ended, waiting a moment for the first one."""

    @abstractmethod
    def result(self, future: Any) -> Any:
        """Return a result within RESULT_SECONDS. Raises the client's error if workers died too often."""

    @abstractmethod
    def cancel(self, future: Any) -> None: ...

    @abstractmethod
    def was_beside_a_death(self, error: Exception) -> bool:
        """Return whether a task's workers died too often, possibly because of another job or task."""

    @abstractmethod
    def was_lost(self, error: Exception) -> bool:
        """Return whether a task was lost with its host or connection, which says nothing about the task."""

    def wait_for_restarts(self) -> None:
        """Wait for tasks that the cluster restarted by itself."""

    # ------------------------------------------------------------------------------------------- the loop

    def results(
        self, tasks: Iterable[Job], on_task: Callable[[Job], object] = lambda _job: None
    ) -> Iterator[tuple[Job, JobResult | None]]:
        left, lost, self._on_task = iter(tasks), None, on_task
        self._worked, self._told = time.monotonic(), False
        watch = _Watch(self.hosts)
        try:
            while not self._killed.is_set():
                hosts = self._ask(watch.hosts)
                yield from self._test_hosts(hosts)
                ready = {host: width for host, width in hosts.items() if host in self._good and not watch.is_silent}
                if not self.stopping:
                    self._feed(left, ready)
                if not self._flying and (self.stopping or not self._waiting):
                    if self.stopping or (job := next(left, None)) is None:
                        break
                    self._waiting.append(job)
                for future in self._ask(self.wait_ended):
                    yield from self._take(future)
                self._report_waiting({} if watch.is_silent else hosts, bool(ready), watch.is_silent)
        except ClusterError as error:
            lost = JobNotDone("cluster", type(error).__name__, error.message)
        finally:
            watch.stop()
        waiting = [*(job for task in self._flying.values() for job in task.jobs), *self._waiting]
        if lost is None:
            for future in self._flying:
                self.cancel(future)
            self.wait_for_restarts()
        elif not waiting:
            waiting = list(islice(left, 1))
        self._flying.clear()
        self._waiting.clear()
        yield from ((job, lost) for job in waiting)

    def _test_hosts(self, hosts: dict[str, int]) -> Iterator[tuple[Job, JobResult | None]]:
        """Test new workers; send jobs again that only lost workers had."""
        self._good &= hosts.keys()
        self._imports &= hosts.keys()
        self._refused = {host: why for host, why in self._refused.items() if host in hosts}
        self._checks = {future: host for future, host in self._checks.items() if host in hosts}
        for host in hosts.keys() - self._good - self._refused.keys() - set(self._checks.values()):
            first = None if host in self._imports else self._ask(self.ask_first, host)
            self._imports |= {host} if first is None else set()
            self._checks[first or self._ask(self.check, host, self._expected)] = host
        for future, task in [(future, task) for future, task in self._flying.items() if not task.hosts & hosts.keys()]:
            del self._flying[future]
            self._ask(self.cancel, future)
            died = JobNotDone(
                "worker",
                WorkerError.__name__,
                f"no worker of the cluster could do it: {TRIES} times, all workers that could have it died",
                stops=False,
                deaths=1,
            )
            yield from ((job, died) for job in task.jobs)

    def _feed(self, left: Iterator[Job], ready: dict[str, int]) -> None:
        few = sum(ready.values()) * TASKS_PER_WORKER
        if few and len(self._flying) <= few:
            most = few * self._jobs_per_task
            jobs = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            jobs += islice(left, most - len(jobs))
            self._send(
                jobs, min(self._jobs_per_task, len(jobs) // few), ready
            )  # at the end, keep some work for every worker

    def _send(self, jobs: list[Job], per_task: int, ready: dict[str, int]) -> None:
        size = max(1, per_task)
        tasks = [jobs[at : at + size] for at in range(0, len(jobs), size)]
        if tasks:
            sent = self._ask(self.submit, [[_make_absolute(job) for job in task] for task in tasks], ready)
            self._flying |= {future: SentTask(jobs, hosts) for (future, hosts), jobs in zip(sent, tasks, strict=True)}
        for job in jobs:
            self._on_task(job)

    def _take(self, future: Any) -> Iterator[tuple[Job, JobResult | None]]:
        if future in self._checks:
            self._take_check(future)
            return
        task = self._flying.pop(future, None)
        if task is None:  # it was abandoned when its host was lost
            return
        try:
            host, made = self.result(future)
        except Exception as error:  # noqa: BLE001 (whatever a client raises when it has nothing to give back)
            yield from self._take_failure(task, error)
            return
        self._jobs_per_task = _jobs_per_task(made)
        for job, each in zip(task.jobs, made, strict=True):
            is_changed = isinstance(each, JobNotDone) and each.row and current_state(job.unit.path) != job.unit.state
            if isinstance(each, JobNotDone) and not is_changed:
                self._good.discard(host)  # so that it is asked again
            yield job, each

    def _take_failure(self, task: SentTask, error: Exception) -> Iterator[tuple[Job, JobResult | None]]:
        name, reason = type(error).__name__, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        undone: JobNotDone | None = None
        if self.was_beside_a_death(error):  # the number of the cluster's own attempts
            undone = JobNotDone(
                "worker", name, f"no worker of the cluster could do it: {reason}", stops=False, deaths=TRIES
            )
        elif not self.was_lost(error):
            undone = JobNotDone("worker", name, f"no worker could do it: {reason}")
        yield from ((job, undone) for job in task.jobs)

    def _take_check(self, future: Any) -> None:
        host = self._checks.pop(future)
        try:
            name, why = self.result(future)
        except Exception as error:  # noqa: BLE001 (the same)
            if self.was_lost(error) or self.was_beside_a_death(error):
                return  # it is asked again if it is still there
            reason = str(error).strip().partition("\n")[0]
            name, why = (
                host,
                f"cannot run vidprep ({type(error).__name__}: {reason}); install {_version(self._expected)} there",
            )
        if why is None and host not in self._imports:
            self._imports.add(host)  # next, test what it sees
        elif why is None:
            self._good.add(host)
        elif (seen := self._expected.check_here()) != self._expected:
            self._expected = seen  # a source has changed since it was listed: ask again without it
        else:
            self._refused[host] = f"{name} {why}"
            self._say(f"left out: worker {name} at {host}: it {why}")

    def _report_waiting(self, hosts: Collection[str], is_in_use: bool, is_silent: bool) -> None:
        """If there is no worker, report why the run waits. Raises ClusterError if waiting is useless."""
        idle = time.monotonic() - self._worked
        if is_in_use:
            self._worked, self._told = time.monotonic(), False
        elif hosts and len(self._refused) == len(hosts) and not self._flying and idle > NOBODY_SECONDS:
            first = next(iter(self._refused.values()))
            raise ClusterError(f"none of the {len(hosts)} workers of {self._name} can work on this run: worker {first}")
        elif idle > QUEUE_SECONDS:
            raise ClusterError(f"{self._name} has had no usable worker for {QUEUE_SECONDS} s; {self._remedy}")
        elif idle > NOBODY_SECONDS and not self._told:
            self._told = True
            if is_silent:
                whom = f"does not answer; waiting up to {LOST_SECONDS:.0f} s for it: {self._remedy}"
            elif hosts:
                whom = f"has {len(hosts)} workers; waiting for the first to show that it sees sources and destination"
            else:
                whom = f"has no workers; waiting up to {QUEUE_SECONDS} s for one: {self._remedy}"
            self._say(f"nothing has been done for {idle:.0f} s: {self._name} {whom}")

    def _ask(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call the cluster's client, and convert its errors to ClusterError."""
        try:
            return call(*arguments)
        except Exception as error:
            raise ClusterError(f"{self._name} is lost ({type(error).__name__}: {error}); {self._remedy}") from error


class _Watch:
    """Thread that polls for workers: a lost cluster may never answer."""

    def __init__(self, ask: Callable[[], dict[str, int]]) -> None:
        self._ask_all = ask
        self._found: dict[str, int] | None = None
        self._error: Exception | None = None
        self._answered = time.monotonic()
        self._over = threading.Event()
        threading.Thread(target=self._keep_asking, daemon=True).start()

    def _keep_asking(self) -> None:
        while not self._over.is_set():
            try:
                self._found = self._ask_all()
                self._answered, self._error = time.monotonic(), None
            except Exception as error:  # noqa: BLE001 (whatever a client raises that has lost its cluster)
                self._error = error
            self._over.wait(ASK_SECONDS)

    @property
    def is_silent(self) -> bool:
        return time.monotonic() - self._answered > 3 * ASK_SECONDS

    def hosts(self) -> dict[str, int]:
        """Return the workers of the latest answer. Raises TimeoutError if it is too old."""
        while True:
            silent = time.monotonic() - self._answered
            if silent > LOST_SECONDS:
                raise TimeoutError(f"no answer for {silent:.0f} s" + (f": {self._error}" if self._error else ""))
            if self._found is not None:
                return self._found
            time.sleep(0.01)

    def stop(self) -> None:
        self._over.set()


def _jobs_per_task(made: Sequence[JobResult | None]) -> int:
    """Return how many such jobs make a task of the right duration."""
    seconds = [each.encode_seconds for each in made if isinstance(each, ManifestRow) and each.encode_seconds]
    return max(1, min(round(TASK_SECONDS * len(seconds) / sum(seconds)), MAX_JOBS)) if seconds else 1


def importing(due: str) -> str:
    """Return a Python expression that evaluates to the name of a host and why it cannot run vidprep; None if it can.

    Args:
        due: Required version.
    """
    return f"(lambda names: (exec({IMPORTING!r}, names), names['said'])[1])({{'due': {due!r}}})"


IMPORTING = """
import os, socket
name = f"{socket.gethostname()} (process {os.getpid()})"
try:
    from importlib.metadata import version
    import vidprep.transcode.workers._cluster_worker
    found = version("vidprep")
    said = name, None if found == due else f"has vidprep {found}, not {due}: outputs would differ; install the same versions there"
except Exception as error:
    said = name, f"cannot run vidprep ({type(error).__name__}: {error}); install vidprep {due} there"
"""


def _version(expected: HostRequirements) -> str:
    return f"vidprep {expected.versions['vidprep']}"


def _make_absolute(job: Job) -> Job:
    unit = job.unit if is_url(job.unit.path) else replace(job.unit, path=str(Path(job.unit.path).absolute()))
    return replace(job, unit=unit, partial=str(Path(job.partial).absolute()))
