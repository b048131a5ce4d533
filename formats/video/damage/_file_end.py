"""Find missing bytes at the end of a file: its structure announces the last element, page or packet, and headers claim
sizes.

Each check reads a few headers and the last bytes, never the whole file, and yields a line if bytes are missing.
Anything it does not understand is ignored: libav has read the file, so garbage after the end of a video is no damage. A
container has a check here if, without it, frames were lost or a truncated file passed as complete; for MXF, libav and
the claimed duration suffice. A GIF, an APNG or a RealMedia file that was cut between two pictures passes as complete.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from vidprep.formats.errors import count_of
from vidprep.formats.storage.untrusted import open_regular

TAIL_BYTES = 1 << 18
EBML_SEGMENT = 0x18538067
# Header, seek head, information, tracks, chapters, cluster, cues, attachments, tags, void and checksum.
EBML_ELEMENTS = {
    0x1A45DFA3,
    0x114D9B74,
    0x1549A966,
    0x1654AE6B,
    0x1043A770,
    0x1F43B675,
    0x1C53BB6B,
    0x1941A469,
    0x1254C367,
    0xEC,
    0xBF,
}
BOXES = {
    b"ftyp",
    b"styp",
    b"moov",
    b"moof",
    b"mdat",
    b"mfra",
    b"sidx",
    b"free",
    b"skip",
    b"wide",
    b"uuid",
    b"udta",
    b"meta",
}
FRAGMENT_BOXES = {
    b"mfhd",
    b"traf",
    b"tfhd",
    b"tfdt",
    b"trun",
    b"sbgp",
    b"sgpd",
    b"subs",
    b"saiz",
    b"saio",
    b"senc",
    b"sdtp",
    b"pssh",
    b"meta",
    b"uuid",
    b"free",
    b"skip",
    b"tfxd",
    b"tfrf",
}
TRUN_HEAD, TRUN_ROW = (0x1, 0x4), (0x100, 0x200, 0x400, 0x800)  # flags of the fields that it has
MOST_FRAGMENT_BYTES = 1 << 24
MOST_INDEX_BYTES = 1 << 28
PADDING = {b"free", b"skip", b"wide"}  # nothing in these boxes can be missing
ASF_FILE_PROPERTIES = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
ASF_DATA = bytes.fromhex("3626b2758e66cf11a6d900aa0062ce6c")
ASF_PACKET = b"\x82\0\0"  # error correction data, as every writer has it
# Formats that may end anywhere, so also with zeros that were never written; fewer zeros are padding.
WITHOUT_END = {"mov", "mpegts", "mpeg", "h264", "hevc", "m4v", "mpegvideo", "ivf", "obu"}
MOST_PADDING_BYTES = 2048
PACKETS_ALONE = {"yuv4mpegpipe", "dv"}


def missing_end(path: str | Path, format_name: str, end_byte: int) -> list[str]:
    """Return a line for each part that the file's structure announces and its end lacks.

    Args:
        path: The file.
        format_name: libavformat's name, up to the first comma.
        end_byte: End of the last packet, for formats that consist of packets alone.
    """
    if format_name in PACKETS_ALONE:
        return _packets_alone(os.path.getsize(path), end_byte)  # noqa: PTH202
    check = CHECKS.get(format_name)
    if check is None:
        return []
    try:
        with open_regular(path) as file:
            return list(check(file, os.fstat(file.fileno()).st_size))
    except (OSError, struct.error, IndexError):
        return []


def zeros_at_end(path: str | Path, format_name: str) -> int:
    """Return the number of zeros at the end of a file whose format may end anywhere; 0 for a few, which are padding.

    More may be padding too, or space that a download reserved and did not fill.
    """
    if format_name not in WITHOUT_END:
        return 0
    try:
        with open_regular(path) as file:
            length = _zeros(file, os.fstat(file.fileno()).st_size)
    except OSError:
        return 0
    return length if length > MOST_PADDING_BYTES else 0


def empty_chunks_at_end(path: str | Path, stream_index: int) -> int:
    """Return the number of empty chunks at the end of an AVI, by its index. Each repeats the previous picture; libavformat
    does not return them.
    """
    tag = b"%02d" % stream_index
    try:
        with open_regular(path) as file:
            index = _avi_index(file)
    except (OSError, struct.error):
        return 0
    sizes = [size for name, _, _, size in struct.iter_unpack("<4sIII", index) if name[:2] == tag]
    return next((count for count, size in enumerate(reversed(sizes)) if size), 0)


def _avi_index(file: BinaryIO) -> bytes:
    """Return the entries of the first idx1 chunk; empty without one."""
    file.seek(12)
    while len(head := file.read(8)) == 8:
        kind, length = struct.unpack("<4sI", head)
        if kind == b"idx1":
            return file.read(min(length, MOST_INDEX_BYTES) // 16 * 16)
        if not kind.strip().isalnum():
            break
        file.seek(length + length % 2, os.SEEK_CUR)
    return b""


def _short(what: str, end: int, size: int) -> str:
    return f"cut short: the file has {size} bytes, {what} ends at {end}"


def _packets_alone(size: int, end_byte: int) -> list[str]:
    return (
        [] if end_byte == size else [f"cut short: the file has {size} bytes, its last whole packet ends at {end_byte}"]
    )


def _zeros(file: BinaryIO, size: int) -> int:
    end = size
    while end > 0:
        begin = max(0, end - TAIL_BYTES)
        file.seek(begin)
        block = file.read(end - begin)
        end = begin + len(block.rstrip(b"\0"))
        if end > begin:
            break
    return size - end


def _tail(file: BinaryIO, size: int, length: int = TAIL_BYTES) -> bytes:
    file.seek(max(0, size - length))
    return file.read(length)


def _boxes(file: BinaryIO, size: int) -> Iterator[str]:
    """Check the boxes of ISO base media and QuickTime (ISO/IEC 14496-12, 4.2)."""
    at, is_fragmented, num_fragments = 0, False, 0
    while at + 8 <= size:
        file.seek(at)
        header = file.read(16)
        length, kind = struct.unpack(">I4s", header[:8])
        num_fragments += kind == b"moof"
        if length == 1 and len(header) == 16:
            length = struct.unpack(">Q", header[8:])[0]
        if kind == b"moof":
            is_fragmented = True
            file.seek(at + 8)
            if wrong := _wrong_boxes(file.read(min(length - 8, MOST_FRAGMENT_BYTES))):
                yield f"its fragment at byte {at} holds {wrong}"
                return
        if kind == b"mfra" and 8 <= length <= MOST_FRAGMENT_BYTES:
            file.seek(at + 8)
            if (lost := _num_listed(file.read(length - 8)) - num_fragments) > 0:
                yield f"cut short: {lost} of the {lost + num_fragments} fragments in its index are missing"
                return
        if kind not in BOXES or length < 8:
            if is_fragmented and not kind.isalnum() and any(_tail(file, size, min(size - at, TAIL_BYTES))):
                yield f"no box begins at byte {at} of {size}"
            return
        if at + length > size and kind not in PADDING:
            yield _short(f"its {kind.decode()} box", at + length, size)
            return
        at += length
    if is_fragmented and at < size:
        yield _short("the header of its last box", at + 8, size)


def _wrong_boxes(data: bytes) -> str | None:
    at = 0
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind not in FRAGMENT_BOXES or not 8 <= length <= len(data) - at:
            return f"{kind!r}, which is not a box"
        if kind == b"traf" and (wrong := _wrong_boxes(data[at + 8 : at + length])):
            return wrong
        if kind == b"trun":
            flags, count = struct.unpack_from(">II", data, at + 8)
            head, row = (4 * sum(bool(flags & flag) for flag in fields) for fields in (TRUN_HEAD, TRUN_ROW))
            if 16 + head + row * count != length:
                return f"a trun box that claims {count} rows and has room for {(length - 16 - head) // max(1, row)}"
        at += length
    return None


def _num_listed(data: bytes) -> int:
    """Return the number of fragments that a table of random access points names (ISO/IEC 14496-12, 8.8.10): most of any track."""
    at = most = 0
    while at + 24 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        if length < 8:
            break
        if kind == b"tfra":
            sizes, count = struct.unpack_from(">II", data, at + 16)
            times = ">8xQ" if data[at + 8] else ">4xI"
            row = struct.calcsize(times) + sum((sizes >> shift & 3) + 1 for shift in (4, 2, 0))
            begins = range(at + 24, min(at + length, len(data)) - row + 1, row)[:count]
            most = max(most, len({struct.unpack_from(times, data, begin) for begin in begins}))
        at += length
    return most


def _ebml_number(file: BinaryIO, *, keep_marker: bool) -> int | None:
    """Return a variable-length integer (RFC 8794, 4); None at the end of the file, and for an unknown size."""
    first = file.read(1)
    if not first or not first[0]:
        return None
    length = 9 - first[0].bit_length()
    value = int.from_bytes(first + file.read(length - 1), "big")
    if keep_marker:
        return value
    value &= (1 << 7 * length) - 1
    return None if value == (1 << 7 * length) - 1 else value


def segment_end(file: BinaryIO) -> int | None:
    """Return the end of the first segment of a Matroska file; None if its header does not tell, as for a live stream."""
    while (kind := _ebml_number(file, keep_marker=True)) is not None:
        length = _ebml_number(file, keep_marker=False)
        if kind == EBML_SEGMENT or length is None:
            return None if length is None else file.tell() + length
        file.seek(length, os.SEEK_CUR)
    return None


def _segment(file: BinaryIO, size: int) -> Iterator[str]:
    """Check the elements of a Matroska or WebM segment (RFC 9559, 5.1), up to a cluster of unknown size."""
    end, end_of_segment = size, None
    while file.tell() < end:
        begin = file.tell()
        if begin == end_of_segment and not _begins_element(file):
            return
        kind, length = _ebml_number(file, keep_marker=True), _ebml_number(file, keep_marker=False)
        at = file.tell()
        if kind is None and any(_tail(file, size, min(size - begin, TAIL_BYTES))):
            yield f"the element at byte {begin} of {size} is not defined by Matroska"
        if kind is None or (length is None and kind != EBML_SEGMENT):
            return
        if kind == EBML_SEGMENT:
            if length is not None and at + length > size:
                yield _short("its segment", at + length, size)
                return
            end_of_segment = None if length is None else at + length
            continue
        if kind not in EBML_ELEMENTS:
            yield f"the element at byte {begin} of {size} is not defined by Matroska"
            return
        if length is not None and at + length > size:
            yield _short("its last element", at + length, size)
            return
        file.seek(at + (length or 0))


def _begins_element(file: BinaryIO) -> bool:
    """Return whether an element of Matroska begins here; the position stays."""
    begin = file.tell()
    kind = _ebml_number(file, keep_marker=True)
    file.seek(begin)
    return kind in EBML_ELEMENTS or kind == EBML_SEGMENT


def _behind_segment(file: BinaryIO, size: int) -> int | None:
    """Return where bytes begin behind a Matroska segment that are no element."""
    end = segment_end(file)
    if end is None or end >= size:
        return None
    file.seek(end)
    return None if _begins_element(file) else end


def _riff(file: BinaryIO, size: int) -> Iterator[str]:
    at = 0
    while at + 12 <= size:
        file.seek(at)
        kind, length = struct.unpack("<4sI", file.read(8))
        if kind != b"RIFF" or length in (0, 0xFFFFFFFF):
            return
        if at + 8 + length > size:
            yield _short("its RIFF list", at + 8 + length, size)
            return
        at += 8 + length + length % 2


def _asf(file: BinaryIO, size: int) -> Iterator[str]:
    head = file.read(1 << 16)
    at = head.find(ASF_FILE_PROPERTIES)
    if at < 0:
        return
    claimed, flags, length = struct.unpack_from("<40xQ40xII", head, at)
    if not flags & 1 and claimed > size:  # the size of a broadcast is unknown
        yield _short("it", claimed, size)
    data = head.find(ASF_DATA)
    if data < 0 or length < 64:
        return
    num_packets = struct.unpack_from("<40xQ", head, data)[0]
    file.seek(first := data + 50)
    opening = file.read(3)
    if opening != ASF_PACKET:
        return
    lost = 0
    for at in range(first, min(size - 3, first + num_packets * length), length):
        file.seek(at)
        lost += file.read(3) != ASF_PACKET
    if lost:
        yield f"{lost} of its {num_packets} packets do not begin where they should"


def _flv(file: BinaryIO, size: int) -> Iterator[str]:
    """Check the tags of audio, video and data, each followed by its size (Adobe FLV 10.1, E.3 and E.4.1)."""
    file.seek(5)
    at = int.from_bytes(file.read(4), "big") + 4
    while at + 11 <= size:
        file.seek(at)
        header = file.read(11)
        end = at + 11 + int.from_bytes(header[1:4], "big")
        if header[0] & 0x1F not in (8, 9, 18) or (
            end > size and any(header[8:])
        ):  # the last three are zeros in each tag
            return
        if end > size:
            yield _short("its last tag", end, size)
            return
        at = end + 4
    if at < size:
        yield _short("the header of its last tag", at + 11, size)


def _program_stream(file: BinaryIO, size: int) -> Iterator[str]:
    """Check that packets from the last pack on end with the file (ISO/IEC 13818-1, 2.5.3)."""
    tail = _tail(file, size).rstrip(b"\0")
    at = tail.rfind(b"\0\0\1\xba")
    while 0 <= at < len(tail):
        code = tail[at : at + 4]
        if code == b"\0\0\1\xb9":
            return
        if len(code) < 4 or code[:3] != b"\0\0\1" or code[3] < 0xB9:
            if not _is_foreign(tail[at:]):
                yield "cut short: it does not end with a whole packet"
            return
        if code[3] == 0xBA:
            mark = tail[at + 4 : at + 14]
            if len(mark) < 10:
                yield "cut short: it ends inside a pack header"
                return
            at += 14 + (mark[9] & 7) if mark[0] >> 6 == 1 else 12
            continue
        length = tail[at + 4 : at + 6]
        at += 6 + int.from_bytes(length, "big")
        if len(length) < 2 or at > size - max(0, size - TAIL_BYTES):
            yield "cut short: it ends inside a packet"
            return


def _is_foreign(rest: bytes) -> bool:
    """Return whether bytes behind a whole packet belong to no packet, nor to one whose start code is damaged."""
    return len(rest) > 6 and b"\0\0\1" not in rest and 6 + int.from_bytes(rest[4:6], "big") != len(rest)


def _behind_packs(file: BinaryIO, size: int) -> int | None:
    """Return where bytes begin behind the last pack of a program stream that belong to no packet."""
    tail = _tail(file, size)
    at = tail.rfind(b"\0\0\1\xba")
    while 0 <= at < len(tail) and tail[at : at + 3] == b"\0\0\1" and tail[at + 3] > 0xB9:
        if tail[at + 3] == 0xBA:
            mark = tail[at + 4 : at + 14]
            at += 14 + (mark[9] & 7) if mark[0] >> 6 == 1 else 12
        else:
            at += 6 + int.from_bytes(tail[at + 4 : at + 6], "big")
    return max(0, size - TAIL_BYTES) + at if 0 <= at < len(tail) and _is_foreign(tail[at:]) else None


def _behind_tags(file: BinaryIO, size: int) -> int | None:
    """Return where bytes begin behind the tags of an FLV."""
    file.seek(5)
    at = int.from_bytes(file.read(4), "big") + 4
    while at + 15 <= size:
        file.seek(at)
        header = file.read(11)
        length = 11 + int.from_bytes(header[1:4], "big")
        file.seek(at + length)
        if int.from_bytes(file.read(4), "big") not in (0, length) or header[0] & 0x1F not in (8, 9, 15, 18):
            return at
        at += length + 4
    return None


def _ogg(file: BinaryIO, size: int) -> Iterator[str]:
    """Check that every logical stream has a page marked as its last one, and that pages are numbered without gaps (RFC
    3533, 6).
    """
    numbers: dict[int, int] = {}
    ended: set[int] = set()
    lost = at = 0
    while at + 27 <= size:
        file.seek(at)
        header = file.read(27)
        if header[:4] != b"OggS":
            next_page = (rest := file.read(TAIL_BYTES)).find(b"OggS")
            at += 27 + (next_page if next_page >= 0 else max(1, len(rest) - 3))
            lost += 1
            continue
        flags, (serial, number) = header[5], struct.unpack("<II", header[14:22])
        if serial in numbers and number != (numbers[serial] + 1) & 0xFFFFFFFF and not flags & 2:
            lost += 1
        numbers[serial] = number
        if flags & 4:
            ended.add(serial)
        at += 27 + header[26] + sum(file.read(header[26]))
    if lost:
        yield f"{count_of(lost, 'hole')} between its pages"
    if at > size or numbers.keys() - ended:
        yield "cut short: its last page is missing"


CHECKS: dict[str, Callable[[BinaryIO, int], Iterator[str]]] = {
    "mov": _boxes,
    "matroska": _segment,
    "avi": _riff,
    "asf": _asf,
    "flv": _flv,
    "mpeg": _program_stream,
    "ogg": _ogg,
}

# Where bytes begin that belong to no part of a file, for formats of which libavformat ignores them.
ENDS: dict[str, Callable[[BinaryIO, int], int | None]] = {
    "matroska": _behind_segment,
    "mpeg": _behind_packs,
    "flv": _behind_tags,
}
