"""Folder, file or table -> units of work with names, cuts and labels. Opens no video.

Whatever cannot work as a whole (missing, colliding, malformed, inside the destination) is a SourceError before any
work. One file that cannot be read is one line in `problems`; what is no source at all is one line in `ignored`.
Paths are strings here: a million Path objects would cost more than the walk itself.
"""
# ruff: noqa: PTH100, PTH112, PTH114, PTH116, PTH118, PTH119, PTH120, PTH122

from __future__ import annotations

import csv
import fnmatch
import os
import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal
from operator import attrgetter
from pathlib import Path

from vidprep.formats.errors import SettingsError, SourceError
from vidprep.formats.files.remote import is_url
from vidprep.transcode.sources.remote import RemoteFiles, list_remote
from vidprep.transcode.sources.tables import (
    KEYS,
    READERS,
    VIDEO_EXTENSIONS,
    Row,
    checked_label,
    checked_seconds,
    is_animated,
    one_line,
    storable,
)

PROGRESS_EVERY = 10_000
PAIRS_SHOWN = 5
NAME_MAX_BYTES = 255
IN_SHARDS = "frames"  # the extension in settings that have no file for each video

Cut = tuple[float | None, float | None]
Labels = tuple[tuple[str, object], ...]
Identity = tuple[int, int]  # st_dev, st_ino


@dataclass(frozen=True, slots=True)
class Unit:
    """One source, or one cut of it: one output, one row.

    id: name of the output without extension, relative, '/'-separated. path: absolute, links not resolved.
    start_seconds, end_seconds: from the first frame shown, half-open [start, end); None: from the start, to the end.
    labels: the other columns of the table, or ("label", parent folder).
    """

    id: str
    path: str
    size_bytes: int
    mtime_ns: int
    start_seconds: float | None = None
    end_seconds: float | None = None
    labels: Labels = ()


@dataclass(frozen=True, slots=True)
class SourceList:
    """units: largest first, then by id. ignored: (path, reason) of what is no source.

    problems: (path, reason) of sources that cannot even be started, a failed row each. Both are sorted, their paths
    absolute, and escaped where they are not valid UTF-8. problem_units: what the row of a table asked for, None for a file
    that was met in a folder; in the order of `problems`.
    """

    units: tuple[Unit, ...]
    ignored: tuple[tuple[str, str], ...]
    problems: tuple[tuple[str, str], ...] = ()
    problem_units: tuple[Unit | None, ...] = ()


def find_sources(
    source: Path | str,
    destination: Path | str,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    limit: int | None = None,
    label_from_folder: bool = False,
    keep_source_suffix: bool = False,
    extension: str = "mp4",
    progress: Callable[[int], None] | None = None,
) -> SourceList:
    """The units of a folder, of one file, or of a table (.csv, .parquet, .jsonl). Places may be URLs, given as str.

    include, exclude: globs, case-sensitive, on the path relative to the folder (of the table) and on the base name;
    an excluded folder is not entered; one file is tried whatever they say. limit: the first so many units by id.
    extension: of the outputs. progress: gets the number of entries or rows seen so far, every 10,000.
    Raises SourceError when the list cannot work as a whole, SettingsError for a limit below 1.
    """
    if limit is not None and limit < 1:
        raise SettingsError(f"--limit {limit}: give 1 or more")
    into = os.path.join(destination if isinstance(destination, str) else os.path.realpath(destination), "")
    there = _identity(os.stat(into)) if isinstance(destination, Path) and os.path.isdir(into) else None
    search = Search(into, there, _globs(include), _globs(exclude), label_from_folder, keep_source_suffix, progress)
    if isinstance(source, str):
        list_remote(search, source)
        return _source_list(search, source, extension, limit, is_table=False)
    path = os.path.abspath(source)
    try:
        status = os.stat(path)
    except OSError as error:
        raise SourceError(_why_not(error, is_link=os.path.islink(path)), path=path) from error
    is_folder = stat.S_ISDIR(status.st_mode)
    is_table = not is_folder and os.path.splitext(path)[1].lower() in READERS
    if not is_folder and (fault := _fault_of_file(path, status)):
        raise SourceError(f"{fault}; give a folder, a video or a table", path=path)
    if not is_table and (search.in_destination(path) or _identity(status) == there):
        raise SourceError(f"lies in the destination {destination}; give a destination outside of it", path=path)
    if is_folder:
        _walk(search, path)
    elif is_table:
        _read_table(search, path)
    else:
        search.add(search.id_of(os.path.basename(path)), path, _state(status))
    return _source_list(search, path, extension, limit, is_table=is_table)


