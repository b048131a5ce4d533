"""A LeRobot dataset becomes one of another rate, size and codec: each row keeps its frame, by LeRobot's own reader too."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import command, environment, fault, transcode
from tests.numbered_pictures import number_on
from tests.robots import (
    CAMERAS,
    LENGTHS,
    OTHER_CAMERA,
    STILL,
    TASKS,
    make_old_dataset,
    make_robot_dataset,
    with_pictures,
    write_video,
)
from vidprep.formats import open_store
from vidprep.transcode.audit.statistics import join_statistics, statistics_of
from vidprep.transcode.export._robot_rows import rows_at

LEROBOT = Path(os.environ.get("VIDPREP_LEROBOT", Path(__file__).parents[2] / ".venv-lerobot" / "bin" / "python"))
LEROBOT_READS = """
import json, sys
from lerobot.datasets.lerobot_dataset import LeRobotDataset
step = 1 / int(sys.argv[2])
front, wrist = "observation.images.front", "observation.images.wrist"
deltas = {front: [-step, 0.0, step], "action": [0.0, step]}
dataset = LeRobotDataset("made/here", root=sys.argv[1], video_backend=sys.argv[3], delta_timestamps=deltas)

def number_on(picture):
    grey = picture.mean(0) * 255
    (height, width), bits = grey.shape, 0
    for place in range(16):
        row, column = divmod(place, 4)
        inside = grey[int((row + 0.3) * height / 4) : int((row + 0.7) * height / 4),
                      int((column + 0.3) * width / 4) : int((column + 0.7) * width / 4)]
        bits |= int(inside.mean() > 125) << place
    return bits & 0xFFF if bits >> 12 == ((bits & 0xFFF) * 7 + 3) % 16 else None

for item in (dataset[number] for number in range(len(dataset))):
    print(json.dumps({
        "front": [number_on(picture) for picture in item[front]], "pad": item[front + "_is_pad"].tolist(),
        "wrist": number_on(item[wrist]), "state": item["observation.state"].tolist(), "action": item["action"].tolist(),
        "episode": item["episode_index"].item(), "task": item["task"],
    }))
