"""Stores that are damaged, and their index."""

from __future__ import annotations

import json
import random
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.formats.conftest import ENCODED, STORED, burst
from tests.helpers import make_clips, transcode
from tests.sampling import in_turn
from vidprep.formats import open_store
from vidprep.formats.errors import ManifestError, SettingsError, StoreError
from vidprep.formats.manifest.labels import Labels
from vidprep.formats.stores._index import FrameIndex, IndexedVideo, write_index


def copied(folder: Path, tmp_path: Path) -> Path:
    target = tmp_path / "copy"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    return target


def read_all(folder: Path) -> dict[str, bytes]:
    store = open_store(folder)
    return {
        name: store[name].frames().tobytes() + store[name].timestamps.tobytes() + repr(store.labels(name)).encode()
        for name in store.ids
    }


@pytest.mark.parametrize("kind", ["burst", "tensor"])
def test_a_flipped_byte_anywhere_is_an_error_that_names_the_file_or_changes_nothing(kind, store_of, tmp_path):
    folder = copied(store_of(kind), tmp_path)
    whole = read_all(folder)
    rng = random.Random(5)
    names = [f"data-00001-00000.{'bin' if kind == 'burst' else 'raw'}", "index.parquet", f"{kind}.json"]
    for name, times in zip(names, (25, 120, 40), strict=True):
        data = (folder / name).read_bytes()
        refused = 0
        for _ in range(times):
            place = rng.randrange(len(data))
            broken = bytearray(data)
            broken[place] ^= 1 << rng.randrange(8)
            (folder / name).write_bytes(broken)
            try:
                read = read_all(folder)
            except StoreError as error:
                refused += 1
                assert name in str(error)
                assert not name.startswith("data") or "offset" in str(error)
            else:
                assert read == whole, f"byte {place} of {name}"
        assert refused > times * (0.4 if name == "index.parquet" else 0.9), f"{name}: {refused} of {times}"
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("kind", [*STORED, *ENCODED])
@pytest.mark.parametrize("part", in_turn([0.0, 0.4, 0.97], 3))
@pytest.mark.logs_errors
def test_a_truncated_file_is_an_error_or_reads_unchanged(kind, part, store_of, tmp_path):
    folder = copied(store_of(kind), tmp_path)
    whole = read_all(folder)
    cut = [
        path
        for path in folder.rglob("*")
        if path.is_file() and ".vidprep" not in path.parts and path.name not in ("label2idx.json",)
    ]
    for path in cut:
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * part)])
        with pytest.raises((StoreError, ManifestError)) as caught:
            assert read_all(folder) == whole, path
            raise StoreError("reads as it was", path=path)
        assert path.name in str(caught.value)
        path.write_bytes(data)


@pytest.fixture(scope="module")
def large_clips(tmp_path_factory) -> Path:
    """No two of them fit into a shard of 1 MiB, the smallest that can be asked for."""
    return make_clips(tmp_path_factory.mktemp("large") / "src", 3, 8, size=(320, 240), noise=True)


@pytest.mark.parametrize("kind", ["burst", "gulp", "webdataset", "tensor"])
def test_two_shards_that_changed_places_are_found(kind, large_clips, tmp_path):
    """By the reader, where frames have checksums; by `validate` everywhere."""
    folder = tmp_path / "made"
    quality = () if kind == "tensor" else ("--quality", 100)
    assert burst(large_clips, folder, "--format", kind, "--shard-size", "1MiB", *quality).code == 0
    assert transcode(folder, verb="validate").code == 0
    shards = sorted(path for path in folder.glob("data*") if path.is_file())
    assert len(shards) == 3
    first, second = shards[0].read_bytes(), shards[1].read_bytes()
    shards[0].write_bytes(second)
    shards[1].write_bytes(first)
    if kind in ("burst", "tensor"):
        with pytest.raises(StoreError, match="data-"):
            read_all(folder)
    ran = transcode(folder, verb="validate")
    assert ran.code == 1
    assert shards[0].name in ran.out and shards[1].name in ran.out and shards[2].name not in ran.out


def test_an_index_of_another_run_is_refused(store_of, tmp_path):
    folder = copied(store_of("burst"), tmp_path)
    shutil.copy(store_of("tensor") / "index.parquet", folder / "index.parquet")
    with pytest.raises(StoreError, match="not of the same run"):
        open_store(folder)


