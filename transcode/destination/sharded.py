"""A destination whose units stand in shards: appended whole when they are proven, indexed when the run ends.

The parent alone writes shards. A unit is appended, then its row is journalled, then its partial file goes: a kill
between the first two leaves bytes that no row points at, which the next run cuts off.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from vidprep.formats.errors import DestinationError
from vidprep.formats.files.no_links import is_regular
from vidprep.formats.manifest.table import ManifestRow, read_manifest
from vidprep.formats.stores.registry import layout_of
from vidprep.formats.stores.shards import Shards
from vidprep.transcode.destination.folder import Destination, KnownUnit
from vidprep.transcode.destination.partition import Part
from vidprep.transcode.destination.run_file import read_run
from vidprep.transcode.settings.options import FrameOptions
from vidprep.transcode.settings.run import RunSettings


class PackedDestination(Destination):
    """Shards and their index in a folder."""

    torn = (*Destination.torn, ".index.parquet.partial", ".*.json.partial", ".meta_*.gmeta.partial")

    def __init__(
        self, root: Path, options: FrameOptions, part: Part | None = None, far_shards: Mapping[str, int] | None = None
    ) -> None:
        """far_shards: bytes of shards that are elsewhere, by name."""
        super().__init__(root, part)
        self._far_shards = dict(far_shards or {})
        self._layout, self._shard_bytes = layout_of(options.store), options.shard_bytes
        self._shards: Shards | None = None
        self._sizes = self._far_shards.copy()

    def holds(self, unit: KnownUnit, _file_name: str) -> bool:
        if unit.offset is None or unit.stored_bytes is None:
            return False
        if unit.file_name not in self._sizes:
            path = self.root / unit.file_name
            self._sizes[unit.file_name] = path.stat().st_size if is_regular(path) else 0
        return self._sizes[unit.file_name] >= unit.offset + unit.stored_bytes

    def check_settings(self, settings: RunSettings, *, overwrite: bool) -> None:
        """Also refuse a folder that holds files of these names that are not ours. Raises DestinationError."""
        super().check_settings(settings, overwrite=overwrite)
        if not self.root.is_dir() or (self.shared / "run.json").exists():
            return
        for path in self.root.iterdir():
            if self._layout.shard_number(path.name) is not None:
                raise DestinationError(
                    f"holds {path.name}, which no run of vidprep wrote; take another folder", path=self.shown
                )

    def recover(self) -> int:
        """After a kill: what no row points at is cut off. Nothing is named anew, so 0."""
        self.remove_leftovers()
        units = [unit for unit in self.known_units().values() if unit.ok and self.holds(unit, "")]
        ends = ((unit.file_name, (unit.offset or 0) + (unit.stored_bytes or 0)) for unit in units)
        mine = (self.part.index, self.part.count) if self.part else (0, 1)
        self._shards = Shards.of(self.root, self._layout, self._shard_bytes, ends, mine)
        self._shards.cut_back()
        self._sizes = self._far_shards.copy()
        return 0

    def place(self, row: ManifestRow, partial: Path) -> None:
        assert self._shards is not None
        with partial.open("rb") as frames:
            self._shards.append(row, frames)

    def publish(self, _row: ManifestRow, partial: Path) -> None:
        partial.unlink()

    def remove_output(self, _file_name: str) -> None:
        """What a unit was before stays in its shard until the run ends."""

    def finish(self) -> None:
        """Journal into manifest, dead bytes away, and the index last; a run that is stopped in here leaves it to the next.

        The index is written anew when nothing else was to do, too: it may have been lost or damaged. A part leaves dead bytes
        and index to `vidprep merge`.
        """
        assert self._shards is not None
        stale = self.shared / "index-stale"
        if self.journal.path.exists():
            stale.touch()
        super().finish()
        if self.part or not self.manifest.exists():
            return
        dead = self._rewrite_shards_with_dead_bytes(self._shards) if stale.exists() else []
        about = read_run(self.shared)
        self._layout.write_index(self.root, self._good_rows(), about | {"far_shards": self._far_shards})
        for name in dead:
            self._shards.forget(name)
        stale.unlink(missing_ok=True)

    def _good_rows(self) -> Iterator[ManifestRow]:
        return (row for row in read_manifest(self.root) if row.ok)

    def _rewrite_shards_with_dead_bytes(self, shards: Shards) -> list[str]:
        units: dict[str, list[ManifestRow]] = defaultdict(list)
        for row in self._good_rows():
            units[row.file_name].append(row)
        dead = []
        for path in shards.paths():
            alive = sum(row.stored_bytes or 0 for row in units[path.name])
            if alive + len(self._layout.tail) < path.stat().st_size:
                shards.rewrite(path.name, units[path.name])
                for row in units[path.name]:
                    self.journal.append(row)
                dead.append(path.name)
        super().finish()
        return dead
