"""Find parts of a file that libavformat silently skips: a second file after the end, and unknown elements.

Files may be joined end to end, as `cat a.mp4 b.mp4` does. libavformat reads both for Matroska, AVI, GIF, transport and
program streams, chained Ogg and raw streams; for the formats here only the first (ISO/IEC 14496-12, 4.2; Adobe FLV
10.1, E.2; Microsoft ASF 01.20, 3.1; PNG third edition, 5.2). It also skips elements that a container does not define or
that are nested wrongly, and the frames in them: tags of FLV (E.4), elements of Matroska (RFC 9559, 5.1.3), fragments of
MP4 (ISO/IEC 14496-12, 8.8).
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vidprep.formats.errors import count_of
from vidprep.formats.storage.untrusted import open_regular
from vidprep.formats.video.damage._file_end import (
    ASF_FILE_PROPERTIES,
    BOXES,
    EBML_ELEMENTS,
    EBML_SEGMENT,
    ENDS,
    segment_end,
)
from vidprep.formats.video.damage._mp4_tables import NOT_UNDERSTOOD, num_video_frames
from vidprep.formats.video.damage._transport import packets_end
from vidprep.formats.video.picture_facts import elements

# First bytes of the formats, by libavformat's name, of which only the first file is read.
BEGINNINGS = {
    "flv": re.compile(rb"FLV\x01[\x01\x04\x05]\0\0\0\x09\0\0\0\0"),
    "asf": re.compile(re.escape(bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c"))),
    "wtv": re.compile(re.escape(bytes.fromhex("b7d800203749da11a64e0007e95ead8d"))),
    "apng": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "webp_anim": re.compile(rb"RIFF.{4}WEBPVP8X", re.DOTALL),
}
EBML_HEADER = re.compile(rb"\x1aE\xdf\xa3.{1,64}?B\x82[\x80-\x90](?:webm|matroska)", re.DOTALL)
EBML_CLUSTER = b"\x1fC\xb6u"
CODEC_ID = 0x86
CODING = {0x63A2, 0xB0, 0xBA, 0x2EB524}  # CodecPrivate, PixelWidth, PixelHeight, UncompressedFourCC
TOLD_BY_PACKETS = (b"V_VP8", b"V_VP9", b"V_AV1", b"V_MPEG1", b"V_MPEG2", b"V_MJPEG", b"V_PRORES")
AVI_VIDEO = re.compile(rb"strh....vids.*?strf....", re.DOTALL)
MOST_TRACKS_BYTES = 1 << 16  # from a file's header to its tracks
PNG_END = re.compile(rb"\0\0\0\0IEND\xaeB`\x82")
MOST_PADDING_BYTES = 512
BLOCK_BYTES = 1 << 16


class Box(NamedTuple):
    begin: int
    size: int
    kind: bytes


def second_file(path: str | Path, format_name: str, last_byte: int) -> list[str]:
    """Return a line where another file begins within a file, whose frames libavformat does not read, or takes for those of
    the first.

    Args:
        path: The file. All of it is searched, except for MP4, MOV and AVI.
        format_name: libavformat's, up to the first comma.
        last_byte: End of the last packet that libavformat read.
    """
    begin = None
    with suppress(*NOT_UNDERSTOOD):
        if format_name == "mov":
            begin = _second_movie(path)
        elif format_name == "matroska":
            begin = _second_segment(path, last_byte)
        elif format_name == "avi":
            begin = _other_avi(path)
        else:
            begin = _second_header(path, format_name)
    if begin is None:
        return []
    count = num_video_frames(path, begin) if format_name == "mov" else 0
    what = f"its {count_of(count, 'frame')} were" if count else "it was"
    size = os.path.getsize(path)  # noqa: PTH202
    return [f"another file begins at byte {begin} of {size}, and {what} not read; cut them apart there"]


def bytes_behind(path: str | Path, format_name: str, last_byte: int) -> list[str]:
    """Return a line if bytes follow the end that a file's structure announces. Zeros, and a few bytes, are padding.

    Args:
        path: The file.
        format_name: libavformat's name, up to the first comma.
        last_byte: End of the last packet that libavformat read.
    """
    with suppress(*NOT_UNDERSTOOD):
        end = _end(path, format_name)
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(end)
            if size - end > MOST_PADDING_BYTES and last_byte <= end and any(file.read(MOST_PADDING_BYTES)):
                return [f"its last {size - end} bytes follow its end, and were not read"]
    return []


def _end(path: str | Path, format_name: str) -> int:
    """Return the end that a file's structure announces; the end of the file if it announces none."""
    size = os.path.getsize(path)  # noqa: PTH202
    if format_name == "mov":
        *_, last = boxes(path)
        return last.begin
    if format_name == "apng":
        with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            match = PNG_END.search(data)
            return match.end() if match else size
    if format_name == "asf":
        return _asf_claim(path) or size
    if format_name == "avi":
        *_, end = _riff_lists(path)
        return end
    if format_name == "mpegts":
        return packets_end(path) or size
    if format_name in ENDS:
        with open_regular(path) as file:
            return ENDS[format_name](file, size) or size
    return size


