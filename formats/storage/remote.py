"""Folders behind an fsspec URL (s3://bucket/prefix, gs://…, memory://…): list, fetch and write files completely or not at
all.

Credentials come from the driver's environment, never from the URL. Failures that may be temporary are retried with
growing pauses.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from vidprep.formats.errors import (
    STOPPED_CODE,
    DestinationError,
    DiskFullError,
    MissingError,
    SettingsError,
    StorageError,
)
from vidprep.formats.model import SourceState
from vidprep.formats.storage.base import OBJECT_STORES, Storage, check_no_password, is_url, lacks_bucket, normalize
from vidprep.formats.storage.local import LocalStorage, is_disk_full

T = TypeVar("T")

RANGE_BYTES = 8 << 20
SWAPPED_BYTES_MAX = 64 << 20  # more than that goes there in segments, to which no condition is given
TRIES, FIRST_PAUSE_SECONDS = 6, 0.25
PATIENCE_SECONDS = 30.0  # drivers try again for a while themselves, each time
PERMANENT = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    FileExistsError,
    NotImplementedError,
)
PERMANENT_NAMES = frozenset(
    ("NoCredentialsError", "PartialCredentialsError", "ParamValidationError", "ProfileNotFound")
)
# Protocols with conditional writes, and the errors that mean: the condition was not met, or is not supported.
CONDITIONAL = frozenset(("s3", "s3a"))
NONE, NO_SUCH_TAG = "none", f'"{"0" * 32}"'
REFUSED = frozenset(("PreconditionFailed", "412"))
NOT_KNOWN = frozenset(("NotImplemented", "501", "InvalidArgument", "InvalidRequest", "MethodNotAllowed", "405"))
TIME_KEYS = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """Properties of a file behind a URL.

    Attributes:
        mtime_ns: Modification time in whole seconds (listings round differently), as nanoseconds; 0 if unknown
        tag: Value that changes with the content (ETag); "" if unknown
    """

    size_bytes: int
    mtime_ns: int
    tag: str = ""

    @property
    def state(self) -> SourceState:
        """State of the file as a source."""
        return SourceState(self.size_bytes, self.mtime_ns)


class NoConditionsError(Exception):
    """The store does not support conditional writes."""


class ObjectStorage:
    """A folder behind a URL. Thread-safe.

    Raises:
        StorageError: An operation failed; the message contains the URL.
        MissingError: The driver is not installed.
    """

    is_remote = True

    def __init__(self, url: str, root: Path | None = None) -> None:
        """Prepare for a URL.

        Args:
            url: The folder.
            root: Empty local folder for copies of files; None for a storage that is only read.
        """
        url = normalize(url)
        check_no_password(url)
        self.url = url if url.endswith("://") else url.rstrip("/")
        self.shown, self.root, self._keeps_files = self.url, root or Path(), root is not None
        self._listed: dict[str, RemoteFile] | None = None
        self._here: dict[str, RemoteFile] = {}  # files with a copy in `root`, as last seen
        protocol = url.partition("://")[0]
        if "::" in url:
            raise SettingsError(f"{url}: chained URLs are not supported; give one location")
        if lacks_bucket(url):
            raise SettingsError(f"{url}: names no bucket; give {protocol}://bucket/folder")
        try:
            import fsspec
        except ImportError as error:
            raise MissingError(f"{protocol}:// needs fsspec: pip install 'vidprep[s3]'") from error
        try:
            # Listings that others change are not to be remembered.
            self._fs, self._path = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        except ImportError as error:
            extra = "pip install 'vidprep[s3]'" if protocol in ("s3", "s3a") else str(error)
            raise MissingError(f"{protocol}:// needs a driver for fsspec: {extra}") from error
        except ValueError as error:
            raise SettingsError(f"{url}: {error}") from error
        except OSError as error:  # some drivers connect at once
            failed = StorageError(f"cannot be reached: {error.strerror or error}", path=url)
            failed.exit_code = STOPPED_CODE
            raise failed from error
        except Exception as error:  # drivers raise their own classes, and some need more than a URL
            raise StorageError(f"cannot be opened: {type(error).__name__}: {error}", path=url) from error
        self._is_atomic = protocol in OBJECT_STORES
        self._is_own = protocol == "memory"  # other processes do not see it
        self.has_conditions = self._knows_conditions = protocol in CONDITIONAL
        self._has_kept_some = False
        self._created: dict[str, str] = {}  # tags of the files that this object created, as it wrote them last

    @property
    def is_exclusive(self) -> bool:
        return self.has_conditions or self._is_own

    def files(self, depth: int | None = None, folder: str = "") -> dict[str, RemoteFile]:
        """Return all files below a folder by relative name ("" for the folder itself if it is a file); empty if there are
        none.

        Args:
            depth: 1 means only files directly in the folder; None means all below it.
            folder: The folder.
        """
        place = self._full_path(folder)

        def find() -> dict[str, RemoteFile]:
            infos = self._fs.find(place, maxdepth=depth, detail=True)
            return {_relative(name, place): _describe(info) for name, info in infos.items()}

        try:
            return self._attempt("listed", folder, find)
        except FileNotFoundError:
            return {}

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each file below the folder."""
        return {name: file.size_bytes for name, file in self.files().items()}

    def refresh(self, wanted: Callable[[str], bool], named: Callable[[str], bool] = lambda _name: False) -> None:
        self._listed = self.files()
        there = {name: file for name, file in self._listed.items() if wanted(name) or named(name)}
        for name in self._here.keys() - there.keys():
            self._forget(name)
        for name, file in there.items():
            if not wanted(name):
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                (self.root / name).touch()
                self._here[name] = RemoteFile(0, 0)
            elif not file.tag or self._here.get(name) != file:
                self._copy_here(name, file)

    def local(self, name: str) -> Path | None:
        return self._copy_here(name, self.file(name))

    def _copy_here(self, name: str, file: RemoteFile | None) -> Path | None:
        path = self.root / name
        with suppress(FileNotFoundError):  # it was removed since it was listed
            if file is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                self.fetch(name, path)
                self._here[name] = file
                return path
        self._forget(name)
        return None

    def _forget(self, name: str) -> None:
        if self._here.pop(name, None) is not None:
            (self.root / name).unlink(missing_ok=True)

    def list(self, wanted: Callable[[str], bool], folder: str = "") -> dict[str, int]:
        states = self.files(depth=1, folder=folder)
        if not folder and self._listed is not None:
            self._listed.update(states)
        return {name: file.size_bytes for name, file in states.items() if wanted(name)}

    def folders(self, folder: str) -> tuple[str, ...]:
        return tuple(sorted({name.partition("/")[0] for name in self.files(folder=folder) if "/" in name}))

    def size(self, name: str) -> int | None:
        if self._listed is None:
            self._listed = self.files()
        file = self._listed.get(name)
        return None if file is None else file.size_bytes

    def file(self, name: str) -> RemoteFile | None:
        try:
            return self._attempt("found", name, lambda: _describe(self._fs.info(self._full_path(name))))
        except FileNotFoundError:
            return None

    def fetch(self, name: str, path: Path) -> None:
        """Download a file. Raises FileNotFoundError, DiskFullError."""
        try:
            self._attempt("fetched", name, lambda: self._fs.get_file(self._full_path(name), str(path)))
        except OSError as error:
            if is_disk_full(error):
                raise DiskFullError(f"has no room left for {self.url}/{name}", path=path.parent) from error
            raise

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError."""
        data: bytes = self._attempt("read", name, lambda: self._fs.cat_file(self._full_path(name)))
        return data

    def read_range(self, name: str, offset: int, size: int) -> Iterator[bytes]:
        """Yield part of a file in pieces.

        Raises:
            FileNotFoundError: It does not exist.
            StorageError: It ends before.
        """
        end = offset + size
        for start in range(offset, end, RANGE_BYTES):
            stop = min(start + RANGE_BYTES, end)
            read = partial(self._fs.cat_file, self._full_path(name), start=start, end=stop)
            piece: bytes = self._attempt("read", name, read)
            if len(piece) != stop - start:
                raise StorageError(f"ends before byte {stop}", path=f"{self.url}/{name}")
            yield piece

    def put(self, path: Path, name: str) -> None:
        """Upload a local file. It gets its name when all of it has arrived."""
        size = path.stat().st_size

        def put() -> None:
            target = self._full_path(name)
            if self._is_atomic:
                self._fs.put_file(str(path), target)
            else:
                folder, _, base = target.rpartition("/")
                beside = f"{folder}/.{base}.partial"
                self._fs.makedirs(folder, exist_ok=True)
                self._fs.put_file(str(path), beside)
                self._fs.mv(beside, target)
            arrived = self._fs.info(target)["size"]
            if arrived != size:
                raise OSError(f"{arrived} of {size} bytes arrived")

        self._attempt("written", name, put)

    def copy(self, name: str, other: str) -> None:
        """Copy a file to a second name on the server. Raises FileNotFoundError."""

        def copy() -> None:
            if not self._is_atomic:
                self._fs.makedirs(self._full_path(other).rpartition("/")[0], exist_ok=True)
            self._fs.cp_file(self._full_path(name), self._full_path(other))

        self._attempt("copied", name, copy)

    def create(self, name: str, data: bytes) -> bool:
        try:
            if self.has_conditions:
                tag = self._swap(name, data, NONE)
                # Refused although it is ours: it was written, and the reply was lost.
                if tag is None and not self._holds(name, data):
                    return False
                self._created[name] = tag or self._tag_of(name)
                # Conditions that cannot hold, on what is one's own: a store that writes all the same ignores them.
                self._has_kept_some = self._has_kept_some or all(
                    self._swap(name, data, impossible) is None for impossible in (NONE, NO_SUCH_TAG)
                )
                self.has_conditions = self._has_kept_some
                return True
        except NoConditionsError:
            self.has_conditions = False
        if self._knows_conditions:  # the protocol has conditions, but this store does not support them
            if self.file(name) is None:
                self.send(name, data)
            return self._holds(name, data)

        def create() -> None:
            try:
                self._fs.pipe_file(self._full_path(name), data, mode="create")
            except Exception:  # drivers raise classes of their own
                if not self._fs.exists(self._full_path(name)):
                    raise

        self._attempt("written", name, create)
        return self._holds(name, data)

    def _tag_of(self, name: str) -> str:
        file = self.file(name)
        return file.tag if file else ""

    def _holds(self, name: str, data: bytes) -> bool:
        try:
            return self.read(name) == data
        except FileNotFoundError:
            return False

    def write(self, name: str, data: bytes) -> None:
        if not self._keeps_files:
            self.send(name, data)
            return
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if self._is_atomic:
            self.send(name, data)
            self._here[name] = RemoteFile(len(data), 0)
        else:
            self.push(name)

    def update(self, name: str, data: bytes) -> None:
        if not self.has_conditions or not self._created.get(name):
            self.send(name, data)
            return
        tag = self._swap(name, data, self._created[name])
        if tag is None and not self._holds(name, data):
            raise FileNotFoundError(errno.ENOENT, "was removed, or replaced by another writer", name)
        self._created[name] = tag or self._tag_of(name)

    def send(self, name: str, data: bytes) -> None:
        """Write a file without a local copy."""
        self._attempt("written", name, lambda: self._fs.pipe_file(self._full_path(name), data))

    def push(self, name: str, *, unchanged: bool = False) -> None:
        path, before = self.root / name, self._here.get(name)
        size = path.stat().st_size
        tag: str | None = before.tag if before else NONE
        if unchanged and self.has_conditions and tag and size <= SWAPPED_BYTES_MAX:
            data = path.read_bytes()
            try:
                tag = self._swap(name, data, tag)
                if tag is None and not self._holds(name, data):
                    raise DestinationError(
                        f"{name} was written by another run meanwhile; this one writes nothing more. Run the same command again",
                        path=self.shown,
                    )
                self._here[name] = RemoteFile(size, 0, tag or self._tag_of(name))
                return
            except NoConditionsError:
                self.has_conditions = False
        self.put(path, name)
        self._here[name] = RemoteFile(size, 0)

    def publish(self, path: Path, name: str) -> None:
        self.put(path, name)
        path.unlink()

    def remove(self, *names: str) -> None:
        for name in names:
            self._forget(name)
            if self._listed:
                self._listed.pop(name, None)
            with suppress(FileNotFoundError):
                self._attempt("removed", name, partial(self._fs.rm_file, self._full_path(name)))

    def _swap(self, name: str, data: bytes, tag: str) -> str | None:
        """Write a file if it has this tag, or does not exist (NONE). Return its new tag; None if the condition is not met.

        Raises:
            NoConditionsError: The store does not support conditions.
        """
        condition = {"IfNoneMatch": "*"} if tag == NONE else {"IfMatch": tag}

        def swap() -> str | None:
            try:
                answer = self._fs.pipe_file(self._full_path(name), data, **condition)
            except Exception as error:  # drivers raise classes of their own
                codes = _codes_of(error)
                if codes & REFUSED:
                    return None
                if codes & NOT_KNOWN:
                    raise NoConditionsError from error
                raise
            etag = answer.get("ETag") if isinstance(answer, dict) else None
            return etag or getattr(self.file(name), "tag", "")

        try:
            return self._attempt("written", name, swap)
        except FileNotFoundError as error:
            if tag != NONE:
                return None
            raise StorageError(f"could not be written: {error}", path=f"{self.url}/{name}") from error

    def _full_path(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path

    def _attempt(self, done: str, name: str, do: Callable[[], T]) -> T:
        pause, started = FIRST_PAUSE_SECONDS, time.monotonic()
        for attempt in range(1, TRIES + 1):
            try:
                return do()
            except (FileNotFoundError, NoConditionsError):
                raise
            except Exception as error:  # drivers raise classes of their own
                permanent = isinstance(error, PERMANENT) or type(error).__name__ in PERMANENT_NAMES
                if is_disk_full(error):
                    raise
                if permanent or attempt == TRIES or time.monotonic() - started > PATIENCE_SECONDS:
                    tries = "1 try" if attempt == 1 else f"{attempt} tries"
                    tried = "" if permanent else f" in {tries} and {time.monotonic() - started:.0f} s"
                    reason = f"{type(error).__name__}: {error}".rstrip(": ")
                    failed = StorageError(f"could not be {done}{tried}: {reason}", path=f"{self.url}/{name}")
                    if not permanent or isinstance(error, PermissionError):
                        failed.exit_code = STOPPED_CODE  # the request itself is valid
                    raise failed from error
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause *= 2
        raise AssertionError


def storage_of(place: Path | str, root: Path | None = None) -> Storage:
    """Return the storage of a path or URL. `root` is an empty folder for copies of files behind a URL."""
    return ObjectStorage(str(place), root) if is_url(str(place)) else LocalStorage(Path(place))


def _relative(name: str, folder: str) -> str:
    return name.removeprefix(folder).removeprefix("/")


def _describe(about: dict[str, Any]) -> RemoteFile:
    when = next((about[key] for key in TIME_KEYS if about.get(key) is not None), 0)
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    seconds = when.timestamp() if isinstance(when, datetime) else float(when)
    return RemoteFile(int(about.get("size") or 0), int(seconds) * 1_000_000_000, str(about.get("ETag") or ""))


def _codes_of(error: BaseException) -> set[str]:
    """Return the error codes of the server and of the driver."""
    codes, seen = set(), error
    while seen is not None:
        response = getattr(seen, "response", None)
        if isinstance(response, dict):
            codes.add(str(response.get("Error", {}).get("Code")))
        codes |= {"NotImplemented"} if type(seen).__name__ == "ParamValidationError" else set()
        seen = seen.__cause__ or seen.__context__  # type: ignore[assignment]
    return codes
