"""Reads ranges of objects by obstore: many at once, each until it succeeds or its time is over.

Only the range server (`_range_server.py`) and the workers of a PrefetchLoader, which never fork, make requests themselves. What
was announced is held until it has been read; pieces that later items need stay in the cache.
"""

from __future__ import annotations

import pickle
import random
import re
import shutil
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from vidprep.formats.errors import STOPPED_CODE, SettingsError, StorageError, format_bytes
from vidprep.formats.storage._credentials import add_credentials
from vidprep.formats.storage._piece_files import PieceFiles
from vidprep.formats.storage.base import hide_password
from vidprep.formats.storage.belady import NEVER, BeladyCache
from vidprep.formats.storage.ranges import (
    Piece,
    RangeCounts,
    RangePlace,
    RemoteObject,
    ReplacedObjectError,
    Run,
    Wanted,
    missing_obstore,
)

T = TypeVar("T")
REQUESTS_AT_ONCE = 64
RANGES_AT_ONCE = 10  # by one call: obstore's own limit of requests in flight
PAGE_BYTES = 4 << 10
GAP_BYTES = 64 << 10  # between pieces that are fetched together: another request takes longer, and may cost more
JOINED_BYTES_MAX = 8 << 20
MOST_COPIED_BYTES = 10 << 30  # of one store, unless a larger cache is asked for
LEAST_BYTES_PER_SECOND = 1 << 20  # at which files are copied, beyond the time that opening may take
COPIED_BYTES, COPIES_AT_ONCE = 4 << 20, 4  # of a file that is copied
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
LONGEST_REQUEST = "10m"
SILENCE_SECONDS = 15.0  # a request is repeated if no byte comes for this time
HELD_BYTES_MAX = 1 << 30  # of what is announced, in all
PieceKey = tuple[str, int, int]  # file, offset, size