def _second_header(path: str | Path, format_name: str) -> int | None:
    beginning = BEGINNINGS.get(format_name)
    if beginning is None or (format_name == "asf" and _asf_claim(path) == os.path.getsize(path)):  # noqa: PTH202
        return None
    with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        own = beginning.search(data)
        again = beginning.search(data, own.end()) if own else None
        return again.start() if again else None


def _second_movie(path: str | Path) -> int | None:
    """Return the start of a second file; None without one. Fragments of a second file do not count: libavformat decodes
    them with the header of the first. Neither does a second index of the same data.
    """
    first: list[Box] = []
    second: list[Box] = []
    for box in boxes(path):
        if box.kind == b"ftyp" and any(each.kind in (b"moov", b"mdat") for each in first):
            second.append(box)
        elif second and box.kind == b"moof" and any(each.kind == b"moof" for each in first):
            return None
        elif not second:
            first.append(box)
    if second:
        return second[0].begin
    indexes, media = ([box for box in first if box.kind == kind] for kind in (b"moov", b"mdat"))
    if len(indexes) < 2 or len(media) < 2 or any(box.kind == b"moof" for box in first):
        return None
    with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        one, other = (data[box.begin : box.begin + box.size] for box in indexes[:2])
    return None if one == other else min(indexes[1].begin, media[1].begin)


def _second_segment(path: str | Path, last_byte: int) -> int | None:
    """Return the start of a second Matroska file that was not read, or whose video has another codec; one with the same
    codec is read.
    """
    with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if (segment_end(file) or 0) >= len(data):
            return None
        cluster = data.find(EBML_CLUSTER)  # an attached file may precede it
        begins = [match.start() for match in EBML_HEADER.finditer(data)]
        first = _coding(data[: min([MOST_TRACKS_BYTES, *begins[1:2]])])
        for begin in (begin for begin in begins if 0 <= cluster < begin):
            coding = _coding(data[begin : begin + MOST_TRACKS_BYTES])
            if begin >= last_byte or (first and coding and coding != first):
                return begin
    return None


def _coding(head: bytes) -> dict[int, bytes]:
    """Return codec, configuration and raw picture shape of a Matroska video, as far as packets do not contain them."""
    codings: dict[int, bytes] = {}
    with suppress(IndexError):
        for name, content in elements(head):
            if (name == CODEC_ID and content.startswith(b"V_")) or (
                name in CODING and CODEC_ID in codings and not codings[CODEC_ID].startswith(TOLD_BY_PACKETS)
            ):
                codings.setdefault(name, content)
    return codings


def _other_avi(path: str | Path) -> int | None:
    """Return the start of a second AVI file with another codec, which libavformat would decode with the first file's
    codec.
    """
    first: list[bytes] | None = None
    with open_regular(path) as file:
        for begin in _riff_lists(path):
            file.seek(begin)
            head = file.read(MOST_TRACKS_BYTES)
            if (match := AVI_VIDEO.search(head)) is None:
                continue
            (size,) = struct.unpack_from("<I", head, match.end() - 4)
            described = head[match.end() : match.end() + size]
            coding = [
                described[4:12],
                described[14:20],
                described[40:],
            ]  # of a BITMAPINFOHEADER: size, depth, compression; configuration
            if first is not None and coding != first:
                return begin
            first = coding
    return None


