"""Real schedulers on this machine, for tests. Each is skipped where it is not installed, unless VIDPREP_REQUIRE demands it."""

from __future__ import annotations

import getpass
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

READY_SECONDS = 60.0


def needs_programs(names: Sequence[str], install: str) -> None:
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        say = pytest.fail if os.environ.get("VIDPREP_REQUIRE") else pytest.skip
        say(f"{', '.join(missing)} not installed: {install}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(there: Callable[[], bool], what: str, seconds: float = READY_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s"
        time.sleep(0.1)


@contextmanager
def daemon(command: list[str], log: Path, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, which is gone with the block."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=env or os.environ.copy(), start_new_session=True
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@dataclass(frozen=True)
class Slurm:
    environment: dict[str, str]
    folder: Path

    def run(self, *command: object) -> str:
        done = subprocess.run(
            list(map(str, command)), env=self.environment, capture_output=True, text=True, check=False, cwd=self.folder
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def states(self, job: str) -> dict[str, str]:
        """Of the tasks of an array that are known still, by their number."""
        lines = self.run("squeue", "--noheader", "--array", "--states=all", "--format=%K %T", "--job", job).splitlines()
        return dict(line.split() for line in lines if line.split()[0].isdigit())


@contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """One node, this one, with its own key: munged, slurmctld, slurmd."""
    needs_programs(("slurmctld", "slurmd", "munged", "sbatch"), "apt-get install slurm-wlm munge")
    host, user = socket.gethostname().partition(".")[0], getpass.getuser()
    for name in ("state", "spool", "jobs"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    munge = folder / "munge.socket"
    configuration = folder / "slurm.conf"
    configuration.write_text(f"""
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={munge},cred_expire=5
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:8
""")
    environment = os.environ | {"SLURM_CONF": str(configuration)}
    with ExitStack() as stack:
        munged = ["munged", "--foreground", "--force", f"--socket={munge}", f"--key-file={key}"]
        munged += [f"--{kind}-file={folder}/munged.{kind}" for kind in ("pid", "log", "seed")]
        stack.enter_context(daemon(munged, folder / "munged.out"))
        wait_until(munge.exists, "munged")
        for name in ("slurmctld", "slurmd"):
            extra = ["-N", host] if name == "slurmd" else []
            stack.enter_context(daemon([name, "-D", *extra], folder / f"{name}.log", environment))
        found = Slurm(environment, folder / "jobs")

        def is_ready() -> bool:
            done = subprocess.run(
                ["sinfo", "--noheader", "--format=%T"], env=environment, capture_output=True, text=True, check=False
            )
            return done.stdout.strip() in ("idle", "mixed")

        wait_until(is_ready, "slurm")
        yield found


@contextmanager
def dask(
    folder: Path, workers: int, env: dict[str, str] | None = None, *, config: Path | None = None
) -> Iterator[tuple[str, list[int]]]:
    """A scheduler and workers over TCP, each a command of its own: the address, and the workers' process numbers.

    env: of the workers. config: dask's, of all.
    """
    needs_modules(("distributed",), "pip install '.[dask]'")
    configured = {} if config is None else {"DASK_CONFIG": str(config)}
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    with ExitStack() as stack:
        program = [
            sys.executable,
            "-m",
            "distributed.cli.dask_scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--no-dashboard",
        ]
        stack.enter_context(daemon(program, folder / "scheduler.log", os.environ | configured))
        started = []
        for number in range(workers):
            program = [
                sys.executable,
                "-m",
                "distributed.cli.dask_worker",
                address,
                "--nthreads",
                "1",
                "--no-dashboard",
                "--death-timeout",
                "60",
            ]
            started.append(
                stack.enter_context(
                    daemon(
                        [*program, "--local-directory", str(folder)],
                        folder / f"worker{number}.log",
                        (env or os.environ) | configured,
                    )
                ).pid
            )
        from distributed import Client

        with Client(address, timeout=READY_SECONDS, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=READY_SECONDS)
            pids = list(client.run(os.getpid).values())
        yield address, pids


@contextmanager
def ray_head(folder: Path, cpus: int, env: dict[str, str] | None = None) -> Iterator[str]:
    """A head node on this machine: its address."""
    needs_modules(("ray",), "pip install '.[ray]'")
    port = free_port()
    program = [
        str(Path(sys.executable).with_name("ray")),
        "start",
        "--head",
        "--block",
        f"--port={port}",
        f"--num-cpus={cpus}",
    ]
    program += ["--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}"]
    with daemon(program, folder / "ray.log", env):
        wait_until(lambda: "Ray runtime started" in (folder / "ray.log").read_text(), "ray")
        yield f"127.0.0.1:{port}"


def needs_modules(names: Sequence[str], install: str) -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        say = pytest.fail if os.environ.get("VIDPREP_REQUIRE") else pytest.skip
        say(f"{', '.join(missing)} not installed: {install}")
