"""What the tests of this room share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import make_clip, transcode


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ready")
    make_clip(root / "src" / "a.mp4", 6)
    assert transcode(root / "src", root / "out", "--quiet").code == 0
    return root / "out"


@pytest.fixture
def src(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    return folder


@pytest.fixture
def dst(tmp_path: Path) -> Path:
    """Not made yet, as before a first run."""
    return tmp_path / "dst"


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
