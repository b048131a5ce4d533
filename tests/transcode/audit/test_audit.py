"""`validate` of datasets that vidprep did not make: every planted fault is found, and whole datasets raise no alarm."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.helpers import make_clips, transcode
from tests.robots import CAMERAS, LENGTHS, STILL, make_old_dataset, make_robot_dataset, with_pictures, write_video
from vidprep.formats.lerobot import Episode
from vidprep.transcode import AuditReport, validate
from vidprep.transcode.audit._rules import findings_of
from vidprep.transcode.audit._video import VideoFacts
from vidprep.transcode.audit.dataset import Clip, VideoFile

FRONT = Path("videos", CAMERAS[0], "chunk-000", "file-000.mp4")
ROWS, EPISODES = Path("data/chunk-000/file-000.parquet"), Path("meta/episodes/chunk-000/file-000.parquet")
STARTS = (0, 37, 78)
NUMBERS = list(range(sum(LENGTHS)))


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_robot_dataset(tmp_path_factory.mktemp("robot") / "dataset")


def audited(folder: Path) -> AuditReport:
    report = validate(folder, jobs=1)
    assert isinstance(report, AuditReport)
    return report


def found(report: AuditReport) -> set[tuple[str, str, str]]:
    return {(finding.level, finding.kind, finding.part) for finding in report.findings}


def changed(path: Path, **columns: Callable[[np.ndarray], object]) -> None:
    """Replace columns of a Parquet file."""
    table = pq.read_table(path)
    for name, change in columns.items():
        at = table.column_names.index(name)
        values = pa.array(np.asarray(change(table[name].to_numpy().copy())), table.schema.field(name).type)
        table = table.set_column(at, name, values)
    pq.write_table(table, path)


def put(at: int, value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(values: np.ndarray) -> np.ndarray:
        values[at] = value
        return values

    return change


def missing_frame(root: Path) -> None:
    """The frame of row 50 was never written; those after it keep their times."""

    path, kept = root / FRONT, root / "kept.mp4"
    with av.open(str(path)) as source, av.open(str(kept), "w") as made:
        stream = made.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(each for each in source.demux(video=0) if each.size):
            if number != 50:
                packet.stream = stream
                made.mux(packet)
    kept.replace(path)


def frozen(root: Path) -> None:
    """Half of the second episode shows its first picture, while the robot moves."""
    write_video(root / FRONT, [*range(37), *[37] * 35, *range(72, 101)], 30, STARTS)


def shifted(root: Path) -> None:
    """The second camera begins half a frame late."""
    for camera in CAMERAS[1:]:
        changed(
            root / EPISODES,
            **{f"videos/{camera}/{side}_timestamp": lambda at: at + 0.5 / 30 for side in ("from", "to")},
        )


def shifted_by_a_frame(root: Path) -> None:
    changed(root / EPISODES, **{f"videos/{CAMERAS[1]}/from_timestamp": put(1, 38 / 30)})


def truncated(root: Path) -> None:
    data = (root / FRONT).read_bytes()
    (root / FRONT).write_bytes(data[: len(data) * 2 // 3])


def removed(root: Path) -> None:
    (root / FRONT).unlink()


def wrong_count(root: Path) -> None:
    changed(root / EPISODES, length=put(1, 43))


def wrong_total(root: Path) -> None:
    info = json.loads((root / "meta/info.json").read_text())
    (root / "meta/info.json").write_text(json.dumps(info | {"total_episodes": 4}))


def no_keyframe(root: Path) -> None:
    write_video(root / FRONT, NUMBERS, 30, (0,), gop=50)


def fewer_rows(root: Path) -> None:
    table = pq.read_table(root / ROWS)
    pq.write_table(table.filter(pc.not_equal(table["index"], 100)), root / ROWS)


def doubled(root: Path) -> None:
    """Every second picture is the one before: 15 frames per second called 30."""
    write_video(root / FRONT, [number // 2 * 2 for number in NUMBERS], 30, STARTS)


def other_rate(root: Path) -> None:
    write_video(root / FRONT, NUMBERS, 25, STARTS)


def late_row(root: Path) -> None:
    changed(root / ROWS, timestamp=put(40, 0.25))


def other_order(root: Path) -> None:
    """Episodes are stored in another order, and LeRobot addresses rows by place."""
    table = pq.read_table(root / ROWS)
    pq.write_table(pa.concat_tables([table.slice(37), table.slice(0, 37)]), root / ROWS)


def stray_rows(root: Path) -> None:
    shutil.copy(root / ROWS, root / "data/chunk-000/file-007.parquet")


def no_action(root: Path) -> None:
    pq.write_table(pq.read_table(root / ROWS).drop(["action"]), root / ROWS)


def other_size(root: Path) -> None:
    info = json.loads((root / "meta/info.json").read_text())
    info["features"][CAMERAS[0]]["shape"] = [480, 640, 3]
    (root / "meta/info.json").write_text(json.dumps(info))


def values(root: Path, name: str, change: Callable[[list], object], kind: pa.DataType | None = None) -> None:
    """Replace a column of the rows."""
    table = pq.read_table(root / ROWS)
    at = table.column_names.index(name)
    cells = table[name].to_pylist()
    change(cells)
    pq.write_table(table.set_column(at, name, pa.array(cells, kind or table[name].type)), root / ROWS)


def a_number_that_is_none(root: Path) -> None:
    values(root, "action", lambda cells: cells[50].__setitem__(1, float("nan")))


def an_empty_state(root: Path) -> None:
    values(root, "observation.state", lambda cells: cells.__setitem__(50, None))


def a_row_of_another_width(root: Path) -> None:
    values(root, "action", lambda cells: cells[50].pop(), pa.list_(pa.float32()))


def numbers_as_text(root: Path) -> None:
    values(root, "action", lambda cells: cells.__setitem__(slice(None), map(str, cells)), pa.string())


def described(root: Path, name: str = "info.json", **changes: Callable[[Any], object]) -> None:
    path = root / "meta" / name
    about = json.loads(path.read_text())
    for key, change in changes.items():
        key = key.replace("observation_", "observation.")
        about[key] = change(about[key])
    path.write_text(json.dumps(about))


def another_width(root: Path) -> None:
    described(root, features=lambda features: features | {"action": {"dtype": "float32", "shape": [7]}})


def no_deviation(root: Path) -> None:
    described(root, "stats.json", observation_state=lambda own: own | {"std": [0.0, 0.0]})


def another_mean(root: Path) -> None:
    described(root, "stats.json", action=lambda own: own | {"mean": [10.0, 10.0]})


def fewer_statistics(root: Path) -> None:
    described(root, "stats.json", action=lambda own: own | {"max": own["max"][:1]})


def no_statistics(root: Path) -> None:
    (root / "meta/stats.json").unlink()


def statistics_of_another_episode(root: Path) -> None:
    table = pq.read_table(root / EPISODES)
    at = table.column_names.index("stats/action/mean")
    means = table["stats/action/mean"].to_pylist()
    pq.write_table(table.set_column(at, "stats/action/mean", pa.array([means[0], means[0], means[2]])), root / EPISODES)


def a_task_twice(root: Path) -> None:
    table = pq.read_table(root / "meta/tasks.parquet")
    pq.write_table(table.set_column(1, "__index_level_0__", pa.array(["same", "same"])), root / "meta/tasks.parquet")


def tasks_of_others(root: Path) -> None:
    changed(root / ROWS, task_index=lambda tasks: 1 - tasks)


def more_tasks(root: Path) -> None:
    described(root, total_tasks=lambda _: 9)


def a_split_beyond_the_end(root: Path) -> None:
    described(root, splits=lambda _: {"train": "0:2", "val": "2:4"})


def wrong_rate(root: Path) -> None:
    described(root, fps=lambda _: 25)


def wrong_rate_of_a_camera(root: Path) -> None:
    described(
        root, features=lambda features: features | {CAMERAS[0]: features[CAMERAS[0]] | {"info": {"video.fps": 25}}}
    )


def times_that_run_on(root: Path) -> None:
    changed(root / ROWS, timestamp=lambda _: np.arange(101) / 30)


def exchanged_cameras(root: Path) -> None:
    """The first camera's pictures are darker."""
    for name, numbers in zip(CAMERAS, (NUMBERS, [None] * 101), strict=True):
        write_video(root / "videos" / name / "chunk-000/file-000.mp4", numbers, 30, STARTS)
    dark = {f"stats/{CAMERAS[0]}/{kind}": [[[[value]]] * 3] * 3 for kind, value in (("mean", 0.0), ("std", 0.0))}
    table = pq.read_table(root / EPISODES)
    for name, cells in dark.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(cells))
    pq.write_table(table, root / EPISODES)


