"""A destination behind a URL. Its state is fetched into a scratch folder, which then is an ordinary destination; outputs go
to their names from the worker that made them, rows follow every few seconds, the manifest when the run ends.

DST/.vidprep/journal-<when>-00000.jsonl   rows on their way to the manifest, in pieces of about a megabyte
DST/.vidprep/lock                         who is at work, and when he last said so

What is lost with a machine: rows of the last few seconds, whose videos are made again, to the same bytes.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from vidprep.formats.errors import DestinationError, StorageError
from vidprep.formats.manifest import ManifestRow
from vidprep.formats.remote import RemoteFolder
from vidprep.transcode.destination import HOUSE, Destination, KnownUnit
from vidprep.transcode.merge import Merged, merge
from vidprep.transcode.packed import PackedDestination
from vidprep.transcode.parts import Part
from vidprep.transcode.scratch import scratch_folder
from vidprep.transcode.settings import FrameOptions, RunSettings

SEND_SECONDS, SEGMENT_BYTES = 5.0, 1 << 20
LEASE_SECONDS = 60.0
JOURNAL = re.compile(rf"{re.escape(HOUSE)}/(?:part-[\d]+-of-[\d]+/)?journal-[\d-]+\.jsonl")
PART_MANIFEST = re.compile(r"manifest-\d+-of-\d+\.parquet")
LOCK = re.compile(rf"{re.escape(HOUSE)}/(?:part-[\d]+-of-[\d]+/)?lock")


def _scratch() -> Path:
    """A folder that goes with this process."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(scratch_folder())


