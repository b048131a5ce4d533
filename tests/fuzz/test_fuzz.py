"""Mutants of clips through transcode and burst: each has a row, no row is wrong, nothing is left behind.

A finding names clip and seed: `python -m tests.fuzz make CLIP SEED FILE` makes that mutant again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.campaign import Done, fuzz
from tests.fuzz.clips import real, synthesised
from tests.fuzz.mutants import mutant
from tests.fuzz.oracle import WAYS
from tests.recipes import Media
from tests.witness import Ffmpeg

QUICK_WAYS = ("transcode", "burst", "fps")
QUICK_BATCH = 23  # each clip once
FIRST = 1_000_000
SOAK_MUTANTS = {"synthesised": 4600, "real": 1000}


@pytest.fixture(scope="module")
def quick(media: Media, cli: Ffmpeg, tmp_path_factory: pytest.TempPathFactory) -> Done:
    count = len(QUICK_WAYS) * QUICK_BATCH
    done = fuzz(
        synthesised(media),
        range(FIRST, FIRST + count),
        cli,
        tmp_path_factory.mktemp("fuzz"),
        batch=QUICK_BATCH,
        ways=QUICK_WAYS,
    )
    assert done.conversions == count
    assert done.ok > count // 3, "mutants that are all refused show little"
    return done


def show(found: list[str]) -> str:
    return "\n".join(found)


@pytest.mark.xdist_group("fuzz")
def test_each_mutant_has_a_row_and_nothing_is_left_behind(quick: Done) -> None:
    found = quick.of("run", "row", "leftover", "orphan")
    assert not found, show(found)


@pytest.mark.xdist_group("fuzz")
def test_no_mutant_meets_a_fault_of_ours(quick: Done) -> None:
    found = quick.of("internal", "crash")
    assert not found, show(found)


@pytest.mark.xdist_group("fuzz")
def test_ok_outputs_decode_and_are_read_by_number(quick: Done) -> None:
    found = quick.of("output", "number")
    assert not found, show(found)


@pytest.mark.xdist_group("fuzz")
def test_files_that_ffmpeg_warns_about_are_damaged(quick: Done) -> None:
    found = quick.of("silent")
    assert not found, show(found)


def test_a_clip_and_a_seed_make_the_same_mutant_every_time(media: Media) -> None:
    clips = synthesised(media)
    made = [[mutant(name, data, seed) for name, data in clips.items() for seed in range(3)] for _ in range(2)]
    assert made[0] == made[1]
    changed = [each.data != clips[each.clip] for each in made[0]]
    assert sum(changed) > 0.9 * len(changed)


@pytest.mark.slow
@pytest.mark.parametrize("clips", SOAK_MUTANTS)
def test_thousands_of_mutants_in_every_way(
    media: Media, cli: Ffmpeg, tmp_path: Path, clips: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = synthesised(media) if clips == "synthesised" else real()
    if not sources:
        pytest.skip("the real clips are not here")
    options = ("--short-side", 64) if clips == "real" else ()

    def tell(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    done = fuzz(sources, range(SOAK_MUTANTS[clips]), cli, tmp_path, ways=tuple(WAYS), options=options, show=tell)
    found = [str(finding) for finding in done.found]
    assert not found, show(found)
