"""An option is one line, as CONTRIBUTING shows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.helpers import copy_packages

ROOT = Path(__file__).parents[2]
LINE = re.search(r"^    min_frames: .*\n", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
BESIDE = "    max_pixels: Annotated"
TRIED = """
from tests.generated import keyword_types
from vidprep.formats.errors import SettingsError
from vidprep.transcode import VideoOutput, transcode
from vidprep.transcode.settings.run import build_settings

assert "    min_frames: int | None\\n" in keyword_types()
assert build_settings({"min_frames": 8}, VideoOutput).limits.min_frames == 8
try:
    transcode("src", "dst", min_frames=0)
except SettingsError as error:
    assert str(error) == "min_frames=0: give 1 or more", error
else:
    raise AssertionError("was taken")
"""


def test_a_line_makes_flag_help_checks_and_keyword(tmp_path: Path) -> None:
    assert LINE is not None
    copy_packages(tmp_path)
    options = tmp_path / "vidprep" / "transcode" / "settings" / "options.py"
    options.write_text(options.read_text().replace(BESIDE, LINE[0] + BESIDE))
    tree = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            env=tree,
            cwd=tree["PYTHONPATH"].split(":")[0],
            capture_output=True,
            text=True,
            check=False,
        )

    shown = run("-m", "vidprep.transcode", "transcode", "--help").stdout
    assert re.search(r"--min-frames N +Refuse videos with fewer frames\.", shown)
    refused = run("-m", "vidprep.transcode", "transcode", "src", "dst", "--min-frames", "0")
    assert (refused.returncode, refused.stderr) == (2, "vidprep: --min-frames 0: give 1 or more\n")
    tried = run("-c", TRIED)
    assert tried.returncode == 0, tried.stderr