class _Remote(Destination):
    """What differs from a folder. root: the scratch folder."""

    def _begin(self, url: str) -> None:
        """Fetch what a run must know: settings, manifests, journals."""
        self._folder = RemoteFolder(url)
        self.shown = self._folder.url
        self._segment = f"{self.house.relative_to(self.root)}/journal-{time.time_ns():020d}"
        self._segments, self._sent, self._kept = 0, 0, 0
        self._sending = threading.Lock()
        self._files = self._folder.files()
        for name in sorted(self._files):
            if name == f"{HOUSE}/run.json" or re.fullmatch(r"manifest[^/]*\.parquet", name):
                self._fetch(name, self.root / name)
            elif JOURNAL.fullmatch(name):
                journal = (self.root / name).with_name("journal.jsonl")
                piece = journal.with_suffix(".piece")
                self._fetch(name, piece)
                with journal.open("ab") as file:
                    file.write(piece.read_bytes())
                piece.unlink()
        if self.journal.path.exists():
            self._kept = self._sent = self.journal.path.stat().st_size

    def _fetch(self, name: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._folder.fetch(name, path)

    @contextmanager
    def hold(self, *, merging: bool = False) -> Iterator[None]:
        self.check_leases()
        with super().hold(merging=merging):
            over = threading.Event()
            self._say_at_work()
            keeper = threading.Thread(target=self._keep, args=(over,), daemon=True)
            keeper.start()
            try:
                yield
            finally:
                over.set()
                keeper.join()
                self._send_rows()
                self._folder.remove([self._lock_name])

    @property
    def _lock_name(self) -> str:
        return f"{self.house.relative_to(self.root)}/lock"

    def check_leases(self) -> None:
        """Of the whole and of the same part; a whole run also stays away from every part. Raises DestinationError."""
        for name in filter(LOCK.fullmatch, self._files):
            if self.part and name not in (self._lock_name, f"{HOUSE}/lock"):
                continue
            try:
                told = json.loads(self._folder.read(name))
                idle = time.time() - float(told["time"])
                holder = str(told["holder"])
            except (FileNotFoundError, ValueError, KeyError, TypeError):
                continue
            if idle < 2 * LEASE_SECONDS:
                raise DestinationError(
                    f"in use by {holder}; wait for it, or stop it (one that was killed is forgotten after {2 * LEASE_SECONDS:g} s)",
                    path=self.shown,
                )

    def _say_at_work(self) -> None:
        told = {"holder": f"process {os.getpid()} on {socket.gethostname()}", "time": time.time()}
        self._folder.write(self._lock_name, json.dumps(told).encode())
        self._said = time.monotonic()

    def _keep(self, over: threading.Event) -> None:
        while not over.wait(SEND_SECONDS):
            try:
                self._send_rows()
                if time.monotonic() - self._said > LEASE_SECONDS:
                    self._say_at_work()
            except StorageError:
                continue  # the next turn sends them, and the end of the run says what stays unsent

    def _send_rows(self) -> None:
        """Rows that are not there yet. A piece is written again until it is full."""
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

    def upload_url(self, file_name: str) -> str | None:
        return f"{self.shown}/{file_name}"

    def write_settings(self, settings: RunSettings, versions: dict[str, str]) -> None:
        super().write_settings(settings, versions)
        self._folder.put(self.shared / "run.json", f"{HOUSE}/run.json")

    def holds(self, unit: KnownUnit, file_name: str, /) -> bool:
        there = self._files.get(unit.file_name)
        return unit.file_name == file_name and there is not None and there.size_bytes == unit.size_bytes

    def name(self, row: ManifestRow, partial: Path, /) -> None:
        """The worker gave it its name."""

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
        return JOURNAL.fullmatch(name) is not None and name.rpartition("/")[0] == str(self.house.relative_to(self.root))

    def check_opens(self) -> None:
        """Its shards are elsewhere."""

    def _is_there(self, path: Path) -> bool:
        """Whether a file of the scratch folder lies behind the URL, byte for byte."""
        there = self._files.get(path.name)
        size = path.stat().st_size
        return there is not None and there.size_bytes == size and self._folder.read(path.name) == path.read_bytes()

    def finish(self) -> None:
        """The manifest last, and then the rows away that are in it. With no rows, an index that is lost or damaged there."""
        with self._sending:
            had_rows = self.journal.path.exists()
            super().finish()
            for path in sorted(self.root.iterdir()):
                if path.is_file() and not path.name.startswith("manifest") and (had_rows or not self._is_there(path)):
                    self._folder.put(path, path.name)
            if not had_rows:
                return
            self._folder.put(self.manifest, self.manifest.name)
            self._folder.remove(filter(self._is_own_journal, self._folder.files()))

    def sizes(self) -> dict[str, int]:
        """Bytes of all files there, by name."""
        return {name: file.size_bytes for name, file in self._files.items()}

    def put_merged(self) -> None:
        """The scratch folder was merged: so is what lies behind the URL, the parts last."""
        for path in sorted(self.root.iterdir()):
            if path.is_file():
                self._folder.put(path, path.name)
        for name in self._folder.files():
            if name.startswith(f"{HOUSE}/part-") or JOURNAL.fullmatch(name) or PART_MANIFEST.fullmatch(name):
                self._folder.remove([name])


class RemoteDestination(_Remote):
    """Outputs behind a URL."""

    def __init__(self, url: str, part: Part | None = None) -> None:
        super().__init__(_scratch(), part)
        self._begin(url)


class RemotePackedDestination(_Remote, PackedDestination):
    """Shards behind a URL. One is here at a time; it goes there when the next one begins, and when the run ends."""

    def __init__(self, url: str, options: FrameOptions, part: Part | None = None) -> None:
        super().__init__(_scratch(), options, part)
        self._begin(url)
        self._far_shards.update(self.sizes())
        self._sizes.update(self._far_shards)

    def upload_url(self, _file_name: str) -> str | None:
        """The parent writes shards."""
        return None

    def holds(self, unit: KnownUnit, file_name: str, /) -> bool:
        return PackedDestination.holds(self, unit, file_name)

    def place(self, row: ManifestRow, partial: Path) -> None:
        super().place(row, partial)
        for path in self.root.iterdir():
            if self._layout.shard_number(path.name) is not None and path.name != row.file_name:
                self._folder.put(path, path.name)
                self._far_shards[path.name] = path.stat().st_size
                path.unlink()

    def name(self, _row: ManifestRow, partial: Path) -> None:
        partial.unlink()

    def remove_output(self, _file_name: str) -> None:
        """What a unit was before stays in its shard."""


def merge_remote(url: str) -> Merged:
    """`merge` of parts behind a URL."""
    place = RemoteDestination(url)
    place.check_leases()
    (place.shared / "index-stale").touch()
    merged = merge(place.root, place.sizes())
    place.put_merged()
    return merged
