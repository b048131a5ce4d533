"""`make bench`: few videos on idle cores, and how a run starts. Never a test.

    python tests/bench/cores.py

one     a 1280x720 clip of five seconds, and the same at 1920x1080 with hevc and av1, against ffmpeg with its own threads and our options
long    five minutes of it, against ffmpeg with its own threads; whether one job and as many as there are cores make the same bytes
few     five videos of 10, 10, 10, 20, 30 s: wall time against CPU time over the cores
start   twelve frames of 192x128, from the command to its end
around  48 clips, transcode and burst: what the run takes beside its jobs

Rounds alternate; medians of BENCH_ROUNDS. Every frame of ours is decoded back and scored.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import CORES, ENVIRONMENT, QUIET, ROUNDS, by_size
from history import keep

from vidprep.formats.manifest.table import read_manifest
from vidprep.formats.model import FrameSize
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.media.ffmpeg_program import find_ffmpeg

GOP = 5
COMMAND = Path(sys.executable).with_name("vidprep")
Measured = tuple[float, float]


def timed(command: list[object]) -> Measured:
    """Wall and CPU seconds of a command and its children."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(list(map(str, command)), check=True, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - started, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def medians(tools: dict[str, Callable[[], Measured]]) -> dict[str, Measured]:
    times: dict[str, list[Measured]] = {name: [] for name in tools}
    for _ in range(ROUNDS):
        for name, run in tools.items():
            times[name].append(run())
    return {
        name: (statistics.median(w for w, _ in each), statistics.median(c for _, c in each))
        for name, each in times.items()
    }


def vidprep(source: Path, to: Path, *options: object, verb: str = "transcode") -> Callable[[], Measured]:
    gop = ["--gop", GOP] if verb == "transcode" else []

    def run() -> Measured:
        shutil.rmtree(to, ignore_errors=True)
        return timed([COMMAND, verb, source, to, *gop, "--quiet", *options])

    return run


def ffmpeg(source: Path, to: Path, codec: str, size: FrameSize) -> Callable[[], Measured]:
    """Our options, but for those that say how many threads there are."""
    options = EncoderOptions(codec=codec, gop=GOP)
    given = {name: _without_threads(value) for name, value in options.library_options(size=size).items()}
    coded = [part for name, value in given.items() for part in (f"-{name}{':v' if name == 'b' else ''}", value)]
    return lambda: timed(
        [
            find_ffmpeg(None),
            *QUIET,
            "-y",
            "-i",
            source,
            "-an",
            "-c:v",
            options.profile.name,
            "-pix_fmt",
            "yuv420p",
            *coded,
            to / f"ffmpeg.{options.container_name}",
        ]
    )


def _without_threads(value: str) -> str:
    threads = ("pools=", "frame-threads=", "lp=", "wpp=")
    return ":".join(part for part in value.split(":") if not part.startswith(threads))


def cut(source: Path, to: Path, seconds: int, *, lines: int | None = None) -> Path:
    """The source, again and again, as H.264 with ffmpeg's own keyframes."""
    scale = [] if lines is None else ["-vf", f"scale=-2:{lines}"]
    coded = ["-an", *scale, "-c:v", "libx264", "-preset", "veryfast", "-crf", "20"]
    command = [find_ffmpeg(None), *QUIET, "-y", "-stream_loop", "-1", "-i", source, "-t", seconds, *coded, to]
    subprocess.run(list(map(str, command)), check=True)
    return to


def one(clip: Path, work: Path) -> None:
    large = cut(clip, work / "1080.mp4", 5, lines=1080)
    for codec, source, size in (
        ("h264", clip, FrameSize(1280, 720)),
        ("hevc", clip, FrameSize(1280, 720)),
        ("vp9", clip, FrameSize(1280, 720)),
        ("av1", clip, FrameSize(1280, 720)),
        ("hevc", large, FrameSize(1920, 1080)),
        ("av1", large, FrameSize(1920, 1080)),
    ):
        ours, theirs = vidprep(source, work / "one", "--codec", codec), ffmpeg(source, work, codec, size)
        told(f"one clip, {codec}, {size}", medians({"vidprep": ours, "ffmpeg": theirs}))