"""


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_robot_dataset(tmp_path_factory.mktemp("robot") / "dataset")


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and ".vidprep" not in path.parts
        and not path.name.startswith(("manifest", "gops", "validation"))
    }


def rows_of(made: Path) -> pa.Table:
    return pq.read_table(made / "data", partitioning=None)


def check(made: Path, kept: list[list[int]], rate: int) -> None:
    """Each frame shows the number that stands in its row, by our reader; and rows and episodes are numbered from 0."""
    store, rows = open_store(made), rows_of(made)
    info = json.loads((made / "meta/info.json").read_text())
    episodes = pq.read_table(made / "meta/episodes", partitioning=None).to_pylist()
    assert (info["fps"], info["total_frames"], info["total_episodes"]) == (rate, len(rows), len(kept))
    assert rows["index"].to_pylist() == list(range(len(rows)))
    for number, (own, about) in enumerate(zip(kept, episodes, strict=True)):
        part = rows.slice(about["dataset_from_index"], about["length"])
        assert set(part["episode_index"].to_pylist()) == {number} and about["length"] == len(own)
        assert part["frame_index"].to_pylist() == list(range(len(own)))
        assert np.allclose(part["timestamp"].to_numpy(), np.arange(len(own)) / rate, atol=1e-6)
        states = [round(state[0]) for state in part["observation.state"].to_pylist()]
        assert states == own
        for at, camera in enumerate(CAMERAS):
            shown = [number_on(frame) for frame in store[f"videos/{camera}/chunk-000/file-{number:03d}"].frames()]
            assert shown == [state + at * OTHER_CAMERA for state in states]


STARTS = (0, 37, 78)
AT_10 = [[*range(start, start + length, 3)] for start, length in zip(STARTS, LENGTHS, strict=True)]


@pytest.mark.parametrize("make", [make_robot_dataset, make_old_dataset], ids=["v3.0", "v2.1"])
def test_rows_stay_with_their_frames_and_the_source_untouched(make: Any, tmp_path: Path) -> None:
    source, made = make(tmp_path / "source"), tmp_path / "made"
    before = digests(source)
    ran = transcode(source, made, "--fps", 10, "--gop", 5, "--short-side", 48, "--quiet")
    assert ran.code == 0, ran.err
    check(made, AT_10, 10)
    info = json.loads((made / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0" and info["features"][CAMERAS[0]]["shape"] == [48, 48, 3]
    assert info["features"][CAMERAS[0]]["info"]["video.codec"] == "h264"
    assert digests(source) == before
    first = digests(made)
    assert transcode(made, verb="validate").code == 0
    assert transcode(source, made, "--fps", 10, "--gop", 5, "--short-side", 48, "--quiet").code == 0
    assert digests(made) == first
    again = tmp_path / "again"
    assert transcode(made, again, "--fps", 5, "--quiet").code == 0
    check(again, [own[::2] for own in AT_10], 5)


def test_the_rate_may_stay(robot: Path, tmp_path: Path) -> None:
    assert transcode(robot, tmp_path / "made", "--quiet").code == 0
    check(
        tmp_path / "made", [[*range(start, start + length)] for start, length in zip(STARTS, LENGTHS, strict=True)], 30
    )
    made, source = rows_of(tmp_path / "made"), rows_of(robot)
    assert made.equals(source.select(made.column_names).cast(made.schema))


@pytest.mark.parametrize("rule", ["last", "mean", "sum"])
def test_actions_of_rows_that_are_left_out(rule: str, robot: Path, tmp_path: Path) -> None:
    assert transcode(robot, tmp_path / "made", "--fps", 10, "--actions", rule, "--quiet").code == 0
    found = rows_of(tmp_path / "made")["action"].to_pylist()
    actions = np.asarray(rows_of(robot)["action"].to_pylist())
    due = []
    for start, length in zip(STARTS, LENGTHS, strict=True):
        for row in range(start, start + length, 3):
            group = actions[row : min(row + 3, start + length)]
            due.append({"last": group[-1], "mean": group.mean(0), "sum": group.sum(0)}[rule])
    assert np.allclose(found, due)


def test_columns_of_what_follows_lose_nothing() -> None:
    table = pa.table(
        {
            "next.done": [False, True, False, False, True],
            "next.reward": pa.array([1, 2, 3, 4, 5], pa.float32()),
            "action": pa.array([1, 2, 4, 8, 16], pa.int64()),
            "state": [0, 1, 2, 3, 4],
        }
    )
    kept = rows_at(table, np.array([0, 2, 4]), "mean").to_pydict()
    assert kept == {
        "next.done": [True, False, True],
        "next.reward": [3, 7, 5],
        "action": [2, 6, 16],
        "state": [0, 2, 4],
    }


def test_events_and_truth_values_of_rows_that_are_left_out_are_kept() -> None:
    """An event in words is a list, a text that stands in few rows, or a truth value; a state is that of the row."""
    said = {4: ["stop"], 5: ["go", "on"], 9: ["stop"]}
    events = [[{"role": "user", "content": word} for word in said.get(row, [])] for row in range(12)]
    table = pa.table(
        {
            "language_events": events,
            "language_persistent": [[{"style": "subtask", "content": "pick"}]] * 12,
            "marks": [None if row < 9 else [str(row)] for row in range(12)],
            "is_intervention": [row in (4, 5) for row in range(12)],
            "is_sure": pa.array([None, True] * 6),
            "note": ["a" if row == 2 else None for row in range(12)],
            "notes": [f"{row}" if row > 9 else "" for row in range(12)],
            "mode": [f"mode {row}" for row in range(12)],
            "points": pa.array([[float(row)] for row in range(12)], pa.list_(pa.float32())),
            "gripped": pa.array([[row == 4, False] for row in range(12)], pa.list_(pa.bool_(), 2)),
        }
    )
    lost = Counter[str]()
    made = rows_at(table, np.array([0, 3, 6, 9]), "last", lost)
    assert made.schema == table.schema
    rows = made.to_pydict()
    assert [[each["content"] for each in row] for row in rows["language_events"]] == [
        [],
        ["stop", "go", "on"],
        [],
        ["stop"],
    ]
    assert rows["language_persistent"] == [[{"style": "subtask", "content": "pick"}]] * 4
    assert rows["marks"][0] == [] and rows["marks"][3] == ["9", "10", "11"]
    assert rows["is_intervention"] == [False, True, False, False] and rows["is_sure"] == [True] * 4
    assert rows["note"] == ["a", None, None, None] and rows["notes"] == ["", "", "", "10"]
    assert rows["mode"] == [f"mode {row}" for row in (0, 3, 6, 9)] and rows["points"] == [[0.0], [3.0], [6.0], [9.0]]
    assert lost == {"notes": 1}


def test_empty_cells_of_groups_do_not_count() -> None:
    table = pa.table({"next.reward": [0, None, 1, 1, None, None], "action": [1.0, None, 2.0, 3.0, 4.0, None]})
    for rule, actions in (("sum", [1.0, 5.0, 4.0]), ("mean", [1.0, 2.5, 4.0])):
        made = rows_at(table, np.array([0, 2, 4]), rule)
        assert made["next.reward"].to_pylist() == [0, 2, None] and made["action"].to_pylist() == actions
        assert made.schema == table.schema


def test_columns_that_differ_between_episodes_lose_nothing(tmp_path: Path) -> None:
    """Lists of another length in one episode, columns in another order, and large lists."""
    source = make_old_dataset(tmp_path / "source")
    for number, length in enumerate(LENGTHS):
        path = source / f"data/chunk-000/episode_{number:06d}.parquet"
        table = pq.read_table(path)
        points = pa.array([[1.0] * (2 + number)] * length, pa.list_(pa.float64()))
        table = table.append_column("points", points)
        if number == 1:
            table = table.select(table.column_names[::-1])
        wide = table["action"].combine_chunks().cast(pa.large_list(pa.float32()))
        table = table.set_column(table.column_names.index("action"), "action", wide)
        pq.write_table(table, path)
    assert transcode(source, verb="validate").code == 0
    ran = transcode(source, tmp_path / "made", "--fps", 10, "--actions", "mean", "--quiet")
    assert ran.code == 0, ran.err
    check(tmp_path / "made", AT_10, 10)
    made = rows_of(tmp_path / "made")
    assert [len(each) for each in made["points"].to_pylist()] == [2] * 13 + [3] * 14 + [4] * 8
    assert made["action"].to_pylist()[0][0] == pytest.approx(10.0)  # of rows 0, 1 and 2


def test_a_truth_value_of_several_is_kept_one_by_one() -> None:
    table = pa.table({"gripped": pa.array([[row == 1, row == 2] for row in range(4)], pa.list_(pa.bool_(), 2))})
    assert rows_at(table, np.array([0, 2]), "last")["gripped"].to_pylist() == [[True, False], [False, True]]


def test_a_text_that_finds_no_place_is_named(tmp_path: Path) -> None:
    source = make_robot_dataset(tmp_path / "source")
    rows = source / "data/chunk-000/file-000.parquet"
    table = pq.read_table(rows)
    notes = ["one" if row == 1 else "two" if row == 2 else "" for row in range(len(table))]
    pq.write_table(table.append_column("note", pa.array(notes)), rows)
    ran = transcode(source, tmp_path / "made", "--fps", 10, "--quiet")
    assert ran.code == 0 and "1 text of note in rows that are left out could not be kept" in ran.err, ran.err
    assert rows_of(tmp_path / "made")["note"].to_pylist()[:2] == ["one", ""]


def test_a_run_that_loses_all_rows_fails_and_names_every_episode(tmp_path: Path) -> None:
    source, made = make_old_dataset(tmp_path / "source"), tmp_path / "made"
    (source / "data/chunk-000/episode_000000.parquet").unlink()
    (source / "data/chunk-000/episode_000002.parquet").unlink()
    os.mkfifo(source / "data/chunk-000/episode_000002.parquet")
    path = source / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(path)
    at = table.column_names.index("frame_index")
    pq.write_table(table.set_column(at, "frame_index", pa.array([2**62] * len(table))), path)
    for _ in range(2):
        ran = transcode(source, made, "--fps", 10, "--quiet")
        assert ran.code == 1 and ran.err.count("1 episode left out") == 3, ran.err
        assert all(f"episode {number} has" in ran.err for number in range(3))
        assert not (made / "meta/info.json").exists()
        checked = transcode(made, verb="validate")
        assert checked.code == 1 and checked.out.count("of the source is left out") == 3


def test_rows_that_are_not_written_yet_are_a_fault(tmp_path: Path) -> None:
    """Tasks of an array make videos alone."""
    source, made = make_old_dataset(tmp_path / "source"), tmp_path / "made"
    for part in ("0/2", "1/2"):
        assert transcode(source, made, "--fps", 10, "--partition", part, "--quiet").code == 0
    assert transcode(made, verb="merge").code == 0
    ran = transcode(made, verb="validate")
    assert ran.code == 1 and "has no rows of its LeRobot dataset yet" in ran.out, ran.out + ran.err
    assert transcode(source, made, "--fps", 10, "--quiet").code == 0 and transcode(made, verb="validate").code == 0


@pytest.mark.parametrize("damage", ["missing", "cut off", "a folder"])
@pytest.mark.parametrize("make", [make_robot_dataset, make_old_dataset], ids=["v3.0", "v2.1"])
def test_a_dataset_without_its_description_is_damaged_and_no_folder_of_videos(
    make: Any, damage: str, tmp_path: Path
) -> None:
    source = make(tmp_path / "source")
    info = source / "meta/info.json"
    text = info.read_text()
    info.unlink()
    if damage == "cut off":
        info.write_text(text[:100])
    elif damage == "a folder":
        info.mkdir()
    for ran in (transcode(source, tmp_path / "made"), transcode(source, verb="validate")):
        assert ran.code == 2 and "a damaged LeRobot dataset" in ran.err, ran.err
    assert not (tmp_path / "made").exists()


def test_statistics_are_those_of_the_rows(robot: Path, tmp_path: Path) -> None:
    assert transcode(robot, tmp_path / "made", "--fps", 10, "--quiet").code == 0
    states = np.asarray(rows_of(tmp_path / "made")["observation.state"].to_pylist())
    said = json.loads((tmp_path / "made/meta/stats.json").read_text())
    for name, due in (("mean", states.mean(0)), ("std", states.std(0)), ("min", states.min(0)), ("max", states.max(0))):
        assert np.allclose(said["observation.state"][name], due, rtol=1e-5)
    assert said["observation.state"]["count"] == [len(states)]
    picture = np.asarray(said[CAMERAS[0]]["mean"])
    assert picture.shape == (3, 1, 1) and 0.2 < picture.mean() < 0.8
    episode = pq.read_table(tmp_path / "made/meta/episodes", partitioning=None).to_pylist()[1]
    assert np.allclose(episode["stats/observation.state/max"], states[13:27].max(0))
    one = {"a": statistics_of(np.arange(10.0))}
    assert join_statistics([one, one])["a"]["mean"] == 4.5


def test_each_camera_may_have_its_size(robot: Path, tmp_path: Path) -> None:
    made, options = tmp_path / "made", ("--fps", 10, "--short-side", 32, "--side-of", "wrist=48", "--quiet")
    assert transcode(robot, made, *options).code == 0
    check(made, AT_10, 10)
    about = json.loads((made / "meta/info.json").read_text())["features"]
    assert [about[camera]["shape"] for camera in CAMERAS] == [[32, 32, 3], [48, 48, 3]]
    assert transcode(made, verb="validate").code == 0
    again = transcode(robot, made, *options)
    assert again.code == 0 and "6 done before" in again.err
    other = transcode(robot, made, *options[:-3], "--side-of", "wrist=40")
    assert other.code == 2 and "different settings: --side-of wrist=48 -> wrist=40" in other.err, other.err
    folders = transcode(
        tmp_path / "made" / "videos", tmp_path / "plain", "--side-of", "observation.images.wrist=16", "--quiet"
    )
    assert folders.code == 0 and {
        frame.shape for frame in map(first_frame, sorted((tmp_path / "plain").rglob("*.mp4")))
    } == {(32, 32, 3), (16, 16, 3)}


def first_frame(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        return next(container.decode(video=0)).to_ndarray(format="rgb24")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--side-of", "wrist"], "give names with pixels, such as wrist=128,top=240"),
        (["--side-of", "wrist=47"], "give an even number of pixels"),
        (["--side-of", "wrist=48", "--size", "64x64"], "exclude each other"),
        (["--fps", "30000/1001"], "whole numbers; give 30"),
        (["--fps", "60"], "30 rows per second"),
        (["--codec", "vp9", "--container", "mp4"], "LeRobot takes h264, hevc and av1"),
        (["--container", "mkv", "--actions", "sum"], "for a LeRobot dataset that becomes one again"),
    ],
)
def test_what_cannot_be_a_robot_dataset_is_refused(options: list[str], said: str, robot: Path, tmp_path: Path) -> None:
    ran = transcode(robot, tmp_path / "made", *options)
    assert ran.code == 2 and said in ran.err and not (tmp_path / "made").exists()


def test_other_stores_take_the_episodes(robot: Path, tmp_path: Path) -> None:
    assert transcode(robot, tmp_path / "made", "--fps", 10, verb="burst").code == 0
    store = open_store(tmp_path / "made")
    assert len(store) == 6 and not (tmp_path / "made" / "meta").exists()
    labels = store.labels(f"videos/{CAMERAS[1]}/chunk-000/file-002")
    assert labels == {"episode_index": 2, "camera": CAMERAS[1], "task": TASKS[0]}


def test_an_episode_with_a_lost_video_is_left_out(tmp_path: Path) -> None:
    source = make_old_dataset(tmp_path / "source")
    (source / "videos/chunk-000" / CAMERAS[0] / "episode_000001.mp4").write_bytes(b"no video")
    ran = transcode(source, tmp_path / "made", "--fps", 10, "--quiet")
    assert ran.code == 1 and "1 episode left out" in ran.err and CAMERAS[0] in ran.err
    rows = rows_of(tmp_path / "made")
    assert len(rows) == len(AT_10[0]) + len(AT_10[2]) and set(rows["episode_index"].to_pylist()) == {0, 1}
    states = [round(state[0]) for state in rows["observation.state"].to_pylist()]
    assert states == AT_10[0] + AT_10[2]


def changed_info(root: Path, **values: Any) -> None:
    path = root / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_rows_that_are_missing_doubled_or_in_another_order(tmp_path: Path) -> None:
    source = make_robot_dataset(tmp_path / "source")
    path = source / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    order = np.random.default_rng(0).permutation(len(table))
    pq.write_table(table.take(pa.array(order[order != 80])), path)
    ran = transcode(source, tmp_path / "made", "--fps", 10, "--quiet")
    said = "episode 2 has rows that are not numbered 0 to 22"
    assert ran.code == 1 and f"1 episode left out of the LeRobot dataset: {said}" in ran.err
    check(tmp_path / "made", AT_10[:2], 10)
    again = transcode(source, tmp_path / "made", "--fps", 10, "--quiet")
    assert again.code == 1 and said in again.err
    checked = transcode(tmp_path / "made", verb="validate")
    assert checked.code == 1 and "episode 2 of the source is left out: it has rows that are not numbered" in checked.out


def test_splits_tasks_and_other_metadata_are_kept(tmp_path: Path) -> None:
    source = make_robot_dataset(tmp_path / "source")
    changed_info(source, splits={"train": "0:2", "val": "2:3", "odd": "all"}, total_tasks=2)
    (source / "meta/modality.json").write_text("{}")
    tasks = source / "meta/tasks.parquet"
    table = pq.read_table(tasks)
    pq.write_table(table.set_column(0, "task_index", pa.array([0, 7])), tasks)
    rows = source / "data/chunk-000/file-000.parquet"
    table = pq.read_table(rows)
    at = table.column_names.index("task_index")
    pq.write_table(table.set_column(at, "task_index", pa.array([7 * task for task in table[at].to_pylist()])), rows)
    assert transcode(source, tmp_path / "made", "--fps", 10, "--quiet").code == 0
    info = json.loads((tmp_path / "made/meta/info.json").read_text())
    assert info["splits"] == {"train": "0:2", "val": "2:3"} and (tmp_path / "made/meta/modality.json").exists()
    assert pq.read_table(tmp_path / "made/meta/tasks.parquet")["task_index"].to_pylist() == [0, 1]
    assert set(rows_of(tmp_path / "made")["task_index"].to_pylist()) == {0, 1}
    episodes = pq.read_table(tmp_path / "made/meta/episodes", partitioning=None).to_pylist()
    assert [about["tasks"] for about in episodes] == [[TASKS[0]], [TASKS[1]], [TASKS[0]]]


def test_files_of_others_are_never_removed(robot: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    (made / "data").mkdir(parents=True)
    (made / "data/thesis.txt").write_text("mine")
    ran = transcode(robot, made, "--fps", 10)
    assert ran.code == 2 and "holds data/, which vidprep did not write" in ran.err
    assert (made / "data/thesis.txt").read_text() == "mine"
    before = digests(robot)
    assert transcode(robot, robot).code == 2 and transcode(robot, robot / "data").code == 2 and digests(robot) == before


def test_a_record_of_others_files_removes_none(robot: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    assert transcode(robot, made, "--fps", 10, "--quiet").code == 0
    (tmp_path / "mine").write_text("mine")
    record = made / ".vidprep/lerobot.json"
    known = json.loads(record.read_text())
    known["files"] |= {"../mine": None, "meta/../../mine": None}
    record.write_text(json.dumps(known | {"digest": ""}))
    assert transcode(robot, made, "--fps", 10, "--quiet").code == 0 and (tmp_path / "mine").exists()


def test_a_lost_or_changed_file_is_a_fault_and_is_written_again(robot: Path, tmp_path: Path) -> None:
    made, options = tmp_path / "made", ("--fps", 10, "--quiet")
    assert transcode(robot, made, *options).code == 0
    whole, rows = digests(made), made / "data/chunk-000/file-000.parquet"
    rows.unlink()
    (made / "meta/stats.json").write_text("{}")
    ran = transcode(made, verb="validate")
    assert ran.code == 1 and f"{rows}: is missing" in ran.out and "stats.json: is not the file" in ran.out
    assert transcode(robot, made, *options).code == 0 and digests(made) == whole
    assert transcode(robot, made, *options, "--actions", "sum").code == 0
    assert digests(made).keys() == whole.keys() and digests(made) != whole


def test_a_run_that_stops_in_the_middle_leaves_nothing_that_lerobot_opens(tmp_path: Path) -> None:
    """Its pictures would be new, and its rows old."""
    source, made = make_old_dataset(tmp_path / "source"), tmp_path / "made"
    options = ("--fps", 10, "--quiet", "--jobs", 1)
    assert transcode(source, made, *options).code == 0
    write_video(source / "videos/chunk-000" / CAMERAS[0] / "episode_000000.mp4", range(500, 537), 30)
    env = environment(
        tmp_path / "hook", fault("vidprep.transcode.export.robot", "complete_robot_dataset", only="parent")
    )
    subprocess.run(command(source, made, *options), env=env, stderr=subprocess.DEVNULL, start_new_session=True)
    assert not (made / "meta/info.json").exists()
    assert transcode(source, made, *options).code == 0 and (made / "meta/info.json").exists()


def test_values_that_do_not_fit_leave_out_their_episodes(tmp_path: Path) -> None:
    source = make_robot_dataset(tmp_path / "source")
    rows = source / "data/chunk-000/file-000.parquet"
    table = pq.read_table(rows)
    values = [None if number == 50 else action for number, action in enumerate(table["action"].to_pylist())]
    table = table.set_column(table.column_names.index("action"), "action", pa.array(values))
    times = pa.array([[value] for value in table["timestamp"].to_pylist()], pa.list_(pa.float32()))
    table = table.set_column(table.column_names.index("timestamp"), "timestamp", times)
    pq.write_table(table.append_column("next.note", pa.array(["a"] * len(table))), rows)
    ran = transcode(source, tmp_path / "made", "--fps", 10, "--actions", "mean", "--quiet")
    assert ran.code == 1 and "1 episode left out of the LeRobot dataset: episode 1" in ran.err
    made = rows_of(tmp_path / "made")
    assert made["timestamp"].type == pa.float32() and len(made) == len(AT_10[0]) + len(AT_10[2])


def test_rates_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    source = make_robot_dataset(tmp_path / "source")
    changed_info(source, fps=29.97)
    ran = transcode(source, tmp_path / "made")
    assert ran.code == 2 and "whole numbers; give --fps 29" in ran.err


@pytest.mark.long
@pytest.mark.parametrize("make", [make_robot_dataset, make_old_dataset], ids=["v3.0", "v2.1"])
def test_a_camera_of_depth_is_copied_as_it_is(make: Any, tmp_path: Path) -> None:
    """8 bits would damage it. The others are made again beside it."""
    source, made = make(tmp_path / "source"), tmp_path / "made"
    about = json.loads((source / "meta/info.json").read_text())["features"]
    about[CAMERAS[1]] = json.loads(json.dumps(about[CAMERAS[1]]))
    about[CAMERAS[1]]["info"]["is_depth_map"] = True
    changed_info(source, features=about)
    ran = transcode(source, made, "--fps", 20)
    assert ran.code == 2 and "give a rate that divides it" in ran.err and not made.exists()
    for _ in range(2):
        assert transcode(source, made, "--fps", 10, "--quiet").code == 0
        before, after = (
            sorted(path.read_bytes() for path in root.rglob("*.mp4") if CAMERAS[1] in str(path))
            for root in (source, made)
        )
        assert before == after
        store = open_store(made)
        shown = [number_on(frame) for id_ in store.ids for frame in store[id_].frames()]
        assert shown == [row for own in AT_10 for row in own]
        assert transcode(made, verb="validate").code == 0
    plain = tmp_path / "plain"
    shutil.copytree(made, plain, ignore=shutil.ignore_patterns(".vidprep", "*.vidprep*", "manifest*", "gops*"))
    ran = transcode(plain, verb="validate")
    assert ran.code == 0 and "0 faults, 0 warnings" in ran.err, ran.out + ran.err


@pytest.mark.parametrize("codec", ["png", "mjpeg"])
@pytest.mark.parametrize("make", [make_robot_dataset, make_old_dataset], ids=["v3.0", "v2.1"])
def test_columns_of_pictures_become_videos(make: Any, codec: str, tmp_path: Path) -> None:
    source, made = with_pictures(make(tmp_path / "source"), codec=codec), tmp_path / "made"
    before = digests(source)
    for _ in range(2):
        ran = transcode(source, made, "--fps", 10, "--images-to-video", "--quiet")
        assert ran.code == 0, ran.err
        check(made, AT_10, 10)
        store = open_store(made)
        for number, own in enumerate(AT_10):
            frames = store[f"videos/{STILL}/chunk-000/file-{number:03d}"].frames()
            assert frames.shape[1:] == (48, 64, 3)
            assert [number_on_part(frame) for frame in frames] == [row & 0xFFF for row in own]
        assert STILL not in rows_of(made).column_names and transcode(made, verb="validate").code == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "source"]
    assert "9 done before" in ran.err and digests(source) == before
    about = json.loads((made / "meta/info.json").read_text())["features"][STILL]
    assert about["dtype"] == "video" and about["info"]["video.fps"] == 10


def number_on_part(frame: np.ndarray) -> int:
    """The number on the upper three quarters of a picture."""
    return sum(
        int(frame[16 * row + 8, 16 * column + 8].mean() > 125) << (4 * row + column)
        for row in range(3)
        for column in range(4)
    )


def test_episodes_whose_pictures_are_lost_are_named(tmp_path: Path) -> None:
    source = with_pictures(make_old_dataset(tmp_path / "source"))
    (source / "data/chunk-000/episode_000001.parquet").unlink()
    path = source / "data/chunk-000/episode_000002.parquet"
    pq.write_table(pq.read_table(path).drop([STILL]), path)
    ran = transcode(source, tmp_path / "made", "--fps", 10, "--images-to-video", "--quiet")
    assert ran.code == 1 and "episode 1 has no rows" in ran.err and "episode 2 has no video" in ran.err, ran.err
    assert len(rows_of(tmp_path / "made")) == len(AT_10[0])


def test_pictures_at_a_rate_that_is_no_fraction(tmp_path: Path) -> None:
    source = with_pictures(make_robot_dataset(tmp_path / "source"))
    changed_info(source, fps=29.97)
    ran = transcode(source, tmp_path / "made", "--fps", 15, "--images-to-video", "--quiet")
    assert "Traceback" not in ran.err and len(open_store(tmp_path / "made")) >= 3, ran.err


@pytest.mark.parametrize("options", [("--dry-run",), ("--partition", "0/2"), ("--fps", 60)])
def test_nothing_is_written_for_what_is_refused(options: tuple[object, ...], tmp_path: Path) -> None:
    source = with_pictures(make_robot_dataset(tmp_path / "source"))
    ran = transcode(source, tmp_path / "made", "--images-to-video", *options)
    assert ran.code == 2 and [path.name for path in tmp_path.iterdir()] == ["source"], ran.err


def test_a_camera_that_is_no_depth_any_more_replaces_no_copy(tmp_path: Path) -> None:
    """Its outputs would take the names of the copies."""
    source, made = make_old_dataset(tmp_path / "source"), tmp_path / "made"
    about = json.loads((source / "meta/info.json").read_text())["features"]
    depth = about[CAMERAS[1]] | {"info": {"is_depth_map": True, "video.fps": 30}}
    changed_info(source, features=about | {CAMERAS[1]: depth})
    assert transcode(source, made, "--fps", 10, "--quiet").code == 0
    before = digests(made)
    changed_info(source, features=about)
    ran = transcode(source, made, "--fps", 10, "--quiet")
    assert ran.code == 2 and "which vidprep did not make" in ran.err, ran.err
    assert {name: before[name] for name in before if name.endswith(".mp4")}.items() <= digests(made).items()


def test_an_episode_with_another_column_is_named(tmp_path: Path) -> None:
    source = make_old_dataset(tmp_path / "source")
    path = source / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column("more", pa.array(range(len(table)))), path)
    ran = transcode(source, tmp_path / "made", "--fps", 10, "--quiet")
    assert ran.code == 1 and "episode 1 has rows that cannot be changed: the columns" in ran.err, ran.err


def test_a_missing_video_of_depth_leaves_its_episode_out(tmp_path: Path) -> None:
    source = make_old_dataset(tmp_path / "source")
    about = json.loads((source / "meta/info.json").read_text())["features"]
    about[CAMERAS[1]] = about[CAMERAS[1]] | {"info": None, "video_info": {"is_depth_map": True}}
    changed_info(source, features=about)
    (source / "videos/chunk-000" / CAMERAS[1] / "episode_000001.mp4").unlink()
    (source / "meta/episodes_stats.jsonl").unlink()
    ran = transcode(source, tmp_path / "made", "--fps", 10, "--quiet")
    assert ran.code == 1 and f"episode 1 has no video of {CAMERAS[1]}" in ran.err, ran.err
    about = json.loads((tmp_path / "made/meta/info.json").read_text())["features"]
    assert about[CAMERAS[1]]["info"] == {"video.fps": 30, "is_depth_map": True}


def test_pictures_that_cannot_become_videos_are_refused(robot: Path, tmp_path: Path) -> None:
    for options, said in (((robot,), "has no column of pictures"), ((tmp_path,), "is for a LeRobot dataset")):
        ran = transcode(*options, tmp_path / "made", "--images-to-video")
        assert ran.code == 2 and said in ran.err and not (tmp_path / "made").exists(), ran.err


@pytest.mark.long
def test_killed_twenty_times_it_ends_as_if_it_was_not(robot: Path, tmp_path: Path) -> None:
    whole, made, rng = tmp_path / "whole", tmp_path / "made", random.Random(0)
    options = ("--fps", 10, "--gop", 5, "--jobs", 1, "--quiet")
    before = digests(robot)
    started = time.monotonic()
    assert transcode(robot, whole, *options, env=dict(os.environ)).code == 0
    seconds = time.monotonic() - started
    for _ in range(20):
        run = subprocess.Popen(command(robot, made, *options), stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.2, 1.0) * seconds)
        run.kill()
        run.wait()
    ran = transcode(robot, made, *options)
    assert ran.code == 0, ran.err
    assert digests(made) == digests(whole) and digests(robot) == before
    check(made, AT_10, 10)


def needs_lerobot() -> None:
    if not LEROBOT.exists():
        say = pytest.fail if os.environ.get("VIDPREP_REQUIRE") else pytest.skip
        say(f"{LEROBOT} is missing: a venv of Python 3.12 with lerobot 0.6.1, which needs another PyAV")


def lerobot_reads(folder: Path, rate: int, backend: str, work: Path) -> list[dict[str, Any]]:
    """What LeRobot's own reader returns for every index."""
    ran = subprocess.run(
        [LEROBOT, "-c", LEROBOT_READS, folder, str(rate), backend],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=work,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(work / "hf"), "PYTHONPATH": ""},
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


