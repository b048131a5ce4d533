"""A destination folder: who works in it, with which settings, and the rows that stand in it.

DST/.vidprep/lease-000007   who works in it, or did last (lease.py)
DST/.vidprep/run.json       the settings that its outputs were made with
DST/.vidprep/journal.jsonl  rows of finished units since the manifest was last written
DST/.vidprep/labels.parquet the labels that a run gives, until its rows are in the manifest
DST/.vidprep/manifest.json  under which lease the manifest was written last
DST/.vidprep/partial/       outputs on their way; empty between runs
DST/.vidprep/merged.json    what `vidprep merge` has joined so far, and what was missing (account.py)

A part of an array run has a lease, a journal and partial files of its own (partition.py) and shares the rest.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidprep.formats.errors import (
    STOPPED_CODE,
    DestinationError,
    DiskFullError,
    InUseError,
    ManifestError,
    SourceError,
    StorageError,
    VidprepError,
)
from vidprep.formats.files.local import is_disk_full, replacing, sha256_of
from vidprep.formats.files.no_links import (
    IS_A_LINK,
    NOT_REGULAR,
    folder_of,
    is_regular,
    link_on_the_way,
    open_unlinked,
    refuse_links,
    remove_below,
    remove_file,
)
from vidprep.formats.files.untrusted import read_json
from vidprep.formats.manifest.journal import Journal
from vidprep.formats.manifest.row import REMOVED, removed
from vidprep.formats.manifest.table import (
    MANIFEST_NAME,
    ManifestRow,
    fence_of,
    label_columns,
    manifest_paths,
    read_table,
    write_rows,
)
from vidprep.formats.stores.shards import PARTS_MAX
from vidprep.transcode.destination.known_units import KnownUnit, known_units
from vidprep.transcode.destination.lease import Lease, first_at_work
from vidprep.transcode.destination.lease_storage import FolderLeaseStorage, LeaseStorage
from vidprep.transcode.destination.partition import Partition, partitions_in
from vidprep.transcode.destination.run_file import differences, is_other_store, read_run
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.outputs import STATE_DIR

if TYPE_CHECKING:
    import pyarrow as pa

    from vidprep.formats.manifest.labels import Labels
    from vidprep.transcode.sources.splits import Drawing
    from vidprep.transcode.unit.job import Upload

PLAN_NAME, MERGED_PLAN_NAME, MERGED_NAME = "plan.parquet", "merged-plan.parquet", "merged.json"
PART_PLAN_NAME, PART_END_NAME = "plan.json", "end.json"
GIVEN_LABELS_NAME = "labels.parquet"
WRITTEN_NAME, WRITTEN_BYTES_MAX = "manifest.json", 4096
UNREADABLE = ".unreadable"
LEAST_BYTES = 1 << 16
PARTIAL_LETTERS, TOKEN_LETTERS = 24, 8


@dataclass(frozen=True, slots=True)
class PlannedLabels:
    """The labels that a run gives its units.

    Attributes:
        given: The labels of all listed units.
        changed: Units that were there and whose labels change.
        stay: Columns from before that these sources do not give.
        num_without: How many videos are new and have none of these columns.
        splits: The split before and the split now of each unit whose split changes.
        is_new: Whether the manifest has to be written for them.
    """

    given: Labels
    changed: Sequence[str] = ()
    stay: Sequence[str] = ()
    num_without: int = 0
    splits: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    is_new: bool = False


class Destination:
    """The folder that outputs go to. Nothing is written before `lock`. part: of an array run, None for a whole one.

    torn: what a kill may leave of its own files. shown: its name in messages. say: told of what takes long. lease: while it is
    held. is_manifest_lost: whether it names less than is here, and all is made anew.
    """

    torn: tuple[str, ...] = (".manifest*.partial",)

    def __init__(self, root: Path, part: Partition | None = None) -> None:
        self.root = root
        self.shown = str(root)
        self.part = part
        self.shared = root / STATE_DIR
        self.state_dir = self.shared / part.state_dir_name if part else self.shared
        self.manifest = root / (part.manifest_name if part else MANIFEST_NAME)
        self.partials = self.state_dir / "partial"
        self.journal = Journal(self.state_dir / "journal.jsonl")
        self.say: Callable[[str], object] = lambda _text: None
        self.lease: Lease | None = None
        self.is_manifest_lost = False
        self._given: Labels | None = None
        self._labels: Labels | None = None

    @contextmanager
    def lock(self, *, merging: bool = False, overwrite: bool = False) -> Iterator[None]:
        """Be the only run in this folder, or the only one that works on this part.

        Args:
            merging: Parts are welcome.
            overwrite: All is made anew, whatever manifest there is.

        Raises:
            DestinationError: Another holds it, it cannot be written, or its manifest is not the one that was written last.
        """
        with self._explained(), ExitStack() as locks:
            try:
                refuse_links(self.shared, enter=lambda name: not name.startswith("part-"))
                if self.part:
                    refuse_links(self.state_dir)
                self.partials.mkdir(parents=True, exist_ok=True)
                self._take_lease(*self._storages(), locks)
            except InUseError as error:
                if merging or self.part:
                    error.exit_code = STOPPED_CODE
                raise
            except (DestinationError, StorageError):
                raise
            except OSError as error:
                raise DestinationError(f"cannot be written: {error.strerror or error}", path=self.shown) from error
            locks.callback(self.journal.close)
            others = {part.count for part in partitions_in(self.root, self.shared)}
            others -= {self.part.count} if self.part else set()
            if others and not merging:
                raise DestinationError(
                    f"holds parts of a run by {', '.join(map(str, sorted(others)))} tasks; `vidprep merge {self.shown}` first",
                    path=self.shown,
                )
            unreadable = self._put_unreadable_aside() if overwrite else []
            lost = self._why_lost()
            if lost and not overwrite:
                raise DestinationError(
                    f"{MANIFEST_NAME} {lost}, and outputs that it named are here; restore it, or --overwrite, of all sources, makes them "
                    "again",
                    path=self.shown,
                )
            self.is_manifest_lost = lost is not None or MANIFEST_NAME in unreadable
            yield

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors in here name files as the user knows them, and say how much room there is where there is too little.

        Raises:
            DiskFullError: There is no room left for what is to be written.
        """
        try:
            yield
        except DiskFullError:
            raise
        except (OSError, VidprepError) as error:
            if is_disk_full(error):
                raise DiskFullError(self.no_room()) from error
            if not isinstance(error, VidprepError) or self.shown == str(self.root):
                raise
            raise error.renamed(str(self.root), self.shown) from error

    def no_room(self, source_bytes: int = 0) -> str:
        """Why nothing more can be written. source_bytes: of the sources that are still to be done."""
        needed = f"the sources still to do hold {source_bytes} bytes"
        if not source_bytes:
            there = [entry for folder in (self.root, self.shared) if folder.is_dir() for entry in os.scandir(folder)]
            own = sum(entry.stat().st_size for entry in there if entry.name.endswith((".parquet", ".json", ".jsonl")))
            needed = f"writing anew what vidprep itself keeps there needs {max(own, LEAST_BYTES)} bytes"
        return f"no room left in {self.disk}: {self.room()}, {needed}; make room and run the same command again"

    def _put_unreadable_aside(self) -> list[str]:
        """Before all is made anew: what an earlier run left and nobody can read gets another name. Returns its names."""
        from vidprep.formats.manifest.labels import read_labels

        readers: dict[Path, Callable[[Path], object]] = {
            self.root / MANIFEST_NAME: lambda path: read_table(self.root, only=path),
            self.shared / WRITTEN_NAME: _lease_written,
            self.shared / GIVEN_LABELS_NAME: read_labels,
        }
        found = []
        for path, read in readers.items():
            try:
                if path.exists():
                    read(path)
            except (ManifestError, DestinationError):
                path.replace(path.with_name(f"{path.name}{UNREADABLE}"))
                self.say(f"{self.shown}: {path.name} cannot be read; it is now {path.name}{UNREADABLE}")
                found.append(path.name)
        if MANIFEST_NAME in found:
            self.note_manifest()  # for a run after this one: it is lost
        return found

    def _why_lost(self) -> str | None:
        """Why the manifest is not the one that was written here last; None where it is. What it does not name goes when a run ends."""
        path = self.shared_file(WRITTEN_NAME)
        if path is None:
            return None
        found, written = fence_of(self.root / MANIFEST_NAME), _lease_written(path)
        if not (self.root / MANIFEST_NAME).exists():
            return "is missing"
        # One without the number was written by an older version.
        return f"is older (of run {found}) than what was made last (run {written})" if 0 < found < written else None

    def note_manifest(self) -> None:
        """Keep which manifest was written last, when it is there."""
        if self.part is None:
            self.write_own(WRITTEN_NAME, json.dumps({"lease": self.fence}).encode())

    def _storages(self) -> tuple[LeaseStorage, list[LeaseStorage]]:
        """Its own; and that of the whole, for a part, or those of all parts, for the whole."""
        state_dirs = [self.shared] if self.part else sorted(self.shared.glob("part-*"))
        return FolderLeaseStorage(self.state_dir), [FolderLeaseStorage(state_dir) for state_dir in state_dirs]

    def _take_lease(self, storage: LeaseStorage, others: Sequence[LeaseStorage], locks: ExitStack) -> None:
        """Its own first, and then a look at the others: of two that do so at once, one at least sees the other.

        Its number is higher than any that was given here, to the whole or, before the whole, to a part: so is that of the run.
        """
        lease = Lease(storage, self.shown, self.say, waits=self.part is not None)
        manifests = [self.root / MANIFEST_NAME, self.manifest] if self.part else manifest_paths(self.root)
        given = [entry.number for other in others if (entry := other.read()) is not None]
        for path in manifests:
            with suppress(ManifestError):  # whoever must read it will say so
                given.append(fence_of(path))
        lease.take(max(given, default=0))
        locks.callback(lease.release)
        self.lease = lease
        if (holder := first_at_work(others, self.say)) is not None:
            raise InUseError(holder, self.shown)

    def _refused(self, error: OSError, path: str | Path) -> DestinationError:
        """Why a file could not be written: a successor takes away what this run was about to name, and TakenOverError says so."""
        self.check_held()
        return DestinationError(f"cannot be written: {error.strerror}", path=path)

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

    def partial(self, unit_id: str, extension: str) -> Path:
        """Where an output stands until it is proven: a short name, since `unit_id` may be as long as names can be."""
        mine = self.lease.mine.token[:TOKEN_LETTERS] if self.lease else ""  # nobody else's workers write into it
        return self.partials / f"{_partial_name(unit_id)}{mine}.{extension}"

    def has_foreign(self, file_name: str) -> bool:
        """Whether a file that no row mentions stands where an output would go. Lines of the journal that were lost may mention it."""
        if self.part is not None or self.journal.unreadable or link_on_the_way(self.root, file_name):
            return False
        return os.path.isfile(self.root / file_name)  # noqa: PTH113 (a name that is too long is no file)

    def upload(self, _file_name: str) -> Upload | None:
        """Where a worker puts an output that is proven; None leaves that to `publish`."""
        return None

    def known_units(self) -> dict[str, KnownUnit]:
        """Every unit that has a row, by id."""
        with self._explained():
            return known_units(self.root, self.journal)

    def check_settings(self, settings: RunSettings, *, overwrite: bool) -> None:
        """Refuse to mix outputs of unlike settings in one folder. Raises DestinationError that shows the difference."""
        try:
            before = read_run(self.shared)["settings"]
        except FileNotFoundError:
            if manifest_paths(self.root) and not overwrite:
                raise DestinationError(
                    "has a manifest, and no .vidprep/run.json that says how it was made; --overwrite starts over",
                    path=self.shown,
                ) from None
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
        try:
            with replacing(self.state_dir / "run.json") as file:
                file.write(json.dumps(content, indent=1).encode())
            # Tasks that start at once do not meet half way.
            (self.state_dir / "run.json").replace(self.shared / "run.json")
        except OSError as error:
            raise self._refused(error, self.shown) from error

    def shared_file(self, name: str) -> Path | None:
        """A file of the whole destination in DST/.vidprep, as it is now; None where it is not there."""
        path = self.shared / name
        return path if os.path.lexists(path) else None

    def create_shared(self, name: str, data: bytes) -> None:
        """Write one of those, all at once, where it is not there: of several tasks one does. Raises DestinationError."""
        path, own = self.shared / name, self.shared / f".{name}.{self.state_dir.name}.partial"
        try:
            remove_file(own)
            with os.fdopen(open_unlinked(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(own, path)
            except FileExistsError:
                pass
            except OSError:
                # Where there are no links, two tasks at once may each write it, and `vidprep merge` sees that they differ.
                if not path.exists():
                    own.replace(path)
            own.unlink(missing_ok=True)
        except OSError as error:
            raise self._refused(error, path) from error

    def remove_shared(self, *names: str) -> None:
        for name in names:
            remove_file(self.shared / name)

    def write_own(self, name: str, data: bytes) -> None:
        """A file beside the journal. Raises DestinationError."""
        try:
            with replacing(self.state_dir / name) as file:
                file.write(data)
        except OSError as error:
            raise self._refused(error, self.state_dir / name) from error

    def remove_own(self, name: str) -> None:
        remove_file(self.state_dir / name)

    def recover(self) -> int:
        """After a kill: outputs that were proven and journalled get their names; other partial files go.

        Returns how many outputs were given their names.
        """
        named = 0
        waiting = {path.stem[:PARTIAL_LETTERS]: path for path in self.partials.iterdir()}
        for row in self.journal.rows():
            partial = waiting.get(_partial_name(row.id))
            if partial is not None and row.ok and is_regular(partial) and sha256_of(partial) == row.sha256:
                with suppress(DestinationError):  # then it is made again, and its row says why it cannot be
                    self.publish(row, partial)
                    named += 1
        self.remove_leftovers()
        return named

    def remove_leftovers(self) -> None:
        """What nobody works on any more, of workers that were killed."""
        for leftover in self.partials.iterdir():
            with suppress(OSError):
                leftover.unlink()
        names = (f".{self.part.manifest_name}.partial",) if self.part else self.torn
        for torn in [path for name in names for path in self.root.glob(name)] + [*self.state_dir.glob(".*.partial")]:
            remove_file(torn)

    def plan_labels(
        self, labels: Labels, moved: Mapping[str, str], removed: Sequence[str], drawing: Drawing | None, *, are_all: bool,
        starts_over: bool = False,
    ) -> PlannedLabels:  # fmt: skip
        """Return the labels that these units will have, and what that changes. Columns that are not given stay as they are: forgetting an
        option must not remove labels, and `vidprep label --remove` does.

        Args:
            labels: Of all units that are listed.
            moved: What a unit was called before.
            removed: Units that go.
            drawing: How their splits are drawn.
            are_all: Whether there are no other sources.
            starts_over: Keep no other columns.

        Raises:
            SourceError: Values of units that are not listed would have to change with theirs.
        """
        from vidprep.formats.manifest.labels import CLASS_LABEL, SPLIT_LABEL, differing, fitted, values_of

        kept = label_columns(self.root)
        if not kept.columns and not labels.columns and drawing is None:
            return PlannedLabels(labels)
        before = replace(kept.taken([moved.get(id_, id_) for id_ in labels.ids]), ids=labels.ids)
        if (
            drawing is not None
            and CLASS_LABEL in before.columns
            and CLASS_LABEL not in labels.columns
            and not starts_over
        ):
            drawing = replace(drawing, classes=values_of(before.columns[CLASS_LABEL]))
        given = labels if drawing is None else drawing.filled(labels, before)
        stay = [] if starts_over else sorted(kept.columns.keys() - given.columns.keys())
        rule = kept.split_rule if SPLIT_LABEL in stay else given.split_rule
        given = replace(given, columns={**given.columns, **before.chosen(stay).columns}, split_rule=rule)
        listed = {*labels.ids, *moved.values(), *removed}
        others = kept.taken([id_ for id_ in kept.ids if id_ not in listed])
        given = fitted(given, others) if others.ids else given
        if not are_all and others.ids and drawing and kept.split_rule not in ("", given.split_rule):
            raise SourceError(
                "--split-by draws other splits than before here; give all sources, so that all are drawn anew"
            )
        there = before.taken([id_ for id_ in labels.ids if moved.get(id_, id_) in kept.places])
        changed = differing(there, given)
        types = ({name: array.type for name, array in each.columns.items()} for each in (kept, given))
        # The manifest of a part begins without any.
        is_new = bool(changed or moved or self.part) or len(there.ids) < len(labels.ids) or operator.ne(*types)
        splits = [] if drawing is None else differing(there.chosen([SPLIT_LABEL]), given.chosen([SPLIT_LABEL]))
        other = {id_: (there.of(id_).get(SPLIT_LABEL), given.of(id_)[SPLIT_LABEL]) for id_ in sorted(splits)}
        moves = {id_: (old, new) for id_, (old, new) in other.items() if old is not None}
        without = len(labels.ids) - len(there.ids)
        return PlannedLabels(given, changed, stay, without, moves, is_new or kept.split_rule != given.split_rule)

    def take_labels(self, planned: PlannedLabels) -> None:
        """Write these labels into the manifest when it is written next."""
        if planned.is_new:
            self.give_labels(planned.given)
        self._labels = planned.given

    def give_labels(self, labels: Labels) -> None:
        """These are to be in the manifest when it is written next. Raises DestinationError."""
        self.write_own(GIVEN_LABELS_NAME, labels.as_bytes())
        self._given = self._labels = labels

    def forget_labels(self) -> None:
        """What was given and is not yet in the manifest is not to be there."""
        self.remove_own(GIVEN_LABELS_NAME)
        self._given = self._labels = None

    def given_labels(self) -> Labels | None:
        """Those that the manifest is to have and may not have yet."""
        if self._given is None and (self.state_dir / GIVEN_LABELS_NAME).exists():
            from vidprep.formats.manifest.labels import read_labels

            self._given = read_labels(self.state_dir / GIVEN_LABELS_NAME)
        return self._given

    def labels_of(self, id_: str) -> dict[str, Any]:
        """Those that a unit has, or is given."""
        labels = self._labels or self.given_labels()
        return {} if labels is None else labels.of(id_)

    def move(self, row: ManifestRow, before: ManifestRow) -> None:
        """Name an output as its source is called now. row: of the unit under its new name. Raises DestinationError, OSError."""
        partial = self.partial(row.id, Path(row.file_name).suffix.removeprefix("."))
        remove_file(partial)
        with folder_of(self.root, before.file_name) as (folder, name):
            try:
                os.link(name, partial, src_dir_fd=folder)
            except OSError:  # a file system without links
                shutil.copyfile(self.root / before.file_name, partial)
        self.journal.append(removed(before, self.run), row)
        self.publish(row, partial)

    def holds(self, unit: KnownUnit, file_name: str, /) -> bool:
        """Whether the output of a unit is there, as its row says, under the name that it would be given now."""
        try:
            there = os.stat(f"{self.root}/{unit.file_name}").st_size  # noqa: PTH116 (a million times)
        except OSError:
            return False
        return unit.file_name == file_name and there == unit.size_bytes

    def place(self, row: ManifestRow, partial: Path, /) -> None:
        """Before the row is journalled: nothing to do, as an output is found by its partial name."""

    def publish(self, row: ManifestRow, partial: Path, /) -> None:
        """Give a proven output its final name. Raises DestinationError, OSError when the disk is full."""
        try:
            # A path that is too long could be made from here, and never be opened.
            with suppress(FileNotFoundError, NotADirectoryError):
                os.lstat(self.root / row.file_name)
            with folder_of(self.root, row.file_name, make=True) as (folder, name):
                os.replace(partial, name, dst_dir_fd=folder)
        except OSError as error:
            if is_disk_full(error):
                raise
            why = f"{error.path} {error.message}" if isinstance(error, DestinationError) else error.strerror
            raise DestinationError(f"{row.file_name} cannot be written: {why}", stage="write") from error

    def remove_output(self, file_name: str, /) -> None:
        """Remove what a unit was before, under a name that it has no more."""
        with suppress(OSError):
            remove_below(self.root, file_name)

    def clear_other_stores(self, settings: RunSettings) -> None:
        """Before all is made anew: take away what runs of another layout made here. Raises DestinationError, ManifestError."""
        from vidprep.formats.stores.registry import ENCODED
        from vidprep.transcode.destination.other_stores import forget_rows_of_others, left_by_others

        kept = settings.frames.store if settings.frames else ENCODED
        self._remove(left_by_others(self.root, self.journal, self._names(), kept))
        self._remove(forget_rows_of_others(self.root, self.journal, kept))

    def _names(self) -> list[str]:
        """What lies in the folder itself."""
        return os.listdir(self.root)  # noqa: PTH208

    def _remove(self, file_names: list[str]) -> None:
        """Files, and the folders in which nothing is left. Raises DestinationError for what is a link or no file."""
        for path in (self.root / name for name in file_names if "/" not in name):
            if os.path.lexists(path) and not is_regular(path):
                raise DestinationError(IS_A_LINK if path.is_symlink() else NOT_REGULAR, path=path)
        for name in file_names:
            remove_below(self.root, name)

    def check_opens(self) -> None:
        """Nothing was to do: does what stands here open? Raises StoreError."""
        from vidprep.formats.stores.registry import open_store

        if not self.part and self.manifest.exists():
            open_store(self.root)

    def finish(self, *, is_complete: bool = True) -> None:  # noqa: ARG002
        """The end of a run. is_complete: all that was to be done was done."""
        self.merge_journal()

    def take_up(self) -> None:
        """What a task of an array run left when it was killed."""
        if self.state_dir.is_dir():
            self.partials.mkdir(exist_ok=True)
            self.recover()
            self.merge_journal()

    def fetch_array_plan(self) -> None:
        """Have what `account` reads where it reads it: it is there."""

    def forget_parts(self, parts: Sequence[Partition]) -> None:
        """All of them are joined. Before anything else their plans go: without one nobody asks for the end of a part."""
        for part in parts:
            remove_file(self.shared / part.state_dir_name / PART_PLAN_NAME)
            remove_file(self.root / part.manifest_name)
        for state_dir in self.shared.glob("part-*"):
            shutil.rmtree(state_dir, ignore_errors=True)

    def put_plan_away(self, *, is_done: bool) -> None:
        """What is left of the plan of an array run is for tasks that did not finish."""
        if is_done:
            self.remove_shared(MERGED_PLAN_NAME, PLAN_NAME)
        elif (plan := self.shared / PLAN_NAME).exists():
            plan.replace(self.shared / MERGED_PLAN_NAME)

    def has(self, _row: ManifestRow) -> bool:
        """Whether what a row of a part names is there: a task that was killed may have told of a shard that never came."""
        return True

    def of_part(self, part: Partition) -> Destination:
        """What a task of an array run left in the folder of this one."""
        return Destination(self.root, part)

    def merge_journal(self) -> None:
        """Journal into manifest; whichever of the two steps is interrupted, the next run does it again."""
        labels = self.given_labels()
        if not self.journal.path.exists() and (labels is None or (self.part and not self.manifest.exists())):
            return
        kept: pa.Table | None = read_table(self.root, only=self.manifest)
        self.write_manifest(kept, self.journal.rows(), labels)
        self.note_manifest()
        if gone := {row.id: row.file_name for row in self.journal.rows() if row.status == REMOVED}:
            known = self.known_units()
            named = {unit.file_name for unit in known.values()}
            for id_ in gone.keys() - known.keys():
                if gone[id_] not in named:
                    self.remove_output(gone[id_])
        self.journal.clear()
        if not self.part:  # what a part has not made itself, `vidprep merge` gives its labels
            self.remove_own(GIVEN_LABELS_NAME)
        self._given = None

    def write_manifest(self, kept: pa.Table | None, rows: Iterable[ManifestRow], labels: Labels | None = None) -> None:
        """As `write_rows`. Raises TakenOverError too."""
        self.check_held()
        write_rows(self.manifest, kept, rows, labels=labels, fence=self.fence)

    @property
    def disk(self) -> str:
        """The folder whose room is used, in messages."""
        return self.shown

    def free_bytes(self) -> int:
        """Free bytes on the device that the folder is, or will be, on."""
        return shutil.disk_usage(self._there).free

    @property
    def _there(self) -> Path:
        place = self.root
        while not place.exists():
            place = place.parent
        return place

    def room(self) -> str:
        """What is left on that device, in words."""
        disk = os.statvfs(self._there)
        if disk.f_files and not disk.f_favail:
            return f"it can hold no more files (all {disk.f_files} inodes are taken)"
        return f"{self.free_bytes()} bytes are free"


def _lease_written(path: Path) -> int:
    """The lease that the manifest was written under. Raises DestinationError."""
    try:
        return int(read_json(path, WRITTEN_BYTES_MAX)["lease"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DestinationError(
            f"cannot be read ({error}); remove it, or --overwrite, of all sources, starts over", path=path
        ) from error


def _partial_name(unit_id: str) -> str:
    return hashlib.sha256(unit_id.encode()).hexdigest()[:PARTIAL_LETTERS]
