"""A worker of a PrefetchLoader, in a thread or in a process: decodes sequences into buffers that it is given.

It knows the order of requests long before it may work on them. So it keeps decoded frames that later requests need, and
decodes all needed frames of a GOP at once.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import pickle
import sys
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from queue import SimpleQueue
from threading import Lock, Thread
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import SettingsError, StoreError
from vidprep.formats.processes import Channel, parent_channel
from vidprep.formats.storage.belady import NEVER, BeladyCache
from vidprep.formats.storage.range_access import make_requests_here
from vidprep.formats.storage.shared import pass_files
from vidprep.formats.stores.base import ComingClip, Frames, FrameStore
from vidprep.formats.training._joined_datasets import JoinedDatasets
from vidprep.formats.training.dataset import Clip, VideoDataset

FrameKey = tuple[str, int]
KEPT_CLIPS = 4096
SHORT_SWITCH = 5e-4  # seconds


class Ahead(NamedTuple):
    """Bounds of what a worker lets a store behind a URL fetch before it is needed. Clips that are announced together share requests.

    Attributes:
        limit_bytes: Bound of what is fetched and not yet decoded
        num_clips: How many clips are announced together; None for all that the loader plans together
    """

    limit_bytes: int = 16 << 20
    num_clips: int | None = 32


class FrameCache(BeladyCache[FrameKey, Frames]):
    """Belady cache of decoded frames."""

    def __init__(self, limit_bytes: int, dtype: str = "uint8") -> None:
        super().__init__(limit_bytes)
        self._dtype = np.dtype(dtype)

    def place(self, key: FrameKey, shape: tuple[int, ...]) -> Frames | None:
        """Return an array to decode a frame into; None if it is cached, or others are needed sooner."""
        size = math.prod(shape) * self._dtype.itemsize
        evicted = None if key in self else self.make_room(key, size)
        if evicted is None:
            return None
        array = evicted[-1] if evicted and evicted[-1].shape == shape else np.empty(shape, self._dtype)
        self.keep(key, array, size)
        return array


class FetchAhead:
    """Lets a store behind a URL fetch what the next clips need, as far ahead as a bound in bytes allows.

    Whatever the latency is, it is hidden while the bound holds more than is decoded in that time: 16 MiB are about 400
    sequences of 240 lines, which take two seconds to decode.

    Args:
        store: The store.
        about: Bounds of it.
        decoded: Frames that need not be fetched.
    """

    def __init__(self, store: FrameStore, about: Ahead, decoded: Container[FrameKey]) -> None:
        self._store, self._about, self._decoded = store, about, decoded
        self._waiting: deque[Sequence[tuple[int, Clip]]] = deque()
        self._asked: deque[tuple[int, int]] = deque()
        self._asked_bytes = 0

    def add(self, clips: Sequence[tuple[int, Clip]]) -> None:
        """Add clips with their positions, after those that were added before."""
        at_once = self._about.num_clips or len(clips)
        self._waiting.extend(clips[first : first + at_once] for first in range(0, len(clips), max(1, at_once)))
        if self._store.keeps_read:
            uses = [ComingClip(at, clip.id, clip.numbers.tolist(), fetch=False) for at, clip in clips]
            with suppress(StoreError):  # raised when an item is made
                self._store.announce(-1, uses)

    def forget(self) -> None:
        """Forget all clips."""
        self._waiting.clear()
        self._asked.clear()
        self._asked_bytes = 0
        with suppress(StoreError):
            self._store.announce(NEVER, [])

    def advance(self, position: int) -> None:
        """Fetch what comes next, before the clip at a position is decoded; all before it are."""
        while self._asked and self._asked[0][0] < position:
            self._asked_bytes -= self._asked.popleft()[1]
        if self._asked_bytes > self._about.limit_bytes // 2:  # many at once wake fewer threads
            return
        while self._waiting and self._asked_bytes < self._about.limit_bytes:
            clips = [self._coming(*each) for each in self._waiting.popleft() if each[0] >= position]
            for clip, size in zip(clips, self._store.announce(position - 1, clips), strict=True):
                self._asked.append((clip.position, size))
                self._asked_bytes += size

    def _coming(self, position: int, clip: Clip) -> ComingClip:
        """Return a clip without frames that are decoded already."""
        numbers = [number for number in clip.numbers.tolist() if (clip.id, number) not in self._decoded]
        return ComingClip(position, clip.id, numbers, fetch=True)


class Request(NamedTuple):
    """Request to make an item now.

    Attributes:
        offset: Position of its frames in the shared memory, in bytes
        alone: Whether the item may be one that kills workers
    """

    position: int
    item: int
    epoch: int
    offset: int
    alone: bool


class Orders(NamedTuple):
    """Work for a worker.

    Attributes:
        ahead: Later items as (position in the order, item of the dataset, epoch), positions ascending
        now: Items to make now
    """

    ahead: list[tuple[int, int, int]]
    now: list[Request]


class Load(NamedTuple):
    """Asks a worker to import its transforms beside its work. It answers with the same message when it has.

    Attributes:
        error: In the answer: why they cannot be imported, or None
    """

    error: Exception | None = None


class LateTransform:
    """The transform of a dataset in a worker, which is imported later: importing torch takes seconds.

    Attributes:
        is_loaded: Whether all transforms are imported
    """

    def __init__(self, data: bytes) -> None:
        self._data, self.is_loaded = data, False

    def load(self) -> None:
        self._call: Callable[[Any], Any] = pickle.loads(self._data)

    def __call__(self, frames: Any) -> Any:
        return self._call(frames)


class _Pickler(pickle.Pickler):
    """Pickles datasets without their transforms, which it pickles apart."""

    def __init__(self, file: IO[bytes], transforms: Sequence[object]) -> None:
        super().__init__(file)
        self._transforms = transforms

    def persistent_id(self, found: object) -> int | None:
        return next((number for number, each in enumerate(self._transforms) if each is found), None)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, late: Sequence[LateTransform]) -> None:
        super().__init__(io.BytesIO(data))
        self.persistent_load = late.__getitem__  # type: ignore[method-assign]


class WorkerSetup(NamedTuple):
    """First message to a worker process.

    Attributes:
        dataset: Pickled dataset, without torch's sharing of tensors between its own child processes
        late: Pickled transforms that workers import beside their work
        files: File descriptors that the process must inherit for it
        main: How multiprocessing finds objects of the program's main file; None if there are none
    """

    dataset: bytes
    late: tuple[bytes, ...]
    files: tuple[int, ...]
    main: dict[str, Any] | None

    @classmethod
    def build(cls, dataset: VideoDataset | JoinedDatasets, *, late: bool) -> WorkerSetup:
        """Create for a dataset. Raises SettingsError if it cannot be pickled.

        Args:
            dataset: The dataset.
            late: Whether workers may import its transforms beside their work.
        """
        if _is_worker:
            raise SettingsError(
                "a worker imports the program to find its transform, and the program makes another PrefetchLoader; "
                'put what the program does behind `if __name__ == "__main__":`'
            )
        try:
            parts = dataset.parts if isinstance(dataset, JoinedDatasets) else [dataset]
            transforms = [each.transform for each in parts if each.transform is not None and late]
            with pass_files() as descriptors:
                pickled = [pickle.dumps(each) for each in transforms]
                # One that refers to a dataset must be pickled together with it, and the program must be seen to be importable.
                if descriptors or any(b"__main__" in data for data in pickled):
                    pickled, transforms = [], []
            with pass_files() as descriptors, io.BytesIO() as file:
                _Pickler(file, transforms).dump(dataset)
                result = file.getvalue(), tuple(pickled), tuple(descriptors)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise SettingsError(
                f"the dataset cannot be sent to processes ({error}); give a transform that is a function "
                "defined in a module, or processes=False"
            ) from error
        if not any(b"__main__" in data for data in (result[0], *result[1])):
            return cls(*result, None)
        program = sys.modules["__main__"]
        if (spec := getattr(program, "__spec__", None)) is not None:
            return cls(*result, {"init_main_from_name": spec.name, "sys_argv": sys.argv})
        if (path := getattr(program, "__file__", None)) is None:
            raise SettingsError(
                "transform was defined in an interactive session, which worker processes cannot import; "
                "put it into a module, or give processes=False"
            )
        return cls(*result, {"init_main_from_path": os.path.abspath(path), "sys_argv": sys.argv})  # noqa: PTH100

    def open(self, late: Sequence[LateTransform]) -> VideoDataset | JoinedDatasets:
        if b"__main__" in self.dataset:
            self.import_main()
        dataset: VideoDataset | JoinedDatasets = _Unpickler(self.dataset, late).load()
        return dataset

    def import_main(self) -> None:
        """Import the program's main file, if something of it is needed."""
        if self.main is not None:
            from multiprocessing import spawn

            spawn.prepare(self.main)


