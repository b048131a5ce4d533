"""The examples run, and their networks learn."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import make_clips, transcode, with_peers

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
