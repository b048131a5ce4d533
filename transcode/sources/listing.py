"""Turn a folder, file or table into units with names, cuts and labels. Opens no video.

An error in the list as a whole (missing, colliding, malformed, inside the destination) is a SourceError before any
work. A single unreadable file becomes an entry of `problems`; a file that is no source becomes an entry of `ignored`.
Paths are strings: a million Path objects would cost more than listing the folder.
"""
# ruff: noqa: PTH100, PTH109, PTH110, PTH112, PTH114, PTH116, PTH118, PTH119, PTH120, PTH122

from __future__ import annotations

import fnmatch
import os
import re
import stat
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from vidprep.formats.errors import ReadError, SourceError, count_of
from vidprep.formats.model import SourceState
from vidprep.formats.pictures import PICTURE_EXTENSIONS, is_numbered_picture, series_of
from vidprep.formats.storage.base import is_url
from vidprep.formats.storage.untrusted import open_regular
from vidprep.transcode.settings.run import SourceOptions
from vidprep.transcode.sources._search import Identity, MissingFile, SourceSearch, fault_of_file, identity_of, why_not
from vidprep.transcode.sources.captions import BESIDE, CAPTION, CAPTIONS, columns_of, note_of, read_captions
from vidprep.transcode.sources.outputs import STATE_DIR, check_outputs
from vidprep.transcode.sources.robot import episode_table, is_robot_dataset
from vidprep.transcode.sources.scratch import list_remote
from vidprep.transcode.sources.table_rows import IN_MEMORY, NOT_KEPT, SKIPPED, read_table
from vidprep.transcode.sources.tables import (
    READERS,
    STILL_OR_ANIMATED,
    VIDEO_EXTENSIONS,
    SourceTable,
    is_animated,
    is_table as in_memory,
    one_line,
    storable,
)
from vidprep.transcode.sources.unit import SourceList, SplitDrawing, Unit, groups_of

if TYPE_CHECKING:
    import pyarrow as pa

    from vidprep.formats.manifest.labels import Labels


def labels_of(
    units: Sequence[Unit],
    table: SourceTable | None,
    given: SourceOptions,
    path: str,
    base: str,
    captions: Mapping[str, list[str] | None] | None,
) -> tuple[Labels | None, SplitDrawing | None]:
    """Return the labels of units, in their order (None if there are none), and how splits are drawn.

    Args:
        units: The units.
        table: Their table; None for a folder.
        given: Options.
        path: The source, for messages.
        base: Folder to which paths are relative.
        captions: Captions by path; None if they are not asked for.

    Raises:
        SourceError: A manifest cannot hold a column, or a column occurs twice.
    """
    if captions is not None:  # what is not known changes no label
        units = [unit for unit in units if captions.get(unit.path, []) is not None]
    made = (given.label_from_folder, given.split_from_folder, captions is not None, given.split_by is not None)
    if not (table is not None and table.columns) and not any(made):
        return None, None
    import pyarrow as pa

    from vidprep.formats.manifest.labels import CLASS_LABEL, SPLIT_LABEL, Labels

    columns = _columns_of(units, table, path) if table is not None else {}
    if given.label_from_folder:
        folders = [os.path.basename(os.path.dirname(unit.path)) for unit in units]
        columns[CLASS_LABEL] = pa.array(folders, pa.string())
    if captions is not None:
        columns |= _columns_of_captions(units, captions, columns, path)
    if (given.split_from_folder or given.split_by is not None) and SPLIT_LABEL in columns:
        name = "--split-by" if given.split_by is not None else "--split-from-folder"
        raise SourceError(f"has a column `split`: leave out the column, or {name}", path=path)
    if given.split_from_folder:
        above = [unit.id.split("/")[0] if "/" in unit.id else None for unit in units]
        columns[SPLIT_LABEL] = pa.array(above, pa.string())
    return Labels([unit.id for unit in units], columns), _drawing(units, columns, given, path, base)


def _columns_of_captions(
    units: Sequence[Unit], captions: Mapping[str, list[str] | None], others: Mapping[str, pa.Array], path: str
) -> Mapping[str, pa.Array]:
    """Return the columns of captions, for these units. Raises SourceError if a table has one, too."""
    if twice := others.keys() & {CAPTION, CAPTIONS}:
        raise SourceError(f"has a column `{min(twice)}`: leave out the column, or --captions", path=path)
    return columns_of([captions.get(unit.path) or [] for unit in units])


