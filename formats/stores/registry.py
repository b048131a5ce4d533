"""List of all stores. A store is a module of this folder, found by its name.

It has `open_here(files, options)`, which returns its reader, and `LAYOUT` if `vidprep burst` can write it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from vidprep.formats.errors import SettingsError, StoreError, VidprepError
from vidprep.formats.manifest.table import MANIFEST_NAME, manifest_paths, manifest_rows, read_rows
from vidprep.formats.storage.base import is_url
from vidprep.formats.storage.local import open_unlinked
from vidprep.formats.storage.ranges import RangePlace
from vidprep.formats.stores.data_files import LocalFiles, ReadOptions

if TYPE_CHECKING:
    from vidprep.formats.stores.base import FrameStore
    from vidprep.formats.stores.data_files import DataFiles
    from vidprep.formats.stores.shards import StoreLayout


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

    def open_here(self, files: DataFiles, options: ReadOptions) -> FrameStore: ...


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
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int = 0,
    cache_dir_bytes: int = 0,
    timeout_seconds: float = 60.0,
) -> FrameStore:
    """Open a store of videos: a destination of `transcode` or `burst`, or a folder of GulpIO or WebDataset.

    A store behind a URL is read by ranges: manifest and index are copied to this machine, and a sequence of frames is
    one request.

    ``store.ids`` lists the videos, ``store[id].frames([0, 5, -1])`` reads frames, ``store[id].timestamps`` are their
    times and ``store.labels(id)`` the labels of a video, for every kind of store.

    Examples:
        >>> from vidprep.formats import open_store
        >>> store = open_store("ready/")
        >>> list(store.ids)
        ['a/b', 'c']
        >>> store["a/b"].frames([0, 5, -1]).shape  # uint8 RGB
        (3, 240, 300, 3)
        >>> store["a/b"].frames_at([0.5, 1.2]).shape  # seconds
        (2, 240, 300, 3)

    Args:
        path: The folder, or its URL: s3://, gs://, az://, https:// (any server that knows ranges), or memory://.
        checksum: Check the CRC-32 of every frame or GOP that is read, if the store has one.
        short_side: Decode JPEGs at the smallest n/8 of their size (n = 1 to 8) whose shorter side is at least this many
            pixels.
        fast: Decode faster and less exactly: JPEGs with libjpeg's fast DCT and upsampling (a fifth quicker, colours
            coarser at edges), encoded videos with libswscale's fast conversion (0.2 ms less per frame of 240 lines, up
            to four levels too dark).
        hardware: Hardware decoder for encoded videos, such as "cuda"; None decodes on the CPU.
        storage_options: For a URL: options of obstore, such as {"endpoint": …, "region": …, "skip_signature": True}.
            Credentials come from the environment, or as AWS's own tools find them.
        cache_dir: For a URL: where manifest and index are copied to; None means the user's cache folder. All processes
            of a machine share it.
        cache_bytes: For a URL: bound of the GOPs and frames that are kept in memory, as stored, for later.
        cache_dir_bytes: For a URL: bound of those of this store that are kept in `cache_dir`, for all processes and later
            programs.
        timeout_seconds: For a URL: how long opening it may take, besides a second for each MiB of manifest and index; and how
            long a failing request is repeated.

    Raises:
        StoreError: The folder is no store, or is damaged, or cannot be reached.
        SettingsError: An argument is not allowed.
        MissingError: obstore is needed and not installed.
    """
    from vidprep.formats.option import whole

    if not isinstance(path, str | os.PathLike):
        raise SettingsError(f"path is {path!r}; give one folder (VideoDataset takes several)")
    if short_side is not None:
        short_side = whole("short_side", short_side, 1)
    options = ReadOptions(checksum, short_side, fast, hardware)
    if is_url(os.fspath(path)):
        cache_bytes, cache_dir_bytes = (
            whole("cache_bytes", cache_bytes, 0),
            whole("cache_dir_bytes", cache_dir_bytes, 0),
        )
        if cache_dir is not None and not isinstance(cache_dir, str | os.PathLike):
            raise SettingsError(f"cache_dir is {cache_dir!r}; give a folder")
        if (
            isinstance(timeout_seconds, bool)
            or not isinstance(timeout_seconds, int | float)
            or not 0 < timeout_seconds < 1e6
        ):
            raise SettingsError(f"timeout_seconds is {timeout_seconds!r}; give seconds, above 0")
        cache = {"cache_bytes": cache_bytes, "cache_dir_bytes": cache_dir_bytes, "timeout_seconds": timeout_seconds}
        return _open_remote(os.fspath(path), options, storage_options, cache_dir, cache)
    return _open_folder(Path(path), options)


def _open_remote(
    url: str,
    options: ReadOptions,
    storage_options: Mapping[str, Any] | None,
    cache_dir: str | os.PathLike[str] | None,
    cache: Mapping[str, Any],
) -> FrameStore:
    """Open a store behind a URL. Raises as `open_store` does."""
    from vidprep.formats.stores.remote_files import RemoteFiles, default_cache_dir

    copies = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    place = RangePlace.build(url, storage_options, **cache)
    if place.cache_dir_bytes:
        digest = hashlib.sha256(place.url.encode()).hexdigest()[:24]
        place = replace(place, cache_dir=str(copies.absolute() / "pieces" / digest))
    files = RemoteFiles(place, copies)
    try:
        kind = _kind_behind_url(files.folder)
        if kind in STORES_OF_FRAMES:
            options.refuse(files.path, "hardware", "encoded videos")
            if manifest_paths(files.folder):
                shards = {row.file_name for row in read_rows(files.folder, _Shard) if row.status == "ok"}
                files.add(sorted(name for shard in shards for name in layout_of(kind).sidecars(shard)))
        store = _module(kind).open_here(files, options)
        if _is_of_one_run(kind, files.folder):
            files.settle(f"{kind}.json" if (files.folder / f"{kind}.json").exists() else MANIFEST_NAME)
    except VidprepError as error:
        raise error.rename_files(str(files.folder), files.path) from error
    return store


class _Shard(NamedTuple):
    """Columns of a row with the file of a unit."""

    file_name: str
    status: str
    container: str | None


def _kind_behind_url(folder: Path) -> str:
    """Return the name of the store whose manifest and index are in a folder, without its shards."""
    made = kind_made_by_run(folder)
    if made in STORES_OF_FRAMES:
        return made
    for kind in STORES_OF_FRAMES:
        if made is None and (folder / f"{kind}.json").exists():
            return kind
    first = next((row.container for row in read_rows(folder, _Shard) if row.status == "ok"), None)
    return first if first in STORES_OF_FRAMES else ENCODED


def _is_of_one_run(kind: str, folder: Path) -> bool:
    """Return whether copies of manifest and index, which were fetched one after another, are of one run.

    The JSON file of a store is written last, and opening the store compares the index with it.
    """
    if kind in (ENCODED, VIDEO_SHARDS):
        from vidprep.formats.stores.gops import differing_rows

        return (folder / SIGNS_OF_ENCODED[0]).exists() and not any(differing_rows(folder))
    if kind in STORES_OF_FRAMES and not (folder / f"{kind}.json").exists():
        rows = [row for row in manifest_rows(folder) if row.ok]
        return not any(layout_of(kind).faults_of_index(folder, rows, are_all=True))
    return kind in STORES_OF_FRAMES


def _open_folder(folder: Path, options: ReadOptions) -> FrameStore:
    """Open a store in a local folder. Raises StoreError."""
    if not folder.is_dir():
        raise StoreError("is not a folder; give the destination of a run", path=folder)
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
    return _module(kind).open_here(LocalFiles(folder), options)


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
