"""No room, wherever it ends: the run stops, no video is to blame, and the next run finishes."""

from __future__ import annotations

from pathlib import Path

import imageio_ffmpeg
import pytest

from tests import points
from tests.helpers import environment, fault, leftovers, make_clips, manifest, outputs, transcode
from tests.sampling import in_turn, pairs
from tests.transcode.run.poison import STOPPED, resumed


@pytest.mark.parametrize(("container", "engine"), pairs(["mp4", "mkv", "webm"], ["av", "ffmpeg"], each=1))
def test_no_room_for_an_output_stops_the_run_and_the_next_one_finishes(
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
    assert "bytes are free" in ran.err and f"hold {needed} bytes;" in ran.err
    assert outputs(dst) == {} and leftovers(dst) == []
    again = transcode(src, dst, *args)
    assert again.code == 0, again.err
    assert {row["status"] for row in manifest(dst).values()} == {"ok"} and len(outputs(dst)) == 3
    assert min(len(content) for content in outputs(dst).values()) > 9000, "the limit was none"


@pytest.mark.parametrize(
    ("size", "engine"), in_turn([(0, "av"), (100, "av"), (8000, "av"), (0, "ffmpeg"), (1500, "av"), (12000, "av")], 3)
)
def test_wherever_in_the_file_the_room_ends(dst: Path, tmp_path: Path, size: int, engine: str) -> None:
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
def test_the_room_ends_at_every_hundredth_byte(tmp_path: Path, container: str, engine: str) -> None:
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
        (fault(*points.JOURNAL_APPEND, at=1, code=NO_ROOM, only="parent"), STOPPED),
        pytest.param(fault(*points.JOURNAL_APPEND, at=5, code=NO_ROOM, only="parent"), STOPPED, marks=pytest.mark.slow),
        (fault("os", "write", at=-1, code=HALF_A_LINE, only="parent"), STOPPED),
        (fault(*points.FILES_PUBLISH, at=3, code=NO_ROOM, only="parent"), STOPPED),
        (fault("os", "fsync", at=1, code=NO_ROOM, only="parent"), STOPPED),
        pytest.param(fault("os", "fsync", at=2, code=NO_ROOM, only="parent"), STOPPED, marks=pytest.mark.slow),
        (fault("os", "fsync", at=3, code=NO_ROOM, only="parent"), STOPPED),
        pytest.param(
            fault("pyarrow.parquet", "write_table", at=1, code=NO_ROOM, only="parent"), STOPPED, marks=pytest.mark.slow
        ),
    ],
    ids=["first row", "fifth row", "torn row", "rename", "lease", "settings", "manifest", "manifest, early"],
)
def test_no_room_for_our_own_files_is_said_and_the_next_run_finishes(
    clips: Path, dst: Path, tmp_path: Path, undisturbed: dict[str, bytes], broken: str, code: int
) -> None:
    ran = transcode(clips, dst, "--jobs", 2, env=environment(tmp_path / "hook", broken))
    assert ran.code == code, ran.err
    assert "no room left in" in ran.err or "No space left on device" in ran.err
    assert outputs(dst).items() <= undisturbed.items()
    resumed(clips, dst, undisturbed)
