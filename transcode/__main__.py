"""The `vidprep` command, and what it needs of the streams that it was started with."""

import atexit
import errno
import gc
import os
import signal
import sys

CANNOT_WRITE = 2


def main() -> None:
    signal.signal(signal.SIGTERM, _end)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    _open_standard_streams()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy would start a thread for each core, and use none
    from vidprep.transcode.cli.main import main as command_line

    atexit.register(gc.freeze)  # otherwise Python spends 50 ms on garbage collection of imported modules at exit
    code: str | int | None = 0
    try:
        command_line(prog_name="vidprep")
    except SystemExit as end:
        code = end.code
    except OSError as error:  # of --help and --version, which click handles
        sys.stderr.write(f"vidprep: stdout: {error.strerror}\n")
        code = CANNOT_WRITE
    sys.exit(_flush(code))


def _end(number: int, _frame: object) -> None:
    """End at once, with the code that shells give; while videos are made, a run stops in order instead."""
    os._exit(128 + number)


def _flush(code: str | int | None) -> str | int | None:
    """Flush stdout and return the exit code; report a failed flush once (Python would add its own message and exit 120)."""
    try:
        sys.stdout.flush()
    except OSError as error:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())  # discard what the buffer still contains
        os.close(null)
        if not code and error.errno != errno.EPIPE:
            sys.stderr.write(f"vidprep: stdout: {error.strerror}\n")
            return CANNOT_WRITE
    return code


def _open_standard_streams() -> None:
    """Reopen closed standard streams (`2>&-`) on /dev/null, so that the next opened file does not become stderr."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            while (null := os.open(os.devnull, os.O_RDWR)) < number:
                pass
            if null > number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, open(number, "r" if number == 0 else "w"))  # noqa: PTH123, SIM115


if __name__ == "__main__":
    main()
