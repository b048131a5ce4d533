"""One process that reads, and what it took: the inside of a cell of `vidprep bench`."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vidprep.formats.storage.local import cpu_seconds
from vidprep.formats.storage.untrusted import open_descriptor, open_regular
from vidprep.transcode.choose.bench.patterns import Access, Request, packets_needed, rounds
from vidprep.transcode.choose.bench.places import Place
from vidprep.transcode.choose.bench.process import Ready
from vidprep.transcode.choose.bench.readers import Reader, reader_of

MIN_SEQUENCES = 5
WARM_UP_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class BenchCell:
    """What one of `workers` processes has to do: read for so many seconds, and MIN_SEQUENCES at least. worker: from 0.

    It ends with a whole round, so that each video counts as often, whoever reads.
    """

    place: Place
    loader: str
    access: Access
    is_cold: bool
    worker: int
    workers: int
    seconds: float
    seed: int


@dataclass(frozen=True, slots=True)
class CellMeasures:
    """sequence_seconds: of each, in order; emptying the page cache is in none of the figures. packets: that a decoder needs.

    peak_bytes: resident memory of the process, and the most that a program which it ran can have had. read_bytes: asked of the
    system, storage_bytes: that came from storage and not from the page cache; None where that does not show.
    """

    sequence_seconds: list[float]
    frames: int
    packets: int
    cpu_seconds: float
    peak_bytes: int
    read_bytes: int | None
    storage_bytes: int | None


def measure(cell: BenchCell, ready: Ready) -> CellMeasures:
    """Raises what the loader raises."""
    reader = reader_of(cell.place, cell.loader)
    asked = rounds(cell.place.videos, cell.access, cell.seed, cell.worker, cell.workers)
    _warm_up(reader, next(asked), cell)
    ready()
    taken: list[float] = []
    frames = packets = 0
    spent = aside = 0.0
    cpu, io = cpu_seconds(), _io()
    while spent < cell.seconds or len(taken) < MIN_SEQUENCES:
        for request in next(asked):
            if cell.is_cold:
                aside += _empty(request)
            began = time.perf_counter()
            frames += _read(reader, request, cell.access)
            taken.append(time.perf_counter() - began)
            spent += taken[-1]
            packets += packets_needed(*request)
    cpu, now = cpu_seconds() - cpu - aside, _io()
    read, storage = (now[name] - io[name] if now and io else None for name in ("rchar", "read_bytes"))
    return CellMeasures(taken, frames, packets, cpu, _peak_bytes(), read if reader.tells_bytes else None, storage)


def _warm_up(reader: Reader, asked: Sequence[Request], cell: BenchCell) -> None:
    """Imports, first decoders, and videos opened. Of whole videos only the last: a stream is then at its beginning."""
    began = time.perf_counter()
    for request in asked[-1:] if cell.access.pattern == "whole" else asked:
        _read(reader, request, cell.access)
        if time.perf_counter() - began > cell.seconds * WARM_UP_SHARE:
            return


def _read(reader: Reader, request: Request, access: Access) -> int:
    video, numbers = request
    if access.pattern == "whole":
        return sum(1 for _ in reader.whole(video.id))
    return len(reader.read(video.id, numbers))


def _empty(request: Request) -> float:
    """Drop from the page cache what is about to be read. Returns the CPU seconds that it took."""
    began = cpu_seconds()
    video, numbers = request
    a_file_each = len(video.files) == video.num_frames > 1
    drop_from_cache([video.files[number] for number in numbers] if a_file_each else video.files)
    return cpu_seconds() - began


def drop_from_cache(files: Iterable[str]) -> None:
    """By posix_fadvise; what is not on disk yet goes there first, for the system keeps it otherwise."""
    for file in files:
        number = open_descriptor(file)
        try:
            os.fsync(number)
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(number)


def fill_cache(files: Iterable[str]) -> None:
    """Read them once."""
    for file in files:
        with open_regular(file) as opened:
            while opened.read(1 << 20):
                pass


def _peak_bytes() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        mine = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        mine = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return mine + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def _io() -> dict[str, int]:
    """The counters of /proc/self/io; empty where there are none."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return {}
    return {name: int(count) for name, count in (line.split(": ") for line in lines)}
