"""Units (a source, or a cut of one), lists of them, samples, and random splits.

`--split-by` gives each split its share of each class, to within one source, when a class is drawn for the first time. A
source keeps its split whatever comes later; a later one gets the split that is furthest behind in its class. Cuts of
one source, and sources with the same value of `--split-group`, are drawn together.
"""
# ruff: noqa: PTH118, PTH122

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol, TypeVar

from vidprep.formats.model import WHOLE, Cut, Selected, SourceState
from vidprep.formats.storage.base import is_url

if TYPE_CHECKING:
    from vidprep.formats.manifest.labels import Labels


@dataclass(frozen=True, slots=True)
class SplitDrawing:
    """Rule and input of random splits; see `splits_of`.

    Attributes:
        classes: Class of each unit
        column: Column that contains the groups, if any
        base: Folder to which the paths of sources are relative
    """

    groups: Sequence[str]
    classes: Sequence[object]
    shares: Mapping[str, Fraction]
    column: str | None
    seed: int
    base: str = ""

    @property
    def rule(self) -> str:
        """The options as text. With other options all splits are drawn again."""
        return json.dumps([{name: str(share) for name, share in self.shares.items()}, self.column, self.seed])

    def fill(
        self,
        labels: Labels,
        before: Labels,
        others: Labels | None = None,
        paths: Sequence[str] = (),
        drawn: Labels | None = None,
    ) -> Labels:
        """Return the labels with the column `split`.

        Args:
            labels: Labels of the units.
            before: Splits of the same units in an earlier run.
            others: Labels of units of an earlier run that are not listed; they count in the shares.
            paths: Sources of these units.
            drawn: Splits that count before those of `before`.
        """
        import pyarrow as pa

        from vidprep.formats.manifest.labels import CLASS_LABEL, SPLIT_LABEL, values_of

        def kept(known: Labels) -> Sequence[str | None]:
            is_kept = known.split_rule == self.rule and SPLIT_LABEL in known.columns
            return known.columns[SPLIT_LABEL].to_pylist() if is_kept else [None] * len(known.ids)

        groups, classes, splits = [*self.groups], [*self.classes], [*kept(before)]
        if drawn is not None:
            splits = [new or old for new, old in zip(kept(drawn.select(labels.ids)), splits, strict=True)]
        if others is not None and others.split_rule == self.rule:
            groups += groups_of(others.ids, paths, others.columns, self.column)
            has_classes = CLASS_LABEL in others.columns
            classes += values_of(others.columns[CLASS_LABEL]) if has_classes else [None] * len(others.ids)
            splits += kept(others)
        splits_drawn = splits_of(groups, classes, self.shares, self.seed, splits, self.base)[: len(labels.ids)]
        columns = {**labels.columns, SPLIT_LABEL: pa.array(splits_drawn, pa.string())}
        return replace(labels, columns=columns, split_rule=self.rule)


def groups_of(
    ids: Sequence[str], paths: Sequence[str], columns: Mapping[str, pa.Array], column: str | None
) -> list[str]:
    """Return the group of each unit; groups are drawn together. It is the value of a column, or the path of the source
    without suffix.
    """
    if column is None:
        return [os.path.splitext(path)[0] for path in paths]
    from vidprep.formats.manifest.labels import values_of

    values = values_of(columns[column]) if column in columns else [None] * len(ids)
    return [_key(value) if value is not None else f"alone {id_}" for value, id_ in zip(values, ids, strict=True)]


