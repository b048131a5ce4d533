"""What fails on a machine is never blamed on a video: a worker that does not see what it must, a cluster that is lost, a
destination that refuses. Each ends as one machine would have ended, after one repetition at most.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests import points
from tests.cluster import dask, dask_pids, dask_scheduler, dask_worker, ray_head, ray_node, wait_until, without
from tests.helpers import (
    MANIFEST_NAMES,
    command,
    environment,
    fault,
    leftovers,
    make_clips,
    manifest,
    outputs,
    transcode,
)
from tests.sampling import in_turn
from vidprep.formats import open_store
from vidprep.formats.manifest.table import read_manifest
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.workers.host import HostRequirements

pytest.importorskip("distributed", reason="pip install '.[dask]'")

from vidprep.transcode.workers import dask as dask_workers
from vidprep.transcode.workers.dask import DaskPool

pytestmark = pytest.mark.xdist_group("cluster")
STOPPED = 3
# A scheduler that is lost is given up sooner than after half a minute.
IMPATIENT = fault(
    *points.RUN_RUN,
    code="importlib.import_module('vidprep.transcode.workers._cluster').LOST_SECONDS = 5.0",
    only="parent",
)
PATIENT = fault(
    *points.RUN_RUN,
    code="importlib.import_module('vidprep.transcode.workers._cluster').NOBODY_SECONDS = 90.0",
    only="parent",
)


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    return make_clips(tmp_path_factory.mktemp("clips") / "src", 16, 12, size=(96, 64))


@pytest.fixture(scope="module")
def long_clips(tmp_path_factory):
    return make_clips(tmp_path_factory.mktemp("long") / "src", 12, 50, size=(192, 144))


@pytest.fixture(scope="module")
def local(clips, long_clips, tmp_path_factory):
    """What one machine makes."""
    made = tmp_path_factory.mktemp("local")
    for source, name in ((clips, "short"), (long_clips, "long")):
        assert transcode(source, made / name, "--gop", 4).code == 0
    assert transcode(clips, made / "burst", verb="burst").code == 0
    return made


@pytest.fixture
def ray_folder():
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:  # its sockets take no longer name
        yield Path(folder)


def ids_of(destination):
    return {row.id for row in read_manifest(destination) if row.ok}


def failed(destination):
    return {row.id: row.message for row in read_manifest(destination) if not row.ok}


def frames_of(destination):
    store = open_store(destination)
    return {id_: [bytes(frame) for frame in store.stored_jpegs(id_) or ()] for id_ in store.ids}


def older(folder: Path) -> dict[str, str]:
    """The environment of a worker that has another vidprep."""
    metadata = folder / "older" / "vidprep-0.0.9.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: vidprep\nVersion: 0.0.9\n")
    return os.environ | {"PYTHONPATH": str(folder / "older"), "PYTHONSAFEPATH": "1"}


def check_ended_well(source, made, whole):
    """One repetition on one machine makes what is missing, and nothing had been blamed."""
    again = transcode(source, made, "--gop", 4, "--skip-failed")
    assert again.code == 0, again.err
    assert not failed(made) and outputs(made) == outputs(whole) and not leftovers(made)


# ------------------------------------------------------------------------------------------------ workers


@pytest.mark.long
def test_unfit_workers_of_dask_are_left_out(clips, local, tmp_path):
    """One does not see SRC and was a black hole for videos, one does not see DST, one has another version; one is good."""
    videos, frames = tmp_path / "videos", tmp_path / "frames"
    videos.mkdir()
    frames.mkdir()
    with ExitStack() as stack:
        address, _ = stack.enter_context(dask_scheduler(tmp_path))
        stack.enter_context(dask_worker(tmp_path, address, "blind", hidden=[clips]))
        stack.enter_context(dask_worker(tmp_path, address, "elsewhere", hidden=[videos, frames]))
        stack.enter_context(dask_worker(tmp_path, address, "older", older(tmp_path)))
        dask_pids(address, 3)
        on_dask = ("--backend", "dask", "--cluster-address", address)
        env = environment(tmp_path / "hook", PATIENT)
        with (tmp_path / "said").open("w") as file:
            run = subprocess.Popen(command(clips, videos, "--gop", 4, *on_dask), env=env, stderr=file)
        said = (tmp_path / "said").read_text
        wait_until(lambda: said().count("left out: worker ") == 3, "what is said of three workers")
        stack.enter_context(dask_worker(tmp_path, address, "good"))
        assert run.wait(300) == 0, said()
        burst = transcode(clips, frames, *on_dask, verb="burst", env=environment())
    assert outputs(videos) == outputs(local / "short") and not leftovers(videos)
    assert burst.code == 0, burst.err
    assert frames_of(frames) == frames_of(local / "burst") and not leftovers(frames)
    assert "does not see the source " in said() and "does not see the destination " in said()
    assert "vidprep 0.0.9, not " in said() and "install the same versions" in said()


ABSENT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "vidprep":
            raise ModuleNotFoundError("No module named 'vidprep'", name="vidprep")
sys.meta_path.insert(0, Absent())
"""


