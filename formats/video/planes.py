"""The samples of a plane as bytes or as an array, top line first.

A decoder, or a flip, may store the bottom line first: PyAV gives the memory as it lies, and a negative line size.
"""

from __future__ import annotations

import struct
from operator import itemgetter
from typing import TYPE_CHECKING

from av.video.plane import VideoPlane

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def visible_bytes(plane: VideoPlane, line_bytes: int) -> bytes | memoryview:
    """Without the padding of its lines. line_bytes: those that are seen."""
    data, line = memoryview(plane), plane.line_size
    if line == line_bytes:
        return data[: line * plane.height]
    found = struct.iter_unpack(f"{line_bytes}s{abs(line) - line_bytes}x", data[: abs(line) * plane.height])
    lines = list(map(itemgetter(0), found))
    return b"".join(lines if line > 0 else reversed(lines))


def plane_lines(plane: VideoPlane) -> npt.NDArray[np.uint8]:
    """(H, bytes of a line with its padding), a view of the memory."""
    import numpy as np

    lines = np.frombuffer(memoryview(plane), np.uint8).reshape(plane.height, abs(plane.line_size))
    return lines if plane.line_size > 0 else lines[::-1]
