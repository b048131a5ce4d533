"""Scores of the encoded file, and every row of the table of encoders."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest

from tests.helpers import environment, make_clip, transcode
from tests.transcode.media.encoded import encoded, good
from vidprep.formats.errors import SettingsError
from vidprep.formats.model import FrameSize
from vidprep.formats.profiles import CODECS, ENCODERS, TUNES
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.settings.options import QualityGate, Scale
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.unit.job import WholeJob
from vidprep.transcode.unit.life import run_job

IN_PROCESS = [row for row in ENCODERS.values() if row.in_process]


def measured_by_ffmpeg(
    cli: Any, path: Path, reference: Path, raw: tuple[object, ...], tmp_path: Path
) -> dict[str, Any]:
    """psnr and ssim of ffmpeg's own filters on frames of `path` and of a raw file, n-th with n-th."""
    psnr, ssim = tmp_path / "psnr.log", tmp_path / "ssim.log"
    graph = (
        "[0:v]settb=1/1000,setpts=N,split[a][b];[1:v]settb=1/1000,setpts=N,split[c][d];"
        f"[a][c]psnr=stats_file={psnr}[x];[b][d]ssim=stats_file={ssim}[y]"
    )
    said = cli.log(
        "-y",
        "-i",
        path,
        *raw,
        "-i",
        reference,
        "-filter_complex",
        graph,
        "-map",
        "[x]",
        "-fps_mode",
        "passthrough",
        "-f",
        "null",
        "-",
        "-map",
        "[y]",
        "-fps_mode",
        "passthrough",
        "-f",
        "null",
        "-",
    )
    told = re.search(r"PSNR y:(\S+) .*average:(\S+)", said)
    assert told, said
    frames = [float(m) for m in re.findall(r"mse_y:(\S+)", psnr.read_text())]
    all_ = re.search(r"SSIM .*All:(\S+)", said)
    assert all_, said
    return {"y": float(told[1]), "yuv": float(told[2]), "mse": frames, "ssim": float(all_[1])}


@pytest.mark.parametrize(
    ("codec", "pixel_format"),
    [
        (codec, bits)
        for bits in ("yuv420p", "yuv420p10le")
        for codec in CODECS
        if (codec, bits) != ("vp9", "yuv420p10le")
    ],
)
@pytest.mark.parametrize("name", ["cfr.mp4", "sar_wide.mp4", "deep.mp4"])
def test_the_scores_of_the_row_are_those_of_ffmpegs_filters(
    name, codec, pixel_format, media, outputs, pipeline, cli, tmp_path
):
    settings = replace(
        encoded(codec, pixel_format=pixel_format, fps=Fraction(20), gop=5), scale=Scale(short_side=64, scaler="area")
    )
    row, path = good(outputs.of(media[name], settings))
    ours = pipeline(media[name], settings, keep=True)
    reference = tmp_path / "reference.yuv"
    reference.write_bytes(b"".join(ours.pictures))
    raw = ("-f", "rawvideo", "-pix_fmt", pixel_format, "-s", f"{row.width}x{row.height}", "-r", 20)
    told = measured_by_ffmpeg(cli, path, reference, raw, tmp_path)
    peak = 1023 if "10" in pixel_format else 255
    assert row.num_frames == len(told["mse"]) == len(ours.frames)
    assert row.psnr_y_db == pytest.approx(told["y"], abs=0.01)
    assert row.psnr_yuv_db == pytest.approx(told["yuv"], abs=0.01)
    assert row.ssim == pytest.approx(told["ssim"], abs=1e-4)
    worst = max(told["mse"])
    assert row.psnr_y_min_db == pytest.approx(10 * math.log10(peak**2 / worst), abs=0.01)
    assert told["mse"][row.worst_frame] == worst
    assert 25 < row.psnr_y_db < 60


@pytest.mark.parametrize("codec", CODECS)
def test_a_lower_crf_is_better_and_larger(codec, media, outputs):
    profile = ENCODERS[CODECS[codec].encoder]
    fine, _ = good(outputs.of(media["cfr.mp4"], encoded(codec, crf=profile.crf_default - 10)))
    coarse, _ = good(outputs.of(media["cfr.mp4"], encoded(codec, crf=profile.crf_default + 10)))
    assert fine.psnr_y_db > coarse.psnr_y_db + 3
    assert fine.size_bytes > coarse.size_bytes


def test_a_lossless_output_scores_infinity_and_says_so_in_json(media, outputs):
    row, _ = good(outputs.of(media["cfr.mp4"], encoded("h264", crf=0, tune="visual")))
    assert row.psnr_y_db == row.psnr_y_min_db == row.psnr_yuv_db == math.inf
    assert row.ssim == 1
    assert '"psnr_y_db": "inf"' in row.as_json()


def test_an_output_below_the_gate_fails_with_its_quality(media, outputs):
    settings = replace(encoded("h264", crf=45), gate=QualityGate(min_psnr_db=45))
    row, _ = outputs.of(media["cfr.mp4"], settings)
    assert (row.status, row.error, row.stage) == ("failed", "GateError", "gate")
    assert "45" in row.message


