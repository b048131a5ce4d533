"""What does the jobs of a run: children of this process, or the workers of a cluster; and the signals that stop it."""

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
    """Does tasks, several at a time, from the beginning of a `with` block to its end.

    What is tried again, and which tasks run alone because they may kill whoever does them, is decided above it (`JobQueue`).

    Attributes:
        is_elsewhere: Whether other machines do the tasks.
    """

    is_elsewhere: bool

    @property
    @abstractmethod
    def stopping(self) -> bool:
        """Whether no more tasks are begun."""

    @abstractmethod
    def results(
        self, tasks: Iterable[Task], on_task: Callable[[Task], object] = lambda _task: None
    ) -> Iterator[tuple[Task, Result | None]]:
        """Yield each task with what came of it, as they finish; None for one that was not begun, or abandoned.

        Args:
            tasks: Asked again after each result, even when they had come to an end before.
            on_task: Called, in any thread, when a worker takes a task, or a cluster has it in its own queue.
        """

    @abstractmethod
    def take_no_more(self) -> None:
        """Let what is in flight finish, and begin nothing new."""

    @abstractmethod
    def kill(self) -> None:
        """Abandon what is in flight."""

    @abstractmethod
    def dismiss(self) -> None:
        """End what is kept for more tasks, as there are none, while the caller goes on."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *error: Any) -> None: ...


@dataclass(slots=True)
class Stop:
    """signal: the one that asked for it, SIGINT or SIGTERM; None while none did."""

    signal: int | None = None


@contextmanager
def stopped_by_signals(
    pool: Pool[Any, Any], grace_seconds: float, on_stop: Callable[[], object] = lambda: None
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
