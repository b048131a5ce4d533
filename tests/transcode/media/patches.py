"""Colours as they are meant, and pictures to measure them on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np

from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.unit.job import WholeJob
from vidprep.transcode.unit.life import run_job

FINE = EncoderOptions(crf=10)


def made(path: Path, settings: RunSettings, tmp_path: Path) -> tuple[Any, Path]:
    stat = path.stat()
    name = f"out.{settings.output.extension}"
    unit = Unit("x", str(path), stat.st_size, stat.st_mtime_ns)
    row = run_job(WholeJob(unit, settings, name, str(tmp_path / name), ffmpeg=imageio_ffmpeg.get_ffmpeg_exe()))
    assert row.ok, f"{row.stage}: {row.message}"
    return row, tmp_path / name


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / max(1e-9, np.mean((a.astype(float) - b) ** 2))))


def planes(ours: Any, number: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Luma, U and V of one 8-bit 4:2:0 picture of ours."""
    width, height = ours.picture_filter.picture.size
    data, area = np.frombuffer(ours.pictures[number], np.uint8), width * height
    chroma = (height // 2, width // 2)
    return (
        data[:area].reshape(height, width),
        data[area : area + area // 4].reshape(chroma),
        data[area + area // 4 :].reshape(chroma),
    )
