"""One child process: what it gives back, and how its end is told from its failure."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from vidprep.formats.errors import CrashedError, DeadlineError
from vidprep.transcode.workers.child import Child, Interrupted


@pytest.fixture
def child() -> Iterator[Child]:
    one = Child(threading.Event())
    yield one
    one.close()


def patient(_work: int) -> float:
    return 60


def test_a_child_returns_results_from_another_process(child: Child) -> None:
    assert child.call(math.sqrt, 4, patient) == 2
    assert child.call(os.getpgid, 0, patient) == os.getpgid(0)
    assert child.call(eval, "__import__('os').getpid()", patient) != os.getpid()


def test_path_entries_that_python_ignores_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, Path("x"), "né"])
    child = Child(threading.Event())
    assert child.call(eval, "__import__('sys').path[-1]", patient) == "né"
    child.close()


@pytest.mark.long
def test_after_a_crash_it_is_replaced(child: Child) -> None:
    with pytest.raises(CrashedError, match="code 3"):
        child.call(os._exit, 3, patient)
    with pytest.raises(CrashedError, match="SIGSEGV"):
        child.call(eval, "__import__('os').kill(__import__('os').getpid(), 11)", patient)
    assert child.call(math.sqrt, 9, patient) == 3


@pytest.mark.long
def test_at_its_deadline_it_is_stopped_and_replaced(child: Child) -> None:
    began = time.monotonic()
    with pytest.raises(DeadlineError, match="stopped after 2 s"):
        child.call(time.sleep, 600, lambda _work: 2)
    assert time.monotonic() - began < 200
    assert child.call(math.sqrt, 16, patient) == 4


def test_memory_that_ran_out_there_is_a_memory_error_here(child: Child) -> None:
    with pytest.raises(MemoryError):
        child.call(bytearray, 1 << 60, patient)


def test_one_that_is_stopped_gives_nothing_back(child: Child) -> None:
    threading.Timer(1, child.stop).start()
    with pytest.raises(Interrupted):
        child.call(time.sleep, 60, patient)
    with pytest.raises(Interrupted):
        child.call(math.sqrt, 4, patient)


def test_a_start_that_the_system_refuses_leaves_nothing_open_and_is_tried_again(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, opened = subprocess.Popen, len(list(Path("/proc/self/fd").iterdir()))

    def refuse(*_args: object, **_more: object) -> NoReturn:
        monkeypatch.setattr(subprocess, "Popen", start)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert child.call(math.sqrt, 25, patient) == 5
    child.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == opened
