"""Files of ours in a folder that may have come from elsewhere: no link in it is followed, only regular files are opened.

The folder itself may be a link: whoever gave it meant it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vidprep.formats.errors import DestinationError

IS_A_LINK = "is a symbolic link, which is not followed inside a destination; remove it, or give another folder"
NOT_REGULAR = "is not a regular file; remove it, or give another folder"
HAS_OTHER_NAMES = "is a hard link: what is written to it would change the file elsewhere too; replace it by a copy"


def open_unlinked(path: str | os.PathLike[str], flags: int) -> int:
    """The descriptor of a regular file. Raises DestinationError for a link, for what is no regular file, and where another name
    of a file that is to be written would show what is written; OSError.
    """
    try:
        number = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if os.path.islink(path):  # noqa: PTH114 (what is reported for one differs between systems)
            raise DestinationError(IS_A_LINK, path=os.fspath(path)) from error
        if error.errno in (errno.EISDIR, errno.ENXIO):
            raise DestinationError(NOT_REGULAR, path=os.fspath(path)) from error
        raise
    found = os.fstat(number)
    is_shared = flags & (os.O_WRONLY | os.O_RDWR) and found.st_nlink > 1
    if stat.S_ISREG(found.st_mode) and not is_shared:
        return number
    os.close(number)
    raise DestinationError(HAS_OTHER_NAMES if is_shared else NOT_REGULAR, path=os.fspath(path))


def is_regular(path: str | os.PathLike[str]) -> bool:
    """False for links and for what is not there."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def remove_file(path: Path) -> None:
    """Remove a file, or the link in its place, if there is one. Raises DestinationError for a folder or a device, OSError."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        raise DestinationError(NOT_REGULAR, path=path)
    path.unlink(missing_ok=True)


def refuse_links(folder: Path, enter: Callable[[str], bool] = lambda _name: True) -> None:
    """Raises DestinationError for a folder that is a link or has one in it. enter: the names in it that are looked into."""
    if folder.is_symlink():
        raise DestinationError(IS_A_LINK, path=folder)
    waiting = [str(folder)]
    while waiting:
        above = waiting.pop()
        try:
            with os.scandir(above) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        raise DestinationError(IS_A_LINK, path=entry.path)
                    if entry.is_dir(follow_symlinks=False) and (above != str(folder) or enter(entry.name)):
                        waiting.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue


def link_on_the_way(root: Path, name: str) -> str | None:
    """The first link among the folders below root that lead to a file, and the file itself; None where there is none."""
    path = str(root)
    for step in name.split("/"):
        path = f"{path}/{step}"
        if os.path.islink(path):  # noqa: PTH114
            return path
    return None


@contextmanager
def folder_of(root: Path, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """The folder that root/name lies in, as a descriptor, and the last part of the name. make: folders that are missing.

    Raises DestinationError where a folder below root is a link or no folder, OSError.
    """
    *folders, last = name.split("/")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    number, path = os.open(root, flags), str(root)
    try:
        for folder in folders:
            path = f"{path}/{folder}"
            try:
                below = os.open(folder, flags | os.O_NOFOLLOW, dir_fd=number)
            except FileNotFoundError:
                if not make:
                    raise
                with suppress(FileExistsError):  # another task made it
                    os.mkdir(folder, dir_fd=number)
                below = os.open(folder, flags | os.O_NOFOLLOW, dir_fd=number)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
                    raise
                why = IS_A_LINK if os.path.islink(path) else "is not a folder"  # noqa: PTH114
                raise DestinationError(why, path=path) from error
            os.close(number)
            number = below
        yield number, last
    finally:
        os.close(number)


def remove_below(root: Path, name: str) -> None:
    """Remove the file root/name, or the link in its place, and then the folders above it, below root, in which nothing is left.

    What is not there, and what only a link leads to, is passed over. Raises OSError.
    """
    with suppress(FileNotFoundError, DestinationError), folder_of(root, name) as (folder, last):
        os.unlink(last, dir_fd=folder)
    with suppress(OSError):
        while name := name.rpartition("/")[0]:
            with folder_of(root, name) as (folder, last):
                os.rmdir(last, dir_fd=folder)
