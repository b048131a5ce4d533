"""A few sources that stand for all."""

from __future__ import annotations

from vidprep.transcode.sources import Unit


def choose(units: tuple[Unit, ...], count: int) -> tuple[Unit, ...]:
    """`count` of the units, all when there are fewer; the same ones each time.

    Systematic: ordered by folder and then by size, every n-th is taken, so that folders and sizes are there in
    proportion.
    """
    ordered = sorted(units, key=lambda unit: (unit.id.rpartition("/")[0], unit.size_bytes, unit.id))
    if count >= len(ordered):
        return tuple(ordered)
    return tuple(ordered[(2 * n + 1) * len(ordered) // (2 * count)] for n in range(count))
