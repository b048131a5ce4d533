"""Find packets that an MPEG transport stream lacks (ISO/IEC 13818-1, 2.4.3), and video that continues in another stream.

libavformat silently skips a lost packet, even one that contains a whole frame, and PyAV ignores streams that begin
later. Packets of a stream carry a counter that runs from 0 to 15 and wraps. The count may restart where another recording was
appended, as HLS does: at a keyframe, or at a frame with count 0, after a program table whose own count restarts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vidprep.formats.errors import count_of
from vidprep.formats.storage.untrusted import open_regular

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Numbers = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

# Size of a packet, and of the header that some recorders write before it.
SIZES = ((188, 0), (192, 4), (204, 0))
SYNC = 0x47
HEAD_BYTES = 1 << 16
PACKETS_AT_ONCE = 1 << 16
GRID_MARKS = 8  # one of them may be damaged
SURE_MARKS = 3  # other bytes look like so many packets in a row once in 16 million places
PROGRAM_TABLE, PROGRAM_LIST, PROGRAM_MAP = 0, 0, 2  # a PID, and kinds of tables
TRANSPORT_ERROR, UNIT_START, ADAPTATION_FIELD, PAYLOAD = 0x80, 0x40, 0x20, 0x10
RANDOM_ACCESS, DISCONTINUITY, PRIORITY, CLOCK = 0x40, 0x80, 0x20, 0x10  # flags of an adaptation field
STUFFING = 0xFF
PES_START = (0, 0, 1)
PES_VIDEO = range(0xE0, 0xF0)


class Grid(NamedTuple):
    offset: int
    length: int
    prefix: int


def missing_packets(path: str | Path, stream_id: int, zeros: int, *, read_to_end: bool) -> list[str]:
    """Return what shows that packets of a stream are missing or were not read, a line each. Reads the headers of all
    packets.

    Args:
        path: The file.
        stream_id: PID of the stream.
        zeros: Number of zeros that the file ends in.
        read_to_end: Whether the stream was read from its start to its end.
    """
    with open_regular(path) as file:
        head = file.read(HEAD_BYTES)
    grid = _grid(head)
    return list(_missing(path, stream_id, grid, zeros, read_to_end=read_to_end)) if grid else []


def _grid(head: bytes) -> Grid | None:
    for offset in range(min(len(head), 1024)):
        for length, prefix in SIZES:
            marks = head[offset + prefix : offset + prefix + GRID_MARKS * length : length]
            if len(marks) > 1 and marks[0] == SYNC and marks.count(SYNC) >= len(marks) - (len(marks) == GRID_MARKS):
                return Grid(offset, length, prefix)
    return None


def _missing(path: str | Path, stream_id: int, grid: Grid, zeros: int, *, read_to_end: bool) -> Iterator[str]:
    import numpy as np  # imported here because few children read such files

    data = np.memmap(path, np.uint8, "r")
    num_bytes = len(data) - zeros - grid.offset
    num_packets, left = divmod(num_bytes, grid.length)
    if zeros and left:  # the payload of the last packet may end in zeros
        num_packets, left = min(num_packets + 1, (len(data) - grid.offset) // grid.length), 0
    if left and (end := _foreign_from(data, grid, num_packets)) is not None:
        num_packets, left = end, 0
    if left:
        yield f"cut short: its last packet has {left} of {grid.length} bytes"
    packets = data[grid.offset : grid.offset + num_packets * grid.length].reshape(num_packets, grid.length)
    out_of_place = lost = without_start = with_errors = odd_stuffing = 0
    places: dict[int, _Places] = defaultdict(_Places)
    last, num_tables = -1, 0  # count of the stream's last packet, and program tables since then whose count restarted
    tables_before: dict[int, int] = {}
    for begin in range(0, num_packets, PACKETS_AT_ONCE):
        block = packets[begin : begin + PACKETS_AT_ONCE, grid.prefix : grid.prefix + 188]
        head = block[:, :6].astype(np.int64)
        is_packet = head[:, 0] == SYNC
        out_of_place += int((~is_packet).sum())
        ids = (head[:, 1] & 0x1F) << 8 | head[:, 2]
        _see_video(places, block, ids, is_packet, begin)
        tables = np.cumsum(_new_tables(block, ids, is_packet, tables_before))
        own = np.flatnonzero(is_packet & (ids == stream_id) & (head[:, 3] & PAYLOAD != 0))
        if not len(own):
            num_tables += int(tables[-1])
            continue
        _, flags, _, control, field_bytes, field_flags = head[own].T
        with_errors += int((flags & TRANSPORT_ERROR != 0).sum())
        field_bytes = np.where(control & ADAPTATION_FIELD, field_bytes + 1, 0)
        field_flags = np.where(field_bytes > 1, field_flags, 0)
        counts = control & 15
        steps = np.diff(counts, prepend=last if last >= 0 else counts[0]) & 15
        new_tables = np.diff(tables[own], prepend=-num_tables)
        may_be_first = (field_flags & RANDOM_ACCESS != 0) | (flags & UNIT_START != 0) & (counts == 0)
        begins_anew = (field_flags & DISCONTINUITY != 0) | may_be_first & (new_tables > 0)
        lost += int(((steps > 1) & ~begins_anew).sum())
        last, num_tables = int(counts[-1]), int(tables[-1] - tables[own[-1]])
        odd_stuffing += _odd_stuffing(block[own], field_bytes, field_flags)
        starts = flags & UNIT_START != 0
        payload = np.minimum(4 + field_bytes[starts], 188 - len(PES_START))
        starts_found = block[own[starts, None], payload[:, None] + np.arange(len(PES_START))]
        without_start += int((starts_found != PES_START).any(axis=1).sum())
    if read_to_end:
        yield from _parts_elsewhere(places, stream_id)
    if out_of_place:
        yield f"{out_of_place} of its {num_packets} packets do not begin where they should"
    if with_errors:
        yield f"{count_of(with_errors, 'packet')} received with errors"
    if lost:
        yield f"packets are missing in {count_of(lost, 'place')}"
    if odd_stuffing:
        yield f"{count_of(odd_stuffing, 'packet')} padded with other bytes than padding"
    if without_start:
        yield f"{without_start} of its packets do not begin a frame as they say"


def packets_end(path: str | Path) -> int | None:
    """Return where bytes begin behind the packets that are none; None if there are none, or only zeros."""
    import numpy as np

    with open_regular(path) as file:
        grid = _grid(file.read(HEAD_BYTES))
    if grid is None:
        return None
    data = np.memmap(path, np.uint8, "r")
    num_packets, left = divmod(len(data) - grid.offset, grid.length)
    end = _foreign_from(data, grid, num_packets) if left else None
    return None if end is None else grid.offset + end * grid.length


def _foreign_from(data: Bytes, grid: Grid, num_packets: int) -> int | None:
    """Return the number of packets before bytes that are none, at the end of a file that does not end with a whole packet.

    None if it is cut short, or if packets follow in other places, between which bytes are missing.
    """
    marks = data[grid.offset + grid.prefix :: grid.length] == SYNC
    end = num_packets
    while end > SURE_MARKS and not marks[end - SURE_MARKS : end].all():
        end -= 1
    if end == len(marks) or marks[end]:
        return None
    rest = data[grid.offset + end * grid.length + grid.prefix :] == SYNC
    runs = rest.copy()
    for number in range(1, SURE_MARKS + 1):
        runs = runs[: -grid.length] & rest[number * grid.length :] if len(rest) > number * grid.length else runs[:0]
    ends_whole = bool(data[grid.prefix - grid.length] == SYNC)
    return None if ends_whole or runs.any() else end


def _odd_stuffing(packets: Bytes, field_bytes: Numbers, field_flags: Numbers) -> int:
    """Return how many packets have a byte that is not 0xFF after the contents of their adaptation field, where a clock may
    be (2.4.3.5).
    """
    import numpy as np

    is_plain = (field_bytes > 1) & (field_flags & ~(RANDOM_ACCESS | DISCONTINUITY | PRIORITY | CLOCK) == 0)
    padded, ends = packets[is_plain], 4 + field_bytes[is_plain]
    begins = np.where(field_flags[is_plain] & CLOCK, 12, 6)
    places = np.arange(packets.shape[1])
    is_padding = (places >= begins[:, None]) & (places < ends[:, None])
    return int(((padded != STUFFING) & is_padding).any(axis=1).sum())


def _new_tables(block: Bytes, ids: Numbers, is_packet: Flags, before: dict[int, int]) -> Flags:
    """Return which packets of program tables do not continue the count of the one before.

    Args:
        block: Packets.
        ids: PID of each.
        is_packet: Flags of the valid packets.
        before: Last count of each PID; updated.
    """
    import numpy as np

    is_new = np.zeros(len(block), np.bool_)
    begins = is_packet & (block[:, 1] & UNIT_START != 0) & (block[:, 3] & ADAPTATION_FIELD == 0) & (block[:, 4] == 0)
    is_map, is_list = (begins & (block[:, 5] == kind) for kind in (PROGRAM_MAP, PROGRAM_LIST))
    for pid in (PROGRAM_TABLE, *map(int, np.unique(ids[is_map]))):
        places = np.flatnonzero((ids == pid) & (is_list if pid == PROGRAM_TABLE else is_map))
        if len(places):
            counts = block[places, 3].astype(np.int64) & 15
            is_new[places] = np.diff(counts, prepend=before.get(pid, counts[0])) & 15 != 1
            before[pid] = int(counts[-1])
    return is_new


@dataclass(slots=True)
class _Places:
    """Packet numbers in the file at which frames of a video stream begin."""

    first: int = -1
    last: int = -1
    count: int = 0


def _see_video(places: dict[int, _Places], block: Bytes, ids: Numbers, is_packet: Flags, begin: int) -> None:
    """Add positions of frames in a block of packets; `begin` is the number of its first packet."""
    import numpy as np

    starts = np.flatnonzero(is_packet & (block[:, 1] & UNIT_START != 0) & (block[:, 3] & PAYLOAD != 0))
    payload = 4 + np.where(block[starts, 3] & ADAPTATION_FIELD, block[starts, 4].astype(np.int64) + 1, 0)
    heads = block[starts[:, None], np.minimum(payload, 188 - 4)[:, None] + np.arange(4)]
    is_video = (
        (heads[:, :3] == PES_START).all(axis=1) & (heads[:, 3] >= PES_VIDEO.start) & (heads[:, 3] < PES_VIDEO.stop)
    )
    starts = starts[is_video]
    for pid in np.unique(ids[starts]):
        numbers = starts[ids[starts] == pid] + begin
        place = places[int(pid)]
        place.first = int(numbers[0]) if place.first < 0 else place.first
        place.last = int(numbers[-1])
        place.count += len(numbers)


def _parts_elsewhere(places: dict[int, _Places], stream_id: int) -> Iterator[str]:
    own = places.get(stream_id)
    for pid, other in places.items():
        if (
            own is not None
            and pid != stream_id
            and other.count > 1
            and (other.first >= own.last or other.last <= own.first)
        ):
            where = "goes on" if other.first >= own.last else "begins"
            yield f"its video {where} in another stream (PID {pid:#x}), and {count_of(other.count, 'frame')} there were not read"
