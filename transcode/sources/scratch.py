"""Temporary folders, and sources behind URLs: listed like folders, and copied to local files. Opens no video.

Temporary folders are removed with the block or process that made them, or by the next process.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from vidprep.formats.errors import (
    DiskFullError,
    ReadError,
    SettingsError,
    SourceError,
    StorageError,
    StoreError,
    VidprepError,
)
from vidprep.formats.manifest.remarks import Remark
from vidprep.formats.model import SourceState
from vidprep.formats.pictures import PICTURE_EXTENSIONS, list_pictures
from vidprep.formats.processes import ProcessId
from vidprep.formats.storage.base import is_url, split_url
from vidprep.formats.storage.remote import ObjectStorage
from vidprep.formats.storage.untrusted import read_json
from vidprep.transcode.sources._search import SourceSearch
from vidprep.transcode.sources.outputs import STATE_DIR
from vidprep.transcode.sources.tables import READERS, VIDEO_EXTENSIONS
from vidprep.transcode.sources.unit import Unit

if TYPE_CHECKING:
    from vidprep.transcode.sources._web_store import WebStore


class RemoteFiles:
    """Size and time of single files behind URLs. A folder is listed only once.

    Attributes:
        fault: Error of the first folder that did not answer
        answered: Whether any folder answered
    """

    def __init__(self) -> None:
        self._folders: dict[str, dict[str, SourceState] | VidprepError] = {}
        self.fault: VidprepError | None = None
        self.answered = False

    def state(self, url: str) -> SourceState | None:
        """Return size and modification time; None if the file does not exist. Raises VidprepError, for a whole folder at
        once: it does not answer, or nothing here knows its protocol.
        """
        folder, name = split_url(url)
        if not folder.partition("://")[2]:
            raise StorageError("names no file in a folder or bucket", path=url)
        if folder not in self._folders:
            try:
                self._folders[folder] = self._list(folder)
                self.answered = True
            except VidprepError as error:
                self._folders[folder] = error
                self.fault = self.fault or error
        files = self._folders[folder]
        if isinstance(files, VidprepError):
            raise files
        if "/" in name:
            file = ObjectStorage(folder).file(name)
            return None if file is None else file.state
        return files.get(name)

    def _list(self, folder: str) -> dict[str, SourceState]:
        files = ObjectStorage(folder).files(depth=1)
        return {key: file.state for key, file in files.items()}


def list_remote(search: SourceSearch, url: str) -> None:
    """List all videos below a URL, or the single one that it names. Raises SourceError, StorageError."""
    folder = ObjectStorage(url)
    if PurePosixPath(url).suffix.lower() in READERS:
        raise SourceError("a table must be a file here; its paths may be URLs", path=url)
    files = folder.files()
    if not files:
        raise SourceError("nothing is there", path=url)
    for relative, file in files.items():
        path = f"{folder.url}/{relative}" if relative else folder.url
        if not relative:
            search.why_partial = "one file is not a full listing"
            search.add(search.id_of(PurePosixPath(url).name), path, file.state)
        elif reason := _why_ignored(search, path, relative):
            search.ignored.append((path, reason))
        else:
            search.add(search.id_of("/".join(filter(None, relative.split("/")))), path, file.state)
        search.count()


def _why_ignored(search: SourceSearch, path: str, relative: str) -> str | None:
    if path.startswith(search.destination):
        return "the destination"
    *folders, name = relative.split("/")
    if any(part.startswith(".") for part in (*folders, name)):
        return "hidden name"
    if any(search.excludes("/".join(folders[: n + 1]), folder) for n, folder in enumerate(folders)):
        return "excluded"
    extension = PurePosixPath(name).suffix.lower().removeprefix(".")
    if extension not in VIDEO_EXTENSIONS:
        return "a picture" if extension in PICTURE_EXTENSIONS else "unknown extension"
    return search.why_left_out(relative, name)


def fetch(unit: Unit, path: Path, source_rate: Fraction | None = None) -> None:
    """Copy a source to `path`, as it was when it was listed.

    Args:
        unit: The source.
        path: The file to write.
        source_rate: Pictures a second of a folder of numbered pictures.

    Raises:
        ReadError: It was deleted or changed since.
        StorageError: It cannot be fetched.
        DiskFullError: The disk is full.
    """
    disk = os.statvfs(path.parent)
    if disk.f_bavail * disk.f_frsize < unit.size_bytes:
        raise DiskFullError(f"{unit.size_bytes} bytes are to be fetched, {path.parent} has room for less")
    if unit.is_series:
        _join_pictures(unit, path, source_rate)
        return
    url, name = split_url(unit.path)
    folder = remote_folder(url)
    try:
        folder.fetch(name, path)
        now = folder.file(name)
    except FileNotFoundError:
        raise ReadError("is gone", path=unit.path, stage="storage") from None
    if now is None or now.state != unit.state or path.stat().st_size != unit.size_bytes:
        raise ReadError("changed since it was listed; run again when it is complete", path=unit.path, stage="storage")
    os.utime(path, ns=(unit.mtime_ns, unit.mtime_ns))


def _join_pictures(unit: Unit, path: Path, source_rate: Fraction | None) -> None:
    from vidprep.formats.video.series import join_pictures  # PyAV

    if source_rate is None:
        raise SettingsError("<source_fps>: a folder of pictures needs it; give the pictures a second", source_fps=25)
    pictures = list_pictures(unit.path)
    if pictures.state == unit.state:
        join_pictures(pictures, source_rate, path)
    if pictures.state != unit.state or list_pictures(unit.path).state != unit.state:
        raise ReadError("changed since it was listed; run again when it is complete", path=unit.path, stage="storage")


def remarks_on_pictures(unit: Unit) -> list[Remark]:
    """Return remarks if numbers are missing in a folder of pictures, or its TIFFs have several pages."""
    from vidprep.formats.video.series import pages_left_out  # PyAV

    try:
        pictures = list_pictures(unit.path)
    except ReadError:
        return []
    remarks = {"pictures_missing": pictures.gaps, "pages_left_out": pages_left_out(pictures)}
    return [Remark(code, text) for code, text in remarks.items() if text]


@lru_cache(maxsize=64)
def remote_folder(url: str) -> ObjectStorage:
    """Return the folder of a URL; connections are reused."""
    return ObjectStorage(url)


def current_state(path: str) -> SourceState | None:
    """Return the current state of a source, local or behind a URL; None if it cannot be seen."""
    try:
        if is_url(path):
            folder, name = split_url(path)
            file = ObjectStorage(folder).file(name)
            return file.state if file else None
        if os.path.isdir(path):  # noqa: PTH112
            return list_pictures(path).state
        return SourceState.build(os.stat(path))  # noqa: PTH116
    except (OSError, ReadError):
        return None


PREFIX = "vidprep-scratch-"
HOLDER_BYTES_MAX = 1 << 16
SMALL_SUFFIXES = {".parquet", ".json", ".jsonl", ".gmeta"}
TAR_END = 1 << 12
KEEP_SIZE, PUNCH_HOLE = 1, 2  # of fallocate(2)
LEASE = re.compile(rf"{re.escape(STATE_DIR)}/(?:part-[^/]+/)?(?:lock|lease-\d+)")


def _is_ours(folder: Path) -> bool:
    """Return whether `tempfile.mkdtemp` created a folder for this user: others could create one with such a name."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def _holder_of(folder: Path) -> ProcessId:
    """Return the process that made a temporary folder. Raises OSError, ValueError."""
    said = read_json(folder / "holder", HOLDER_BYTES_MAX)
    try:
        return ProcessId(str(said["host"]), str(said["machine"]), int(said["pid"]), str(said["started"]))
    except (KeyError, TypeError) as error:
        raise ValueError("names no process") from error


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Create an empty folder for the block. Folders of killed processes of this machine are removed first."""
    for other in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError, ValueError):
            if _is_ours(other) and _holder_of(other).is_dead:
                shutil.rmtree(other, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        (folder / "holder").write_text(json.dumps(asdict(ProcessId.mine())))
        (folder / "files").mkdir()
        yield folder / "files"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@lru_cache(maxsize=4)
def _remote_store(url: str) -> ObjectStorage | WebStore:
    if not url.startswith(("http://", "https://")):
        return ObjectStorage(url)
    from vidprep.transcode.sources._web_store import WebStore  # pyarrow and NumPy, which workers do not need

    return WebStore(url)


@contextmanager
def local_folder(place: Path | str) -> Iterator[Path]:
    """Return the folder itself; of a URL a folder under TMPDIR with copies of its manifest, index and state. Videos and shards
    are there as empty files of the same size, which take no room: `present` fetches parts of them.

    Raises:
        StoreError: It does not exist.
        DiskFullError: The disk is full.
        StorageError: It cannot be fetched.
    """
    if isinstance(place, Path):
        yield place
        return
    _remote_store.cache_clear()  # the store as it is now
    there = _remote_store(place)
    files = {name: size for name, size in there.sizes().items() if not LEASE.fullmatch(name)}
    if not files:
        raise StoreError("nothing is there; give the destination of a run", path=place)
    copied = {name for name in files if name.startswith(STATE_DIR) or PurePosixPath(name).suffix in SMALL_SUFFIXES}
    with scratch_folder() as folder:
        needed, free = sum(files[name] for name in copied), shutil.disk_usage(folder).free
        if needed > free:
            raise DiskFullError(
                f"{needed} bytes of {place} are to be fetched, and {free} are free; set TMPDIR", path=folder
            )
        for name, size in files.items():
            if not {"", ".", ".."}.isdisjoint(name.split("/")):
                raise StoreError(f"{name!r} cannot be the name of a file", path=place)
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name in copied:
                there.fetch(name, path)
                continue
            with path.open("wb") as file:
                file.truncate(size)
            if name.endswith(".tar"):  # what completes it belongs to no video
                _fill(there, path, name, max(0, size - TAR_END), min(size, TAR_END))
        try:
            yield folder
        except VidprepError as error:
            raise error.rename_files(str(folder), place) from error


@contextmanager
def present(url: str, folder: Path, name: str, offset: int, size: int) -> Iterator[None]:
    """Fetch part of a file behind a URL into the folder that `local_folder` made of it, for the block. Does nothing without a URL.

    Raises:
        StorageError: It cannot be fetched.
        OSError: It does not exist, or the disk is full.
    """
    path = folder / name
    if not url or not path.is_file():
        yield
        return
    size = min(size, path.stat().st_size - offset)
    try:
        _fill(_remote_store(url), path, name, offset, size)
        yield
    finally:
        _empty(path, offset, size)


def _fill(there: ObjectStorage | WebStore, path: Path, name: str, offset: int, size: int) -> None:
    """Write part of a file behind a URL into a local one of the same size, whose time does not change."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        for piece in there.read_range(name, offset, size):
            file.write(piece)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _empty(path: Path, offset: int, size: int) -> None:
    """Give the room of part of a file back, where the system can; it reads as zeros then."""
    before = path.stat()
    with suppress(AttributeError, OSError), path.open("r+b") as file:
        how = KEEP_SIZE | PUNCH_HOLE
        ctypes.CDLL(None).fallocate(file.fileno(), how, ctypes.c_long(offset), ctypes.c_long(size))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@contextmanager
def local_file(unit: Unit, source_rate: Fraction | None) -> Iterator[Unit]:
    """Return the unit itself, or one with a copy of its source under TMPDIR; see `fetch`.

    Raises:
        ReadError: The source was deleted or changed.
        DiskFullError: The disk is full.
        StorageError: It cannot be fetched.
    """
    if not unit.is_copied:
        yield unit
        return
    with scratch_folder() as folder:
        copy = folder / f"source{unit.copy_suffix}"
        fetch(unit, copy, source_rate)
        yield replace(unit, path=str(copy))
