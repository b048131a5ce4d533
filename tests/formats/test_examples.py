"""The examples run, and their networks learn."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.helpers import make_clips, transcode, with_peers
from tests.numbered_pictures import number_on, picture
from tests.robots import encoded
from vidprep.formats import open_store
from vidprep.transcode import pack, validate

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def moving(cli, tmp_path_factory) -> Path:
    """Two classes that only motion tells apart: noise that drifts to the left, or to the right."""
    src = tmp_path_factory.mktemp("moving")
    for side, sign in (("left", "-"), ("right", "")):
        (src / side).mkdir()
        for number in range(4):
            noise = f"nullsrc=size=256x72:rate=15:d=2,geq=random(1)*255:128:128,loop=-1:1,trim=end_frame=30,avgblur=2,crop=96:72:80{sign or '+'}2*n:0"
            cli.run(
                "-f",
                "lavfi",
                "-i",
                noise,
                "-vf",
                f"hue=b={number / 10}",
                "-c:v",
                "libx264",
                "-crf",
                12,
                src / side / f"c{number}.mp4",
            )
    made = src.parent / "moving_made"
    ran = transcode(src, made, "--gop", 5, "--label-from-folder", "--split-by", "train=0.5,val=0.5")
    assert ran.code == 0, ran.err
    return made


@pytest.mark.long
@pytest.mark.parametrize(("name", "epochs", "figure", "better"), [("train_super_resolution", 2, r"(\d+\.\d+) dB", 0.3)])
def test_networks_learn_from_both_loaders(name, epochs, figure, better, moving):
    said = with_peers(EXAMPLES / f"{name}.py", moving, epochs, needs=["torch"])
    for loader in ("DataLoader", "PrefetchLoader"):
        lines = [line for line in said.splitlines() if line.startswith(f"{loader} ")]
        assert len(lines) == epochs, said
        assert all(re.search(r"epoch \d: +\d+\.\d+ s", line) for line in lines)
        figures = [float(re.search(figure, line)[1]) for line in lines]
        assert max(figures[1:]) >= figures[0] + better, said


def robot_of(table: Path, rate: object, out: Path) -> list[tuple[int, float]]:
    """Numbers on the pictures of the robot dataset that a table becomes, and the states beside them."""
    ran = transcode(table, out / "store", *(["--fps", rate] if rate else []), "--quiet")
    assert ran.code == 0, ran.err
    assert pack(out / "store", out / "robot", to="lerobot").num_videos == 2
    assert not validate(out / "robot").faults
    store = open_store(out / "store")
    rows = pq.read_table(out / "robot/data", partitioning=None)["observation.state"].to_pylist()
    shown = [number_on(frame) for id_ in store.ids for frame in store[id_].frames()]
    return list(zip(shown, (state[0] for state in rows), strict=True))


@pytest.mark.long
@pytest.mark.parametrize("are_jpegs", [False, True])
def test_episodes_in_hdf5_become_a_robot_dataset(are_jpegs, tmp_path):
    h5py = needed("h5py")
    (tmp_path / "raw").mkdir()
    for episode, numbers in enumerate((range(20), range(100, 130))):
        pictures = [np.repeat(picture(number)[..., None], 3, 2) for number in numbers]
        if are_jpegs:
            data = [np.frombuffer(encoded(each, "mjpeg"), np.uint8) for each in pictures]
            pictures = [np.pad(each, (0, max(map(len, data)) - len(each))) for each in data]
        with h5py.File(tmp_path / "raw" / f"episode_{episode}.hdf5", "w") as file:
            file["observations/images/top"] = np.stack(pictures)
            file["observations/qpos"] = np.array([[number, 0.5] for number in numbers], np.float32)
            file["action"] = np.array([[number, number + 1] for number in numbers], np.float32)
            file.attrs["language_instruction"] = "pick"
    with_peers(EXAMPLES / "from_hdf5.py", tmp_path / "raw", tmp_path / "out", 30, needs=["h5py"])
    found = robot_of(tmp_path / "out" / "episodes.csv", None, tmp_path)
    assert found == [(number, number) for number in (*range(20), *range(100, 130))]


@pytest.mark.long
def test_recordings_in_mcap_become_a_robot_dataset(tmp_path):
    """A camera of 30 pictures a second with jitter, and joints at 50 Hz that began earlier."""
    needed("mcap")
    (tmp_path / "raw").mkdir()
    rng = np.random.default_rng(0)
    for episode in range(2):
        from mcap_ros2.writer import Writer

        second, first = 1_700_000_000, 100 * episode
        with (tmp_path / "raw" / f"take{episode}.mcap").open("wb") as file:
            writer = Writer(file)
            camera, joints = (
                writer.register_msgdef(f"sensor_msgs/msg/{name}", text)
                for name, text in (
                    ("CompressedImage", HEADER_OF + "string format\nuint8[] data" + HEADER),
                    ("JointState", HEADER_OF + "float64[] position" + HEADER),
                )
            )
            for number in range(45):
                at = 0.2 + number / 30 + rng.uniform(-0.005, 0.005) * (number > 0)
                jpeg = encoded(np.repeat(picture(first + number)[..., None], 3, 2), "mjpeg")
                said = {"header": stamped(second, at), "format": "jpeg", "data": jpeg}
                writer.write_message("/front/compressed", camera, said, log_time=round(at * 1e9))
            for step in range(95):
                position = [first + (step / 50 - 0.2) * 30, 0.0]
                writer.write_message(
                    "/joints", joints, {"header": stamped(second, step / 50), "position": position}, log_time=step
                )
            writer.finish()
    with_peers(EXAMPLES / "from_mcap.py", tmp_path / "raw", tmp_path / "out", needs=["mcap", "mcap_ros2"])
    found = robot_of(tmp_path / "out" / "episodes.csv", 15, tmp_path)
    assert len(found) > 40
    assert all(abs(number - state) <= 0.31 + 0.16 for number, state in found), (
        found
    )  # half a step of the joints, and the jitter


HEADER_OF = "std_msgs/Header header\n"
HEADER = """
================================================================================
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
================================================================================
MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
"""


def stamped(second: int, at: float) -> dict[str, object]:
    return {"stamp": {"sec": second + int(at), "nanosec": round((at % 1) * 1e9)}, "frame_id": ""}


def needed(name: str) -> Any:
    """A module, or a skipped test."""
    if importlib.util.find_spec(name) is None:
        (pytest.fail if os.environ.get("VIDPREP_REQUIRE") else pytest.skip)(
            f"{name} is not installed: .ci/run shows how"
        )
    return importlib.import_module(name)


def test_frames_are_read(moving):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "read_frames.py", moving], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "50 random sequences, 400 frames" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("name", ["train_torch", "train_prefetch"])
def test_thirty_lines_train_on_class_folders_with_splits(name, moving):
    said = with_peers(EXAMPLES / f"{name}.py", moving, 3, needs=["torch"])
    assert re.fullmatch(r"(epoch \d: accuracy on val \d+%\n){3}", said), said


@pytest.mark.long
def test_sound_and_pictures_are_matched_without_labels(cli, tmp_path):
    (tmp_path / "src").mkdir()
    for number in range(4):
        sound, picture = f"sine={220 * (number + 1)}:d=3", f"testsrc2=s=96x72:r=15:d=3,hue=h={90 * number}"
        cli.run(
            "-f",
            "lavfi",
            "-i",
            picture,
            "-f",
            "lavfi",
            "-i",
            sound,
            "-c:a",
            "aac",
            "-c:v",
            "libx264",
            tmp_path / "src" / f"c{number}.mp4",
        )
    assert transcode(tmp_path / "src", tmp_path / "made", "--gop", 5, "--audio", "aac").code == 0
    said = with_peers(EXAMPLES / "pretrain.py", tmp_path / "made", 8, needs=["torch"]).splitlines()
    losses = [float(re.fullmatch(r"epoch \d: 16 clips, loss (\d+\.\d+)", line)[1]) for line in said]
    assert len(losses) == 8 and losses[-1] < 0.9 * losses[0], losses


@pytest.mark.long
def test_two_processes_train_together(moving):
    said = sorted(with_peers(EXAMPLES / "train_ddp.py", moving, 2, needs=["torch"]).splitlines())
    shares = [re.fullmatch(r"rank (\d), epoch (\d): (\d+) of (\d+) clips, loss \d+\.\d+", line) for line in said]
    assert [(share[1], share[2]) for share in shares] == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    assert {int(share[4]) - 2 * int(share[3]) for share in shares} <= {0, 1}, said


TOGETHER = """
import os, sys, zlib
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
from vidprep.formats import PrefetchLoader, VideoDataset

