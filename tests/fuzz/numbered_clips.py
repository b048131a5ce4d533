"""Clips in forty containers and codecs whose pictures show their numbers and six colours: nobody has to believe a header."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from tests import numbered_pictures
from tests.witness import Ffmpeg

SIDE, COLOUR_WIDTH = numbered_pictures.SIZE, 32
WIDTH, HEIGHT = SIDE + COLOUR_WIDTH, SIDE
COLOURS = np.array([(180, 40, 40), (40, 180, 40), (40, 40, 180), (180, 180, 40)], np.uint8)

X264 = ("-c:v", "libx264", "-preset", "veryfast", "-crf", 8, "-threads", 1)
X265 = (
    "-c:v",
    "libx265",
    "-preset",
    "ultrafast",
    "-x265-params",
    "log-level=error:pools=none:frame-threads=1",
    "-crf",
    8,
)
MPEG2, MPEG4 = ("-c:v", "mpeg2video", "-q:v", 2), ("-c:v", "mpeg4", "-q:v", 2)
VP8 = ("-c:v", "libvpx", "-b:v", "2M", "-deadline", "realtime", "-cpu-used", 5)
VP9 = ("-c:v", "libvpx-vp9", "-crf", 10, "-b:v", 0, "-deadline", "realtime", "-cpu-used", 8)
AV1 = ("-c:v", "libsvtav1", "-preset", 8, "-crf", 5)
MJPEG = ("-c:v", "mjpeg", "-q:v", 2)


@dataclass(frozen=True, slots=True)
class Kind:
    """A container and a codec.

    Attributes:
        arguments: Of ffmpeg.
        pixel_format: That is coded.
        intra: Whether ffmpeg is told no keyframe interval.
        tells_end: Whether a frame that is missing at the end shows: by an index, a duration, or packets that are cut.
    """

    arguments: tuple[object, ...]
    pixel_format: str = "yuv420p"
    intra: bool = False
    tells_end: bool = True


KINDS = {
    "h264.mp4": Kind(X264),
    "bframes.mp4": Kind((*X264, "-bf", 2)),
    "faststart.mp4": Kind((*X264, "-movflags", "+faststart")),
    "fragments.mp4": Kind((*X264, "-movflags", "+frag_keyframe+empty_moov"), tells_end=False),
    "hevc.mp4": Kind((*X265, "-tag:v", "hvc1")),
    "mpeg4.mp4": Kind(MPEG4),
    "vp9.mp4": Kind(VP9),
    "av1.mp4": Kind(AV1),
    "h264.mov": Kind(X264),
    "prores.mov": Kind(("-c:v", "prores_ks"), "yuv422p10le", intra=True),
    "mjpeg.mov": Kind(MJPEG, "yuvj420p", intra=True),
    "qtrle.mov": Kind(("-c:v", "qtrle"), "rgb24"),
    "png.mov": Kind(("-c:v", "png"), "rgb24", intra=True),
    "raw.mov": Kind(("-c:v", "rawvideo"), "uyvy422", intra=True),
    "v210.mov": Kind(("-c:v", "v210"), "yuv422p10le", intra=True),
    "cfhd.mov": Kind(("-c:v", "cfhd"), "yuv422p10le", intra=True),
    "h264.3gp": Kind(X264),
    "h264.mkv": Kind((*X264, "-bf", 2)),
    "hevc.mkv": Kind(X265),
    "mpeg2.mkv": Kind(MPEG2),
    "ffv1.mkv": Kind(("-c:v", "ffv1", "-level", 3), intra=True),
    "raw.mkv": Kind(("-c:v", "rawvideo"), intra=True),
    "mjpeg.mkv": Kind(MJPEG, "yuvj420p", intra=True),
    "vp8.webm": Kind(VP8),
    "vp9.webm": Kind(VP9),
    "live.webm": Kind((*VP8, "-live", 1), tells_end=False),
    "mpeg4.avi": Kind(MPEG4),
    "mjpeg.avi": Kind(MJPEG, "yuvj420p", intra=True),
    "huffyuv.avi": Kind(("-c:v", "huffyuv"), "yuv422p", intra=True),
    "utvideo.avi": Kind(("-c:v", "utvideo"), intra=True),
    "raw.avi": Kind(("-c:v", "rawvideo"), "bgr24", intra=True),
    "h264.flv": Kind(X264),
    "flv1.flv": Kind(("-c:v", "flv", "-q:v", 2)),
    "h264.ts": Kind(X264, tells_end=False),
    "hevc.ts": Kind(X265, tells_end=False),
    "mpeg2.ts": Kind(MPEG2, tells_end=False),
    "mpeg2.mpg": Kind((*MPEG2, "-f", "vob"), tells_end=False),
    "theora.ogv": Kind(("-c:v", "libtheora", "-q:v", 10)),
    "wmv2.wmv": Kind(("-c:v", "wmv2", "-q:v", 2)),
    "pictures.gif": Kind((), "rgb8", intra=True, tells_end=False),
    "pictures.apng": Kind(("-f", "apng"), "rgb24", intra=True, tells_end=False),
    "raw.y4m": Kind((), intra=True),
    "vp8.ivf": Kind(VP8, tells_end=False),
    "mpeg4.nut": Kind(MPEG4, tells_end=False),
    "mpeg2.mxf": Kind(MPEG2),
    "h264.h264": Kind(X264, tells_end=False),
    "hevc.hevc": Kind(X265, tells_end=False),
    "mpeg2.m2v": Kind(MPEG2, tells_end=False),
    "mjpeg.mjpeg": Kind(MJPEG, "yuvj420p", intra=True, tells_end=False),
    "mpeg2.wtv": Kind(MPEG2, tells_end=False),
}


def picture(number: int) -> np.ndarray:
    """(H, W, 3): the number on the left, colours on the right."""
    drawn = np.repeat(numbered_pictures.picture(number)[..., None], 3, 2)
    colours = np.repeat(COLOURS, HEIGHT // len(COLOURS), 0)[:, None].repeat(COLOUR_WIDTH, 1)
    return np.concatenate([drawn, colours], 1)


def number_on(shown: np.ndarray) -> int | None:
    """The number on a picture of the size that `picture` has."""
    return numbered_pictures.number_on(shown[:, :SIDE])


def psnr(shown: np.ndarray, number: int) -> float:
    """Decibels of the whole picture, in RGB."""
    error = np.square(shown.astype(np.float32) - picture(number)).mean()
    return float(10 * np.log10(255**2 / max(float(error), 1e-3)))


def clip(
    cli: Ffmpeg,
    path: Path,
    numbers: Sequence[int],
    kind: Kind,
    *,
    rate: object = 25,
    gop: int = 8,
    matrix: str = "bt601",
    full_range: bool = False,
    filters: str = "",
    writing: Sequence[object] = (),
) -> Path:
    """Write the pictures of these numbers. matrix: as ffmpeg's scale names it. filters: before they are coded."""
    data = b"".join(picture(number).tobytes() for number in numbers)
    is_rgb = kind.pixel_format.startswith(("rgb", "bgr"))
    tag = {"bt601": "smpte170m", "bt709": "bt709"}[matrix]
    width, height = ("pc", "full") if full_range else ("tv", "limited")
    colours = [] if is_rgb else ["-colorspace", tag, "-color_primaries", tag, "-color_trc", tag, "-color_range", width]
    exact = f"scale=out_color_matrix={matrix}:out_range={height}:flags=accurate_rnd+full_chroma_int+full_chroma_inp"
    if kind.pixel_format.startswith("yuvj"):
        exact = exact.replace("limited", "full")
    chain = ",".join(filter(None, [filters, "" if is_rgb else exact, f"format={kind.pixel_format}"]))
    cli.run(
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "-s",
        f"{WIDTH}x{HEIGHT}",
        "-r",
        rate,
        "-i",
        "-",
        "-vf",
        chain,
        *colours,
        *kind.arguments,
        *([] if kind.intra else ["-g", gop]),
        *writing,
        "-fflags",
        "+bitexact",
        path,
        stdin=data,
    )
    return path


def seen(cli: Ffmpeg, path: Path, width: int, height: int) -> list[np.ndarray]:
    """All frames of an output by the ffmpeg program, as RGB."""
    exact = "scale=flags=bicubic+accurate_rnd+full_chroma_int+full_chroma_inp"
    done = subprocess.run(
        [
            cli.exe,
            "-nostdin",
            "-v",
            "error",
            "-i",
            str(path),
            "-vf",
            f"{exact},format=rgb24",
            "-fps_mode",
            "passthrough",
            "-f",
            "rawvideo",
            "-",
        ],
        capture_output=True,
        check=False,
        timeout=300,
    )
    size = width * height * 3
    assert done.returncode == 0 and len(done.stdout) % size == 0, done.stderr.decode(errors="replace")[-500:]
    return list(np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3))


def jpeg(shown: np.ndarray, orientation: int) -> bytes:
    """A JPEG that says in its EXIF how it is turned."""
    exif = Image.Exif()
    exif[0x112] = orientation
    data = io.BytesIO()
    Image.fromarray(shown).save(data, "JPEG", quality=95, subsampling=0, exif=exif.tobytes())
    return data.getvalue()
