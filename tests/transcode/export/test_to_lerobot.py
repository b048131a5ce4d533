"""`pack --to lerobot`: videos and tables of values become a LeRobot dataset in which each frame has its row."""

from __future__ import annotations

import csv
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import transcode
from tests.numbered_pictures import constant, number_on, write
from tests.transcode.test_robot_datasets import lerobot_reads, needs_lerobot
from vidprep.formats import VideoDataset, open_store
from vidprep.transcode import AuditReport, pack, validate

RATE, STATES, LENGTHS, CAMERAS = 30, 50, (45, 61), ("front", "wrist")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes of two cameras at 30 frames per second, and states at 50 Hz that say which frame is shown."""
    folder = tmp_path_factory.mktemp("episodes")
    with (folder / "episodes.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "id", "episode_index", "camera", "task", "rows"])
        for episode, length in enumerate(LENGTHS):
            times = np.arange(int(length / RATE * STATES) + 1) / STATES
            values = [[t * RATE, -t] for t in times]
            actions = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(times, 3)), 3)
            rows = folder / f"{episode}.parquet"
            pq.write_table(
                pa.table({"time": times, "observation.state": values, "action": actions, "grip": times > 0.5}), rows
            )
            for camera in CAMERAS:
                video = write(folder / f"{episode}-{camera}.mp4", constant(length, RATE))
                table.writerow([video, f"{episode}-{camera}", episode, camera, f"task {episode}", rows])
    return folder


def packed(sources: Path, out: Path, *options: object) -> Path:
    assert transcode(sources / "episodes.csv", out / "store", "--gop", 5, *options, "--quiet").code == 0
    ran = transcode(out / "store", out / "robot", "--to", "lerobot", verb="pack")
    assert ran.code == 0, ran.err
    return out / "robot"


@pytest.mark.parametrize(("options", "rate"), [((), 30), (("--fps", 10), 10)])
def test_states_at_another_rate_stay_in_step_with_the_frames(
    options: tuple[object, ...], rate: int, sources: Path, tmp_path: Path
) -> None:
    robot = packed(sources, tmp_path, *options)
    report = validate(robot)
    assert isinstance(report, AuditReport) and report.dataset == "LeRobot dataset v3.0" and not report.findings
    info = json.loads((robot / "meta/info.json").read_text())
    assert info["fps"] == rate and info["features"]["action"] == {"dtype": "float32", "shape": [3], "names": None}
    assert pq.read_table(robot / "meta/tasks.parquet").column(1).to_pylist() == ["task 0", "task 1"]
    for camera in CAMERAS:
        files = sorted((robot / "videos" / f"observation.images.{camera}").rglob("*.mp4"))
        dataset = VideoDataset([str(path) for path in files], 1)
        rows = pq.read_table(robot / "data", partitioning=None)
        assert len(dataset) == len(rows)
        for number, state in enumerate(rows["observation.state"].to_pylist()):
            shown = number_on(dataset[number]["frames"][0])
            assert shown is not None and abs(shown - state[0]) <= RATE / STATES / 2 + 1e-5
    assert rows["grip"].type == pa.bool_() and rows["observation.state"].type == pa.list_(pa.float32(), 2)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["pyav", "torchcodec"])
def test_the_reader_of_lerobot_gets_the_right_state(backend: str, sources: Path, tmp_path: Path) -> None:
    needs_lerobot()
    items = lerobot_reads(packed(sources, tmp_path, "--fps", 10), 10, backend, tmp_path)
    assert len(items) == sum(len(range(0, length, 3)) for length in LENGTHS)
    for item in items:
        assert item["front"][1] == item["wrist"] and abs(item["wrist"] - item["state"][0]) <= RATE / STATES / 2 + 1e-5
        assert item["task"] == f"task {item['episode']}"


@pytest.mark.parametrize(
    ("videos", "said"),
    [
        ([("0-front", "", "front")], "has no label episode_index"),
        ([("0-front", 0, "front"), ("1-front", 1, "wrist")], "its episodes have different cameras"),
        (
            [("0-front", 0, "front"), ("1-front", 0, "front")],
            "is a second video of observation.images.front in episode 0",
        ),
        ([("0-front", 0, "front"), ("1-front", 0, "wrist")], "its cameras have different numbers of frames"),
    ],
)
def test_what_does_not_fit_is_said(
    videos: list[tuple[str, object, str]], said: str, sources: Path, tmp_path: Path
) -> None:
    names = ["path", "id", *(["episode_index"] if videos[0][1] != "" else []), "camera"]
    with (tmp_path / "table.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(names)
        for number, (name, episode, camera) in enumerate(videos):
            table.writerow([sources / f"{name}.mp4", f"v{number}", *([episode] if episode != "" else []), camera])
    assert transcode(tmp_path / "table.csv", tmp_path / "store", "--quiet").code == 0
    ran = transcode(tmp_path / "store", tmp_path / "out", "--to", "lerobot", verb="pack")
    assert ran.code == 2 and said in ran.err and not (tmp_path / "out").exists(), ran.err


def rows_file(path: Path, times: np.ndarray, **columns: object) -> None:
    pq.write_table(pa.table({"time": times, "state": times, **columns}), path)


def one_episode(folder: Path, rows: str = "rows/0.parquet", **cut: object) -> Path:
    """A store of one video of 120 numbered pictures, or a cut of it, with a file of rows that is relative to the table."""
    write(folder / "whole.mp4", constant(120, RATE))
    (folder / "rows").mkdir(exist_ok=True)
    names = ["path", "id", "episode_index", "rows", *cut]
    lines = [names, ["whole.mp4", "e", 0, rows, *cut.values()]]
    (folder / "table.csv").write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
    assert transcode(folder / "table.csv", folder / "store", "--fps", 15, "--quiet").code == 0
    return folder / "store"


def test_rows_of_a_cut_are_those_that_the_loader_gives(tmp_path: Path) -> None:
    store, times = one_episode(tmp_path, start=2, end=3.5), np.arange(201) / STATES
    words = [f"{at:.2f}" for at in times]
    rows_file(tmp_path / "rows" / "0.parquet", times, one=[[at] for at in times], note=words)
    pack(store, tmp_path / "robot", to="lerobot")
    made = pq.read_table(tmp_path / "robot" / "data", partitioning=None)
    loaded = VideoDataset(store, 1, rows=pa.table({"id": ["e"] * 201, "time": times, "state": times}))
    assert made["state"].to_pylist() == pytest.approx([item["rows"]["state"][0] for item in loaded], abs=1e-6)
    assert made["state"].to_pylist()[:2] == pytest.approx([2.0, 2.06]) and made["note"].to_pylist()[0] == "2.00"
    assert made["one"].type == pa.float32()
    info = json.loads((tmp_path / "robot" / "meta/info.json").read_text())
    assert info["features"]["note"]["dtype"] == "string" and info["features"]["one"]["shape"] == [1]


def test_a_hole_in_the_rows_is_refused_unless_it_may_be_filled(tmp_path: Path) -> None:
    store, times = one_episode(tmp_path), np.arange(201) / STATES
    rows_file(tmp_path / "rows" / "0.parquet", times[(times < 1) | (times > 3)])
    ran = transcode(store, tmp_path / "robot", "--to", "lerobot", verb="pack")
    assert ran.code == 2 and "has for e no row from 0.98 to 3.02 s (2.04 s)" in ran.err, ran.err
    assert not (tmp_path / "robot").exists()
    assert transcode(store, tmp_path / "robot", "--to", "lerobot", "--rows-gap", "hold", verb="pack").code == 0
    states = pq.read_table(tmp_path / "robot" / "data", partitioning=None)["state"].to_pylist()
    assert states[20] == pytest.approx(0.98) and states[50] == pytest.approx(50 / 15, abs=0.011)


def test_episodes_with_names_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    write(tmp_path / "a.mp4", constant(5, RATE))
    names = {10: "ep_10", 9: "ep_9", 5: "dry_11", 2: "ep_2"}
    lines = ["path,id,episode,start,end"] + [f"a.mp4,v{n},{name},{n / 100},0.15" for n, name in names.items()]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    assert transcode(tmp_path / "table.csv", tmp_path / "store", "--quiet").code == 0
    pack(tmp_path / "store", tmp_path / "robot", to="lerobot")
    lengths = pq.read_table(tmp_path / "robot/meta/episodes", partitioning=None)["length"].to_pylist()
    store = open_store(tmp_path / "store")
    assert lengths == [len(store[f"v{number}"]) for number in (5, 2, 9, 10)] and len(set(lengths)) > 2


def test_times_that_lerobot_would_not_find_are_refused(tmp_path: Path) -> None:
    """Matroska counts milliseconds, and LeRobot's reader allows a tenth of one."""
    write(tmp_path / "a.mkv", constant(30, RATE), tick=Fraction(1, 1000))
    (tmp_path / "table.csv").write_text("path,id,episode_index\na.mkv,a,0\n")
    assert transcode(tmp_path / "table.csv", tmp_path / "store", "--quiet").code == 0
    ran = transcode(tmp_path / "store", tmp_path / "robot", "--to", "lerobot", verb="pack")
    assert ran.code == 2 and "ms off 30 a second" in ran.err and "--fps 30" in ran.err, ran.err
    assert transcode(tmp_path / "table.csv", tmp_path / "other", "--fps", 30, "--quiet").code == 0
    pack(tmp_path / "other", tmp_path / "robot", to="lerobot")
    assert isinstance(report := validate(tmp_path / "robot"), AuditReport) and not report.findings


