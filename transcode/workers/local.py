"""Threads that each own a child process; and the way to stop them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Generic, Self, TypeVar

from vidprep.formats.processes import Process
from vidprep.transcode.workers.child import Child, Interrupted

# Of control groups of version 2 and 1: "max" and -1 are none.
CPU_QUOTAS = (Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"))

T = TypeVar("T")
R = TypeVar("R")


class Workers(Generic[T, R]):
    """do: what is to be done with each task, by means of a child. Children live to the end of the block.

    is_last: whether a result means that no other task is to be begun. started: the process of the first child, when it has been
    started; it ends with the block. tries_again: whether a task whose child was killed is done again elsewhere before it is given up.
    """

    tries_again = False

    def __init__(
        self, count: int, do: Callable[[Child, T], R], is_last: Callable[[R], bool] = lambda _result: False,
        *, started: Process | None = None,
    ) -> None:  # fmt: skip
        self._do, self._count, self._is_last, self._started = do, count, is_last, started
        self._cores_each = 1
        self._children: list[Child] = []
        self._idle: list[Child] = []
        self._closing: list[Future[None]] = []
        self._guard = threading.Lock()
        self._stop = threading.Event()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def take_no_more(self) -> None:
        """Let what is in flight finish, and start nothing new."""
        self._stop.set()

    def kill(self) -> None:
        self._stop.set()
        with self._guard:
            for child in self._children:
                child.stop()

    def results(
        self, tasks: Iterable[T], on_task: Callable[[T], object] = lambda _task: None
    ) -> Iterator[tuple[T, R | None]]:
        """Each task with what came of it, as they finish; None for one that was abandoned.

        tasks: asked again after each result, even when they had come to an end before. on_task: told, by any thread, when a
        worker takes one, or a cluster has it in its own queue.
        """
        left = iter(tasks)
        flying: list[
            Future[tuple[T, R | None]]
        ] = []  # in the order of their tasks: one worker's results come in that order
        while True:
            # One more for each thread, which then need not wait until what came of the last one has been dealt with.
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
        child.may_use(self._cores_each)
        self._children.append(child)
        return child

    def _share_cores(self, num_flying: int) -> None:
        with self._guard:
            self._cores_each = max(1, -(-self._count // num_flying))
            for child in self._children:
                child.may_use(self._cores_each)

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
        self._threads = ThreadPoolExecutor(self._count)  # a child dies with the thread that started it
        return self

    def dismiss(self) -> None:
        """End the children, as there are no more tasks, while the caller goes on."""
        for child in self._children:
            child.stop()
        self._closing.extend(self._threads.submit(child.close) for child in self._children)

    def __exit__(self, *error: Any) -> None:
        self.dismiss()
        for each in self._closing:
            each.result()
        self._threads.shutdown()
        if self._started is not None:
            self._started.close()


@dataclass(slots=True)
class Stop:
    """signal: the one that asked for it, SIGINT or SIGTERM; None while none did."""

    signal: int | None = None


@contextmanager
def stopped_by_signals(
    workers: Workers[Any, Any], grace_seconds: float, on_stop: Callable[[], object] = lambda: None
) -> Iterator[Stop]:
    """The first SIGINT, SIGTERM, SIGUSR1, SIGHUP or SIGXCPU lets the videos in flight finish within the grace time; the second does
    not. on_stop: called at the first, in a thread of its own. One that was switched off when this process started, as by nohup, stays so.

    Off the main thread, signals are left to whoever runs it.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():  # where Python takes no handlers
        yield stop
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.signal is not None:
            threading.Thread(target=workers.kill, daemon=True).start()
            return
        stop.signal = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        workers.take_no_more()
        timer.start()
        threading.Thread(target=on_stop, daemon=True).start()

    timer = threading.Timer(grace_seconds, workers.kill)
    timer.daemon = True
    caught = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGXCPU)
    heard = [number for number in caught if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        timer.cancel()


def default_jobs() -> int:
    """The cores that this process may use, by its affinity and by the quota of its control group; at least one."""
    if hasattr(os, "sched_getaffinity") and not _has_quota() and "LOKY_MAX_CPU_COUNT" not in os.environ:
        return len(os.sched_getaffinity(0))
    from joblib import cpu_count  # a quarter of a second of CPU time, which few machines need

    return int(cpu_count())


def _has_quota() -> bool:
    for quota in CPU_QUOTAS:
        with suppress(OSError):
            return quota.read_text().split()[:1] not in (["max"], ["-1"])
    return False
