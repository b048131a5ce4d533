"""One destination holds one store: what another layout left goes, the same command mends it, and every reader sees the same."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import permutations
from pathlib import Path

import pytest

from tests.helpers import identities, make_clip, manifest, outputs, transcode
from vidprep.formats import open_store
from vidprep.formats.errors import StoreError
from vidprep.formats.stores.burst import BurstStore
from vidprep.formats.stores.encoded import VideoStore
from vidprep.formats.stores.gulp import GulpStore
from vidprep.formats.stores.tensor import TensorStore
from vidprep.formats.stores.webdataset import TarStore
from vidprep.transcode.destination.opening import clear_other_stores, open_destination
from vidprep.transcode.destination.run_file import settings_of

READERS = {
    "burst": BurstStore,
    "tensor": TensorStore,
    "gulp": GulpStore,
    "webdataset": TarStore,
    "encoded": VideoStore,
    "shards": VideoStore,
}
OF_VIDEOS = {"encoded": ("--gop", 4, "--preset", "ultrafast")}
OF_VIDEOS["shards"] = (*OF_VIDEOS["encoded"], "--format", "shards")


def make(source: Path, destination: object, kind: str, *more: object) -> int:
    verb = "transcode" if kind in OF_VIDEOS else "burst"
    settings = OF_VIDEOS.get(kind, ("--format", kind))
    return transcode(source, destination, *settings, "--jobs", 1, "--quiet", *more, verb=verb).code


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "raw"
    make_clip(folder / "a" / "b.mp4", 3, (32, 32))
    make_clip(folder / "c.mp4", 4, (32, 32), seed=1)
    return folder


@pytest.fixture(scope="module")
def fresh(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each store as it is made in an empty folder."""
    made = {kind: tmp_path_factory.mktemp("fresh") / kind for kind in READERS}
    for kind, folder in made.items():
        assert make(clips, folder, kind) == 0
    return made


def sans_runs(names: Iterable[str]) -> list[str]:
    """Without the numbers of the runs that made shards."""
    return sorted(re.sub(r"data-\d{5}-|(?<=a_)\d+(?=0{10})", "", name) for name in names)


def test_of_another_format_nothing_stays(fresh: dict[str, Path], tmp_path: Path) -> None:
    for before, after in permutations(READERS, 2):
        destination = tmp_path / f"{before}-{after}"
        shutil.copytree(fresh[before], destination)
        for name in ("mine.txt", "mine.mp4", "mine.parquet", "a/mine.mp4"):
            (destination / name).parent.mkdir(exist_ok=True)
            (destination / name).write_text("not vidprep's")
        settings = settings_of(fresh[after])
        clear_other_stores(open_destination(destination, settings.output), settings)
        assert sorted(outputs(destination)) == ["a/mine.mp4", "mine.mp4", "mine.parquet", "mine.txt"]
        assert not (destination / "manifest.parquet").exists()


def test_overwriting_with_another_format_makes_the_store_that_opens(
    clips: Path, fresh: dict[str, Path], tmp_path: Path
) -> None:
    destination = tmp_path / "out"
    shutil.copytree(fresh["burst"], destination)
    assert make(clips, destination, "gulp") == 2
    for after in ("gulp", "encoded", "burst"):
        assert make(clips, destination, after, "--overwrite") == 0
        assert sans_runs(outputs(destination)) == sans_runs(outputs(fresh[after]))
        assert (destination / "a").exists() == (after == "encoded")
        store = open_store(destination)
        assert type(store) is READERS[after]
        assert list(store.ids) == ["a/b", "c"] == sorted(manifest(destination))
        assert [len(store[id_].frames()) for id_ in store.ids] == [3, 4]
    assert transcode(destination, "--quiet", verb="validate").code == 0


