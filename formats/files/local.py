"""Files that appear whole or not at all, and what identifies them; what a process has used."""

from __future__ import annotations

import errno
import filecmp
import hashlib
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from vidprep.formats.errors import DestinationError
from vidprep.formats.files.no_links import is_regular, open_unlinked, remove_file
from vidprep.formats.files.untrusted import open_regular

SAMPLES, SAMPLE_BYTES = 16, 1 << 14
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def replacing(path: Path, *, unless_same: bool = False) -> Iterator[BinaryIO]:
    """A binary file that takes the name `path` when the block ends well, and is gone when it does not.

    unless_same: a file of the same bytes is left alone. Written through no link, and itself in the place of one. Raises
    DestinationError where a folder has the name of its partial file.
    """
    partial = partial_of(path)
    remove_file(partial)
    try:
        with os.fdopen(open_unlinked(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL), "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not (unless_same and is_regular(path) and filecmp.cmp(partial, path, shallow=False)):
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def partial_of(path: Path) -> Path:
    """What `replacing` writes."""
    return path.with_name(f".{path.name}.partial")


def sha256_of(path: Path) -> str:
    """SHA-256 of a regular file, in hexadecimal. Raises OSError."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sampled_digest(path: Path) -> str:
    """What tells the content of a file from others of its size without reading all of it: SHA-256, in hexadecimal, of SAMPLES pieces
    spread evenly from its first byte to its last. Raises OSError.
    """
    digest = hashlib.sha256()
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        last = max(0, size - SAMPLE_BYTES)
        for offset in sorted({number * last // (SAMPLES - 1) for number in range(SAMPLES)}):
            digest.update(os.pread(file.fileno(), SAMPLE_BYTES, offset))
    return digest.hexdigest()


def is_disk_full(error: BaseException) -> bool:
    """True for an error, or a cause of one, that says there is no room left."""
    return any(isinstance(each, OSError) and each.errno in DISK_FULL for each in _causes(error))


def is_out_of_memory(error: BaseException) -> bool:
    """True for an error, or a cause of one, that says there is no memory left; for a thread it is the memory of its stack."""
    return any(
        isinstance(each, MemoryError)
        or (isinstance(each, OSError) and each.errno == errno.ENOMEM)
        or (isinstance(each, RuntimeError) and "start new thread" in str(each))
        for each in _causes(error)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def check_writable(folder: Path, instead: str) -> None:
    """Before long work whose end is to be written there. instead: what to give. Raises DestinationError."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    why = "" if place.is_dir() else os.strerror(errno.ENOTDIR)
    if not why and not os.access(place, os.W_OK | os.X_OK):
        is_read_only = bool(os.statvfs(place).f_flag & os.ST_RDONLY)
        why = os.strerror(errno.EROFS if is_read_only else errno.EACCES)
    if why:
        raise DestinationError(f"cannot be written: {why}; {instead}", path=folder)


def cpu_seconds() -> float:
    """CPU time of this process, all its threads, and the processes below it that have ended, to the microsecond."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def memory_bytes() -> int:
    """Resident memory of this process and all below it; 0 where /proc does not tell."""
    pages, waiting = 0, [os.getpid()]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        try:
            pages += int((process / "statm").read_text().split()[1])
            for task in (process / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (OSError, ValueError, IndexError):
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")
