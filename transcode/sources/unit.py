"""The values that a listing is made of.

A few that stand for all.

`--split-by`: which split each source belongs to, drawn by a hash of its name. A split once given is kept.

A class that would have none in a split, though its share is one source or more, gives it the one that the hash puts nearest, of those
that have no split yet. Cuts of one source, or what shares a value of the column of --split-group, are drawn as one.

Names of outputs: which cannot be, and which two sources want.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol, TypeVar

from vidprep.formats.model import WHOLE, Cut, SourceState

if TYPE_CHECKING:
    from vidprep.formats.manifest import Labels


@dataclass(frozen=True, slots=True)
class Drawing:
    """What the splits of the units of `Labels` are drawn by; see `splits_of`. column: whose values the groups are, if any."""

    groups: Sequence[str]
    classes: Sequence[object]
    shares: Mapping[str, Fraction]
    column: str | None
    seed: int

    @property
    def rule(self) -> str:
        """What was asked for: another one draws all splits anew."""
        return json.dumps([{name: str(share) for name, share in self.shares.items()}, self.column, self.seed])

    def filled(self, labels: Labels, before: Labels) -> Labels:
        """Return the labels with the column `split`. before: of the same units, those that they were given by an earlier run."""
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
        groups: What is drawn as one, for each unit.
        classes: Of which each split gets its share, for each unit.
        shares: Of the splits; they add up to 1.
        seed: Another one draws others.
        before: The split that each unit was given before. Of units of one group that had several, most decide.
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
    """From 0 to 1."""
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
    """`count` of the sources or rows, all when there are fewer; the same ones each time.

    Systematic: ordered by folder and then by size, every n-th is taken, so that folders and sizes are there in
    proportion.
    """
    ordered = sorted(items, key=lambda item: (item.id.rpartition("/")[0], item.size_bytes or 0, item.id))
    return tuple(ordered[place] for place in _places(len(ordered), count))


def choose_ids(table: pa.Table, count: int) -> list[str]:
    """Return the ids that `choose` takes of the rows of a manifest, of which there may be millions. table: with `id` and
    `size_bytes`.
    """
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
