"""The workers of a dask cluster."""

from __future__ import annotations

import logging
import queue
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import distributed

from vidprep.formats.errors import BackendError
from vidprep.transcode.unit.job import Job, JobResult
from vidprep.transcode.workers._cluster import POLL_SECONDS, RESULT_SECONDS, ClusterPool, importing
from vidprep.transcode.workers._cluster_worker import stop_children, why_not_here, work
from vidprep.transcode.workers.host import HostRequirements

READY_SECONDS = 15
SETTLE_SECONDS, SETTLE_POLL_SECONDS = 60.0, 0.1


class DaskPool(ClusterPool):
    """Pool on a Dask cluster. A host is a worker, identified by its address."""

    def __init__(self, address: str, say: Callable[[str], None], expected: HostRequirements) -> None:
        """Connect to a scheduler.

        Args:
            address: Its address, or its scheduler file.
            say: Receives messages.
            expected: What workers must see and have.

        Raises:
            BackendError: It cannot be reached.
        """
        remedy = "start its scheduler and workers (`dask scheduler`, `dask worker ADDRESS`)"
        super().__init__(f"the dask scheduler at {address}", remedy, say, expected)
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._prefix = f"vidprep-{uuid.uuid4().hex}"
        for name in ("distributed", "distributed.client", "asyncio"):  # asyncio: for the client's own loop
            logging.getLogger(name).setLevel(logging.CRITICAL)  # losses are reported here, once
        place = {"scheduler_file": address} if Path(address).is_file() else {"address": address}
        try:
            self._client = distributed.Client(**place, timeout=READY_SECONDS)
        except (OSError, TimeoutError, ValueError) as error:
            raise BackendError(f"no dask cluster at {address}: {error}") from error

    def hosts(self) -> dict[str, int]:
        threads: dict[str, int] = self._client.nthreads()
        return threads

    def ask_first(self, host: str) -> Any:
        """Ask a worker by source code first: a function that it cannot import would kill it without a message."""
        return self._ask_host(host, eval, importing(self._expected.versions["vidprep"]))

    def check(self, host: str, expected: HostRequirements) -> Any:
        return self._ask_host(host, why_not_here, expected)

    def _ask_host(self, host: str, function: Callable[[Any], Any], argument: object) -> Any:
        future = self._client.submit(
            function, argument, key=self._new_key(), pure=False, workers=[host], allow_other_workers=False, priority=1
        )
        future.add_done_callback(self._ended.put)
        return future

    def submit(self, tasks: list[list[Job]], hosts: dict[str, int]) -> list[tuple[Any, frozenset[str]]]:
        """Submit tasks together: one message costs the scheduler as much as several tasks."""
        keys = [self._new_key() for _ in tasks]
        futures: list[Any] = self._client.map(
            _work, tasks, key=keys, pure=False, workers=list(hosts), allow_other_workers=False
        )
        for future in futures:
            future.add_done_callback(self._ended.put)
        return [(future, frozenset(hosts)) for future in futures]

    def _new_key(self) -> str:
        return f"{self._prefix}-{uuid.uuid4().hex}"

    def wait_ended(self) -> list[Any]:
        try:
            return [self._ended.get(timeout=POLL_SECONDS)]
        except queue.Empty:
            return []

    def result(self, future: Any) -> Any:
        result = future.result(timeout=RESULT_SECONDS)
        future.release()
        return result

    def cancel(self, future: Any) -> None:
        future.cancel()

    def was_beside_a_death(self, error: Exception) -> bool:
        """Return whether a worker died: then all tasks on that worker, waiting ones too, are suspects."""
        return isinstance(error, distributed.scheduler.KilledWorker)

    def was_lost(self, error: Exception) -> bool:
        return isinstance(
            error, (distributed.client.FutureCancelledError, distributed.comm.CommClosedError, TimeoutError)
        )

    def wait_for_restarts(self) -> None:
        """Wait for restarted tasks. If a worker is lost right after its result was fetched, Dask runs the task again
        elsewhere; its files must exist before leftovers are removed.
        """
        over = time.monotonic() + SETTLE_SECONDS
        with suppress(Exception):  # all is made: a cluster that is lost now is no matter
            while time.monotonic() < over and not self._killed.is_set():
                busy = (str(key) for keys in self._client.processing().values() for key in keys)
                if not any(key.startswith(self._prefix) for key in busy):
                    return
                time.sleep(SETTLE_POLL_SECONDS)

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):  # nothing can be lost any more
            if self._killed.is_set():
                self._client.run(stop_children, on_error="ignore")  # a worker may have been lost
            self._client.close()


def _work(jobs: list[Job]) -> tuple[str, list[JobResult | None]]:
    return distributed.get_worker().address, work(jobs)
