"""Turn the rows of a table into units or problems (failed rows of the manifest), and interpret the columns of cuts.

Columns for the start and end of a cut or label have several names in published datasets.
"""
# ruff: noqa: PTH100, PTH109, PTH114, PTH116, PTH118, PTH119, PTH120

from __future__ import annotations

import math
import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from difflib import get_close_matches
from typing import Any

from vidprep.formats.errors import ReadError, SourceError, VidprepError, count_of
from vidprep.formats.model import Cut, SourceState
from vidprep.formats.pictures import PictureSeries, list_pictures
from vidprep.formats.storage.base import check_no_password, is_url
from vidprep.transcode.settings.keep import names_in, rows_kept
from vidprep.transcode.sources._search import SourceSearch, fault_of_file, why_not
from vidprep.transcode.sources.outputs import IN_SHARDS, fault_of_output
from vidprep.transcode.sources.scratch import RemoteFiles
from vidprep.transcode.sources.tables import (
    KEYS,
    SourceTable,
    faults_of_columns,
    is_table,
    one_line,
    read_source_table,
    storable,
)
from vidprep.transcode.sources.unit import Unit

# Words in names of columns. Weak ones mean a time only together with a word for time: `from_timestamp`, not `from`.
BEGINNINGS = {"start", "begin", "onset", "t0"}
ENDS = {"end", "stop", "t1"}
WEAK_BEGINNINGS, WEAK_ENDS = {"from"}, {"to", "until", "offset"}
LENGTHS = {"duration", "length"}
OF_TIME = {"time", "timestamp", "timecode", "ts", "t", "s", "sec", "secs", "second", "seconds"}
OF_FRAMES = {"frame", "frames"}
OTHER_UNITS = {
    "ms": 1000,
    "msec": 1000,
    "millis": 1000,
    "millisecond": 1000,
    "milliseconds": 1000,
    "us": 10**6,
    "ns": 10**9,
}
MIDDLES = {"middle", "mid", "center", "centre"}
FILLERS = {"clip", "video", "segment", "cut", "action", "event", "in", "at", "index", "idx"}
PLACES = ("start", "end", "duration", "start_frame", "end_frame")
STREAM = "video_stream"
TIMECODE = re.compile(r"(?:(\d{1,9}):)?([0-5]?\d):([0-5]?\d(?:\.\d{1,30})?)")
MOST_FRAMES = 2**31 - 1
MAX_RATE = 1000.0


def _place_of(name: str) -> str | None:
    """Return the field of PLACES that a column means, or a unit such as "ms" for times not in seconds; None for a label."""
    last = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.rpartition("/")[2])  # LeRobot: videos/CAMERA/from_timestamp
    words = set(re.findall(r"[a-z]+[0-9]?", last.lower()))
    has_time, has_frames, units = bool(words & OF_TIME), bool(words & OF_FRAMES), words & OTHER_UNITS.keys()
    begins = words & (BEGINNINGS | (WEAK_BEGINNINGS if has_time or has_frames or units else set()))
    ends = words & (ENDS | (WEAK_ENDS if has_time or has_frames or units else set()))
    lengths = words & LENGTHS
    known = begins | ends | lengths | OF_TIME | OF_FRAMES | OTHER_UNITS.keys() | FILLERS
    if len(begins) + len(ends) + len(lengths) != 1 or words - known or (has_frames and (lengths or has_time)):
        return None
    if units:
        return None if has_frames else min(units)
    if lengths:
        return "duration"
    return ("start" if begins else "end") + ("_frame" if has_frames else "")


def _is_middle(name: str) -> bool:
    """Return whether a column may say where the middle of a cut is, such as AVA's `middle_frame_timestamp`."""
    words = set(re.findall(r"[a-z]+", name.lower()))
    return bool(words & MIDDLES and words & (OF_TIME | OF_FRAMES)) and words <= MIDDLES | OF_TIME | OF_FRAMES | FILLERS


