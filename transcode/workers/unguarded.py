"""Scripts without `if __name__ == "__main__":`, which the processes of `bench` and `doctor` import, and would run again."""

from __future__ import annotations

import os
import sys
from multiprocessing import current_process


def end_if_worker_starts() -> None:
    """End this process where it is a worker that has not finished importing its script; its parent says what is missing. A script
    that was piped into Python has no file that they could import.
    """
    if getattr(current_process(), "_inheriting", False):
        os._exit(1)
    main = sys.modules["__main__"]
    if getattr(main, "__file__", None) == "<stdin>":  # which processes would look for, and not find
        main.__file__ = None
