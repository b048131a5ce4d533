"""`vidprep doctor` on this machine, and on one where a dependency is broken on purpose."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vidprep.formats.stores.base import StoredVideo
from vidprep.transcode.check.doctor import trials

CODECS = ("h264", "hevc", "vp9", "av1")


def doctor(folder: Path, *words: str, **stubs: str) -> tuple[int, dict[str, tuple[str, str, str]]]:
    """Its exit code, and (mark, detail, advice) of each line. stubs: modules that stand in front of the real ones."""
    for name, source in stubs.items():
        (folder / f"{name}.py").write_text(source)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "vidprep.transcode", "doctor", *words]
    env = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env)
    assert "Traceback" not in done.stderr, done.stderr
    found: dict[str, tuple[str, str, str]] = {}
    last = ""
    for line in done.stdout.splitlines():
        if line.startswith("     "):
            mark, detail, _ = found[last]
            found[last] = (mark, detail, line.strip())
        else:
            last, _, detail = line[5:].partition(": ")
            found[last] = (line[:5].strip(), detail, "")
    return done.returncode, found


@pytest.mark.long
def test_a_healthy_machine_proves_every_codec_both_engines_and_a_store(tmp_path):
    code, found = doctor(tmp_path)
    assert code == 0
    for what in (*CODECS, "burst", "--engine ffmpeg"):
        mark, detail, _ = found[what]
        assert mark == "ok", found[what]
        assert "validated and read back upright" in detail
    assert all(advice for mark, _, advice in found.values() if mark != "ok")


@pytest.mark.parametrize("name", ["av", "pyarrow", "simplejpeg", "tqdm"])
def test_a_broken_library_is_named_with_the_remedy(tmp_path, name):
    code, found = doctor(tmp_path, **{name: "raise ImportError('libbroken.so.7: cannot open shared object file')"})
    assert code == 1
    mark, detail, advice = found[name]
    assert mark == "no"
    assert "libbroken.so.7" in detail
    assert advice == f"pip install --force-reinstall {name}"


@pytest.mark.long
def test_a_library_that_loads_and_does_not_work_fails_where_it_is_used(tmp_path):
    """The line that says `ok` has done it: a JPEG library that raises breaks burst and no codec; an ffmpeg that has no encoder
    is not the default engine, and breaks nothing that a default needs; a torchcodec that aborts takes nobody with it."""
    fake = tmp_path / "ffmpeg"
    fake.write_text("#!/bin/sh\necho 'ffmpeg version 0.0'\n")
    fake.chmod(0o755)
    stub = "def __getattr__(name):\n    def broken(*args, **kwargs):\n        raise ValueError('broken on purpose')\n    return broken\n"
    abort = "import os\nos.abort()"
    code, found = doctor(tmp_path, "--ffmpeg", str(fake), simplejpeg=stub, torchcodec=abort)
    assert code == 1
    mark, detail, advice = found["burst"]
    assert mark == "no"
    assert "broken on purpose" in detail
    assert "simplejpeg" in advice
    assert all(found[codec][0] == "ok" for codec in CODECS)
    mark, detail, advice = found["--engine ffmpeg"]
    assert mark == "-"
    assert "without libx264" in detail
    assert "--ffmpeg" in advice
    mark, detail, advice = found["torchcodec"]
    assert mark == "-"
    assert detail == "does not load: exit code -6"
    assert "pip install torch" in advice


def test_a_reader_that_gives_other_pictures_is_seen(tmp_path, monkeypatch):
    """What is written and measured right, and read back wrong, is not ok."""
    real = StoredVideo.frames
    monkeypatch.setattr(StoredVideo, "frames", lambda self, *args, **kwargs: real(self, *args, **kwargs)[:, ::-1, ::-1])
    finding = next(trials(tmp_path, None))
    assert finding.what == "h264"
    assert not finding.ok
    assert "turned" in finding.detail
