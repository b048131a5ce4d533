"""The journal holds the rows of finished units until they are in the manifest.

    DST/.vidprep/journal.jsonl                one JSON object per finished unit, in the order they finished
    DST/.vidprep/journal-<when>-00000.jsonl   such lines behind a URL, in segments of about a megabyte

A row is written before its output gets its final name, so every output with a final name has a row. A torn last line
(the run was killed while writing it) is dropped. Any other invalid line is skipped and counted, so that its unit is
made again; one that names its unit but has a value that its column cannot hold becomes a failed row. A row of status
`removed` deletes the unit.

Behind a URL, new rows are sent every few seconds; the last segment is rewritten until it is full. If the machine is
lost, rows of the last few seconds are lost too, and their videos are made again, to the same bytes.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vidprep.formats.errors import DestinationError, StorageError, TakenOverError
from vidprep.formats.manifest.row import ManifestRow, check_row, row_of_line
from vidprep.formats.storage.local import open_unlinked
from vidprep.formats.storage.remote import ObjectStorage
from vidprep.formats.storage.untrusted import check_regular, open_regular

SEND_SECONDS, SEGMENT_BYTES = 5.0, 1 << 20


class SentRows:
    """Sends the rows of a journal to object storage, in segments."""

    def __init__(self, storage: ObjectStorage, folder: str, journal: Journal) -> None:
        self._storage, self._folder, self._journal = storage, folder, journal
        self._segment = f"{folder}/journal-{time.time_ns():020d}"
        self._guard = threading.Lock()
        self._number = self._sent = self._whole = 0  # bytes that are there, and those in segments that are full

    @contextmanager
    def sending(self, check_held: Callable[[], object]) -> Iterator[None]:
        """Send rows during the block, and the remaining ones at its end.

        Args:
            check_held: Raises an error if nothing may be sent any more.
        """
        over = threading.Event()

        def keep() -> None:
            while not over.wait(SEND_SECONDS):
                # The next turn sends them, and the end of the run says what stays unsent.
                with suppress(StorageError, DestinationError):
                    self._send(check_held)

        keeper = threading.Thread(target=keep, daemon=True)
        keeper.start()
        try:
            yield
        finally:
            over.set()
            keeper.join()
            with suppress(TakenOverError):
                self._send(check_held)

    def _send(self, check_held: Callable[[], object]) -> None:
        with self._guard:
            try:
                with self._journal.path.open("rb") as file:
                    file.seek(self._whole)
                    data = file.read()
            except FileNotFoundError:
                return
            data = data[: data.rfind(b"\n") + 1]
            if self._whole + len(data) <= self._sent:
                return
            check_held()
            self._storage.send(f"{self._segment}-{self._number:05d}.jsonl", data)
            self._sent = self._whole + len(data)
            if len(data) > SEGMENT_BYTES:
                self._whole, self._number = self._sent, self._number + 1

    def clear(self) -> None:
        """Remove the segments of an empty journal, including those of earlier runs."""
        with self._guard:
            names = self._storage.list(lambda name: SEGMENT.fullmatch(name) is not None, self._folder)
            self._storage.remove(*(f"{self._folder}/{name}" for name in names))
            self._sent = self._whole = 0


LINE_BYTES_MAX = 256 << 20
SEGMENT = re.compile(r"journal-[\d-]+\.jsonl", re.ASCII)


class Journal:
    """Rows on their way to the manifest. One process appends; each row is one write.

    Attributes:
        unreadable: Numbers of the lines that were invalid when they were last read
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unreadable: tuple[int, ...] = ()
        self._fd: int | None = None

    def append(self, *rows: ManifestRow) -> None:
        """Append rows. Raises OSError if the disk is full, and leaves no part of them."""
        if self._fd is None:
            check_regular(self.path)
            self._drop_torn_end()
            self._fd = open_unlinked(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        line = "".join(check_row(row).as_journal_line() + "\n" for row in rows).encode()
        start, written = os.fstat(self._fd).st_size, 0
        try:
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError:
            os.ftruncate(self._fd, start)
            raise

    def files(self) -> list[Path]:
        """Return the files that contain rows, in the order they were written; the last one is being appended to."""
        segments = sorted(path for path in self.path.parent.glob("journal-*.jsonl") if SEGMENT.fullmatch(path.name))
        return [*segments, *([self.path] if self.path.exists() else [])]

    def rows(self) -> Iterator[ManifestRow]:
        """Yield valid rows in the order they were written. Raises OSError if the file is not a regular file."""
        unreadable = []
        for path in self.files():
            with open_regular(path) as file:
                lines = iter(lambda: file.readline(LINE_BYTES_MAX), b"")
                for number, line in enumerate(lines, 1):
                    if not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
                        break
                    try:
                        row = row_of_line(line)
                    except ValueError:
                        unreadable.append(number)
                    else:
                        yield row
        self.unreadable = tuple(unreadable)

    def clear(self) -> None:
        self.close()
        for path in self.files():
            path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _drop_torn_end(self) -> None:
        try:
            with os.fdopen(open_unlinked(self.path, os.O_RDWR), "r+b") as file:
                position = file.seek(0, os.SEEK_END)
                while position:
                    step = min(position, 1 << 16)
                    file.seek(position - step)
                    newline = file.read(step).rfind(b"\n")
                    if newline >= 0:
                        file.truncate(position - step + newline + 1)
                        return
                    position -= step
                file.truncate(0)
        except FileNotFoundError:
            pass
