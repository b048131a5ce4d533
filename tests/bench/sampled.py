"""`make bench`: frames sampled for vision-language models, against a loop of ffmpeg. Never a test.

    python tests/bench/sampled.py [WORK]      BENCH_VIDEOS=1000 videos, cuts of the real clips (BENCH_SRC=folder names others)

Frames at 2 a second, at most 64 of a video, as JPEGs in sizes that are multiples of 28. ffmpeg: `fps=2,scale` at the same size, one
process for each video, as many at a time as there are cores; it verifies nothing, and writes no times.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
from bench import CORES, QUIET, by_size
from history import keep

from vidprep.transcode.media.ffmpeg_program import find_ffmpeg

VIDEOS = int(os.environ.get("BENCH_VIDEOS", "1000"))
OPTIONS = ("--sample-fps", "2", "--sample-max", "64", "--multiple-of", "28", "--quiet")
LOOP = (
    'mkdir -p "$3/$0" && exec "$1" {quiet} -threads 1 -i "$2" -vf "fps=2,scale=$4" -frames:v 64 -q:v 2 "$3/$0/%05d.jpg"'
).format(quiet=" ".join(QUIET))


def timed(command: list[str], text: str = "") -> float:
    began = time.perf_counter()
    subprocess.run(command, input=text, text=True, check=True)
    return time.perf_counter() - began


def linked(folder: Path) -> dict[str, Path]:
    """As many names as videos, of a few clips."""
    clips = by_size(340, 256)
    folder.mkdir()
    videos = {}
    for number in range(VIDEOS):
        clip = clips[number % len(clips)]
        path = folder / f"{number:06d}{clip.suffix}"
        path.symlink_to(clip.resolve())
        videos[path.stem] = path
    return videos


def main(work: Path) -> None:
    videos = linked(work / "src")
    vidprep = str(Path(sys.executable).parent / "vidprep")
    ours = timed([vidprep, "burst", str(work / "src"), str(work / "ready"), *OPTIONS])
    packed = timed([vidprep, "pack", str(work / "ready"), str(work / "frames"), "--to", "frames"])
    rows = pq.read_table(
        work / "ready" / "manifest.parquet", columns=["id", "num_frames", "width", "height"]
    ).to_pylist()
    lines = "".join(f"{row['id']} {videos[row['id']]} {row['width']}:{row['height']}\n" for row in rows)
    loop = (
        LOOP.replace("$1", find_ffmpeg(None)).replace("$3", str(work / "loop")).replace("$2", "$1").replace("$4", "$2")
    )
    theirs = timed(["xargs", f"-P{CORES}", "-L1", "sh", "-c", loop], lines)
    frames, written = sum(row["num_frames"] for row in rows), sum(1 for _ in (work / "loop").rglob("*.jpg"))
    print(f"{len(videos)} videos, {frames} frames; ffmpeg's loop {written}; {CORES} cores")
    print(f"vidprep burst      {frames / ours:8.0f} frames/s")
    print(f"and pack --to frames {frames / (ours + packed):6.0f} frames/s")
    print(f"ffmpeg's loop      {written / theirs:8.0f} frames/s")
    keep("sampled burst / ffmpeg loop, frames a second", frames / ours / (written / theirs))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
