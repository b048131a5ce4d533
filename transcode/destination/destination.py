"""A destination: its lease, its settings and the rows of its outputs.

DST/.vidprep/lease-000007   its current or last holder (lease.py)
DST/.vidprep/run.json       settings of its outputs (run_file.py)
DST/.vidprep/journal.jsonl  rows of finished units since the manifest was written; behind a URL in segments (formats/manifest/journal.py)
DST/.vidprep/labels.parquet labels given by a run, until its rows are in the manifest (labels.py)
DST/.vidprep/manifest.json  lease under which the manifest was last written
DST/.vidprep/partial/       unfinished outputs; empty between runs
DST/.vidprep/merged.json    what `vidprep merge` has joined so far, and what was missing (array_merge.py)

A partition of an array run has its own lease, journal and partial files (partition.py) and shares the rest. Files are
kept in a storage (a local folder or a URL); outputs are files or parts of shards (outputs.py).
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
from vidprep.formats.manifest.journal import SEGMENT, Journal, SentRows
from vidprep.formats.manifest.row import REMOVED, ManifestRow
from vidprep.formats.manifest.table import MANIFEST_NAME, fence_of, manifest_paths, read_table, write_rows
from vidprep.formats.storage.base import Storage
from vidprep.formats.storage.local import refuse_links, remove_file
from vidprep.formats.storage.remote import ObjectStorage
from vidprep.formats.storage.untrusted import read_json
from vidprep.formats.stores.gops import GOPS_NAME
from vidprep.formats.stores.shards import PARTS_MAX
from vidprep.transcode.destination.labels import GIVEN_LABELS_NAME, GivenLabels
from vidprep.transcode.destination.lease import Lease, LeasePlace, first_live_holder
from vidprep.transcode.destination.partition import Partition, partitions_in
from vidprep.transcode.destination.run_file import (
    KnownUnit,
    differences,
    explain_errors,
    is_other_store,
    read_known_units,
    read_run,
)
from vidprep.transcode.settings.run import CONDITIONAL, RunSettings
from vidprep.transcode.sources.outputs import STATE_DIR
from vidprep.transcode.unit.job import Upload

if TYPE_CHECKING:
    import pyarrow as pa

    from vidprep.formats.manifest.labels import Labels

PLAN_NAME, MERGED_PLAN_NAME, MERGED_NAME = "plan.parquet", "merged-plan.parquet", "merged.json"
PART_PLAN_NAME, PART_END_NAME = "plan.json", "end.json"
WRITTEN_NAME, WRITTEN_BYTES_MAX = "manifest.json", 4096
UNREADABLE = ".unreadable"
PARTIAL_LETTERS, TOKEN_LETTERS = 24, 8
TORN = (".manifest*.partial", ".gops*.partial")
# Files to fetch from a destination behind a URL.
STATE = re.compile(
    rf"manifest[^/]*\.parquet|{re.escape(STATE_DIR)}/(?:run\.json|(?:part-\d+-of-\d+/)?(?:{GIVEN_LABELS_NAME}|{SEGMENT.pattern}))"
)
PART_FILE = re.compile(rf"{re.escape(STATE_DIR)}/part-\d+-of-\d+/(?:{PART_PLAN_NAME}|{PART_END_NAME})")


class Outputs(Protocol):
    """Outputs of a destination: files, or parts of shards.

    Attributes:
        torn: Globs of partial files that a killed run may leave in the destination's folder
        is_put_by_workers: Whether the worker that made an output uploads it to a destination behind a URL
    """

    torn: tuple[str, ...]
    is_put_by_workers: bool

    def holds(self, unit: KnownUnit, file_name: str) -> bool:
        """Return whether the output of a unit exists as its row says, under the name that it would get now."""
        ...

    def has(self, row: ManifestRow) -> bool:
        """Return whether the output of a row exists: a killed task may have written a row for a shard that was never
        uploaded.
        """
        ...

    def has_foreign(self, file_name: str) -> bool:
        """Return whether a file without a row has the name of an output."""
        ...

    def check_folder(self) -> None:
        """Raise DestinationError if a folder without a run contains files with names of outputs."""
        ...

    def prepare(self, row: ManifestRow, partial: Path) -> ManifestRow:
        """Store a verified output where the returned row says, before that row is journalled. Files are stored by
        `publish`.
        """
        ...

    def publish(self, row: ManifestRow, partial: Path) -> None:
        """Give a verified output its final name. Raises DestinationError, and OSError if the disk is full."""
        ...

    def move(self, row: ManifestRow, before: ManifestRow) -> None:
        """Rename an output after its source was renamed, and journal the row with its new name. Raises OSError."""
        ...

    def remove(self, file_name: str) -> None:
        """Remove an output under a name that its unit no longer has."""
        ...

    def recover(self) -> int:
        """Complete what a kill interrupted. Return how many outputs were renamed."""
        ...

    def relabel(self) -> None:
        """Rewrite outputs that contain labels, before new labels are written to the manifest."""
        ...

    def write_gops(self, rows: Iterable[ManifestRow]) -> None:
        """Write the index of every GOP, if the outputs are videos, when the manifest is written.

        Args:
            rows: Rows that are in no index yet.
        """
        ...

    def finish(self, *, is_complete: bool) -> None:
        """Finish a run, when the manifest is written.

        Args:
            is_complete: Whether all work was done.
        """
        ...


def splits_name(rule: str) -> str:
    """Return the name of the file with the splits that the first task of an array drew by a rule."""
    return f"splits-{hashlib.sha256(rule.encode()).hexdigest()[:16]}.parquet"


def split_names(storage: Storage) -> list[str]:
    """Return the names of all such files."""
    return sorted(storage.list(lambda name: name.startswith("splits-"), STATE_DIR))


class Destination:
    """A destination. Nothing is written to it before `lock`.

    Attributes:
        part: The partition that works on it; None for a whole run
        shown: Its name in messages
        journal: Rows that are not in the manifest yet
        say: Receives messages about slow steps
        lease: The lease, while it is held
        is_manifest_lost: Whether the manifest lacks rows of existing outputs, so that everything is made again
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
        """Fetch the state that a run needs, for a destination behind a URL. Of other partitions a partition only needs the
        names.
        """
        known = (STATE, PART_FILE) if self.part is None else (STATE,)
        self.storage.refresh(
            lambda name: any(kind.fullmatch(name) for kind in known), lambda name: PART_FILE.fullmatch(name) is not None
        )

    def open_part(self, part: Partition) -> Destination:
        """Return the destination as a partition of an array run sees it."""
        return Destination(self.storage, self._make_outputs, part)

    # ------------------------------------------------------------------------------------------- who works here

    @contextmanager
    def lock(self, *, merging: bool = False, overwrite: bool = False) -> Iterator[None]:
        """Take the lease for the block: be the only run in this destination, or the only one of this partition.

        Args:
            merging: Whether partitions may be present.
            overwrite: Whether everything is made again, regardless of the manifest.

        Raises:
            DestinationError: Another run holds it, it is not writable, or its manifest is not the one that was last
                written.
        """
        with explain_errors(self.storage), ExitStack() as held:
            try:
                refuse_links(self.shared, enter=lambda name: not name.startswith("part-"))
                if self.part:
                    refuse_links(self.state_dir)
                is_new = not self.state_dir.exists()
                self.partials.mkdir(parents=True, exist_ok=True)
                self._take_lease(held)
                if is_new:
                    held.callback(self._remove_state)
                self.refresh()  # the previous holder may have changed the state
            except InUseError as error:
                if merging or self.part:
                    error.exit_code = STOPPED_CODE
                raise
            except (DestinationError, StorageError):
                raise
            except OSError as error:
                raise DestinationError(f"cannot be written: {error.strerror or error}", path=self.shown) from error
            if (self.root / GOPS_NAME).is_dir():
                raise DestinationError(
                    "is a folder, and a run writes a file of that name; rename it", path=f"{self.shown}/{GOPS_NAME}"
                )
            if self._sent is not None:
                held.enter_context(self._sent.sending(self.check_held))
            held.callback(self.journal.close)
            others = {part.count for part in partitions_in(self.root, self.shared)}
            others -= {self.part.count} if self.part else set()
            if others and not merging:
                raise DestinationError(
                    f"holds partitions of a run by {', '.join(map(str, sorted(others)))} tasks; `vidprep merge {self.shown}` first",
                    path=self.shown,
                )
            unreadable = _rename_unreadable(self) if overwrite else []
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
        """Take this run's lease, then check the others: of two runs that do so at once, at least one sees the other. Its
        number, from which that of the run is computed, is higher than any before, in the whole destination and in its
        partitions.

        Its number, which is also the number of the run, is higher than any before, of the whole destination and of its
        partitions.
        """
        manifests = [self.root / MANIFEST_NAME, self.manifest] if self.part else manifest_paths(self.root)
        given = [entry.number for other in self._other_leases() if (entry := other.read()) is not None]
        for path in manifests:
            with suppress(ManifestError):  # reported when it is needed
                given.append(fence_of(path))
        lease = Lease(LeasePlace(self.storage, self.own), self.shown, self.say, waits=self.part is not None)
        lease.take(max(given, default=0))
        held.callback(lease.release)
        self.lease = lease
        self.partials.mkdir(parents=True, exist_ok=True)  # the run before may have left nothing
        if (holder := first_live_holder(self._other_leases(), self.say)) is not None:
            raise InUseError(holder, self.shown)

    def _other_leases(self) -> list[LeasePlace]:
        """Return the leases of the partitions; for a partition, the lease of the whole destination."""
        folders = [STATE_DIR]
        if self.part is None:
            folders = [f"{STATE_DIR}/{name}" for name in self.storage.folders(STATE_DIR) if name.startswith("part-")]
        return [LeasePlace(self.storage, folder) for folder in folders]

    def _remove_state(self) -> None:
        """Remove the state of a run that was refused before it made anything."""
        if self.lease is not None and not (self.shared / "run.json").exists() and not self.journal.files():
            with suppress(OSError):
                self.partials.rmdir()
                self.lease.remove()

    def check_held(self) -> None:
        """Raise TakenOverError if another run considered this one dead and took over. Called before an output gets its
        name.
        """
        if self.lease is not None:
            self.lease.check()

    @property
    def fence(self) -> int:
        """Number of the lease; later runs have higher ones."""
        return self.lease.mine.number if self.lease else 0

    @property
    def run(self) -> int:
        """Number of this run; later runs have higher ones."""
        return self.fence * PARTS_MAX + (self.part.index + 1 if self.part else 0)

    # ------------------------------------------------------------------------------------------- files of its state

    def fetch_shared(self, name: str) -> Path | None:
        """Return an up-to-date file of DST/.vidprep; None if it does not exist."""
        return self.storage.local(f"{STATE_DIR}/{name}")

    def create_shared(self, name: str, data: bytes) -> None:
        """Create a file in DST/.vidprep unless it exists; only one of several tasks does. Raises DestinationError."""
        with self._writing(f"{STATE_DIR}/{name}"):
            self.storage.create(f"{STATE_DIR}/{name}", data)

    def write_own(self, name: str, data: bytes) -> None:
        """Write a file beside the journal. Raises DestinationError."""
        with self._writing(f"{self.own}/{name}"):
            self.storage.write(f"{self.own}/{name}", data)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """Wrap a write error, or raise TakenOverError if another run has taken over and removed the file."""
        try:
            yield
        except (DestinationError, StorageError):
            raise
        except OSError as error:
            self.check_held()
            raise DestinationError(f"cannot be written: {error.strerror}", path=f"{self.shown}/{name}") from error

    # ------------------------------------------------------------------------------------------- settings

    def check_settings(self, settings: RunSettings, *, overwrite: bool) -> None:
        """Raise DestinationError with the differences if the destination was made with other settings."""
        is_old = bool(manifest_paths(self.root))
        self.fetch_shared("run.json")  # as it is now: another run may have been here
        try:
            before = read_run(self.shared)["settings"]
        except FileNotFoundError:
            if is_old and not overwrite:
                raise DestinationError(
                    "has a manifest, but no .vidprep/run.json with its settings; --overwrite starts from scratch",
                    path=self.shown,
                ) from None
            if not is_old and self.fetch_shared(WRITTEN_NAME) is None:
                self.outputs.check_folder()
            return
        except (ValueError, OSError) as error:
            if overwrite:
                return
            shown = f"{self.shown}/{STATE_DIR}/run.json"
            raise DestinationError(f"cannot be read ({error}); --overwrite starts over", path=shown) from error
        difference = [] if overwrite else differences(before, settings)
        made = {row.settings_digest for row in self.read_known_units().values() if row.ok} if difference else set()
        # Allowed are other settings on which no finished output depends.
        now = {name: settings.as_dict().get(name) for name in (*CONDITIONAL, "keeps_jpegs")}
        counts = made and (differences(before | now, settings) or not made <= settings.digests)
        if difference and (counts or is_other_store(before, settings)):
            raise DestinationError(
                "was made with different settings: "
                + "; ".join(difference)
                + ". Take another folder, or --overwrite with all sources",
                path=self.shown,
            )

    def write_settings(self, settings: RunSettings, versions: dict[str, str]) -> None:
        content = {"settings": settings.as_dict(), "digest": settings.digest, "versions": versions}
        content["digests"] = sorted(settings.digests)  # a later version may compute others
        with self._writing(f"{STATE_DIR}/run.json"):
            self.storage.write(f"{STATE_DIR}/run.json", json.dumps(content, indent=1).encode())

    # ------------------------------------------------------------------------------------------- outputs and rows

    def read_known_units(self) -> dict[str, KnownUnit]:
        """Return every unit with a row, by id."""
        with explain_errors(self.storage):
            return read_known_units(self.root, self.journal)

    def partial(self, unit_id: str, extension: str) -> Path:
        """Return the path of an unfinished output. It is short, since `unit_id` may be as long as a name can be."""
        mine = self.lease.mine.token[:TOKEN_LETTERS] if self.lease else ""  # only workers of this run write there
        return self.partials / f"{partial_stem(unit_id)}{mine}.{extension}"

    def upload(self, file_name: str) -> Upload | None:
        """Return where a worker uploads a verified output; None if `outputs.publish` stores it."""
        if not self.storage.is_remote or self.lease is None or not self.outputs.is_put_by_workers:
            return None
        return Upload(f"{self.shown}/{file_name}", self.shown, self.own, self.lease.mine.token)

    def remove_leftovers(self) -> None:
        """Remove files of killed workers."""
        for leftover in self.partials.iterdir():
            with suppress(OSError):
                leftover.unlink()
        names = (*TORN, *self.outputs.torn)
        if self.part is not None:
            names = (f".{self.part.manifest_name}.partial", f".{self.part.gops_name}.partial")
        for torn in [path for name in names for path in self.root.glob(name)] + [*self.state_dir.glob(".*.partial")]:
            remove_file(torn)

    def finish(self, *, is_complete: bool = True) -> None:
        """Finish a run.

        Args:
            is_complete: Whether all work was done.
        """
        self.merge_journal()
        self.outputs.finish(is_complete=is_complete)

    def merge_journal(self) -> None:
        """Write the rows of the journal to the manifest. If it is interrupted, the next run repeats it."""
        self.outputs.relabel()
        labels = self.labels.read_given()
        if not self.journal.files() and (labels is None or (self.part and not self.manifest.exists())):
            return
        self.write_manifest(read_table(self.root, only=self.manifest), self.journal.rows(), labels)
        self.outputs.write_gops(self.journal.rows())
        if gone := {row.id: row.file_name for row in self.journal.rows() if row.status == REMOVED}:
            known = self.read_known_units()
            named = {unit.file_name for unit in known.values()}
            for id_ in gone.keys() - known.keys():
                if gone[id_] not in named:
                    self.outputs.remove(gone[id_])
        self.clear_journal()
        # `vidprep merge` writes the labels of videos that a partition has not made.
        self.labels.forget(stay=self.part is not None)

    def clear_journal(self) -> None:
        """Clear the journal, when its rows are in the manifest or will be made again."""
        self.journal.clear()
        if self._sent is not None:
            self._sent.clear()

    def write_manifest(self, kept: pa.Table | None, rows: Iterable[ManifestRow], labels: Labels | None = None) -> None:
        """Replace the manifest, unless it changed since the lease was taken, and record the lease under which it was
        written. For arguments see `write_rows`.

        Raises:
            TakenOverError: A later lease has written it.
            DestinationError: Another run has written it meanwhile.
        """
        self.check_held()
        write_rows(self.manifest, kept, rows, labels=labels, fence=self.fence)
        self.check_held()
        self.storage.push(self.manifest.name, unchanged=True)
        self.note_manifest()

    def note_manifest(self) -> None:
        """Record the lease under which the manifest was written. Do nothing for a partition."""
        if self.part is None:
            self.write_own(WRITTEN_NAME, json.dumps({"lease": self.fence}).encode())