def _columns_of(units: Sequence[Unit], table: SourceTable, path: str) -> dict[str, pa.Array]:
    """Return the columns of a table, for its units. Raises SourceError for one that a manifest cannot hold."""
    import pyarrow as pa

    columns: dict[str, pa.Array] = {}
    rows = pa.array([unit.row for unit in units], pa.int64())
    for name in table.columns:
        try:
            columns[name] = table.array(name).take(rows)
        except ValueError as error:
            raise SourceError(f"{error}; leave it out with --labels, or change it", path=path) from error
    return columns


def _drawing(
    units: Sequence[Unit], columns: Mapping[str, pa.Array], given: SourceOptions, path: str, base: str
) -> SplitDrawing | None:
    """Return how splits are drawn; None if they are not. Raises SourceError for a label that is not there."""
    from vidprep.formats.manifest.labels import CLASS_LABEL, values_of

    if given.split_by is None:
        return None
    classes = values_of(columns[CLASS_LABEL]) if CLASS_LABEL in columns else [None] * len(units)
    if (column := given.split_group) is not None and column not in columns:
        raise SourceError(f"--split-group: has no label {one_line(column)}", path=path)
    groups = groups_of([unit.id for unit in units], [unit.path for unit in units], columns, column)
    folder = base if column is None else ""
    return SplitDrawing(groups, classes, given.split_by, column, given.split_seed, folder)


PICTURE = "a numbered picture, which --source-fps would take"
PICTURE_UNNUMBERED = "a picture without a number"
PICTURE_BESIDE = "a numbered picture beside videos"
NUMBERED = (PICTURE, PICTURE_BESIDE)
NOT_LISTED = "folder cannot be listed"


def walk(search: SourceSearch, root: str) -> None:
    """List all files of a folder, in no particular order. It uses its own stack: trees may be deeper than Python recurses."""
    _check_no_destination(root, "is this DST, and SRC the other? Give the folder of the raw videos")
    stack = [(root, "", frozenset([identity_of(os.stat(root))]))]
    while stack:
        folder, prefix, above = stack.pop()
        pictures: list[os.DirEntry[str]] = []
        num_units = len(search.units)
        for entry in _entries(search, folder, is_root=not prefix):
            relative = prefix + entry.name
            if is_numbered_picture(entry.name) and _is_still(entry):
                pictures.append(entry)
            elif reason := _why_ignored(search, entry, relative, above):
                search.ignored.append((entry.path, reason))
            elif fault := _fault_of_entry(entry):
                if not isinstance(fault, MissingFile):
                    search.why_partial = f"{entry.path}: {fault}"
                search.problems.append((entry.path, fault))
            elif entry.is_dir():
                _check_no_destination(entry.path, "give the folder of the raw videos, or --exclude it")
                stack.append((entry.path, relative + "/", above | {identity_of(entry.stat())}))
            else:
                search.add(search.id_of(relative), entry.path, SourceState.build(entry.stat()))
            search.count()
        if pictures:
            _add_pictures(search, folder, prefix.rstrip("/"), pictures, has_videos=len(search.units) > num_units)


def _is_still(entry: os.DirEntry[str]) -> bool:
    """Return whether the entry of a numbered picture is a file, and no animation."""
    try:
        return entry.is_file() and not (entry.name.lower().endswith(".webp") and is_animated(entry.path))
    except OSError:
        return False


def _add_pictures(
    search: SourceSearch, folder: str, relative: str, pictures: list[os.DirEntry[str]], *, has_videos: bool
) -> None:
    """Add the numbered pictures of a folder as one video, or to the files that are ignored."""
    if not search.takes_pictures or has_videos:
        why = PICTURE_BESIDE if search.takes_pictures else PICTURE
        search.ignored += [(entry.path, why) for entry in pictures]
        return
    name = os.path.basename(folder)
    if reason := search.why_left_out(relative or name, name):
        search.ignored.append((folder, reason))
        return
    try:
        series = series_of(folder, [(entry.name, SourceState.build(entry.stat())) for entry in pictures])
    except (ReadError, OSError) as error:
        search.problems.append((folder, error.message if isinstance(error, ReadError) else str(error)))
        return
    if storable(folder) != folder:
        search.problems.append((folder, "its name is not valid UTF-8, which a manifest cannot hold; rename it"))
        return
    search.add_series(relative or name, folder, series)


def _check_no_destination(folder: str, advice: str) -> None:
    if os.path.exists(f"{folder}/{STATE_DIR}/run.json"):
        raise SourceError(f"is a destination of vidprep, which contains outputs and not sources; {advice}", path=folder)