def _source_list(search: Search, path: str, extension: str, limit: int | None, *, is_table: bool) -> SourceList:
    if not search.units and not search.problems:
        raise SourceError(_nothing_found(search.ignored), path=path)
    search.units.sort(key=attrgetter("id", "path"))
    _check_outputs(search, path, extension, is_table=is_table)
    units = search.units[:limit]
    units.sort(key=attrgetter("size_bytes"), reverse=True)  # stable: equal sizes stay in the order of their ids
    ignored = sorted((storable(path), why) for path, why in search.ignored)
    problems = sorted((storable(path), why, number) for number, (path, why) in enumerate(search.problems))
    asked = _ids_of_their_own(search)
    return SourceList(
        tuple(units), tuple(ignored), tuple((path, why) for path, why, _ in problems),
        tuple(asked.get(number) for _, _, number in problems),
    )  # fmt: skip


def _ids_of_their_own(search: Search) -> dict[int, Unit]:
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


@dataclass(slots=True)
class Search:
    """What was asked for, and what has been found so far.

    destination: resolved, with a slash at its end. destination_identity: None while it does not exist. asked: number in
    its table and unit of a problem, by its place in `problems`.
    """

    destination: str
    destination_identity: Identity | None
    include: re.Pattern[str] | None
    exclude: re.Pattern[str] | None
    label_from_folder: bool
    keep_source_suffix: bool
    progress: Callable[[int], None] | None
    seen: int = 0
    known: dict[str, bool] = field(default_factory=dict)
    remote: RemoteFiles = field(default_factory=RemoteFiles)
    units: list[Unit] = field(default_factory=list)
    ignored: list[tuple[str, str]] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    asked: dict[int, tuple[int, Unit]] = field(default_factory=dict)

    def count(self) -> None:
        self.seen += 1
        if self.progress is not None and self.seen % PROGRESS_EVERY == 0:
            self.progress(self.seen)

    def in_destination(self, path: str) -> bool:
        """Links followed. Remembers the answer: the rows of a table share few folders."""
        if path not in self.known:
            self.known[path] = os.path.join(os.path.realpath(path), "").startswith(self.destination)
        return self.known[path]

    def excludes(self, relative: str, name: str) -> bool:
        return bool(self.exclude and (self.exclude.match(relative) or self.exclude.match(name)))

    def why_left_out(self, relative: str, name: str) -> str | None:
        if self.include and not (self.include.match(relative) or self.include.match(name)):
            return "not included"
        return "excluded" if self.excludes(relative, name) else None

    def id_of(self, relative: str) -> str:
        return relative if self.keep_source_suffix else os.path.splitext(relative)[0]

    def add(self, name: str, path: str, state: tuple[int, int], cut: Cut = (None, None), labels: Labels = ()) -> None:
        """state: size in bytes and time of change in ns."""
        self.units.append(Unit(name, path, *state, *cut, self._labels(path, labels)))

    def refuse(self, number: int, unit: Unit, reason: str) -> None:
        """A row of a table that cannot be started. number: of the row."""
        self.asked[len(self.problems)] = number, replace(unit, labels=self._labels(unit.path, unit.labels))
        self.problems.append((unit.path, reason))

    def _labels(self, path: str, labels: Labels) -> Labels:
        if not self.label_from_folder:
            return labels
        return (*labels, ("label", os.path.basename(os.path.dirname(path))))


def _fault_of_file(path: str, status: os.stat_result) -> str | None:
    """Why a file cannot be a source, found without opening it: opening a FIFO would wait for ever."""
    if storable(path) != path:
        return "its name is not valid UTF-8, which a manifest cannot hold; rename it"
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFDIR: "folder", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}
        return f"not a regular file: a {kinds.get(stat.S_IFMT(status.st_mode), 'device')}"
    return None if os.access(path, os.R_OK) else "cannot be read: no permission"


def _why_not(error: OSError, *, is_link: bool) -> str:
    missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    return "broken link: " * is_link + ("no such file or folder" if missing else f"cannot be read: {error.strerror}")


def _walk(search: Search, root: str) -> None:
    """All of a folder, in no particular order. A stack of its own: trees may be deeper than Python recurses."""
    stack = [(root, "", frozenset([_identity(os.stat(root))]))]
    while stack:
        folder, prefix, above = stack.pop()
        for entry in _entries(search, folder, is_root=not prefix):
            relative = prefix + entry.name
            if reason := _why_ignored(search, entry, relative, above):
                search.ignored.append((entry.path, reason))
            elif fault := _fault_of_entry(entry):
                search.problems.append((entry.path, fault))
            elif entry.is_dir():
                stack.append((entry.path, relative + "/", above | {_identity(entry.stat())}))
            else:
                search.add(search.id_of(relative), entry.path, _state(entry.stat()))
            search.count()


