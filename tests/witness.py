"""An ffmpeg that is not ours, as the witness that tests hold the pipeline against."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Stamped:
    """One frame as ffmpeg's framemd5 muxer tells it. time: seconds, exact."""

    md5: str
    pts: int
    time: Fraction


class Ffmpeg:
    """The ffmpeg program of imageio-ffmpeg. None of our code is in it."""

    def __init__(self, exe: str) -> None:
        self.exe = exe

    def run(self, *args: object, stdin: bytes | None = None, check: bool = True) -> bytes:
        """Its stdout. Raises AssertionError with its stderr when it fails."""
        command = [self.exe, "-hide_banner", "-loglevel", "error", "-nostdin" if stdin is None else "-y", "-y"]
        command += [str(arg) for arg in args]
        done = subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=300)
        assert not check or done.returncode == 0, f"{command}: {done.stderr.decode(errors='replace')[-2000:]}"
        return done.stdout

    def says(self, *args: object) -> str:
        """What `ffmpeg -i …` prints about files; it always fails for want of an output."""
        done = subprocess.run(
            [self.exe, "-hide_banner", *map(str, args)], capture_output=True, check=False, timeout=300
        )
        return done.stderr.decode(errors="replace")

    def log(self, *args: object) -> str:
        """stderr at level info of a command that must succeed."""
        done = subprocess.run(
            [self.exe, "-hide_banner", "-nostdin", "-loglevel", "info", *map(str, args)],
            capture_output=True,
            check=False,
            timeout=300,
        )
        text = done.stderr.decode(errors="replace")
        assert done.returncode == 0, text[-2000:]
        return text

    def frames(
        self,
        path: Path,
        filters: str = "null",
        *,
        reading: Sequence[object] = (),
        writing: Sequence[object] = (),
        stream: str = "0:v:0",
        check: bool = True,
    ) -> list[Stamped]:
        """MD5 and time of every frame that comes out of the filters, in the pixel format it has there."""
        told = self.run(
            "-noautorotate",
            "-threads",
            1,
            *reading,
            "-i",
            path,
            "-map",
            stream,
            "-vf",
            filters,
            "-fps_mode",
            "passthrough",
            "-enc_time_base",
            "filter",
            *writing,
            "-f",
            "framemd5",
            "-",
            check=check,
        )
        base = Fraction(1)
        found = []
        for line in told.decode().splitlines():
            if line.startswith("#tb"):
                base = Fraction(line.split(":")[1].strip())
            elif not line.startswith("#"):
                part = [p.strip() for p in line.split(",")]
                found.append(Stamped(part[5], int(part[2]), int(part[2]) * base))
        return found

    def raw(
        self,
        path: Path,
        filters: str,
        width: int,
        height: int,
        pixel_format: str = "rgb24",
        *,
        reading: Sequence[object] = ("-noautorotate",),
        stream: str = "0:v:0",
    ) -> np.ndarray:
        """All frames as an array: (T, H, W, 3) for rgb24 and rgb48le, (T, H, W) for gray, (T, bytes) else."""
        told = self.run(
            *reading,
            "-i",
            path,
            "-map",
            stream,
            "-vf",
            filters,
            "-fps_mode",
            "passthrough",
            "-pix_fmt",
            pixel_format,
            "-f",
            "rawvideo",
            "-",
        )
        if pixel_format == "rgb24":
            return np.frombuffer(told, np.uint8).reshape(-1, height, width, 3)
        if pixel_format == "gray":
            return np.frombuffer(told, np.uint8).reshape(-1, height, width)
        return np.frombuffer(told, np.uint8)