def _entries(search: SourceSearch, folder: str, *, is_root: bool) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError as error:
        if is_root:
            raise SourceError(f"{NOT_LISTED}: {error.strerror}", path=folder) from error
        search.why_partial = f"a folder cannot be listed: {folder}"
        search.problems.append((folder, f"{NOT_LISTED}: {error.strerror}; allow it, or --exclude it"))


def _why_ignored(
    search: SourceSearch, entry: os.DirEntry[str], relative: str, above: frozenset[Identity]
) -> str | None:
    """Return why an entry is no source and no folder to enter; None if it is. A file that is clearly no video costs no
    stat.
    """
    name = entry.name
    if name.startswith("."):
        return "hidden name"
    extension = name.rpartition(".")[2].lower() if "." in name else ""
    is_video = extension in VIDEO_EXTENSIONS
    identity = None
    try:
        if extension in STILL_OR_ANIMATED and entry.is_file() and not (is_video := is_animated(entry.path)):
            return "a still picture"
        if extension in PICTURE_EXTENSIONS and not is_video and entry.is_file():
            return PICTURE_UNNUMBERED
        if not is_video and entry.is_file(follow_symlinks=False):
            return "unknown extension"
        is_folder, identity = entry.is_dir(), identity_of(entry.stat())
    except OSError as error:
        is_folder = entry.is_dir(follow_symlinks=False)
        if not is_folder and not is_video:
            return why_not(error, is_link=entry.is_symlink())
    if _leads_to_destination(search, entry, identity):
        return "the destination"  # only the folder itself and links into it can be met outside of it
    if not is_folder:
        return search.why_left_out(relative, name) if is_video else "unknown extension"
    if search.excludes(relative, name):
        return "excluded"
    return "a link back to a folder that contains it" if identity in above else None


def _leads_to_destination(search: SourceSearch, entry: os.DirEntry[str], identity: Identity | None) -> bool:
    if identity is not None and identity == search.destination_identity:
        return True
    return entry.is_symlink() and search.in_destination(entry.path)


def _fault_of_entry(entry: os.DirEntry[str]) -> str | None:
    try:
        status = entry.stat()  # kept by the entry: after the first time it costs nothing
    except OSError as error:
        return why_not(error, is_link=entry.is_symlink())
    return None if stat.S_ISDIR(status.st_mode) else fault_of_file(entry.path, status)


def find_sources(
    source: Path | str | object,
    destination: Path | str,
    options: SourceOptions,
    *,
    extension: str = "mp4",
    takes_pictures: bool = False,
    progress: Callable[[int], None] | None = None,
) -> SourceList:
    """Return the units of a folder, a file, or a table (.csv, .tsv, .parquet, .jsonl, or in memory: Arrow, pandas,
    polars). Places may be URLs (str).

    Args:
        source: Folder, file or table.
        destination: The destination, which must not contain sources.
        options: Which sources, with which labels. A single file ignores `include` and `exclude`.
        extension: Extension of the outputs.
        takes_pictures: Whether a folder of numbered pictures is a video.
        progress: Called with the number of files or rows so far, every 10,000.

    Raises:
        SourceError: The list as a whole is invalid.
    """
    into, there = _place_of(destination)
    include, exclude, labels = options.include, options.exclude, options.labels
    search = SourceSearch(
        into,
        there,
        _globs(include),
        _globs(exclude),
        options.keep_source_suffix,
        progress,
        takes_pictures=takes_pictures,
    )
    narrowed = (("--limit", options.limit), ("--include", include), ("--exclude", exclude))
    search.why_partial = next((f"{name} leaves out some" for name, value in narrowed if value), None)
    finish = partial(_source_list, search, extension, options)
    reads = partial(
        read_table,
        search,
        labels=labels,
        label_from_folder=options.label_from_folder,
        skips_bad_rows=options.on_bad_row == "skip",
        keep=options.keep,
    )
    if isinstance(source, str):
        _refuse_of_tables(source, options)
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
        _refuse_of_tables(path, options)
    if not is_folder:
        _check_file(path, status, is_table=is_table)
    if not is_table:
        _check_outside(path, status, search, destination)
    if is_folder:
        _check_around(path, into, destination)
        if is_robot_dataset(source):
            episodes, depth = episode_table(Path(path))
            search.ignored += [(each, "a map of depth") for each in depth]
            reads(episodes)
            return finish(path, path, is_table=True)
        walk(search, path)
    elif is_table:
        reads(path)
    else:
        search.why_partial = "one file is not a full listing"
        search.add(search.id_of(os.path.basename(path)), path, SourceState.build(status))
    return finish(path, path if is_folder else os.path.dirname(path), is_table=is_table)


