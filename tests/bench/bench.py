"""`make bench`: vidprep against ffmpeg run by xargs, in one run on real clips, as ratios. Never a test.

    python tests/bench/bench.py [speed] [memory] [rate] [validate] [scores]      all when none is named

speed   wall and CPU time of a whole run, against `xargs -P <cores> ffmpeg -threads 1`: its encode alone, and its encode
        followed by its psnr filter. Once with the encoder options that vidprep chose ("same"), and for h264 with
        ffmpeg's own libx264 medium at this GOP and vidprep's CRF ("medium"). Rounds alternate; medians.
memory  peak resident memory of one worker process, source 1280x720.
rate    BD-rate of the default settings on PSNR-Y against ffmpeg's own default (libx264 medium, untuned), and CPU time.

validate  a whole destination read again and scored against its sources, against ffmpeg's psnr and ssim filters over the same pairs.

scores  CPU time with --score vmaf and xpsnr, of that without.

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
from av.video.frame import VideoFrame
from history import keep

from vidprep.formats.model import Colour, FrameSize, OutputFormat
from vidprep.formats.profiles import CODECS, ENCODERS
from vidprep.formats.video.options import EncoderOptions
from vidprep.formats.video.source import open_video
from vidprep.formats.video.writer import VideoWriter
from vidprep.transcode.choose.sweep_tables import bd_rate
from vidprep.transcode.media.ffmpeg_program import find_ffmpeg
from vidprep.transcode.media.metrics import FrameScorer, psnr_db
from vidprep.transcode.media.verify import check_decoder
from vidprep.transcode.settings.options import QualityGate
from vidprep.transcode.workers.local import default_jobs

REPOSITORY = Path(__file__).resolve().parents[2]
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
CORES = default_jobs()
QUIET = ["-v", "error", "-nostdin"]
ENVIRONMENT = os.environ | {"SVT_LOG": "1"}
PEAK_PROGRAM = """
import os, sys
from vidprep.transcode.unit.life import run_job
from vidprep.transcode.unit.job import WholeJob
from vidprep.transcode.settings.options import Scale
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.sources.unit import Unit
source, codec, lines, partial, gop = sys.argv[1:6]
facts = os.stat(source)
scale = Scale(short_side=int(lines)) if int(lines) else Scale()
settings = RunSettings(VideoOutput(EncoderOptions(codec=codec, gop=int(gop))), scale=scale)
row = run_job(WholeJob(Unit("x", source, facts.st_size, facts.st_mtime_ns), settings, "x", partial))
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
        REPOSITORY / ".venv-demo" / "clips",
    ):
        if folder and Path(folder).is_dir():
            return Path(folder)
    sys.exit("bench: no clips; give BENCH_SRC=folder, or run `make demo` once")


