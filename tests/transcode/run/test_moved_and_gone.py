"""Sources that moved or went, between two runs: outputs follow them, are told, or go; nothing appears twice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests import points
from tests.helpers import (
    Ran,
    environment,
    fault,
    identities,
    leftovers,
    make_clip,
    make_clips,
    manifest,
    table,
    transcode,
)
from tests.robots import make_robot_dataset
from tests.transcode.destination.arrays import KINDS, contents
from vidprep.formats import open_store

ALL = list(KINDS)


def run(kind: str, src: Path, dst: Path, *more: object, **how: object) -> Ran:
    verb, *options = KINDS[kind]
    return transcode(src, dst, *options, "--json", *more, verb=verb, **how)


@pytest.mark.parametrize("kind", ["h264", "shards", "burst", "array"])
def test_outputs_stay_while_their_sources_cannot_be_opened(kind: str, tmp_path: Path) -> None:
    """A table whose disk was not mounted: every finished output was deleted, and a row said that it failed."""
    dst, parts = tmp_path / "dst", ("--partition", "0/1") if kind == "array" else ()
    make_clips(tmp_path / "raw", 3, 5)
    listed = table(tmp_path / "t.csv", [{"path": f"raw/c0{number}.mp4", "id": str(number)} for number in range(3)])
    kind = "h264" if parts else kind

    def again(*more: object) -> Ran:
        ran = run(kind, listed, dst, *parts, *more)
        if parts:
            assert transcode(dst, verb="merge").code == 0
        return ran

    assert again().code == 0
    before = contents(dst)
    (tmp_path / "raw").rename(tmp_path / "unmounted")
    for more in ((), ("--skip-failed",), () if parts else ("--prune",), () if parts else ("--overwrite", "--limit", 2)):
        ran = again(*more)
        assert (ran.code, ran.summary["failed"], contents(dst)) == (0, 0, before), more
        assert (
            "kept whose source or caption cannot be read now, such as 0: t.csv row 1: no such file or folder" in ran.err
        )
    assert parts or '"what": "kept", "id": "2"' in run(kind, listed, dst, "--dry-run").out
    (tmp_path / "unmounted").rename(tmp_path / "raw")
    (tmp_path / "raw" / "c01.mp4").unlink()
    ran = again()
    assert (ran.code, contents(dst)) == (0, before) and "1 output kept" in ran.err
    if not parts:
        ran = run(kind, listed, dst, "--overwrite")
        assert ran.code == 1 and len(open_store(dst).ids) == 2, "from scratch"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for number, name in enumerate(("nature/bear", "nature/fox", "people/ann")):
        make_clip(tmp_path / "raw" / f"{name}.mp4", 5, seed=number)
    return tmp_path / "raw"


@pytest.mark.parametrize("kind", ALL)
def test_a_moved_source_keeps_its_output_under_the_new_name(kind, raw, dst):
    assert run(kind, raw, dst, "--label-from-folder").code == 0
    before = contents(dst)
    (raw / "nature" / "bear.mp4").rename(raw / "people" / "bear.mp4")
    again = run(kind, raw, dst, "--label-from-folder")
    assert (again.code, again.rows) == (0, {}), "nothing is encoded again"
    told = {name: again.summary[name] for name in ("done_before", "moved", "gone", "relabelled")}
    assert told == {"done_before": 3, "moved": 1, "gone": 0, "relabelled": 1}
    rows = manifest(dst)
    assert set(rows) == {"people/bear", "nature/fox", "people/ann"}
    assert rows["people/bear"]["source"] == str(raw / "people" / "bear.mp4")
    after = contents(dst)
    assert after.pop("people/bear") == before.pop("nature/bear") and after == {id_: before[id_] for id_ in after}
    assert open_store(dst).labels("people/bear") == {"label": "people"}
    assert leftovers(dst) == [] and not (dst / "nature" / "bear.mp4").exists()
    assert transcode(raw, dst, "--quiet", "--label-from-folder", verb="validate").code == 0


@pytest.mark.parametrize("kind", ["h264", "webdataset"])
def test_an_id_that_a_table_gives_later_renames_the_output(kind, tmp_path, dst):
    """Three clips became six."""
    src = make_clips(tmp_path / "src", 3)
    rows = [{"path": path} for path in sorted(src.iterdir())]
    assert run(kind, table(tmp_path / "t.csv", rows), dst).code == 0
    named = [{"path": row["path"], "id": f"v/{number}"} for number, row in enumerate(rows)]
    again = run(kind, table(tmp_path / "t.csv", named), dst)
    assert again.summary["moved"] == 3 and again.rows == {}
    assert set(manifest(dst)) == {"v/0", "v/1", "v/2"} == set(contents(dst))


def test_another_file_of_the_same_size_and_time_is_no_moved_one(tmp_path, dst):
    src = tmp_path / "src"
    clip = make_clip(src / "a.mp4", 5)
    assert transcode(src, dst, "--quiet").code == 0
    data, state = bytearray(clip.read_bytes()), clip.stat()
    clip.unlink()
    data[-20] ^= 1
    (src / "b.mp4").write_bytes(data)
    os.utime(src / "b.mp4", ns=(state.st_atime_ns, state.st_mtime_ns))
    again = transcode(src, dst, "--json")
    assert again.summary["moved"] == 0 and set(again.rows) == {"b"}


@pytest.mark.parametrize("kind", ["h264", "webdataset"])
def test_outputs_from_another_folder_are_not_gone(kind, tmp_path, dst):
    """A second folder into the same destination: --prune was advised, and removed what the first had given."""
    one, two = make_clips(tmp_path / "one", 2), tmp_path / "two"
    make_clip(two / "d.mp4", 5)
    assert run(kind, one, dst).code == 0
    for more in ((), ("--prune",)):
        again = run(kind, two, dst, *more)
        assert again.code == 0 and set(manifest(dst)) == {"c00", "c01", "d"}
        assert "2 videos kept whose source is outside of" in again.err and "gone" not in again.err
    (one / "c00.mp4").unlink()
    assert "1 video whose source or cut is gone, such as c00" in run(kind, two, dst).err
    assert run(kind, two, dst, "--prune").summary["removed"] == 1 and set(manifest(dst)) == {"c01", "d"}


@pytest.mark.parametrize("kind", ["h264", "webdataset"])
def test_a_video_of_another_folder_does_not_take_the_name_of_one(kind, tmp_path, dst):
    """The second folder's replaced the first's, and the other way round in the next run."""
    one, two = make_clips(tmp_path / "one", 2), tmp_path / "two"
    make_clip(two / "c00.mkv", 5, seed=7)
    assert run(kind, one, dst).code == 0
    before = contents(dst)
    ran = run(kind, two, dst)
    assert ran.code == 2 and f"c00 was made from {one / 'c00.mp4'}, which is still there" in ran.err
    assert contents(dst) == before and run(kind, one, dst).summary["done_before"] == 2
    (one / "c00.mp4").unlink()
    assert set(run(kind, two, dst).rows) == {"c00"}, "a source that is gone may be replaced"
    assert run(kind, make_clips(tmp_path / "three", 1, 9), dst, "--overwrite").code == 0


def test_a_folder_reached_through_a_link_is_the_same_folder(tmp_path, dst):
    src = make_clips(tmp_path / "src", 2)
    (tmp_path / "link").symlink_to(src)
    assert transcode(tmp_path / "link", dst).code == 0
    make_clip(src / "c00.mp4", 9, seed=5)
    again = transcode(src, dst, "--json")
    assert (again.code, set(again.rows), again.summary["done_before"]) == (0, {"c00"}, 1), again.err


def test_a_file_that_is_not_ours_is_not_replaced(tmp_path, dst):
    """The name of an output was the name of a file of the user's."""
    src = make_clips(tmp_path / "src", 2)
    dst.mkdir()
    (dst / "c01.mp4").write_text("precious")
    ran = transcode(src, dst)
    assert ran.code == 2 and f"{dst}: holds c01.mp4, which vidprep did not make and an output would replace" in ran.err
    assert (dst / "c01.mp4").read_text() == "precious" and not (dst / "c00.mp4").exists()
    assert transcode(src, dst, "--limit", 1).code == 0
    assert transcode(src, dst).code == 2 and (dst / "c01.mp4").read_text() == "precious"
    assert transcode(src, tmp_path / "shards", verb="burst").code == 0
    (dst / "c01.mp4").unlink()
    assert transcode(src, dst).code == 0


