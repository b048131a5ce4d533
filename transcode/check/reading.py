"""A finished destination as a training run reads it: `open_store`, a video by its id, its frames by their numbers."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.table import ManifestRow
from vidprep.formats.stores.base import FrameStore
from vidprep.formats.stores.registry import ENCODED, open_store

ALL_OF, SEQUENCES, SEQUENCE_FRAMES = 64, 4, 8
MAX_FRAMES_IN_MEMORY = 64 << 20  # bytes


def opened_ids(destination: Path, kind: str) -> tuple[pa.Array | None, str]:
    """The ids of the videos that `open_store` finds; None where it opens nothing of the kind, and why.

    Args:
        destination: A finished one.
        kind: Of the store that the settings speak of.
    """
    try:
        store = open_store(destination)
        found = pa.array(store.ids, pa.string())
    except (StoreError, OSError) as error:
        return None, f"open_store does not open it: {error}"
    if store.kind != kind:
        due = "encoded videos" if kind == ENCODED else f"a {kind} store"
        return None, f"{destination}: was made as {due}, open_store opens it as {store.kind}: another store hides it"
    return found, ""


def differing_ids(known: pa.ChunkedArray, found: pa.Array) -> tuple[list[str], list[str]]:
    """Those of the manifest that were not found, and those that were found and are not in it."""
    lost = known.filter(pc.invert(pc.is_in(known, found))).to_pylist()
    strange = found.filter(pc.invert(pc.is_in(found, known.combine_chunks()))).to_pylist()
    return sorted(lost), sorted(strange)


def sample_of(row: ManifestRow) -> list[int]:
    """Numbers of the frames that are read: all of a short video; else the first, the last, the two that are closest in time,
    and sequences that begin anywhere. The same for the same video.
    """
    count = row.num_frames or 0
    if count <= ALL_OF:
        return list(range(count))
    chosen = {0, count - 1}
    if row.pts and len(row.pts) == count:
        _, closest = min((later - one, number) for number, (one, later) in enumerate(pairwise(row.pts)))
        chosen |= {closest, closest + 1}
    rng = random.Random(row.id)
    for _ in range(SEQUENCES):
        first = rng.randrange(count - SEQUENCE_FRAMES)
        chosen.update(range(first, first + SEQUENCE_FRAMES))
    return sorted(chosen)


def faults_of_reading(destination: Path, row: ManifestRow, expected: Mapping[int, int]) -> Iterator[str]:
    """expected: CRC-32 of the RGB of frames, by their numbers, decoded by other means. Raises StoreError."""
    store = _opened(destination, _state(destination))
    video = store[row.id]
    if (len(video), video.width, video.height) != (row.num_frames, row.width, row.height):
        yield (
            f"open_store says {len(video)} frames of {video.width}x{video.height}, the manifest {row.num_frames} of "
            f"{row.width}x{row.height}"
        )
        return
    labels = store.labels(row.id)
    for name, value in row.labels.items():
        found = labels.get(name)
        if value is not None and found != value and str(found) != str(value):
            yield f"open_store says {found!r} for the label {name}, the manifest {value!r}"
    at_once = max(1, MAX_FRAMES_IN_MEMORY // (3 * video.width * video.height))
    numbers = list(expected)
    random.Random(row.id).shuffle(numbers)
    for begin in range(0, len(numbers), at_once):
        asked = numbers[begin : begin + at_once]
        for number, picture in zip(asked, video.frames(asked), strict=True):
            if zlib.crc32(picture) != expected[number]:
                yield f"open_store returns another picture for frame {number} than is stored"
                return


def _state(destination: Path) -> tuple[Any, ...]:
    """What changes when the files that a store is opened by do."""
    names = ("*.parquet", "*.json", "*.gmeta", "*.tar")
    stats = [(path.name, path.stat()) for name in names for path in sorted(destination.glob(name))]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


@lru_cache(maxsize=1)
def _opened(destination: Path, _state: tuple[Any, ...]) -> FrameStore:
    return open_store(destination)
