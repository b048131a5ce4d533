"""Runs on real schedulers: what they make is what one machine makes, whatever dies on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests import points
from tests.cluster import Slurm, dask, free_port, needs_modules, ray_head, slurm, wait_until
from tests.helpers import command, environment, fault, leftovers, make_clip, make_clips, manifest, outputs, transcode
from tests.sampling import in_turn
from vidprep.formats import open_store
from vidprep.formats.manifest.table import read_manifest

pytestmark = pytest.mark.xdist_group("cluster")  # what its fixtures start is started once
SBATCH = Path(__file__).parents[3] / "examples" / "slurm_array.sbatch"
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
def whole_burst(sources, tmp_path_factory):
    made = tmp_path_factory.mktemp("whole") / "burst"
    assert transcode(sources, made, verb="burst").code == 0
    return made


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    with slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.mark.long
def test_a_slurm_array_with_a_killed_and_a_preempted_task(scheduler: Slurm, sources, whole, tmp_path):
    """Task 1 is killed with all that belongs to it and queued again; task 2 gets the signal that comes before a time limit."""
    made, flags = tmp_path / "made", tmp_path / "flags"
    flags.mkdir()
    mine = "os.environ.get('SLURM_ARRAY_TASK_ID')"
    first = f"not os.path.exists('{flags}/' + {mine}) and not open('{flags}/' + {mine}, 'w').close()"
    kill = fault(
        *points.JOURNAL_APPEND, at=2, only="parent", code=f"{mine} == '1' and {first} and os.killpg(0, signal.SIGKILL)"
    )
    wait = fault(*points.JOURNAL_APPEND, at=2, only="parent", code=f"{mine} == '2' and {first} and time.sleep(8)")
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
    assert [row.id for row in read_manifest(made)] == [row.id for row in read_manifest(whole)]
    assert outputs(made) == outputs(whole)
    assert not leftovers(made)


# ------------------------------------------------------------------------------------------------ dask and ray


@pytest.fixture(scope="module")
def on_dask(tmp_path_factory):
    with dask(tmp_path_factory.mktemp("dask"), workers=2) as (address, _):
        yield "--backend", "dask", "--cluster-address", address


@pytest.fixture(scope="module")
def on_ray():
    # Its sockets take no longer name.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder, ray_head(Path(folder), cpus=2) as address:
        yield "--backend", "ray", "--cluster-address", address


@pytest.fixture(params=["dask", pytest.param("ray", marks=pytest.mark.long)])
def cluster(request):
    return request.getfixturevalue(f"on_{request.param}")


@pytest.mark.long
def test_pieces_of_a_long_video_go_to_a_cluster_too(on_dask, tmp_path):
    source = make_clip(tmp_path / "long.mp4", 120, (64, 48))
    assert transcode(source, tmp_path / "here", "--gop", 4, "--segment", 1).code == 0
    assert transcode(source, tmp_path / "there", "--gop", 4, "--segment", 1, *on_dask).code == 0
    assert outputs(tmp_path / "there") == outputs(tmp_path / "here")
    assert not leftovers(tmp_path / "there")


def frames_of(destination):
    store = open_store(destination)
    return {id_: [bytes(frame) for frame in store.stored_jpegs(id_) or ()] for id_ in store.ids}


def as_indexed(destination):
    where = {"file_name", "offset", "encode_seconds", "cpu_seconds", "attempts"}
    return [
        {name: value for name, value in row.as_dict().items() if name not in where}
        for row in read_manifest(destination)
    ]


def workers_at_work(backend):
    """Processes of the cluster that have a child of vidprep: the ones that a machine that dies would take along."""
    found = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
            if "vidprep-child" in line and (parent := process.parent()) is not None:
                of_dask = "--multiprocessing-fork" in " ".join(parent.cmdline())
                of_ray = parent.name().startswith("ray::") or "default_worker.py" in " ".join(parent.cmdline())
                if of_dask if backend == "dask" else of_ray:
                    found.append(parent)
        except psutil.Error:
            continue
    return found


@pytest.mark.long
def test_a_cluster_equals_one_machine(cluster, sources, whole, whole_burst, tmp_path):
    ran = transcode(sources, tmp_path / "videos", "--gop", 4, *cluster)
    assert ran.code == 0, ran.err
    assert outputs(tmp_path / "videos") == outputs(whole)
    assert as_indexed(tmp_path / "videos") == as_indexed(whole)
    ran = transcode(sources, tmp_path / "frames", *cluster, verb="burst")
    assert ran.code == 0, ran.err
    assert frames_of(tmp_path / "frames") == frames_of(whole_burst)
    assert as_indexed(tmp_path / "frames") == as_indexed(whole_burst)
    assert not leftovers(tmp_path / "videos") and not leftovers(tmp_path / "frames")
    again = transcode(sources, tmp_path / "videos", "--gop", 4, *cluster)
    assert again.code == 0 and "12 done before" in again.err


@pytest.mark.long
def test_a_worker_that_is_killed_loses_nothing(cluster, tmp_path):
    clips = make_clips(tmp_path / "src", 16, 60, size=(192, 144))
    assert transcode(clips, tmp_path / "local", "--gop", 4).code == 0
    made = tmp_path / "made"
    run = subprocess.Popen(
        command(clips, made, "--gop", 4, *cluster), env=environment(), stderr=subprocess.PIPE, text=True
    )
    journal = made / ".vidprep" / "journal.jsonl"
    wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 2, "two videos")
    victims = workers_at_work(cluster[1])
    assert victims
    victims[0].kill()
    said = run.communicate(timeout=300)[1]
    assert run.returncode == 0, said
    assert [row.id for row in read_manifest(made)] == [row.id for row in read_manifest(tmp_path / "local")]
    assert outputs(made) == outputs(tmp_path / "local")
    assert not leftovers(made)


@pytest.mark.long
@pytest.mark.parametrize("cluster", in_turn(["dask", "ray"], 2), indirect=True)
def test_ctrl_c_leaves_a_cluster_in_order_and_the_run_goes_on(cluster, tmp_path):
    clips = make_clips(tmp_path / "src", 12, 60, size=(192, 144))
    made = tmp_path / "made"
    run = subprocess.Popen(
        command(clips, made, "--gop", 4, *cluster),
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    journal = made / ".vidprep" / "journal.jsonl"
    wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 2, "two videos")
    os.kill(run.pid, signal.SIGINT)
    said = run.communicate(timeout=300)[1]
    assert run.returncode == 130 and "Traceback" not in said, said
    ran = transcode(clips, made, "--gop", 4)
    assert ran.code == 0 and "done before" in ran.err
    assert not leftovers(made)


POISON = {
    "child": fault(*points.RUN_JOB, at=-1, code="args[0].unit.id == 'c33' and os.kill(os.getpid(), signal.SIGSEGV)"),
    "worker": fault(
        *points.CLUSTER_WORKER_WORK, at=-1, code="args[0].unit.id == 'c33' and os.kill(os.getpid(), signal.SIGKILL)"
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("kills", ["worker", pytest.param("child", marks=pytest.mark.slow)])
def test_a_video_that_kills_whatever_holds_it_fails_alone_on_dask(kills, tmp_path):
    """Most of its 40 clips are so short that one task has several."""
    env = environment(tmp_path / "hook", POISON[kills])
    clips = make_clips(tmp_path / "src", 40, 8, size=(64, 48))
    with dask(tmp_path, workers=2, env=env) as (address, _):
        on_it = ("--backend", "dask", "--cluster-address", address)
        ran = transcode(clips, tmp_path / "made", "--gop", 4, *on_it, timeout=300)  # else it hangs
    assert ran.code == 1, ran.err
    rows = manifest(tmp_path / "made")
    assert {id_ for id_, row in rows.items() if row["status"] != "ok"} == {"c33"}
    assert rows["c33"]["error"] == "CrashedError"
    assert ("SIGSEGV" if kills == "child" else "all workers that could have it died") in rows["c33"]["message"]
    assert len(rows) == 40 and not leftovers(tmp_path / "made")


@pytest.mark.slow
def test_short_jobs_share_a_task_and_long_ones_do_not(tmp_path):
    """A task costs dask some 10 ms of CPU time, whatever it does."""
    count = fault(*points.DASK_WORK, at=-1, code=f"open('{tmp_path}/tasks', 'a').write(str(len(args[0])) + ' ')")
    make_clips(tmp_path / "src", 60, 4, size=(64, 48))
    for number in range(5):
        make_clip(tmp_path / "src" / f"long{number}.mp4", 50, (320, 240), noise=True, seed=number)
    with dask(tmp_path, workers=2, env=environment(tmp_path / "hook", count)) as (address, _):
        on_it = ("--backend", "dask", "--cluster-address", address)
        assert transcode(tmp_path / "src", tmp_path / "made", *on_it, timeout=300).code == 0
    sizes = [int(each) for each in (tmp_path / "tasks").read_text().split()]
    assert sum(sizes) == 65 == len(manifest(tmp_path / "made"))
    assert sizes[:5] == [1] * 5 and len(sizes) < 40


def children_that_read(path):
    found = []
    for process in psutil.process_iter():
        try:
            if "vidprep-child" in process.cmdline() and str(path) in (file.path for file in process.open_files()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.long
@pytest.mark.parametrize("cluster", in_turn(["dask", "ray"], 2), indirect=True)
def test_a_video_whose_process_is_killed_is_one_row_on_a_cluster(cluster, tmp_path):
    clips = make_clips(tmp_path / "src", 3)
    poison = make_clip(clips / "poison.mp4", 300, (320, 240), noise=True)
    made = tmp_path / "made"
    killed = 0
    with subprocess.Popen(command(clips, made, *cluster), env=environment(), stderr=subprocess.PIPE, text=True) as run:
        while run.poll() is None:
            for child in children_that_read(poison):
                child.kill()
                child.wait()
                killed += 1
        assert run.returncode == 1, run.communicate()[1]
    assert killed == 1, "a crash is not tried again in the same run"
    rows = manifest(made)
    row = rows.pop("poison")
    assert (row["status"], row["error"], row["attempts"]) == ("failed", "CrashedError", 1) and "SIGKILL" in row[
        "message"
    ]
    assert {other["status"] for other in rows.values()} == {"ok"} and len(rows) == 3
    assert set(outputs(made)) == {"c00.mp4", "c01.mp4", "c02.mp4"} and not leftovers(made)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--backend", "dask"), "--backend dask needs --cluster-address tcp://host:8786"),
        (("--cluster-address", "tcp://127.0.0.1:1"), "--cluster-address tcp://127.0.0.1:1 needs --backend dask or ray"),
        (
            ("--backend", "dask", "--cluster-address", "nonsense://x"),
            "--cluster-address nonsense://x: no cluster has such an address",
        ),
        pytest.param(
            ("--backend", "dask", "--cluster-address", "tcp://127.0.0.1:{port}"),
            "no dask cluster at tcp://127.0.0.1",
            marks=pytest.mark.slow,  # waits for one to come
        ),
    ],
)
def test_a_cluster_that_is_not_there_is_said(options, said, sources, tmp_path):
    needs_modules(("distributed",), "pip install '.[dask]'")
    options = [text.format(port=free_port()) for text in options]
    ran = transcode(sources, tmp_path / "made", *options)
    assert ran.code == 2 and said in ran.err, ran.err


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_backend_that_is_not_installed_names_its_extra(backend, sources, tmp_path):
    script = (
        "import sys; sys.modules[sys.argv[1]] = None; from vidprep.transcode.cli.main import main; main(sys.argv[2:])"
    )
    module, option = ("distributed", "--cluster-address") if backend == "dask" else ("ray", "--cluster-address")
    arguments = [
        module,
        "transcode",
        str(sources),
        str(tmp_path / "made"),
        "--backend",
        backend,
        option,
        "tcp://127.0.0.1:1",
    ]
    ran = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False, env=environment()
    )
    assert ran.returncode == 2 and f"pip install 'vidprep[{backend}]'" in ran.stderr, ran.stderr
