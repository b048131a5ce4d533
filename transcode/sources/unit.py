"""Units (a source, or a cut of one), lists of them, samples, and random splits.

`--split-by` draws the split of a source by a hash of its name, and keeps a split once it is given. If a class would be
missing from a split although its share is at least one source, the class gives it the source with the nearest hash that
has no split yet. Cuts of one source, and sources with the same value of `--split-group`, are drawn together.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol, TypeVar

from vidprep.formats.model import WHOLE, Cut, SourceState
from vidprep.formats.storage import is_url

if TYPE_CHECKING:
    from vidprep.formats.manifest import Labels


@dataclass(frozen=True, slots=True)
class SplitDrawing:
    """Rule and input of random splits; see `splits_of`.

    Attributes:
        groups: Group of each unit
        classes: Class of each unit
        shares: Share of each split
        column: Column that contains the groups, if any
        seed: Seed
    """

    groups: Sequence[str]
    classes: Sequence[object]
    shares: Mapping[str, Fraction]
    column: str | None
    seed: int

    @property
    def rule(self) -> str:
        """The options as text. With other options all splits are drawn again."""
        return json.dumps([{name: str(share) for name, share in self.shares.items()}, self.column, self.seed])

    def filled(self, labels: Labels, before: Labels) -> Labels:
        """Return the labels with the column `split`.

        Args:
            labels: Labels of the units.
            before: Splits of the same units in an earlier run.
        """
        import pyarrow as pa

        from vidprep.formats.manifest import SPLIT_LABEL

        is_kept = before.split_rule == self.rule and SPLIT_LABEL in before.columns
        kept = before.columns[SPLIT_LABEL].to_pylist() if is_kept else None
        drawn = splits_of(self.groups, self.classes, self.shares, self.seed, kept)
        columns = {**labels.columns, SPLIT_LABEL: pa.array(drawn, pa.string())}
        return replace(labels, columns=columns, split_rule=self.rule)


def splits_of(
    groups: Sequence[str],
    classes: Sequence[object],
    shares: Mapping[str, Fraction],
    seed: int,
    before: Sequence[str | None] | None = None,
) -> list[str]:
    """Draw the split of each unit.

    Args:
        groups: Group of each unit; all units of a group get the same split.
        classes: Class of each unit; each split gets its share of each class.
        shares: Share of each split; they add up to 1.
        seed: Seed; another one draws other splits.
        before: Previous split of each unit. If units of a group had several, the most frequent one counts.
    """
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    given: dict[str, Counter[str]] = defaultdict(Counter)
    for group, class_, split in zip(groups, classes, before or [None] * len(groups), strict=True):
        seen[group][repr(class_)] += 1
        if split in shares:
            given[group][str(split)] += 1
    kept = {group: min(counts, key=lambda name: (-counts[name], name)) for group, counts in given.items()}
    members: dict[str, list[str]] = defaultdict(list)
    for group, counts in seen.items():
        members[min(counts, key=lambda class_: (-counts[class_], class_))].append(group)
    drawn: dict[str, str] = {}
    for of_class in members.values():
        drawn |= _drawn(of_class, shares, seed, kept)
    return [drawn[group] for group in groups]


def _drawn(groups: Sequence[str], shares: Mapping[str, Fraction], seed: int, kept: Mapping[str, str]) -> dict[str, str]:
    names, ends = list(shares), list(accumulate(map(float, shares.values())))
    places = {group: _place(group, seed) for group in groups}
    splits = {
        group: kept.get(group) or names[min(bisect_right(ends, place), len(names) - 1)]
        for group, place in places.items()
    }
    for name, end in zip(names, ends, strict=True):
        counts = Counter(splits.values())
        if counts[name] or len(groups) * shares[name] < 1:
            continue
        middle = end - float(shares[name]) / 2
        least = {each: max(1.0, float(len(groups) * share) - 1) for each, share in shares.items()}
        spare = [group for group in groups if group not in kept and counts[splits[group]] - 1 >= least[splits[group]]]
        if spare:
            splits[min(spare, key=lambda group: (abs(places[group] - middle), group))] = name
    return splits


def _place(group: str, seed: int) -> float:
    """Return the position of a group from 0 to 1."""
    digest = hashlib.blake2b(f"{seed}:{group}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


class Sized(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def size_bytes(self) -> int | None: ...


if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T", bound=Sized)


def choose(items: Sequence[T], count: int) -> tuple[T, ...]:
    """Return a sample of `count` items (all if there are fewer), the same each time.

    The sample is systematic: of the items sorted by folder and then size every n-th is taken, so that folders and sizes
    are represented in proportion.
    """
    ordered = sorted(items, key=lambda item: (item.id.rpartition("/")[0], item.size_bytes or 0, item.id))
    return tuple(ordered[place] for place in _places(len(ordered), count))


def choose_ids(table: pa.Table, count: int) -> list[str]:
    """Return the ids that `choose` selects from a table with `id` and `size_bytes`, which may have millions of rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    folders = pc.replace_substring_regex(table["id"], "/?[^/]*$", "")
    keys = pa.table([folders, pc.fill_null(table["size_bytes"], 0), table["id"]], ["folder", "size", "id"])
    order = pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names])
    ids: list[str] = table["id"].take(order.take(pa.array(_places(len(order), count), pa.int64()))).to_pylist()
    return ids


