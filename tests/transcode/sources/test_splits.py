"""`--split-by`: the same split for a source whatever comes, goes or is relabelled beside it; each class in each split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import make_clip, make_clips, table, transcode
from tests.transcode.sources.trees import find_sources, labels_of, touch
from vidprep.formats import open_store
from vidprep.formats.errors import SettingsError, SourceError
from vidprep.formats.manifest.labels import Labels
from vidprep.transcode.settings.parse import parse_shares
from vidprep.transcode.sources.unit import splits_of

SHARES = parse_shares("train=0.8,val=0.1,test=0.1")


def drawn(groups: list[str], classes: list[object], seed: int = 0) -> dict[str, str]:
    return dict(zip(groups, splits_of(groups, classes, SHARES, seed), strict=True))


def test_a_draw_does_not_depend_on_the_order_of_the_list_but_on_the_seed() -> None:
    rng = np.random.default_rng(1)
    names = [f"v/{number}" for number in range(6000)]
    classes: list[object] = [f"class {number}" for number in rng.integers(0, 10, len(names))]
    whole = drawn(names, classes)
    assert drawn(names[::-1], classes[::-1]) == whole
    other = drawn(names, classes, seed=1)
    assert sum(other[name] != split for name, split in whole.items()) > 1000


def _apart(classes: Sequence[object], splits: Sequence[str], shares: Mapping[str, Fraction]) -> Fraction:
    """How far the split of a class is from its share, at most, in videos."""
    sizes, found = Counter(classes), Counter(zip(classes, splits, strict=True))
    return max(
        abs(found[label, split] - size * share) for label, size in sizes.items() for split, share in shares.items()
    )


@pytest.mark.parametrize("text", ["train=0.7,val=0.3", "train=0.8,val=0.1,test=0.1", "a=1/3,b=1/3,c=1/6,d=1/6"])
def test_each_class_has_its_share_in_each_split_to_within_one_video(text: str) -> None:
    """Ten classes of 20 at 0.7 got 7 to 18 in train."""
    shares = parse_shares(text)
    for size in (1, 2, 3, 5, 10, 20, 33):
        names = [f"v/{number}" for number in range(10 * size)]
        classes: list[object] = [number % 10 for number in range(10 * size)]
        splits = splits_of(names, classes, shares, 0)
        assert _apart(classes, splits, shares) < 1
        assert _apart([0] * len(splits), splits, shares) < 1, "and so have all classes together"


def test_additions_move_none_and_keep_each_class_within_one_video() -> None:
    """2,000, one by one or some at once, to classes that are there or new."""
    rng = np.random.default_rng(3)
    names = [f"v/{number}" for number in range(2100)]
    classes: list[object] = [int(number) for number in rng.integers(0, 12, 100)]
    classes += [int(number) for number in rng.integers(0, 15, 2000)]
    splits = splits_of(names[:100], classes[:100], SHARES, 0)
    while (count := len(splits)) < len(names):
        more = min(count + int(rng.choice([1, 1, 1, 40])), len(names))
        now = splits_of(names[:more], classes[:more], SHARES, 0, [*splits, *[None] * (more - count)])
        assert now[:count] == splits
        assert _apart(classes[:more], now, SHARES) <= 1
        splits = now


def test_additions_that_are_listed_alone_count_those_that_are_not(tmp_path: Path) -> None:
    """Each was the first of its class, and all were put into train; a cut of a source in train went to val."""
    src, dst = tmp_path / "src", tmp_path / "dst"
    make_clips(src / "a", 8)
    shares = ("--split-by", "train=0.5,val=0.5", "--label-from-folder")
    assert transcode(src, dst, *shares, "--quiet").code == 0
    before = splits_in(dst)
    for number in range(4):
        make_clip(src / "a" / f"new{number}.mp4", 4, seed=50 + number)
        assert transcode(src, dst, *shares, "--include", f"*new{number}*", "--quiet").code == 0
    now = splits_in(dst)
    assert before.items() <= now.items() and Counter(now.values()) == {"train": 6, "val": 6}
    for number in range(8):
        rows = [{"path": src / "a" / f"c{number:02d}.mp4", "start": 0, "end": 0.1, "id": f"cut{number}", "label": "a"}]
        listed = table(tmp_path / "cuts.csv", [*rows, {"path": "x", "start": "?", "end": "", "id": "", "label": "a"}])
        assert transcode(listed, dst, *shares[:2], "--on-bad-row", "skip", "--quiet").code == 0
    now = splits_in(dst)
    assert all(now[f"cut{number}"] == now[f"a/c{number:02d}"] for number in range(8))


@pytest.mark.parametrize("count", [10, 11, 15, 30])
def test_a_small_class_is_in_every_split_that_its_share_reaches(count: int) -> None:
    for number in range(100):
        names = [f"class {number}/{each}" for each in range(count)]
        assert set(drawn(names, [number] * count).values()) == set(SHARES)


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


def test_tasks_of_an_array_give_what_the_first_one_drew_whatever_comes_between(tmp_path: Path) -> None:
    """Cuts of one source in two tasks would be in two splits."""
    src, dst = make_clips(tmp_path / "src", 12), tmp_path / "dst"

    def listed() -> Path:
        rows = [
            {"path": path, "start": at, "end": at + 0.1, "id": f"{path.stem}.{at}"}
            for path in sorted(src.iterdir())
            for at in (0, 0.1)
        ]
        return table(tmp_path / "t.csv", rows)

    for number in range(3):
        assert transcode(listed(), dst, "--split-by", "a=0.5,b=0.5", "--partition", f"{number}/3").code == 0
        for more in range(5):
            make_clip(src / f"{'bdf'[number]}{more}.mp4", 4, seed=20 + 5 * number + more)
    assert transcode(dst, verb="merge").code == 1, "others were found later"
    splits = splits_in(dst)
    assert len(splits) == 24
    assert all(splits[f"c{number:02d}.0"] == splits[f"c{number:02d}.0.1"] for number in range(12))
    assert Counter(splits.values()) == {"a": 12, "b": 12} and not list(dst.glob(".vidprep/splits*"))


def test_a_table_in_another_folder_moves_no_split(tmp_path: Path) -> None:
    """Of a/001 and b/001 the names were one group, seen from there."""
    for folder in "abcd":
        for number in range(3):
            touch(tmp_path / "src" / folder / f"{number:03d}.mp4", size=100 + number)
    rows = [
        {"path": path, "id": f"{path.parent.name}{path.stem}"} for path in sorted((tmp_path / "src").rglob("*.mp4"))
    ]
    (tmp_path / "lists").mkdir()
    found = []
    for place in (tmp_path / "t.csv", tmp_path / "lists" / "t.csv"):
        listed = find_sources(table(place, rows), tmp_path / "dst", split_by=SHARES)
        assert listed.drawing is not None and listed.labels is not None
        before = Labels(listed.labels.ids) if not found else found[-1].select(listed.labels.ids)
        found.append(listed.drawing.fill(listed.labels, before))
    first, second = (dict(zip(each.ids, each.columns["split"].to_pylist(), strict=True)) for each in found)
    assert first == second


def test_groups_and_classes_are_the_same_whatever_type_a_table_gives_them(tmp_path: Path) -> None:
    """Persons 1, 2 and 3 were in train and in val."""
    src, dst = make_clips(tmp_path / "src", 10), tmp_path / "dst"
    names = sorted(src.iterdir())
    shares = ("--split-by", "train=0.5,val=0.5", "--split-group", "person", "--quiet")
    first = [{"path": path, "person": person} for path, person in zip(names, ["1", "2", "3", "4", "zed"], strict=False)]
    assert transcode(table(src / "t.csv", first), dst, *shares).code == 0
    second = [
        {"path": path, "person": person} for path, person in zip(names[5:], ["1", "2", "3", "4", "5"], strict=True)
    ]
    assert transcode(table(src / "u.csv", second), dst, *shares).code == 0
    store = open_store(dst)
    of_person: dict[str, set[str]] = {}
    for id_ in store.ids:
        of_person.setdefault(str(store.labels(id_)["person"]), set()).add(store.labels(id_)["split"])
    assert len(store.ids) == 10 and all(len(splits) == 1 for splits in of_person.values()), of_person