def test_outputs_of_removed_sources_go_with_their_format(clips: Path, fresh: dict[str, Path], tmp_path: Path) -> None:
    for before, after in (("encoded", "burst"), ("burst", "encoded")):
        destination = tmp_path / after
        shutil.copytree(fresh[before], destination)
        assert make(clips / "c.mp4", destination, after, "--overwrite") == 0
        assert list(manifest(destination)) == list(open_store(destination).ids) == ["c"]
        assert not (destination / "a").exists()
        assert transcode(destination, "--quiet", verb="validate").code == 0


def test_rows_of_a_run_that_was_stopped_go_with_its_format(clips: Path, fresh: dict[str, Path], tmp_path: Path) -> None:
    destination = tmp_path / "out"
    shutil.copytree(fresh["burst"], destination)
    rows = [json.dumps(row, default=str) for row in manifest(destination).values()]
    (destination / ".vidprep" / "journal.jsonl").write_text("".join(f"{row}\n" for row in rows))
    for name in ("manifest.parquet", "burst.json", "index.parquet", ".vidprep/manifest.json"):
        (destination / name).unlink()
    assert make(clips / "c.mp4", destination, "encoded", "--overwrite") == 0
    assert list(manifest(destination)) == ["c"]
    assert sorted(outputs(destination)) == ["c.mp4"]


def test_validate_names_leftovers_of_another_format(fresh: dict[str, Path], tmp_path: Path) -> None:
    """As versions left it that did not clear: the reader takes the store that the last run made."""
    destination = tmp_path / "out"
    shutil.copytree(fresh["burst"], destination)
    shutil.copytree(fresh["gulp"], destination, dirs_exist_ok=True)
    assert type(open_store(destination)) is GulpStore
    done = transcode(destination, "--quiet", verb="validate")
    assert done.code == 1
    assert "burst.json: belongs to a burst store" in done.out
    assert "data-00001-00000.bin: belongs to a burst store" in done.out


@pytest.mark.parametrize("name", ["x.tar", "burst.json", "tensor.json", "meta_0.gmeta"])
def test_a_folder_of_outputs_named_as_an_index_is_no_store(clips: Path, tmp_path: Path, name: str) -> None:
    source = tmp_path / "raw" / name / "b.mp4"
    source.parent.mkdir(parents=True)
    source.write_bytes((clips / "c.mp4").read_bytes())
    assert make(tmp_path / "raw", tmp_path / "out", "encoded") == 0
    (tmp_path / "out" / ".vidprep" / "run.json").unlink()
    store = open_store(tmp_path / "out")
    assert list(store.ids) == [f"{name}/b"]
    assert len(store[f"{name}/b"].frames()) == 4


@pytest.mark.parametrize("kind", ["burst", "tensor", "gulp"])
def test_the_same_command_again_mends_an_index(clips: Path, fresh: dict[str, Path], tmp_path: Path, kind: str) -> None:
    destination = tmp_path / "out"
    shutil.copytree(fresh[kind], destination)
    names = [name for name in outputs(destination) if not name.startswith("data")]
    for damages in (("removed", "flipped"), ("torn", "emptied"), ("flipped", "torn")):
        for name, damage in zip(names, damages, strict=True):
            spoil(destination / name, damage)
        assert make(clips, destination, kind) == 0
        assert outputs(destination) == outputs(fresh[kind])
        assert [len(open_store(destination)[id_].frames()) for id_ in ("a/b", "c")] == [3, 4]
    before = identities(destination)
    assert make(clips, destination, kind) == 0
    assert identities(destination) == before, "what is right is not written again"


def spoil(path: Path, damage: str) -> None:
    data = bytearray(path.read_bytes())
    if damage == "removed":
        path.unlink()
    elif damage == "emptied":
        path.write_bytes(b"")
    elif damage == "torn":
        path.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 0x11
        path.write_bytes(data)


