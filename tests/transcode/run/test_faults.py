"""Whatever happens to one video costs one row; whatever happens to a run, the next one ends with the same bytes.

Tests are named after the rows of the fault table. Faults are real ones (signals, limits, files that change), put at a
chosen call by a sitecustomize that every process of the run imports: see `tests.helpers.fault`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import imageio_ffmpeg
import pytest

from tests.helpers import (
    Ran,
    command,
    environment,
    fault,
    identities,
    leftovers,
    make_clip,
    make_clips,
    manifest,
    no_processes_left,
    outputs,
    processes_of_group,
    start,
    transcode,
)  # fmt: skip
from tests.sampling import in_turn, pairs

CLIPS = 8
STOPPED = 3  # no video is to blame
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clips(tmp_path_factory.mktemp("clips") / "src", CLIPS)


@pytest.fixture(scope="module")
def undisturbed(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run makes of the clips when nothing happens to it."""
    destination = tmp_path_factory.mktemp("reference") / "dst"
    assert transcode(clips, destination).code == 0
    return outputs(destination)


@pytest.fixture
def poisoned(tmp_path: Path) -> Path:
    folder = make_clips(tmp_path / "src", 4)
    make_clip(folder / "poison.mp4", 12, seed=99)
    return folder


@pytest.fixture
def dst(tmp_path: Path) -> Path:
    return tmp_path / "dst"


def partial_stem(unit_id: str) -> str:
    return hashlib.sha256(unit_id.encode()).hexdigest()[:24]


def on_poison(code: str) -> str:
    """In the child that gets poison.mp4, before it begins."""
    return fault(
        "vidprep.transcode.unit.run_job",
        "run_job",
        at=-1,
        code=f"if 'poison' in args[0].unit.path: {code}",
        only="child",
    )


def one_failed(ran: Ran, dst: Path) -> str:
    """All clips but poison.mp4 are there, it is one failed row, nothing partial is left. Its error and message."""
    assert ran.code == 1, ran.err
    rows = manifest(dst)
    row = rows.pop("poison")
    assert row["status"] == "failed"
    assert len(rows) == 4 and {other["status"] for other in rows.values()} == {"ok"}
    assert set(outputs(dst)) == {other["file_name"] for other in rows.values()}
    assert leftovers(dst) == []
    assert ran.err.count("failed: ") == 1
    return f"{row['error']}: {row['message']}"


# ---------------------------------------------------------------------------------------------- one child


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
def test_f1_a_video_that_kills_its_process_is_one_row(
    poisoned: Path, dst: Path, tmp_path: Path, code: str, said: str, engine: str
) -> None:
    env = environment(tmp_path / "hook", on_poison(code))
    told = one_failed(transcode(poisoned, dst, "--jobs", 2, "--engine", engine, env=env), dst)
    assert told.startswith("CrashedError: ") and said in told
    assert (manifest(dst)["poison"]["stage"], manifest(dst)["poison"]["attempts"]) == ("isolate", 1)
    assert transcode(poisoned, dst, "--engine", engine).code == 0
    assert manifest(dst)["poison"]["attempts"] == 2


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
def test_f6_a_kill_in_the_middle_of_an_encode_leaves_nothing_half_written(
    poisoned: Path, dst: Path, tmp_path: Path, engine: str
) -> None:
    if engine == "av":
        stem = partial_stem("poison")
        code = f"if args[0].path.stem.startswith('{stem}') and calls[0] % 5 == 0: os.kill(os.getpid(), signal.SIGKILL)"
        broken = fault("vidprep.transcode.media.encode", "VideoWriter.mux", at=-1, code=code, only="child")
    else:
        code = "if 'poison' in args[1]: os.kill(os.getpid(), signal.SIGKILL)"
        broken = fault("vidprep.transcode.unit.engines", "run_ffmpeg", at=-1, when="after", code=code, only="child")
    ran = transcode(poisoned, dst, "--jobs", 2, "--engine", engine, env=environment(tmp_path / "hook", broken))
    assert "killed by SIGKILL" in one_failed(ran, dst)


