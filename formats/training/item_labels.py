"""Labels in items and batches: of one kind in every batch, whatever values it holds, also where torch's DataLoader makes it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from vidprep.formats.manifest.labels import Labels


class ItemLabels(dict[str, Any]):
    """The labels of a video by name. arrays: those that are arrays in batches, the others are lists."""

    arrays: frozenset[str] = frozenset()


def array_labels(labels: Labels) -> frozenset[str]:
    """Numbers, true and false that no video lacks."""
    return frozenset(
        name
        for name, array in labels.columns.items()
        if not array.null_count
        and any(test(array.type) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean))
    )


def batch_of(items: Sequence[ItemLabels]) -> dict[str, Any]:
    """Each label of several items as an array or as a list."""
    return {
        name: np.asarray([item[name] for item in items]) if name in items[0].arrays else [item[name] for item in items]
        for name in items[0]
    }


def teach_torch() -> None:
    """Have torch's default_collate make batches of labels as `batch_of` does, where torch is imported."""
    collate = sys.modules.get("torch.utils.data._utils.collate")
    if collate is None or ItemLabels in collate.default_collate_fn_map:
        return
    from torch import as_tensor

    def of_torch(batch: Sequence[ItemLabels], *, collate_fn_map: Mapping[Any, Any] | None = None) -> dict[str, Any]:  # noqa: ARG001
        made = batch_of(batch)
        return {name: as_tensor(value) if isinstance(value, np.ndarray) else value for name, value in made.items()}

    collate.default_collate_fn_map[ItemLabels] = of_torch
