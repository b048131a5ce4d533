"""A few that stand for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Sized(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def size_bytes(self) -> int | None: ...


T = TypeVar("T", bound=Sized)


def choose(items: Sequence[T], count: int) -> tuple[T, ...]:
    """`count` of the sources or rows, all when there are fewer; the same ones each time.

    Systematic: ordered by folder and then by size, every n-th is taken, so that folders and sizes are there in
    proportion.
    """
    ordered = sorted(items, key=lambda item: (item.id.rpartition("/")[0], item.size_bytes or 0, item.id))
    if count >= len(ordered):
        return tuple(ordered)
    return tuple(ordered[(2 * n + 1) * len(ordered) // (2 * count)] for n in range(count))
