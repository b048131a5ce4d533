"""Which of many cases `make test` takes; the others are marked slow, and wait for `make soak`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest


def in_turn(cases: Iterable[Any], every: int) -> list[Any]:
    """One case of each `every`, from the first on."""
    return [_case(case, is_slow=number % every > 0) for number, case in enumerate(cases)]


def pairs(rows: Sequence[Any], columns: Sequence[Any], each: int) -> list[Any]:
    """All pairs. In `make test` every row meets `each` of the columns, in turn, so that every column meets some row."""
    chosen = {(row, (number * each + step) % len(columns)) for number, row in enumerate(rows) for step in range(each)}
    return [
        _case((row, column), is_slow=(row, number) not in chosen)
        for row, (number, column) in product(rows, enumerate(columns))
    ]


def _case(values: Any, *, is_slow: bool) -> Any:
    if not is_slow:
        return values
    if isinstance(values, type(pytest.param())):
        return values._replace(marks=[*values.marks, pytest.mark.slow])
    return pytest.param(*(values if isinstance(values, tuple) else (values,)), marks=pytest.mark.slow)
