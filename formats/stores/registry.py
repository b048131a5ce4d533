"""List of all stores. A store is a module of this folder, found by its name.

It has `open_here(folder, options)`, which returns its reader, and `LAYOUT` if `vidprep burst` can write it.
"""

from __future__ import annotations

import fnmatch
import json
import os
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from vidprep.formats.errors import SettingsError, StoreError
from vidprep.formats.manifest import manifest_paths
from vidprep.formats.storage import open_unlinked

if TYPE_CHECKING:
    from vidprep.formats.stores.base import FrameStore
    from vidprep.formats.stores.shards import StoreLayout


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of `open_store`; see there."""

    checksum: bool = True
    short_side: int | None = None
    fast: bool = False
    hardware: str | None = None

    def refuse(self, folder: Path, option: str, takers: str) -> None:
        """Raise StoreError if an option was given that only other stores support."""
        if getattr(self, option):
            raise StoreError(f"{option} is for {takers}", path=folder)


ENCODED, VIDEO_SHARDS = "encoded", "shards"  # videos in files of their own, or in tar shards; one reader for both
VIDEO_STORES = ("files", VIDEO_SHARDS)
SEARCHED = 1000  # subfolders that are searched for stores, to name them


@dataclass(frozen=True, slots=True)
class StoreKind:
    """Signs by which a store is recognised.

    Attributes:
        sign: Glob of the files that mark it
        is_coded: Whether it holds JPEGs instead of uncompressed pictures
    """

    sign: str
    is_coded: bool = True


# If a folder holds several, the first one is opened; without any, videos and their manifest.
STORES_OF_FRAMES = {
    "burst": StoreKind("burst.json"),
    "gulp": StoreKind("*.gmeta"),
    "webdataset": StoreKind("*.tar"),
    "tensor": StoreKind("tensor.json", is_coded=False),
}
SIGNS_OF_ENCODED = ("gops.parquet", "manifest*.parquet")
MAX_RUN_BYTES = 1 << 20


class _Store(Protocol):
    LAYOUT: StoreLayout

    def open_here(self, folder: Path, options: ReadOptions) -> FrameStore: ...


def layout_of(name: str) -> StoreLayout:
    """Return the layout of a store of shards."""
    if name == VIDEO_SHARDS:
        return cast("StoreLayout", import_module("vidprep.formats.stores.webdataset").VIDEO_LAYOUT)
    return _module(name).LAYOUT


def open_store(
    path: str | os.PathLike[str],
    *,
    checksum: bool = True,
    short_side: int | None = None,
    fast: bool = False,
    hardware: str | None = None,
) -> FrameStore:
    """Open a store of videos: a destination of `transcode` or `burst`, a folder that `vidprep index` has indexed, or one of
    GulpIO or WebDataset.

    ``store.ids`` lists the videos, ``store[id].frames([0, 5, -1])`` reads frames, ``store[id].timestamps`` are their
    times and ``store.labels(id)`` the labels of a video, for every kind of store.

    Args:
        path: The folder.
        checksum: Check the CRC-32 of every frame or GOP that is read, if the store has one.
        short_side: Decode JPEGs at the smallest n/8 of their size (n = 1 to 8) whose shorter side is at least this many
            pixels.
        fast: Decode faster and less exactly: JPEGs with libjpeg's fast DCT and upsampling (a fifth quicker, colours
            coarser at edges), encoded videos with libswscale's fast conversion (0.2 ms less per frame of 240 lines, up
            to four levels too dark).
        hardware: Hardware decoder for encoded videos, such as "cuda"; None decodes on the CPU.

    Raises:
        StoreError: The folder is no store, or is damaged.
        SettingsError: An argument is not allowed.
    """
    from vidprep.formats.option import whole

    if not isinstance(path, str | os.PathLike):
        raise SettingsError(f"path is {path!r}; give one folder (VideoDataset takes several)")
    folder = Path(path)
    if short_side is not None:
        short_side = whole("short_side", short_side, 1)
    if not folder.is_dir():
        is_url = "://" in os.fspath(path)
        what = "is a URL; fetch the store first" if is_url else "is not a folder; give the destination of a run"
        raise StoreError(what, path=os.fspath(path))
    options = ReadOptions(checksum, short_side, fast, hardware)
    kind = kind_of_folder(folder)
    if kind not in (None, ENCODED):
        options.refuse(folder, "hardware", "encoded videos")
    if kind is None:
        options.refuse(folder, "short_side", "stores of JPEGs")
        if (folder / ".vidprep").exists():
            raise StoreError("a run is in progress here, or was stopped; run the same command again", path=folder)
        if inner := sorted(
            each.name for each in islice(folder.iterdir(), SEARCHED) if each.is_dir() and kind_of_folder(each)
        ):
            raise StoreError(f"contains stores but is not one itself; open one: {', '.join(inner[:10])}", path=folder)
        raise StoreError(
            f"is not a store: nothing named {', '.join(chain(*_signs().values()))} in it; make one with `vidprep transcode` or "
            "`burst`, or give VideoDataset a list of video files",
            path=folder,
        )
    if kind == ENCODED and not manifest_paths(folder):
        if (folder / ".vidprep").exists():
            raise StoreError(
                "has no manifest.parquet: a run is in progress or was stopped, or it was lost; run the same command again",
                path=folder,
            )
        kind = "indexed_files"
    return _module(kind).open_here(folder, options)


def kind_made_by_run(folder: Path) -> str | None:
    """Return `encoded`, `shards` or the name of the store in .vidprep/run.json; None if it is missing or unreadable."""
    try:
        with os.fdopen(open_unlinked(folder / ".vidprep" / "run.json", os.O_RDONLY), "rb") as file:
            settings = json.loads(file.read(MAX_RUN_BYTES))["settings"]
            return str(settings.get("store", ENCODED)) if "encoder" in settings else str(settings["frames"]["store"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def kind_of_folder(folder: Path) -> str | None:
    """Return the name of the store in a folder; None if there is no store.

    Folders with the name of an index do not count. A store whose index is missing counts as `encoded` if the last run
    made it; its reader then reports what is missing.
    """
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_file()]
    there = [kind for kind, signs in _signs().items() if any(fnmatch.filter(names, sign) for sign in signs)]
    made = kind_made_by_run(folder)
    if made in there:
        return made
    if made in (*_signs(), VIDEO_SHARDS) or SIGNS_OF_ENCODED[0] in names:
        return ENCODED if ENCODED in there else None
    return there[0] if there else None


def _signs() -> dict[str, tuple[str, ...]]:
    return {name: (kind.sign,) for name, kind in STORES_OF_FRAMES.items()} | {ENCODED: SIGNS_OF_ENCODED}


def _module(name: str) -> _Store:
    return cast(_Store, import_module(f"vidprep.formats.stores.{name}"))
