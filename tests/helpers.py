"""Tiny clips from PyAV's encoder, the command line as a process, and a way to break it at a chosen call."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from vidprep.transcode.cli.main import main

TIME_LIMIT = 60
MANIFEST_NAMES = ("manifest.parquet", "gops.parquet", ".manifest.parquet.partial", ".gops.parquet.partial")

# Every interpreter of a run, parent and children, imports this before anything else: VIDPREP_FAULTS says what breaks, and where.
SITECUSTOMIZE = """
import importlib, os, signal, sys, time
in_child = "vidprep-child" in sys.orig_argv

def break_it(where, name, number, when, code, only):
    if only != "any" and (only == "child") != in_child:
        return
    owner = importlib.import_module(where)
    *path, attribute = name.split(".")
    for step in path:
        owner = getattr(owner, step)
    real, calls = getattr(owner, attribute), [0]
    def broken(*args, **kwargs):
        calls[0] += 1
        mine = calls[0] == int(number) or (number.startswith("-") and calls[0] >= -int(number))
        if mine and when == "before":
            exec(compile(code, 'fault', 'exec'))
        result = real(*args, **kwargs)
        if mine and when == "after":
            exec(compile(code, 'fault', 'exec'))
        return result
    setattr(owner, attribute, broken)

if in_child or {"vidprep.transcode", "--multiprocessing-fork"} & set(sys.orig_argv):  # of which the last is a worker of dask
    for fault in filter(None, os.environ.get("VIDPREP_FAULTS", "").split(chr(10))):
        try:
            break_it(*fault.split("|"))
        except (ImportError, AttributeError) as error:
            print("Traceback: no such place to break:", fault, error, file=sys.stderr, flush=True)
            os._exit(70)
if in_child and "VIDPREP_CHILD_LIMIT" in os.environ:
    import resource
    kind, size = os.environ["VIDPREP_CHILD_LIMIT"].split("|")
    resource.setrlimit(getattr(resource, kind), (int(size), int(size)))
"""
KILL_ALL = "os.killpg(0, signal.SIGKILL)"
# Real clips that take seconds to decode.
LARGE_MEDIA = ("*1080*", "*4k60*", "hdr10*", "clock*", "concert*", "traffic*", "gopro*")


def make_clip(
    path: Path,
    frames: int = 10,
    size: tuple[int, int] = (64, 48),
    *,
    seed: int = 0,
    codec: str = "libx264",
    rate: int = 25,
    options: Mapping[str, str] | None = None,
    muxing: Mapping[str, str] | None = None,
    noise: bool = False,
) -> Path:
    """A clip in which no two frames are equal; the same arguments give the same bytes. noise: hard to compress."""
    path.parent.mkdir(parents=True, exist_ok=True)
    width, height = size
    numbers = np.random.default_rng(seed)
    block = 1 if noise else 8
    with av.open(
        f"file:{path.absolute()}", "w", container_options=dict(muxing or {}) | {"fflags": "+bitexact"}
    ) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        preset = {
            "libx264": {"preset": "ultrafast", "qp": "18"},
            "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"},
        }
        stream.codec_context.options = preset.get(codec, {}) | dict(options or {})
        stream.codec_context.thread_count = 1
        for number in range(frames):
            picture = numbers.integers(0, 255, (-(-height // block), -(-width // block), 3), dtype=np.uint8)
            picture = picture.repeat(block, 0).repeat(block, 1)[:height, :width]
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24").reformat(format="yuv420p")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def make_clips(folder: Path, count: int, frames: int = 6, **more: Any) -> Path:
    for number in range(count):
        make_clip(folder / f"c{number:02d}.mp4", frames + number % 3, seed=number, **more)
    return folder


@dataclass(frozen=True)
class Ran:
    """A finished `vidprep transcode`."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Of --json, by id."""
        return {row["id"]: row for row in map(json.loads, self.out.splitlines()) if "id" in row}

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads(self.out.splitlines()[-1])["summary"]