_is_worker = False


class Reset(NamedTuple):
    """Cancels all earlier work. The worker answers with the same message."""

    number: int


class ItemResult(NamedTuple):
    """Result of a request.

    Attributes:
        error: Why the item could not be made, or None
        about: The item without its frames
        seconds: Time to make the item: decoding, transforms and audio
        hits: Frames that had been decoded before
        cache_bytes: Size of the worker's cache
        raw: Decoded frames that the loader must finish, because the worker has not imported its transform yet; else None
    """

    position: int
    error: Exception | None
    shape: tuple[int, ...]
    about: dict[str, Any]
    seconds: float
    hits: int
    frames: int
    cache_bytes: int
    raw: Frames | None = None


class Inbox(Protocol):
    """Queue of messages to a worker; None ends it."""

    def get(self) -> Any: ...

    def empty(self) -> bool: ...


class Worker(Protocol):
    """Makes items of what a loader loads."""

    def announce(self, ahead: Sequence[tuple[int, int, int]]) -> None:
        """Prepare for later items: (position in the order, item, epoch), positions ascending."""

    def forget(self) -> None:
        """Forget later items."""

    def make(self, request: Request) -> ItemResult:
        """Make an item."""


def worker_of(dataset: VideoDataset | JoinedDatasets, memory: mmap.mmap, frame_bytes: int, ahead: Ahead) -> Worker:
    """Return a worker.

    Args:
        dataset: What it makes items of.
        memory: Memory shared with the loader.
        frame_bytes: Bound of the cache in bytes.
        ahead: What is fetched ahead.
    """
    if isinstance(dataset, JoinedDatasets):
        return WorkerOfParts(dataset, memory, frame_bytes, ahead)
    return WorkerOfDataset(dataset, memory, frame_bytes, ahead)


