"""`make bench`: what a training loop gets from PrefetchLoader and from torch's DataLoader, two workers each. Never a test.

    python tests/bench/feeding.py [WORK]      WORK keeps the stores that are made of the clips (BENCH_SRC=folder names others)

Stores of action clips at 15 frames a second and 340x256: burst, and H.264 at GOP 16. Sequences of 8 frames that begin at every
frame, in random order. Epochs alternate; medians of BENCH_ROUNDS, the first epoch (which starts the workers) told apart.
Then a loop whose step is longer than decoding: what it waits, and how its speed compares with synthetic batches; and memory
over 50 epochs, and against its bound.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from bench import ENVIRONMENT, ROUNDS, clips
from loaders import ACTION, links
from torch.utils.data import DataLoader

from vidprep.formats import PrefetchLoader, VideoDataset
from vidprep.formats.storage.local import memory_bytes

FRAMES, BATCH, WORKERS = 8, 8, 2
MEBIBYTE = 1 << 20
SHAPE = ["--fps", "15", "--size", "340x256", "--fit", "crop", "--upscale", "--quiet"]


def vidprep(*args: object) -> None:
    subprocess.run([sys.executable, "-m", "vidprep.transcode", *map(str, args)], check=True, env=ENVIRONMENT)


def sequences_per_second(batches: Iterable[dict[str, Any]]) -> float:
    started, count = time.perf_counter(), 0
    for batch in batches:
        count += len(batch["id"])
    return count / (time.perf_counter() - started)


def compared(name: str, dataset: VideoDataset, cache_bytes: int) -> None:
    plain = DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
    ahead = PrefetchLoader(dataset, BATCH, shuffle=True, workers=WORKERS, cache_bytes=cache_bytes)
    threads = PrefetchLoader(dataset, BATCH, shuffle=True, workers=WORKERS, processes=False, cache_bytes=cache_bytes)
    loaders: dict[str, Any] = {"DataLoader": plain, "PrefetchLoader": ahead, "with threads": threads}
    speeds: dict[str, list[float]] = {each: [] for each in loaders}
    for _ in range(ROUNDS + 1):
        for each, loader in loaders.items():
            speeds[each].append(sequences_per_second(loader))
    ahead.close()
    threads.close()
    decoded = int(dataset.store.sizes().prod(1).sum()) * 3
    print(
        f"\n{name}: {len(dataset)} sequences, {decoded / MEBIBYTE:.0f} MiB when decoded, cache of {cache_bytes / MEBIBYTE:.0f} MiB"
    )
    for each, found in speeds.items():
        first, later = (
            found[0] / speeds["DataLoader"][0],
            statistics.median(found[1:]) / statistics.median(speeds["DataLoader"][1:]),
        )
        print(
            f"  {each:16}{statistics.median(found[1:]):8.0f} sequences/s {later:6.2f} of DataLoader's; first epoch {first:5.2f}"
        )


def simulated(dataset: VideoDataset, least_step: float) -> None:
    """A step twice as long as two workers take for a batch, or so long at least."""
    with PrefetchLoader(dataset, BATCH, shuffle=True, workers=WORKERS, cache_bytes=128 * MEBIBYTE) as loader:
        sequences_per_second(loader)
        step = max(least_step, 2 * BATCH / sequences_per_second(loader))
        waits, begun, started = list[float](), time.perf_counter(), time.perf_counter()
        for _ in range(5):
            for _ in loader:
                waits.append(time.perf_counter() - begun)
                time.sleep(step)
                begun = time.perf_counter()
        real = (time.perf_counter() - started) / len(waits)
    started = time.perf_counter()
    for _ in waits:  # a batch that is always there
        time.sleep(step)
    made = (time.perf_counter() - started) / len(waits)
    print(
        f"\nstep of {1000 * step:.0f} ms: waits {1000 * statistics.median(waits):.2f} ms a batch (95 %: "
        f"{1000 * sorted(waits)[int(0.95 * len(waits))]:.2f}), real : synthetic {made / real:.3f}"
    )


def memory(dataset: VideoDataset, cache_bytes: int) -> None:
    alone, seen = memory_bytes(), {}
    with PrefetchLoader(
        dataset, BATCH, shuffle=True, workers=WORKERS, processes=False, cache_bytes=cache_bytes
    ) as loader:
        for epoch in range(51):
            for _ in loader:
                pass
            seen[epoch] = memory_bytes()
    grown = (seen[50] - seen[3]) / 1e6
    print(
        f"memory: {grown:+.2f} MB between epochs 3 and 50; {(max(seen.values()) - alone) / cache_bytes:.3f} of its bound of {cache_bytes:,}"
    )


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="vidprep-bench") as folder:
        work = Path(sys.argv[1] if len(sys.argv) > 1 else folder)
        names = ACTION if "BENCH_SRC" not in os.environ else [path.name for path in clips().iterdir() if path.is_file()]
        raw = links(work / "raw", names)
        vidprep("burst", raw, work / "feeding-burst", *SHAPE)
        vidprep("transcode", raw, work / "feeding-h264", "--gop", 16, *SHAPE)
        stores = {"burst": work / "feeding-burst", "H.264, GOP 16": work / "feeding-h264"}
        for name, path in stores.items():
            dataset = VideoDataset(path, FRAMES)
            decoded = int(dataset.store.sizes().prod(1).sum()) * 3
            for part in (2, 0.5, 0.25):  # the cache holds all, half, or a quarter of what there is
                compared(name, dataset, max(int(part * decoded), 64 * MEBIBYTE))
        for least_step in (0.0, 0.05):
            simulated(VideoDataset(stores["burst"], FRAMES, step=4), least_step)
        memory(VideoDataset(stores["burst"], FRAMES, step=16), 96 * MEBIBYTE)


if __name__ == "__main__":
    main()
