"""Load batches in a known order, decoded ahead into a bounded amount of memory.

    with PrefetchLoader(dataset, batch_size=8, shuffle=True, seed=0, workers=2) as loader:
        for epoch in range(10):
            for batch in loader:
                batch["frames"]         (B, T, H, W, 3)

The order of an epoch is known before it begins, so workers know what comes next. Each part of a video belongs to one
worker, so requests for the same frames reach the same cache, and frames decoded once serve all of them while they fit
(formats/training/_worker.py). Workers write sequences into their place in a batch, in shared memory; nothing is copied
on the way to the training loop.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, dropwhile, islice, pairwise, starmap, takewhile
from time import perf_counter
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self, get_args

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import CrashedError, SettingsError
from vidprep.formats.option import suggesting, whole
from vidprep.formats.training._events import LoaderEvents
from vidprep.formats.training._joined_datasets import JoinedDatasets
from vidprep.formats.training._order import BucketOrder, OwnOrder, SamplerOrder, classes_per_batch
from vidprep.formats.training._with_torch import convert_to_tensors, find_device, register_torch_collate
from vidprep.formats.training._worker import Ahead, ItemResult, Load, Orders, Request, Reset
from vidprep.formats.training._worker_pool import WorkerExit, WorkerPool, free_shared_memory
from vidprep.formats.training.dataset import VideoDataset, why_divided_twice
from vidprep.formats.training.items import BatchFields, Item, pad, stack

GIBIBYTE = 1 << 30
BLOCK_FRAMES = 128
MAX_BATCHES = 16
DEFAULT_BATCH = 8  # items
MIN_BATCHES = 3  # one in use by the training loop, one ready, one being made
FREE_BATCHES = 2
DEATHS_PER_ITEM = 3
HORIZON = 4
LEAST_CLASSES = 0.8  # in a batch, of those of a full shuffle
RUNS, RUN_BYTES, WINDOW_MAX = "runs", 1 << 20, 8192
Collate = Literal["stack", "pad"]


class Subset(Protocol):
    """A subset of a dataset, such as torch.utils.data.Subset or the parts of random_split."""

    dataset: Any
    indices: Sequence[int]


class Concatenation(Protocol):
    """Several datasets one after another, such as torch.utils.data.ConcatDataset."""

    datasets: Sequence[Any]


@dataclass(slots=True)
class _Batch:
    """A batch that is being made.

    Attributes:
        position: Position of its first item in the order
        mask: Which of them are not repeated to fill up the last ranks
        place: Buffer for its frames; None while none is free
        done: Finished sequences by position
    """

    epoch: int
    position: int
    indexes: list[int]
    mask: npt.NDArray[np.bool_]
    workers: list[int]
    place: int | None = None
    done: dict[int, ItemResult] = field(default_factory=dict)

    def items_left(self, worker: int) -> list[tuple[int, int]]:
        """Return (place in the batch, item) of items that a worker has not finished."""
        return [
            (slot, index)
            for slot, (index, owner) in enumerate(zip(self.indexes, self.workers, strict=True))
            if owner == worker and slot not in self.done
        ]


class _Known(NamedTuple):
    """Epoch of dataset and sampler, as last looked at.

    Attributes:
        times_set: Number of calls of `dataset.set_epoch`
    """

    times_set: int
    of_sampler: int | None


def _check_order(shuffle: object, sampler: object, batch_sampler: object, *, drop_last: bool) -> None:
    """Raise SettingsError if two arguments set the order of items, or one cannot."""
    if batch_sampler is not None and (shuffle or sampler is not None or drop_last):
        raise SettingsError("batch_sampler sets the order and the batches; leave out shuffle, sampler and drop_last")
    if isinstance(shuffle, str) and shuffle != RUNS:
        raise SettingsError(f"shuffle is {shuffle!r}; give True, False or {RUNS!r}")
    if shuffle and sampler is not None:
        raise SettingsError("shuffle and sampler both set the order; give one of them")


def _check_batch_by(batch_by: object, shuffle: object, sampler: object, batch_sampler: object) -> None:
    """Raise SettingsError for another word than "bucket", or if something else says which items are in a batch."""
    if batch_by not in (None, "bucket"):
        raise SettingsError(f"batch_by is {batch_by!r}; give 'bucket', or leave it out")
    if batch_by is not None and (shuffle == RUNS or sampler is not None or batch_sampler is not None):
        raise SettingsError(
            f"batch_by sets the order and the batches; leave out sampler, batch_sampler and shuffle={RUNS!r}"
        )


def _check_repeatable(**samplers: object) -> None:
    """Raise SettingsError for a sampler that cannot be iterated over, or only once."""
    for name, each in samplers.items():
        if each is not None and (not isinstance(each, Iterable) or isinstance(each, Iterator)):
            raise SettingsError(
                f"{name} is {each!r}; give something that can be iterated over again in each epoch, such as a list"
            )


def _check_collate(collate: str, collate_fn: object, device: str | None) -> None:
    """Raise SettingsError for a way to make batches that is none, or a second one beside `collate_fn`."""
    if collate not in get_args(Collate):
        raise SettingsError(f"collate is {collate!r}; give stack or pad")
    if collate_fn is not None and (not callable(collate_fn) or collate != "stack" or device is not None):
        raise SettingsError(
            "collate_fn is a function of a list of items, which makes the batch without collate and device"
        )


class _Batching(NamedTuple):
    """A sampler of items and a size, or a sampler of batches."""

    sampler: Iterable[int] | None
    batch_sampler: Iterable[Sequence[int]] | None
    batch_size: int
    drop_last: bool


def _batching(sampler: Iterable[int] | None, batch_sampler: Any, batch_size: int | None, drop_last: bool) -> _Batching:
    """Return how batches are made. torch's BatchSampler is an order of items, which other processes can continue."""
    if batch_sampler is None:
        return _Batching(sampler, None, DEFAULT_BATCH if batch_size is None else batch_size, drop_last)
    if _is_of_torch(batch_sampler, "BatchSampler"):
        return _Batching(batch_sampler.sampler, None, batch_sampler.batch_size, batch_sampler.drop_last)
    if batch_size is None and (batch_size := getattr(batch_sampler, "batch_size", None)) is None:
        raise SettingsError("batch_sampler does not say its batch_size; give batch_size, the most items of a batch")
    return _Batching(None, batch_sampler, batch_size, drop_last)


