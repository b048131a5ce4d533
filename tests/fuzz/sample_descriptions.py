"""An MP4 whose track changes its sample description midway (ISO/IEC 14496-12, 8.5.2), which ffmpeg does not write."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import av

MATRIX = struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)


class Coded(NamedTuple):
    """H.264 out of an MP4. configuration: the content of its avcC box."""

    configuration: bytes
    size: tuple[int, int]
    packets: list[bytes]
    keyframes: list[bool]


def coded(path: Path) -> Coded:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        packets = [(bytes(packet), packet.is_keyframe) for packet in container.demux(stream) if packet.size]
        return Coded(
            bytes(context.extradata or b""),
            (context.width, context.height),
            [data for data, _ in packets],
            [key for _, key in packets],
        )


def box(kind: bytes, *parts: bytes) -> bytes:
    content = b"".join(parts)
    return struct.pack(">I4s", 8 + len(content), kind) + content


def full(kind: bytes, *parts: bytes, flags: int = 0) -> bytes:
    return box(kind, struct.pack(">I", flags), *parts)


def table(kind: bytes, rows: Sequence[tuple[int, ...]]) -> bytes:
    return full(kind, struct.pack(">I", len(rows)), *(struct.pack(f">{len(row)}I", *row) for row in rows))


def joined(parts: Sequence[Coded], rate: int) -> bytes:
    """One track that shows the frames of all parts, without B-frames, each part by a description and in a chunk of its own."""
    packets = [packet for part in parts for packet in part.packets]
    keys = [key for part in parts for key in part.keyframes]
    head = box(b"ftyp", b"isom\0\0\2\0isomiso2avc1mp41")
    begin, chunks = len(head) + 8, []
    for part in parts:
        chunks.append(begin)
        begin += sum(map(len, part.packets))
    width, height = parts[0].size
    entries = [
        box(
            b"avc1",
            bytes(6),
            struct.pack(">H", 1),
            bytes(16),
            struct.pack(">HHIIIH", *part.size, 0x480000, 0x480000, 0, 1),
            bytes(32),
            struct.pack(">Hh", 24, -1),
            box(b"avcC", part.configuration),
        )
        for part in parts
    ]
    tables = box(
        b"stbl",
        full(b"stsd", struct.pack(">I", len(entries)), *entries),
        table(b"stts", [(len(packets), 1)]),
        table(b"stss", [(number,) for number, key in enumerate(keys, 1) if key]),
        table(b"stsc", [(number, len(part.packets), number) for number, part in enumerate(parts, 1)]),
        full(b"stsz", struct.pack(">II", 0, len(packets)), *(struct.pack(">I", len(packet)) for packet in packets)),
        table(b"stco", [(chunk,) for chunk in chunks]),
    )
    media = box(
        b"mdia",
        full(b"mdhd", struct.pack(">IIIIHH", 0, 0, rate, len(packets), 0x55C4, 0)),
        full(b"hdlr", struct.pack(">I4s", 0, b"vide"), bytes(13)),
        box(
            b"minf",
            full(b"vmhd", bytes(8), flags=1),
            box(b"dinf", full(b"dref", struct.pack(">I", 1), full(b"url ", flags=1))),
            tables,
        ),
    )
    header = struct.pack(">IIII", 0, 0, 1, 0), struct.pack(">I", len(packets)), bytes(16), MATRIX
    track = box(b"trak", full(b"tkhd", *header, struct.pack(">II", width << 16, height << 16), flags=3), media)
    movie = full(
        b"mvhd",
        struct.pack(">IIIIIH", 0, 0, rate, len(packets), 0x10000, 0x100),
        bytes(10),
        MATRIX,
        bytes(24),
        struct.pack(">I", 2),
    )
    return head + box(b"mdat", *packets) + box(b"moov", movie, track)
