"""Numbered clips that are whole, joined, cut, holed or change midway: what is ok and without a warning is right.

A finding names its seed; `python -m tests.fuzz odd 1 --first SEED --keep FOLDER` makes that file again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.numbered_oracle import Done, campaign
from tests.witness import Ffmpeg

QUICK = 192  # every kind of container and codec once whole, every way of being odd nine times


@pytest.fixture(scope="module")
def quick(cli: Ffmpeg, tmp_path_factory: pytest.TempPathFactory) -> Done:
    return campaign(range(QUICK), cli, tmp_path_factory.mktemp("odd") / "all", batch=QUICK // 3)


@pytest.mark.xdist_group("oddities")
def test_nothing_is_silently_wrong_and_no_whole_file_is_called_damaged(quick: Done) -> None:
    assert not quick.found, "\n".join(quick.found)
    assert quick.whole == QUICK // 4 and quick.ok > QUICK * 0.75, quick


@pytest.mark.slow
def test_two_thousand_oddities(cli: Ffmpeg, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def tell(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    done = campaign(range(1_000_000, 1_002_000), cli, tmp_path / "all", show=tell)
    assert not done.found, "\n".join(done.found)
    assert done.files == 2000 and done.whole == 500 and done.seconds < 600, done
