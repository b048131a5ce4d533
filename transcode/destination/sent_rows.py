"""Rows on their way to the manifest of a destination behind a URL: what is appended here goes there every few seconds.

DST/.vidprep/journal-<when>-00000.jsonl   in segments of about a megabyte; the last one is written again until it is full

What is lost with a machine: rows of the last few seconds, whose videos are made again, to the same bytes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from vidprep.formats.errors import DestinationError, StorageError, TakenOverError
from vidprep.formats.manifest import SEGMENT, Journal
from vidprep.formats.storage import ObjectStorage

SEND_SECONDS, SEGMENT_BYTES = 5.0, 1 << 20


class SentRows:
    """The segments of a journal. folder: that they stand in, by its name in the storage."""

    def __init__(self, storage: ObjectStorage, folder: str, journal: Journal) -> None:
        self._storage, self._folder, self._journal = storage, folder, journal
        self._segment = f"{folder}/journal-{time.time_ns():020d}"
        self._guard = threading.Lock()
        self._number = self._sent = self._whole = 0  # bytes that are there, and those in segments that are full

    @contextmanager
    def kept_up(self, check_held: Callable[[], object]) -> Iterator[None]:
        """Send rows for as long as the block, and what is left when it ends. check_held: raises where nothing may be sent any more."""
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
        """The journal is empty: its segments go, those of earlier runs too."""
        with self._guard:
            names = self._storage.list(lambda name: SEGMENT.fullmatch(name) is not None, self._folder)
            self._storage.remove(*(f"{self._folder}/{name}" for name in names))
            self._sent = self._whole = 0