def test_f1_a_child_that_dies_before_it_takes_a_video_is_started_again(
    poisoned: Path, dst: Path, tmp_path: Path
) -> None:
    """The pool of a child that dies so early is broken for good: it took the whole run with it."""
    once = tmp_path / "once"
    code = f"os.path.exists('{once}') or (open('{once}', 'w'), os._exit(1))"
    broken = fault("vidprep.transcode.workers.child", "_start_child", code=code, only="child")
    ran = transcode(poisoned, dst, "--jobs", 1, env=environment(tmp_path / "hook", broken))
    assert ran.code == 0, ran.err
    assert len(outputs(dst)) == 5


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
def test_f3_a_video_that_hangs_is_stopped_at_its_deadline(
    poisoned: Path, dst: Path, tmp_path: Path, engine: str
) -> None:
    """SIGSTOP stands for a decoder that spins: no signal but SIGKILL reaches either."""
    if engine == "av":
        hung = environment(tmp_path / "hook", on_poison("os.kill(os.getpid(), signal.SIGSTOP)"))
        options: list[object] = []
    else:
        stop = "os.kill(os.getpid(), 19) if 'poison' in ' '.join(sys.argv) else os.execv(REAL, [REAL, *sys.argv[1:]])"
        hung, options = environment(), ["--engine", "ffmpeg", "--ffmpeg", fake_ffmpeg(tmp_path, stop)]
    process = start(poisoned, dst, "--jobs", 2, "--timeout", 6, *options, env=hung)
    out, err = process.communicate(timeout=60)
    told = one_failed(Ran(process.returncode, out, err), dst)
    assert told.startswith("DeadlineError: stopped after 6 s")
    no_processes_left(process.pid, 2)


def test_f3_a_child_that_hangs_before_it_takes_a_video_does_not_take_the_others_with_it(
    poisoned: Path, dst: Path, tmp_path: Path
) -> None:
    once = tmp_path / "once"
    code = f"os.path.exists('{once}') or (open('{once}', 'w'), os.kill(os.getpid(), signal.SIGSTOP))"
    hung = environment(
        tmp_path / "hook", fault("vidprep.transcode.workers.child", "_start_child", code=code, only="child")
    )
    ran = transcode(poisoned, dst, "--jobs", 1, "--timeout", 6, "--json", env=hung)
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
        broken = fault("vidprep.transcode.media.encode", "VideoWriter.mux", at=-1, code=code, only="child")
    else:
        broken = on_poison("raise MemoryError")
    told = one_failed(transcode(poisoned, dst, "--jobs", 2, env=environment(tmp_path / "hook", broken)), dst)
    assert told.startswith("ReadError: ran out of memory")


# ---------------------------------------------------------------------------------------------- the whole run

TORN = "if args[1][:6] == b'{\"id\":' and (calls.append(0) or len(calls) > 4): real(args[0], args[1][:90]); os.killpg(0, signal.SIGKILL)"
MOMENTS = {
    "settings, before": fault("vidprep.transcode.destination.folder", "Destination.write_settings", only="parent"),
    "taking the lease": fault("os", "fsync", only="parent"),
    "settings, while writing": fault("os", "fsync", at=2, only="parent"),
    "settings, after": fault(
        "vidprep.transcode.destination.folder", "Destination.write_settings", when="after", only="parent"
    ),
    "probing": fault("vidprep.transcode.unit.run_job", "Source.__init__", at=2, only="child"),
    "encoding": fault("vidprep.transcode.media.encode", "VideoWriter.mux", at=16, only="child"),
    "closing": fault("vidprep.transcode.media.encode", "VideoWriter.close", at=2, only="child"),
    "verifying": fault("vidprep.transcode.unit.engines", "check_file", at=2, only="child"),
    "summing": fault("vidprep.transcode.unit.row", "sha256_of", at=2, when="after", only="child"),
    "journal, before": fault("vidprep.formats.manifest.table", "Journal.append", at=4, only="parent"),
    "journal, torn": fault("os", "write", at=-1, code=TORN, only="parent"),
    "journal, after": fault("vidprep.formats.manifest.table", "Journal.append", at=4, when="after", only="parent"),
    "renaming, before": fault("vidprep.transcode.destination.folder", "Destination.name", at=4, only="parent"),
    "renaming, after": fault(
        "vidprep.transcode.destination.folder", "Destination.name", at=4, when="after", only="parent"
    ),
    "merging, before": fault("vidprep.transcode.destination.folder", "write_rows", only="parent"),
    "merging, while writing": fault("pyarrow.parquet", "write_table", when="after", only="parent"),
    "merging, before the journal goes": fault("vidprep.formats.manifest.table", "Journal.clear", only="parent"),
    "merging, after": fault("vidprep.formats.manifest.table", "Journal.clear", when="after", only="parent"),
}


