"""`make bench`: vidprep against ffmpeg run by xargs, in one run on real clips, as ratios. Never a test.

    python tests/bench/bench.py [speed] [memory] [rate]      all three when none is named

speed   wall and CPU time of a whole run, against `xargs -P <cores> ffmpeg -threads 1` with the same encoder options:
        its encode alone, and its encode followed by its psnr filter. Rounds alternate; the figure is the median.
memory  peak resident memory of one worker process, source 1280x720.
rate    BD-rate of the default settings on PSNR-Y against ffmpeg's own default (libx264 medium, untuned), and CPU time.

BENCH_SRC=folder names the clips; it needs a 1280x720 and a 340x256 one among them.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path

import av
import numpy as np
from av.video.frame import VideoFrame

from vidprep.formats.model import Colour, FrameSize, OutputFormat
from vidprep.formats.profiles import CODECS, ENCODERS, EncoderOptions
from vidprep.formats.video import VideoWriter
from vidprep.transcode.ffmpeg_run import find_ffmpeg
from vidprep.transcode.metrics import FrameScorer, psnr_db
from vidprep.transcode.quality import check_decoder
from vidprep.transcode.run import default_jobs

REPOSITORY = Path(__file__).resolve().parents[2]
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
CORES = default_jobs()
PEAK_PROGRAM = """
import os, sys
from vidprep.transcode.job import Job, run_job
from vidprep.transcode.settings import RunSettings, Scale
from vidprep.formats.profiles import EncoderOptions
from vidprep.transcode.sources import Unit
source, codec, lines, partial, gop = sys.argv[1:6]
facts = os.stat(source)
scale = Scale(short_side=int(lines)) if int(lines) else Scale()
settings = RunSettings(encoder=EncoderOptions(codec=codec, gop=int(gop)), scale=scale)
row = run_job(Job(Unit("x", source, facts.st_size, facts.st_mtime_ns), settings, "x", partial))
assert row.ok, row.message
# Not ru_maxrss: it begins at the size of the process that forked this one.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) * 1024 / 1e6)
"""


def clips() -> Path:
    """The folder of real clips: BENCH_SRC, ../shared/media, or those of `make demo`."""
    for folder in (
        os.environ.get("BENCH_SRC"),
        REPOSITORY.parent / "shared" / "media",
        REPOSITORY / ".venv" / "demo-clips",
    ):
        if folder and Path(folder).is_dir():
            return Path(folder)
    sys.exit("bench: no clips; give BENCH_SRC=folder, or run `make demo` once")


def by_size(width: int, height: int) -> list[Path]:
    found = []
    for path in sorted(clips().iterdir()):
        try:
            with av.open(f"file:{path}", metadata_errors="replace") as container:
                video = container.streams.video
                if (
                    video
                    and (video[0].width, video[0].height) == (width, height)
                    and video[0].codec_context.name == "h264"
                ):
                    found.append(path)
        except (OSError, ValueError):
            continue
    return found


@dataclass
class Cost:
    wall: float
    cpu: float


def timed(command: list[str], **options: object) -> Cost:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False, **options)  # type: ignore[call-overload]
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"bench: {command[:4]} ended with {done.returncode}: {done.stderr.decode()[-500:]}")
    return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def speed() -> None:
    binary = find_ffmpeg(None)
    print(f"\nspeed: {CORES} workers, GOP 5, PSNR and SSIM of every frame; median of {ROUNDS} rounds")
    print(f"{'case':24}{'codec':7}{'vidprep s':>10}{'/ encode':>10}{'/ +psnr':>10}{'CPU/encode':>12}")
    cases = [
        ("720p -> 240 lines", by_size(1280, 720), 240, 6),
        ("340x256 unscaled", by_size(340, 256), 0, 12),
        ("720p unscaled", by_size(1280, 720), 0, 3),
    ]
    for name, sources, lines, copies in cases:
        if not sources:
            print(f"{name:24}no clip of that size in {clips()}")
            continue
        for codec in CODECS:
            ours, encode, psnr = [], [], []
            for _ in range(ROUNDS if codec == "h264" else 1):
                with tempfile.TemporaryDirectory() as folder:
                    a, b, c = one_round(
                        Path(folder), sources, lines, copies if codec == "h264" else 1 + copies // 4, codec, binary
                    )
                ours.append(a)
                encode.append(b)
                psnr.append(c)
            wall = statistics.median(a.wall for a in ours)
            alone = statistics.median(a.wall / b.wall for a, b in zip(ours, encode, strict=True))
            both = statistics.median(a.wall / (b.wall + c.wall) for a, b, c in zip(ours, encode, psnr, strict=True))
            cpu = statistics.median(a.cpu / b.cpu for a, b in zip(ours, encode, strict=True))
            print(f"{name:24}{codec:7}{wall:10.2f}{alone:10.2f}{both:10.2f}{cpu:12.2f}", flush=True)


def one_round(
    root: Path, sources: list[Path], lines: int, copies: int, codec: str, binary: str
) -> tuple[Cost, Cost, Cost]:
    raw, theirs = root / "raw", root / "theirs"
    with av.open(f"file:{sources[0]}") as container:
        aspect = f"{container.streams.video[0].width}:{container.streams.video[0].height}"
    raw.mkdir()
    theirs.mkdir()
    for number in range(copies):
        for path in sources:
            copy = raw / f"{path.stem}_{number}{path.suffix}"
            if lines:
                shutil.copy(path, copy)
            else:  # unscaled has to mean square pixels
                square = ["-bsf:v", "h264_metadata=sample_aspect_ratio=1/1", "-aspect", aspect]
                timed(
                    [
                        binary,
                        "-v",
                        "error",
                        "-nostdin",
                        "-i",
                        str(path),
                        "-map",
                        "0:v",
                        "-c",
                        "copy",
                        *square,
                        str(copy),
                    ]
                )
    names = "\n".join(path.name for path in sorted(raw.iterdir(), key=lambda p: -p.stat().st_size))
    options = EncoderOptions(codec=codec, gop=5)
    flags = " ".join(
        f"-{key}{':v' if key == 'b' else ''} '{value}'" for key, value in options.library_options().items()
    )
    # The same picture as vidprep's: pixels made square, even sizes.
    height = str(lines) if lines else "ih"
    scale = f"scale=trunc({height}*dar/2+0.5)*2:{height}:flags=bicubic"
    suffix = options.container_name
    encode = (
        f"{binary} -v error -nostdin -y -threads 1 -filter_threads 1 -i {raw}/$1 -an -vf '{scale},setsar=1,format=yuv420p' "
        f"-c:v {options.profile.name} -threads 1 {flags} {theirs}/$1.{suffix}"
    )
    score = (
        f"{binary} -v error -nostdin -threads 1 -i {theirs}/$1.{suffix} -threads 1 -i {raw}/$1 -filter_complex_threads 1 "
        f"-lavfi '[1:v]{scale},setsar=1,format=yuv420p[r];[0:v][r]psnr' -f null -"
    )
    xargs = ["xargs", "-P", str(CORES), "-I{}", "sh", "-c"]
    ours = timed(
        [
            sys.executable,
            "-m",
            "vidprep.transcode",
            "transcode",
            str(raw),
            str(root / "ours"),
            "--gop",
            "5",
            "--codec",
            codec,
            "--quiet",
        ]
        + (["--short-side", str(lines)] if lines else []),
        env=os.environ | {"SVT_LOG": "1"},
    )
    environment = os.environ | {"SVT_LOG": "1"}
    alone = timed([*xargs, encode, "sh", "{}"], input=names.encode(), env=environment)
    return ours, alone, timed([*xargs, score, "sh", "{}"], input=names.encode(), env=environment)


def memory() -> None:
    sources = by_size(1280, 720)
    if not sources:
        print(f"\nmemory: no 1280x720 clip in {clips()}")
        return
    print("\nmemory: peak resident MB of one worker process, 1280x720 source, every frame measured")
    print(f"{'codec':8}{'to 240 lines':>14}{'720p, GOP 5':>14}{'720p, GOP 16':>14}")
    with tempfile.TemporaryDirectory() as folder:
        for codec in CODECS:
            peaks = []
            for lines, gop in ((240, 5), (0, 5), (0, 16)):
                worst = 0.0
                for source in sources[:2]:
                    partial = f"{folder}/x.{EncoderOptions(codec=codec).container_name}"
                    told = subprocess.run(
                        [sys.executable, "-c", PEAK_PROGRAM, str(source), codec, str(lines), partial, str(gop)],
                        capture_output=True, text=True, check=True,
                    )  # fmt: skip
                    worst = max(worst, float(told.stdout))
                peaks.append(worst)
            print(f"{codec:8}" + "".join(f"{peak:14.0f}" for peak in peaks), flush=True)


RATE_CLIPS = 5
RATE_FRAMES = 80
RATE_LINES = 224
RATE_POINTS = {"h264": (16, 20, 24, 28), "hevc": (16, 20, 24, 28), "vp9": (20, 28, 36, 44), "av1": (20, 28, 36, 44)}
ANCHOR = {"crf": "{crf}", "preset": "medium", "keyint_min": "{gop}", "sc_threshold": "0"}


def rate() -> None:
    """BD-rate after Bjøntegaard, VCEG-M33 (2001), with piecewise cubic interpolation of log rate over PSNR."""
    prepared = list(islice(natural_clips(), RATE_CLIPS))
    print(
        f"\nrate: default settings against libx264 medium untuned; {len(prepared)} clips, {RATE_LINES} lines, {RATE_FRAMES} frames"
    )
    print(f"{'codec':8}{'GOP':>4}{'BD-rate Y %':>13}{'BD-rate YUV %':>15}{'CPU x':>8}")
    for gop in (5, 16):
        anchors = [curve(frames, "h264", gop, anchor=True) for frames in prepared]
        for codec in CODECS:
            curves = [curve(frames, codec, gop) for frames in prepared]
            luma, every = (
                [bd_rate(a[0], c[0], plane) for a, c in zip(anchors, curves, strict=True)] for plane in (1, 2)
            )
            cpu = sum(c[1] for c in curves) / sum(a[1] for a in anchors)
            print(f"{codec:8}{gop:4}{statistics.mean(luma):13.1f}{statistics.mean(every):15.1f}{cpu:8.2f}", flush=True)


def natural_clips() -> Iterator[list[VideoFrame]]:
    """Frames of real, progressive, 8-bit clips of at least RATE_LINES lines, scaled to RATE_LINES."""
    for path in sorted(clips().iterdir()):
        if "pattern" in path.name or path.suffix not in (".mp4", ".avi", ".mov", ".webm"):
            continue
        with av.open(f"file:{path}", metadata_errors="replace") as container:
            if not container.streams.video:
                continue
            stream = container.streams.video[0]
            if (
                stream.height < RATE_LINES
                or stream.pix_fmt != "yuv420p"
                or stream.codec_context.name not in ("h264", "mpeg4", "vp8")
            ):
                continue
            width = round(stream.width * RATE_LINES / stream.height / 2) * 2
            frames = [
                f.reformat(width, RATE_LINES, "yuv420p", interpolation="BICUBIC")
                for f in islice(container.decode(stream), RATE_FRAMES)
            ]
        if len(frames) == RATE_FRAMES:
            yield frames


Point = tuple[float, float, float]


def curve(frames: list[VideoFrame], codec: str, gop: int, *, anchor: bool = False) -> tuple[list[Point], float]:
    """(bytes, PSNR-Y, PSNR-YUV) at each CRF, and the CPU seconds of the encodes."""
    points, cpu = [], 0.0
    for crf in RATE_POINTS[codec]:
        options = EncoderOptions(codec=codec, gop=gop, crf=crf)
        output = OutputFormat(
            FrameSize(frames[0].width, frames[0].height),
            "yuv420p",
            Colour(1, 1, 1),
            Fraction(1, 25),
            Fraction(25),
            Fraction(25),
        )
        with tempfile.TemporaryDirectory() as folder:
            writer = (
                Anchor(Path(folder), output, crf, gop)
                if anchor
                else VideoWriter(Path(folder) / f"x.{options.container_name}", options, output)
            )
            start = time.process_time()
            packets = [p for n, f in enumerate(frames) for p in writer.encode(f, n)] + writer.encode(None)
            cpu += time.process_time() - start
            decoder = check_decoder(codec, writer.context.extradata)
            decoded = [f for p in [*packets, None] for f in decoder.decode(p)]
            scorer = FrameScorer(output.size, "yuv420p", output.colour)
            scores = [scorer.score(a, b) for a, b in zip(frames, decoded, strict=True)]
            points.append((
                float(sum(p.size for p in packets)),
                psnr_db(statistics.mean(s.mse_y for s in scores), 255),
                psnr_db(statistics.mean(s.mse_yuv for s in scores), 255),
            ))  # fmt: skip
            writer.close()
    return points, cpu


class Anchor:
    """ffmpeg's own default settings of libx264, one thread."""

    def __init__(self, _folder: Path, output: OutputFormat, crf: float, gop: int) -> None:
        self.context = av.CodecContext.create("libx264", "w")
        self.context.width, self.context.height = output.size
        self.context.pix_fmt, self.context.time_base, self.context.framerate = "yuv420p", Fraction(1, 25), Fraction(25)
        self.context.thread_count = 1
        self.context.options = {k: v.format(crf=crf, gop=gop) for k, v in ANCHOR.items()} | {"g": str(gop)}
        self.context.flags |= 0x400000  # global header, as in a file

    def encode(self, frame: VideoFrame | None, pts: int = 0) -> list[av.Packet]:  # type: ignore[type-arg]
        if frame is not None:
            frame.pts, frame.time_base, frame.pict_type = pts, Fraction(1, 25), 0
        return self.context.encode(frame)

    def close(self) -> None:
        pass


def bd_rate(anchor: list[Point], test: list[Point], plane: int) -> float:
    """Mean difference of rate in % at equal PSNR, over the PSNR that both curves span."""
    low = max(min(p[plane] for p in anchor), min(p[plane] for p in test))
    high = min(max(p[plane] for p in anchor), max(p[plane] for p in test))
    if high - low < 0.5 or not math.isfinite(high):
        return math.nan
    grid = np.linspace(low, high, 200)

    def log_rate(points: list[Point]) -> np.ndarray:
        ordered = sorted((p[plane], math.log(p[0])) for p in points)
        x, y = np.array([p for p, _ in ordered]), np.array([r for _, r in ordered])
        return np.polyval(np.polyfit(x, y, 3), grid)

    return float((math.exp(float(np.mean(log_rate(test) - log_rate(anchor)))) - 1) * 100)


def main() -> None:
    wanted = sys.argv[1:] or ["speed", "memory", "rate"]
    print(
        json.dumps(
            {
                "clips": clips().name,
                "cores": CORES,
                "encoders": [row.name for row in ENCODERS.values() if row.in_process],
            }
        )
    )
    for name in wanted:
        {"speed": speed, "memory": memory, "rate": rate}[name]()


if __name__ == "__main__":
    main()