@suggesting(
    tensors="give it to VideoDataset",
    transform="give it to VideoDataset",
    pin_memory="batches are in shared memory, and device='cuda' copies them to the GPU",
    prefetch_factor="cache_bytes bounds what is made ahead",
    persistent_workers="workers live as long as the loader",
    generator="seed says the order",
    worker_init_fn="workers need none; random numbers follow the dataset's seed",
)
class PrefetchLoader:
    """Batches of a VideoDataset, decoded ahead by worker processes into shared memory.

    Each ``for batch in loader`` is an epoch. If the order is shuffled, or that of a sampler, and the loop is left early,
    the next loop continues the epoch, as after `load_state_dict`; `set_epoch` begins another one.

    It takes what torch's DataLoader takes: Subset and ConcatDataset of VideoDatasets, `sampler`, `batch_sampler`, `collate_fn`,
    `num_workers` and `drop_last`.

    A batch is a dict like an item of the dataset, with one more axis: `frames` (B, T, H, W, 3) or as layout and
    transform make them, `indexes` (B, T), `timestamps` (B, T), `class_id` (B,), ...; `id` is a list; `labels` is a dict
    of arrays for labels that are numbers in all videos of the store, else of lists.

    What is random is a function of the dataset's seed, the epoch and the item, whatever the number of workers. Epochs
    are counted from 0, unless `set_epoch` of the loader, the dataset or the sampler says which one is next. If the
    dataset has a rank, each process takes its share of one order of all items.

    Examples:
        >>> from vidprep.formats import PrefetchLoader, VideoDataset
        >>> dataset = VideoDataset("ready/", sequence_length=8, crop=112)
        >>> with PrefetchLoader(dataset, batch_size=2, shuffle=True, drop_last=True) as loader:
        ...     for batch in loader:  # an epoch
        ...         shape, ids = batch["frames"].shape, batch["id"]
        >>> shape, len(ids)
        ((2, 8, 112, 112, 3), 2)

    An error is raised in place of the batch that it spoils, and the next ``next`` goes on behind it. Batches may be
    kept: their memory is used again only when nothing refers to it. Not thread-safe.

    Args:
        dataset: A VideoDataset, or torch's Subset or ConcatDataset of such.
        batch_size: Items of a batch; None is 8, or what the batch_sampler says. With a batch_sampler: most items of a batch.
        shuffle: Take the items in another random order in each epoch. "runs" is an order that reads what is stored together
            at nearly the same time, so that many items behind a URL need one request: runs of about 1 MiB come in random
            order, and as many items as window_bytes has room for are shuffled together.
        seed: Seed of that order.
        sampler: Iterable of item numbers, as torch's samplers are. Its `set_epoch` is called if it has one.
        batch_sampler: Iterable of lists of item numbers, each a batch, in place of batch_size, shuffle, sampler and drop_last. Its state
            is that of this process alone.
        drop_last: Leave out a last batch that is not full.
        batch_by: "bucket" makes each batch of items whose frames have one shape, such as those of `transcode --buckets`. The last
            batch of each bucket may have fewer items. An epoch is continued with batches of the same size.
        collate: "stack" needs frames of one shape, except in batches of one item. "pad" pads them with zeros at the end
            of each axis to the largest of the batch, and adds `frames_shape` (B, ...), their shapes before that.
        collate_fn: A function of the list of items that makes the batch, as torch's DataLoader takes it. It runs in this process.
        workers: Worker processes; 2 if neither this nor num_workers is given.
        processes: False makes the workers threads. They share torch's random numbers with the program.
        cache_bytes: Bound of all batches that are ready or being made, and of the decoded frames that are kept for
            later ones. Fewer batches are made in advance if the machine has less memory to share; a warning says so.
        events: A file or named pipe that gets a line of JSON per batch; `vidprep monitor` shows it.
        device: torch device for the frames, such as "cuda"; all arrays are then tensors.
        num_workers: The same as workers, by torch's name; 0 is a thread of this process.
        window_bytes: With shuffle="runs": size of what is shuffled together, at most 8192 items. Of a store behind a URL, up to
            twice as much is fetched ahead.

    Raises:
        SettingsError: An argument is not allowed.
        MissingError: torch is needed and not installed.
    """

    def __init__(
        self,
        dataset: VideoDataset | Subset | Concatenation,
        batch_size: int | None = None,
        *,
        shuffle: bool | Literal["runs"] = False,
        seed: int = 0,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        drop_last: bool = False,
        batch_by: Literal["bucket"] | None = None,
        collate: Collate = "stack",
        collate_fn: Callable[[list[Item]], Any] | None = None,
        workers: int | None = None,
        processes: bool = True,
        cache_bytes: int = GIBIBYTE,
        events: str | os.PathLike[str] | None = None,
        device: str | None = None,
        num_workers: int | None = None,
        window_bytes: int = 32 << 20,
    ) -> None:
        self.dataset, chosen = _find_dataset(dataset)
        workers = _one_of(workers, num_workers)
        if num_workers == 0:  # torch's meaning: work in this process
            workers, processes = 1, False
        _check_order(shuffle, sampler, batch_sampler, drop_last=drop_last)
        _check_batch_by(batch_by, shuffle, sampler, batch_sampler)
        _check_collate(collate, collate_fn, device)
        sampler, batch_sampler, batch_size, drop_last = _batching(sampler, batch_sampler, batch_size, drop_last)
        _check_repeatable(sampler=sampler, batch_sampler=batch_sampler)
        batch_size, workers = whole("batch_size", batch_size, 1), whole("workers", workers, 1)
        cache_bytes, seed = whole("cache_bytes", cache_bytes, 1), whole("seed", seed, 0)
        self._device = None if device is None else find_device(device)
        self.batch_size, self.workers, self._collate_by = batch_size, workers, collate
        self._drop_last, self._sampler = drop_last, sampler if batch_sampler is None else batch_sampler
        self._collate_fn = collate_fn
        data = self.dataset
        self._items: npt.NDArray[np.int64] | None = None  # numbers in the undivided dataset, if the order has others
        if chosen is not None or (self._sampler is not None and data.world_size > 1):
            self._items = _undivide(data, chosen)
        self._runs: npt.NDArray[np.int64] | None = None
        window_bytes, self._window, ahead = whole("window_bytes", window_bytes, 1), 1, Ahead()
        if shuffle == RUNS:
            self._runs, self._window = self._runs_and_window(window_bytes)
            ahead = Ahead(max(ahead.limit_bytes, window_bytes // workers), None)
        self._batch_by = batch_by
        self._order = self._order_of(seed, shuffle=bool(shuffle), in_batches=batch_sampler is not None)
        if self._runs is not None:
            self._warn_of_few_classes()
        self._check_batches()
        self._dtype, self._item_bytes = data.frames_dtype, data.max_item_bytes
        self._batch_bytes = -(-batch_size * self._item_bytes // 4096) * 4096
        whole_batch = self._batch_bytes + batch_size * data.audio_bytes
        places = self._num_places(cache_bytes, whole_batch, processes=processes)
        self._frame_bytes = (cache_bytes - places * whole_batch) // workers
        kept = self._frame_bytes * workers // data.max_decoded_bytes
        self._horizon = places * batch_size + min(max(HORIZON * kept, self._window), data.num_items)
        self._whole = data.undivide()
        self._crew = WorkerPool(
            self._whole,
            workers,
            places * self._batch_bytes,
            self._frame_bytes,
            ahead,
            processes=processes,
            late=MIN_BATCHES * batch_size * data.max_decoded_bytes <= self._frame_bytes * workers,
        )
        self._places, self._lent = places, 0
        self._free = deque(range(places))
        self._given_back: deque[int] = deque()  # buffers whose batch is no longer referenced
        self._events = None if events is None else LoaderEvents(events)
        self._epoch, self._items_given, self._batches_given = 0, 0, 0
        self._epoch_set: int | None = None
        self._known = _Known(0, 0)
        self._plan: Iterator[list[_Batch]] = iter(())
        self._coming: deque[_Batch] = deque()
        self._planned = 0  # items that were ever planned: the position of the next
        self._deaths: dict[int, int] = {}
        self._resets = 0
        self._unloaded = deque(
            range(workers) if self._crew.loads_late else ()
        )  # workers that have yet to import their transforms
        self._loading = set[int]()
        self._broken: Exception | None = None  # why transforms cannot be imported
        self._running: _Epoch | None = None
        self._process: int | None = os.getpid()

    def _runs_and_window(self, window_bytes: int) -> tuple[npt.NDArray[np.int64], int]:
        """Return where runs begin, and how many items are shuffled together."""
        numbers = np.arange(self.dataset.num_items) if self._items is None else self._items
        runs, total = self.dataset.undivide().runs(numbers, RUN_BYTES)
        return runs, min(math.ceil(window_bytes * len(numbers) / max(total, 1.0)), WINDOW_MAX)

    def _check_batches(self) -> None:
        """Raise SettingsError if there is no full batch, or items of several shapes make none."""
        if self._sampler is None and not len(self):
            raise SettingsError(
                f"{self._order.length()} items make no full batch of {self.batch_size}; give a smaller batch_size"
            )
        is_mixed = self._collate_by == "stack" and self._collate_fn is None and self._batch_by is None
        if is_mixed and self.batch_size > 1:
            self.dataset.check_one_shape("collate='pad' or batch_size=1")
        if self._collate_by == "pad" and isinstance(self.dataset, JoinedDatasets):
            self.dataset.check_one_length()

    def _num_places(self, cache_bytes: int, whole_batch: int, *, processes: bool) -> int:
        """Return how many batches are ready, being made, or in use. Raises SettingsError if the least does not fit."""
        if cache_bytes < MIN_BATCHES * whole_batch:
            raise SettingsError(
                f"cache_bytes is {cache_bytes:,}; {MIN_BATCHES} batches of {whole_batch:,} bytes must fit: "
                f"give {MIN_BATCHES * whole_batch:,} or more, or a smaller batch_size"
            )
        places = max(MIN_BATCHES, min(MAX_BATCHES, cache_bytes // 2 // whole_batch))
        return _places_in_shared_memory(places, self._batch_bytes) if processes else places

    def _order_of(self, seed: int, *, shuffle: bool, in_batches: bool) -> OwnOrder | SamplerOrder:
        """Return the order of the items. Raises SettingsError if sampler and dataset both divide them."""
        data = self.dataset
        count = data.num_items if self._items is None else len(self._items)
        if self._sampler is not None:
            order = SamplerOrder(self._sampler, count, in_batches=in_batches)
            if order.world_size > 1 and data.world_size > 1:
                raise SettingsError(why_divided_twice(type(self._sampler).__name__))
            return order
        divided = (data.rank, data.world_size) if self._items is None else (0, 1)
        pads = data.tail == "pad"
        if self._batch_by is not None:
            buckets = data.undivide().buckets_of(np.arange(count) if self._items is None else self._items)
            size, drops = self.batch_size, self._drop_last
            return BucketOrder(buckets, size, seed, *divided, drop_last=drops, shuffle=shuffle, pads=pads)
        return OwnOrder(count, seed, *divided, shuffle=shuffle, pads=pads, runs=self._runs, window=self._window)

    def _warn_of_few_classes(self) -> None:
        """Warn if batches in the order of runs have far fewer classes than those of a full shuffle."""
        items = self._order.items(0, 0)[0]
        classes = self.dataset.classes_of(items if self._items is None else self._items[items])
        if classes is None or len(classes) < self.batch_size:
            return
        own, full = classes_per_batch(classes, self.batch_size)
        if own < LEAST_CLASSES * full:
            warnings.warn(
                f"{self.dataset.path}: with shuffle='runs' a batch of {self.batch_size} has {own:.1f} classes on average, and "
                f"{full:.1f} with a full shuffle: give a larger window_bytes, or shuffle=True. If its shards are in the order of ids, "
                f"`vidprep pack STORE OUT --to {self.dataset.pack_kind}` writes them in a shuffled order",
                stacklevel=4,
            )

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch. Raises TypeError for a sampler without a length."""
        length = self._order.length()
        return length if self._order.in_batches else self._count(length)

    def _count(self, items: int) -> int:
        return items // self.batch_size if self._drop_last else -(-items // self.batch_size)

    def _ends(self, items: int) -> list[int]:
        """Return the end of each batch of an order with so many items. Raises SettingsError if a batch_sampler's is too large."""
        if self._order.ends is None:
            return [min(number * self.batch_size, items) for number in range(1, self._count(items) + 1)]
        ends: list[int] = self._order.ends.tolist()
        if (largest := max(np.diff(ends, prepend=0).tolist(), default=0)) > self.batch_size:
            raise SettingsError(
                f"batch_sampler gives a batch of {largest} items, and batch_size is {self.batch_size}: give batch_size={largest}"
            )
        return ends

    def __repr__(self) -> str:
        sized = f"{len(self)} " if self._sampler is None or hasattr(self._sampler, "__len__") else ""
        return f"<PrefetchLoader: {sized}batches of {self.batch_size} by {self.workers} workers from {self.dataset!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers. Batches that were returned stay valid."""
        self._running, self._plan, self._process = None, iter(()), None
        self._crew.close()
        if self._events is not None:
            self._events.close()

    @property
    def epoch(self) -> int:
        """Epoch of the current loop, or of the next one if none has begun."""
        epoch = self._epoch_asked()
        return self._epoch if epoch is None else epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next loop plays, from its first batch on. Right after `load_state_dict`, the epoch of the
        state is continued instead.

        An epoch that was set by `dataset.set_epoch` since the last loop counts too, and one that was set by the
        sampler's `set_epoch` if it is another one.
        """
        self._epoch_set = whole("epoch", epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loader. `load_state_dict` in another process continues with the batch after the last
        returned one.

        The position counts the items of all processes, each of which has returned as many batches as this one. So the
        state of any process is that of all, also if there will be more or fewer of them, or batches of another size.

        In the middle of an epoch whose order came from a sampler without `set_epoch`, the state also contains the order
        of that epoch. The order of later epochs comes from the sampler's own generator, whose state the program must
        store.
        """
        next_epoch = self._epoch_asked()
        epoch, given = (self._epoch, self._items_given) if next_epoch is None else (next_epoch, 0)
        order = {"order": self._order.drawn} if self._order.drawn is not None and given else {}
        state = {"epoch": epoch, "items_given": given, "processes": self._order.world_of(epoch)}
        return {**state, **self._identity(), **order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of `state_dict`, possibly of another process, or of another number of them.

        Raises:
            SettingsError: The state is invalid, or of a loader with other items or another order.
        """
        if not isinstance(state, dict) or not {"epoch", "items_given"} <= state.keys():
            is_old = isinstance(state, dict) and "batches_given" in state
            raise SettingsError(
                "the state was saved by an older vidprep, which divided items among processes in another order"
                if is_old
                else f"{state!r} is not the state of a loader"
            )
        epoch, given = whole("epoch", state["epoch"], 0), whole("items_given", state["items_given"], 0)
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise SettingsError(_differing_state(name, state.get(name), value))
        drawn, own = state.get("order"), self._order
        draws = isinstance(own, SamplerOrder) and not own.repeats
        if given and (drawn is not None) != draws:
            raise SettingsError("the state has no order of the epoch, or one that no sampler drew; it was changed")
        total = own.total()
        if drawn is not None and isinstance(own, SamplerOrder):
            total = len(own.check(drawn))
        if total is not None and given > total:
            raise SettingsError(f"the state was saved after {given} items, an epoch of this loader has {total}")
        self._stop()
        self._epoch, self._items_given, self._batches_given, self._epoch_set = epoch, given, 0, None
        self._known = self._read_known()
        own.loaded = (epoch, whole("processes", state.get("processes", own.world_size), 1))
        if isinstance(own, SamplerOrder):
            own.drawn = drawn

    def _identity(self) -> dict[str, Any]:
        """Return what determines the items and their order, without what may change: the number of processes and workers,
        the size of batches, and the path of the store.
        """
        data, items = self.dataset, self._items
        chosen = {}
        if items is not None:
            digest = hashlib.sha256(np.ascontiguousarray(items).tobytes()).hexdigest()[:16]
            chosen = {"rank": data.rank, "world_size": data.world_size, "items": len(items), "chosen": digest}
        return {**self._order.identity(), **self._of_dataset, **chosen}

    @cached_property
    def _of_dataset(self) -> dict[str, Any]:
        return self.dataset.identity()

    def __iter__(self) -> Iterator[BatchFields]:
        """Return the batches of the next epoch, or the rest of an epoch whose state was loaded, or whose loop was left. An
        unfinished iteration ends.

        Raises:
            SettingsError: The loader is closed, or belongs to another process.
        """
        self._check_is_mine()
        epoch, was_left = self._epoch_asked(), self._running is not None
        # A sampler's set_epoch with the number of a loaded epoch, of which nothing is left, cannot be noticed.
        may_pass = epoch is None and self._epoch_set is None and (was_left or self._order.epoch is None)
        self._known, self._epoch_set = self._read_known(), None
        if epoch is None and was_left and self._batches_given and not self._order.continues:
            epoch = self._epoch + 1
        running = self._begin(epoch)
        if may_pass and self._items_given and self._is_complete():  # left, or saved, after its last batch
            running = self._begin(self._epoch + 1)
        return running

    def _begin(self, epoch: int | None) -> _Epoch:
        """Begin an epoch; None continues the current one, or what is left of it."""
        if epoch is not None:
            self._stop()
            self._epoch, self._items_given, self._batches_given = epoch, 0, 0
        if not self._coming:
            self._plan = self._batches(self._epoch, self._items_given)
        running = self._running = _Epoch(self)
        self._fill()
        return running

    def _is_complete(self) -> bool:
        """Return whether no batch is left of the current epoch, after work was sent to the workers."""
        return not self._coming or self._coming[0].epoch != self._epoch

    def _read_known(self) -> _Known:
        """Return what dataset and sampler say about the epoch now."""
        return _Known(self.dataset.times_epoch_was_set, self._order.epoch)

    def _epoch_asked(self) -> int | None:
        """Return the epoch that the next loop must begin; None if it goes on as it would.

        Raises:
            SettingsError: Dataset and sampler were set to different epochs.
        """
        known, is_begun = self._read_known(), self._running is not None
        of_dataset = self.dataset.epoch if known.times_set != self._known.times_set else None
        of_sampler = known.of_sampler if known.of_sampler != self._known.of_sampler else None
        if self._epoch_set is None and None not in (of_dataset, of_sampler) and of_dataset != of_sampler:
            raise SettingsError(
                f"dataset.set_epoch({of_dataset}) and the sampler's set_epoch({of_sampler}) contradict each other"
            )
        epoch = of_dataset if self._epoch_set is None else self._epoch_set
        if epoch is not None:
            return epoch if epoch != self._epoch or is_begun else None
        return None if of_sampler == self._epoch else of_sampler

    def _check_is_mine(self) -> None:
        if self._process is None:
            raise SettingsError("this loader is closed; make another")
        if self._process != os.getpid():
            raise SettingsError(
                f"this loader belongs to process {self._process}; make another in this one, {os.getpid()}"
            )

    def _stop(self) -> None:
        """Forget planned batches."""
        self._running, self._plan = None, iter(())
        if not self._coming:
            return
        self._resets += 1
        self._crew.tell_all(Reset(self._resets))
        unsure = set(range(self.workers))
        while unsure:
            worker, message = self._crew.inbox.get()
            if isinstance(message, WorkerExit):
                self._start(worker)
                unsure.discard(worker)
            elif message == Reset(self._resets):
                unsure.discard(worker)
            elif isinstance(message, Load):
                self._take(worker, message)
        self._free.extend(batch.place for batch in self._coming if batch.place is not None)
        self._coming.clear()

    def _batches(self, epoch: int, seen: int) -> Iterator[list[_Batch]]:
        """Yield batches from an epoch on, of which some items are done; those of a window together. Own orders continue into the
        next epochs, so that these start without waiting.
        """
        count = self.dataset.num_items
        while True:
            order, mask = self._order.items(epoch, seen)
            self._known = self._known._replace(of_sampler=self._order.epoch)
            numbers = order if self._items is None else self._items[order]
            mask &= numbers < count
            numbers = numbers % count
            owners = self._owners[numbers]
            together, begin = list[_Batch](), seen // self._order.world_size
            for part in starmap(slice, pairwise([0, *self._ends(len(numbers))])):
                first, self._planned = self._planned, self._planned + len(numbers[part])
                together.append(_Batch(epoch, first, numbers[part].tolist(), mask[part], owners[part].tolist()))
                if (begin + part.start) // self._window < (begin + part.stop) // self._window:
                    yield together
                    together = []
            if together:
                yield together
            if self._sampler is not None:
                return
            epoch, seen = epoch + 1, 0

    @cached_property
    def _owners(self) -> npt.NDArray[np.int16]:
        """Worker of each item. Parts of videos, or runs, are assigned largest first, so that all workers have similar work."""
        blocks = self._whole.blocks(np.arange(self._whole.num_items), BLOCK_FRAMES)
        if self._runs is not None:
            blocks = np.zeros(self._whole.num_items, np.int64)
            blocks[slice(None) if self._items is None else self._items] = self._runs
        sizes = np.bincount(blocks)
        turn = np.arange(len(sizes)) % (2 * self.workers)  # back and forth: 0 1 2 2 1 0
        owners = np.empty(len(sizes), np.int16)
        owners[np.argsort(-sizes, kind="stable")] = np.minimum(turn, 2 * self.workers - 1 - turn)
        return owners[blocks]

    def _fill(self) -> None:
        """Send new work to the workers: batches within the horizon, and buffers for batches."""
        while self._given_back:
            self._free.append(self._given_back.popleft())
            self._lent -= 1
        ahead = list[list[_Batch]]()
        first = self._coming[0].position if self._coming else self._planned
        while self._planned - first < self._horizon and (together := next(self._plan, None)) is not None:
            ahead.append(together)
            self._coming.extend(together)
        count = len(self._free)
        if self._unloaded or self._loading:  # their results lie in the inbox
            count = min(count, max(0, MIN_BATCHES - sum(each.place is not None for each in self._coming)))
        now = [*islice(dropwhile(lambda each: each.place is not None, self._coming), count)]
        for batch in now:
            batch.place = self._free.popleft()
        *earlier, last = ahead if self._runs is not None and ahead else [[*chain.from_iterable(ahead)]]
        for together in earlier:
            self._send_work(together, (), range(self.workers))
        self._send_work(last, now, range(self.workers))

    def _load(self) -> None:
        """Let workers import their transforms, not all at once: meanwhile the others decode, and what they have decoded is finished
        here.
        """
        while self._unloaded and len(self._loading) < max(1, (os.cpu_count() or 1) - 1):
            worker = self._unloaded.popleft()
            self._loading.add(worker)
            self._crew.send(worker, Load())

    def _start(self, worker: int) -> None:
        """Start a worker in place of one that has ended. It imports its transforms first: much may wait for it."""
        self._crew.start(worker, late=False)
        self._loading.discard(worker)
        if worker in self._unloaded:
            self._unloaded.remove(worker)

    def _send_work(self, ahead: Sequence[_Batch], now: Sequence[_Batch], workers: Iterable[int]) -> None:
        """Send to workers what is unfinished of these batches."""
        for worker in workers:
            orders = Orders(
                [
                    (batch.position + slot, index, batch.epoch)
                    for batch in ahead
                    for slot, index in batch.items_left(worker)
                ],
                [request for batch in now for request in self._requests(batch, worker)],
            )
            if orders.ahead or orders.now:
                self._crew.send(worker, orders)

    def _requests(self, batch: _Batch, worker: int) -> Iterator[Request]:
        assert batch.place is not None
        start = batch.place * self._batch_bytes
        for slot, index in batch.items_left(worker):
            position = batch.position + slot
            yield Request(position, index, batch.epoch, start + slot * self._item_bytes, position in self._deaths)

    def batch_for(self, iteration: _Epoch) -> Any:
        """Return the next batch. Raises StopIteration, and the error of an item."""
        self._check_is_mine()
        if iteration is not self._running:
            if iteration.is_over:
                raise StopIteration
            raise SettingsError("a newer iteration over this loader began, so this one cannot go on")
        if self._is_complete():
            self._epoch, self._items_given, self._batches_given, self._running = self._epoch + 1, 0, 0, None
            iteration.is_over = True
            raise StopIteration
        batch = self._coming[0]
        started = perf_counter()
        while not self._crew.inbox.empty():
            self._take(*self._crew.inbox.get())
        being_made = takewhile(lambda each: each.place is not None, self._coming)
        ready = sum(len(each.done) == len(each.indexes) for each in being_made)
        while len(batch.done) < len(batch.indexes) and self._broken is None:
            self._take(*self._crew.inbox.get())
        if self._broken is not None:
            raise _cannot_go_on(self._broken)
        for slot, result in batch.done.items():  # they stay as they are if this is interrupted
            batch.done[slot] = self._finish(batch, slot, result)
        waited = perf_counter() - started
        self._coming.popleft()
        self._batches_given += 1
        self._items_given = self._order.given_after(self._epoch, self._items_given, len(batch.indexes))
        try:
            made = self._collate(batch)
        finally:
            self._fill()
            self._load()
        if self._events is not None:
            items = [(worker, batch.done[slot]) for slot, worker in enumerate(batch.workers)]
            self._events.batch(self._epoch, self._batches_given - 1, waited, ready, self._places, items)
        return made

    def _take(self, worker: int, message: ItemResult | Reset | Load | WorkerExit) -> None:
        if isinstance(message, WorkerExit):
            self._replace(worker, message)
        elif isinstance(message, Load):
            self._loading.discard(worker)
            self._broken = message.error or self._broken
            self._load()
        elif isinstance(message, ItemResult):
            batch = self._batch_of(message.position)
            batch.done[message.position - batch.position] = message

    def _finish(self, batch: _Batch, slot: int, result: ItemResult) -> ItemResult:
        """Return a result with its transforms applied, if its worker had not imported them yet."""
        if result.raw is None:
            return result
        assert batch.place is not None
        start = batch.place * self._batch_bytes + slot * self._item_bytes
        memory = self._crew.view(start, math.prod(result.shape) * self._dtype.itemsize)
        try:
            out = memory.view(self._dtype).reshape(result.shape)
            self._whole.finish(batch.indexes[slot], batch.epoch, result.raw, out)
        except Exception as error:  # noqa: BLE001 (raised in place of its batch)
            return result._replace(error=error, raw=None)
        return result._replace(raw=None)

    def _batch_of(self, position: int) -> _Batch:
        for batch in self._coming:
            if position < batch.position + len(batch.indexes):
                return batch
        raise AssertionError(f"position {position} was not asked for")

    def _replace(self, worker: int, gone: WorkerExit) -> None:
        """Replace a killed worker, with its unfinished work."""
        now = [batch for batch in self._coming if batch.place is not None]
        at_work = next((request for batch in now for request in self._requests(batch, worker)), None)
        if at_work is not None and gone.code < 0:
            self._deaths[at_work.position] = self._deaths.get(at_work.position, 0) + 1
            if self._deaths[at_work.position] == DEATHS_PER_ITEM:
                path, frames = self._whole.describe_item(at_work.item, at_work.epoch)
                error = CrashedError(
                    f"{DEATHS_PER_ITEM} workers died at {frames}, the last by signal {-gone.code}", path=path
                )
                self._take(worker, ItemResult(at_work.position, error, (), {}, 0.0, 0, 0, 0))
        self._start(worker)
        known = list(self._coming)
        size = len(known) if self._runs is None else max(1, self._window // self.batch_size)
        for first in range(0, len(known), max(1, size)):
            self._send_work(known[first : first + size], (), [worker])
        self._send_work((), now, [worker])
        self._load()
        if gone.error is not None:
            raise _cannot_go_on(gone.error)
        if gone.code >= 0:
            raise CrashedError(f"a worker ended with exit code {gone.code}; see stderr")

    def _collate(self, batch: _Batch) -> Any:
        """Return the batch in its buffer; a copy if too few buffers are left for the workers."""
        assert batch.place is not None
        items = [batch.done[slot] for slot in range(len(batch.indexes))]
        error = next((item.error for item in items if item.error is not None), None)
        if error is not None:
            self._free.append(batch.place)
            raise error
        if self._collate_fn is not None:
            return self._collate_fn(self._items_of(batch, items))
        try:
            made = stack([item.about for item in items])
        except BaseException:
            self._free.append(batch.place)
            raise
        if self.dataset.tail == "pad":
            made["item_mask"] = batch.mask
        frames = self._frames(batch.place, items, made)
        made = Item(frames=frames, **made)
        if self._device is not None:
            made = convert_to_tensors(made)
            made["frames"] = made["frames"].to(self._device)
            return made
        return convert_to_tensors(made) if self.dataset.tensors else made

    def _frames(self, place: int, items: Sequence[ItemResult], made: Item) -> npt.NDArray[Any]:
        """Return the frames of a batch: a view of their buffer, or a copy, and then the buffer is free."""
        memory = self._crew.view(place * self._batch_bytes, len(items) * self._item_bytes)
        if self._collate_by == "pad":
            try:
                frames, made["frames_shape"] = pad(self._arrays(memory, items))
            finally:
                self._free.append(place)
            return frames
        first = self._arrays(memory, items[:1])[0]
        # Items of a smaller shape than the largest have gaps between them.
        frames = np.ndarray(
            (len(items), *first.shape), self._dtype, buffer=memory, strides=(self._item_bytes, *first.strides)
        )
        return frames if self._lends(memory, place) else frames.copy()

    def _arrays(self, memory: npt.NDArray[np.uint8], items: Sequence[ItemResult]) -> list[npt.NDArray[Any]]:
        """Return the frames of each item in the buffer of a batch."""
        starts = (slot * self._item_bytes for slot in range(len(items)))
        sizes = (math.prod(item.shape) * self._dtype.itemsize for item in items)
        return [
            memory[start : start + size].view(self._dtype).reshape(item.shape)
            for item, start, size in zip(items, starts, sizes, strict=True)
        ]

    def _lends(self, memory: npt.NDArray[np.uint8], place: int) -> bool:
        """Return whether a buffer belongs to the program until it gives up `memory`. Otherwise it is free, and what is in it must be
        copied now.
        """
        if self._places - (self._lent - len(self._given_back)) - 1 < FREE_BATCHES:
            self._free.append(place)
            return False
        self._lent += 1
        weakref.finalize(memory, self._given_back.append, place).atexit = False
        return True

    def _items_of(self, batch: _Batch, items: Sequence[ItemResult]) -> list[Item]:
        """Return the items of a batch as the dataset gives them."""
        assert batch.place is not None
        memory = self._crew.view(batch.place * self._batch_bytes, len(items) * self._item_bytes)
        arrays = self._arrays(memory, items)
        if not self._lends(memory, batch.place):
            arrays = [frames.copy() for frames in arrays]
        made = [Item(frames=frames, **item.about) for frames, item in zip(arrays, items, strict=True)]
        if self.dataset.tail == "pad":
            for item, is_real in zip(made, batch.mask.tolist(), strict=True):
                item["item_mask"] = is_real
        register_torch_collate()
        return [*map(convert_to_tensors, made)] if self.dataset.tensors else made


def _find_dataset(dataset: object) -> tuple[VideoDataset | JoinedDatasets, npt.NDArray[np.int64] | None]:
    """Return the dataset behind nested subsets and concatenations, and the numbers of their items in it; None means all."""
    if isinstance(dataset, VideoDataset):
        return dataset, None
    if getattr(getattr(type(dataset), "__getitem__", None), "__qualname__", "") == "ConcatDataset.__getitem__":
        parts = [_find_dataset(each) for each in getattr(dataset, "datasets", ())]
        joined = JoinedDatasets([part for part, _ in parts])
        if all(items is None for _, items in parts):
            return joined, None
        if joined.world_size > 1:
            raise SettingsError(
                "a Subset among joined datasets with rank= is not divided equally; divide by a sampler instead"
            )
        firsts = np.cumsum([0, *(part.num_items for part, _ in parts)])
        return joined, np.concatenate([first + _undivide(*each) for first, each in zip(firsts, parts, strict=False)])
    if not (hasattr(dataset, "dataset") and hasattr(dataset, "indices")):
        raise SettingsError(
            f"{dataset!r} is no VideoDataset, and no Subset or ConcatDataset of such, so its frames are not known ahead. Several "
            "stores are VideoDataset([…]). What a dataset does to frames and items can be done by\n"
            "    dataset = VideoDataset(..., transform=of_frames)\n"
            "    loader = PrefetchLoader(dataset, batch_size=8, shuffle=True, collate_fn=of_items)\n"
            "and any dataset goes into\n    loader = torch.utils.data.DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)"
        )
    whole_one, items = _find_dataset(dataset.dataset)
    chosen, count = np.asarray(dataset.indices), len(whole_one) if items is None else len(items)
    if not len(chosen) or chosen.dtype.kind not in "iu" or not -count <= chosen.min() <= chosen.max() < count:
        raise SettingsError(f"the indices of {dataset!r} are not numbers of items, 0 to {count - 1}")
    chosen = chosen % count
    return whole_one, chosen if items is None else items[chosen]


def _undivide(dataset: VideoDataset | JoinedDatasets, chosen: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    """Return the numbers of chosen items, or of all, among the items of all processes."""
    return (np.arange(len(dataset)) if chosen is None else chosen) * dataset.world_size + dataset.rank


def _is_of_torch(found: object, name: str) -> bool:
    return type(found).__name__ == name and type(found).__module__.partition(".")[0] == "torch"


def _places_in_shared_memory(places: int, batch_bytes: int) -> int:
    """Return for how many batches there is memory to share, at most `places`; warn if it is less.

    Raises:
        SettingsError: Even the fewest batches do not fit.
    """
    free = free_shared_memory()
    fit = min(places, free // batch_bytes)
    if fit < MIN_BATCHES:
        raise SettingsError(
            f"{MIN_BATCHES} batches need {MIN_BATCHES * batch_bytes:,} bytes of shared memory, and {free:,} are free: give a smaller "
            "batch_size, processes=False, or more memory to a container (docker run --shm-size)"
        )
    if fit < places:
        warnings.warn(
            f"{free:,} bytes of shared memory are free, which is room for {fit} batches instead of the {places} that "
            "cache_bytes allows (give more to a container: docker run --shm-size)",
            stacklevel=5,
        )
    return fit


def _cannot_go_on(error: Exception) -> CrashedError:
    made = CrashedError(f"a worker cannot go on: {type(error).__name__}: {error}")
    made.__cause__ = error
    return made


def _differing_state(name: str, saved: object, own: object) -> str:
    """Return the message for a state that does not belong to a loader."""
    if name == "content":
        return "the state was saved before the videos were made again; their frames may differ, so begin an epoch without the state"
    return f"the state was saved with {name} {saved}, this loader has {own}"


def _one_of(workers: int | None, num_workers: int | None) -> int:
    if workers is not None and num_workers is not None:
        raise SettingsError("workers and num_workers mean the same; give one of them")
    given = workers if workers is not None else num_workers
    return 2 if given is None else given


class _Epoch:
    """Iteration over an epoch. It continues after an error, and ends when a newer iteration begins."""

    def __init__(self, loader: PrefetchLoader) -> None:
        self._loader = loader
        self.is_over = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._loader.batch_for(self)