def _why_lost(place: Destination) -> str | None:
    """Return why the manifest is not the one that was last written here; None if it is. Outputs that it lacks are removed
    when a run ends.
    """
    path, manifest = place.fetch_shared(WRITTEN_NAME), place.root / MANIFEST_NAME
    if path is None:
        return None
    fence, written = fence_of(manifest), _lease_written(path)
    if not manifest.exists():
        return "is missing"
    # One without the number was written by an older version.
    return f"is older (of run {fence}) than what was made last (run {written})" if 0 < fence < written else None


def _rename_unreadable(place: Destination) -> list[str]:
    """Rename unreadable files of an earlier run before everything is made again. Return their names."""
    from vidprep.formats.manifest.labels import read_labels

    readers: dict[Path, Callable[[Path], object]] = {
        place.root / MANIFEST_NAME: lambda path: read_table(place.root, only=path),
        place.shared / WRITTEN_NAME: _lease_written,
        place.shared / GIVEN_LABELS_NAME: read_labels,
    }
    renamed = []
    for path, read in readers.items():
        try:
            if path.exists():
                read(path)
        except (ManifestError, DestinationError):
            path.replace(path.with_name(f"{path.name}{UNREADABLE}"))
            place.say(f"{place.shown}: {path.name} cannot be read; it is now {path.name}{UNREADABLE}")
            renamed.append(path.name)
    if MANIFEST_NAME in renamed:
        place.note_manifest()  # the next run treats the manifest as lost
    return renamed


def _lease_written(path: Path) -> int:
    """Return the lease under which the manifest was written. Raises DestinationError."""
    try:
        return int(read_json(path, WRITTEN_BYTES_MAX)["lease"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DestinationError(
            f"cannot be read ({error}); remove it, or --overwrite, of all sources, starts over", path=path
        ) from error


def partial_stem(unit_id: str) -> str:
    """Return the beginning of the names of a unit's partial files."""
    return hashlib.sha256(unit_id.encode()).hexdigest()[:PARTIAL_LETTERS]