@pytest.mark.long
def test_a_worker_of_dask_without_vidprep_is_named_and_left_out(clips, local, tmp_path):
    """The question that it was asked killed it, again and again, and the run waited for an hour."""
    made = tmp_path / "made"
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "sitecustomize.py").write_text(ABSENT)
    env = os.environ | {"PYTHONPATH": str(tmp_path / "absent")}
    with ExitStack() as stack:
        address, _ = stack.enter_context(dask_scheduler(tmp_path))
        bare = stack.enter_context(dask_worker(tmp_path, address, "bare", env))
        dask_pids(address, 1)
        on_dask = ("--backend", "dask", "--cluster-address", address)
        alone = transcode(clips, made, "--gop", 4, *on_dask, env=environment(), timeout=300)
        assert alone.code == STOPPED, alone.err
        assert "none of the 1 workers" in alone.err and f"worker {socket.gethostname()} (process " in alone.err
        assert "cannot run vidprep (ModuleNotFoundError: No module named 'vidprep'); install vidprep " in alone.err
        stack.enter_context(dask_worker(tmp_path, address, "good"))
        dask_pids(address, 2)
        ran = transcode(clips, made, "--gop", 4, *on_dask, env=environment(), timeout=300)
        assert bare.poll() is None, "it lives on"
    assert ran.code == 0 and ran.err.count("left out: worker ") == 1, ran.err
    assert outputs(made) == outputs(local / "short") and not leftovers(made)


@pytest.mark.long
def test_when_no_worker_can_work_the_run_ends_and_names_one(clips, local, tmp_path):
    made = tmp_path / "made"
    with ExitStack() as stack:
        address, _ = stack.enter_context(dask_scheduler(tmp_path))
        stack.enter_context(dask_worker(tmp_path, address, "blind", hidden=[clips]))
        dask_pids(address, 1)
        ran = transcode(clips, made, "--gop", 4, "--backend", "dask", "--cluster-address", address, env=environment())
    assert ran.code == STOPPED, ran.err
    assert "none of the 1 workers" in ran.err and "does not see the source" in ran.err
    check_ended_well(clips, made, local / "short")


@pytest.mark.long
def test_without_workers_the_run_says_so_and_begins_when_one_comes(clips, local, tmp_path):
    made = tmp_path / "made"
    with dask_scheduler(tmp_path) as (address, _), (tmp_path / "said").open("w") as said:
        on_dask = ("--backend", "dask", "--cluster-address", address)
        run = subprocess.Popen(command(clips, made, "--gop", 4, *on_dask), env=environment(), stderr=said)
        wait_until(lambda: "has no workers; waiting" in (tmp_path / "said").read_text(), "a word")
        with dask_worker(tmp_path, address, "late"):
            assert run.wait(300) == 0, (tmp_path / "said").read_text()
    assert address in (tmp_path / "said").read_text()
    assert outputs(made) == outputs(local / "short") and not leftovers(made)


def begun(source, made, options, *faults, hook):
    """A run that has made two videos."""
    run = subprocess.Popen(
        command(source, made, "--gop", 4, *options), env=environment(hook, *faults), stderr=subprocess.PIPE, text=True
    )
    journal = made / ".vidprep" / "journal.jsonl"
    wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 2, "two videos")
    return run


@pytest.mark.long
def test_all_workers_of_dask_may_be_killed_at_once(long_clips, local, tmp_path):
    """Their nannies start others."""
    made = tmp_path / "made"
    with dask(tmp_path, workers=2) as (address, pids):
        run = begun(long_clips, made, ("--backend", "dask", "--cluster-address", address), hook=tmp_path / "hook")
        for pid in pids:
            psutil.Process(pid).kill()
        said = run.communicate(timeout=300)[1]
    assert run.returncode == 0, said
    assert outputs(made) == outputs(local / "long") and not failed(made) and not leftovers(made)


