"""`make bench`: what more workers bring, and what a cluster costs, as ratios in one run. Never a test.

    python tests/bench/scale.py [speedup] [clusters] [split] [model]      all four when none is named

speedup   wall time with one worker over wall time with two: `xargs -P ffmpeg -threads 1`, vidprep, vidprep on dask.
clusters  wall time of a run of one-second clips with two workers on dask and on ray, over the same with local ones, which
          run before and after it.
split     the speed-up of one long video in segments, and what the segments cost in PSNR and bytes.
model     per-video constants measured here, and what they come to at ten million videos.

Rounds alternate; medians. Clusters are started before the clock, and are gone or stopped while others are measured.
BENCH_SRC=folder names the clips, BENCH_ROUNDS the rounds.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import psutil
import pyarrow.parquet as pq
from bench import ENVIRONMENT, ROUNDS, by_size, clips, timed

from vidprep.formats.manifest.table import read_manifest, write_rows
from vidprep.transcode.media.ffmpeg_program import find_ffmpeg

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.cluster import dask, ray_head  # after the path is known

LEAN = Path(__file__).resolve().parents[2] / "examples" / "dask.yaml"
OPTIONS = ("--gop", "16", "--preset", "medium", "--crf", "20", "--tune", "psnr", "--quiet")
MILLIONS = 10


def vidprep(src: Path, dst: Path, *more: object) -> float:
    """Seconds of a whole run, start of the process included."""
    command = [sys.executable, "-m", "vidprep.transcode", "transcode", str(src), str(dst), *OPTIONS, *map(str, more)]
    return timed(command, env=ENVIRONMENT).wall


def xargs(src: Path, out: Path, workers: int) -> float:
    out.mkdir()
    each = (
        f"{find_ffmpeg(None)} -v error -nostdin -threads 1 -i {src}/$1 -an -threads 1 -filter_threads 1 -c:v libx264 "
        f"-preset medium -crf 20 -g 16 -keyint_min 16 -sc_threshold 0 -pix_fmt yuv420p {out}/$1"
    )
    names = "\n".join(sorted(path.name for path in src.iterdir()))
    return timed(["xargs", "-P", str(workers), "-I{}", "sh", "-c", each, "sh", "{}"], input=names.encode()).wall


def copies(folder: Path, source: Path, count: int, seconds: float) -> Path:
    """The first seconds of a clip, coded once more at high quality, under so many names."""
    folder.mkdir()
    first = folder / "c0000.mp4"
    cut = ["-v", "error", "-i", str(source), "-t", str(seconds), "-an", "-c:v", "libx264", "-crf", "12", str(first)]
    subprocess.run([find_ffmpeg(None), *cut], check=True)
    for number in range(1, count):
        os.link(first, folder / f"c{number:04d}.mp4")
    return folder


def source_clip() -> Path:
    found = by_size(340, 256) or by_size(1280, 720)
    if not found:
        sys.exit(f"bench: no clip of 340x256 or 1280x720 in {clips()}")
    return found[0]


def told(name: str, ratios: list[float], note: str = "") -> None:
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}" if len(ratios) > 1 else "one round"
    print(f"{name:44}{statistics.median(ratios):7.3f}   ({spread}) {note}", flush=True)


@contextmanager
def cluster(name: str, workers: int = 2) -> Iterator[tuple[str, ...]]:
    """Options of a run on a cluster that is up as long as the block."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        if name == "ray":
            with ray_head(Path(folder), cpus=workers) as head:
                yield "--backend", "ray", "--cluster-address", head
        else:
            with dask(Path(folder), workers, config=LEAN if name == "dask" else None) as (address, _):
                yield "--backend", "dask", "--cluster-address", address


