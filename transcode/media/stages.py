"""Stages of work side by side: what one stage makes, a thread of its own makes ahead of the next, when a core has nothing to do.

PyAV and libjpeg-turbo let go of the interpreter while they work, so threads of one process keep several cores busy. What comes
out is the same either way: each stage takes its items in order, and one at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from queue import Full, Queue
from typing import Generic, TypeVar

from vidprep.formats.model import FrameSize

A = TypeVar("A")

# What waits between two stages: enough to even out frames that take longer, and little beside what an encoder holds.
WAITING_BYTES = 8 << 20
WAITING_FRAMES = 16
LOOK_SECONDS = 0.05


def waiting_frames(size: FrameSize) -> int:
    """How many frames of this size wait between two stages: of 4:2:0 with 8 bits as many as WAITING_BYTES holds."""
    return max(1, min(WAITING_FRAMES, WAITING_BYTES // (size.width * size.height * 3 // 2)))


def made_ahead(items: Generator[A, None, None], waiting: int, cores: Callable[[], int]) -> Generator[A, None, None]:
    """The items; made when they are asked for as long as there is one core, and from then on by a thread, `waiting` of them ahead.

    What making them raises is raised here, at its place. Closing this closes `items`, when their thread has ended.
    """
    with closing(items):
        for item in items:
            yield item
            if cores() > 1:
                break
        else:
            return
        with closing(_Pipe(items, waiting)) as pipe:
            yield from pipe


class _Pipe(Generic[A]):
    """What a thread makes, and what was raised in it."""

    def __init__(self, items: Iterator[A], length: int) -> None:
        self._queue: Queue[tuple[A] | BaseException | None] = Queue(length)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(items,), daemon=True)
        self._thread.start()

    def _fill(self, items: Iterator[A]) -> None:
        try:
            for item in items:
                if not self._put((item,)):
                    return
        except BaseException as error:  # noqa: BLE001 (raised again where the items are taken)
            self._put(error)
        else:
            self._put(None)

    def _put(self, item: tuple[A] | BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=LOOK_SECONDS)
            except Full:
                continue
            return True
        return False

    def __iter__(self) -> Iterator[A]:
        while True:
            item = self._queue.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item[0]

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
