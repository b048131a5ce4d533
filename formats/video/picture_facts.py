"""Read what containers and frames say about the picture: cropping, orientation and HDR metadata; and write HDR metadata.

Cropping is `PixelCrop` in Matroska and `clap` in MP4; orientation is a display matrix; HDR metadata is the mastering
display (SMPTE ST 2086) and the content light level (CTA-861.3), `mdcv` and `clli` in MP4 and `Colour` in Matroska.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import av.logging
from av.bitstream import BitStreamFilterContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from vidprep.formats.manifest.remarks import Remark
from vidprep.formats.model import NO_CROPPING, ContentLight, Cropping, HdrMetadata, MasteringDisplay, Orientation, Point
from vidprep.formats.profiles import CODECS
from vidprep.formats.video.midway import properties_of
from vidprep.formats.video.pyav import IS_18, display_matrix, light_side_data, open_input, open_output

MIN_PEAK, MAX_PEAK = 50, 10_000  # cd/m² of a screen that anything is graded on; PQ ends at the second
# AVMasteringDisplayMetadata: x and y of red, green, blue and white, minimum and maximum as rationals; flags for which are set.
_MASTERING = struct.Struct("=22i")


def hdr_metadata_of(frame: VideoFrame) -> tuple[HdrMetadata, list[Remark]]:
    """Return the HDR metadata of a frame, and remarks about values that cannot be true and are dropped."""
    display, levels = light_side_data(frame)
    doubts: list[Remark] = []
    mastering = _mastering(display, doubts) if display else None
    content = _content(levels, mastering, doubts) if levels else None
    return HdrMetadata(mastering, content), doubts


def _mastering(data: bytes, doubts: list[Remark]) -> MasteringDisplay | None:
    *pairs, has_primaries, has_luminance = _MASTERING.unpack(data[: _MASTERING.size])
    values = [
        Fraction(top, bottom) if bottom else Fraction(0) for top, bottom in zip(pairs[::2], pairs[1::2], strict=True)
    ]
    if not any(values):
        return None
    red, green, blue, white = ((values[n], values[n + 1]) for n in range(0, 8, 2))
    low, high = values[8:]
    fault = None
    if not MIN_PEAK <= high <= MAX_PEAK or low >= high or not has_luminance:
        fault = f"a screen of {float(low):g} to {float(high):g} cd/m²"
    elif not has_primaries or not _are_primaries(red, green, blue, white):
        shown = ", ".join(f"{float(x):.3f} {float(y):.3f}" for x, y in (red, green, blue))
        fault = f"a screen whose red, green and blue are at {shown}"
    if fault is not None:
        doubts.append(
            Remark(
                "hdr_metadata_ignored",
                f"its mastering display metadata is implausible and was not used: it gives {fault}",
            )
        )
        return None
    return MasteringDisplay((red, green, blue), white, low, high)


def _content(data: bytes, mastering: MasteringDisplay | None, doubts: list[Remark]) -> ContentLight | None:
    brightest, average = struct.unpack("=2I", data[:8])
    if not brightest and not average:
        return None
    limit = mastering.max_luminance if mastering else MAX_PEAK
    if average > (brightest or limit) or brightest > limit:
        doubts.append(
            Remark(
                "hdr_metadata_ignored",
                f"its content light level is implausible and was not used: it gives MaxCLL {brightest} and MaxFALL {average} "
                f"where at most {float(limit):g} cd/m² is possible",
            )
        )
        return None
    return ContentLight(brightest, average)


def _are_primaries(red: Point, green: Point, blue: Point, white: Point) -> bool:
    """Return whether red, green and blue are where such colours can be, with white between them."""
    points = (red, green, blue)
    return (
        all(x >= 0 and y >= 0 and x + y <= 1 for x, y in points)
        and max(points) == red
        and max(points, key=lambda point: point[1]) == green
        and min(points, key=lambda point: point[1]) == blue
        and all(_side_of_line(one, other, white) > 0 for one, other in pairwise((*points, red)))
    )


def _side_of_line(one: Point, other: Point, point: Point) -> float:
    """Return twice the signed area of a triangle: positive if `point` is left of the line from `one` to `other`."""
    return float((other[0] - one[0]) * (point[1] - one[1]) - (other[1] - one[1]) * (point[0] - one[0]))


def write_hdr_metadata(stream: VideoStream, codec: str, light: HdrMetadata) -> None:
    """Set the HDR metadata of an output stream. Call it before setting anything else, which it would overwrite.

    PyAV cannot set the side data that libavformat writes, but copies the side data of a stream that it reads: here a
    Matroska header (RFC 9559) with a single stream of the codec.
    """
    with av.logging.Capture(), open_input(io.BytesIO(_header(codec, light)), {}) as file:
        BitStreamFilterContext("null", file.streams.video[0], stream)


def _header(codec: str, light: HdrMetadata) -> bytes:
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
    cluster = _element(0x1F43B675, _whole(0xE7, 0))  # which ends a header
    segment = _element(0x1549A966, b"") + _element(0x1654AE6B, _element(0xAE, track)) + cluster
    return _element(0x1A45DFA3, _element(0x4282, b"matroska")) + _element(0x18538067, segment)


def _element(name: int, content: bytes) -> bytes:
    return name.to_bytes((name.bit_length() + 7) // 8) + (1 << 56 | len(content)).to_bytes(8) + content


def _whole(name: int, value: int) -> bytes:
    return _element(name, value.to_bytes(8))


# Deviations below this share of the longer side are rounding errors in the matrix.
SLANT = 0.02


class Turn(NamedTuple):
    """Rotation and flips that turn a frame upright.

    Attributes:
        orientation: Transposition and flips
        degrees: Counter-clockwise rotation, as FFmpeg prints it
        warning: The part of the matrix that cannot be applied; None if all of it is
    """

    orientation: Orientation = Orientation()
    degrees: int = 0
    warning: Remark | None = None


def turn_of(frame: VideoFrame) -> Turn:
    """Return how to turn a frame, from its own display matrix or an earlier one that still applies; no turning without
    one.
    """
    matrix = properties_of(frame).matrix or display_matrix(frame)
    if matrix is None:
        return Turn()
    a, b, _, c, d, *_ = struct.unpack("<9i", matrix[:36])
    return turn_by(a, b, c, d)


def turn_by(a: int, b: int, c: int, d: int) -> Turn:
    """Convert a display matrix to transpose and flips.

    The matrix maps a stored (x, y) to (a·x + c·y, b·x + d·y) with y downwards (ISO/IEC 14496-12, 6.2.2). The angle is
    computed as FFmpeg does, and rounded to the nearest multiple of 90 degrees. A matrix without area has no angle and
    is ignored.
    """
    area = a * d - b * c
    if not area:
        return Turn(
            warning=Remark(
                "display_matrix_ignored",
                f"the display matrix ({a} {b} {c} {d}) leaves no area of the picture and was not followed",
            )
        )
    angle = -math.degrees(math.atan2(b / math.hypot(b, d), a / math.hypot(a, c)))
    degrees = round(angle)
    # Direction of the x axis, and the side of the y axis.
    if round(angle / 90) % 2:
        turned = Orientation(True, flip_horizontal=(area > 0) == (b > 0), flip_vertical=b < 0)
    else:
        turned = Orientation(False, flip_horizontal=a < 0, flip_vertical=(area > 0) != (a > 0))
    if degrees % 90:
        return Turn(
            turned,
            degrees,
            Remark("display_matrix_ignored", f"rotated by {degrees} degrees; turned to the nearest right angle"),
        )
    along, across = ((b, c), (a, d)) if turned.transpose else ((a, d), (b, c))
    if max(map(abs, across)) > SLANT * min(map(abs, along)):
        return Turn(
            turned,
            degrees,
            Remark(
                "display_matrix_ignored",
                f"the display matrix shears the picture; turned by {degrees} degrees and no more",
            ),
        )
    return Turn(turned, degrees)


MASTERS = (0x18538067, 0x1654AE6B, 0xAE, 0xE0)  # Segment, Tracks, TrackEntry, Video
PIXEL_CROP = {0x54BB: "top", 0x54AA: "bottom", 0x54CC: "left", 0x54DD: "right"}


def cropping_of(stream: VideoStream) -> Cropping:
    if IS_18:
        return _matroska_cropping(stream)
    context: Any = stream.codec_context
    side_data = context.coded_side_data.get("frame_cropping")
    return NO_CROPPING if side_data is None else Cropping(*struct.unpack("=4I", side_data[:16]))


def round_crop(crop: Cropping, frame: VideoFrame) -> Cropping:
    """Round a crop to whole chroma samples, as ffmpeg's crop filter does; NO_CROPPING if nothing would remain."""
    across, down = 64 // frame.format.chroma_width(64), 64 // frame.format.chroma_height(64)
    width, height = frame.width - crop.left - crop.right, frame.height - crop.top - crop.bottom
    width, height = width - width % across, height - height % down
    if min(width, height) <= 0:
        return NO_CROPPING
    left, top = crop.left - crop.left % across, crop.top - crop.top % down
    return Cropping(top, frame.height - height - top, left, frame.width - width - left)


def _matroska_cropping(stream: VideoStream) -> Cropping:
    """Return the cropping of a Matroska stream, read from a file that libavformat writes: PyAV 18 does not return a
    stream's side data.
    """
    header = io.BytesIO()
    try:
        with av.logging.Capture(), open_output(header, format="matroska", options={}) as container:
            container.add_stream_from_template(stream, opaque=True)
            container.start_encoding()
    except (OSError, ValueError):  # a stream that Matroska cannot hold
        return NO_CROPPING
    sides = {
        PIXEL_CROP[name]: int.from_bytes(value) for name, value in elements(header.getvalue()) if name in PIXEL_CROP
    }
    return NO_CROPPING._replace(**sides)


def elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield name and content of EBML elements (RFC 8794); instead of an element in MASTERS, its children are yielded."""
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
