"""The examples run, and their networks learn."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import make_clips, transcode, with_peers

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]], check=True)"


@pytest.fixture(scope="module")
def moving(cli, tmp_path_factory) -> Path:
    """Two classes that only motion tells apart: noise that drifts to the left, or to the right."""
    src = tmp_path_factory.mktemp("moving")
    for side, sign in (("left", "-"), ("right", "")):
        (src / side).mkdir()
        for number in range(4):
            noise = f"nullsrc=size=256x72:rate=15:d=2,geq=random(1)*255:128:128,loop=-1:1,trim=end_frame=30,avgblur=2,crop=96:72:80{sign or '+'}2*n:0"
            cli.run(
                "-f",
                "lavfi",
                "-i",
                noise,
                "-vf",
                f"hue=b={number / 10}",
                "-c:v",
                "libx264",
                "-crf",
                12,
                src / side / f"c{number}.mp4",
            )
    made = src.parent / "moving_made"
    ran = transcode(src, made, "--gop", 5, "--label-from-folder")
    assert ran.code == 0, ran.err
    return made


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "epochs", "figure", "better"),
    [
        pytest.param("train_actions", 8, r"(\d+)% told right", 25, marks=pytest.mark.slow),
        ("train_super_resolution", 2, r"(\d+\.\d+) dB", 0.3),
    ],
)
def test_networks_learn_from_both_loaders(name, epochs, figure, better, moving):
    said = with_peers(RUN, EXAMPLES / f"{name}.py", moving, epochs, needs=["torch"])
    for loader in ("DataLoader", "PrefetchLoader"):
        lines = [line for line in said.splitlines() if line.startswith(f"{loader} ")]
        assert len(lines) == epochs, said
        assert all(re.search(r"epoch \d: +\d+\.\d+ s", line) for line in lines)
        figures = [float(re.search(figure, line)[1]) for line in lines]
        assert max(figures[1:]) >= figures[0] + better, said


def test_frames_and_manifest_are_shown(moving):
    for name, due in (("read_frames", "50 random sequences, 400 frames"), ("show_manifest", "left/c0")):
        done = subprocess.run(
            [sys.executable, EXAMPLES / f"{name}.py", moving], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert due in done.stdout


def test_a_store_without_labels_is_told(tmp_path):
    said = with_peers(
        "import subprocess, sys; print(subprocess.run([sys.executable, *sys.argv[1:]], capture_output=True, text=True).stderr)",
        EXAMPLES / "train_actions.py", unlabelled(tmp_path), needs=["torch"],
    )  # fmt: skip
    assert "videos without a label; make it with --label-from-folder" in said


def unlabelled(folder: Path) -> Path:
    assert transcode(make_clips(folder / "src", 1, 20), folder / "dst").code == 0
    return folder / "dst"


def test_the_functions_make_check_report_and_read(tmp_path):
    raw = make_clips(tmp_path / "raw", 2, 20, size=(192, 144))
    told = [sys.executable, EXAMPLES / "python_api.py", raw, tmp_path / "out"]
    lines = subprocess.run(
        told, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    ).stdout.splitlines()
    assert "2 ok, 0 failed" in lines[2]
    assert lines[3] == "2 read again, 0 faults"
    assert Path(lines[4].partition(": ")[2]).stat().st_size > 1e6
    assert lines[5:] == ["c00 (4, 128, 170, 3) uint8", "c01 (5, 128, 170, 3) uint8"]