@pytest.mark.long
@pytest.mark.parametrize("backend", ["pyav", "torchcodec"])
@pytest.mark.parametrize("codec", ["h264", "av1"])
def test_the_reader_of_lerobot_gets_the_right_frame_and_row_for_every_index(
    codec: str, backend: str, robot: Path, tmp_path: Path
) -> None:
    needs_lerobot()
    made = tmp_path / "made"
    assert transcode(robot, made, "--fps", 10, "--gop", 5, "--short-side", 48, "--codec", codec, "--quiet").code == 0
    whole = [[*range(start, start + length)] for start, length in zip(STARTS, LENGTHS, strict=True)]
    for folder, rate, kept in ((made, 10, AT_10), (robot, 30, whole)):
        items = lerobot_reads(folder, rate, backend, tmp_path)
        places = [(episode, at) for episode, own in enumerate(kept) for at in range(len(own))]
        assert len(items) == len(places)
        for item, (episode, at) in zip(items, places, strict=True):
            own = kept[episode]
            around = [own[max(0, min(len(own) - 1, at + step))] for step in (-1, 0, 1)]
            assert item["front"] == around and item["wrist"] == own[at] + OTHER_CAMERA
            assert item["pad"] == [at == 0, False, at == len(own) - 1]
            assert round(item["state"][0]) == own[at] and item["episode"] == episode
            assert item["task"] == TASKS[episode % 2]


