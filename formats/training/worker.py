"""What a worker of a PrefetchLoader does, in a thread or in a process of its own: sequences into the places they are given.

It is told the order of the requests long before it may work on them, so it keeps decoded frames that later ones want, and
decodes of a GOP whatever they want of it at once.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import sys
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import StoreError
from vidprep.formats.stores.base import Frames
from vidprep.formats.training.cache import FrameCache
from vidprep.formats.training.dataset import Item, VideoDataset


class Request(NamedTuple):
    """Make a sequence now. offset: where its frames go in the shared memory, bytes. alone: it may be one that kills workers."""

    position: int
    sequence: int
    epoch: int
    offset: int
    alone: bool


class Orders(NamedTuple):
    """ahead: what will be asked for, (position in the order, sequence of the dataset), positions ascending. now: what is."""

    ahead: list[tuple[int, int]]
    now: list[Request]


class Reset(NamedTuple):
    """Nothing that was told or asked before counts; answered by itself."""

    number: int


class Done(NamedTuple):
    """error: why there is no such sequence. about: the item without its frames. hits, frames: wanted frames, and those that were
    decoded before."""

    position: int
    error: Exception | None
    about: Item
    seconds: float
    hits: int
    frames: int
    cache_bytes: int


class Inbox(Protocol):
    """Messages to a worker; None is the end."""

    def get(self) -> Any: ...

    def empty(self) -> bool: ...


class Worker:
    """memory: what the loader and its workers share. frame_bytes: the bound of decoded frames that are kept."""

    def __init__(self, dataset: VideoDataset, memory: mmap.mmap, frame_bytes: int) -> None:
        self._dataset, self._memory = dataset, memory
        self._cache = FrameCache(frame_bytes)
        self._size = dataset.frame_size
        self._scratch: Frames = np.empty((0, 0, 0, 3), np.uint8)

    def serve(self, inbox: Inbox, reply: Callable[[Done | Reset], None]) -> None:
        """Until the inbox ends."""
        waiting: deque[Request] = deque()
        while True:
            while not waiting or not inbox.empty():
                message = inbox.get()
                if message is None:
                    return
                if isinstance(message, Reset):
                    waiting.clear()
                    self._cache.forget_uses()
                    reply(message)
                else:
                    self._announce(message.ahead)
                    waiting.extend(message.now)
            reply(self._make(waiting.popleft()))

    def _announce(self, ahead: list[tuple[int, int]]) -> None:
        for position, index in ahead:
            id_, numbers = self._dataset.locate(index)
            for number in numbers.tolist():
                self._cache.announce((id_, number), position)

    def _make(self, request: Request) -> Done:
        started, about, error, hits = time.perf_counter(), Item(), None, 0
        id_, numbers = self._dataset.locate(request.sequence)
        try:
            out = self._place(request.offset)
            frames = out if self._dataset.transform.is_identity else self._scratch_for(id_)
            hits = self._fill(id_, numbers.tolist(), frames, alone=request.alone)
            if frames is not out:
                self._dataset.finish(frames, out, request.sequence, request.epoch)
            about = self._dataset.describe(id_, numbers)
        except Exception as caught:  # noqa: BLE001 (it goes to whoever asks for the item)
            error = _portable(caught)
        seconds = time.perf_counter() - started
        return Done(request.position, error, about, seconds, hits, len(numbers), self._cache.size_bytes)

    def _place(self, offset: int) -> npt.NDArray[Any]:
        shape = (self._dataset.sequence_length, *self._size, 3)
        dtype = np.dtype(self._dataset.transform.dtype)
        return np.frombuffer(self._memory, dtype, int(np.prod(shape)), offset).reshape(shape)

    def _scratch_for(self, id_: str) -> Frames:
        shape = (self._dataset.sequence_length, *self._shape_of(id_))
        if self._scratch.shape != shape:
            self._scratch = np.empty(shape, np.uint8)
        return self._scratch

    def _fill(self, id_: str, numbers: list[int], frames: Frames, *, alone: bool) -> int:
        """The frames, from the cache or decoded; how many were there. alone: decode nothing that others want."""
        missing: dict[int, Frames] = {}
        for row, number in zip(frames, numbers, strict=True):
            kept = self._cache.take((id_, number))
            if kept is None:
                missing[number] = row
            else:
                row[...] = kept
        also = set() if alone or not missing else self._wanted_of_gops(id_, missing) - missing.keys()
        try:
            self._decode(id_, missing, also)
        except StoreError:
            if not also:
                raise
            self._decode(id_, missing, set())  # it may be the others that cannot be decoded
        return len(numbers) - len(missing)

    def _decode(self, id_: str, missing: dict[int, Frames], also: set[int]) -> None:
        """Frames into their rows; into the cache go those of them that will be wanted again, and `also`."""
        fresh: dict[int, Frames] = {}
        by_due = sorted({*missing, *also}, key=lambda number: self._cache.due((id_, number)))
        for number in by_due:  # in this order none displaces one before it
            place = self._cache.place((id_, number), self._shape_of(id_))
            if place is not None:
                fresh[number] = place
        rows = fresh | missing
        order = sorted(rows)
        try:
            if order:
                self._dataset.store.fill(id_, order, [rows[number] for number in order])
        except BaseException:
            for number in fresh:
                self._cache.drop((id_, number))
            raise
        for number in fresh.keys() & missing.keys():
            fresh[number][...] = missing[number]

    def _wanted_of_gops(self, id_: str, numbers: Iterable[int]) -> set[int]:
        """Frames with a known use, of the GOPs that these frames are in."""
        video = self._dataset.video(id_)
        keyframes = video.keyframes
        if keyframes is None:
            return set()
        gops = {bisect_right(keyframes, number) for number in numbers}
        ends = [*keyframes[1:], len(video)]
        frames = chain.from_iterable(range(keyframes[gop - 1], ends[gop - 1]) for gop in gops)
        return {number for number in frames if self._cache.is_wanted((id_, number))}

    def _shape_of(self, id_: str) -> tuple[int, int, int]:
        video = self._dataset.video(id_)
        return *self._dataset.transform.scaled(video.height, video.width), 3


def _portable(error: Exception) -> Exception:
    """The error itself, or one that says the same, where it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001
        return StoreError(f"{type(error).__name__}: {error}")
    return error


class _Line:
    """A connection as an inbox."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError):  # the loader is gone
            return None

    def empty(self) -> bool:
        return not self._connection.poll()


def main() -> None:
    """A process: file descriptors of the connection and of the shared memory, its size, and the bound are the arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the loader, whose end is ours
    connection_fd, memory_fd, size, frame_bytes = map(int, sys.argv[1:])
    connection = Connection(connection_fd)
    memory = mmap.mmap(memory_fd, size)
    os.close(memory_fd)
    line = _Line(connection)
    dataset = line.get()
    try:
        if dataset is not None:
            Worker(dataset, memory, frame_bytes).serve(line, connection.send)
    except BrokenPipeError:
        return
