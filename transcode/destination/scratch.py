"""Folders for what is here only for a while: gone with the block or the process that made them, or swept by the next one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "vidprep-scratch-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder. Those of processes that were killed, whose lock nobody holds, go first."""
    for other in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/alive"):
        with suppress(OSError), other.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(other.parent, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    # Locked under another name first: who looks for it finds it locked.
    lock = os.open(folder / "starting", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "starting").rename(folder / "alive")
        (folder / "files").mkdir()
        yield folder / "files"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
