"""The lease of a destination: only one run at a time writes to it, even across machines.

DST/.vidprep/lease-000007   a small JSON text that names its holder: host, process, its start time, and a beat that it increments
                            every few seconds

The lease with the highest number counts. A new one is created exclusively; if the storage cannot guarantee that, a run
waits until others must see what it wrote, and checks again. A run that finds another's lease

- asks the kernel, if the holder is a process of this machine: a process that has ended is dead, a running one is alive, unless
  the lease is a copy that came with the folder;
- otherwise watches it: if the beat changes, the holder is alive; if it does not change for GONE_SECONDS, it is dead.

Clocks of different machines are never compared. Each lease has a number one higher than the last. It is stored in the
manifest (a fencing number). A holder that was paused until another run took over finds a higher number, or another
token, before it publishes anything.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from operator import attrgetter

from vidprep.formats.errors import DestinationError, InUseError, TakenOverError, printable
from vidprep.formats.processes import ProcessId
from vidprep.formats.storage.base import Storage
from vidprep.formats.storage.untrusted import parse_json, whole_between

LOOK_SECONDS = 0.25
RECORD_BYTES = 512
SHOWN_LETTERS = 200
NUMBER_MAX = 10**12
LEASE, OLD_LEASE = re.compile(r"lease-\d{6,15}", re.ASCII), "lock"  # OLD_LEASE: of earlier versions, behind a URL
PLACE_LETTERS = 100
LEASE_BYTES_MAX, GONE_PAUSE_SECONDS = 1 << 16, 0.05
FOLDER_BEAT_SECONDS, FOLDER_GONE_SECONDS = 2.0, 30.0
STORE_BEAT_SECONDS, STORE_GONE_SECONDS = 5.0, 60.0
# Other machines may see a change in a shared folder this much later, and a write in a store that has no conditions.
FOLDER_SETTLE_SECONDS, STORE_SETTLE_SECONDS = 1.0, 5.0


@dataclass(frozen=True, slots=True)
class Holder:
    """Holder of a lease.

    Attributes:
        token: Random identity of the holder
        host: Name of its machine
        machine: Identity of this boot of the machine and its process namespace; "" if unknown
        started: Start time of the process, as the kernel counts it; "" if unknown
        since: When it was taken
        beat: Counter that increases while the holder is alive
        place: Identity of the place where it was taken; "" if unknown
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
        """Return JSON, padded so that a later beat exactly replaces an earlier one."""
        return json.dumps({"holder": str(self)} | asdict(self)).encode().ljust(RECORD_BYTES - 1) + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> Holder | None:
        """Parse a lease; None if it is invalid, such as one that was only partly written."""
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
        """Whether the process has ended; None if this machine cannot tell."""
        return ProcessId(self.host, self.machine, self.pid, self.started).is_dead


def myself(number: int) -> Holder:
    """Return this process as the holder of a lease."""
    since, me = time.strftime("%Y-%m-%d %H:%M:%S"), ProcessId.mine()
    return Holder(number, secrets.token_hex(8), me.host, me.machine, me.pid, me.started, since)


@dataclass(frozen=True, slots=True)
class LeaseEntry:
    """A lease file.

    Attributes:
        holder: None if the file is incomplete
    """

    data: bytes
    number: int
    holder: Holder | None

    @property
    def is_free(self) -> bool:
        return self.holder is not None and self.holder.released

    def is_of(self, holder: Holder) -> bool:
        """Return whether it is the lease of this run."""
        return self.holder is not None and self.holder.token == holder.token


