"""Rows and metadata of a LeRobot dataset that stand beside the videos of a destination: are they those that were written?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vidprep.formats.storage import read_json, sha256_of
from vidprep.transcode.sources import STATE_DIR

STATE_NAME = "lerobot.json"  # in the folder of the run's state


def written_files(destination: Path) -> dict[str, Any]:
    """Return what was recorded of them: `digest`, and size and SHA-256 of each of `files`; empty without a record."""
    path = destination / STATE_DIR / STATE_NAME
    try:
        return read_json(path) if path.is_file() else {}
    except (OSError, ValueError):
        return {}


def faults_of_robot_files(destination: Path) -> Iterator[str]:
    """Yield a line for each file that is missing, or is not the one that was written."""
    recorded = written_files(destination)
    for name, known in dict(recorded.get("files") or {}).items():
        path = destination / name
        if not path.is_file():
            yield f"{path}: is missing; the same `vidprep transcode` writes it again"
        elif known is not None and [path.stat().st_size, sha256_of(path)] != known:
            yield f"{path}: is not the file that was written; the same `vidprep transcode` writes it again"