class Fetch:
    """A range that is being fetched, or that has been.

    Attributes:
        pieces: What it is fetched for, ascending
        offset: Position in the file
        data: Its bytes, when they have come
        num_holders: Announced items that hold it
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces, self.offset = pieces, pieces[0].offset
        self.size = max(piece.offset + piece.size for piece in pieces) - self.offset
        self.data: Future[memoryview] = Future()
        self.num_holders = 0

    def piece(self, piece: Piece) -> memoryview:
        """Wait for a piece. Raises StorageError."""
        return fetch_part(self, self.data.result(), piece)


def fetch_part(fetch: Fetch, data: memoryview, piece: Piece) -> memoryview:
    """Return the bytes of a piece in those of a range."""
    begin = piece.offset - fetch.offset
    return data[begin : begin + piece.size]


class _Held(NamedTuple):
    """Ranges that are held, and uses that the cache knows, for an announced item.

    Attributes:
        uses: What the cache was told that it needs
    """

    position: int
    fetches: tuple[Fetch, ...]
    uses: tuple[PieceKey, ...]


class _Place:
    """A folder behind a URL, for all threads of this process. Thread-safe."""

    def __init__(self, about: RangePlace) -> None:
        # A reader that is freed takes the lock, and it may be freed by a garbage collection in a thread that has it.
        self._about, self._lock, self._signing = about, threading.RLock(), threading.Lock()
        access = add_credentials(about.url, about.options)
        # A bucket may be public, or the machine may have credentials; asking for those takes long where there are none.
        self._signed = None if access.has_credentials else access.options
        self._hint = "" if access.has_credentials else "; no credentials are in the environment or in ~/.aws"
        self._store = _open_store(
            about, access.options if access.has_credentials else {**access.options, "skip_signature": True}
        )
        self._pool = ThreadPoolExecutor(REQUESTS_AT_ONCE)
        self._tags: dict[str, str] = {}
        self._coming: WeakValueDictionary[PieceKey, Fetch] = WeakValueDictionary()
        self._cache: BeladyCache[PieceKey, bytes] = BeladyCache(about.cache_bytes)
        self._files = None
        if about.cache_dir is not None:
            self._files = PieceFiles(Path(about.cache_dir), about.cache_dir_bytes)
        self._held_bytes = 0
        self.num_readers = 0
        self.counts = RangeCounts()

    def close(self) -> None:
        """End its threads, without waiting for requests."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def announce(self, wanted: Sequence[Wanted]) -> list[_Held]:
        """Tell the cache what items will need, and begin to fetch it if it is time. Return what must be held."""
        held, pieces_of_names, begun = list[_Held](), dict[str, dict[Piece, None]](), list[tuple[str, Fetch]]()
        with self._lock:
            room = HELD_BYTES_MAX - self._held_bytes
            for each in wanted:
                room -= sum(run.size for run in each.runs) if each.fetch else 0
                if each.fetch and room > 0:  # else it is fetched when it is read
                    pieces_of_names.setdefault(each.name, {}).update(dict.fromkeys(pieces_of(each)))
            for name, pieces in pieces_of_names.items():
                self._fetches(name, list(pieces), begun)
            for each in wanted:
                keys = tuple((each.name, piece.offset, piece.size) for piece in pieces_of(each))
                if not each.fetch:
                    for key in keys:
                        self._cache.announce(key, each.position)
                    held.append(_Held(each.position, (), keys))
                    continue
                fetches = {id(fetch): fetch for key in keys if (fetch := self._coming.get(key)) is not None}
                for fetch in fetches.values():
                    self._held_bytes += 0 if fetch.num_holders else fetch.size
                    fetch.num_holders += 1
                held.append(_Held(each.position, tuple(fetches.values()), ()))
        self._begin(begun)
        return held

    def release(self, held: _Held) -> None:
        """Note that an announced item has been read, or will not be."""
        with self._lock:
            for fetch in held.fetches:
                fetch.num_holders -= 1
                self._held_bytes -= 0 if fetch.num_holders else fetch.size
            for key in held.uses:
                self._cache.forget_until(key, held.position)

    def parts(self, name: str, runs: Sequence[Run]) -> list[list[memoryview | bytes]]:
        """Return the bytes of each run, in parts. Raises StorageError."""
        pieces = [piece for run in runs for piece in run.pieces]
        kept: dict[Piece, bytes] = {}
        with self._lock:
            for piece in pieces if self._about.cache_bytes else ():
                if (data := self._cache.take((name, piece.offset, piece.size))) is not None:
                    kept[piece] = data
            begun = list[tuple[str, Fetch]]()
            fetches = self._fetches(name, [piece for piece in pieces if piece not in kept], begun)
        self._begin(begun)
        parts: dict[Piece, memoryview | bytes] = {**kept}
        parts |= {piece: fetch.piece(piece) for piece, fetch in fetches.items()}
        with self._lock:
            for piece in fetches if self._about.cache_bytes else ():
                self._cache.offer((name, piece.offset, piece.size), parts[piece], piece.size, bytes)
            self.counts = self.counts._replace(read_bytes=self.counts.read_bytes + sum(piece.size for piece in pieces))
        return [list(_run_bytes(run, parts)) for run in runs]

    def _fetches(self, name: str, pieces: Sequence[Piece], begun: list[tuple[str, Fetch]]) -> dict[Piece, Fetch]:
        """Return the fetch of each piece that is not in the cache. Those to begin are added to `begun`, in the order of the
        pieces. The lock is held.
        """
        fetches: dict[Piece, Fetch] = {}
        missing: list[Piece] = []
        for piece in pieces:
            key = name, piece.offset, piece.size
            if key in self._cache:
                continue
            if (fetch := self._coming.get(key)) is not None:
                fetches[piece] = fetch
            else:
                missing.append(piece)
        new = dict[Piece, Fetch]()
        for joined in join_pieces(missing):
            new |= dict.fromkeys(joined, Fetch(joined))
        for piece in missing:
            self._coming[name, piece.offset, piece.size] = new[piece]
        begun += [(name, fetch) for fetch in {id(new[piece]): new[piece] for piece in missing}.values()]
        return fetches | new

    def _begin(self, begun: Sequence[tuple[str, Fetch]]) -> None:
        """Begin to fetch ranges: several of a file by one call, which wakes fewer threads."""
        waiting: dict[str, list[Fetch]] = {}
        for name, fetch in begun:
            waiting.setdefault(name, []).append(fetch)
            if len(waiting[name]) == RANGES_AT_ONCE:
                self._submit(name, waiting.pop(name))
        for name, fetches in waiting.items():
            self._submit(name, fetches)

    def _submit(self, name: str, fetches: Sequence[Fetch]) -> None:
        try:
            self._pool.submit(self._fill, name, fetches)
        except RuntimeError as error:  # no more threads
            self._fail(name, fetches, StorageError(f"cannot be read: {error}", path=self._about.show(name)))

    def _fail(self, name: str, fetches: Sequence[Fetch], error: Exception) -> None:
        """Let who waits for ranges have an error. The next one who reads them tries again."""
        with self._lock:
            for fetch in fetches:
                for piece in fetch.pieces:
                    self._coming.pop((name, piece.offset, piece.size), None)
        for fetch in fetches:
            if not fetch.data.done():
                fetch.data.set_exception(error)

    def _fill(self, name: str, fetches: Sequence[Fetch]) -> None:
        """Fill ranges of a file, from the disk or from the URL."""
        try:
            if self._files is not None:
                for fetch in fetches:
                    if (kept := self._files.read(name, fetch.offset, fetch.size, fetch.pieces)) is not None:
                        fetch.data.set_result(kept)
            missing = [fetch for fetch in fetches if not fetch.data.done()]
            if len(missing) > 1 and all(piece.crc32 is not None for fetch in missing for piece in fetch.pieces):
                self._fill_together(name, missing)
            for fetch in missing:
                if fetch.data.done() or fetch is missing[-1]:
                    self._fill_one(name, fetch)
                else:
                    self._pool.submit(self._fill_one, name, fetch)
        except Exception as error:  # noqa: BLE001 (raised where the bytes are read)
            self._fail(name, fetches, error)

    def _fill_one(self, name: str, fetch: Fetch) -> None:
        """Fill a range, and keep it on the disk."""
        try:
            if not fetch.data.done():
                fetch.data.set_result(self.range(name, fetch.offset, fetch.size, fetch.pieces))
        except Exception as error:  # noqa: BLE001 (raised where the bytes are read)
            self._fail(name, [fetch], error)
        else:
            if self._files is not None:
                self._files.write(name, fetch.offset, fetch.data.result(), fetch.pieces)

    def _fill_together(self, name: str, fetches: Sequence[Fetch]) -> None:
        """Fill ranges of a file by one call; none if one fails. Whether the file was replaced is not known then: who reads the
        pieces compares their checksums.
        """
        import obstore

        try:
            starts = [fetch.offset for fetch in fetches]
            ends = [fetch.offset + fetch.size for fetch in fetches]
            buffers = obstore.get_ranges(self._store, name, starts=starts, ends=ends, coalesce=0)
        except Exception:  # noqa: BLE001 (then each is fetched alone, and says what is wrong)
            with self._lock:
                self.counts = self.counts._replace(retries=self.counts.retries + 1)
            return
        size = 0
        for fetch, content in zip(fetches, buffers, strict=True):
            data = memoryview(content)
            if len(data) == fetch.size:
                size += fetch.size
                fetch.data.set_result(data)
        with self._lock:
            self.counts = self.counts._replace(
                requests=self.counts.requests + len(fetches), fetched_bytes=self.counts.fetched_bytes + size
            )

    def range(self, name: str, offset: int, size: int, pieces: Sequence[Piece] = ()) -> memoryview:
        """Fetch a range of an object.

        Args:
            name: The object.
            offset: Position of the range.
            size: Its size in bytes.
            pieces: What it is fetched for. An object that was replaced is read on if their checksums are right.

        Raises:
            StorageError: It cannot be read for too long, or the object was replaced.
        """
        import obstore

        def get(store: Any) -> memoryview:
            answer = obstore.get(store, name, options={"range": (offset, offset + size)})
            data, end = memoryview(answer.bytes()), int(answer.meta["size"])
            if len(data) != size and end >= offset + size:
                raise OSError(f"{len(data)} bytes came")
            tag = _tag_of(answer.meta)
            before = self._tags.get(name, tag)
            if tag != before and not are_right(data, offset, pieces):
                raise _Replaced(
                    f"was replaced after it was first read (it was {before}, and is {tag}); open the store again"
                )
            if len(data) != size:
                raise _Permanent(f"ends at byte {end}")
            with self._lock:
                self._tags[name] = tag
            return data

        data = self._retry(get, name, f"bytes {offset} to {offset + size - 1}")
        with self._lock:
            self.counts = self.counts._replace(
                requests=self.counts.requests + 1, fetched_bytes=self.counts.fetched_bytes + size
            )
        return data

    def stat(self, name: str) -> RemoteObject | None:
        """Return the properties of an object as they are now; None if it does not exist. Raises StorageError."""
        import obstore

        def get(store: Any) -> Any:
            try:
                return obstore.head(store, name)
            except Exception as error:
                if not NO_HEAD.search(str(error)):
                    raise
                return obstore.get(store, name, options={"range": (0, 1)}).meta

        try:
            info = self._retry(get, name, "properties")
        except _MissingError:
            return None
        return RemoteObject(int(info["size"]), _tag_of(info))

    def fetch(self, names: Sequence[str], folder: Path) -> dict[str, RemoteObject]:
        """Copy objects into a folder. Return the properties of those that exist.

        A server may refuse to say that an object does not exist: then what it refuses counts as missing, if it does not
        refuse everything.

        Raises:
            StorageError: They cannot be read, do not come in time, or are too large.
        """
        there, refused = dict[str, RemoteObject](), list[StorageError]()
        end = time.monotonic() + self._about.timeout_seconds
        for name, stat in [(name, self._pool.submit(self.stat, name)) for name in names]:
            try:
                if (remote := stat.result(self._seconds_left(end))) is not None:
                    there[name] = remote
            except _RefusedError as error:
                refused.append(error)
            except TimeoutError:
                raise self._late(name) from None
        if refused and not there:
            raise refused[0]
        size = sum(remote.size_bytes for remote in there.values())
        self._check_room(size, folder)
        end += size / LEAST_BYTES_PER_SECOND
        for name, remote in there.items():
            with self._lock:
                self._tags[name] = remote.tag
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            starts = range(0, remote.size_bytes, COPIED_BYTES)
            with path.open("wb") as file:
                for first in range(0, len(starts), COPIES_AT_ONCE):
                    some = starts[first : first + COPIES_AT_ONCE]
                    sizes = [min(COPIED_BYTES, remote.size_bytes - start) for start in some]
                    try:
                        data = list(
                            self._pool.map(self.range, [name] * len(some), some, sizes, timeout=self._seconds_left(end))
                        )
                    except TimeoutError:
                        raise self._late(name) from None
                    file.writelines(data)
        return there

    def _seconds_left(self, end: float) -> float:
        return max(0.0, end - time.monotonic())

    def _late(self, name: str) -> StorageError:
        failed = StorageError(
            f"did not come within {self._about.timeout_seconds:g} s (timeout_seconds) and a second for each MiB",
            path=self._about.show(name),
        )
        failed.exit_code = STOPPED_CODE
        return failed

    def _check_room(self, size: int, folder: Path) -> None:
        """Raise StorageError if files are too large to be copied: a server may claim any size."""
        most = max(MOST_COPIED_BYTES, self._about.cache_bytes, self._about.cache_dir_bytes)
        free = shutil.disk_usage(folder).free
        if size > min(most, free):
            room = (
                f"{folder} has {format_bytes(free)} free" if free < most else f"at most {format_bytes(most)} are copied"
            )
            raise StorageError(
                f"its manifest and index have {format_bytes(size)}, and {room}; make room, or raise cache_dir_bytes",
                path=self._about.url,
            )

    def _retry(self, get: Callable[[Any], T], name: str, what: str) -> T:
        """Return what a request returns; repeat it after growing pauses. Raises StorageError."""
        place, pause, started = self._about.show(name), FIRST_PAUSE_SECONDS, time.monotonic()
        if (why := why_no_name(name)) is not None:
            raise StorageError(why, path=place)
        for tries in count(1):
            store = self._store
            try:
                return get(store)
            except FileNotFoundError:
                raise _MissingError(f"is not there; its {what} cannot be read", path=place) from None
            except _Replaced as error:
                raise ReplacedObjectError(f"{error}; its {what} cannot be read", path=place) from None
            except _Permanent as error:
                raise StorageError(f"{error}; its {what} cannot be read", path=place) from None
            except Exception as error:  # noqa: BLE001 (obstore's errors have no common class but its own)
                reason, seconds = hide_password(_reason(error)), time.monotonic() - started
                if type(error).__name__ in REFUSED or REFUSED_STATUS.search(str(error)):
                    if self._signs_now(store, get):
                        continue
                    raise _RefusedError(f"its {what} cannot be read: {reason}{self._hint}", path=place) from None
                if seconds + pause > self._about.timeout_seconds:
                    many = "1 try" if tries == 1 else f"{tries} tries"
                    failed = StorageError(
                        f"its {what} could not be read in {many} and {seconds:.0f} s: {reason}", path=place
                    )
                    failed.exit_code = STOPPED_CODE
                    raise failed from None
            with self._lock:
                self.counts = self.counts._replace(retries=self.counts.retries + 1)
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        raise AssertionError

    def _signs_now(self, refused: Any, get: Callable[[Any], object]) -> bool:
        """Return whether requests are signed now that were not when one was refused: the machine itself has credentials."""
        with self._signing:
            if self._store is not refused:
                return True
            if self._signed is None:
                return False
            signed, self._signed = _open_store(self._about, self._signed), None
            try:
                get(signed)
            except FileNotFoundError:
                pass
            except Exception:  # noqa: BLE001 (what was refused without a signature stays refused)
                return False
            self._store = signed
            return True