@pytest.mark.parametrize("row", IN_PROCESS, ids=lambda row: row.name)
def test_every_pixel_format_preset_and_tune_of_a_row_encodes(row, media, outputs):
    picks = [{"pixel_format": name} for name in row.pixel_formats if name not in row.only_ffmpeg]
    picks += [{"preset": name} for name in row.presets]
    picks += [{"tune": name} for name in TUNES]
    picks += [{"crf": crf} for crf in row.crf_range]
    for pick in picks:
        made, path = outputs.of(media["few.mkv"], encoded(row.codec, "mkv", **pick))
        assert made.ok, f"{pick}: {made.message}"
        with av.open(str(path)) as file:
            pictures = list(file.decode(video=0))
            assert len(pictures) == 6, pick
            assert pictures[0].format.name == pick.get("pixel_format", row.pixel_formats[0]), pick


@pytest.mark.parametrize("pixel_format", ENCODERS["libvpx-vp9"].only_ffmpeg)
def test_a_pixel_format_that_only_ffmpeg_has_is_refused_before_work_and_made_there(
    pixel_format, media, outputs, cli, tmp_path
):
    settings = encoded("vp9", engine="ffmpeg", pixel_format=pixel_format)
    with pytest.raises(SettingsError, match="yuv420p, yuv422p, yuv444p in PyAV; take engine='ffmpeg'"):
        replace(settings, output=replace(settings.video, engine="av"))
    source, partial = media["few.mkv"], tmp_path / "x.webm"
    stat = source.stat()
    unit = Unit("x", str(source), stat.st_size, stat.st_mtime_ns)
    row = run_job(WholeJob(unit, settings, partial.name, str(partial), ffmpeg=cli.exe))
    assert row.ok, row.message
    with av.open(str(partial)) as file:
        assert next(file.decode(video=0)).format.name == pixel_format


@pytest.mark.parametrize("row", IN_PROCESS, ids=lambda row: row.name)
def test_the_smallest_picture_of_a_row_encodes_and_one_below_is_refused(row, media, outputs, cli):
    def scaled(width: int, height: int) -> RunSettings:
        scale = Scale(size=FrameSize(width, height), fit="stretch", upscale=True)
        return replace(encoded(row.codec, gop=5), scale=scale)

    width, height = row.smallest
    made, path = good(outputs.of(media["cfr.mp4"], scaled(width, height)))
    assert made.num_frames == len(cli.frames(path)) == 36
    assert made.psnr_y_db > 20
    for below in ((width - 2, height), (width, height - 2)):
        if min(below) < 2:
            with pytest.raises(SettingsError, match="from 2 to"):
                scaled(*below)
            continue
        refused, path = outputs.of(media["cfr.mp4"], scaled(*below))
        assert (refused.status, refused.error) == ("failed", "PictureError")
        assert f"{width}x{height}" in refused.message
        assert not path.exists()


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"codec": "mpeg2"}, ["h264", "hevc", "vp9", "av1"]),
        ({"encoder": "libfoo"}, ["libx264"]),
        ({"encoder": "libx265"}, ["codec='hevc'"]),
        ({"container": "avi"}, ["mp4", "mkv", "webm"]),
        ({"container": "webm"}, ["vp9", "av1"]),
        ({"gop": 0}, ["1 to 10000"]),
        ({"crf": 52}, ["0 to 51"]),
        ({"crf": -1}, ["0 to 51"]),
        ({"codec": "vp9", "crf": 20.5}, ["whole", "0 to 63"]),
        ({"preset": "8"}, ["ultrafast", "veryslow"]),
        ({"codec": "av1", "preset": "medium"}, ["0", "13"]),
        ({"tune": "film"}, list(TUNES)),
        ({"pixel_format": "rgb24"}, ["yuv420p", "yuv444p10le"]),
        ({"codec": "av1", "pixel_format": "yuv444p"}, ["yuv420p", "yuv420p10le"]),
        ({"threads": 0}, ["1 to 256"]),
    ],
    ids=str,
)
def test_a_bad_encoder_value_is_refused_with_the_allowed_ones(bad, named):
    with pytest.raises(SettingsError) as caught:
        EncoderOptions(**bad)
    for text in named:
        assert text in str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize(("codec", "times"), [("h264", 2), ("hevc", 2), ("vp9", 2), ("av1", 4)])
def test_the_same_settings_give_the_same_bytes_each_time(codec, times, tmp_path):
    """SVT-AV1 decides some pictures by what its threads have done by then when it looks ahead too little."""
    source = make_clip(tmp_path / "a.mp4", 250, (96, 64), options={"preset": "fast", "g": "12", "bf": "3"})
    state = source.stat()
    settings = RunSettings(VideoOutput(EncoderOptions(codec=codec, gop=8)))
    job = WholeJob(Unit("a", str(source), state.st_size, state.st_mtime_ns), settings, "a", str(tmp_path / "made"))
    assert len({run_job(job).sha256 for _ in range(times)}) == 1


@pytest.mark.parametrize("count", [1, 2])
def test_hevc_of_fewer_frames_than_it_reorders_has_dts(count, tmp_path):
    """libx265 took them from memory that nobody had set, which malloc fills with the complement of 85 here."""
    make_clip(tmp_path / "src" / "short.mp4", count, (96, 64))
    env = environment() | {"MALLOC_PERTURB_": "85"}
    ran = transcode(tmp_path / "src", tmp_path / "made", "--codec", "hevc", "--container", "mkv", env=env)
    assert ran.code == 0, ran.err
