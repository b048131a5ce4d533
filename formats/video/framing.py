"""Coded packets without what a container adds: so that what an encoder gave and what a file holds can be compared.

H.264 and HEVC leave the encoder with start codes (ITU-T H.264 and H.265, annex B) and stand in MP4 and Matroska with
four-byte lengths in front (ISO/IEC 14496-15). MP4's hvc1 keeps HEVC's parameter sets in its header alone, and x265
repeats them in every packet where each frame is a keyframe: they do not count. AV1 loses its temporal delimiters in a
container (AV1 in ISOBMFF, 2.4). VP9 is the same in both.
"""

from __future__ import annotations

import struct
import zlib

from vidprep.formats.profiles import CODECS

_TEMPORAL_DELIMITER = b"\x12\x00"
_START_CODE = b"\x00\x00\x01"
_HEVC_PARAMETER_SETS = (32, 33, 34)


def payload_checksum(packet: bytes, codec: str, framing: str) -> int:
    """CRC-32 of what both sides share. framing: "encoder" or "container". Raises ValueError on broken lengths."""
    if CODECS[codec].has_units:
        units = _units_by_start_code(packet) if framing == "encoder" else _units_by_length(packet)
        units = [unit.rstrip(b"\x00") for unit in units]
        if codec == "hevc":
            units = [unit for unit in units if not unit or unit[0] >> 1 & 63 not in _HEVC_PARAMETER_SETS]
        checksum = 0
        for unit in units:
            checksum = zlib.crc32(unit, zlib.crc32(struct.pack("<I", len(unit)), checksum))
        return checksum
    if codec == "av1":
        return zlib.crc32(packet.removeprefix(_TEMPORAL_DELIMITER))
    return zlib.crc32(packet)


def with_start_codes(packet: bytes) -> bytes:
    """A packet of H.264 or HEVC out of MP4 as it left the encoder. Raises ValueError on broken lengths."""
    return b"".join(b"\x00" + _START_CODE + unit for unit in _units_by_length(packet))


def _units_by_start_code(packet: bytes) -> list[bytes]:
    """NAL units; emulation prevention keeps the start code out of them, and none ends in a zero byte."""
    head, *units = packet.split(_START_CODE)
    if head.strip(b"\x00"):
        raise ValueError("a coded packet does not begin with a start code")
    return units


def _units_by_length(packet: bytes) -> list[bytes]:
    units, position = [], 0
    while position < len(packet):
        if position + 4 > len(packet):
            raise ValueError("a coded packet ends inside a length")
        (size,) = struct.unpack_from(">I", packet, position)
        position += 4
        if position + size > len(packet):
            raise ValueError("a coded packet is shorter than its lengths say")
        units.append(packet[position : position + size])
        position += size
    return units