# 408: the server waited too long for the request; 425, 429: too many requests.
REFUSED_STATUS = re.compile(r"status code: (?!408|425|429)4\d\d|builder error")
NO_HEAD = re.compile(r"status code: (405|501)")


REFUSED = frozenset(("PermissionDeniedError", "UnauthenticatedError", "NotSupportedError", "InvalidPathError"))


class _RefusedError(StorageError):
    """A request is refused, and will be."""

    exit_code = STOPPED_CODE


class _MissingError(StorageError):
    """An object does not exist."""


class _Permanent(Exception):
    """A failure that repeating does not mend."""


class _Replaced(_Permanent):
    """The object is another one."""


def _reason(error: BaseException) -> str:
    """Return the first line of an error, without the page that a server may have sent."""
    return str(error).partition("\n")[0].partition(": <html")[0][:300] or type(error).__name__


def _tag_of(about: Any) -> str:
    return str(about.get("e_tag") or about.get("last_modified") or "")


def are_right(data: memoryview, offset: int, pieces: Sequence[Piece]) -> bool:
    """Return whether all pieces of a range have a checksum, and the right one."""
    return bool(pieces) and all(
        piece.crc32 == zlib.crc32(data[piece.offset - offset : piece.offset - offset + piece.size]) for piece in pieces
    )


