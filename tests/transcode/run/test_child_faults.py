"""What a video does to its child process costs one row."""

from __future__ import annotations

import errno
import sys
import threading
from pathlib import Path

import imageio_ffmpeg
import pytest

from tests import points
from tests.helpers import Ran, environment, fault, make_clip, manifest, no_processes_left, outputs, start, transcode
from tests.sampling import in_turn
from tests.transcode.run.poison import fake_ffmpeg, on_poison, one_failed, partial_stem
from vidprep.transcode.workers.child import Child


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "said", "engine"),
    in_turn(
        [
            ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV", "av"),
            ("os._exit(3)", "code 3", "av"),
            ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV", "ffmpeg"),
            ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL", "av"),
        ],
        2,
    ),
)
def test_a_video_that_kills_its_process_is_one_row(
    poisoned: Path, dst: Path, tmp_path: Path, code: str, said: str, engine: str
) -> None:
    env = environment(tmp_path / "hook", on_poison(code))
    told = one_failed(transcode(poisoned, dst, "--jobs", 2, "--engine", engine, env=env), dst)
    assert told.startswith("CrashedError: ") and said in told
    assert (manifest(dst)["poison"]["stage"], manifest(dst)["poison"]["attempts"]) == ("isolate", 1)
    assert transcode(poisoned, dst, "--engine", engine).code == 0
    assert manifest(dst)["poison"]["attempts"] == 2


@pytest.mark.long
@pytest.mark.parametrize("engine", in_turn(["av", "ffmpeg"], 2))
def test_a_kill_in_the_middle_of_an_encode_leaves_nothing_half_written(
    poisoned: Path, dst: Path, tmp_path: Path, engine: str
) -> None:
    if engine == "av":
        stem = partial_stem("poison")
        code = f"if args[0].path.stem.startswith('{stem}') and calls[0] % 5 == 0: os.kill(os.getpid(), signal.SIGKILL)"
        broken = fault(*points.VIDEO_WRITER_MUX, at=-1, code=code, only="child")
    else:
        code = "if 'poison' in args[1]: os.kill(os.getpid(), signal.SIGKILL)"
        broken = fault(*points.RUN_FFMPEG, at=-1, when="after", code=code, only="child")
    ran = transcode(poisoned, dst, "--jobs", 2, "--engine", engine, env=environment(tmp_path / "hook", broken))
    assert "killed by SIGKILL" in one_failed(ran, dst)


def test_a_child_that_dies_before_it_takes_a_video_is_started_again(poisoned: Path, dst: Path, tmp_path: Path) -> None:
    """It has not seen the video, which is not to blame."""
    once = tmp_path / "once"
    code = f"os.path.exists('{once}') or (open('{once}', 'w'), os._exit(1))"
    broken = fault(*points.DIE_WITH, code=code, only="child")
    ran = transcode(poisoned, dst, "--jobs", 1, env=environment(tmp_path / "hook", broken))
    assert ran.code == 0, ran.err
    assert len(outputs(dst)) == 5


@pytest.mark.long
@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
def test_a_video_that_hangs_is_stopped_at_its_deadline(poisoned: Path, dst: Path, tmp_path: Path, engine: str) -> None:
    """SIGSTOP stands for a decoder that spins: no signal but SIGKILL reaches either."""
    if engine == "av":
        hung = environment(tmp_path / "hook", on_poison("os.kill(os.getpid(), signal.SIGSTOP)"))
        options: list[object] = []
    else:
        stop = "os.kill(os.getpid(), 19) if 'poison' in ' '.join(sys.argv) else os.execv(REAL, [REAL, *sys.argv[1:]])"
        hung, options = environment(), ["--engine", "ffmpeg", "--ffmpeg", fake_ffmpeg(tmp_path, stop)]
    process = start(poisoned, dst, "--jobs", 2, "--timeout", 6, *options, env=hung)
    out, err = process.communicate(timeout=300)
    told = one_failed(Ran(process.returncode, out, err), dst)
    assert told.startswith("DeadlineError: stopped after 6 s")
    no_processes_left(process.pid, 2)