def resumed(clips: Path, dst: Path, undisturbed: dict[str, bytes], *args: object) -> None:
    """A next run finishes; what was finished before is not touched, and all is as if nothing had happened."""
    before = identities(dst)
    ran = transcode(clips, dst, "--jobs", 2, "--json", *args)
    assert ran.code == 0, ran.err
    after = identities(dst)
    assert {name: after[name] for name in before} == before, "a finished output was made again"
    assert outputs(dst) == undisturbed
    rows = manifest(dst)
    assert {row["file_name"] for row in rows.values()} == set(undisturbed)
    for row in rows.values():
        assert row["status"] == "ok"
        assert row["sha256"] == hashlib.sha256(undisturbed[row["file_name"]]).hexdigest()
    assert ran.summary["ok"] + ran.summary["done_before"] == len(undisturbed)
    assert leftovers(dst) == []


@pytest.mark.parametrize("moment", in_turn(MOMENTS, 3))
def test_f5_a_kill_of_the_whole_run_at_any_step_costs_nothing_that_was_finished(
    clips: Path, dst: Path, tmp_path: Path, undisturbed: dict[str, bytes], moment: str
) -> None:
    process = start(clips, dst, "--jobs", 2, env=environment(tmp_path / "hook", MOMENTS[moment]))
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, f"the moment never came: {err}"
    no_processes_left(process.pid)
    finished = outputs(dst)
    assert finished.items() <= undisturbed.items()
    if moment.startswith(("renaming", "journal")):
        assert 0 < len(finished) < CLIPS
    if moment.startswith("merging"):
        assert len(finished) == CLIPS
    resumed(clips, dst, undisturbed)


def test_f5_kills_at_any_time_one_after_the_other(clips: Path, dst: Path, undisturbed: dict[str, bytes]) -> None:
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
def test_f5_twenty_kills_of_a_run_of_two_hundred(dst: Path, tmp_path: Path, verb: str) -> None:
    """Everything is killed at once, at random times; nothing that was finished is done again, and the bytes are the same."""
    src = make_clips(tmp_path / "src", 200, 12, size=(96, 64))
    assert transcode(src, tmp_path / "undisturbed", verb=verb).code == 0
    rng = random.Random(0)
    kept: dict[str, tuple[int, int]] = {}
    for _ in range(20):
        process = subprocess.Popen(
            command(src, dst, "--jobs", 2, verb=verb), env=environment(), stderr=subprocess.DEVNULL, start_new_session=True
        )  # fmt: skip
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


def test_f5_children_die_with_a_parent_that_is_killed_alone(clips: Path, dst: Path, tmp_path: Path) -> None:
    slow = fault("vidprep.transcode.unit.run_job", "run_job", code="time.sleep(60)", only="child")
    process = start(clips, dst, "--jobs", 2, env=environment(tmp_path / "hook", slow))
    wait_for_children(process.pid)
    process.kill()
    process.communicate()
    no_processes_left(process.pid, 5)


def wait_for_children(group: int, count: int = 2) -> None:
    """Until so many children sleep in their work: they have loaded what they need, and use no more CPU time."""
    deadline, before = time.monotonic() + 30, []
    while True:
        children = [p for p in processes_of_group(group) if "--multiprocessing-fork" in p.cmdline()]
        used = [p.cpu_times().user for p in children]
        if len(used) >= count and min(used) > 0.05 and used == before:
            return
        before = used
        time.sleep(0.25)
        assert time.monotonic() < deadline, "the children did not start"