def speedup(root: Path) -> None:
    src, few = copies(root / "src", source_clip(), 48, 4), copies(root / "few", source_clip(), 4, 1)
    ours, theirs, on_dask = [], [], []
    for number in range(ROUNDS):
        one, two = (xargs(src, root / f"x{number}-{workers}", workers) for workers in (1, 2))
        theirs.append(one / two)
        one, two = (vidprep(src, root / f"v{number}-{jobs}", "--jobs", jobs) for jobs in (1, 2))
        ours.append(one / two)
        walls = []
        for workers in (1, 2):
            with cluster("dask", workers) as options:
                vidprep(few, root / f"w{number}-{workers}", *options)  # its children start, before the clock
                walls.append(vidprep(src, root / f"d{number}-{workers}", *options))
        on_dask.append(walls[0] / walls[1])
    print("\nspeed-up of two workers over one, 48 clips of 4 s")
    told("xargs -P2 ffmpeg -threads 1", theirs)
    told("vidprep --jobs 2", ours, f"{statistics.median(ours) / statistics.median(theirs):.3f} of xargs's")
    told("vidprep on dask", on_dask, f"{statistics.median(on_dask) / statistics.median(theirs):.3f} of xargs's")


@contextmanager
def stopped() -> Iterator[None]:
    """The processes of clusters get no CPU time meanwhile."""
    found = psutil.Process().children(recursive=True)
    for process in found:
        process.suspend()
    try:
        yield
    finally:
        for process in found:
            process.resume()


def clusters(root: Path) -> None:
    src, few = copies(root / "src", source_clip(), 300, 1), copies(root / "few", source_clip(), 4, 1)
    names = "dask", "dask without examples/dask.yaml", "ray"
    local = "--jobs", "2"
    walls: dict[str, list[float]] = {name: [] for name in names}
    rest: dict[str, list[float]] = {name: [] for name in names}
    for number in range(ROUNDS):
        for at, name in enumerate(names):
            here = root / f"{number}-{at}"
            here.mkdir()
            with cluster(name) as options:
                vidprep(few, here / "warm", *options)  # its children start, before the clock
                started = vidprep(few, here / "few", *options)
                with stopped():
                    before, start = vidprep(src, here / "before", *local), vidprep(few, here / "local-few", *local)
                wall = vidprep(src, here / "all", *options)
                with stopped():
                    after = vidprep(src, here / "after", *local)
            walls[name].append(wall / ((before + after) / 2))
            rest[name].append((wall - started) / ((before + after) / 2 - start))
    print("\nwall time over that of two local workers, 300 clips of 1 s, all processes of the cluster included")
    for name, found in walls.items():
        told(name, found, f"without the time of 4 clips, which is connecting: {statistics.median(rest[name]):.3f}")


def split(root: Path) -> None:
    long = sorted(clips().glob("clock_320x240_300s.mp4"))
    src = root / "src"
    src.mkdir()
    if long:
        os.link(long[0], src / "long.mp4") if long[0].stat().st_dev == src.stat().st_dev else (
            src / "long.mp4"
        ).symlink_to(long[0])
    else:
        copies(root / "one", source_clip(), 1, 10)
        loop = [
            "-v",
            "error",
            "-stream_loop",
            "29",
            "-i",
            str(root / "one" / "c0000.mp4"),
            "-c",
            "copy",
            str(src / "long.mp4"),
        ]
        subprocess.run([find_ffmpeg(None), *loop], check=True)
    segments = copies(root / "segments", src / "long.mp4", 10, 30)
    ratios: dict[str, list[float]] = {"xargs": [], "split": [], "over one segment": []}
    for number in range(ROUNDS):
        one, two = (xargs(segments, root / f"x{number}-{workers}", workers) for workers in (1, 2))
        ratios["xargs"].append(one / two)
        whole = vidprep(src, root / f"w{number}", "--jobs", 1)
        one, two = (vidprep(src, root / f"s{number}-{jobs}", "--jobs", jobs, "--segment", 15) for jobs in (1, 2))
        ratios["split"].append(one / two)
        ratios["over one segment"].append(whole / two)
    row, other = (pq.read_table(root / name / "manifest.parquet").to_pylist()[0] for name in ("w0", "s0-2"))
    print("\none video of 300 s in segments of 15 s")
    for name, found in ratios.items():
        told(name, found, f"{statistics.median(found) / statistics.median(ratios['xargs']):.3f} of xargs's")
    print(
        f"PSNR-Y {other['psnr_y_db'] - row['psnr_y_db']:+.4f} dB, {other['size_bytes'] / row['size_bytes'] - 1:+.2%} bytes"
    )


