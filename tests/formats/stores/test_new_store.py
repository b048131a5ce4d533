"""A store that vidprep does not know is one file and one row: everything that takes a store works then."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import copy_packages, make_clips, manifest
from vidprep.formats import open_store

ROOT = Path(__file__).parents[3]
KINDS = "STORES_OF_FRAMES = {\n"


@pytest.fixture
def tree(tmp_path) -> dict[str, str]:
    """The environment of a vidprep with the toy store."""
    copy_packages(tmp_path)
    stores = tmp_path / "vidprep" / "formats" / "stores"
    shutil.copy(Path(__file__).with_name("toy.py"), stores)
    registry = stores / "registry.py"
    registry.write_text(registry.read_text().replace(KINDS, f'{KINDS}    "toy": StoreKind("toy.json"),\n'))
    return os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}


def run(tree, *words, module="vidprep.transcode") -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, words)],
        env=tree,
        cwd=tree["PYTHONPATH"].split(":")[0],
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.long
def test_one_file_and_one_row_make_a_store(tree, tmp_path):
    src, toy = make_clips(tmp_path / "src", 3, 20, size=(96, 64)), tmp_path / "toy"
    ran = run(tree, "burst", src, toy, "--format", "toy", "--limit", 2)
    assert ran.returncode == 0, ran.stderr
    ran = run(tree, "burst", src, toy, "--format", "toy")
    assert "1 ok, 0 failed, 2 done before" in ran.stderr
    assert run(tree, "validate", src, toy).returncode == 0
    assert run(tree, "pack", toy, tmp_path / "burst", "--to", "burst").returncode == 0
    assert run(tree, "pack", tmp_path / "burst", tmp_path / "again", "--to", "toy").returncode == 0
    read = "import sys, numpy; from vidprep.formats import open_store; s = open_store(sys.argv[1]); numpy.save(sys.argv[2], s['c00'].frames())"
    for name in ("toy", "again"):
        out = tmp_path / f"{name}.npy"
        made = subprocess.run(
            [sys.executable, "-c", read, tmp_path / name, out],
            env=tree,
            cwd=tree["PYTHONPATH"].split(":")[0],
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stderr
        assert np.array_equal(np.load(out), open_store(tmp_path / "burst")["c00"].frames())
    assert manifest(toy)["c00"]["container"] == "toy"

    index = json.loads((toy / "toy.json").read_text())
    (toy / "toy.json").write_text(json.dumps({**index, "c01": index["c00"]}))
    ran = run(tree, "validate", toy)
    assert ran.returncode == 1 and "toy.json: says something else than the manifest" in ran.stdout
    ran = run(tree, "burst", src, toy, "--overwrite")
    assert ran.returncode == 0 and not list(toy.glob("*.toy*")), "another store takes all of it away"


@pytest.mark.long
def test_it_passes_the_tests_of_every_store(tree, tmp_path):
    contract = ROOT / "tests" / "formats" / "stores" / "test_store.py"
    ran = run(
        tree,
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-o",
        f"pythonpath={tmp_path}",
        "-k",
        "[toy]",
        contract,
        module="pytest",
    )
    assert ran.returncode == 0 and " passed" in ran.stdout, ran.stdout + ran.stderr
