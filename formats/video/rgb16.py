"""Convert decoded frames to 16-bit RGB, 0..65535, without losing precision of 10 or 12 bits.

libswscale upsamples the chroma and scales. Its own conversion to RGB of more than 8 bits is up to four levels (of 10 bits) too
dark, so the colour matrix is computed here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from av.video.frame import VideoFrame
from av.video.plane import VideoPlane

from vidprep.formats.video.pyav import plane_lines
from vidprep.formats.video.rgb import PACKED, convert, matrix_of

Rgb16Array = npt.NDArray[np.uint16]
WHITE = 65535
FULL_RANGE = 2
# ITU-T H.273, table 4: weights of red and blue in luma. Other matrices are treated as BT.601, as libswscale does.
WEIGHTS = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 7: (0.212, 0.087), 9: (0.2627, 0.0593), 10: (0.2627, 0.0593)}
BT601 = 0.299, 0.114


def deep_rgb(frame: VideoFrame, size: tuple[int, int] | None) -> Rgb16Array:
    """Return (H, W, 3), scaled to (height, width). Raises PyAV's errors."""
    depth = max(8, *(component.bits for component in frame.format.components))  # fewer bits are expanded to eight
    if frame.format.is_rgb:
        picture = _convert_rgb(frame, depth)
        return picture if size is None else deep_resized(picture, size)
    made = convert(frame, size, "yuv444p" if depth <= 8 else f"yuv444p{depth}le")
    y, cb, cr = (_values(plane, made.width, depth).astype(np.float32) for plane in made.planes)
    middle, unit = 1 << depth - 1, 1 << max(0, depth - 8)
    if int(frame.color_range) == FULL_RANGE or frame.format.name.startswith("yuvj"):
        low, span, chroma_span = 0, (1 << depth) - 1, (1 << depth) - 1
    else:
        low, span, chroma_span = 16 * unit, 219 * unit, 224 * unit
    of_red, of_blue = WEIGHTS.get(matrix_of(frame), BT601)
    luma = (y - low) / span
    r = luma + 2 * (1 - of_red) * (cr - middle) / chroma_span
    b = luma + 2 * (1 - of_blue) * (cb - middle) / chroma_span
    return _round(np.stack([r, (luma - of_red * r - of_blue * b) / (1 - of_red - of_blue), b], -1))


def deep_resized(picture: Rgb16Array, size: tuple[int, int]) -> Rgb16Array:
    """Scale (H, W, 3) to (height, width, 3), plane by plane: libswscale scales RGB by way of YCbCr."""
    planes = [VideoFrame.from_ndarray(np.ascontiguousarray(picture[..., n]), format="gray16le") for n in range(3)]
    return np.stack([_values(convert(plane, size, "gray16le").planes[0], size[1], 16).copy() for plane in planes], -1)


def _convert_rgb(frame: VideoFrame, depth: int) -> Rgb16Array:
    if depth <= 8:
        plane = convert(frame, None, PACKED).planes[0]
        rgb: Rgb16Array = (
            _values(plane, frame.width * 3, 8).reshape(frame.height, frame.width, 3).astype(np.uint16) * 257
        )
        return rgb
    green, blue, red = convert(frame, None, f"gbrp{depth}le").planes
    values: Rgb16Array = np.stack([_values(plane, frame.width, depth) for plane in (red, green, blue)], -1)
    return values if depth == 16 else _round(values.astype(np.float32) / ((1 << depth) - 1))


def _values(plane: VideoPlane, count: int, depth: int) -> npt.NDArray[Any]:
    """Return (H, count), a view of the plane's memory."""
    lines = plane_lines(plane)
    return lines[:, :count] if depth <= 8 else lines[:, : 2 * count].view("<u2")


def _round(values: npt.NDArray[Any]) -> Rgb16Array:
    """Round values of 0 to 1 to 16 bits."""
    rounded: Rgb16Array = np.rint(np.clip(values, 0, 1) * WHITE).astype(np.uint16)
    return rounded