@dataclass(frozen=True, slots=True)
class CutColumns:
    """Names of the columns with the start, end and video stream of a cut; None if the table has none."""

    start: str | None = None
    end: str | None = None
    duration: str | None = None
    start_frame: str | None = None
    end_frame: str | None = None
    video_stream: str | None = None

    @property
    def names(self) -> set[str]:
        """Names of the columns that are not labels."""
        return {name for place in (*PLACES, STREAM) if (name := getattr(self, place)) is not None}

    def cuts(self, table: SourceTable) -> Iterator[tuple[Any, ...]]:
        """Yield the cells of each row, for `cut`."""
        columns = [
            None if (name := getattr(self, place)) is None else table.values(name) for place in (*PLACES, STREAM)
        ]
        for number in range(table.num_rows):
            yield tuple(None if column is None else column[number] for column in columns)

    def cut(self, cells: Sequence[Any]) -> Cut:
        """Return the cut of one row. Raises ValueError for invalid cells."""
        start, end, duration = (
            seconds_of(getattr(self, place) or place, value) for place, value in zip(PLACES, cells[:3], strict=False)
        )
        first, last = (
            _frame_of(getattr(self, place) or place, value) for place, value in zip(PLACES[3:], cells[3:5], strict=True)
        )
        stream = _number_of(STREAM, cells[5], "a video stream, from 0; or leave it empty")
        has_seconds = not (start is None and end is None)
        if has_seconds and not (first is None and last is None):
            raise ValueError(
                f"gives {_named(self.start, self.end)} and {_named(self.start_frame, self.end_frame)}; leave one pair empty, or rename it"
            )
        if duration is not None and has_seconds:
            end = float(Decimal(repr(start or 0.0)) + Decimal(repr(duration)))
        if end is not None:
            _check_end(start, end, duration)
        if last is not None and (first or 0) >= last:
            raise ValueError(
                f"start_frame {first or 0} is not before end_frame {last}; a cut is [start_frame, end_frame)"
            )
        return Cut(start, end, first, last, stream)


def _check_end(start: float | None, end: float, duration: float | None) -> None:
    """Raise ValueError for a cut without an end, or that ends before it begins."""
    if not math.isfinite(end):
        raise ValueError(f"start {start!r} and duration {duration!r} have no end; give seconds")
    if (start or 0.0) >= end:
        raise ValueError(f"start {start or 0.0!r} is not before end {end!r}; a cut is [start, end) in seconds")


def _named(*names: str | None) -> str:
    return " and ".join(f"`{one_line(name)}`" for name in names if name is not None)


def cut_columns(names: Iterable[str], path: str) -> CutColumns:
    """Return which columns of a table say where cuts begin and end.

    Columns with exactly the names of PLACES win over others; of others one of each kind is understood.

    Raises:
        SourceError: Two columns mean the same, one counts in another unit than seconds, or one may be the end of a cut that has none. It
            names the column and the remedy.
    """
    names = list(names)
    columns: dict[str, list[str]] = {}
    for name in names:
        place = _place_of(name)
        if place in OTHER_UNITS:
            raise SourceError(
                f"has a column `{one_line(name)}`: if it is where cuts begin or end, divide it by {OTHER_UNITS[place]} and call it "
                "`start` or `end`, which are in seconds; if it is a label, give it a more specific name",
                path=path,
            )
        if place is not None:
            columns.setdefault(place, []).append(name)
    if not ("start" in columns and "end" not in columns):
        columns.pop("duration", None)  # then it is a label: the cut has an end, or there is no cut
    _refuse_half_cuts(names, columns.keys(), path)
    chosen = {place: _one_column(place, several, path) for place, several in columns.items()}
    if STREAM in names:
        chosen[STREAM] = STREAM
    return CutColumns(**chosen)


def _refuse_half_cuts(names: Sequence[str], places: Collection[str], path: str) -> None:
    """Raise SourceError for a column that may be the middle of cuts, or the end of cuts that have none."""
    if not {"start", "start_frame"} & {*places} and (middle := next(filter(_is_middle, names), None)):
        raise SourceError(
            f"has a column `{one_line(middle)}`: a cut has a start and an end; add the columns `start` and `end`, such as 1.5 s before and "
            "after it; if it is a label, give it a more specific name",
            path=path,
        )
    begins = "start" in places or any(name.lower() in WEAK_BEGINNINGS for name in names)
    if not begins or {"end", "duration"} & {*places}:
        return
    has_onset = any("onset" in name.lower() for name in names)
    for name in (name for name in names if name.lower() in WEAK_ENDS - (set() if has_onset else {"offset"})):
        raise SourceError(
            f"has a column `{one_line(name)}`: if it is where cuts end, call it `end`, and `start` where they begin; if it is a label, "
            "give it a more specific name",
            path=path,
        )


