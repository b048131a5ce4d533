"""What runs with another layout left in a destination: shards, the files that say where frames lie, videos, rows.

A destination holds one store. What counts as left by a run is what its settings, its manifest, its journal or an index of ours
say; a file that merely has such a name is not touched.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from vidprep.formats.files.no_links import is_regular, remove_file
from vidprep.formats.manifest.journal import Journal
from vidprep.formats.manifest.table import fence_of, manifest_paths, read_table, with_columns, write_rows
from vidprep.formats.stores.registry import ENCODED, STORES_OF_FRAMES, kind_made_by_run, layout_of


def files_of(kind: str, names: Iterable[str]) -> Iterator[str]:
    """Those of the names in a folder that are shards or index files of a store of this kind, or such files half written."""
    layout = layout_of(kind)
    index_files = [pattern for name in layout.index_files for pattern in (name, f".{name}.partial")]
    for name in names:
        if layout.is_shard(name) or any(fnmatch.fnmatchcase(name, each) for each in index_files):
            yield name


def left_by_others(root: Path, journal: Journal, names: Iterable[str], kept: str) -> list[str]:
    """Files that runs of another kind than `kept` made, by name. names: of what lies in the folder itself; root: where its
    state and its manifests are.
    """
    there = set(names)
    columns = ["file_name", "status", "container"]
    rows = []
    if (table := read_table(root, columns)) is not None:
        table = with_columns(table, columns)
        rows = list(zip(*(table[name].to_pylist() for name in columns), strict=True))
    rows += [(row.file_name, row.status, row.container) for row in journal.rows()]
    kinds = {_kind(container) for _, _, container in rows} | {kind_made_by_run(root)}
    kinds |= {_indexed_as(root, kind) for kind in STORES_OF_FRAMES}
    left = {name for kind in STORES_OF_FRAMES if kind in kinds and kind != kept for name in files_of(kind, there)}
    if kept != ENCODED:
        left |= {name for name, status, container in rows if status == "ok" and _kind(container) == ENCODED}
    return sorted(left)


def forget_rows_of_others(root: Path, journal: Journal, kept: str) -> list[str]:
    """Take rows of another kind out of the manifests in `root`. Returns the names of those that are gone."""
    gone = []
    for path in manifest_paths(root):
        table = read_table(root, only=path)
        assert table is not None
        containers = with_columns(table, ["container"])["container"].to_pylist()
        is_kept = [_kind(container) == kept for container in containers]
        if not any(is_kept):
            remove_file(path)
            gone.append(path.name)
        elif not all(is_kept):
            write_rows(path, table.filter(is_kept), (), fence=fence_of(path))
    if any(_kind(row.container) != kept for row in journal.rows()):
        journal.clear()
    return gone


def _kind(container: str | None) -> str:
    return container if container in STORES_OF_FRAMES else ENCODED


def _indexed_as(root: Path, kind: str) -> str | None:
    """The kind, where an index file says that vidprep made it."""
    path = root / f"{kind}.json"
    try:
        return kind if is_regular(path) and json.loads(path.read_bytes())["format"] == kind else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
