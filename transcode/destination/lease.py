"""Who works in a destination: one run at a time, from whichever machine it is seen.

A lease is a small JSON text that names its holder: host, process, when that process started, and a beat that it counts up
every few seconds. Where it stands, and what makes a change of it exclusive, is a matter of its storage (lease_storage.py). Whoever finds
the lease of another

- asks the kernel, where the holder is a process of this machine: one that has ended is dead at once, and one that lives is at work,
  unless the lease is a copy that came here with the folder;
- watches it otherwise: a beat that changes is a run at work, one that stands still for GONE_SECONDS is not. Clocks of different
  machines are never compared.

Each lease has a number, one higher than the last. It goes into the manifest (a fencing number), and a holder that was paused
until another took over finds a higher one, or a token that is not its own, before it publishes anything more.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from vidprep.formats.errors import DestinationError, InUseError, TakenOverError
from vidprep.formats.files.untrusted import parse_json, whole_between
from vidprep.formats.text import printable

LOOK_SECONDS = 0.25
RECORD_BYTES = 512
SHOWN_LETTERS = 200
NUMBER_MAX = 10**12


@dataclass(frozen=True, slots=True)
class Holder:
    """machine: what tells this boot of this machine, and its process numbers, from others; "" where nothing does.

    started: of the process, as the kernel counts it; "" where it does not say. beat: counts up while the holder is at work. place: that
    it was taken in; "" where that is not known.
    """

    number: int
    token: str
    host: str
    machine: str
    pid: int
    started: str
    since: str
    beat: int = 0
    released: bool = False
    place: str = ""

    def __str__(self) -> str:
        return printable(f"process {self.pid} on {self.host} since {self.since}")[:SHOWN_LETTERS]

    def as_bytes(self) -> bytes:
        """Padded, so that a later beat takes the place of an earlier one."""
        return json.dumps({"holder": str(self)} | asdict(self)).encode().ljust(RECORD_BYTES - 1) + b"\n"

    @classmethod
    def of(cls, data: bytes) -> Holder | None:
        """None for what says nothing, such as a lease that was only half written."""
        try:
            content = parse_json(data)
            words = {name: str(content[name]) for name in ("token", "host", "machine", "started", "since")}
            numbers = {name: whole_between(name, content[name], 0, NUMBER_MAX) for name in ("number", "pid", "beat")}
            place = str(content.get("place", ""))
            return cls(**words, **numbers, released=content["released"] is True, place=place)  # type: ignore[arg-type]
        except (ValueError, KeyError, TypeError):
            return None

    @property
    def is_dead(self) -> bool | None:
        """Whether its process has ended; None where that cannot be asked from here."""
        if not self.machine or (self.machine, self.host) != (_machine(), socket.gethostname()):
            return None
        return not self.started or _started(self.pid) != self.started


def myself(number: int) -> Holder:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    pid = os.getpid()
    return Holder(number, secrets.token_hex(8), socket.gethostname(), _machine(), pid, _started(pid), since)


def _machine() -> str:
    """This boot of this kernel, and the namespace that process numbers are of."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a living process started, in clock ticks since the boot; "" where there is none."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]  # proc(5): starttime is the 22nd of all


@dataclass(frozen=True, slots=True)
class LeaseEntry:
    """What stands there. data: as it was read. number: of the lease. tag: of this state, where a change must name it.

    holder: None for a lease that was only half written.
    """

    data: bytes
    number: int
    tag: str
    holder: Holder | None

    @property
    def is_free(self) -> bool:
        return self.holder is not None and self.holder.released


class LeaseStorage(Protocol):
    """Where one lease stands. gone_seconds: after so long without a beat its holder is taken for dead. trusted_seconds: for so
    long a beat that went well is proof enough that the lease is still one's own.
    """

    beat_seconds: float
    gone_seconds: float
    trusted_seconds: float

    @property
    def place(self) -> str:
        """What tells where it stands from where a copy of it stands."""
        ...

    def read(self) -> LeaseEntry | None:
        """None where there never was a lease."""
        ...

    def claim(self, before: LeaseEntry | None, mine: Holder, say: Callable[[str], object], /) -> bool:
        """Change it from `before` to mine; False where another was faster."""
        ...

    def renew(self, mine: Holder) -> bool:
        """Write a beat; False where the lease is another's by now."""
        ...

    def is_mine(self, mine: Holder) -> bool: ...


