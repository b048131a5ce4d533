"""What a row says of times and counts, held against ffprobe's and ffmpeg's own; none of our code is in either."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from vidprep.formats.manifest import ManifestRow
from vidprep.formats.profiles import EncoderOptions
from vidprep.transcode.job import run_job
from vidprep.transcode.settings import RunSettings
from vidprep.transcode.sources import Unit
from vidprep.transcode.task import Job

FAST = EncoderOptions(preset="ultrafast")


def made_of(
    path: Path, tmp_path: Path, cli: Any, settings: RunSettings | None = None, **cut: float
) -> tuple[ManifestRow, Path]:
    settings = settings or RunSettings(encoder=FAST)
    info = path.stat()
    unit = Unit("x", str(path), info.st_size, info.st_mtime_ns, cut.get("start"), cut.get("end"))
    partial = tmp_path / f"made-{path.name}.{settings.encoder.container_name}"
    row = run_job(Job(unit, settings, partial.name, str(partial), ffmpeg=cli.exe))
    assert isinstance(row, ManifestRow)
    return row, partial


def ffprobe(path: Path, *entries: str) -> dict[str, Any]:
    program = shutil.which("ffprobe")
    if program is None:
        pytest.skip("no ffprobe here")
    command = [
        program,
        "-v",
        "error",
        "-of",
        "json",
        "-select_streams",
        "v:0",
        "-show_entries",
        ":".join(entries),
        path,
    ]
    return dict(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
@pytest.mark.parametrize(("name", "box"), [("vfr.mp4", "mkv"), ("sorenson.flv", "mp4"), ("sorenson.flv", "mkv")])
def test_the_row_has_the_times_of_the_closed_file_in_its_own_time_base(name, box, engine, media, cli, tmp_path):
    encoder = EncoderOptions(preset="ultrafast", container=box)
    row, made = made_of(media[name], tmp_path, cli, RunSettings(encoder=encoder, engine=engine))
    assert row.ok, row.message
    told = ffprobe(made, "packet=pts", "stream=time_base", "format=duration")
    assert f"{row.time_base_num}/{row.time_base_den}" == told["streams"][0]["time_base"]
    assert row.pts == sorted(packet["pts"] for packet in told["packets"])
    if name == "sorenson.flv":  # whose packets have no duration
        *_, before, last = cli.frames(media[name])
        shown = float(2 * last.time - before.time)
        assert [row.duration_seconds, float(told["format"]["duration"])] == pytest.approx([shown] * 2, abs=0.002)
