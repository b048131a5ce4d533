"""What was made stays whole when it is made again: shards are written once, and of two rows of a video the newer counts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests import points
from tests.helpers import KILL_ALL, environment, fault, leftovers, make_clip, make_clips, manifest, outputs, transcode
from tests.sampling import in_turn
from tests.transcode.destination.arrays import KINDS, contents
from tests.transcode.unit.bursts import FORMATS, burst
from vidprep.formats import open_store
from vidprep.transcode import compact

SMALL = ("--shard-size", "1MiB")


def is_proven(sources: Path, made: Path) -> None:
    checked = transcode(sources, made, "--cross-check", 0, verb="validate")
    assert checked.code == 0, checked.out + checked.err
    assert leftovers(made) == []


@pytest.fixture(scope="module")
def thirteen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More than two shards of a megabyte, in all formats."""
    return make_clips(tmp_path_factory.mktemp("raw") / "src", 13, 12, size=(160, 120), noise=True)


@pytest.mark.long
@pytest.mark.parametrize("store", in_turn(FORMATS, 4))
def test_making_all_again_or_one_again_loses_no_shard(store: str, thirteen: Path, tmp_path: Path) -> None:
    """Shards that the manifest named were deleted, with exit code 0."""
    src, made = shutil.copytree(thirteen, tmp_path / "src"), tmp_path / "made"
    options = ("--format", store, *SMALL)
    assert burst(src, made, *options).code == 0
    before = contents(made)
    assert burst(src, made, *options, "--overwrite").code == 0
    assert contents(made) == before
    is_proven(src, made)
    make_clip(src / "c00.mp4", 20, seed=99)
    again = burst(src, made, *options, "--json")
    assert (again.summary["ok"], again.summary["done_before"]) == (1, 12)
    is_proven(src, made)
    after = contents(made)
    assert after.pop("c00") != before.pop("c00") and after == before


@pytest.mark.long
@pytest.mark.parametrize("kind", in_turn(KINDS, 5))
def test_parts_that_are_run_again_count_as_they_are_now(kind: str, tmp_path: Path) -> None:
    """The older row won where the newer had failed, or had been tried less often: merge said "4 ok" of a broken source."""
    src, made = make_clips(tmp_path / "src", 6, 6), tmp_path / "made"
    verb, *options = KINDS[kind]

    def array(*codes: int, merged: int) -> None:
        assert tuple(transcode(src, made, *options, "--partition", f"{n}/3", verb=verb).code for n in range(3)) == codes
        assert transcode(made, verb="merge").code == merged

    array(0, 0, 0, merged=0)
    make_clip(src / "c03.mp4", 9, seed=50)
    array(0, 0, 0, merged=0)
    is_proven(src, made)
    assert manifest(made)["c03"]["num_frames"] == 9
    (src / "c02.mp4").write_bytes(bytes(5000))
    codes = [transcode(src, made, *options, "--partition", f"{n}/3", verb=verb).code for n in range(3)]
    assert sorted(codes) == [0, 0, 1]
    joined = transcode(made, verb="merge")
    assert joined.code == 1 and "5 ok, 1 failed" in joined.err
    assert manifest(made)["c02"]["status"] == "failed"
    assert contents(made).keys() == {f"c{n:02d}" for n in (0, 1, 3, 4, 5)}


@pytest.mark.long
def test_a_row_that_was_tried_more_often_does_not_count_for_it(tmp_path: Path) -> None:
    src, made = make_clips(tmp_path / "src", 4, 6), tmp_path / "made"
    crash = fault(*points.RUN_JOB, at=-1, code="os.kill(os.getpid(), signal.SIGSEGV)", only="child")
    for _ in range(3):
        assert transcode(src, made, env=environment(tmp_path / "hook", crash)).code == 1
    assert transcode(src, made).code == 0
    assert {row["attempts"] for row in manifest(made).values()} == {4}
    make_clip(src / "c01.mp4", 9, seed=50)
    for n in range(2):
        assert transcode(src, made, "--partition", f"{n}/2").code == 0
    assert transcode(made, verb="merge").code == 0
    is_proven(src, made)


