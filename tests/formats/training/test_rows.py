"""Values of frames in training: each frame comes with its own row, whatever the rates."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.helpers import transcode, with_peers
from tests.numbered_pictures import constant, number_on, write
from tests.robots import CAMERAS, OTHER_CAMERA, make_robot_dataset
from vidprep.formats import PrefetchLoader, VideoDataset
from vidprep.formats.errors import SettingsError, StoreError

RATE, COUNT = 30, 60


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset at 10 rows per second."""
    folder = tmp_path_factory.mktemp("robot")
    source = make_robot_dataset(folder / "source")
    assert transcode(source, folder / "made", "--fps", 10, "--gop", 5, "--quiet").code == 0
    return folder / "made"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two videos of 60 numbered pictures."""
    folder = tmp_path_factory.mktemp("numbered")
    for name in "ab":
        write(folder / "src" / f"{name}.mp4", constant(COUNT, RATE))
    assert transcode(folder / "src", folder / "store", "--gop", 5, "--quiet").code == 0
    return folder / "store"


def table(name: str = "frame", **columns: object) -> pa.Table:
    """The number of each frame as its value, and three values of each."""
    frames = np.tile(np.arange(COUNT), 2)
    values = {
        "id": ["a"] * COUNT + ["b"] * COUNT,
        name: frames,
        "number": frames,
        "three": [[n, n + 1.0, n + 2.0] for n in frames],
    }
    return pa.table(values | columns)


def test_rows_of_a_robot_dataset_are_those_of_the_frames(robot: Path) -> None:
    dataset = VideoDataset(robot, 4, rows=robot)
    for number in range(len(dataset)):
        item = dataset[number]
        shown = [number_on(frame) for frame in item["frames"]]
        states = item["rows"]["observation.state"][:, 0].round().astype(int)
        assert shown == (states + OTHER_CAMERA * (CAMERAS[1] in item["id"])).tolist()
        assert item["rows"]["action"].shape == (4, 2) and item["rows"]["action"].dtype == np.float32


@pytest.mark.parametrize("processes", [True, False], ids=["processes", "threads"])
def test_batches_have_them_too(processes: bool, store: Path) -> None:
    dataset = VideoDataset(store, 4, 2, 4, rows=table())
    seen = 0
    with PrefetchLoader(dataset, 3, shuffle=True, workers=2, processes=processes) as loader:
        for batch in loader:
            assert batch["rows"]["three"].shape == (len(batch["id"]), 4, 3)
            for frames, numbers in zip(batch["frames"], batch["rows"]["number"], strict=True):
                assert [number_on(frame) for frame in frames] == numbers.tolist()
                seen += 1
    assert seen == len(dataset)


def of_camera(robot: Path, camera: str) -> VideoDataset:
    return VideoDataset(robot, 4, rows=robot, where=pc.field("labels", "camera") == camera)


def test_cameras_of_a_robot_are_in_step(robot: Path) -> None:
    """One dataset for each camera: the same number is the same moment, and so is the same batch."""
    front, wrist = (of_camera(robot, camera) for camera in CAMERAS)
    assert len(front) == len(wrist) > 10
    loaders = [PrefetchLoader(each, 3, shuffle=True, seed=4, processes=False) for each in (front, wrist)]
    for one, other in zip(*loaders, strict=True):
        shown = [[number_on(frame) for frame in frames] for frames in one["frames"]]
        assert [[number_on(frame) - OTHER_CAMERA for frame in frames] for frames in other["frames"]] == shown
        assert np.array_equal(one["rows"]["index"], other["rows"]["index"])
    for loader in loaders:
        loader.close()


UNDER_TORCH = """
import sys
import torch
import pyarrow.compute as pc
from torch.utils.data import DataLoader, StackDataset
from vidprep.formats import PrefetchLoader, VideoDataset

if __name__ == "__main__":
    for tensors in (False, True):
        dataset = VideoDataset(sys.argv[1], 4, rows=sys.argv[1], tensors=tensors)
        for method in ("fork", "spawn"):
            for batch in DataLoader(dataset, 3, num_workers=2, multiprocessing_context=method):
                rows = batch["rows"]["action"]
                assert torch.is_tensor(rows) and rows.shape[1:] == (4, 2) and rows.dtype == torch.float32
    cameras = {name: VideoDataset(sys.argv[1], 4, where=pc.field("labels", "camera") == "observation.images." + name)
               for name in ("front", "wrist")}
    for batch in DataLoader(StackDataset(**cameras), 3, shuffle=True):
        assert torch.equal(batch["front"]["indexes"], batch["wrist"]["indexes"])
    with PrefetchLoader(dataset, 3) as loader:
        assert all(torch.is_tensor(batch["rows"]["index"]) for batch in loader)
    print("tensors")
"""


@pytest.mark.long
def test_torch_makes_tensors_of_them(robot: Path, tmp_path: Path) -> None:
    script = tmp_path / "loads.py"
    script.write_text(UNDER_TORCH)
    assert with_peers(script, robot, needs=["torch"]) == "tensors\n"


def test_fifty_rows_per_second_beside_thirty_frames(store: Path, tmp_path: Path) -> None:
    """Each frame has the row that is nearest in time, at most half a row away."""
    times = np.arange(-1, 101) / 50
    source = pa.table({"id": ["b"] * 102 + ["a"] * 102, "time": np.tile(times, 2), "at": np.tile(times, 2)})
    pq.write_table(source.take(pa.array(np.random.default_rng(0).permutation(204))), tmp_path / "rows.parquet")
    dataset = VideoDataset(store, 4, 3, rows=tmp_path / "rows.parquet")
    for number in range(len(dataset)):
        item = dataset[number]
        shown = np.array([number_on(frame) for frame in item["frames"]]) / RATE
        assert np.abs(item["rows"]["at"] - shown).max() <= Fraction(1, 100) + 1e-9
        assert np.array_equal(item["rows"]["time"], item["rows"]["at"])


def test_a_frame_without_a_row_near_it_is_an_error(store: Path) -> None:
    times = np.arange(30) / 50
    dataset = VideoDataset(
        store, 4, rows=pa.table({"id": ["a"] * 30 + ["b"] * 30, "time": np.tile(times, 2), "at": np.tile(times, 2)})
    )
    assert dataset[0]["rows"]["at"][0] == 0
    with pytest.raises(StoreError, match="has no row near it"):
        dataset[len(dataset) - 1]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (table().slice(0, COUNT), "has 0 of 'b', which has 60 frames"),
        (table(frame=[0, *range(COUNT - 1), *range(COUNT)]), "none, or two, of frame 1 of 'a'"),
        (pa.table({"id": ["a"], "frame": [0]}), "give id, and frame or time, and values"),
        (pa.table({"frame": [0], "x": [0]}), "give id, and frame or time, and values"),
        (table(word=["x"] * 2 * COUNT), "a column word of string"),
        (table(odd=[[0] * (n % 2 + 1) for n in range(2 * COUNT)]), "lists of different lengths in the column odd"),
        ("none.parquet", "cannot be read"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: object, said: str, store: Path) -> None:
    with pytest.raises(SettingsError, match=said):
        VideoDataset(store, 4, rows=rows)  # type: ignore[arg-type]
