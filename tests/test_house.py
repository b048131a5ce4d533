"""What the tree promises to those who work in it."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

from vidprep.formats.stores.registry import STORES

ROOT = Path(__file__).parents[1]
MODULES = sorted(path for top in ("formats", "transcode") for path in (ROOT / top).rglob("*.py"))


def test_imports_run_one_way_and_in_no_circle() -> None:
    """The contracts stand in pyproject.toml."""
    lint = Path(sys.executable).with_name("lint-imports")
    ran = subprocess.run([lint], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "0 broken" in ran.stdout


def test_every_folder_of_modules_is_packaged() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {"vidprep." + ".".join(path.relative_to(ROOT).parent.parts) for path in MODULES}
    assert set(listed) == there


def test_one_place_lists_the_stores() -> None:
    def names_all(path: Path) -> bool:
        texts = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
        return set(STORES) <= {text for text in texts if isinstance(text, str)}

    assert [path.name for path in MODULES if names_all(path)] == ["registry.py"]
