"""One process that reads, and what it took: the inside of a cell of `vidprep bench`.

Fresh processes for what is measured: a loader that crashes or hangs costs its cell, and memory is that of one loader alone.
"""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from vidprep.formats.errors import CrashedError, DeadlineError, ReadError, VidprepError
from vidprep.formats.processes import Answer, DiedError, Process, parent_channel
from vidprep.formats.storage import cpu_seconds, open_descriptor, open_regular
from vidprep.transcode.choose.bench.places import Access, Place, Request, packets_needed, rounds
from vidprep.transcode.choose.bench.readers import Reader, reader_of

A = TypeVar("A")
R = TypeVar("R")
Ready = Callable[[], None]
START_SECONDS = 60
READY, GO = "ready", "go"
# As in a worker of torch's DataLoader. On two busy cores torchcodec took five times the CPU time with threads of OpenMP.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENCV_FOR_THREADS_NUM": "1"}


def run_together(function: Callable[[A, Ready], R], arguments: Sequence[A], seconds: float) -> list[R]:
    """What `function(argument, ready)` gives for each argument, in a process each. ready() returns when all have called it.

    seconds: how long a process may take. Raises ReadError with what was raised there, CrashedError, DeadlineError.
    """
    deadline = time.monotonic() + START_SECONDS + seconds
    with ExitStack() as started:
        # The libraries of others talk on stderr.
        processes = [
            started.enter_context(closing(Process(environment=ONE_THREAD, output=subprocess.DEVNULL)))
            for _ in arguments
        ]
        try:
            for process, argument in zip(processes, arguments, strict=True):
                process.begin(_call, function, argument)
            said = [_receive(process, deadline) for process in processes]
            if READY in said:
                for process in processes:
                    process.send(GO)
                said = [_receive(process, deadline) for process in processes]
        except DiedError:
            raise CrashedError("its process died") from None
    return said


def _receive(process: Process, deadline: float) -> Any:
    """What a function returned, or READY."""
    try:
        said = process.receive(lambda: deadline - time.monotonic())
    except TimeoutError:
        raise DeadlineError("took too long and was stopped") from None
    if not isinstance(said, Answer):
        return said
    if (error := said.error) is not None:  # whatever a library of others raises is its answer
        message = error.message if isinstance(error, VidprepError) else f"{type(error).__name__}: {error}"
        raise ReadError(" ".join(message.split())[:300]) from error
    return said.made


def _call(function: Callable[[A, Ready], R], argument: A) -> R:
    def ready() -> None:
        parent = parent_channel()
        parent.send(READY)
        parent.receive()

    return function(argument, ready)


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
