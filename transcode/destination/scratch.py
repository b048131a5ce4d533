"""Folders for what is here only for a while: gone with the block or the process that made them, or swept by the next one."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vidprep.formats.files.untrusted import read_regular
from vidprep.transcode.destination.lease import Holder, myself

PREFIX = "vidprep-scratch-"
HOLDER_BYTES_MAX = 1 << 16


def _is_ours(folder: Path) -> bool:
    """Whether a folder is one that `tempfile.mkdtemp` made for this user: anyone may put something of that name there."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder. Those of processes of this machine that were killed go first."""
    for other in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError, ValueError):
            holder = Holder.of(read_regular(other / "holder", HOLDER_BYTES_MAX)) if _is_ours(other) else None
            if holder is not None and holder.is_dead:
                shutil.rmtree(other, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        (folder / "holder").write_bytes(myself(0).as_bytes())
        (folder / "files").mkdir()
        yield folder / "files"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
