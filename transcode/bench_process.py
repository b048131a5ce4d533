"""Fresh processes for what is measured: a loader that crashes or hangs costs its cell, and memory is that of one loader alone."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from vidprep.formats.errors import CrashedError, DeadlineError, ReadError, VidprepError

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
    pairs = [context.Pipe() for _ in arguments]
    processes = [
        context.Process(target=_run, args=(function, argument, theirs))
        for argument, (_, theirs) in zip(arguments, pairs, strict=True)
    ]
    deadline = time.monotonic() + START_SECONDS + seconds
    try:
        for process, (_, theirs) in zip(processes, pairs, strict=True):
            process.start()
            theirs.close()
        ours = [mine for mine, _ in pairs]
        told = [_told(mine, deadline) for mine in ours]
        if any(kind == "ready" for kind, _ in told):
            for mine in ours:
                mine.send("go")
            told = [_told(mine, deadline) for mine in ours]
        return [found for _, found in told]
    finally:
        for mine, _ in pairs:
            mine.close()
        for process in processes:
            if process.is_alive():
                process.join(1.0)
                process.kill()
            process.join()


def _told(mine: Connection, deadline: float) -> tuple[str, Any]:
    if not mine.poll(max(0.0, deadline - time.monotonic())):
        raise DeadlineError("takes too long and was stopped")
    try:
        kind, found = mine.recv()
    except EOFError:
        raise CrashedError("its process died") from None
    if kind == "failed":
        raise ReadError(found)
    return kind, found


def _run(function: Callable[[A, Ready], R], argument: A, parent: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group, and the parent ends its children
    os.environ |= ONE_THREAD
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)  # the libraries of others talk there

    def ready() -> None:
        parent.send(("ready", None))
        parent.recv()

    with contextlib.suppress(BrokenPipeError, EOFError):
        try:
            parent.send(("done", function(argument, ready)))
        except Exception as error:  # noqa: BLE001 (whatever a library of others raises is its answer)
            said = error.message if isinstance(error, VidprepError) else str(error)
            parent.send(("failed", f"{type(error).__name__}: {' '.join(said.split())}"[:300]))
