"""What is opened, and what becomes of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import imageio_ffmpeg

from tests.pipeline import source_frames
from vidprep.formats.model import WHOLE
from vidprep.formats.video.source import Source, file_url
from vidprep.transcode.media.ffmpeg import build_command
from vidprep.transcode.media.stream import FrameStream, timing_of
from vidprep.transcode.settings.run import RunSettings

PLENTY = 36_000_000


FFMPEG = imageio_ffmpeg.get_ffmpeg_exe()


def decode_all(path: Path, max_pixels: int = PLENTY) -> tuple[int, list[str]]:
    """How many frames a source gives, and what says that it is damaged."""
    with Source(path, max_pixels=max_pixels) as source:
        count = sum(1 for _ in source_frames(source, max_frames=1_000_000))
        return count, source.damage(read_to_end=True)


def ffmpeg_reading(path: Path, like: Path, *, without: str | None = None) -> subprocess.CompletedProcess[bytes]:
    """The ffmpeg command for the clip `like`, with another source put in and maybe an option left out; frames to a null output."""
    settings = RunSettings()
    with Source(like, max_pixels=PLENTY) as source:
        stream = FrameStream(source, settings, timing_of(source, settings, WHOLE))
        command = build_command(FFMPEG, str(like), like.with_suffix(".out"), stream, settings)
    at = command.index("-i")
    reading = command[: at + 1]
    if without:
        gone = reading.index(f"-{without}")
        del reading[gone : gone + 2]
    return subprocess.run(
        [*reading, file_url(path), "-map", "0:v", "-f", "rawvideo", "-"], capture_output=True, check=False, timeout=300
    )