def work(rank, path):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    dataset = VideoDataset(path, 4, step=3, size=64, crop=32, random_crop=True, seed=3)
    sampler = DistributedSampler(dataset, drop_last=True)
    plain = DataLoader(dataset, 4, sampler=sampler, num_workers=1, persistent_workers=True)
    ahead = PrefetchLoader(dataset, 4, sampler=DistributedSampler(dataset, drop_last=True), workers=1)
    every = {(id_, int(n[0])) for id_, n in map(dataset.locate, range(len(dataset)))}
    for told in (False, True):
        for loader in (plain, ahead):
            crops = []
            for epoch in range(2):
                if told:
                    sampler.set_epoch(epoch)
                    dataset.set_epoch(epoch)
                mine = {(id_, int(n[0])): zlib.crc32(torch.as_tensor(frames).numpy().tobytes())
                        for batch in loader for id_, n, frames in zip(batch["id"], batch["indexes"], batch["frames"])}
                found = [None, None]
                dist.all_gather_object(found, mine)
                assert not found[0].keys() & found[1].keys(), "each sample once"
                assert len(found[0]) == len(found[1]) == len(every) // 2 and found[0].keys() | found[1].keys() <= every
                crops.append(found[0] | found[1])
            shared = crops[0].keys() & crops[1].keys()
            same = sum(crops[0][each] == crops[1][each] for each in shared)
            assert same < 0.05 * len(shared), (told, same, len(shared))
    if rank == 0:
        print("all well")

