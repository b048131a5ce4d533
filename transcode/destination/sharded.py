"""A destination whose units stand in shards: appended whole when they are proven, indexed when the run ends.

The parent alone writes shards. A unit is appended, then its row is journalled, then its partial file goes. What a kill leaves in a
shard behind the last unit with a row is dead bytes, and so is a unit that was made again: its new row names another shard. Dead
bytes go when a run ends by compaction, which copies what is alive into shards of that run. The manifest and the index then name
those, and only then the old ones are removed.
"""

from __future__ import annotations

import io
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidprep.formats.errors import DestinationError
from vidprep.formats.files.no_links import IS_A_LINK, NOT_REGULAR, is_regular
from vidprep.formats.files.untrusted import open_regular
from vidprep.formats.manifest.row import removed
from vidprep.formats.manifest.table import ManifestRow, manifest_paths, manifest_rows, read_table, with_columns
from vidprep.formats.stores.registry import layout_of
from vidprep.formats.stores.shards import ShardWriter, span
from vidprep.transcode.destination.folder import WRITTEN_NAME, Destination
from vidprep.transcode.destination.known_units import KnownUnit
from vidprep.transcode.destination.partition import Partition
from vidprep.transcode.destination.run_file import read_run
from vidprep.transcode.settings.options import FrameOptions
from vidprep.transcode.settings.run import RunSettings

DEAD_SHARE_MAX = 0.25
SMALL_SHARE = 0.25  # of the size of a shard
SMALL_SHARDS_MAX = 8
PLACE_COLUMNS = ["status", "file_name", "stored_bytes"]


@dataclass(frozen=True, slots=True)
class Compacted:
    """What `compact` did.

    Attributes:
        shards: Shards that were rewritten.
        dead_bytes: Bytes that this freed.
    """

    shards: int
    dead_bytes: int


