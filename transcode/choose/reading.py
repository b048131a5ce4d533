"""How long random frames and sequences of a finished store take to read."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from vidprep.formats import open_store
from vidprep.formats.manifest.table import manifest_rows
from vidprep.transcode.check.other_readers import LOADERS

READS = 40


def read_times(
    root: Path, ids: Sequence[str], length: int, stride: int, loader: str | None = None
) -> tuple[float | None, float | None]:
    """Median milliseconds of a random frame, and of a random sequence, of files that are open and in the page cache, by one
    thread. loader: one of LOADERS, for a store of encoded videos; None reads as `open_store` does.

    A video too short for a sequence is read from its start to its end.
    """
    if not ids:
        return None, None
    readers, rng = _readers(root, ids, loader), random.Random(0)
    for read, _ in readers.values():
        read([0])
    medians = []
    for span in (1, (length - 1) * stride + 1):
        taken = []
        for _ in range(READS):
            read, count = readers[rng.choice(ids)]
            start = rng.randrange(max(1, count - span + 1))
            numbers = list(range(start, min(start + span, count), stride))
            began = time.perf_counter()
            read(numbers)
            taken.append((time.perf_counter() - began) * 1e3)
        medians.append(statistics.median(taken))
    return medians[0], medians[1]


def _readers(
    root: Path, ids: Sequence[str], loader: str | None
) -> dict[str, tuple[Callable[[list[int]], object], int]]:
    """Of each video: what reads frames by their numbers, and how many there are."""
    if loader is None:
        store = open_store(root)
        return {id_: (store[id_].frames, len(store[id_])) for id_ in ids}
    files = {row.id: (root / row.file_name, row.num_frames or 0) for row in manifest_rows(root)}
    return {id_: (LOADERS[loader](files[id_][0]).several, files[id_][1]) for id_ in ids}