def test_a_default_that_is_spelt_out_makes_nothing_again(tmp_path, dst):
    src = make_clips(tmp_path / "src", 1)
    for codec in ("h264", "vp9"):
        default = {"h264": 20, "vp9": 20}[codec]
        assert transcode(src, dst / codec, "--codec", codec).code == 0
        for value in (default, float(default)):
            again = transcode(src, dst / codec, "--codec", codec, "--crf", value, "--json")
            assert (again.code, again.summary["done_before"]) == (0, 1)


def test_collided_sources_leave_no_row_after_renaming(tmp_path, dst):
    src = tmp_path / "src"
    for suffix in ("mp4", "mkv"):
        make_clip(src / f"a.{suffix}", 5)
    make_clip(src / "b.mp4", 5)
    assert transcode(src, dst).code == 1
    again = transcode(src, dst, "--keep-source-suffix")
    assert again.code == 0 and "gone" not in again.err
    assert set(manifest(dst)) == {"a.mp4", "a.mkv", "b.mp4"}, again.err


def test_a_copy_is_processed_again_and_the_first_stays(tmp_path, dst):
    src = make_clips(tmp_path / "src", 1)
    assert transcode(src, dst, "--quiet").code == 0
    shutil.copy2(src / "c00.mp4", src / "d.mp4")
    assert set(transcode(src, dst, "--json").rows) == {"d"}
    assert set(manifest(dst)) == {"c00", "d"}


