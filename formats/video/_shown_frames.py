"""Read from a packet's headers how many frames it displays, whether decoding can begin there, and whether others need it.

A packet may be hidden, or be one of two fields.

H.264   ITU-T H.264, 7.3.2.1 and 7.3.3: a field is displayed with the other field of its frame, and counted with the first.
HEVC    ITU-T H.265, 7.3.2.3 and 7.3.6: pictures marked as not output, and RASL pictures after a broken link.
VP9     VP9 bitstream specification, annex B and 6.2: frames that are never displayed and only serve as references.
AV1     AV1 bitstream specification, 5.5 and 5.9: the same.

Parameter sets are in the container's configuration record (ISO/IEC 14496-15) or in packets; without such a record,
units follow start codes (annex B of H.264 and HEVC). A packet that cannot be parsed counts as one frame, as nearly
every packet is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, cast

from av.packet import Packet
from av.video.stream import VideoStream

# More than what is read of them takes: of a slice or a picture parameter set, and of any unit.
HEADER_BYTES, UNIT_BYTES = 64, 4096
WITH_CHROMA_FORMAT = {44, 83, 86, 100, 110, 118, 122, 128, 134, 135, 138, 139, 244}
RECOVERY_POINT, DISPLAY_ORIENTATION = 6, 47  # types of SEI messages (H.264 and H.265, annex D)
START_CODE = b"\0\0\1"
PADDING = 15  # type of open bitstream units


class PacketInfo(NamedTuple):
    """Information of a packet about its frames.

    Attributes:
        is_entry: Whether every frame from this packet on can be decoded; None if its headers do not tell
        needed_later: Whether later packets need its contents, such as the orientation or other parameters
        turns: Whether it contains the orientation
        is_reference: Whether a frame of its temporal layer may refer to it. Only H.264, HEVC and AV1 tell; else True
        temporal_layer: Its temporal layer; frames of higher ones may refer to it anyway
        follows_loss: Whether a reference frame before it was not read. Only H.264 tells
    """

    frames: int = 1
    is_entry: bool | None = None
    needed_later: bool = False
    turns: bool = False
    is_reference: bool = True
    temporal_layer: int = 0
    follows_loss: bool = False


def frame_counter(codec: str, configuration: bytes | None) -> Callable[[bytes], PacketInfo] | None:
    """Return a function that reads packets in decode order; None if this codec's packets do not tell how many frames they
    display.
    """
    record = configuration or b""
    counters: dict[str, type[_H264 | _Hevc | _Vp9 | _Av1]] = {"h264": _H264, "hevc": _Hevc, "vp9": _Vp9, "av1": _Av1}
    if codec not in counters:
        return None
    try:
        counter = counters[codec](record)
    except (IndexError, KeyError, ValueError):
        return None

    def count(packet: bytes) -> PacketInfo:
        try:
            frames = counter.count(packet)
            return PacketInfo(
                frames,
                counter.is_entry,
                counter.needed_later,
                counter.turns,
                counter.is_reference,
                counter.temporal_layer,
                getattr(counter, "follows_loss", False),
            )
        except (IndexError, KeyError, ValueError):
            return PacketInfo()

    return count


class _Bits:
    """Reads bits. Raises IndexError past the end."""

    def __init__(self, data: bytes) -> None:
        self._value, self._left = int.from_bytes(data, "big"), 8 * len(data)

    def u(self, bits: int) -> int:
        self._left -= bits
        if self._left < 0:
            raise IndexError("no bits left")
        return self._value >> self._left & ((1 << bits) - 1)

    def ue(self) -> int:
        ahead = self._value & ((1 << self._left) - 1)
        if not ahead:
            raise IndexError("no bits left")
        zeros = self._left - ahead.bit_length()
        self._left -= zeros
        return self.u(zeros + 1) - 1


def _strip_emulation(unit: bytes, most: int) -> bytes:
    return unit[:most].replace(b"\0\0\3", b"\0\0")


def _units(packet: bytes, length_bytes: int) -> Iterator[bytes]:
    """Yield the beginnings of NAL units, after start codes if length_bytes is 0. Raises ValueError for an invalid length."""
    if not length_bytes:
        begin = packet.find(START_CODE)
        while begin >= 0:
            end = packet.find(START_CODE, begin + 3)
            if unit := packet[begin + 3 : min(begin + 3 + UNIT_BYTES, len(packet) if end < 0 else end)]:
                yield unit
            begin = end
        return
    at = 0
    while at + length_bytes <= len(packet):
        size = int.from_bytes(packet[at : at + length_bytes], "big")
        at += length_bytes
        if at + size > len(packet):
            raise ValueError("a unit is longer than its packet")
        if size:
            yield packet[at : at + min(size, UNIT_BYTES)]
        at += size


def _read_sized_units(record: bytes, at: int, count: int) -> tuple[list[bytes], int]:
    """Return units of a configuration record, each with two bytes of length, and the end of the last one."""
    units = []
    for _ in range(count):
        size = int.from_bytes(record[at : at + 2], "big")
        units.append(record[at + 2 : at + 2 + size])
        at += 2 + size
    return units, at


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Fields of an H.264 sequence parameter set that slice headers need."""

    has_fields: bool
    frame_num_bits: int
    separate_planes: bool
    allows_gaps: bool


