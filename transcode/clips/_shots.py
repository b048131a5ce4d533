"""Where one shot ends and the next one begins, from small copies of the frames, as they are decoded.

A hard cut is a frame that differs from the one before by much more than its neighbours do, after the best small shift of the
picture (a moving camera is no cut), where the frames a little later differ from those before, too (a flash is no cut). Luma counts by
its square root there, so that a cut between two dark pictures counts. A dissolve or fade is a run of frames that lie on the line
between the frame before it and the frame after it, where the frames beside these do not go on along the line (a camera that moves
over a smooth picture is no dissolve).

A frame is decided `DELAY` frames after it was seen, so memory does not grow with a video.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

WIDTH, HEIGHT = 64, 36
Small = npt.NDArray[np.int16]  # (3, HEIGHT, WIDTH) Y, Cb, Cr, from 0 to 255

CUT_LEVELS, CUT_RATIO = 10.0, 2.7
BRIGHT, DARKEST = 50.0, 0.1  # mean luma below which differences count more, and the least factor
NEIGHBOURS = 4
FLASH_SHARE = 0.5
SHIFTS = [(y, x) for y in (-2, -1, 0, 1, 2) for x in (-3, -2, -1, 0, 1, 2, 3)]
LENGTHS = (6, 8, 10, 12, 16, 20, 24, 28, 32)
MIXED_LEVELS, MIXED_SHARE = 14.0, 0.22
BACK, ENDS = 0.05, 0.04
BEYOND = 0.15  # how far the frames beside a transition may be on the line of its frames
BESIDE = max(LENGTHS) // 4
SHORTEST = 5  # frames between a cut or transition and a transition that make a shot
DELAY = max(LENGTHS) + 2 * BESIDE + 1 + SHORTEST


class HasSmall(Protocol):
    """A frame: a small copy, and how much it differs from the frame before."""

    @property
    def small(self) -> Small: ...
    @property
    def change(self) -> float: ...


Item = TypeVar("Item")
T = TypeVar("T", bound=HasSmall)


@dataclass(frozen=True, slots=True)
class Placed(Generic[Item]):
    """A frame, and where it belongs.

    Attributes:
        shot: Number of its shot, from 0; None in a transition
        confidence: Of the first frame of a shot: how sure its beginning is, from 0 to 1
    """

    item: Item
    shot: int | None
    confidence: float = 1.0


@dataclass(slots=True)
class _Seen(Generic[T]):
    """A frame that waits for its decision.

    Attributes:
        path: Sum of the differences of all frames up to it
        cut: Confidence that it begins a shot; 0 if it does not
        mixed: Whether it is in a transition
    """

    item: T
    path: float
    cut: float = 0.0
    mixed: bool = False


def difference(one: Small, other: Small) -> float:
    """Return the mean absolute difference in levels of 0 to 255."""
    return float(np.abs(one - other).mean())


def shifted_difference(one: Small, other: Small) -> float:
    """Return the least difference over small shifts of the picture."""
    least = np.inf
    for y, x in SHIFTS:
        mine = one[:, max(0, y) : HEIGHT + min(0, y), max(0, x) : WIDTH + min(0, x)]
        theirs = other[:, max(0, -y) : HEIGHT + min(0, -y), max(0, -x) : WIDTH + min(0, -x)]
        least = min(least, difference(mine, theirs))
    return float(least)


def place(items: Iterable[T]) -> Iterator[Placed[T]]:
    """Yield each frame with the number of its shot, in order, `DELAY` frames later."""
    seen: deque[_Seen[T]] = deque(maxlen=2 * DELAY)
    shot, is_new, confidence, waiting, path = 0, False, 1.0, 0, 0.0

    def decide(late: int) -> Placed[T]:
        nonlocal shot, is_new, confidence
        each = seen[-late]
        soon = islice(seen, len(seen) - late, len(seen) - late + SHORTEST)
        if each.mixed or ((each.cut or is_new) and any(later.mixed for later in soon)):
            is_new = True
            return Placed(each.item, None)
        if each.cut:
            confidence = each.cut
        if each.cut or is_new:
            shot, is_new = shot + 1, False
            return Placed(each.item, shot, confidence)
        return Placed(each.item, shot)

    for item in items:
        path += item.change
        seen.append(_Seen(item, path))
        waiting += 1
        _find_cut(seen, len(seen) - 1 - NEIGHBOURS)
        _find_mix(seen, len(seen) - 1 - BESIDE)
        if waiting > DELAY:
            yield decide(waiting)
            waiting -= 1
    for late in range(NEIGHBOURS, 0, -1):
        _find_cut(seen, len(seen) - late)
    for late in range(BESIDE, 0, -1):
        _find_mix(seen, len(seen) - late)
    yield from (decide(late) for late in range(waiting, 0, -1))


def _find_cut(seen: deque[_Seen[T]], at: int) -> None:
    """Mark the frame at a place if it begins a shot."""
    if at < 1 or seen[at].item.change < CUT_LEVELS * DARKEST:
        return
    before, after = seen[at - 1].item.small, seen[at].item.small
    scale = min(1.0, max(DARKEST, before[0].mean() / BRIGHT, after[0].mean() / BRIGHT))
    befores, afters = range(max(0, at - NEIGHBOURS), at), range(at + 1, min(len(seen), at + 1 + NEIGHBOURS))
    usual = float(np.mean([seen[n].item.change for n in (*befores, *afters) if n])) if at > 1 or afters else 0.0
    least = max(CUT_LEVELS * scale, CUT_RATIO * (usual + scale))
    if seen[at].item.change < least or (change := shifted_difference(before, after)) < least:
        return
    back = (difference(seen[one].item.small, seen[other].item.small) for one in befores[-3:] for other in afters)
    if min(back, default=np.inf) >= FLASH_SHARE * change:
        seen[at].cut = min(1.0, 0.5 + (change / least - 1) / 4)


def _find_mix(seen: deque[_Seen[T]], last: int) -> None:
    """Mark the frames of a dissolve or fade of which a frame is the first that shows the next shot alone."""
    for length in LENGTHS:
        first = last - length
        if first < 1:
            return
        if seen[last].path - seen[first].path < MIXED_LEVELS:  # at least the difference of the ends
            continue
        span = difference(seen[first].item.small, seen[last].item.small)
        if span < MIXED_LEVELS or not _is_line(seen, first, last, span):
            continue
        if any(seen[n].cut for n in range(first + 1, last + 1)):
            return
        shares = _shares(seen, first, last)
        inside = [shares[n] for n in range(first, last + 1)]
        if min(after - before for before, after in pairwise(inside)) < -BACK:
            continue
        if min(shares.values()) < -BEYOND or max(shares.values()) > 1 + BEYOND:  # the camera moves on
            continue
        for n in range(first + 1, last):
            if ENDS < shares[n] < 1 - ENDS:
                seen[n].mixed = True
        return


def _shares(seen: deque[_Seen[T]], first: int, last: int) -> dict[int, float]:
    """Return how far each frame is on the way from a first one to a last one; of some frames before and after them, too."""
    one = seen[first].item.small
    step = (seen[last].item.small - one).astype(np.float32)
    size = float((step * step).sum())
    beside = (last - first) // 4
    past = next(
        (n for n in range(last + 1, min(last + beside + 1, len(seen))) if seen[n].cut),
        min(last + beside + 1, len(seen)),
    )
    places = range(max(0, first - beside), past)
    return {n: float(((seen[n].item.small - one) * step).sum()) / size for n in places}


def _is_line(seen: deque[_Seen[T]], first: int, last: int, span: float) -> bool:
    """Return whether the frames between two lie on the line between them."""
    one, other = seen[first].item.small, seen[last].item.small
    for part in (0.25, 0.5, 0.75):
        n = first + round(part * (last - first))
        share = (n - first) / (last - first)
        due = one + (other - one) * share
        if float(np.abs(seen[n].item.small - due).mean()) > MIXED_SHARE * span:
            return False
    return True
