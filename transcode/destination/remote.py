"""A destination behind a URL. Its state is fetched into a scratch folder, which then is an ordinary destination; outputs go
to their names from the worker that made them, rows follow every few seconds, the manifest when the run ends.

DST/.vidprep/journal-<when>-00000.jsonl   rows on their way to the manifest, in segments of about a megabyte
DST/.vidprep/lock                         who is at work, or was last (lease.py)

What is lost with a machine: rows of the last few seconds, whose videos are made again, to the same bytes.
"""

from __future__ import annotations

import atexit
import re
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vidprep.formats.errors import DestinationError, StorageError
from vidprep.formats.files.remote import NONE, RemoteFile, RemoteFolder
from vidprep.formats.manifest.row import removed
from vidprep.formats.manifest.table import ManifestRow
from vidprep.transcode.destination.folder import (
    GIVEN_LABELS_NAME,
    MERGED_NAME,
    MERGED_PLAN_NAME,
    PART_END_NAME,
    PART_PLAN_NAME,
    PLAN_NAME,
    Destination,
)
from vidprep.transcode.destination.known_units import KnownUnit
from vidprep.transcode.destination.lease_storage import LEASE_OBJECT, LeaseStorage, ObjectLeaseStorage
from vidprep.transcode.destination.partition import Partition
from vidprep.transcode.destination.scratch import scratch_folder
from vidprep.transcode.destination.sharded import ShardedDestination
from vidprep.transcode.settings.options import FrameOptions
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.outputs import STATE_DIR
from vidprep.transcode.unit.job import Upload

if TYPE_CHECKING:
    import pyarrow as pa

    from vidprep.formats.manifest.labels import Labels

SEND_SECONDS, SEGMENT_BYTES = 5.0, 1 << 20
SWAPPED_BYTES_MAX = 64 << 20  # more than that goes there in segments, to which no condition is given
JOURNAL = re.compile(rf"{re.escape(STATE_DIR)}/(?:part-[\d]+-of-[\d]+/)?journal-[\d-]+\.jsonl")
PART_MANIFEST = re.compile(r"manifest-\d+-of-\d+\.parquet")
PART_FILE = re.compile(rf"{re.escape(STATE_DIR)}/part-\d+-of-\d+/(?:{PART_PLAN_NAME}|{PART_END_NAME})")
PART_LEASE = re.compile(rf"{re.escape(STATE_DIR)}/part-\d+-of-\d+/{LEASE_OBJECT}")
STATE = re.compile(rf"{re.escape(STATE_DIR)}/(run\.json|(part-\d+-of-\d+/)?{GIVEN_LABELS_NAME})|manifest[^/]*\.parquet")


def _is_state(name: str) -> bool:
    return any(kind.fullmatch(name) for kind in (STATE, JOURNAL, PART_FILE))


