"""Threads that each own a child: every task comes back once, and a stop is a stop."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

from vidprep.transcode.workers.child import Child, Interrupted
from vidprep.transcode.workers.local import LocalPool
from vidprep.transcode.workers.pool import stop_on_signals


def double(_child: Child, task: int) -> int:
    return 2 * task


def test_every_task_comes_back_once() -> None:
    with LocalPool(3, double) as workers:
        assert sorted(workers.results(range(50))) == [(n, 2 * n) for n in range(50)]


def test_a_waiting_task_is_not_reported_as_started() -> None:
    told: list[str] = []

    def slow(_child: Child, task: int) -> int:
        time.sleep(0.1)
        told.append(f"end {task}")
        return task

    with LocalPool(1, slow) as workers:
        list(workers.results(range(3), lambda task: told.append(f"begin {task}")))
    assert told == [f"{what} {task}" for task in range(3) for what in ("begin", "end")]


def test_tasks_that_appear_while_others_are_done_are_done_too() -> None:
    waiting = [1]

    def tasks() -> Iterator[int]:
        while waiting:
            yield waiting.pop()

    class Growing:
        def __iter__(self) -> Growing:
            return self

        def __next__(self) -> int:
            if not waiting:
                raise StopIteration
            return waiting.pop()

    done = []
    with LocalPool(2, double) as workers:
        for task, result in workers.results(Growing()):
            done.append((task, result))
            if task < 5:
                waiting.append(task + 1)
    assert done == [(n, 2 * n) for n in range(1, 6)]


def test_after_a_last_result_nothing_new_is_begun() -> None:
    with LocalPool(1, double, is_last=lambda result: result == 6) as workers:
        done = dict(workers.results(range(1000)))
    assert done[3] == 6
    assert sum(result is not None for result in done.values()) == 4
    assert workers.stopping


def test_abandoned_tasks_return_no_result() -> None:
    def interrupted(_child: Child, task: int) -> int:
        if task:
            raise Interrupted
        return task

    with LocalPool(1, interrupted) as workers:
        assert dict(workers.results([0, 1])) == {0: 0, 1: None}


def test_more_run_at_once_than_one_and_no_more_than_asked() -> None:
    running, most, guard = 0, 0, threading.Lock()

    def busy(_child: Child, _task: int) -> None:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with guard:
            running -= 1

    with LocalPool(3, busy) as workers:
        assert len(list(workers.results(range(30)))) == 30
    assert most == 3


def test_a_signal_lets_running_tasks_finish_and_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def ask(_child: Child, task: int) -> int:
        if task == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.3)
        return task

    with LocalPool(1, ask) as workers, stop_on_signals(workers, 30) as stop:
        done = [task for task, result in workers.results(range(100)) if result is not None]
    assert {0, 1, 2} <= set(done) and len(done) < 10
    assert stop.signal == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
