"""Folders for what is here only for a while: gone with the block or the process that made them, or swept by the next one; and what lies
behind a URL, as files for as long as it is looked at.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath

from vidprep.formats.errors import DiskFullError, StoreError
from vidprep.formats.processes import ProcessId
from vidprep.formats.storage.base import is_url
from vidprep.formats.storage.remote import ObjectStorage
from vidprep.formats.storage.untrusted import read_json
from vidprep.transcode.sources.outputs import STATE_DIR
from vidprep.transcode.sources.remote import fetch
from vidprep.transcode.sources.unit import Unit

PREFIX = "vidprep-scratch-"
HOLDER_BYTES_MAX = 1 << 16
LEASE = re.compile(rf"{re.escape(STATE_DIR)}/(?:part-[^/]+/)?(?:lock|lease-\d+)")


def _is_ours(folder: Path) -> bool:
    """Whether a folder is one that `tempfile.mkdtemp` made for this user: anyone may put something of that name there."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _holder_of(folder: Path) -> ProcessId:
    """The process that made a scratch folder. Raises OSError, ValueError."""
    said = read_json(folder / "holder", HOLDER_BYTES_MAX)
    try:
        return ProcessId(str(said["host"]), str(said["machine"]), int(said["pid"]), str(said["started"]))
    except (KeyError, TypeError) as error:
        raise ValueError("names no process") from error


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder. Those of processes of this machine that were killed go first."""
    for other in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError, ValueError):
            if _is_ours(other) and _holder_of(other).is_dead:
                shutil.rmtree(other, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        (folder / "holder").write_text(json.dumps(asdict(ProcessId.mine())))
        (folder / "files").mkdir()
        yield folder / "files"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def as_folder(place: Path | str) -> Iterator[Path]:
    """The folder itself, or a copy of all that lies behind a URL, under TMPDIR. What lies there is only read.

    Raises StoreError where nothing is there, DiskFullError, StorageError.
    """
    if isinstance(place, Path):
        yield place
        return
    there = ObjectStorage(place)
    files = {name: file.size_bytes for name, file in there.files().items() if not LEASE.fullmatch(name)}
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