def a_late_camera(root: Path) -> None:
    """Both show the same; one is six frames late."""
    moments = np.abs(np.sin(np.arange(101) / 3) * np.sin(np.arange(101) / 7))
    steps = np.cumsum(np.random.default_rng(0).random(101) < moments**2) * 7
    for name, late in zip(CAMERAS, (0, 6), strict=True):
        write_video(
            root / "videos" / name / "chunk-000/file-000.mp4", [*[0] * late, *steps[: 101 - late].tolist()], 30, STARTS
        )


FAULTS = {
    a_number_that_is_none: {("error", "columns", "")},
    an_empty_state: {("error", "columns", "")},
    a_row_of_another_width: {("error", "columns", "")},
    numbers_as_text: {("error", "columns", "")},
    another_width: {("error", "columns", "")},
    no_deviation: {("error", "statistics", "")},
    another_mean: {("error", "statistics", "")},
    fewer_statistics: {("error", "statistics", "")},
    no_statistics: {("error", "statistics", "")},
    statistics_of_another_episode: {("error", "statistics", "episode 1")},
    a_task_twice: {("error", "tasks", "")},
    tasks_of_others: {("error", "tasks", f"episode {number}") for number in range(3)},
    more_tasks: {("error", "tasks", "")},
    a_split_beyond_the_end: {("error", "splits", "")},
    wrong_rate: {("error", "rate", "")},
    wrong_rate_of_a_camera: {("error", "rate", "")},
    times_that_run_on: {("error", "times", "episode 1"), ("error", "times", "episode 2")},
    exchanged_cameras: {("error", "pictures", f"episode {number}") for number in range(3)},
    other_order: {("error", "order", "")},
    stray_rows: {("error", "unlisted", ""), ("error", "order", "")},
    no_action: {("error", "columns", "")},
    other_size: {("error", "size", "")},
    missing_frame: {("error", "frames", "episode 1"), ("error", "times", "episode 1")},
    frozen: {("warning", "frozen", "episode 1")},
    shifted: {("error", "range", "episode 0"), ("error", "times", "episode 0"), ("error", "times", "episode 2")},
    shifted_by_a_frame: {("error", "range", "episode 1"), ("error", "frames", "episode 1")},
    truncated: {("error", "unreadable", "")},
    removed: {("error", "missing", "")},
    wrong_count: {("error", "frames", "episode 1"), ("error", "rows", "episode 1"), ("error", "count", "")},
    wrong_total: {("error", "count", "")},
    no_keyframe: {("warning", "keyframe", "episode 1"), ("warning", "keyframe", "episode 2")},
    fewer_rows: {("error", "rows", "episode 2")},
    doubled: {("warning", "repeated", "episode 0"), ("warning", "repeated", "episode 1")},
    other_rate: {("error", "rate", ""), ("error", "times", "episode 0")},
    late_row: {("error", "times", "episode 1")},
}


