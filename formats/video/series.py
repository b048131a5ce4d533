"""Pictures in files of their own: decode one, or join a series into a file that is read like any video."""

from __future__ import annotations

import struct
import uuid
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
from av.error import FFmpegError as AvError
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from vidprep.formats.errors import DiskFullError, ReadError, StorageError, count_of
from vidprep.formats.pictures import PictureSeries
from vidprep.formats.storage.local import is_disk_full
from vidprep.formats.storage.untrusted import open_regular
from vidprep.formats.video.pyav import open_output, reason_of, video_decoder

DECODERS = {"jpg": "mjpeg", "png": "png", "bmp": "bmp", "tif": "tiff", "webp": "webp"}
# MOV holds these as they are, with any pixel format and size in its header: decoders read them from the pictures. The others become PNGs.
COPIED = {"jpg": "yuvj420p", "png": "rgb24", "tif": "rgb24"}
ANY_SIZE = 16, 16
TIFF_COMPRESSION, JPEG_INSIDE = 259, (6, 7)
TIFF_SUBFILE, TIFF_REDUCED_OR_MASK, MAX_PAGES = 254, 1 | 4, 1 << 16
MAX_PIXELS = 1 << 27
# First bytes of the formats: a name may claim another one.
BEGINNINGS = {
    b"\xff\xd8\xff": "jpg",
    b"\x89PNG": "png",
    b"BM": "bmp",
    b"II*\0": "tif",
    b"MM\0*": "tif",
    b"RIFF": "webp",
}
PLANAR = {"rgb24": "gbrp", "rgba": "gbrap"}
UNREADABLE = b"\0"  # in place of an empty file: no decoder takes it, so that it is reported like any damaged frame


def decode_picture(path: str, extension: str) -> VideoFrame:
    """Decode a picture file; `extension` is one of DECODERS. Raises ReadError."""
    data = _bytes_of(path)
    try:
        decoder = video_decoder(DECODERS[_kind_of(data, extension)])
        decoder.options = {"max_pixels": str(MAX_PIXELS)}
        frames = decoder.decode(Packet(data or UNREADABLE)) or decoder.decode(None)
    except (AvError, OSError, ValueError) as error:
        raise ReadError(f"cannot be decoded as a picture: {reason_of(error)}", path=path) from error
    if not frames:
        raise ReadError("cannot be decoded as a picture", path=path)
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
    kinds = {_kind_of_file(each, pictures.extension) for each in pictures.paths}
    kind = min(kinds) if len(kinds) == 1 else ""
    copies, width, height, as_rgb = kind in COPIED, *ANY_SIZE, "rgb24"
    if not copies:
        first = _first_picture(pictures)
        width, height = first.width, first.height
        as_rgb = "rgba" if any(component.is_alpha for component in first.format.components) else as_rgb
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        with open_output(f"file:{partial}", format="mov", options={}) as container:
            codec = DECODERS[kind] if copies else "png"
            stream = cast(VideoStream, container.add_stream(codec, rate=rate))
            stream.width, stream.height = width, height
            stream.pix_fmt = COPIED.get(kind, as_rgb)
            stream.time_base = 1 / rate
            for number, each in enumerate(pictures.paths):
                data = _bytes_of(each) if copies else _encode_png(each, pictures.extension, as_rgb)
                packet = Packet(data or UNREADABLE)
                packet.stream, packet.time_base, packet.is_keyframe = stream, 1 / rate, True
                packet.pts, packet.dts, packet.duration = number, number, 1
                container.mux(packet)
        partial.replace(path)  # another process never sees half of it
    except (AvError, OSError) as error:
        if isinstance(error, ReadError):
            raise
        if is_disk_full(error):
            raise DiskFullError(f"no room for the pictures of {pictures.folder}", path=path) from error
        raise StorageError(f"a copy of the pictures cannot be written: {reason_of(error)}", path=path) from error
    finally:
        partial.unlink(missing_ok=True)


