"""Measure one cell of `bench`: loaders behind one interface, in new processes.

A loader returns frames of a video by number, or a whole video, as a batch needs them: uint8 RGB in one C-contiguous
array. Each process opens videos when it first needs them, and keeps at most 16 open. Because each loader has its own
process, one that crashes or hangs costs one cell, and its memory can be measured.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vidprep.formats.errors import CrashedError, DeadlineError, ReadError, StoreError, VidprepError
from vidprep.formats.processes import Answer, DiedError, Process, parent_channel
from vidprep.formats.storage.local import cpu_seconds
from vidprep.formats.storage.untrusted import open_descriptor, open_regular
from vidprep.formats.stores.base import FrameStore
from vidprep.formats.stores.data_files import Handles
from vidprep.transcode.check.other_readers import LOADERS, STREAM_LOADERS, Loader, RgbArray, StreamLoader
from vidprep.transcode.choose.bench.places import OURS, Access, Place, Request, packets_needed, rounds

WHOLE_FRAMES = 32


class Reader(ABC):
    """A loader of one store. Raises what its library raises.

    Attributes:
        tells_bytes: Whether /proc/self/io counts the bytes that it reads
    """

    tells_bytes = True

    @abstractmethod
    def read(self, id_: str, numbers: range) -> RgbArray:
        """Return (T, H, W, 3)."""

    @abstractmethod
    def whole(self, id_: str) -> Iterator[RgbArray]:
        """Yield all frames in order, (H, W, 3) each."""


class OwnReader(Reader):
    """Reads through `open_store`."""

    def __init__(self, store: FrameStore) -> None:
        self._store = store

    def read(self, id_: str, numbers: range) -> RgbArray:
        return self._store[id_].frames(numbers)

    def whole(self, id_: str) -> Iterator[RgbArray]:
        """Yield whole GOPs, so that nothing is decoded twice and a long video need not fit into memory."""
        video = self._store[id_]
        ends = [*(video.keyframes or range(len(video))), len(video)]
        start = 0
        for end in ends:
            if end - start >= WHOLE_FRAMES or end == len(video):
                yield from video.frames(range(start, end))
                start = end


class FileReader(Reader):
    """Reads video files by another library."""

    def __init__(self, place: Place, loader: type[StreamLoader]) -> None:
        self._files = {video.id: Path(video.files[0]) for video in place.videos}
        self._loader = loader
        self.tells_bytes = loader not in STREAM_LOADERS.values()  # for these, a separate program reads the file
        self._opened: Handles[StreamLoader] = Handles(self._open, lambda _loader: None)

    def _open(self, id_: str) -> StreamLoader:
        return self._loader(self._files[id_])

    def read(self, id_: str, numbers: range) -> RgbArray:
        loader = self._opened[id_]
        assert isinstance(loader, Loader)
        pictures = loader.several(list(numbers))
        return np.ascontiguousarray(pictures) if isinstance(pictures, np.ndarray) else np.stack(pictures)

    def whole(self, id_: str) -> Iterator[RgbArray]:
        return map(np.ascontiguousarray, self._opened[id_].iterate())


class GulpReader(Reader):
    """Reads by GulpIO2."""

    def __init__(self, place: Place) -> None:
        from gulpio2 import GulpDirectory

        self._directory: Any = GulpDirectory(str(place.path))
        self._lengths = {video.id: video.num_frames for video in place.videos}

    def read(self, id_: str, numbers: range) -> RgbArray:
        pictures, _ = self._directory[id_, slice(numbers.start, numbers.stop, numbers.step)]
        return np.stack(pictures)

    def whole(self, id_: str) -> Iterator[RgbArray]:
        return iter(self.read(id_, range(self._lengths[id_])))


class WebdatasetReader(Reader):
    """Reads through webdataset: an endless stream of samples; samples that are not needed are skipped without decoding."""

    def __init__(self, place: Place) -> None:
        import webdataset

        shards = sorted(str(path) for path in Path(place.path).glob("*.tar") if path.is_file())
        self._samples = iter(webdataset.WebDataset(shards, shardshuffle=False).repeat())
        self._decode: Any = webdataset.autodecode.Decoder([webdataset.autodecode.imagehandler("rgb8")])
        self._count = len(place.ids)

    def read(self, id_: str, _numbers: range) -> RgbArray:
        raise StoreError(f"webdataset reads in order only; {id_} was asked for out of it")

    def whole(self, id_: str) -> Iterator[RgbArray]:
        for _ in range(self._count + 1):
            sample = next(self._samples)
            content = json.loads(sample.get("json", "{}"))
            if content.get("id", sample["__key__"]) == id_:
                decoded = self._decode(sample)
                return (decoded[name] for name in sorted(decoded) if name.rpartition(".")[2] in ("jpg", "jpeg"))
        raise StoreError(f"webdataset's stream has no {id_}")


class PictureReader(Reader):
    """Reads one file per frame."""

    def __init__(self, place: Place, open_one: Callable[[str], RgbArray]) -> None:
        self._files = {video.id: video.files for video in place.videos}
        self._open_one = open_one

    def read(self, id_: str, numbers: range) -> RgbArray:
        return np.stack([self._open_one(self._files[id_][number]) for number in numbers])

    def whole(self, id_: str) -> Iterator[RgbArray]:
        return map(self._open_one, self._files[id_])


def _read_with_pillow(path: str) -> RgbArray:
    from PIL import Image

    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def _read_with_opencv(path: str) -> RgbArray:
    import cv2

    picture = cv2.imread(path, cv2.IMREAD_COLOR)
    if picture is None:
        raise StoreError("OpenCV does not read it", path=path)
    return np.ascontiguousarray(picture[..., ::-1])


def reader_of(place: Place, name: str) -> Reader:
    """Return the reader of a store by name, one of `place.loaders`."""
    if name == OURS:
        assert place.store is not None
        return OwnReader(place.store)
    if place.kind in ("jpg", "png"):
        return PictureReader(place, {"Pillow": _read_with_pillow, "OpenCV": _read_with_opencv}[name])
    if name == "GulpIO2":
        return GulpReader(place)
    if name == "webdataset":
        return WebdatasetReader(place)
    return FileReader(place, (LOADERS | STREAM_LOADERS)[name])


A = TypeVar("A")
R = TypeVar("R")
Ready = Callable[[], None]
START_SECONDS = 60
READY, GO = "ready", "go"
# Like a worker of torch's DataLoader. On two busy cores torchcodec took five times the CPU time with OpenMP threads.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENCV_FOR_THREADS_NUM": "1"}


def run_together(function: Callable[[A, Ready], R], arguments: Sequence[A], seconds: float) -> list[R]:
    """Call `function(argument, ready)` for each argument, each in its own process; return the results.

    Args:
        function: Its `ready()` returns when all processes have called it.
        arguments: One per process.
        seconds: Time limit of a process.

    Raises:
        ReadError: The function raised an error.
        CrashedError: A process crashed.
        DeadlineError: A process took too long.
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
    """Return the result of the function, or READY."""
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
    """Work of one of `workers` processes: read for some seconds, and at least MIN_SEQUENCES.

    It ends with a complete round, so that each video counts equally often for every loader.

    Attributes:
        is_cold: Whether the page cache is emptied before each read
        worker: Number of the process, from 0
        seed: Seed of the random access
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
    """Measurements of one process. Emptying the page cache counts in none of them.

    Attributes:
        sequence_seconds: Duration of each sequence, in order
        frames: Frames that were read
        packets: Packets that a decoder needs for them
        peak_bytes: Resident memory of the process, plus the largest that a program started by it can have had
        read_bytes: Bytes read by system calls; None if unknown
        storage_bytes: Bytes read from storage instead of the page cache; None if unknown
    """

    sequence_seconds: list[float]
    frames: int
    packets: int
    cpu_seconds: float
    peak_bytes: int
    read_bytes: int | None
    storage_bytes: int | None


def measure(cell: BenchCell, ready: Ready) -> CellMeasures:
    """Run a cell. Raises what the loader raises."""
    reader = reader_of(cell.place, cell.loader)
    requests = rounds(cell.place.videos, cell.access, cell.seed, cell.worker, cell.workers)
    _warm_up(reader, next(requests), cell)
    ready()
    taken: list[float] = []
    frames = packets = 0
    spent = aside = 0.0
    cpu, io = cpu_seconds(), _io()
    while spent < cell.seconds or len(taken) < MIN_SEQUENCES:
        for request in next(requests):
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
    """Import libraries, start decoders and open videos. Of whole videos read only the last one, so that a stream is at its
    beginning afterwards.
    """
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
    """Drop files from the page cache before they are read. Return the CPU seconds that this took."""
    began = cpu_seconds()
    video, numbers = request
    a_file_each = len(video.files) == video.num_frames > 1
    drop_from_cache([video.files[number] for number in numbers] if a_file_each else video.files)
    return cpu_seconds() - began


def drop_from_cache(files: Iterable[str]) -> None:
    """Drop files from the page cache by posix_fadvise. Unwritten data is written first, as the system would keep it."""
    for file in files:
        number = open_descriptor(file)
        try:
            os.fsync(number)
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(number)


def fill_cache(files: Iterable[str]) -> None:
    """Read files once, so that they are in the page cache."""
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
    """Return the counters of /proc/self/io; empty if they do not exist."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return {}
    return {name: int(count) for name, count in (line.split(": ") for line in lines)}