def serve(worker: Worker, inbox: Inbox, reply: Callable[[ItemResult | Reset], None], load: Callable[[], None]) -> None:
    """Let a worker work until the inbox ends.

    Args:
        worker: The worker.
        inbox: Messages to it.
        reply: Takes its answers.
        load: Lets another thread import the transforms.
    """
    waiting: deque[Request] = deque()
    while True:
        while not waiting or not inbox.empty():
            message = inbox.get()
            if message is None:
                return
            if isinstance(message, Reset):
                waiting.clear()
                worker.forget()
                reply(message)
            elif isinstance(message, Load):
                load()
            else:
                worker.announce(message.ahead)
                waiting.extend(message.now)
        reply(worker.make(waiting.popleft()))


class WorkerOfParts:
    """Makes items of several datasets. Each has an equal part of the memory."""

    def __init__(self, joined: JoinedDatasets, memory: mmap.mmap, frame_bytes: int, ahead: Ahead) -> None:
        self._joined, count = joined, len(joined.parts)
        ahead = ahead._replace(limit_bytes=max(1, ahead.limit_bytes // count))
        self._workers = [WorkerOfDataset(part, memory, frame_bytes // count, ahead) for part in joined.parts]

    def announce(self, ahead: Sequence[tuple[int, int, int]]) -> None:
        of_parts = [list[tuple[int, int, int]]() for _ in self._workers]
        for position, item, epoch in ahead:
            part, own = self._joined.place(item)
            of_parts[part].append((position, own, epoch))
        for worker, of_part in zip(self._workers, of_parts, strict=True):
            worker.announce(of_part)

    def forget(self) -> None:
        for worker in self._workers:
            worker.forget()

    def make(self, request: Request) -> ItemResult:
        part, own = self._joined.place(request.item)
        return self._workers[part].make(request._replace(item=own))


class WorkerOfDataset:
    """Makes items of a dataset.

    Args:
        memory: Memory shared with the loader.
        frame_bytes: Bound of the cache in bytes.
        ahead: What is fetched ahead.
    """

    def __init__(self, dataset: VideoDataset, memory: mmap.mmap, frame_bytes: int, ahead: Ahead) -> None:
        self._dataset, self._memory = dataset, memory
        self._cache = FrameCache(frame_bytes, dataset.picture.stored_dtype)
        self._clips: dict[int, Clip] = {}  # of positions to come
        self._ahead = FetchAhead(dataset.store, ahead, self._cache) if dataset.store.is_remote else None
        self._scratch: Frames = np.empty((0, 0, 0, 3), dataset.picture.stored_dtype)

    def forget(self) -> None:
        self._clips.clear()
        self._cache.forget_uses()
        if self._ahead is not None:
            self._ahead.forget()

    def announce(self, ahead: Sequence[tuple[int, int, int]]) -> None:
        clips = list[tuple[int, Clip]]()
        for position, index, epoch in ahead:
            try:
                clip = self._dataset.clip(index, self._dataset.key(index, epoch))
            except (StoreError, OSError):
                continue  # reported when the item is made
            if len(self._clips) < KEPT_CLIPS:
                self._clips[position] = clip
            clips.append((position, clip))
            for number in dict.fromkeys(clip.numbers.tolist()):
                self._cache.announce((clip.id, number), position)
        if self._ahead is not None:
            self._ahead.add(clips)

    def make(self, request: Request) -> ItemResult:
        started, dataset = time.perf_counter(), self._dataset
        description: dict[str, Any] = {}
        error, hits, raw = None, 0, None
        shape: tuple[int, ...] = ()
        clip = Clip("", np.zeros(0, np.int64), None)
        try:
            if self._ahead is not None:
                self._ahead.advance(request.position)
            key = dataset.key(request.item, request.epoch)
            known = request.position in self._clips
            clip = self._clips.pop(request.position) if known else dataset.clip(request.item, key)
            shape = dataset.shape_of(clip.id)
            out = self._place(request.offset, shape)
            passes = dataset.picture.is_identity and dataset.transform is None
            is_late = isinstance(dataset.transform, LateTransform) and not dataset.transform.is_loaded
            size = len(clip.numbers), *self._shape_of(clip.id)
            frames = out.reshape(size) if passes else self._scratch_of(size)
            hits = self._fill(clip.id, clip.numbers.tolist(), frames, alone=request.alone)
            if is_late:
                raw = frames
            elif not passes:
                dataset.apply_transforms(frames, clip, request.item, key, out)
            description = dataset.describe(clip)
        except Exception as caught:  # noqa: BLE001 (raised where the item is used)
            error = _portable(caught)
        seconds = time.perf_counter() - started
        return ItemResult(
            request.position, error, shape, description, seconds, hits, len(clip.numbers), self._cache.size_bytes, raw
        )

    def _place(self, offset: int, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        dtype = self._dataset.frames_dtype
        return np.frombuffer(self._memory, dtype, math.prod(shape), offset).reshape(shape)

    def _scratch_of(self, shape: tuple[int, ...]) -> Frames:
        if self._scratch.shape != shape:
            self._scratch = np.empty(shape, self._scratch.dtype)
        return self._scratch

    def _fill(self, id_: str, numbers: list[int], frames: Frames, *, alone: bool) -> int:
        """Fill frames from the cache or decode them; return how many were cached. With `alone`, decode nothing else."""
        missing: dict[int, Frames] = {}
        first = {number: place for place, number in reversed([*enumerate(numbers)])}
        for number, place in first.items():
            row, kept = frames[place], self._cache.take((id_, number))
            if kept is None:
                missing[number] = row
            else:
                row[...] = kept
        also = set() if alone or not missing else self._announced_frames(id_, missing) - missing.keys()
        try:
            self._decode(id_, missing, also)
        except StoreError:
            if not also:
                raise
            self._decode(id_, missing, set())  # perhaps only the additional frames cannot be decoded
        if len(first) < len(numbers):
            frames[:] = frames[[first[number] for number in numbers]]
        return len(numbers) - len(missing)

    def _decode(self, id_: str, missing: dict[int, Frames], also: set[int]) -> None:
        """Decode frames into their rows, and into the cache those that are needed again and those in `also`."""
        fresh: dict[int, Frames] = {}
        by_due = sorted({*missing, *also}, key=lambda number: self._cache.due((id_, number)))
        for number in by_due:  # in this order no frame evicts an earlier one
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

    def _announced_frames(self, id_: str, numbers: Iterable[int]) -> set[int]:
        """Return frames with an announced use in the GOPs of these frames."""
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
        return *self._dataset.picture.scale(video.height, video.width), 3


def _portable(error: BaseException) -> Exception:
    """Return an error that can be sent to another process: itself, or one with the same message."""
    with suppress(Exception):
        pickle.loads(pickle.dumps(error))
        if isinstance(error, Exception):
            return error
    return StoreError(f"{type(error).__name__}: {error}")


class _Line:
    """A channel as an inbox."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def get(self) -> Any:
        try:
            return self._channel.receive()
        except EOFError:  # the loader has ended
            return None

    def empty(self) -> bool:
        return not self._channel.has_message()


def serve_from_process(
    about: WorkerSetup, memory: int, size: int, frame_bytes: int, ahead: Ahead, workers: int, late: bool
) -> None:
    """Run a worker in a child process.

    Args:
        about: Its dataset.
        memory: File descriptor of the shared memory.
        size: Size of that memory in bytes.
        frame_bytes: Bound of the cache in bytes.
        ahead: What it fetches ahead.
        workers: Number of workers of the loader.
        late: Whether transforms may be imported later.
    """
    global _is_worker
    _is_worker = True
    make_requests_here(workers)
    shared, channel = mmap.mmap(memory, size), parent_channel()
    os.close(memory)
    transforms, one_at_a_time = [LateTransform(data) for data in about.late], Lock()
    worker, requests = worker_of(about.open(transforms), shared, frame_bytes, ahead), SimpleQueue[bool]()
    failed = list[BaseException]()

    def reply(message: object) -> None:
        with one_at_a_time:
            channel.send(message)

    def work() -> None:
        try:
            serve(worker, _Line(channel), reply, lambda: requests.put(True))
        except BaseException as error:  # noqa: BLE001 (raised below)
            failed.append(error)
        requests.put(False)

    if not late:
        _load(about, transforms)
    working = Thread(target=work, daemon=True)
    working.start()
    if requests.get():  # in the main thread, as some modules demand
        try:
            _load(about, transforms)
            reply(Load())
        except BaseException as error:  # noqa: BLE001 (raised in the loader)
            reply(Load(_portable(error)))
    working.join()
    if failed:
        raise failed[0]


def _load(about: WorkerSetup, transforms: Sequence[LateTransform]) -> None:
    """Import the transforms."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SHORT_SWITCH)  # an import would hold up the decoding with each turn
    try:
        about.import_main()
        for each in transforms:
            each.load()
        for each in transforms:
            each.is_loaded = True
    finally:
        sys.setswitchinterval(usual)