def _asf_claim(path: str | Path) -> int | None:
    """Return the size of an ASF file by its header; None for a broadcast (ASF 01.20, 3.2)."""
    with open_regular(path) as file:
        head = file.read(1 << 16)
    at = head.find(ASF_FILE_PROPERTIES)
    if not 0 <= at <= len(head) - 92:
        return None
    claimed, flags = struct.unpack_from("<40xQ40xI", head, at)
    return None if flags & 1 else int(claimed)


def _riff_lists(path: str | Path) -> Iterator[int]:
    """Yield the start of each RIFF list of an AVI, and the end of the last one unless its size is unknown."""
    size, at = os.path.getsize(path), 0  # noqa: PTH202
    with open_regular(path) as file:
        while at + 8 <= size:
            file.seek(at)
            kind, length = struct.unpack("<4sI", file.read(8))
            yield at
            if kind != b"RIFF":
                return
            if length in (0, 0xFFFFFFFF):
                break
            at += 8 + length + length % 2
    yield size


def boxes(path: str | Path) -> Iterator[Box]:
    """Yield the boxes of a file, and after the last one a box without kind for the rest."""
    size, at = os.path.getsize(path), 0  # noqa: PTH202
    with open_regular(path) as file:
        while at + 8 <= size:
            file.seek(at)
            header = file.read(16)
            length, kind = struct.unpack(">I4s", header[:8])
            if length == 1 and len(header) == 16:
                length = struct.unpack(">Q", header[8:])[0]
            if length == 0:  # to the end
                length = size - at
            is_box = kind in BOXES or (at + length <= size and kind.isascii() and kind.decode().strip().isalnum())
            if length < 8 or not is_box:
                break
            yield Box(at, length, kind)
            at += length
    yield Box(min(at, size), 0, b"")


FLV_AUDIO, FLV_VIDEO, FLV_SCRIPT, FLV_DATA = 8, 9, 18, 15
FLV_ENCRYPTED = 0x20
FLV_HAS_AUDIO = 4
FLV_ENHANCED = 0x80
AMF_STRING = 2
FEW = 50  # if one of so many tags has another kind than the rest, it is considered damaged
CLUSTER, BLOCK_GROUP, BLOCK, SIMPLE_BLOCK, TIME = 0x1F43B675, 0xA0, 0xA1, 0xA3, 0xE7
# Elements of a cluster: timestamp, silent tracks, position, previous size, blocks; and those allowed anywhere.
IN_CLUSTER = {TIME, 0x5854, 0xA7, 0xAB, SIMPLE_BLOCK, BLOCK_GROUP, 0xAF, 0xEC, 0xBF}
TOP_ELEMENTS = {EBML_SEGMENT, *(EBML_ELEMENTS - IN_CLUSTER)}
NUMBERS = {TIME, 0xA7, 0xAB}  # at most 8 bytes each
FRAGMENT = b"moof\0\0\0\x10mfhd"


