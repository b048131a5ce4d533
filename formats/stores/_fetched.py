"""Copies of the manifest and index of a store behind a URL, shared by all processes of a machine.

CACHE/stores/URL-DIGEST/state.json       which version is current, and how to tell whether it still is: one request for the
                                         properties of one file, if all files are known to be of one run
CACHE/stores/URL-DIGEST/VERSION/…        copies of the files, with sizes and checksums in copies.json
CACHE/stores/URL-DIGEST/lock             held while one process fetches, and others wait

A version is in use while a process holds its lock. Others are removed: older versions when a new one is fetched, and the least
recently used when all together exceed a bound.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.table import CLASSES_NAME, MANIFEST_NAME
from vidprep.formats.storage.ranges import RemoteObject, ReplacedObjectError
from vidprep.formats.storage.untrusted import read_json
from vidprep.formats.stores._index import INDEX_NAME
from vidprep.formats.stores.gops import GOPS_NAME

RUN_NAME = ".vidprep/run.json"
NAMES = (MANIFEST_NAME, GOPS_NAME, "burst.json", "tensor.json", INDEX_NAME, CLASSES_NAME, RUN_NAME)
STATE_NAME, COPIES_NAME, LOCK_NAME, PARTIAL = "state.json", "copies.json", "lock", ".partial"
CACHE_BYTES_MAX = 10 << 30
COPY_BYTES = 1 << 20
TRIES = 5  # a run may replace files while they are fetched


class Fetcher(Protocol):
    """Copies objects; see `RangeConnection`."""

    def stat(self, name: str) -> RemoteObject | None: ...

    def fetch(self, names: Sequence[str], folder: Path) -> dict[str, RemoteObject]: ...


def default_cache_dir() -> Path:
    """Return the folder for copies in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vidprep"


