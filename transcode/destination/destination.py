"""A destination: who works in it, with which settings, and the rows that stand in it.

DST/.vidprep/lease-000007   who works in it, or did last (lease.py)
DST/.vidprep/run.json       the settings that its outputs were made with (run_file.py)
DST/.vidprep/journal.jsonl  rows of finished units since the manifest was last written; behind a URL in segments (sent_rows.py)
DST/.vidprep/labels.parquet the labels that a run gives, until its rows are in the manifest (labels.py)
DST/.vidprep/manifest.json  under which lease the manifest was written last
DST/.vidprep/partial/       outputs on their way; empty between runs
DST/.vidprep/merged.json    what `vidprep merge` has joined so far, and what was missing (array_status.py)

A part of an array run has a lease, a journal and partial files of its own (partition.py) and shares the rest. Where the files stand is a
matter of the storage, here or behind a URL; what an output is, a file or a place in a shard, is one of the outputs (files.py, shards.py).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from vidprep.formats.errors import STOPPED_CODE, DestinationError, InUseError, ManifestError, StorageError
from vidprep.formats.manifest import (
    MANIFEST_NAME,
    REMOVED,
    SEGMENT,
    Journal,
    ManifestRow,
    SentRows,
    fence_of,
    manifest_paths,
    read_table,
    write_rows,
)
from vidprep.formats.storage import ObjectStorage, Storage, read_json, refuse_links, remove_file
from vidprep.formats.stores import PARTS_MAX
from vidprep.transcode.destination.labels import GIVEN_LABELS_NAME, GivenLabels
from vidprep.transcode.destination.lease import Lease, LeasePlace, first_at_work
from vidprep.transcode.destination.partition import Partition, partitions_in
from vidprep.transcode.destination.run_file import (
    KnownUnit,
    differences,
    explained,
    is_other_store,
    known_units,
    read_run,
)
from vidprep.transcode.settings import RunSettings
from vidprep.transcode.sources import STATE_DIR
from vidprep.transcode.unit import Upload

if TYPE_CHECKING:
    import pyarrow as pa

    from vidprep.formats.manifest import Labels

PLAN_NAME, MERGED_PLAN_NAME, MERGED_NAME = "plan.parquet", "merged-plan.parquet", "merged.json"
PART_PLAN_NAME, PART_END_NAME = "plan.json", "end.json"
WRITTEN_NAME, WRITTEN_BYTES_MAX = "manifest.json", 4096
UNREADABLE = ".unreadable"
PARTIAL_LETTERS, TOKEN_LETTERS = 24, 8
# What must be here of a destination behind a URL.
STATE = re.compile(
    rf"manifest[^/]*\.parquet|{re.escape(STATE_DIR)}/(?:run\.json|(?:part-\d+-of-\d+/)?(?:{GIVEN_LABELS_NAME}|{SEGMENT.pattern}))"
)
PART_FILE = re.compile(rf"{re.escape(STATE_DIR)}/part-\d+-of-\d+/(?:{PART_PLAN_NAME}|{PART_END_NAME})")


class Outputs(Protocol):
    """What a destination holds of its units: files, or places in shards.

    Attributes:
        torn: Files of the destination's folder that a kill may leave half written, as globs.
        is_put_by_workers: Whether the worker that made an output puts it behind the URL of a destination.
    """

    torn: tuple[str, ...]
    is_put_by_workers: bool

    def holds(self, unit: KnownUnit, file_name: str) -> bool:
        """Return whether the output of a unit is there, as its row says, under the name that it would be given now."""
        ...

    def has(self, row: ManifestRow) -> bool:
        """Return whether what a row of a part names is there: a task that was killed may have told of a shard that never
        came.
        """
        ...

    def has_foreign(self, file_name: str) -> bool:
        """Return whether a file that no row mentions stands where an output would go."""
        ...

    def check_folder(self) -> None:
        """Raise DestinationError for a folder of no run that holds files of the names of outputs."""
        ...

    def prepare(self, row: ManifestRow, partial: Path) -> ManifestRow:
        """Before the row of a proven output is journalled: put it where the row that is returned says that it is, unless that is its
        name.
        """
        ...

    def publish(self, row: ManifestRow, partial: Path) -> None:
        """Give a proven output its final name. Raises DestinationError, OSError when the disk is full."""
        ...

    def move(self, row: ManifestRow, before: ManifestRow) -> None:
        """Name an output as its source is called now, and journal it. row: of the unit under its new name. Raises OSError."""
        ...

    def remove(self, file_name: str) -> None:
        """Remove what a unit was before, under a name that it has no more."""
        ...

    def recover(self) -> int:
        """Finish what a kill left half done. Returns how many outputs were given their names."""
        ...

    def relabel(self) -> None:
        """Before labels that were given go into the manifest: write anew what holds labels itself."""
        ...

    def finish(self, *, is_complete: bool) -> None:
        """The end of a run, when the manifest is written. is_complete: all that was to be done was done."""
        ...


class Destination:
    """The place that outputs go to. Nothing is written there before `lock`.

    Attributes:
        storage: Where its files stand.
        outputs: What it holds of its units.
        part: The part of an array run that works on it; None for a whole run.
        shown: Its name in messages.
        journal: Rows that are not in the manifest yet.
        labels: The labels that units are given.
        say: Told of what takes long.
        lease: The lease, while it is held.
        is_manifest_lost: Whether the manifest names less than is here, and all is made anew.
    """

    def __init__(
        self, storage: Storage, make_outputs: Callable[[Destination], Outputs], part: Partition | None = None
    ) -> None:
        self.storage, self.part, self._make_outputs = storage, part, make_outputs
        self.root, self.shown = storage.root, storage.shown
        self.shared = self.root / STATE_DIR
        self.own = f"{STATE_DIR}/{part.state_dir_name}" if part else STATE_DIR
        self.state_dir, self.partials = self.root / self.own, self.root / self.own / "partial"
        self.manifest = self.root / (part.manifest_name if part else MANIFEST_NAME)
        self.journal = Journal(self.state_dir / "journal.jsonl")
        self.labels = GivenLabels(storage, self.own, self.write_own)
        self._sent = SentRows(storage, self.own, self.journal) if isinstance(storage, ObjectStorage) else None
        self.say: Callable[[str], object] = lambda _text: None
        self.lease: Lease | None = None
        self.is_manifest_lost = False
        self.outputs = make_outputs(self)

    def refresh(self) -> None:
        """Have here what a run must know of a destination behind a URL, as it is now; of other parts a part knows that they are there."""
        known = (STATE, PART_FILE) if self.part is None else (STATE,)
        self.storage.refresh(
            lambda name: any(kind.fullmatch(name) for kind in known), lambda name: PART_FILE.fullmatch(name) is not None
        )

    def of_part(self, part: Partition) -> Destination:
        """Return what a task of an array run left here."""
        return Destination(self.storage, self._make_outputs, part)

    # ------------------------------------------------------------------------------------------- who works here

    @contextmanager
    def lock(self, *, merging: bool = False, overwrite: bool = False) -> Iterator[None]:
        """Be the only run in this folder, or the only one that works on this part.

        Args:
            merging: Parts are welcome.
            overwrite: All is made anew, whatever manifest there is.

        Raises:
            DestinationError: Another holds it, it cannot be written, or its manifest is not the one that was written last.
        """
        with explained(self.storage), ExitStack() as held:
            try:
                refuse_links(self.shared, enter=lambda name: not name.startswith("part-"))
                if self.part:
                    refuse_links(self.state_dir)
                is_new = not self.state_dir.exists()
                self.partials.mkdir(parents=True, exist_ok=True)
                self._take_lease(held)
                if is_new:
                    held.callback(self._leave_nothing)
                self.refresh()  # what was there before another ended is not what is there now
            except InUseError as error:
                if merging or self.part:
                    error.exit_code = STOPPED_CODE
                raise
            except (DestinationError, StorageError):
                raise
            except OSError as error:
                raise DestinationError(f"cannot be written: {error.strerror or error}", path=self.shown) from error
            if self._sent is not None:
                held.enter_context(self._sent.kept_up(self.check_held))
            held.callback(self.journal.close)
            others = {part.count for part in partitions_in(self.root, self.shared)}
            others -= {self.part.count} if self.part else set()
            if others and not merging:
                raise DestinationError(
                    f"holds parts of a run by {', '.join(map(str, sorted(others)))} tasks; `vidprep merge {self.shown}` first",
                    path=self.shown,
                )
            unreadable = _put_unreadable_aside(self) if overwrite else []
            lost = _why_lost(self)
            if lost and not overwrite:
                raise DestinationError(
                    f"{MANIFEST_NAME} {lost}, and outputs that it named are here; restore it, or --overwrite, of all sources, makes them "
                    "again",
                    path=self.shown,
                )
            self.is_manifest_lost = lost is not None or MANIFEST_NAME in unreadable
            yield

    def _take_lease(self, held: ExitStack) -> None:
        """Its own first, and then a look at the others: of two that do so at once, one at least sees the other.

        Its number is higher than any that was given here, to the whole or, before the whole, to a part: so is that of the run.
        """
        manifests = [self.root / MANIFEST_NAME, self.manifest] if self.part else manifest_paths(self.root)
        given = [entry.number for other in self._other_leases() if (entry := other.read()) is not None]
        for path in manifests:
            with suppress(ManifestError):  # whoever must read it will say so
                given.append(fence_of(path))
        lease = Lease(LeasePlace(self.storage, self.own), self.shown, self.say, waits=self.part is not None)
        lease.take(max(given, default=0))
        held.callback(lease.release)
        self.lease = lease
        self.partials.mkdir(parents=True, exist_ok=True)  # the run before may have left nothing
        if (holder := first_at_work(self._other_leases(), self.say)) is not None:
            raise InUseError(holder, self.shown)

    def _other_leases(self) -> list[LeasePlace]:
        """Where the leases of the parts stand; of the whole, for a part."""
        folders = [STATE_DIR]
        if self.part is None:
            folders = [f"{STATE_DIR}/{name}" for name in self.storage.folders(STATE_DIR) if name.startswith("part-")]
        return [LeasePlace(self.storage, folder) for folder in folders]

    def _leave_nothing(self) -> None:
        """A run that was refused before anything was made leaves no state."""
        if self.lease is not None and not (self.shared / "run.json").exists() and not self.journal.files():
            with suppress(OSError):
                self.partials.rmdir()
                self.lease.remove()

    def check_held(self) -> None:
        """Before anything takes its name. Raises TakenOverError when another run has taken this one for dead."""
        if self.lease is not None:
            self.lease.check()

    @property
    def fence(self) -> int:
        """The number of the lease, which no later run has a lower one than."""
        return self.lease.mine.number if self.lease else 0

    @property
    def run(self) -> int:
        """The number of this run: no other has it, no later one a lower one."""
        return self.fence * PARTS_MAX + (self.part.index + 1 if self.part else 0)

    # ------------------------------------------------------------------------------------------- files of its state

    def shared_file(self, name: str) -> Path | None:
        """Return a file of the whole destination in DST/.vidprep, as it is now; None where it is not there."""
        return self.storage.local(f"{STATE_DIR}/{name}")

    def create_shared(self, name: str, data: bytes) -> None:
        """Write one of those where it is not there: of several tasks one does. Raises DestinationError."""
        with self._writing(f"{STATE_DIR}/{name}"):
            self.storage.create(f"{STATE_DIR}/{name}", data)

    def write_own(self, name: str, data: bytes) -> None:
        """A file beside the journal. Raises DestinationError."""
        with self._writing(f"{self.own}/{name}"):
            self.storage.write(f"{self.own}/{name}", data)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """Where a file cannot be written: a successor takes away what this run was about to name, and TakenOverError says so."""
        try:
            yield
        except (DestinationError, StorageError):
            raise
        except OSError as error:
            self.check_held()
            raise DestinationError(f"cannot be written: {error.strerror}", path=f"{self.shown}/{name}") from error

    # ------------------------------------------------------------------------------------------- settings

    def check_settings(self, settings: RunSettings, *, overwrite: bool) -> None:
        """Refuse to mix outputs of unlike settings in one folder. Raises DestinationError that shows the difference."""
        is_old = bool(manifest_paths(self.root))
        self.shared_file("run.json")  # as it is now: another run may have been here
        try:
            before = read_run(self.shared)["settings"]
        except FileNotFoundError:
            if is_old and not overwrite:
                raise DestinationError(
                    "has a manifest, and no .vidprep/run.json that says how it was made; --overwrite starts over",
                    path=self.shown,
                ) from None
            if not is_old and self.shared_file(WRITTEN_NAME) is None:
                self.outputs.check_folder()
            return
        except (ValueError, OSError) as error:
            if overwrite:
                return
            shown = f"{self.shown}/{STATE_DIR}/run.json"
            raise DestinationError(f"cannot be read ({error}); --overwrite starts over", path=shown) from error
        difference = [] if overwrite else differences(before, settings)
        # A run in which nothing succeeded binds nobody to its settings.
        if difference and (is_other_store(before, settings) or any(row.ok for row in self.known_units().values())):
            raise DestinationError(
                "was made with different settings: "
                + "; ".join(difference)
                + ". Take another folder, or --overwrite with all sources",
                path=self.shown,
            )

    def write_settings(self, settings: RunSettings, versions: dict[str, str]) -> None:
        content = {"settings": settings.as_dict(), "digest": settings.digest, "versions": versions}
        with self._writing(f"{STATE_DIR}/run.json"):
            self.storage.write(f"{STATE_DIR}/run.json", json.dumps(content, indent=1).encode())

    # ------------------------------------------------------------------------------------------- outputs and rows

    def known_units(self) -> dict[str, KnownUnit]:
        """Return every unit that has a row, by id."""
        with explained(self.storage):
            return known_units(self.root, self.journal)

    def partial(self, unit_id: str, extension: str) -> Path:
        """Where an output stands until it is proven: a short name, since `unit_id` may be as long as names can be."""
        mine = self.lease.mine.token[:TOKEN_LETTERS] if self.lease else ""  # nobody else's workers write into it
        return self.partials / f"{partial_stem(unit_id)}{mine}.{extension}"

    def upload(self, file_name: str) -> Upload | None:
        """Where a worker puts a proven output; None leaves that to `outputs.publish`."""
        if not self.storage.is_remote or self.lease is None or not self.outputs.is_put_by_workers:
            return None
        return Upload(f"{self.shown}/{file_name}", self.shown, self.own, self.lease.mine.token)

    def remove_leftovers(self) -> None:
        """What nobody works on any more, of workers that were killed."""
        for leftover in self.partials.iterdir():
            with suppress(OSError):
                leftover.unlink()
        names = (f".{self.part.manifest_name}.partial",) if self.part else (".manifest*.partial", *self.outputs.torn)
        for torn in [path for name in names for path in self.root.glob(name)] + [*self.state_dir.glob(".*.partial")]:
            remove_file(torn)

    def finish(self, *, is_complete: bool = True) -> None:
        """The end of a run. is_complete: all that was to be done was done."""
        self.merge_journal()
        self.outputs.finish(is_complete=is_complete)

    def merge_journal(self) -> None:
        """Journal into manifest; whichever of the steps is interrupted, the next run does it again."""
        self.outputs.relabel()
        labels = self.labels.given()
        if not self.journal.files() and (labels is None or (self.part and not self.manifest.exists())):
            return
        self.write_manifest(read_table(self.root, only=self.manifest), self.journal.rows(), labels)
        if gone := {row.id: row.file_name for row in self.journal.rows() if row.status == REMOVED}:
            known = self.known_units()
            named = {unit.file_name for unit in known.values()}
            for id_ in gone.keys() - known.keys():
                if gone[id_] not in named:
                    self.outputs.remove(gone[id_])
        self.clear_journal()
        # What a part has not made, `vidprep merge` gives its labels.
        self.labels.are_written(stay=self.part is not None)

    def clear_journal(self) -> None:
        """Its rows are in the manifest, or are to be made again."""
        self.journal.clear()
        if self._sent is not None:
            self._sent.clear()

    def write_manifest(self, kept: pa.Table | None, rows: Iterable[ManifestRow], labels: Labels | None = None) -> None:
        """As `write_rows`, in the place of the one that was there when the lease was taken, and note which it is.

        Raises TakenOverError too, and DestinationError where another run has written one meanwhile.
        """
        self.check_held()
        write_rows(self.manifest, kept, rows, labels=labels, fence=self.fence)
        self.check_held()
        self.storage.push(self.manifest.name, unchanged=True)
        self.note_manifest()

    def note_manifest(self) -> None:
        """Keep which manifest was written last, when it is there."""
        if self.part is None:
            self.write_own(WRITTEN_NAME, json.dumps({"lease": self.fence}).encode())


def _why_lost(place: Destination) -> str | None:
    """Why the manifest is not the one that was written here last; None where it is. What it does not name goes when a run ends."""
    path, manifest = place.shared_file(WRITTEN_NAME), place.root / MANIFEST_NAME
    if path is None:
        return None
    found, written = fence_of(manifest), _lease_written(path)
    if not manifest.exists():
        return "is missing"
    # One without the number was written by an older version.
    return f"is older (of run {found}) than what was made last (run {written})" if 0 < found < written else None


def _put_unreadable_aside(place: Destination) -> list[str]:
    """Before all is made anew: what an earlier run left and nobody can read gets another name. Returns its names."""
    from vidprep.formats.manifest import read_labels

    readers: dict[Path, Callable[[Path], object]] = {
        place.root / MANIFEST_NAME: lambda path: read_table(place.root, only=path),
        place.shared / WRITTEN_NAME: _lease_written,
        place.shared / GIVEN_LABELS_NAME: read_labels,
    }
    found = []
    for path, read in readers.items():
        try:
            if path.exists():
                read(path)
        except (ManifestError, DestinationError):
            path.replace(path.with_name(f"{path.name}{UNREADABLE}"))
            place.say(f"{place.shown}: {path.name} cannot be read; it is now {path.name}{UNREADABLE}")
            found.append(path.name)
    if MANIFEST_NAME in found:
        place.note_manifest()  # for a run after this one: it is lost
    return found


def _lease_written(path: Path) -> int:
    """Return the lease that the manifest was written under. Raises DestinationError."""
    try:
        return int(read_json(path, WRITTEN_BYTES_MAX)["lease"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DestinationError(
            f"cannot be read ({error}); remove it, or --overwrite, of all sources, starts over", path=path
        ) from error


def partial_stem(unit_id: str) -> str:
    """What the name of a partial file of a unit begins with."""
    return hashlib.sha256(unit_id.encode()).hexdigest()[:PARTIAL_LETTERS]
