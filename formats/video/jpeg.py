"""Convert a frame to a JPEG and back without changing colours: planes are coded as they are, so they must be BT.601 full
range (JFIF 1.02).

There is no RGB in between and no second conversion: the planes that were scored are the planes that were coded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import av
import simplejpeg
from av.error import FFmpegError as AvError
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame

from vidprep.formats.errors import EncodeError, VerifyError
from vidprep.formats.model import FrameSize
from vidprep.formats.video.pyav import plane_lines

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Plane = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class JpegCoder:
    """Encodes frames as JPEGs and decodes them. Raises EncodeError, VerifyError."""

    quality: int
    decoder: VideoCodecContext

    def encode(self, frame: VideoFrame) -> bytes:
        """Return a JFIF file: baseline, Huffman coded, tables scaled by `quality` as libjpeg does."""
        planes = [_plane(frame, number) for number in range(len(frame.planes))]
        try:
            if len(planes) == 1:
                return bytes(
                    simplejpeg.encode_jpeg(
                        planes[0][:, :, None], self.quality, colorspace="GRAY", colorsubsampling="Gray"
                    )
                )
            return bytes(simplejpeg.encode_jpeg_yuv_planes(*planes, quality=self.quality))
        except ValueError as error:
            raise EncodeError(f"a JPEG of {frame.width}x{frame.height} failed: {error}") from error

    def decode(self, data: bytes, like: VideoFrame) -> VideoFrame:
        """Decode a JPEG by libavcodec, which is independent of the library that encoded it."""
        try:
            frames = self.decoder.decode(Packet(data))
        except (AvError, ValueError) as error:
            raise VerifyError(f"a JPEG does not decode: {error}") from error
        size = FrameSize(like.width, like.height)
        for frame in frames:
            if (frame.width, frame.height) == size and frame.format.name == like.format.name:
                return frame
            raise VerifyError(
                f"a frame went in as {size} {like.format.name} and came out as {frame.width}x{frame.height} {frame.format.name}"
            )
        raise VerifyError("a JPEG decodes to no frame")


def jpeg_coder(quality: int) -> JpegCoder:
    decoder = av.CodecContext.create("mjpeg", "r")
    assert isinstance(decoder, VideoCodecContext)
    decoder.thread_count = 1
    return JpegCoder(quality, decoder)


def _plane(frame: VideoFrame, number: int) -> Plane:
    """Return a plane without line padding, (H, W)."""
    import numpy as np

    plane = frame.planes[number]
    return np.ascontiguousarray(plane_lines(plane)[:, : plane.width])
