"""How much room there is where the files of a destination are written, and what is said where there is too little."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vidprep.formats.errors import DiskFullError, VidprepError
from vidprep.formats.storage.base import Storage
from vidprep.formats.storage.local import is_disk_full
from vidprep.transcode.sources.outputs import STATE_DIR

LEAST_BYTES = 1 << 16


@contextmanager
def explained(storage: Storage) -> Iterator[None]:
    """Errors in here name files as the user knows them, and say how much room there is where there is too little.

    Raises:
        DiskFullError: There is no room left for what is to be written.
    """
    try:
        yield
    except DiskFullError:
        raise
    except (OSError, VidprepError) as error:
        if is_disk_full(error):
            raise DiskFullError(no_room(storage)) from error
        if not isinstance(error, VidprepError) or storage.shown == str(storage.root):
            raise
        raise error.renamed(str(storage.root), storage.shown) from error


def no_room(storage: Storage, source_bytes: int = 0) -> str:
    """Why nothing more can be written. source_bytes: of the sources that are still to be done."""
    needed = f"the sources still to do hold {source_bytes} bytes"
    if not source_bytes:
        folders = [folder for folder in (storage.root, storage.root / STATE_DIR) if folder.is_dir()]
        there = [entry for folder in folders for entry in os.scandir(folder)]
        own = sum(entry.stat().st_size for entry in there if entry.name.endswith((".parquet", ".json", ".jsonl")))
        needed = f"writing anew what vidprep itself keeps there needs {max(own, LEAST_BYTES)} bytes"
    disk = os.statvfs(_existing(storage.root))
    room = f"{free_bytes(storage)} bytes are free"
    if disk.f_files and not disk.f_favail:
        room = f"it can hold no more files (all {disk.f_files} inodes are taken)"
    return f"no room left in {disk_of(storage)}: {room}, {needed}; make room and run the same command again"


def disk_of(storage: Storage) -> str:
    """The folder whose room is used, in messages."""
    if storage.is_remote:
        return f"{tempfile.gettempdir()} (TMPDIR), where outputs wait until they are in {storage.shown}"
    return storage.shown


def free_bytes(storage: Storage) -> int:
    """Free bytes on the device that the folder is, or will be, on."""
    return shutil.disk_usage(_existing(storage.root)).free


def _existing(place: Path) -> Path:
    while not place.exists():
        place = place.parent
    return place
