"""What this machine can do, found out by doing it: encode, decode and measure a few frames with every encoder."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
from av.error import FFmpegError as AvError
from av.video.frame import VideoFrame

from vidprep.formats.errors import VidprepError
from vidprep.formats.model import Colour, FrameSize, OutputFormat
from vidprep.formats.profiles import DEFAULT_ENCODER, ENCODERS, EncoderOptions
from vidprep.formats.video_writer import VideoWriter
from vidprep.transcode.ffmpeg_program import ffmpeg_version, find_ffmpeg, has_encoder
from vidprep.transcode.quality import Verifier, check_decoder, check_file

TRIAL = OutputFormat(FrameSize(128, 96), "yuv420p", Colour(1, 1, 1), Fraction(1, 25), Fraction(25), Fraction(25))
TRIAL_FRAMES = 7
TRIAL_GOP = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """needed: a default of vidprep does not work without it."""

    what: str
    ok: bool
    detail: str
    needed: bool = True


def examine(asked_ffmpeg: str | None) -> Iterator[Finding]:
    system = platform.system()
    yield Finding(
        "system", system in ("Linux", "Darwin"),
        f"{system} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        + ("" if system == "Linux" else "; macOS is best effort" if system == "Darwin" else "; vidprep does not run on Windows, use WSL"),
    )  # fmt: skip
    libraries = ", ".join(
        f"{name} {'.'.join(map(str, number))}" for name, number in sorted(av.library_versions.items())
    )
    yield Finding("PyAV", True, f"{av.__version__} ({libraries})")
    for codec, encoder in DEFAULT_ENCODER.items():
        yield _try_encoder(codec, encoder)
    try:
        binary = find_ffmpeg(asked_ffmpeg)
        yield Finding("ffmpeg", True, f"{ffmpeg_version(binary)} at {binary}", needed=False)
    except VidprepError as error:
        yield Finding("ffmpeg", False, error.message, needed=False)
        return
    built = [row.name for row in ENCODERS.values() if has_encoder(binary, row.name)]
    yield Finding(
        "--engine ffmpeg",
        bool(built),
        f"built with {', '.join(built)} (hardware encoders also need their driver)",
        needed=False,
    )
    free = shutil.disk_usage(tempfile.gettempdir()).free
    yield Finding(
        "temporary folder", free > 1 << 30, f"{free / 1e9:.1f} GB free in {tempfile.gettempdir()}", needed=False
    )


def _try_encoder(codec: str, encoder: str) -> Finding:
    """Encode, measure, mux and read back a few moving frames, as a run does."""
    options = EncoderOptions(codec=codec, gop=TRIAL_GOP)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"trial.{options.container_name}"
        try:
            writer = VideoWriter(path, options, TRIAL)
            verifier = Verifier(TRIAL, codec, check_decoder(codec, writer.context.extradata), gop=TRIAL_GOP, every=1)
            for number in range(TRIAL_FRAMES + 1):
                frame = _trial_frame(number) if number < TRIAL_FRAMES else None
                if frame is not None:
                    verifier.expect(frame, number)
                for packet in writer.encode(frame, number):
                    verifier.check(packet)
                    writer.mux(packet, 1)
            writer.close()
            measured = verifier.finish()
            check_file(path, measured, codec, TRIAL.time_base)
        except (VidprepError, AvError, OSError, ValueError) as error:
            return Finding(codec, False, f"{encoder} does not work: {error}")
        return Finding(codec, True, f"{encoder} encodes, decodes and reads back ({measured.quality.psnr_y_db:.1f} dB)")


def _trial_frame(number: int) -> VideoFrame:
    """A grey ramp that moves."""
    frame = VideoFrame(*TRIAL.size, TRIAL.pixel_format)
    for plane in frame.planes:
        line, is_luma = plane.line_size, plane.width == TRIAL.size.width
        ramp = bytes(
            (x + 3 * y + 5 * number) % 256 if is_luma else 128 for y in range(plane.height) for x in range(line)
        )
        plane.update(ramp)
    return frame