class LeasePlace:
    """Place of the leases of a destination, or of a partition.

    Attributes:
        beat_seconds: Time between beats
        gone_seconds: Time without a beat after which a holder is considered dead
        trusted_seconds: Time after a written beat during which the lease is certainly still held
    """

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage, self._folder = storage, folder
        if storage.is_remote:
            self.beat_seconds, self.gone_seconds = STORE_BEAT_SECONDS, STORE_GONE_SECONDS
            self.trusted_seconds = 2 * STORE_BEAT_SECONDS
        else:
            self.beat_seconds, self.gone_seconds = FOLDER_BEAT_SECONDS, FOLDER_GONE_SECONDS
            self.trusted_seconds = 0.0

    @property
    def id(self) -> str:
        """Return an identity that distinguishes this place from a copy of it."""
        if self._storage.is_remote:
            return f"{self._storage.shown}/{self._folder}"[:PLACE_LETTERS]
        folder = self._storage.root / self._folder
        folder.mkdir(parents=True, exist_ok=True)  # the run before may have left nothing
        return f"inode {folder.stat().st_ino}"

    def name(self, number: int) -> str:
        """Return the file name of a lease number."""
        return f"{self._folder}/lease-{number:06d}"

    def read(self) -> LeaseEntry | None:
        """Return the lease that counts; None without one."""
        while sizes := self._storage.list(self._is_lease, self._folder):
            newest = {max(sizes, key=_number_in), *({OLD_LEASE} & sizes.keys())}
            with suppress(FileNotFoundError):  # it was replaced by the next one
                return max((self._entry(name, sizes[name]) for name in newest), key=attrgetter("number"))
            time.sleep(GONE_PAUSE_SECONDS)
        return None

    def _entry(self, name: str, size: int = 0) -> LeaseEntry:
        """Return a lease file. One larger than LEASE_BYTES_MAX was not written by a run, and is not read."""
        data = self._storage.read(f"{self._folder}/{name}") if size <= LEASE_BYTES_MAX else b""
        holder = Holder.parse(data)
        return LeaseEntry(data, _number_in(name) or (holder.number if holder else 0), holder)

    def _is_lease(self, name: str) -> bool:
        return LEASE.fullmatch(name) is not None or (name == OLD_LEASE and self._storage.is_remote)

    def claim(self, mine: Holder, say: Callable[[str], object]) -> bool:
        """Create a lease. Return False if another run was faster."""
        begun = time.monotonic()
        if not self._storage.create(self.name(mine.number), mine.as_bytes()):
            return False
        # A slow competitor may create a number that was freed meanwhile; the highest number counts.
        if not self._storage.is_exclusive:
            settle = FOLDER_SETTLE_SECONDS
            if self._storage.is_remote:
                settle = max(STORE_SETTLE_SECONDS, 2 * (time.monotonic() - begun))
                say(f"{self._storage.shown} has no conditional writes; looking again in {settle:g} s who holds it")
            time.sleep(settle)
        if not self.is_mine(mine):
            self.remove(mine)
            return False
        all_here = self._storage.list(self._is_lease, self._folder)
        older = (name for name in all_here if _number_in(name) < mine.number)
        self._storage.remove(*(f"{self._folder}/{name}" for name in older))
        return True

    def remove(self, mine: Holder) -> None:
        """Remove a lease unless another run holds it now."""
        with suppress(FileNotFoundError):
            if self._entry(f"lease-{mine.number:06d}").is_of(mine):
                self._storage.remove(self.name(mine.number))

    def renew(self, mine: Holder) -> bool:
        """Write a beat. Return False if another run holds the lease now."""
        if not self.is_mine(mine):
            return False
        try:
            self._storage.update(self.name(mine.number), mine.as_bytes())
        except FileNotFoundError:
            return False
        return True

    def is_mine(self, mine: Holder) -> bool:
        now = self.read()
        return now is not None and now.is_of(mine)


def _number_in(name: str) -> int:
    """Return the number in a lease's file name; 0 for the file of earlier versions, which contain it."""
    return 0 if name == OLD_LEASE else int(name.removeprefix("lease-"))


def first_live_holder(places: Sequence[LeasePlace], say: Callable[[str], object]) -> str | None:
    """Return a live holder of one of these leases; None if all are free or their holders are dead."""
    held = [(place, entry) for place in places if (entry := place.read()) and not entry.is_free]
    for place, entry in held:
        if entry.holder is not None and entry.holder.is_dead is False and entry.holder.place in ("", place.id):
            return str(entry.holder)
    watched = [(place, entry) for place, entry in held if entry.holder is None or not entry.holder.is_dead]
    if not watched:
        return None
    shown = next((str(entry.holder) for _, entry in watched if entry.holder), "another run")
    wait = max(place.gone_seconds for place, _ in watched)
    say(f"held by {shown}; watching for up to {wait:g} s to see whether it is alive")
    return _next_sign(watched, wait)


