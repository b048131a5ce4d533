"""Destinations and stores in states that no run leaves: every command says what is wrong, and ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.helpers import make_clip, transcode

SCRIPT = Path(__file__).parents[2] / "corrupted.py"
KINDS = ("transcode", "burst", "gulp", "webdataset", "tensor", "packed videos")
SAMPLED, SAMPLE, SOAK = ("transcode", "gulp"), 4, 130


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """Source and finished destination of a kind."""
    root = tmp_path_factory.mktemp("corrupted")
    source = root / "src"
    for number in range(2):
        make_clip(source / "walk" / f"c{number}.mp4", 6, seed=number)

    @cache
    def made(kind: str) -> tuple[Path, Path]:
        folder = root / kind / "base"
        if kind == "packed videos":
            ran = transcode(made("transcode")[1], folder, "--to", "webdataset", verb="pack")
        else:
            verb, more = ("transcode", ()) if kind == "transcode" else ("burst", ("--format", kind))
            ran = transcode(source, folder, *more, "--label-from-folder", "--jobs", 1, "--quiet", verb=verb)
        assert ran.code == 0, ran.err
        return source, folder

    return made


def run_states(kind: str, place: Callable[[str], tuple[Path, Path]], count: int, seed: int) -> None:
    source, folder = place(kind)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    ran = subprocess.run(
        [sys.executable, SCRIPT, kind, source, folder, str(count), str(seed)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    *told, last = map(json.loads, ran.stdout.splitlines())
    assert last["states"] == count <= last["possible"]
    faults = [f"{each['state']}: {each['command']}: {each['fault']}" for each in told if each["fault"]]
    assert not faults, "\n\n".join(faults)


@pytest.mark.long
@pytest.mark.parametrize("kind", SAMPLED)
def test_a_sample_of_corrupted_states_ends_every_command_with_a_message(kind, place):
    run_states(kind, place, SAMPLE, seed=len(kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_corrupted_states_end_every_command_with_a_message(kind, place):
    """780 states in all, each under 1 GB of memory and 20 s a step."""
    run_states(kind, place, SOAK, seed=2026)
