"""Ranges of objects behind a URL, read by a process of its own.

The library that makes the requests (obstore) does not survive a fork: a forked child waits for ever once its parent has
made a request. So one process makes the requests for a program and all its children, forked or not: the range server
(`_range_server.py`). The program starts it at the first request, and ends it. Each thread of each process has a connection to its
Unix socket, and a process that finds no server there starts its own.
"""

from __future__ import annotations

import atexit
import errno
import os
import pickle
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from vidprep.formats.errors import MissingError, SettingsError, StorageError
from vidprep.formats.processes import Channel, interpreter
from vidprep.formats.storage.base import check_no_password, lacks_bucket, normalize

PATH_LETTERS_MAX = 100  # of a Unix socket: sockaddr_un has room for 108
SOCKET_NAME = "socket"
PEER = struct.Struct("3i")  # process, user and group: unix(7)
OF_CREDENTIALS = ("AWS_", "AZURE_", "GOOGLE_", "HOME")
CONNECTED_SECONDS = 60.0  # a busy machine may take long to start Python


class Piece(NamedTuple):
    """Bytes that are always read together, such as a GOP or a frame.

    Attributes:
        offset: Position in the file
        crc32: CRC-32 of the bytes; None if unknown
    """

    offset: int
    size: int
    crc32: int | None


class Run(NamedTuple):
    """Adjacent pieces, which are read into one buffer.

    Attributes:
        offset: Position in the file
        pieces: The pieces, ascending. What is between them is unspecified in the buffer
    """

    offset: int
    size: int
    pieces: tuple[Piece, ...]


class Wanted(NamedTuple):
    """Runs that will be read for an item of a dataset.

    Attributes:
        position: Position of the item in the order in which items are read
        runs: What will be read of it
        fetch: Whether to fetch it now; otherwise the announcement only tells the cache what to keep
    """

    position: int
    name: str
    runs: tuple[Run, ...]
    fetch: bool