def parts_passed_over(path: str | Path, format_name: str) -> list[str]:
    """Return what a file has that was not read, a line each. Reads the headers of all of its parts.

    Args:
        path: The file.
        format_name: libavformat's, up to the first comma.
    """
    walk = WALKS.get(format_name)
    if walk is None:
        return []
    with (
        suppress(*NOT_UNDERSTOOD, ValueError),
        open_regular(path) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return list(walk(path, data))
    return []


def _flv_tags(_path: str | Path, data: mmap.mmap) -> Iterator[str]:
    """Yield a line about damaged tags: of kinds that FLV lacks, or whose first byte does not fit their kind."""
    has_audio = bool(data[4] & FLV_HAS_AUDIO)
    at, unknown, end_of_tags = int.from_bytes(data[5:9], "big") + 4, 0, _end_of_data(data)
    codecs: dict[int, Counter[int]] = {FLV_AUDIO: Counter(), FLV_VIDEO: Counter()}
    while at + 12 <= end_of_tags:
        size, kind, first = int.from_bytes(data[at + 1 : at + 4], "big"), data[at] & ~FLV_ENCRYPTED, data[at + 11]
        end = at + 11 + size
        if end > len(data) or int.from_bytes(data[end : end + 4], "big") not in (0, 11 + size):
            break  # not a tag; other checks report a loss here
        if kind in codecs and not (kind == FLV_VIDEO and first & FLV_ENHANCED):
            codecs[kind][first >> 4 if kind == FLV_AUDIO else first & 15] += size > 0
        unknown += kind not in (*codecs, FLV_SCRIPT, FLV_DATA) or (
            kind == FLV_SCRIPT and size > 0 and first != AMF_STRING
        )
        at = end + 4
    if not has_audio and codecs[FLV_AUDIO].total() * FEW <= codecs[FLV_VIDEO].total() + FEW:
        unknown += codecs[FLV_AUDIO].total()
    elif has_audio:
        unknown += _strangers(codecs[FLV_AUDIO])
    unknown += _strangers(codecs[FLV_VIDEO])
    if unknown:
        yield f"{count_of(unknown, 'tag')} of no kind that the file has: what they hold was not read"


def _end_of_data(data: mmap.mmap) -> int:
    """Return the end of a file without the zeros in which it ends."""
    end = len(data)
    while end and not any(block := data[max(0, end - BLOCK_BYTES) : end]):
        end -= len(block)
    return end - len(block) + len(block.rstrip(b"\0")) if end else 0


def _strangers(codecs: Counter[int]) -> int:
    """Return the number of tags of a codec that only a few tags have."""
    most = max(codecs.values(), default=0)
    return sum(count for count in codecs.values() if count < most and count * FEW <= most + FEW)


def _elements(_path: str | Path, data: mmap.mmap) -> Iterator[str]:
    """Yield a line for elements between and inside clusters that Matroska does not define there."""
    at, end_of_cluster, unknown = 0, -1, 0
    while at < len(data) and data[at]:  # zeros after the end are padding
        kind, size, value = _element(data, at)
        if kind in TOP_ELEMENTS:  # a cluster of unknown size ends at the next of these
            end_of_cluster = -1 if kind != CLUSTER else len(data) if size is None else value + size
        elif at < end_of_cluster:
            is_odd = kind not in IN_CLUSTER or (kind in NUMBERS and (size or 0) > 8)
            unknown += is_odd or (kind == BLOCK_GROUP and not _has_block(data, value, value + (size or 0)))
        if kind in (CLUSTER, EBML_SEGMENT):
            at = value
        elif size is None or value + size > len(data):
            return  # truncated, which other checks report
        else:
            at = value + size
    if unknown:
        yield f"{count_of(unknown, 'element')} among its frames that Matroska does not have: what they hold was not read"


def _has_block(data: mmap.mmap, at: int, end: int) -> bool:
    while at < end:
        kind, size, value = _element(data, at)
        if kind == BLOCK or size is None:
            return True
        at = value + size
    return False


def _element(data: mmap.mmap, at: int) -> tuple[int, int | None, int]:
    """Return id, size (None if unknown) and value position of an element. Raises IndexError at the end."""
    id_end = at + 9 - data[at].bit_length()
    if not data[at]:
        raise IndexError
    size_end = id_end + 9 - data[id_end].bit_length()
    length = size_end - id_end
    size = int.from_bytes(data[id_end:size_end], "big") & ((1 << 7 * length) - 1)
    return int.from_bytes(data[at:id_end], "big"), None if size == (1 << 7 * length) - 1 else size, size_end


def _fragments(path: str | Path, data: mmap.mmap) -> Iterator[str]:
    """Yield fragments inside other boxes whose size is too large. libavformat reads fragments that fit into an index."""
    tops = [box for box in boxes(path) if box.kind]
    index = next((data[box.begin : box.begin + box.size] for box in tops if box.kind == b"moov"), b"")
    begins = {box.begin for box in tops if box.kind == b"moof"}
    if not begins and b"mvex" not in index:
        return
    movie = next((range(box.begin, box.begin + box.size + 1) for box in tops if box.kind == b"moov"), range(0))
    at, inside = data.find(FRAGMENT), 0
    while at >= 0:
        begin = at - 4
        end = begin + int.from_bytes(data[begin:at], "big")
        inside += begin not in begins and not (begin in movie and end in movie)
        at = data.find(FRAGMENT, at + 4)
    if inside:
        yield f"{count_of(inside, 'fragment')} inside another box: some of their frames may not have been read"


WALKS = {"flv": _flv_tags, "matroska": _elements, "mov": _fragments}
