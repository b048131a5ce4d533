"""Events of a PrefetchLoader, on request: one line of JSON per batch, to a file or a named pipe.

Every line has time (seconds since 1970), event ("batch", and "closed" at the end) and loader (its identity); a batch
also has
epoch, batch    both 0-based, of the batch that was just returned
wait_ms         how long the training loop waited for it
ready, places   batches that were ready when it was requested, and capacity
decode_ms       time to make its sequences: decoding, transforms and audio, summed over all workers
hits, frames    how many of its frames had been decoded before, of how many
cache_bytes     decoded frames in the workers' caches
memory_bytes    resident memory of this process and its descendants, measured every two seconds
"""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import time
import warnings
import weakref
from collections.abc import Sequence

from vidprep.formats.errors import SettingsError
from vidprep.formats.storage.local import memory_bytes
from vidprep.formats.training._worker import ItemResult

MEMORY_SECONDS = 2.0


class LoaderEvents:
    """Writes events immediately. If a pipe is full or has no reader, lines are dropped: training never waits.

    Raises:
        SettingsError: The file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._lines = _Lines(path)
        self.close = weakref.finalize(self, self._lines.close)  # also if the loader is never closed
        self._cache: dict[int, int] = {}
        self._measured, self._memory_bytes = -MEMORY_SECONDS, 0

    def batch(
        self, epoch: int, number: int, waited: float, ready: int, places: int, items: Sequence[tuple[int, ItemResult]]
    ) -> None:
        """Write the event of a batch.

        Args:
            epoch: Number of the epoch, from 0.
            number: Number of the batch, from 0.
            waited: Seconds that the training loop waited.
            ready: Number of batches that were ready.
            places: Number of batches that fit.
            items: Sequences of the batch, each with the number of its worker.
        """
        if (now := time.monotonic()) - self._measured >= MEMORY_SECONDS:
            self._measured, self._memory_bytes = now, memory_bytes()
        self._cache.update((worker, item.cache_bytes) for worker, item in items)
        self._lines.write(
            "batch",
            epoch=epoch,
            batch=number,
            wait_ms=round(1000 * waited, 3),
            ready=ready,
            places=places,
            decode_ms=round(1000 * sum(item.seconds for _, item in items), 3),
            hits=sum(item.hits for _, item in items),
            frames=sum(item.frames for _, item in items),
            cache_bytes=sum(self._cache.values()),
            memory_bytes=self._memory_bytes,
        )


class _Lines:
    """The file or pipe. Raises SettingsError."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike):
            raise SettingsError(f"events is {path!r}; give the path of a file or named pipe")
        self._path = os.fspath(path)
        self._loader = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns() // 1_000_000}"
        try:
            is_pipe = os.path.exists(path) and stat.S_ISFIFO(os.stat(path).st_mode)  # noqa: PTH110, PTH116
            # Opened for reading too, a pipe needs no reader to be opened.
            flags = os.O_RDWR | os.O_NONBLOCK if is_pipe else os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._fd: int | None = os.open(path, flags, 0o644)
        except OSError as error:
            raise SettingsError(f"events cannot be written: {error.strerror}", path=self._path) from error

    def write(self, event: str, **fields: float) -> None:
        """Write a line. If the disk is full, warn and write no more."""
        if self._fd is None:
            return
        line = {"time": round(time.time(), 3), "event": event, "loader": self._loader} | fields
        try:
            os.write(self._fd, json.dumps(line).encode() + b"\n")
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EPIPE):
                os.close(self._fd)
                self._fd = None
                warnings.warn(
                    f"{self._path}: no more events are written: {error.strerror}", RuntimeWarning, stacklevel=4
                )

    def close(self) -> None:
        self.write("closed")
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