@pytest.mark.parametrize(
    ("number", "whom", "code", "engine"),
    in_turn([
        (signal.SIGINT, "group", 130, "av"), (signal.SIGINT, "parent", 130, "av"), (signal.SIGINT, "group", 130, "ffmpeg"),
        (signal.SIGTERM, "group", 143, "av"), (signal.SIGTERM, "parent", 143, "av"), (signal.SIGUSR1, "group", 143, "av"),
    ], 3),
)  # fmt: skip
def test_f33_a_signal_stops_the_run_with_no_row_for_what_was_abandoned(
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
        faults = [fault("vidprep.transcode.unit.run_job", "run_job", at=-1, code="time.sleep(1.5)", only="child")]
    process = start(clips, dst, "--jobs", 2, *extra, env=environment(tmp_path / "hook", *faults))
    wait_for_children(process.pid)
    os.killpg(process.pid, number) if whom == "group" else process.send_signal(number)
    _, err = process.communicate(timeout=30)
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


@pytest.mark.parametrize("how", ["second signal", "grace time"])
def test_f33_a_second_signal_or_the_end_of_the_grace_time_abandons_what_is_in_flight(
    clips: Path, dst: Path, tmp_path: Path, undisturbed: dict[str, bytes], how: str
) -> None:
    stuck = fault("vidprep.transcode.unit.run_job", "run_job", at=-1, code="time.sleep(60)", only="child")
    short = fault(
        "vidprep.transcode.run.run",
        "run",
        code="sys.modules['vidprep.transcode.run.run'].GRACE_SECONDS = 1.0",
        only="parent",
    )
    faults = [stuck, short] if how == "grace time" else [stuck]
    process = start(clips, dst, "--jobs", 2, env=environment(tmp_path / "hook", *faults))
    wait_for_children(process.pid)
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    if how == "second signal":
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert time.monotonic() - sent < 8
    no_processes_left(process.pid, 3)
    assert outputs(dst) == {} and leftovers(dst) == [] and not (dst / "manifest.parquet").exists()
    resumed(clips, dst, undisturbed)


def test_f33_ctrl_c_while_planning_exits_130(clips: Path, dst: Path, tmp_path: Path) -> None:
    # A shell's background jobs, which the tests may be, ignore SIGINT, and what they start inherits that.
    code = (
        "signal.signal(signal.SIGINT, signal.default_int_handler); os.kill(os.getpid(), signal.SIGINT); time.sleep(5)"
    )
    broken = fault("vidprep.transcode.run.session", "find_sources", code=code, only="parent")
    ran = transcode(clips, dst, env=environment(tmp_path / "hook", broken))
    assert ran.code == 130
    assert not dst.exists()


# ---------------------------------------------------------------------------------------------- disk full


@pytest.mark.parametrize(("container", "engine"), pairs(["mp4", "mkv", "webm"], ["av", "ffmpeg"], each=1))
def test_f7_no_room_for_an_output_stops_the_run_and_the_next_one_finishes(
    dst: Path, tmp_path: Path, container: str, engine: str
) -> None:
    src = make_clips(tmp_path / "src", 3, 12, noise=True)
    args = ["--jobs", 1, "--engine", engine, "--container", container, "--json"]
    args += ["--codec", "vp9", "--preset", "8"] if container == "webm" else []
    if engine == "ffmpeg":
        args += ["--ffmpeg", imageio_ffmpeg.get_ffmpeg_exe()]
    full = environment(tmp_path / "hook", VIDPREP_CHILD_LIMIT="RLIMIT_FSIZE|9000")
    ran = transcode(src, dst, *args, env=full)
    assert ran.code == STOPPED
    assert not ran.rows, ran.out
    assert (ran.summary["failed"], ran.summary["not_started"]) == (0, 3)
    needed = sum(path.stat().st_size for path in src.iterdir())
    assert "bytes are free" in ran.err and f"hold {needed};" in ran.err
    assert outputs(dst) == {} and leftovers(dst) == []
    again = transcode(src, dst, *args)
    assert again.code == 0, again.err
    assert {row["status"] for row in manifest(dst).values()} == {"ok"} and len(outputs(dst)) == 3
    assert min(len(content) for content in outputs(dst).values()) > 9000, "the limit was none"


@pytest.mark.parametrize(
    ("size", "engine"), in_turn([(0, "av"), (100, "av"), (8000, "av"), (0, "ffmpeg"), (1500, "av"), (12000, "av")], 3)
)
def test_f7_wherever_in_the_file_the_room_ends(dst: Path, tmp_path: Path, size: int, engine: str) -> None:
    """At 0 there is no room for a file of ours beside it either."""
    src = make_clips(tmp_path / "src", 1, 12, noise=True)
    full = environment(tmp_path / "hook", VIDPREP_CHILD_LIMIT=f"RLIMIT_FSIZE|{size}")
    container = ("mp4", "mkv")[size % 800 == 0]
    ran = transcode(src, dst, "--container", container, "--engine", engine, "--json", env=full)
    assert ran.code == STOPPED and not ran.rows and "no room left" in ran.err, ran.out
    assert outputs(dst) == {} and leftovers(dst) == []


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
@pytest.mark.parametrize("container", ["mp4", "mkv", "webm"])
def test_f7_the_room_ends_at_every_hundredth_byte(tmp_path: Path, container: str, engine: str) -> None:
    src = make_clips(tmp_path / "src", 1, 4, size=(64, 48), noise=True)
    args = ["--engine", engine, "--container", container]
    args += ["--codec", "vp9", "--preset", "8"] if container == "webm" else []
    args += ["--ffmpeg", imageio_ffmpeg.get_ffmpeg_exe()] if engine == "ffmpeg" else []
    assert transcode(src, tmp_path / "whole", *args).code == 0
    (whole,) = outputs(tmp_path / "whole").values()
    dst = tmp_path / "dst"
    for size in range(0, len(whole) - 1, 100):
        full = environment(tmp_path / "hook", VIDPREP_CHILD_LIMIT=f"RLIMIT_FSIZE|{size}")
        ran = transcode(src, dst, *args, "--json", env=full)
        assert ran.code == STOPPED and not ran.rows, (size, ran.out)
        assert "no room left" in ran.err and outputs(dst) == {} and leftovers(dst) == []
    assert transcode(src, dst, *args).code == 0
    assert list(outputs(dst).values()) == [whole]


NO_ROOM = "raise OSError(28, 'No space left on device')"
HALF_A_LINE = (
    "if args[1][:6] == b'{\"id\":' and (calls.append(0) or len(calls) > 4): real(args[0], args[1][:90]); " + NO_ROOM
)


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (fault("vidprep.formats.manifest.table", "Journal.append", at=1, code=NO_ROOM, only="parent"), STOPPED),
        pytest.param(
            fault("vidprep.formats.manifest.table", "Journal.append", at=5, code=NO_ROOM, only="parent"),
            STOPPED,
            marks=pytest.mark.slow,
        ),
        (fault("os", "write", at=-1, code=HALF_A_LINE, only="parent"), STOPPED),
        (fault("vidprep.transcode.destination.folder", "Destination.name", at=3, code=NO_ROOM, only="parent"), STOPPED),
        (fault("os", "fsync", at=1, code=NO_ROOM, only="parent"), 2),
        pytest.param(fault("os", "fsync", at=2, code=NO_ROOM, only="parent"), 2, marks=pytest.mark.slow),
        (fault("os", "fsync", at=3, code=NO_ROOM, only="parent"), STOPPED),
        pytest.param(
            fault("pyarrow.parquet", "write_table", at=1, code=NO_ROOM, only="parent"), STOPPED, marks=pytest.mark.slow
        ),
    ],
    ids=["first row", "fifth row", "torn row", "rename", "lease", "settings", "manifest", "manifest, early"],
)
def test_f7_no_room_for_our_own_files_is_said_and_the_next_run_finishes(
    clips: Path, dst: Path, tmp_path: Path, undisturbed: dict[str, bytes], broken: str, code: int
) -> None:
    ran = transcode(clips, dst, "--jobs", 2, env=environment(tmp_path / "hook", broken))
    assert ran.code == code, ran.err
    assert "no room left in" in ran.err or "No space left on device" in ran.err
    assert outputs(dst).items() <= undisturbed.items()
    resumed(clips, dst, undisturbed)


