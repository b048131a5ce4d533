"""Simulate a training loop whose network is a pause, measure the cost of loading per batch, and search workers and batch
size.

A synthetic loop returns one batch repeatedly with the same pause. The additional time of a real iteration is waiting
for data: the overhead in figure 3 of NVVL. The ratio of both rates is what a faster loader could gain.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import statistics
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import av
import numpy as np

from vidprep.formats.errors import VidprepError
from vidprep.formats.storage.local import cpu_seconds, memory_bytes
from vidprep.formats.training.dataset import VideoDataset
from vidprep.formats.training.loader import GIBIBYTE, PrefetchLoader
from vidprep.transcode.choose.bench._measure import Ready, run_together
from vidprep.transcode.choose.bench.bench import BenchOptions, BenchRow, Say, bench
from vidprep.transcode.choose.bench.places import Place
from vidprep.transcode.workers.local import default_jobs

TORCH = "torch DataLoader"
SIMULATED = ("PrefetchLoader", TORCH)
STRAGGLER = 3.0
SYNTHETIC_BATCHES = 30
MIN_BATCHES = 10
MEMORY_EVERY_SECONDS = 0.1
TRAIN_SECONDS = 600.0
BATCH_SIZES = (4, 8, 16)
MIN_CACHED_BATCHES = 8
ENDLESS = 1 << 40
GOOD_ENOUGH = 0.95


@dataclass(frozen=True, slots=True)
class Training:
    """A simulated training run.

    Attributes:
        step_seconds: Pause that stands for the network; 0 measures the loader alone
    """

    place: Place
    loader: str
    frames: int
    batch_size: int
    workers: int
    step_seconds: float
    seconds: float
    seed: int


@dataclass(frozen=True, slots=True)
class TrainingTimes:
    """Measurements of a simulated training run.

    Attributes:
        iteration_seconds: Time from one batch to the next including the pause, for every batch after the first
        synthetic_seconds: Median of the same without loading
        first_batch_seconds: Time until the first batch
        peak_bytes: Memory of the process and its descendants
        frame_size: WxH of the batches
    """

    iteration_seconds: list[float]
    synthetic_seconds: float
    first_batch_seconds: float
    cpu_seconds: float
    peak_bytes: int
    frame_size: str

    @property
    def overhead_seconds(self) -> float:
        """Mean additional time of an iteration compared with synthetic data."""
        return max(0.0, statistics.mean(self.iteration_seconds) - self.synthetic_seconds)

    @property
    def of_synthetic(self) -> float:
        """Throughput relative to that with synthetic data."""
        return self.synthetic_seconds / (self.synthetic_seconds + self.overhead_seconds)

    @property
    def batches_per_second(self) -> float:
        return 1 / statistics.mean(self.iteration_seconds)

    @property
    def stragglers(self) -> list[int]:
        """Indexes of the iterations that took more than STRAGGLER times the median."""
        limit = STRAGGLER * statistics.median(self.iteration_seconds)
        return [number for number, taken in enumerate(self.iteration_seconds) if taken > limit]


def list_simulated() -> list[str]:
    """Return the loaders of SIMULATED that can be imported here."""
    return [name for name in SIMULATED if name != TORCH or importlib.util.find_spec("torch") is not None]


def train(training: Training, _ready: Ready) -> TrainingTimes:
    """Run a simulated training. Raises SettingsError if the store has no sequence of that length, and StoreError."""
    dataset = _dataset(training)
    peak, over = [0], threading.Event()
    watch = threading.Thread(target=_watch_memory, args=(peak, over))
    watch.start()
    try:
        cpu, began = cpu_seconds(), time.perf_counter()
        batches = _epochs(dataset, training)
        batch = next(batches)
        first = time.perf_counter() - began
        taken: list[float] = []
        started = before = time.perf_counter()
        while before - started < training.seconds or len(taken) < MIN_BATCHES:
            time.sleep(training.step_seconds)
            next(batches)
            now = time.perf_counter()
            taken.append(now - before)
            before = now
        batches.close()
        cpu = cpu_seconds() - cpu
    finally:
        over.set()
        watch.join()
    synthetic = statistics.median(_pause(training.step_seconds) for _ in range(SYNTHETIC_BATCHES))
    height, width = batch.shape[2:4]
    return TrainingTimes(taken, synthetic, first, cpu, peak[0], f"{width}x{height}")


def _dataset(training: Training) -> VideoDataset:
    """Return a dataset of non-overlapping sequences of all videos (for raw files, of the surveyed ones), cropped to the
    smallest size.
    """
    place, frames = training.place, training.frames
    assert place.store is not None
    source = [video.files[0] for video in place.videos] if place.kind == "raw" else place.store
    dataset = VideoDataset(source, frames, step=frames)
    sizes = dataset.store.sizes()[:, 1:]
    height, width = sizes.min(axis=0).tolist()
    if (sizes == (height, width)).all():
        return dataset
    return VideoDataset(dataset.store, frames, step=frames, crop=(height, width))


def _cache_bytes(dataset: VideoDataset, batch_size: int) -> int:
    """Return the cache size in bytes: a tenth of all frames, at most the default and at least MIN_CACHED_BATCHES batches.
    A small sample must not fit into memory decoded, since a real dataset would not.
    """
    height, width = dataset.frame_size
    batch = batch_size * dataset.clips.num_frames * height * width * 3
    decoded = int(dataset.store.sizes().prod(axis=1).sum()) * 3
    return max(MIN_CACHED_BATCHES * batch, min(GIBIBYTE, decoded // 10))


def _epochs(dataset: VideoDataset, training: Training) -> Generator[Any]:
    """Yield endless shuffled batches (B, T, H, W, 3)."""
    size, workers = training.batch_size, training.workers
    if training.loader == TORCH:
        import torch
        from torch.utils.data import DataLoader, RandomSampler

        # One endless epoch: epochs of a small sample would end before the workers are warm.
        order = RandomSampler(
            dataset, replacement=True, num_samples=ENDLESS, generator=torch.Generator().manual_seed(training.seed)
        )
        yield from DataLoader(
            dataset, size, sampler=order, num_workers=workers, collate_fn=_stack, multiprocessing_context="forkserver"
        )
    cache = _cache_bytes(dataset, size)
    with PrefetchLoader(dataset, size, shuffle=True, seed=training.seed, workers=workers, cache_bytes=cache) as ours:
        while True:
            for batch in ours:
                yield batch["frames"]


def _stack(items: list[dict[str, Any]]) -> Any:
    """Stack frames as torch's default collation does."""
    import torch

    return torch.from_numpy(np.stack([item["frames"] for item in items]))