RECORDS = """
import sys
import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset
features = {
    "observation.images.front": {"dtype": "video", "shape": (64, 64, 3), "names": ["height", "width", "channels"]},
    "observation.state": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]},
    "action": {"dtype": "float32", "shape": (1,), "names": ["grip"]},
    "is_intervention": {"dtype": "bool", "shape": (1,), "names": None},
    "note": {"dtype": "string", "shape": (1,), "names": None},
}
dataset = LeRobotDataset.create("made/here", 20, features, root=sys.argv[1])
for length in (24, 31):
    for row in range(length):
        picture = np.full((64, 64, 3), 40 + 5 * row, np.uint8)
        dataset.add_frame({
            "observation.images.front": picture, "observation.state": np.array([row, length], np.float32), "note": f"note {row}",
            "action": np.array([row], np.float32), "is_intervention": np.array([row == 3]), "task": f"task {length}",
        })
    dataset.save_episode()
dataset.finalize()
"""
MERGES = """
import json, sys
from lerobot.datasets.dataset_tools import merge_datasets
from lerobot.datasets.lerobot_dataset import LeRobotDataset
one, other = (LeRobotDataset(f"made/{name}", root=name) for name in sys.argv[1:3])
merged = merge_datasets([one, other], output_repo_id="made/merged", output_dir=sys.argv[3])
print(json.dumps([len(one), len(other), len(merged), merged.meta.total_episodes]))
"""
OPENS = """
import json, sys
from lerobot.datasets.lerobot_dataset import LeRobotDataset
found = {}
for root in sys.argv[1:]:
    dataset = LeRobotDataset("made/here", root=root)
    found[root] = [
        [int(item["frame_index"]), item["task"], [float(item[name].mean()) for name in dataset.meta.video_keys],
         [each["content"] for each in item.get("language_events", [])], item["observation.state"].tolist()]
        for item in (dataset[number] for number in range(len(dataset)))
    ]
    assert len(dataset.meta.stats["observation.state"]["mean"]) == dataset.features["observation.state"]["shape"][0]
print(json.dumps(found))
"""


