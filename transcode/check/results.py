"""DST/validation.parquet: what `vidprep validate` found of each unit, and what it still knows from earlier."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vidprep.formats.manifest.table import read_table, rows_of
from vidprep.formats.storage.local import replacing
from vidprep.formats.storage.untrusted import arrow_file, as_parquet
from vidprep.transcode.check._unit import UnitResult

VALIDATION_NAME = "validation.parquet"
SEEKS = [
    ("loader", pa.string()),
    ("tried", pa.int32()),
    ("wrong", pa.int32()),
    ("unread", pa.int32()),
    ("reason", pa.string()),
]
SCORES = (
    "psnr_y_db",
    "psnr_yuv_db",
    "psnr_y_p1_db",
    "ssim",
    "ffmpeg_psnr_y_db",
    "vmaf",
    "vmaf_harmonic_mean",
    "vmaf_p1",
    "xpsnr_db",
    "xpsnr_p1_db",
)
KEPT = (*SCORES, "vmaf_model", "scored_at")
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("file_name", pa.string()),
        ("sha256", pa.string()),
        ("checked_at", pa.int64()),
        ("faults", pa.list_(pa.string())),
        *((name, pa.float64()) for name in SCORES),
        ("vmaf_model", pa.string()),
        ("scored_at", pa.int64()),
        ("ffmpeg_failed", pa.string()),
        ("seeks", pa.list_(pa.struct(SEEKS))),
        ("seconds", pa.float64()),
    ]
)


def table_of(results: Iterable[UnitResult]) -> pa.Table:
    """Return a table of results, sorted by id. Raises pyarrow's errors for values of a wrong type."""

    def values(done: UnitResult) -> dict[str, object]:
        return asdict(done) | {"seeks": [{"loader": name} | asdict(seeks) for name, seeks in done.seeks.items()]}

    return pa.Table.from_pylist([values(done) for done in sorted(results, key=lambda done: done.id)], schema=SCHEMA)


class _UnitDigest(NamedTuple):
    """Columns of a row that identify the bytes of an output."""

    id: str
    sha256: str | None


def read_results(destination: Path) -> pa.Table | None:
    """Return earlier results; None if there are none, or if they cannot be read. Missing columns are null."""
    try:
        with arrow_file(destination / VALIDATION_NAME) as file:
            found = as_parquet(file, destination / VALIDATION_NAME).read()
        for field in [field for field in SCHEMA if field.name not in (*found.column_names, "id")]:
            found = found.append_column(field, pa.nulls(found.num_rows, field.type))
        return found.select(SCHEMA.names).cast(SCHEMA)
    except (OSError, ValueError, KeyError, TypeError, MemoryError, pa.ArrowException):
        return None


def write_results(destination: Path, results: Iterable[UnitResult]) -> None:
    """Write results together with earlier ones of unchanged outputs: units that were not read this time, and scores that
    were not requested.

    Raises:
        ManifestError: The manifest cannot be read.
        OSError: The results cannot be written.
    """
    table = table_of(results)
    earlier = read_results(destination)
    now_there = None if earlier is None else read_table(destination, list(_UnitDigest._fields))
    if earlier is not None and now_there is not None:
        of_earlier = now_there.filter(pc.is_in(now_there["id"], earlier["id"].combine_chunks()))
        digests = dict(rows_of(of_earlier, _UnitDigest))
        rows = {row["id"]: row for row in table.to_pylist()}
        for before in earlier.to_pylist():
            if before["sha256"] is None or before["sha256"] != digests.get(before["id"]):
                continue
            now = rows.setdefault(before["id"], before)
            if before["vmaf_model"] is None:  # of a version that did not tell
                before["vmaf"] = None
            kept = {name: before[name] for name in KEPT if now[name] is None and before[name] is not None}
            if kept and not now["faults"]:
                now |= kept
        table = pa.Table.from_pylist([rows[id_] for id_ in sorted(rows)], schema=SCHEMA)
    with replacing(destination / VALIDATION_NAME) as file:
        pq.write_table(table, file)