def _places(total: int, count: int) -> list[int]:
    return [*range(total)] if count >= total else [(2 * n + 1) * total // (2 * count) for n in range(count)]


@dataclass(frozen=True, slots=True)
class Unit:
    """One source, or one cut of it: one output and one row.

    Attributes:
        id: Name of the output without extension, relative, with slashes
        path: Absolute path; links are not resolved
        size_bytes: Size of the source
        mtime_ns: Modification time of the source
        cut: Part of the source. Times count from the first frame displayed, or from the container's start
            (`--cut-origin`)
        sharers: Number of units of the same source, including this one
        row: Number of its row in the table, from 0; -1 if there is no table
        is_series: Whether its source is a folder of numbered pictures, or the copy of one in a file
    """

    id: str
    path: str
    size_bytes: int
    mtime_ns: int
    cut: Cut = WHOLE
    sharers: int = 1
    row: int = -1
    is_series: bool = False

    @property
    def is_copied(self) -> bool:
        """Whether a local file is made of its source before it is read: it is behind a URL, or a folder."""
        return is_url(self.path) or (self.is_series and os.path.isdir(self.path))  # noqa: PTH112

    @property
    def copy_suffix(self) -> str:
        """Suffix of that file."""
        return ".mov" if self.is_series else PurePosixPath(self.path).suffix

    @property
    def state(self) -> SourceState:
        """State of the source when it was listed."""
        return SourceState(self.size_bytes, self.mtime_ns)

    @property
    def share_bytes(self) -> int:
        """Share of this unit when the bytes of sources are counted: cuts of one source count it once, together."""
        return self.size_bytes // self.sharers


@dataclass(frozen=True, slots=True)
class SourceList:
    """Units of a run. Paths are absolute, and escaped if they are not valid UTF-8.

    Attributes:
        units: Largest first, then by id
        ignored: (path, reason) of files that are not sources, sorted
        problems: (path, reason) of sources that cannot be started, sorted; each becomes a failed row
        problem_units: Unit of a table's row for each problem; None for a file of a folder
        labels: Labels of units and problems; None if there are none
        why_partial: Why other sources may exist; None if the list is complete
        drawing: How the splits in `labels` are drawn; None if they are not
        notes: Messages about the columns of the table
    """

    units: tuple[Unit, ...]
    ignored: tuple[tuple[str, str], ...]
    problems: tuple[tuple[str, str], ...] = ()
    problem_units: tuple[Unit | None, ...] = ()
    labels: Labels | None = None
    why_partial: str | None = None
    drawing: SplitDrawing | None = None
    notes: tuple[str, ...] = ()