# ---------------------------------------------------------------------------------------------- the other engine


def fake_ffmpeg(folder: Path, body: str) -> Path:
    """An ffmpeg that answers questions about itself truly, and on work does `body`; REAL is the true one."""
    path = folder / "fake-ffmpeg"
    path.write_text(
        f"#!{sys.executable}\nimport os, subprocess, sys\nREAL = {imageio_ffmpeg.get_ffmpeg_exe()!r}\n"
        "if '-i' not in sys.argv: os.execv(REAL, [REAL, *sys.argv[1:]])\n"
        "OUT = next(a for a in reversed(sys.argv) if a.startswith('file:')).removeprefix('file:')\n"
        f"{body}\n"
    )
    path.chmod(0o755)
    return path


FAKES = {
    "half a file": (
        "subprocess.run([REAL, *sys.argv[1:]]); os.truncate(OUT, os.path.getsize(OUT) // 2)",
        "VerifyError",
    ),
    "half a file of Matroska": (
        "subprocess.run([REAL, *sys.argv[1:]]); os.truncate(OUT, os.path.getsize(OUT) // 2)",
        "VerifyError",
    ),
    "a few bytes short": (
        "subprocess.run([REAL, *sys.argv[1:]]); os.truncate(OUT, os.path.getsize(OUT) - 9)",
        "VerifyError",
    ),
    "no file": ("pass", "VerifyError"),
    "an empty file": ("open(OUT, 'w')", "VerifyError"),
    "a frame too few": (
        "a = sys.argv[1:]; at = a.index('-f'); subprocess.run([REAL, *a[:at], '-frames:v', '5', *a[at:]])",
        "VerifyError",
    ),
    "other keyframes": (
        "a = sys.argv[1:]; at = a.index('file:' + OUT); subprocess.run([REAL, *a[:at], '-g', '3', *a[at:]])",
        "VerifyError",
    ),
    "says why": ("sys.stderr.write('Conversion failed!'); sys.exit(1)", "FfmpegError"),
    "says nothing": ("sys.exit(7)", "FfmpegError"),
    "dies": ("os.kill(os.getpid(), 11)", "FfmpegError"),
}


