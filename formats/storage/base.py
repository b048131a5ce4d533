"""The `Storage` protocol: operations on the files of a local folder or of a URL; and helpers for URLs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from vidprep.formats.errors import SettingsError

# A PUT there shows the whole object or none; elsewhere a file is written beside its place and renamed.
OBJECT_STORES = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "adl", "oci", "oss", "tos", "memory"))
USER_INFO = re.compile(r"(?<=://)[^/?#@]*@")  # RFC 3986, 3.2.1


class Storage(Protocol):
    """A local folder or a folder behind a URL. Names are relative to it and use slashes; links are never followed.

    A file is written completely or not at all, even if the process is killed, except by `update`. Every method raises
    StorageError or OSError if the storage cannot be reached, and DestinationError if a link or a special file has the
    name of one of vidprep's files.

    Attributes:
        root: The local folder; for a URL, a local folder with copies of files as they were last fetched or written
        shown: Name of the storage in messages
        is_remote: Whether it is behind a URL
        is_exclusive: Whether only one of several concurrent creators of a name succeeds, and writes are visible to all
            at once
    """

    root: Path
    shown: str
    is_remote: bool

    @property
    def is_exclusive(self) -> bool: ...

    def refresh(self, wanted: Callable[[str], bool], named: Callable[[str], bool] = lambda _name: False) -> None:
        """Update the copies in `root`: fetch the wanted files, and remove copies of files that no longer exist.

        Args:
            wanted: Selects the names of files to fetch.
            named: Selects names that need only exist: empty files are created for them.
        """
        ...

    def local(self, name: str) -> Path | None:
        """Return the path of an up-to-date copy of a file; None if the file does not exist."""
        ...

    def list(self, wanted: Callable[[str], bool], folder: str = "") -> dict[str, int]:
        """Return the sizes in bytes of the files in a folder whose names are wanted, without those in folders below it."""
        ...

    def folders(self, folder: str) -> tuple[str, ...]:
        """Return the names of the subfolders of a folder."""
        ...

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, behind a URL as last listed; None if the file does not exist."""
        ...

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError."""
        ...

    def read_range(self, name: str, offset: int, size: int) -> Iterator[bytes]:
        """Yield `size` bytes of a file in pieces. Raises StorageError or DestinationError if it ends before."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Create a file. Return False if it already exists, unless this same call created it."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Write a file, replacing an existing one."""
        ...

    def update(self, name: str, data: bytes) -> None:
        """Write into a file that this object created, from its start. A local write is neither atomic nor synced to disk,
        and leaves bytes after `data`; behind a URL, `data` replaces the whole file.

        Raises:
            FileNotFoundError: The file was removed, or replaced by another writer, as far as the storage can tell.
        """
        ...

    def push(self, name: str, *, unchanged: bool = False) -> None:
        """Upload a file that was written in `root`, and keep the local copy.

        Args:
            name: Its name.
            unchanged: Replace the file only if it is the one that was last read or written here, if the storage can
                tell.
            DestinationError if another writer replaced it.

        Raises:
            DestinationError: With `unchanged`, another writer has replaced the file.
        """
        ...

    def publish(self, path: Path, name: str) -> None:
        """Move a local file to its name. Raises DestinationError if a folder of the name is a link or not a folder."""
        ...

    def copy(self, name: str, other: str) -> None:
        """Copy a file to a second name, without reading it if the storage can. Raises FileNotFoundError."""
        ...

    def remove(self, *names: str) -> None:
        """Remove files, and folders that become empty. Missing files are ignored."""
        ...


def is_url(text: str) -> bool:
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def normalize(url: str) -> str:
    """Return a URL with its protocol in lower case."""
    protocol, separator, rest = url.partition("://")
    return protocol.lower() + separator + rest


def check_no_password(url: str) -> None:
    """Raise SettingsError if a URL contains a user name or password, which every row of a manifest would store. The
    message hides both.
    """
    if USER_INFO.search(url):
        raise SettingsError(f"{hide_password(url)} holds a user name or password; give credentials by the environment")


def hide_password(url: str) -> str:
    """Return a URL without user name and password."""
    return USER_INFO.sub("…@", url)


def lacks_bucket(url: str) -> bool:
    """Return whether a URL of an object store has no bucket."""
    protocol, _, rest = url.partition("://")
    return protocol in OBJECT_STORES and protocol != "memory" and not rest.partition("/")[0]


def split_url(url: str) -> tuple[str, str]:
    """Return the URL of a folder and the name of a file below it. Keys are not paths: a double slash belongs to the name."""
    folder, slashes, name = re.fullmatch(r"(.*?)(/*)([^/]*)", url, re.DOTALL).groups()  # type: ignore[union-attr]
    return folder, slashes[1:] + name
