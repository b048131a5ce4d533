"""How much of a picture its container hides: `PixelCrop` of Matroska, `clap` of mp4."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any

import av.logging
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from vidprep.formats.model import NO_CROPPING, Cropping
from vidprep.formats.video.pyav import IS_18, open_output

MASTERS = (0x18538067, 0x1654AE6B, 0xAE, 0xE0)  # Segment, Tracks, TrackEntry, Video
PIXEL_CROP = {0x54BB: "top", 0x54AA: "bottom", 0x54CC: "left", 0x54DD: "right"}


def cropping_of(stream: VideoStream) -> Cropping:
    if IS_18:
        return _cropping_told_in_matroska(stream)
    context: Any = stream.codec_context
    side_data = context.coded_side_data.get("frame_cropping")
    return NO_CROPPING if side_data is None else Cropping(*struct.unpack("=4I", side_data[:16]))


def followed(crop: Cropping, frame: VideoFrame) -> Cropping:
    """As ffmpeg's crop filter follows it: it begins with a sample of chroma, and ends with a whole one. None where it leaves nothing."""
    across, down = 64 // frame.format.chroma_width(64), 64 // frame.format.chroma_height(64)
    width, height = frame.width - crop.left - crop.right, frame.height - crop.top - crop.bottom
    width, height = width - width % across, height - height % down
    if min(width, height) <= 0:
        return NO_CROPPING
    left, top = crop.left - crop.left % across, crop.top - crop.top % down
    return Cropping(top, frame.height - height - top, left, frame.width - width - left)


def _cropping_told_in_matroska(stream: VideoStream) -> Cropping:
    """PyAV 18 does not give side data of a stream; libavformat writes it where it can be read."""
    header = io.BytesIO()
    try:
        with av.logging.Capture(), open_output(header, format="matroska", options={}) as container:
            container.add_stream_from_template(stream, opaque=True)
            container.start_encoding()
    except (OSError, ValueError):  # a stream that Matroska does not hold
        return NO_CROPPING
    found = {
        PIXEL_CROP[name]: int.from_bytes(value) for name, value in elements(header.getvalue()) if name in PIXEL_CROP
    }
    return NO_CROPPING._replace(**found)


def elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Name and content of each EBML element (RFC 8794); what is in MASTERS, one by one."""
    at = 0
    while at + 2 <= len(data):
        name_bytes = 9 - data[at].bit_length()
        name = int.from_bytes(data[at : at + name_bytes])
        at += name_bytes
        size_bytes = 9 - data[at].bit_length()
        size = int.from_bytes(data[at : at + size_bytes]) & ~(1 << 7 * size_bytes)
        content = data[at + size_bytes :][:size]
        if name in MASTERS:
            yield from elements(content)
        else:
            yield name, content
        at += size_bytes + size