OF_ONE_VIDEO = (missing_frame, frozen, truncated, removed, no_keyframe, doubled, other_rate)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_found(fault: Callable[[Path], None], robot: Path, tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(robot, root)
    fault(root)
    report = audited(root)
    assert found(report) >= FAULTS[fault], report.findings
    if fault in OF_ONE_VIDEO:  # and nothing is said of the others
        assert {finding.path for finding in report.findings} == {str(FRONT)}
    assert bool(report.faults) == any(level == "error" for level, *_ in FAULTS[fault])


ONE_LINE = (
    a_number_that_is_none,
    an_empty_state,
    a_row_of_another_width,
    numbers_as_text,
    another_width,
    no_deviation,
    another_mean,
    fewer_statistics,
    no_statistics,
    statistics_of_another_episode,
    more_tasks,
    a_split_beyond_the_end,
    wrong_rate,
)


@pytest.mark.parametrize("fault", ONE_LINE, ids=lambda fault: fault.__name__)
def test_one_cause_is_one_line(fault: Callable[[Path], None], robot: Path, tmp_path: Path) -> None:
    shutil.copytree(robot, tmp_path / "dataset")
    fault(tmp_path / "dataset")
    assert len(audited(tmp_path / "dataset").findings) == 1


def test_findings_of_many_episodes_are_one_line(tmp_path: Path) -> None:
    root = make_robot_dataset(tmp_path / "dataset", lengths=(3,) * 9)
    changed(root / ROWS, timestamp=lambda times: np.where(np.arange(27) >= 6, times + 1, times))
    (finding,) = audited(root).findings
    assert finding.part == "episodes 2-8" and "begin at 1 s" in finding.text


def test_a_camera_that_is_late_is_an_estimate_and_no_fault(tmp_path: Path) -> None:
    root = make_robot_dataset(tmp_path / "dataset", lengths=(101,))
    a_late_camera(root)
    found = [finding for finding in audited(root).findings if finding.kind == "late"]
    (text,) = [finding.text for finding in found if CAMERAS[1] in finding.text or CAMERAS[1] == finding.part]
    assert "6 frames" in text and "an estimate" in text and found[0].level == "warning"


def test_the_same_video_twice_is_found(tmp_path: Path) -> None:
    root = make_old_dataset(tmp_path / "dataset", lengths=(20, 20))
    videos = root / "videos/chunk-000" / CAMERAS[0]
    shutil.copy(videos / "episode_000001.mp4", videos / "episode_000000.mp4")
    assert ("error", "pictures", "episode 1") in found(audited(root))


def test_pictures_among_the_rows_are_decoded(tmp_path: Path) -> None:
    root = with_pictures(make_robot_dataset(tmp_path / "dataset", lengths=(4, 3)))
    assert not audited(root).findings
    whole = pq.read_table(root / ROWS)
    values(root, STILL, lambda cells: cells[5].update(bytes=cells[5]["bytes"][:40]))
    (finding,) = audited(root).findings
    assert "in row 1 of episode 1 cannot be decoded" in finding.text
    values(root, STILL, lambda cells: cells.__setitem__(2, None))
    (finding,) = audited(root).findings
    assert "in row 2 of episode 0 is empty" in finding.text
    pq.write_table(whole, root / ROWS)
    described(root, features=lambda features: features | {STILL: {"dtype": "image", "shape": [480, 640, 3]}})
    (finding,) = audited(root).findings
    assert "is 64x48, [480, 640, 3] is declared" in finding.text


def empty_place(root: Path) -> None:
    table = pq.read_table(root / EPISODES)
    name = f"videos/{CAMERAS[0]}/file_index"
    pq.write_table(
        table.set_column(table.column_names.index(name), name, pa.array([0.0, 0.0, float("nan")])), root / EPISODES
    )


def pointer_of_lfs(root: Path) -> None:
    (root / ROWS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")


def crashed(root: Path) -> None:
    shutil.rmtree(root / "meta/episodes")


def fifo(root: Path) -> None:
    (root / ROWS).unlink()
    os.mkfifo(root / ROWS)


def many_rows(root: Path) -> None:
    """A few kilobytes that claim 60,000,000 rows."""
    part = pa.table(
        {
            name: pa.array(np.zeros(1_000_000, np.int64))
            for name in ("episode_index", "frame_index", "index", "task_index", "timestamp")
        }
    )
    with pq.ParquetWriter(root / ROWS, part.schema, compression="zstd") as file:
        for _ in range(60):
            file.write_table(part)


@pytest.mark.parametrize(
    ("damage", "code", "said"),
    [
        (
            empty_place,
            2,
            f"meta/episodes/chunk-000/file-000.parquet: has no videos/{CAMERAS[0]}/file_index of episode 2",
        ),
        (pointer_of_lfs, 1, "it is a pointer of Git LFS, run `git lfs pull`"),
        (crashed, 2, "its recording was not ended (`finalize()` was not called)"),
        (fifo, 1, "not a regular file: a FIFO"),
        (many_rows, 1, "60000000 rows are claimed"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_cannot_be_read_is_named(
    damage: Callable[[Path], None], code: int, said: str, robot: Path, tmp_path: Path
) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(robot, root)
    damage(root)
    ran = transcode(root, "--quiet", verb="validate")
    assert ran.code == code and said in ran.out + ran.err, ran.out + ran.err


def test_an_episode_of_any_length_costs_that_episode(robot: Path, tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(robot, root)
    changed(root / EPISODES, length=put(1, 2**60))
    assert ("error", "rows", "episode 1") in found(audited(root))
    ran = transcode(root, tmp_path / "made", "--fps", 10, "--quiet")
    assert ran.code == 1 and "1 episode left out of the LeRobot dataset: episode 1" in ran.err, ran.err


def whole_lerobot(root: Path) -> str:
    make_robot_dataset(root)
    return "LeRobot dataset v3.0"


def whole_old_lerobot(root: Path) -> str:
    make_old_dataset(root)
    return "LeRobot dataset v2.1"


def whole_tars(root: Path) -> str:
    src = make_clips(root.parent / "src", 4, 30)
    assert transcode(src, root, "--gop", 5, "--format", "shards").code == 0
    for path in root.iterdir():
        if path.suffix != ".tar":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return "webdataset"


def whole_videofolder(root: Path) -> str:
    make_clips(root / "train", 3, 30)
    lines = "".join(f"{path.name},cat\n" for path in sorted((root / "train").iterdir()))
    (root / "train" / "metadata.csv").write_text(f"file_name,label\n{lines}")
    return "videofolder"


def whole_table(root: Path) -> str:
    make_clips(root / "clips", 2, 50)
    first = sorted((root / "clips").iterdir())[0].name
    lines = f"clips/{first},0.2,0.9,a\nclips/{first},1.0,2.0,b\n"
    (root / "cuts.csv").write_text(f"path,start,end,id\n{lines}")
    return "folder with a table"


def whole_folder(root: Path) -> str:
    make_clips(root, 3, 30)
    return "folder of videos"


WHOLE = (whole_lerobot, whole_old_lerobot, whole_tars, whole_videofolder, whole_table, whole_folder)


@pytest.mark.long
@pytest.mark.parametrize("make", WHOLE, ids=lambda make: make.__name__)
def test_a_whole_dataset_is_recognised_and_raises_no_alarm(make: Callable[[Path], str], tmp_path: Path) -> None:
    kind = make(tmp_path / "dataset")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "dataset").rglob("*")}
    report = audited(tmp_path / "dataset")
    assert report.dataset == kind and report.checked > 0
    assert [finding.kind for finding in report.findings] == ["unlisted"] * (make is whole_table), report.findings
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "dataset").rglob("*")}


def at_rest(root: Path) -> None:
    """The picture of the second episode stays as it is, and so do its rows."""
    write_video(root / FRONT, [*range(37), *[37] * 41, *range(78, 101)], 30, STARTS)
    table = pq.read_table(root / ROWS)
    for name in ("observation.state", "action"):
        values = np.asarray(table[name].to_pylist(), np.float32)
        values[37:78] = values[37]
        column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 2)
        table = table.set_column(table.column_names.index(name), name, column)
    pq.write_table(table, root / ROWS)


def test_a_robot_at_rest_is_no_fault_and_a_black_picture_is(robot: Path, tmp_path: Path) -> None:
    for name in ("rest", "black"):
        shutil.copytree(robot, tmp_path / name)
    at_rest(tmp_path / "rest")
    assert {kind for _, kind, _ in found(audited(tmp_path / "rest"))} == {"statistics"}  # which were not computed again
    write_video(tmp_path / "black" / FRONT, [*range(37), *[None] * 41, *range(78, 101)], 30, STARTS)
    assert found(audited(tmp_path / "black")) == {("warning", kind, "episode 1") for kind in ("black", "pictures")}


def test_tars_that_lack_or_repeat_a_member(tmp_path: Path) -> None:
    whole_tars(tmp_path / "dataset")
    (tar,) = (tmp_path / "dataset").glob("*.tar")
    with tarfile.open(tar) as file:
        members = [(member.name, file.extractfile(member).read()) for member in file]  # type: ignore[union-attr]
    first, second = [name for name, _ in members if name.endswith(".mp4")][:2]
    with tarfile.open(tar, "w") as file:
        for name, data in [each for each in members if each[0] != first] + [
            each for each in members if each[0] == second
        ]:
            about = tarfile.TarInfo(name)
            about.size = len(data)
            file.addfile(about, io.BytesIO(data))
    missing, twice = (name.removesuffix(".mp4") for name in (first, second))
    assert found(audited(tmp_path / "dataset")) == {("error", "missing", missing), ("error", "repeated", twice)}


def test_a_tar_that_ends_early(tmp_path: Path) -> None:
    whole_tars(tmp_path / "dataset")
    (tar,) = (tmp_path / "dataset").glob("*.tar")
    data = tar.read_bytes()
    tar.write_bytes(data[: len(data) - len(data) // 3])
    assert ("error", "damaged", "") in found(audited(tmp_path / "dataset"))


def test_a_cut_behind_the_end_and_a_file_that_no_row_names(tmp_path: Path) -> None:
    whole_table(tmp_path / "dataset")
    with (tmp_path / "dataset" / "cuts.csv").open("a") as file:
        file.write(f"clips/{min((tmp_path / 'dataset' / 'clips').iterdir()).name},1.5,9,c\nclips/none.mp4,0,1,d\n")
    report = audited(tmp_path / "dataset")
    assert {("error", "range", "c"), ("error", "source", ""), ("warning", "unlisted", "")} <= found(report)


def test_the_command_says_what_it_found_and_writes_a_page(robot: Path, tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(robot, root)
    no_keyframe(root)
    ran = transcode(root, "--out", tmp_path / "out", "--quiet", verb="validate")
    assert ran.code == 0 and ran.out.count("warning: ") == 2, ran.err
    assert "LeRobot dataset v3.0: 3 episodes, 2 cameras, 101 rows at 30 per second" in ran.err
    table = pq.read_table(tmp_path / "out" / "findings.parquet")
    assert table["kind"].to_pylist() == ["keyframe"] * 2 and (tmp_path / "out" / "report.html").exists()
    removed(root)
    ran = transcode(root, "--json", "--quiet", verb="validate")
    said = json.loads(ran.out)
    assert ran.code == 1 and said["dataset"] == "LeRobot dataset v3.0"
    assert [finding["kind"] for finding in said["findings"]] == ["missing"]


@pytest.mark.parametrize(
    "change",
    [
        {"splits": ["train"]},
        {"features": {"action": {"dtype": "float32", "shape": 7}}},
        {"features": {CAMERAS[0]: {"dtype": "video", "info": "text", "names": [["height"], "width", "channels"]}}},
        {
            "features": {
                CAMERAS[0]: {"dtype": "video", "shape": [None, None, 3], "names": ["height", "width", "channels"]}
            }
        },
    ],
    ids=str,
)
def test_odd_descriptions_are_no_crash(change: dict[str, Any], robot: Path, tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(robot, root)
    described(root, features=lambda features: features | change.get("features", {}))
    described(root, splits=lambda splits: change.get("splits", splits))
    assert audited(root).checked == 2
    ran = transcode(root, tmp_path / "made", "--fps", 10, "--quiet")
    assert ran.code == 0, ran.err


def test_times_in_another_unit_are_findings(robot: Path, tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(robot, root)
    changed(root / ROWS, timestamp=lambda times: times * 1e6)
    assert ("error", "times", "episode 0") in found(audited(root))


def test_a_file_that_cannot_be_read_says_nothing_of_the_others(tmp_path: Path) -> None:
    root = make_old_dataset(tmp_path / "dataset")
    (root / "data/chunk-000/episode_000000.parquet").write_bytes(b"damaged")
    assert [finding.path for finding in audited(root).findings] == ["data/chunk-000/episode_000000.parquet"]


def test_statistics_of_each_value_of_two_axes_are_those_of_the_rows(tmp_path: Path) -> None:
    """As LeRobot wrote them before it put those of an axis together."""
    root = make_old_dataset(tmp_path / "dataset")
    lines = [json.loads(line) for line in (root / "meta/episodes_stats.jsonl").read_text().splitlines()]
    for line, path in zip(lines, sorted((root / "data").rglob("*.parquet")), strict=True):
        table = pq.read_table(path)
        pq.write_table(table.append_column("touch", pa.array([[[1.0, 2.0], [3.0, 4.0]]] * len(table))), path)
        line["stats"]["touch"] = {kind: [[1.0, 2.0], [3.0, 4.0]] for kind in ("min", "max", "mean")} | {
            "std": [[0.0] * 2] * 2,
            "count": [1],
        }
    (root / "meta/episodes_stats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    described(root, features=lambda features: features | {"touch": {"dtype": "float32", "shape": [2, 2]}})
    assert not audited(root).findings


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"codebase_version": "v9"}, "is of version v9"),
        ({"video_path": "../../{video_key}.mp4"}, "leads out of the dataset"),
        ({"video_path": "{secret}.mp4"}, "unknown field secret"),
        ({"features": 3}, "cannot be read"),
        ({"fps": "fast"}, "cannot be read"),
        ({"fps": float("inf")}, "frames per second"),
        ({"video_path": "{chunk_index:09999999999d}"}, "too wide"),
    ],
)
def test_metadata_that_makes_no_sense_is_an_error(
    change: dict[str, object], said: str, robot: Path, tmp_path: Path
) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(robot, root)
    info = json.loads((root / "meta/info.json").read_text())
    (root / "meta/info.json").write_text(json.dumps(info | change))
    ran = transcode(root, "--quiet", verb="validate")
    assert ran.code == 2 and said in ran.err and "Traceback" not in ran.err


def test_frames_that_begin_at_the_same_time_are_a_finding() -> None:
    video = VideoFile(Path("a.mp4"), "a.mp4", (Clip(""),), 30.0)
    several = np.zeros(20)
    facts = VideoFacts("h264", "yuv420p", (64, 64), several, several == 0, several == 1)
    (finding,) = [each for each in findings_of(video, facts, lambda *_: None) if each.kind == "rate"]
    assert "begin at the same time" in finding.text


def test_keyframes_are_those_of_the_frames_in_order_of_time() -> None:
    """Frames without a time, and in another order, moved the flags of others."""
    episode = Episode(0, 3, None, None, "", {})
    video = VideoFile(Path("a.mp4"), "a.mp4", (Clip("episode 0", 0.0, 0.1, 3, episode=episode),), 30.0)
    times = np.array([np.nan, 2 / 30, 0.0, 1 / 30])
    facts = VideoFacts("h264", "yuv420p", (64, 64), times, np.array([False, False, True, False]), np.zeros(4, np.bool_))
    assert not list(findings_of(video, facts, lambda *_: None))


def test_absurd_totals_are_only_wrong(robot: Path, tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(robot, root)
    info = json.loads((root / "meta/info.json").read_text())
    (root / "meta/info.json").write_text(json.dumps(info | {"total_episodes": 10**30}))
    assert found(audited(root)) == {("error", "count", "")}


def test_nested_metadata_is_an_error(tmp_path: Path) -> None:
    root = make_old_dataset(tmp_path / "dataset")
    (root / "meta/episodes.jsonl").write_text("[" * 100_000)
    ran = transcode(root, "--quiet", verb="validate")
    assert ran.code == 2 and "cannot be read" in ran.err and "Traceback" not in ran.err


def test_an_empty_folder_is_no_dataset(tmp_path: Path) -> None:
    ran = transcode(tmp_path, verb="validate")
    assert ran.code == 2 and "neither a destination of vidprep nor a dataset" in ran.err