def _scratch() -> Path:
    """A folder that goes with this process."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(scratch_folder())


class _Remote(Destination):
    """What differs from a folder. root: the scratch folder."""

    def _begin(self, url: str) -> None:
        self._folder = RemoteFolder(url)
        self.shown = self._folder.url
        self._segment = f"{self._state_name}/journal-{time.time_ns():020d}"
        self._sending = threading.Lock()
        self._files: dict[str, RemoteFile] = {}
        self._segments, self._sent, self._kept = 0, 0, 0
        self._fetch_state()

    def _fetch_state(self) -> None:
        """What a run must know: settings, manifests, journals, parts. Nothing where that is as it was fetched before."""
        before, self._files = self._files, self._folder.files()
        names = list(filter(_is_state, sorted(self._files)))
        known = {name: file for name, file in before.items() if _is_state(name)}
        if known == {name: self._files[name] for name in names} and all(file.tag for file in known.values()):
            return
        for name in known:
            self._scratched(name).unlink(missing_ok=True)
        for name in names:
            if PART_FILE.fullmatch(name) and self.part is not None:  # that it is there is all that a task must know
                self._scratched(name).parent.mkdir(parents=True, exist_ok=True)
                self._scratched(name).touch()
            elif not JOURNAL.fullmatch(name):
                self._fetch(name, self._scratched(name))
            else:
                journal = self._scratched(name)
                segment = journal.with_suffix(".segment")
                self._fetch(name, segment)
                with journal.open("ab") as file:
                    file.write(segment.read_bytes())
                segment.unlink()
        if self.journal.path.exists():
            self._kept = self._sent = self.journal.path.stat().st_size

    def _scratched(self, name: str) -> Path:
        """Where a file of the state stands in the scratch folder; the segments of a journal are one there."""
        path = self.root / name
        return path.with_name("journal.jsonl") if JOURNAL.fullmatch(name) else path

    def _fetch(self, name: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._folder.fetch(name, path)

    @contextmanager
    def lock(self, *, merging: bool = False, overwrite: bool = False) -> Iterator[None]:
        with super().lock(merging=merging, overwrite=overwrite):
            over = threading.Event()
            keeper = threading.Thread(target=self._keep, args=(over,), daemon=True)
            keeper.start()
            try:
                yield
            finally:
                over.set()
                keeper.join()
                if self.is_held():
                    self._send_rows()

    def _storages(self) -> tuple[LeaseStorage, list[LeaseStorage]]:
        self._storage = ObjectLeaseStorage(self._folder, self._lease_name)
        names = [f"{STATE_DIR}/{LEASE_OBJECT}"] if self.part else filter(PART_LEASE.fullmatch, self._folder.files())
        return self._storage, [ObjectLeaseStorage(self._folder, name) for name in names]

    def _take_lease(self, storage: LeaseStorage, others: Sequence[LeaseStorage], locks: ExitStack) -> None:
        """What was fetched before another ended is not what is there now."""
        super()._take_lease(storage, others, locks)
        self._fetch_state()

    @property
    def _state_name(self) -> str:
        return str(self.state_dir.relative_to(self.root))

    @property
    def _lease_name(self) -> str:
        return f"{self._state_name}/{LEASE_OBJECT}"

    @property
    def disk(self) -> str:
        return f"{tempfile.gettempdir()} (TMPDIR), where outputs wait until they are in {self.shown}"

    def is_held(self) -> bool:
        try:
            self.check_held()
        except (DestinationError, StorageError):
            return False
        return True

    def _keep(self, over: threading.Event) -> None:
        while not over.wait(SEND_SECONDS):
            try:
                if self.is_held():
                    self._send_rows()
            except StorageError:
                continue  # the next turn sends them, and the end of the run says what stays unsent

    def _send_rows(self) -> None:
        """Rows that are not there yet. A segment is written again until it is full."""
        with self._sending:
            try:
                with self.journal.path.open("rb") as file:
                    file.seek(self._kept)
                    data = file.read()
            except FileNotFoundError:
                return
            data = data[: data.rfind(b"\n") + 1]
            if self._kept + len(data) <= self._sent:
                return
            self._folder.write(f"{self._segment}-{self._segments:05d}.jsonl", data)
            self._sent = self._kept + len(data)
            if len(data) > SEGMENT_BYTES:
                self._kept, self._segments = self._sent, self._segments + 1

    def upload(self, file_name: str) -> Upload | None:
        token = self.lease.mine.token if self.lease else ""
        return Upload(f"{self.shown}/{file_name}", self.shown, self._lease_name, token)

    def shared_file(self, name: str) -> Path | None:
        try:
            self._fetch(f"{STATE_DIR}/{name}", self.shared / name)
        except FileNotFoundError:
            (self.shared / name).unlink(missing_ok=True)
        return super().shared_file(name)

    def create_shared(self, name: str, data: bytes) -> None:
        self._folder.create(f"{STATE_DIR}/{name}", data)

    def remove_shared(self, *names: str) -> None:
        super().remove_shared(*names)
        self._folder.remove(f"{STATE_DIR}/{name}" for name in names)

    def write_own(self, name: str, data: bytes) -> None:
        super().write_own(name, data)
        self._folder.write(f"{self._state_name}/{name}", data)

    def remove_own(self, name: str) -> None:
        super().remove_own(name)
        self._folder.remove([f"{self._state_name}/{name}"])

    def check_settings(self, settings: RunSettings, *, overwrite: bool) -> None:
        """Against what they are now: another run may have been here since the state was fetched."""
        self.shared_file("run.json")
        super().check_settings(settings, overwrite=overwrite)

    def write_settings(self, settings: RunSettings, versions: dict[str, str]) -> None:
        super().write_settings(settings, versions)
        self._folder.put(self.shared / "run.json", f"{STATE_DIR}/run.json")

    def holds(self, unit: KnownUnit, file_name: str, /) -> bool:
        there = self._files.get(unit.file_name)
        return unit.file_name == file_name and there is not None and there.size_bytes == unit.size_bytes

    def publish(self, row: ManifestRow, partial: Path, /) -> None:
        """The worker gave it its name."""

    def move(self, row: ManifestRow, before: ManifestRow) -> None:
        self._folder.copy(before.file_name, row.file_name)
        self.journal.append(removed(before, self.run), row)

    def remove_output(self, file_name: str, /) -> None:
        self._folder.remove([file_name])

    def clear_other_stores(self, settings: RunSettings) -> None:
        had_rows = self.journal.path.exists()
        super().clear_other_stores(settings)
        if had_rows and not self.journal.path.exists():
            self._kept = self._sent = 0
            self._remove([name for name in self._files if self._is_own_journal(name)])

    def _names(self) -> list[str]:
        return [name for name in self._files if "/" not in name]

    def _remove(self, file_names: list[str]) -> None:
        self._folder.remove(name for name in file_names if self._files.pop(name, None))

    def _is_own_journal(self, name: str) -> bool:
        return JOURNAL.fullmatch(name) is not None and name.rpartition("/")[0] == self._state_name

    def check_opens(self) -> None:
        """Its shards are elsewhere."""

    def merge_journal(self) -> None:
        """The manifest, and then the rows away that are in it."""
        with self._sending:
            had_rows = self.journal.path.exists()
            super().merge_journal()
            if had_rows:
                self._folder.remove(filter(self._is_own_journal, self._folder.files()))
                self._kept = self._sent = 0

    def write_manifest(self, kept: pa.Table | None, rows: Iterable[ManifestRow], labels: Labels | None = None) -> None:
        """In the place of the one that was there when the lease was taken. Raises DestinationError where that is another by now."""
        super().write_manifest(kept, rows, labels)
        name, size = self.manifest.name, self.manifest.stat().st_size
        self.check_held()
        if self.lease is None or not self._storage.has_conditions or size > SWAPPED_BYTES_MAX:
            self._folder.put(self.manifest, name)
            return
        before, data = self._files.get(name), self.manifest.read_bytes()
        tag = self._folder.swap(name, data, before.tag if before else NONE)
        if tag is None and self._folder.read(name) != data:
            raise DestinationError(
                f"{name} was written by another run meanwhile; this one writes nothing more. Run the same command again",
                path=self.shown,
            )
        if (now := self._folder.file(name)) is not None:
            self._files[name] = now if tag is None else replace(now, tag=tag)

    def fetch_array_plan(self) -> None:
        for name in (PLAN_NAME, MERGED_PLAN_NAME, MERGED_NAME):
            self.shared_file(name)

    def forget_parts(self, parts: Sequence[Partition]) -> None:
        names = self._folder.files()
        self._folder.remove(filter(PART_FILE.fullmatch, sorted(names, reverse=True)))  # plans before ends
        self._folder.remove(
            name for name in names if name.startswith(f"{STATE_DIR}/part-") or PART_MANIFEST.fullmatch(name)
        )
        super().forget_parts(parts)

    def put_plan_away(self, *, is_done: bool) -> None:
        super().put_plan_away(is_done=is_done)
        if (kept := self.shared / MERGED_PLAN_NAME).exists():
            self._folder.put(kept, f"{STATE_DIR}/{MERGED_PLAN_NAME}")
        self._folder.remove([f"{STATE_DIR}/{PLAN_NAME}"])


class RemoteDestination(_Remote):
    """Outputs behind a URL."""

    def __init__(self, url: str, part: Partition | None = None) -> None:
        super().__init__(_scratch(), part)
        self._begin(url)


class RemoteShardedDestination(_Remote, ShardedDestination):
    """Shards behind a URL. One is here at a time; it goes there when it is whole."""

    def __init__(self, url: str, options: FrameOptions, part: Partition | None = None) -> None:
        super().__init__(_scratch(), options, part)
        self._begin(url)

    def upload(self, _file_name: str) -> Upload | None:
        """The parent writes shards."""
        return None

    def shards(self) -> dict[str, int]:
        there = {name: file for name, file in self._folder.files(depth=1).items() if self._layout.is_shard(name)}
        self._files |= there
        return {name: file.size_bytes for name, file in there.items()}

    def holds(self, unit: KnownUnit, file_name: str, /) -> bool:
        return ShardedDestination.holds(self, unit, file_name)

    def keep_shards(self) -> None:
        """Those that are whole go there. One that could not go is tried again with the next, and before the manifest names it."""
        for path in sorted(self.root.iterdir()):
            if self._layout.is_shard(path.name) and path.name != self._writer.unfinished:
                self.check_held()
                self._folder.put(path, path.name)
                path.unlink()

    def stored(self, row: ManifestRow) -> Iterator[bytes]:
        assert row.offset is not None and row.stored_bytes is not None
        return self._folder.read_range(row.file_name, row.offset, row.stored_bytes)

    def _write_index(self) -> None:
        """Beside what says of the index of before."""
        about = f"{self._layout.name}.json"
        if about in self._files:
            self._fetch(about, self.root / about)
        super()._write_index()

    def keep_index(self, path: Path) -> None:
        self._folder.put(path, path.name)

    def publish(self, _row: ManifestRow, partial: Path) -> None:
        partial.unlink()

    def move(self, row: ManifestRow, before: ManifestRow) -> None:
        ShardedDestination.move(self, row, before)

    def remove_output(self, _file_name: str) -> None:
        """What a unit was before stays in its shard."""
