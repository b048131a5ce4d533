"""Convert decoded frames to 8-bit RGB, rounded to the nearest level, for any depth and subsampling.

libswscale alone is fast but up to four levels too dark, and worse with ten bits than with eight. With exact rounding
and interpolated chroma (bilinear, sited in the middle as in JPEG) it is within half a level of exact arithmetic, and
five times slower. It does so fastest into planes, so planes are made first.

Scaling happens in the same pass, before the conversion to RGB: bicubic, with a wider kernel for smaller pictures to
avoid aliasing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import av
from av.video.frame import VideoFrame
from av.video.plane import VideoPlane
from av.video.reformatter import VideoReformatter

from vidprep.formats.video.pyav import plane_lines

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    RgbArray = npt.NDArray[np.uint8]

ROUNDED = "accurate_rnd+bitexact+full_chroma_int+full_chroma_inp"
EXACT, RESIZED = f"bilinear+{ROUNDED}", f"bicubic+{ROUNDED}"
PACKED, PLANES = "rgb24", "gbrp"
# Bounds of the graphs that are kept. A graph takes some 10 bytes per pixel and 384 kB.
KEPT_PIXELS, KEPT_KINDS = 1 << 24, 16
# ITU-T H.273. A picture of so many lines that does not say is taken for BT.709, of fewer for BT.601.
HD_LINES = 720
# libswscale expands three bits to at most 252.
SHORT_OF_WHITE, STRETCH = ("rgb8", "bgr8"), ("lutrgb", "r=val*255/252:g=val*255/252")
LIMITED = 1  # range, as libavutil numbers it
RGB, BT709, UNSPECIFIED, SMPTE170M, MATRICES = 0, 1, 2, 6, {1, *range(4, 18)}


class ToRgb:
    """Converts frames to RGB. Raises PyAV's errors. Not thread-safe.

    Args:
        fast: Use libswscale's default conversion.
    """

    def __init__(self, *, fast: bool = False) -> None:
        self._fast = VideoReformatter() if fast else None

    def plane(self, frame: VideoFrame) -> VideoPlane:
        """Return the plane of (H, W, 3), with padded lines."""
        if self._fast is not None:
            frame.colorspace = matrix_of(frame)
            return self._fast.reformat(frame, format=PACKED, threads=1).planes[0]
        return convert(frame, None, PACKED).planes[0]


def write_rgb(frame: VideoFrame, picture: RgbArray) -> None:
    """Convert a frame to RGB into an array (h, w, 3), scaled to that size. Raises PyAV's errors."""
    height, width, _ = picture.shape
    size = None if (height, width) == (frame.height, frame.width) else (height, width)
    lines = plane_lines(convert(frame, size, PACKED).planes[0])
    picture[...] = lines[:, : width * 3].reshape(picture.shape)


def resize_picture(picture: RgbArray, into: RgbArray) -> None:
    """Scale an RGB array (H, W, 3) as `write_rgb` scales a frame."""
    import numpy as np

    write_rgb(VideoFrame.from_ndarray(np.ascontiguousarray(picture), format=PACKED), into)


def convert(frame: VideoFrame, size: tuple[int, int] | None, pixel_format: str) -> VideoFrame:
    """Return a frame in another pixel format, scaled to (height, width) (None keeps its size), in the same range unless it
    becomes RGB. The next such frame overwrites the memory. Raises PyAV's errors.
    """
    return _filters_for(frame, size, pixel_format).convert(frame)


def matrix_of(frame: VideoFrame) -> int:
    """Return the H.273 matrix of a frame; a default for unknown or reserved values."""
    if frame.format.is_rgb:
        return RGB
    matrix = int(frame.colorspace)
    return matrix if matrix in MATRICES else BT709 if frame.height >= HD_LINES else SMPTE170M


class _Kind(NamedTuple):
    """Kind of frames.

    Attributes:
        size: (height, width) to scale to; None keeps the size
    """

    width: int
    height: int
    pixel_format: str
    matrix: int
    range: int
    size: tuple[int, int] | None
    made: str


_mine = threading.local()


def _filters_for(frame: VideoFrame, size: tuple[int, int] | None, made: str) -> _Filters:
    """Return this thread's filter graph for such frames. Recent ones are kept: building one takes as long as converting
    two frames.
    """
    kind = _Kind(
        frame.width, frame.height, frame.format.name, int(frame.colorspace), int(frame.color_range), size, made
    )
    kept: OrderedDict[_Kind, _Filters] = _mine.__dict__.setdefault("filters", OrderedDict())
    if kind not in kept:
        kept[kind] = _Filters(kind, frame)
        while len(kept) > 1 and (
            len(kept) > KEPT_KINDS or sum(each.width * each.height for each in kept) > KEPT_PIXELS
        ):
            kept.popitem(last=False)
    kept.move_to_end(kind)
    return kept[kind]


class _Filters:
    """Filter graph for frames of one kind."""

    def __init__(self, kind: _Kind, frame: VideoFrame) -> None:
        width, height, pixel_format, matrix, range_, size, made = kind
        # The graph must outlive its contexts: without this reference the process crashes.
        self._graph = av.filter.Graph()
        self._graph.threads = 1
        known = matrix if matrix in MATRICES | {RGB} else UNSPECIFIED
        self._source = last = self._graph.add(
            "buffer",
            f"video_size={width}x{height}:pix_fmt={pixel_format}:time_base=1/1:pixel_aspect=1/1:colorspace={known}:range={range_}",
        )
        filters = []
        if (
            pixel_format.startswith("yuvj") and range_ == LIMITED
        ):  # H.264 from full to limited range: libswscale believes the format
            plain = pixel_format.replace("yuvj", "yuv")
            filters = [
                ("scale", f"in_range=full:out_range=full:flags={EXACT}"),
                ("format", plain),
                ("setparams", "range=limited"),
            ]
        filters += [("setparams", f"colorspace={matrix_of(frame)}:color_primaries=unknown:color_trc=unknown")]
        scaled = f"flags={EXACT}" if size is None else f"w={size[1]}:h={size[0]}:flags={RESIZED}"
        if made == PACKED and (size is not None or not frame.format.is_rgb):
            filters += [("scale", scaled), ("format", PLANES)]
            scaled = f"flags={EXACT}"
        filters += [("scale", scaled), ("format", made)]
        filters += [STRETCH] if pixel_format in SHORT_OF_WHITE else []
        for name, args in filters:
            added = self._graph.add(name, args)
            last.link_to(added)
            last = added
        self._sink = self._graph.add("buffersink")
        last.link_to(self._sink)
        self._graph.configure()

    def convert(self, frame: VideoFrame) -> VideoFrame:
        self._source.push(frame)
        made = self._sink.pull()
        assert isinstance(made, VideoFrame)
        return made
