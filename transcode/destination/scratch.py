"""Folders for what is here only for a while: gone with the block or the process that made them, or swept by the next one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vidprep.transcode.destination.lease import Holder, myself

PREFIX = "vidprep-scratch-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder. Those of processes of this machine that were killed go first."""
    for other in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/holder"):
        with suppress(OSError):
            holder = Holder.of(other.read_bytes())
            if holder is not None and holder.is_dead:
                shutil.rmtree(other.parent, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        (folder / "holder").write_bytes(myself(0).as_bytes())
        (folder / "files").mkdir()
        yield folder / "files"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
