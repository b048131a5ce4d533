"""MP4 files with edit lists that no program here writes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

PATH = (b"moov", b"trak", b"edts", b"elst")


def with_edits(path: Path, made: Path, edits: Sequence[tuple[float, float]]) -> Path:
    """A copy whose first track shows these spans, (seconds, begin in the media). Its moov must come last."""
    data = bytearray(path.read_bytes())
    begins, at = [], 0
    for kind in PATH:
        at = data.index(kind, at) - 4
        begins.append(at)
        at += 8
    movie_rate = struct.unpack_from(">I", data, data.index(b"mvhd") + 16)[0]
    media_rate = struct.unpack_from(">I", data, data.index(b"mdhd") + 16)[0]
    rows = b"".join(
        struct.pack(">IiI", round(long * movie_rate), round(begin * media_rate), 1 << 16) for long, begin in edits
    )
    elst = struct.pack(">I4sII", 16 + len(rows), b"elst", 0, len(edits)) + rows
    old = struct.unpack_from(">I", data, begins[-1])[0]
    data[begins[-1] : begins[-1] + old] = elst
    for begin in begins[:-1]:
        struct.pack_into(">I", data, begin, struct.unpack_from(">I", data, begin)[0] + len(elst) - old)
    struct.pack_into(">I", data, data.index(b"tkhd") + 24, round(sum(long for long, _ in edits) * movie_rate))
    made.write_bytes(data)
    return made


def with_dolby_vision(path: Path, made: Path, profile: int, compatibility: int) -> Path:
    """A copy whose first track says that it is Dolby Vision. Its moov must come last."""
    data = bytearray(path.read_bytes())
    begins, at = [], 0
    for kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd", b"hev1"):
        at = data.index(kind, at) - 4
        begins.append(at)
        at += 8
    record = struct.pack(">I4sBBHB19x", 32, b"dvcC", 1, 0, profile << 9 | 6 << 3 | 0b101, compatibility << 4)
    end = begins[-1] + struct.unpack_from(">I", data, begins[-1])[0]
    for begin in begins:
        struct.pack_into(">I", data, begin, struct.unpack_from(">I", data, begin)[0] + len(record))
    made.write_bytes(data[:end] + record + data[end:])
    return made
