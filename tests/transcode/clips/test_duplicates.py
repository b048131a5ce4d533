"""Clips that show the same: copies of every kind are named, others are not, and a leak between datasets is found."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.films import Pictures, write
from tests.helpers import transcode
from vidprep.transcode import scan
from vidprep.transcode.clips._duplicates import Hashes, Match, duplicates, group, hashes_text
from vidprep.transcode.sources.tables import read_source_table

pytest.importorskip("faiss")
pytest.importorskip("pdqhash")


def scene(seed: int, frames: int = 60) -> Pictures:
    rng = np.random.default_rng(seed)
    wide = sum(
        rng.integers(0, levels, (96 // side, 480 // side, 3)).repeat(side, 0).repeat(side, 1)
        for side, levels in ((48, 120), (24, 70), (8, 50))
    )
    return np.stack([wide[:, 2 * number : 2 * number + 160] for number in range(frames)]).astype(np.uint8)


def resized(clip: Pictures, width: int, height: int) -> Pictures:
    rows, columns = np.arange(height) * clip.shape[1] // height, np.arange(width) * clip.shape[2] // width
    return clip[:, rows][:, :, columns]


def save(path: Path, clip: Pictures, rate: int = 25, crf: int = 20) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    write(path, list(clip), random.Random(0), is_variable=False, rate=Fraction(rate), crf=crf)


COPIES: dict[str, Callable[[Pictures], tuple[Any, ...]]] = {
    "crf": lambda clip: (clip, 25, 36),
    "rate": lambda clip: (clip[::2], 12),
    "size": lambda clip: (resized(clip, 96, 64),),
    "crop": lambda clip: (clip[:, 4:92, 8:152],),
    "bars": lambda clip: (np.pad(clip, ((0, 0), (16, 16), (0, 0), (0, 0))),),
    "part": lambda clip: (clip[13:51],),
    "mirrored": lambda clip: (clip[:, :, ::-1],),
}


@pytest.mark.long
def test_copies_of_each_kind_are_named_and_others_are_not(tmp_path: Path) -> None:
    for seed in range(8):
        save(tmp_path / "raw" / f"{seed}.mp4", scene(seed))
    done = scan(tmp_path / "raw", tmp_path / "clips.csv", duplicates=True)
    assert (done.clips, done.duplicates) == (8, 0)
    for number, (name, copy) in enumerate(COPIES.items()):
        save(tmp_path / "raw" / f"{number}_{name}.mp4", *copy(scene(number)))
    done = scan(tmp_path / "raw", tmp_path / "clips.csv", duplicates=True)
    assert (done.scanned, done.duplicates) == (7, 6)
    rows = {row["path"][4:-4]: row for row in read_source_table(tmp_path / "clips.csv").rows()}
    for number, name in enumerate(COPIES):
        both = rows[str(number)], rows[f"{number}_{name}"]
        is_found = name != "mirrored"
        assert (both[0]["duplicate_group"] == both[1]["duplicate_group"]) == is_found, name
        assert sum(row["duplicate_of"] is not None for row in both) == is_found, name
    assert rows["5_part"]["duplicate_of"] == rows["5"]["id"]
    assert abs(rows["5_part"]["duplicate_offset"] - 13) <= 1
    assert rows["7"]["duplicate_group"] == rows["7"]["id"]
    assert scan(tmp_path / "raw", tmp_path / "clips.csv", duplicates=True, mirrored=True).scanned == 0
    rows = {row["path"][4:-4]: row for row in read_source_table(tmp_path / "clips.csv").rows()}
    assert rows["6_mirrored"]["duplicate_group"] == rows["6"]["duplicate_group"]


@pytest.mark.parametrize("kind", ["table", "dataset"])
def test_a_new_test_set_is_checked_against_an_old_dataset(tmp_path: Path, kind: str) -> None:
    for seed in range(3):
        save(tmp_path / "train" / f"{seed}.mp4", scene(seed))
    old = tmp_path / "train.csv"
    scan(tmp_path / "train", old, duplicates=True)
    if kind == "dataset":
        assert transcode(old, tmp_path / "ready", "--short-side", "64").code == 0
        old = tmp_path / "ready"
    save(tmp_path / "test" / "same.mp4", scene(1)[9:50], 25, 34)
    save(tmp_path / "test" / "new.mp4", scene(7))
    done = scan(tmp_path / "test", tmp_path / "test.csv", against=[old])
    assert done.duplicates == 1
    rows = {row["path"]: row for row in read_source_table(tmp_path / "test.csv").rows()}
    found = rows["test/same.mp4"]
    assert found["duplicate_of"].startswith(f"{old}/")
    assert "1" in found["duplicate_of"].rpartition("/")[2][:7]
    assert rows["test/new.mp4"]["duplicate_of"] is None


def test_what_has_no_hashes_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "raw" / "a.mp4", scene(1))
    scan(tmp_path / "raw", tmp_path / "plain.csv")
    assert transcode(tmp_path / "raw", tmp_path / "ready").code == 0
    (tmp_path / "other.csv").write_text("path,id\nraw/a.mp4,a\n")
    for place in ("plain.csv", "other.csv", "ready"):
        ran = transcode(tmp_path / "raw", tmp_path / "x.csv", "--against", tmp_path / place, verb="scan")
        assert ran.code == 2
        assert f"{place} has no hashes" in ran.err
    ran = transcode(tmp_path / "raw", tmp_path / "x.csv", "--against", tmp_path / "nothing", verb="scan")
    assert ran.code == 2


def test_clips_of_one_shot_are_one_group_and_no_duplicates(tmp_path: Path) -> None:
    save(tmp_path / "raw" / "a.mp4", scene(1)[:1].repeat(100, 0))
    done = scan(tmp_path / "raw", tmp_path / "clips.csv", duplicates=True, clip_frames=25)
    assert (done.clips, done.duplicates) == (4, 0)
    assert len(set(read_source_table(tmp_path / "clips.csv").values("duplicate_group"))) == 1


def random_hashes(rng: np.random.Generator, count: int) -> list[bytes]:
    return [rng.integers(0, 256, 32, dtype=np.uint8).tobytes() for _ in range(count)]


def near(rng: np.random.Generator, hash_: bytes, bits: int) -> bytes:
    flips = np.zeros(256, np.uint8)
    flips[rng.choice(256, bits, replace=False)] = 1
    return (np.frombuffer(hash_, np.uint8) ^ np.packbits(flips)).tobytes()


def test_matches_are_those_of_a_plain_comparison() -> None:
    """Every pair of frames compared by hand, without an index."""
    rng, chance = np.random.default_rng(5), random.Random(5)
    clips = [random_hashes(rng, chance.randint(2, 12)) for _ in range(30)]
    planted = {}
    for number in range(0, 30, 3):
        length = len(clips[number])
        begin = chance.randrange(max(1, length - 3))
        clips[number + 1] = [near(rng, each, chance.randint(0, 30)) for each in clips[number][begin:]]
        planted[number, number + 1] = -begin / 4
    texts = [hashes_text((number / 4, (each,)) for number, each in enumerate(clip)) for clip in clips]
    found = Hashes.parse(texts, [len(clip) / 4 for clip in clips]).matches()
    assert {(match.one, match.other): match.seconds for match in found} == planted


def test_hashes_in_parts_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    clips = [random_hashes(rng, 8) for _ in range(40)]
    clips += [[near(rng, each, 24) for each in clip] for clip in clips[:10]]
    hashes = Hashes.parse(
        [hashes_text((n / 4, (each,)) for n, each in enumerate(clip)) for clip in clips], [2.0] * len(clips)
    )
    exact = hashes.matches()
    monkeypatch.setattr("vidprep.transcode.clips._duplicates.QUERIES_AT_ONCE", 37)
    assert hashes.matches() == exact
    assert {match[:2] for match in exact} == {(n, n + 40) for n in range(10)}


def test_nothing_to_compare() -> None:
    assert Hashes.parse([], []).matches() == []
    assert Hashes.parse([None, None], [1.0, 1.0]).matches() == []


def test_groups_are_the_components_of_the_pairs() -> None:
    rng = random.Random(2)
    pairs = [(rng.randrange(60), rng.randrange(60)) for _ in range(40)]
    least = list(range(60))
    for _ in range(60):
        for one, other in pairs:
            least[one] = least[other] = min(least[one], least[other])
    assert group(60, pairs) == least


def test_each_duplicate_has_a_clip_that_stays() -> None:
    matches = [Match(one, other, 0.5, 9, 10.0 + one) for one, other in pairwise(range(6))]
    found = duplicates([2, 0, 1, 3, 4, 5], matches)
    assert {number: match.other for number, match in found.items()} == {1: 0, 3: 2, 5: 4}
    assert found[3].seconds == -0.5
