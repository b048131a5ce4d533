"""What the tests of several rooms share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def deep(src: Path) -> Iterator[Path]:
    """A folder so deep that nobody can reach its end by path: a real one that cannot be listed, for root too."""
    here = os.open(src, os.O_RDONLY)
    for _ in range(18):
        os.mkdir("d" * 250, dir_fd=here)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    yield src
    subprocess.run(["rm", "-rf", src], check=True)
