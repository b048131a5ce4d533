"""What a picture of high dynamic range says of the screen it was graded on (SMPTE ST 2086) and of how bright it gets (CTA-861.3),
and whether to believe it.
"""

from __future__ import annotations

import struct
from fractions import Fraction
from itertools import pairwise

from av.video.frame import VideoFrame

from vidprep.formats.model import ContentLight, Light, MasteringDisplay, Point
from vidprep.formats.video.pyav import light_side_data

MIN_PEAK, MAX_PEAK = 50, 10_000  # cd/m² of a screen that anything is graded on; PQ ends at the second
# AVMasteringDisplayMetadata: x and y of red, green, blue and white, minimum and maximum as rationals; which of them are told.
_MASTERING = struct.Struct("=22i")


def light_of(frame: VideoFrame) -> tuple[Light, list[str]]:
    """What a frame says, and why what it says besides is not believed."""
    display, levels = light_side_data(frame)
    doubts: list[str] = []
    mastering = _mastering(display, doubts) if display else None
    content = _content(levels, mastering, doubts) if levels else None
    return Light(mastering, content), doubts


def _mastering(data: bytes, doubts: list[str]) -> MasteringDisplay | None:
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
        doubts.append(f"its mastering display metadata was not believed, and not used: it tells of {fault}")
        return None
    return MasteringDisplay((red, green, blue), white, low, high)


def _content(data: bytes, mastering: MasteringDisplay | None, doubts: list[str]) -> ContentLight | None:
    brightest, average = struct.unpack("=2I", data[:8])
    if not brightest and not average:
        return None
    limit = mastering.max_luminance if mastering else MAX_PEAK
    if average > (brightest or limit) or brightest > limit:
        doubts.append(
            f"its content light level was not believed, and not used: it tells of MaxCLL {brightest} and MaxFALL {average} "
            f"where no more than {float(limit):g} cd/m² can be"
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
