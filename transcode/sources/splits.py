"""`--split-by`: which split each source belongs to, drawn by a hash of its name, so that what is added or removed moves no other.

But one thing: a class that would have none in a split, though its share is one source or more, gives it the one that the hash puts
nearest. Cuts of one source, or what shares a value of the column of --split-group, are drawn as one.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate


def splits_of(groups: Sequence[str], classes: Sequence[object], shares: Mapping[str, Fraction], seed: int) -> list[str]:
    """The split of each unit. groups: what is drawn as one, classes: of which each split gets its share, both for each unit."""
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for group, class_ in zip(groups, classes, strict=True):
        seen[group][repr(class_)] += 1
    members: dict[str, list[str]] = defaultdict(list)
    for group, counts in seen.items():
        members[min(counts, key=lambda class_: (-counts[class_], class_))].append(group)
    drawn: dict[str, str] = {}
    for of_class in members.values():
        drawn |= _drawn(of_class, shares, seed)
    return [drawn[group] for group in groups]


def _drawn(groups: Sequence[str], shares: Mapping[str, Fraction], seed: int) -> dict[str, str]:
    names, ends = list(shares), list(accumulate(map(float, shares.values())))
    places = {group: _place(group, seed) for group in groups}
    splits = {group: names[min(bisect_right(ends, place), len(names) - 1)] for group, place in places.items()}
    for name, end in zip(names, ends, strict=True):
        counts = Counter(splits.values())
        if counts[name] or len(groups) * shares[name] < 1:
            continue
        middle = end - float(shares[name]) / 2
        least = {each: max(1.0, float(len(groups) * share) - 1) for each, share in shares.items()}
        spare = [group for group in groups if counts[splits[group]] - 1 >= least[splits[group]]]
        if spare:
            splits[min(spare, key=lambda group: (abs(places[group] - middle), group))] = name
    return splits


def _place(group: str, seed: int) -> float:
    """From 0 to 1."""
    digest = hashlib.blake2b(f"{seed}:{group}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