@pytest.mark.parametrize("what", FAKES)
def test_f8_an_engine_that_fails_or_says_it_did_not_is_found_out(dst: Path, tmp_path: Path, what: str) -> None:
    body, error = FAKES[what]
    make_clip(tmp_path / "src" / "a.mp4", 8)
    fake = fake_ffmpeg(tmp_path, body)
    container = "mkv" if "Matroska" in what else "mp4"
    args = ["--engine", "ffmpeg", "--ffmpeg", fake, "--container", container, "--json", "--gop", 4]
    ran = transcode(tmp_path / "src", dst, *args)
    assert ran.code == 1, ran.err
    assert ran.rows["a"]["error"] == error
    if what == "says why":
        assert "Conversion failed!" in ran.rows["a"]["message"] and "ended with 1" in ran.rows["a"]["message"]
    assert outputs(dst) == {} and leftovers(dst) == []


@pytest.mark.parametrize("code", [0, 228])
def test_f7_an_ffmpeg_that_says_there_is_no_room_stops_the_run_whatever_it_ends_with(
    dst: Path, tmp_path: Path, code: int
) -> None:
    """On a file system that is full, where a limit would kill it: 5.1 ends with 0, 9.0 with 228."""
    src = make_clips(tmp_path / "src", 3)
    fake = fake_ffmpeg(
        tmp_path,
        "subprocess.run([REAL, *sys.argv[1:]]); os.truncate(OUT, os.path.getsize(OUT) // 2)\n"
        "print('Error writing trailer of x.mp4: No space left on device\\nError closing file x.mp4: No space left on device', "
        f"file=sys.stderr); sys.exit({code})",
    )
    ran = transcode(src, dst, "--engine", "ffmpeg", "--ffmpeg", fake, "--jobs", 1, "--json")
    assert ran.code == STOPPED
    assert not ran.rows, ran.out
    assert ran.summary["not_started"] == 3 and "bytes are free" in ran.err
    assert outputs(dst) == {} and leftovers(dst) == []
    assert transcode(src, dst, "--engine", "ffmpeg").code == 0
    assert len(outputs(dst)) == 3


@pytest.mark.parametrize("container", ["mp4", "mkv", "webm"])
def test_f8_an_output_that_is_shorter_than_what_was_written_is_found_out(
    poisoned: Path, dst: Path, tmp_path: Path, container: str
) -> None:
    """The engine av closes the file and hears of no error, and half of it is there."""
    code = f"if args[0].path.stem.startswith('{partial_stem('poison')}'): os.truncate(args[0].path, os.path.getsize(args[0].path) // 2)"
    short = fault("vidprep.transcode.media.encode", "VideoWriter.close", at=-1, when="after", code=code, only="child")
    args = ["--container", container, *(["--codec", "vp9", "--preset", "8"] if container == "webm" else [])]
    ran = transcode(poisoned, dst, "--jobs", 2, *args, env=environment(tmp_path / "hook", short))
    assert one_failed(ran, dst).startswith("VerifyError: ")


