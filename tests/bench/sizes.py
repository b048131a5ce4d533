"""`make bench`: sequences of 8 frames at the size that a network wants, each from a video opened anew. Never a test.

    python tests/bench/sizes.py [WORK]      WORK keeps the stores that are made of the clips (BENCH_SRC=folder names others)

Clips at 240 lines, H.264 at GOP 5 and burst; 8 frames in a row from random places, 112x112, one thread. Beside ours: decoding and
colours alone, of bytes in memory; torchcodec with torch's antialiased interpolate, torchcodec's own resize, and simplejpeg alone on the
same bytes. Medians of BENCH_ROUNDS of the
time of all sequences, of which each tool gets the same, in turn. Then whole frames, what float32 with mean and deviation adds to
uint8, and what two workers of a PrefetchLoader give against reading without them.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import simplejpeg
import torch
from bench import ROUNDS, clips
from feeding import BATCH, WORKERS, sequences_per_second, vidprep
from history import keep
from torchcodec.decoders import VideoDecoder
from torchcodec.transforms import Resize

from vidprep.formats import PrefetchLoader, VideoDataset, open_store
from vidprep.formats.stores.base import FrameStore
from vidprep.formats.stores.encoded import RgbRows, VideoStore
from vidprep.formats.video.gop_frames import GopDecoders
from vidprep.formats.video.packets import spans_of

FRAMES, SIDE, SEQUENCES, CACHE = 8, 112, 120, 64 << 20
NORMALIZED = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
Sequence = tuple[str, int]
Tool = Callable[[Sequence], object]


def chosen(store: FrameStore) -> list[Sequence]:
    """From other videos one after another: whatever a reader keeps open is of no use."""
    rng = np.random.default_rng(0)
    long = [id_ for id_ in store.ids if len(store[id_]) > FRAMES]
    return [
        (long[number % len(long)], int(rng.integers(len(store[long[number % len(long)]]) - FRAMES)))
        for number in range(SEQUENCES)
    ]


def of_video(folder: Path, size: tuple[int, int] | None) -> dict[str, Tool]:
    def ours(which: Sequence) -> object:
        id_, first = which
        return stores[id_][id_].frames(range(first, first + FRAMES), size=size)

    def whole(which: Sequence) -> object:
        id_, first = which
        decoder = VideoDecoder(str(folder / f"{id_}.mp4"), num_ffmpeg_threads=1, seek_mode="approximate")
        return decoder.get_frames_in_range(first, first + FRAMES).data

    def alone(which: Sequence) -> object:
        id_, first = which
        entry, (height, width) = store.entry(id_), size or (store[id_].height, store[id_].width)
        assert entry.packets is not None and entry.config is not None
        made = np.empty((FRAMES, height, width, 3), np.uint8)
        writer = RgbRows(folder, id_, entry.facts)
        for span, numbers in spans_of(entry.packets, range(first, first + FRAMES)):
            data = held[id_][span.offset : span.offset + span.size]
            for number, frame in list(decoders.frames(entry.config, entry.packets, span, data, numbers)):
                writer.write(frame, made[number - first], number)
        return made

    def torchcodec(which: Sequence) -> object:
        return torch.nn.functional.interpolate(whole(which), (SIDE, SIDE), mode="bilinear", antialias=True)

    def resizing(which: Sequence) -> object:
        id_, first = which
        path = str(folder / f"{id_}.mp4")
        decoder = VideoDecoder(path, num_ffmpeg_threads=1, seek_mode="approximate", transforms=[Resize((SIDE, SIDE))])
        return decoder.get_frames_in_range(first, first + FRAMES).data

    store = open_store(folder)
    assert isinstance(store, VideoStore)
    stores, decoders = _Anew(store), GopDecoders()
    held = {id_: memoryview(store.file(id_).read_bytes()) for id_ in store.ids}
    if size is None:
        coarse = _Anew(open_store(folder, fast=True))
        return {
            "vidprep": ours,
            "decoding and colours alone": alone,
            "vidprep, fast=True": lambda which: coarse[which[0]][which[0]].frames(range(which[1], which[1] + FRAMES)),
            "torchcodec": whole,
        }
    return {
        "vidprep": ours,
        "decoding and sizes alone": alone,
        "torchcodec + interpolate": torchcodec,
        "torchcodec Resize": resizing,
    }


class _Anew:
    """A store that has no video open."""

    def __init__(self, store: FrameStore) -> None:
        self._store = store

    def __getitem__(self, id_: str) -> FrameStore:
        assert isinstance(self._store, VideoStore)
        self._store._files.drop(self._store.entry(id_).file_name)
        return self._store


def of_jpegs(folder: Path) -> dict[str, Tool]:
    store, halved = open_store(folder), open_store(folder, short_side=SIDE)
    coded = {id_: store.stored_jpegs(id_) or [] for id_ in store.ids}

    def decoding(which: Sequence) -> object:
        id_, first = which
        return [simplejpeg.decode_jpeg(data) for data in coded[id_][first : first + FRAMES]]

    def of(made: FrameStore, size: tuple[int, int] | None = (SIDE, SIDE)) -> Tool:
        return lambda which: made[which[0]].frames(range(which[1], which[1] + FRAMES), size=size)

    return {
        "vidprep": of(store),
        "vidprep, whole": of(store, None),
        "vidprep, short_side": of(halved),
        "JPEG decoding alone": decoding,
    }


def of_types(folder: Path) -> dict[str, Tool]:
    def of(**options: object) -> Tool:
        dataset = VideoDataset(folder, FRAMES, size=(SIDE, SIDE), **options)  # type: ignore[arg-type]
        return lambda which: dataset[hash(which) % len(dataset)]

    return {
        "float32 normalised": of(dtype="float32", normalize=NORMALIZED),
        "uint8": of(),
        "float16 normalised": of(dtype="float16", normalize=NORMALIZED),
    }


def loaded(name: str, folder: Path) -> None:
    """Two workers of a loader, which keep one frame in thirty, against two of what reads the same items in their order."""
    dataset = VideoDataset(folder, FRAMES, step=FRAMES, size=(SIDE, SIDE))
    order = np.random.default_rng(0).permutation(len(dataset)).tolist()
    speeds: dict[str, list[float]] = {"direct": [], "loader": []}
    with PrefetchLoader(dataset, BATCH, sampler=order, workers=WORKERS, cache_bytes=CACHE) as loader:
        for _ in range(ROUNDS + 1):
            started = time.perf_counter()
            for index in order:
                dataset[index]
            speeds["direct"].append(len(order) / (time.perf_counter() - started))
            speeds["loader"].append(sequences_per_second(loader))
    direct, ahead = (statistics.median(found[1:]) for found in speeds.values())
    print(
        f"\n{name}: PrefetchLoader with {WORKERS} workers gives {ahead / WORKERS / direct:.2f} of as many direct reads"
    )
    keep(f"{name}: PrefetchLoader, of {WORKERS} direct reads", ahead / WORKERS / direct)


def compared(name: str, tools: dict[str, Tool], sequences: list[Sequence]) -> None:
    times: dict[str, list[float]] = {tool: [] for tool in tools}
    for _ in range(ROUNDS + 1):
        for tool, read in tools.items():
            started = time.perf_counter()
            for which in sequences:
                read(which)
            times[tool].append((time.perf_counter() - started) / len(sequences) * 1000)
    medians = {tool: statistics.median(seconds[1:]) for tool, seconds in times.items()}
    first = next(iter(medians.values()))
    print(f"\n{name}")
    for tool in list(medians)[1:]:
        keep(f"{name}: {next(iter(medians))}, of {tool}", first / medians[tool])
    for tool, milliseconds in medians.items():
        print(f"    {tool:28} {milliseconds:6.2f} ms; {next(iter(medians))} takes {first / milliseconds:.2f} of it")


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        for name, args in (("h264", ["transcode", "--gop", 5]), ("burst", ["burst"])):
            verb, *options = args
            vidprep(verb, clips(), work / name, "--exclude", "bad/*", "--short-side", 240, "--quiet", *options)
        video, jpegs = open_store(work / "h264"), open_store(work / "burst")
        print(f"8 frames of {SIDE}x{SIDE} from {len(video.ids)} clips of 240 lines, ms a sequence")
        compared("h264, GOP 5, opened anew, resized", of_video(work / "h264", (SIDE, SIDE)), chosen(video))
        compared("h264, GOP 5, opened anew, whole", of_video(work / "h264", None), chosen(video))
        compared("burst, resized", of_jpegs(work / "burst"), chosen(jpegs))
        compared("h264, types", of_types(work / "h264"), chosen(video))
        for name in ("burst", "h264"):
            loaded(name, work / name)


if __name__ == "__main__":
    main()
