"""Which videos a dataset has, and what their classes and labels are in items and batches."""

from __future__ import annotations

import datetime
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.helpers import make_clips
from vidprep.formats import PrefetchLoader, VideoDataset, open_store
from vidprep.formats.errors import SettingsError
from vidprep.transcode import burst, label

COUNT = 6


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six videos in two splits; the class `b` is in one of them alone."""
    root = tmp_path_factory.mktemp("choice")
    src = make_clips(root / "src", COUNT, 4)
    given = {
        "path": [str(path) for path in sorted(src.iterdir())],
        "label": ["c", "a", "b", "a", "c", "a"],
        "split": ["train", "train", "train", "val", "val", "val"],
        "score": pa.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], pa.float32()),
        "frames": [1, None, 3, 4, 5, 6],
        "day": [datetime.date(2024, 1, n + 1) for n in range(COUNT)],
        "tags": [["x"], [], ["y", "z"], None, ["x"], []],
    }
    assert burst(pa.table(given), root / "dst").ok == COUNT
    return root / "dst"


def test_selection_by_split_ids_expression_or_function(store: Path) -> None:
    assert VideoDataset(store, 2, split="val").ids == ["c03", "c04", "c05"]
    assert VideoDataset(store, 2, ids=["c04", "c00"]).ids == ["c00", "c04"]
    assert VideoDataset(store, 2, where=pc.field("labels", "score") > 0.35).ids == ["c03", "c04", "c05"]
    assert VideoDataset(store, 2, where=(pc.field("num_frames") > 4) & (pc.field("id") > "c02")).ids == ["c04", "c05"]
    assert VideoDataset(store, 2, split="val", where=lambda row: "x" in (row["labels"]["tags"] or ())).ids == ["c04"]
    dataset = VideoDataset(store, 2, split="val")
    opened = open_store(store)
    assert len(dataset) == sum(len(opened[id_]) - 1 for id_ in dataset.ids)
    for index in range(len(dataset)):
        item = dataset[index]
        assert np.array_equal(item["frames"], opened[item["id"]].frames(item["indexes"]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"split": "test"}, "has no split 'test'; splits: train, val"),
        ({"ids": ["c00", "nope"]}, "1 ids are not there, such as 'nope'"),
        ({"ids": "c00"}, "give a list of ids"),
        ({"ids": []}, "no video is left by ids, split and where"),
        ({"where": pc.field("nothing") > 1}, "where: "),
        ({"where": lambda _row: False}, "no video is left"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(store: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        VideoDataset(store, 2, **options)  # type: ignore[arg-type]


def test_classes_are_those_of_the_whole_store_in_every_split(store: Path) -> None:
    for split in ("train", "val"):
        dataset = VideoDataset(store, 2, split=split)
        assert dataset.class_to_idx == {"a": 0, "b": 1, "c": 2}
        found = {(item["labels"]["label"], item["class_id"]) for item in map(dataset.__getitem__, range(len(dataset)))}
        assert found <= {("a", 0), ("b", 1), ("c", 2)}


@pytest.mark.long
def test_labels_are_of_one_kind_in_every_batch_of_both_loaders(store: Path) -> None:
    torch = pytest.importorskip("torch")
    dataset = VideoDataset(store, 2)
    with PrefetchLoader(dataset, 1, workers=1, processes=False) as ahead:
        for loader in (
            ahead,
            torch.utils.data.DataLoader(dataset, 1),
            torch.utils.data.DataLoader(dataset, 3, num_workers=1),
        ):
            for batch in loader:
                labels = batch["labels"]
                assert isinstance(labels["score"], np.ndarray | torch.Tensor) and isinstance(labels["frames"], list)
                assert isinstance(batch["frames"], np.ndarray | torch.Tensor) and isinstance(labels["tags"], list)
                for place, id_ in enumerate(batch["id"]):
                    due = dataset.store.labels(id_)
                    assert {name: values[place] for name, values in labels.items() if name != "score"} == {
                        name: value for name, value in due.items() if name != "score"
                    }
                    assert float(labels["score"][place]) == pytest.approx(due["score"])
                    assert dataset.class_to_idx[due["label"]] == int(batch["class_id"][place])


def test_whole_numbers_are_their_own_classes_and_a_missing_one_is_masked(store: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(store, tmp_path / "dst")
    ids = [f"c{n:02d}" for n in range(COUNT)]
    label(tmp_path / "dst", pa.table({"id": ids, "label": pa.array([7, 3, 7, 3, 9, 3])}))
    dataset = VideoDataset(tmp_path / "dst", 2, split="train")
    assert dataset.class_to_idx == {3: 3, 7: 7, 9: 9} and dataset[0]["class_id"] == 7
    label(tmp_path / "dst", remove="label")
    label(tmp_path / "dst", pa.table({"id": ids, "label": ["a", None, "b", "a", "a", "a"]}))
    with pytest.warns(UserWarning, match="1 of 6 videos have no label; their class_id is -100"):
        dataset = VideoDataset(tmp_path / "dst", 2)
    found = {item["id"]: item["class_id"] for item in map(dataset.__getitem__, range(len(dataset)))}
    assert found == {"c00": 0, "c01": -100, "c02": 1, "c03": 0, "c04": 0, "c05": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert VideoDataset(tmp_path / "dst", 2, where=pc.field("labels", "label").is_valid()).class_to_idx == {
            "a": 0,
            "b": 1,
        }
    label(tmp_path / "dst", remove="label")
    label(tmp_path / "dst", pa.table({"id": ids, "label": [["a"], [], ["a", "b"], None, [], []]}))
    many = VideoDataset(tmp_path / "dst", 2)
    assert many.class_to_idx == {} and "class_id" not in many[0] and many[0]["labels"]["label"] == ["a"]
