"""Clips of 4n+1 frames in buckets, counted by foreign readers and by rules of trainers. Never a test.

python -m tests.bench.exact     200 odd sources at 16, 24 and 30 fps: counts, sizes, and the buckets of musubi-tuner and diffusion-pipe
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.bench.scan import ODD, READERS, SEED
from tests.helpers import manifest
from tests.numbered_pictures import constant, write
from vidprep.transcode import transcode

AREA, MULTIPLE = 128 * 128, 16
SHAPES = ("64:64", "96:64", "64:112", "160:90", "66:130")


def musubi_bucket(width: int, height: int) -> tuple[int, int]:
    """BucketSelector's rule: the least difference of width / height among the buckets."""
    side = int(math.sqrt(AREA))
    least = side // 2 // MULTIPLE * MULTIPLE
    pairs = [(each, AREA // each // MULTIPLE * MULTIPLE) for each in range(least, side + MULTIPLE, MULTIPLE)]
    every = sorted({*pairs, *(pair[::-1] for pair in pairs)})
    ratios = np.array([one / other for one, other in every])
    return every[int(np.abs(ratios - width / height).argmin())]


def diffusion_pipe_bucket(
    width: int, height: int, frames: int, buckets: list[tuple[int, int, int]]
) -> tuple[int, int, int]:
    """The rule of `size_buckets`: nearest by log of the aspect ratio, the longest that the video fills."""
    ordered = sorted(buckets, key=lambda bucket: -bucket[2])
    apart = np.abs(np.log([bucket[0] / bucket[1] for bucket in ordered]) - math.log(width / height))
    return next(ordered[number] for number in np.argsort(apart, kind="stable") if frames >= ordered[number][2])


def main() -> None:
    rng = random.Random(SEED)
    kinds = {**ODD, "one": lambda _rng: constant(1, 25), "long": lambda _rng: constant(1200, 30)}
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "raw")
        for number in range(200):
            name, suffix = list(kinds)[number % len(kinds)], (".mp4", ".mkv", ".mov", ".webm", ".ts")[number % 5]
            write(raw / f"{number:03d}_{name}{suffix}", kinds[name](rng))
        for number in range(0, 200, 8):
            source, shaped = next(raw.glob(f"{number:03d}_*")), raw / f"shape_{number}.mp4"
            scale = f"scale={SHAPES[number // 8 % len(SHAPES)]}"
            subprocess.run(["ffmpeg", "-v", "error", "-i", source, "-vf", scale, "-vsync", "0", shaped], check=True)
        for number in range(0, 200, 9):  # an edit list: the first frames are not shown
            path, source = raw / f"edit_{number}.mp4", next(raw.glob(f"{number:03d}_*"))
            subprocess.run(["ffmpeg", "-v", "error", "-ss", "0.7", "-i", source, "-c", "copy", path], check=False)
        for fps in (16, 24, 30):
            out = Path(folder, str(fps))
            asked = {"frames": "4n+1", "buckets": MULTIPLE, "bucket_area": "128x128", "upscale": True}
            done = transcode(raw, out, fps=fps, jobs=2, keep_source_suffix=True, **asked)
            rows = {row["file_name"]: row for row in manifest(out).values() if row["status"] == "ok"}
            print(f"--fps {fps}: {done.ok} ok, {done.failed} failed {[why for _, why in done.failures][:2]}")
            for reader in ("OpenCV", "imageio", "decord"):
                command = [sys.executable, "-c", READERS, reader, *(out / name for name in rows)]
                said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
                right = [
                    count == rows[name]["num_frames"] and count % 4 == 1 for name, count in json.loads(said).items()
                ]
                print(f"  {reader}: {sum(right)} of {len(rows)} have the count")
            right, buckets = 0, [tuple(map(int, row["bucket"].split("x"))) for row in rows.values()]
            kept = {"musubi-tuner": 0, "diffusion-pipe": 0}
            for name, row in rows.items():
                asked_of = [
                    "ffprobe",
                    "-v",
                    "error",
                    "-count_frames",
                    "-show_entries",
                    "stream=width,height,nb_read_frames",
                ]
                said = subprocess.run(
                    [*asked_of, "-of", "csv=p=0", out / name], check=True, capture_output=True, text=True
                ).stdout
                bucket = tuple(map(int, said.strip(",\\n").split(",")))
                right += "x".join(map(str, bucket)) == row["bucket"]
                kept["musubi-tuner"] += musubi_bucket(*bucket[:2]) == bucket[:2]
                kept["diffusion-pipe"] += diffusion_pipe_bucket(*bucket, buckets) == bucket
            print(f"  ffprobe: {right} have count and size of `bucket`; kept by the rule of {kept}")


if __name__ == "__main__":
    main()