@pytest.mark.long
def test_results_lost_with_their_worker_are_made_again(clips, local, tmp_path):
    """The run waited for ever: dask had nobody left who might make it."""
    kill = "[os.kill(pid, 9) for pid in args[0]._client.run(os.getpid).values()]; time.sleep(2)"
    lost = fault(*points.DASK_WORKERS_RESULT, at=4, code=kill, only="parent")
    made = tmp_path / "made"
    with dask(tmp_path, workers=2) as (address, _):
        on_dask = ("--backend", "dask", "--cluster-address", address)
        ran = transcode(clips, made, "--gop", 4, *on_dask, env=environment(tmp_path / "hook", lost), timeout=300)
    assert ran.code == 0, ran.err
    assert outputs(made) == outputs(local / "short") and not leftovers(made)


@pytest.mark.long
def test_a_scheduler_that_is_killed_fails_no_video(long_clips, local, tmp_path):
    made = tmp_path / "made"
    with ExitStack() as stack:
        address, scheduler = stack.enter_context(dask_scheduler(tmp_path))
        stack.enter_context(dask_worker(tmp_path, address, "worker"))
        run = begun(
            long_clips, made, ("--backend", "dask", "--cluster-address", address), IMPATIENT, hook=tmp_path / "hook"
        )
        scheduler.kill()
        said = run.communicate(timeout=300)[1]
    assert run.returncode == STOPPED, said
    logged = [line for line in said.splitlines() if "is lost (" not in line]  # our line may quote the error of Dask
    assert not [line for line in logged if "Traceback" in line or "ConnectionPool" in line], said
    assert f"the dask scheduler at {address} is lost" in said and "dask scheduler`" in said
    assert len(ids_of(made)) >= 2 and (made / MANIFEST_NAMES[0]).exists() and not failed(made)
    check_ended_well(long_clips, made, local / "long")


@pytest.mark.slow
def test_unfit_nodes_of_ray_are_left_out(clips, local, tmp_path, ray_folder):
    """The head node does no work, so nobody can."""
    made = tmp_path / "made"
    made.mkdir()
    with ExitStack() as stack:
        address = stack.enter_context(ray_head(ray_folder, cpus=0))
        stack.enter_context(ray_node(ray_folder, address, "blind", hidden=[clips]))
        stack.enter_context(ray_node(ray_folder, address, "elsewhere", hidden=[made]))
        on_ray = ("--backend", "ray", "--cluster-address", address)
        ran = transcode(clips, made, "--gop", 4, *on_ray, env=environment(), timeout=300)
    assert ran.code == STOPPED, ran.err
    assert ran.err.count("left out: worker ") == 2 and "none of the 2 workers" in ran.err
    assert "does not see the source " in ran.err and "does not see the destination " in ran.err
    check_ended_well(clips, made, local / "short")


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["head", "workers"])
def test_ray_may_lose_its_head_or_all_its_workers(killed, long_clips, local, tmp_path, ray_folder):
    made = tmp_path / "made"
    with ray_head(ray_folder, cpus=2) as address:
        run = begun(
            long_clips, made, ("--backend", "ray", "--cluster-address", address), IMPATIENT, hook=tmp_path / "hook"
        )
        for process in psutil.process_iter():
            is_head, is_worker = process.name() in ("gcs_server", "raylet"), process.name().startswith("ray::_work")
            if (is_head and str(ray_folder) in " ".join(process.cmdline())) if killed == "head" else is_worker:
                process.kill()
        said = run.communicate(timeout=300)[1]
    assert run.returncode == (STOPPED if killed == "head" else 0), said
    assert ("is lost" in said) == (killed == "head")
    assert len(ids_of(made)) >= 2 and not failed(made)
    check_ended_well(long_clips, made, local / "long")


# ------------------------------------------------------------------------------------------------ this machine


@pytest.mark.long
def test_in_a_folder_that_is_gone_nothing_is_started_and_no_video_fails(clips, local, tmp_path):
    gone, made = tmp_path / "gone", tmp_path / "made"
    gone.mkdir()
    run = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    ran = subprocess.run(
        ["sh", "-c", run, "sh", str(gone), *command(clips, made, "--gop", 4, "--json")],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 2 and ran.stderr.count("\n") == 1, ran.stderr
    assert "the current folder was deleted" in ran.stderr and not made.exists()
    check_ended_well(clips, made, local / "short")


@pytest.mark.long
@pytest.mark.parametrize("closed", in_turn(["2>&-", "<&- >&- 2>&-"], 2))
def test_closed_standard_streams_stop_nothing(closed, clips, local, tmp_path):
    run = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command(clips, tmp_path / "made", "--gop", 4)],
        env=environment(),
        check=False,
        timeout=300,
    )
    assert run.returncode == 0
    assert outputs(tmp_path / "made") == outputs(local / "short")


