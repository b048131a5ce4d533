"""A local folder as storage; checksums of files; memory and CPU time of this process.

Files appear completely or not at all. The folder may come from elsewhere, so no link in it is followed and only regular
files are opened. The folder itself may be a link.
"""

from __future__ import annotations

import errno
import filecmp
import hashlib
import os
import re
import resource
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from vidprep.formats.errors import DestinationError
from vidprep.formats.storage.untrusted import open_regular, read_regular

IS_A_LINK = "is a symbolic link, which is not followed inside a destination; remove it, or give another folder"
NOT_REGULAR = "is not a regular file; remove it, or give another folder"
HAS_OTHER_NAMES = "is a hard link: what is written to it would change the file elsewhere too; replace it by a copy"


def open_unlinked(path: str | os.PathLike[str], flags: int) -> int:
    """Return the descriptor of a regular file.

    Raises:
        DestinationError: It is a link or not a regular file; or a file to be written has a second hard link, through
            which it would change too.
        OSError: It cannot be opened.
    """
    try:
        number = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if os.path.islink(path):  # noqa: PTH114 (what is reported for one differs between systems)
            raise DestinationError(IS_A_LINK, path=os.fspath(path)) from error
        if error.errno in (errno.EISDIR, errno.ENXIO):
            raise DestinationError(NOT_REGULAR, path=os.fspath(path)) from error
        raise
    status = os.fstat(number)
    is_shared = flags & (os.O_WRONLY | os.O_RDWR) and status.st_nlink > 1
    if stat.S_ISREG(status.st_mode) and not is_shared:
        return number
    os.close(number)
    raise DestinationError(HAS_OTHER_NAMES if is_shared else NOT_REGULAR, path=os.fspath(path))


def is_regular(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a regular file and not a link."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def remove_file(path: Path) -> None:
    """Remove a file or link, if it exists. Raises DestinationError for a folder or a device, OSError."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        raise DestinationError(NOT_REGULAR, path=path)
    path.unlink(missing_ok=True)


def refuse_links(folder: Path, enter: Callable[[str], bool] = lambda _name: True) -> None:
    """Raise DestinationError if a folder is a link or contains one. `enter` selects by name which direct subfolders are
    checked too.
    """
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


def first_link(root: Path, name: str) -> str | None:
    """Return the first link on the path from root to a file, including the file; None without one."""
    path = str(root)
    for step in name.split("/"):
        path = f"{path}/{step}"
        if os.path.islink(path):  # noqa: PTH114
            return path
    return None


@contextmanager
def folder_of(root: Path, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """Open the folder that contains root/name; yield its descriptor and the last part of the name.

    Args:
        root: The storage's folder.
        name: A name below it.
        make: Create missing folders.

    Raises:
        DestinationError: A folder below root is a link, or is no folder.
        OSError: It cannot be opened.
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
    """Remove root/name, or the link in its place, and the folders between that become empty. Raises OSError.

    Missing files, and files behind a link, are ignored.
    """
    with suppress(FileNotFoundError, DestinationError), folder_of(root, name) as (folder, last):
        os.unlink(last, dir_fd=folder)
    with suppress(OSError):
        while name := name.rpartition("/")[0]:
            with folder_of(root, name) as (folder, last):
                os.rmdir(last, dir_fd=folder)


SAMPLES, SAMPLE_BYTES = 16, 1 << 14
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
COPY_BYTES = 1 << 20
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EINVAL)
# File systems that one machine alone writes to. Any other may be seen from several.
LOCAL_FILE_SYSTEMS = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "ramfs", "overlay")
)


