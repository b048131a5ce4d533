"""Children that import nothing from the current folder: `python -c` and `multiprocessing` look there first, whoever may write into it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SAFE_PATH = "PYTHONSAFEPATH"


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
