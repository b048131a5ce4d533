"""Figures and names as people read them."""

from __future__ import annotations


def megabytes(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def printable(text: str) -> str:
    """On one line, with control characters and terminal escapes shown instead of obeyed."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
