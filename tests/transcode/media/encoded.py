"""Outputs of every encoder, made once."""

from __future__ import annotations

import functools
from fractions import Fraction
from pathlib import Path
from typing import Any

from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.settings.options import Retime
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.unit.job import WholeJob
from vidprep.transcode.unit.life import run_job


class Outputs:
    """Outputs by source and settings, each made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self.of = functools.cache(self.fresh)

    def fresh(self, path: Path, settings: RunSettings) -> tuple[Any, Path]:
        self.count += 1
        name = f"{self.count}.{settings.output.extension}"
        stat = path.stat()
        unit = Unit(name, str(path), stat.st_size, stat.st_mtime_ns)
        row = run_job(WholeJob(unit, settings, name, str(self.folder / name)))
        return row, self.folder / name


def encoded(
    codec: str, container: str | None = None, *, fps: Fraction | None = None, engine: str = "av", **options: Any
) -> RunSettings:
    encoder = EncoderOptions(codec=codec, container=container, **options)
    return RunSettings(VideoOutput(encoder, engine=engine), retime=Retime(fps))


def good(made: tuple[Any, Path]) -> tuple[Any, Path]:
    row, path = made
    assert row.ok, f"{row.stage}: {row.message}"
    return row, path
