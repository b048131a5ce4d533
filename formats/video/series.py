"""Pictures in files of their own: decode one, or join a series into a file that is read like any video."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import cast

import av
from av.error import FFmpegError as AvError
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from vidprep.formats.errors import DiskFullError, ReadError, StorageError
from vidprep.formats.pictures import PictureSeries
from vidprep.formats.storage import is_disk_full
from vidprep.formats.video.pyav import open_output, reason_of, video_decoder

DECODERS = {"jpg": "mjpeg", "png": "png", "bmp": "bmp", "tif": "tiff", "webp": "webp"}
COPIED = {"jpg", "png", "tif"}  # what MOV holds; the others become PNGs, which are lossless
UNREADABLE = b"\0"  # in place of an empty file: no decoder takes it, so that it is reported like any damaged frame


def decode_picture(path: str, extension: str) -> VideoFrame:
    """Decode a picture file; `extension` is one of DECODERS. Raises ReadError."""
    try:
        data = Path(path).read_bytes()
        decoder = video_decoder(DECODERS[extension])
        frames = decoder.decode(Packet(data or UNREADABLE)) or decoder.decode(None)
    except OSError as error:
        raise ReadError(f"cannot be read: {reason_of(error)}", path=path) from error
    except (AvError, ValueError) as error:
        raise ReadError(f"is no picture that can be decoded: {reason_of(error)}", path=path) from error
    if not frames:
        raise ReadError("is no picture that can be decoded", path=path)
    return frames[0]


def join_pictures(pictures: PictureSeries, rate: Fraction, path: Path) -> None:
    """Write the pictures to a MOV file, JPEGs, PNGs and TIFFs as they are.

    Args:
        pictures: The series.
        rate: Pictures a second.
        path: The file.

    Raises:
        ReadError: None of them can be decoded, or one cannot be read.
        DiskFullError: The disk is full.
        StorageError: The file cannot be written.
    """
    first = _first_picture(pictures)
    copies = pictures.extension in COPIED
    as_rgb = "rgba" if any(component.is_alpha for component in first.format.components) else "rgb24"
    try:
        with open_output(f"file:{path}", format="mov", options={}) as container:
            codec = DECODERS[pictures.extension] if copies else "png"
            stream = cast(VideoStream, container.add_stream(codec, rate=rate))
            stream.width, stream.height = first.width, first.height
            stream.pix_fmt = first.format.name if copies else as_rgb
            stream.time_base = 1 / rate
            for number, each in enumerate(pictures.paths):
                data = _bytes_of(each) if copies else _as_png(each, pictures.extension, as_rgb)
                packet = Packet(data or UNREADABLE)
                packet.stream, packet.time_base, packet.is_keyframe = stream, 1 / rate, True
                packet.pts, packet.dts, packet.duration = number, number, 1
                container.mux(packet)
    except (AvError, OSError) as error:
        if isinstance(error, ReadError):
            raise
        if is_disk_full(error):
            raise DiskFullError(f"no room for the pictures of {pictures.folder}", path=path) from error
        raise StorageError(f"a copy of the pictures cannot be written: {reason_of(error)}", path=path) from error


def _first_picture(pictures: PictureSeries) -> VideoFrame:
    fault: ReadError | None = None
    for path in pictures.paths:
        try:
            return decode_picture(path, pictures.extension)
        except ReadError as error:
            fault = fault or error
    raise ReadError(
        f"none of its {len(pictures.names)} pictures can be decoded; {pictures.names[0]} {fault and fault.message}",
        path=pictures.folder,
    )


def _bytes_of(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ReadError(f"cannot be read: {error.strerror}", path=path) from error


def _as_png(path: str, extension: str, pixel_format: str) -> bytes:
    """Return the picture as a PNG; b"" if it cannot be decoded."""
    try:
        frame = decode_picture(path, extension)
    except ReadError:
        return b""
    encoder = av.CodecContext.create("png", "w")
    encoder.width, encoder.height, encoder.pix_fmt = frame.width, frame.height, pixel_format
    encoder.time_base = Fraction(1, 1)
    encoder.options = {"compression_level": "1"}
    data = [bytes(packet) for packet in (*encoder.encode(frame.reformat(format=pixel_format)), *encoder.encode(None))]
    return b"".join(data)
