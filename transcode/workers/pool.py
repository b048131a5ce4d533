"""The `Pool` protocol (children of this process, or workers of a cluster), and the signals that stop it."""

from __future__ import annotations

import signal
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol, Self, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result", covariant=True)


class Pool(Protocol[Task, Result]):
    """Processes tasks in parallel, within a `with` block.

    `JobQueue` decides which tasks are retried, and which run alone because they may kill workers.

    Attributes:
        is_elsewhere: Whether other machines process the tasks
    """

    is_elsewhere: bool

    @property
    @abstractmethod
    def stopping(self) -> bool:
        """Whether no more tasks are started."""

    @abstractmethod
    def results(
        self, tasks: Iterable[Task], on_task: Callable[[Task], object] = lambda _task: None
    ) -> Iterator[tuple[Task, Result | None]]:
        """Yield each task with its result as they finish; None if it was not started, or was abandoned.

        Args:
            tasks: Asked for more after each result, even after it was exhausted.
            on_task: Called, in any thread, when a worker takes a task or a cluster queues it.
        """

    @abstractmethod
    def take_no_more(self) -> None:
        """Start no more tasks; running ones finish."""

    @abstractmethod
    def kill(self) -> None:
        """Abandon running tasks."""

    @abstractmethod
    def release_idle(self) -> None:
        """Release idle resources when there are no more tasks, while the caller goes on."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *error: Any) -> None: ...


@dataclass(slots=True)
class Stop:
    """Request to stop.

    Attributes:
        signal: SIGINT if that arrived first, SIGTERM for any other signal; None before one arrives
    """

    signal: int | None = None


@contextmanager
def stop_on_signals(
    pool: Pool[Any, Any], grace_seconds: float, on_stop: Callable[[], object] = lambda: None
) -> Iterator[Stop]:
    """Handle signals within the block.

    The first SIGINT, SIGTERM, SIGUSR1, SIGHUP or SIGXCPU lets running videos finish within the grace time; the second
    stops them. A signal that was ignored when this process started, as under nohup, stays ignored. Outside the main
    thread, signals are left to the program.

    Args:
        pool: The pool to stop.
        grace_seconds: The grace time.
        on_stop: Called at the first signal, in its own thread.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():  # Python allows handlers only there
        yield stop
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.signal is not None:
            threading.Thread(target=pool.kill, daemon=True).start()
            return
        stop.signal = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        pool.take_no_more()
        timer.start()
        threading.Thread(target=on_stop, daemon=True).start()

    timer = threading.Timer(grace_seconds, pool.kill)
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