def by_size(width: int, height: int) -> list[Path]:
    found = []
    for path in sorted(clips().iterdir()):
        try:
            with open_video(path) as container:
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
    print(
        f"\nspeed: {CORES} workers, GOP 5, PSNR and SSIM of every frame; median of {ROUNDS} rounds of h264, one of the others"
    )
    print(f"{'case':20}{'codec':7}{'vidprep s':>10}  {'ffmpeg':8}{'/ encode':>10}{'/ +psnr':>10}{'CPU/encode':>12}")
    cases = [
        ("720p -> 240 lines", by_size(1280, 720), 240, 12),
        ("340x256 unscaled", by_size(340, 256), 0, 40),
        ("720p unscaled", by_size(1280, 720), 0, 3),
    ]
    for name, sources, lines, copies in cases:
        if not sources:
            print(f"{name:20}no clip of that size in {clips()}")
            continue
        for codec in CODECS:
            main = codec == "h264"
            rounds = [
                Round(sources, lines, copies if main else 1 + copies // 4, codec) for _ in range(ROUNDS if main else 1)
            ]
            wall = statistics.median(each.ours.wall for each in rounds)
            for peer in rounds[0].encode:
                alone = statistics.median(each.ours.wall / each.encode[peer].wall for each in rounds)
                both = statistics.median(each.ours.wall / (each.encode[peer].wall + each.psnr.wall) for each in rounds)
                cpu = statistics.median(each.ours.cpu / each.encode[peer].cpu for each in rounds)
                print(f"{name:20}{codec:7}{wall:10.2f}  {peer:8}{alone:10.2f}{both:10.2f}{cpu:12.2f}", flush=True)
                for figure, value in (
                    ("wall, of encode", alone),
                    ("wall, of encode and psnr", both),
                    ("CPU, of encode", cpu),
                ):
                    keep(f"{name}, {codec}, {peer} options: {figure}", value)


def put(source: Path, copy: Path, *, square: bool) -> None:
    """A copy of a clip; square: with square pixels, as unscaled has to mean."""
    if not square:
        shutil.copy(source, copy)
        return
    with av.open(f"file:{source}") as container:
        aspect = f"{container.streams.video[0].width}:{container.streams.video[0].height}"
    made_square = ["-bsf:v", "h264_metadata=sample_aspect_ratio=1/1", "-aspect", aspect]
    timed([find_ffmpeg(None), *QUIET, "-i", str(source), "-map", "0:v", "-c", "copy", *made_square, str(copy)])


class Round:
    """One run of vidprep and of each peer over the same copies of the clips."""

    def __init__(self, sources: list[Path], lines: int, copies: int, codec: str) -> None:
        self._binary = find_ffmpeg(None)
        with tempfile.TemporaryDirectory() as folder:
            self._raw, self._theirs = Path(folder, "raw"), Path(folder, "theirs")
            self._raw.mkdir()
            self._theirs.mkdir()
            for number in range(copies):
                for path in sources:
                    put(path, self._raw / f"{path.stem}_{number}{path.suffix}", square=not lines)
            # The same picture as vidprep's: pixels made square, even sizes.
            height = str(lines) if lines else "ih"
            self._scale = f"scale=trunc({height}*dar/2+0.5)*2:{height}:flags=bicubic,setsar=1,format=yuv420p"
            options, size = (
                EncoderOptions(codec=codec, gop=5),
                FrameSize(lines, lines) if lines else FrameSize(1280, 720),
            )
            self._suffix = options.container_name
            asked = ["--gop", "5", "--codec", codec, "--quiet"] + (["--short-side", str(lines)] if lines else [])
            ours = [sys.executable, "-m", "vidprep.transcode", "transcode", str(self._raw), f"{folder}/ours", *asked]
            self.ours = timed(ours, env=ENVIRONMENT)
            chosen = " ".join(
                f"-{k}{':v' if k == 'b' else ''} '{v}'" for k, v in options.library_options(size=size).items()
            )
            encoder = f"-c:v {options.profile.name} -threads {options.num_threads(size)} "
            self.encode = {"same": self._encode(encoder + chosen)}
            self.psnr = self._score()
            if codec == "h264":
                medium = f"-preset medium -crf {options.resolved.crf:g} -g 5 -keyint_min 5 -sc_threshold 0"
                self.encode["medium"] = self._encode(encoder + medium)

    def _encode(self, encoder: str) -> Cost:
        return self._xargs(
            f"-y -threads 1 -filter_threads 1 -i {self._raw}/$1 -an -vf '{self._scale}' {encoder} {self._theirs}/$1.{self._suffix}"
        )

    def _score(self) -> Cost:
        return self._xargs(
            f"-threads 1 -i {self._theirs}/$1.{self._suffix} -threads 1 -i {self._raw}/$1 -filter_complex_threads 1 "
            f"-lavfi '[1:v]{self._scale}[r];[0:v][r]psnr' -f null -"
        )

    def _xargs(self, arguments: str) -> Cost:
        names = sorted(self._raw.iterdir(), key=lambda path: -path.stat().st_size)
        each = ["sh", "-c", f"{self._binary} {' '.join(QUIET)} {arguments}", "sh", "{}"]
        told = "\n".join(path.name for path in names).encode()
        return timed(["xargs", "-P", str(CORES), "-I{}", *each], input=told, env=ENVIRONMENT)


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
                        capture_output=True,
                        text=True,
                        check=True,
                    )
                    worst = max(worst, float(told.stdout))
                peaks.append(worst)
            print(f"{codec:8}" + "".join(f"{peak:14.0f}" for peak in peaks), flush=True)


