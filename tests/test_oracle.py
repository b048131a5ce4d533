"""The oracle sees the same twice where nothing changed, and sees what did."""

from __future__ import annotations

import pytest

from tests.oracle import differences, record

SAMPLE = ["api", "files", "stores", "arrays"]


@pytest.mark.long
def test_two_recordings_of_one_tree_are_equal() -> None:
    first, second = (record(SAMPLE, few=True) for _ in range(2))
    assert not [*differences(first, second)]
    assert all(len(first[name]) > 10 for name in SAMPLE)


def test_each_difference_is_named_with_its_place() -> None:
    before = {"files": {"00 transcode": {"code": 0, "out": ["a", "b"]}, "01 show": {"code": 0}}}
    after = {"files": {"00 transcode": {"code": 1, "out": ["a", "c"]}, "02 show": {"code": 0}}}
    named = [line.partition(":")[0] for line in differences(before, after)]
    assert named == ["/files/00 transcode/code", "/files/00 transcode/out", "/files/01 show", "/files/02 show"]
    assert not [*differences(before, before)]
