"""Episodes of LeRobot datasets that `select` takes: rows, frames and tasks stay together."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.helpers import manifest, transcode
from tests.robots import CAMERAS, LENGTHS, OTHER_CAMERA, TASKS, make_old_dataset, make_robot_dataset
from tests.transcode.test_robot_datasets import STARTS, check, digests, lerobot_reads, needs_lerobot
from vidprep.formats.errors import SettingsError
from vidprep.transcode import select, validate
from vidprep.transcode.selection.robot import _spans


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("episodes")
    make_robot_dataset(root / "source")
    assert transcode(root / "source", root / "made", "--gop", 6, "--quiet").code == 0
    return root / "made"


def table(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(("episode_index,start_frame,end_frame,skill", *(f"{row},{row[0]}" for row in rows))))
    return path


CLIPS = ((0, 5, 20), (0, 24, 31), (2, 0, 12), (1, 40, 41))
KEPT = [[*range(STARTS[episode] + begin, STARTS[episode] + end)] for episode, begin, end in sorted(CLIPS)]


def test_rows_of_a_table_are_episodes(made: Path, tmp_path: Path) -> None:
    before = digests(made)
    rows = table(tmp_path / "t.csv", *(f"{episode},{begin},{end}" for episode, begin, end in CLIPS))
    ran = transcode(made, tmp_path / "out", "--table", rows, "--quiet", verb="select")
    assert ran.code == 0, ran.err
    check(tmp_path / "out", KEPT, 30)
    assert digests(made) == before
    assert not validate(tmp_path / "out").faults
    first = digests(tmp_path / "out")
    assert transcode(made, tmp_path / "out", "--table", rows, "--quiet", verb="select").code == 0
    assert digests(tmp_path / "out") == first
    labels = [row["labels"] for row in manifest(tmp_path / "out").values()]
    assert sorted(each["episode_index"] for each in labels) == sorted([*range(4)] * 2)
    skills = {each["episode_index"]: each["skill"] for each in labels}
    assert skills == {0: 0, 1: 0, 2: 1, 3: 2}
    # And frames of that.
    again = table(tmp_path / "again.csv", "1,2,7", "3,1,9")
    assert select(tmp_path / "out", tmp_path / "twice", table=again).ok == 4
    check(tmp_path / "twice", [KEPT[1][2:7], KEPT[3][1:9]], 30)


def test_whole_episodes(made: Path, tmp_path: Path) -> None:
    assert select(made, tmp_path / "out", keep="episode_index != 1").ok == 4
    info = pq.read_table(tmp_path / "out/meta/episodes", partitioning=None).to_pylist()
    assert [row["length"] for row in info] == [37, 23]
    assert not validate(tmp_path / "out").faults


def test_idle_ends_are_left_out(tmp_path: Path) -> None:
    """The action rests at both ends, and once for 20 frames in between; in the third episode always."""
    lengths = (60, 70, 40)
    source = make_robot_dataset(tmp_path / "source", lengths=lengths)
    path = source / "data/chunk-000/file-000.parquet"
    rows = pq.read_table(path)
    actions = [
        *([0.0] * 12 + [*np.linspace(0, 9, 10)] + [9.0] * 20 + [*np.linspace(9, 3, 8)] + [3.0] * 10),
        *([1.0] * 15 + [*(2 + np.arange(40) / 3)] + [15.0] * 15),
        *([5.0] * 40),
    ]
    resting = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(actions, 2).astype(np.float32)), 2)
    rows = rows.set_column(rows.column_names.index("action"), "action", resting)
    numbers = rows["observation.state"]
    rows = rows.set_column(rows.column_names.index("observation.state"), "observation.state", resting)
    pq.write_table(rows.append_column("number", numbers), path)
    made, out = tmp_path / "made", tmp_path / "out"
    assert transcode(source, made, "--gop", 6, "--quiet").code == 0
    for options, kept in (((), [(12, 50), (74, 115)]), (("--drop-idle",), [(12, 22), (42, 50), (74, 115)])):
        ran = transcode(made, out / str(len(kept)), "--trim-idle", "0.3", *options, verb="select")
        assert ran.code == 0, ran.err
        shown = pq.read_table(out / str(len(kept)) / "data", partitioning=None)
        spans = [
            [round(each[0]) for each in shown.filter(pc.equal(shown["episode_index"], n))["number"].to_pylist()]
            for n in range(len(kept))
        ]
        assert [(own[0], own[-1] + 1) for own in spans] == kept
        assert len(manifest(out / str(len(kept)))) == 2 * len(kept)
        assert not validate(out / str(len(kept))).faults


STILL, MOVES = [0.0, 0.0], [[0.0, float(n)] for n in range(1, 9)]


@pytest.mark.parametrize(
    ("states", "length", "drops", "spans"),
    [
        ([STILL] * 10 + MOVES + [[0.0, 8.0]] * 10, 5, False, [(9, 18)]),
        ([STILL] * 4 + MOVES, 5, False, [(0, 12)]),
        ([STILL] * 30, 5, False, []),
        (MOVES + [[0.0, 8.0]] * 12 + MOVES[::-1], 6, True, [(0, 8), (20, 28)]),
        (MOVES + [[0.0, 8.0]] * 12 + MOVES[::-1], 6, False, [(0, 28)]),
        ([[0.0, n / 100] for n in range(400)], 30, True, [(0, 400)]),  # slowly, all the time
    ],
)
def test_spans_in_which_something_moves(
    states: list[list[float]], length: int, drops: bool, spans: list[tuple[int, int]]
) -> None:
    assert [*_spans(np.asarray(states), length, drops=drops)] == spans


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--trim-idle", "1", "--table", "t.csv"), "exclude each other"),
        (("--drop-idle",), "--drop-idle needs --trim-idle"),
        (("--table", "twice.csv"), "rows 1 and 2 are the same frames"),
        (("--table", "ids.csv"), "give the column episode_index in place of id"),
        (("--table", "bad.csv"), "row 1: episode 0 has 37 frames, not \\[0, 99\\)"),
        (("--table", "none.csv"), "row 1: there is no episode 9"),
    ],
)
def test_what_is_refused(
    made: Path, tmp_path: Path, arguments: tuple[str, ...], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "t.csv", "0,0,5")
    table(tmp_path / "bad.csv", "0,0,99")
    table(tmp_path / "none.csv", "9,0,5")
    table(tmp_path / "twice.csv", "1,0,5", "1,0,5")
    (tmp_path / "ids.csv").write_text("id,start_frame,end_frame\nx,0,1\n")
    ran = transcode(made, tmp_path / "out", *arguments, verb="select")
    assert ran.code == 2 and re.search(why, ran.err), ran.err
    assert not (tmp_path / "out").exists()


def test_keyframes_of_all_cameras(made: Path, tmp_path: Path) -> None:
    rows = table(tmp_path / "t.csv", "0,7,14", "1,40,41")
    assert select(made, tmp_path / "out", table=rows, on_keyframes=True).ok == 4
    check(tmp_path / "out", [[*range(6, 18)], [*range(STARTS[1] + 36, STARTS[1] + 41)]], 30)
    assert not any("encoded_again" in row["warning_codes"] for row in manifest(tmp_path / "out").values())


@pytest.mark.parametrize("codec", ["libx264", "libsvtav1"])
@pytest.mark.parametrize("make", [make_robot_dataset, make_old_dataset], ids=["v3.0", "v2.1"])
def test_datasets_of_others_are_cut_at_keyframes(make: Any, codec: str, tmp_path: Path) -> None:
    source = make(tmp_path / "source") if make is make_old_dataset else make(tmp_path / "source", codec=codec)
    before = digests(source)
    assert select(source, tmp_path / "whole").ok == 6
    check(
        tmp_path / "whole", [[*range(start, start + length)] for start, length in zip(STARTS, LENGTHS, strict=True)], 30
    )
    rows = table(tmp_path / "t.csv", *(f"{episode},{begin},{end}" for episode, begin, end in CLIPS))
    assert select(source, tmp_path / "out", table=rows).ok == 8
    made = manifest(tmp_path / "out")
    assert not any("encoded_again" in row["warning_codes"] for row in made.values())
    starts = [int(row["source_frames"][0]) if row["source_frames"] else 0 for row in made.values()]
    assert len(starts) == 8 and not validate(tmp_path / "out").faults
    lengths = [row["length"] for row in pq.read_table(tmp_path / "out/meta/episodes", partitioning=None).to_pylist()]
    assert all(0 <= length - len(own) <= 16 for length, own in zip(lengths, KEPT, strict=True))
    shown = pq.read_table(tmp_path / "out/data", partitioning=None)
    numbers = [round(state[0]) for state in shown["observation.state"].to_pylist()]
    episodes = shown["episode_index"].to_pylist()
    kept = [[n for n, at in zip(numbers, episodes, strict=True) if at == episode] for episode in range(4)]
    assert all({*due} <= {*own} for due, own in zip(KEPT, kept, strict=True))
    check(tmp_path / "out", kept, 30)
    assert digests(source) == before
    first = digests(tmp_path / "out")
    assert transcode(source, tmp_path / "out", "--table", rows, "--quiet", verb="select").code == 0
    assert digests(tmp_path / "out") == first
    with pytest.raises(SettingsError, match="is for what vidprep made"):
        select(source, tmp_path / "x", keep="episode_index == 1")


def test_a_lost_or_damaged_video_of_others_leaves_out_its_episode(tmp_path: Path) -> None:
    source = make_old_dataset(tmp_path / "source")
    (source / f"videos/chunk-000/{CAMERAS[0]}/episode_000000.mp4").write_bytes(b"no video")
    (source / f"videos/chunk-000/{CAMERAS[1]}/episode_000002.mp4").unlink()
    ran = transcode(source, tmp_path / "out", verb="select")
    assert ran.code == 1 and "episode 0 has no video" in ran.err and "episode 2 has no video" in ran.err
    assert "Traceback" not in ran.err
    info = pq.read_table(tmp_path / "out/meta/episodes", partitioning=None).to_pylist()
    assert [row["length"] for row in info] == [LENGTHS[1]]
    # The same process sees what changed.
    make_old_dataset(tmp_path / "whole")
    for camera, number in ((CAMERAS[0], 0), (CAMERAS[1], 2)):
        name = f"videos/chunk-000/{camera}/episode_{number:06d}.mp4"
        (source / name).write_bytes((tmp_path / "whole" / name).read_bytes())
    assert transcode(source, tmp_path / "out", verb="select").code == 0
    check(
        tmp_path / "out", [[*range(start, start + length)] for start, length in zip(STARTS, LENGTHS, strict=True)], 30
    )


@pytest.mark.long
@pytest.mark.parametrize("backend", ["pyav", "torchcodec"])
def test_the_reader_of_lerobot(made: Path, tmp_path: Path, backend: str) -> None:
    needs_lerobot()
    rows = table(tmp_path / "t.csv", *(f"{episode},{begin},{end}" for episode, begin, end in CLIPS))
    assert transcode(made, tmp_path / "out", "--table", rows, env=dict(os.environ), verb="select").code == 0
    items = lerobot_reads(tmp_path / "out", 30, backend, tmp_path)
    places = [(episode, at) for episode, own in enumerate(KEPT) for at in range(len(own))]
    assert len(items) == len(places)
    for item, (episode, at) in zip(items, places, strict=True):
        own = KEPT[episode]
        around = [own[max(0, min(len(own) - 1, at + step))] for step in (-1, 0, 1)]
        assert item["front"] == around and item["wrist"] == own[at] + OTHER_CAMERA
        assert item["pad"] == [at == 0, False, at == len(own) - 1]
        assert round(item["state"][0]) == own[at] and item["episode"] == episode
        assert item["task"] == TASKS[sorted(CLIPS)[episode][0] % 2]
    assert len(CAMERAS) == 2
