"""A sampler for torch's DataLoader whose epochs can be continued by another number of processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Any

from vidprep.formats.errors import SettingsError
from vidprep.formats.option import suggesting, whole
from vidprep.formats.training._order import epoch_order, share

if TYPE_CHECKING:
    Base = object
else:
    try:
        from torch.utils.data import DistributedSampler as Base  # so that Lightning does not wrap it in another one
    except ImportError:
        Base = object


@suggesting()
class ElasticDistributedSampler(Base):
    """A DistributedSampler that continues an epoch after a restart, also with another number of processes.

    Every epoch has one order of all items, of which each process takes every num_replicas-th. Its state is how many
    items all processes have taken, so the state of one process is that of all. With torchdata's StatefulDataLoader,
    the state of the loader contains it (its snapshot_every_n_steps must stay 1 if the number of processes changes).
    With torch's DataLoader, tell `state_dict` how many items came out of the loop. Epochs are counted from 0, unless
    `set_epoch` says which one it is, and the random clips and crops of a VideoDataset follow them.

    Args:
        dataset: A dataset with a length.
        num_replicas: Number of processes; None asks torch.distributed, and is 1 without it.
        rank: Number of this process; None asks torch.distributed, and is 0 without it.
        shuffle: Shuffle the items in each epoch.
        seed: Seed of the order, the same for all processes.
        drop_last: Leave out the last items that do not divide evenly; else the first ones come once more.

    Raises:
        SettingsError: An argument is not allowed, or the dataset is divided among processes itself.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        own_rank, world_size = _rank_of_torch()
        self.num_replicas = whole("num_replicas", world_size if num_replicas is None else num_replicas, 1)
        self.rank = whole("rank", own_rank if rank is None else rank, 0)
        if self.rank >= self.num_replicas:
            raise SettingsError(f"rank is {self.rank}; with {self.num_replicas} processes it is below that")
        self.shuffle, self.seed, self.drop_last = bool(shuffle), whole("seed", seed, 0), bool(drop_last)
        self.dataset, self.epoch = dataset, 0
        self._count = len(dataset)
        self._seen = self._given = 0
        self._is_over = False

    def __len__(self) -> int:
        """Return the number of items of this process in the epoch, or in what is left of one whose state was loaded."""
        left = max(0, self._count - (0 if self._is_over else self._seen))
        return left // self.num_replicas if self.drop_last else -(-left // self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        """Return the items of this process in the epoch, or what is left of them after `load_state_dict`."""
        if self._is_over:
            self.set_epoch(self.epoch + 1)
        self._tell_dataset()
        self._given = 0
        order = epoch_order(self._count, self.epoch, self.seed, shuffle=self.shuffle)
        mine, _ = share(order, self._seen, self.rank, self.num_replicas, pads=not self.drop_last)
        for item in mine.tolist():
            self._given += 1
            yield item
        self._is_over = True

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. It begins with its first item, unless it is the one whose state was loaded."""
        if epoch != self.epoch or self._is_over:
            self._seen = self._given = 0
            self._is_over = False
        self.epoch = whole("epoch", epoch, 0)
        self._tell_dataset()

    def _tell_dataset(self) -> None:
        """Tell the epoch to all VideoDatasets, also inside of torch's Subset and ConcatDataset."""
        waiting: list[Any] = [self.dataset]
        for child in waiting:
            if hasattr(child, "follow_epoch"):
                child.follow_epoch(self.epoch)
            parts = getattr(child, "datasets", None)
            waiting += [
                *(parts if isinstance(parts, list | tuple) else ()),
                *([child.dataset] if hasattr(child, "indices") else []),
            ]

    def state_dict(self, items_given: int | None = None) -> dict[str, Any]:
        """Return how many items of the epoch all processes have taken.

        Args:
            items_given: How many items came out of this process's loop since it began. None means all that were taken
                from the sampler; torch's DataLoader takes some in advance.
        """
        own = self._given if items_given is None else whole("items_given", items_given, 0)
        taken = min(self._count, self._seen + own * self.num_replicas)
        return {"epoch": self.epoch, "items_given": taken, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of any process.

        If nothing is left of its epoch and a later one was set already, that one begins: StatefulDataLoader loads the
        state only when its loop begins.

        Raises:
            SettingsError: The state is of another dataset or order.
        """
        if not isinstance(state, dict) or not {"epoch", "items_given"} <= state.keys():
            raise SettingsError(f"{state!r} is not the state of a sampler")
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise SettingsError(f"the state was saved with {name} {state.get(name)}, this sampler has {value}")
        epoch, seen = whole("epoch", state["epoch"], 0), whole("items_given", state["items_given"], 0)
        self._given, self._is_over = 0, False
        set_before, self.epoch, self._seen = self.epoch, epoch, seen
        if set_before > epoch and not len(self):
            self.epoch, self._seen = set_before, 0
        self._tell_dataset()

    def _identity(self) -> dict[str, Any]:
        return {"items": self._count, "shuffle": self.shuffle, "seed": self.seed}


def _rank_of_torch() -> tuple[int, int]:
    """Return rank and number of processes of torch.distributed; 0 and 1 if it is not used."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()
