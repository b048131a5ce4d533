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
from tests.web import web_of
from vidprep.formats import PrefetchLoader, VideoDataset
from vidprep.formats.errors import SettingsError

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
        dataset = VideoDataset(sys.argv[1], 4, rows=sys.argv[1], delta_rows={"action": [0, 9]}, tensors=tensors)
        for method in ("fork", "spawn"):
            for batch in DataLoader(dataset, 3, num_workers=2, multiprocessing_context=method):
                rows, pad, states = (batch["rows"][name] for name in ("action", "action_is_pad", "observation.state"))
                assert torch.is_tensor(rows) and rows.shape[1:] == (2, 2) and rows.dtype == torch.float32
                assert pad.dtype == torch.bool and pad.shape[1:] == (2,) and states.shape[1:] == (4, 2)
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


def timed(times: object, *, ids: str = "ab") -> pa.Table:
    """Rows of each video at these times, which are their values too."""
    times = np.asarray(times)
    names = np.repeat(list(ids), len(times))
    return pa.table({"id": names, "time": np.tile(times, len(ids)), "at": np.tile(times, len(ids))})


STEPS = np.arange(101) / 50
NAN = np.where(np.arange(101) == 50, np.nan, STEPS)


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (STEPS * 1000, "'a' times from 0 to 2000, and the video ends at 1.967 s: they seem to be in milliseconds"),
        (STEPS * 1e9, "seem to be in nanoseconds"),
        (STEPS + 1.7e9, "seem to be of a clock"),
        (STEPS * 1e9 + 1.7e18, "seem to be of a clock"),
        (STEPS[:1], "no row from 0 to 1.967 s"),
        (STEPS[(STEPS < 0.5) | (STEPS > 1.5)], r"no row from 0.48 to 1.52 s \(1.04 s\)"),
        (STEPS[STEPS < 1], r"no row from 0.98 to 1.967 s \(0.987 s\)"),
        (STEPS[STEPS > 1], r"no row from 0 to 1.02 s"),
        (np.delete(STEPS, [40, 41]), r"no row from 0.78 to 0.84 s"),
        (NAN, "a time that is no number"),
    ],
    ids=["ms", "ns", "clock", "clock in ns", "one", "hole", "early end", "late start", "two lost", "NaN"],
)
def test_times_that_do_not_fit_are_refused_when_the_dataset_is_made(times: object, said: str, store: Path) -> None:
    with pytest.raises(SettingsError, match=said):
        VideoDataset(store, 4, rows=timed(times))


def test_tables_of_other_libraries_are_taken(store: Path, tmp_path: Path) -> None:
    """Arrow has several types of texts and lists, and polars writes the large ones."""
    polars = pytest.importorskip("polars")
    plain = table(word=[f"{n}" for n in range(2 * COUNT)])
    frame = polars.from_arrow(plain)
    frame.write_parquet(tmp_path / "rows.parquet")
    due = VideoDataset(store, 4, rows=plain)[5]["rows"]
    coded = plain.set_column(0, "id", plain["id"].combine_chunks().dictionary_encode())
    for rows in (frame, tmp_path / "rows.parquet", coded):
        found = VideoDataset(store, 4, rows=rows)[5]["rows"]
        assert found["word"] == due["word"] and np.array_equal(found["three"], due["three"])


def test_rows_that_come_in_bursts_fit(store: Path) -> None:
    """Four rows, a millisecond apart, every 40 ms."""
    times = (np.arange(51)[:, None] / 25 + np.arange(4) / 1000).reshape(-1)
    found = VideoDataset(store, COUNT, rows=timed(times))[0]["rows"]["at"]
    assert np.abs(found - np.arange(COUNT) / RATE).max() <= 0.02


def test_rows_of_a_lower_rate_or_with_jitter_fit(store: Path) -> None:
    rng = np.random.default_rng(0)
    for times in (np.arange(20) / 10, np.arange(2), STEPS + rng.uniform(-0.004, 0.004, 101), STEPS.astype(np.float32)):
        assert len(VideoDataset(store, 4, rows=timed(times))) == 2 * (COUNT - 3)


