"""What lies behind a URL, as files for as long as it is looked at: a finished destination, or a source."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

from vidprep.formats.errors import DiskFullError, StoreError
from vidprep.formats.files.remote import RemoteFolder, is_url
from vidprep.transcode.destination.lease_storage import LEASE_OBJECT
from vidprep.transcode.destination.scratch import scratch_folder
from vidprep.transcode.sources.outputs import STATE_DIR
from vidprep.transcode.sources.remote import fetch
from vidprep.transcode.sources.unit import Unit


@contextmanager
def as_folder(place: Path | str) -> Iterator[Path]:
    """The folder itself, or a copy of all that lies behind a URL, under TMPDIR. What lies there is only read.

    Raises StoreError where nothing is there, DiskFullError, StorageError.
    """
    if isinstance(place, Path):
        yield place
        return
    there = RemoteFolder(place)
    files = {name: file.size_bytes for name, file in there.files().items() if name != f"{STATE_DIR}/{LEASE_OBJECT}"}
    if not files:
        raise StoreError("nothing is there; give the destination of a run", path=place)
    with scratch_folder() as folder:
        needed, free = sum(files.values()), shutil.disk_usage(folder).free
        if needed > free:
            raise DiskFullError(
                f"{needed} bytes of {place} are to be fetched, and {free} are free; set TMPDIR", path=folder
            )
        for name in files:
            if not {"", ".", ".."}.isdisjoint(name.split("/")):
                raise StoreError(f"{name!r} cannot be the name of a file", path=place)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            there.fetch(name, folder / name)
        yield folder


@contextmanager
def as_file(unit: Unit) -> Iterator[Unit]:
    """The unit itself, or the same with a copy of its source, under TMPDIR.

    Raises ReadError where the source is gone or another by now, DiskFullError, StorageError.
    """
    if not is_url(unit.path):
        yield unit
        return
    with scratch_folder() as folder:
        copy = folder / f"source{PurePosixPath(unit.path).suffix}"
        fetch(unit, copy)
        yield replace(unit, path=str(copy))
