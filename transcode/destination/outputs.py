"""Outputs of a destination: one file per video, or parts of shards, of frames or of videos.

Only the parent process writes shards. A unit is appended, then its row is journalled, then its partial file is removed.
Bytes that a kill leaves after the last unit with a row are dead, and so is a unit that was made again, as its new row
names another shard. When a run ends, compaction removes dead bytes: it copies live units to new shards, the manifest
and the index then name these, and only then the old shards are removed. Behind a URL one shard at a time is local; it
is uploaded when it is complete.
"""

from __future__ import annotations

import io
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from vidprep.formats.errors import DestinationError
from vidprep.formats.manifest.row import ManifestRow, Recorded, removal_row
from vidprep.formats.manifest.table import manifest_rows, read_rows
from vidprep.formats.storage.local import first_link, is_disk_full, is_regular, sha256_of
from vidprep.formats.stores.registry import layout_of
from vidprep.formats.stores.shards import ShardWriter, shuffle_ids
from vidprep.transcode.destination._gop_index import refuse_index, write_index
from vidprep.transcode.destination.destination import PARTIAL_LETTERS, Destination, partial_stem
from vidprep.transcode.destination.run_file import KnownUnit, read_run
from vidprep.transcode.settings.output import Output, VideoOutput

MOVED_AT_ONCE = 16_384  # rows in memory


class Files:
    """One file per video. A verified output is journalled before it is renamed, so that every output has a row."""

    torn: tuple[str, ...] = ()
    is_put_by_workers = True

    def __init__(self, place: Destination) -> None:
        self._place, self._storage = place, place.storage

    def holds(self, unit: KnownUnit, file_name: str) -> bool:
        return unit.file_name == file_name and self._storage.size(file_name) == unit.size_bytes is not None

    def has(self, _row: ManifestRow) -> bool:
        return True

    def has_foreign(self, file_name: str) -> bool:
        """Return whether a file without a row has this name. Lost lines of the journal, or other partitions, may also have
        made it.
        """
        place = self._place
        if place.part is not None or place.journal.unreadable or self._storage.is_remote:
            return False
        if first_link(place.root, file_name):
            return False
        return os.path.isfile(place.root / file_name)  # noqa: PTH113 (a name that is too long is no file)

    def check_folder(self) -> None:
        """Raise DestinationError for an index of others; each video is checked before it is replaced."""
        refuse_index(self._place)

    def prepare(self, row: ManifestRow, partial: Path) -> ManifestRow:  # noqa: ARG002
        """Return the row unchanged: the output is found by its partial name."""
        return row

    def publish(self, row: ManifestRow, partial: Path) -> None:
        """Rename an output to its final name. Behind a URL the worker has uploaded it already."""
        if self._storage.is_remote:
            return
        try:
            self._storage.publish(partial, row.file_name)
        except OSError as error:
            if is_disk_full(error):
                raise
            why = f"{error.path} {error.message}" if isinstance(error, DestinationError) else error.strerror
            raise DestinationError(f"{row.file_name} cannot be written: {why}", stage="write") from error

    def move(self, row: ManifestRow, before: ManifestRow) -> None:
        place = self._place
        if self._storage.is_remote:
            self._storage.copy(before.file_name, row.file_name)
            place.journal.append(removal_row(before, place.run), row)
            return
        partial = place.partial(row.id, Path(row.file_name).suffix.removeprefix("."))
        self._storage.copy(before.file_name, str(partial.relative_to(place.root)))
        place.journal.append(removal_row(before, place.run), row)
        self.publish(row, partial)

    def remove(self, file_name: str) -> None:
        with nullcontext() if self._storage.is_remote else suppress(OSError):
            self._storage.remove(file_name)

    def recover(self) -> int:
        """Rename outputs that were verified and journalled, and remove other partial files. Return how many were renamed."""
        place, named = self._place, 0
        waiting = {path.stem[:PARTIAL_LETTERS]: path for path in place.partials.iterdir()}
        for row in place.journal.rows():
            partial = waiting.get(partial_stem(row.id))
            if partial is not None and row.ok and is_regular(partial) and sha256_of(partial) == row.sha256:
                with suppress(DestinationError):  # then it is made again, and its row gets the error
                    self.publish(row, partial)
                    named += 1
        place.remove_leftovers()
        return named

    def relabel(self) -> None:
        """Do nothing: labels are only in the manifest."""

    def write_gops(self, rows: Iterable[ManifestRow]) -> None:
        write_index(self._place, rows)

    def finish(self, *, is_complete: bool) -> None:
        """Do nothing."""


DEAD_SHARE_MAX = 0.25
SMALL_SHARE = 0.25  # share of a shard's size
SMALL_SHARDS_MAX = 8


@dataclass(frozen=True, slots=True)
class Compacted:
    """Result of `compact`.

    Attributes:
        shards: Number of rewritten shards
        dead_bytes: Number of freed bytes
    """

    shards: int
    dead_bytes: int