def test_a_store_of_a_later_version_is_refused(store_of, tmp_path):
    folder = copied(store_of("burst"), tmp_path)
    about = json.loads((folder / "burst.json").read_text())
    about["version"] = 2
    (folder / "burst.json").write_text(json.dumps(about))
    with pytest.raises(StoreError, match=r"checksum|version 2"):
        open_store(folder)


def test_a_folder_without_a_store_lists_the_expected_files(tmp_path):
    with pytest.raises(StoreError, match=r"burst\.json"):
        open_store(tmp_path)
    with pytest.raises(StoreError, match="not a folder"):
        open_store(tmp_path / "nowhere")
    with pytest.raises(SettingsError, match="short_side is -4"):
        open_store(tmp_path, short_side=-4)
    (tmp_path / ".vidprep").mkdir()
    with pytest.raises(StoreError, match="a run is in progress here, or was stopped"):
        open_store(tmp_path)


def test_a_store_of_frames_without_its_index_is_no_folder_of_videos(store_of, tmp_path):
    folder = copied(store_of("burst"), tmp_path)
    (folder / "burst.json").unlink()
    with pytest.raises(StoreError, match="the index of its burst store is not there"):
        open_store(folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", None),
        ("file_name", None),
        ("width", None),
        ("height", 0),
        ("num_frames", -1),
        ("keyframes", None),
        ("time_base_den", 0),
        ("frame_rate_num", None),
        ("id", "c00"),
    ],
)
def test_an_encoded_store_with_values_that_no_run_wrote_is_refused(name, value, store_of, tmp_path):
    folder = copied(store_of("h264"), tmp_path)
    (folder / "gops.parquet").unlink(missing_ok=True)
    table = pq.read_table(folder / "manifest.parquet")
    changes = {name: value} | ({"pts": None} if name == "frame_rate_num" else {})
    for column, each in changes.items():
        field = table.schema.field(column)
        table = table.set_column(table.schema.get_field_index(column), field, pa.array([each] * len(table), field.type))
    pq.write_table(table, folder / "manifest.parquet")
    with pytest.raises(
        (StoreError, ManifestError), match=r"its manifest has (a|several) video|has no|a row without|cannot be read"
    ) as raised:
        open_store(folder)
    assert str(folder) in str(raised.value)


NUMBERS = Labels([f"v{number:06d}" for number in range(1000)], {"label": pa.array(range(1000), pa.int64())})


def videos(count: int, frames: int = 3):
    for number in range(count):
        offsets = np.arange(frames, dtype=np.int64) * 100 + number * 1000
        yield IndexedVideo(
            f"v{number:06d}",
            "data-00000.bin",
            8,
            6,
            Fraction(25),
            np.arange(frames),
            Fraction(1, 25),
            offsets,
            np.full(frames, 100, np.int32),
            np.full(frames, number, np.uint32),
            None,
        )


def test_every_row_of_a_long_index_is_found_by_its_id(tmp_path):
    (tmp_path / "data-00000.bin").touch()
    list(write_index(tmp_path, "burst", videos(1000), labels=NUMBERS, about={}))
    index = FrameIndex(tmp_path, "burst")
    assert len(index) == 1000
    assert index.ids() == [f"v{number:06d}" for number in range(1000)]
    for number in (0, 127, 128, 129, 500, 999):
        places = index.places(f"v{number:06d}")
        assert places.offsets.tolist() == [number * 1000 + n * 100 for n in range(3)]
        assert places.crc32.tolist() == [number] * 3
        assert index.labels(f"v{number:06d}") == {"label": number}
    assert [video.id for video in index.videos()] == index.ids()
    for name in ("", "a", "v", "v0001275", "v9", "z"):
        with pytest.raises(KeyError):
            index.places(name)
    index.close()


def test_an_empty_index_is_no_error(tmp_path):
    list(write_index(tmp_path, "burst", [], labels=Labels(()), about={}))
    store = open_store(tmp_path)
    assert len(store) == 0
    assert list(store.ids) == []


def test_ids_out_of_order_are_refused(tmp_path):
    (tmp_path / "data-00000.bin").touch()
    with pytest.raises(StoreError, match="ascend"):
        list(write_index(tmp_path, "burst", reversed(list(videos(3))), labels=NUMBERS, about={}))
    assert not (tmp_path / "index.parquet").exists()
