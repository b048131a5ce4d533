"""Children that live from one test to the next: where their isolation is not what is tested, their start is most of its time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vidprep.transcode.workers.child import Child


class KeptChildren:
    """Makes children as `Child` does, of processes that earlier ones are done with."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._idle: list[tuple[Any, Any]] = []  # the pool of a process, and the count of work that it shares
        self._starter = ThreadPoolExecutor(1)  # a process dies with the thread that started it

    def __call__(self, giving_up: threading.Event) -> Child:
        child = _KeptChild(giving_up, self)
        with self._guard:
            if self._idle:
                child._pool, child._work = self._idle.pop()
        return child

    def start(self, child: _KeptChild, *task: Any) -> Any:
        return self._starter.submit(Child._schedule, child, *task).result()

    def keep(self, pool: Any, work: Any) -> None:
        with self._guard:
            self._idle.append((pool, work))

    def close(self) -> None:
        for pool, _ in self._idle:
            pool.stop()
            pool.join()
        self._starter.shutdown()


class _KeptChild(Child):
    def __init__(self, giving_up: threading.Event, kept: KeptChildren) -> None:
        super().__init__(giving_up)
        self._kept = kept

    def _schedule(self, *task: Any) -> Any:
        return super()._schedule(*task) if self._pool is not None else self._kept.start(self, *task)

    def close(self) -> None:
        is_idle = self._future is None or (self._future.done() and not self._future.cancelled())
        if self._pool is not None and self._pool.active and is_idle:
            self._kept.keep(self._pool, self._work)
            self._pool = None
        super().close()
