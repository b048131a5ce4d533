"""The values that a listing is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vidprep.formats.model import WHOLE, Cut, SourceState

if TYPE_CHECKING:
    from vidprep.formats.manifest.labels import Labels
    from vidprep.transcode.sources.splits import Drawing


@dataclass(frozen=True, slots=True)
class Unit:
    """One source, or one cut of it: one output, one row.

    id: name of the output without extension, relative, '/'-separated. path: absolute, links not resolved.
    cut: the part of the source that is wanted; times count from the first frame shown, or from the container (`--cut-origin`).
    sharers: units of the same source, this one among them. row: of its table, from 0; -1 where there is none.
    """

    id: str
    path: str
    size_bytes: int
    mtime_ns: int
    cut: Cut = WHOLE
    sharers: int = 1
    row: int = -1

    @property
    def state(self) -> SourceState:
        """The state of the source when it was listed."""
        return SourceState(self.size_bytes, self.mtime_ns)

    @property
    def share_bytes(self) -> int:
        """What this unit stands for when sources are counted in bytes: cuts of one source count it once, together."""
        return self.size_bytes // self.sharers


@dataclass(frozen=True, slots=True)
class SourceList:
    """units: largest first, then by id. ignored: (path, reason) of what is no source.

    problems: (path, reason) of sources that cannot even be started, a failed row each. Both are sorted, their paths
    absolute, and escaped where they are not valid UTF-8. problem_units: what the row of a table asked for, None for a file
    that was met in a folder; in the order of `problems`. labels: of units and problems; None where there are none.
    why_partial: why sources that are not here may be there all the same; None where these are all. drawing: how the splits of
    `labels` are drawn, None where they are not. notes: what a reader of the table should know about its columns.
    """

    units: tuple[Unit, ...]
    ignored: tuple[tuple[str, str], ...]
    problems: tuple[tuple[str, str], ...] = ()
    problem_units: tuple[Unit | None, ...] = ()
    labels: Labels | None = None
    why_partial: str | None = None
    drawing: Drawing | None = None
    notes: tuple[str, ...] = ()
