"""Names of outputs: invalid names, and names that two sources share."""
# ruff: noqa: PTH122

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import replace

from vidprep.formats.errors import SourceError, count_of
from vidprep.transcode.sources._search import SourceSearch
from vidprep.transcode.sources.tables import one_line
from vidprep.transcode.sources.unit import Unit

STATE_DIR = ".vidprep"  # vidprep's state inside a destination
PAIRS_SHOWN = 5
NAME_MAX_BYTES = 255
RESERVED = re.compile(r"(manifest|gops).*\.parquet")
IN_SHARDS = "frames"  # the extension in settings that have no file for each video


def fault_of_output(unit_id: str, extension: str) -> str | None:
    """Return why no output can have this name; None if it can. Units in shards have no file name."""
    output = f"{unit_id}.{extension}"
    top, slash, _ = output.partition("/")
    if slash and (top.lower() == STATE_DIR or RESERVED.fullmatch(top.lower())):
        return f"would lie in {top}, which is reserved for vidprep"
    if extension == IN_SHARDS:
        return None
    sizes = [len(os.fsencode(name)) for name in output.split("/")] if len(output) > NAME_MAX_BYTES // 4 else [0]
    return f"has a name of {max(sizes)} bytes, more than {NAME_MAX_BYTES}" if max(sizes) > NAME_MAX_BYTES else None


def check_outputs(search: SourceSearch, source: str, extension: str, *, is_table: bool) -> None:
    """Turn units into problems if their output cannot have its name, or if several sources of a folder want the same.
    Raises SourceError if rows of a table do.
    """
    faults = [fault_of_output(unit.id, extension) for unit in search.units]
    search.problems += [
        (unit.path, f"its output {one_line(unit.id)}.{extension} {fault}; rename it")
        for unit, fault in zip(search.units, faults, strict=True)
        if fault
    ]
    search.units = [unit for unit, fault in zip(search.units, faults, strict=True) if not fault]
    pairs = _collisions(search.units, extension)
    if not pairs:
        return
    if is_table:
        lines = [" ".join((one_line(a.path), "and", one_line(b.path), "->", one_line(out))) for a, b, out in pairs]
        message = f"{count_of(len(pairs), 'pair')} of sources would write the same output file (names may differ in case or Unicode form)"
        advice = "give each row its own id, in a column `id`"
        raise SourceError("\n  ".join([f"{message}; {advice}", *lines[:PAIRS_SHOWN]]), path=source)
    kept = (replace(unit, id=unit.id + os.path.splitext(unit.path)[1]) for unit in search.units)
    if search.keep_source_suffix or _collisions(kept, extension):
        advice = "--keep-source-suffix does not make all names unique: rename or --exclude one"
    else:
        advice = "make them unique with --keep-source-suffix"
    search.why_partial = f"two sources want the output {pairs[0][2]}"
    rivals: dict[str, str] = {}
    for first, second, out in pairs:
        for one, other in ((first, second), (second, first)):
            rivals.setdefault(one.path, f"its output {one_line(out)} is wanted by {one_line(other.path)} too; {advice}")
    search.problems += rivals.items()
    search.units = [unit for unit in search.units if unit.path not in rivals]


def _collisions(units: Iterable[Unit], extension: str) -> list[tuple[Unit, Unit, str]]:
    """Return pairs of units with the same output, or where the output of one is a folder that the other needs."""
    taken: dict[str, Unit] = {}
    folders: dict[str, Unit] = {}
    pairs = []
    for unit in units:
        output = _fold(f"{unit.id}.{extension}")
        if (first := taken.setdefault(output, unit)) is not unit:
            pairs.append((first, unit))
        folder = output.rpartition("/")[0]
        while folder and folder not in folders:
            folders[folder] = unit
            folder = folder.rpartition("/")[0]
    pairs += [(taken[folder], unit) for folder, unit in folders.items() if folder in taken]
    return [(first, second, f"{first.id}.{extension}") for first, second in pairs]


def _fold(name: str) -> str:
    """Return one form for all names that some file system (macOS, Windows, network shares) treats as equal."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())
