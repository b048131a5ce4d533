"""Array runs: each task does its part alone, `vidprep merge` joins them, and the result is that of one machine."""

from __future__ import annotations

import random
import subprocess

import pyarrow.parquet as pq
import pytest

from tests import points
from tests.helpers import (
    KILL_ALL,
    command,
    environment,
    fault,
    identities,
    leftovers,
    make_clips,
    manifest,
    outputs,
    transcode,
)
from tests.sampling import in_turn
from vidprep.formats import open_store
from vidprep.formats.errors import SettingsError
from vidprep.formats.manifest.table import read_manifest
from vidprep.formats.model import Cut
from vidprep.transcode.destination.partition import Partition, assign_partitions, parse_partition
from vidprep.transcode.sources.unit import Unit

TIMES = {"encode_seconds", "cpu_seconds", "attempts", "run"}
KINDS = {
    "h264": ("transcode", "--gop", 4),
    "shards": ("transcode", "--gop", 4, "--format", "shards", "--shard-size", "1MiB"),
    "burst": ("burst", "--shard-size", "1MiB"),
    "webdataset": ("burst", "--format", "webdataset"),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = make_clips(tmp_path_factory.mktemp("sources"), 9, 8, size=(64, 48))
    (folder / "torn.mp4").write_bytes(b"no video at all")
    return folder


@pytest.fixture(scope="module")
def whole(sources, tmp_path_factory):
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp("whole") / kind
            verb, *options = KINDS[kind]
            assert transcode(sources, made[kind], *options, verb=verb).code == 1
        return made[kind]

    return of


def merge(destination):
    return transcode(destination, verb="merge")


def rows_of(destination):
    where = set() if list(destination.glob("*.mp4")) else {"file_name", "offset"}  # shards fill up as tasks finish
    return [
        {name: value for name, value in row.as_dict().items() if name not in TIMES | where}
        for row in read_manifest(destination)
    ]


def frames_of(destination):
    store = open_store(destination)
    return {id_: [bytes(frame) for frame in store.stored_jpegs(id_) or ()] for id_ in store.ids}


def shares_of(units, count):
    return [[unit for unit, part in assign_partitions(units, count) if part == index] for index in range(count)]


def test_parts_are_disjoint_complete_and_end_together():
    rng = random.Random(0)
    units = [Unit(f"u{n}", f"/u{n}", int(rng.paretovariate(1.2) * 1e6), 0) for n in range(1000)]
    shares = shares_of(units, 7)
    assert sorted(unit.id for share in shares for unit in share) == sorted(unit.id for unit in units)
    loads = [sum(unit.size_bytes for unit in share) for share in shares]
    assert max(loads) < 1.02 * min(loads) or max(loads) == max(unit.size_bytes for unit in units)
    assert shares == shares_of(tuple(units), 7)
    cut = [Unit(f"c{n}", "/film", 10**9, 0, Cut(float(n), n + (9.0 if n == 0 else 1.0))) for n in range(10)]
    assert [len(share) for share in shares_of(cut, 2)] == [1, 9]  # nine seconds against nine times one


@pytest.mark.parametrize(
    ("text", "variables", "expected"),
    [
        ("3/64", {}, Partition(3, 64)),
        ("0/1", {}, Partition(0, 1)),
        ("auto", {"ID": "5", "MIN": "3", "MAX": "9", "STEP": "2"}, Partition(1, 4)),
        ("auto", {"ID": "0", "MIN": "0", "MAX": "3", "STEP": "1"}, Partition(0, 4)),
        ("64/64", {}, "there is no partition 64 of 64"),
        ("1-4", {}, "give I/N"),
        ("0/0", {}, "there is no partition 0 of 0"),
        ("auto", {}, "SLURM_ARRAY_TASK_MAX is not set"),
        ("auto", {"ID": "5", "MIN": "1", "MAX": "9", "STEP": "1", "COUNT": "3"}, "do not run from 1 to 9 by 1"),
        ("auto", {"ID": "9", "MIN": "0", "MAX": "3"}, "there is no partition 9 of 4"),
    ],
)
def test_which_part_a_task_is(text, variables, expected):
    given = {f"SLURM_ARRAY_TASK_{name}": value for name, value in variables.items()}
    if isinstance(expected, Partition):
        assert parse_partition(text, given) == expected
        return
    with pytest.raises(SettingsError, match=expected.replace("(", r"\(")):
        parse_partition(text, given)


@pytest.mark.long
@pytest.mark.parametrize("kind", in_turn(KINDS, 3))
def test_concurrent_tasks_and_a_merge_equal_one_run(kind, sources, whole, tmp_path):
    verb, *options = KINDS[kind]
    made = tmp_path / "made"
    tasks = [
        subprocess.Popen(
            command(sources, made, *options, "--partition", f"{n}/3", verb=verb),
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(3)
    ]
    ends = [task.communicate(timeout=300)[1] for task in tasks]
    assert sorted(task.returncode for task in tasks) == [0, 0, 1], ends
    assert len(list(read_manifest(made))) == 10
    if kind == "h264":
        assert len(open_store(made).ids) == 9  # parts are read as one
    ran = merge(made)
    assert (ran.code, "3 partitions joined; 9 ok, 1 failed" in ran.err) == (1, True), ran.err
    assert rows_of(made) == rows_of(whole(kind))
    if kind == "h264":
        assert outputs(made) == outputs(whole(kind))
    else:
        assert frames_of(made) == frames_of(whole(kind))
    if kind == "burst":
        names = ["id", "width", "height", "num_frames", "sizes", "crc32"]
        there = set(pq.read_schema(made / "index.parquet").names)
        tables = [
            pq.read_table(folder / "index.parquet", columns=[n for n in names if n in there])
            for folder in (made, whole(kind))
        ]
        assert tables[0].equals(tables[1])
    assert not leftovers(made) and not list(made.glob("manifest-*"))
    assert not list((made / ".vidprep").glob("part-*"))
    before = identities(made)
    assert merge(made).code == 1
    assert identities(made) == before
    checked = transcode(made, verb="validate")
    assert checked.code == 0, checked.out


@pytest.mark.long
@pytest.mark.parametrize("kind", in_turn(["h264", "burst"], 2))
def test_a_killed_task_goes_on_when_it_is_queued_again(kind, sources, whole, tmp_path):
    verb, *options = KINDS[kind]
    made = tmp_path / "made"
    kill = fault(*points.JOURNAL_APPEND, at=3, code=KILL_ALL, only="parent")
    tasks = [
        transcode(
            sources,
            made,
            *options,
            "--partition",
            f"{n}/2",
            verb=verb,
            env=environment(tmp_path / f"hook{n}", *([kill] if n == 0 else [])),
        )
        for n in range(2)
    ]
    assert tasks[0].code == -9
    assert transcode(sources, made, *options, "--partition", "0/2", verb=verb).code in (0, 1)
    assert merge(made).code == 1
    assert rows_of(made) == rows_of(whole(kind))
    assert (outputs if kind == "h264" else frames_of)(made) == (outputs if kind == "h264" else frames_of)(whole(kind))
    assert not leftovers(made)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["h264", "burst"])
def test_finished_videos_of_a_killed_task_survive_the_merge_and_a_plain_run_does_the_rest(
    kind, sources, whole, tmp_path
):
    verb, *options = KINDS[kind]
    made = tmp_path / "made"
    kill = fault(*points.JOURNAL_APPEND, at=3, code=KILL_ALL, only="parent")
    assert (
        transcode(
            sources, made, *options, "--partition", "1/2", verb=verb, env=environment(tmp_path / "hook", kill)
        ).code
        == -9
    )
    ran = merge(made)
    for _ in range(2):
        assert ran.code == 1 and "2 of 2 partitions did not finish (0, 1)" in ran.err, ran.err
        ran = merge(made)
    kept = {row.id for row in read_manifest(made) if row.ok}
    assert len(kept) >= 2
    before = {row.id: row.sha256 for row in read_manifest(made)}
    ran = transcode(sources, made, *options, verb=verb)
    assert ran.code == 1 and f"{len(kept)} done before" in ran.err
    assert "did not finish" not in merge(made).err
    assert rows_of(made) == rows_of(whole(kind))
    assert before.items() <= {row.id: row.sha256 for row in read_manifest(made)}.items()


@pytest.mark.parametrize(("kind", "where"), [("h264", points.WRITE_ROWS), ("burst", ("shutil", "rmtree"))])
def test_a_killed_merge_is_done_by_the_next(kind, where, sources, whole, tmp_path):
    verb, *options = KINDS[kind]
    made = tmp_path / "made"
    for n in range(2):
        transcode(sources, made, *options, "--partition", f"{n}/2", verb=verb)
    for when in ("before", "after"):
        kill = fault(*where, at=1, when=when, code=KILL_ALL)
        assert transcode(made, verb="merge", env=environment(tmp_path / f"hook-{when}", kill)).code == -9
    assert merge(made).code == 1
    assert rows_of(made) == rows_of(whole(kind))
    assert not leftovers(made) and not list(made.glob("manifest-*"))


def test_mixing_partitions_is_refused(sources, tmp_path):
    made = tmp_path / "made"
    assert transcode(sources, made, "--partition", "0/2").code in (0, 1)
    for arguments in (("--partition", "0/3"), ()):
        ran = transcode(sources, made, *arguments)
        assert ran.code == 2 and "vidprep merge" in ran.err, ran.err
    ran = transcode(made, verb="validate")
    assert ran.code == 2 and "vidprep merge" in ran.err
    ran = transcode(sources, made, "--partition", "1/2", "--gop", 5)
    assert ran.code == 2 and "started here with different settings: --gop 16 -> 5" in ran.err
    ran = transcode(sources, tmp_path / "other", "--partition", "0/2", "--target-psnr", 38)
    assert ran.code == 2 and "--target-mode per-video" in ran.err
    ran = transcode(tmp_path / "nothing", verb="merge")
    assert ran.code == 2 and "does not exist" in ran.err


@pytest.mark.long
def test_merging_and_running_are_refused_while_a_task_runs(sources, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{points.LEASE_TIMES}.FOLDER_GONE_SECONDS", 2)
    made = tmp_path / "made"
    wait = fault(*points.JOURNAL_APPEND, at=1, code="import time; time.sleep(30)", only="parent")
    task = subprocess.Popen(
        command(sources, made, "--partition", "0/2"),
        env=environment(tmp_path / "hook", wait),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not list(made.glob(".vidprep/part-*/journal.jsonl")) and not list(made.glob(".vidprep/part-*/partial/*")):
            assert task.poll() is None
        for ran, code in (
            (merge(made), 3),
            (transcode(sources, made), 2),
            (transcode(sources, made, "--partition", "0/2"), 3),
        ):
            assert ran.code == code and "in use by" in ran.err, ran.err
        assert transcode(sources, made, "--partition", "1/2").code in (0, 1)
    finally:
        task.kill()
        task.wait()


def test_a_video_of_two_parts_has_one_row(sources, tmp_path):
    """Whichever task makes it, and however often; the row that is ok counts."""
    made, few = tmp_path / "made", tmp_path / "few"
    few.mkdir()
    for path in sorted(sources.glob("c0[0-3].mp4")):
        (few / path.name).symlink_to(path)
    (few / "c02.mp4").unlink()
    (few / "c02.mp4").write_bytes(b"not there yet")
    transcode(few, made, "--partition", "0/2")
    transcode(few, made, "--partition", "1/2")
    (few / "c02.mp4").unlink()
    (few / "c02.mp4").symlink_to(sources / "c02.mp4")
    for n in (0, 1):
        assert transcode(few, made, "--partition", f"{n}/2").code == 0
    assert {row.id: row.ok for row in read_manifest(made)} == dict.fromkeys(("c00", "c01", "c02", "c03"), True)
    assert list(open_store(made).ids) == ["c00", "c01", "c02", "c03"]
    assert merge(made).code == 0
    assert all(row["status"] == "ok" for row in manifest(made).values())


def test_parts_that_were_joined_before_are_not_missed_by_a_later_merge(sources, whole, tmp_path):
    made, options = tmp_path / "made", KINDS["h264"][1:]
    for shard in ("0/3", "2/3"):
        assert transcode(sources, made, *options, "--partition", shard).code in (0, 1)
    assert "1 of 3 partitions did not finish (1)" in merge(made).err
    assert transcode(sources, made, *options, "--partition", "1/3").code in (0, 1)
    for _ in range(2):
        assert "did not finish" not in merge(made).err
    (made / ".vidprep" / "merged.json").write_text("[5]")
    ran = merge(made)
    assert ran.code == 2 and "merged.json: cannot be read" in ran.err
    assert rows_of(made) == rows_of(whole("h264"))
