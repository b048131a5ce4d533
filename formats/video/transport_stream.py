"""Packets that an MPEG transport stream lacks (ISO/IEC 13818-1, 2.4.3): libavformat passes over a lost one, and over a whole frame with
it, in silence.

Those of one stream are counted from 0 to 15 and again. The count may begin anew where a recording was joined to another, as segments of
HLS are: at a keyframe, behind a new program table.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vidprep.formats.text import count_of

# Bytes of a packet, and of what a recorder writes before it.
SIZES = ((188, 0), (192, 4), (204, 0))
SYNC = 0x47
HEAD_BYTES = 1 << 16
PACKETS_AT_ONCE = 1 << 16
PROGRAM_TABLE = 0
UNIT_START, ADAPTATION_FIELD, PAYLOAD = 0x40, 0x20, 0x10
RANDOM_ACCESS, DISCONTINUITY = 0x40, 0x80
PES_START = (0, 0, 1)


class Grid(NamedTuple):
    offset: int
    length: int
    prefix: int


def missing_packets(path: str | Path, stream_id: int, zeros: int) -> list[str]:
    """What shows that packets of a stream are missing, a line each. Reads the headers of all its packets.

    zeros: that the file ends in, in bytes.
    """
    with Path(path).open("rb") as file:
        head = file.read(HEAD_BYTES)
    grid = _grid(head)
    return list(_missing(path, stream_id, grid, zeros)) if grid else []


def _grid(head: bytes) -> Grid | None:
    for offset in range(min(len(head), 1024)):
        for length, prefix in SIZES:
            marks = head[offset + prefix : offset + prefix + 8 * length : length]
            if len(marks) > 1 and all(mark == SYNC for mark in marks):
                return Grid(offset, length, prefix)
    return None


def _missing(path: str | Path, stream_id: int, grid: Grid, zeros: int) -> Iterator[str]:

    import numpy as np  # late, as most children read no such file

    data = np.memmap(path, np.uint8, "r")
    num_bytes = len(data) - zeros - grid.offset
    num_packets, left = divmod(num_bytes, grid.length)
    if zeros and left:  # the payload of the last packet may end in zeros
        num_packets, left = min(num_packets + 1, (len(data) - grid.offset) // grid.length), 0
    if left:
        yield f"cut short: its last packet has {left} of {grid.length} bytes"
    packets = data[grid.offset : grid.offset + num_packets * grid.length].reshape(num_packets, grid.length)
    out_of_place = lost = without_start = 0
    last, num_tables = -1, 0  # the count of the stream's packet before, and program tables since
    for begin in range(0, num_packets, PACKETS_AT_ONCE):
        block = packets[begin : begin + PACKETS_AT_ONCE, grid.prefix : grid.prefix + 188]
        head = block[:, :6].astype(np.int64)
        is_packet = head[:, 0] == SYNC
        out_of_place += int((~is_packet).sum())
        ids = (head[:, 1] & 0x1F) << 8 | head[:, 2]
        tables = np.cumsum(is_packet & (ids == PROGRAM_TABLE))
        own = np.flatnonzero(is_packet & (ids == stream_id) & (head[:, 3] & PAYLOAD != 0))
        if not len(own):
            num_tables += int(tables[-1])
            continue
        _, flags, _, control, field_bytes, field_flags = head[own].T
        field_bytes = np.where(control & ADAPTATION_FIELD, field_bytes + 1, 0)
        field_flags = np.where(field_bytes > 1, field_flags, 0)
        counts = control & 15
        steps = np.diff(counts, prepend=last if last >= 0 else counts[0]) & 15
        tables_before = np.diff(tables[own], prepend=-num_tables)
        begins_anew = (field_flags & DISCONTINUITY != 0) | (field_flags & RANDOM_ACCESS != 0) & (tables_before > 0)
        lost += int(((steps > 1) & ~begins_anew).sum())
        last, num_tables = int(counts[-1]), int(tables[-1] - tables[own[-1]])
        starts = flags & UNIT_START != 0
        payload = np.minimum(4 + field_bytes[starts], 188 - len(PES_START))
        found = block[own[starts, None], payload[:, None] + np.arange(len(PES_START))]
        without_start += int((found != PES_START).any(axis=1).sum())
    if out_of_place:
        yield f"{out_of_place} of its {num_packets} packets do not begin where they should"
    if lost:
        yield f"packets are missing in {count_of(lost, 'place')}"
    if without_start:
        yield f"{without_start} of its packets do not begin a frame as they say"