def _place_of(destination: Path | str) -> tuple[str, Identity | None]:
    """Return the path of a destination with a slash, and what identifies the folder, if there is one."""
    into = os.path.join(destination if isinstance(destination, str) else os.path.realpath(destination), "")
    return into, identity_of(os.stat(into)) if isinstance(destination, Path) and os.path.isdir(into) else None


def _check_outside(path: str, status: os.stat_result, search: SourceSearch, destination: Path | str) -> None:
    """Raise SourceError for a source that is the destination, or inside of it."""
    if identity_of(status) == search.destination_identity:
        raise SourceError("is the destination, too; give a destination outside of it", path=path)
    if search.in_destination(path):
        raise SourceError(f"is inside the destination {destination}; give a destination outside of it", path=path)


def _check_around(path: str, into: str, destination: Path | str) -> None:
    """Raise SourceError if a folder of sources holds the destination."""
    if into.startswith(os.path.join(os.path.realpath(path), "")):
        raise SourceError(f"holds the destination {destination}; give a destination outside of it", path=path)


def _check_file(path: str, status: os.stat_result, *, is_table: bool) -> None:
    """Raise SourceError for a file that is neither a video nor a table."""
    if os.path.splitext(path)[1].lower() in RECORDINGS:
        raise SourceError(f"is no video: {EXPORTED}", path=path)
    if fault := fault_of_file(path, status):
        raise SourceError(f"{fault}; give a folder, a video or a table", path=path)
    if not is_table and (like := _table_like(path)) is not None:
        raise SourceError(
            f"is text, and neither a video nor a table ({', '.join(READERS)}); a .csv would begin: {like}", path=path
        )


def _table_like(path: str) -> str | None:
    """Return the first lines of a table that would do in place of a text file; None if it may be a video."""
    if os.path.splitext(path)[1][1:].lower() in VIDEO_EXTENSIONS:
        return None
    with open_regular(path) as file:
        head = file.read(LIST_BYTES)
    if not (b"\n" in head or head[:1] in (b"[", b"{")) or b"\0" in head:
        return None
    with suppress(UnicodeDecodeError):
        text = getincrementaldecoder("utf-8-sig")().decode(head)
        cells = re.split(r"[\s,;]+", text.strip().partition("\n")[0].strip())
        is_list = len(cells) == 2 and "." in cells[0]
        return f"`path,label` and {f'`{one_line(cells[0])},{one_line(cells[1])}`' if is_list else '`videos/a.mp4,jumping`'}"
    return None


def _refuse_of_tables(path: str, options: SourceOptions) -> None:
    for name, value in (("--labels", options.labels), ("--keep", options.keep)):
        if value is not None:
            raise SourceError(f"{name} takes columns of a table, which this is not", path=path)


def _source_list(
    search: SourceSearch, extension: str, given: SourceOptions, path: str, base: str, *, is_table: bool
) -> SourceList:
    """Return the list from a search.

    Args:
        search: The search.
        extension: Extension of the outputs.
        given: Options of the list.
        path: The source, for messages.
        base: Folder to which paths are relative.
        is_table: Whether the source is a table.
    """
    if not search.units and not search.problems:
        raise SourceError(_nothing_found(search.ignored), path=path)
    search.units.sort(key=attrgetter("id", "path"))
    if given.limit is not None:
        del search.units[given.limit :]
    captions = _take_captions(search) if given.captions else None
    check_outputs(search, path, extension, is_table=is_table)
    sharers = Counter(unit.path for unit in search.units)
    units = [unit if sharers[unit.path] == 1 else replace(unit, sharers=sharers[unit.path]) for unit in search.units]
    units.sort(key=attrgetter("size_bytes"), reverse=True)  # stable: equal sizes stay in the order of their ids
    read = BESIDE if given.captions else ()
    ignored = sorted((storable(path), why) for path, why in search.ignored if not path.endswith(read))
    problems = sorted((storable(path), why, number) for number, (path, why) in enumerate(search.problems))
    own_ids = _ids_of_their_own(search)
    labelled = [*units, *(own_ids[number] for _, _, number in problems if number in own_ids)]
    labels, drawing = labels_of(labelled, search.table, given, path, base, captions)
    return SourceList(
        tuple(units),
        tuple(ignored),
        tuple((path, why) for path, why, _ in problems),
        tuple(own_ids.get(number) for _, _, number in problems),
        labels,
        search.why_partial or (None if units else "no video could be listed"),
        drawing,
        (*_notes(search, given, base), *note_of(captions)),
    )


