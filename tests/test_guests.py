"""Each guest can be taken out: its files and the lines that register it go, and everything else works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import copy_packages, make_clips

# Files of a guest, and what the lines that register it hold.
GUESTS = {
    "clusters": (
        ["transcode/workers/dask.py", "transcode/workers/ray.py", "transcode/workers/_cluster*.py"],
        [r'^    "dask": Backend', r'^    "ray": Backend'],
    ),
    "bench": (
        ["transcode/choose/bench", "transcode/cli/bench.py", "transcode/pages/bench_section.py"],
        [r'^    "bench": \(', r"^from \.cli\.bench import"],
    ),
    "sweep and tune": (
        ["transcode/choose/*.py", "transcode/cli/choose.py", "transcode/pages/sweep_section.py"],
        [r'^    "(sweep|tune)": \(', r"^from \.(cli\.choose|choose\.tune) import", r"^OTHER_SECTIONS = "],
    ),
    "pages": (
        ["transcode/pages", "transcode/cli/pages.py"],
        [r'^    "(report|monitor)": \(', r"^from \.(cli\.pages|pages\.page) import"],
    ),
    "audit": (["transcode/audit", "transcode/pages/audit_page.py"], [r"^from \.audit\.audit import"]),
    "scan": (["transcode/clips", "transcode/cli/scan.py"], [r'^    "scan": \(', r"^from \.(cli|clips)\.scan import"]),
    "export": (["transcode/export", "transcode/cli/pack.py"], [r'^    "pack": \(', r"^from \.cli\.pack import"]),
}
IMPORTS = """
import importlib, pathlib, sys
root = pathlib.Path(sys.argv[1], "vidprep")
for path in sorted(root.rglob("*.py")):
    if path.name != "__main__.py":
        importlib.import_module(".".join(("vidprep", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__"))
import vidprep.transcode
for name in vidprep.transcode.__all__:
    getattr(vidprep.transcode, name)
assert pathlib.Path(vidprep.transcode.__file__).is_relative_to(root)
"""


def take_out(tree: Path, files: list[str], lines: list[str]) -> int:
    """Return the number of lines that registered a guest."""
    for pattern in files:
        found = sorted((tree / "vidprep").glob(pattern))
        assert found, pattern
        for path in found:
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "__init__.py":
                path.unlink()
    count = 0
    for path in (*tree.rglob("*.py"), *tree.rglob("*.pyi")):
        text = path.read_text()
        for pattern in lines:
            replacement = "OTHER_SECTIONS: tuple[str, ...] = ()" if "OTHER" in pattern else ""
            text, changed = re.subn(rf"(?m){pattern}.*$", replacement, text)
            count += changed
        if text != path.read_text():
            path.write_text(text)
    return count


@pytest.mark.long
@pytest.mark.parametrize("name", GUESTS)
def test_a_guest_can_be_taken_out(name: str, tmp_path: Path) -> None:
    files, lines = GUESTS[name]
    copy_packages(tmp_path / "tree")
    assert take_out(tmp_path / "tree", files, lines) >= 1
    clips, ready = make_clips(tmp_path / "clips", 2), tmp_path / "ready"
    for command in (
        ["-c", IMPORTS, tmp_path / "tree"],
        ["-m", "vidprep.transcode", "--help"],
        ["-m", "vidprep.transcode", "transcode", clips, ready],
        ["-m", "vidprep.transcode", "validate", clips, ready],
        ["-c", f"from vidprep import open_store; print(open_store({str(ready)!r})['c00'].frames([1]).shape)"],
        ["-m", "vidprep.transcode", "burst", clips, tmp_path / "frames"],
    ):
        ran = subprocess.run(
            [sys.executable, *map(str, command)],
            env=os.environ | {"PYTHONPATH": str(tmp_path / "tree"), "PYTHONWARNINGS": "error"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, (command, ran.stderr)