def test_a_broken_file_that_was_renamed_is_one_failed_row(tmp_path, dst):
    src = make_clips(tmp_path / "src", 1)
    (src / "bad.mp4").write_bytes(b"no video at all" * 99)
    assert transcode(src, dst, "--quiet").code == 1
    (src / "bad.mp4").rename(src / "worse.mp4")
    assert transcode(src, dst, "--quiet").code == 1
    assert {id_: row["status"] for id_, row in manifest(dst).items()} == {"c00": "ok", "worse": "failed"}


@pytest.mark.parametrize("kind", ALL)
def test_deleted_sources_are_reported_and_pruned_on_demand(kind, raw, dst):
    (raw / "bad.mp4").write_bytes(b"no video at all")
    assert run(kind, raw, dst).code == 1
    (raw / "bad.mp4").unlink()
    (raw / "people" / "ann.mp4").unlink()
    told = run(kind, raw, dst)
    assert told.summary["gone"] == 2 and len(manifest(dst)) == 4
    assert "2 videos whose source or cut is gone, such as bad (--prune removes them)" in told.err
    pruned = run(kind, raw, dst, "--prune")
    assert (pruned.summary["gone"], pruned.summary["removed"]) == (0, 2)
    assert set(manifest(dst)) == {"nature/bear", "nature/fox"} == set(contents(dst))
    assert leftovers(dst) == [] and not (dst / "people").exists()
    assert transcode(raw, dst, "--quiet", verb="validate").code == 0
    assert run(kind, raw, dst, "--prune").summary["removed"] == 0