def _one_column(place: str, several: Sequence[str], path: str) -> str:
    """Return the column that says a place: the only one, or the one of that name. Raises SourceError."""
    if len(several) > 1 and place not in several:
        raise SourceError(
            f"has the columns {_named(*several)}, which all may say where cuts {place.partition('_')[0]}; call the one that "
            f"does `{place}`, or rename the others",
            path=path,
        )
    return place if place in several else several[0]


def seconds_of(name: str, value: object) -> float | None:
    """Return a time in seconds, from a number or [hh:]mm:ss[.fff]; None for an empty cell. Raises ValueError."""
    if value is None:
        return None
    if isinstance(value, str) and (match := TIMECODE.fullmatch(value.strip())):
        hours, minutes, seconds = match.groups()
        return float(Decimal(int(hours or 0) * 3600 + int(minutes) * 60) + Decimal(seconds))
    with suppress(ValueError, OverflowError):
        is_plain = not isinstance(value, bool) and "_" not in str(value)  # float() would take True and 1_000
        if is_plain and isinstance(value, int | float | str) and 0 <= (given := float(value)) < math.inf:
            return given
    raise ValueError(
        f"{one_line(name)} is {value!r}; give seconds, a number from 0, or hh:mm:ss.fff, or leave it empty; rename the column if it is "
        "a label"
    )


def _frame_of(name: str, value: object) -> int | None:
    return _number_of(name, value, "a frame of the source, from 0")


def _number_of(name: str, value: object, meaning: str) -> int | None:
    if value is None or (name == STREAM and value == "best"):
        return None
    with suppress(ValueError, OverflowError):
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else -1.0
        if 0 <= number <= MOST_FRAMES and number.is_integer() and "_" not in str(value):
            return int(number)
    raise ValueError(f"{one_line(name)} is {value!r}; give the number of {meaning}")


FAULTS_SHOWN = 20
IN_MEMORY = "the table"
SKIPPED = "skipped "
NAMES_OF_PATH = (
    "path",
    "file",
    "filename",
    "file_name",
    "file_path",
    "filepath",
    "video",
    "video_path",
    "video_file",
    "source",
    "src",
)
NOT_KEPT = "left out by --keep"
SCANNED = "scan"  # the column of a table of clips with digest of the settings, size and time of the source
NAMES_OF_LABELS = ("label", "split")  # those that training uses


def _notes_of_names(labels: Sequence[str]) -> dict[str, str]:
    """Return a note for each column whose name is nearly one that training uses; `labels`, of several classes, is none."""
    notes = {}
    for name in {*labels} - {"labels", "splits"}:
        near = get_close_matches(name.strip().lower(), NAMES_OF_LABELS, 1, 0.8)
        if near and near[0] not in labels:
            notes[name] = f"the column {one_line(name)} is a label of that name; rename it if you meant `{near[0]}`"
    return notes


