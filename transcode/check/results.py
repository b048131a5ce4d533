"""DST/validation.parquet: what the last `vidprep validate` found of each unit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from vidprep.formats.storage.local import replacing
from vidprep.formats.storage.untrusted import arrow_file, open_parquet
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


def read_results(destination: Path) -> pa.Table | None:
    """Return earlier results; None if there are none, or if they cannot be read. Missing columns are null."""
    try:
        with arrow_file(destination / VALIDATION_NAME) as file:
            table = open_parquet(file, destination / VALIDATION_NAME).read()
        for field in [field for field in SCHEMA if field.name not in (*table.column_names, "id")]:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
        return table.select(SCHEMA.names).cast(SCHEMA)
    except (OSError, ValueError, KeyError, TypeError, MemoryError, pa.ArrowException):
        return None


def write_results(destination: Path, results: Iterable[UnitResult]) -> None:
    """Write the results of a check, in place of those of the check before. Raises OSError."""
    with replacing(destination / VALIDATION_NAME) as file:
        pq.write_table(table_of(results), file)
