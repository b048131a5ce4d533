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

READY_SECONDS = 300.0  # a bound for what hangs


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
                process.wait(300)
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


def without(folders: Sequence[Path], command: Sequence[str]) -> list[str]:
    """A command that sees empty folders there: in a mount namespace of its own. Skips where nobody may make one."""
    if folders:
        needs_programs(("unshare",), "apt-get install util-linux")
        if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
            pytest.skip("mount namespaces need root")
    mounts = "".join(f"mount -t tmpfs none '{folder}' && " for folder in folders)
    return ["unshare", "-m", "sh", "-c", f'{mounts}exec "$@"', "sh", *command] if folders else list(command)


@contextmanager
def dask_scheduler(folder: Path, env: dict[str, str] | None = None) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    needs_modules(("distributed",), "pip install '.[dask]'")
    port = free_port()
    program = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
    with daemon([*program, "--no-dashboard"], folder / "scheduler.log", env) as process:
        yield f"tcp://127.0.0.1:{port}", process


@contextmanager
def dask_worker(
    folder: Path, address: str, name: str, env: dict[str, str] | None = None, *, hidden: Sequence[Path] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """hidden: folders that it sees empty."""
    program = [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        address,
        "--nthreads",
        "1",
        "--no-dashboard",
        "--name",
        name,
    ]
    program += ["--death-timeout", "60", "--local-directory", str(folder)]
    with daemon(without(hidden, program), folder / f"{name}.log", env) as process:
        yield process


@contextmanager
def dask(
    folder: Path, workers: int, env: dict[str, str] | None = None, *, config: Path | None = None
) -> Iterator[tuple[str, list[int]]]:
    """A scheduler and workers over TCP, each a command of its own: the address, and the workers' process numbers.

    env: of the workers. config: dask's, of all.
    """
    configured = {} if config is None else {"DASK_CONFIG": str(config)}
    with ExitStack() as stack:
        address, _ = stack.enter_context(dask_scheduler(folder, os.environ | configured))
        for number in range(workers):
            stack.enter_context(dask_worker(folder, address, f"worker{number}", (env or os.environ) | configured))
        yield address, dask_pids(address, workers)


def dask_pids(address: str, workers: int) -> list[int]:
    """Process numbers of the workers, when so many are there."""
    from distributed import Client

    with Client(address, timeout=READY_SECONDS, set_as_default=False) as client:
        client.wait_for_workers(workers, timeout=READY_SECONDS)
        return list(client.run(os.getpid).values())


@contextmanager
def ray_head(folder: Path, cpus: int, env: dict[str, str] | None = None) -> Iterator[str]:
    """A head node on this machine: its address."""
    port = free_port()
    head = ["--head", f"--port={port}", "--include-dashboard=false", "--disable-usage-stats"]
    with _ray_start(folder, cpus, head, "head", env):
        yield f"127.0.0.1:{port}"


@contextmanager
def ray_node(folder: Path, address: str, name: str, *, hidden: Sequence[Path] = ()) -> Iterator[None]:
    """Another node of a cluster, on this machine too. hidden: folders that it sees empty."""
    with _ray_start(folder, 1, [f"--address={address}"], name, None, hidden):
        yield


@contextmanager
def _ray_start(
    folder: Path, cpus: int, options: list[str], name: str, env: dict[str, str] | None, hidden: Sequence[Path] = ()
) -> Iterator[None]:
    needs_modules(("ray",), "pip install '.[ray]'")
    program = [str(Path(sys.executable).with_name("ray")), "start", "--block", f"--num-cpus={cpus}", *options]
    log = folder / f"{name}.log"
    with daemon(without(hidden, [*program, *([f"--temp-dir={folder}"] if "--head" in options else [])]), log, env):
        wait_until(lambda: "Ray runtime started" in log.read_text(), name)
        yield


def needs_modules(names: Sequence[str], install: str) -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        say = pytest.fail if os.environ.get("VIDPREP_REQUIRE") else pytest.skip
        say(f"{', '.join(missing)} not installed: {install}")
