"""What the tests of this room share."""

from __future__ import annotations

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
