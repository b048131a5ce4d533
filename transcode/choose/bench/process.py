"""Fresh processes for what is measured: a loader that crashes or hangs costs its cell, and memory is that of one loader alone."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from vidprep.formats.errors import CrashedError, DeadlineError, ReadError, VidprepError
from vidprep.formats.processes import isolated, limit_files

A = TypeVar("A")
R = TypeVar("R")
Ready = Callable[[], None]
START_SECONDS = 60
# As in a worker of torch's DataLoader. On two busy cores torchcodec took five times the CPU time with threads of OpenMP.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENCV_FOR_THREADS_NUM": "1"}


def run_together(function: Callable[[A, Ready], R], arguments: Sequence[A], seconds: float) -> list[R]:
    """What `function(argument, ready)` gives for each argument, in a process each. ready() returns when all have called it.

    seconds: how long a process may take. Raises ReadError with what was raised there, CrashedError, DeadlineError.
    """
    context = multiprocessing.get_context("spawn")
    ours: list[Connection] = []
    started: list[SpawnProcess] = []
    deadline = time.monotonic() + START_SECONDS + seconds
    try:
        with isolated(), _interrupt_held():
            for argument in arguments:
                mine, theirs = context.Pipe()
                ours.append(mine)
                process = context.Process(target=_run, args=(function, argument, theirs))
                process.start()
                started.append(process)
                theirs.close()
        answers = [_told(mine, deadline) for mine in ours]
        if any(kind == "ready" for kind, _ in answers):
            for mine in ours:
                mine.send("go")
            answers = [_told(mine, deadline) for mine in ours]
        return [found for _, found in answers]
    finally:
        for mine in ours:
            mine.close()
        for process in started:
            if process.is_alive():
                process.join(1.0)
                process.kill()
            process.join()


@contextlib.contextmanager
def _interrupt_held() -> Iterator[None]:
    """Ctrl-C goes to the whole group: processes that start here never get it, and their parent gets it at the end of the block."""
    caught: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _frame: caught.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the tracker, a process too, unblocks it
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
    if caught:
        raise KeyboardInterrupt


def _told(mine: Connection, deadline: float) -> tuple[str, Any]:
    if not mine.poll(max(0.0, deadline - time.monotonic())):
        raise DeadlineError("took too long and was stopped")
    try:
        kind, found = mine.recv()
    except EOFError:
        raise CrashedError("its process died") from None
    if kind == "failed":
        raise ReadError(found)
    return kind, found


def _run(function: Callable[[A, Ready], R], argument: A, parent: Connection) -> None:
    os.environ |= ONE_THREAD
    limit_files()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)  # the libraries of others talk there

    def ready() -> None:
        parent.send(("ready", None))
        parent.recv()

    with contextlib.suppress(BrokenPipeError, EOFError):
        try:
            parent.send(("done", function(argument, ready)))
        except Exception as error:  # noqa: BLE001 (whatever a library of others raises is its answer)
            message = error.message if isinstance(error, VidprepError) else f"{type(error).__name__}: {error}"
            parent.send(("failed", " ".join(message.split())[:300]))