if __name__ == "__main__":
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29513"}
    torch.multiprocessing.spawn(work, (sys.argv[1],), 2)
"""


@pytest.mark.long
def test_each_sample_is_seen_once_by_one_of_two_processes_with_a_new_crop(moving, tmp_path):
    script = tmp_path / "together.py"
    script.write_text(TOGETHER)
    assert "all well" in with_peers(script, moving, needs=["torch"])


@pytest.mark.long
def test_the_functions_make_check_report_and_read(tmp_path):
    raw = make_clips(tmp_path / "raw", 2, 20, size=(192, 144))
    told = [sys.executable, EXAMPLES / "python_api.py", raw, tmp_path / "out"]
    lines = subprocess.run(
        told, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    ).stdout.splitlines()
    assert "2 ok, 0 failed" in lines[2]
    assert lines[3] == "2 read again, 0 faults"
    assert Path(lines[4].partition(": ")[2]).stat().st_size > 1e6
    assert lines[5:] == ["c00 (4, 128, 170, 3) uint8", "c01 (5, 128, 170, 3) uint8"]


@pytest.mark.parametrize("name", ["python_api", "read_frames"])
def test_examples_say_how_they_are_called(name):
    for words in ((), ("--help",)):
        done = subprocess.run(
            [sys.executable, EXAMPLES / f"{name}.py", *words], capture_output=True, text=True, timeout=300
        )
        assert (done.returncode, done.stderr) == (0, "") and f"examples/{name}.py" in done.stdout
