"""A destination folder: who works in it, with which settings, and the rows that stand in it.

DST/.vidprep/lease-000007   who works in it, or did last (lease.py)
DST/.vidprep/lock           the kernel's lock on it, too, where the file system has such
DST/.vidprep/run.json       the settings that its outputs were made with
DST/.vidprep/journal.jsonl  rows of finished units since the manifest was last written
DST/.vidprep/partial/       outputs on their way; empty between runs
DST/.vidprep/merged.json    what `vidprep merge` has joined so far, and what was missing (account.py)

A part of an array run has a lock, a journal and partial files of its own (parts.py) and shares the rest.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vidprep.formats.errors import DestinationError, StorageError
from vidprep.formats.files.local import is_disk_full, replacing, sha256_of
from vidprep.formats.files.no_links import (
    IS_A_LINK,
    NOT_REGULAR,
    folder_of,
    is_regular,
    open_unlinked,
    refuse_links,
    remove_below,
    remove_file,
)
from vidprep.formats.manifest.table import (
    MANIFEST_NAME,
    Journal,
    ManifestRow,
    fence_of,
    manifest_paths,
    read_table,
    with_columns,
    write_rows,
)
from vidprep.transcode.destination.lease import Lease, first_at_work, in_use
from vidprep.transcode.destination.ledgers import FolderLedger, Ledger, flocked
from vidprep.transcode.destination.partition import Part, parts_in
from vidprep.transcode.destination.run_file import STATE_DIR, differences, read_run
from vidprep.transcode.settings.options import Target
from vidprep.transcode.settings.run import RunSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from vidprep.transcode.unit.job import Upload

MERGED_NAME = "merged.json"
PARTIAL_LETTERS, TOKEN_LETTERS = 24, 8
STATE_COLUMNS = [
    "id", "file_name", "start_seconds", "end_seconds", "status", "attempts", "source_size_bytes", "source_mtime_ns",
    "settings_digest", "size_bytes", "encoder_version", "offset", "stored_bytes",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class KnownUnit:
    """What resuming needs of a row."""

    file_name: str
    start_seconds: float | None
    end_seconds: float | None
    ok: bool
    attempts: int
    source_size_bytes: int | None
    source_mtime_ns: int | None
    settings_digest: str | None
    size_bytes: int | None
    encoder_version: str | None
    offset: int | None
    stored_bytes: int | None


class Destination:
    """The folder that outputs go to. Nothing is written before `hold`. part: of an array run, None for a whole one.

    torn: what a kill may leave of its own files. shown: its name in messages. say: told of what takes long. lease: while it is
    held.
    """

    torn: tuple[str, ...] = (".manifest*.partial",)

    def __init__(self, root: Path, part: Part | None = None) -> None:
        self.root = root
        self.shown = str(root)
        self.part = part
        self.shared = root / STATE_DIR
        self.state_dir = self.shared / part.state_dir_name if part else self.shared
        self.manifest = root / (part.manifest_name if part else MANIFEST_NAME)
        self.partials = self.state_dir / "partial"
        self.journal = Journal(self.state_dir / "journal.jsonl")
        self.say: Callable[[str], object] = lambda _text: None
        self.lease: Lease | None = None

    @contextmanager
    def lock(self, *, merging: bool = False) -> Iterator[None]:
        """Be the only run in this folder, or the only one that works on this part. merging: parts are welcome.

        Raises DestinationError naming the holder, or why it cannot be written.
        """
        with ExitStack() as locks:
            try:
                refuse_links(self.shared, enter=lambda name: not name.startswith("part-"))
                if self.part:
                    refuse_links(self.state_dir)
                self.partials.mkdir(parents=True, exist_ok=True)
                self._lock(locks)
            except (DestinationError, StorageError):
                raise
            except OSError as error:
                raise DestinationError(f"cannot be written: {error.strerror or error}", path=self.shown) from error
            locks.callback(self.journal.close)
            others = {part.count for part in parts_in(self.root, self.shared)} - (
                {self.part.count} if self.part else set()
            )
            if others and not merging:
                raise DestinationError(
                    f"holds parts of a run by {', '.join(map(str, sorted(others)))} tasks; `vidprep merge {self.shown}` first",
                    path=self.shown,
                )
            yield

    def _lock(self, locks: ExitStack) -> None:
        """By the kernel, as far as that reaches, and by a lease. Raises DestinationError, OSError."""
        whole = self._open_lock(self.shared, locks)
        own = self._open_lock(self.state_dir, locks) if self.part else whole
        if not (flocked(whole, fcntl.LOCK_SH) if self.part else True) or not flocked(own, fcntl.LOCK_EX):
            raise in_use(self._named_in(own if self.part else whole), self.shown)
        self._take_lease(FolderLedger(self.state_dir), self._other_ledgers(), locks)
        assert self.lease is not None
        os.ftruncate(own, 0)
        os.pwrite(own, str(self.lease.mine).encode(), 0)

    def _open_lock(self, state_dir: Path, locks: ExitStack) -> int:
        lock = open_unlinked(state_dir / "lock", os.O_RDWR | os.O_CREAT)
        locks.callback(os.close, lock)
        return lock

    def _named_in(self, lock: int) -> str:
        tasks = len(parts_in(self.root, self.shared)) if not self.part else 0
        holder = os.pread(lock, 1000, 0).decode("utf-8", "replace").strip()
        return f"tasks of an array run ({tasks} parts)" if tasks else holder or "another process"

    def _other_ledgers(self) -> list[Ledger]:
        """Of the whole, for a part; of all parts, for the whole."""
        state_dirs = [self.shared] if self.part else sorted(self.shared.glob("part-*"))
        return [FolderLedger(state_dir) for state_dir in state_dirs]

    def _take_lease(self, ledger: Ledger, others: list[Ledger], locks: ExitStack) -> None:
        """Its own first, and then a look at the others: of two that do so at once, one at least sees the other."""
        lease = Lease(ledger, self.shown, self.say)
        lease.take(fence_of(self.manifest))
        locks.callback(lease.release)
        self.lease = lease
        if (holder := first_at_work(others, self.say)) is not None:
            raise in_use(holder, self.shown)

    def check_held(self) -> None:
        """Before anything takes its name. Raises TakenOverError when another run has taken this one for dead."""
        if self.lease is not None:
            self.lease.check()

    @property
    def fence(self) -> int:
        """The number of the lease, which no later run has a lower one than."""
        return self.lease.mine.number if self.lease else 0

    def partial(self, unit_id: str, extension: str) -> Path:
        """Where an output stands until it is proven: a short name, since `unit_id` may be as long as names can be."""
        mine = self.lease.mine.token[:TOKEN_LETTERS] if self.lease else ""  # nobody else's workers write into it
        return self.partials / f"{_partial_name(unit_id)}{mine}.{extension}"

    def upload(self, _file_name: str) -> Upload | None:
        """Where a worker puts an output that is proven; None leaves that to `name`."""
        return None

    def known_units(self) -> dict[str, KnownUnit]:
        """Every unit that has a row, by id; the journal is newer than the manifest."""
        known: dict[str, KnownUnit] = {}
        table = read_table(self.root, STATE_COLUMNS)
        if table is not None:
            table = with_columns(table, STATE_COLUMNS)
            ids, file_names, starts, ends, statuses, *rest = (table[name].to_pylist() for name in STATE_COLUMNS)
            for id_, file_name, start, end, status, *others in zip(
                ids, file_names, starts, ends, statuses, *rest, strict=True
            ):
                known[id_] = KnownUnit(file_name, start, end, status == "ok", *others)
        for row in self.journal.rows():
            known[row.id] = KnownUnit(
                row.file_name, row.start_seconds, row.end_seconds, row.ok, row.attempts, row.source_size_bytes,
                row.source_mtime_ns, row.settings_digest, row.size_bytes, row.encoder_version, row.offset, row.stored_bytes,
            )  # fmt: skip
        return known

    def check_settings(self, settings: RunSettings, *, overwrite: bool) -> None:
        """Refuse to mix outputs of unlike settings in one folder. Raises DestinationError that shows the difference."""
        path = self.shared / "run.json"
        try:
            before = read_run(self.shared)["settings"]
        except FileNotFoundError:
            if manifest_paths(self.root) and not overwrite:
                raise DestinationError(
                    "has a manifest, and no .vidprep/run.json that says how it was made; --overwrite makes all anew",
                    path=self.shown,
                ) from None
            return
        except (ValueError, OSError) as error:
            if overwrite:
                return
            raise DestinationError(f"cannot be read ({error}); --overwrite makes all anew", path=path) from error
        difference = list(differences(before, settings))
        if difference and not overwrite:
            raise DestinationError(
                "was made with other settings: " + "; ".join(difference) + ". Take another folder, or --overwrite",
                path=self.shown,
            )

    def value_found_for(self, target: Target | None) -> int | None:
        """The CRF or quality that an earlier run found for this target, or None."""
        try:
            before = RunSettings.from_dict(read_run(self.shared)["settings"])
        except (OSError, ValueError):
            return None
        return int(before.quality_value) if before.target == target else None

    def write_settings(self, settings: RunSettings, versions: dict[str, str]) -> None:
        content = {"settings": settings.as_dict(), "digest": settings.digest, "versions": versions}
        try:
            with replacing(self.state_dir / "run.json") as file:
                file.write(json.dumps(content, indent=1).encode())
            (self.state_dir / "run.json").replace(
                self.shared / "run.json"
            )  # tasks that start at once do not meet half way
        except OSError as error:
            raise DestinationError(f"cannot be written: {error.strerror}", path=self.shown) from error

    def shared_file(self, name: str) -> Path | None:
        """A file of the whole destination in DST/.vidprep, as it is now; None where it is not there."""
        path = self.shared / name
        return path if os.path.lexists(path) else None

    def create_shared(self, name: str, data: bytes) -> None:
        """Write one of those, all at once, where it is not there: of several tasks one does. Raises DestinationError."""
        path, own = self.shared / name, self.shared / f".{name}.{self.state_dir.name}.partial"
        try:
            remove_file(own)
            with os.fdopen(open_unlinked(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(own, path)
            except FileExistsError:
                pass
            except OSError:
                # Where there are no links, two tasks at once may each write it, and `vidprep merge` sees that they differ.
                if not path.exists():
                    own.replace(path)
            own.unlink(missing_ok=True)
        except OSError as error:
            raise DestinationError(f"cannot be written: {error.strerror}", path=path) from error

    def remove_shared(self, *names: str) -> None:
        for name in names:
            remove_file(self.shared / name)

    def write_own(self, name: str, data: bytes) -> None:
        """A file beside the journal. Raises DestinationError."""
        try:
            with replacing(self.state_dir / name) as file:
                file.write(data)
        except OSError as error:
            raise DestinationError(f"cannot be written: {error.strerror}", path=self.state_dir / name) from error

    def remove_own(self, name: str) -> None:
        remove_file(self.state_dir / name)

    def recover(self) -> int:
        """After a kill: outputs that were proven and journalled get their names; other partial files go.

        Returns how many outputs were given their names.
        """
        named = 0
        waiting = {path.stem[:PARTIAL_LETTERS]: path for path in self.partials.iterdir()}
        for row in self.journal.rows():
            partial = waiting.get(_partial_name(row.id))
            if partial is not None and row.ok and is_regular(partial) and sha256_of(partial) == row.sha256:
                with suppress(DestinationError):  # then it is made again, and its row says why it cannot be
                    self.publish(row, partial)
                    named += 1
        self.remove_leftovers()
        return named

    def remove_leftovers(self) -> None:
        """What nobody works on any more, of workers that were killed."""
        for leftover in self.partials.iterdir():
            with suppress(OSError):
                leftover.unlink()
        names = (f".{self.part.manifest_name}.partial",) if self.part else self.torn
        for torn in [path for name in names for path in self.root.glob(name)] + [*self.state_dir.glob(".*.partial")]:
            remove_file(torn)

    def holds(self, unit: KnownUnit, file_name: str, /) -> bool:
        """Whether the output of a unit is there, as its row says, under the name that it would be given now."""
        try:
            there = os.stat(f"{self.root}/{unit.file_name}").st_size  # noqa: PTH116 (a million times)
        except OSError:
            return False
        return unit.file_name == file_name and there == unit.size_bytes

    def place(self, row: ManifestRow, partial: Path, /) -> None:
        """Before the row is journalled: nothing to do, as an output is found by its partial name."""

    def publish(self, row: ManifestRow, partial: Path, /) -> None:
        """Give a proven output its final name. Raises DestinationError, OSError when the disk is full."""
        try:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.lstat(
                    self.root / row.file_name
                )  # a path that is too long could be made from here, and never be opened
            with folder_of(self.root, row.file_name, make=True) as (folder, name):
                os.replace(partial, name, dst_dir_fd=folder)
        except OSError as error:
            if is_disk_full(error):
                raise
            why = f"{error.path} {error.message}" if isinstance(error, DestinationError) else error.strerror
            raise DestinationError(f"{row.file_name} cannot be written: {why}", stage="write") from error

    def remove_output(self, file_name: str, /) -> None:
        """Remove what a unit was before, under a name that it has no more."""
        with suppress(OSError):
            remove_below(self.root, file_name)

    def clear_other_stores(self, settings: RunSettings) -> None:
        """Before all is made anew: take away what runs of another layout made here. Raises DestinationError, ManifestError."""
        from vidprep.formats.stores.registry import ENCODED
        from vidprep.transcode.destination.other_stores import forget_rows_of_others, left_by_others

        kept = settings.frames.store if settings.frames else ENCODED
        self._remove(left_by_others(self.root, self.journal, self._names(), kept))
        self._remove(forget_rows_of_others(self.root, self.journal, kept))

    def _names(self) -> list[str]:
        """What lies in the folder itself."""
        return os.listdir(self.root)  # noqa: PTH208

    def _remove(self, file_names: list[str]) -> None:
        """Files, and the folders in which nothing is left. Raises DestinationError for what is a link or no file."""
        for path in (self.root / name for name in file_names if "/" not in name):
            if os.path.lexists(path) and not is_regular(path):
                raise DestinationError(IS_A_LINK if path.is_symlink() else NOT_REGULAR, path=path)
        for name in file_names:
            remove_below(self.root, name)

    def check_opens(self) -> None:
        """Nothing was to do: does what stands here open? Raises StoreError."""
        from vidprep.formats.stores.registry import open_store

        if not self.part and self.manifest.exists():
            open_store(self.root)

    def finish(self) -> None:
        """Journal into manifest; whichever of the two steps is interrupted, the next run does it again."""
        if not self.journal.path.exists():
            return
        self.check_held()
        kept: pa.Table | None = read_table(self.root, only=self.manifest)
        write_rows(self.manifest, kept, self.journal.rows(), fence=self.fence)
        self.journal.clear()

    @property
    def disk(self) -> str:
        """The folder whose room is used, in messages."""
        return self.shown

    def free_bytes(self) -> int:
        """Free bytes on the device that the folder is, or will be, on."""
        place = self.root
        while not place.exists():
            place = place.parent
        return shutil.disk_usage(place).free


def _partial_name(unit_id: str) -> str:
    return hashlib.sha256(unit_id.encode()).hexdigest()[:PARTIAL_LETTERS]
