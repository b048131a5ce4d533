"""Requirements that each machine of a run must meet, and the cause of failed jobs.

A fault belongs to the source, the destination, a worker, or the cluster. Only faults of a source become failed rows.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from vidprep.formats.errors import (
    DestinationError,
    DiskFullError,
    StorageError,
    TakenOverError,
    VidprepError,
    WorkerError,
)
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.model import SourceState
from vidprep.formats.storage.base import is_url
from vidprep.formats.storage.remote import storage_of
from vidprep.transcode.media.ffmpeg_program import list_versions
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.scratch import current_state
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.unit.job import Job, JobNotDone, JobResult

TOKEN_NAME = "token"
LOOKED_AT, SAMPLED, SAMPLED_BEHIND_URLS = 1000, 16, 2
MIN_SCRATCH_BYTES = 64 << 20
NOT_IN_BYTES = "python"  # the only version on which no output depends


Sample = tuple[tuple[str, SourceState], ...]  # paths of some sources, and their states when they were listed


@dataclass(frozen=True, slots=True)
class HostRequirements:
    """Requirements that a machine must meet.

    Attributes:
        versions: Versions on which the bytes of outputs depend
        state: Folder or URL that contains the token
        token: Random text that proves that a host sees the destination
        scratch_bytes: Space that its temporary folder must have
    """

    settings: RunSettings
    ffmpeg: str
    versions: dict[str, str]
    sources: Sample
    state: str
    token: str
    scratch_bytes: int

    def check_here(self) -> HostRequirements:
        """Return a copy without sources that have changed."""
        return replace(
            self, sources=tuple((path, state) for path, state in self.sources if current_state(path) == state)
        )


@contextmanager
def list_requirements(
    units: Sequence[Unit], settings: RunSettings, ffmpeg: str, state: str
) -> Iterator[HostRequirements]:
    """Write a token into the destination, yield what hosts must see and have, and remove it. Raises DestinationError."""
    token, scratch_bytes = uuid.uuid4().hex, 0
    if is_url(state):
        staged = (unit.size_bytes for unit in units if unit.is_copied)
        scratch_bytes = max(MIN_SCRATCH_BYTES, 2 * max(staged, default=0))
    try:
        storage_of(state).write(TOKEN_NAME, token.encode())
    except OSError as error:
        raise DestinationError(f"cannot be written: {error}", path=state) from error
    try:
        yield HostRequirements(
            settings, ffmpeg, _versions(settings, ffmpeg), sample_of(units), state, token, scratch_bytes
        )
    finally:
        with suppress(OSError):  # the next run writes it again
            storage_of(state).remove(TOKEN_NAME)


def sample_of(units: Sequence[Unit]) -> Sample:
    """Return paths and states of units from as many folders as possible, since each may be on another file system."""
    looked = units[:: max(1, len(units) // LOOKED_AT)]
    one_each = list({os.path.dirname(unit.path): unit for unit in looked}.values())  # noqa: PTH120
    spread = one_each[:: max(1, len(one_each) // SAMPLED)][:SAMPLED]
    sample = {unit.path: unit for unit in (*spread, *looked[:1], *looked[-1:])}
    behind_urls = [unit for unit in sample.values() if is_url(unit.path)][:SAMPLED_BEHIND_URLS]
    here = [unit for unit in sample.values() if not is_url(unit.path)]
    return tuple((unit.path, unit.state) for unit in (*here, *behind_urls))


def _versions(settings: RunSettings, ffmpeg: str) -> dict[str, str]:
    return {name: version for name, version in list_versions(settings, ffmpeg).items() if name != NOT_IN_BYTES}


# --------------------------------------------------------------------------------------------------- on a worker


def why_unfit(expected: HostRequirements) -> str | None:
    """Return why this machine cannot take part in a run, and what to do; None if it can."""
    try:
        return (
            _other_versions(expected)
            or _other_sources(expected)
            or _other_destination(expected)
            or _no_scratch(expected)
        )
    except (VidprepError, OSError) as error:
        return str(error)


def _other_versions(expected: HostRequirements) -> str | None:
    here = _versions(expected.settings, expected.ffmpeg)
    other = [f"{name} {here.get(name)}, not {due}" for name, due in expected.versions.items() if here.get(name) != due]
    return f"has {'; '.join(other)}: outputs would differ; install the same versions there" if other else None


def _other_sources(expected: HostRequirements) -> str | None:
    for path, due in expected.sources:
        state = current_state(path)
        if state is None:
            return f"does not see the source {path}; give it what the other machines see there (mounts, credentials)"
        if state != due:
            seen = f"{state.size_bytes} bytes, changed at {state.mtime_ns} ns; {due.size_bytes} bytes and {due.mtime_ns} ns elsewhere"
            return f"sees another file at the source {path} ({seen}); give it the same file system there"
    return None


def _other_destination(expected: HostRequirements) -> str | None:
    remedy = "give it the same folder there, or a URL that all workers reach"
    try:
        state, probe = storage_of(expected.state), f"probe-{uuid.uuid4().hex}"
        token = state.read(TOKEN_NAME).decode()
        if state.is_remote:
            state.write(probe, b"-")
            state.remove(probe)
    except FileNotFoundError:
        token = ""
    except OSError as error:
        return f"cannot reach the destination: {error}; {remedy}"
    if token != expected.token:
        return f"does not see the destination {expected.state}; {remedy}"
    why = None if is_url(expected.state) else why_not_writable(Path(expected.state, "partial"))
    return f"cannot write to the destination {expected.state}: {why}; let it" if why else None


def _no_scratch(expected: HostRequirements) -> str | None:
    if not expected.scratch_bytes:
        return None
    place = tempfile.gettempdir()
    free = shutil.disk_usage(place).free
    if free >= expected.scratch_bytes:
        return None
    return f"has {free} bytes free in {place}, and {expected.scratch_bytes} are needed; make room, or set TMPDIR to another folder"


def classify_fault(job: Job, made: JobResult) -> JobResult:
    """Return the result of a job; a failed row becomes `JobNotDone` if the source did not cause it."""
    if not isinstance(made, ManifestRow) or made.ok:
        return made
    error, message = made.error or "", made.message or ""
    if error == WorkerError.__name__:
        return JobNotDone("worker", error, message)
    if error == DiskFullError.__name__:
        return JobNotDone("destination" if job.upload is None else "worker", error, message)
    if error == DestinationError.__name__:
        return JobNotDone("destination", error, message, stops=False)
    if error == TakenOverError.__name__:
        return JobNotDone("destination", error, message)
    if why := why_not_writable(Path(job.partial).parent):
        return JobNotDone(
            "destination", DestinationError.__name__, f"{Path(job.partial).parent} cannot be written: {why}"
        )
    is_other = (
        error == StorageError.__name__ if is_url(job.unit.path) else current_state(job.unit.path) != job.unit.state
    )
    if is_other:
        return JobNotDone("source", error, f"{job.unit.path}: {message}", stops=False, row=made)
    return made


# --------------------------------------------------------------------------------------------------- where the run was started


def resolve_fault(
    job: Job, undone: JobNotDone, sources: Sample, *, elsewhere: bool = False
) -> ManifestRow | JobNotDone:
    """Decide whether the source of a failed job is at fault, as seen by this machine.

    Args:
        job: The job.
        undone: Its result.
        sources: A sample of the sources.
        elsewhere: Whether another machine processed it.

    Returns:
        A failed row, or `JobNotDone` with the fault.
    """
    partials = Path(job.partial).parent
    if (
        elsewhere
        and undone.error == DestinationError.__name__
        and job.upload is None
        and not why_not_writable(partials)
    ):
        return replace(undone, fault="worker", stops=False)
    if undone.row is None:
        return undone
    if elsewhere and current_state(job.unit.path) == job.unit.state:
        return replace(undone, fault="worker", error=WorkerError.__name__, stops=False, row=None)
    others = [path for path, _ in sources if path != job.unit.path]
    if others and all(current_state(path) is None for path in others):
        message = f"the sources cannot be found any more, {job.unit.path} and others; bring them back"
        return JobNotDone("worker", WorkerError.__name__, message)
    return undone.row


def why_not_writable(folder: Path) -> str | None:
    probe = folder / f"probe-{uuid.uuid4().hex}"
    try:
        probe.write_bytes(b"-")
    except OSError as error:
        return error.strerror or type(error).__name__
    finally:
        with suppress(OSError):
            probe.unlink()
    return None
