"""What the tests of this room share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transcode.media.beeps import Clips
from tests.transcode.media.encoded import Outputs


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory, cli: Any) -> Clips:
    return Clips(tmp_path_factory.mktemp("clips"), cli)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Outputs:
    return Outputs(tmp_path_factory.mktemp("outputs"))