class _Parameters:
    """Current parameter sets. A packet that repeats some of them changes nothing."""

    def __init__(self) -> None:
        self._in_use: set[bytes] = set()
        self._brought: set[bytes] = set()
        self.are_used = False  # whether a frame has used them

    def take(self, unit: bytes) -> None:
        self._brought.add(unit)

    def end_header(self) -> None:
        """Take the current sets as those of the header; no frame has been displayed."""
        self.end_packet()
        self.are_used = False

    def end_packet(self) -> bool:
        """Return whether the packet changed the sets after frames had been displayed."""
        is_new = not self._brought <= self._in_use
        if is_new:
            self._in_use = self._brought
        self._brought = set()
        is_needed, self.are_used = is_new and self.are_used, True
        return is_needed


class _H264:
    is_entry: bool | None = None
    needed_later = turns = False
    is_reference, temporal_layer = True, 0

    def __init__(self, record: bytes) -> None:
        self._sequences: dict[int, _Sequence] = {}
        self._sequence_of: dict[int, int] = {}
        self._parameters = _Parameters()
        self._open_field: tuple[int, int] | None = None  # parity and frame_num of a field without its other
        self._reference_num: int | None = None  # frame_num of the last reference frame
        self.follows_loss = False
        self._length_bytes = 0
        if not record.startswith(b"\1"):
            self.count(record)
            self._parameters.end_header()
            return
        self._length_bytes = (record[4] & 3) + 1
        sets, at = _read_sized_units(record, 6, record[5] & 31)
        more, _ = _read_sized_units(record, at + 1, record[at])
        for unit in sets + more:
            self._take_parameters(unit)
        self._parameters.end_header()

    def _take_parameters(self, unit: bytes) -> None:
        kind = unit[0] & 31
        if kind in (7, 8):
            self._parameters.take(unit)
        if kind == 7:
            bits = _Bits(_strip_emulation(unit[1:], UNIT_BYTES))
            number, sequence = _h264_sequence(bits)
            self._sequences[number] = sequence
        elif kind == 8:
            bits = _Bits(_strip_emulation(unit[1:], HEADER_BYTES))
            number = bits.ue()
            self._sequence_of[number] = bits.ue()

    def count(self, packet: bytes) -> int:
        shown, self.is_entry, self.turns, self.is_reference = 0, None, False, False
        self.follows_loss = False
        for unit in _units(packet, self._length_bytes):
            kind = unit[0] & 31
            if kind in (7, 8):
                self._take_parameters(unit)
            elif kind == 6:
                messages = dict(_messages(unit[1:]))
                self.turns |= DISPLAY_ORIENTATION in messages
                # Frames are whole only some frames later (D.1.8): an intra refresh.
                if RECOVERY_POINT in messages and _Bits(messages[RECOVERY_POINT]).ue():
                    self.is_entry = False
            elif kind in (1, 2, 5):
                if kind == 5:
                    self.is_entry = True
                self.is_reference |= unit[0] & 0x60 != 0
                shown += self._opens_frame(unit)
        self.needed_later = self._parameters.end_packet() or self.turns
        return shown

    def _opens_frame(self, unit: bytes) -> bool:
        """Return whether a slice is the first one of a frame."""
        if not unit[1] & 0x80:  # it does not begin at the first macroblock
            return False
        bits = _Bits(_strip_emulation(unit[1:], HEADER_BYTES))
        bits.ue(), bits.ue()
        sequence = self._sequences[self._sequence_of[bits.ue()]]
        if sequence.separate_planes and bits.u(2):
            return False
        frame_num = bits.u(sequence.frame_num_bits)
        self._see_frame_num(frame_num, unit, sequence)
        if not sequence.has_fields or not bits.u(1):
            self._open_field = None
            return True
        parity = bits.u(1)
        closes = self._open_field == (1 - parity, frame_num)
        self._open_field = None if closes else (parity, frame_num)
        return not closes

    def _see_frame_num(self, frame_num: int, unit: bytes, sequence: _Sequence) -> None:
        """Compare the number of a frame with that of the last reference frame (ITU-T H.264, 7.4.3)."""
        before = self._reference_num
        if unit[0] & 31 != 5 and before is not None and not sequence.allows_gaps:
            self.follows_loss |= (frame_num - before) % (1 << sequence.frame_num_bits) > 1
        if unit[0] & 0x60:
            self._reference_num = frame_num


