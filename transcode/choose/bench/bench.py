"""`bench`: time every loader on every store, with several access patterns, with a warm and a cold page cache.

Loaders must return correct frames before they are timed; one that does not is reported with the frame and its PSNR, and
skipped. Each cell runs in new processes, one per worker, which start together.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from vidprep.formats.errors import MissingError, SettingsError, StoreError, VidprepError
from vidprep.formats.option import Option
from vidprep.transcode.choose.bench._agree import PictureRequest, agrees
from vidprep.transcode.choose.bench._measure import (
    BenchCell,
    CellMeasures,
    Ready,
    drop_from_cache,
    fill_cache,
    measure,
    run_together,
)
from vidprep.transcode.choose.bench.places import (
    ONLY_IN_ORDER,
    PACKAGES,
    PATTERNS,
    Access,
    Place,
    add_source_suffix,
    find_place,
    is_installed,
    readers_of,
    survey_videos,
)

COLD, WARM = "cold", "warm"
SURVEY_SECONDS, AGREE_SECONDS, ROUND_SECONDS = 1800.0, 1800.0, 1800.0
BenchRow = dict[str, Any]
Say = Callable[[str], object]


LOADER = Option("A library that reads videos.", choices=PACKAGES, other_names={name.lower(): name for name in PACKAGES})


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Options of `bench`.

    Attributes:
        loaders: Names; empty means all that are installed
        stride: Distance of frames in strided sequences
        caches: COLD, WARM
        seconds: Duration of a cell
        sample: Number of videos of each store
        seed: Seed of the random access
    """

    loaders: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ("consecutive", "single")
    frames: int = 8
    stride: int = 4
    workers: tuple[int, ...] = (1,)
    caches: tuple[str, ...] = (WARM,)
    seconds: float = 2.0
    sample: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.loaders:
            LOADER.check("loader", name)
        for name in self.loaders:
            if not is_installed(name):
                raise MissingError(f"--loader {name}: not installed: pip install 'vidprep[bench]'")
        if COLD in self.caches and not hasattr(os, "posix_fadvise"):
            raise SettingsError("<cache>: this system has no posix_fadvise to empty the page cache with", cache="cold")

    @property
    def accesses(self) -> tuple[Access, ...]:
        return tuple(Access(name, self.frames, self.stride) for name in PATTERNS if name in self.patterns)


@dataclass(frozen=True, slots=True)
class PlaceSurvey:
    """The stores to read.

    Attributes:
        notes: Lines about what was skipped or chosen
    """

    places: tuple[Place, ...]
    notes: tuple[str, ...]


def survey(paths: Sequence[Path | str], options: BenchOptions) -> PlaceSurvey:
    """Open the stores and choose videos, of the ids that all stores share if possible. Raw files come first.

    Raises:
        StoreError: A store cannot be read.
        SettingsError: No store was given, or one was given twice.
        MissingError: A package is not installed.
    """
    if not paths:
        raise SettingsError("give a store or a folder of videos, or several")
    if len({path if isinstance(path, str) else path.resolve() for path in paths}) < len(paths):
        raise SettingsError("a store was given twice")
    ordered, notes = sorted(map(find_place, paths), key=lambda place: place.kind != "raw"), list[str]()
    if not (shared := _common_ids(ordered)) and (
        shared := _common_ids(suffixed := list(map(add_source_suffix, ordered)))
    ):
        ordered = suffixed
    if not shared and len(ordered) > 1:
        notes.append("the stores share no id: each is measured on its own videos")
    pools = [[id_ for id_ in place.ids if not shared or id_ in shared] for place in ordered]
    places, unread = _sample_places(ordered, pools, options, notes)
    notes += [f"left out: {id_}: {why}" for id_, why in unread.items()]
    places = [_leave_out(place, unread) for place in places]
    notes += _note_lengths(places, options)
    return PlaceSurvey(tuple(places), tuple(notes))


def _sample_places(
    found: Sequence[Place], pools: Sequence[list[str]], options: BenchOptions, notes: list[str]
) -> tuple[list[Place], dict[str, str]]:
    """Open the same sample of videos in each place, and return why videos cannot be read, by id."""
    order = sorted(set().union(*pools))
    random.Random(options.seed).shuffle(order)
    places: list[Place] = []
    unread: dict[str, str] = {}
    for place, pool in zip(found, pools, strict=True):
        known = set(pool)
        chosen = set(islice((id_ for id_ in order if id_ in known), options.sample))
        opened, failed = _open(place, [id_ for id_ in pool if id_ in chosen])
        places.append(opened)
        unread |= failed
        ambiguous = {video.id: video.ambiguous for video in opened.videos if video.ambiguous}
        if len(ambiguous) < len(opened.videos):
            unread |= ambiguous
        elif ambiguous:
            notes.append(f"{place.path}: {min(ambiguous.values())}; all its videos are such, so loaders may be refused")
        if len(pool) > len(chosen):
            notes.append(f"{place.path}: {len(chosen)} of {len(pool)} videos, chosen at random")
    return places, unread


def _leave_out(place: Place, unread: Mapping[str, str]) -> Place:
    """Return a place without videos that cannot be read here or elsewhere. Raises StoreError if none is left."""
    kept = replace(place, videos=tuple(video for video in place.videos if video.id not in unread))
    if not kept.videos:
        why = "".join(f": {id_}: {reason}" for id_, reason in islice(unread.items(), 1))
        raise StoreError(f"no video can be read here and in the others{why}", path=place.path)
    return kept


