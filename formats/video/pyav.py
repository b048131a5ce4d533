"""All that differs between PyAV 18.1 (Python 3.11) and PyAV 19 (Python 3.12 and newer), and samples of planes.

All other modules open containers, read rationals and side data through these functions, and never ask for PyAV's
version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import nullcontext
from fractions import Fraction
from operator import itemgetter
from os import PathLike
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

import av
import av.logging
from av.codec.hwaccel import HWAccel
from av.container import InputContainer, OutputContainer
from av.packet import Packet
from av.sidedata.sidedata import Type as SideDataType
from av.stream import Stream
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.plane import VideoPlane

from vidprep.formats.storage.untrusted import check_regular

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


IS_18 = int(av.__version__.split(".")[0]) < 19
# AV_FRAME_DATA_VIEW_ID; PyAV 18 has no name for it.
VIEW_ID = 29
RESYNC_BYTES = 1 << 16  # where no packet of a transport stream begins in so many bytes, libavformat returns EAGAIN
NO_DECODER = {"codec_whitelist": "none"}
# PyAV 18 decodes metadata strictly by default; PyAV 19 has no such argument and never fails.
_METADATA: dict[str, Any] = {"metadata_errors": "surrogateescape"} if IS_18 else {}


class Rational(Protocol):
    """A `Fraction` (PyAV 18) or an `av.AVRational` (PyAV 19)."""

    @property
    def numerator(self) -> int: ...
    @property
    def denominator(self) -> int: ...


def fraction(value: Rational | None) -> Fraction | None:
    """Return a PyAV rational as a Fraction; None if it is unset: None, 0/1, 0/0 or n/0."""
    if value is None or not value.numerator or not value.denominator:
        return None
    return Fraction(value.numerator, value.denominator)


def time_base_of(timed: Any) -> Fraction:
    """Return seconds per tick of a stream, packet, frame or codec context. Raises ValueError if it has none."""
    base = fraction(timed.time_base)
    if base is None:
        raise ValueError(f"{timed!r} has no time base")
    return base


def open_input(
    file: str | PathLike[str] | BinaryIO,
    options: dict[str, str],
    *,
    hwaccel: HWAccel | None = None,
    probes: bool = True,
) -> InputContainer:
    """Open a container for reading, even if its metadata is not UTF-8. Raises PyAV's errors, OSError and ValueError.

    A local file must be regular: opening a named pipe would block.

    Args:
        file: URL or file object.
        options: libavformat's options.
        hwaccel: Hardware decoder.
        probes: Decode the first frames on opening, as libavformat does to learn what some containers do not store, such as
            the pixel format. This takes five times as long as the rest.
    """
    if isinstance(file, str) and file.startswith("file:"):
        check_regular(file.removeprefix("file:"))
    with nullcontext() if probes else av.logging.Capture():  # libavformat logs each decoder that was not opened
        options_of_probe = {} if probes else NO_DECODER
        return cast(
            InputContainer,
            av.open(file, "r", options=options, container_options=options_of_probe, hwaccel=hwaccel, **_METADATA),
        )


def demux(container: InputContainer, stream: Stream | None = None) -> Iterator[Packet[Any]]:
    """Yield the packets of one stream, or of all, without the empty ones that flush decoders.

    Raises PyAV's errors and OSError. Where streams appear midway (a transport stream with a new program table) PyAV does not give their
    packets, and at the end it may look for them in its list: that IndexError is the end.
    """
    streams = () if stream is None else (stream,)
    packets, num_resumed = container.demux(*streams), 0
    while True:
        try:
            packet = next(packets)
        except (StopIteration, IndexError):
            return
        except BlockingIOError:  # the frame before comes first when it goes on
            num_resumed += 1
            if (num_resumed - 1) * RESYNC_BYTES > (container.size or 0):
                raise
            packets = container.demux(*streams)
            continue
        if packet.size:
            yield packet


def open_output(file: str | BinaryIO, *, format: str, options: dict[str, str]) -> OutputContainer:
    """Open a container for writing. Raises PyAV's errors and OSError."""
    return av.open(file, "w", format=format, container_options=options)


def display_matrix(frame: VideoFrame) -> bytes | None:
    """Return nine little-endian int32 of ISO/IEC 14496-12, 6.2.2, if the frame has them."""
    matrix: Any = frame.side_data.get("DISPLAYMATRIX")
    return None if matrix is None else bytes(matrix)


def light_side_data(frame: VideoFrame) -> tuple[bytes | None, bytes | None]:
    """Return the AVMasteringDisplayMetadata and AVContentLightMetadata of a frame, or None."""
    kinds: Any = frame.side_data
    side_data = [kinds.get(kind) for kind in ("MASTERING_DISPLAY_METADATA", "CONTENT_LIGHT_LEVEL")]
    display, levels = (None if each is None else bytes(each) for each in side_data)
    return display, levels


def is_one_of_views(frame: VideoFrame) -> bool:
    """Return whether a frame is one of several views of a scene, which only multi-view codecs (MV-HEVC) have."""
    kinds: Any = frame.side_data
    return SideDataType(VIEW_ID) in kinds


def _unknown_side_data(cls: Any, value: object) -> Any:
    """Return an enum member for a kind of side data that FFmpeg added after PyAV 18; PyAV 19 does that itself."""
    if not isinstance(value, int):
        return None
    member: Any = object.__new__(cls)
    member._name_, member._value_ = f"UNKNOWN_{value}", value
    return cls._value2member_map_.setdefault(value, member)


if IS_18:  # without it, one frame with such side data (MV-HEVC views, EXIF) makes `frame.side_data` raise ValueError
    cast(Any, SideDataType)._missing_ = classmethod(_unknown_side_data)


def reason_of(error: Exception) -> str:
    """Return FFmpeg's last message instead of PyAV's call and options."""
    logged = getattr(error, "log", None)
    return logged[2].strip() if logged else getattr(error, "strerror", None) or str(error)


def video_decoder(name: str) -> VideoCodecContext:
    """Return a decoder by libavcodec's name. Raises ValueError if there is no such decoder."""
    return cast(VideoCodecContext, av.CodecContext.create(name, "r"))


def visible_bytes(plane: VideoPlane, line_bytes: int) -> bytes | memoryview:
    """Return the samples of a plane without line padding.

    Args:
        plane: The plane.
        line_bytes: Bytes of a line without padding.
    """
    data, line = memoryview(plane), plane.line_size
    if line == line_bytes:
        return data[: line * plane.height]
    rows = struct.iter_unpack(f"{line_bytes}s{abs(line) - line_bytes}x", data[: abs(line) * plane.height])
    lines = list(map(itemgetter(0), rows))
    return b"".join(lines if line > 0 else reversed(lines))


def plane_lines(plane: VideoPlane) -> npt.NDArray[np.uint8]:
    """Return a view of a plane's memory, (H, bytes of a line with its padding), top line first.

    A decoder, or a flip, may store the bottom line first.
    """
    import numpy as np

    lines = np.frombuffer(memoryview(plane), np.uint8).reshape(plane.height, abs(plane.line_size))
    return lines if plane.line_size > 0 else lines[::-1]