def copy_packages(folder: Path) -> None:
    """Copy vidprep into `folder`, as a tree that tests may change."""
    root = Path(__file__).parents[1]
    for source, name in (
        ("src/vidprep", "vidprep"),
        ("formats", "vidprep/formats"),
        ("transcode", "vidprep/transcode"),
    ):
        shutil.copytree(root / source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


def command(*args: object, verb: str = "transcode") -> list[str]:
    return [sys.executable, "-m", "vidprep.transcode", verb, *map(str, args)]


def environment(hook: Path | None = None, *faults: str, **more: str) -> dict[str, str]:
    """The environment of a run. hook: a folder for the sitecustomize that breaks what `faults` say."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("VIDPREP_")} | more
    env["PYTHONWARNINGS"] = "error"
    if hook is not None:
        hook.mkdir(exist_ok=True)
        (hook / "sitecustomize.py").write_text(SITECUSTOMIZE)
        path = os.pathsep.join(filter(None, (str(hook), env.get("PYTHONPATH"))))
        env |= {"PYTHONPATH": path, "VIDPREP_FAULTS": "\n".join(faults)}
    return env


def fault(where: str, name: str, *, at: int = 1, when: str = "before", code: str = KILL_ALL, only: str = "any") -> str:
    """For `environment`: run `code` before or after the at-th call of a function, in the parent, a child or any.

    at: counted in each process; -n means the n-th and every later one. `code` sees `args` and `calls[0]`.
    """
    assert not {"|", "\n"} & set(code)
    return "|".join((where, name, str(at), when, code, only))


def transcode(*args: object, env: Mapping[str, str] | None = None, verb: str = "transcode", **more: Any) -> Ran:
    """`vidprep transcode …` to its end: with an environment or more for `subprocess.run` in a process and a session of its
    own, else in this one, which spares half a second (its children are processes all the same).
    """
    if env is None and not more:
        told = CliRunner().invoke(main, [verb, *map(str, args)])
        if told.exception is not None and not isinstance(told.exception, SystemExit):
            raise told.exception
        return Ran(told.exit_code, told.stdout, told.stderr)
    done = subprocess.run(
        command(*args, verb=verb),
        env=env or environment(),
        capture_output=True,
        text=True,
        check=False,
        **{"timeout": TIME_LIMIT, "start_new_session": True} | more,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Ran(done.returncode, done.stdout, done.stderr)


def start(*args: object, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*args),
        env=env or environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def manifest(destination: Path) -> dict[str, dict[str, Any]]:
    """Rows by id; each unit must have one."""
    rows = pq.read_table(destination / "manifest.parquet").to_pylist()
    found = {row["id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def outputs(destination: Path) -> dict[str, bytes]:
    """Every file outside the state folder that is no manifest, by relative name."""
    return {
        str(path.relative_to(destination)): path.read_bytes()
        for path in sorted(destination.rglob("*"))
        if path.is_file() and ".vidprep" not in path.parts and path.name not in MANIFEST_NAMES and path.name[0] != "."
    }


def identities(destination: Path) -> dict[str, tuple[int, int]]:
    """Inode and modification time of every output: what a rewrite changes."""
    return {name: ((s := (destination / name).stat()).st_ino, s.st_mtime_ns) for name in outputs(destination)}


def leftovers(destination: Path) -> list[str]:
    """Partial files, and a journal that was not merged."""
    state_dir = destination / ".vidprep"
    found = [
        *state_dir.glob("partial/*"),
        *state_dir.glob(".*"),
        *destination.rglob(".*.partial"),
        *state_dir.glob("journal*"),
    ]
    return [str(path) for path in found]


def open_files(folder: Path | None = None) -> list[str]:
    """What this process has opened below a folder, and files without a name; or everything. On Linux."""
    links = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(str(each.readlink()))
    return sorted(
        link for link in links if folder is None or link.startswith(f"{folder}/") or link.endswith(" (deleted)")
    )


def processes_of_group(group: int) -> list[psutil.Process]:
    """Living processes of a session that `start` began, whatever became of its leader."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.Error):
            continue
    return found


def no_processes_left(group: int, seconds: float = 120) -> None:
    """A process that was killed is seen for a moment still."""
    deadline = time.monotonic() + seconds
    while left := processes_of_group(group):
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.05)


def table(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    """A csv of rows."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
    path.write_text("".join(",".join(line) + "\n" for line in lines))
    return path


def with_peers(script: str | Path, *arguments: object, needs: Sequence[str]) -> str:
    """What a script, or the file of one, prints in a Python of its own: other people's readers bring libraries that clash with PyAV's, and warnings.

    Skips where a package of `needs` is not installed (extra `bench`), unless VIDPREP_REQUIRE demands it.
    """
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        say = pytest.fail if os.environ.get("VIDPREP_REQUIRE") else pytest.skip
        say(f"{', '.join(missing)} not installed: pip install '.[bench]'")
    command = [sys.executable, *([script] if isinstance(script, Path) else ["-c", script]), *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