class LocalStorage:
    """A folder on this machine, or on a file system shared with others. It is created with the first file."""

    is_remote = False

    def __init__(self, root: Path) -> None:
        self.root, self.shown = root, str(root)

    @property
    def is_exclusive(self) -> bool:
        return file_system_of(self.root) in LOCAL_FILE_SYSTEMS | {""}

    def refresh(self, wanted: Callable[[str], bool], named: Callable[[str], bool] = lambda _name: False) -> None:
        """Do nothing: local files are always up to date."""

    def local(self, name: str) -> Path | None:
        path = self.root / name
        return path if os.path.lexists(path) else None

    def list(self, wanted: Callable[[str], bool], folder: str = "") -> dict[str, int]:
        states = {}
        try:
            names = os.listdir(self.root / folder)  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError):
            return {}
        for name in filter(wanted, names):
            path = self.root / folder / name
            with suppress(FileNotFoundError):  # another process removed it meanwhile
                size = path.lstat().st_size
                if not is_regular(path):
                    raise DestinationError(IS_A_LINK if path.is_symlink() else NOT_REGULAR, path=path)
                states[name] = size
        return states

    def folders(self, folder: str) -> tuple[str, ...]:
        try:
            with os.scandir(self.root / folder) as entries:
                return tuple(sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False)))
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def size(self, name: str) -> int | None:
        try:
            return os.stat(f"{self.root}/{name}").st_size  # noqa: PTH116 (a million times)
        except OSError:
            return None

    def read(self, name: str) -> bytes:
        return read_regular(self.root / name)

    def read_range(self, name: str, offset: int, size: int) -> Iterator[bytes]:
        with open_regular(self.root / name) as file:
            file.seek(offset)
            while size:
                piece = file.read(min(size, COPY_BYTES))
                if not piece:
                    raise DestinationError(
                        "ends before a video that its row places there; `vidprep validate` names it",
                        path=self.root / name,
                    )
                size -= len(piece)
                yield piece

    def create(self, name: str, data: bytes) -> bool:
        """Write a temporary file and link it to the name.

        If the file system has no hard links, create the name with O_EXCL and rename the file to it; a kill in between
        leaves an empty file.
        """
        path = self.root / name
        partial = own_partial_of(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            with os.fdopen(open_unlinked(partial, flags), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(partial, path)
            except FileExistsError:
                return partial.exists() and partial.stat().st_nlink == 2  # it was created, and the reply was lost
            except FileNotFoundError:
                return False  # a run that has started meanwhile removed it
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                os.close(os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
                partial.replace(path)
        except FileExistsError:
            return False
        finally:
            partial.unlink(missing_ok=True)
        return True

    def write(self, name: str, data: bytes) -> None:
        with replacing(self.root / name, own_partial_of(self.root / name)) as file:
            file.write(data)

    def update(self, name: str, data: bytes) -> None:
        number = open_unlinked(self.root / name, os.O_WRONLY)
        try:
            os.pwrite(number, data, 0)
        finally:
            os.close(number)

    def push(self, name: str, *, unchanged: bool = False) -> None:
        """Do nothing: local files are in place already."""

    def publish(self, path: Path, name: str) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        # A path that is too long could be made from here, and never be opened.
        with suppress(FileNotFoundError, NotADirectoryError):
            os.lstat(self.root / name)
        with folder_of(self.root, name, make=True) as (folder, last):
            os.replace(path, last, dst_dir_fd=folder)

    def copy(self, name: str, other: str) -> None:
        path = self.root / other
        remove_file(path)
        with folder_of(self.root, name) as (folder, last):
            try:
                os.link(last, path, src_dir_fd=folder)
            except OSError:  # a file system without links
                shutil.copyfile(self.root / name, path)

    def remove(self, *names: str) -> None:
        for name in names:
            remove_below(self.root, name)


def file_system_of(folder: Path) -> str:
    """Return the type of a folder's file system; "" if the system does not tell."""
    path, best = os.path.realpath(folder), ("", "")
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:  # the last of those mounted on one place is the one that is seen
        before, _, after = line.partition(" - ")
        place = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
        if (path == place or path.startswith(place.rstrip("/") + "/")) and len(place) >= len(best[0]):
            best = place, after.split()[0]
    return best[1]


@contextmanager
def replacing(path: Path, partial: Path | None = None, *, unless_same: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` if the block succeeds, and is removed if it fails.

    Links are not followed; a link at `path` is replaced.

    Args:
        path: The final name.
        partial: Name of the temporary file.
        unless_same: Leave an existing file with the same bytes alone.

    Raises:
        DestinationError: A folder has the name of the temporary file.
    """
    partial = partial_of(path) if partial is None else partial
    remove_file(partial)
    try:
        with os.fdopen(open_unlinked(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL), "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not (unless_same and is_regular(path) and filecmp.cmp(partial, path, shallow=False)):
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def partial_of(path: Path) -> Path:
    """Return the name of the temporary file of `replacing`."""
    return path.with_name(f".{path.name}.partial")


def own_partial_of(path: Path) -> Path:
    """Return a unique temporary name, for writers that may run concurrently, in a folder that is created if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a regular file, in hexadecimal. Raises OSError."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_samples(path: Path) -> str:
    """Return a digest that distinguishes files of equal size without reading them completely. Raises OSError.

    It is the SHA-256, in hexadecimal, of SAMPLES pieces spread evenly from the first byte to the last.
    """
    digest = hashlib.sha256()
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        last = max(0, size - SAMPLE_BYTES)
        for offset in sorted({number * last // (SAMPLES - 1) for number in range(SAMPLES)}):
            digest.update(os.pread(file.fileno(), SAMPLE_BYTES, offset))
    return digest.hexdigest()


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error, or a cause of it, means that the disk is full."""
    return any(isinstance(each, OSError) and each.errno in DISK_FULL for each in _causes(error))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or a cause of it, means that memory is exhausted. A thread that cannot be started counts
    too: its stack needs memory.
    """
    return any(
        isinstance(each, MemoryError)
        or (isinstance(each, OSError) and each.errno == errno.ENOMEM)
        or (isinstance(each, RuntimeError) and "start new thread" in str(each))
        for each in _causes(error)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def check_writable(folder: Path, instead: str) -> None:
    """Raise DestinationError if a folder is not writable. Called before long work.

    Args:
        folder: The folder.
        instead: What the message tells users to give instead.
    """
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    why = "" if place.is_dir() else os.strerror(errno.ENOTDIR)
    if not why and not os.access(place, os.W_OK | os.X_OK):
        is_read_only = bool(os.statvfs(place).f_flag & os.ST_RDONLY)
        why = os.strerror(errno.EROFS if is_read_only else errno.EACCES)
    if why:
        raise DestinationError(f"cannot be written: {why}; {instead}", path=folder)


def cpu_seconds() -> float:
    """Return the CPU time of this process, its threads, and its children that have ended, in seconds."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def memory_bytes() -> int:
    """Return the resident memory of this process and all its descendants; 0 if /proc does not tell."""
    pages, waiting = 0, [os.getpid()]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        try:
            pages += int((process / "statm").read_text().split()[1])
            for task in (process / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (OSError, ValueError, IndexError):
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")
