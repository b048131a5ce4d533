"""Which store should I take? Bytes beside the time of a clip, of this machine, as a table of Markdown. Never a test.

    python tests/bench/which.py        BENCH_SRC=folder names the clips; it needs 1280x720 or 340x256 ones

Clips of random videos and places: 8 frames in a row at 112x112, and 16 frames, every fourth, at 224x224. CPU milliseconds of one thread, files
open and in the page cache, median of the rounds, in which all stores take turns. torchcodec reads the same files and scales in its decoder.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import av  # noqa: F401 (before torchcodec: each brings libraries of FFmpeg)
import torch
from bench import ROUNDS, by_size, clips
from stores import copies_of, vidprep
from torchcodec.decoders import VideoDecoder
from torchcodec.transforms import Resize

from vidprep.formats import FrameStore, open_store

CLIPS = {"8 frames, 112x112": (8, 1, (112, 112)), "16 x 4 frames, 224x224": (16, 4, (224, 224))}
COUNT = 150
STORES: dict[str, list[object]] = {
    "H.264, 240 lines, GOP 5": ["transcode", "--short-side", 240, "--gop", 5],
    "H.264, 240 lines, GOP 16": ["transcode", "--short-side", 240, "--gop", 16],
    "H.264, 128 lines, GOP 5": ["transcode", "--short-side", 128, "--gop", 5],
    "JPEGs (burst), 240 lines": ["burst", "--short-side", 240],
    "JPEGs (burst), 128 lines": ["burst", "--short-side", 128],
}
Wanted = list[tuple[str, list[int]]]
Reader = Callable[[str, list[int]], object]


def chosen(store: FrameStore, length: int, stride: int) -> Wanted:
    rng, span = random.Random(0), (length - 1) * stride + 1
    ids = [id_ for id_ in store.ids if len(store[id_]) >= span]
    made = []
    for _ in range(COUNT):
        id_ = rng.choice(ids)
        begin = rng.randrange(len(store[id_]) - span + 1)
        made.append((id_, list(range(begin, begin + span, stride))))
    return made


def cpu_milliseconds(read: Reader, wanted: Wanted) -> float:
    begin = time.process_time()
    for id_, numbers in wanted:
        read(id_, numbers)
    return (time.process_time() - begin) / len(wanted) * 1e3


def readers(folder: Path, size: tuple[int, int]) -> dict[str, Reader]:
    store = open_store(folder)
    found: dict[str, Reader] = {"vidprep": lambda id_, numbers: store[id_].frames(numbers, size=size)}
    if (folder / "burst.json").exists():
        return found
    opened = {
        id_: VideoDecoder(str(folder / f"{id_}.mp4"), num_ffmpeg_threads=1, transforms=[Resize(size)])
        for id_ in store.ids
    }
    return found | {"torchcodec": lambda id_, numbers: opened[id_].get_frames_at(numbers)}


def bytes_of_frame(folder: Path) -> float:
    store = open_store(folder)
    size = sum(path.stat().st_size for path in folder.iterdir() if path.suffix in (".bin", ".mp4"))
    return size / sum(len(store[id_]) for id_ in store.ids)


def main() -> None:
    sources = by_size(1280, 720) + by_size(340, 256)
    if not sources:
        sys.exit(f"no such clip in {clips()}")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        raw = copies_of(sources, root / "raw", 1)
        for number, (verb, *options) in enumerate(STORES.values()):
            vidprep(verb, raw, root / str(number), "--fps", 15, *options)
        times: dict[tuple[int, str, str], list[float]] = {}
        for name, (length, stride, size) in CLIPS.items():
            at_work = {number: readers(root / str(number), size) for number in range(len(STORES))}
            for _ in range(ROUNDS + 1):  # the first opens the files
                for number, found in at_work.items():
                    wanted = chosen(open_store(root / str(number)), length, stride)
                    for tool, read in found.items():
                        times.setdefault((number, name, tool), []).append(cpu_milliseconds(read, wanted))
        medians = {key: statistics.median(found[1:]) for key, found in times.items()}
        heads = [f"{name}: {tool}" for name in CLIPS for tool in ("vidprep", "torchcodec")]
        print("| store | kB per frame | " + " | ".join(heads) + " |\n| --- |" + " ---: |" * (1 + len(heads)))
        for number, store in enumerate(STORES):
            cells = [medians.get((number, name, tool)) for name in CLIPS for tool in ("vidprep", "torchcodec")]
            shown = " | ".join("" if cell is None else f"{cell:.1f} ms" for cell in cells)
            print(f"| {store} | {bytes_of_frame(root / str(number)) / 1e3:.1f} | {shown} |")


if __name__ == "__main__":
    main()
