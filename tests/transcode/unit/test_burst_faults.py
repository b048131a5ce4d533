"""Bursts that fail, are killed, or find no room."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from tests import points
from tests.helpers import KILL_ALL, environment, fault, make_clip, manifest
from tests.sampling import in_turn
from tests.transcode.unit.bursts import FORMATS, burst, good, is_whole


@pytest.mark.parametrize("store", FORMATS)
def test_a_video_that_fails_leaves_no_bytes_behind(store, clips, tmp_path, dst):
    src = tmp_path / "src"
    shutil.copytree(clips, src)
    (src / "c01.mp4").write_bytes((src / "c01.mp4").read_bytes()[:-900])
    (src / "text.mp4").write_text("no video")
    ran = burst(src, dst, "--format", store, "--on-damage", "fail")
    assert ran.code == 1
    assert {name for name, row in manifest(dst).items() if row["status"] == "failed"} == {"c01", "text"}
    assert len(is_whole(dst)) == 4


STEPS = [
    (*points.SHARD_WRITER_APPEND, 2, "before"),
    (*points.SHARD_WRITER_APPEND, 2, "after"),
    (*points.JOURNAL_APPEND, 3, "after"),
    (*points.SHARDS_PUBLISH, 3, "after"),
    (*points.DESTINATION_FINISH, 1, "before"),
    (*points.WRITE_ROWS, 1, "before"),
    (*points.WRITE_ROWS, 1, "after"),
    (*points.JOURNAL_CLEAR, 1, "after"),
    (*points.SHARDS_REPLACE, 1, "after"),
    (*points.DESTINATION_FINISH, 1, "after"),
]


@pytest.fixture(scope="module", params=["burst", "webdataset"])
def undisturbed(request, clips, tmp_path_factory) -> tuple[str, dict[str, list[bytes]]]:
    """The name of a format, and the frames of all clips."""
    made = tmp_path_factory.mktemp("undisturbed") / "dst"
    assert burst(clips, made, "--format", request.param).code == 0
    return request.param, is_whole(made)


@pytest.mark.long
@pytest.mark.parametrize(("where", "name", "at", "when"), in_turn(STEPS, 5))
def test_a_kill_anywhere_loses_no_whole_video_and_leaves_no_half_one(
    where, name, at, when, clips, dst, tmp_path, undisturbed
):
    store, frames = undisturbed
    killer = environment(tmp_path / "hook", fault(where, name, at=at, when=when, code=KILL_ALL, only="parent"))
    assert burst(clips, dst, "--format", store, env=killer).code == -9
    journalled = (
        {json.loads(line)["id"] for line in (dst / ".vidprep" / "journal.jsonl").read_text().splitlines()}
        if (dst / ".vidprep" / "journal.jsonl").exists()
        else set()
    )
    again = burst(clips, dst, "--format", store, "--json")
    assert again.code == 0, again.err
    assert not journalled & again.rows.keys(), "a whole video was made again"
    assert is_whole(dst) == frames
    assert burst(clips, dst, "--format", store, "--json").summary["done_before"] == 5


@pytest.mark.long
@pytest.mark.parametrize("store", in_turn(["burst", "webdataset"], 2))
def test_a_video_whose_worker_is_killed_is_tried_again_alone(store, clips, dst, tmp_path):
    """The kernel kills whoever has most memory, which the videos beside may have taken: it was a failed source."""
    twice = tmp_path / "twice"
    once = f"os.path.exists('{twice}1') or (open('{twice}1', 'w'), os.kill(os.getpid(), signal.SIGKILL))"
    always = "os.path.basename(args[0].unit.path) == 'c03.mp4' and os.kill(os.getpid(), signal.SIGKILL)"
    for name, faults in {
        "once": fault(*points.JPEG_CODER_ENCODE, at=10, code=once, only="child"),
        "always": fault(*points.RUN_JOB, at=-1, code=always, only="child"),
    }.items():
        ran = burst(clips, dst / name, "--format", store, "--jobs", 2, env=environment(tmp_path / name, faults))
        rows = manifest(dst / name).values()
        if name == "once":
            assert ran.code == 0, ran.err
            (again,) = (row for row in rows if "second attempt, alone" in " ".join(row["warnings"]))
            assert "killed by SIGKILL; the machine may be short of memory" in " ".join(again["warnings"])
            assert len(is_whole(dst / name)) == 5
            continue
        (failed,) = (row for row in rows if row["status"] == "failed")
        assert (ran.code, failed["id"], failed["error"]) == (1, "c03", "CrashedError")
        assert failed["message"].endswith("so was a first attempt, beside others")
        assert len(is_whole(dst / name)) == 4
        again = burst(clips, dst / name, "--format", store, "--json")
        assert (again.code, again.summary["done_before"]) == (0, 4)
        assert is_whole(dst / name).keys() == {f"c{number:02d}" for number in range(5)}


# Real: from the third unit on, a file may grow by 50 bytes and no more until the shard is cut back.
FULL = {
    "shard": (
        fault(
            *points.SHARD_WRITER_APPEND,
            at=-3,
            only="parent",
            code="r = __import__('resource'); r.setrlimit(r.RLIMIT_FSIZE, (args[0]._end + 50, -1))",
        ),
        fault(
            *points.SHARD_WRITER_CUT_BACK,
            at=-1,
            only="parent",
            code="r = __import__('resource'); r.setrlimit(r.RLIMIT_FSIZE, (-1, -1))",
        ),
    ),
    "frames": (fault(*points.STORE_FRAMES, at=3, only="child", code="raise OSError(28, 'No space left on device')"),),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "store"), in_turn([("shard", "burst"), ("shard", "webdataset"), ("frames", "gulp")], 3)
)
def test_no_room_for_a_shard_or_for_frames_stops_the_run_and_the_next_one_finishes(what, store, clips, dst, tmp_path):
    full = environment(tmp_path / "hook", *FULL[what])
    ran = burst(clips, dst, "--format", store, "--jobs", 1, "--json", env=full)
    assert ran.code == 3
    assert "no room left in" in ran.err and "bytes are free" in ran.err
    assert ran.summary["ok"] == 2 and ran.summary["not_started"] >= 2
    assert len(is_whole(dst)) == 2
    again = burst(clips, dst, "--format", store, "--json")
    assert (again.code, again.summary["done_before"]) == (0, 2), again.err
    assert len(is_whole(dst)) == 5


@pytest.mark.long
def test_a_kill_half_way_through_an_append_is_cut_off(clips, dst, tmp_path):
    torn = environment(tmp_path / "hook", fault(*points.COPY, at=3, code=KILL_ALL, only="parent"))
    assert burst(clips, dst, env=torn).code == -9
    with (dst / "data-00001-00000.bin").open("ab") as shard:
        shard.write(b"half a unit")
    assert burst(clips, dst).code == 0
    assert len(is_whole(dst)) == 5


@pytest.mark.parametrize("store", FORMATS)
def test_a_source_that_changed_is_made_again_and_its_old_bytes_are_gone(store, clips, tmp_path, dst):
    src = tmp_path / "src"
    shutil.copytree(clips, src)
    assert burst(src, dst, "--format", store).code == 0
    before = is_whole(dst)
    make_clip(src / "c02.mp4", 9, seed=99)
    ran = burst(src, dst, "--format", store, "--json")
    assert ran.summary["ok"] == 1
    assert ran.summary["done_before"] == 4
    after = is_whole(dst)
    assert len(after.pop("c02")) == 9
    del before["c02"]
    assert after == before


def test_overwriting_processes_everything_again(clips, dst):
    assert burst(clips, dst).code == 0
    assert burst(clips, dst, "--quality", 70, "--overwrite").code == 0
    assert {row.jpeg_quality for row in good(dst).values()} == {70}
    assert len(is_whole(dst)) == 5


def test_a_shard_that_was_lost_or_cut_is_made_again(clips, dst):
    assert burst(clips, dst).code == 0
    whole = is_whole(dst)
    path = dst / "data-00001-00000.bin"
    os.truncate(path, path.stat().st_size - 1)
    assert burst(clips, dst, "--json").summary["ok"] == 1
    assert is_whole(dst) == whole
    for shard in dst.glob("data-*.bin"):
        shard.unlink()
    assert burst(clips, dst, "--json").summary["ok"] == 5
    assert is_whole(dst) == whole


def test_an_empty_folder_that_is_not_ours_loses_no_file(clips, dst):
    """data-00000.bin may be anybody's: without our state folder beside it nothing is touched."""
    dst.mkdir()
    (dst / "data-00000.bin").write_bytes(b"somebody's")
    ran = burst(clips, dst)
    assert ran.code == 2
    assert "data-00000.bin" in ran.err
    assert (dst / "data-00000.bin").read_bytes() == b"somebody's"