def by_lerobot(script: str, work: Path, *arguments: object) -> Any:
    """What a script prints as JSON in LeRobot's environment."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(work / "hf"), "PYTHONPATH": ""}
    command = [LEROBOT, "-c", script, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=work, env=env)
    assert ran.returncode == 0, ran.stderr[-2000:]
    lines = [line for line in ran.stdout.splitlines() if line.startswith(("{", "["))]
    return json.loads(lines[-1]) if lines else None


@pytest.mark.long
def test_a_conversion_is_merged_with_a_recording(tmp_path: Path) -> None:
    """By LeRobot's own tools, whose writer made the recording."""
    needs_lerobot()
    by_lerobot(RECORDS, tmp_path, tmp_path / "recorded")
    assert transcode(tmp_path / "recorded", verb="validate").code == 0
    for name, options in (("same", ("--codec", "av1")), ("half", ("--codec", "av1", "--fps", 10))):
        assert transcode(tmp_path / "recorded", tmp_path / name, *options, "--quiet").code == 0
    assert by_lerobot(MERGES, tmp_path, "same", "recorded", tmp_path / "merged") == [55, 55, 110, 4]
    ran = transcode(tmp_path / "merged", verb="validate")
    assert ran.code == 0 and " 0 faults" in ran.err, ran.out + ran.err
    half = rows_of(tmp_path / "half")
    assert half["is_intervention"].to_pylist()[:3] == [False, True, False]  # of row 3, which is left out
    found = by_lerobot(OPENS, tmp_path, tmp_path / "half", tmp_path / "same")
    for name, step in (("half", 2), ("same", 1)):
        due = [(row, length) for length in (24, 31) for row in range(0, length, step)]
        assert [(state[0], state[1]) for *_, state in found[str(tmp_path / name)]] == due
        for (_, task, means, *_), (row, length) in zip(found[str(tmp_path / name)], due, strict=True):
            assert task == f"task {length}" and means[0] * 255 == pytest.approx(40 + 5 * row, abs=3)