def _h264_sequence(bits: _Bits) -> tuple[int, _Sequence]:
    profile, _ = bits.u(8), bits.u(16)
    number, separate = bits.ue(), False
    if profile in WITH_CHROMA_FORMAT:
        chroma = bits.ue()
        separate = chroma == 3 and bool(bits.u(1))
        bits.ue(), bits.ue(), bits.u(1)
        if bits.u(1):
            for index in range(8 if chroma != 3 else 12):
                if bits.u(1):
                    _skip_scaling_list(bits, 16 if index < 6 else 64)
    frame_num_bits = bits.ue() + 4
    order = bits.ue()
    if order == 0:
        bits.ue()
    elif order == 1:
        bits.u(1), bits.ue(), bits.ue()
        for _ in range(min(255, bits.ue())):
            bits.ue()
    bits.ue()
    allows_gaps = bool(bits.u(1))
    bits.ue(), bits.ue()
    return number, _Sequence(not bits.u(1), frame_num_bits, separate, allows_gaps)


def _messages(unit: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and payload of supplemental enhancement information (H.264 and H.265, 7.3.2.3.1)."""
    data, at = _strip_emulation(unit, UNIT_BYTES), 0
    while at + 2 < len(data):
        sizes = []
        for _ in range(2):  # kind and length, each a sum of bytes
            total = data[at]
            while data[at] == 255:
                at += 1
                total += data[at]
            at += 1
            sizes.append(total)
        yield sizes[0], data[at : at + sizes[1]]
        at += sizes[1]


def _skip_scaling_list(bits: _Bits, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            code = bits.ue()
            following = (last + (code + 1 >> 1 if code & 1 else -(code >> 1))) % 256
        last = following or last


class _Hevc:
    is_entry: bool | None = None
    needed_later = turns = False
    is_reference, temporal_layer = True, 0

    def __init__(self, record: bytes) -> None:
        self._hides: dict[
            int, tuple[bool, int]
        ] = {}  # by picture parameter set: has output flags, extra bits before it
        self._parameters = _Parameters()
        self._skips_rasl, self._at_start = False, True
        self._length_bytes = 0
        if not record.startswith(b"\1"):
            self.count(record)
            self._parameters.end_header()
            return
        self._length_bytes = (record[21] & 3) + 1
        at = 23
        for _ in range(record[22]):
            units, at = _read_sized_units(record, at + 3, int.from_bytes(record[at + 1 : at + 3], "big"))
            for unit in units:
                self._take_parameters(unit)
        self._parameters.end_header()

    def _take_parameters(self, unit: bytes) -> None:
        kind = unit[0] >> 1 & 63
        if kind in (32, 33, 34):
            self._parameters.take(unit)
        if kind == 34:
            bits = _Bits(_strip_emulation(unit[2:], HEADER_BYTES))
            number = bits.ue()
            bits.ue(), bits.u(1)
            self._hides[number] = bool(bits.u(1)), bits.u(3)

    def count(self, packet: bytes) -> int:
        shown, self.is_entry, self.turns, self.is_reference = 0, None, False, False
        for unit in _units(packet, self._length_bytes):
            kind, layer = unit[0] >> 1 & 63, (unit[0] & 1) << 5 | unit[1] >> 3
            if layer:
                continue
            if kind < 32:
                self.is_reference |= (
                    kind >= 16 or kind % 2 == 1
                )  # even types: no reference of its own layer (table 7-1)
                self.temporal_layer = (unit[1] & 7) - 1
                shown += self._is_shown(kind, unit)
            elif kind in (36, 37):  # the end of a sequence, or of the stream
                self._at_start = True
            elif kind == 39:  # supplemental information before a picture
                self.turns |= any(kind == DISPLAY_ORIENTATION for kind, _ in _messages(unit[2:]))
            else:
                self._take_parameters(unit)
        self.needed_later = self._parameters.end_packet() or self.turns
        return shown

    def _is_shown(self, kind: int, unit: bytes) -> bool:
        bits = _Bits(_strip_emulation(unit[2:], HEADER_BYTES))
        if not bits.u(1):  # not the first slice
            return False
        if 16 <= kind <= 23:
            bits.u(1)
            self._skips_rasl = kind != 21 or self._at_start
            self._at_start, self.is_entry = False, True
        if kind in (8, 9) and self._skips_rasl:
            return False
        has_flag, extra_bits = self._hides[bits.ue()]
        bits.u(extra_bits)
        bits.ue()
        return not has_flag or bool(bits.u(1))


class _Vp9:
    is_entry = None
    needed_later = turns = False
    is_reference, temporal_layer = True, 0

    def __init__(self, _record: bytes) -> None:
        pass

    def count(self, packet: bytes) -> int:
        return sum(self._is_shown(frame) for frame in self._frames(packet))

    def _frames(self, packet: bytes) -> Iterator[bytes]:
        """Yield the frames of a superframe, or the only frame."""
        marker = packet[-1]
        count, size_bytes = (marker & 7) + 1, (marker >> 3 & 3) + 1
        index = len(packet) - 2 - count * size_bytes
        if marker & 0xE0 != 0xC0 or index < 0 or packet[index] != marker:
            yield packet
            return
        at = 0
        for number in range(count):
            begin = index + 1 + number * size_bytes
            size = int.from_bytes(packet[begin : begin + size_bytes], "little")
            if size:
                yield packet[at : min(at + size, index)]
            at += size

    def _is_shown(self, frame: bytes) -> bool:
        bits = _Bits(frame[:2])
        bits.u(2)
        if bits.u(1) + 2 * bits.u(1) == 3:
            bits.u(1)
        if bits.u(1):  # show_existing_frame
            return True
        bits.u(1)
        return bool(bits.u(1))


@dataclass(frozen=True, slots=True)
class _Av1Sequence:
    """Fields of an AV1 sequence header that frame headers need (5.5.1).

    Attributes:
        is_still: Whether frame headers are reduced
        screen_content_tools: 2 if each frame tells
        integer_mv: 2 if each frame tells
        frame_id_bits: Bits of a frame's id; 0 without ids
        order_hint_bits: Bits of a frame's order hint
    """

    is_still: bool
    screen_content_tools: int = 0
    integer_mv: int = 0
    frame_id_bits: int = 0
    order_hint_bits: int = 0


class _Av1:
    is_entry = None
    needed_later = turns = False
    is_reference, temporal_layer = True, 0

    def __init__(self, record: bytes) -> None:
        self._is_still = False
        self._sequence: _Av1Sequence | None = None
        for kind, body in _obus(record[4:]):
            self._take_sequence(kind, body)

    def _take_sequence(self, kind: int, body: bytes) -> None:
        if kind == 1:
            self._is_still = body[0] >> 3 & 1 == 1
            self._sequence = None
            with suppress(IndexError):
                self._sequence = _av1_sequence(_Bits(body))

    def count(self, packet: bytes) -> int:
        shown, self.is_reference = 0, False
        for kind, body in _obus(packet):
            self._take_sequence(kind, body)
            if kind in (3, 6):
                again, is_shown = body[0] >> 7, body[0] >> 4 & 1
                shown += bool(self._is_still or again or is_shown)
                self.is_reference |= self._sequence is None or _refreshes(_Bits(body[:HEADER_BYTES]), self._sequence)
        return shown


def _av1_sequence(bits: _Bits) -> _Av1Sequence | None:
    """Return a sequence header; None if frame headers have fields for a decoder model, which are not read here."""
    bits.u(3), bits.u(1)
    if bits.u(1):
        return _Av1Sequence(is_still=True)
    if bits.u(1):  # timing_info
        bits.u(32), bits.u(32)
        if bits.u(1):
            bits.ue()
        if bits.u(1):  # decoder_model_info
            return None
    has_delays = bits.u(1)
    for _ in range(bits.u(5) + 1):
        bits.u(12)
        if bits.u(5) > 7:
            bits.u(1)
        if has_delays and bits.u(1):
            bits.u(4)
    width_bits, height_bits = bits.u(4) + 1, bits.u(4) + 1
    bits.u(width_bits), bits.u(height_bits)
    frame_id_bits = 0
    if bits.u(1):
        delta = bits.u(4)
        frame_id_bits = delta + bits.u(3) + 3
    bits.u(3), bits.u(4)
    has_order = bits.u(1)
    if has_order:
        bits.u(2)
    screen_content_tools = 2 if bits.u(1) else bits.u(1)
    integer_mv = 2
    if screen_content_tools and not bits.u(1):
        integer_mv = bits.u(1)
    return _Av1Sequence(False, screen_content_tools, integer_mv, frame_id_bits, bits.u(3) + 1 if has_order else 0)


def _refreshes(bits: _Bits, sequence: _Av1Sequence) -> bool:
    """Return whether an AV1 frame is stored as a reference (5.9.2)."""
    if sequence.is_still or bits.u(1):  # show_existing_frame
        return True
    kind, is_shown = bits.u(2), bits.u(1)
    if not is_shown:
        bits.u(1)
    is_key, is_switch = kind == 0, kind == 3
    if is_switch or (is_key and is_shown):
        return True
    is_resilient, is_intra = bits.u(1), kind in (0, 2)
    bits.u(1)
    tools = bits.u(1) if sequence.screen_content_tools == 2 else sequence.screen_content_tools
    if tools and sequence.integer_mv == 2:
        bits.u(1)
    bits.u(sequence.frame_id_bits), bits.u(1), bits.u(sequence.order_hint_bits)
    if not is_intra and not is_resilient:
        bits.u(3)
    return bits.u(8) != 0


def _obus(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (type, content) of open bitstream units of the base layer."""
    at = 0
    while at < len(data):
        header = data[at]
        has_extension, has_size = header >> 2 & 1, header >> 1 & 1
        layer = data[at + 1] >> 3 & 3 if has_extension else 0
        at += 1 + has_extension
        size, shift = (0, 0) if has_size else (len(data) - at, 0)
        while has_size:
            size |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if not data[at - 1] & 128 or shift > 56:
                break
        if not layer:
            yield header >> 3 & 15, data[at : at + size]
        at += size


def has_zeros_outside_padding(data: bytes, zeros: bytes) -> bool:
    """Return whether an AV1 packet has this run of zeros outside padding units (AV1, 5.7)."""
    try:
        return any(kind != PADDING and zeros in body for kind, body in _obus(data))
    except IndexError:
        return True


def displayed_by(packet: Packet[VideoStream]) -> PacketInfo:
    """Return what a packet of `Source.packets` displays; one frame if its codec is not parsed here."""
    marked = cast("list[PacketInfo] | None", packet.opaque)
    return PacketInfo() if marked is None else marked[0]
