"""Reading an item leaves nothing in the parent that a forked child cannot free: libav's threads exist only in the parent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import make_clips, transcode
from tests.witness import Ffmpeg

SCRIPT = """
import gc, os, sys, time
from pathlib import Path
from vidprep.formats import VideoDataset, open_store
gc.disable()  # or what is garbage may be gone before the fork
source, keywords = eval(sys.argv[1]), eval(sys.argv[2])
dataset = VideoDataset(source, 4, **keywords)
for index in range(min(3, len(dataset))):
    dataset[index]
pid = os.fork()  # as torch's DataLoader does on Linux
if not pid:
    gc.collect()
    dataset[0]
    gc.collect()
    os._exit(0)
deadline = time.monotonic() + 200
while not os.waitpid(pid, os.WNOHANG)[0]:
    if time.monotonic() > deadline:
        os.kill(pid, 9)
        sys.exit("the child hangs")
    time.sleep(0.02)
"""
ITEMS = {
    "whole frames": ("ready", {}),
    "scaled and cropped": ("ready", {"size": 40, "crop": 32, "random_crop": True}),
    "sound": ("ready", {"audio_rate": 16000}),
    "sound in stereo": ("ready", {"audio_rate": 44100, "audio_channels": 2}),
    "16 bits": ("ready", {"dtype": "uint16"}),
    "sources": ("raw", {"size": 40, "crop": 32}),
    "JPEGs": ("frames", {"size": 40, "crop": 32}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, cli: Ffmpeg) -> Path:
    root = tmp_path_factory.mktemp("forks")
    for silent in sorted(make_clips(root / "silent", 2, 20).iterdir()):
        (root / "raw").mkdir(exist_ok=True)
        sound = ("-f", "lavfi", "-i", "sine=r=48000:d=1", "-shortest", "-c:v", "copy", "-c:a", "aac")
        cli.run("-i", silent, *sound, root / "raw" / silent.name)
    assert transcode(root / "raw", root / "ready", "--audio", "aac").code == 0
    assert transcode(root / "raw", root / "frames", verb="burst").code == 0
    return root


@pytest.mark.parametrize("kind", ITEMS)
def test_a_forked_child_frees_what_the_parent_read(kind: str, folder: Path) -> None:
    """`ds[0]`, then a DataLoader: PyAV's resampler, freed by a child's garbage collector, waited for threads of the parent for ever."""
    name, keywords = ITEMS[kind]
    source = f"sorted(Path({str(folder / name)!r}).iterdir())" if name == "raw" else repr(str(folder / name))
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, source, repr(keywords)], capture_output=True, text=True, check=False, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
