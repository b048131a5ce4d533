"""Writing and reading frames, against the tools that people use, in one run on real clips. Never a test.

    python tests/bench/stores.py [write] [read] [formats]      all three when none is named

write    frames per second of `vidprep burst` on all cores, every JPEG decoded back and scored, and each eighth, against
         ffmpeg writing .jpg files (xargs, -threads 1) and GulpIO2's ingestor at equal size and quality.
read     random 8-frame sequences, one thread: burst against GulpIO2's reader and bare simplejpeg; encoded stores against
         torchcodec and decord where they can be imported. Wall and CPU milliseconds a sequence.
formats  bytes per frame and milliseconds per random frame of every format: which one should I take.

BENCH_SRC=folder names the clips; it needs a 1280x720 and a 340x256 one among them.
"""

from __future__ import annotations

import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
from bench import CORES, ENVIRONMENT, QUIET, ROUNDS, Cost, by_size, clips, put, timed
from history import keep

from vidprep.formats import open_store
from vidprep.formats.stores._index import FrameIndex
from vidprep.transcode.media.ffmpeg_program import find_ffmpeg

SEQUENCE = 8
SEQUENCES = 150
# As GulpIO2's own adapters do: ffmpeg bursts a video into pictures, which are read, scaled and coded again.
GULP_INGEST = """
import sys
from pathlib import Path
import cv2
from gulpio2 import GulpIngestor
from gulpio2.utils import burst_video_into_frames, resize_images, temp_dir_for_bursting
class Adapter:
    def __init__(self, folder, lines):
        self.paths, self.lines = sorted(Path(folder).iterdir()), lines
    def __len__(self):
        return len(self.paths)
    def iter_data(self, part=None):
        for path in self.paths[part or slice(None)]:
            with temp_dir_for_bursting() as folder:
                pictures = burst_video_into_frames(str(path), folder)
                frames = list(resize_images(pictures, self.lines))
            yield {"id": path.stem, "frames": frames, "meta": {}}
if __name__ == "__main__":
    cv2.setNumThreads(1)
    folder, out, lines, jobs = sys.argv[1:]
    adapter = Adapter(folder, int(lines))
    GulpIngestor(adapter, out, max(1, len(adapter) // int(jobs)), int(jobs))()
"""


def vidprep(*args: object) -> Cost:
    return timed([sys.executable, "-m", "vidprep.transcode", *map(str, args), "--quiet"], env=ENVIRONMENT)


def copies_of(sources: list[Path], folder: Path, count: int) -> Path:
    folder.mkdir()
    for number in range(count):
        for path in sources:
            put(path, folder / f"{path.stem}_{number}{path.suffix}", square=True)
    return folder


def write() -> None:
    print(f"\nwrite: frames per second on {CORES} cores, quality 90; ratios are vidprep's over the others'")
    print(f"{'case':20}{'scored':>8}{'frames/s':>10}{'/ ffmpeg .jpg':>15}{'/ GulpIO2':>11}")
    for name, sources, lines, count in (
        ("720p -> 240 lines", by_size(1280, 720), 240, 12),
        ("340x256 unscaled", by_size(340, 256), 0, 60),
    ):
        if not sources:
            print(f"{name:20}no clip of that size in {clips()}")
            continue
        with tempfile.TemporaryDirectory() as place:
            root = Path(place)
            raw = copies_of(sources, root / "raw", count)
            scale = ["--short-side", lines] if lines else []
            walls: dict[str, list[float]] = {"1": [], "8": [], "ffmpeg": []}
            for _ in range(ROUNDS):
                for every in ("1", "8"):
                    shutil.rmtree(root / "ours", ignore_errors=True)
                    walls[every].append(vidprep("burst", raw, root / "ours", "--verify-every", every, *scale).wall)
                store = open_store(root / "ours")
                frames, video = sum(len(store[id_]) for id_ in store.ids), store[store.ids[0]]
                shutil.rmtree(root / "jpg", ignore_errors=True)
                walls["ffmpeg"].append(_ffmpeg_jpegs(raw, root / "jpg", f"{video.width}:{video.height}").wall)
            written = len(list((root / "jpg").iterdir()))
            (root / "gulp").mkdir()
            (root / "ingest.py").write_text(GULP_INGEST)
            arguments = [raw, root / "gulp", lines, CORES]
            gulp = timed([sys.executable, str(root / "ingest.py"), *map(str, arguments)])
            ffmpeg = statistics.median(walls["ffmpeg"])
            for every in ("1", "8"):
                rate = frames / statistics.median(walls[every])
                print(
                    f"{name:20}{'all' if every == '1' else '1 in 8':>8}{rate:10.0f}{rate / (written / ffmpeg):15.2f}"
                    f"{rate / (frames / gulp.wall):11.2f}",
                    flush=True,
                )
                keep(f"{name}, burst, verify every {every}: speed, of ffmpeg .jpg", rate / (written / ffmpeg))


