"""`vidprep select`: is what it keeps the same, and what does it cost? Never a test.

python -m tests.bench.select exact    200 videos of four codecs in two containers, cut at random places: pictures, times, counts, audio
python -m tests.bench.select speed    CPU seconds beside `transcode` of the same cuts, on BENCH_SRC's clock, and beside LeRobot
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import imageio_ffmpeg

from tests.helpers import manifest
from tests.numbered_pictures import constant, write
from tests.robots import make_robot_dataset
from tests.transcode.select.test_select import FORMATS, pictures
from tests.witness import Ffmpeg

SRC, SEED, GOP = Path(os.environ.get("BENCH_SRC", "../shared/media")), 89, 8
VIDPREP, LEROBOT = Path(sys.executable).with_name("vidprep"), Path(".venv-lerobot/bin/python")
DELETES = """
import sys
from lerobot.datasets.dataset_tools import delete_episodes
from lerobot.datasets.lerobot_dataset import LeRobotDataset
delete_episodes(LeRobotDataset("made/here", root=sys.argv[1]), [*range(0, 200, 10)], output_dir=sys.argv[2], repo_id="made/less")
"""


def run(*arguments: object) -> None:
    done = subprocess.run([str(VIDPREP), *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-2000:])
    done.check_returncode()


def counted(path: Path) -> int:
    video, count = cv2.VideoCapture(str(path)), 0
    while video.read()[0]:
        count += 1
    return count


def probed(path: Path) -> list[Fraction]:
    """When frames are shown, by ffprobe."""
    asked = ["-select_streams", "v:0", "-show_entries", "packet=pts_time", "-of", "json"]
    said = subprocess.run(["ffprobe", "-v", "error", *asked, path], capture_output=True, check=True).stdout
    return sorted(Fraction(packet["pts_time"]) for packet in json.loads(said)["packets"])


def packets(path: Path) -> list[int]:
    with av.open(str(path)) as container:
        return [zlib.crc32(bytes(packet)) for packet in container.demux(video=0) if packet.size]


def audio_end(path: Path) -> tuple[float, float] | None:
    """When the last audio packet begins, and how long it is."""
    with av.open(str(path)) as container:
        if not container.streams.audio:
            return None
        last = [packet for packet in container.demux(audio=0) if packet.size and packet.pts is not None][-1]
        return float(last.pts * last.time_base), float((last.duration or 0) * last.time_base)


def make_sources(folder: Path, cli: Ffmpeg, rng: random.Random, count: int) -> None:
    for number in range(count):
        name = folder / f"v{number:02d}.mp4"
        if number % 4 == 0:
            folder.mkdir(exist_ok=True)
            seconds = rng.uniform(1.5, 4)
            inputs = (
                "-f",
                "lavfi",
                "-i",
                f"testsrc2=size=96x64:rate=25:duration={seconds}",
                "-f",
                "lavfi",
                "-i",
                f"sine=500:duration={seconds}",
            )
            cli.run(*inputs, "-pix_fmt", "yuv420p", "-c:a", "aac", name)
        elif number % 4 == 1:
            write(name, constant(rng.randint(20, 90), rng.choice((24, 25, 30, Fraction(30000, 1001)))))
        else:
            times, at = [], Fraction(0)
            for _ in range(rng.randint(20, 90)):
                times.append(at)
                at += rng.choice((Fraction(1, 30), Fraction(1, 24), Fraction(1, 15)))
            write(name.with_suffix(".mkv"), times)


def exact() -> None:
    rng, cli, total = random.Random(SEED), Ffmpeg(imageio_ffmpeg.get_ffmpeg_exe()), Counter[str]()
    for codec, container in FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            make_sources(root / "raw", cli, rng, 25)
            audio = "opus" if container == "webm" else "aac"
            run(
                "transcode",
                root / "raw",
                root / "ready",
                "--codec",
                codec,
                "--container",
                container,
                "--gop",
                GOP,
                "--audio",
                audio,
            )
            lines = ["id,start_frame,end_frame"]
            for id_, row in manifest(root / "ready").items():
                begin, end = sorted(rng.sample(range(row["num_frames"] + 1), 2))
                if rng.random() < 1 / 3:
                    begin, end = begin // GOP * GOP, max(end // GOP * GOP, begin // GOP * GOP + 1)
                lines.append(f"{id_},{begin},{end}")
            (root / "trims.csv").write_text("\n".join(lines))
            run("select", root / "ready", root / "out", "--table", root / "trims.csv")
            run("validate", root / "out")
            known = manifest(root / "ready")
            own = Counter[str]()
            for row in manifest(root / "out").values():
                own += compare(root, known[row["selected_id"]], row, cli, container)
            print(f"{codec} in {container}: {dict(own)}", flush=True)
            total += own
    share = total["encoded again"] / total["frames"]
    print(f"all: {dict(total)}; {share:.1%} of the frames encoded again")


def compare(root: Path, old: dict[str, Any], row: dict[str, Any], cli: Ffmpeg, container: str) -> Counter[str]:
    begin, end = row["selected_start_frame"], row["selected_end_frame"]
    source, made = root / "ready" / old["file_name"], root / "out" / row["file_name"]
    due, shown = pictures(cli, source)[begin:end], pictures(cli, made)
    said = int(next((text.split()[0] for text in row["warnings"] if "encoded again" in text), "0"))
    others = sum(one[1] != other[1] for one, other in zip(shown, due, strict=True))
    tolerance = Fraction(1, 1000) if container in ("mkv", "webm") else Fraction(1, 50_000)
    times, before = probed(made), probed(source)[begin:end]
    is_timed = len(times) == len(before) and all(
        abs((one - times[0]) - (other - before[0])) <= tolerance for one, other in zip(times, before, strict=True)
    )
    sound = audio_end(made)
    last = float(times[-1] - times[0]) + 1 / 25
    return Counter(
        {
            "videos": 1,
            "frames": end - begin,
            "encoded again": said,
            "other pictures": others,
            "more others than said": max(0, others - said),
            "counts by OpenCV": counted(made) == end - begin if row["codec"] != "av1" else len(shown) == end - begin,
            "times by ffprobe": is_timed,
            "packets with the CRC of before": (Counter(packets(source)) & Counter(packets(made))).total(),
            "with audio": sound is not None,
            "audio ends within a packet": sound is not None and abs(sound[0] + sound[1] - last) <= sound[1] + 0.02,
        }
    )


def cpu_of(work: Callable[[], object]) -> tuple[float, float]:
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.monotonic() - started


def speed() -> None:
    rng = random.Random(SEED)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        clock = next(SRC.glob("clock_320x240_300s*")).resolve()
        starts = [20 * number for number in range(200)]
        cuts = [f"{clock},e{number:03d},{start},{start + 160}" for number, start in enumerate(starts)]
        (root / "cuts.csv").write_text("\n".join(["path,id,start_frame,end_frame", *cuts]))
        options = ("--gop", 16, "--short-side", 480, "--upscale")
        made = cpu_of(lambda: run("transcode", root / "cuts.csv", root / "ready", *options))
        print(f"all encoded: {made[0]:.1f} s of CPU, {made[1]:.1f} s", flush=True)
        for name in ("at keyframes", "at random places"):
            lines, again = ["id,start_frame,end_frame"], ["path,id,start_frame,end_frame"]
            for number, start in enumerate(starts):
                begin, end = rng.randint(1, 40), rng.randint(110, 159)
                if name == "at keyframes":
                    begin, end = begin // 16 * 16 + 16, end // 16 * 16
                lines.append(f"e{number:03d},{begin},{end}")
                again.append(f"{clock},e{number:03d},{start + begin},{start + end}")
            (root / "trims.csv").write_text("\n".join(lines))
            (root / "again.csv").write_text("\n".join(again))
            short = name.split()[1]
            made = cpu_of(
                lambda short=short: run(
                    "select", root / "ready", root / f"select_{short}", "--table", root / "trims.csv"
                )
            )  # type: ignore[misc]
            encoded = cpu_of(
                lambda short=short: run("transcode", root / "again.csv", root / f"encoded_{short}", *options)
            )  # type: ignore[misc]
            rows = manifest(root / f"select_{short}").values()
            share = sum(int(text.split()[0]) for row in rows for text in row["warnings"] if "encoded again" in text)
            share /= sum(row["num_frames"] for row in rows)
            print(
                f"{name}: select {made[0]:.2f} s of CPU ({made[1]:.1f} s), transcode {encoded[0]:.2f} ({encoded[1]:.1f} s): "
                f"{encoded[0] / made[0]:.1f} times; {share:.1%} of the frames encoded again",
                flush=True,
            )
        if not LEROBOT.exists():
            print(f"{LEROBOT} is missing: .ci/run shows how it is made")
            return
        make_robot_dataset(root / "robot", lengths=[100] * 200)
        run("transcode", root / "robot", root / "robot_ready")
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(root / "hf"), "PYTHONPATH": ""}
        deletes = [LEROBOT.absolute(), "-c", DELETES, root / "robot", root / "less"]
        theirs = cpu_of(lambda: subprocess.run(deletes, check=True, capture_output=True, env=env, cwd=root))
        keep = " and ".join(f"episode_index != {number}" for number in range(0, 200, 10))
        ours = cpu_of(lambda: run("select", root / "robot_ready", root / "robot_less", "--keep", keep))
        print(
            f"20 of 200 episodes deleted: select {ours[0]:.1f} s of CPU ({ours[1]:.1f} s), LeRobot {theirs[0]:.1f} ({theirs[1]:.1f} s): "
            f"{theirs[0] / ours[0]:.1f} times"
        )


if __name__ == "__main__":
    {"exact": exact, "speed": speed}[sys.argv[1]]()