@dataclass(frozen=True)
class RangePlace:
    """A folder behind a URL, and how it is read.

    Attributes:
        options: Options of obstore for it: credentials, endpoint, region, client_options and others
        cache_bytes: Bound of the pieces that are kept in memory for later
        cache_dir: Folder in which pieces are kept; None for none
        cache_dir_bytes: Bound of that folder
        timeout_seconds: After this time without success, a request has failed
        version: Version of the store; pieces of one are not those of another
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    cache_bytes: int = 0
    cache_dir: str | None = None
    cache_dir_bytes: int = 0
    timeout_seconds: float = 60.0
    version: str = ""

    @classmethod
    def build(cls, url: str, options: Mapping[str, Any] | None = None, **settings: Any) -> RangePlace:
        """Create after checking URL and options. Raises SettingsError."""
        url = normalize(url)
        check_no_password(url)
        if url.startswith("http") and not {"?", "#"}.isdisjoint(url):
            raise SettingsError(
                f"{url}: has a query or fragment, which the files of a folder cannot have; leave it out"
            )
        if not isinstance(options or {}, Mapping):
            raise SettingsError(f"storage_options is {options!r}; give a dict of obstore's options")
        try:
            pickle.dumps(options)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise SettingsError(f"storage_options cannot be sent to other processes: {error}") from error
        if lacks_bucket(url):
            protocol = url.partition("://")[0]
            raise SettingsError(f"{url}: names no bucket; give {protocol}://bucket/folder")
        return cls(url.rstrip("/"), dict(options or {}), **settings)

    def show(self, name: str) -> str:
        return f"{self.url}/{name}"


class RemoteObject(NamedTuple):
    """Properties of an object.

    Attributes:
        tag: Value that changes with the content: ETag, or modification time where the server has none
    """

    size_bytes: int
    tag: str


class ReplacedObjectError(StorageError):
    """An object was replaced since it was first read."""


class RangeCounts(NamedTuple):
    """Numbers of requests and bytes for a place.

    Attributes:
        requests: Number of requests that were answered with bytes
        retries: Number of requests that failed and were repeated
        fetched_bytes: Bytes that came from the URL
        read_bytes: Bytes that were read, from the URL or a cache
    """

    requests: int = 0
    retries: int = 0
    fetched_bytes: int = 0
    read_bytes: int = 0


class RangeConnection:
    """Connection of one thread to a range server. Not thread-safe. Every method raises ConnectionError if the server has
    ended.

    Args:
        place: The folder behind a URL.

    Raises:
        MissingError: obstore is not installed.
        SettingsError: The URL or an option is invalid.
        StorageError: No server can be started.
    """

    def __init__(self, place: RangePlace) -> None:
        self._is_interrupted = False
        self._channel = Channel(_connect())
        self._call("use", place)

    def read(self, name: str, runs: Sequence[Run], buffers: Sequence[memoryview] | None) -> list[memoryview]:
        """Return the bytes of each run, in the given buffers if there are any. Raises StorageError."""
        into = [memoryview(bytearray(run.size)) for run in runs] if buffers is None else list(buffers)
        with self._exchange():
            self._channel.send(("read", (name, tuple(runs))))
            error = self._channel.receive()
            for buffer in into if error is None else ():
                self._channel.receive_into(buffer)
        if error is not None:
            raise error
        return into

    def announce(self, done: int, wanted: Sequence[Wanted]) -> None:
        """Announce what will be read by this connection, positions ascending, without waiting.

        Args:
            done: All items up to this position have been read.
            wanted: What later ones need.
        """
        with self._exchange():
            self._channel.send(("announce", (done, tuple(wanted))))

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        """Close the connection to later exchanges if this one is interrupted: they would read the rest of its answer."""
        if self._is_interrupted:
            raise ConnectionResetError
        self._is_interrupted = True
        try:
            yield
        except EOFError as gone:
            raise ConnectionResetError from gone
        self._is_interrupted = False

    def stat(self, name: str) -> RemoteObject | None:
        """Return the properties of an object; None if it does not exist. Raises StorageError."""
        remote: RemoteObject | None = self._call("stat", name)
        return remote

    def fetch(self, names: Sequence[str], folder: Path) -> dict[str, RemoteObject]:
        """Copy objects into a folder, at the same time. Return the properties of those that exist. Raises StorageError."""
        remotes: dict[str, RemoteObject] = self._call("fetch", tuple(names), folder)
        return remotes

    def counts(self) -> RangeCounts:
        """Return what the server has done for this place, on behalf of all connections."""
        total: RangeCounts = self._call("counts")
        return total

    def close(self) -> None:
        if (channel := getattr(self, "_channel", None)) is not None:
            channel.close()

    __del__ = close

    def _call(self, method: str, *arguments: object) -> Any:
        with self._exchange():
            self._channel.send((method, arguments))
            answer, error = self._channel.receive()
        if error is not None:
            raise error
        return answer


@dataclass
class _Server:
    """A range server.

    Attributes:
        folder: Folder of its socket, which it removes when it ends
        keeps: Socket at whose end the server ends; forked children have it, too
        owner: Process that started it
        environment: Variables from which it takes credentials
    """

    folder: str
    keeps: socket.socket
    process: subprocess.Popen[bytes]
    owner: int
    environment: tuple[tuple[str, str], ...]


_server: _Server | None = None


def server_address() -> str | None:
    """Return the address of the server of this process, for children that are not forked; None without one."""
    return None if _server is None else _server.folder


def use_server(address: str | None) -> None:
    """Use the server at an address, if it lives and is not that of this process; otherwise this process starts one when it
    needs it.
    """
    global _address
    if address != server_address():
        _address = _address or address


_address: str | None = None


_starting = threading.Lock()


def _after_fork() -> None:
    global _starting
    _starting = threading.Lock()  # another thread may have held it


os.register_at_fork(after_in_child=_after_fork)


def _connect() -> socket.socket:
    """Return a connection to a range server: that of this process or of its parent, or a new one.

    A new one is started, too, when the program has set other credentials in its environment.
    """
    with _starting:
        own = _server.folder if _server is not None and _server.environment == _environment() else None
        for address in (own, _address):
            if address:
                with suppress(OSError):
                    return _connection(address)
        return _connection(_start())


def _environment() -> tuple[tuple[str, str], ...]:
    return tuple(sorted(each for each in os.environ.items() if each[0].startswith(OF_CREDENTIALS)))


def _connection(address: str) -> socket.socket:
    """Connect to the server of an address. Raises OSError if there is none, or one of another user."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(os.path.join(address, SOCKET_NAME))  # noqa: PTH118
        if hasattr(socket, "SO_PEERCRED"):
            _, user, _ = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
            if user != os.getuid():  # its answers would be unpickled
                raise PermissionError(errno.EPERM, "belongs to another user")
    except OSError:
        connection.close()
        raise
    return connection


def _start() -> str:
    """Start a range server, and return its address. Raises MissingError, StorageError."""
    global _server
    folder = tempfile.mkdtemp(prefix="vidprep-ranges-")
    if len(folder) > PATH_LETTERS_MAX:
        shutil.rmtree(folder)
        folder = tempfile.mkdtemp(prefix="vidprep-ranges-", dir="/tmp")
    ours, theirs = socket.socketpair()
    folders = [each for each in sys.path if isinstance(each, str)]
    program = (
        f"import sys; sys.path[:] = {folders!a}; from vidprep.formats.storage._range_server import serve_ranges; "
        f"serve_ranges({folder!r}, {theirs.fileno()})"
    )
    with theirs:
        process = subprocess.Popen(
            [*interpreter(), "-c", program],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    made = _Server(folder, ours, process, os.getpid(), _environment())
    channel = Channel(ours)
    try:
        if not channel.has_message(CONNECTED_SECONDS):
            raise EOFError
        error = channel.receive()
    except EOFError:
        error = StorageError("the process that reads ranges did not start; see stderr")
    if error is not None:
        _end(made)
        raise error
    _server = made
    atexit.register(_end, made)
    return folder


def _end(server: _Server) -> None:
    """End a server that this process started, and wait for it."""
    if server.owner != os.getpid():
        return
    server.process.kill()
    server.process.wait()
    server.keeps.close()
    shutil.rmtree(server.folder, ignore_errors=True)


def missing_obstore(url: str) -> MissingError:
    """Return the error for a URL that cannot be read without obstore."""
    return MissingError(f"{url.partition('://')[0]}:// needs obstore: pip install 'vidprep[remote]'")
