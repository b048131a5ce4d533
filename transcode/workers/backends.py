"""Where videos are worked on: threads of this process, or the workers of a cluster (BACKENDS of the settings lists them)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from vidprep.formats.errors import MissingError
from vidprep.formats.processes import Process
from vidprep.transcode.settings.run_options import BACKENDS
from vidprep.transcode.unit.job import Job, JobResult
from vidprep.transcode.workers.child import make, stops_the_run
from vidprep.transcode.workers.host import Expected
from vidprep.transcode.workers.local import LocalPool
from vidprep.transcode.workers.pool import Pool


def workers_of(
    backend: str,
    address: str | None,
    jobs: int,
    say: Callable[[str], None],
    expected: Expected | None = None,
    *,
    started: Process | None = None,
) -> Pool[Job, JobResult]:
    """jobs: videos at a time in this process; a cluster has as many as it has threads or CPUs. expected: of its workers. started:
    the process of the first child of this one.

    Raises BackendError for a cluster that is not there, MissingError.
    """
    if backend == "local":
        return LocalPool(jobs, make, stops_the_run, started=started)
    assert expected is not None
    chosen = BACKENDS[backend]
    module, _, name = chosen.workers.partition(":")
    try:
        kind = getattr(import_module(f"vidprep.transcode.workers.{module}"), name)
        found: Pool[Job, JobResult] = kind(address or chosen.address, say, expected)
        return found
    except ImportError as error:
        if error.name == chosen.package:
            raise MissingError(f"--backend {backend} needs {error.name}: pip install 'vidprep[{backend}]'") from error
        raise
