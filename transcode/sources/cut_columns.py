"""Columns of a table that say where a cut or a label begins and ends, under the names that data sets give them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from vidprep.formats.errors import SourceError
from vidprep.formats.model import Cut
from vidprep.transcode.sources.tables import SourceTable, one_line

# Words of a column's name. Weak ones mean a time only beside a word for time: `from_timestamp`, not `from`.
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
FILLERS = {"clip", "video", "segment", "cut", "action", "event", "in", "at", "index", "idx"}
PLACES = ("start", "end", "duration", "start_frame", "end_frame")
TIMECODE = re.compile(r"(?:(\d{1,9}):)?([0-5]?\d):([0-5]?\d(?:\.\d{1,30})?)")
MOST_FRAMES = 2**31 - 1


def _place_of(name: str) -> str | None:
    """Return which of PLACES a column stands for, or "ms" and the like for a time in a unit other than seconds; None for a label."""
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


@dataclass(frozen=True, slots=True)
class CutColumns:
    """Names of the columns that say where a cut begins and ends; None where the table has no such column."""

    start: str | None = None
    end: str | None = None
    duration: str | None = None
    start_frame: str | None = None
    end_frame: str | None = None

    @property
    def names(self) -> set[str]:
        """The columns that are no labels."""
        return {name for place in PLACES if (name := getattr(self, place)) is not None}

    def cuts(self, table: SourceTable) -> Iterator[tuple[Any, ...]]:
        """Yield the cells of each row, for `cut`."""
        columns = [None if (name := getattr(self, place)) is None else table.values(name) for place in PLACES]
        for number in range(table.num_rows):
            yield tuple(None if column is None else column[number] for column in columns)

    def cut(self, cells: Sequence[Any]) -> Cut:
        """Return the cut of one row. Raises ValueError for cells that mean none."""
        start, end, duration = (
            seconds_of(getattr(self, place) or place, value) for place, value in zip(PLACES, cells[:3], strict=False)
        )
        first, last = (
            _frame_of(getattr(self, place) or place, value) for place, value in zip(PLACES[3:], cells[3:], strict=True)
        )
        has_seconds = not (start is None and end is None)
        if has_seconds and not (first is None and last is None):
            raise ValueError(
                f"gives {_named(self.start, self.end)} and {_named(self.start_frame, self.end_frame)}; leave one pair empty, or rename it"
            )
        if duration is not None and has_seconds:
            end = float(Decimal(repr(start or 0.0)) + Decimal(repr(duration)))
        if end is not None and not math.isfinite(end):
            raise ValueError(f"start {start!r} and duration {duration!r} have no end; give seconds")
        if end is not None and (start or 0.0) >= end:
            raise ValueError(f"start {start or 0.0!r} is not before end {end!r}; a cut is [start, end) in seconds")
        if last is not None and (first or 0) >= last:
            raise ValueError(
                f"start_frame {first or 0} is not before end_frame {last}; a cut is [start_frame, end_frame)"
            )
        return Cut(start, end, first, last)


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
    found: dict[str, list[str]] = {}
    for name in names:
        place = _place_of(name)
        if place in OTHER_UNITS:
            raise SourceError(
                f"has a column `{one_line(name)}`: if it is where cuts begin or end, divide it by {OTHER_UNITS[place]} and call it "
                "`start` or `end`, which are in seconds; if it is a label, give it a name that says of what",
                path=path,
            )
        if place is not None:
            found.setdefault(place, []).append(name)
    if not ("start" in found and "end" not in found):
        found.pop("duration", None)  # a label: the cut has an end, or there is none
    begins = "start" in found or any(name.lower() in WEAK_BEGINNINGS for name in names)
    if begins and not found.keys() & {"end", "duration"}:
        has_onset = any("onset" in name.lower() for name in names)
        for name in (name for name in names if name.lower() in WEAK_ENDS - (set() if has_onset else {"offset"})):
            raise SourceError(
                f"has a column `{one_line(name)}`: if it is where cuts end, call it `end`, and `start` where they begin; if it is a label, "
                "give it a name that says of what",
                path=path,
            )
    chosen: dict[str, str] = {}
    for place, several in found.items():
        if len(several) > 1 and place not in several:
            raise SourceError(
                f"has the columns {_named(*several)}, which all may say where cuts {place.partition('_')[0]}; call the one that "
                f"does `{place}`, or rename the others",
                path=path,
            )
        chosen[place] = place if place in several else several[0]
    return CutColumns(**chosen)


def seconds_of(name: str, value: object) -> float | None:
    """Return a time in seconds, given as a number or as [hh:]mm:ss[.fff]; None for an empty cell. Raises ValueError."""
    if value is None:
        return None
    if isinstance(value, str) and (found := TIMECODE.fullmatch(value.strip())):
        hours, minutes, seconds = found.groups()
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
    if value is None:
        return None
    with suppress(ValueError, OverflowError):
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else -1.0
        if 0 <= number <= MOST_FRAMES and number.is_integer() and "_" not in str(value):
            return int(number)
    raise ValueError(f"{one_line(name)} is {value!r}; give the number of a frame of the source, from 0")
