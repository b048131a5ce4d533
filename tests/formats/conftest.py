"""Stores of every kind, made once."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.helpers import make_clips, transcode
from vidprep.formats.stores.registry import STORES_OF_FRAMES

burst = partial(transcode, verb="burst")
ENCODED = {
    "h264": ["--gop", 5],
    "h264 own times": ["--gop", 4, "--container", "mkv"],
    "hevc": ["--codec", "hevc", "--gop", 5],
    "vp9": ["--codec", "vp9", "--gop", 3],
    "av1": ["--codec", "av1", "--gop", 7],
    "shards": ["--gop", 5, "--format", "shards", "--shard-size", "1MiB"],
    "deep": ["--pixel-format", "yuv420p10le"],
    "slow": ["--fps", "30000/1001", "--gop", 16, "--codec", "av1", "--container", "webm"],
}
STORED = {
    "burst": [],
    "burst 444": ["--subsampling", "444"],
    "burst gray": ["--subsampling", "gray"],
    "burst shards": ["--quality", 100, "--shard-size", "1MiB"],
    **{name: ["--format", name] for name in STORES_OF_FRAMES if name != "burst"},
}


@pytest.fixture
def without_gc() -> Iterator[None]:
    """What is let go must be gone by its references alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def store_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder by the name of its kind, made once."""
    root = tmp_path_factory.mktemp("stores")
    src = make_clips(root / "src" / "sub", 4, 21, size=(96, 64))

    def made(kind: str) -> Path:
        folder = root / kind
        if not folder.exists():
            options = [*ENCODED.get(kind, STORED.get(kind, ())), "--label-from-folder"]
            ran = (transcode if kind in ENCODED else burst)(src.parent, folder, *options)
            assert ran.code == 0, ran.err
        return folder

    return made