class FetchedFolder:
    """The copies for one URL."""

    def __init__(self, url: str, cache_dir: Path) -> None:
        self._url = url
        self._stores = cache_dir / "stores"
        self._home = self._stores / hashlib.sha256(url.encode()).hexdigest()[:24]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Let other processes of this machine wait for the block. Raises StoreError if the folder cannot be written."""
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            file = os.open(self._home / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"cannot be written ({error.strerror}), and copies of manifest and index belong there; give cache_dir=",
                path=self._home,
            ) from error
        try:
            with suppress(OSError):  # where files cannot be locked, several processes fetch the same
                fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def current(self, fetcher: Fetcher) -> InUse:
        """Return the current version, fetched if the URL has another one. Raises StorageError, StoreError."""
        for left in self._home.glob(f".*{PARTIAL}"):  # by a process that was killed
            _remove_unused(left)
        state = self._state()
        if state.get("is_settled"):
            version = InUse.mark(self._home / str(state.get("version")))
            if version is not None and _are_complete(version.folder):
                root = fetcher.stat(state["root"])
                if root is not None and root.tag == state["tag"]:
                    return version
        return self._fetch(fetcher)

    def _fetch(self, fetcher: Fetcher) -> InUse:
        """Fetch all files."""
        for tries in range(1, TRIES + 1):
            made = self._partial()
            try:
                remotes = fetcher.fetch(NAMES, made.folder)
                if not remotes.keys() - {RUN_NAME, CLASSES_NAME}:
                    raise StoreError(
                        f"is not a store: none of {', '.join(NAMES[:5])} is there; give the destination of a run",
                        path=self._url,
                    )
                return self._name_version(made, remotes)
            except ReplacedObjectError:  # by a run, meanwhile
                if tries == TRIES:
                    raise
            finally:
                if made.folder.name.endswith(PARTIAL):
                    shutil.rmtree(made.folder, ignore_errors=True)
        raise AssertionError

    def _partial(self) -> InUse:
        """Return a new folder, which no process removes while it is in use."""
        folder = self._home / f".{uuid.uuid4().hex}{PARTIAL}"
        folder.mkdir()
        made = InUse.mark(folder)
        assert made is not None, "nobody knows its name"
        return made

    def _name_version(self, made: InUse, found: dict[str, RemoteObject]) -> InUse:
        """Give fetched files the name of their version, and remove older versions."""
        tags = sorted((name, *remote) for name, remote in found.items())
        version = self._home / hashlib.sha256(json.dumps(tags).encode()).hexdigest()[:16]
        there = InUse.mark(version)
        if there is not None and _are_complete(version):
            return there
        _write_copies(made.folder, {name: remote.tag for name, remote in found.items()})
        shutil.rmtree(version, ignore_errors=True)
        made.folder = made.folder.rename(version)
        self._write_state({"version": version.name})
        self._clean(version)
        return made

    def add(self, version: Path, fetcher: Fetcher, names: Sequence[str]) -> None:
        """Fetch more files of a version: all of them, unless they are known to be of the same run. Raises StorageError."""
        state, known = self._state(), {name: tag for name, (_, _, tag) in _copies(version).items()}
        if state.get("is_settled") and state.get("version") == version.name:
            names = [name for name in names if name not in known]
        if not names:
            return
        made = self._partial()
        try:
            remotes = fetcher.fetch(names, made.folder)
            for name in remotes:
                (version / name).parent.mkdir(parents=True, exist_ok=True)
                (made.folder / name).replace(version / name)
        finally:
            shutil.rmtree(made.folder, ignore_errors=True)
        _write_copies(version, known | {name: remote.tag for name, remote in remotes.items()})

    def settle(self, version: Path, root: str) -> None:
        """Record that the files of a version are of one run, so that only one of them need be asked for.

        Args:
            version: The folder.
            root: The file, which a run replaces before or after all others.
        """
        tag = _copies(version).get(root, (0, 0, ""))[2]
        if tag:
            self._write_state({"version": version.name, "is_settled": True, "root": root, "tag": tag})

    def _state(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            return read_json(self._home / STATE_NAME)
        return {}

    def _write_state(self, state: dict[str, Any]) -> None:
        path = self._home / STATE_NAME
        made = path.with_name(f".{uuid.uuid4().hex}.partial")
        made.write_text(json.dumps({"url": self._url, **state}))
        made.replace(path)

    def _clean(self, version: Path) -> None:
        """Remove versions that no process uses: others of this URL, and of all URLs while there are too many bytes."""
        for other in self._home.iterdir():
            if other.is_dir() and other != version:
                _remove_unused(other)
        sizes = {folder: _bytes_of(folder) for folder in self._stores.glob("*/*/") if folder != version}
        total = sum(sizes.values()) + _bytes_of(version)
        for folder in sorted(sizes, key=_last_use):
            if total <= CACHE_BYTES_MAX:
                return
            if _remove_unused(folder):
                total -= sizes[folder]


class InUse:
    """A folder that is in use, and is not removed, while this object or a fork of it lives."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self._number = folder, number

    @classmethod
    def mark(cls, folder: Path) -> InUse | None:
        """Mark a folder as in use; None if it does not exist, or is being removed."""
        try:
            number = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.utime(number)
        except BlockingIOError:
            os.close(number)
            return None
        except OSError:  # files cannot be locked there
            pass
        return cls(folder, number)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # when Python ends, the module may be empty
        close(self._number)


def _remove_unused(folder: Path) -> bool:
    """Remove a version unless a process uses it. Return whether it was removed."""
    try:
        file = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def _last_use(folder: Path) -> float:
    try:
        return (folder / LOCK_NAME).stat().st_mtime
    except OSError:
        return 0.0


def _bytes_of(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size
    return total


def list_copies(version: Path) -> list[str]:
    """Return the names of the files of a version."""
    return list(_copies(version))


def _copies(version: Path) -> dict[str, tuple[int, int, str]]:
    """Return size, CRC-32 and tag of each copy; empty if that is not known."""
    with suppress(OSError, ValueError):
        return {name: tuple(copy) for name, copy in read_json(version / COPIES_NAME).items()}
    return {}


def _write_copies(version: Path, tags: dict[str, str]) -> None:
    copies = {name: (*_measure(version / name), tag) for name, tag in tags.items()}
    made = version / f".{COPIES_NAME}.partial"
    made.write_text(json.dumps(copies))
    made.replace(version / COPIES_NAME)


def _are_complete(version: Path) -> bool:
    """Return whether all copies are as they were fetched."""
    copies = _copies(version)
    try:
        return bool(copies) and all(_measure(version / name) == (size, crc) for name, (size, crc, _) in copies.items())
    except OSError:
        return False


def _measure(path: Path) -> tuple[int, int]:
    """Return size and CRC-32 of a file."""
    size = crc32 = 0
    with path.open("rb") as file:
        while data := file.read(COPY_BYTES):
            size, crc32 = size + len(data), zlib.crc32(data, crc32)
    return size, crc32