def test_nothing_is_pruned_where_only_some_sources_are_listed(raw, dst, tmp_path):
    assert transcode(raw, dst, "--quiet").code == 0
    shutil.move(raw / "nature", tmp_path / "away")
    for chosen in (("--limit", 1), ("--include", "*.mp4"), ("--exclude", "x"), ("--partition", "0/1")):
        ran = transcode(raw, dst, "--prune", *chosen)
        assert ran.code == 2 and "--prune" in ran.err and len(manifest(dst)) == 3
    ran = transcode(raw / "people" / "ann.mp4", dst, "--prune", "--keep-source-suffix")
    assert "nothing is pruned: one file is not a full listing" in ran.err
    (raw / "people" / "ann.mp4").unlink()
    assert transcode(raw, dst, "--prune").code == 2, "an empty folder"
    listed = table(
        tmp_path / "t.csv", [{"path": tmp_path / "away" / "bear.mp4", "start": ""}, {"path": "x", "start": "?"}]
    )
    assert "nothing is pruned: 1 row of the table" in transcode(listed, dst, "--prune", "--on-bad-row", "skip").err
    assert {"nature/fox", "people/ann"} <= set(manifest(dst)), "bear moved to another folder"


def test_nothing_is_pruned_where_a_folder_cannot_be_listed(raw, dst, deep):
    assert transcode(raw, dst, "--quiet").code == 0
    (raw / "nature").rename(deep / "nature")
    (raw / "people" / "ann.mp4").unlink()
    make_clip(deep / "people" / "ann.mp4", 5, seed=2)
    assert "nothing is pruned: " in (said := transcode(deep, dst, "--prune", "--quiet").err) and "too long" in said
    assert "people/ann" in manifest(dst)


@pytest.mark.parametrize("kind", ["h264", "burst", "webdataset"])
def test_overwrite_leaves_only_its_outputs(kind, raw, dst):
    """It printed `12 ok`, and the store had 13."""
    assert run(kind, raw, dst).code == 0
    (raw / "nature" / "bear.mp4").unlink()
    again = run(kind, raw, dst, "--overwrite", "--fps", 5)
    assert again.summary["ok"] == 2
    assert set(manifest(dst)) == {"nature/fox", "people/ann"} == set(contents(dst))


def test_overwrite_of_some_sources_never_leaves_outputs_of_two_settings(raw, dst):
    assert transcode(raw, dst, "--quiet").code == 0
    before = identities(dst)
    ran = transcode(raw, dst, "--overwrite", "--limit", 1, "--gop", 3)
    assert (
        ran.code == 2 and "2 outputs made with different settings whose sources are not listed here (--limit" in ran.err
    )
    assert identities(dst) == before
    assert transcode(raw, dst, "--overwrite", "--limit", 1).code == 0 and len(manifest(dst)) == 3


CHANGES = [
    points.JOURNAL_APPEND,
    ("os", "replace"),
    ("os", "link"),
    ("os", "unlink"),
    ("pathlib", "Path.replace"),
    ("pathlib", "Path.unlink"),
    points.SHARD_WRITER_APPEND,
]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["h264", "burst", "webdataset"])
def test_a_move_and_a_prune_that_are_killed_anywhere_end_as_one_that_is_not(kind, raw, tmp_path):
    """Killed before and after each of its file changes, then run again."""
    made = tmp_path / "made"
    assert run(kind, raw, made, "--label-from-folder").code == 0
    (raw / "nature" / "bear.mp4").rename(raw / "people" / "bear.mp4")
    (raw / "nature" / "fox.mp4").unlink()
    due = {"people/bear": contents(made)["nature/bear"], "people/ann": contents(made)["people/ann"]}
    killed = 0
    for where, name in CHANGES:
        for at in range(1, 9):
            one = tmp_path / f"{name}-{at}"
            shutil.copytree(made, one)
            env = environment(tmp_path / f"hook-{name}-{at}", fault(where, name, at=at, only="parent"))
            ran = run(kind, raw, one, "--label-from-folder", "--prune", env=env)
            store = open_store(one)
            for id_ in store.ids:
                assert len(store[id_].frames()) == 5, "what opens can be read"
            if ran.code == 0:
                break
            killed += 1
            assert run(kind, raw, one, "--label-from-folder", "--prune").code == 0
            assert contents(one) == due and set(manifest(one)) == set(due), (name, at)
            assert {id_: open_store(one).labels(id_) for id_ in due} == {id_: {"label": "people"} for id_ in due}
            assert leftovers(one) == []
            shutil.rmtree(one)
    assert killed >= 8


