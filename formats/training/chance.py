"""What is random in items: which numbers it comes from, and how processes that make items agree on the epoch."""

from __future__ import annotations

import sys
from multiprocessing import context
from multiprocessing.sharedctypes import RawValue
from typing import Any, Literal, get_args

import numpy as np

from vidprep.formats.option import whole

UNSET = -1
Key = tuple[int, ...]
Stream = Literal["picture", "clip", "transform"]
STREAMS: tuple[Stream, ...] = get_args(Stream)


class Chance:
    """Where an epoch is known, chance is a function of seed, epoch and item, whichever process asks. Where none was set, nobody says when
    an epoch begins: then it is one of seed, item, how many were made before, and the seed of torch in this process, which DataLoader gives
    its workers anew and torch.manual_seed decides: the same program has the same items, and the next epoch has others.
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

    def key(self, item: int, epoch: int | None = None) -> Key:
        """Of what is random in an item. epoch: another than the one that was set."""
        epoch = self.epoch if epoch is None else epoch
        if epoch is not None:
            return self.seed, epoch, item
        self._made += 1
        torch = sys.modules.get("torch")
        return self.seed, 0 if torch is None else torch.initial_seed(), item, self._made

    def __getstate__(self) -> dict[str, Any]:
        """The shared number goes to processes that are being spawned; any other copy has one of its own."""
        shared = self._epoch if context.get_spawning_popen() is not None else self._epoch.value
        return self.__dict__ | {"_epoch": shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self._epoch, int):
            self._epoch = RawValue("q", self._epoch)


def stream(key: Key, name: Stream) -> np.random.Generator:
    """Random numbers for one purpose, which have nothing to do with those for another."""
    return np.random.default_rng((*key, STREAMS.index(name) + 1))  # behind 0, which NumPy takes for the key without it
