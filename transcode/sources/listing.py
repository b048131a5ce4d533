"""Folder, file or table -> units of work with names, cuts and labels. Opens no video.

Whatever cannot work as a whole (missing, colliding, malformed, inside the destination) is a SourceError before any
work. One file that cannot be read is one line in `problems`; what is no source at all is one line in `ignored`.
Paths are strings here: a million Path objects would cost more than the walk itself.
"""
# ruff: noqa: PTH100, PTH109, PTH112, PTH114, PTH120, PTH116, PTH118, PTH119, PTH122

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from operator import attrgetter
from pathlib import Path

from vidprep.formats.errors import SettingsError, SourceError
from vidprep.formats.model import SourceState
from vidprep.transcode.sources.folder import walk
from vidprep.transcode.sources.outputs import check_outputs
from vidprep.transcode.sources.remote import list_remote
from vidprep.transcode.sources.search import SourceSearch, fault_of_file, identity_of, why_not
from vidprep.transcode.sources.source_labels import Given, labels_of
from vidprep.transcode.sources.table_rows import IN_MEMORY, read_table
from vidprep.transcode.sources.tables import READERS, one_line, storable
from vidprep.transcode.sources.tables import is_table as in_memory
from vidprep.transcode.sources.unit import SourceList, Unit


def find_sources(
    source: Path | str | object,
    destination: Path | str,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    limit: int | None = None,
    label_from_folder: bool = False,
    labels: Sequence[str] | None = None,
    on_bad_row: str = "fail",
    split_by: Mapping[str, Fraction] | None = None,
    split_group: str | None = None,
    split_seed: int = 0,
    keep_source_suffix: bool = False,
    extension: str = "mp4",
    progress: Callable[[int], None] | None = None,
) -> SourceList:
    """The units of a folder, of one file, or of a table (.csv, .tsv, .parquet, .jsonl, or in memory: of Arrow, pandas, polars). Places
    may be URLs, given as str.

    include, exclude: globs, case-sensitive, on the path relative to the folder (of the table) and on the base name;
    an excluded folder is not entered; one file is tried whatever they say. limit: the first so many units by id. labels: the columns of
    a table that are; None for all that say nothing else. split_by: names and shares of splits (splits.py), drawn by source or by the
    column `split_group`.
    extension: of the outputs. progress: gets the number of entries or rows seen so far, every 10,000.
    Raises SourceError when the list cannot work as a whole, SettingsError for a limit below 1.
    """
    if limit is not None and limit < 1:
        raise SettingsError("<limit>: give 1 or more", limit=limit)
    into = os.path.join(destination if isinstance(destination, str) else os.path.realpath(destination), "")
    there = identity_of(os.stat(into)) if isinstance(destination, Path) and os.path.isdir(into) else None
    search = SourceSearch(into, there, _globs(include), _globs(exclude), keep_source_suffix, progress)
    narrowed = (("--limit", limit), ("--include", include), ("--exclude", exclude))
    search.why_partial = next((f"{name} leaves out some" for name, value in narrowed if value), None)
    finish = partial(
        _source_list, search, extension, limit, Given(label_from_folder, split_by, split_group, split_seed)
    )
    reads = partial(
        read_table, search, labels=labels, label_from_folder=label_from_folder, skips_bad_rows=on_bad_row == "skip"
    )
    if isinstance(source, str):
        _refuse_labels(source, labels)
        list_remote(search, source)
        return finish(source, source, is_table=False)
    if in_memory(source):
        reads(source)
        return finish(IN_MEMORY, os.getcwd(), is_table=True)
    assert isinstance(source, Path)
    path = os.path.abspath(source)
    try:
        status = os.stat(path)
    except OSError as error:
        raise SourceError(why_not(error, is_link=os.path.islink(path)), path=path) from error
    is_folder = stat.S_ISDIR(status.st_mode)
    is_table = not is_folder and os.path.splitext(path)[1].lower() in READERS
    if not is_table:
        _refuse_labels(path, labels)
    if not is_folder and (fault := fault_of_file(path, status)):
        raise SourceError(f"{fault}; give a folder, a video or a table", path=path)
    if not is_table and identity_of(status) == there:
        raise SourceError("is the destination, too; give a destination outside of it", path=path)
    if not is_table and search.in_destination(path):
        raise SourceError(f"is inside the destination {destination}; give a destination outside of it", path=path)
    if is_folder:
        if into.startswith(os.path.join(os.path.realpath(path), "")):
            raise SourceError(f"holds the destination {destination}; give a destination outside of it", path=path)
        walk(search, path)
    elif is_table:
        reads(path)
    else:
        search.why_partial = "one file is not a full listing"
        search.add(search.id_of(os.path.basename(path)), path, SourceState.of(status))
    return finish(path, path if is_folder else os.path.dirname(path), is_table=is_table)


