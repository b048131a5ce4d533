"""What the tests of this room share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import make_clip, make_clips, outputs, transcode
from tests.transcode.run.poison import CLIPS


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clips(tmp_path_factory.mktemp("clips") / "src", CLIPS)


@pytest.fixture(scope="module")
def undisturbed(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run makes of the clips when nothing happens to it."""
    destination = tmp_path_factory.mktemp("reference") / "dst"
    assert transcode(clips, destination).code == 0
    return outputs(destination)


@pytest.fixture
def poisoned(tmp_path: Path) -> Path:
    folder = make_clips(tmp_path / "src", 4)
    make_clip(folder / "poison.mp4", 12, seed=99)
    return folder


@pytest.fixture
def dst(tmp_path: Path) -> Path:
    return tmp_path / "dst"


@pytest.fixture
def src(tmp_path: Path) -> Path:
    """Three clips, one of them in a folder below."""
    make_clip(tmp_path / "src" / "a.mp4", 12, seed=1)
    make_clip(tmp_path / "src" / "b.mkv", 8, seed=2)
    make_clip(tmp_path / "src" / "deep" / "er" / "c.MOV", 6, seed=3)
    return tmp_path / "src"