def first_at_work(storages: Sequence[LeaseStorage], say: Callable[[str], object]) -> str | None:
    """The holder of one of these leases that is at work; None when all are free or their holders are dead."""
    watched = {
        number: entry for number, storage in enumerate(storages) if (entry := storage.read()) and not entry.is_free
    }
    for number, entry in list(watched.items()):
        if entry.holder is not None and (is_dead := entry.holder.is_dead) is not None:
            if is_dead:
                del watched[number]
            elif entry.holder.place in ("", storages[number].place):
                return str(entry.holder)
    if not watched:
        return None
    shown = next((str(entry.holder) for entry in watched.values() if entry.holder), "another run")
    wait = max(storages[number].gone_seconds for number in watched)
    say(f"held by {shown}; watching for up to {wait:g} s to see whether it is at work")
    end = time.monotonic() + wait
    while time.monotonic() < end:
        time.sleep(min(LOOK_SECONDS, wait / 4))
        for number, entry in list(watched.items()):
            now = storages[number].read()
            if now is None or now.is_free:
                del watched[number]
            elif now.data != entry.data:
                return str(now.holder or entry.holder or "another run")
        if not watched:
            break
    return None


class Lease:
    """Taken, kept alive by a thread, and given back. shown: the destination, in messages."""

    def __init__(self, storage: LeaseStorage, shown: str, say: Callable[[str], object], *, waits: bool = False) -> None:
        """waits: for a holder at work to end, as long as one without a sign is watched: a task that was queued again may meet itself."""
        self._storage, self._shown, self._say, self._waits = storage, shown, say, waits
        self._guard = threading.Lock()
        self._over = threading.Event()
        self._keeper: threading.Thread | None = None
        self._confirmed = 0.0
        self.mine = myself(0)

    def take(self, at_least: int = 0) -> None:
        """at_least: a number that was given before. Raises InUseError while another holds it."""
        deadline = time.monotonic() + (self._storage.gone_seconds if self._waits else 0.0)
        while True:
            before = self._storage.read()
            if before is not None and (holder := first_at_work([self._storage], self._say)) is not None:
                if time.monotonic() >= deadline:
                    raise InUseError(holder, self._shown)
                time.sleep(LOOK_SECONDS)
                continue
            now = self._storage.read()
            if (now and now.data) != (before and before.data):
                continue  # another took it meanwhile, or gave it back
            number = max(now.number if now else 0, at_least) + 1
            if number > NUMBER_MAX:
                raise DestinationError(
                    f"has a lease of number {number - 1}, which no run wrote; remove it", path=self._shown
                )
            self.mine = replace(self.mine, number=number, place=self._storage.place)
            if self._storage.claim(now, self.mine, self._say):
                break
        self._confirmed = _clock()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()

    def _keep(self) -> None:
        while not self._over.wait(self._storage.beat_seconds):
            with suppress(OSError):  # a store that does not answer; `check` asks it again before anything is published
                if not self._beat():
                    return

    def _beat(self, *, released: bool = False) -> bool:
        with self._guard:
            begun = _clock()
            self.mine = replace(self.mine, beat=self.mine.beat + 1, released=released)
            if not self._storage.renew(self.mine):
                self._confirmed = -1e9
                return False
            self._confirmed = begun
            return True

    def check(self) -> None:
        """Raises TakenOverError when another has taken over. Asks the storage, unless it has just answered."""
        if _clock() - self._confirmed > self._storage.trusted_seconds:
            begun = _clock()
            if not self._storage.is_mine(self.mine):
                raise self._lost()
            self._confirmed = begun

    def _lost(self) -> TakenOverError:
        now = self._storage.read()
        if now is None:
            why = "the lease of this run was removed by someone else"
        else:
            why = f"was taken over{f' by {now.holder}' if now.holder else ''}, as this run gave no sign for "
            why += f"{self._storage.gone_seconds:g} s"
        return TakenOverError(
            f"{why}; nothing more is written by this one. Run the same command again when no other is at work",
            path=self._shown,
        )

    def release(self) -> None:
        """Leaves what is another's by now alone."""
        self._over.set()
        if self._keeper is not None:
            self._keeper.join()
        with suppress(OSError):  # then it is taken over as that of a dead process
            self._beat(released=True)


def _clock() -> float:
    """Seconds that also pass while the machine sleeps, where the kernel counts those."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
