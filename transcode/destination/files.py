"""Outputs that are files: one for each video, under the name of its unit."""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from pathlib import Path

from vidprep.formats.errors import DestinationError
from vidprep.formats.manifest import ManifestRow, removed
from vidprep.formats.storage import is_disk_full, is_regular, link_on_the_way, sha256_of
from vidprep.transcode.destination.destination import PARTIAL_LETTERS, Destination, partial_stem
from vidprep.transcode.destination.run_file import KnownUnit


class Files:
    """One file per video. A proven output is journalled before it takes its name, so that whatever has a name has a row."""

    torn: tuple[str, ...] = ()
    is_put_by_workers = True

    def __init__(self, place: Destination) -> None:
        self._place, self._storage = place, place.storage

    def holds(self, unit: KnownUnit, file_name: str) -> bool:
        return unit.file_name == file_name and self._storage.size(file_name) == unit.size_bytes is not None

    def has(self, _row: ManifestRow) -> bool:
        return True

    def has_foreign(self, file_name: str) -> bool:
        """Lines of the journal that were lost may mention a file, and so may other parts."""
        place = self._place
        if place.part is not None or place.journal.unreadable or self._storage.is_remote:
            return False
        if link_on_the_way(place.root, file_name):
            return False
        return os.path.isfile(place.root / file_name)  # noqa: PTH113 (a name that is too long is no file)

    def check_folder(self) -> None:
        """Each file is looked at before it would be replaced."""

    def prepare(self, row: ManifestRow, partial: Path) -> ManifestRow:  # noqa: ARG002
        """An output is found by its partial name."""
        return row

    def publish(self, row: ManifestRow, partial: Path) -> None:
        """Behind a URL the worker that made it has put it there."""
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
            place.journal.append(removed(before, place.run), row)
            return
        partial = place.partial(row.id, Path(row.file_name).suffix.removeprefix("."))
        self._storage.copy(before.file_name, str(partial.relative_to(place.root)))
        place.journal.append(removed(before, place.run), row)
        self.publish(row, partial)

    def remove(self, file_name: str) -> None:
        with nullcontext() if self._storage.is_remote else suppress(OSError):
            self._storage.remove(file_name)

    def recover(self) -> int:
        """Outputs that were proven and journalled get their names; other partial files go."""
        place, named = self._place, 0
        waiting = {path.stem[:PARTIAL_LETTERS]: path for path in place.partials.iterdir()}
        for row in place.journal.rows():
            partial = waiting.get(partial_stem(row.id))
            if partial is not None and row.ok and is_regular(partial) and sha256_of(partial) == row.sha256:
                with suppress(DestinationError):  # then it is made again, and its row says why it cannot be
                    self.publish(row, partial)
                    named += 1
        place.remove_leftovers()
        return named

    def relabel(self) -> None:
        """Labels stand in the manifest alone."""

    def finish(self, *, is_complete: bool) -> None:
        """Nothing is left to do."""
