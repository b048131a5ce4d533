"""Damaged copies of clips. A clip and a seed make a mutant, the same one every time.

python -m tests.fuzz make CLIP SEED FILE
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

Random = np.random.Generator


class Field(NamedTuple):
    """A number that a demuxer believes. what: where it stands, for people."""

    at: int
    size: int
    order: Literal["little", "big"]
    what: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """clip: file name of the clip that it is made of. done: what was done to it."""

    clip: str
    seed: int
    data: bytes
    done: str

    @property
    def id(self) -> str:
        return f"{self.clip.replace('.', '-')}_{self.seed}"

    @property
    def name(self) -> str:
        return f"{self.id}.{self.clip.rpartition('.')[2]}"


def mutant(clip: str, data: bytes, seed: int) -> Mutant:
    random = np.random.default_rng([seed, zlib.crc32(clip.encode())])
    fields = list(FIELDS.get(clip.rpartition(".")[2], words)(data))
    changed = bytearray(data)
    done = []
    for _ in range(int(random.choice([1, 1, 1, 2, 3]))):
        if fields and random.random() < 0.55:
            done.append(change_field(changed, fields, random))
        else:
            done.append(DAMAGES[int(random.integers(len(DAMAGES)))](changed, random))
    if clip.endswith(".ogv") and random.random() < 0.5:
        sign_pages(changed)
    return Mutant(clip, seed, bytes(changed), "; ".join(done))


# ------------------------------------------------------------------------------------------------ any bytes


def bits(data: bytearray, random: Random) -> str:
    count = int(2 ** random.integers(0, 7))
    for at in random.integers(0, max(1, len(data)), count if data else 0):
        data[at] ^= 1 << int(random.integers(8))
    return f"{count} bits"


def cut(data: bytearray, random: Random) -> str:
    end = int(len(data) * random.choice([random.random(), 1 - random.random() * 0.05]))
    del data[end:]
    return f"cut at {end}"


def span(data: bytearray, random: Random) -> tuple[int, int]:
    size = int(random.choice([16, 188, 1024, 0.1 * len(data)]))
    begin = int(random.integers(0, max(1, len(data) - size)))
    return begin, min(len(data), begin + size)


def hole(data: bytearray, random: Random) -> str:
    begin, end = span(data, random)
    data[begin:end] = bytes(end - begin)
    return f"zeros {begin}-{end}"


def noise(data: bytearray, random: Random) -> str:
    begin, end = span(data, random)
    data[begin:end] = random.bytes(end - begin)
    return f"noise {begin}-{end}"


def lose(data: bytearray, random: Random) -> str:
    begin, end = span(data, random)
    del data[begin:end]
    return f"without {begin}-{end}"


def repeat(data: bytearray, random: Random) -> str:
    begin, end = span(data, random)
    data[end:end] = data[begin:end]
    return f"twice {begin}-{end}"


DAMAGES: tuple[Callable[[bytearray, Random], str], ...] = (bits, cut, hole, noise, lose, repeat)


# ------------------------------------------------------------------------------------------------ numbers


def change_field(data: bytearray, fields: list[Field], random: Random) -> str:
    # Names first, or a table of a thousand entries would take all turns.
    names = sorted({field.what for field in fields})
    what = names[int(random.integers(len(names)))]
    places = [field for field in fields if field.what == what and field.at + field.size <= len(data)]
    if not places:
        return f"no {what}"
    field = places[int(random.integers(len(places)))]
    old = int.from_bytes(data[field.at : field.at + field.size], field.order)
    top = 1 << 8 * field.size
    values = [
        0,
        1,
        old + 1,
        old - 1,
        old * 2,
        old // 2,
        top // 2 - 1,
        top // 2,
        top - 1,
        int(random.integers(min(top, 1 << 62))),
    ]
    values += [old ^ 1 << int(random.integers(8 * field.size))] * 3
    new = values[int(random.integers(len(values)))] % top
    data[field.at : field.at + field.size] = new.to_bytes(field.size, field.order)
    return f"{what} at {field.at}: {old} -> {new}"


def words(
    data: bytes, what: str = "header", begin: int = 0, end: int = 512, order: Literal["little", "big"] = "little"
) -> Iterator[Field]:
    for at in range(begin, min(end, len(data)) - 3, 4):
        yield Field(at, 4, order, what)


MP4_FOLDERS = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"moof", b"traf", b"mvex"}
MP4_TABLES = {
    b"stts",
    b"ctts",
    b"stss",
    b"elst",
    b"stsz",
    b"stsc",
    b"stco",
    b"mvhd",
    b"tkhd",
    b"mdhd",
    b"trun",
    b"tfhd",
    b"tfdt",
    b"trex",
    b"stsd",
    b"sidx",
}


def mp4(data: bytes, begin: int = 0, end: int | None = None) -> Iterator[Field]:
    """Sizes and names of boxes, all words of the tables, and the display matrix of a track by itself."""
    end = len(data) if end is None else end
    while begin + 8 <= end:
        size, kind = int.from_bytes(data[begin : begin + 4], "big"), data[begin + 4 : begin + 8]
        name = kind.decode("ascii", "replace")
        yield Field(begin, 4, "big", f"size of {name}")
        stop = begin + size if size >= 8 else end
        if kind in MP4_FOLDERS:
            yield from mp4(data, begin + 8, min(stop, end))
        elif kind in MP4_TABLES:
            yield from words(data, name, begin + 8, min(stop, end, begin + 4096), "big")
            if kind == b"tkhd":
                yield from words(data, "matrix", begin + 48, begin + 84, "big")
        begin = stop


MATROSKA_FOLDERS = {
    0x18538067,
    0x1F43B675,
    0x1654AE6B,
    0xAE,
    0xA0,
    0x1549A966,
    0x1C53BB6B,
    0xBB,
    0xB7,
    0xE0,
    0x114D9B74,
    0x4DBB,
    0x7670,
    0x1A45DFA3,
}
MATROSKA_BLOCKS = {0xA3, 0xA1}


def matroska(data: bytes, begin: int = 0, end: int | None = None) -> Iterator[Field]:
    """Names, sizes and numbers of elements, times and flags of blocks."""
    end = len(data) if end is None else end
    while begin + 2 <= end and data[begin]:
        id_size = 9 - data[begin].bit_length()
        element = int.from_bytes(data[begin : begin + id_size], "big")
        at = begin + id_size
        if at >= end or not data[at]:
            return
        size_size = 9 - data[at].bit_length()
        size = int.from_bytes(data[at : at + size_size], "big") & ((1 << 7 * size_size) - 1)
        yield Field(begin, id_size, "big", "id")
        yield Field(at, size_size, "big", f"size of {element:X}")
        value = at + size_size
        stop = end if size == (1 << 7 * size_size) - 1 else min(end, value + size)
        if element in MATROSKA_FOLDERS:
            yield from matroska(data, value, stop)
        elif element in MATROSKA_BLOCKS:
            yield Field(value + 1, 2, "big", "time of a block")
            yield Field(value + 3, 1, "big", "flags of a block")
        elif 0 < size <= 8:
            yield Field(value, size, "big", f"{element:X}")
        begin = stop


def avi(data: bytes, begin: int = 0, end: int | None = None) -> Iterator[Field]:
    end = len(data) if end is None else end
    while begin + 8 <= end:
        kind, size = data[begin : begin + 4], int.from_bytes(data[begin + 4 : begin + 8], "little")
        yield Field(begin + 4, 4, "little", f"size of {kind.decode('ascii', 'replace')}")
        if kind in (b"RIFF", b"LIST"):
            yield from avi(data, begin + 12, min(end, begin + 8 + size))
        elif kind in (b"avih", b"strh", b"strf", b"idx1"):
            yield from words(data, kind.decode(), begin + 8, min(end, begin + 8 + size))
        begin += 8 + size + size % 2


OGG_HEADER = (
    ("flags", 5, 1),
    ("granule", 6, 8),
    ("serial", 14, 4),
    ("number", 18, 4),
    ("checksum", 22, 4),
    ("segments", 26, 1),
)


def ogg(data: bytes) -> Iterator[Field]:
    at = data.find(b"OggS")
    while at >= 0:
        yield from (Field(at + offset, size, "little", f"page {what}") for what, offset, size in OGG_HEADER)
        at = data.find(b"OggS", at + 4)


def ogg_table() -> list[int]:
    table = []
    for number in range(256):
        value = number << 24
        for _ in range(8):
            value = (value << 1) ^ (0x04C11DB7 if value & 1 << 31 else 0)
        table.append(value & 0xFFFFFFFF)
    return table


def sign_pages(data: bytearray) -> None:
    """Checksums that hold, so that what was changed is believed."""
    table, at = ogg_table(), data.find(b"OggS")
    while at >= 0:
        if at + 27 > len(data):
            return
        lacing = data[at + 27 : at + 27 + data[at + 26]]
        end = at + 27 + len(lacing) + sum(lacing)
        data[at + 22 : at + 26] = bytes(4)
        checksum = 0
        for byte in data[at:end]:
            checksum = (checksum << 8 & 0xFFFFFFFF) ^ table[checksum >> 24 ^ byte]
        data[at + 22 : at + 26] = checksum.to_bytes(4, "little")
        at = data.find(b"OggS", at + 4)


def transport(data: bytes) -> Iterator[Field]:
    for at in range(0, len(data) - 187, 188):
        yield Field(at, 1, "big", "sync byte")
        yield Field(at + 1, 2, "big", "PID")
        yield Field(at + 3, 1, "big", "continuity")
        payload = at + 4
        if data[at + 3] & 0x20:
            yield Field(at + 4, 1, "big", "adaptation")
            yield Field(at + 5, 1, "big", "adaptation flags")
            yield Field(at + 6, 4, "big", "PCR")
            payload += 1 + data[at + 4]
        if data[at + 1] & 0x40 and payload + 14 < at + 188 and data[payload : payload + 3] == b"\0\0\1":
            yield Field(payload + 4, 2, "big", "PES length")
            yield Field(payload + 7, 1, "big", "PES flags")
            yield Field(payload + 9, 5, "big", "PES time")


def flash(data: bytes) -> Iterator[Field]:
    at = 13
    while at + 11 <= len(data):
        size = int.from_bytes(data[at + 1 : at + 4], "big")
        yield Field(at, 1, "big", "tag type")
        yield Field(at + 1, 3, "big", "tag size")
        yield Field(at + 4, 3, "big", "tag time")
        yield Field(at + 7, 1, "big", "tag time, high byte")
        yield Field(at + 11 + size, 4, "big", "size before")
        at += 15 + size


FIELDS: dict[str, Callable[[bytes], Iterator[Field]]] = {
    "mp4": mp4,
    "mov": mp4,
    "3gp": mp4,
    "mkv": matroska,
    "webm": matroska,
    "avi": avi,
    "ogv": ogg,
    "ts": transport,
    "flv": flash,
}
