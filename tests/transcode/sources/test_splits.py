"""`--split-by`: the same split for a source whatever comes, goes or is relabelled beside it; each class in each split."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import make_clip, make_clips, table, transcode
from tests.transcode.sources.trees import labels_of, touch
from vidprep.formats import open_store
from vidprep.formats.errors import SettingsError, SourceError
from vidprep.transcode.settings.parse import parse_shares
from vidprep.transcode.sources.listing import find_sources
from vidprep.transcode.sources.unit import splits_of

SHARES = parse_shares("train=0.8,val=0.1,test=0.1")


def drawn(groups: list[str], classes: list[object], seed: int = 0) -> dict[str, str]:
    return dict(zip(groups, splits_of(groups, classes, SHARES, seed), strict=True))


def test_changes_of_some_videos_move_no_other() -> None:
    rng = np.random.default_rng(1)
    names = [f"v/{number}" for number in range(6000)]
    classes: list[object] = [f"class {number}" for number in rng.integers(0, 10, len(names))]
    whole = drawn(names, classes)
    fewer = drawn(names[:5000], classes[:5000])
    assert all(whole[name] == fewer[name] for name in fewer)
    others = [f"class {number}" for number in rng.integers(0, 10, len(names))]
    assert drawn(names, list(others)) == whole
    assert drawn(names[::-1], classes[::-1]) == whole
    other = drawn(names, classes, seed=1)
    assert sum(other[name] != split for name, split in whole.items()) > 1000


def test_each_class_has_its_share_in_each_split() -> None:
    names = [f"v/{number}" for number in range(10_000)]
    classes: list[object] = [number % 20 for number in range(len(names))]
    found = Counter(zip(classes, drawn(names, classes).values(), strict=True))
    for label in range(20):
        for split, share in SHARES.items():
            due, spread = 500 * float(share), (500 * float(share * (1 - share))) ** 0.5
            assert abs(found[label, split] - due) < 4.5 * spread, "as chance allows"


@pytest.mark.parametrize("count", [10, 11, 15, 30])
def test_a_small_class_is_in_every_split_that_its_share_reaches(count: int) -> None:
    lacking = 0
    for number in range(100):
        names = [f"class {number}/{each}" for each in range(count)]
        found = Counter(drawn(names, [number] * count).values())
        assert set(found) == set(SHARES), found
        alone = Counter(
            drawn(names, list(range(count))).values()
        )  # each a class of its own, and so of no share to be given
        lacking += set(alone) != set(SHARES)
        larger = drawn([*names, "one more"], [number] * (count + 1))
        assert sum(larger[name] != split for name, split in drawn(names, [number] * count).items()) <= 2
    assert lacking > 0, "chance alone leaves some out"


def test_cuts_of_one_source_and_one_person_are_never_in_two(tmp_path: Path) -> None:
    src = tmp_path / "src"
    rows = []
    for number in range(60):
        touch(src / f"{number}.mp4")
        rows += [
            {"path": f"{number}.mp4", "start": s, "end": s + 1, "person": number % 7, "label": s} for s in range(3)
        ]
    listed = table(src / "t.csv", rows)
    found = find_sources(listed, tmp_path / "dst", split_by=SHARES)
    by_path: dict[str, set[str]] = {}
    for unit, labels in zip(found.units, labels_of(found), strict=True):
        by_path.setdefault(unit.path, set()).add(labels["split"])
    assert all(len(splits) == 1 for splits in by_path.values()) and len(set.union(*by_path.values())) == 3
    found = find_sources(listed, tmp_path / "dst", split_by=SHARES, split_group="person")
    people: dict[int, set[str]] = {}
    for labels in labels_of(found):
        people.setdefault(labels["person"], set()).add(labels["split"])
    assert all(len(splits) == 1 for splits in people.values())
    with pytest.raises(SourceError, match="--split-group: has no label nobody"):
        find_sources(listed, tmp_path / "dst", split_by=SHARES, split_group="nobody")
    with pytest.raises(SourceError, match="has a column `split`"):
        find_sources(table(src / "s.csv", [{"path": "0.mp4", "split": "x"}]), tmp_path / "dst", split_by=SHARES)


def test_a_split_does_not_depend_on_the_folders_path(tmp_path: Path) -> None:
    told = []
    for name in ("one", "deeper/two"):
        for number in range(40):
            touch(tmp_path / name / f"{number}.mp4")
        found = find_sources(tmp_path / name, tmp_path / "dst", split_by=SHARES)
        told.append({unit.id: labels["split"] for unit, labels in zip(found.units, labels_of(found), strict=True)})
    assert told[0] == told[1]


def test_a_run_fills_the_column_and_draws_again_without_encoding(tmp_path: Path) -> None:
    src, dst = make_clips(tmp_path / "src", 6), tmp_path / "dst"
    assert transcode(src, dst, "--split-by", "a=0.5,b=1/2", "--quiet").code == 0
    store = open_store(dst)
    assert {store.labels(id_)["split"] for id_ in store.ids} == {"a", "b"}
    again = transcode(src, dst, "--split-by", "c=1", "--json")
    assert again.rows == {} and again.summary["relabelled"] == 6
    assert {open_store(dst).labels(id_)["split"] for id_ in store.ids} == {"c"}


@pytest.mark.parametrize(
    "text", ["", "train", "train=0.8", "train=0.8,val=0.3", "a=1,b=0", "a=0.5,a=0.5", "=1", "a=x", "a=2,b=-1"]
)
def test_shares_that_make_no_whole_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="shares that add up to 1"):
        parse_shares(text)


def test_shares_may_be_fractions_and_a_mapping() -> None:
    assert parse_shares("a=1/3,b=2/3") == {"a": Fraction(1, 3), "b": Fraction(2, 3)}
    assert parse_shares({"a": 0.1, "b": 0.9}) == {"a": Fraction(1, 10), "b": Fraction(9, 10)}


def splits_in(destination: Path) -> dict[str, str]:
    store = open_store(destination)
    return {id_: store.labels(id_)["split"] for id_ in store.ids}


def test_a_split_once_given_is_kept_whatever_joins_its_class() -> None:
    rng = np.random.default_rng(2)
    for trial in range(200):
        count = int(rng.integers(10, 25))
        names = [f"class {trial}/{each}" for each in range(count + 10)]
        before = drawn(names[:count], [trial] * count)
        for more in range(1, 11):
            kept = [before.get(name) for name in names[: count + more]]
            now = splits_of(names[: count + more], [trial] * (count + more), SHARES, 0, kept)
            assert now[: len(before)] == list(before.values())
            before = dict(zip(names, now, strict=False))


def test_a_run_keeps_splits_when_videos_come_and_names_those_that_must_change(tmp_path: Path) -> None:
    """A class of ten has one in `val` that chance put into `train`; another video that chance puts into `val` moved it back."""
    src, dst = tmp_path / "src", tmp_path / "dst"
    shares = ("--split-by", "train=0.8,val=0.1,test=0.1", "--label-from-folder")
    chance = drawn([f"walk/{number}" for number in range(60)], list(range(60)))
    first = [name for name, split in chance.items() if split == "train"][:10]
    late = [name for name, split in chance.items() if split != "train"][:4]
    for number, name in enumerate(first):
        make_clip(src / f"{name}.mp4", 2, (32, 32), seed=number)
    options = (*shares, "--preset", "ultrafast", "--quiet")
    assert transcode(src, dst, *options).code == 0
    given = splits_in(dst)
    assert sorted(given.values()) == ["test", *["train"] * 8, "val"], "two by need"
    for number, name in enumerate(late, 10):
        make_clip(src / f"{name}.mp4", 2, (32, 32), seed=number)
    ran = transcode(src, dst, *shares, "--preset", "ultrafast")
    assert ran.code == 0 and "changed split" not in ran.err, ran.err
    assert {id_: split for id_, split in splits_in(dst).items() if id_ in given} == given
    given = splits_in(dst)
    (src / f"{first[0]}.mp4").rename(src / "walk" / "renamed.mp4")
    assert transcode(src, dst, *shares, "--preset", "ultrafast").code == 0
    assert splits_in(dst) == {id_.replace(first[0], "walk/renamed"): split for id_, split in given.items()}
    told = transcode(src, dst, *shares, "--preset", "ultrafast", "--split-seed", 5)
    before, given = given, splits_in(dst)
    moved = [id_ for id_ in given if given[id_] != before.get(id_.replace("walk/renamed", first[0]))]
    assert moved and f"{len(moved)} videos changed split: {moved[0]} " in told.err, told.err
    told = transcode(src, dst, *shares, "--preset", "ultrafast", "--split-seed", 6, "--limit", 2)
    assert told.code == 2 and "--split-by would draw other splits than before; give all sources" in told.err
    assert splits_in(dst) == given
