"""Where leases stand, and how two that want one at once are told apart.

DST/.vidprep/lease-000007   in a folder: the one with the highest number counts. A new one appears whole or not at all, by a
                            hard link, or by O_EXCL where there are no links; of several that make the same number, one does
DST/.vidprep/lock           behind a URL: written by If-None-Match and If-Match. A store that ignores those, or has none, gets
                            a write, a time to settle, and another look
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from vidprep.formats.files.no_links import open_unlinked, remove_file
from vidprep.formats.files.remote import NONE, NoConditionsError, RemoteFolder
from vidprep.formats.files.untrusted import read_regular
from vidprep.transcode.destination.lease import Holder, LeaseEntry
from vidprep.transcode.destination.lease import LeaseStorage as LeaseStorage

LEASE_OBJECT = "lock"
PLACE_LETTERS = 100
LEASE_BYTES_MAX = 1 << 16
LEASE = re.compile(r"lease-(\d{6,15})", re.ASCII)
FOLDER_BEAT_SECONDS, FOLDER_GONE_SECONDS = 2.0, 30.0
STORE_BEAT_SECONDS, STORE_GONE_SECONDS = 5.0, 60.0
# Other machines may see a change in a shared folder this much later, and a write in a store that has no conditions.
FOLDER_SETTLE_SECONDS, STORE_SETTLE_SECONDS = 1.0, 5.0
NO_SUCH_TAG = f'"{"0" * 32}"'
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EINVAL)
# File systems that one machine alone writes to. Any other may be seen from several.
LOCAL_FILE_SYSTEMS = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "ramfs", "overlay")
)


def file_system_of(folder: Path) -> str:
    """The type of file system that a folder is on; "" where the system does not tell."""
    path, found = os.path.realpath(folder), ("", "")
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:  # the last of those mounted on one place is the one that is seen
        before, _, after = line.partition(" - ")
        place = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
        if (path == place or path.startswith(place.rstrip("/") + "/")) and len(place) >= len(found[0]):
            found = place, after.split()[0]
    return found[1]


class FolderLeaseStorage:
    """A lease in a folder that other machines may see."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.beat_seconds, self.gone_seconds, self.trusted_seconds = FOLDER_BEAT_SECONDS, FOLDER_GONE_SECONDS, 0.0

    @property
    def place(self) -> str:
        return f"inode {self._folder.stat().st_ino}"

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self._folder)  # noqa: PTH208
        except FileNotFoundError:
            return []
        return sorted(int(found[1]) for found in map(LEASE.fullmatch, names) if found)

    def _path(self, number: int) -> Path:
        return self._folder / f"lease-{number:06d}"

    def read(self) -> LeaseEntry | None:
        while numbers := self._numbers():
            try:
                data = read_regular(self._path(numbers[-1]), LEASE_BYTES_MAX)
            except FileNotFoundError:
                continue  # it made place for the next
            except ValueError:  # nobody's of ours
                data = b""
            return LeaseEntry(data, numbers[-1], "", Holder.of(data))
        return None

    def claim(self, _before: LeaseEntry | None, mine: Holder, _say: Callable[[str], object], /) -> bool:
        path = self._path(mine.number)
        if not self._create(path, mine):
            return False
        # One that looked before, and was slow, may make a number that was free again by then: the highest counts.
        if file_system_of(self._folder) not in LOCAL_FILE_SYSTEMS | {""}:
            time.sleep(FOLDER_SETTLE_SECONDS)
        if not self.is_mine(mine):
            remove_file(path)
            return False
        for number in self._numbers():
            if number < mine.number:
                self._path(number).unlink(missing_ok=True)
        return True

    def _create(self, path: Path, mine: Holder) -> bool:
        whole = path.with_name(f".{path.name}.{mine.token}.partial")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            with os.fdopen(open_unlinked(whole, flags), "wb") as file:
                file.write(mine.as_bytes())
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(whole, path)
            except FileExistsError:
                return whole.exists() and whole.stat().st_nlink == 2  # it was made, and the answer was lost on its way
            except FileNotFoundError:
                return False  # a run that is at work by now has swept it away
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                with os.fdopen(os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "wb") as file:
                    file.write(mine.as_bytes())
        except FileExistsError:
            return False
        finally:
            whole.unlink(missing_ok=True)
        return True

    def renew(self, mine: Holder) -> bool:
        if not self.is_mine(mine):
            return False
        try:
            file = open_unlinked(self._path(mine.number), os.O_WRONLY)
        except FileNotFoundError:
            return False
        try:
            os.pwrite(file, mine.as_bytes(), 0)
        finally:
            os.close(file)
        return True

    def is_mine(self, mine: Holder) -> bool:
        now = self.read()
        return now is not None and now.holder is not None and now.holder.token == mine.token


