"""Connection to torch: tensors, devices, batches of its DataLoader, and the random numbers of a user's function."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from vidprep.formats.errors import MissingError
from vidprep.formats.training.items import Item, ItemLabels, RandomKey, batch_of, check_one_shape, stream


def convert_to_tensors(item: Item) -> Item:
    """Return arrays as torch tensors that share their memory."""
    torch = import_torch()
    made = Item(
        (name, torch.from_numpy(value) if isinstance(value, np.ndarray) else value) for name, value in item.items()
    )
    for name in ("labels", "rows"):
        if isinstance(inner := made.get(name), dict):
            made[name] = type(inner)(convert_to_tensors(Item(inner)))
            if isinstance(inner, ItemLabels):
                made[name].arrays = inner.arrays
    return made


def find_device(name: str) -> Any:
    """Return a torch device that works. Raises MissingError."""
    torch = import_torch()
    try:
        torch.empty(1, device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        raise MissingError(f"torch finds no device {name!r} here: {str(error).splitlines()[0]}") from error


def import_torch() -> Any:
    """Return the module torch. Raises MissingError."""
    try:
        import torch
    except ImportError as error:
        raise MissingError("tensors need torch: pip install torch") from error
    return torch


_one_at_a_time = threading.Lock()  # each of them has one generator for all threads


@contextmanager
def seed_block(key: RandomKey) -> Iterator[None]:
    """Seed Python, NumPy and (if imported) torch on the CPU from `key` within the block, and restore their states after
    it.
    """
    seed = int(stream(key, "transform").integers(1 << 32))
    with _one_at_a_time, ExitStack() as after:
        after.callback(random.setstate, random.getstate())
        after.callback(np.random.set_state, np.random.get_state())
        random.seed(seed)
        np.random.seed(seed)
        if (torch := sys.modules.get("torch")) is not None:
            after.enter_context(torch.random.fork_rng(devices=[]))
            torch.default_generator.manual_seed(seed)
        yield


def register_torch_collate() -> None:
    """Let torch's default_collate combine labels as `batch_of` does, and refuse frames of different shapes with the
    names of their videos, if torch is imported.
    """
    collate = sys.modules.get("torch.utils.data._utils.collate")
    if collate is None or Item in collate.default_collate_fn_map:
        return
    from torch import as_tensor

    def of_labels(batch: Sequence[ItemLabels], *, collate_fn_map: Mapping[Any, Any] | None = None) -> dict[str, Any]:  # noqa: ARG001
        made = batch_of(batch)
        return {name: as_tensor(value) if isinstance(value, np.ndarray) else value for name, value in made.items()}

    def of_items(batch: Sequence[Item], *, collate_fn_map: Mapping[Any, Any] | None = None) -> dict[str, Any]:
        check_one_shape([(item["id"], tuple(item["frames"].shape)) for item in batch], "collate_fn=pad_collate")
        return {
            name: collate.collate([item[name] for item in batch], collate_fn_map=collate_fn_map) for name in batch[0]
        }

    collate.default_collate_fn_map[ItemLabels] = of_labels
    collate.default_collate_fn_map[Item] = of_items
