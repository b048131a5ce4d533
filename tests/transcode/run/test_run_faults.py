"""Kills, signals and what else befalls a whole run: nothing that was finished is lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests import points
from tests.helpers import (
    command,
    environment,
    fault,
    identities,
    leftovers,
    make_clips,
    manifest,
    no_processes_left,
    outputs,
    processes_of_group,
    start,
    transcode,
)
from tests.sampling import in_turn
from tests.transcode.run.poison import CLIPS, fake_ffmpeg, resumed

TORN = "if args[1][:6] == b'{\"id\":' and (calls.append(0) or len(calls) > 4): real(args[0], args[1][:90]); os.killpg(0, signal.SIGKILL)"


MOMENTS = {
    "settings, before": fault(*points.DESTINATION_WRITE_SETTINGS, only="parent"),
    "taking the lease": fault("os", "fsync", only="parent"),
    "settings, while writing": fault("os", "fsync", at=2, only="parent"),
    "settings, after": fault(*points.DESTINATION_WRITE_SETTINGS, when="after", only="parent"),
    "probing": fault(*points.SOURCE_INIT, at=2, only="child"),
    "encoding": fault(*points.VIDEO_WRITER_MUX, at=16, only="child"),
    "closing": fault(*points.VIDEO_WRITER_CLOSE, at=2, only="child"),
    "verifying": fault(*points.CHECK_FILE, at=2, only="child"),
    "summing": fault(*points.SHA256_OF, at=2, when="after", only="child"),
    "journal, before": fault(*points.JOURNAL_APPEND, at=4, only="parent"),
    "journal, torn": fault("os", "write", at=-1, code=TORN, only="parent"),
    "journal, after": fault(*points.JOURNAL_APPEND, at=4, when="after", only="parent"),
    "renaming, before": fault(*points.FILES_PUBLISH, at=4, only="parent"),
    "renaming, after": fault(*points.FILES_PUBLISH, at=4, when="after", only="parent"),
    "merging, before": fault(*points.WRITE_ROWS, only="parent"),
    "merging, while writing": fault("pyarrow.parquet", "write_table", when="after", only="parent"),
    "merging, before the journal goes": fault(*points.JOURNAL_CLEAR, only="parent"),
    "merging, after": fault(*points.JOURNAL_CLEAR, when="after", only="parent"),
}


@pytest.mark.parametrize("moment", in_turn(MOMENTS, 3))
def test_a_kill_of_the_whole_run_at_any_step_costs_nothing_that_was_finished(
    clips: Path, dst: Path, tmp_path: Path, undisturbed: dict[str, bytes], moment: str
) -> None:
    process = start(clips, dst, "--jobs", 2, env=environment(tmp_path / "hook", MOMENTS[moment]))
    _, err = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, f"the moment never came: {err}"
    no_processes_left(process.pid)
    finished = outputs(dst)
    assert finished.items() <= undisturbed.items()
    if moment.startswith(("renaming", "journal")):
        assert 0 < len(finished) < CLIPS
    if moment.startswith("merging"):
        assert len(finished) == CLIPS
    resumed(clips, dst, undisturbed)


@pytest.mark.long
def test_kills_at_any_time_one_after_the_other(clips: Path, dst: Path, undisturbed: dict[str, bytes]) -> None:
    for delay in (0.2, 0.45, 0.6, 0.7, 0.8, 0.9, 1.0):
        process = start(clips, dst, "--jobs", 2)
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        no_processes_left(process.pid)
        assert outputs(dst).items() <= undisturbed.items()
    resumed(clips, dst, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["transcode", "burst"])
def test_twenty_kills_of_a_run_of_two_hundred(dst: Path, tmp_path: Path, verb: str) -> None:
    """Everything is killed at once, at random times; nothing that was finished is done again, and the bytes are the same."""
    src = make_clips(tmp_path / "src", 200, 12, size=(96, 64))
    assert transcode(src, tmp_path / "undisturbed", verb=verb).code == 0
    rng = random.Random(0)
    kept: dict[str, tuple[int, int]] = {}
    for _ in range(20):
        process = subprocess.Popen(
            command(src, dst, "--jobs", 2, verb=verb),
            env=environment(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(rng.uniform(0.3, 2.5))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        no_processes_left(process.pid)
        if verb == "transcode":
            assert kept.items() <= identities(dst).items()
            kept = identities(dst)
    assert transcode(src, dst, verb=verb).code == 0
    assert leftovers(dst) == []
    ours, theirs = manifest(dst), manifest(tmp_path / "undisturbed")
    assert set(ours) == set(theirs) and len(ours) == 200
    assert all(ours[id_]["sha256"] == row["sha256"] and ours[id_]["status"] == "ok" for id_, row in theirs.items())
    if verb == "transcode":
        assert outputs(dst) == outputs(tmp_path / "undisturbed")
        assert kept.items() <= identities(dst).items()


@pytest.mark.long
def test_children_die_with_a_parent_that_is_killed_alone(clips: Path, dst: Path, tmp_path: Path) -> None:
    slow = fault(*points.RUN_JOB, code="time.sleep(60)", only="child")
    process = start(clips, dst, "--jobs", 2, env=environment(tmp_path / "hook", slow))
    wait_for_children(process.pid)
    process.kill()
    process.communicate()
    no_processes_left(process.pid, 5)


def wait_for_children(group: int, count: int = 2) -> None:
    """Until so many children sleep in their work: they have loaded what they need, and use no more CPU time."""
    deadline, before = time.monotonic() + 30, []
    while True:
        children = [p for p in processes_of_group(group) if "vidprep-child" in p.cmdline()]
        used = [p.cpu_times().user for p in children]
        if len(used) >= count and min(used) > 0.05 and used == before:
            return
        before = used
        time.sleep(0.25)
        assert time.monotonic() < deadline, "the children did not start"


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "whom", "code", "engine"),
    in_turn(
        [
            (signal.SIGINT, "group", 130, "av"),
            (signal.SIGINT, "parent", 130, "av"),
            (signal.SIGINT, "group", 130, "ffmpeg"),
            (signal.SIGTERM, "group", 143, "av"),
            (signal.SIGTERM, "parent", 143, "av"),
            (signal.SIGUSR1, "group", 143, "av"),
        ],
        3,
    ),
)
def test_a_signal_stops_the_run_without_rows_for_abandoned_videos(
    clips: Path,
    dst: Path,
    tmp_path: Path,
    undisturbed: dict[str, bytes],
    number: int,
    whom: str,
    code: int,
    engine: str,
) -> None:
    extra: list[str] = []
    faults: list[str] = []
    if engine == "ffmpeg":
        body = "import time; time.sleep(1.5); os.execv(REAL, [REAL, *sys.argv[1:]])"
        extra = ["--engine", "ffmpeg", "--ffmpeg", str(fake_ffmpeg(tmp_path, body))]
    else:
        faults = [fault(*points.RUN_JOB, at=-1, code="time.sleep(1.5)", only="child")]
    process = start(clips, dst, "--jobs", 2, *extra, env=environment(tmp_path / "hook", *faults))
    wait_for_children(process.pid)
    os.killpg(process.pid, number) if whom == "group" else process.send_signal(number)
    _, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    assert "Traceback" not in err and "failed: " not in err
    assert "interrupted; run the same command again" in err
    no_processes_left(process.pid, 5)
    assert leftovers(dst) == []
    if (number, whom) != (signal.SIGTERM, "group"):
        assert 2 <= len(outputs(dst)) < CLIPS, "what was in flight finished within the grace time"
    assert (dst / "manifest.parquet").exists() == bool(outputs(dst))
    if engine == "av":
        resumed(clips, dst, undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("how", ["second signal", "grace time"])
def test_a_second_signal_or_the_grace_time_abandons_running_videos(
    clips: Path, dst: Path, tmp_path: Path, undisturbed: dict[str, bytes], how: str
) -> None:
    stuck = fault(*points.RUN_JOB, at=-1, code="time.sleep(60)", only="child")
    short = fault(*points.RUN_RUN, code="sys.modules['vidprep.transcode.run.run'].GRACE_SECONDS = 1.0", only="parent")
    faults = [stuck, short] if how == "grace time" else [stuck]
    process = start(clips, dst, "--jobs", 2, env=environment(tmp_path / "hook", *faults))
    wait_for_children(process.pid)
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    if how == "second signal":
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert time.monotonic() - sent < 8
    no_processes_left(process.pid, 3)
    assert outputs(dst) == {} and leftovers(dst) == [] and not (dst / "manifest.parquet").exists()
    resumed(clips, dst, undisturbed)


def test_ctrl_c_while_planning_exits_130(clips: Path, dst: Path, tmp_path: Path) -> None:
    # A shell's background jobs, which the tests may be, ignore SIGINT, and what they start inherits that.
    code = (
        "signal.signal(signal.SIGINT, signal.default_int_handler); os.kill(os.getpid(), signal.SIGINT); time.sleep(5)"
    )
    broken = fault(*points.FIND_SOURCES, code=code, only="parent")
    ran = transcode(clips, dst, env=environment(tmp_path / "hook", broken))
    assert ran.code == 130
    assert not dst.exists()
