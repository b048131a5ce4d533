"""Test whether a destination's file system or object store does what runs rely on, by two concurrent workers.

For `vidprep doctor DST` the workers are two processes of this machine. With workers on two hosts, `try_folder` tests
what holds between hosts.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vidprep.formats.storage.local import NO_LINKS, LocalStorage
from vidprep.formats.storage.remote import ObjectStorage


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one test of `doctor`.

    Attributes:
        what: Name of the test
        ok: Whether it passed
        detail: What was measured, or the error
        advice: What to do if it failed
        needed: Whether a run cannot work without it
    """

    what: str
    ok: bool
    detail: str
    advice: str = ""
    needed: bool = True


ROUNDS = 20
WAIT_SECONDS, LOOK_SECONDS = 10.0, 0.05


class PendingAnswer(Protocol):
    def result(self) -> Any: ...


# Has a function done by one worker, as the `submit` of an executor or of a cluster's client does.
Submit = Callable[..., PendingAnswer]


def try_folder(folder: Path, first: Submit, second: Submit) -> Iterator[Finding]:
    """Yield the result of each test. A test folder is created and removed again.

    Args:
        folder: A folder that both workers see.
        first: Runs a call in the first worker.
        second: Runs a call in the second worker.

    Raises:
        OSError: The folder cannot be used.
    """
    place = folder / f".vidprep-trial-{secrets.token_hex(4)}"
    place.mkdir()
    path = str(place)
    try:
        first(leave, path, "mark").result()
        seconds = second(seen_after, path, "mark").result()
        yield Finding(
            "seen by both",
            seconds is not None,
            "each sees what the other writes" + (f" after {seconds:.1f} s" if seconds else ""),
            "give a folder that all machines mount",
        )
        if seconds is None:
            return
        yield _exclusive(path, first, second)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _exclusive(path: str, first: Submit, second: Submit) -> Finding:
    answers = [submit(take_all, path) for submit in (first, second)]
    taken = [answer.result() for answer in answers]
    twice = set(taken[0][1]) & set(taken[1][1])
    how = "hard links" if taken[0][0] == taken[1][0] == "link" else "O_EXCL, as there are no hard links"
    detail = f"of two that create one name at once, one succeeds, by {how}"
    if twice:
        detail = f"{len(twice)} of {ROUNDS} names were created by both at once"
    return Finding("exclusive names", not twice, detail, "never start two runs in one destination here")


def try_store(url: str) -> Iterator[Finding]:
    """Yield whether a URL is writable, and whether it supports conditional writes. Raises MissingError, SettingsError,
    StorageError.
    """
    there, name = ObjectStorage(url), f".vidprep/trial-{secrets.token_hex(4)}"
    there.send(name, b"1")
    try:
        yield Finding("written and read", there.read(name) == b"1", "a written file is read back", "give another place")
        there.remove(name)
        has_conditions = there.create(name, b"2") and not there.create(name, b"3") and there.has_conditions
        detail = "are kept" if has_conditions else "are not kept; a run waits and looks again before it begins"
        advice = "start runs in one destination some seconds apart"
        yield Finding("conditional writes", has_conditions, detail, advice, needed=False)
    finally:
        there.remove(name)


def leave(path: str, name: str) -> None:
    Path(path, name).write_bytes(b"here")


def seen_after(path: str, name: str) -> float | None:
    """Return how many seconds it took until a file was visible; None if it took too long."""
    begun = time.monotonic()
    while not Path(path, name).exists():
        if time.monotonic() - begun > WAIT_SECONDS:
            return None
        time.sleep(LOOK_SECONDS)
    return time.monotonic() - begun


def take_all(path: str) -> tuple[str, list[int]]:
    """Create names as a run does; return the method, and the names that this worker created."""
    own, storage = Path(path, f"own-{secrets.token_hex(4)}"), LocalStorage(Path(path))
    own.write_bytes(b"")
    how = "link"
    try:
        os.link(own, f"{own}-linked")
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        how = "O_EXCL"
    leave(path, f"ready-{own.name}")
    begun = time.monotonic()
    while len([*Path(path).glob("ready-*")]) < 2 and time.monotonic() - begun < WAIT_SECONDS:
        time.sleep(LOOK_SECONDS)
    return how, [number for number in range(ROUNDS) if storage.create(f"name-{number}", own.name.encode())]