def read_table(
    search: SourceSearch,
    table: object,
    *,
    labels: Sequence[str] | None,
    label_from_folder: bool,
    skips_bad_rows: bool,
    keep: str | None = None,
) -> None:
    """Add each row of a table (a file, or in memory) to a search, as a unit or a problem.

    Args:
        search: The search.
        table: The table.
        labels: Columns that are labels; None means all except `path`, `id` and the columns of cuts.
        label_from_folder: Use the parent folder as the label `label`.
        skips_bad_rows: Ignore invalid rows.
        keep: Condition on the columns, see keep.py.

    Raises:
        SettingsError: A column of the condition is not there, or of another type.
        SourceError: The table is invalid.
    """
    source = read_source_table(table, with_faults=True)
    path = str(table) if isinstance(table, str) else IN_MEMORY
    names = list(source.columns)
    _check_has_paths(source, names, path)
    if "" in names:  # pandas writes its row numbers like this
        names.remove("")
        search.ignored.append((path, "a column without a name"))
    places = cut_columns(names, path)
    chosen = choose_labels([name for name in names if name not in KEYS and name not in places.names], labels, path)
    _check_names(chosen, path, label_from_folder=label_from_folder)
    cuts, notes = _cuts_and_notes(source, places, path)
    source = replace(source, notes={**notes, **source.notes})
    search.table = replace(source.select(chosen), notes={**source.select(chosen).notes, **_notes_of_names(chosen)})
    faults = faults_of_columns(search.table)
    rows = zip(*(source.values(name) for name in KEYS), cuts, strict=True)
    scanned = source.values(SCANNED) if SCANNED in names else [None] * source.num_rows
    remote, left_out = RemoteFiles(), rows_left_out(keep, source, path) if keep is not None else frozenset[int]()
    for number, (given_path, given_id, cells) in enumerate(rows):
        if number in left_out:
            search.ignored.append((str(given_path), NOT_KEPT))
            continue
        try:
            if number in faults:
                raise ValueError(faults[number])
            cut = places.cut(cells)
            _add_row(
                search, remote, "" if is_table(table) else path, number, given_path, given_id, cut, scanned[number]
            )
        except ValueError as error:
            faults[number] = str(error)
        search.count()
    faults |= _same_cuts(search)
    if skipped := fault_lines(faults, path, skips_bad_rows=skips_bad_rows):
        search.why_partial = f"{count_of(len(skipped), 'row')} of the table skipped"
        search.ignored += [(path, f"{SKIPPED}{why}") for why in skipped]
    if remote.fault is not None and not remote.answered and not search.units:
        raise remote.fault


def rows_left_out(keep: str, source: SourceTable, path: str) -> frozenset[int]:
    """Return the rows (from 0) for which a condition does not hold. Raises SettingsError."""
    import numpy as np

    names = names_in(keep) & source.columns.keys()
    kept = rows_kept(keep, {name: source.array(name) for name in names}, source.num_rows, path)
    return frozenset(np.flatnonzero(~kept).tolist())


def _check_has_paths(found: SourceTable, names: Sequence[str], path: str) -> None:
    """Raise SourceError for a table without rows, or without a column `path`, with the column that may be meant."""
    columns = ", ".join(map(one_line, names))
    if not found.num_rows:
        first = f" below its first line, which names the columns ({','.join(map(one_line, names))})" if names else ""
        raise SourceError(f"has no rows{first}", path=path)
    if "path" in names:
        return
    like = next((name for name in names if name.strip().lower().replace(" ", "_") in NAMES_OF_PATH), None)
    meant = f"; rename `{one_line(like)}` to `path`" if like is not None else ""
    if not meant and any("." in name or "/" in name for name in names):
        meant = "; its first line must name the columns, such as path,label"
    raise SourceError(f"has no column `path`; columns: {columns}{meant}", path=path)


def _cuts_and_notes(found: SourceTable, places: CutColumns, path: str) -> tuple[list[tuple[Any, ...]], dict[str, str]]:
    """Return the cells of each row's cut: by seconds alone where those by frames agree with them, which is noted."""
    cuts, paths = list(places.cuts(found)), found.values("path")
    equal = _find_equal_cuts(paths, cuts, places, path)
    if not equal:
        return cuts, {}
    alone = [
        _drop_frames(cells) if isinstance(source, str) and source in equal else cells
        for source, cells in zip(paths, cuts, strict=True)
    ]
    return alone, {"": "cuts are given in seconds and in frames, which agree; those in seconds were taken"}


def _drop_frames(cells: Sequence[Any]) -> tuple[Any, ...]:
    """Return the cells of a cut without a frame where the same end is given in seconds."""
    start, end, duration, first, last, stream = cells
    return start, end, duration, first if start in (None, "") else None, last if end in (None, "") else None, stream