def two_episodes(folder: Path, *rows: str) -> Path:
    write(folder / "a.mp4", constant(30, RATE))
    lines = ["path,id,episode_index,rows"]
    for number, text in enumerate(rows):
        (folder / f"{number}.csv").write_text(text)
        lines.append(f"a.mp4,v{number},{number},{number}.csv")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    assert transcode(folder / "table.csv", folder / "store", "--quiet").code == 0
    return folder / "store"


def csv_of(values: list[object]) -> str:
    return "frame,grip\n" + "".join(f"{frame},{value}\n" for frame, value in enumerate(values))


def test_whole_numbers_in_one_episode_and_others_in_another_fit(tmp_path: Path) -> None:
    store = two_episodes(tmp_path, csv_of([0, 1] * 15), csv_of([0.5] * 30))
    pack(store, tmp_path / "robot", to="lerobot")
    rows = pq.read_table(tmp_path / "robot/data", partitioning=None)
    assert rows["grip"].type == pa.float32() and rows["grip"].to_pylist() == [0, 1] * 15 + [0.5] * 30


def test_an_option_for_another_format_is_refused(tmp_path: Path) -> None:
    store = two_episodes(tmp_path, csv_of([1] * 30))
    ran = transcode(store, tmp_path / "out", "--to", "hf", "--rows-gap", "hold", verb="pack")
    assert ran.code == 2 and "--rows-gap hold needs --to lerobot" in ran.err, ran.err


@pytest.mark.parametrize(
    ("values", "said"),
    [(["x"] * 30, "has string in the column grip"), ([1] * 29 + [""], "has an empty cell in the column grip")],
)
def test_columns_that_do_not_fit_are_named(values: list[object], said: str, tmp_path: Path) -> None:
    store = two_episodes(tmp_path, csv_of([1] * 30), csv_of(values))
    ran = transcode(store, tmp_path / "robot", "--to", "lerobot", verb="pack")
    assert ran.code == 2 and said in ran.err, ran.err
