"""Children that live from one test to the next: where their isolation is not what is tested, their start is most of its time."""

from __future__ import annotations

import threading
from typing import Any

from vidprep.formats.processes import Process
from vidprep.transcode.workers.child import Child, start_process


class KeptChildren:
    """Makes children as `Child` does, of processes that earlier ones are done with."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._idle: list[Process] = []

    def __call__(
        self, giving_up: threading.Event, _process: Process | None = None, *, count: int | None = None
    ) -> Child:
        return _KeptChild(giving_up, self, count)

    def take(self) -> Process:
        with self._guard:
            return self._idle.pop() if self._idle else start_process()

    def keep(self, process: Process) -> None:
        with self._guard:
            self._idle.append(process)

    def close(self) -> None:
        for process in self._idle:
            process.close()


class _KeptChild(Child):
    def __init__(self, giving_up: threading.Event, kept: KeptChildren, count: int | None) -> None:
        super().__init__(giving_up, count=count)
        self._kept, self._is_at_work = kept, False

    def _start(self) -> Process:
        return self._kept.take()

    def _call(self, *call: Any) -> Any:
        self._is_at_work = True
        made = super()._call(*call)
        self._is_at_work = False
        return made

    def stop(self) -> None:
        if self._is_at_work:
            super().stop()
        else:
            self._stopped.set()

    def close(self) -> None:
        if self._process is not None and not self._is_at_work and self._process.lives:
            self._kept.keep(self._process)
            self._process = None
        super().close()