@pytest.mark.long
def test_sources_that_are_all_gone_in_the_middle_fail_none(clips, local, tmp_path):
    """As when their file system is unmounted."""
    source, made = tmp_path / "src", tmp_path / "made"
    shutil.copytree(clips, source)
    gone = fault(
        *points.JOURNAL_APPEND,
        at=3,
        only="parent",
        code=f"os.path.exists('{source}') and os.rename('{source}', '{source}.gone')",
    )
    ran = transcode(source, made, "--gop", 4, "--jobs", 1, env=environment(tmp_path / "hook", gone))
    assert ran.code == STOPPED, ran.err
    assert "cannot be found any more" in ran.err and not failed(made) and len(ids_of(made)) >= 3
    source.with_name("src.gone").rename(source)
    check_ended_well(source, made, local / "short")


@pytest.mark.long
def test_a_destination_that_is_gone_in_the_middle_is_not_blamed_on_sources(clips, local, tmp_path):
    made = tmp_path / "made"
    gone = fault(*points.JOURNAL_APPEND, at=3, only="parent", code=f"os.rename('{made}', '{made}.gone')")
    ran = transcode(clips, made, "--gop", 4, "--jobs", 1, env=environment(tmp_path / "hook", gone))
    assert ran.code == STOPPED, ran.err
    assert "failed: " not in ran.err and "stopped: " in ran.err and str(made) in ran.err
    shutil.rmtree(made, ignore_errors=True)
    made.with_name("made.gone").rename(made)
    check_ended_well(clips, made, local / "short")


@pytest.mark.parametrize(("quota", "jobs"), [("50000 100000", 1), ("max 100000", len(os.sched_getaffinity(0)))])
def test_as_many_jobs_as_the_control_group_has_cores(quota, jobs, tmp_path):
    """A container of half a core got a child for each core of its machine."""
    group = tmp_path / "group"
    group.mkdir()
    script = f"echo {quota} > {group}/cpu.max; mount --bind {group} /sys/fs/cgroup; exec {sys.executable} -c 'from vidprep.transcode.workers.local import default_jobs; print(default_jobs())'"
    (tmp_path / "unused").mkdir()
    done = subprocess.run(
        without([tmp_path / "unused"], ["sh", "-c", script]), capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == jobs


@pytest.mark.long
def test_children_that_never_start_fail_no_video(clips, local, tmp_path):
    broken = fault(*points.DIE_WITH, code="os._exit(1)", only="child")
    ran = transcode(clips, tmp_path / "made", "--gop", 4, env=environment(tmp_path / "hook", broken))
    assert ran.code == STOPPED and "no process starts for the videos" in ran.err, ran.err
    check_ended_well(clips, tmp_path / "made", local / "short")


def test_a_mixed_manifest_has_rows_for_sources_alone(tmp_path):
    source = make_clips(tmp_path / "src", 3)
    (source / "torn.mp4").write_bytes(b"no video")
    assert transcode(source, tmp_path / "made").code == 1
    assert set(failed(tmp_path / "made")) == {"torn"} and len(manifest(tmp_path / "made")) == 4


@pytest.mark.long
def test_a_result_that_is_lost_while_it_is_fetched_is_no_traceback(tmp_path, monkeypatch, caplog):
    """Its only copy goes with its worker, and nobody is there to make it again."""
    monkeypatch.setattr(dask_workers, "RESULT_SECONDS", 3.0)
    expected = HostRequirements(RunSettings(), "ffmpeg", {}, (), str(tmp_path), "token", 0)
    with dask(tmp_path, workers=1) as (address, (pid,)), DaskPool(address, print, expected) as workers:
        (host,) = workers.hosts()
        future = workers.check(host, expected)
        wait_until(lambda: workers.wait_ended() == [future], "the first why_unfit")
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()
        with pytest.raises(TimeoutError) as lost:
            workers.result(future)
        assert workers.was_lost(lost.value)
        workers.cancel(future)
        del lost  # its traceback holds what waited for the result
        wait_until(future.cancelled, "its end")
        gc.collect()
    assert not [record.getMessage() for record in caplog.records if record.name == "asyncio"]