def test_the_last_of_two_rows_at_one_time_is_taken(store: Path) -> None:
    rows = timed(np.repeat(STEPS, 2)).set_column(2, "at", pa.array(np.tile(np.arange(202), 2)))
    found = VideoDataset(store, COUNT, rows=rows)[0]["rows"]["at"]
    assert (found % 2 == 1).all() and np.abs(found // 2 / 50 - np.arange(COUNT) / RATE).max() <= 0.01 + 1e-9


def test_a_hole_may_be_filled_with_the_row_before(store: Path) -> None:
    times = STEPS[(STEPS < 0.5) | (STEPS > 1.5)]
    dataset = VideoDataset(store, COUNT, rows=timed(times), rows_gap="hold")
    found, shown = dataset[0]["rows"]["at"], np.arange(COUNT) / RATE
    in_hole = (shown > 0.49) & (shown < 1.51)
    assert (found[in_hole] == 0.48).all() and np.abs(found - shown)[~in_hole].max() <= 0.01 + 1e-9
    assert VideoDataset(store, COUNT, rows=timed(STEPS[STEPS < 1]), rows_gap="hold")[0]["rows"]["at"][-1] == 0.98


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source of 120 numbered pictures, and one whose first frame comes late; cuts of it."""
    folder = tmp_path_factory.mktemp("cuts")
    write(folder / "whole.mp4", constant(120, RATE))
    write(folder / "late.mp4", [at + Fraction(1, 2) for at in constant(120, RATE)])
    lines = ["path,id,start,end", "whole.mp4,a,2,3.5", "late.mp4,b,1.01,3"]
    (folder / "cuts.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("rate", [None, 25, 10, 7])
@pytest.mark.parametrize("verb", ["transcode", "burst", "shards", "webdataset"])
def test_a_row_is_that_of_the_picture_whatever_was_cut_and_at_any_rate(
    verb: str, rate: int | None, cuts: Path, tmp_path: Path
) -> None:
    """Times and numbers count in the source, as `pack --to lerobot` takes them."""
    kind = ["--format", verb] if verb in ("shards", "webdataset") else []
    options = [*kind, *(["--fps", rate] if rate else [])]
    verb = {"shards": "transcode", "webdataset": "burst"}.get(verb, verb)
    ran = transcode(cuts / "cuts.csv", tmp_path / "made", "--quiet", *options, verb=verb)
    assert ran.code == 0, ran.err
    numbers = np.arange(120)
    by_frame = pa.table({"id": np.repeat(["a", "b"], 120), "frame": np.tile(numbers, 2), "at": np.tile(numbers, 2)})
    for rows, scale, tolerance in ((by_frame, 1, 0.0), (timed(np.arange(201) / 50), RATE, RATE / 100 + 1e-6)):
        dataset = VideoDataset(tmp_path / "made", 2, rows=rows)
        assert len(dataset) > 10
        for item in dataset:
            shown = np.array([number_on(frame) for frame in item["frames"]])
            assert np.abs(item["rows"]["at"] * scale - shown).max() <= tolerance


def of_robot(robot: Path, source: object) -> VideoDataset:
    deltas = {"action": range(50), "observation.state": [-1, 0]}
    return VideoDataset(source, 1, rows=robot, delta_rows=deltas)  # type: ignore[arg-type]


def test_chunks_of_rows_reach_as_far_as_the_episode(robot: Path, tmp_path: Path) -> None:
    """50 actions from each frame on, and the state before it, of which only one frame is decoded."""
    dataset = of_robot(robot, robot)
    episodes = {id_: VideoDataset(robot, 1, ids=[id_], rows=robot) for id_ in dataset.ids}
    numbers = dict.fromkeys(dataset.ids, 0)
    for item in dataset:
        own, number = episodes[item["id"]], numbers[item["id"]]
        numbers[item["id"]] += 1
        actions = np.concatenate([each["rows"]["action"] for each in own])
        due = np.arange(number, number + 50)
        assert np.array_equal(item["rows"]["action"], actions[np.minimum(due, len(own) - 1)])
        assert np.array_equal(item["rows"]["action_is_pad"], due >= len(own))
        assert item["rows"]["observation.state_is_pad"].tolist() == [number == 0, False]
        assert item["rows"]["observation.state"].shape == (2, 2) and item["frames"].shape[0] == 1


@pytest.mark.parametrize("processes", [True, False], ids=["processes", "threads"])
def test_batches_of_chunks_and_texts(processes: bool, store: Path) -> None:
    words = [f"{n} {name}" for name in "ab" for n in range(COUNT)]
    dataset = VideoDataset(store, 2, rows=table(word=words), delta_rows={"number": [0, 70]})
    with PrefetchLoader(dataset, 3, shuffle=True, seed=1, workers=2, processes=processes) as loader:
        for batch in loader:
            for frames, rows, pad, said, id_ in zip(
                batch["frames"],
                batch["rows"]["number"],
                batch["rows"]["number_is_pad"],
                batch["rows"]["word"],
                batch["id"],
                strict=True,
            ):
                shown = [number_on(frame) for frame in frames]
                assert said == [f"{n} {id_}" for n in shown]
                assert rows.tolist() == [shown[0], COUNT - 1] and pad.tolist() == [False, True]


@pytest.mark.long
def test_rows_behind_a_url_and_after_a_restart(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same chunks and texts as of the folder, in the batches that were left when the state was taken."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with web_of(store, tmp_path / "web") as web:
        words = [f"{n} {name}" for name in "ab" for n in range(COUNT)]
        datasets = [
            VideoDataset(each, 2, rows=table(word=words), delta_rows={"number": [0, 70]}) for each in (store, web.url)
        ]
        loaders = [PrefetchLoader(each, 3, shuffle=True, seed=1, workers=2) for each in datasets]
        before = [batch["rows"] for batch in loaders[0]]
        for number, _batch in enumerate(loaders[1]):
            if number == 4:
                state = loaders[1].state_dict()
                break
        for loader in loaders:
            loader.close()
        with PrefetchLoader(datasets[1], 3, shuffle=True, seed=1, workers=2) as again:
            again.load_state_dict(state)
            after = [batch["rows"] for batch in again]
        assert len(after) == len(before) - 5
        for one, other in zip(after, before[5:], strict=True):
            assert one.keys() == other.keys() and one["word"] == other["word"]
            assert all(np.array_equal(one[name], other[name]) for name in ("number", "number_is_pad", "three"))


@pytest.mark.parametrize("deltas", [{"none": [0]}, {"number": []}, {"number": [0.5]}, {"number": 3}])
def test_chunks_that_make_no_sense_are_refused(deltas: dict[str, object], store: Path) -> None:
    with pytest.raises(SettingsError, match="give whole numbers for one of number, three"):
        VideoDataset(store, 4, rows=table(), delta_rows=deltas)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="delta_rows needs rows"):
        VideoDataset(store, 4, delta_rows={"number": [0]})


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (table().slice(0, COUNT), "rows has for 'b' no row"),
        (table().slice(0, COUNT + 9), "rows has for 'b' no row of frame 9 of the source, and 9 of others"),
        (table(frame=[0, *range(COUNT - 1), *range(COUNT)]), "rows has for 'a' two rows of frame 0"),
        (pa.table({"id": ["a"], "frame": [0]}), "give id, and frame or time, and values"),
        (pa.table({"frame": [0], "x": [0]}), "give id, and frame or time, and values"),
        (table(odd=[b"x"] * 2 * COUNT), "a column odd of binary"),
        (table(odd=[[0] * (n % 2 + 1) for n in range(2 * COUNT)]), "lists of different lengths in the column odd"),
        ("none.parquet", "cannot be read"),
        (table(id=["x"] * 2 * COUNT), "rows has no row of the 2 videos, such as 'a'"),
        (table(frame=["zero"] * 2 * COUNT), "rows has a column id or frame that is not text and numbers"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: object, said: str, store: Path) -> None:
    with pytest.raises(SettingsError, match=said):
        VideoDataset(store, 4, rows=rows)  # type: ignore[arg-type]
