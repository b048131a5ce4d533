"""A cache with a bound in bytes that evicts what is used last, for uses that are announced in advance."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
NEVER = 1 << 62


class BeladyCache(Generic[Key, Value]):
    """Cache with a bound in bytes. Not thread-safe.

    Uses are announced in advance, so the entry whose next use is farthest away is evicted, which is optimal: L. A.
    Belady, "A study of replacement algorithms for a virtual-storage computer", 1966. An entry without an announced use
    stays while there is room: over epochs in random order it is as likely to be hit as a new one, and keeping it costs
    nothing.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._uses: dict[Key, deque[int]] = {}
        self._kept: dict[Key, tuple[Value, int]] = {}
        self._next: dict[Key, int] = {}
        self._farthest: list[tuple[int, Any]] = []  # a heap; entries that differ from _next are outdated
        self.size_bytes = 0

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def announce(self, key: Key, position: int) -> None:
        """Announce that an entry will be used at a position of the order. Positions must ascend for each key."""
        uses = self._uses.setdefault(key, deque())
        uses.append(position)
        if len(uses) == 1 and key in self._kept:
            self._rank(key)

    def forget_uses(self) -> None:
        """Forget all announced uses."""
        self._uses.clear()
        for key in self._kept:
            self._rank(key)

    def is_wanted(self, key: Key) -> bool:
        """Return whether a use is announced."""
        return key in self._uses

    def due(self, key: Key) -> int:
        """Return the position of the next announced use; NEVER without one."""
        return self._uses[key][0] if key in self._uses else NEVER

    def forget_until(self, key: Key, position: int) -> None:
        """Forget announced uses up to a position, whether or not they happened."""
        uses = self._uses.get(key)
        if not uses or uses[0] > position:
            return
        while uses and uses[0] <= position:
            uses.popleft()
        if not uses:
            del self._uses[key]
        if key in self._kept:
            self._rank(key)

    def take(self, key: Key) -> Value | None:
        """Return the value if it is cached, and forget its next announced use."""
        uses = self._uses.get(key)
        if uses:
            uses.popleft()
            if not uses:
                del self._uses[key]
        kept = self._kept.get(key)
        if kept is None:
            return None
        self._rank(key)
        return kept[0]

    def offer(self, key: Key, value: Any, size: int, made: Callable[[Any], Value]) -> None:
        """Keep a value, unless others are needed sooner.

        Args:
            key: Its key.
            value: The value.
            size: Its size in bytes.
            made: Called with the value; returns what is kept.
        """
        if key not in self._kept and self.make_room(key, size) is not None:
            self.keep(key, made(value), size)

    def make_room(self, key: Key, size: int) -> list[Value] | None:
        """Evict entries so that there is room for one; return them. None if others are needed sooner, or it is too large."""
        due, evicted = self.due(key), list[Value]()
        if size > self._limit_bytes:
            return None
        while self.size_bytes + size > self._limit_bytes:
            farthest = self._farthest_key()
            if farthest is None or self._next[farthest] <= due:
                return None
            evicted.append(self.drop(farthest))
        return evicted

    def keep(self, key: Key, value: Value, size: int) -> None:
        """Keep a value for which there is room."""
        self._kept[key] = value, size
        self.size_bytes += size
        self._rank(key)

    def drop(self, key: Key) -> Value:
        """Remove an entry. Raises KeyError."""
        del self._next[key]
        value, size = self._kept.pop(key)
        self.size_bytes -= size
        return value

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
                farthest: Key = key
                return farthest
            heapq.heappop(self._farthest)
        return None
