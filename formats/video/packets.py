"""Positions of the packets of a video, by which each GOP is read at once and decoded alone.

One packet is one frame, and no GOP needs another one, so GOP g consists of the packets with the same numbers as its
frames. As bytes, in which every number is little-endian and a number of more than one byte is stored in planes (all
lowest bytes first), so that compression finds what repeats:

    1  version: 1
    4  widths in bytes of a GOP's length, a packet's size, its order, its gap (0: all gaps are 0)
    4  N, number of packets
    4  G, number of GOPs
    8  position of the first packet in the video file
       G lengths of GOPs in frames
       N sizes of packets in bytes, in decode order
       N orders: twice the frame's number minus the packet's number, plus 1 if no other frame refers to the frame; signed
       N gaps: bytes between the packet and the one before it, such as audio, which are not the video's; 0 for the first
       G CRC-32s of the bytes of each GOP, from its first packet to its last, 4 bytes each

A GOP of three frames I P B at byte 48 with 900, 300 and 40 bytes, whose B is shown in the middle and not referred to:

    01  01 02 01 00  03000000  01000000  3000000000000000   03   842C28 030100   00 02 FF   crc
        (sizes 0x384, 0x12C, 0x028; orders 0, 2 * (2 - 1), 2 * (1 - 2) + 1)
"""

from __future__ import annotations

import array
import struct
import sys
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import BinaryIO, NamedTuple

from av.packet import Packet
from av.video.stream import VideoStream

from vidprep.formats.errors import NotIndexedError
from vidprep.formats.video._shown_frames import PacketInfo, frame_counter

VERSION, HEADER = 1, struct.Struct("<5BIIQ")
UNSIGNED, SIGNED = {1: "B", 2: "H", 4: "I"}, {1: "b", 2: "h", 4: "i"}  # array's types by width
SPAN_BYTES = 32 << 20
HEADER_BYTES_MAX = 64  # of a Matroska block before its frame


class PacketSpan(NamedTuple):
    """Part of a file with whole GOPs.

    Attributes:
        gops: The first GOP, and the one after the last
        offset: Position in the video file
    """

    gops: tuple[int, int]
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class PacketIndex:
    """Positions of the packets of a video. Numbers are in sequences: reading this needs no NumPy, which takes long to load.

    Attributes:
        keyframes: (G,) number of the first frame of each GOP, which is also that of its first packet
        offsets: (N,) position of each packet in the video file, in decode order
        sizes: (N,) size of each packet in bytes
        frames: (N,) number of the frame that each packet shows
        is_reference: (N,) whether other frames may refer to it
        crc32: (G,) CRC-32 of the bytes of each GOP, from its first packet to the end of its last
    """

    keyframes: Sequence[int]
    offsets: Sequence[int]
    sizes: Sequence[int]
    frames: Sequence[int]
    is_reference: Sequence[bool]
    crc32: Sequence[int]

    def __len__(self) -> int:
        return len(self.sizes)

    def gop_end(self, gop: int) -> int:
        """Return the number of the frame after a GOP."""
        return self.keyframes[gop + 1] if gop + 1 < len(self.keyframes) else len(self.sizes)

    def span(self, gop: int, end: int | None = None) -> PacketSpan:
        """Return the bytes of the GOPs [gop, end); of one GOP by default."""
        end = gop + 1 if end is None else end
        offset, last = self.offsets[self.keyframes[gop]], self.gop_end(end - 1) - 1
        return PacketSpan((gop, end), offset, self.offsets[last] + self.sizes[last] - offset)

    def to_bytes(self) -> bytes:
        """Return the layout of the module's documentation."""
        count = len(self)
        lengths = [end - begin for begin, end in pairwise([*self.keyframes, count])]
        order = [
            2 * (frame - number) + (not is_reference)
            for number, (frame, is_reference) in enumerate(zip(self.frames, self.is_reference, strict=True))
        ]
        ends = [offset + size for offset, size in zip(self.offsets, self.sizes, strict=True)]
        gaps = [0, *(offset - end for offset, end in zip(self.offsets[1:], ends, strict=False))]
        widths = [_width(max(lengths)), _width(max(self.sizes)), _width(2 * max(map(abs, order))), 0]
        parts = [_planes(lengths, UNSIGNED[widths[0]]), _planes(self.sizes, UNSIGNED[widths[1]])]
        parts.append(_planes(order, SIGNED[widths[2]]))
        if any(gaps):
            widths[3] = _width(max(gaps))
            parts.append(_planes(gaps, UNSIGNED[widths[3]]))
        head = HEADER.pack(VERSION, *widths, count, len(lengths), self.offsets[0])
        return b"".join([head, *parts, struct.pack(f"<{len(self.crc32)}I", *self.crc32)])

    @classmethod
    def from_bytes(cls, data: bytes) -> PacketIndex:
        """Return the index of such bytes. Raises ValueError if they are damaged."""
        try:
            version, *widths, count, gops, first = HEADER.unpack_from(data)
        except struct.error as error:
            raise ValueError(str(error)) from error
        numbers = (gops, count, count, count)
        due = HEADER.size + sum(width * number for width, number in zip(widths, numbers, strict=True)) + 4 * gops
        are_widths = {*widths[:3]} <= UNSIGNED.keys() and widths[3] in (0, *UNSIGNED)
        if version != VERSION or not are_widths or not 0 < gops <= count or len(data) != due:
            raise ValueError(f"version {version}, {count} packets in {gops} GOPs and {len(data)} bytes")
        planes, at = [], HEADER.size
        for place, (width, number) in enumerate(zip(widths, numbers, strict=True)):
            kind = (SIGNED if place == 2 else UNSIGNED)[width] if width else "B"
            planes.append(_join_planes(data[at : at + width * number], kind, number))
            at += width * number
        lengths, sizes, order, gaps = planes
        if sum(lengths) != count or min(lengths) < 1 or min(sizes) < 1:
            raise ValueError(f"GOPs of {sum(lengths)} frames, {count} packets")
        steps = [size + gap for size, gap in zip(sizes, gaps[1:], strict=False)] if gaps else sizes[:-1]
        offsets = list(accumulate(steps, initial=first))
        frames = [number + (value >> 1) for number, value in enumerate(order)]
        keyframes = list(accumulate(lengths[:-1], initial=0))
        crc32 = struct.unpack_from(f"<{gops}I", data, at)
        return cls(keyframes, offsets, sizes, frames, [not value & 1 for value in order], crc32)


