"""`vidprep validate`: what is whole passes, and whatever was changed since is found, with its file and its place."""

from __future__ import annotations

import random
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.helpers import Ran, command, environment, make_clip, make_clips, transcode

burst = partial(transcode, verb="burst")
KINDS = {
    "h264": ["--gop", 4], "vp9": ["--codec", "vp9"], "av1 mkv": ["--codec", "av1", "--container", "mkv"],
    "burst": ["--format", "burst"], "gulp": ["--format", "gulp"], "webdataset": ["--format", "webdataset"], "tensor": ["--format", "tensor"],
}  # fmt: skip


def validate(*args: object) -> Ran:
    done = subprocess.run(
        command(*args, verb="validate"), env=environment(), capture_output=True, text=True, check=False, timeout=120
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    src = make_clips(root / "src", 3, 11, size=(96, 64))

    def of(kind: str) -> tuple[Path, Path]:
        folder = root / kind
        if not folder.exists():
            run = burst if "--format" in KINDS[kind] else transcode
            assert run(src, folder, *KINDS[kind], "--fps", 25).code == 0
        return src, folder

    return of


@pytest.fixture(params=KINDS)
def finished(request, made, tmp_path) -> tuple[Path, Path]:
    """Sources, and a copy of a destination that may be harmed."""
    src, folder = made(request.param)
    return src, Path(shutil.copytree(folder, tmp_path / "dst"))


def outputs(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix in (".mp4", ".webm", ".mkv", ".bin", ".gulp", ".tar", ".raw"))


def test_what_is_whole_passes_with_and_without_its_sources(finished):
    src, folder = finished
    for args in ((folder,), (src, folder), (folder, "--sample", 1)):
        ran = validate(*args)
        assert ran.code == 0, ran.out
        assert ran.out == ""
    assert "1 units read again, 0 faults" in ran.err


def test_a_flipped_byte_anywhere_in_the_outputs_is_found_and_named(finished):
    _, folder = finished
    chance = random.Random(7)
    for _ in range(6):
        path = chance.choice(outputs(folder))
        data = path.read_bytes()
        place = chance.randrange(len(data))
        broken = bytearray(data)
        broken[place] ^= 1 << chance.randrange(8)
        path.write_bytes(broken)
        ran = validate(folder)
        assert ran.code == 1, f"byte {place} of {path.name}"
        assert path.name in ran.out
        if path.suffix in (".bin", ".gulp", ".tar", ".raw"):
            assert "offset" in ran.out
        path.write_bytes(data)


def test_what_is_cut_lost_or_exchanged_is_found(finished):
    _, folder = finished
    path = outputs(folder)[-1]
    data = path.read_bytes()
    for part in (0, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:part])
        ran = validate(folder)
        assert ran.code == 1
        assert path.name in ran.out
    path.unlink()
    ran = validate(folder)
    assert ran.code == 1
    assert path.name in ran.out
    if len(outputs(folder)) > 1:
        one, two = outputs(folder)[:2]
        path.write_bytes(data)
        first, second = one.read_bytes(), two.read_bytes()
        one.write_bytes(second)
        two.write_bytes(first)
        ran = validate(folder)
        assert one.name in ran.out
        assert two.name in ran.out


def test_a_file_that_no_row_speaks_of_is_told(finished):
    _, folder = finished
    known = outputs(folder)[0]
    stray = known.with_name(known.name.replace("00000", "00007").replace("_0.", "_7.").replace("c00", "c77"))
    shutil.copy(known, stray)
    ran = validate(folder)
    assert ran.code == 1
    assert f"{stray}: no row of the manifest" in ran.out


def test_a_changed_source_is_found(finished, tmp_path):
    src, folder = finished
    other = Path(shutil.copytree(src, tmp_path / "src"))
    make_clip(other / "c01.mp4", 12, (96, 64), seed=77)
    (other / "c02.mp4").unlink()
    ran = validate(other, folder)
    assert ran.code == 1
    assert "c01" in ran.out
    assert "c02: its source is not among those given" in ran.out
    assert "c00" not in ran.out


def test_an_index_that_says_something_else_is_found(made, tmp_path):
    for kind, name in (("gulp", "meta_0.gmeta"), ("burst", "index.parquet"), ("tensor", "tensor.json")):
        folder = Path(shutil.copytree(made(kind)[1], tmp_path / kind))
        path = folder / name
        text = path.read_bytes()
        path.write_bytes(text.replace(b"[0, ", b"[4, ", 1) if kind == "gulp" else text[:-30] + text[-29:])
        ran = validate(folder)
        assert ran.code == 1, kind
        assert ".gmeta" in ran.out or name in ran.out


def test_what_is_no_destination_is_usage(tmp_path):
    ran = validate(tmp_path)
    assert ran.code == 2
    assert "run.json" in ran.err
    assert validate(tmp_path, tmp_path, tmp_path).code == 2
