"""Mark the clips of a table that show the same as others of it, of other tables, or of finished datasets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from vidprep.formats.errors import SettingsError
from vidprep.formats.manifest.labels import values_of
from vidprep.formats.manifest.table import label_columns
from vidprep.transcode.clips._duplicates import Hashes, duplicates, group
from vidprep.transcode.clips._video import Row
from vidprep.transcode.sources.scratch import local_folder
from vidprep.transcode.sources.tables import READERS, read_source_table


def read_clips(place: Path | str) -> Iterator[Row]:
    """Yield id, hashes and seconds of each clip of a table that `scan` wrote, or of a dataset that was made from one.

    Raises:
        SettingsError: It has no hashes.
        SourceError: The table cannot be read.
        StoreError, ManifestError: The dataset cannot be read.
    """
    names = ("id", "hashes", "seconds")
    if Path(place).suffix.lower() in READERS:
        table = read_source_table(str(place))
        columns = {name: table.values(name) for name in names if name in table.columns}
    else:
        with local_folder(place) as folder:
            labels = label_columns(folder)
        columns = {"id": labels.ids} | {
            name: values_of(array) for name, array in labels.columns.items() if name in names
        }
    if len(columns) < len(names) or not any(columns["hashes"]):
        raise SettingsError(
            f"{place} has no hashes to compare with: make it from a table of `vidprep scan --duplicates`"
        )
    for id_, hashes, seconds in zip(*(columns[name] for name in names), strict=True):
        yield {"id": f"{place}/{id_}", "hashes": hashes, "seconds": seconds or 0.0}


def mark_duplicates(rows: Sequence[Row], others: Sequence[Row], *, mirrored: bool) -> int:
    """Set `duplicate_group`, `duplicate_of`, `duplicate_offset` and `duplicate_distance` of rows.

    Clips of one shot are in one group, and are no duplicates of each other. Of clips that show the same, those of other datasets and
    the longer ones are no duplicates.

    Args:
        rows: Rows of the table.
        others: Clips to compare with.
        mirrored: A mirrored copy shows the same.

    Returns:
        How many clips are duplicates.
    """
    every = [*rows, *others]
    hashes = Hashes.parse([row["hashes"] for row in every], [row["seconds"] for row in every])
    matches = hashes.matches(mirrored=mirrored)
    shots = [(row["path"], row["video_stream"], row["shot"]) for row in rows] + [(row["id"],) for row in others]
    first = {shot: number for number, shot in reversed([*enumerate(shots)])}
    groups = group(
        len(every), [*((first[shot], number) for number, shot in enumerate(shots)), *(match[:2] for match in matches)]
    )
    order = sorted(range(len(rows)), key=lambda number: -rows[number]["seconds"])
    of_others = (match for match in matches if shots[match.one] != shots[match.other])
    found = duplicates(order, of_others, range(len(rows), len(every)))
    for number, row in enumerate(rows):
        row |= {"duplicate_group": rows[groups[number]]["id"], "duplicate_of": None}
        row |= {"duplicate_offset": None, "duplicate_distance": None}
        if (match := found.get(number)) is not None:
            rate = (row["end_frame"] - row["start_frame"]) / row["seconds"]
            row |= {"duplicate_of": every[match.other]["id"], "duplicate_offset": round(match.seconds * rate)}
            row["duplicate_distance"] = match.distance
    return len(found)
