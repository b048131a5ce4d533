"""Child processes that run function calls, and identities of processes.

`multiprocessing` imports the parent's script in each child, which then must be written for that, searches the current
folder for modules first, and starts one more process for bookkeeping. A child here imports only what its calls need,
can be limited in memory and cores, and dies with its parent.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import pickle
import queue
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

# Part of every child's argv, so that they can be found.
MARK = "vidprep-child"
TAKEN, MEMORY, WORK, CORES = range(4)  # the numbers that parent and child share
LEFT_TO_PARENT = {signal.SIGINT, signal.SIGUSR1, signal.SIGHUP}
LONGEST_WAIT_SECONDS = 10**6
SECONDS_TO_END = 10
SIZE_BYTES = 8  # size of the length before a message
PR_SET_PDEATHSIG = 1
MAX_OPEN_FILES, MAX_FILE_BYTES = 1024, 1 << 42
LEAST_MEMORY_BYTES = 2 << 30  # a 4K video needs this much, even on a busy machine
MEMORY_SHARE = 0.9
CGROUP_MEMORY = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class DiedError(Exception):
    """The process ended.

    Attributes:
        taken: Whether it had received the call
        exit_code: Exit code; negative for a signal
    """

    def __init__(self, *, taken: bool, exit_code: int) -> None:
        super().__init__(taken, exit_code)
        self.taken, self.exit_code = taken, exit_code


class Answer(NamedTuple):
    """Result of a call: the value that its function returned, or the error that it raised."""

    made: object
    error: Exception | None


class Channel:
    """Exchange of pickled messages with another process. One thread may send while another receives."""

    def __init__(self, end: socket.socket) -> None:
        """Wrap one end of a pair of connected sockets."""
        self._socket = end

    def send(self, message: object) -> None:
        """Send a message. Raises BrokenPipeError if the other process has ended."""
        self.send_pickled(pickle.dumps(message))

    def send_pickled(self, data: bytes) -> None:
        self._socket.sendall(len(data).to_bytes(SIZE_BYTES, "little") + data)

    def receive(self) -> Any:
        """Wait for the next message. Raises EOFError if the other process has ended."""
        return pickle.loads(self._read(int.from_bytes(self._read(SIZE_BYTES), "little")))

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        self.receive_into(memoryview(data))
        return data

    def receive_into(self, view: memoryview) -> None:
        """Wait for the bytes of a buffer, which follow a message. Raises EOFError if the other process has ended."""
        while len(view):
            try:
                count = self._socket.recv_into(view)
            except ConnectionResetError:  # it ended before it had read everything
                count = 0
            if not count:
                raise EOFError
            view = view[count:]

    def has_message(self, seconds: float = 0.0) -> bool:
        """Return whether `receive` would return or raise within this time."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(min(LONGEST_WAIT_SECONDS, max(0.0, seconds)) * 1000))

    def close(self) -> None:
        self._socket.close()


def forever() -> float:
    """Return the allowance of a call without a time limit, in seconds."""
    return LONGEST_WAIT_SECONDS


