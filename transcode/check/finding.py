"""What an examination of a machine, a folder or a store found out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """needed: a run cannot keep its promises without it. advice: what to do when it is not ok."""

    what: str
    ok: bool
    detail: str
    advice: str = ""
    needed: bool = True