@pytest.mark.parametrize(("kind", "damage"), [("burst", "torn"), ("gulp", "removed"), ("webdataset", "torn")])
def test_the_same_command_again_mends_shards(
    clips: Path, fresh: dict[str, Path], tmp_path: Path, kind: str, damage: str
) -> None:
    destination = tmp_path / "out"
    shutil.copytree(fresh[kind], destination)
    spoil(destination / next(name for name in outputs(destination) if name.startswith("data")), damage)
    assert make(clips, destination, kind) == 0
    assert [len(open_store(destination)[id_].frames()) for id_ in ("a/b", "c")] == [3, 4]


def test_merging_again_mends_an_index(clips: Path, tmp_path: Path) -> None:
    destination = tmp_path / "out"
    for part in ("0/2", "1/2"):
        assert make(clips, destination, "burst", "--partition", part) == 0
    assert transcode(destination, verb="merge").code == 0
    right = outputs(destination)
    spoil(destination / "index.parquet", "flipped")
    spoil(destination / "burst.json", "removed")
    assert transcode(destination, verb="merge").code == 0
    assert outputs(destination) == right
    assert len(open_store(destination)["c"].frames()) == 4


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Callable[[], Path]]:
    """What lies at memory://far, fetched into a folder."""
    memory = pytest.importorskip("fsspec").filesystem("memory")

    def fetched() -> Path:
        memory.get("/far", str(tmp_path / "fetched"), recursive=True)
        return tmp_path / "fetched"

    yield fetched
    memory.rm("/far", recursive=True)


@pytest.mark.parametrize(
    ("kind", "name"), [("burst", "burst.json"), ("burst", "index.parquet"), ("gulp", "meta_10000000000.gmeta")]
)
def test_the_same_command_again_mends_an_index_behind_a_url(
    clips: Path, fresh: dict[str, Path], tmp_path: Path, far: Callable[[], Path], kind: str, name: str
) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    assert make(clips, "memory://far", kind) == 0
    right = {name: memory.cat_file(name) for name in memory.find("/far") if ".vidprep" not in name}
    for damage in ("removed", "flipped"):
        if damage == "removed":
            memory.rm_file(f"/far/{name}")
        else:
            memory.pipe_file(f"/far/{name}", bytes(byte ^ 1 for byte in right[f"/far/{name}"]))
        assert make(clips, "memory://far", kind) == 0
        assert {name: memory.cat_file(name) for name in memory.find("/far") if ".vidprep" not in name} == right
    assert [len(open_store(far())[id_].frames()) for id_ in ("a/b", "c")] == [3, 4]


def test_overwriting_behind_a_url_leaves_nothing_of_another_format(
    clips: Path, fresh: dict[str, Path], far: Callable[[], Path]
) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    for kind in ("burst", "encoded", "shards", "gulp"):
        assert make(clips, "memory://far", kind, "--overwrite") == 0
        names = [name.removeprefix("/far/") for name in memory.find("/far") if ".vidprep" not in name]
        own = ["gops.parquet", "manifest.parquet"] if kind in OF_VIDEOS else ["manifest.parquet"]
        assert sans_runs(names) == sans_runs([*outputs(fresh[kind]), *own])
    assert transcode(far(), "--quiet", verb="validate").code == 0


def test_a_store_that_does_not_open_is_reported(clips: Path, fresh: dict[str, Path], tmp_path: Path) -> None:
    destination = tmp_path / "out"
    shutil.copytree(fresh["burst"], destination)
    (destination / "burst.json").unlink()
    (destination / "burst.json").mkdir()
    assert make(clips, destination, "burst") == 2
    with pytest.raises(StoreError):
        open_store(destination)


def test_partial_files_of_another_store_are_removed(clips, tmp_path):
    made = tmp_path / "made"
    assert make(clips, made, "burst", "--format", "gulp") == 0
    (made / ".meta_7.gmeta.partial").write_bytes(b"{")
    assert make(clips, made, "burst", "--overwrite") == 0
    assert not list(made.glob("*gmeta*")) and not list(made.glob(".*.partial"))
