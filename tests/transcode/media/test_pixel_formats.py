"""Pixel formats through filters that cannot hold each of them: what is accepted is made, scored as ffmpeg scores it, and crashes nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import pytest
from av.video.frame import VideoFrame

from vidprep.formats.errors import VerifyError
from vidprep.formats.model import NO_CROPPING, Colour, FrameSize, Orientation, OutputFormat
from vidprep.formats.profiles import CODECS, CONTAINERS
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.media._source_picture import SourcePicture
from vidprep.transcode.media.picture import plan_picture
from vidprep.transcode.media.verify import Verifier, check_decoder
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.unit.job import WholeJob
from vidprep.transcode.unit.life import run_job

TURNS = (
    "cfr.mp4",
    "turned_90.mp4",
    "turned_180.mp4",
    "turned_270.mp4",
    "mirrored.mp4",
    "upside_down.mp4",
    "turned_90_mirrored.mp4",
    "turned_270_mirrored.mp4",
)


def made(path: Path, settings: RunSettings, folder: Path) -> tuple[Any, Path]:
    stat = path.stat()
    name = f"out.{settings.output.extension}"
    unit = Unit("x", str(path), stat.st_size, stat.st_mtime_ns)
    row = run_job(WholeJob(unit, settings, name, str(folder / name), ffmpeg=imageio_ffmpeg.get_ffmpeg_exe()))
    return row, folder / name


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
@pytest.mark.parametrize("pixels", ["yuv422p", "yuv422p10le"])
@pytest.mark.parametrize("source", ["turned_90.mp4", "turned_270_mirrored.mp4", "turned_422.mkv"])
def test_a_turned_source_in_422_is_scored_as_ffmpeg_scores_it(source, pixels, engine, media, cli, tmp_path):
    path = media[source] if source in TURNS else turned_422(media, tmp_path)
    row, out = made(path, RunSettings(VideoOutput(EncoderOptions(pixel_format=pixels), engine=engine)), tmp_path)
    assert row.ok, row.message
    assert (row.width, row.height) == (64, 96)
    due = f"[0]scale=flags=bicubic+accurate_rnd+bitexact,format={pixels}[due];[1][due]psnr"
    told = re.search(
        r"PSNR y:(\S+) .*average:(\S+)", cli.log("-i", path, "-i", out, "-filter_complex", due, "-f", "null", "-")
    )
    assert told is not None
    assert row.psnr_y_db == pytest.approx(float(told[1]), abs=0.05)
    assert row.psnr_yuv_db == pytest.approx(float(told[2]), abs=0.3)


def turned_422(media: Any, folder: Path) -> Path:
    path = folder / "turned_422.mkv"
    media.cli.run("-display_rotation", 90, "-i", media["deep_422.mkv"], "-c", "copy", path)
    return path


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
def test_av1_takes_a_picture_that_is_upside_down_and_else_as_it_should_be(engine, media, cli, tmp_path):
    row, out = made(
        media["upside_down.mp4"], RunSettings(VideoOutput(EncoderOptions(codec="av1"), engine=engine)), tmp_path
    )
    assert row.ok, row.message
    told = cli.log("-i", media["upside_down.mp4"], "-i", out, "-filter_complex", "[0][1]psnr", "-f", "null", "-")
    assert row.psnr_y_db == pytest.approx(float(re.search(r"PSNR y:(\S+)", told)[1]), abs=0.01)


def test_a_picture_of_another_format_than_the_encoder_was_opened_for_is_refused():
    options = RunSettings(VideoOutput(EncoderOptions(pixel_format="yuv422p10le")))
    rate = Fraction(25)
    output = OutputFormat(FrameSize(96, 64), "yuv422p10le", Colour(1, 1, 1), 1 / rate, rate, rate)
    verifier = Verifier(output, "h264", check_decoder("h264", None), gop=options.video.encoder.gop, gate=options.gate)
    for width, format_ in ((96, "xv30le"), (94, "yuv422p10le")):
        with pytest.raises(VerifyError, match=f"{width}x64 {format_} was made for 96x64 yuv422p10le"):
            verifier.expect(VideoFrame(width, 64, format_), 0)


# ------------------------------------------------------------------------------------ every combination


def accepted() -> list[dict[str, str]]:
    """What the command line takes: engine, codec, container and pixel format."""
    found = []
    for engine, codec, box in product(("av", "ffmpeg"), CODECS, CONTAINERS.values()):
        if box.codecs and codec not in box.codecs:
            continue
        row = EncoderOptions(codec=codec).profile
        assert row.name == CODECS[codec].encoder
        for pixels in row.pixel_formats:
            if engine == "ffmpeg" or pixels not in row.only_ffmpeg:
                found.append({"engine": engine, "codec": codec, "container": box.name, "pixel_format": pixels})
    return found


def make_all(sources: list[str], folder: str) -> None:
    """For a process of its own: a line before each combination and one after it, so that a crash tells where."""
    for source in sources:
        for asked in accepted():
            print(json.dumps([Path(source).name, asked]), flush=True)
            options = EncoderOptions(**{k: v for k, v in asked.items() if k != "engine"})  # type: ignore[arg-type]
            row, path = made(Path(source), RunSettings(VideoOutput(options, engine=asked["engine"])), Path(folder))
            path.unlink(missing_ok=True)
            print(json.dumps([row.message, row.psnr_yuv_db, row.width]), flush=True)


@pytest.mark.slow
def test_every_pixel_format_codec_container_and_engine_makes_every_rotation(media, tmp_path, capsys):
    sources = []
    for name in TURNS:
        sources.append(tmp_path / name)
        media.cli.run("-i", media[name], "-c", "copy", "-frames:v", 3, sources[-1])
    script = (
        "import sys; from tests.transcode.media.test_pixel_formats import make_all; make_all(sys.argv[2:], sys.argv[1])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), *map(str, sources)], capture_output=True, text=True, check=False
    )
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    assert ran.returncode == 0, f"ended with {ran.returncode} at {lines[-1]}: {ran.stderr[-500:]}"
    asked, done = lines[::2], lines[1::2]
    for what, (message, psnr, width) in zip(asked, done, strict=True):
        assert message is None, (what, message)
        assert psnr > 30, what
        assert width == (64 if re.search("90|270", what[0]) else 96), what
    assert len(asked) == len(TURNS) * len(accepted()) >= 500
    with capsys.disabled():
        print(f"\n{len(asked)} combinations of rotation, engine, codec, container and pixel format made, 0 crashes")


@pytest.mark.slow
def test_no_chain_of_filters_leaves_a_conversion_to_libavfilter(cli):
    """Every pixel format that a decoder may give, upright and turned, to every one that an encoder takes: ffmpeg runs the chain
    without the conversions that it would put in between.
    """
    listed = cli.run("-pix_fmts").decode()
    formats = re.findall(r"^I[.O][.H][.P][.B] (\w+)", listed, re.MULTILINE)
    assert len(formats) > 200
    refused = set()  # what swscale cannot read: a PictureError
    wanted = sorted({asked["pixel_format"] for asked in accepted()})
    for pixels, turned in product(formats, (False, True)):
        source = SourcePicture(
            FrameSize(67, 49), NO_CROPPING, pixels, Fraction(1), Orientation(turned), 0, Colour(1, 1, 1), "rawvideo"
        )
        chains = [plan_picture(source, RunSettings(), output).chain for output in wanted]
        graph = f"[0]split={len(chains) + 1}[shown]" + "".join(f"[s{n}]" for n in range(len(chains)))
        graph += "".join(f";[s{n}]{chain},nullsink" for n, chain in enumerate(chains))
        for more in ((), ("-noauto_conversion_filters",)):
            command = [
                cli.exe,
                "-v",
                "error",
                *more,
                "-f",
                "rawvideo",
                "-pix_fmt",
                pixels,
                "-s",
                "67x49",
                "-i",
                "/dev/zero",
            ]
            command += [
                "-filter_complex",
                graph,
                "-map",
                "[shown]",
                "-frames:v",
                "1",
                "-c:v",
                "rawvideo",
                "-f",
                "null",
                "-",
            ]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            if ran.returncode and not more:
                refused.add(pixels)
                break
            assert not ran.returncode, f"{pixels} turned={turned}: {ran.stderr}"
    assert len(refused) < 30, refused


@pytest.mark.parametrize(
    ("name", "bits"), [("grey16.mkv", 16), ("twelve.mkv", 12), ("deep.mp4", None), ("cfr.mp4", None)]
)
def test_a_row_says_when_more_than_ten_bits_become_fewer(
    name: str, bits: int | None, media: Any, tmp_path: Path
) -> None:
    """Depth maps and X-rays became 8 bits without a word."""
    row, _ = made(media[name], RunSettings(VideoOutput(EncoderOptions(preset="ultrafast"))), tmp_path)
    assert ("depth_reduced" in row.warning_codes) == (bits is not None)
    assert bits is None or any(f"{bits} bits per sample" in text and "--pixel-format" in text for text in row.warnings)
