"""What the tests of this room share."""

from __future__ import annotations

import pytest

from tests.helpers import make_clips
from tests.transcode.destination.arrays import CLIPS, add


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return make_clips(tmp_path_factory.mktemp("pool"), CLIPS, 4, size=(64, 48))


@pytest.fixture
def sources(pool, tmp_path):
    """Six of the clips; the others may come later."""
    folder = tmp_path / "sources"
    folder.mkdir()
    add(folder, pool, *range(6))
    return folder