def _ffmpeg_jpegs(raw: Path, out: Path, size: str) -> Cost:
    out.mkdir()
    each = (
        f"{find_ffmpeg(None)} {' '.join(QUIET)} -threads 1 -filter_threads 1 -i {raw}/$1 -an -fps_mode vfr "
        f"-vf scale={size}:flags=bicubic,format=yuvj420p -c:v mjpeg -threads 1 -q:v 2 {out}/$1_%05d.jpg"
    )
    names = "\n".join(path.name for path in sorted(raw.iterdir(), key=lambda path: -path.stat().st_size))
    return timed(["xargs", "-P", str(CORES), "-I{}", "sh", "-c", each, "sh", "{}"], input=names.encode())


def sequences(lengths: dict[str, int]) -> list[tuple[str, list[int]]]:
    rng = random.Random(0)
    names = [name for name, length in lengths.items() if length >= SEQUENCE]
    chosen = []
    for _ in range(SEQUENCES):
        name = rng.choice(names)
        start = rng.randrange(lengths[name] - SEQUENCE + 1)
        chosen.append((name, list(range(start, start + SEQUENCE))))
    return chosen


def milliseconds(read: Callable[[str, list[int]], object], wanted: list[tuple[str, list[int]]]) -> tuple[float, float]:
    """(wall, CPU) a sequence, of the second of two passes: files are open, and in the page cache."""
    for _ in range(2):
        wall, cpu = time.perf_counter(), time.process_time()
        for name, numbers in wanted:
            read(name, numbers)
        spent = time.perf_counter() - wall, time.process_time() - cpu
    return spent[0] / len(wanted) * 1e3, spent[1] / len(wanted) * 1e3


def read() -> None:
    cv2.setNumThreads(1)
    sources = by_size(1280, 720)
    if not sources:
        print(f"\nread: no 1280x720 clip in {clips()}")
        return
    print(f"\nread: {SEQUENCES} random sequences of {SEQUENCE} frames, 720p at 240 lines, one thread, ms a sequence")
    print(f"{'what':36}{'wall':>8}{'CPU':>8}")

    def tell(what: str, reader: Callable[[str, list[int]], object], wanted: list[tuple[str, list[int]]]) -> None:
        wall, cpu = milliseconds(reader, wanted)
        print(f"{what:36}{wall:8.2f}{cpu:8.2f}", flush=True)

    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        raw = copies_of(sources, root / "raw", 1)
        vidprep("burst", raw, root / "burst", "--short-side", 240)
        subprocess.run(
            [
                sys.executable,
                "-m",
                "vidprep.transcode",
                "pack",
                str(root / "burst"),
                str(root / "gulp"),
                "--to",
                "gulp",
            ],
            check=True,
            capture_output=True,
        )
        store = open_store(root / "burst")
        wanted = sequences({id_: len(store[id_]) for id_ in store.ids})
        tell("burst", lambda id_, numbers: store[id_].frames(numbers), wanted)
        fast = open_store(root / "burst", fast=True)
        tell("burst, fast=True", lambda id_, numbers: fast[id_].frames(numbers), wanted)
        _other_jpeg_readers(root, wanted, tell)
        for gop in (5, 16):
            folder = root / f"gop{gop}"
            vidprep("transcode", raw, folder, "--short-side", 240, "--gop", gop)
            encoded = open_store(folder)
            wanted = sequences({id_: len(encoded[id_]) for id_ in encoded.ids})
            tell(f"encoded, GOP {gop}", lambda id_, numbers, encoded=encoded: encoded[id_].frames(numbers), wanted)  # type: ignore[misc]
            _other_video_readers(folder, gop, wanted, tell)


Tell = Callable[[str, Callable[[str, list[int]], object], list[tuple[str, list[int]]]], None]


