"""Mastering display and content light level into the header of an output: `mdcv` and `clli` in mp4, `Colour` in Matroska.

PyAV has no name for the side data that libavformat writes there, but copies that of a stream it reads: the header of a Matroska file
(RFC 9559), written here, which holds a stream of the codec and nothing besides.
"""

from __future__ import annotations

import io
import struct

import av.logging
from av.bitstream import BitStreamFilterContext
from av.video.stream import VideoStream

from vidprep.formats.model import Light
from vidprep.formats.profiles import CODECS
from vidprep.formats.video.pyav import open_input


def give_light(stream: VideoStream, codec: str, light: Light) -> None:
    """To a stream that is to be written, before anything else of it is set, as the rest is overwritten."""
    with av.logging.Capture(), open_input(io.BytesIO(_header(codec, light)), {}) as file:
        BitStreamFilterContext("null", file.streams.video[0], stream)


def _header(codec: str, light: Light) -> bytes:
    colour = b""
    if light.content is not None:
        colour += _whole(0x55BC, light.content.brightest) + _whole(0x55BD, light.content.average)
    if light.mastering is not None:
        display = light.mastering
        places = [value for point in (*display.primaries, display.white) for value in point]
        numbers = enumerate((*places, display.max_luminance, display.min_luminance), 0x55D1)
        colour += _element(0x55D0, b"".join(_element(name, struct.pack(">d", value)) for name, value in numbers))
    video = _whole(0xB0, 16) + _whole(0xBA, 16) + _element(0x55B0, colour)  # width, height, Colour
    track = _whole(0xD7, 1) + _whole(0x73C5, 1) + _whole(0x83, 1)  # number, UID, type: video
    track += _element(0x86, CODECS[codec].matroska_id.encode()) + _element(0xE0, video)
    cluster = _element(0x1F43B675, _whole(0xE7, 0))  # with which a header ends
    segment = _element(0x1549A966, b"") + _element(0x1654AE6B, _element(0xAE, track)) + cluster
    return _element(0x1A45DFA3, _element(0x4282, b"matroska")) + _element(0x18538067, segment)


def _element(name: int, content: bytes) -> bytes:
    return name.to_bytes((name.bit_length() + 7) // 8) + (1 << 56 | len(content)).to_bytes(8) + content


def _whole(name: int, value: int) -> bytes:
    return _element(name, value.to_bytes(8))
