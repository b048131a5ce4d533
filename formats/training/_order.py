"""The order of the items of each epoch, and its division among processes.

Process r of W takes every W-th item of an order, beginning with item r. So when every process has taken k items, the
first k * W of the order are taken, and any other number of processes can go on with the rest.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, pairwise
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import SettingsError

Numbers = npt.NDArray[np.int64]
LOOKED_AT = 100  # batches


def epoch_order(count: int, epoch: int, seed: int, *, shuffle: bool) -> Numbers:
    """Return the numbers 0 to `count` - 1 in the order of an epoch: ascending, or as seed and epoch say."""
    return np.random.default_rng((seed, epoch)).permutation(count) if shuffle else np.arange(count)


def run_order(runs: Numbers, epoch: int, seed: int, world_size: int, window: int) -> Numbers:
    """Return the order of an epoch that reads storage in long runs.

    The runs are shuffled and dealt to the processes, each to the one that has the fewest items. A process takes its runs one
    after another, and shuffles the items of each window. So all items of a run are read at nearly the same time. When one process
    has no item left, what is left of others is divided.

    Args:
        runs: (N,) run of each item, in the order of the items. Items of one run are stored together.
        epoch: The epoch.
        seed: Seed of the order.
        world_size: Number of processes.
        window: How many items of a process are shuffled together.

    Returns:
        (N,) the items, of which process r takes every world_size-th, beginning with item r.
    """
    rng = np.random.default_rng((seed, epoch, 1))
    stored = np.argsort(runs, kind="stable")
    lengths = np.bincount(runs)
    begins = np.concatenate([[0], np.cumsum(lengths)])
    dealt = [list[Numbers]() for _ in range(world_size)]
    fewest = [(0, rank) for rank in range(world_size)]
    for run in rng.permutation(len(lengths)).tolist():
        count, rank = heapq.heappop(fewest)
        dealt[rank].append(stored[begins[run] : begins[run + 1]])
        heapq.heappush(fewest, (count + int(lengths[run]), rank))
    nothing = np.zeros(0, np.int64)
    own = list[Numbers]()
    for each in dealt:
        items = np.concatenate([nothing, *each])
        for first in range(0, len(items), window):
            rng.shuffle(items[first : first + window])
        own.append(items)
    least = min(map(len, own))
    together = np.stack([each[:least] for each in own], 1).reshape(-1)
    return np.concatenate([together, *(each[least:] for each in own)])


def classes_per_batch(classes: Numbers, batch_size: int) -> tuple[float, float]:
    """Return how many classes the batches of an order have on average, and how many those of a full shuffle would have.

    Args:
        classes: (N,) class of each item, in the order of the items; at least a batch of them.
        batch_size: Items of a batch.
    """
    num_batches = len(classes) // batch_size
    batches = classes[: num_batches * batch_size].reshape(-1, batch_size)[:: max(1, num_batches // LOOKED_AT)]
    shares = np.unique(classes, return_counts=True)[1] / len(classes)
    return float(np.mean([len(np.unique(batch)) for batch in batches])), float((1 - (1 - shares) ** batch_size).sum())


def share(
    order: Numbers, seen: int, rank: int, world_size: int, *, pads: bool
) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Divide what is left of an order, equally many items for each process.

    Args:
        order: The items of all processes.
        seen: How many of them were taken.
        rank: Number of this process.
        world_size: Number of processes.
        pads: Fill up with the first items of the order instead of leaving the last ones out.

    Returns:
        The items of this process, and which of them are not filled up.
    """
    left = order[seen:]
    count = len(left)
    if pads:
        total = -(-count // world_size) * world_size
        left = np.concatenate([left, np.resize(order, total - count)])
    else:
        total = count // world_size * world_size
    return left[rank:total:world_size], np.arange(rank, total, world_size) < count


class OwnOrder:
    """All items in ascending order, or shuffled in each epoch.

    Args:
        count: Number of items of all processes.
        shuffle: Whether to shuffle.
        runs: (count,) run of each item, if they are shuffled by runs; see `run_order`.
        window: See `run_order`.
        seed: Seed of the order.
        rank: Number of this process.
        world_size: Number of processes.
        pads: See `share`.

    Attributes:
        continues: Whether a loop that was left early is continued by the next one
        drawn: None, because every order can be made again
        epoch: None, because only the loader sets it
        ends: None, because the loader makes batches
        in_batches: False, likewise
        loaded: An epoch whose state was loaded, and for how many processes its order was made
    """

    epoch = drawn = None
    ends: Numbers | None = None
    in_batches = False

    def __init__(
        self,
        count: int,
        seed: int,
        rank: int,
        world_size: int,
        *,
        shuffle: bool,
        pads: bool,
        runs: Numbers | None = None,
        window: int = 1,
    ) -> None:
        self._count, self._seed, self._shuffle, self._pads = count, seed, shuffle, pads
        self._runs, self._window = runs, window
        self.rank, self.world_size, self.continues = rank, world_size, shuffle
        self.loaded = (-1, world_size)

    def world_of(self, epoch: int) -> int:
        """Return the number of processes for which the order of an epoch is made: before its state was loaded there may have been
        more or fewer of them.
        """
        return self.loaded[1] if epoch == self.loaded[0] else self.world_size

    def identity(self) -> dict[str, Any]:
        """Return what determines the order."""
        by_runs: dict[str, int | None] = {"window": None, "num_runs": None}
        if self._runs is not None:
            by_runs = {"window": self._window, "num_runs": int(np.max(self._runs)) + 1}
        return {"sampler": None, "shuffle": self._shuffle, "seed": self._seed, "batch_by": None, **by_runs}

    def total(self) -> int:
        """Return the number of items of all processes."""
        return self._count

    def given_after(self, _epoch: int, seen: int, count: int) -> int:
        """Return how many items of all processes are taken when each has taken `count` more."""
        return min(seen + count * self.world_size, self._count)

    def length(self) -> int:
        """Return the number of this process's items in an epoch."""
        return -(-self._count // self.world_size) if self._pads else self._count // self.world_size

    def items(self, epoch: int, seen: int) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Return this process's items of an epoch, and which of them are not filled up.

        Args:
            epoch: The epoch.
            seen: How many items of all processes were taken already.
        """
        if self._runs is None:
            order = epoch_order(self._count, epoch, self._seed, shuffle=self._shuffle)
        else:
            order = run_order(self._runs, epoch, self._seed, self.world_of(epoch), self._window)
        return share(order, seen, self.rank, self.world_size, pads=self._pads)


class BucketOrder(OwnOrder):
    """Batches of items of one bucket, shuffled or in the order of their first items.

    The batches of all processes are one sequence, of which process r of W takes every W-th, beginning with batch r. So when every
    process has taken k batches, the first k * W are taken, and any other number of processes can go on with the rest.

    Args:
        buckets: (N,) bucket of each item.
        batch_size: Items of a batch; the last one of a bucket has fewer.
        drop_last: Leave out batches that are not full.
        seed: Seed of the order.
        rank: Number of this process.
        world_size: Number of processes.
        shuffle: Whether to shuffle.
        pads: Repeat batches instead of leaving the last ones out, so that all processes have equally many.

    Attributes:
        ends: (B,) ends of the batches among the items of `items`
    """

    in_batches = True

    def __init__(
        self,
        buckets: Numbers,
        batch_size: int,
        seed: int,
        rank: int,
        world_size: int,
        *,
        drop_last: bool,
        shuffle: bool,
        pads: bool,
    ) -> None:
        super().__init__(len(buckets), seed, rank, world_size, shuffle=shuffle, pads=pads)
        self._buckets, self._batch_size, self._drop_last = buckets, batch_size, drop_last
        self._known: tuple[int, list[Numbers]] = (-1, [])

    def _batches(self, epoch: int) -> list[Numbers]:
        """Return the items of each batch of all processes."""
        if self._known[0] != epoch:
            order = epoch_order(self._count, epoch, self._seed, shuffle=self._shuffle)
            order = order[np.argsort(self._buckets[order], kind="stable")]
            ends = np.flatnonzero(np.diff(self._buckets[order], append=-1)) + 1
            found = [
                order[first : min(first + self._batch_size, end)]
                for begin, end in pairwise([0, *ends.tolist()])
                for first in range(begin, end, self._batch_size)
            ]
            if self._drop_last:
                found = [batch for batch in found if len(batch) == self._batch_size]
            if self._shuffle:
                places = np.random.default_rng((self._seed, epoch, 2)).permutation(len(found)).tolist()
                found = [found[place] for place in places]
            else:
                found.sort(key=lambda batch: int(batch[0]))
            self._known = epoch, found
        return self._known[1]

    def _num_taken(self, epoch: int, seen: int) -> tuple[Numbers, int]:
        """Return the ends of the batches of all processes, and how many of them `seen` items are."""
        ends = np.cumsum([len(batch) for batch in self._batches(epoch)])
        return ends, int(np.searchsorted(ends, seen, "right"))

    def identity(self) -> dict[str, Any]:
        own = {"batch_by": "bucket", "batch_size": self._batch_size, "drop_last": self._drop_last}
        return {**super().identity(), **own}

    def given_after(self, epoch: int, seen: int, count: int) -> int:  # noqa: ARG002 (batches differ in length)
        ends, taken = self._num_taken(epoch, seen)
        return int(ends[min(taken + self.world_size, len(ends)) - 1])

    def length(self) -> int:
        """Return the number of this process's batches in an epoch."""
        count = len(self._batches(0))
        return -(-count // self.world_size) if self._pads else count // self.world_size

    def items(self, epoch: int, seen: int) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        every = self._batches(epoch)
        numbers, is_own = share(
            np.arange(len(every)), self._num_taken(epoch, seen)[1], self.rank, self.world_size, pads=self._pads
        )
        own = [every[number] for number in numbers.tolist()]
        self.ends = np.cumsum([len(batch) for batch in own], dtype=np.int64)
        return np.concatenate([np.zeros(0, np.int64), *own]), np.repeat(is_own, [len(batch) for batch in own])


class SamplerOrder:
    """The order of a sampler, such as those of torch.

    A sampler with `set_epoch`, `num_replicas` and `rank`, such as torch's DistributedSampler, divides the items itself.

    Args:
        sampler: The sampler.
        count: Number of items that it chooses from.
        in_batches: Whether it gives lists of items, each a batch. It is then that of this process alone.

    Attributes:
        ends: (B,) ends of the batches among the items of `items`; None if the loader makes them
        repeats: Whether it can repeat the order of an epoch
        divides: Whether it divides items among processes
        continues: Whether a loop that was left early is continued by the next one
        loaded: An epoch whose state was loaded, and the number of processes that shared it
        drawn: The order of the epoch, if the sampler cannot repeat it
    """

    drawn: list[Any] | None = None
    ends: Numbers | None = None

    def __init__(self, sampler: Iterable[Any], count: int, *, in_batches: bool = False) -> None:
        self._sampler: Any = sampler
        self._count, self.in_batches = count, in_batches
        self.repeats = hasattr(sampler, "set_epoch")
        self.divides = (
            not in_batches and self.repeats and all(hasattr(sampler, name) for name in ("num_replicas", "rank"))
        )
        self.rank: int = getattr(sampler, "rank", 0) if self.divides else 0
        self.world_size: int = getattr(sampler, "num_replicas", 1) if self.divides else 1
        self._may_shuffle = bool(getattr(sampler, "shuffle", not isinstance(sampler, Sequence)))
        self.continues = self._may_shuffle
        self.loaded = (-1, self.world_size)

    def world_of(self, _epoch: int) -> int:
        """Return the number of processes that share an epoch."""
        return self.world_size

    @property
    def epoch(self) -> int | None:
        """Epoch that the sampler was set to; None if it does not say."""
        epoch = getattr(self._sampler, "epoch", None)
        return epoch if isinstance(epoch, int) else None

    def identity(self) -> dict[str, Any]:
        """Return what determines the order."""
        sampler = self._sampler
        identity: dict[str, Any] = {"sampler": type(sampler).__qualname__, "window": None, "num_runs": None}
        identity |= {name: getattr(sampler, name, None) for name in ("shuffle", "seed")}
        if not self.divides and hasattr(sampler, "__len__"):
            identity["sampler_length"] = len(sampler)
        return identity

    def total(self) -> int | None:
        """Return the number of items of all processes; None if it is unknown, or depends on their number."""
        is_known = not self.divides and not self.in_batches and hasattr(self._sampler, "__len__")
        return len(self._sampler) if is_known else None

    def given_after(self, _epoch: int, seen: int, count: int) -> int:
        """Return how many items of all processes are taken when each has taken `count` more."""
        given = seen + count * self.world_size
        return min(given, self.total() or given)

    def length(self) -> int:
        """Return the number of this process's items, or batches, in an epoch. Raises TypeError for a sampler without a length."""
        return len(self._sampler)

    def items(self, epoch: int, seen: int) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Return this process's items of an epoch, and which of them are not filled up; see `OwnOrder.items`.

        Raises:
            SettingsError: The order cannot be continued.
        """
        if seen and self.drawn is not None:
            return _all_items(self._rest(self.check(self.drawn), seen))
        if self.repeats:
            self._sampler.set_epoch(epoch)
        given = [*self._sampler]
        own = self.check(given)
        self.drawn = None if self.repeats else own if self.ends is None else [[*map(int, batch)] for batch in given]
        self.continues = self._may_shuffle and any(one > other for one, other in pairwise(own))
        if not seen:
            return np.asarray(own, np.int64), self._mask(len(own))
        if self.repeats and own != self._items_for(epoch, self.rank, self.world_size):
            raise SettingsError(
                f"{type(self._sampler).__qualname__} gives another order whenever it is asked, so that an epoch cannot be "
                "continued"
            )
        if not self.divides:
            return _all_items(self._rest(own, seen))
        order = self._items_for(epoch, 0, 1)
        worlds = {self.world_size, self.loaded[1]}
        if all(_takes_turns(self._items_for(epoch, 0, world), order, world) for world in worlds):
            pads = not getattr(self._sampler, "drop_last", False)
            return share(np.asarray(order, np.int64), seen, self.rank, self.world_size, pads=pads)
        if len(worlds) > 1:
            raise SettingsError(
                f"{type(self._sampler).__qualname__} does not take turns with other processes, so an epoch can only be "
                f"continued by {self.loaded[1]} processes, as before"
            )
        return _all_items(own[seen // self.world_size :])

    def _rest(self, own: list[int], seen: int) -> list[int]:
        """Return what is left of an order, and keep the ends of its batches."""
        if self.ends is not None:
            self.ends = self.ends[self.ends > seen] - seen
        return own[seen:]

    def _mask(self, count: int) -> npt.NDArray[np.bool_]:
        """Return which of `count` items of this process are not repeated to fill up the end."""
        places = np.arange(count) * self.world_size + self.rank
        is_filled = 0 < count * self.world_size - self._count < self.world_size
        return places < self._count if is_filled else np.ones(count, np.bool_)

    def check(self, order: Iterable[Any]) -> list[int]:
        """Return an order as a list, and keep the ends of its batches. Raises SettingsError if it has anything but numbers of
        items.
        """
        items: list[Any] = list(order)
        if self.in_batches:
            if wrong := [each for each in items if not isinstance(each, Collection) or not len(each)]:
                raise SettingsError(f"batch_sampler gives {wrong[0]!r}; give lists of numbers of items")
            self.ends = np.cumsum([len(batch) for batch in items])
            items = [*chain.from_iterable(items)]
        if wrong := [
            index for index in items if not isinstance(index, SupportsIndex) or not 0 <= int(index) < self._count
        ]:
            raise SettingsError(
                f"the sampler gives {wrong[0]!r}; give numbers of items, 0 to {self._count - 1}; a sampler of lists is a batch_sampler"
            )
        return [int(index) for index in items]

    def _items_for(self, epoch: int, rank: int, world_size: int) -> list[int]:
        """Return the items that the sampler would give one of so many processes."""
        other = copy.copy(self._sampler)
        other.set_epoch(epoch)
        if self.divides:
            other.rank, other.num_replicas = rank, world_size
        if self.divides and hasattr(other, "total_size"):  # as torch's DistributedSampler computes it
            drops = getattr(other, "drop_last", False)
            other.num_samples = self._count // world_size if drops else -(-self._count // world_size)
            other.total_size = other.num_samples * world_size
        return self.check(other)


def _takes_turns(first: list[int], order: list[int], world_size: int) -> bool:
    """Return whether the items of the first of several processes are every n-th of an order."""
    return first == order[::world_size][: len(first)]


def _all_items(order: Sequence[int]) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    return np.asarray(order, np.int64), np.ones(len(order), np.bool_)
