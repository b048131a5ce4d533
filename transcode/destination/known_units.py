"""What resuming needs of the rows that stand in a destination."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vidprep.formats.manifest.journal import Journal
from vidprep.formats.manifest.row import REMOVED
from vidprep.formats.manifest.table import read_table, with_columns
from vidprep.formats.model import Cut

STATE_COLUMNS = [
    "id", "file_name", "start_seconds", "end_seconds", "start_frame", "end_frame",
    "status", "attempts", "source_size_bytes", "source_mtime_ns",
    "settings_digest", "size_bytes", "encoder_version", "offset", "stored_bytes", "run", "source_digest",
    "source",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class KnownUnit:
    """What resuming needs of a row."""

    file_name: str
    cut: Cut
    ok: bool
    attempts: int
    source_size_bytes: int | None
    source_mtime_ns: int | None
    settings_digest: str | None
    size_bytes: int | None
    encoder_version: str | None
    offset: int | None
    stored_bytes: int | None
    run: int | None
    source_digest: str | None = None
    source: str | None = None


def known_units(root: Path, journal: Journal) -> dict[str, KnownUnit]:
    """Every unit that has a row, by id; the journal is newer than the manifest."""
    known: dict[str, KnownUnit] = {}
    table = read_table(root, STATE_COLUMNS)
    if table is not None:
        table = with_columns(table, STATE_COLUMNS)
        rows = zip(*(table[name].to_pylist() for name in STATE_COLUMNS), strict=True)
        for id_, file_name, start, end, start_frame, end_frame, status, *others in rows:
            cut = Cut(start, end, start_frame, end_frame)
            known[id_] = KnownUnit(file_name, cut, status == "ok", *others)
    for row in journal.rows():
        if row.id in known and (known[row.id].run or 0) > (row.run or 0):
            continue
        if row.status == REMOVED:
            known.pop(row.id, None)
            continue
        known[row.id] = KnownUnit(
            row.file_name, row.cut, row.ok, row.attempts, row.source_size_bytes, row.source_mtime_ns,
            row.settings_digest, row.size_bytes, row.encoder_version, row.offset, row.stored_bytes, row.run, row.source_digest,
            row.source,
        )  # fmt: skip
    return known