class Process:
    """A child process that runs one call after another. Used by one thread at a time; `kill` may be called from any."""

    def __init__(
        self,
        imports: str = "",
        *,
        share: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        output: int | IO[bytes] | None = None,
    ) -> None:
        """Start a process.

        Args:
            imports: Module to import before the first call.
            share: File descriptors that the process gets under the same numbers.
            environment: Variables to add to this process's environment.
            output: Where it prints, as `subprocess` takes it; None means where this process prints.

        Raises:
            OSError: No process can be started.
        """
        import tempfile

        self.num_calls = 0
        self._owner = os.getpid()  # a fork of this process must not use it
        ours, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as shared, ExitStack() as opened:
            opened.callback(ours.close)
            shared.truncate(mmap.PAGESIZE)
            self.numbers = memoryview(mmap.mmap(shared.fileno(), mmap.PAGESIZE)).cast("q")
            numbers = theirs.fileno(), shared.fileno()
            folders = [each for each in sys.path if isinstance(each, str)]  # Python passes over all others
            first_lines = (
                f"import sys; sys.path[:] = {folders!a}; from vidprep.formats.processes import serve; "
                f"serve({numbers[0]}, {numbers[1]}, {os.getpid()}, {imports!r})"
            )
            self._popen, self._keeper = _start(
                [*interpreter(), *_flags(), "-c", first_lines, MARK],
                pass_fds=(*numbers, *share),
                env=os.environ | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            opened.pop_all()
        self._channel = Channel(ours)

    def begin(self, function: Callable[..., Any], *arguments: object) -> Self:
        """Send a call without waiting for its result. Raises DiedError."""
        self.numbers[TAKEN] = False
        self.num_calls += 1
        self.send((function, arguments))
        return self

    def result(self, more_seconds: Callable[[], float] = forever) -> Any:
        """Wait until the call ends. Return what its function returned, or raise what it raised.

        Args:
            more_seconds: Called at the start and whenever the last allowance is used up; returns how many more seconds
                to wait.

        Raises:
            DiedError: The process ended.
            TimeoutError: `more_seconds` returned 0.
        """
        made, error = self.receive(more_seconds)
        if error is not None:
            raise error
        return made

    def send(self, message: object) -> None:
        """Send a message to the running function. Raises DiedError."""
        try:
            self._channel.send(message)
        except ConnectionError:
            raise self._death_error() from None

    def receive(self, more_seconds: Callable[[], float] = forever) -> Any:
        """Wait for a message of the function, or for its Answer. Raises as `result` does."""
        deadline = time.monotonic() + more_seconds()
        while not self._channel.has_message(deadline - time.monotonic()):
            if time.monotonic() >= deadline:
                longer = more_seconds()
                if longer <= 0:
                    raise TimeoutError
                deadline += longer
        try:
            return self._channel.receive()
        except EOFError:
            raise self._death_error() from None

    def _death_error(self) -> DiedError:
        """Return the error for a process that closed its end."""
        self._keeper.join(SECONDS_TO_END)
        self.kill()
        self._keeper.join()
        return DiedError(taken=bool(self.numbers[TAKEN]), exit_code=self._popen.returncode)

    @property
    def lives(self) -> bool:
        return self._keeper.is_alive()

    def kill(self) -> None:
        if os.getpid() == self._owner:
            self._popen.kill()

    def close(self) -> None:
        """Kill the process and wait for its end."""
        self.kill()
        self._keeper.join()
        self._channel.close()


def _start(command: Sequence[str], **how: Any) -> tuple[subprocess.Popen[bytes], threading.Thread]:
    """Start a process from a thread that lives as long as the process.

    The system kills a child when the thread that started it ends, which must only happen when the whole program ends.
    """
    started: queue.SimpleQueue[subprocess.Popen[bytes] | Exception] = queue.SimpleQueue()

    def keep() -> None:
        # Blocked in the child from its first instruction, and in the ffmpeg that it may run: Ctrl-C goes to the whole group, and
        # the videos in flight have the grace time to finish.
        signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_PARENT)
        try:
            popen = subprocess.Popen(command, **how)
        except Exception as error:  # noqa: BLE001 (raised again in the parent)
            started.put(error)
            return
        started.put(popen)
        popen.wait()

    keeper = threading.Thread(target=keep, daemon=True)
    try:
        keeper.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error
    result = started.get()
    try:
        if isinstance(result, Exception):
            raise result
        return result, keeper
    finally:
        del result  # otherwise an error and this frame would keep each other alive


def interpreter() -> list[str]:
    """Return the start of a command that runs this Python, without the current folder in its module path."""
    return [sys.executable, "-P"]


def _flags() -> list[str]:
    """Return the interpreter flags that no environment variable carries over."""
    return [*(f"-W{option}" for option in sys.warnoptions), *(["-B"] if sys.dont_write_bytecode else [])]


# --------------------------------------------------------------------------------------------------- in the child

_parent: Channel
_numbers: memoryview


