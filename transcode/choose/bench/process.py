"""Fresh processes for what is measured: a loader that crashes or hangs costs its cell, and memory is that of one loader alone."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any, TypeVar

from vidprep.formats.errors import CrashedError, DeadlineError, ReadError, VidprepError
from vidprep.formats.processes import Answer, DiedError, Process, parent_channel

A = TypeVar("A")
R = TypeVar("R")
Ready = Callable[[], None]
START_SECONDS = 60
READY, GO = "ready", "go"
# As in a worker of torch's DataLoader. On two busy cores torchcodec took five times the CPU time with threads of OpenMP.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENCV_FOR_THREADS_NUM": "1"}


def run_together(function: Callable[[A, Ready], R], arguments: Sequence[A], seconds: float) -> list[R]:
    """What `function(argument, ready)` gives for each argument, in a process each. ready() returns when all have called it.

    seconds: how long a process may take. Raises ReadError with what was raised there, CrashedError, DeadlineError.
    """
    deadline = time.monotonic() + START_SECONDS + seconds
    with ExitStack() as started:
        # The libraries of others talk on stderr.
        processes = [
            started.enter_context(closing(Process(environment=ONE_THREAD, output=subprocess.DEVNULL)))
            for _ in arguments
        ]
        try:
            for process, argument in zip(processes, arguments, strict=True):
                process.begin(_call, function, argument)
            said = [_receive(process, deadline) for process in processes]
            if READY in said:
                for process in processes:
                    process.send(GO)
                said = [_receive(process, deadline) for process in processes]
        except DiedError:
            raise CrashedError("its process died") from None
    return said


def _receive(process: Process, deadline: float) -> Any:
    """What a function returned, or READY."""
    try:
        said = process.receive(lambda: deadline - time.monotonic())
    except TimeoutError:
        raise DeadlineError("took too long and was stopped") from None
    if not isinstance(said, Answer):
        return said
    if (error := said.error) is not None:  # whatever a library of others raises is its answer
        message = error.message if isinstance(error, VidprepError) else f"{type(error).__name__}: {error}"
        raise ReadError(" ".join(message.split())[:300]) from error
    return said.made


def _call(function: Callable[[A, Ready], R], argument: A) -> R:
    def ready() -> None:
        parent = parent_channel()
        parent.send(READY)
        parent.receive()

    return function(argument, ready)
