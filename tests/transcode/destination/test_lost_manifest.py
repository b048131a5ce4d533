"""A manifest that was lost, emptied or replaced by an older one takes no output with it: every command refuses, and says what to do."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests import points
from tests.cluster import wait_until
from tests.helpers import environment, fault, make_clip, manifest, start, transcode
from vidprep.formats import open_store

STORES = {
    "encoded": (),
    "burst": (),
    "tensor": ("--format", "tensor"),
    "webdataset": ("--format", "webdataset"),
    "gulp": ("--format", "gulp"),
}
NUM_VIDEOS = 4


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for number in range(NUM_VIDEOS):
        make_clip(folder / f"{number}.mp4", 6)
    return folder


def made(sources: Path, destination: Path, store: str, *options: object, **more: object) -> int:
    verb = "transcode" if store == "encoded" else "burst"
    return transcode(sources, destination, *STORES[store], *options, verb=verb, **more).code


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != "manifest.parquet"
    }


@pytest.mark.parametrize("fault_kind", ["lost", "emptied", "older"])
@pytest.mark.parametrize("store", STORES)
def test_nothing_goes_with_a_manifest(store: str, fault_kind: str, sources: Path, tmp_path: Path) -> None:
    destination, kept = tmp_path / "made", tmp_path / "kept.parquet"
    one = tmp_path / "one"
    one.mkdir()
    shutil.copy2(sources / "0.mp4", one)
    assert made(one, destination, store) == 0
    older = (destination / "manifest.parquet").read_bytes()
    assert made(sources, destination, store) == 0
    (destination / "manifest.parquet").rename(kept)
    if fault_kind != "lost":
        (destination / "manifest.parquet").write_bytes(older if fault_kind == "older" else b"")
    before = files_in(destination)
    verb = "transcode" if store == "encoded" else "burst"
    for options in ((), ("--limit", 1), ("--limit", 1, "--overwrite")):
        ran = transcode(sources, destination, *STORES[store], *options, verb=verb)
        assert ran.code == 2 and "manifest.parquet" in ran.err and ("restore it" in ran.err), ran.err
        assert files_in(destination) == before
    if store != "encoded":
        assert transcode(destination, verb="compact").code == 2
        assert files_in(destination) == before
    shutil.copy2(kept, destination / "manifest.parquet")
    assert made(sources, destination, store) == 0 and len(open_store(destination)) == NUM_VIDEOS
    (destination / "manifest.parquet").unlink()
    assert made(sources, destination, store, "--overwrite") == 0
    assert len(manifest(destination)) == NUM_VIDEOS and len(open_store(destination)) == NUM_VIDEOS


@pytest.mark.parametrize("store", ["burst", "tensor", "webdataset"])
def test_outputs_of_a_lost_manifest_stay_until_they_are_made_again(store: str, sources: Path, tmp_path: Path) -> None:
    """Ctrl-C after some rows of a run that makes all anew."""
    destination = tmp_path / "made"
    assert made(sources, destination, store) == 0
    (destination / "manifest.parquet").unlink()
    before = set(files_in(destination))
    stops = fault(*points.JOURNAL_APPEND, at=2, when="after", code="os.kill(os.getpid(), signal.SIGINT)", only="parent")
    code = made(sources, destination, store, "--overwrite", "--jobs", 1, env=environment(tmp_path / "hook", stops))
    assert code == 130
    assert before <= set(files_in(destination)) | {"index.parquet"}
    assert made(sources, destination, store) == 0 and len(open_store(destination)) == NUM_VIDEOS


@pytest.mark.parametrize(
    "names",
    [
        ("manifest.parquet",),
        (".vidprep/manifest.json",),
        (".vidprep/labels.parquet",),
        ("manifest.parquet", ".vidprep/manifest.json"),
        (".vidprep/run.json",),
    ],
)
@pytest.mark.parametrize("store", ["encoded", "burst"])
def test_overwriting_all_starts_over_whatever_cannot_be_read(
    store: str, names: tuple[str, ...], sources: Path, tmp_path: Path
) -> None:
    destination = tmp_path / "made"
    assert made(sources, destination, store) == 0
    for name in names:
        (destination / name).write_text("garbage")
    before = files_in(destination)
    verb = "transcode" if store == "encoded" else "burst"
    for options in ((), ("--limit", 1), ("--limit", 1, "--overwrite")):
        if "--overwrite" in options and names == (".vidprep/run.json",):
            continue
        ran = transcode(sources, destination, *options, verb=verb)
        assert ran.code == 2 and any(f"{name}: cannot be read" in ran.err for name in names), ran.err
        assert files_in(destination) == before
    stop = environment(tmp_path / "hook", fault(*points.SESSION_RUN, at=1, code="os._exit(9)"))
    assert transcode(sources, destination, "--overwrite", verb=verb, env=stop).code == 9
    if "manifest.parquet" in names:
        assert transcode(sources, destination, "--limit", 1, verb=verb).code == 2
        assert set(before) <= set(files_in(destination)), "nothing goes before all is made again"
    assert made(sources, destination, store, "--overwrite") == 0
    assert transcode(sources, destination, verb="validate").code == 0
    assert len(open_store(destination)) == NUM_VIDEOS


@pytest.mark.long
def test_a_copy_of_a_destination_at_work_is_free(sources: Path, tmp_path: Path) -> None:
    """It was in use until the run in the original had ended."""
    first, second = tmp_path / "first", tmp_path / "second"
    slow = fault(*points.RUN_JOB, at=-2, code="time.sleep(100)", only="child")
    running = start(sources, first, "--jobs", 1, env=environment(tmp_path / "hook", slow))
    try:
        wait_until(lambda: (first / "0.mp4").exists(), "the first output")
        shutil.copytree(first, second)
        beside = transcode(sources, first)
        assert beside.code == 2 and "in use by process" in beside.err
        copied = transcode(sources, second, "--json")
        assert copied.code == 0 and copied.summary["done_before"] == 1, copied.err
        assert running.poll() is None
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
