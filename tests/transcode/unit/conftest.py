"""What the tests of this room share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import make_clips


@pytest.fixture
def dst(tmp_path: Path) -> Path:
    return tmp_path / "dst"


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clips(tmp_path_factory.mktemp("raw") / "src", 5)
