"""Whether the alpha of a source means anything: many writers of 32-bit RGB leave the fourth byte at zero, which would make all black."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from av.video.format import VideoFormat
from av.video.frame import VideoFrame

from vidprep.formats.video.planes import plane_lines
from vidprep.formats.video.source import Source
from vidprep.transcode.settings.options import Limits

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

INVISIBLE = 2  # of 255: white becomes as dark as black, and a lossy coder may write it for 0
PACKED_ALPHA = {"rgba": 3, "bgra": 3, "argb": 0, "abgr": 0}  # where alpha stands in four bytes


def holds_alpha(pixel_format: str) -> bool:
    """Return whether pictures of this format have room for alpha."""
    layout = VideoFormat(pixel_format)
    return layout.has_palette or any(component.is_alpha for component in layout.components)


def alpha_of(frame: VideoFrame) -> npt.NDArray[np.uint8]:
    """Return the alpha of a frame that holds some, of 8 bits, (H, W)."""
    step, at = (4, PACKED_ALPHA[frame.format.name]) if frame.format.name in PACKED_ALPHA else (2, 1)
    plane = (frame if step == 4 else frame.reformat(format="ya8")).planes[0]
    return plane_lines(plane)[:, at : step * frame.width : step]


def shows_nothing(frame: VideoFrame) -> bool:
    """Return whether a frame would be black all over by its alpha."""
    return bool((alpha_of(frame) <= INVISIBLE).all())


def shows_never(source: Source, limits: Limits, worked: Callable[[], None] = lambda: None) -> bool:
    """Return whether every frame of a source would be black by its alpha, whichever part of it is wanted.

    Opens the file a second time, and decodes it up to the first frame that would not. Raises ReadError.

    Args:
        source: Where it is read now; nothing is taken from it.
        limits: Of the run.
        worked: Called for each frame that is decoded.
    """
    with Source(source.path, max_pixels=limits.max_pixels) as again:
        for frame in islice(again.decode(again.packets()), limits.max_frames):
            worked()
            if not holds_alpha(frame.format.name) or not shows_nothing(frame):
                return False
    return True
