"""Folders, files and tables that tests list."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vidprep.formats.manifest.labels import Labels
from vidprep.transcode.settings.run import SourceOptions
from vidprep.transcode.sources import listing
from vidprep.transcode.sources.unit import SourceList


def find_sources(
    source: Any,
    destination: Path | str,
    *,
    extension: str = "mp4",
    takes_pictures: bool = False,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> SourceList:
    """Take the options as keywords."""
    return listing.find_sources(
        source,
        destination,
        SourceOptions(**options),
        extension=extension,
        takes_pictures=takes_pictures,
        progress=progress,
    )


def touch(path: Path, size: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def ids(found: SourceList) -> list[str]:
    return sorted(unit.id for unit in found.units)


def names(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Base name -> reason."""
    return {Path(path).name: reason for path, reason in pairs}


def labels_of(found: SourceList) -> list[dict[str, Any]]:
    """Of each unit, in a destination that has none yet."""
    if found.labels is None:
        return [{} for _ in found.units]
    labels = found.labels if found.drawing is None else found.drawing.fill(found.labels, Labels(found.labels.ids))
    return [labels.values_of(unit.id) for unit in found.units]