def _find_equal_cuts(paths: Sequence[Any], cuts: Sequence[Sequence[Any]], places: CutColumns, path: str) -> set[Any]:
    """Return the sources whose rows give cuts both in seconds and in frames, which agree to within a frame at some frame rate.

    Raises:
        SourceError: Those of another source agree at none.
    """
    if {places.start, places.end} == {None} or {places.start_frame, places.end_frame} == {None}:
        return set()
    rates: dict[Any, tuple[float, float]] = {}
    num_points: Counter[Any] = Counter()
    apart: list[int] = []
    for number, (source, (start, end, _, first, last, _)) in enumerate(zip(paths, cuts, strict=True)):
        with suppress(ValueError, TypeError):  # told row by row
            given = [(seconds_of("start", start), _frame_of("", first)), (seconds_of("end", end), _frame_of("", last))]
            points = [(seconds, frame) for seconds, frame in given if seconds is not None and frame is not None]
            least, most = rates.get(source, (0.0, MAX_RATE))
            least = max([least, *((frame - 1) / max(seconds, 1e-9) for seconds, frame in points)])
            most = min([most, *((frame + 1) / max(seconds, 1e-9) for seconds, frame in points)])
            num_points[source] += len(points)
            if least <= most:
                rates[source] = least, most
            elif num_points[source] > 1:
                apart.append(number)
    if apart:
        seconds, frames = _named(places.start, places.end), _named(places.start_frame, places.end_frame)
        raise SourceError(
            f"gives cuts by {seconds} and by {frames}, which differ by more than a frame, whatever the frame rate, in "
            f"{count_of(len(apart), 'row')}, first in row {apart[0] + 1}; leave out one pair",
            path=path,
        )
    return {source for source in rates if num_points[source] > 1}


def fault_lines(faults: Mapping[int, str], path: str, *, skips_bad_rows: bool) -> list[str]:
    """Return a line for each invalid row (from 0). Raises SourceError with the first ones, unless they are skipped."""
    lines = [f"row {number + 1}: {why}" for number, why in sorted(faults.items())]
    if not lines or skips_bad_rows:
        return lines
    more = [f"and {len(lines) - FAULTS_SHOWN} more"] if len(lines) > FAULTS_SHOWN else []
    raise SourceError(
        "\n  ".join(
            [
                *lines[:FAULTS_SHOWN],
                *more,
                "fix the table (row 1 is below the names of columns), or give --on-bad-row skip",
            ]
        ),
        path=path,
    )


def choose_labels(names: list[str], labels: Sequence[str] | None, path: str) -> list[str]:
    """Return the columns that become labels. Raises SourceError."""
    if labels is None:
        return names
    if missing := [name for name in labels if name not in names]:
        columns = ", ".join(map(one_line, names)) or "none"
        raise SourceError(f"--labels: has no column {one_line(missing[0])}; its labels: {columns}", path=path)
    return list(dict.fromkeys(labels))


def _check_names(labels: list[str], path: str, *, label_from_folder: bool) -> None:
    """Raise SourceError for a column `label` beside `--label-from-folder`, or for a name that is not valid Unicode."""
    if label_from_folder and "label" in labels:
        raise SourceError("has a column `label`: leave out the column, or --label-from-folder", path=path)
    if odd := [name for name in labels if storable(name) != name]:
        raise SourceError(f"has a column {one_line(odd[0])}, whose name is not valid Unicode; rename it", path=path)


def _same_cuts(search: SourceSearch) -> dict[int, str]:
    """Merge rows with the same cut, source and name into one unit. Return faults of rows that give it other labels."""
    assert search.table is not None
    first: dict[tuple[Any, ...], Unit] = {}
    twins: list[tuple[Unit, Unit]] = []
    for unit in search.units:
        key = unit.id, unit.path, unit.cut
        if (one := first.setdefault(key, unit)) is not unit:
            twins.append((one, unit))
    if not twins:
        return {}
    search.units = list(first.values())
    columns = [search.table.values(name) for name in search.table.columns]
    faults = {}
    for one, other in twins:
        if all(repr(values[one.row]) == repr(values[other.row]) for values in columns):
            search.ignored.append((other.path, f"row {other.row + 1}: the same cut again"))
        else:
            faults[other.row] = f"the same cut as row {one.row + 1}, with other labels"
    return faults