class ObjectLeaseStorage:
    """A lease behind a URL. name: of its object."""

    def __init__(self, folder: RemoteFolder, name: str) -> None:
        self._folder, self._name = folder, name
        self.beat_seconds, self.gone_seconds = STORE_BEAT_SECONDS, STORE_GONE_SECONDS
        self.trusted_seconds = 2 * STORE_BEAT_SECONDS
        self._tag = ""
        self.has_conditions = folder.knows_conditions

    @property
    def place(self) -> str:
        return f"{self._folder.url}/{self._name}"[:PLACE_LETTERS]

    def read(self) -> LeaseEntry | None:
        try:
            data, tag = self._folder.read_tagged(self._name)
        except FileNotFoundError:
            return None
        holder = Holder.of(data)
        return LeaseEntry(data, holder.number if holder else 0, tag, holder)

    def claim(self, before: LeaseEntry | None, mine: Holder, say: Callable[[str], object], /) -> bool:
        data = mine.as_bytes()
        if self.has_conditions:
            tag = self._swapped(data, before.tag if before else NONE)
            if tag is None and self.has_conditions:
                now = self.read()
                if now is None or now.data != data:
                    return False
                tag = now.tag  # it was written, and the answer was lost on its way
            self._tag = tag or ""
            # Conditions that cannot hold, on what is one's own: a store that writes all the same ignores them.
            if (
                all(self._swapped(data, impossible) is None for impossible in (NONE, NO_SUCH_TAG))
                and self.has_conditions
            ):
                return True
            self.has_conditions = False
        return self._written_and_settled(before, data, mine, say)

    def _swapped(self, data: bytes, tag: str) -> str | None:
        """The new tag; None where what is there has another than `tag`, or conditions are refused."""
        try:
            return self._folder.swap(self._name, data, tag)
        except NoConditionsError:
            self.has_conditions = False
            return None

    def _written_and_settled(
        self, before: LeaseEntry | None, data: bytes, mine: Holder, say: Callable[[str], object]
    ) -> bool:
        settle = 0.0
        if not self._folder.is_own:
            settle = STORE_SETTLE_SECONDS
            say(f"{self._folder.url} has no conditional writes; looking again in {settle:g} s who holds it")
        now = self.read()
        if now is not None and now.data not in (data, before.data if before else data):
            return False
        begun = time.monotonic()
        self._folder.write(self._name, data)
        time.sleep(max(settle, 2 * (time.monotonic() - begun)) if settle else 0.0)
        return self.is_mine(mine)

    def renew(self, mine: Holder) -> bool:
        data = mine.as_bytes()
        if not self.has_conditions:
            if self.is_mine(mine):
                self._folder.write(self._name, data)
                return True
            return False
        tag = self._swapped(data, self._tag)
        while tag is None:
            now = self.read()
            if now is None or now.holder is None or now.holder.token != mine.token:
                return False
            tag = now.tag if now.data == data else self._swapped(data, now.tag)
        self._tag = tag
        return True

    def is_mine(self, mine: Holder) -> bool:
        now = self.read()
        return now is not None and now.holder is not None and now.holder.token == mine.token
