"""`make bench`: LeRobot's own reader on a dataset as LeRobot writes it, and on what vidprep makes of it. Never a test.

    VIDPREP_LEROBOT=PYTHON python tests/bench/robot.py [WORK]

PYTHON is that of an environment with lerobot 0.6.1 and torchcodec. The dataset has two cameras of 640x480 from the clips of BENCH_SRC, in AV1
with a keyframe every second frame, which is LeRobot's default (SVT-AV1, preset 12, CRF 30). Items are drawn at random, in one process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate, cycle, islice
from pathlib import Path
from typing import Any

import av
from bench import ENVIRONMENT, REPOSITORY, clips
from history import keep

sys.path.insert(0, str(REPOSITORY))

from tests import robots

SIZE, RATE, LENGTHS, ITEMS = (640, 480), 30, (150,) * 8, 200
READS = """
import random, statistics, sys, time
from lerobot.datasets.lerobot_dataset import LeRobotDataset
speeds = []
dataset = LeRobotDataset("made/here", root=sys.argv[1], video_backend=sys.argv[2])
dataset[0]
for _ in range(3):
    numbers, begun = random.Random(0).sample(range(len(dataset)), int(sys.argv[3])), time.perf_counter()
    for number in numbers:
        dataset[number]
    speeds.append(len(numbers) * len(dataset.meta.video_keys) / (time.perf_counter() - begun))
print(statistics.median(speeds))
"""


def frames_of(path: Path) -> Iterator[av.VideoFrame]:
    with av.open(str(path)) as container:
        yield from container.decode(video=0)


def write_video(path: Path, sources: list[Path]) -> None:
    """A camera's video as LeRobot encodes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    starts = {0, *accumulate(LENGTHS)}
    pictures = (frame for source in cycle(sources) for frame in frames_of(source))
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libsvtav1", rate=RATE)
        stream.width, stream.height = SIZE
        stream.pix_fmt = "yuv420p"
        stream.codec_context.options = {"crf": "30", "preset": "12", "g": "2"}
        for number, picture in enumerate(islice(pictures, sum(LENGTHS))):
            frame = picture.reformat(*SIZE, format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            frame.pict_type = av.video.frame.PictureType.I if number in starts else av.video.frame.PictureType.NONE
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def main(work: Path) -> None:
    reader = os.environ.get("VIDPREP_LEROBOT") or sys.exit(__doc__)
    source = work / "robot"
    if not source.exists():
        robots.make_robot_dataset(source, rate=RATE, lengths=LENGTHS)
        found = sorted(path for path in clips().iterdir() if path.suffix in (".mp4", ".mkv", ".mov", ".avi"))
        for number, camera in enumerate(robots.CAMERAS):
            write_video(source / "videos" / camera / "chunk-000" / "file-000.mp4", found[number:] + found[:number])
    made = {"as it was: AV1, GOP 2": source}
    for name, options in (
        ("H.264, GOP 2", ["--gop", "2"]),
        ("H.264, GOP 5", ["--gop", "5"]),
        ("H.264, GOP 5, 240 lines", ["--gop", "5", "--short-side", "240"]),
    ):
        out = work / name.replace(" ", "-")
        command = [sys.executable, "-m", "vidprep.transcode", "transcode", source, out, *options, "--quiet"]
        subprocess.run(command, check=True, env=ENVIRONMENT)
        made[name] = out
    print(f"{'dataset':28}{'reader':>12}{'frames/s':>10}{'MB':>8}")
    speeds = dict[tuple[str, str], float]()
    for name, folder in made.items():
        size = sum(path.stat().st_size for path in (folder / "videos").rglob("*.mp4")) / 1e6
        for backend in ("pyav", "torchcodec"):
            command = [reader, "-c", READS, folder, backend, str(ITEMS)]
            ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
            if ran.returncode:
                print(f"{name:28}{backend:>12}  failed: {ran.stderr.strip().splitlines()[-1][:100]}")
                continue
            speeds[name, backend] = float(ran.stdout)
            print(f"{name:28}{backend:>12}{float(ran.stdout):>10.0f}{size:>8.1f}")
    for name in [*made][1:]:
        for backend in ("pyav", "torchcodec"):
            if (name, backend) in speeds:
                keep(f"LeRobot by {backend}, {name}", speeds[name, backend] / speeds[next(iter(made)), backend])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(sys.argv[1] if sys.argv[1:] else folder).absolute())