def _pause(seconds: float) -> float:
    """Return the duration of an iteration whose batch is ready."""
    began = time.perf_counter()
    time.sleep(seconds)
    return time.perf_counter() - began


def _watch_memory(peak: list[int], over: threading.Event) -> None:
    while not over.wait(MEMORY_EVERY_SECONDS):
        peak[0] = max(peak[0], memory_bytes())


def simulations(
    places: Sequence[Place], options: BenchOptions, step_seconds: float, batch_size: int, say: Say
) -> Iterator[BenchRow]:
    """Yield a row for each store with videos, each loader and each number of workers. `failed` says why a row has no
    figures.
    """
    for place in (each for each in places if each.store is not None):
        for name in list_simulated():
            for workers in options.workers:
                say(f"{place.path}: {name}, {workers} workers: training")
                training = Training(
                    place, name, options.frames, batch_size, workers, step_seconds, options.seconds, options.seed
                )
                header = {
                    "store": str(place.path),
                    "holds": place.holds,
                    "loader": name,
                    "workers": workers,
                    "batch_size": batch_size,
                    "step_ms": step_seconds * 1e3,
                    "failed": None,
                }
                yield header | _train(training)


def _train(training: Training) -> BenchRow:
    try:
        [trained] = run_together(train, [training], TRAIN_SECONDS + training.seconds)
    except VidprepError as error:
        return {"failed": error.message}
    sequences = len(trained.iteration_seconds) * training.batch_size
    return {
        "frame_size": trained.frame_size,
        "batches": len(trained.iteration_seconds),
        "first_batch_ms": trained.first_batch_seconds * 1e3,
        "overhead_ms": trained.overhead_seconds * 1e3,
        "of_synthetic": trained.of_synthetic,
        "sequences_per_second": trained.batches_per_second * training.batch_size,
        "cpu_seconds_per_1000_frames": trained.cpu_seconds / sequences / training.frames * 1000,
        "peak_memory_bytes": trained.peak_bytes,
        "iteration_ms": [each * 1e3 for each in trained.iteration_seconds],
        "stragglers": trained.stragglers,
    }


def advice(places: Sequence[Place], options: BenchOptions, say: Say) -> Iterator[BenchRow]:
    """Yield rows with PrefetchLoader's rates for several workers and batch sizes, for each store; the best is marked
    `advise`.
    """
    cores = default_jobs()
    counts = [1 << power for power in range(cores.bit_length()) if 1 << power <= cores]
    for place in (each for each in places if each.store is not None):
        tried, failed = [], None
        for workers, size in product(counts, BATCH_SIZES):
            say(f"{place.path}: {workers} workers, batches of {size}")
            training = Training(place, SIMULATED[0], options.frames, size, workers, 0.0, options.seconds, options.seed)
            result = _train(training)
            failed = result.get("failed")
            if failed is not None:
                break
            tried.append(TrainingPoint(workers, size, result["sequences_per_second"]))
        header = {"store": str(place.path), "holds": place.holds, "failed": failed}
        yield header | ({} if failed else {"advised": asdict(advise(tried)), "tried": [asdict(each) for each in tried]})


@dataclass(frozen=True, slots=True)
class TrainingPoint:
    """One point of the search: sequences per second of the loader alone."""

    workers: int
    batch_size: int
    sequences_per_second: float


def advise(tried: Sequence[TrainingPoint]) -> TrainingPoint:
    """Return the fewest workers, and then the smallest batch size, with GOOD_ENOUGH of the best rate."""
    best = max(each.sequences_per_second for each in tried)
    enough = (each for each in tried if each.sequences_per_second >= GOOD_ENOUGH * best)
    return min(enough, key=lambda each: (each.workers, each.batch_size))


def results(
    places: Sequence[Place], options: BenchOptions, step_ms: float | None, batch_size: int, advise: bool, say: Say
) -> Iterator[tuple[str, BenchRow]]:
    """Yield rows as they are measured, each with its kind: cell, training, advice."""
    for row in bench(places, options, say):
        yield "cell", row
    if step_ms is not None:
        for row in simulations(places, options, step_ms / 1e3, batch_size, say):
            yield "training", row
    if advise:
        for row in advice(places, options, say):
            yield "advice", row


def machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, PyAV {av.__version__}"
