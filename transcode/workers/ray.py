"""The nodes of a ray cluster."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from vidprep.formats.errors import BackendError
from vidprep.transcode.unit.job import Job, JobResult
from vidprep.transcode.unit.queue import TRIES
from vidprep.transcode.workers._cluster import POLL_SECONDS, RESULT_SECONDS, ClusterPool
from vidprep.transcode.workers._cluster_worker import why_not_here, work
from vidprep.transcode.workers.host import HostRequirements

SHUTDOWN_SECONDS = 15.0
# Without this, Ray kills this process a minute after it loses the head node.
PATIENCE = {"RAY_gcs_rpc_server_reconnect_timeout_s": "86400"}


class RayPool(ClusterPool):
    """Pool on a Ray cluster. A host is a node, identified by its hexadecimal id. Each task is for one node: Ray cannot
    choose among several.
    """

    def __init__(self, address: str, say: Callable[[str], None], expected: HostRequirements) -> None:
        """Connect to a cluster.

        Args:
            address: Address of the head node, or "auto".
            say: Receives messages.
            expected: What workers must see and have.

        Raises:
            BackendError: It cannot be reached.
        """
        remedy = "start its nodes (`ray start --head`, `ray start --address ADDRESS`)"
        super().__init__(f"the ray cluster at {address}", remedy, say, expected)
        os.environ.update(PATIENCE)
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise BackendError(f"no ray cluster at {address}: {error}") from error
        self._work = ray.remote(num_cpus=1, max_retries=TRIES - 1)(_work)
        self._check = ray.remote(num_cpus=0, max_retries=TRIES - 1)(why_not_here)

    def hosts(self) -> dict[str, int]:
        nodes = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}
        return {node: cpus for node, cpus in nodes.items() if cpus}

    def check(self, host: str, expected: HostRequirements) -> Any:
        return self._check.options(scheduling_strategy=_only(host)).remote(expected)

    def submit(self, tasks: list[list[Job]], hosts: dict[str, int]) -> list[tuple[Any, frozenset[str]]]:
        """Submit each task to the node with the least work per CPU."""
        loads = Counter(host for task in self._flying.values() for host in task.hosts)
        sent = []
        for jobs in tasks:
            host = min(hosts, key=lambda host: (loads[host] + 1) / hosts[host])
            loads[host] += 1
            sent.append((self._work.options(scheduling_strategy=_only(host)).remote(jobs), frozenset((host,))))
        return sent

    def wait_ended(self) -> list[Any]:
        flying = [*self._checks, *self._flying]
        if not flying:
            time.sleep(POLL_SECONDS)
            return []
        done, _ = ray.wait(flying, num_returns=1, timeout=POLL_SECONDS)
        return list(done)

    def result(self, future: Any) -> Any:
        return ray.get(future, timeout=RESULT_SECONDS)

    def cancel(self, future: Any) -> None:
        ray.cancel(future, force=True)

    def was_beside_a_death(self, error: Exception) -> bool:
        errors = ray.exceptions
        return isinstance(error, errors.RayError) and not isinstance(error, errors.RayTaskError)

    def was_lost(self, error: Exception) -> bool:
        lost = ray.exceptions.TaskCancelledError, ray.exceptions.TaskUnschedulableError, ray.exceptions.GetTimeoutError
        return isinstance(error, lost)

    def __exit__(self, *_: object) -> None:
        """Disconnect. This may wait for a lost head node."""
        closing = threading.Thread(target=ray.shutdown, daemon=True)
        closing.start()
        closing.join(SHUTDOWN_SECONDS)


def _only(host: str) -> Any:
    return NodeAffinitySchedulingStrategy(host, soft=False)


def _work(jobs: list[Job]) -> tuple[str, list[JobResult | None]]:
    return ray.get_runtime_context().get_node_id(), work(jobs)