def _add_row(
    search: SourceSearch,
    remote: RemoteFiles,
    table: str,
    number: int,
    given_path: Any,
    given_id: Any,
    cut: Cut,
    scanned: object,
) -> None:
    """Add one row, counted from 0, to units, ignored or problems. Raises ValueError for an invalid row."""
    where = f"{os.path.basename(table) or IN_MEMORY} row {number + 1}: "
    path, relative = _paths_of(given_path, os.path.join(os.path.dirname(table) or os.getcwd(), ""))
    unit_id = id_of_cut(search.id_of(relative), cut) if given_id is None else check_id(given_id)
    if reason := search.why_left_out(relative, os.path.basename(path)):
        search.ignored.append((path, where + reason))
        return
    state, fault = _look_at(path, remote, takes_pictures=search.takes_pictures)
    if isinstance(state, SourceState) and _is_another(state, scanned):
        state, fault = None, "another file than the one that was scanned; run the scan again"
    if state is None:
        search.refuse(number + 1, Unit(unit_id, path, 0, 0, cut, row=number), where + fault)
        return
    is_series = isinstance(state, PictureSeries)
    if not is_url(path) and search.in_destination(path if is_series or os.path.islink(path) else os.path.dirname(path)):
        raise ValueError(f"{one_line(path)} is inside the destination; give a destination outside of the sources")
    if isinstance(state, PictureSeries):  # a folder has no extension
        search.add_series(id_of_cut(relative, cut) if given_id is None else unit_id, path, state, cut, number)
    else:
        search.add(unit_id, path, state, cut, number)


def _is_another(state: SourceState, scanned: object) -> bool:
    """Return whether a file has another size than the one that `scan` read (not another time: copies may have one)."""
    cells = str(scanned).split(" ")
    return len(cells) == 3 and cells[1].isdigit() and int(cells[1]) != state.size_bytes


def _paths_of(given: Any, base: str) -> tuple[str, str]:
    """Return the path of a row or its URL, and the path relative to `base`, or the name. Raises ValueError for none."""
    if given is None or given == "":
        raise ValueError("path is empty; give the path of a video")
    if not isinstance(given, str) or "\0" in given:
        raise ValueError(f"path is {given!r}; give the path of a video")
    path = given.removeprefix("file://")
    if is_url(path):
        check_no_password(path)
    else:
        path = os.path.abspath(base + path if path[0] != "/" else path)
    return path, path[len(base) :] if path.startswith(base) else os.path.basename(path)


def _look_at(path: str, remote: RemoteFiles, *, takes_pictures: bool) -> tuple[SourceState | PictureSeries | None, str]:
    """Return the state of a file, or the pictures of a folder; or None and why there is neither."""
    try:
        if is_url(path):
            return remote.state(path), "no such file"
        status = os.stat(path)
        if takes_pictures and stat.S_ISDIR(status.st_mode) and storable(path) == path:
            return list_pictures(path), ""
        fault = fault_of_file(path, status)
        return (None, fault) if fault else (SourceState.build(status), "")
    except ReadError as error:
        return None, str(error) if is_url(path) else error.message
    except VidprepError as error:
        if not is_url(path):
            raise
        return None, str(error)
    except OSError as error:
        if is_url(path):
            raise
        return None, why_not(error, is_link=os.path.islink(path))


def id_of_cut(unit_id: str, cut: Cut) -> str:
    """Return the id of a cut: its stream, if it names one; then times in milliseconds, of the decimal number as written,
    halves rounded up (1.0005 is 1001), or frames.
    """
    if cut.video_stream is not None:
        unit_id, cut = f"{unit_id}_stream{cut.video_stream}", replace(cut, video_stream=None)
    if not cut:
        return unit_id
    if cut.start_frame is not None or cut.end_frame is not None:
        return f"{unit_id}_f{cut.start_frame or 0:08d}_" + ("end" if cut.end_frame is None else f"f{cut.end_frame:08d}")
    start, end = (
        None if s is None else int((Decimal(repr(s)) * 1000).to_integral_value(ROUND_HALF_UP))
        for s in (cut.start_seconds, cut.end_seconds)
    )
    return f"{unit_id}_{start or 0:08d}_" + ("end" if end is None else f"{end:08d}")


def check_id(value: object) -> str:
    unit_id = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    fault = fault_of_output(unit_id, IN_SHARDS)
    if not unit_id.strip() or not {"", ".", ".."}.isdisjoint(unit_id.split("/")):
        fault = "is not a plain relative name"
    elif "\\" in unit_id or one_line(unit_id) != unit_id:
        fault = "has a backslash, a control character, or a character that is not Unicode"
    if fault:
        raise ValueError(f"id {value!r} {fault}; give a name such as a/b, without extension")
    return unit_id
