"""The values that a listing is made of."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

Cut = tuple[float | None, float | None]
Labels = tuple[tuple[str, object], ...]


def exact_seconds(seconds: float | None) -> Fraction | None:
    """The decimal that was written: 0.04 means 1/25, not the float below it."""
    return None if seconds is None else Fraction(repr(float(seconds)))


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

    @property
    def cut(self) -> tuple[Fraction | None, Fraction | None]:
        return exact_seconds(self.start_seconds), exact_seconds(self.end_seconds)


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
