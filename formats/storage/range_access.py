"""Chooses who makes the requests for ranges behind a URL: the range server, or this process itself."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from vidprep.formats.storage.ranges import RangeConnection, RangePlace

if TYPE_CHECKING:
    from vidprep.formats.storage.memory_ranges import MemoryConnection
    from vidprep.formats.storage.range_reader import RangeReader

_makes_requests, _processes = False, 1


def make_requests_here(processes: int) -> None:
    """Let this process make requests itself: it never forks. If it does, its children use a server.

    Args:
        processes: Number of processes that do, and share the bound of the cache.
    """
    global _makes_requests, _processes
    _makes_requests, _processes = True, processes
    os.register_at_fork(after_in_child=_leave_requests_to_server)


def _leave_requests_to_server() -> None:
    global _makes_requests
    _makes_requests = False


def connection_to(place: RangePlace) -> RangeConnection | RangeReader | MemoryConnection:
    """Return what reads a place for this thread: a connection to the server, unless this process makes requests itself.

    Raises as `RangeConnection` does.
    """
    if place.url.startswith("memory://"):
        from vidprep.formats.storage.memory_ranges import MemoryConnection

        return MemoryConnection(place)
    if _makes_requests:
        from vidprep.formats.storage.range_reader import RangeReader

        return RangeReader(replace(place, cache_bytes=place.cache_bytes // _processes))
    return RangeConnection(place)