RATE_CLIPS = 7
RATE_FRAMES = 80
RATE_LINES = 224
RATE_POINTS = {"h264": (16, 20, 24, 28), "hevc": (16, 20, 24, 28), "vp9": (20, 28, 36, 44), "av1": (20, 28, 36, 44)}
ANCHOR = {"crf": "{crf}", "preset": "medium", "keyint_min": "{gop}", "sc_threshold": "0"}


def rate() -> None:
    """BD-rate after Bjøntegaard, VCEG-M33 (2001)."""
    prepared = list(natural_clips())
    print(
        f"\nrate: default settings against libx264 medium untuned; {len(prepared)} clips, {RATE_LINES} lines, {RATE_FRAMES} frames"
    )
    print(f"{'codec':8}{'GOP':>4}{'BD-rate Y %':>13}{'BD-rate YUV %':>15}{'CPU x':>8}{'median dB at default CRF':>26}")
    for gop in (5, 16):
        anchors = [curve(frames, "h264", gop, anchor=True) for frames in prepared]
        for codec in CODECS:
            curves = [curve(frames, codec, gop) for frames in prepared]
            luma, every = ([delta(a[0], c[0], plane) for a, c in zip(anchors, curves, strict=True)] for plane in (1, 2))
            cpu = sum(c[1] for c in curves) / sum(a[1] for a in anchors)
            usual = EncoderOptions(codec=codec).resolved.crf or 0
            default = statistics.median(point(frames, codec, gop, usual)[0][1] for frames in prepared)
            print(
                f"{codec:8}{gop:4}{statistics.mean(luma):13.1f}{statistics.mean(every):15.1f}{cpu:8.2f}{default:26.2f}",
                flush=True,
            )