def _entries(search: Search, folder: str, *, is_root: bool) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError as error:
        if is_root:
            raise SourceError(f"folder cannot be listed: {error.strerror}", path=folder) from error
        search.problems.append((folder, f"folder cannot be listed: {error.strerror}; allow it, or --exclude it"))


def _why_ignored(search: Search, entry: os.DirEntry[str], relative: str, above: frozenset[Identity]) -> str | None:
    """Why an entry is no source and no folder to enter, or None. What is plainly no video costs no stat."""
    name = entry.name
    if name.startswith("."):
        return "hidden name"
    extension = name.rpartition(".")[2].lower() if "." in name else ""
    is_video = extension in VIDEO_EXTENSIONS
    identity = None
    try:
        if extension == "webp" and entry.is_file() and not (is_video := is_animated(entry.path)):
            return "a still picture"
        if not is_video and entry.is_file(follow_symlinks=False):
            return "unknown extension"
        is_folder, identity = entry.is_dir(), _identity(entry.stat())
    except OSError as error:
        is_folder = entry.is_dir(follow_symlinks=False)
        if not is_folder and not is_video:
            return _why_not(error, is_link=entry.is_symlink())
    is_destination = identity is not None and identity == search.destination_identity
    if is_destination or (entry.is_symlink() and search.in_destination(entry.path)):
        return "the destination"  # only the folder itself and links into it can be met outside of it
    if not is_folder:
        return search.why_left_out(relative, name) if is_video else "unknown extension"
    if search.excludes(relative, name):
        return "excluded"
    return "a link back to a folder that it lies in" if identity in above else None


def _fault_of_entry(entry: os.DirEntry[str]) -> str | None:
    try:
        status = entry.stat()  # kept by the entry: after the first time it costs nothing
    except OSError as error:
        return _why_not(error, is_link=entry.is_symlink())
    return None if stat.S_ISDIR(status.st_mode) else _fault_of_file(entry.path, status)


def _read_table(search: Search, table: str) -> None:
    """Each row of a table, counted from 1, is a unit or a problem. Columns that are no KEYS are labels."""
    try:
        rows = READERS[os.path.splitext(table)[1].lower()](table)
    except (OSError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, csv.Error) as error:
        # RuntimeError: what pyarrow or recursion refuses
        raise SourceError(f"table cannot be read: {error}", path=table) from error
    names = dict.fromkeys(name for row in rows for name in row)
    if "path" not in names:
        columns = ", ".join(map(one_line, names))
        raise SourceError(f"has no column `path`; columns: {columns}" if rows else "has no rows", path=table)
    if search.label_from_folder and "label" in names:
        raise SourceError("has a column `label`: leave out the column, or --label-from-folder", path=table)
    if names.pop("", 0) is None:  # what pandas writes for its row numbers
        search.ignored.append((table, "a column without a name"))
    label_names = [name for name in names if name not in KEYS]
    kinds: dict[str, type] = {}
    for number, row in enumerate(rows, 1):
        try:
            labels = tuple((name, checked_label(name, row.get(name), kinds)) for name in label_names)
            _add_row(search, table, number, row, labels)
        except ValueError as error:
            raise SourceError(f"row {number}: {error}", path=table) from None
        search.count()


def _add_row(search: Search, table: str, number: int, row: Row, labels: Labels) -> None:
    """File one row under units, ignored or problems. Raises ValueError for a row that cannot mean anything."""
    where = f"{os.path.basename(table)} row {number}: "
    given_path, given_id, start, end = map(row.get, KEYS)
    if not isinstance(given_path, str) or not given_path or "\0" in given_path:
        raise ValueError(f"path is {given_path!r}; give the path of a video")
    base = os.path.join(os.path.dirname(table), "")
    path = (
        given_path if is_url(given_path) else os.path.abspath(base + given_path if given_path[0] != "/" else given_path)
    )
    relative = path[len(base) :] if path.startswith(base) else os.path.basename(path)
    cut = checked_seconds("start", start), checked_seconds("end", end)
    if cut[1] is not None and (cut[0] or 0.0) >= cut[1]:
        raise ValueError(f"start {cut[0] or 0.0!r} is not before end {cut[1]!r}; a cut is [start, end) in seconds")
    unit_id = _id_of_cut(search.id_of(relative), cut) if given_id is None else _checked_id(given_id)
    if reason := search.why_left_out(relative, os.path.basename(path)):
        search.ignored.append((path, where + reason))
        return
    if is_url(given_path):
        state = search.remote.state(path)
        if state is None:
            search.refuse(number, Unit(unit_id, path, 0, 0, *cut, labels), where + "no such file")
        else:
            search.add(unit_id, path, state, cut, labels)
        return
    try:
        status = os.stat(path)
        fault = _fault_of_file(path, status)
    except OSError as error:
        fault = _why_not(error, is_link=os.path.islink(path))
    if fault:
        search.refuse(number, Unit(unit_id, path, 0, 0, *cut, labels), where + fault)
    elif search.in_destination(path if os.path.islink(path) else os.path.dirname(path)):
        raise ValueError(f"{one_line(path)} lies in the destination; give a destination outside of the sources")
    else:
        search.add(unit_id, path, _state(status), cut, labels)


