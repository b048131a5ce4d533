"""Folders behind an fsspec URL (s3://bucket/prefix, gs://…, memory://…): listed, fetched, and written whole or not at all.

Credentials are what the driver finds in the environment; nothing is taken from the URL but its place. What fails in a way
that may pass is tried again after growing pauses.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from vidprep.formats.errors import STOPPED_CODE, DiskFullError, MissingError, SettingsError, StorageError
from vidprep.formats.files.local import is_disk_full

T = TypeVar("T")

RANGE_BYTES = 8 << 20
TAGGED_BYTES_MAX = 1 << 16
TRIES, FIRST_PAUSE_SECONDS = 6, 0.25
PATIENCE_SECONDS = 30.0  # drivers try again for a while themselves, each time
# A PUT there shows the whole object or none; elsewhere a file is written beside its place and renamed.
OBJECT_STORES = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "adl", "oci", "oss", "tos", "memory"))
PERMANENT = (
    FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError, NotImplementedError,
)  # fmt: skip
PERMANENT_NAMES = frozenset(
    ("NoCredentialsError", "PartialCredentialsError", "ParamValidationError", "ProfileNotFound")
)
# What may be written on a condition, and how a driver says that the condition did not hold, or that it knows none.
CONDITIONAL = frozenset(("s3", "s3a"))
NONE = "none"
REFUSED = frozenset(("PreconditionFailed", "412"))
NOT_KNOWN = frozenset(("NotImplemented", "501", "InvalidArgument", "InvalidRequest", "MethodNotAllowed", "405"))
USER_INFO = re.compile(r"(?<=://)[^/?#@]*@")  # RFC 3986, 3.2.1
TIME_KEYS = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")


def is_url(text: str) -> bool:
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def normalized(url: str) -> str:
    """With its protocol in small letters."""
    protocol, separator, rest = url.partition("://")
    return protocol.lower() + separator + rest


def check_no_password(url: str) -> None:
    """Raises SettingsError for a URL with a user name or password, and shows neither: it would stand in every row of a manifest."""
    if USER_INFO.search(url):
        raise SettingsError(
            f"{without_password(url)} holds a user name or password; give credentials by the environment"
        )


def without_password(url: str) -> str:
    """Return a URL as it may be shown."""
    return USER_INFO.sub("…@", url)


def names_no_place(url: str) -> bool:
    """Whether a URL of an object store says no bucket."""
    protocol, _, rest = url.partition("://")
    return protocol in OBJECT_STORES and protocol != "memory" and not rest.partition("/")[0]


def split_url(url: str) -> tuple[str, str]:
    """The URL of a folder, and the name of a file below it: a key is no path, so that a second slash belongs to the name."""
    folder, slashes, name = re.fullmatch(r"(.*?)(/*)([^/]*)", url, re.DOTALL).groups()  # type: ignore[union-attr]
    return folder, slashes[1:] + name


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """mtime_ns: when it was written, in whole seconds (of which listings tell parts and others do not); 0 where nothing tells.

    tag: another one whenever its content is; "" where nothing tells.
    """

    size_bytes: int
    mtime_ns: int
    tag: str = ""


class NoConditionsError(Exception):
    """A store that cannot write on a condition."""


class RemoteFolder:
    """Raises StorageError, with the URL; MissingError where the driver is not installed. May be used by several threads."""

    def __init__(self, url: str) -> None:
        url = normalized(url)
        check_no_password(url)
        self.url = url if url.endswith("://") else url.rstrip("/")
        protocol = url.partition("://")[0]
        if "::" in url:
            raise SettingsError(f"{url}: chained URLs are not supported; give one location")
        if names_no_place(url):
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
        except Exception as error:  # drivers raise classes of their own, and some want more than a URL
            raise StorageError(f"cannot be opened: {type(error).__name__}: {error}", path=url) from error
        self._is_atomic = protocol in OBJECT_STORES
        self.knows_conditions = protocol in CONDITIONAL
        self.is_own = protocol == "memory"  # nobody else sees it

    def files(self, depth: int | None = None) -> dict[str, RemoteFile]:
        """All files below, by their names relative to the folder ("" where it is a file itself); none where nothing is.

        depth: 1 means those in the folder itself.
        """

        def find() -> dict[str, RemoteFile]:
            found = self._fs.find(self._path, maxdepth=depth, detail=True)
            return {_relative(name, self._path): _described(about) for name, about in found.items()}

        try:
            return self._tried("listed", "", find)
        except FileNotFoundError:
            return {}

    def file(self, name: str) -> RemoteFile | None:
        try:
            return self._tried("found", name, lambda: _described(self._fs.info(self._at(name))))
        except FileNotFoundError:
            return None

    def fetch(self, name: str, path: Path) -> None:
        """Raises FileNotFoundError, DiskFullError."""
        try:
            self._tried("fetched", name, lambda: self._fs.get_file(self._at(name), str(path)))
        except OSError as error:
            if is_disk_full(error):
                raise DiskFullError(f"has no room left for {self.url}/{name}", path=path.parent) from error
            raise

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError."""
        data: bytes = self._tried("read", name, lambda: self._fs.cat_file(self._at(name)))
        return data

    def read_range(self, name: str, offset: int, size: int) -> Iterator[bytes]:
        """So many bytes of a file, a piece at a time. Raises FileNotFoundError, StorageError where it ends before."""
        end = offset + size
        for start in range(offset, end, RANGE_BYTES):
            stop = min(start + RANGE_BYTES, end)
            read = partial(self._fs.cat_file, self._at(name), start=start, end=stop)
            piece: bytes = self._tried("read", name, read)
            if len(piece) != stop - start:
                raise StorageError(f"ends before byte {stop}", path=f"{self.url}/{name}")
            yield piece

    def put(self, path: Path, name: str) -> None:
        """A local file takes this name there when all of it has arrived."""
        size = path.stat().st_size

        def put() -> None:
            target = self._at(name)
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

        self._tried("written", name, put)

    def copy(self, name: str, other: str) -> None:
        """Give what stands there a second name, without reading it. Raises FileNotFoundError."""

        def copy() -> None:
            if not self._is_atomic:
                self._fs.makedirs(self._at(other).rpartition("/")[0], exist_ok=True)
            self._fs.cp_file(self._at(name), self._at(other))

        self._tried("copied", name, copy)

    def write(self, name: str, data: bytes) -> None:
        self._tried("written", name, lambda: self._fs.pipe_file(self._at(name), data))

    def create(self, name: str, data: bytes) -> None:
        """Write a file where there is none: of several at once one does."""

        def create() -> None:
            try:
                self._fs.pipe_file(self._at(name), data, mode="create")
            except Exception:
                if not self._fs.exists(self._at(name)):
                    raise

        self._tried("written", name, create)

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                self._tried("removed", name, lambda name=name: self._fs.rm_file(self._at(name)))  # type: ignore[misc]
            except FileNotFoundError:
                continue

    def read_tagged(self, name: str) -> tuple[bytes, str]:
        """What stands there, and the tag of just that; no bytes of more than TAGGED_BYTES_MAX. Raises FileNotFoundError."""
        while True:
            before = self.file(name)
            if before is not None and before.size_bytes > TAGGED_BYTES_MAX:
                return b"", before.tag
            data = self.read(name)
            after = self.file(name)
            if before is not None and before == after:
                return data, before.tag

    def swap(self, name: str, data: bytes, tag: str) -> str | None:
        """Write a file that has this tag, or that is not there (NONE). Returns its new tag; None where that did not hold.

        Raises NoConditionsError where the store knows none.
        """
        condition = {"IfNoneMatch": "*"} if tag == NONE else {"IfMatch": tag}

        def swap() -> str | None:
            try:
                answer = self._fs.pipe_file(self._at(name), data, **condition)
            except Exception as error:  # drivers raise classes of their own
                codes = _codes_of(error)
                if codes & REFUSED:
                    return None
                if codes & NOT_KNOWN:
                    raise NoConditionsError from error
                raise
            etag = answer.get("ETag") if isinstance(answer, dict) else None
            return etag or self.read_tagged(name)[1]

        try:
            return self._tried("written", name, swap)
        except FileNotFoundError as error:
            if tag != NONE:
                return None
            raise StorageError(f"could not be written: {error}", path=f"{self.url}/{name}") from error

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path

    def _tried(self, done: str, name: str, do: Callable[[], T]) -> T:
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
                        failed.exit_code = STOPPED_CODE  # nothing that was asked for is wrong
                    raise failed from error
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause *= 2
        raise AssertionError


def _relative(name: str, folder: str) -> str:
    return name.removeprefix(folder).removeprefix("/")


def _described(about: dict[str, Any]) -> RemoteFile:
    when = next((about[key] for key in TIME_KEYS if about.get(key) is not None), 0)
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    seconds = when.timestamp() if isinstance(when, datetime) else float(when)
    return RemoteFile(int(about.get("size") or 0), int(seconds) * 1_000_000_000, str(about.get("ETag") or ""))


def _codes_of(error: BaseException) -> set[str]:
    """What the store called it, and what the driver did."""
    codes, seen = set(), error
    while seen is not None:
        response = getattr(seen, "response", None)
        if isinstance(response, dict):
            codes.add(str(response.get("Error", {}).get("Code")))
        codes |= {"NotImplemented"} if type(seen).__name__ == "ParamValidationError" else set()
        seen = seen.__cause__ or seen.__context__  # type: ignore[assignment]
    return codes
