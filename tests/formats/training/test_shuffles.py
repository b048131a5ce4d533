"""The order of videos in shards, and how well shuffle="runs" mixes their classes."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.helpers import make_clip
from vidprep.formats import PrefetchLoader, VideoDataset, open_store, read_manifest
from vidprep.transcode import burst, compact, pack, transcode

CLASSES, EACH = 12, 10


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """Cuts of one video, named by their classes, as class folders name videos."""
    path = make_clip(
        tmp_path_factory.mktemp("source") / "long.mp4", CLASSES * EACH * 2, (192, 144), noise=True, options={"g": "2"}
    )
    numbers = range(CLASSES * EACH)
    return pa.table(
        {
            "path": [str(path)] * len(numbers),
            "id": [f"class{number // EACH:02d}/{number:03d}" for number in numbers],
            "label": [f"class{number // EACH:02d}" for number in numbers],
            "start_frame": [2 * number for number in numbers],
            "end_frame": [2 * number + 2 for number in numbers],
        }
    )


def stored_order(store: Path) -> list[str]:
    """Ids in the order in which their bytes lie in the shards."""
    return [row.id for row in sorted(read_manifest(store), key=lambda row: (row.file_name, row.offset))]


def neighbours_of_one_class(ids: list[str]) -> float:
    return float(np.mean([one[:7] == other[:7] for one, other in zip(ids, ids[1:], strict=False)]))


def classes_in_batches(loader: PrefetchLoader) -> float:
    return float(np.mean([len({*batch["labels"]["label"]}) for batch in loader if len(batch["id"]) == 8]))


@pytest.mark.long
def test_runs_of_a_shuffled_pack_mix_classes_as_a_full_shuffle_does(cuts, tmp_path):
    burst(cuts, tmp_path / "made", quality=95)
    pack(tmp_path / "made", tmp_path / "sorted", to="burst", order="id")
    pack(tmp_path / "made", tmp_path / "shuffled", to="burst")
    assert stored_order(tmp_path / "sorted") == list(open_store(tmp_path / "sorted").ids)
    assert list(open_store(tmp_path / "shuffled").ids) == list(open_store(tmp_path / "sorted").ids)
    options = {"batch_size": 8, "workers": 1, "processes": False}
    found = {}
    for name in ("sorted", "shuffled"):
        dataset = VideoDataset(tmp_path / name, 2)
        size = sum(path.stat().st_size for path in (tmp_path / name).glob("*.bin"))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with PrefetchLoader(dataset, shuffle="runs", window_bytes=size // 10, **options) as loader:
                found[name] = classes_in_batches(loader)
        assert len(told) == (name == "sorted"), [str(each.message) for each in told]
        if told:
            assert "classes on average" in str(told[0].message) and f"{found[name]:.1f}" in str(told[0].message)
    with PrefetchLoader(VideoDataset(tmp_path / "sorted", 2), shuffle=True, **options) as loader:
        full = classes_in_batches(loader)
    assert found["sorted"] < 0.6 * full and found["shuffled"] > 0.85 * full, (found, full)


@pytest.mark.long
@pytest.mark.parametrize("run", [burst, transcode], ids=["frames", "videos"])
def test_runs_write_shards_in_the_order_of_a_pack_and_compaction_keeps_it(run, cuts, tmp_path):
    options = {} if run is burst else {"format": "shards", "preset": "ultrafast"}
    run(cuts, tmp_path / "made", jobs=1, **options)
    order = stored_order(tmp_path / "made")
    assert order != sorted(order) and neighbours_of_one_class(order) < 0.25
    pack(tmp_path / "made", tmp_path / "packed", to="shards" if run is transcode else "burst")
    assert stored_order(tmp_path / "packed") == order
    files = {row.file_name for row in read_manifest(tmp_path / "made")}
    run(cuts, tmp_path / "made", jobs=1, limit=40, overwrite=True, **options)
    compact(tmp_path / "made")
    assert stored_order(tmp_path / "made") == order
    assert {row.file_name for row in read_manifest(tmp_path / "made")}.isdisjoint(files), "all were written again"


def test_a_much_larger_source_is_begun_first(tmp_path):
    for number in range(9):
        make_clip(tmp_path / "src" / f"{number}.mp4", 4 if number != 5 else 400, size=(96, 64))
    transcode(tmp_path / "src", tmp_path / "made", jobs=1, format="shards", preset="ultrafast")
    order = stored_order(tmp_path / "made")
    assert order[0] == "5" and order[1:] != sorted(order[1:])
