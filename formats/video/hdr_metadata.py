"""What a picture of high dynamic range says of the screen it was graded on (SMPTE ST 2086) and of how bright it gets (CTA-861.3),
and whether to believe it; and the same in the header of an output: `mdcv` and `clli` in mp4, `Colour` in Matroska.
"""

from __future__ import annotations

import io
import struct
from fractions import Fraction
from itertools import pairwise

import av.logging
from av.bitstream import BitStreamFilterContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from vidprep.formats.manifest.remarks import Remark
from vidprep.formats.model import ContentLight, HdrMetadata, MasteringDisplay, Point
from vidprep.formats.profiles import CODECS
from vidprep.formats.video.pyav import light_side_data, open_input

MIN_PEAK, MAX_PEAK = 50, 10_000  # cd/m² of a screen that anything is graded on; PQ ends at the second
# AVMasteringDisplayMetadata: x and y of red, green, blue and white, minimum and maximum as rationals; which of them are told.
_MASTERING = struct.Struct("=22i")


def hdr_metadata_of(frame: VideoFrame) -> tuple[HdrMetadata, list[Remark]]:
    """What a frame says, and why what it says besides is not believed."""
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
    """Colours, each where its name says, with white between them."""
    points = (red, green, blue)
    return (
        all(x >= 0 and y >= 0 and x + y <= 1 for x, y in points)
        and max(points) == red
        and max(points, key=lambda point: point[1]) == green
        and min(points, key=lambda point: point[1]) == blue
        and all(_left_of(one, other, white) > 0 for one, other in pairwise((*points, red)))
    )


def _left_of(one: Point, other: Point, point: Point) -> float:
    """Twice the area of the triangle; above 0 where the point lies left of the way from one to the other."""
    return float((other[0] - one[0]) * (point[1] - one[1]) - (other[1] - one[1]) * (point[0] - one[0]))


def write_hdr_metadata(stream: VideoStream, codec: str, light: HdrMetadata) -> None:
    """To a stream that is to be written, before anything else of it is set, as the rest is overwritten.

    PyAV has no name for the side data that libavformat writes there, but copies that of a stream it reads: the header of a Matroska
    file (RFC 9559) that holds a stream of the codec and nothing besides.
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
    cluster = _element(0x1F43B675, _whole(0xE7, 0))  # with which a header ends
    segment = _element(0x1549A966, b"") + _element(0x1654AE6B, _element(0xAE, track)) + cluster
    return _element(0x1A45DFA3, _element(0x4282, b"matroska")) + _element(0x18538067, segment)


def _element(name: int, content: bytes) -> bytes:
    return name.to_bytes((name.bit_length() + 7) // 8) + (1 << 56 | len(content)).to_bytes(8) + content


def _whole(name: int, value: int) -> bytes:
    return _element(name, value.to_bytes(8))
