"""How a store is to be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vidprep.formats.errors import StoreError


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """See `open_store`."""

    checksum: bool = True
    short_side: int | None = None
    fast: bool = False
    hardware: str | None = None

    def refuse(self, folder: Path, option: str, takers: str) -> None:
        """Raises StoreError where an option was given that is for others."""
        if getattr(self, option):
            raise StoreError(f"{option} is for {takers}", path=folder)
