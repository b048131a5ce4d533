"""The `vidprep` command. Every child process imports this module (that is how `spawn` works), so what only the parent needs
is imported late.
"""

import atexit
import gc
import os
import sys


def main() -> None:
    _open_standard_streams()
    from vidprep.transcode.cli import main as command_line

    atexit.register(gc.freeze)  # or Python would look for garbage in all that was imported, for 50 ms
    command_line()


def _open_standard_streams() -> None:
    """Those that were closed (`2>&-`), or the next files that are opened would have their numbers, and messages would go into them."""
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
