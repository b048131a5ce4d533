"""`vidprep pack` of a store with splits: each target has them as it knows them, with the classes of the whole."""

from __future__ import annotations

import csv
import json
import os
import shutil
import tarfile
import time
from pathlib import Path

import pyarrow as pa
import pytest

from tests.helpers import make_clips, transcode
from vidprep.formats import VideoDataset, open_store
from vidprep.formats.errors import DestinationError, StoreError
from vidprep.transcode import burst, label, pack, transcode as encode

CLASSES, SPLITS = ["b", "a", "c", "a"], ["train", "train", "val", "val"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("splits")
    src = make_clips(root / "src", 4, 3)
    given = pa.table({"path": [str(path) for path in sorted(src.iterdir())], "label": CLASSES, "split": SPLITS})
    assert encode(given, root / "ready", gop=3, preset="ultrafast").ok == 4
    assert burst(given, root / "frames").ok == 4
    return root


@pytest.mark.parametrize("store", ["ready", "frames"])
def test_webdataset_has_a_folder_for_each_split(made, store, tmp_path):
    assert pack(made / store, tmp_path / "out", to="webdataset").num_videos == 4
    with pytest.raises(StoreError, match="contains stores but is not one itself; open one: train, val"):
        open_store(tmp_path / "out")
    for split, ids in (("train", ["c00", "c01"]), ("val", ["c02", "c03"])):
        one = open_store(tmp_path / "out" / split)
        assert list(one.ids) == ids and {one.labels(id_)["split"] for id_ in ids} == {split}
        with tarfile.open(next((tmp_path / "out" / split).glob("*.tar"))) as tar:
            said = {
                name: json.load(tar.extractfile(name))["label"] for name in tar.getnames() if name.endswith(".json")
            }
        assert said == {f"{id_}.json": CLASSES[int(id_[1:])] for id_ in ids}
        assert VideoDataset(tmp_path / "out" / split, 2).class_to_idx == {"a": 0, "b": 1, "c": 2}, "those of the whole"
        assert json.loads((tmp_path / "out" / split / "class_to_idx.json").read_text()) == {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize("to", ["webdataset", "hf", "frames", "burst", "mmaction"])
def test_a_pack_is_replaced_when_that_is_asked_for(to, made, tmp_path):
    out = tmp_path / "out"
    pack(made / "ready", out, to=to)
    names = sorted(path.relative_to(out) for path in out.rglob("*"))
    (out / "more.txt").touch()
    later = time.time_ns() + 10**9
    os.utime(out / "more.txt", ns=(later, later))
    with pytest.raises(DestinationError, match="is not empty; give a new folder, or overwrite=True"):
        pack(made / "ready", out, to=to)
    with pytest.raises(DestinationError, match=r"more\.txt was added or changed after `pack`"):
        pack(made / "ready", out, to=to, overwrite=True)
    (out / "more.txt").unlink()
    pack(made / "ready", out, to=to, overwrite=True)
    assert sorted(path.relative_to(out) for path in out.rglob("*")) == names


def test_a_file_of_the_users_does_not_number_the_classes(made, tmp_path):
    shutil.copytree(made / "ready", tmp_path / "ready")
    for text in ('{"z": 0}', "[1]", "none"):
        (tmp_path / "ready" / "class_to_idx.json").write_text(text)
        assert VideoDataset(tmp_path / "ready", 2).class_to_idx == {"a": 0, "b": 1, "c": 2}


def test_only_outputs_of_pack_are_replaced(made, tmp_path):
    """--overwrite given by mistake for a folder of the user's, for the store itself, or for one around it."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").touch()
    pack(made / "ready", tmp_path / "packed", to="burst")
    shutil.copytree(tmp_path / "packed", tmp_path / "packed" / "inner")
    for out in (other, made / "ready", made / "ready" / "sub", made, tmp_path / "packed"):
        store = tmp_path / "packed" / "inner" if out.name == "packed" else made / "ready"
        with pytest.raises(DestinationError, match=r"is not empty; give a new folder$|overlaps with"):
            pack(store, out, to="burst", overwrite=True)
    assert (
        (other / "thesis.txt").exists()
        and len(open_store(made / "ready")) == 4
        and len(open_store(tmp_path / "packed")) == 4
    )
    assert not (made / "ready" / "sub").exists()


def test_hugging_face_has_a_folder_for_each_split(made, tmp_path):
    pack(made / "ready", tmp_path / "out", to="hf")
    assert json.loads((tmp_path / "out" / "class_to_idx.json").read_text()) == {"a": 0, "b": 1, "c": 2}
    for split, ids in (("train", ["c00", "c01"]), ("val", ["c02", "c03"])):
        with (tmp_path / "out" / split / "metadata.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [row["file_name"] for row in rows] == [f"{id_}.mp4" for id_ in ids]
        assert all((tmp_path / "out" / split / row["file_name"]).exists() for row in rows)


def test_dali_and_mmaction_have_a_list_for_each_split(made, tmp_path):
    for to, store, name in (
        ("dali", "ready", "file_list"),
        ("mmaction", "ready", "videos"),
        ("mmaction", "frames", "rawframes"),
    ):
        out = tmp_path / f"{to} {store}"
        pack(made / store, out, to=to)
        lists = {
            path.name: [line.rsplit(" ", 1)[1] for line in path.read_text().splitlines()]
            for path in out.glob(f"{name}*")
        }
        assert lists == {f"{name}_train.txt": ["1", "0"], f"{name}_val.txt": ["2", "0"]}
        assert (out / "labels.txt").read_text() == "a\nb\nc\n"


def test_whole_number_labels_are_kept(made, tmp_path):
    ids = ["c00", "c01", "c02", "c03"]
    encode(made / "src", tmp_path / "dst", gop=3, preset="ultrafast")
    label(tmp_path / "dst", pa.table({"id": ids, "label": [7, 3, 400, 3]}))
    for to, name in (("dali", "file_list.txt"), ("mmaction", "videos.txt")):
        pack(tmp_path / "dst", tmp_path / to, to=to)
        assert [line.rsplit(" ", 1)[1] for line in (tmp_path / to / name).read_text().splitlines()] == [
            "7",
            "3",
            "400",
            "3",
        ]
        assert not (tmp_path / to / "labels.txt").exists()
    label(tmp_path / "dst", pa.table({"id": ids, "split": ["a", None, "b", "b"]}))
    ran = transcode(tmp_path / "dst", tmp_path / "no", "--to", "hf", verb="pack")
    assert ran.code == 2 and "c01 has the split None" in ran.err
