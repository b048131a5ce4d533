"""Check the rows and metadata that a run wrote for LeRobot beside the videos of a destination."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vidprep.formats.storage.local import sha256_of
from vidprep.formats.storage.untrusted import read_json
from vidprep.transcode.sources.outputs import STATE_DIR

STATE_NAME = "lerobot.json"  # in the folder of the run's state


def read_record(destination: Path) -> dict[str, Any]:
    """Return what was recorded of them: `digest`, size and SHA-256 of each of `files`, and which episodes are `left_out`; empty without
    a record.
    """
    path = destination / STATE_DIR / STATE_NAME
    try:
        record = read_json(path) if path.is_file() else {}
        files = {name: known for name, known in dict(record.get("files") or {}).items() if _is_one(name)}
    except (OSError, ValueError, TypeError):
        return {}
    return record | {"files": files} if record else {}


def _is_one(name: str) -> bool:
    """Return whether a name is one of such a file. Others are never removed, whatever a record says."""
    return name.startswith(("data/", "meta/", "videos/")) and ".." not in name.split("/")


def faults_of_robot_files(destination: Path) -> Iterator[str]:
    """Yield what differs between a LeRobot dataset and the one that the run was asked for."""
    record = read_record(destination)
    if record and "digest" not in record:
        yield f"{destination}: has no rows of its LeRobot dataset yet; the same `vidprep transcode` writes them"
    for episode, why in dict(record.get("left_out") or {}).items():
        yield f"{destination}: episode {episode} of the source is left out: it {why}"
    yield from faults_of_files(destination)


def faults_of_files(destination: Path) -> Iterator[str]:
    """Yield a line for each file that is missing, or is not the one that was written."""
    for name, known in read_record(destination).get("files", {}).items():
        path = destination / name
        if not path.is_file():
            yield f"{path}: is missing; the same `vidprep transcode` writes it again"
        elif known is not None and [path.stat().st_size, sha256_of(path)] != known:
            yield f"{path}: is not the file that was written; the same `vidprep transcode` writes it again"
