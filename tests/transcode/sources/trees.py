"""Folders, files and tables that tests list."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from vidprep.transcode.sources.unit import SourceList


def touch(path: Path, size: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def ids(found: SourceList) -> list[str]:
    return sorted(unit.id for unit in found.units)


def names(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Base name -> reason."""
    return {Path(path).name: reason for path, reason in pairs}
