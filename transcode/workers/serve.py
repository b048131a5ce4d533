"""What a child does from its first line to its last: take a call, do it, give back what came of it."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pickle
import signal
import sys
import traceback
from pathlib import Path
from typing import IO, Any

from vidprep.formats.processes import limit_files, limit_memory
from vidprep.transcode.workers.process import CORES, MEMORY, TAKEN, WORK

PR_SET_PDEATHSIG = 1
_numbers: Any = None


def serve(calls: IO[bytes], results: int, shared: int, parent: int) -> None:
    """Until `calls` ends. calls, results, shared: of `Process`, which waits for a pair after each call: what came of it, or what
    was raised.
    """
    global _numbers
    _die_with(parent)
    limit_files()
    for number in (calls.fileno(), results, shared):
        os.set_inheritable(number, False)
    _numbers = memoryview(mmap.mmap(shared, mmap.PAGESIZE)).cast("q")
    import vidprep.transcode.unit.run_job  # noqa: F401 (before the first video, and not in the parent, which needs no decoder)

    with contextlib.suppress(BrokenPipeError), open(results, "wb") as answers:
        while True:
            try:
                function, argument = pickle.load(calls)
            except EOFError:
                return
            except Exception as error:  # noqa: BLE001 (a call that cannot be read here)
                answer = _pickled(None, error)
            else:
                _numbers[TAKEN] = True
                limit_memory(_numbers[MEMORY])
                answer = _answer(function, argument)
            answers.write(answer)
            answers.flush()


def worked() -> None:
    """Count a step of the call at work, which its deadline grows with."""
    _numbers[WORK] += 1


def cores() -> int:
    """How many the call at work may use now."""
    return int(_numbers[CORES])


def _answer(function: Any, argument: Any) -> bytes:
    try:
        return _pickled(function(argument), None)
    except Exception as error:  # noqa: BLE001 (raised again by whoever called)
        error.add_note(traceback.format_exc())
        return _pickled(None, error)


def _pickled(made: object, error: Exception | None) -> bytes:
    try:
        data = pickle.dumps((made, error))
        pickle.loads(data)  # some exceptions are pickled and then cannot be made again
    except Exception as fault:  # noqa: BLE001 (whatever cannot be pickled)
        return pickle.dumps((None, RuntimeError(f"{error!r} cannot be given back: {fault}")))
    return data


def _die_with(parent: int) -> None:
    """Die at once when told to, and with the parent, and be the first to go when memory runs out."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("500")
