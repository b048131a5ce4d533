"""A job whose source or output lies behind a URL, by way of local files: as many at a time as there are workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vidprep.formats.errors import DestinationError, ReadError, StorageError, TakenOverError
from vidprep.formats.manifest.table import ManifestRow
from vidprep.formats.storage.base import is_url, split_url
from vidprep.formats.storage.local import is_disk_full
from vidprep.transcode.sources.remote import fetch, remote_folder
from vidprep.transcode.unit.job import Job, JobResult, JoinJob, SegmentJob, Split, Upload, discard, fail, new_row


def staged(job: Job, make: Callable[[Job], JobResult]) -> JobResult:
    """What `make` makes of a local copy of the source, which its segments share; an output goes to its URL when it is proven."""
    source = Path(job.copied_source)
    local = job
    is_needed_again = isinstance(job, SegmentJob)
    is_shared = isinstance(job, SegmentJob | JoinJob)
    try:
        if is_url(job.unit.path):
            local = replace(job, unit=replace(job.unit, path=str(source)))
            if not (is_shared and source.exists()):
                fetch(job.unit, source)
        made = make(local)
        is_needed_again = is_needed_again or isinstance(made, Split)
        if isinstance(made, ManifestRow):
            made.source = job.unit.path
            if made.ok and job.upload is not None:
                _put(Path(job.partial), job.upload)
                discard(job)
        return made
    except (ReadError, StorageError, OSError) as error:
        row = new_row(job)
        fail(row, error)
        discard(job)
        return row
    finally:
        if not is_needed_again:
            source.unlink(missing_ok=True)


def _put(path: Path, upload: Upload) -> None:
    """Raises DestinationError; TakenOverError when another run has taken over meanwhile."""
    from vidprep.transcode.destination.opening import LeasePlace

    url, name = split_url(upload.url)
    try:
        lease = LeasePlace(remote_folder(upload.destination), upload.lease).read()
        if lease is not None and lease.holder is not None and lease.holder.token == upload.token:
            remote_folder(url).put(path, name)
            return
    except OSError as error:
        if is_disk_full(error):
            raise
        raise DestinationError(str(error), stage="storage") from error
    raise TakenOverError("another run has taken over; this output is not published", path=upload.url, stage="storage")