def test_f4_an_engine_that_talks_a_megabyte_does_not_block(dst: Path, tmp_path: Path) -> None:
    make_clip(tmp_path / "src" / "a.mp4", 8)
    talk = "sys.stderr.write('blah ' * 200_000 + chr(10)); sys.stderr.flush(); "
    fine = fake_ffmpeg(tmp_path, talk + "os.execv(REAL, [REAL, *sys.argv[1:]])")
    ran = transcode(tmp_path / "src", dst, "--engine", "ffmpeg", "--ffmpeg", fine, "--timeout", 30)
    assert ran.code == 0, ran.err
    fails = fake_ffmpeg(tmp_path, talk + "sys.exit(1)")
    ran = transcode(tmp_path / "src", tmp_path / "other", "--engine", "ffmpeg", "--ffmpeg", fails, "--json")
    assert ran.code == 1
    assert len(ran.rows["a"]["message"]) < 5000, "only the end of it is kept"


def test_f5_a_kill_while_ffmpeg_encodes_costs_nothing_that_was_finished(clips: Path, dst: Path, tmp_path: Path) -> None:
    engine = ("--engine", "ffmpeg", "--ffmpeg", imageio_ffmpeg.get_ffmpeg_exe())
    assert transcode(clips, tmp_path / "whole", *engine, "--jobs", 2).code == 0
    code = "if os.path.exists(MARK): os.killpg(0, 9)".replace("MARK", repr(str(tmp_path / "now")))
    fake = fake_ffmpeg(tmp_path, f"{code}\nsubprocess.run([REAL, *sys.argv[1:]], check=True)\n{code}")
    mark = fault(
        "vidprep.formats.manifest.table", "Journal.append", at=4, when="after", code=f"open({str(tmp_path / 'now')!r}, 'w')", only="parent"
    )  # fmt: skip
    broken = environment(tmp_path / "hook", mark)
    process = start(clips, dst, "--jobs", 2, "--engine", "ffmpeg", "--ffmpeg", fake, env=broken)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, f"the moment never came: {err}"
    no_processes_left(process.pid)
    assert 3 <= len(outputs(dst)) < CLIPS
    resumed(clips, dst, outputs(tmp_path / "whole"), *engine)


