"""What a container or a stream crops is not encoded: a picture is as players show it, its row says what is stored besides."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest

from tests.pipeline import source_frames
from vidprep.formats.model import Cropping
from vidprep.formats.training.dataset import VideoDataset
from vidprep.formats.video.options import EncoderOptions
from vidprep.formats.video.picture_facts import _matroska_cropping
from vidprep.formats.video.source import Source, open_video
from vidprep.transcode.media._source_picture import describe
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.unit.job import WholeJob
from vidprep.transcode.unit.life import run_job

STORED = (96, 64)


def made(path: Path, settings: RunSettings, folder: Path) -> tuple[Any, Path]:
    stat = path.stat()
    name = f"out.{settings.output.extension}"
    unit = Unit("x", str(path), stat.st_size, stat.st_mtime_ns)
    row = run_job(WholeJob(unit, settings, name, str(folder / name), ffmpeg=imageio_ffmpeg.get_ffmpeg_exe()))
    assert row.ok, f"{row.stage}: {row.message}"
    return row, folder / name


def cropped(path: Path, out: Path, crop: Cropping) -> Path:
    """An mp4 of 96x64 whose index is behind its data, with a clean aperture (ISO/IEC 14496-12, 12.1.4) added to its sample entry."""
    width, height = STORED[0] - crop.left - crop.right, STORED[1] - crop.top - crop.bottom
    box = struct.pack(">I4s8i", 40, b"clap", width, 1, height, 1, crop.left - crop.right, 2, crop.top - crop.bottom, 2)
    data = bytearray(path.read_bytes())
    at, ends = 0, []
    for name in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd", b"avc1"):
        at = data.index(name, at)
        ends.append(at - 4)
    end = ends[-1] + int.from_bytes(data[ends[-1] : ends[-1] + 4])
    for start in ends:
        data[start : start + 4] = (int.from_bytes(data[start : start + 4]) + len(box)).to_bytes(4)
    data[end:end] = box
    out.write_bytes(data)
    return out


def clip(kind: str, media: Any, folder: Path, crop: Cropping) -> Path:
    if kind == "sps":
        path = folder / "sps.mp4"
        edges = ":".join(f"crop_{name}={value}" for name, value in crop._asdict().items())
        media.cli.run("-i", media["cfr.mp4"], "-c", "copy", "-bsf:v", f"h264_metadata={edges}", path)
        return path
    path = cropped(media["turned_90.mp4" if kind == "turned" else "cfr.mp4"], folder / "clap.mp4", crop)
    if kind == "matroska":
        media.cli.run("-i", path, "-c", "copy", folder / "pixel_crop.mkv")
        return folder / "pixel_crop.mkv"
    return path


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
@pytest.mark.parametrize("kind", ["clap", "turned", "matroska", "sps"])
def test_encoded_frames_equal_ffmpegs(kind, engine, media, cli, tmp_path):
    path = clip(kind, media, tmp_path, Cropping(top=8, bottom=4, left=20, right=6))
    row, out = made(path, RunSettings(VideoOutput(engine=engine)), tmp_path)
    assert (row.source_width, row.source_height) == (70, 52)
    assert (row.source_coded_width, row.source_coded_height) == STORED
    assert (row.width, row.height) == ((52, 70) if kind == "turned" else (70, 52))
    told = re.search(
        r"PSNR y:(\S+)", cli.log("-i", path, "-i", out, "-filter_complex", "[0][1]psnr", "-f", "null", "-")
    )
    assert told is not None
    assert row.psnr_y_db == pytest.approx(float(told[1]), abs=0.01)


@pytest.mark.parametrize("codec", ["h264", "hevc", "vp9", "av1"])
def test_every_encoder_takes_a_picture_that_begins_anywhere_in_memory(codec, media, cli, tmp_path):
    path = clip("sps", media, tmp_path, Cropping(top=0, bottom=0, left=6, right=0))
    row, out = made(path, RunSettings(VideoOutput(EncoderOptions(codec=codec))), tmp_path)
    assert (row.width, row.height) == (90, 64)
    counted = "settb=1/1000,setpts=N"  # by number: WebM rounds times to milliseconds
    graph = f"[0]{counted}[due];[1]{counted}[made];[due][made]psnr"
    told = re.search(r"PSNR y:(\S+)", cli.log("-i", path, "-i", out, "-filter_complex", graph, "-f", "null", "-"))
    assert told is not None
    assert row.psnr_y_db == pytest.approx(float(told[1]), abs=0.01)


@pytest.mark.parametrize("crop", [Cropping(8, 4, 20, 6), Cropping(3, 4, 21, 6)], ids=["even", "odd"])
@pytest.mark.parametrize("kind", ["clap", "turned", "matroska", "sps"])
def test_a_dataset_of_unprepared_files_equals_ffmpeg(kind, crop, media, cli, tmp_path):
    path = clip(kind, media, tmp_path, crop if kind != "sps" else Cropping(8, 4, 20, 6))
    ours = VideoDataset([path], sequence_length=1)[0]["frames"][0]
    height, width = ours.shape[:2]
    exact = f"scale={width}:{height}:flags=bilinear+accurate_rnd+full_chroma_int+full_chroma_inp+bitexact"
    shown = cli.raw(path, exact, width, height, reading=())[0]
    assert f"{width}x{height}" in cli.log("-i", path, "-f", "null", "-").partition("Output #0")[2]
    assert np.array_equal(ours[1:-1, 1:-1], shown[1:-1, 1:-1])  # chroma is interpolated with what is cropped


def test_an_odd_crop_begins_where_ffmpeg_begins_it_and_ends_even(media, cli, pipeline, tmp_path):
    path = clip("clap", media, tmp_path, Cropping(top=3, bottom=4, left=21, right=6))
    ours = pipeline(path, keep=True)
    assert tuple(ours.picture_filter.picture.size) == (68, 56)
    shown = cli.raw(path, "null", 68, 56, "yuv420p", reading=())
    assert b"".join(ours.pictures) == shown.tobytes()


def test_a_crop_that_leaves_nothing_is_not_followed_and_the_row_says_so(media):
    with Source(media["cfr.mp4"], max_pixels=10_000) as source:
        frame = next(source_frames(source, max_frames=100)).frame
        found = describe(frame, replace(source.info, cropping=Cropping(0, 0, 50, 46)))
    assert tuple(found.size) == STORED
    assert any("crops all of 96x64" in text for text in found.warnings)


def test_a_pyav_that_tells_nothing_of_it_finds_it_too(media, tmp_path):
    crop = Cropping(top=8, bottom=4, left=20, right=6)
    for path, due in ((clip("matroska", media, tmp_path, crop), crop), (media["cfr.mp4"], Cropping(0, 0, 0, 0))):
        with open_video(path) as container:
            assert _matroska_cropping(container.streams.video[0]) == due
