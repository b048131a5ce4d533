"""What the tests of this room share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import make_clips, transcode
from tests.transcode.choose.benching import GOP


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> Path:
    """raw, h264, burst, gulp, webdataset and jpg: the same three videos of 24 to 26 frames."""
    root = tmp_path_factory.mktemp("bench")
    make_clips(root / "raw", 3, 24, size=(96, 64), options={"g": "250", "bf": "2", "preset": "veryfast"})
    assert transcode(root / "raw", root / "h264", "--gop", GOP).code == 0
    for store in ("burst", "gulp", "webdataset"):
        assert transcode(root / "raw", root / store, "--format", store, verb="burst").code == 0
    assert transcode(root / "burst", root / "jpg", "--to", "frames", verb="pack").code == 0
    return root