def _id_of_cut(unit_id: str, cut: Cut) -> str:
    """In milliseconds of the number as a person writes it, halves up: 1.0005 is 1001, whatever its binary digits."""
    if cut == (None, None):
        return unit_id
    start, end = (None if s is None else int((Decimal(repr(s)) * 1000).to_integral_value(ROUND_HALF_UP)) for s in cut)
    return f"{unit_id}_{start or 0:08d}_" + ("end" if end is None else f"{end:08d}")


def _checked_id(value: object) -> str:
    unit_id = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    fault = _fault_of_output(unit_id, IN_SHARDS)
    if not unit_id.strip() or not {"", ".", ".."}.isdisjoint(unit_id.split("/")):
        fault = "is no plain relative name"
    elif "\\" in unit_id or one_line(unit_id) != unit_id:
        fault = "has a backslash, a control character or what is not Unicode"
    if fault:
        raise ValueError(f"id {value!r} {fault}; give a name such as a/b, without extension")
    return unit_id


def _fault_of_output(unit_id: str, extension: str) -> str | None:
    """Why no output can have this name, or None. What goes into shards has none of its own."""
    output = f"{unit_id}.{extension}"
    top, slash, _ = output.partition("/")
    if slash and (top.lower() == ".vidprep" or fnmatch.fnmatchcase(top.lower(), "manifest*.parquet")):
        return f"would lie in {top}, which vidprep keeps for itself"
    if extension == IN_SHARDS:
        return None
    sizes = [len(os.fsencode(name)) for name in output.split("/")] if len(output) > NAME_MAX_BYTES // 4 else [0]
    return f"has a name of {max(sizes)} bytes, more than {NAME_MAX_BYTES}" if max(sizes) > NAME_MAX_BYTES else None


def _check_outputs(search: Search, source: str, extension: str, *, is_table: bool) -> None:
    faults = [_fault_of_output(unit.id, extension) for unit in search.units]
    search.problems += [
        (unit.path, f"its output {one_line(unit.id)}.{extension} {fault}; rename it")
        for unit, fault in zip(search.units, faults, strict=True)
        if fault
    ]
    search.units = [unit for unit, fault in zip(search.units, faults, strict=True) if not fault]
    pairs = _collisions(search.units, extension)
    if not pairs:
        return
    lines = [" ".join((one_line(a.path), "and", one_line(b.path), "->", one_line(out))) for a, b, out in pairs]
    kept = (replace(unit, id=unit.id + os.path.splitext(unit.path)[1]) for unit in search.units)
    if is_table:
        advice = "give each row its own id, in a column `id`"
    elif search.keep_source_suffix or _collisions(kept, extension):
        advice = "--keep-source-suffix does not tell them apart: rename or --exclude one of each"
    else:
        advice = "tell them apart with --keep-source-suffix"
    message = f"outputs that two sources want (whatever case and Unicode form): {len(pairs)}; {advice}"
    raise SourceError("\n  ".join([message, *lines[:PAIRS_SHOWN]]), path=source)


def _collisions(units: Iterable[Unit], extension: str) -> list[tuple[Unit, Unit, str]]:
    """Pairs that want one output, or where the output of the first is a folder that the second needs."""
    taken: dict[str, Unit] = {}
    folders: dict[str, Unit] = {}
    pairs = []
    for unit in units:
        output = _folded(f"{unit.id}.{extension}")
        if (first := taken.setdefault(output, unit)) is not unit:
            pairs.append((first, unit))
        folder = output.rpartition("/")[0]
        while folder and folder not in folders:
            folders[folder] = unit
            folder = folder.rpartition("/")[0]
    pairs += [(taken[folder], unit) for folder, unit in folders.items() if folder in taken]
    return [(first, second, f"{first.id}.{extension}") for first, second in pairs]


def _folded(name: str) -> str:
    """One form for all names that some file system (macOS, Windows, their shares) takes for the same."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def _nothing_found(ignored: list[tuple[str, str]]) -> str:
    unknown = [path for path, reason in ignored if reason == "unknown extension"]
    suffixes = Counter(os.path.splitext(path)[1].lower() or "none" for path in unknown)
    seen = ", ".join(f"{one_line(suffix)} ({count})" for suffix, count in suffixes.most_common(10))
    return f"no video found; {len(ignored)} ignored, unknown extensions: {seen or 'none'}; a table can name any file"


def _globs(patterns: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(fnmatch.translate, patterns))) if patterns else None


def _state(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino
