"""Decoded frames that will be wanted again, within a bound in bytes."""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np

from vidprep.formats.stores import Frames

Key = tuple[str, int]
NEVER = 1 << 62


class FrameCache:
    """Who asks says in advance what will be wanted when, so the frame whose next use is farthest away goes first, which is the
    best that a cache can do: L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", 1966.

    A frame of which no use is known stays while there is room. Not thread-safe.
    """

    def __init__(self, limit_bytes: int, dtype: str = "uint8") -> None:
        self._limit_bytes, self._dtype = limit_bytes, np.dtype(dtype)
        self._uses: dict[Key, deque[int]] = {}
        self._kept: dict[Key, Frames] = {}
        self._next: dict[Key, int] = {}
        self._farthest: list[tuple[int, Key]] = []  # a heap; entries that _next contradicts are out of date
        self.size_bytes = 0

    def announce(self, key: Key, position: int) -> None:
        """A frame will be taken at this position of the order; positions ascend."""
        uses = self._uses.setdefault(key, deque())
        uses.append(position)
        if len(uses) == 1 and key in self._kept:
            self._rank(key)

    def forget_uses(self) -> None:
        """What was announced will not happen."""
        self._uses.clear()
        for key in self._kept:
            self._rank(key)

    def is_wanted(self, key: Key) -> bool:
        """Whether a use is known."""
        return key in self._uses

    def take(self, key: Key) -> Frames | None:
        """The frame, if it is here; the next of its known uses is over."""
        uses = self._uses.get(key)
        if uses:
            uses.popleft()
            if not uses:
                del self._uses[key]
        found = self._kept.get(key)
        if found is not None:
            self._rank(key)
        return found

    def place(self, key: Key, shape: tuple[int, ...]) -> Frames | None:
        """An array to decode a frame into; None where it is here, or others will be wanted sooner."""
        if key in self._kept:
            return None
        due, size = self.due(key), int(np.prod(shape)) * self._dtype.itemsize
        array: Frames | None = None
        while self.size_bytes + size > self._limit_bytes:
            farthest = self._farthest_key()
            if farthest is None or self._next[farthest] <= due:
                return None
            array = self.drop(farthest)
        if array is None or array.shape != shape:
            array = np.empty(shape, self._dtype)
        self._kept[key] = array
        self.size_bytes += size
        self._rank(key)
        return array

    def drop(self, key: Key) -> Frames:
        """Take a frame out. Raises KeyError."""
        del self._next[key]
        array = self._kept.pop(key)
        self.size_bytes -= array.nbytes
        return array

    def due(self, key: Key) -> int:
        """The position of the next known use; NEVER without one."""
        return self._uses[key][0] if key in self._uses else NEVER

    def _rank(self, key: Key) -> None:
        due = self.due(key)
        if self._next.get(key) != due:
            self._next[key] = due
            heapq.heappush(self._farthest, (-due, key))
        if len(self._farthest) > 4 * len(self._kept) + 64:
            self._farthest = [(-due, key) for key, due in self._next.items()]
            heapq.heapify(self._farthest)

    def _farthest_key(self) -> Key | None:
        while self._farthest:
            due, key = self._farthest[0]
            if self._next.get(key) == -due:
                return key
            heapq.heappop(self._farthest)
        return None