def long(clip: Path, work: Path) -> None:
    source = cut(clip, work / "long.mp4", 300)
    tools = {
        "vidprep": vidprep(source, work / "all"),
        "ffmpeg": ffmpeg(source, work, "h264", FrameSize(1280, 720)),
        "vidprep, --jobs 1": vidprep(source, work / "alone", "--jobs", 1),
    }
    told("five minutes, h264, 1280x720", medians(tools))
    made = {(work / name / "long.mp4").read_bytes() for name in ("all", "alone")}
    print(f"    the same bytes with one job and with {CORES}: {len(made) == 1}")


def few(clip: Path, work: Path) -> None:
    folder = work / "few"
    folder.mkdir()
    for number, seconds in enumerate((10, 10, 10, 20, 30)):
        cut(clip, folder / f"{number}.mp4", seconds)
    ((_, (wall, cpu)),) = medians({"vidprep": vidprep(folder, work / "out")}).items()
    print(f"\nfive videos of 10 to 30 s: {wall:.2f} s, {wall / (cpu / CORES):.3f} of CPU time over {CORES} cores")


def start(clip: Path, work: Path) -> None:
    tiny = work / "tiny.mp4"
    subprocess.run(
        [find_ffmpeg(None), *QUIET, "-y", "-i", clip, "-an", "-vf", "scale=192:128", "-frames:v", "12", tiny],
        check=True,
    )
    ((_, (wall, cpu)),) = medians({"tiny": vidprep(tiny, work / "started")}).items()
    print(f"\n12 frames of 192x128: {wall:.2f} s from command to exit, {cpu:.2f} s of CPU time")
    keep("12 frames of 192x128: s, wall", wall)
    keep("12 frames of 192x128: s, CPU", cpu)


def around(clip: Path, work: Path) -> None:
    folder = work / "many"
    folder.mkdir()
    for number in range(48):
        shutil.copy(clip, folder / f"{number}.mp4")
    for verb in ("transcode", "burst"):
        found = []
        for _ in range(ROUNDS):
            wall, cpu = vidprep(folder, work / verb, "--short-side", 240, verb=verb)()
            rows = list(read_manifest(work / verb))
            jobs = sum(row.encode_seconds or 0.0 for row in rows) / CORES
            found.append((wall, jobs, wall - 1.03 * jobs, cpu - sum(row.cpu_seconds or 0.0 for row in rows)))
        wall, jobs, over, beside = map(statistics.median, zip(*found, strict=True))
        print(
            f"\n48 clips, {verb}: {wall:.2f} s, {jobs:.2f} s of jobs on each of {CORES} cores, {over:.2f} s over 1.03 times that; "
            f"{beside:.2f} s of CPU time beside them"
        )
        keep(f"48 clips, {verb}: s over 1.03 times its jobs", over)


def told(name: str, found: dict[str, Measured]) -> None:
    ours = found["vidprep"]
    print(f"\n{name}")
    keep(f"{name}: wall, of ffmpeg's", ours[0] / found["ffmpeg"][0])
    for tool, (wall, cpu) in found.items():
        print(
            f"    {tool:20} {wall:6.2f} s wall, {cpu:6.2f} s CPU; vidprep takes {ours[0] / wall:.2f} of its wall time"
        )


def main() -> None:
    (clip, *_) = by_size(1280, 720)
    parts = {"one": one, "long": long, "few": few, "start": start, "around": around}
    os.environ.setdefault("SVT_LOG", "1")
    for name in sys.argv[1:] or parts:
        with tempfile.TemporaryDirectory() as work:
            parts[name](clip, Path(work))


if __name__ == "__main__":
    main()
