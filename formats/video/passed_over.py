"""Parts of a file that its container has no name for, or that stand inside of others: libavformat passes over them, and over the frames
in them, in silence.

Tags of FLV (Adobe FLV 10.1, E.4), elements of Matroska (RFC 9559, 5.1.3), fragments of MP4 (ISO/IEC 14496-12, 8.8).
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from vidprep.formats.storage.untrusted import open_regular
from vidprep.formats.text import count_of
from vidprep.formats.video.joined import boxes
from vidprep.formats.video.mov_index import NOT_UNDERSTOOD
from vidprep.formats.video.truncation import EBML_ELEMENTS, EBML_SEGMENT

FLV_AUDIO, FLV_VIDEO, FLV_SCRIPT, FLV_DATA = 8, 9, 18, 15
FLV_ENCRYPTED = 0x20
FLV_HAS_AUDIO = 4
FLV_ENHANCED = 0x80
AMF_STRING = 2
FEW = 50  # of so many tags one may be a kind that the others are not, and is then taken for damaged
CLUSTER, BLOCK_GROUP, BLOCK, SIMPLE_BLOCK, TIME = 0x1F43B675, 0xA0, 0xA1, 0xA3, 0xE7
# Of a cluster: time, silent tracks, position, size of the one before, blocks; and what may stand anywhere.
IN_CLUSTER = {TIME, 0x5854, 0xA7, 0xAB, SIMPLE_BLOCK, BLOCK_GROUP, 0xAF, 0xEC, 0xBF}
TOP_ELEMENTS = {EBML_SEGMENT, *(EBML_ELEMENTS - IN_CLUSTER)}
NUMBERS = {TIME, 0xA7, 0xAB}  # of 8 bytes at most
FRAGMENT = b"moof\0\0\0\x10mfhd"


def parts_passed_over(path: str | Path, format_name: str) -> list[str]:
    """Return what a file has that was not read, a line each. Reads the headers of all of its parts.

    Args:
        path: Of the file.
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
    """Count the tags whose kind was damaged: kinds that FLV does not have, and tags whose first byte does not fit their kind."""
    has_audio = bool(data[4] & FLV_HAS_AUDIO)
    at, unknown = int.from_bytes(data[5:9], "big") + 4, 0
    codecs: dict[int, Counter[int]] = {FLV_AUDIO: Counter(), FLV_VIDEO: Counter()}
    while at + 12 <= len(data):
        size, kind, first = int.from_bytes(data[at + 1 : at + 4], "big"), data[at] & ~FLV_ENCRYPTED, data[at + 11]
        end = at + 11 + size
        if int.from_bytes(data[end : end + 4], "big") not in (0, 11 + size):
            break  # not a tag: what is lost there shows elsewhere
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


def _strangers(codecs: Counter[int]) -> int:
    """Count the tags of a codec that only a few tags have."""
    most = max(codecs.values(), default=0)
    return sum(count for count in codecs.values() if count < most and count * FEW <= most + FEW)


def _elements(_path: str | Path, data: mmap.mmap) -> Iterator[str]:
    """Elements among the clusters, and in them, that Matroska does not have there."""
    at, end_of_cluster, unknown = 0, -1, 0
    while at < len(data) and data[at]:  # zeros behind the end are padding
        kind, size, value = _element(data, at)
        if kind in TOP_ELEMENTS:  # a cluster whose size is unknown ends at the next of them
            end_of_cluster = -1 if kind != CLUSTER else len(data) if size is None else value + size
        elif at < end_of_cluster:
            is_odd = kind not in IN_CLUSTER or (kind in NUMBERS and (size or 0) > 8)
            unknown += is_odd or (kind == BLOCK_GROUP and not _has_block(data, value, value + (size or 0)))
        if kind in (CLUSTER, EBML_SEGMENT):
            at = value
        elif size is None or value + size > len(data):
            return  # cut short, as others say
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
    """Return the id of the element at a byte, its size (None if unknown) and where its value begins. Raises IndexError at the end."""
    id_end = at + 9 - data[at].bit_length()
    if not data[at]:
        raise IndexError
    size_end = id_end + 9 - data[id_end].bit_length()
    length = size_end - id_end
    size = int.from_bytes(data[id_end:size_end], "big") & ((1 << 7 * length) - 1)
    return int.from_bytes(data[at:id_end], "big"), None if size == (1 << 7 * length) - 1 else size, size_end


def _fragments(path: str | Path, data: mmap.mmap) -> Iterator[str]:
    """Fragments inside of other boxes, whose size says that they go on too far. libavformat reads those that fit into an index."""
    found = [box for box in boxes(path) if box.kind]
    index = next((data[box.begin : box.begin + box.size] for box in found if box.kind == b"moov"), b"")
    begins = {box.begin for box in found if box.kind == b"moof"}
    if not begins and b"mvex" not in index:
        return
    movie = next((range(box.begin, box.begin + box.size + 1) for box in found if box.kind == b"moov"), range(0))
    at, inside = data.find(FRAGMENT), 0
    while at >= 0:
        begin = at - 4
        end = begin + int.from_bytes(data[begin:at], "big")
        inside += begin not in begins and not (begin in movie and end in movie)
        at = data.find(FRAGMENT, at + 4)
    if inside:
        yield f"{count_of(inside, 'fragment')} inside of another box: frames of theirs may not have been read"


WALKS = {"flv": _flv_tags, "matroska": _elements, "mov": _fragments}
