"""What a place for files can do, in a folder or behind a URL; and what URLs say."""

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
    """A folder, here or behind a URL. Names are relative to it, with slashes; no link in it is followed.

    A file is written whole or not at all, also when the process is killed, but for `update`. Each method raises StorageError or OSError
    for what cannot be reached, and DestinationError for a link, or for what is no regular file, where a file of vidprep should be.

    Attributes:
        root: The folder here; of a URL, one in which files of it stand as they were when they were fetched or written last.
        shown: What messages call it.
        is_remote: Whether it is behind a URL.
        is_exclusive: Whether of several that create one name at once, one alone succeeds, and all see at once what others write.
    """

    root: Path
    shown: str
    is_remote: bool

    @property
    def is_exclusive(self) -> bool: ...

    def refresh(self, wanted: Callable[[str], bool], named: Callable[[str], bool] = lambda _name: False) -> None:
        """Have the files whose names are wanted in `root` as they are now, and none that is not there any more.

        Args:
            wanted: Names of files that are to be there.
            named: Of which it is enough to know that they are there: empty files stand for them.
        """
        ...

    def local(self, name: str) -> Path | None:
        """Return where a file stands in `root`, as it is now; None where there is none."""
        ...

    def list(self, wanted: Callable[[str], bool], folder: str = "") -> dict[str, int]:
        """Return the sizes in bytes of the files in a folder whose names are wanted, without those in folders below it."""
        ...

    def folders(self, folder: str) -> tuple[str, ...]:
        """Return the names of the folders in a folder."""
        ...

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, of a URL as it was listed last; None where there is none."""
        ...

    def read(self, name: str) -> bytes:
        """Return all of a file. Raises FileNotFoundError."""
        ...

    def read_range(self, name: str, offset: int, size: int) -> Iterator[bytes]:
        """Yield `size` bytes of a file, a piece at a time. Raises StorageError or DestinationError where it ends before."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Write a file where there is none. Returns False where one is there already, unless this very call made it."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Write a file, in the place of the one that is there."""
        ...

    def update(self, name: str, data: bytes) -> None:
        """Write as many bytes as it has into a file that this object created.

        Neither whole nor safe on disk when it returns. Raises FileNotFoundError where it is gone, or, as far as the storage can tell,
        another's.
        """
        ...

    def push(self, name: str, *, unchanged: bool = False) -> None:
        """Have a file that was written in `root` there, and keep it in `root`.

        Args:
            name: Its name.
            unchanged: Only in the place of the one that was read or written here last, where the storage can tell. Raises
                DestinationError where that is another by now.
        """
        ...

    def publish(self, path: Path, name: str) -> None:
        """Move a file that stands here to its name. Raises DestinationError for a name that no file can have."""
        ...

    def copy(self, name: str, other: str) -> None:
        """Give a file a second name, without reading it where that is possible. Raises FileNotFoundError."""
        ...

    def remove(self, *names: str) -> None:
        """Remove files, and the folders in which nothing is left then. What is not there is passed over."""
        ...


def is_url(text: str) -> bool:
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def normalized(url: str) -> str:
    """Return a URL with its protocol in small letters."""
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