SPLITS = ("--label-from-folder", "--split-by", "train=0.5,val=0.5")


def _splits(dst: Path) -> dict[str, object]:
    store = open_store(dst)
    return {id_: store.labels(id_)["split"] for id_ in store.ids}


@pytest.mark.parametrize("narrowed", [("--exclude", "*.txt"), ("--include", "people/*"), ("--limit", 3)])
@pytest.mark.parametrize("kind", ["h264", "webdataset"])
def test_a_moved_source_is_found_although_not_all_are_listed(kind, narrowed, raw, dst):
    """It stood twice in the dataset, once in train and once in val."""
    assert run(kind, raw, dst, *SPLITS).code == 0
    before, splits = contents(dst), _splits(dst)
    (raw / "nature" / "bear.mp4").rename(raw / "people" / "abear.mp4")
    again = run(kind, raw, dst, *SPLITS, *narrowed)
    assert (again.code, again.rows, again.summary["moved"], again.summary["gone"]) == (0, {}, 1, 0), again.err
    assert set(manifest(dst)) == {"people/abear", "nature/fox", "people/ann"}
    assert contents(dst)["people/abear"] == before["nature/bear"]
    assert _splits(dst) == {name.replace("nature/bear", "people/abear"): split for name, split in splits.items()}
    assert transcode(raw, dst, "--quiet", *SPLITS, verb="validate").code == 0


def test_a_moved_source_of_a_table_is_found_although_not_all_are_listed(raw, tmp_path, dst):
    def listed() -> Path:
        return table(tmp_path / "t.csv", [{"path": path} for path in sorted(raw.rglob("*.mp4"))])

    assert run("h264", listed(), dst, "--split-by", "train=0.5,val=0.5").code == 0
    splits = _splits(dst)
    (raw / "nature" / "bear.mp4").rename(raw / "nature" / "zebra.mp4")
    again = run("h264", listed(), dst, "--split-by", "train=0.5,val=0.5", "--include", "*zebra*")
    assert (again.code, again.rows, again.summary["moved"]) == (0, {}, 1), again.err
    assert _splits(dst) == {name.replace("bear", "zebra"): split for name, split in splits.items()}


def test_one_renamed_file_renames_its_output(raw, dst):
    clip = raw / "nature" / "bear.mp4"
    assert transcode(clip, dst, "--quiet").code == 0
    clip.rename(raw / "nature" / "wolf.mp4")
    again = transcode(raw / "nature" / "wolf.mp4", dst, "--json")
    assert (again.code, again.rows, set(manifest(dst))) == (0, {}, {"wolf"})


def test_a_source_that_was_copied_and_not_moved_stays(raw, dst):
    assert run("h264", raw, dst).code == 0
    shutil.copy2(raw / "nature" / "bear.mp4", raw / "people" / "bear.mp4")
    again = run("h264", raw, dst, "--include", "people/*")
    assert set(again.rows) == {"people/bear"} and "nature/bear" in manifest(dst)


@pytest.mark.parametrize("narrowed", [("--include", "people/*"), ("--limit", 2)])
def test_an_output_whose_source_is_gone_is_told_although_not_all_are_listed(narrowed, raw, dst):
    assert run("h264", raw, dst).code == 0
    (raw / "nature" / "bear.mp4").unlink()
    again = run("h264", raw, dst, *narrowed)
    assert again.code == 0 and again.summary["gone"] == 1 and "nature/bear" in manifest(dst)
    assert (
        "1 video whose source or cut is gone, such as nature/bear (--prune, in a run of all sources, removes it)"
        in again.err
    )


def test_a_moved_source_that_is_made_again_replaces_its_output_and_keeps_its_split(raw, dst):
    assert run("h264", raw, dst, *SPLITS).code == 0
    splits = _splits(dst)
    (raw / "nature" / "bear.mp4").rename(raw / "people" / "bear.mp4")
    again = run("h264", raw, dst, *SPLITS, "--include", "people/*", "--overwrite")
    assert again.code == 0 and set(again.rows) == {"people/bear", "people/ann"}, again.err
    assert _splits(dst) == {name.replace("nature/bear", "people/bear"): split for name, split in splits.items()}


