"""What the tests of this room share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.formats.conftest import ENCODED, STORED
from vidprep.formats import FrameStore, open_store


@pytest.fixture(params=[*STORED, *ENCODED])
def folder(request, store_of) -> Path:
    return store_of(request.param)


@pytest.fixture
def store(folder) -> FrameStore:
    return open_store(folder)