def test_a_source_that_became_bad_leaves_no_output_of_before(tmp_path: Path) -> None:
    src, made = make_clips(tmp_path / "src", 2), tmp_path / "made"
    assert transcode(src, made).code == 0
    (src / "c01.mp4").write_bytes(b"no video")
    assert transcode(src, made).code == 1
    assert outputs(made).keys() == {"c00.mp4"}


def test_parts_of_other_sources_are_refused(tmp_path: Path) -> None:
    """`--shard 0/2 A` and `--shard 1/2 B` of the same names were joined with exit code 0."""
    one, other, made = make_clips(tmp_path / "A", 4), make_clips(tmp_path / "B", 4, 9), tmp_path / "made"
    assert transcode(one, made, "--partition", "0/2").code == 0
    ran = transcode(other, made, "--partition", "1/2")
    assert ran.code == 2 and f"with the sources of {one}" in ran.err and f"are others in {other}" in ran.err
    same = Path(shutil.copytree(one, tmp_path / "mounted"))
    assert transcode(same, made, "--partition", "1/2").code == 0
    assert transcode(made, verb="merge").code == 0


def test_merge_names_sources_that_changed_after_the_plan(tmp_path: Path) -> None:
    src, made = make_clips(tmp_path / "src", 4), tmp_path / "made"
    assert transcode(src, made, "--partition", "0/2").code == 0
    for path in src.iterdir():
        os.utime(path, (1, 1))
    assert transcode(src, made, "--partition", "1/2").code == 0
    joined = transcode(made, verb="merge")
    assert joined.code == 0 and "2 sources changed after the array run was planned" in joined.err


def test_settings_that_cannot_be_read_keep_the_rows_of_parts(tmp_path: Path) -> None:
    """Every row was deleted, with exit code 0."""
    src, made = make_clips(tmp_path / "src", 3), tmp_path / "made"
    assert transcode(src, made, "--partition", "0/1").code == 0
    before = {path.name: path.read_bytes() for path in made.glob("manifest*")}
    for data in (None, b"", b"{"):
        (made / ".vidprep" / "run.json").unlink(missing_ok=True)
        if data is not None:
            (made / ".vidprep" / "run.json").write_bytes(data)
        ran = transcode(made, verb="merge")
        assert ran.code == 2 and "run.json: cannot be read" in ran.err
        assert {path.name: path.read_bytes() for path in made.glob("manifest*")} == before


@pytest.mark.long
@pytest.mark.parametrize("store", in_turn(FORMATS, 4))
def test_dead_bytes_go_by_the_run_or_by_the_command(store: str, thirteen: Path, tmp_path: Path) -> None:
    src, made = Path(shutil.copytree(thirteen, tmp_path / "src")), tmp_path / "made"
    assert burst(src, made, "--format", store).code == 0
    whole = contents(made)
    for number in (1, 2):
        make_clip(src / f"c{number:02d}.mp4", 20, seed=50 + number)
        assert burst(src, made, "--format", store).code == 0
    shards = [name for name in outputs(made) if name.startswith("data")]
    size = sum(map(len, (outputs(made)[name] for name in shards)))
    done = compact(made)
    assert (done.shards > 0) == (done.dead_bytes > 0 or len(shards) > 1)
    after = {name: data for name, data in outputs(made).items() if name.startswith("data")}
    assert len(after) == 1 and sum(map(len, after.values())) == size - done.dead_bytes - (len(shards) - 1) * 1024 * (
        store == "webdataset"
    )
    assert compact(made).shards == 0
    is_proven(src, made)
    found = contents(made)
    assert all(found[id_] == data for id_, data in whole.items() if id_ not in ("c01", "c02"))
    refused = transcode(src, tmp_path / "videos")
    assert refused.code == 0
    ran = transcode(tmp_path / "videos", verb="compact")
    assert ran.code == 0 and "0 shards rewritten" in ran.err, "a file for each video: nothing to do"


