"""The table of clips: a file that `transcode` and `burst` take as their source, and what a scan that goes on knows from it.

TABLE                       a row for each clip
TABLE.failed.csv            a row for each source that failed, has no clips or is damaged, with the reason
.TABLE.scan                 while a scan is in progress: a line of JSON for each source that is done
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from vidprep.formats.errors import DestinationError, SettingsError, count_of, printable
from vidprep.formats.model import SourceState
from vidprep.formats.storage.local import open_unlinked, remove_file, replacing
from vidprep.formats.storage.untrusted import parse_json, read_regular
from vidprep.transcode.clips._video import Row, Scanned
from vidprep.transcode.sources.table_rows import SCANNED
from vidprep.transcode.sources.tables import csv_cell, read_source_table

SUFFIXES = (".csv", ".parquet", ".jsonl")
SHARES_AND_MEANS = (
    "seconds",
    "confidence",
    "motion",
    "frozen",
    "black",
    "brightness",
    "contrast",
    "saturation",
    "sharpness",
    "spatial_information",
    "temporal_information",
    "loudness",
    "silence",
)
SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("id", pa.string()),
        ("start_frame", pa.int64()),
        ("end_frame", pa.int64()),
        ("video_stream", pa.int64()),
        ("shot", pa.int64()),
        *((name, pa.float64()) for name in SHARES_AND_MEANS),
        ("borders", pa.string()),
        ("hashes", pa.string()),
        ("duplicate_group", pa.string()),
        ("duplicate_of", pa.string()),
        ("duplicate_offset", pa.int64()),
        ("duplicate_distance", pa.float64()),
        (SCANNED, pa.string()),
    ]
)
KEYS = ("path", "id", "start_frame", "end_frame", "video_stream")
OF_THE_TABLE = ("path", SCANNED)  # columns that are no facts of the frames
FACTS = frozenset(SCHEMA.names) - {*KEYS}
FAILED = ("path", "id", "stage", "error", "message", SCANNED)


def check_place(table: Path) -> None:
    """Raise SettingsError for a name that is not that of a table."""
    if table.suffix.lower() not in SUFFIXES:
        raise SettingsError(f"{table}: the table of clips is one of {', '.join(SUFFIXES)}")
    if table.is_dir():
        raise SettingsError(f"{table}: is a folder; give the name of a table of clips")
    if not table.parent.is_dir():
        raise SettingsError(f"{table}: there is no folder {table.parent}; make it first")


def failed_path(table: Path) -> Path:
    return table.with_name(f"{table.name}.failed.csv")


def state_text(digest: str, state: SourceState) -> str:
    return f"{digest} {state.size_bytes} {state.mtime_ns}"


def _parse_state(text: str) -> tuple[str, SourceState]:
    digest, size, mtime = text.split(" ")
    return digest, SourceState(int(size), int(mtime))


class Known:
    """Sources that earlier scans with the same settings read, by id and state.

    It is a context in which no other scan writes the table.

    Args:
        table: The table.
        digest: Digest of the settings.
        overwrite: Whether the table is ignored.

    Raises:
        DestinationError: There is a table that no scan wrote, or one of other settings, or another scan writes it.
    """

    def __init__(self, table: Path, digest: str, *, overwrite: bool) -> None:
        self.table, self._digest = table, digest
        self._known: dict[tuple[str, str], Scanned] = {}
        self._paths = set[str]()
        if not overwrite and table.exists():
            self._read_table()
            self._read_failed()
        self._path = table.with_name(f".{table.name}.scan")
        self._journal = os.fdopen(open_unlinked(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "a+b")

    def __enter__(self) -> Self:
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._journal.close()
            raise DestinationError(
                "another scan is writing this table; wait for it, or stop it", path=self.table
            ) from None
        except OSError:  # files cannot be locked here
            pass
        self._journal.seek(0)
        first, *lines = self._journal.read().splitlines() or [b""]
        if first != self._digest.encode():
            self._journal.truncate(0)
            self._append(self._digest.encode())
            return self
        for line in lines:
            with suppress(ValueError, TypeError):  # empty, or torn by a kill
                values = parse_json(line)
                done = Scanned(**values | {"state": SourceState(*values["state"])})
                self._known[done.id, state_text(self._digest, done.state)] = done
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:  # the table holds all that it knew
            remove_file(self._path)
        self._journal.close()

    def check_listed(self, paths: Collection[str]) -> None:
        """Raise DestinationError if a source whose clips are in the table is still there, and none of these."""
        known = (self.table.absolute().parent / path for path in self._paths)
        left = sorted(str(path) for path in known if str(path) not in paths and path.is_file())
        if left:
            raise DestinationError(
                f"has clips of {count_of(len(left), 'source')} that this scan does not list, such as {printable(left[0])}; "
                "list all, give another name, or --overwrite",
                path=self.table,
            )

    def of(self, id_: str, state: SourceState) -> Scanned | None:
        return self._known.get((id_, state_text(self._digest, state)))

    def add(self, done: Scanned) -> None:
        """Add a source that was scanned now. It outlives a kill."""
        self._append(b"\n" + json.dumps(asdict(done)).encode())  # the line before it may be torn

    def _append(self, line: bytes) -> None:
        self._journal.write(line)
        self._journal.flush()

    def _read_table(self) -> None:
        table = read_source_table(str(self.table))
        states = table.values(SCANNED)
        if table.num_rows and {str(state).split(" ")[0] for state in states} != {self._digest}:
            why = "no scan wrote it" if SCANNED not in table.columns else "a scan with other options wrote it"
            raise DestinationError(f"is there, and {why}; give another name, or --overwrite", path=self.table)
        names = [name for name in SCHEMA.names if name in table.columns and name not in OF_THE_TABLE]
        paths = map(str, table.values("path") if table.num_rows else ())
        for row, path, state in zip(table.select(names).rows(), paths, map(str, states), strict=True):
            id_ = str(row.pop("id")).rsplit("_f", 2)[0]
            done = self._known.setdefault((id_, state), Scanned(id_, _parse_state(state)[1]))
            done.rows.append(row)
            self._paths.add(path)

    def _read_failed(self) -> None:
        with suppress(OSError, ValueError, KeyError):
            for row in csv.DictReader(io.StringIO(read_regular(failed_path(self.table)).decode())):
                digest, state = _parse_state(row[SCANNED])
                if digest == self._digest:
                    id_ = row["id"].removeprefix("'")
                    done = self._known.setdefault((id_, row[SCANNED]), Scanned(id_, state))
                    done.stage, done.error, done.message = row["stage"], row["error"], row["message"]


def write(table: Path, rows: Sequence[Row], labels: Mapping[str, pa.Array]) -> None:
    """Write the table. Raises OSError, DestinationError.

    Args:
        table: Its path, which says the format.
        rows: Values of SCHEMA.
        labels: Columns of the source table, for each row.
    """
    made = pa.Table.from_pylist(list(rows), SCHEMA)
    if made["video_stream"].null_count == len(rows):
        made = made.drop_columns("video_stream")
    for name, column in labels.items():
        made = made.append_column(name, column)
    with replacing(table, unless_same=True) as file:
        if table.suffix.lower() == ".parquet":
            pq.write_table(made, file, compression="zstd")
        elif table.suffix.lower() == ".csv":
            file.write(_csv(made.column_names, made.to_pylist()))
        else:
            for row in made.to_pylist():
                file.write((json.dumps(row, ensure_ascii=False, default=str) + "\n").encode())


def write_failed(table: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the sources without clips, or remove the list if there are none. Raises OSError, DestinationError."""
    if not rows:
        remove_file(failed_path(table))
        return
    with replacing(failed_path(table), unless_same=True) as file:
        file.write(_csv(FAILED, [{name: csv_cell(value) for name, value in row.items()} for row in rows]))


def _csv(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([row.get(name) for name in names] for row in rows)
    return text.getvalue().encode()
