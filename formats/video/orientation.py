"""How a stored picture is turned to be upright, as its display matrix says."""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from av.video.frame import VideoFrame

from vidprep.formats.manifest.remarks import Remark
from vidprep.formats.model import Orientation
from vidprep.formats.video.midway import told_of
from vidprep.formats.video.pyav import display_matrix

# Less than this of the longer side is the rounding of whoever wrote the matrix.
SLANT = 0.02


class Turn(NamedTuple):
    """degrees: counter-clockwise, as FFmpeg prints them. warning: what of the matrix could not be followed, None when it was."""

    orientation: Orientation = Orientation()
    degrees: int = 0
    warning: Remark | None = None


def turn_of(frame: VideoFrame) -> Turn:
    """Return how a frame is turned by its display matrix, or by the one that holds for it; not at all without one."""
    matrix = told_of(frame).matrix or display_matrix(frame)
    if matrix is None:
        return Turn()
    a, b, _, c, d, *_ = struct.unpack("<9i", matrix[:36])
    return turn_by(a, b, c, d)


def turn_by(a: int, b: int, c: int, d: int) -> Turn:
    """A display matrix as transpose and flips.

    The matrix maps a stored (x, y) to (a·x + c·y, b·x + d·y) with y downwards (ISO/IEC 14496-12, 6.2.2). An angle that
    is no multiple of 90 degrees goes to the nearest one; the angle is that of FFmpeg, which a matrix without area has none of.
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
    # Where the x axis goes, and on which side of it the y axis lies.
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