def natural_clips() -> Iterator[list[VideoFrame]]:
    """Frames of RATE_CLIPS real, progressive, 8-bit clips of at least RATE_LINES lines, scaled to RATE_LINES.

    Evenly spread over the names, so that clips of one film do not stand for all.
    """
    fit = [path for path in sorted(clips().iterdir()) if is_natural(path)]
    for number in range(min(RATE_CLIPS, len(fit))):
        path = fit[number * len(fit) // min(RATE_CLIPS, len(fit))]
        with open_video(path) as container:
            stream = container.streams.video[0]
            width = round(stream.width * RATE_LINES / stream.height / 2) * 2
            yield [
                frame.reformat(width, RATE_LINES, "yuv420p", interpolation="BICUBIC")
                for frame in islice(container.decode(stream), RATE_FRAMES)
            ]


def is_natural(path: Path) -> bool:
    if any(word in path.name for word in ("pattern", "clock", "editlist")) or not path.is_file():
        return False
    try:
        with open_video(path) as container:
            video = container.streams.video
            return bool(video) and (
                video[0].height >= RATE_LINES
                and video[0].pix_fmt == "yuv420p"
                and video[0].codec_context.name in ("h264", "mpeg4", "vp8")
                and (video[0].frames or RATE_FRAMES) >= RATE_FRAMES
            )
    except (OSError, ValueError):
        return False


Point = tuple[float, float, float]


def curve(frames: list[VideoFrame], codec: str, gop: int, *, anchor: bool = False) -> tuple[list[Point], float]:
    """The points of all CRFs, and the CPU seconds of their encodes."""
    measured = [point(frames, codec, gop, crf, anchor=anchor) for crf in RATE_POINTS[codec]]
    return [each for each, _ in measured], sum(cpu for _, cpu in measured)


def point(frames: list[VideoFrame], codec: str, gop: int, crf: float, *, anchor: bool = False) -> tuple[Point, float]:
    """(bytes, PSNR-Y, PSNR-YUV) at one CRF, and the CPU seconds of the encode."""
    options = EncoderOptions(codec=codec, gop=gop, crf=crf)
    size, rate = FrameSize(frames[0].width, frames[0].height), Fraction(25)
    output = OutputFormat(size, "yuv420p", Colour(1, 1, 1), 1 / rate, rate, rate)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"x.{options.container_name}"
        writer = Anchor(output, crf, gop) if anchor else VideoWriter(path, options, output)
        start = time.process_time()
        packets = [p for n, f in enumerate(frames) for p in writer.encode(f, n)] + [*writer.flush()]
        cpu = time.process_time() - start
        decoder = check_decoder(codec, writer.context.extradata)
        decoded = [f for p in [*packets, None] for f in decoder.decode(p)]
        scorer = FrameScorer(output, QualityGate())
        scores = [scorer.score(a, b) for a, b in zip(frames, decoded, strict=True)]
        writer.close()
    luma, every = (statistics.mean(each) for each in zip(*((s.mse_y, s.mse_yuv) for s in scores), strict=True))
    return (float(sum(p.size for p in packets)), psnr_db(luma, 255), psnr_db(every, 255)), cpu


class Anchor:
    """ffmpeg's own default settings of libx264, one thread."""

    def __init__(self, output: OutputFormat, crf: float, gop: int) -> None:
        self.context = av.CodecContext.create("libx264", "w")
        self.context.width, self.context.height = output.size
        self.context.pix_fmt, self.context.time_base, self.context.framerate = "yuv420p", Fraction(1, 25), Fraction(25)
        self.context.thread_count = 1
        self.context.options = {k: v.format(crf=crf, gop=gop) for k, v in ANCHOR.items()} | {"g": str(gop)}
        self.context.flags |= 0x400000  # global header, as in a file

    def encode(self, frame: VideoFrame, pts: int) -> list[av.Packet]:  # type: ignore[type-arg]
        if frame is not None:
            frame.pts, frame.time_base, frame.pict_type = pts, Fraction(1, 25), 0
        return self.context.encode(frame)

    def close(self) -> None:
        pass


def delta(anchor: list[Point], test: list[Point], plane: int) -> float:
    """BD-rate in %, of luma (1) or of all planes (2)."""
    found = bd_rate([(p[0], p[plane]) for p in anchor], [(p[0], p[plane]) for p in test])
    return math.nan if found is None else found * 100


def validate() -> None:
    """Every output decoded again and scored against its source, every keyframe and checksum, against ffmpeg's filters alone."""
    print(
        f"\nvalidate: {CORES} workers, default options, against xargs ffmpeg -threads 1 over the same pairs; median of {ROUNDS}"
    )
    print(f"{'case':20}{'vidprep s':>10}{'/ psnr, then ssim':>19}{'/ both in one':>15}")
    for name, sources, lines, copies in (
        ("720p -> 240 lines", by_size(1280, 720), 240, 8),
        ("340x256 unscaled", by_size(340, 256), 0, 20),
        ("720p unscaled", by_size(1280, 720), 0, 2),
    ):
        if not sources:
            print(f"{name:20}no clip of that size in {clips()}")
            continue
        pairs = Pairs(sources, lines, copies)
        rounds = [
            (pairs.ours(), pairs.theirs("psnr").wall + pairs.theirs("ssim").wall, pairs.theirs("both").wall)
            for _ in range(ROUNDS)
        ]
        wall = statistics.median(ours.wall for ours, *_ in rounds)
        ratios = [statistics.median(each[0].wall / each[n] for each in rounds) for n in (1, 2)]
        print(f"{name:20}{wall:10.2f}{ratios[0]:19.2f}{ratios[1]:15.2f}", flush=True)
        keep(f"{name}, validate: wall, of psnr and ssim in one", ratios[1])
        pairs.remove()


def scores() -> None:
    """CPU time of a run with VMAF, with XPSNR and with both, as multiples of one without."""
    print("\nscores: CPU time of transcode, GOP 16, with other scores than PSNR and SSIM, of the same run without")
    cases = [("720p", by_size(1280, 720), 2), ("340x256", by_size(340, 256), 8)]
    has_vmaf = "libvmaf" in av.filter.filters_available
    for name, sources, copies in cases:
        costs = {}
        for asked in ("psnr,ssim", "xpsnr", *(("vmaf", "vmaf,xpsnr") if has_vmaf else ())):
            with tempfile.TemporaryDirectory() as folder:
                raw = Path(folder) / "raw"
                raw.mkdir()
                for number in range(copies):
                    for path in sources:
                        (raw / f"{number}_{path.name}").symlink_to(path.resolve())
                command = [
                    sys.executable,
                    "-m",
                    "vidprep.transcode",
                    "transcode",
                    str(raw),
                    f"{folder}/made",
                    "--quiet",
                ]
                costs[asked] = timed([*command, "--score", asked], env=ENVIRONMENT).cpu
        for asked, seconds in costs.items():
            if asked != "psnr,ssim":
                print(f"{name:12}{asked:14}{seconds / costs['psnr,ssim']:8.2f}", flush=True)
                keep(f"{name}, --score {asked}: CPU, of psnr and ssim alone", seconds / costs["psnr,ssim"])


class Pairs:
    """A finished destination beside its sources."""

    def __init__(self, sources: list[Path], lines: int, copies: int) -> None:
        self._root = Path(tempfile.mkdtemp())
        self._raw, self._made = self._root / "raw", self._root / "made"
        self._raw.mkdir()
        for number in range(copies):
            for path in sources:
                put(path, self._raw / f"{path.stem}_{number}.mp4", square=not lines)
        height = str(lines) if lines else "ih"
        self._scale = f"scale=trunc({height}*dar/2+0.5)*2:{height}:flags=bicubic,setsar=1,format=yuv420p"
        asked = ["--gop", "5", "--quiet"] + (["--short-side", str(lines)] if lines else [])
        timed(
            [sys.executable, "-m", "vidprep.transcode", "transcode", str(self._raw), str(self._made), *asked],
            env=ENVIRONMENT,
        )

    def ours(self) -> Cost:
        command = [sys.executable, "-m", "vidprep.transcode", "validate", str(self._raw), str(self._made), "--quiet"]
        return timed(command, env=ENVIRONMENT)

    def theirs(self, what: str) -> Cost:
        graph = f"[1:v]{self._scale}[r];"
        graph += "[0:v]split[a][b];[r]split[c][d];[a][c]psnr;[b][d]ssim" if what == "both" else f"[0:v][r]{what}"
        each = (
            f"{find_ffmpeg(None)} {' '.join(QUIET)} -threads 1 -i {self._made}/$1 -threads 1 -i {self._raw}/$1 "
            f"-filter_complex_threads 1 -lavfi '{graph}' -f null -"
        )
        names = "\n".join(path.name for path in sorted(self._raw.iterdir(), key=lambda path: -path.stat().st_size))
        return timed(["xargs", "-P", str(CORES), "-I{}", "sh", "-c", each, "sh", "{}"], input=names.encode())

    def remove(self) -> None:
        shutil.rmtree(self._root)


def main() -> None:
    wanted = sys.argv[1:] or ["speed", "memory", "rate", "validate", "scores"]
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
        {"speed": speed, "memory": memory, "rate": rate, "validate": validate, "scores": scores}[name]()


if __name__ == "__main__":
    main()
