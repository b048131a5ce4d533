"""The process of a child, as its parent sees it: an interpreter of its own, which takes calls and gives results through pipes.

`multiprocessing` would do, but its `spawn` imports the script of the parent in each child, which then must be written for that,
and starts one more process to keep count. A child here imports nothing but what its calls need.
"""

from __future__ import annotations

import mmap
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import IO, Any

from vidprep.formats.processes import interpreter

# In argv of every child, for whoever looks for them.
MARK = "vidprep-child"
# A parent that is killed while it starts a child leaves nothing to read.
FIRST_LINES = """
import pickle, sys
calls = open(int(sys.argv[2]), 'rb')
try:
    sys.path[:] = pickle.load(calls)
except EOFError:
    sys.exit(1)
from vidprep.transcode.workers.serve import serve
serve(calls, *map(int, sys.argv[3:]))
"""
LEFT_TO_PARENT = {signal.SIGINT, signal.SIGUSR1, signal.SIGHUP}
LONGEST_WAIT_SECONDS = 10**6
SECONDS_TO_END = 10
TAKEN, WORK, CORES, MEMORY = range(4)  # the numbers that parent and child share


class DiedError(Exception):
    """taken: whether it had taken the call. exit_code: negative is a signal."""

    def __init__(self, *, taken: bool, exit_code: int) -> None:
        super().__init__(taken, exit_code)
        self.taken, self.exit_code = taken, exit_code


class Process:
    """Used by one thread at a time; any may call `kill`. It dies with the thread that started it, where the system can do that."""

    def __init__(self) -> None:
        """Raises OSError where no process can be started."""
        self.num_calls = 0
        with tempfile.TemporaryFile() as shared, ExitStack() as theirs, ExitStack() as ours:
            shared.truncate(mmap.PAGESIZE)
            self.numbers = memoryview(mmap.mmap(shared.fileno(), mmap.PAGESIZE)).cast("q")
            their_calls, self._calls = _pipe(theirs, ours)
            self._results, their_results = _pipe(ours, theirs)
            numbers = (their_calls.fileno(), their_results.fileno(), shared.fileno())
            # Blocked in the child from its first instruction, and in the ffmpeg that it may run: Ctrl-C goes to the whole group, and
            # the videos in flight have the grace time to finish.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_PARENT)
            try:
                command = [*interpreter(), *_flags(), "-c", FIRST_LINES, MARK, *map(str, numbers), str(os.getpid())]
                self._popen = subprocess.Popen(command, pass_fds=numbers, stdin=subprocess.DEVNULL)
                pickle.dump(sys.path, self._calls)
                self._calls.flush()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            ours.pop_all()

    def call(self, function: Callable[..., Any], argument: Any, more_seconds: Callable[[], float]) -> Any:
        """What `function` makes of `argument` there, or raise what it raises.

        more_seconds: asked again when what it told before has passed. Raises DiedError, and TimeoutError when it tells 0.
        """
        self.numbers[TAKEN] = False
        try:
            self.num_calls += 1
            pickle.dump((function, argument), self._calls)
            self._calls.flush()
            self._wait(more_seconds)
            made, error = pickle.load(self._results)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            raise DiedError(taken=bool(self.numbers[TAKEN]), exit_code=self._exit_code()) from None
        if error is not None:
            raise error
        return made

    def _wait(self, more_seconds: Callable[[], float]) -> None:
        """Until there is something to read, or the end of it."""
        poller = select.poll()
        poller.register(self._results, select.POLLIN)
        deadline = time.monotonic() + more_seconds()
        while not poller.poll(min(LONGEST_WAIT_SECONDS, max(0.0, deadline - time.monotonic())) * 1000):
            if time.monotonic() >= deadline:
                longer = more_seconds()
                if longer <= 0:
                    raise TimeoutError
                deadline += longer

    def _exit_code(self) -> int:
        """Of one that has closed its pipe."""
        try:
            return self._popen.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            return self._popen.wait()

    @property
    def lives(self) -> bool:
        return self._popen.poll() is None

    def kill(self) -> None:
        self._popen.kill()

    def close(self) -> None:
        """Kill it, and wait until it is gone."""
        self._popen.kill()
        self._popen.wait()
        for each in (self._calls, self._results):
            with suppress(BrokenPipeError):  # of a call that was never read
                each.close()


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """The two ends of one; reader, writer: what closes them."""
    read, write = os.pipe()
    return reader.enter_context(open(read, "rb")), writer.enter_context(open(write, "wb"))  # noqa: PTH123


def _flags() -> list[str]:
    """How this interpreter was told to behave, where no variable of the environment says so."""
    return [*(f"-W{option}" for option in sys.warnoptions), *(["-B"] if sys.dont_write_bytecode else [])]