class ShardedDestination(Destination):
    """Shards and their index in a folder."""

    def __init__(self, root: Path, options: FrameOptions, part: Partition | None = None) -> None:
        super().__init__(root, part)
        self._options, self._layout = options, layout_of(options.store)
        self.torn = (*Destination.torn, *(f".{name}.partial" for name in self._layout.index_files))
        self._kept_writer: ShardWriter | None = None
        self._sizes: dict[str, int] | None = None

    def of_part(self, part: Partition) -> Destination:
        return ShardedDestination(self.root, self._options, part)

    def shards(self) -> dict[str, int]:
        """Bytes of each shard that is there, by name. Raises DestinationError for one that is a link, or no regular file."""
        if not self.root.is_dir():
            return {}
        found = {}
        for path in (path for path in self.root.iterdir() if self._layout.is_shard(path.name)):
            if not is_regular(path):
                raise DestinationError(IS_A_LINK if path.is_symlink() else NOT_REGULAR, path=path)
            found[path.name] = path.stat().st_size
        return found

    def has_foreign(self, _file_name: str) -> bool:
        """Outputs go into shards, whose names no other file has."""
        return False

    def holds(self, unit: KnownUnit, _file_name: str) -> bool:
        return self._is_there(unit)

    def _is_there(self, unit: KnownUnit | ManifestRow) -> bool:
        if unit.offset is None or unit.stored_bytes is None:
            return False
        if self._sizes is None:
            self._sizes = self.shards()
        return self._sizes.get(unit.file_name, 0) >= unit.offset + unit.stored_bytes

    def check_settings(self, settings: RunSettings, *, overwrite: bool) -> None:
        """Also refuse a folder that holds files of these names that are not ours. Raises DestinationError."""
        super().check_settings(settings, overwrite=overwrite)
        if any((self.shared / name).exists() for name in ("run.json", WRITTEN_NAME)) or manifest_paths(self.root):
            return
        if name := min(self.shards(), default=None):
            raise DestinationError(f"holds {name}, which no run of vidprep wrote; take another folder", path=self.shown)

    def recover(self) -> int:
        """After a kill: shards stay as they are. Nothing is named anew, so 0. Raises DestinationError as `shards`."""
        self.remove_leftovers()
        self._sizes = self.shards()
        return 0

    @property
    def _writer(self) -> ShardWriter:
        if self._kept_writer is None:
            shard_bytes = self._options.shard_bytes
            self._kept_writer = ShardWriter(self.root, self._layout, shard_bytes, self.run)
        return self._kept_writer

    def keep_shards(self) -> None:
        """Of those that this run has written, some may be whole by now: they stand in their place."""

    def place(self, row: ManifestRow, partial: Path) -> None:
        row.labels = self.labels_of(row.id)
        with partial.open("rb") as frames:
            self._writer.append(row, frames)
        self.keep_shards()

    def move(self, row: ManifestRow, before: ManifestRow) -> None:
        """The frames stay where they are, but in a layout that names them by the id."""
        if self._layout.holds_labels:
            self._write_again(row)
        self.journal.append(removed(before, self.run), row)

    def merge_journal(self) -> None:
        """Where shards hold labels, what has other ones now is written again first."""
        if self._layout.holds_labels and (labels := self.given_labels()) is not None:
            written = {row.id for row in self.journal.rows()}
            for row in manifest_rows(self.root):
                is_given = row.ok and row.id in labels.places and row.id not in written
                if is_given and _stated(row.labels) != _stated(labels.of(row.id)):
                    self._write_again(row)
                    row.run = self.run
                    self.journal.append(row)
            self._close_shard()
        super().merge_journal()

    def _write_again(self, row: ManifestRow) -> None:
        """Put a unit into a shard of this run with its name and labels of now; its row says where."""
        row.labels = self.labels_of(row.id)
        stored, begin = b"".join(self.stored(row)), row.offset or 0
        places = zip(self._layout.offsets(row), row.frame_sizes or (), strict=True)
        frames = b"".join(stored[offset - begin : offset - begin + size] for offset, size in places)
        self._writer.append(row, io.BytesIO(frames))
        self.keep_shards()

    def _close_shard(self) -> None:
        if self._kept_writer is not None:
            self._kept_writer.close()
            self.keep_shards()

    def has(self, row: ManifestRow) -> bool:
        return not row.ok or self._is_there(row)

    def publish(self, _row: ManifestRow, partial: Path) -> None:
        partial.unlink()

    def remove_output(self, _file_name: str) -> None:
        """What a unit was before stays in its shard until the run ends."""

    def finish(self, *, is_complete: bool = True) -> None:
        """Journal into manifest, dead bytes away, and the index; a run that is stopped in here leaves it to the next.

        The index is written anew when nothing else was to do, too: it may have been lost or damaged. A part leaves dead bytes
        and index to `vidprep merge`.
        """
        self._close_shard()
        self.merge_journal()
        if self.part is None and self.manifest.exists():
            sizes, alive = self.shards(), self._alive_bytes()
            if self.is_manifest_lost and not is_complete:
                self._write_index()  # and what a lost manifest named stays until it is made again
            else:
                self._replace(sizes, alive, self._due(sizes, alive) if is_complete else set())

    def compact(self) -> Compacted:
        """Write the shards anew that have dead bytes, and small ones together. Raises ManifestError, DestinationError, OSError."""
        self.merge_journal()
        sizes, alive = self.shards(), self._alive_bytes()
        chosen = {name for name in alive.keys() & sizes.keys() if self._dead_bytes(sizes, alive, name) > 0}
        if len(small := self._small(sizes, alive)) > 1:
            chosen |= small
        removed = self._replace(sizes, alive, chosen)
        return Compacted(len(chosen), sum(self._dead_bytes(sizes, alive, name) for name in removed))

    def _due(self, sizes: Mapping[str, int], alive: Mapping[str, int]) -> set[str]:
        """The shards that have too many dead bytes, and the small ones where most are."""
        allowed = 0.0 if self._layout.shows_dead_bytes else DEAD_SHARE_MAX
        there = alive.keys() & sizes.keys()
        due = {name for name in there if self._dead_bytes(sizes, alive, name) > allowed * sizes[name]}
        small = self._small(sizes, alive)
        return due | (small if len(small) > max(SMALL_SHARDS_MAX, len(alive) // 2) else set())

    def _dead_bytes(self, sizes: Mapping[str, int], alive: Mapping[str, int], name: str) -> int:
        return sizes[name] - alive.get(name, 0) - len(self._layout.tail)

    def _small(self, sizes: Mapping[str, int], alive: Mapping[str, int]) -> set[str]:
        return {name for name in alive.keys() & sizes.keys() if alive[name] < SMALL_SHARE * self._options.shard_bytes}

    def _replace(self, sizes: Mapping[str, int], alive: Mapping[str, int], chosen: set[str]) -> set[str]:
        """Write these shards anew, and remove all that no row names then; returns the names of those.

        Whatever moment it is stopped at, the manifest and the index each name shards that are there.
        """
        self._move(chosen)
        self._write_index()
        unnamed = sizes.keys() - (self._alive_bytes() if chosen else alive).keys()
        if unnamed:
            self._remove_shards(unnamed)
        return unnamed

    def _alive_bytes(self) -> dict[str, int]:
        """Of the shards that rows name."""
        alive: dict[str, int] = defaultdict(int)
        table = read_table(self.root, PLACE_COLUMNS)
        if table is not None:
            columns = (with_columns(table, PLACE_COLUMNS)[name].to_pylist() for name in PLACE_COLUMNS)
            for status, name, size in zip(*columns, strict=True):
                if status == "ok":
                    alive[name] += size or 0
        return dict(alive)

    def _move(self, names: set[str]) -> None:
        """Copy the units of some shards into shards of this run, and let the manifest name those."""
        if not names:
            return
        for row in self._good_rows():
            if row.file_name in names:
                self._writer.copy(row, self.stored(row))
                row.run = self.run
                self.keep_shards()
                self.journal.append(row)
        self._close_shard()
        self.merge_journal()

    def stored(self, row: ManifestRow) -> Iterator[bytes]:
        """The bytes of a unit in its shard. Raises OSError."""
        assert row.offset is not None and row.stored_bytes is not None
        with open_regular(self.root / row.file_name) as shard:
            yield from span(shard, row.offset, row.stored_bytes)

    def _good_rows(self) -> Iterator[ManifestRow]:
        return (row for row in manifest_rows(self.root) if row.ok)

    def _write_index(self) -> None:
        self.check_held()
        for path in self._layout.write_index(self.root, self._good_rows(), self._about()):
            self.keep_index(path)

    def _about(self) -> Mapping[str, object]:
        return read_run(self.shared)

    def keep_index(self, path: Path) -> None:
        """A file of the index is written: nothing is to be done where it stands in its place."""

    def _remove_shards(self, names: Iterable[str]) -> None:
        """What the manifest and the index that name them no more are on the disk."""
        self.check_held()
        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._remove([file for name in sorted(names) for file in (*self._layout.sidecars(name), name)])


def _stated(labels: Mapping[str, Any]) -> str:
    return repr({name: value for name, value in sorted(labels.items()) if value is not None})
