"""Write the index of every GOP of a destination of videos, with its manifest."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

import pyarrow as pa

from vidprep.formats.errors import DestinationError, StoreError, count_of
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.stores.gops import GOPS_NAME, facts_in, list_known, read_known, write_gops
from vidprep.transcode.destination.destination import Destination


def refuse_index(place: Destination) -> None:
    """Raise DestinationError if a folder in which no run has worked has an index: it is one of other videos."""
    if place.storage.list(lambda name: name == GOPS_NAME):
        raise DestinationError(
            f"holds {GOPS_NAME}, which no run of vidprep wrote; take another folder", path=place.shown
        )


def write_index(place: Destination, rows: Iterable[ManifestRow]) -> None:
    """Write `gops.parquet` for the videos of the manifest; that of a partition if it has a name of its own.

    Called after the manifest is written and before the journal is cleared, so that a run that is stopped in between does
    it again.

    Args:
        place: The destination.
        rows: Rows with packets that no index has yet.

    Raises:
        OSError: It cannot be written.
    """
    facts = facts_in(place.root, place.manifest)
    if facts is None:
        return
    name = place.part.gops_name if place.part else GOPS_NAME
    others = () if place.part else place.storage.list(lambda each: fnmatch.fnmatchcase(each, "gops-*.parquet"))
    known = [list_known(rows)]
    for each in (name, *sorted(others)):
        if (path := place.storage.local(each)) is None:
            continue
        try:
            known.append(read_known(path))
        except StoreError as error:
            place.say(f"{place.shown}/{each}: {error.message}; `vidprep index {place.shown}` makes it again")
    count = write_gops(place.root / name, facts, pa.concat_tables(known))
    place.storage.push(name)
    if place.part is None and count:
        place.say(
            f"{place.shown}: {count_of(count, 'video')} of an earlier version, or of an index that was lost, are read by their containers; "
            f"`vidprep index {place.shown}` indexes them"
        )
