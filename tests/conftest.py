"""What every test may ask for."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import imageio_ffmpeg
import pytest
from hypothesis import HealthCheck, settings

from tests.children import KeptChildren
from tests.chromium import Browser, chromium
from tests.pipeline import Run
from tests.real_media import SHARED_MEDIA, real_clips
from tests.recipes import INTERLACED_CLIPS, PLAIN, Media
from tests.witness import Ffmpeg

# A busy machine is slow, which is no fault of a test.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Whoever runs the tests may have these set, and users have not.
for _name in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
    os.environ.pop(_name, None)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "logs_errors: the test provokes an ERROR on the libav or vidprep loggers")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """.ci/run reads this: whether all tests ran."""
    if not hasattr(session.config, "workerinput") and getattr(session.config, "cache", None) is not None:
        session.config.cache.set("vidprep/exitstatus", int(exitstatus))


@pytest.fixture(autouse=True)
def no_error_is_logged_unasked(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    if request.node.get_closest_marker("logs_errors"):
        return
    records = [r for when in ("setup", "call") for r in caplog.get_records(when)]
    said = [
        r.getMessage() for r in records if r.name.split(".")[0] in ("libav", "vidprep") and r.levelno >= logging.ERROR
    ]
    assert not said, f"logged as errors: {said}"


@pytest.fixture(scope="session", autouse=True)
def kept_children() -> Iterator[None]:
    kept = KeptChildren()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vidprep.transcode.workers.local.Child", kept)
        patch.setattr(
            "vidprep.transcode.run.session.start_process", Mock(side_effect=OSError)
        )  # or none would be taken that is kept
        yield
    kept.close()


@pytest.fixture(scope="session")
def cli() -> Ffmpeg:
    return Ffmpeg(imageio_ffmpeg.get_ffmpeg_exe())


@pytest.fixture(scope="session")
def media(tmp_path_factory: pytest.TempPathFactory, cli: Ffmpeg) -> Media:
    return Media(tmp_path_factory.mktemp("media"), cli)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="session")
def shared_media() -> Path:
    if not (SHARED_MEDIA / "MANIFEST.csv").exists():
        pytest.skip(f"the real clips are not at {SHARED_MEDIA}")
    return SHARED_MEDIA


@pytest.fixture(params=PLAIN)
def plain_clip(request: pytest.FixtureRequest, media: Media) -> Path:
    return media[request.param]


@pytest.fixture(params=INTERLACED_CLIPS)
def interlaced_clip(request: pytest.FixtureRequest, media: Media) -> Path:
    return media[request.param]


@pytest.fixture(params=real_clips())
def real_clip(request: pytest.FixtureRequest) -> Path:
    return SHARED_MEDIA / request.param


@pytest.fixture(scope="session")
def pipeline() -> Run:
    os.environ.setdefault("SVT_LOG", "1")
    return Run()