def _kind_of(data: bytes, extension: str) -> str:
    """Return the format of a picture by its first bytes; `extension` if they tell none."""
    return next((kind for begin, kind in BEGINNINGS.items() if data.startswith(begin)), extension)


def _kind_of_file(path: str, extension: str) -> str:
    try:
        with open_regular(path) as file:
            return _kind_of(file.read(4), extension)
    except OSError as error:
        raise ReadError(f"cannot be read: {error.strerror}", path=path) from error


def _refuse_jpeg_inside(data: bytes, path: str) -> None:
    """Raise ReadError for a TIFF whose data are JPEGs (TIFF 6.0, tag 259: 6 or 7), which libavcodec decodes to black."""
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None:
        return
    with suppress(struct.error):
        (at,) = struct.unpack_from(f"{order}I", data, 4)
        (count,) = struct.unpack_from(f"{order}H", data, at)
        for entry in range(count):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", data, at + 2 + 12 * entry)
            if tag == TIFF_COMPRESSION and value in JPEG_INSIDE:
                raise ReadError(
                    "is a TIFF with JPEG data, which is not decoded here; convert it to PNG or JPEG", path=path
                )


def pages_left_out(pictures: PictureSeries) -> str:
    """Return a sentence if TIFFs of a series have several pages, of which the first is read; "" if none has."""
    counts = [_num_pages(path) for path in pictures.paths] if pictures.extension == "tif" else []
    if max(counts, default=0) < 2:
        return ""
    at = next(place for place, count in enumerate(counts) if count > 1)
    total = sum(count > 1 for count in counts)
    more = f", and {count_of(total - 1, 'more picture')} too" if total > 1 else ""
    return f"{pictures.names[at]} has {counts[at]} pages, of which the first was taken{more}"


def _num_pages(path: str) -> int:
    """Return the number of full-size pages of a TIFF (TIFF 6.0, tag 254: bit 0 of others is a smaller copy, bit 2 a mask)."""
    pages = 0
    with suppress(struct.error, OSError), open_regular(path) as file:
        head = file.read(8)
        order = {b"II": "<", b"MM": ">"}.get(head[:2])
        if order is None:
            return 0
        (at,), seen = struct.unpack(f"{order}I", head[4:]), set[int]()
        while at and at not in seen and len(seen) < MAX_PAGES:
            seen.add(at)
            file.seek(at)
            (count,) = struct.unpack(f"{order}H", file.read(2))
            entries = file.read(12 * count)
            kinds = {tag: value for tag, _, _, value in struct.iter_unpack(f"{order}HHII", entries)}
            pages += not kinds.get(TIFF_SUBFILE, 0) & TIFF_REDUCED_OR_MASK
            (at,) = struct.unpack(f"{order}I", file.read(4))
    return pages


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
        data = Path(path).read_bytes()
    except OSError as error:
        raise ReadError(f"cannot be read: {error.strerror}", path=path) from error
    _refuse_jpeg_inside(data, path)
    return data


def _encode_png(path: str, extension: str, pixel_format: str) -> bytes:
    """Return the picture as a PNG; b"" if it cannot be decoded."""
    try:
        frame = decode_picture(path, extension)
    except ReadError:
        return b""
    encoder = av.CodecContext.create("png", "w")
    encoder.width, encoder.height, encoder.pix_fmt = frame.width, frame.height, pixel_format
    encoder.time_base = Fraction(1, 1)
    encoder.options = {"compression_level": "1"}
    # By planes of RGB: libswscale's way from YCbCr with alpha to packed pixels gives others each time (FFmpeg 8 and 9, measured).
    planar = frame.reformat(format=PLANAR[pixel_format])
    data = [bytes(packet) for packet in (*encoder.encode(planar.reformat(format=pixel_format)), *encoder.encode(None))]
    return b"".join(data)
