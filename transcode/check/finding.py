"""What an examination of a machine, a folder or a store found out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one test of `doctor`.

    Attributes:
        what: Name of the test.
        ok: Whether it passed.
        detail: What was measured, or the error.
        advice: What to do if it failed.
        needed: Whether a run cannot work without it.
    """

    what: str
    ok: bool
    detail: str
    advice: str = ""
    needed: bool = True
