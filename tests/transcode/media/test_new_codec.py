"""A codec that vidprep does not offer is two rows of `formats/profiles.py`: everything that takes a codec works then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.helpers import copy_packages, make_clips

ROOT = Path(__file__).parents[3]
ROWS = """
CODECS["mpeg2video"] = CodecProfile("mpeg2video", "mkv", "mpeg2video", "V_MPEG2", 20.0)
ENCODERS["mpeg2video"] = EncoderProfile(
    name="mpeg2video", codec="mpeg2video", pixel_formats=("yuv420p", "yuv422p"), crf_option="global_quality", crf_range=(118, 3658),
    crf_default=354, crf_is_whole=True, preset_option="", presets=(), preset_default="", smallest=(16, 16),
    options={"g": "{gop}", "flags": "+qscale+cgop", "sc_threshold": "1000000000", "bf": "0"},
)
"""


@pytest.fixture
def tree(tmp_path) -> dict[str, str]:
    """The environment of a vidprep with these rows."""
    copy_packages(tmp_path)
    with (tmp_path / "vidprep" / "formats" / "profiles.py").open("a") as file:
        file.write(ROWS)
    return os.environ | {"PYTHONPATH": str(tmp_path)}


def run(tree, *words) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "vidprep.transcode", *map(str, words)]
    return subprocess.run(
        command, env=tree, cwd=tree["PYTHONPATH"].split(":")[0], capture_output=True, text=True, timeout=300
    )


@pytest.mark.long
def test_two_rows_make_a_codec(tree, tmp_path):
    src = make_clips(tmp_path / "src", 2, 75)
    for more in (("--fps", 25, "--segment", 1), ("--fps", 25, "--target-psnr", 34, "--target-mode", "per-video")):
        dst = tmp_path / f"dst{len(more)}{more[0]}"
        ran = run(tree, "transcode", src, dst, "--codec", "mpeg2video", "--gop", 5, *more)
        assert ran.returncode == 0, ran.stderr
        rows = pq.read_table(dst / "manifest.parquet").select(["status", "codec", "file_name", "keyframes"]).to_pylist()
        assert [(row["status"], row["codec"], row["file_name"][-4:]) for row in rows] == [
            ("ok", "mpeg2video", ".mkv")
        ] * 2
        assert rows[0]["keyframes"] == list(range(0, 75, 5))
        checked = run(tree, "validate", src, dst)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "mpeg2video" in run(tree, "transcode", "--help").stdout