def serve(descriptor: int, shared: int, parent: int, imports: str) -> None:
    """Receive calls, run each one and send its Answer, until the parent ends.

    Args:
        descriptor: Socket to the parent.
        shared: File of the numbers shared with the parent.
        parent: Process number of the parent.
        imports: Module to import before the first call; "" for none.
    """
    global _parent, _numbers
    _die_with(parent)
    limit_files()
    os.set_inheritable(descriptor, False)
    _parent = Channel(socket.socket(fileno=descriptor))
    _numbers = memoryview(mmap.mmap(shared, mmap.PAGESIZE)).cast("q")
    os.close(shared)
    if imports:
        import_module(imports)
    with suppress(ConnectionError):
        while True:
            try:
                function, arguments = _parent.receive()
            except EOFError:
                return
            except Exception as error:  # noqa: BLE001 (a call that cannot be read here)
                answer = _pickle(Answer(None, error))
            else:
                _numbers[TAKEN] = True
                if _numbers[MEMORY]:
                    limit_memory(_numbers[MEMORY])
                answer = _answer(function, arguments)
            _parent.send_pickled(answer)


def parent_channel() -> Channel:
    """Return the channel to the parent, for the running function."""
    return _parent


def count_progress() -> None:
    """Count one step of the running call, which extends its deadline."""
    _numbers[WORK] += 1


def cores() -> int:
    """Return how many cores the running call may use now."""
    return int(_numbers[CORES])


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    try:
        return _pickle(Answer(function(*arguments), None))
    except Exception as error:  # noqa: BLE001 (raised again in the caller)
        error.add_note(traceback.format_exc())
        return _pickle(Answer(None, error))


def _pickle(answer: Answer) -> bytes:
    try:
        data = pickle.dumps(answer)
        pickle.loads(data)  # some exceptions are pickled and then cannot be made again
    except Exception as fault:  # noqa: BLE001 (whatever cannot be pickled)
        failure = RuntimeError(f"{answer.error!r} cannot be given back: {fault}")
        failure.add_note("".join(traceback.format_exception(answer.error)) if answer.error else "")
        return pickle.dumps(Answer(None, failure))
    return data


def _die_with(parent: int) -> None:
    """Let this process die with its parent and on termination signals, and be the first one that the kernel kills when
    memory runs out.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("500")


def limit_files() -> None:
    """Limit this process: no core files, at most MAX_OPEN_FILES open files, none larger than MAX_FILE_BYTES."""
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    _lower(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)


def limit_memory(size: int) -> None:
    """Limit this process's own memory to `size` bytes: allocations beyond it fail. Linux counts them in RLIMIT_DATA."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        size = min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (size, hard))


def memory_of_each(count: int) -> int:
    """Return how many bytes of memory each of `count` processes of this machine may use."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in CGROUP_MEMORY:
        with suppress(OSError, ValueError):  # "max" means no limit
            total = min(total, int(path.read_text()))
    return max(LEAST_MEMORY_BYTES, int(total * MEMORY_SHARE) // count)


def _lower(kind: int, most: int) -> None:
    soft, hard = resource.getrlimit(kind)
    if soft == resource.RLIM_INFINITY or soft > most:
        resource.setrlimit(kind, (most, hard))


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Identity of a process, on this machine and elsewhere.

    Attributes:
        host: Name of its machine
        machine: Identity of this boot of the machine and its process namespace; "" if unknown
        started: When it started, as the kernel counts it; "" if unknown
    """

    host: str
    machine: str
    pid: int
    started: str

    @classmethod
    def mine(cls) -> ProcessId:
        """Return the identity of this process."""
        return cls(socket.gethostname(), _machine(), os.getpid(), _start_of(os.getpid()))

    @property
    def is_dead(self) -> bool | None:
        """Whether the process has ended; None where that cannot be asked from here."""
        if not self.machine or (self.machine, self.host) != (_machine(), socket.gethostname()):
            return None
        return not self.started or _start_of(self.pid) != self.started


def _machine() -> str:
    """Return an identity of this machine's boot and process namespace."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return ""


def _start_of(pid: int) -> str:
    """Return when a running process started, in clock ticks since boot; "" without one."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]  # proc(5): starttime is the 22nd of all