def _next_sign(watched: list[tuple[LeasePlace, LeaseEntry]], wait: float) -> str | None:
    """Return the first holder that writes its lease within `wait` seconds; None if none does, or all leases become free."""
    end = time.monotonic() + wait
    while watched and time.monotonic() < end:
        time.sleep(min(LOOK_SECONDS, wait / 4))
        left = []
        for place, entry in watched:
            now = place.read()
            if now is not None and not now.is_free:
                if now.data != entry.data:
                    return str(now.holder or entry.holder or "another run")
                left.append((place, entry))
        watched = left
    return None


class Lease:
    """A lease that is taken, renewed by a thread, and released.

    Attributes:
        mine: This process as the holder of the lease; number 0 before `take`
    """

    def __init__(self, place: LeasePlace, shown: str, say: Callable[[str], object], *, waits: bool = False) -> None:
        """Prepare to take a lease.

        Args:
            place: Place of the leases.
            shown: Name of the destination in messages.
            say: Receives messages.
            waits: Wait up to `gone_seconds` for the holder: a requeued Slurm task can start while its previous attempt
                is still running.
        """
        self._place, self._shown, self._say, self._waits = place, shown, say, waits
        self._guard = threading.Lock()
        self._over = threading.Event()
        self._keeper: threading.Thread | None = None
        self._confirmed = 0.0
        self.mine = myself(0)

    def take(self, at_least: int = 0) -> None:
        """Take the lease.

        Args:
            at_least: A number that was already used.

        Raises:
            InUseError: Another run holds it.
            DestinationError: The number of a lease is too high to be written by a run.
        """
        deadline = time.monotonic() + (self._place.gone_seconds if self._waits else 0.0)
        while True:
            before = self._place.read()
            if before is not None and (holder := first_live_holder([self._place], self._say)) is not None:
                if time.monotonic() >= deadline:
                    raise InUseError(holder, self._shown)
                time.sleep(LOOK_SECONDS)
                continue
            now = self._place.read()
            if (now and now.data) != (before and before.data):
                continue  # another took it meanwhile, or gave it back
            number = max(now.number if now else 0, at_least) + 1
            if number > NUMBER_MAX:
                raise DestinationError(
                    f"has a lease of number {number - 1}, which no run wrote; remove it", path=self._shown
                )
            self.mine = replace(self.mine, number=number, place=self._place.id)
            if self._place.claim(self.mine, self._say):
                break
        self._confirmed = _clock()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()

    def _keep(self) -> None:
        while not self._over.wait(self._place.beat_seconds):
            with suppress(OSError):  # a store that does not answer; `check` asks it again before anything is published
                if not self._beat():
                    return

    def _beat(self, *, released: bool = False) -> bool:
        with self._guard:
            begun = _clock()
            self.mine = replace(self.mine, beat=self.mine.beat + 1, released=released)
            if not self._place.renew(self.mine):
                self._confirmed = -1e9
                return False
            self._confirmed = begun
            return True

    def remove(self) -> None:
        """Remove the lease file unless another run holds it now."""
        self._place.remove(self.mine)

    def check(self) -> None:
        """Raise TakenOverError if another run has taken over. Reads the storage unless it did so a moment ago."""
        if _clock() - self._confirmed > self._place.trusted_seconds:
            begun = _clock()
            if not self._place.is_mine(self.mine):
                raise self._lost()
            self._confirmed = begun

    def _lost(self) -> TakenOverError:
        now = self._place.read()
        if now is None:
            why = "the lease of this run was removed by someone else"
        else:
            why = f"was taken over{f' by {now.holder}' if now.holder else ''}, as this run gave no sign for "
            why += f"{self._place.gone_seconds:g} s"
        return TakenOverError(
            f"{why}; this run stops writing. Run the same command again when no other run is in progress",
            path=self._shown,
        )

    def release(self) -> None:
        """Release the lease unless another run holds it now."""
        self._over.set()
        if self._keeper is not None:
            self._keeper.join()
        with suppress(OSError):  # then the next run takes it over, as from a dead process
            self._beat(released=True)


def _clock() -> float:
    """Return seconds that include suspended time, if the kernel counts it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