def _take_captions(search: SourceSearch) -> dict[str, list[str] | None]:
    """Return the captions of the units by path. A unit whose captions cannot be read (None) cannot be started."""
    if remote := next((unit.path for unit in search.units if is_url(unit.path)), None):
        raise SourceError(
            "--captions reads files beside videos on this machine; give a table with a column caption", path=remote
        )
    captions, units = dict[str, list[str] | None](), search.units
    search.units = []
    for unit in units:
        try:
            captions[unit.path] = captions.get(unit.path) or read_captions(unit.path)
            search.units.append(unit)
        except SourceError as error:
            captions[unit.path] = None
            search.refuse(unit.row, unit, str(error))
    return captions


def _notes(search: SourceSearch, given: SourceOptions, base: str) -> tuple[str, ...]:
    """Return what is told of a table, or of a folder with videos both in folders and beside them."""
    if search.table is not None:
        return tuple(search.table.notes.values())
    splits = sorted({unit.id.split("/")[0] for unit in search.units if "/" in unit.id})
    if given.split_from_folder and not any("train" in name.lower() for name in splits):
        return (f"no split is for training: {', '.join(map(one_line, splits[:5])) or 'there is no folder'}",)
    beside = [unit.id for unit in search.units if "/" not in unit.id]
    if not beside or len(beside) == len(search.units):
        return ()
    counted = f"{count_of(len(beside), 'video')} in no folder, such as {one_line(beside[0])}"
    labels = [f"label `{os.path.basename(base)}`"] * given.label_from_folder + ["no split"] * given.split_from_folder
    return (f"{counted}: {' and '.join(labels)}",) if labels else ()


def _ids_of_their_own(search: SourceSearch) -> dict[int, Unit]:
    """Return the units of a table's problems, by their index in `problems`, with unique ids, so that no row is lost."""
    taken = {unit.id for unit in search.units} if search.asked else set()
    ids = {}
    for place, (number, unit) in search.asked.items():
        name = unit.id
        while name in taken:
            name += f" (row {number})"
        taken.add(name)
        ids[place] = replace(unit, id=name)
    return ids


LIST_BYTES = 1 << 12
RECORDINGS = {".hdf5", ".h5", ".mcap", ".bag", ".db3", ".tfrecord", ".zarr"}
EXPORTED = "HDF5, MCAP, ROS bags, RLDS and Zarr hold recordings: export videos, rows and a table of episodes, as docs/robots.md shows"


def _nothing_found(ignored: list[tuple[str, str]]) -> str:
    if skipped := [reason.removeprefix(SKIPPED) for _, reason in ignored if reason.startswith(SKIPPED)]:
        return f"no row left: {count_of(len(skipped), 'row')} skipped as --on-bad-row skip asks; {skipped[0]}"
    if ignored and all(reason == NOT_KEPT for _, reason in ignored):
        return f"no row left: --keep holds for none of {count_of(len(ignored), 'row')}"
    if left_out := [path for path, reason in ignored if reason in ("not included", "excluded")]:
        return (
            f"no video left: --include and --exclude, globs such as '*.mp4', leave out all files: {_suffixes(left_out)}"
        )
    if pictures := {os.path.dirname(path) for path, reason in ignored if reason == PICTURE}:
        return (
            f"no video found, but numbered pictures in {count_of(len(pictures), 'folder')}; --source-fps R makes a video of each "
            "folder, at R pictures a second"
        )
    unknown = [path for path, reason in ignored if reason == "unknown extension"]
    are_recordings = not RECORDINGS.isdisjoint(os.path.splitext(path)[1].lower() for path in unknown)
    return f"no video found; {len(ignored)} ignored, unknown extensions: {_suffixes(unknown) or 'none'}; " + (
        EXPORTED if are_recordings else "a table can name videos of any extension"
    )


def _suffixes(paths: Sequence[str]) -> str:
    """Return the most frequent suffixes of files, with their numbers."""
    counts = Counter(os.path.splitext(path)[1].lower() or "none" for path in paths)
    return ", ".join(f"{one_line(suffix)} ({count})" for suffix, count in counts.most_common(10))


def _globs(patterns: Sequence[str]) -> re.Pattern[str] | None:
    """Return one regular expression for all globs; None without any. A folder may be given as `a/`, as shells complete it."""
    kept = [pattern.rstrip("/") or pattern for pattern in patterns]
    return re.compile("|".join(map(fnmatch.translate, kept))) if kept else None
