"""What became of the videos of an array's plan."""

from __future__ import annotations

import pytest

from vidprep.transcode.destination.array_merge import Fate, fate

PLANNED, OTHER = (100, 7, None), (100, 8, None)


@pytest.mark.parametrize(
    ("made", "has_ended", "became"),
    [
        (None, False, Fate.UNFINISHED),
        (None, True, Fate.LOST),
        (PLANNED, False, Fate.DONE),
        (PLANNED, True, Fate.DONE),
        (OTHER, False, Fate.STALE),
        (OTHER, True, Fate.CHANGED),
    ],
)
def test_fate(made: tuple[object, ...] | None, has_ended: bool, became: Fate) -> None:
    assert fate(made, PLANNED, has_ended=has_ended) is became
