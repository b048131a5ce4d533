"""Commands, pack targets and samplers are added as CONTRIBUTING shows it: its code is tried in a copy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.helpers import copy_packages, make_clips, transcode

ROOT = Path(__file__).parents[2]


def blocks(title: str) -> list[str]:
    """The code under a heading of CONTRIBUTING."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    return [
        textwrap.dedent(block).strip() + "\n"
        for block in re.findall(r"(?:^    .*\n|^\n(?=\n*    ))+", text, re.MULTILINE)
    ]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    src = make_clips(folder / "src", 2)
    (src / "torn.mp4").write_bytes(b"nothing")
    assert transcode(src, folder / "ready").code == 1
    return folder / "ready"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    copy_packages(tmp_path)
    return tmp_path / "vidprep"


def run(tree: Path, *words: object) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": f"{tree.parent}:{ROOT}"}
    return subprocess.run(
        [sys.executable, *map(str, words)], env=env, cwd=tree.parent, capture_output=True, text=True, check=False
    )


def add_row(file: Path, table: str, row: str) -> None:
    text = file.read_text()
    assert table in text
    file.write_text(text.replace(table, f"{table}    {row}"))


@pytest.mark.long
def test_a_file_and_a_row_make_a_command_and_a_function(made: Path, tree: Path) -> None:
    code, row, name = blocks("Adding a command")
    (tree / "transcode" / "cli" / "count.py").write_text(code)
    add_row(tree / "transcode" / "cli" / "main.py", "COMMANDS = {\n", row)
    with (tree / "transcode" / "__init__.pyi").open("a") as stub:
        stub.write(name)
    assert re.search(r"count +Count the videos of a dataset\.", run(tree, "-m", "vidprep.transcode", "--help").stdout)
    shown = run(tree, "-m", "vidprep.transcode", "count", "--help").stdout
    assert re.search(r"count \[OPTIONS\] DST", shown) and re.search(r"--failed +Count failed videos too\.", shown)
    counted = [run(tree, "-m", "vidprep.transcode", "count", made, *more).stdout for more in ((), ("--failed",))]
    assert counted == ["2\n", "3\n"]
    tried = (
        "import inspect, sys, vidprep.transcode as t\n"
        "assert t.count(sys.argv[1], failed=True) == 3\n"
        "print(inspect.signature(t.count), *[line for line in t.count.__doc__.splitlines() if 'failed' in line])\n"
        "try:\n    t.count(sys.argv[1], failed=1)\nexcept ValueError as error:\n    print(error)\n"
    )
    ran = run(tree, "-c", tried, made)
    assert ran.returncode == 0, ran.stderr
    signature, refused = ran.stdout.splitlines()
    assert signature == (
        "(destination: str | Path, *, failed: bool = False) -> int     failed: Count failed videos too."
    )
    assert refused == "failed=1: give True or False"
    table = run(tree, "-c", "from tests.generated import table; print(table())").stdout
    assert "## vidprep count" in table and "| `--failed` | Count failed videos too. |" in table


def test_a_function_and_a_row_make_a_pack_target(made: Path, tree: Path, tmp_path: Path) -> None:
    code, row = blocks("Adding a pack target")
    (tree / "transcode" / "export" / "lengths.py").write_text(code)
    add_row(tree / "transcode" / "export" / "targets.py", "TARGETS = {\n", row)
    ran = run(tree, "-m", "vidprep.transcode", "pack", made, tmp_path / "out", "--to", "lengths")
    assert (ran.returncode, ran.stderr) == (0, f"vidprep: 2 videos packed into {tmp_path / 'out'}\n")
    assert (tmp_path / "out" / "videos.txt").read_text() == "c00 6\nc01 7\n"
    refused = run(tree, "-m", "vidprep.transcode", "pack", made, tmp_path / "out", "--to", "lists")
    assert refused.returncode == 2 and "did you mean list?" in refused.stderr


def test_a_dataclass_makes_a_sampler(made: Path, tree: Path, tmp_path: Path) -> None:
    [code] = blocks("Adding a sampler")
    (tmp_path / "mine.py").write_text(code)
    (tmp_path / "train.py").write_text(
        "import sys\nfrom mine import LastFrames\nfrom vidprep.formats import PrefetchLoader, VideoDataset\n"
        "dataset = VideoDataset(sys.argv[1], clips=LastFrames())\n"
        "shown = [item['indexes'].tolist() for item in map(dataset.__getitem__, range(len(dataset)))]\n"
        "with PrefetchLoader(dataset, 2, workers=1) as loader:\n"
        "    assert [each.tolist() for batch in loader for each in batch['indexes']] == shown\n"
        "    assert loader.state_dict()['clips'] == 'LastFrames(count_of_frames=4)'\n"
        "print(shown)\n"
    )
    ran = run(tree, tmp_path / "train.py", made)
    assert (ran.returncode, ran.stdout) == (0, "[[2, 3, 4, 5], [3, 4, 5, 6]]\n"), ran.stderr
