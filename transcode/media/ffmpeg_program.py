"""Which ffmpeg there is, and what it can do; without running anything else of ours."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from vidprep.formats.errors import MissingError


def find_ffmpeg(asked: str | Path | None) -> str:
    """The ffmpeg to run: as asked, else VIDPREP_FFMPEG, else on PATH, else the one in imageio-ffmpeg.

    Raises MissingError when the one asked for is not there.
    """
    named = str(asked or os.environ.get("VIDPREP_FFMPEG", ""))
    if named:
        found = shutil.which(named)
        if found is None:
            raise MissingError(f"no ffmpeg at {named}; give --ffmpeg the path of one, or leave it out")
        return found
    on_path = shutil.which("ffmpeg")
    if on_path:
        return on_path
    import imageio_ffmpeg

    try:
        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except RuntimeError as error:
        raise MissingError("no ffmpeg here: install one, or give --ffmpeg its path") from error


def ffmpeg_version(binary: str) -> str:
    """The version that an ffmpeg says it has. Raises MissingError when it does not run."""
    try:
        output = subprocess.run([binary, "-version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingError(f"{binary} does not run: {error}") from error
    return output.split()[2] if output.startswith("ffmpeg version") else output.partition("\n")[0]


def crops_for_containers(binary: str) -> bool:
    """Whether this ffmpeg crops as containers say, as from 7.1 on; one that was built between releases has no number."""
    number = re.match(r"n?(\d+)\.(\d+)", ffmpeg_version(binary))
    return number is None or (int(number[1]), int(number[2])) >= (7, 1)


def has_encoder(binary: str, encoder: str) -> bool:
    """Whether this ffmpeg was built with the encoder (a driver may still be missing)."""
    output = subprocess.run(
        [binary, "-hide_banner", "-encoders"], capture_output=True, text=True, timeout=30, check=False
    ).stdout
    return any(line.split()[1:2] == [encoder] for line in output.splitlines())


def has_filter(binary: str, name: str) -> bool:
    """Whether this ffmpeg was built with the filter."""
    output = subprocess.run(
        [binary, "-hide_banner", "-filters"], capture_output=True, text=True, timeout=30, check=False
    ).stdout
    return any(line.split()[1:2] == [name] for line in output.splitlines())