@pytest.mark.long
def test_a_child_that_hangs_before_it_takes_a_video_does_not_take_the_others_with_it(
    poisoned: Path, dst: Path, tmp_path: Path
) -> None:
    once = tmp_path / "once"
    code = f"os.path.exists('{once}') or (open('{once}', 'w'), os.kill(os.getpid(), signal.SIGSTOP))"
    hung = environment(tmp_path / "hook", fault(*points.DIE_WITH, code=code, only="child"))
    ran = transcode(poisoned, dst, "--jobs", 1, "--timeout", 4, "--json", env=hung)
    assert ran.code == 1
    assert sorted(row["status"] for row in ran.rows.values()) == ["failed", "ok", "ok", "ok", "ok"]


def test_memory_that_runs_out_is_one_row(poisoned: Path, dst: Path, tmp_path: Path) -> None:
    """A real limit on the address space, 30 MB above what the child has when it begins."""
    make_clip(poisoned / "poison.mp4", 3, (1920, 1080), seed=5)
    code = (
        "r = __import__('resource'); size = int(__import__('pathlib').Path('/proc/self/statm').read_text().split()[0]) * 4096; "
        "r.setrlimit(r.RLIMIT_AS, (size + 30_000_000, r.getrlimit(r.RLIMIT_AS)[1]))"
    )
    ran = transcode(poisoned, dst, "--jobs", 1, env=environment(tmp_path / "hook", on_poison(code)))
    assert one_failed(ran, dst).split(":")[0] in ("ReadError", "EncodeError", "CrashedError"), "wherever it was noticed"


@pytest.mark.parametrize("where", ["encode", "result"])
def test_a_memory_error_anywhere_in_the_child_is_one_row(poisoned: Path, dst: Path, tmp_path: Path, where: str) -> None:
    if where == "encode":
        code = f"if args[0].path.stem.startswith('{partial_stem('poison')}'): raise MemoryError"
        broken = fault(*points.VIDEO_WRITER_MUX, at=-1, code=code, only="child")
    else:
        broken = on_poison("raise MemoryError")
    told = one_failed(transcode(poisoned, dst, "--jobs", 2, env=environment(tmp_path / "hook", broken)), dst)
    assert told.startswith("ReadError: ran out of memory")


@pytest.mark.long
@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
def test_a_video_that_takes_more_memory_than_it_may_is_one_row(poisoned: Path, dst: Path, engine: str) -> None:
    """A real one: frames of 36 million pixels in its decoder, its filter and its encoder. Where CPython has no memory to begin a thread
    with, it waits for it for ever, until the deadline.
    """
    make_clip(poisoned / "poison.mp4", 2, (5984, 5984), seed=5)
    args = ("--ffmpeg", imageio_ffmpeg.get_ffmpeg_exe()) if engine == "ffmpeg" else ()
    args = ("--jobs", 1, "--timeout", 30, "--engine", engine, *args)
    one_failed(transcode(poisoned, dst, *args, "--max-memory", "512MiB", env=environment()), dst)
    again = transcode(poisoned, dst, *args, "--max-memory", "8GiB", env=environment())
    assert again.code == 0, "it was the memory"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux counts it so")
@pytest.mark.parametrize("name", ["memory", "files", "size", "core"])
def test_a_child_takes_no_more_of_the_machine_than_it_may(name: str, tmp_path: Path) -> None:
    code = {
        "memory": "bytearray(20 << 30)",
        "files": "kept = [open('/dev/null') for _ in range(5000)]",
        "size": f"open({str(tmp_path / 'large')!r}, 'wb').truncate(5 << 40)",
        "core": "assert __import__('resource').getrlimit(__import__('resource').RLIMIT_CORE)[0] == 0; raise BlockingIOError",
    }[name]
    child = Child(threading.Event(), count=10_000)
    due = {"memory": MemoryError, "core": BlockingIOError}.get(name, OSError)
    try:
        with pytest.raises(due) as caught:
            child.call(exec, code, lambda _work: 60.0)
    finally:
        child.close()
    assert name != "files" or caught.value.errno == errno.EMFILE
    assert name != "size" or caught.value.errno == errno.EFBIG