def _key(value: object) -> str:
    """Return a value as text, the same for 1, 1.0 and "1": another table may have another type."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def splits_of(
    groups: Sequence[str],
    classes: Sequence[object],
    shares: Mapping[str, Fraction],
    seed: int,
    before: Sequence[str | None] | None = None,
    base: str = "",
) -> list[str]:
    """Draw the split of each unit.

    Args:
        groups: Group of each unit; all units of a group get the same split.
        classes: Class of each unit; each split gets its share of each class.
        shares: Share of each split; they add up to 1.
        seed: Seed; another one draws other splits.
        before: Previous split of each unit. If units of a group had several, the most frequent one counts.
        base: Folder of groups that are paths, which does not count in the drawing.
    """
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    given: dict[str, Counter[str]] = defaultdict(Counter)
    for group, class_, split in zip(groups, classes, before or [None] * len(groups), strict=True):
        seen[group][_key(class_)] += 1
        if split in shares:
            given[group][str(split)] += 1
    splits = {group: min(counts, key=lambda name: (-counts[name], name)) for group, counts in given.items()}
    members: dict[str, list[str]] = defaultdict(list)
    inside = os.path.join(base, "") if base else ""
    for group in sorted(seen, key=lambda group: (_place(group.removeprefix(inside), seed), group)):
        members[min(seen[group], key=lambda class_: (-seen[group][class_], class_))].append(group)
    total = Counter(splits.values())
    for class_ in sorted(members, key=lambda name: (_place(name, seed), name)):
        new = [group for group in members[class_] if group not in splits]
        counts = Counter(splits[group] for group in members[class_] if group in splits)
        if not counts:
            drawn = _first_drawn(len(new), shares, total)
        else:
            drawn = [
                _furthest_behind(shares, counts, number)
                for number in range(counts.total() + 1, len(members[class_]) + 1)
            ]
        splits |= dict(zip(new, drawn, strict=True))
        total.update(drawn)
    return [splits[group] for group in groups]


def _first_drawn(count: int, shares: Mapping[str, Fraction], total: Counter[str]) -> list[str]:
    """Return the splits of a class: each gets its share, rounded down, or up where it is furthest behind in all classes.

    Of a single class these are the largest remainders. With the largest remainder of each class alone, a split of a tenth
    would get no video of classes of three.

    Args:
        count: Number of groups in the class.
        shares: Share of each split.
        total: Number of groups in each split, of all classes.
    """
    drawn = [name for name, share in shares.items() for _ in range(int(share * count))]
    behind = {
        name: share * (total.total() + count) - total[name] - int(share * count) for name, share in shares.items()
    }
    ends = [name for name in sorted(shares, key=lambda name: -behind[name]) if shares[name] * count % 1]
    return drawn + ends[: count - len(drawn)]


def _furthest_behind(shares: Mapping[str, Fraction], counts: Counter[str], number: int) -> str:
    """Return the split of a class that lacks most of its share of `number` groups, and count it."""
    name = max(shares, key=lambda name: shares[name] * number - counts[name])
    counts[name] += 1
    return name


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
        mtime_ns: Modification time of the source
        cut: Part of the source. Times count from the first frame displayed, or from the container's start
            (`--cut-origin`)
        sharers: Number of units of the same source, including this one
        row: Number of its row in the table, from 0; -1 if there is no table
        is_series: Whether its source is a folder of numbered pictures, or the copy of one in a file
        selected: Frames of a finished destination that it is, from which it is copied
    """

    id: str
    path: str
    size_bytes: int
    mtime_ns: int
    cut: Cut = WHOLE
    sharers: int = 1
    row: int = -1
    is_series: bool = False
    selected: Selected | None = None

    @property
    def is_copied(self) -> bool:
        """Whether a local file is made of its source before it is read: it is behind a URL, or a folder."""
        if self.selected is not None:
            return False
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
        listing: For a task of an array: the units of all tasks
    """

    units: tuple[Unit, ...]
    ignored: tuple[tuple[str, str], ...]
    problems: tuple[tuple[str, str], ...] = ()
    problem_units: tuple[Unit | None, ...] = ()
    labels: Labels | None = None
    why_partial: str | None = None
    drawing: SplitDrawing | None = None
    notes: tuple[str, ...] = ()
    listing: tuple[Unit, ...] = ()
