"""Loaders, their workers and their batches, as tests look at them."""

from __future__ import annotations

import pytest

BOTH = pytest.mark.parametrize("processes", [True, False], ids=["processes", "threads"])


FRAME = 64 * 96 * 3


def names(batches) -> list[tuple[str, int]]:
    """(video, first frame) of every sequence of the batches."""
    return [
        (id_, int(numbers[0])) for batch in batches for id_, numbers in zip(batch["id"], batch["indexes"], strict=True)
    ]


def located(dataset, order) -> list[tuple[str, int]]:
    return [(id_, int(numbers[0])) for id_, numbers in map(dataset.locate, order)]
