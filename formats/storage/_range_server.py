"""The process that reads ranges of objects for others; see `ranges.py`. A thread serves each connection."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vidprep.formats.errors import MissingError, SettingsError, StorageError
from vidprep.formats.processes import Channel
from vidprep.formats.storage.range_reader import RangeReader
from vidprep.formats.storage.ranges import SOCKET_NAME, ReplacedObjectError, Run, Wanted


class _Connection:
    """Serves one connection."""

    def __init__(self, end: socket.socket) -> None:
        self._socket, self._channel = end, Channel(end)
        self._reader: RangeReader | None = None

    def serve(self) -> None:
        """Serve until the other side ends."""
        try:
            with suppress(EOFError, ConnectionError):
                while True:
                    method, arguments = self._channel.receive()
                    if method == "read":
                        self._read(*arguments)
                    elif method == "announce":
                        self._announce(*arguments)
                    else:
                        self._answer(method, arguments)
        finally:
            if self._reader is not None:
                self._reader.close()
            self._channel.close()

    @property
    def _opened(self) -> RangeReader:
        assert self._reader is not None
        return self._reader

    def _answer(self, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            answer = None
            if method == "use":
                self._reader = RangeReader(*arguments)
            else:
                answer = getattr(self._opened, method)(*arguments)
        except Exception as error:  # noqa: BLE001 (raised where it was asked for)
            self._channel.send((None, _portable(error)))
        else:
            self._channel.send((answer, None))

    def _announce(self, done: int, wanted: Sequence[Wanted]) -> None:
        with suppress(StorageError):  # raised when it is read
            self._opened.announce(done, wanted)

    def _read(self, name: str, runs: Sequence[Run]) -> None:
        try:
            parts = self._opened.parts(name, runs)
        except Exception as error:  # noqa: BLE001 (raised where it was asked for)
            self._channel.send(_portable(error))
            return
        self._channel.send(None)
        for part in parts:
            for data in part:
                self._socket.sendall(data)


def _portable(error: Exception) -> Exception:
    """Return an error that other processes can read."""
    if isinstance(error, StorageError):
        kind = ReplacedObjectError if isinstance(error, ReplacedObjectError) else StorageError
        made = kind(error.message, path=error.path)
        made.exit_code = error.exit_code
        return made
    if isinstance(error, SettingsError | MissingError):
        return error
    return StorageError(f"{type(error).__name__}: {error}")


def serve_ranges(folder: str, keeper: int) -> None:
    """Serve connections to the socket of a folder, until no process holds the other end of `keeper`.

    Args:
        folder: The folder, which is removed.
        keeper: File descriptor of a socket.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    channel = Channel(socket.socket(fileno=keeper))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(Path(folder, SOCKET_NAME)))
    listener.listen(1024)
    with suppress(ImportError):  # reported for the URL
        import obstore  # noqa: F401 (now, not during the first request)
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    channel.send(None)
    with suppress(EOFError):
        channel.receive()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # without waiting for requests


def _accept(listener: socket.socket) -> None:
    while True:
        end, _ = listener.accept()
        threading.Thread(target=_Connection(end).serve, daemon=True).start()