@dataclass(frozen=True)
class ShardSizes:
    """Sizes of existing shards, and of their units that rows name."""

    there: Mapping[str, int]
    alive: Mapping[str, int]
    tail: int

    @property
    def named(self) -> set[str]:
        return self.there.keys() & self.alive.keys()

    def dead(self, name: str) -> int:
        """Return the number of bytes of a shard that no row refers to."""
        return self.there[name] - self.alive.get(name, 0) - self.tail

    def small(self, shard_bytes: int) -> set[str]:
        return {name for name in self.named if self.alive[name] < SMALL_SHARE * shard_bytes}


class Shards:
    """Units in shards."""

    is_put_by_workers = False

    def __init__(self, place: Destination, options: Output) -> None:
        self._place, self._storage, self._options = place, place.storage, options
        self._layout = layout_of(options.store_kind)
        self.torn = tuple(f".{name}.partial" for name in self._layout.index_files)
        self._kept_writer: ShardWriter | None = None
        self._there: dict[str, int] | None = None

    def sizes(self) -> dict[str, int]:
        """Return the size of each shard by name. Raises DestinationError for a link or a special file."""
        return self._storage.list(self._layout.is_shard)

    def has(self, row: ManifestRow) -> bool:
        return not row.ok or self.holds(row, row.file_name)

    def holds(self, unit: KnownUnit | ManifestRow, file_name: str) -> bool:  # noqa: ARG002
        if unit.offset is None or unit.stored_bytes is None:
            return False
        if self._there is None:
            self._there = self.sizes()
        return self._there.get(unit.file_name, 0) >= unit.offset + unit.stored_bytes

    def has_foreign(self, file_name: str) -> bool:  # noqa: ARG002
        """Return False: outputs go into shards, whose names no other file has."""
        return False

    def check_folder(self) -> None:
        refuse_index(self._place)
        if name := min(self.sizes(), default=None):
            raise DestinationError(
                f"holds {name}, which no run of vidprep wrote; take another folder", path=self._place.shown
            )

    def recover(self) -> int:
        """Remove partial files of killed workers. Return 0: shards need no repair after a kill."""
        self._place.remove_leftovers()
        self._there = self.sizes() if self._place.part is None else None
        return 0

    # ------------------------------------------------------------------------------------------- one unit

    @property
    def _writer(self) -> ShardWriter:
        if self._kept_writer is None:
            place = self._place
            self._kept_writer = ShardWriter(place.root, self._layout, self._options.shard_bytes, place.run)
        return self._kept_writer

    def prepare(self, row: ManifestRow, partial: Path) -> ManifestRow:
        row = row.record(Recorded(labels=self._place.labels.values_of(row.id)))
        with partial.open("rb") as frames:
            row = row.record(self._writer.append(row, frames))
        self._put_whole()
        return row

    def publish(self, row: ManifestRow, partial: Path) -> None:  # noqa: ARG002
        partial.unlink()

    def _put_whole(self, *, closes: bool = False) -> None:
        """Upload complete shards. A failed upload is retried with the next one."""
        if self._kept_writer is None:
            return
        if closes:
            self._kept_writer.close()
        for name in list(self._kept_writer.whole):
            self._place.check_held()
            self._storage.publish(self._place.root / name, name)
            self._kept_writer.whole.remove(name)

    def move(self, row: ManifestRow, before: ManifestRow) -> None:
        """Journal the row under its new id. The frames stay where they are, unless shards contain ids and labels: then the
        unit is written again.
        """
        if self._layout.holds_labels:
            row = self._write_again(row)
        self._place.journal.append(removal_row(before, self._place.run), row)

    def remove(self, file_name: str) -> None:
        """Do nothing: an old version of a unit stays in its shard until the run ends."""

    def _write_again(self, row: ManifestRow) -> ManifestRow:
        """Copy a unit to a shard of this run with its current name and labels; return its row."""
        row = row.record(Recorded(run=self._place.run, labels=self._place.labels.values_of(row.id)))
        stored, begin = b"".join(self._read_unit(row)), row.offset or 0
        places = self._layout.payload(row)
        frames = b"".join(stored[offset - begin : offset - begin + size] for offset, size in places)
        row = row.record(self._writer.append(row, io.BytesIO(frames)))
        self._put_whole()
        return row

    def _read_unit(self, row: ManifestRow) -> Iterator[bytes]:
        """Return the bytes of a unit in its shard. Raises OSError."""
        assert row.offset is not None and row.stored_bytes is not None
        return self._storage.read_range(row.file_name, row.offset, row.stored_bytes)

    # ------------------------------------------------------------------------------------------- all of them

    def write_gops(self, rows: Iterable[ManifestRow]) -> None:
        if isinstance(self._options, VideoOutput):
            write_index(self._place, rows)

    def relabel(self) -> None:
        """Rewrite units whose labels changed, if shards contain labels."""
        place, labels = self._place, self._place.labels.read_given()
        if self._layout.holds_labels and labels is not None:
            written = {row.id for row in place.journal.rows()}
            for row in manifest_rows(place.root):
                is_given = row.ok and row.id in labels.places and row.id not in written
                if is_given and _stringify(row.labels) != _stringify(labels.values_of(row.id)):
                    place.journal.append(self._write_again(row))
        self._put_whole(closes=True)

    def finish(self, *, is_complete: bool) -> None:
        """Remove dead bytes and write the index; if the run is stopped here, the next one does it.

        The index is written even if nothing else was done, because it may be missing or damaged. A partition leaves
        dead bytes and index to `vidprep merge`.
        """
        if self._place.part is not None or not self._place.manifest.exists():
            return
        if self._place.is_manifest_lost and not is_complete:
            self._write_index()  # units of a lost manifest stay until they are made again
        else:
            sizes = self._measure()
            self._replace(sizes, self._due(sizes) if is_complete else set())

    def compact(self) -> Compacted:
        """Rewrite shards with dead bytes, and join small ones. Raises ManifestError, DestinationError, OSError."""
        self._place.merge_journal()
        sizes = self._measure()
        chosen = {name for name in sizes.named if sizes.dead(name) > 0}
        if len(small := sizes.small(self._options.shard_bytes)) > 1:
            chosen |= small
        gone = self._replace(sizes, chosen)
        return Compacted(len(chosen), sum(map(sizes.dead, gone)))

    def _measure(self) -> ShardSizes:
        return ShardSizes(self.sizes(), _alive_bytes(self._place.root), len(self._layout.tail))

    def _due(self, sizes: ShardSizes) -> set[str]:
        """Return shards with too many dead bytes, and small shards if there are many."""
        allowed = 0.0 if self._layout.shows_dead_bytes else DEAD_SHARE_MAX
        due = {name for name in sizes.named if sizes.dead(name) > allowed * sizes.there[name]}
        due |= {name for name in self._last_of_runs(sizes) if not self._has_tail(name, sizes.there[name])}
        small = sizes.small(self._options.shard_bytes)
        return due | (small if len(small) > max(SMALL_SHARDS_MAX, len(sizes.alive) // 2) else set())

    def _last_of_runs(self, sizes: ShardSizes) -> set[str]:
        """Return the shard of each run that may have no tail, because the run was killed. Only whole ones are uploaded."""
        if not self._layout.tail or self._storage.is_remote:
            return set()
        return {*{name.rpartition("-")[0]: name for name in sorted(sizes.named)}.values()}

    def _has_tail(self, name: str, size: int) -> bool:
        """Return whether a shard of this size ends with its tail, and not with a part of a unit that is as long."""
        tail = self._layout.tail
        with (self._place.root / name).open("rb") as file:
            file.seek(max(0, size - len(tail)))
            return file.read() == tail

    def _replace(self, sizes: ShardSizes, chosen: set[str]) -> set[str]:
        """Rewrite these shards and remove all shards without a row; return their names.

        At any moment the manifest and the index name existing shards.
        """
        self._move_units(chosen)
        self._write_index()
        unnamed = sizes.there.keys() - (_alive_bytes(self._place.root) if chosen else sizes.alive).keys()
        if unnamed:
            self._remove_shards(unnamed)
        return unnamed

    def _move_units(self, names: set[str]) -> None:
        """Copy the units of some shards to shards of this run, and write a manifest that names these."""
        if not names:
            return
        units = read_rows(self._place.root, _StoredUnit)
        ids = shuffle_ids(unit.id for unit in units if unit.status == "ok" and unit.file_name in names)
        for first in range(0, len(ids), MOVED_AT_ONCE):
            some = ids[first : first + MOVED_AT_ONCE]
            rows = {row.id: row for row in manifest_rows(self._place.root, set(some))}
            for id_ in some:
                place = self._writer.copy(rows[id_], self._read_unit(rows[id_]))
                self._put_whole()
                self._place.journal.append(rows[id_].record(replace(place, run=self._place.run)))
        self._place.merge_journal()

    def _write_index(self) -> None:
        """Write the index to the storage. The current index JSON is fetched first, so that the new one can name both
        indexes.
        """
        root = self._place.root
        self._place.check_held()
        self._storage.local(f"{self._layout.name}.json")
        for path in self._layout.write_index(root, _good_rows(self._place.root), read_run(self._place.shared)):
            self._storage.push(path.name)

    def _remove_shards(self, names: Iterable[str]) -> None:
        """Remove unused shards, after manifest and index without them are durable."""
        self._place.check_held()
        folder = os.open(self._place.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        gone = [file for name in sorted(names) for file in (*self._layout.sidecars(name), name)]
        self._storage.remove(*gone)


class _StoredUnit(NamedTuple):
    """Columns of a row with its place in a shard."""

    id: str
    status: str
    file_name: str
    stored_bytes: int | None


def _alive_bytes(root: Path) -> dict[str, int]:
    """Return how many bytes of each shard rows name."""
    alive: dict[str, int] = defaultdict(int)
    for row in read_rows(root, _StoredUnit):
        if row.status == "ok":
            alive[row.file_name] += row.stored_bytes or 0
    return dict(alive)


def _good_rows(root: Path) -> Iterator[ManifestRow]:
    return (row for row in manifest_rows(root) if row.ok)


def _stringify(labels: Mapping[str, Any]) -> str:
    return repr({name: value for name, value in sorted(labels.items()) if value is not None})
