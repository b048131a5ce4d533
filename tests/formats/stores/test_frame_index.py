"""The index of burst and tensor stores: what is damaged in it is told, whichever byte it is."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.labels import Labels
from vidprep.formats.stores._index import FrameIndex, IndexedVideo, write_index

LABELS = Labels(
    [f"v{number:04d}" for number in range(130)],
    {"label": pa.array([f"class {number % 5}" for number in range(130)]), "shard": pa.array(range(130), pa.int64())},
)


def videos(count: int = 130, frames: int = 3, seed: int = 0) -> Iterator[IndexedVideo]:
    """Two groups of rows; what differs from seed to seed leaves no trace in the footer."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        yield IndexedVideo(
            f"v{number:04d}",
            "data-00000.bin",
            8,
            6,
            Fraction(25) if number % 3 else None,
            np.arange(frames),
            Fraction(1, 25),
            np.arange(frames) * 100 + number * 1000,
            np.full(frames, 100, np.int32),
            rng.integers(0, 2**32, frames, dtype=np.uint32),
            [0, 2, 4] if number % 2 else None,
        )


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "data-00000.bin").touch()
    list(write_index(tmp_path, "burst", videos(), labels=LABELS, about={"settings": {"quality": 90}}))
    return tmp_path


def everything(folder: Path) -> list[str]:
    index = FrameIndex(folder, "burst")
    try:
        return [*map(repr, index.videos()), *index.ids()]
    finally:
        index.close()


@pytest.mark.parametrize(("name", "step"), [("index.parquet", 61), ("burst.json", 13)])
def test_a_flipped_bit_is_an_error_that_names_the_file_or_changes_nothing(folder, name, step):
    """Page checksums do not cover the headers of pages: a flipped bit there once gave other numbers, in silence."""
    path, whole = folder / name, everything(folder)
    data, unseen = path.read_bytes(), 0
    for place in range(0, len(data), step):
        broken = bytearray(data)
        broken[place] ^= 1 << place // step % 8
        path.write_bytes(broken)
        try:
            assert everything(folder) == whole, f"byte {place}"
            unseen += 1
        except StoreError as error:
            assert name in str(error)
    assert unseen <= 1, "all but the first four bytes of a Parquet file are under a checksum"


def test_an_index_under_the_json_of_another_run_is_refused(folder):
    """As a kill between the two leaves them; the footers of these two are the same bytes."""
    about = (folder / "burst.json").read_bytes()
    list(write_index(folder, "burst", videos(seed=1), labels=LABELS, about={}))
    (folder / "burst.json").write_bytes(about)
    with pytest.raises(StoreError, match=r"index\.parquet.*run the same command again"):
        everything(folder)


def as_thrift(count: int) -> bytes:
    """A 64-bit field as the footer of a Parquet file writes it."""
    rest, out = 2 * count, bytearray([0x16])
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])


@pytest.mark.parametrize(("claimed", "count"), [(130, 2), (128, 15)])
def test_a_footer_that_claims_a_billion_rows_is_refused_or_gives_those_that_are_there(folder, claimed, count):
    """claimed: rows in all, or in the first group and in each of its columns. Every checksum is that of the hostile footer."""
    path, whole = folder / "index.parquet", everything(folder)
    data = path.read_bytes()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[begin:-8]
    assert footer.count(as_thrift(claimed)) == count
    footer = footer.replace(as_thrift(claimed), as_thrift(10**9))
    end = len(footer).to_bytes(4, "little") + b"PAR1"
    path.write_bytes(data[:begin] + footer + end)
    about = json.loads((folder / "burst.json").read_bytes())
    about |= {"index_size_bytes": path.stat().st_size, "index_footer_crc32": zlib.crc32(footer + end)}
    del about["crc32"]
    about["crc32"] = zlib.crc32(json.dumps(about, sort_keys=True).encode())
    (folder / "burst.json").write_text(json.dumps(about))
    try:
        assert everything(folder) == whole
    except StoreError as error:
        assert "index.parquet" in str(error) and "are claimed" in str(error)


def test_a_json_without_checksums_of_the_groups_is_refused(folder):
    path = folder / "burst.json"
    about = json.loads(path.read_bytes())
    del about["index_groups_crc32"], about["crc32"]
    about["crc32"] = zlib.crc32(json.dumps(about, sort_keys=True).encode())
    path.write_text(json.dumps(about))
    with pytest.raises(StoreError, match="older vidprep"):
        FrameIndex(folder, "burst")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shards": {"../data-00000.bin": 1}}, "outside of the folder"),
        ({"shards": {"/etc/passwd": 1}}, "outside of the folder"),
        ({"shards": 5}, "does not list its shards"),
        ({"shards": {"data-00000.bin": "1"}}, "does not list its shards"),
        ({"shards": {}}, "in shard data-00000.bin"),
        ({"version": None}, "version None"),
        ({"format": []}, r"is \[\] version"),
        ({"index_size_bytes": None}, "damaged, or not of the same run"),
        ({"index_groups_crc32": 5}, "is damaged"),
    ],
)
def test_a_json_with_values_that_no_run_wrote_is_refused(changes, said, folder):
    path = folder / "burst.json"
    about = json.loads(path.read_bytes()) | changes
    del about["crc32"]
    about["crc32"] = zlib.crc32(json.dumps(about, sort_keys=True).encode())
    path.write_text(json.dumps(about))
    with pytest.raises(StoreError, match=said):
        FrameIndex(folder, "burst").places("v0007")


@pytest.mark.parametrize("name", ["burst.json", "index.parquet"])
def test_a_named_pipe_is_not_waited_for(name, folder):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(StoreError, match="not a regular file: a FIFO"):
        FrameIndex(folder, "burst")


def test_the_file_closes_with_the_index_though_arrow_holds_it_still(folder, monkeypatch):
    """The task of a read gives its reference back a moment after the read: 65 of 20,000 indexes on a busy machine."""
    held, open_source = [], pa.OSFile
    monkeypatch.setattr(pa, "OSFile", lambda path: held.append(open_source(path)) or held[-1])
    index = FrameIndex(folder, "burst")
    assert index.ids()
    assert not held[0].closed
    del index
    assert held[0].closed
    (folder / "index.parquet").write_bytes(b"PAR1")
    with pytest.raises(StoreError):
        FrameIndex(folder, "burst")
    assert held[1].closed


def test_a_label_may_have_the_name_of_a_column(folder):
    index = FrameIndex(folder, "burst")
    assert index.labels("v0007") == {"label": "class 2", "shard": 7}
    assert index.places("v0007").shard == "data-00000.bin"
    assert index.label_columns().columns["shard"].to_pylist() == list(range(130))
    index.close()


def test_lists_of_unlike_lengths_are_refused(tmp_path):
    (tmp_path / "data-00000.bin").touch()
    short = (replace(video, crc32=video.crc32[:1]) for video in videos(2))
    list(write_index(tmp_path, "burst", short, labels=LABELS, about={}))
    index = FrameIndex(tmp_path, "burst")
    with pytest.raises(StoreError, match="v0001: 3 offsets, 3 sizes, 1 checksums"):
        index.places("v0001")
    index.close()
