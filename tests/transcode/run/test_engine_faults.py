"""The ffmpeg engine and the sources, when they fail or change."""

from __future__ import annotations

import os
import signal
import stat
import time
from pathlib import Path

import imageio_ffmpeg
import pytest

from tests import points
from tests.helpers import (
    environment,
    fault,
    leftovers,
    make_clip,
    make_clips,
    manifest,
    no_processes_left,
    outputs,
    start,
    transcode,
)
from tests.sampling import in_turn, pairs
from tests.transcode.run.poison import CLIPS, STOPPED, fake_ffmpeg, on_poison, one_failed, partial_stem, resumed

IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


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
def test_an_engine_that_fails_or_says_it_did_not_is_found_out(dst: Path, tmp_path: Path, what: str) -> None:
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


@pytest.mark.long
@pytest.mark.parametrize("code", [0, 228])
def test_an_ffmpeg_that_says_there_is_no_room_stops_the_run_whatever_it_ends_with(
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


@pytest.mark.parametrize("container", in_turn(["mp4", "mkv", "webm"], 3))
def test_a_truncated_output_is_detected(poisoned: Path, dst: Path, tmp_path: Path, container: str) -> None:
    """The engine av closes the file and hears of no error, and half of it is there."""
    code = f"if args[0].path.stem.startswith('{partial_stem('poison')}'): os.truncate(args[0].path, os.path.getsize(args[0].path) // 2)"
    short = fault(*points.VIDEO_WRITER_CLOSE, at=-1, when="after", code=code, only="child")
    args = ["--container", container, *(["--codec", "vp9", "--preset", "8"] if container == "webm" else [])]
    ran = transcode(poisoned, dst, "--jobs", 2, *args, env=environment(tmp_path / "hook", short))
    assert one_failed(ran, dst).startswith("VerifyError: ")


def test_an_engine_that_talks_a_megabyte_does_not_block(dst: Path, tmp_path: Path) -> None:
    make_clip(tmp_path / "src" / "a.mp4", 8)
    talk = "sys.stderr.write('blah ' * 200_000 + chr(10)); sys.stderr.flush(); "
    fine = fake_ffmpeg(tmp_path, talk + "os.execv(REAL, [REAL, *sys.argv[1:]])")
    ran = transcode(tmp_path / "src", dst, "--engine", "ffmpeg", "--ffmpeg", fine, "--timeout", 30)
    assert ran.code == 0, ran.err
    fails = fake_ffmpeg(tmp_path, talk + "sys.exit(1)")
    ran = transcode(tmp_path / "src", tmp_path / "other", "--engine", "ffmpeg", "--ffmpeg", fails, "--json")
    assert ran.code == 1
    assert len(ran.rows["a"]["message"]) < 5000, "only the end of it is kept"


@pytest.mark.long
def test_a_kill_while_ffmpeg_encodes_costs_nothing_that_was_finished(clips: Path, dst: Path, tmp_path: Path) -> None:
    engine = ("--engine", "ffmpeg", "--ffmpeg", imageio_ffmpeg.get_ffmpeg_exe())
    assert transcode(clips, tmp_path / "whole", *engine, "--jobs", 2).code == 0
    code = "if os.path.exists(MARK): os.killpg(0, 9)".replace("MARK", repr(str(tmp_path / "now")))
    fake = fake_ffmpeg(tmp_path, f"{code}\nsubprocess.run([REAL, *sys.argv[1:]], check=True)\n{code}")
    mark = fault(
        *points.JOURNAL_APPEND, at=4, when="after", code=f"open({str(tmp_path / 'now')!r}, 'w')", only="parent"
    )
    broken = environment(tmp_path / "hook", mark)
    process = start(clips, dst, "--jobs", 2, "--engine", "ffmpeg", "--ffmpeg", fake, env=broken)
    _, err = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, f"the moment never came: {err}"
    no_processes_left(process.pid)
    assert 3 <= len(outputs(dst)) < CLIPS
    resumed(clips, dst, outputs(tmp_path / "whole"), *engine)


def test_the_ffmpeg_below_a_killed_run_dies_too(dst: Path, tmp_path: Path) -> None:
    make_clip(tmp_path / "src" / "a.mp4", 8)
    fake = fake_ffmpeg(
        tmp_path, f"open({str(tmp_path / 'at')!r}, 'w').write(str(os.getpid())); import time; time.sleep(60)"
    )
    process = start(tmp_path / "src", dst, "--engine", "ffmpeg", "--ffmpeg", fake)
    deadline = time.monotonic() + 200
    while not ((tmp_path / "at").exists() and (tmp_path / "at").read_text()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.communicate()
    no_processes_left(process.pid, 5)


CHANGES = {
    "os.truncate(PATH, 700)": "changed while it was being read",
    "os.replace(OTHER, PATH)": "changed while it was being read",
    "os.unlink(PATH)": "cannot be read: No such file",
}


@pytest.mark.long
@pytest.mark.parametrize(("change", "engine"), pairs(list(CHANGES), ["av", "ffmpeg"], each=1))
def test_a_source_that_changes_while_it_is_read_is_no_output(
    poisoned: Path, dst: Path, tmp_path: Path, change: str, engine: str
) -> None:
    said = CHANGES[change]
    path, other = poisoned / "poison.mp4", make_clip(tmp_path / "other.mp4", 10, seed=4)
    code = change.replace("PATH", repr(str(path))).replace("OTHER", repr(str(other)))
    if engine == "av":
        code = f"if args[0].path.stem.startswith('{partial_stem('poison')}'): {code}"
        broken = fault(*points.VIDEO_WRITER_CLOSE, at=-1, code=code, only="child")
    else:
        code = f"if args[1].stem.startswith('{partial_stem('poison')}'): {code}"
        broken = fault(*points.MEASURE_FILE, at=-1, when="after", code=code, only="child")
    env = environment(tmp_path / "hook", broken)
    told = one_failed(transcode(poisoned, dst, "--engine", engine, env=env), dst)
    assert told.startswith("ReadError") and said in told
    make_clip(path, 7, seed=8)
    assert transcode(poisoned, dst, "--engine", engine).code == 0
    assert manifest(dst)["poison"]["num_frames"] == 7


def test_sources_replaced_after_planning_are_read_as_they_are(poisoned: Path, dst: Path, tmp_path: Path) -> None:
    other = make_clip(tmp_path / "other.mp4", 5, seed=4)
    size = other.stat().st_size
    broken = on_poison(f"os.replace({str(other)!r}, args[0].unit.path)")
    ran = transcode(poisoned, dst, "--json", env=environment(tmp_path / "hook", broken))
    assert ran.code == 0
    assert (ran.rows["poison"]["source_size_bytes"], ran.rows["poison"]["num_frames"]) == (size, 5)
    assert transcode(poisoned, dst, "--json").summary["done_before"] == 5


def test_unstartable_sources_become_rows_without_being_opened(tmp_path: Path, dst: Path) -> None:
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
def test_impossible_runs_are_one_line_before_any_work(tmp_path: Path, dst: Path, what: str) -> None:
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
def test_an_unwritable_destination_is_one_line(clips: Path) -> None:
    ran = transcode(clips, "/proc/dst")
    assert ran.code == 2
    assert ran.err.startswith("vidprep: /proc/dst: ") and ran.err.count("\n") == 1


@pytest.mark.skipif(IS_ROOT, reason="root may write everywhere")
def test_a_destination_without_permission_is_one_line(clips: Path, tmp_path: Path) -> None:
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