@pytest.mark.long
def test_lerobot_opens_every_kind_of_dataset_that_is_made(tmp_path: Path) -> None:
    needs_lerobot()
    said = {"role": "user", "style": "interjection", "camera": None, "tool_calls": None}
    events = [[{**said, "content": f"row {row}"}] if row % 4 == 1 else [] for row in range(sum(LENGTHS))]
    fields = [(name, pa.string()) for name in ("role", "content", "style", "camera")]
    kind = pa.list_(pa.struct([*fields, ("tool_calls", pa.list_(pa.string()))]))
    lasting = pa.list_(pa.struct([*fields, ("tool_calls", pa.list_(pa.string())), ("timestamp", pa.float32())]))
    sources = {}
    for name, make in (("new", make_robot_dataset), ("old", make_old_dataset), ("stills", make_robot_dataset)):
        sources[name] = make(tmp_path / f"{name}-source")
    with_pictures(sources["stills"])
    path = sources["new"] / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path).append_column("language_events", pa.array(events, kind))
    plan = [{**said, "style": "plan", "content": "pick", "timestamp": 0.0}]
    pq.write_table(table.append_column("language_persistent", pa.array([plan] * len(table), lasting)), path)
    about = json.loads((sources["new"] / "meta/info.json").read_text())["features"]
    language = {"dtype": "language", "shape": [1], "names": None}
    changed_info(sources["new"], features=about | {"language_events": language, "language_persistent": language})
    made = {}
    for name, options in (("new", ()), ("old", ()), ("stills", ("--images-to-video",))):
        made[name] = tmp_path / name
        assert transcode(sources[name], made[name], "--fps", 10, *options, "--quiet").code == 0
    kept = [each["content"] for row in rows_of(made["new"])["language_events"].to_pylist() for each in row]
    assert kept == [each["content"] for row in events for each in row]
    found = by_lerobot(OPENS, tmp_path, *made.values())
    assert [each for *_, events, _ in found[str(made["new"])] for each in events] == kept
    for name in made:
        items = found[str(made[name])]
        assert [round(state[0]) for *_, state in items] == [row for own in AT_10 for row in own]
        assert [task for _, task, *_ in items] == [TASKS[number % 2] for number, own in enumerate(AT_10) for _ in own]
        assert {len(means) for _, _, means, *_ in items} == {3 if name == "stills" else 2}