def _width(most: int) -> int:
    return 1 if most < 1 << 8 else 2 if most < 1 << 16 else 4


def _planes(values: Sequence[int], kind: str) -> bytes:
    numbers = array.array(kind, values)
    if sys.byteorder == "big":
        numbers.byteswap()
    data, width = numbers.tobytes(), numbers.itemsize
    return b"".join(data[place::width] for place in range(width))


def _join_planes(data: bytes, kind: str, count: int) -> array.array[int]:
    numbers = array.array(kind)
    width, whole = numbers.itemsize, bytearray(len(data))
    for place in range(width) if data else ():
        whole[place::width] = data[place * count : (place + 1) * count]
    numbers.frombytes(whole)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


class PacketIndexer:
    """Makes the index of a video from its packets, in the order of the container.

    Args:
        codec: Name of the codec.
        configuration: The decoder's configuration record (extradata), if it has one.
        file: The closed video file. Each packet is searched in it.
    """

    def __init__(self, codec: str, configuration: bytes | None, file: BinaryIO) -> None:
        self._info_of = frame_counter(codec, configuration)
        self._file = file
        self._pts: list[int] = []
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self._entries: list[int] = []
        self._is_reference: list[bool] = []
        self._has_layers = False

    def add(self, packet: Packet[VideoStream], data: bytes) -> None:
        """Add a packet.

        Raises:
            NotIndexedError: It cannot be read alone: it is not one frame, has no time, or is not stored in one piece.
        """
        number, info = len(self._pts), PacketInfo() if self._info_of is None else self._info_of(data)
        if packet.pts is None or info.frames != 1 or packet.is_discard:
            raise NotIndexedError(f"packet {number} is not exactly one frame that is displayed at a known time")
        if info.needed_later and number:
            raise NotIndexedError(f"packet {number} changes parameters of the stream")
        if packet.is_keyframe and info.is_entry is not False:
            self._entries.append(number)
        self._pts.append(packet.pts)
        self._offsets.append(self._position(packet, data))
        self._sizes.append(len(data))
        self._is_reference.append(info.is_reference)
        self._has_layers |= info.temporal_layer > 0

    def _position(self, packet: Packet[VideoStream], data: bytes) -> int:
        if packet.pos is not None and packet.pos >= 0:
            self._file.seek(packet.pos)
            place = self._file.read(HEADER_BYTES_MAX + len(data)).find(data)
            if place >= 0:
                return packet.pos + place
        raise NotIndexedError(f"packet {len(self._pts)} is not stored as it is decoded, or not in one piece")

    def finish(self) -> PacketIndex:
        """Return the index. Raises NotIndexedError if a GOP needs another one."""
        count, frames = len(self._pts), [0] * len(self._pts)
        for number, place in enumerate(sorted(range(count), key=self._pts.__getitem__)):
            frames[place] = number
        if not self._entries or self._entries[0] != 0:
            raise NotIndexedError("its first packet is not marked as a keyframe")
        ends = [offset + size for offset, size in zip(self._offsets, self._sizes, strict=True)]
        if len({*self._pts}) < count or any(offset < end for offset, end in zip(self._offsets[1:], ends, strict=False)):
            raise NotIndexedError("its frames share a time, or its packets are not stored in decode order")
        checksums = []
        for begin, end in pairwise([*self._entries, count]):
            inside = frames[begin:end]
            if frames[begin] != begin or min(inside) < begin or max(inside) >= end:
                raise NotIndexedError(f"the GOP from packet {begin} on is open: its frames refer to another GOP")
            self._file.seek(self._offsets[begin])
            checksums.append(zlib.crc32(self._file.read(ends[end - 1] - self._offsets[begin])))
        is_reference = [self._has_layers or each for each in self._is_reference]
        return PacketIndex(self._entries, self._offsets, self._sizes, frames, is_reference, checksums)


def spans_of(index: PacketIndex, numbers: Sequence[int]) -> Iterator[tuple[PacketSpan, list[int]]]:
    """Yield the bytes to read for frames, and which frames they contain. Adjacent GOPs are read at once, up to SPAN_BYTES.

    Args:
        index: The index.
        numbers: Frame numbers, ascending.
    """
    gops = [bisect_right(index.keyframes, number) - 1 for number in numbers]
    begin = 0
    for at in range(1, len(gops) + 1):
        if (
            at == len(gops)
            or gops[at] > gops[at - 1] + 1
            or (gops[at] > gops[at - 1] and index.span(gops[begin], gops[at] + 1).size > SPAN_BYTES)
        ):
            yield index.span(gops[begin], gops[at - 1] + 1), list(numbers[begin:at])
            begin = at
