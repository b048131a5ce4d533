"""Nothing runs from the current folder: whoever may write there must not reach into a run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers import environment, make_clip

TRAP = "import os\nwith open(os.environ['TRAPPED'], 'a') as file:\n    file.write(__name__ + chr(10))\n"
ALSO = (
    "sitecustomize",
    "usercustomize",
    "vidprep",
    "torch",
    "torchcodec",
    "cv2",
    "decord",
    "datasets",
    "simplejpeg",
    "av",
    "numpy",
    "pyarrow",
)
IMPORTED = (
    "import sys, vidprep.formats.processes, vidprep.transcode.unit.life, vidprep.formats.training._worker, "
    "vidprep.transcode.check.doctor, vidprep.transcode.choose.bench.bench, multiprocessing.spawn; "
    "print(*sorted({name.partition('.')[0] for name in sys.modules}), sep=chr(10))"
)


@pytest.fixture(scope="module")
def traps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module of the name of each that a child imports."""
    folder = tmp_path_factory.mktemp("traps")
    told = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True).stdout
    names = {name for name in told.split() if name.isidentifier() and name != "__main__"}
    assert {"pickle", "multiprocessing", "numpy", "av"} <= names
    for name in names.union(ALSO):
        (folder / f"{name}.py").write_text(TRAP)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sources, and what was made of them."""
    folder = tmp_path_factory.mktemp("made")
    for number in range(2):
        make_clip(folder / "src" / f"{number}.mp4", 12)
    program = Path(sys.executable).parent / "vidprep"
    for verb, name in (("transcode", "ready"), ("burst", "frames")):
        subprocess.run([program, verb, folder / "src", folder / name, "--quiet"], check=True, env=environment())
    return folder


def trapped(command: Sequence[object], traps: Path, tmp_path: Path) -> str:
    """What ran of the traps when a command was run among them; the command must succeed."""
    told = tmp_path / "trapped.txt"
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {"TRAPPED": str(told)}
    done = subprocess.run(
        [str(each) for each in command], cwd=traps, env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return told.read_text() if told.exists() else ""


COMMANDS = {
    "transcode": ("transcode", "{made}/src", "{out}/ready"),
    "burst": ("burst", "{made}/src", "{out}/frames"),
    "ffmpeg": ("transcode", "{made}/src", "{out}/ready", "--engine", "ffmpeg"),
    "validate": ("validate", "{made}/src", "{made}/ready"),
    "report": ("report", "{made}/ready", "--out", "{out}"),
    "select": ("select", "{made}/ready", "{out}/some"),
    "doctor": ("doctor",),
    "bench": ("bench", "{made}/src", "{made}/ready", "--seconds", "0.1", "--pattern", "consecutive"),
    "sweep": ("sweep", "{made}/src", "{out}/sweep", "--crf", "h264=20,30"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_runs_nothing_from_the_current_folder(name: str, traps: Path, made: Path, tmp_path: Path) -> None:
    arguments = [part.format(made=made, out=tmp_path) for part in COMMANDS[name]]
    assert trapped([Path(sys.executable).parent / "vidprep", *arguments], traps, tmp_path) == ""


def test_workers_of_a_loader_run_nothing_from_the_current_folder(traps: Path, made: Path, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "from vidprep.formats import PrefetchLoader, VideoDataset\n"
        f"with PrefetchLoader(VideoDataset({str(made / 'frames')!r}, 4), 2, workers=2) as loader:\n"
        "    assert len(list(loader)) > 0\n"
    )
    assert trapped([sys.executable, program], traps, tmp_path) == ""