def test_f5_the_ffmpeg_below_a_killed_run_dies_too(dst: Path, tmp_path: Path) -> None:
    make_clip(tmp_path / "src" / "a.mp4", 8)
    fake = fake_ffmpeg(
        tmp_path, f"open({str(tmp_path / 'at')!r}, 'w').write(str(os.getpid())); import time; time.sleep(60)"
    )
    process = start(tmp_path / "src", dst, "--engine", "ffmpeg", "--ffmpeg", fake)
    deadline = time.monotonic() + 30
    while not ((tmp_path / "at").exists() and (tmp_path / "at").read_text()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.communicate()
    no_processes_left(process.pid, 5)


# ---------------------------------------------------------------------------------------------- sources


CHANGES = {
    "os.truncate(PATH, 700)": "changed while it was being read", "os.replace(OTHER, PATH)": "changed while it was being read",
    "os.unlink(PATH)": "cannot be read: No such file",
}  # fmt: skip


@pytest.mark.parametrize(("change", "engine"), pairs(list(CHANGES), ["av", "ffmpeg"], each=1))
def test_f18_a_source_that_changes_while_it_is_read_is_no_output(
    poisoned: Path, dst: Path, tmp_path: Path, change: str, engine: str
) -> None:
    said = CHANGES[change]
    path, other = poisoned / "poison.mp4", make_clip(tmp_path / "other.mp4", 10, seed=4)
    code = change.replace("PATH", repr(str(path))).replace("OTHER", repr(str(other)))
    if engine == "av":
        code = f"if args[0].path.stem.startswith('{partial_stem('poison')}'): {code}"
        broken = fault("vidprep.transcode.media.encode", "VideoWriter.close", at=-1, code=code, only="child")
    else:
        code = f"if args[1].stem.startswith('{partial_stem('poison')}'): {code}"
        broken = fault("vidprep.transcode.unit.engines", "measure_file", at=-1, when="after", code=code, only="child")
    env = environment(tmp_path / "hook", broken)
    told = one_failed(transcode(poisoned, dst, "--engine", engine, env=env), dst)
    assert told.startswith("ReadError") and said in told
    make_clip(path, 7, seed=8)
    assert transcode(poisoned, dst, "--engine", engine).code == 0
    assert manifest(dst)["poison"]["num_frames"] == 7


def test_f18_what_was_replaced_between_plan_and_work_is_read_as_it_is_then(
    poisoned: Path, dst: Path, tmp_path: Path
) -> None:
    other = make_clip(tmp_path / "other.mp4", 5, seed=4)
    size = other.stat().st_size
    broken = on_poison(f"os.replace({str(other)!r}, args[0].unit.path)")
    ran = transcode(poisoned, dst, "--json", env=environment(tmp_path / "hook", broken))
    assert ran.code == 0
    assert (ran.rows["poison"]["source_size_bytes"], ran.rows["poison"]["num_frames"]) == (size, 5)
    assert transcode(poisoned, dst, "--json").summary["done_before"] == 5


def test_f36_what_cannot_be_started_is_a_row_each_and_nothing_is_opened(tmp_path: Path, dst: Path) -> None:
    src = make_clips(tmp_path / "src", 2)
    os.mkfifo(src / "fifo.mp4")
    (src / "link.mp4").symlink_to("nowhere.mp4")
    (src / "device.mp4").symlink_to("/dev/zero")
    (src / "empty.mp4").touch()
    ran = transcode(src, dst, "--json")
    assert ran.code == 1
    failed = {Path(row["source"]).name: row["message"] for row in ran.rows.values() if row["status"] == "failed"}
    assert set(failed) == {"fifo.mp4", "link.mp4", "device.mp4", "empty.mp4"}
    assert "FIFO" in failed["fifo.mp4"] and "broken link" in failed["link.mp4"] and "device" in failed["device.mp4"]
    assert "empty (0 bytes)" in failed["empty.mp4"]
    assert set(outputs(dst)) == {"c00.mp4", "c01.mp4"}
    assert len(manifest(dst)) == 6
    again = transcode(src, dst, "--json")
    assert again.summary["done_before"] == 2 and len(manifest(dst)) == 6


@pytest.mark.parametrize(
    "what", ["missing", "empty folder", "fifo", "broken link", "destination is a file", "below a file"]
)
def test_f36_what_cannot_work_at_all_is_one_line_before_any_work(tmp_path: Path, dst: Path, what: str) -> None:
    src = make_clips(tmp_path / "src", 1)
    if what == "missing":
        src = tmp_path / "nowhere"
    elif what == "empty folder":
        src = tmp_path / "empty"
        src.mkdir()
    elif what == "fifo":
        src = tmp_path / "pipe.mp4"
        os.mkfifo(src)
    elif what == "broken link":
        src = tmp_path / "link.mp4"
        src.symlink_to("nowhere")
    elif what == "destination is a file":
        dst.write_text("mine")
    else:
        dst.write_text("mine")
        dst = dst / "below"
    ran = transcode(src, dst)
    assert ran.code == 2
    assert ran.err.startswith("vidprep: ") and ran.err.count("\n") == 1
    assert not dst.is_dir()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="writes to /proc, where not even root makes a folder")
def test_f36_a_destination_that_nobody_can_write_to_is_one_line(clips: Path) -> None:
    ran = transcode(clips, "/proc/dst")
    assert ran.code == 2
    assert ran.err.startswith("vidprep: /proc/dst: ") and ran.err.count("\n") == 1


@pytest.mark.skipif(IS_ROOT, reason="root may write everywhere")
def test_f36_a_destination_without_permission_is_one_line(clips: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    ran = transcode(clips, locked / "dst")
    assert ran.code == 2 and "Permission denied" in ran.err


def test_a_folder_where_an_output_should_be_is_one_row(tmp_path: Path, dst: Path) -> None:
    src = make_clips(tmp_path / "src", 2)
    (dst / "c00.mp4").mkdir(parents=True)
    ran = transcode(src, dst, "--json")
    assert ran.code == 1
    assert manifest(dst)["c00"]["status"] == "failed" and manifest(dst)["c01"]["status"] == "ok"
    assert leftovers(dst) == []
