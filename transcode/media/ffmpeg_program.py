"""Find the ffmpeg program and its features; versions of the libraries that made an output.

This module imports nothing heavy: the process that distributes work starts without a decoder.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from vidprep.formats.errors import MissingError
from vidprep.transcode.settings.output import FrameOutput
from vidprep.transcode.settings.run import RunSettings


def find_ffmpeg(asked: str | Path | None) -> str:
    """Return the ffmpeg program: the given one, else VIDPREP_FFMPEG, else from PATH, else from imageio-ffmpeg. Raises
    MissingError if it does not exist, or if none is found.
    """
    named = str(asked or os.environ.get("VIDPREP_FFMPEG", ""))
    if named:
        path = shutil.which(named)
        if path is None:
            raise MissingError(f"no ffmpeg at {named}; give --ffmpeg the path of one, or leave it out")
        return path
    on_path = shutil.which("ffmpeg")
    if on_path:
        return on_path
    import imageio_ffmpeg

    try:
        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except RuntimeError as error:
        raise MissingError("no ffmpeg here: install one, or give --ffmpeg its path") from error


def ffmpeg_version(binary: str) -> str:
    """Return the version of an ffmpeg program. Raises MissingError if it does not run."""
    try:
        output = subprocess.run([binary, "-version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingError(f"{binary} does not run: {error}") from error
    return output.split()[2] if output.startswith("ffmpeg version") else output.partition("\n")[0]


def crops_for_containers(binary: str) -> bool:
    """Return whether ffmpeg applies the cropping of containers (from 7.1 on). Builds between releases have no number."""
    number = re.match(r"n?(\d+)\.(\d+)", ffmpeg_version(binary))
    return number is None or (int(number[1]), int(number[2])) >= (7, 1)


def has_encoder(binary: str, encoder: str) -> bool:
    """Return whether ffmpeg includes an encoder (a driver may still be missing)."""
    output = subprocess.run(
        [binary, "-hide_banner", "-encoders"], capture_output=True, text=True, timeout=30, check=False
    ).stdout
    return any(line.split()[1:2] == [encoder] for line in output.splitlines())


def encoder_version(settings: RunSettings, ffmpeg: str) -> str:
    """Return the version on which the bytes of an output depend, besides its settings."""
    import av

    output = settings.output
    if isinstance(output, FrameOutput):
        from importlib.metadata import version  # imported here because encoding children never need it

        return f"PyAV {av.__version__}, " + (f"simplejpeg {version('simplejpeg')}" if output.is_coded else "raw")
    if output.engine == "ffmpeg":
        return f"ffmpeg {ffmpeg_version(ffmpeg)}, measured by PyAV {av.__version__}"
    numbers = ".".join(str(number) for number in av.library_versions["libavcodec"])
    return f"PyAV {av.__version__}, libavcodec {numbers}"


def is_of_this_pyav(encoder_version: str | None) -> bool:
    """Return whether the libraries that made an output are those of this process, so that frames are identical to the bit."""
    import av

    return encoder_version is None or f"PyAV {av.__version__}" in encoder_version.replace("measured by ", "").split(
        ", "
    )


def list_versions(settings: RunSettings, ffmpeg: str) -> dict[str, str]:
    from importlib.metadata import version

    return {
        "vidprep": version("vidprep"),
        "encoder": encoder_version(settings, ffmpeg),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
