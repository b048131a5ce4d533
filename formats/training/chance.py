"""What is random in items: which numbers it comes from, and how processes that make items agree on the epoch."""

from __future__ import annotations

import sys
from multiprocessing import context
from multiprocessing.sharedctypes import RawValue
from typing import Any

from vidprep.formats.validation import whole

UNSET = -1


class Chance:
    """Where an epoch is known, chance is a function of seed, epoch and item, whichever process asks. Where none was set, nobody says when
    an epoch begins: then it is one of the seed, of the item, of how many were made before, and of the seed that torch's DataLoader
    gives its worker, which torch.manual_seed decides: the same program has the same items, and the next epoch has others.
    """

    def __init__(self, seed: int) -> None:
        self.seed = whole("seed", seed, 0)
        self._epoch = RawValue("q", UNSET)  # in memory that workers see, also those that are at work already
        self._made = 0

    @property
    def epoch(self) -> int | None:
        return None if self._epoch.value == UNSET else int(self._epoch.value)

    def set_epoch(self, epoch: int) -> None:
        """Raises SettingsError."""
        self._epoch.value = whole("epoch", epoch, 0)

    def key(self, item: int, epoch: int | None = None) -> tuple[int, ...]:
        """Of the random numbers of an item. epoch: another than the one that was set."""
        epoch = self.epoch if epoch is None else epoch
        if epoch is not None:
            return self.seed, epoch, item
        self._made += 1
        return self.seed, _seed_of_torch_worker(), item, self._made

    def __getstate__(self) -> dict[str, Any]:
        """The shared number goes to processes that are being spawned; any other copy has one of its own."""
        shared = self._epoch if context.get_spawning_popen() is not None else self._epoch.value
        return self.__dict__ | {"_epoch": shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self._epoch, int):
            self._epoch = RawValue("q", self._epoch)


def _seed_of_torch_worker() -> int:
    """0 in any other process."""
    torch_data = sys.modules.get("torch.utils.data")
    worker = None if torch_data is None else torch_data.get_worker_info()
    return 0 if worker is None else int(worker.seed)
