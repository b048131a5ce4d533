"""A clip that breaks its child, and what is expected of the run then."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import imageio_ffmpeg

from tests import points
from tests.helpers import Ran, fault, identities, leftovers, manifest, outputs, transcode

CLIPS = 8


STOPPED = 3  # no video is to blame


def partial_stem(unit_id: str) -> str:
    return hashlib.sha256(unit_id.encode()).hexdigest()[:24]


def on_poison(code: str) -> str:
    """In the child that gets poison.mp4, before it begins."""
    return fault(*points.RUN_JOB, at=-1, code=f"if 'poison' in args[0].unit.path: {code}", only="child")


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
