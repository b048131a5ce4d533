"""Which store is in a folder: what the last run there made, else what the files that stand in it tell."""

from __future__ import annotations

import json
import os
from pathlib import Path

from vidprep.formats.files.no_links import open_unlinked

ENCODED = "encoded"
MAX_RUN_BYTES = 1 << 20


def kind_made_by_run(folder: Path) -> str | None:
    """`encoded`, or the name of the store, that .vidprep/run.json speaks of; None where it says nothing that can be read."""
    try:
        with os.fdopen(open_unlinked(folder / ".vidprep" / "run.json", os.O_RDONLY), "rb") as file:
            settings = json.loads(file.read(MAX_RUN_BYTES))["settings"]
            return ENCODED if "encoder" in settings else str(settings["frames"]["store"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def kind_of_folder(folder: Path) -> str | None:
    """`burst`, `tensor`, `gulp`, `webdataset` or `encoded`; None for what is no store. Folders that are named as an index do not count.

    A store that the last run made and whose index is not there is `encoded` too, whose reader tells what is missing.
    """
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_file()]
    signs = {
        "burst": "burst.json" in names,
        "gulp": any(name.endswith(".gmeta") for name in names),
        "webdataset": any(name.endswith(".tar") for name in names),
        "tensor": "tensor.json" in names,
        ENCODED: any(name.startswith("manifest") and name.endswith(".parquet") for name in names),
    }
    there = [kind for kind, is_there in signs.items() if is_there]
    made = kind_made_by_run(folder)
    if made in there:
        return made
    if made in signs:
        return ENCODED if signs[ENCODED] else None
    return there[0] if there else None
