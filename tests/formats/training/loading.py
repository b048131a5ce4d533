"""Loaders, their workers and their batches, as tests look at them."""

from __future__ import annotations

import contextlib

import psutil
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


def children() -> list[psutil.Process]:
    """Processes of loaders of this process, without those that are kept for runs of vidprep."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "vidprep-child" in (told := child.cmdline()) and "vidprep.transcode" not in " ".join(told):
                found.append(child)
    return found