@pytest.mark.long
def test_moved_sources_keep_their_splits_in_an_array(tmp_path, dst):
    """A task of an array renames nothing: the videos stand twice until a run of all prunes them, each in one split."""
    raw = tmp_path / "raw"
    for number in range(8):
        make_clip(raw / "a" / f"{number}.mp4", 4, seed=number)
    assert run("h264", raw, dst, *SPLITS).code == 0
    splits = _splits(dst)
    for number in range(5):
        (raw / "b").mkdir(exist_ok=True)
        (raw / "a" / f"{number}.mp4").rename(raw / "b" / f"{number}.mp4")
    for number in range(3):
        assert run("h264", raw, dst, *SPLITS, "--partition", f"{number}/3").code == 0
    assert transcode(dst, verb="merge").code == 0
    assert {id_: split for id_, split in _splits(dst).items() if id_[0] == "b"} == {
        f"b/{n}": splits[f"a/{n}"] for n in range(5)
    }
    again = run("h264", raw, dst, *SPLITS, "--prune")
    assert again.code == 0 and again.rows == {} and len(manifest(dst)) == 8
    assert _splits(dst) == {f"{'b' if n < 5 else 'a'}/{n}": splits[f"a/{n}"] for n in range(8)}


@pytest.mark.parametrize("narrowed", [("--limit", 2), ("--include", "*.mp4")])
def test_a_moved_lerobot_dataset_is_found_although_not_all_is_listed(narrowed, tmp_path, dst):
    made = make_robot_dataset(tmp_path / "robot", rate=10, lengths=(6, 5, 7))
    assert transcode(made, dst, *SPLITS[1:], "--quiet", verb="burst").code == 0
    splits, before = _splits(dst), set(manifest(dst))
    (tmp_path / "robot").rename(tmp_path / "moved")
    again = transcode(tmp_path / "moved", dst, *SPLITS[1:], "--json", *narrowed, verb="burst")
    assert (again.code, again.rows, set(manifest(dst))) == (0, {}, before), again.err
    assert _splits(dst) == splits


@pytest.mark.long
def test_many_moved_sources_keep_their_splits_whatever_task_draws_first(tmp_path, dst):
    """Those of other tasks were drawn anew: of 12 videos four stood in two splits."""
    raw, shares = tmp_path / "raw", ("--split-by", "train=0.5,val=0.25,test=0.25")
    for number in range(12):
        make_clip(raw / f"v{number:02d}.mp4", 4, seed=number)
    assert run("h264", raw, dst, *shares).code == 0
    splits = _splits(dst)
    (raw / "m").mkdir()
    for clip in sorted(raw.glob("*.mp4")):
        clip.rename(raw / "m" / clip.name)
    for number in range(3):
        assert run("h264", raw, dst, *shares, "--partition", f"{number}/3").code == 0
    assert transcode(dst, verb="merge").code == 0
    now = _splits(dst)
    assert all(now[f"m/{name}"] == split for name, split in splits.items())


def test_many_sources_alike_in_size_and_time_are_found_at_once(tmp_path, dst):
    """Archives set one time for all: each search went through all of them."""
    raw = tmp_path / "raw"
    for number in range(6):
        clip = make_clip(raw / f"{number}.mp4", 4, seed=number)
        clip.write_bytes(clip.read_bytes().ljust(20_000, b"\0"))
        os.utime(clip, ns=(10**18, 10**18))
    assert run("h264", raw, dst).code == 0
    before = {row["source_digest"]: row["sha256"] for row in manifest(dst).values()}
    (raw / "m").mkdir()
    for number in range(3):
        (raw / f"{number}.mp4").rename(raw / "m" / f"{5 - number}.mp4")
    again = run("h264", raw, dst, "--include", "m/*")
    assert (again.code, again.rows, again.summary["moved"]) == (0, {}, 3), again.err
    assert {row["source_digest"]: row["sha256"] for row in manifest(dst).values()} == before