def _refuse_labels(path: str, labels: Sequence[str] | None) -> None:
    if labels is not None:
        raise SourceError("--labels takes columns of a table, which this is not", path=path)


def _source_list(
    search: SourceSearch, extension: str, limit: int | None, given: Given, path: str, base: str, *, is_table: bool
) -> SourceList:
    """base: the folder that paths of sources are relative to."""
    if not search.units and not search.problems:
        raise SourceError(_nothing_found(search.ignored), path=path)
    search.units.sort(key=attrgetter("id", "path"))
    if limit is not None:
        del search.units[limit:]
    check_outputs(search, path, extension, is_table=is_table)
    sharers = Counter(unit.path for unit in search.units)
    units = [unit if sharers[unit.path] == 1 else replace(unit, sharers=sharers[unit.path]) for unit in search.units]
    units.sort(key=attrgetter("size_bytes"), reverse=True)  # stable: equal sizes stay in the order of their ids
    ignored = sorted((storable(path), why) for path, why in search.ignored)
    problems = sorted((storable(path), why, number) for number, (path, why) in enumerate(search.problems))
    asked = _ids_of_their_own(search)
    labelled = [*units, *(asked[number] for _, _, number in problems if number in asked)]
    labels, drawing = labels_of(labelled, search.table, given, path, base)
    return SourceList(
        tuple(units),
        tuple(ignored),
        tuple((path, why) for path, why, _ in problems),
        tuple(asked.get(number) for _, _, number in problems),
        labels,
        search.why_partial or (None if units else "no video could be listed"),
        drawing,
        () if search.table is None else tuple(search.table.notes.values()),
    )


def _ids_of_their_own(search: SourceSearch) -> dict[int, Unit]:
    """The rows of a table that are problems, by their place among them: no row is lost to another of the same id."""
    taken = {unit.id for unit in search.units} if search.asked else set()
    found = {}
    for place, (number, unit) in search.asked.items():
        name = unit.id
        while name in taken:
            name += f" (row {number})"
        taken.add(name)
        found[place] = replace(unit, id=name)
    return found


def _nothing_found(ignored: list[tuple[str, str]]) -> str:
    if left_out := [path for path, reason in ignored if reason in ("not included", "excluded")]:
        counts = Counter(os.path.splitext(path)[1].lower() or "none" for path in left_out)
        there = ", ".join(f"{one_line(suffix)} ({count})" for suffix, count in counts.most_common(10))
        return f"no video left: --include and --exclude, globs such as '*.mp4', leave out all files: {there}"
    unknown = [path for path, reason in ignored if reason == "unknown extension"]
    suffixes = Counter(os.path.splitext(path)[1].lower() or "none" for path in unknown)
    seen = ", ".join(f"{one_line(suffix)} ({count})" for suffix, count in suffixes.most_common(10))
    return (
        f"no video found; {len(ignored)} ignored, unknown extensions: {seen or 'none'}; a table can name videos of any "
        "extension"
    )


def _globs(patterns: Sequence[str]) -> re.Pattern[str] | None:
    """A folder may be given as `a/`, which is how shells complete it."""
    kept = [pattern.rstrip("/") or pattern for pattern in patterns]
    return re.compile("|".join(map(fnmatch.translate, kept))) if kept else None