def test_many_small_shards_become_one(tmp_path: Path) -> None:
    src, made = tmp_path / "src", tmp_path / "made"
    for number in range(12):
        make_clip(src / f"c{number:02d}.mp4", 4, seed=number)
        assert burst(src, made).code == 0
        assert len([*made.glob("data-*.bin")]) <= 9
    assert len([*made.glob("data-*.bin")]) < 6
    is_proven(src, made)


# Every change of a file: a name that is given, taken away, or made; and rows on their way.
CHANGES = {
    "os.replace": ("os", "replace"),
    "Path.replace": ("pathlib", "Path.replace"),
    "unlink": ("os", "unlink"),
    "open": points.OPEN_UNLINKED,
    "row": points.JOURNAL_APPEND,
}
CHANGES_MAX = 30


@pytest.mark.long
@pytest.mark.parametrize("store", in_turn(FORMATS, 4))
def test_a_compaction_killed_before_any_change_of_a_file_leaves_a_whole_store(store: str, tmp_path: Path) -> None:
    src = make_clips(tmp_path / "src", 4, 6)
    first = tmp_path / "first"
    assert burst(src, first, "--format", store).code == 0
    make_clip(src / "c01.mp4", 7, seed=60)
    lazy = environment(tmp_path / "lazy", fault(*points.SHARDS_REPLACE, code="args[2].clear()", only="parent"))
    assert burst(src, first, "--format", store, env=lazy).code == 0
    whole = contents(first)
    kills = 0
    for name, (module, attribute) in CHANGES.items():
        for at in range(1, CHANGES_MAX):
            made = Path(shutil.copytree(first, tmp_path / f"{name}{at}"))
            kill = fault(module, attribute, at=at, code=KILL_ALL, only="parent")
            ran = transcode(made, verb="compact", env=environment(tmp_path / "hook", kill))
            if ran.code == 0:
                break
            kills += 1
            assert ran.code == -9
            assert contents(made) == whole, f"before {name} {at}"
            assert compact(made) is not None
            assert contents(made) == whole
            is_proven(src, made)
        else:
            pytest.fail(f"more than {CHANGES_MAX} times {name}")
    assert kills >= 10


@pytest.mark.long
def test_a_store_that_is_being_made_again_can_be_read_meanwhile(tmp_path: Path) -> None:
    src, made = make_clips(tmp_path / "src", 5), tmp_path / "made"
    assert burst(src, made).code == 0
    before = contents(made)
    kill = fault(*points.JOURNAL_APPEND, at=4, code=KILL_ALL, only="parent")
    assert burst(src, made, "--quality", 50, "--overwrite", env=environment(tmp_path / "hook", kill)).code == -9
    assert contents(made) == before
    assert burst(src, made, "--quality", 50).code == 0
    assert contents(made) != before
    assert len(open_store(made)) == 5
    is_proven(src, made)


@pytest.mark.parametrize("kind", [("transcode", "shards"), ("burst", "webdataset")])
def test_a_shard_torn_where_its_end_would_be(kind: tuple[str, str], tmp_path: Path) -> None:
    """A run was killed when it had written as many bytes of the next unit as the end of a tar has."""
    verb, form = kind
    raw = make_clips(tmp_path / "raw", 2)
    assert transcode(raw, tmp_path / "out", "--format", form, verb=verb).code == 0
    (shard,) = (tmp_path / "out").glob("*.tar")
    data = shard.read_bytes()
    for torn in (data[:-1024] + b"x" * 1024, b"short"):
        (shard,) = (tmp_path / "out").glob("*.tar")
        shard.write_bytes(torn)
        assert transcode(tmp_path / "out", verb="validate").code == 1
        assert transcode(raw, tmp_path / "out", "--format", form, verb=verb).code == 0
        assert transcode(tmp_path / "out", verb="validate").code == 0