def pieces_of(wanted: Wanted) -> Iterator[Piece]:
    return (piece for run in wanted.runs for piece in run.pieces)


def join_pieces(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Yield pieces that are fetched by one request. A gap between two is less than a page; or it is at most GAP_BYTES, and all
    gaps together are at most a quarter of the pieces.
    """
    joined, useful, wasted, end = list[Piece](), 0, 0, 0
    for piece in sorted(pieces, key=lambda piece: piece[:2]):
        gap = max(0, piece.offset - end)
        is_near = gap < PAGE_BYTES or (gap <= GAP_BYTES and 4 * (wasted + gap) <= useful + piece.size)
        if joined and not (is_near and useful + piece.size <= JOINED_BYTES_MAX):
            yield joined
            joined, useful, wasted, gap = [], 0, 0, 0
        joined.append(piece)
        useful, wasted = useful + piece.size, wasted + (gap if len(joined) > 1 else 0)
        end = max(end, piece.offset + piece.size) if len(joined) > 1 else piece.offset + piece.size
    if joined:
        yield joined


def _run_bytes(run: Run, found: dict[Piece, memoryview | bytes]) -> Iterator[memoryview | bytes]:
    """Yield the bytes of a run: its pieces, and zeros between them."""
    at = run.offset
    for piece in run.pieces:
        if piece.offset > at:
            yield bytes(piece.offset - at)
        yield found[piece]
        at = piece.offset + piece.size
    if run.offset + run.size > at:
        yield bytes(run.offset + run.size - at)


def why_no_name(name: str) -> str | None:
    """Return why a name cannot be that of an object; None if it can."""
    if not {"", ".", ".."}.isdisjoint(name.split("/")):
        return f"{name!r} cannot be the name of an object"
    try:
        name.encode()
    except UnicodeEncodeError:
        return f"{name!r} is not valid Unicode, and cannot be the name of an object"
    return None


def _open_store(about: RangePlace, options: Mapping[str, Any]) -> Any:
    """Return obstore's store of a folder, with these options. Raises MissingError, SettingsError."""
    try:
        from obstore.store import from_url
    except ImportError:
        raise missing_obstore(about.url) from None
    seconds = f"{max(1000 * min(SILENCE_SECONDS, about.timeout_seconds), 1):.0f}ms"
    client = {"timeout": LONGEST_REQUEST, "read_timeout": seconds, "connect_timeout": seconds}
    client |= dict(options.get("client_options") or {})
    retries = {"max_retries": 0}  # `_Place` repeats requests, also where a body is cut
    try:
        return from_url(about.url, **{"retry_config": retries, **options, "client_options": client})
    except BaseException as error:  # (obstore's own classes)
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise SettingsError(f"{about.url}: storage_options: obstore: {_reason(error)}") from None


_places: dict[bytes, _Place] = {}
_opening = threading.RLock()  # as the lock of a place


class RangeReader:
    """Reads ranges for one thread. It has the methods of `RangeConnection`.

    Args:
        about: The folder behind a URL.

    Raises:
        MissingError: obstore is not installed.
        SettingsError: The URL or an option is invalid.
    """

    def __init__(self, about: RangePlace) -> None:
        self._key = pickle.dumps(about)
        with _opening:
            self._place = _places.get(self._key) or _Place(about)
            _places[self._key] = self._place
            self._place.num_readers += 1
        self._held: deque[_Held] = deque()  # fetches of announced items
        self._announced: deque[_Held] = deque()  # uses of later ones

    def parts(self, name: str, runs: Sequence[Run]) -> list[list[memoryview | bytes]]:
        """Return the bytes of each run, in parts. Raises StorageError."""
        return self._place.parts(name, runs)

    def read(self, name: str, runs: Sequence[Run], buffers: Sequence[memoryview] | None) -> list[memoryview]:
        """Return the bytes of each run, in the given buffers if there are any. Raises StorageError."""
        blocks = []
        for number, parts in enumerate(self._place.parts(name, runs)):
            if buffers is None and len(parts) == 1:
                blocks.append(memoryview(parts[0]))
            elif buffers is None:
                blocks.append(memoryview(b"".join(parts)))
            else:
                at = 0
                for part in parts:
                    buffers[number][at : at + len(part)] = part
                    at += len(part)
                blocks.append(buffers[number])
        return blocks

    def announce(self, done: int, wanted: Sequence[Wanted]) -> None:
        """Announce what will be read, positions ascending; see `RangeConnection.announce`."""
        for waiting in (self._held, self._announced):
            while waiting and waiting[0].position <= done:
                self._place.release(waiting.popleft())
        for held in self._place.announce(wanted):
            (self._held if held.fetches else self._announced).append(held)

    def stat(self, name: str) -> RemoteObject | None:
        """Return the properties of an object; None if it does not exist. Raises StorageError."""
        return self._place.stat(name)

    def fetch(self, names: Sequence[str], folder: Path) -> dict[str, RemoteObject]:
        """Copy objects into a folder, at the same time. Return the properties of those that exist. Raises StorageError."""
        return self._place.fetch(names, folder)

    def counts(self) -> RangeCounts:
        """Return what this process has done for this place."""
        return self._place.counts

    def close(self) -> None:
        """Let go what is held, and all that is known of the place if nobody else reads it."""
        if (place := getattr(self, "_place", None)) is None:
            return
        self.announce(NEVER, ())
        del self._place
        with _opening:
            place.num_readers -= 1
            if not place.num_readers:
                del _places[self._key]
                place.close()

    __del__ = close