def _note_lengths(places: Sequence[Place], options: BenchOptions) -> Iterator[str]:
    counts = [video.num_frames for place in places for video in place.videos]
    span = max((access.span for access in options.accesses if access.pattern != "whole"), default=0)
    if short := sum(count < span for count in counts):
        yield f"{short} of {len(counts)} videos have fewer than {span} frames: sequences end where they do"


def _common_ids(places: Sequence[Place]) -> set[str]:
    return set.intersection(*(set(place.ids) for place in places))


def _open(place: Place, ids: list[str]) -> tuple[Place, dict[str, str]]:
    try:
        [answer] = run_together(_survey, [(place, ids)], SURVEY_SECONDS)
    except VidprepError as error:
        raise StoreError(f"cannot be opened: {error.message}", path=place.path) from error
    return answer


def _survey(what: tuple[Place, list[str]], _ready: Ready) -> tuple[Place, dict[str, str]]:
    return survey_videos(*what)


def bench(places: Sequence[Place], options: BenchOptions, say: Say) -> Iterator[BenchRow]:
    """Yield a row for each cell as it is measured, and one for each rejected loader. `say` receives what comes next."""
    for place in places:
        files = sorted({file for video in place.videos for file in video.files})
        chosen = [name for name in place.loaders if not options.loaders or name in options.loaders]
        right = []
        for name in chosen:
            accesses = _possible(name, options)
            if not accesses:
                continue
            say(f"{place.path}: {name}: pixels")
            fault, lowest_db = _fault(place, name, accesses, options.seed)
            if fault is None:
                right.append((name, accesses, lowest_db))
            else:
                yield _describe_place(place, name) | {"refused": fault}
        for cache in (each for each in (WARM, COLD) if each in options.caches):
            (fill_cache if cache == WARM else drop_from_cache)(files)
            for name, accesses, lowest_db in right:
                for access in accesses:
                    for workers in options.workers:
                        say(f"{place.path}: {name}: {access}, {cache}, {workers} workers")
                        header = _describe_place(place, name) | {
                            "pattern": access.pattern,
                            "access": str(access),
                            "cache": cache,
                            "workers": workers,
                            "lowest_psnr_db": lowest_db,
                        }
                        yield header | _measure(place, name, access, cache, workers, options)


def _possible(name: str, options: BenchOptions) -> tuple[Access, ...]:
    return tuple(each for each in options.accesses if name not in ONLY_IN_ORDER or each.pattern == "whole")


def _fault(place: Place, name: str, accesses: tuple[Access, ...], seed: int) -> tuple[str | None, float | None]:
    """Return what is wrong with a loader's pictures, or None; and the lowest PSNR of the compared ones."""
    reference = next(each for each in readers_of(place.kind) if each in place.loaders)
    try:
        [answer] = run_together(agrees, [PictureRequest(place, name, reference, accesses, seed)], AGREE_SECONDS)
    except VidprepError as error:
        return error.message, None
    return answer.fault, answer.lowest_db


def _describe_place(place: Place, name: str) -> BenchRow:
    return {
        "store": str(place.path),
        "kind": place.kind,
        "holds": place.holds,
        "frame_size": place.frame_size,
        "videos": len(place.videos),
        "loader": name,
        "refused": None,
    }


def _measure(place: Place, name: str, access: Access, cache: str, workers: int, options: BenchOptions) -> BenchRow:
    cells = [
        BenchCell(place, name, access, cache == COLD, worker, workers, options.seconds, options.seed)
        for worker in range(workers)
    ]
    try:
        return summary(run_together(measure, cells, ROUND_SECONDS + 10 * options.seconds))
    except VidprepError as error:
        return {"refused": error.message}


def summary(measured: Sequence[CellMeasures]) -> BenchRow:
    """Return a row for a cell: rates and memory are summed over workers, times are of all sequences."""
    times = np.concatenate([each.sequence_seconds for each in measured]) * 1e3
    frames = sum(each.frames for each in measured)

    def per_frame(name: str) -> float | None:
        counts = [getattr(each, name) for each in measured]
        return None if None in counts else sum(counts) / frames

    p25, median, p75 = np.percentile(times, (25, 50, 75)).tolist()
    return {
        "sequences": len(times),
        "frames": frames,
        "seconds": statistics.mean(sum(each.sequence_seconds) for each in measured),
        "frames_per_second": sum(each.frames / sum(each.sequence_seconds) for each in measured),
        "ms_p25": p25,
        "ms_median": median,
        "ms_p75": p75,
        "cpu_seconds_per_1000_frames": sum(each.cpu_seconds for each in measured) / frames * 1000,
        "peak_memory_bytes": sum(each.peak_bytes for each in measured),
        "read_bytes_per_frame": per_frame("read_bytes"),
        "storage_bytes_per_frame": per_frame("storage_bytes"),
        "packets_per_frame": per_frame("packets"),
    }


def add_speed_ups(rows: Sequence[BenchRow]) -> None:
    """Set `speed_up` of each row: its frames per second relative to the same loader on raw files, with the same access,
    cache and workers.

    It is None without raw files, or if the loader was rejected there.
    """

    def key(row: BenchRow) -> tuple[Any, ...]:
        return row["loader"], row.get("access"), row.get("cache"), row.get("workers")

    raw: dict[tuple[Any, ...], float] = {}
    for row in rows:
        if row["kind"] == "raw" and not row["refused"]:
            raw.setdefault(key(row), row["frames_per_second"])
    for row in rows:
        before = raw.get(key(row)) if row["kind"] != "raw" and not row["refused"] else None
        row["speed_up"] = row["frames_per_second"] / before if before else None
