"""Children that import nothing from the current folder, and take no more of the machine than they may.

`python -c` and `multiprocessing` look for modules in the current folder first, whoever may write into it; and what a video makes its
decoder do is up to whoever made the video.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SAFE_PATH = "PYTHONSAFEPATH"
MAX_OPEN_FILES, MAX_FILE_BYTES = 1024, 1 << 42
LEAST_MEMORY_BYTES = 2 << 30  # a 4K video needs it, whatever the others of its machine do
MEMORY_SHARE = 0.9
CGROUP_MEMORY = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def interpreter() -> list[str]:
    """Return the beginning of a command that runs this Python."""
    return [sys.executable, "-P"]


@contextmanager
def isolated() -> Iterator[None]:
    """Processes that `multiprocessing` starts in this block, and those that they start, do the same."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


def limit_files() -> None:
    """This process writes no core file, opens no more than MAX_OPEN_FILES files, and makes none larger than MAX_FILE_BYTES."""
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    _lower(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)


def limit_memory(size: int) -> None:
    """This process gets no more than so many bytes of memory of its own: asking for more fails. Linux counts them in RLIMIT_DATA."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        size = min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (size, hard))


def memory_of_each(count: int) -> int:
    """Return how many bytes each of so many processes of this machine may have."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in CGROUP_MEMORY:
        with suppress(OSError, ValueError):  # "max" is none
            total = min(total, int(path.read_text()))
    return max(LEAST_MEMORY_BYTES, int(total * MEMORY_SHARE) // count)


def _lower(kind: int, most: int) -> None:
    soft, hard = resource.getrlimit(kind)
    if soft == resource.RLIM_INFINITY or soft > most:
        resource.setrlimit(kind, (most, hard))


@dataclass(frozen=True, slots=True)
class ProcessId:
    """What tells a process from all others, on this machine and elsewhere.

    Attributes:
        host: Name of its machine.
        machine: What tells this boot of this machine, and its process numbers, from others; "" where nothing does.
        pid: Number of the process.
        started: When it started, as the kernel counts it; "" where it does not say.
    """

    host: str
    machine: str
    pid: int
    started: str

    @classmethod
    def mine(cls) -> ProcessId:
        """Return that of this process."""
        return cls(socket.gethostname(), _machine(), os.getpid(), _started(os.getpid()))

    @property
    def is_dead(self) -> bool | None:
        """Whether the process has ended; None where that cannot be asked from here."""
        if not self.machine or (self.machine, self.host) != (_machine(), socket.gethostname()):
            return None
        return not self.started or _started(self.pid) != self.started


def _machine() -> str:
    """This boot of this kernel, and the namespace that process numbers are of."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a living process started, in clock ticks since the boot; "" where there is none."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]  # proc(5): starttime is the 22nd of all
