"""Figures and names as people read them, and as JSON holds them."""

from __future__ import annotations

import math
from typing import Any


def megabytes(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def count_of(count: int, noun: str) -> str:
    """`1 video`, `2 videos`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def printable(text: str) -> str:
    """On one line, with control characters and terminal escapes shown instead of obeyed."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def for_json(value: Any) -> Any:
    """The same with infinity as "inf": JSON has no number for it."""
    if isinstance(value, dict):
        return {name: for_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
