"""Runs on real schedulers: what they make is what one machine makes, whatever dies on the way."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cluster import Slurm, slurm, wait_until
from tests.helpers import environment, fault, leftovers, make_clips, outputs, transcode
from vidprep.formats.manifest import read_rows

SBATCH = Path(__file__).parents[2] / "examples" / "slurm_array.sbatch"
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return make_clips(tmp_path_factory.mktemp("sources"), 12, 8, size=(64, 48))


@pytest.fixture(scope="module")
def whole(sources, tmp_path_factory):
    made = tmp_path_factory.mktemp("whole") / "made"
    assert transcode(sources, made, "--gop", 4).code == 0
    return made


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    with slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def test_a_slurm_array_with_a_killed_and_a_preempted_task(scheduler: Slurm, sources, whole, tmp_path):
    """Task 1 is killed with all that belongs to it and queued again; task 2 gets the signal that comes before a time limit."""
    made, flags = tmp_path / "made", tmp_path / "flags"
    flags.mkdir()
    mine = "os.environ.get('SLURM_ARRAY_TASK_ID')"
    first = f"not os.path.exists('{flags}/' + {mine}) and not open('{flags}/' + {mine}, 'w').close()"
    kill = fault("vidprep.formats.manifest", "Journal.append", at=2, only="parent", code=f"{mine} == '1' and {first} and os.killpg(0, signal.SIGKILL)")  # fmt: skip
    wait = fault("vidprep.formats.manifest", "Journal.append", at=2, only="parent", code=f"{mine} == '2' and {first} and time.sleep(8)")  # fmt: skip
    program = tmp_path / "bin" / "vidprep"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m vidprep.transcode "$@"\n')
    program.chmod(0o755)
    env = environment(tmp_path / "hook", kill, wait)
    env["PATH"] = f"{program.parent}:{env['PATH']}"
    queue = Slurm(env | {"SLURM_CONF": scheduler.environment["SLURM_CONF"]}, tmp_path)

    job = queue.run("sbatch", "--parsable", "--array=0-3", "--cpus-per-task=1", SBATCH, sources, made, "--gop", 4)
    wait_until((flags / "2").exists, "task 2 at work")
    queue.run("scancel", "--signal=USR1", "--batch", f"{job}_2")
    wait_until(lambda: (flags / "1").exists() and queue.states(job).get("1") in ENDED, "task 1 killed")
    queue.run("scontrol", "requeue", f"{job}_1")
    wait_until(lambda: set(queue.states(job).values()) == {"COMPLETED"}, "all tasks")
    log = "".join(path.read_text() for path in tmp_path.glob("slurm-*.out"))
    assert "interrupted; run the same command again to go on" in log
    assert "done before" in log
    assert len(list(made.glob("manifest-*-of-00004.parquet"))) == 4

    merged = queue.run("sbatch", "--parsable", "--wait", "--wrap", f"vidprep merge {made}")
    assert queue.states(merged) == {} and (made / "manifest.parquet").exists()
    assert [row.id for row in read_rows(made)] == [row.id for row in read_rows(whole)]
    assert outputs(made) == outputs(whole)
    assert not leftovers(made)