def model(root: Path) -> None:
    """What is left of a run when the work on the videos is taken out, and what that allows."""
    count = 3000
    src = copies(root / "src", source_clip(), count, 0.12)
    command = [sys.executable, "-m", "vidprep.transcode", "transcode", str(src), str(root / "dst"), *OPTIONS]
    done = subprocess.run(
        [*command, "--jobs", "2", "--json"], capture_output=True, text=True, check=True, env=ENVIRONMENT
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    seconds = lines[-1]["summary"]["seconds"]
    overhead = (2 * seconds - sum(line["encode_seconds"] for line in lines[:-1])) / count
    parent = _parent_seconds(src, root / "again") / count
    with cluster("dask") as options:
        before = _scheduler_seconds(options[-1])
        # Each a task of its own, as a video of 2 s is.
        program = "from vidprep.transcode.cli.main import main; from vidprep.transcode.workers import _cluster as cluster; cluster.MAX_JOBS = 1; main()"
        command = [sys.executable, "-c", program, "transcode", str(src), str(root / "on-dask"), *OPTIONS, *options]
        subprocess.run(command, check=True, env=ENVIRONMENT)
        scheduler = (_scheduler_seconds(options[-1]) - before) / count
    videos = MILLIONS * 1_000_000
    print(f"\nmodel, from {count} clips of 3 frames in {seconds:.0f} s")
    print(
        f"each video costs a worker {1000 * overhead:.1f} ms beside the work on it, the parent {1000 * parent:.1f} ms of CPU"
    )
    print(f"on dask, a task costs the scheduler {1000 * scheduler:.1f} ms of CPU")
    print(f"at {MILLIONS} million clips of 10 s: manifest {videos * _row_bytes(root) / 1e9:.1f} GB,")
    print(f"  parent {videos * parent / 3600:.1f} CPU hours; where a video takes a core 2 s,")
    print(
        f"  one parent keeps up with {2 / parent:.0f} cores: {1 / parent:.0f} videos and {2 / parent:.0f} messages a second,"
    )
    print(f"  and a dask scheduler with {2 / scheduler:.0f} cores: {1 / scheduler:.0f} videos a second;")
    print("  beyond that --partition: tasks share nothing but the destination, and each has a parent of its own")


def _row_bytes(root: Path) -> float:
    """Of a manifest whose rows have names, numbers and checksums of their own, as of clips of 10 s from 30 fps to 15."""
    (row,) = islice(read_manifest(root / "dst"), 1)
    dice, rows = random.Random(0), []
    for number in range(100_000):
        name = f"{dice.randbytes(8).hex()}_{number % 97:06d}"
        doubles = {"psnr_y_db", "psnr_yuv_db", "psnr_y_p1_db", "psnr_y_min_db", "ssim", "encode_seconds", "cpu_seconds"}
        rows.append(
            replace(
                row,
                id=name,
                file_name=f"{name}.mp4",
                source=f"/data/raw/{name}.mp4",
                sha256=dice.randbytes(32).hex(),
                source_size_bytes=dice.randrange(10**6, 10**7),
                source_mtime_ns=dice.randrange(10**18, 2 * 10**18),
                size_bytes=dice.randrange(10**5, 10**6),
                worst_frame=dice.randrange(150),
                num_frames=150,
                keyframes=[*range(0, 150, 16)],
                source_frames=[*range(0, 300, 2)],
                **{each: dice.random() for each in doubles},
            )
        )
    write_rows(root / "rows.parquet", None, rows)
    return (root / "rows.parquet").stat().st_size / len(rows)


def _scheduler_seconds(address: str) -> float:
    """CPU time of a dask scheduler."""
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        return float(client.run_on_scheduler(time.process_time))


def _parent_seconds(src: Path, dst: Path) -> float:
    """CPU time of the process that plans, hands out, journals and names, its children left out."""
    program = "import atexit, os, sys; from vidprep.transcode.cli.main import main; atexit.register(lambda: print(sum(os.times()[:2]), file=sys.stderr)); main()"
    command = [sys.executable, "-c", program, "transcode", str(src), str(dst), *OPTIONS, "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    return float(done.stderr.split()[-1])


PARTS = {"speedup": speedup, "clusters": clusters, "split": split, "model": model}


def main() -> None:
    for name in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory(prefix="vidprep-bench") as folder:
            PARTS[name](Path(folder))


if __name__ == "__main__":
    main()