def _other_jpeg_readers(root: Path, wanted: list[tuple[str, list[int]]], tell: Tell) -> None:
    index = FrameIndex(root / "burst", "burst")
    held = {}
    for name in {name for name, _ in wanted}:
        places = index.places(name)
        data = (root / "burst" / places.shard).read_bytes()
        held[name] = [data[at : at + size] for at, size in zip(places.offsets, places.sizes, strict=True)]
    tell(
        "bare simplejpeg, bytes in memory",
        lambda id_, numbers: np.stack([simplejpeg.decode_jpeg(held[id_][n]) for n in numbers]),
        wanted,
    )
    try:
        from gulpio2 import GulpDirectory
    except ImportError:
        print("GulpIO2                             not installed")
        return
    gulp = GulpDirectory(str(root / "gulp"))
    tell("GulpIO2 (always fast)", lambda id_, numbers: gulp[id_, slice(numbers[0], numbers[-1] + 1)], wanted)


def _other_video_readers(folder: Path, gop: int, wanted: list[tuple[str, list[int]]], tell: Tell) -> None:
    names = {name for name, _ in wanted}
    try:
        from torchcodec.decoders import VideoDecoder

        opened = {name: VideoDecoder(f"{folder}/{name}.mp4", num_ffmpeg_threads=1) for name in names}
        tell(f"torchcodec, GOP {gop}", lambda id_, numbers: opened[id_].get_frames_at(numbers), wanted)
    except (ImportError, RuntimeError) as error:
        print(f"torchcodec: {type(error).__name__}")
    try:
        from decord import VideoReader

        readers = {name: VideoReader(f"{folder}/{name}.mp4", num_threads=1) for name in names}
        tell(f"decord, GOP {gop}", lambda id_, numbers: readers[id_].get_batch(numbers).asnumpy(), wanted)
    except (ImportError, RuntimeError) as error:
        print(f"decord: {type(error).__name__}")


def formats() -> None:
    sources = by_size(1280, 720) + by_size(340, 256)
    print("\nformats: 240 lines, default quality; one random frame, files open and in the page cache, one thread")
    print(f"{'format':20}{'bytes/frame':>13}{'ms/frame':>10}")
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        raw = copies_of(sources, root / "raw", 1)
        kinds: list[tuple[str, list[object]]] = [("burst", ["burst"]), ("tensor", ["burst", "--format", "tensor"])]
        kinds += [
            (f"{codec}, GOP {gop}", ["transcode", "--codec", codec, "--gop", gop])
            for codec in ("h264", "hevc", "vp9", "av1")
            for gop in (1, 5, 16, 250)
        ]
        for name, (verb, *options) in kinds:
            folder = root / name.replace(", ", "-").replace(" ", "")
            vidprep(verb, raw, folder, "--short-side", 240, *options)
            store = open_store(folder)
            lengths = {id_: len(store[id_]) for id_ in store.ids}
            size = sum(
                p.stat().st_size
                for p in folder.iterdir()
                if p.is_file() and p.suffix in (".bin", ".raw", ".mp4", ".webm")
            )
            wanted = [(id_, [numbers[0]]) for id_, numbers in sequences(lengths)]
            wall, _ = milliseconds(lambda id_, numbers, store=store: store[id_].frames(numbers), wanted)  # type: ignore[misc]
            print(f"{name:20}{size / sum(lengths.values()):13.0f}{wall:10.2f}", flush=True)
        _folders_of_pictures(root)


def _folders_of_pictures(root: Path) -> None:
    store = open_store(root / "tensor")
    for suffix in ("jpg", "png"):
        folder = root / suffix
        folder.mkdir()
        for id_ in store.ids:
            for number, frame in enumerate(store[id_].frames()):
                options = [cv2.IMWRITE_JPEG_QUALITY, 90] if suffix == "jpg" else []
                cv2.imwrite(f"{folder}/{id_}_{number}.{suffix}", frame[..., ::-1], options)
        lengths = {id_: len(store[id_]) for id_ in store.ids}
        size = sum(path.stat().st_size for path in folder.iterdir()) / sum(lengths.values())
        wanted = [(id_, [numbers[0]]) for id_, numbers in sequences(lengths)]
        wall, _ = milliseconds(
            lambda id_, numbers, folder=folder, suffix=suffix: cv2.imread(f"{folder}/{id_}_{numbers[0]}.{suffix}")[
                ..., ::-1
            ],
            wanted,
        )  # type: ignore[misc]
        print(f"folder of .{suffix:11}{size:11.0f}{wall:10.2f}", flush=True)


def main() -> None:
    for name in sys.argv[1:] or ["write", "read", "formats"]:
        {"write": write, "read": read, "formats": formats}[name]()


if __name__ == "__main__":
    main()
