"""Settings: what is meant by what people write, what is refused with what is allowed, and the digest that resume goes by."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

import pytest

from vidprep.formats.errors import SettingsError
from vidprep.formats.manifest.remarks import Remark
from vidprep.formats.manifest.row import ManifestRow, check_row
from vidprep.formats.model import FrameSize, rescale, round_half_away
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode import bench, sweep, validate
from vidprep.transcode.settings.options import FrameCount, Limits, QualityGate, Retime, Sampling, Scale, Target
from vidprep.transcode.settings.output import FrameOutput, VideoOutput
from vidprep.transcode.settings.parse import parse_rate, parse_size
from vidprep.transcode.settings.run import RunSettings, build_settings


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("15", Fraction(15)),
        ("12.5", Fraction(25, 2)),
        ("30000/1001", Fraction(30000, 1001)),
        ("29.97", Fraction(30000, 1001)),
        ("23.976", Fraction(24000, 1001)),
        ("23.98", Fraction(24000, 1001)),
        ("59.94", Fraction(60000, 1001)),
        ("0.001", Fraction(1, 1000)),
        ("1000", Fraction(1000)),
        ("24.0", Fraction(24)),
    ],
)
def test_a_rate_is_exact(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "0", "-5", "1/0", "1001", "0.0009", "nan", "inf", "30fps", "30/", "1e9"])
def test_invalid_rates_are_refused(text):
    with pytest.raises(SettingsError, match="fps="):
        parse_rate(text)


def test_a_size_is_width_by_height():
    assert parse_size("224x128") == parse_size("224X128") == FrameSize(224, 128)


@pytest.mark.parametrize("text", ["", "224", "x224", "224x", "2.5x4", "-2x4", "224x224x3", "224*224", "²x4"])
def test_invalid_sizes_are_refused(text):
    with pytest.raises(SettingsError, match="size="):
        parse_size(text)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: Scale(short_side=240, size=FrameSize(2, 2)), "exclude each other"),
        (lambda: Scale(short_side=0), "from 2 to 16384"),
        (lambda: Scale(short_side=241), "even"),
        (lambda: Scale(size=FrameSize(224, 3)), "even"),
        (lambda: Scale(size=FrameSize(16386, 2)), "16384"),
        (lambda: Scale(short_side=240, multiple_of=28), "exclude each other"),
        (lambda: Scale(multiple_of=27), "even"),
        (lambda: Scale(max_area=10_000), "needs multiple_of"),
        (lambda: Scale(multiple_of=28, max_area=10_000), "over max_area"),
        (lambda: Scale(buckets=16), "needs bucket_area"),
        (lambda: Scale(bucket_area=FrameSize(64, 64)), "needs buckets"),
        (lambda: Scale(buckets=15, bucket_area=FrameSize(64, 64)), "even"),
        (lambda: Scale(buckets=64, bucket_area=FrameSize(62, 62)), "one square"),
        (lambda: Scale(buckets=16, bucket_area=FrameSize(64, 64), short_side=240), "exclude each other"),
        (lambda: Sampling(0.0), "above 0"),
        (lambda: FrameCount("0"), "give a number such as 81"),
        (lambda: FrameCount("n+1"), "give a number such as 81"),
        (lambda: FrameCount("4n+1", least_frames=0), "give 1 or more"),
        (lambda: FrameCount("81", least_frames=5), "a form such as 4n.1"),
        (lambda: RunSettings(count=FrameCount("81"), sampling=Sampling(2.0)), "exclude each other"),
        (lambda: Sampling(2.0, max_frames=5, min_frames=5), "below sample_min"),
        (lambda: RunSettings(retime=Retime(Fraction(5)), sampling=Sampling(2.0)), "exclude each other"),
        (lambda: Retime(source_rate=Fraction(1, 3**30)), "too long"),
        (lambda: Retime(video_stream=-1), "give 0 or more"),
        (lambda: Scale(fit="fill"), "pad, crop, stretch"),
        (lambda: Scale(scaler="nearest"), "bicubic, bilinear, area, lanczos"),
        (lambda: QualityGate(min_psnr_db=0), "above 0"),
        (lambda: QualityGate(min_psnr_db=float("nan")), "above 0"),
        (lambda: QualityGate(verify_every=0), "give 1 or more"),
        (lambda: Limits(timeout_seconds=0), "above 0"),
        (lambda: Limits(max_pixels=0), "1 to 2147483647"),
        (lambda: RunSettings(hdr="yes"), "sdr, keep"),
        (lambda: RunSettings(on_damage="ignore"), "not one of warn, fail"),
        (lambda: RunSettings(VideoOutput(engine="gpu")), "av, ffmpeg"),
        (lambda: RunSettings(VideoOutput(audio="mp3")), "drop, copy, aac, opus"),
        (lambda: RunSettings(VideoOutput(EncoderOptions(codec="vp9"), audio="aac")), "webm takes drop, copy, opus"),
        (lambda: RunSettings(VideoOutput(EncoderOptions(encoder="h264_nvenc"))), "needs engine=.ffmpeg."),
    ],
)
def test_a_bad_setting_is_refused_with_the_allowed_values(build, named):
    with pytest.raises(SettingsError, match=named) as caught:
        build()
    assert caught.value.stage == "settings"


PLAIN = RunSettings()
CHANGES: dict[str, RunSettings] = {
    "codec": RunSettings(VideoOutput(EncoderOptions(codec="hevc"))),
    "container": RunSettings(VideoOutput(EncoderOptions(container="mkv"))),
    "gop": RunSettings(VideoOutput(EncoderOptions(gop=15))),
    "crf": RunSettings(VideoOutput(EncoderOptions(crf=20.5))),
    "preset": RunSettings(VideoOutput(EncoderOptions(preset="slow"))),
    "tune": RunSettings(VideoOutput(EncoderOptions(tune="visual"))),
    "pixel_format": RunSettings(VideoOutput(EncoderOptions(pixel_format="yuv444p"))),
    "threads": RunSettings(VideoOutput(EncoderOptions(threads=2))),
    "encoder": RunSettings(VideoOutput(EncoderOptions(encoder="h264_nvenc"), engine="ffmpeg")),
    "frame_rate": replace(PLAIN, retime=Retime(Fraction(15))),
    "buckets": RunSettings(scale=Scale(buckets=16, bucket_area=FrameSize(64, 64))),
    "bucket_area": RunSettings(scale=Scale(buckets=16, bucket_area=FrameSize(64, 96))),
    "count": replace(PLAIN, count=FrameCount("4n+1")),
    "least_frames": replace(PLAIN, count=FrameCount("4n+1", 9)),
    "clock_rule": replace(PLAIN, retime=Retime(Fraction(15)), clock_rule=1),
    "cut_origin": replace(PLAIN, retime=Retime(cut_origin="container")),
    "source_rate": replace(PLAIN, retime=Retime(source_rate=Fraction(12))),
    "video_stream": replace(PLAIN, retime=Retime(video_stream=1)),
    "kept_jpegs": RunSettings(FrameOutput(), retime=Retime(source_rate=Fraction(12))),
    "coded_jpegs": RunSettings(FrameOutput(quality=90), retime=Retime(source_rate=Fraction(12))),
    "sampling": RunSettings(FrameOutput(), sampling=Sampling(2.0)),
    "fps": RunSettings(FrameOutput(), sampling=Sampling(1.0)),
    "max_frames": RunSettings(FrameOutput(), sampling=Sampling(2.0, max_frames=64)),
    "min_frames": RunSettings(FrameOutput(), sampling=Sampling(2.0, min_frames=8)),
    "rule": RunSettings(FrameOutput(), sampling=Sampling(2.0, rule="qwen3")),
    "multiple_of": replace(PLAIN, scale=Scale(multiple_of=28)),
    "max_area": replace(PLAIN, scale=Scale(multiple_of=28, max_area=500_000)),
    "min_area": replace(PLAIN, scale=Scale(multiple_of=28, min_area=4)),
    "short_side": replace(PLAIN, scale=Scale(short_side=240)),
    "side_of": replace(PLAIN, scale=Scale(side_of=(("wrist", 128),))),
    "size": replace(PLAIN, scale=Scale(size=FrameSize(224, 224))),
    "fit": replace(PLAIN, scale=Scale(fit="crop")),
    "scaler": replace(PLAIN, scale=Scale(scaler="area")),
    "upscale": replace(PLAIN, scale=Scale(upscale=True)),
    "min_psnr_db": replace(PLAIN, gate=QualityGate(min_psnr_db=30)),
    "verify_every": replace(PLAIN, gate=QualityGate(verify_every=2)),
    "score": replace(PLAIN, gate=QualityGate(score=("vmaf",))),
    "vmaf_model": replace(PLAIN, gate=QualityGate(score=("vmaf",), vmaf_model="vmaf_v1.0.16_3d0h")),
    "hdr": replace(PLAIN, hdr="keep"),
    "audio": RunSettings(VideoOutput(audio="copy")),
    "on_damage": replace(PLAIN, on_damage="fail"),
    "engine": RunSettings(VideoOutput(engine="ffmpeg")),
    "segment": RunSettings(VideoOutput(segment=60.0)),
    "frames": RunSettings(FrameOutput()),
    "store": RunSettings(FrameOutput(store="gulp")),
    "quality": RunSettings(FrameOutput(quality=91)),
    "subsampling": RunSettings(FrameOutput(subsampling="444")),
    "target": replace(PLAIN, target=Target(38.0)),
    "psnr_db": replace(PLAIN, target=Target(40.0)),
    "per_video": replace(PLAIN, target=Target(38.0, per_video=True)),
    "vmaf": replace(PLAIN, target=Target(vmaf=93.0)),
}


def test_every_setting_that_decides_an_output_changes_the_digest():
    digests = {name: settings.digest for name, settings in CHANGES.items()} | {"plain": PLAIN.digest}
    assert len(set(digests.values())) == len(digests), digests


def test_no_setting_is_forgotten_by_the_test_above():
    every = {
        field.name
        for kind in (EncoderOptions, Retime, Scale, QualityGate, VideoOutput, FrameOutput, FrameCount, Target, Sampling)
        for field in fields(kind)
    }
    every |= {field.name for field in fields(RunSettings)}
    every -= {"output", "retime", "scale", "gate", "limits", "shard_bytes", "frames"}
    assert every - {"encoder"} == CHANGES.keys() - {"encoder", "frames", "kept_jpegs", "coded_jpegs"}


def test_limits_are_no_part_of_the_digest():
    assert replace(PLAIN, limits=Limits(timeout_seconds=5, max_pixels=10**6, max_frames=10)).digest == PLAIN.digest
    assert RunSettings(FrameOutput(shard_bytes=10**7)).digest == CHANGES["frames"].digest


def test_explicit_defaults_equal_omitted_ones():
    said = EncoderOptions(
        codec="h264",
        encoder="libx264",
        container="mp4",
        gop=16,
        preset="medium",
        pixel_format="yuv420p",
        crf=EncoderOptions().resolved.crf,
    )
    assert RunSettings(VideoOutput(said), hdr="sdr").digest == PLAIN.digest


def test_the_dict_is_json_and_comes_back_the_same():
    for settings in CHANGES.values():
        assert json.loads(json.dumps(settings.as_dict())) == settings.as_dict()


def test_settings_are_frozen_and_hashable():
    assert len({PLAIN, RunSettings(), *CHANGES.values()}) == len(CHANGES) + 1
    with pytest.raises(AttributeError):
        PLAIN.hdr = "keep"


def test_the_digest_of_given_settings_never_changes():
    """It is what resume goes by: another one makes every destination out there one "made with different settings".

    When a default of the encoder is changed on purpose, take the new value from the message of this test.
    """
    settings = RunSettings(
        VideoOutput(EncoderOptions(codec="vp9", container="mkv", gop=8, crf=30, preset="2", tune="visual", threads=2)),
        retime=Retime(Fraction(30000, 1001)),
        scale=Scale(size=FrameSize(224, 160), fit="crop", scaler="area"),
        gate=QualityGate(min_psnr_db=35.5, verify_every=3),
        on_damage="fail",
    )
    assert settings.digest == "3f5c88e6a2d106fd"
    assert build_settings({}, VideoOutput).digest == "3f3762440101a503"  # of a command without flags


@pytest.mark.parametrize(
    ("value", "rounded"),
    [("1/2", 1), ("-1/2", -1), ("3/2", 2), ("-3/2", -2), ("49/100", 0), ("-49/100", 0), ("5/2", 3), ("0", 0), ("7", 7)],
)
def test_halves_are_rounded_away_from_zero(value, rounded):
    assert round_half_away(Fraction(value)) == rounded


def test_ticks_go_to_the_nearest_of_another_time_base():
    got: list[Any] = [rescale(n, Fraction(1001, 30000), Fraction(1, 1000)) for n in range(5)]
    assert got == [0, 33, 67, 100, 133]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"crf": 23}, {"crf": 23.0}),
        ({"split": 60}, {"split": "60"}),
        ({"min_psnr": 30}, {"min_psnr": 30.0}),
        ({"target_psnr": 38}, {"target_psnr": 38.0}),
    ],
)
def test_settings_do_not_differ_by_how_a_number_is_written(one, other):
    """A destination of `crf=23` was made again by `--crf 23`."""
    assert build_settings(one, VideoOutput).digest == build_settings(other, VideoOutput).digest


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"gop": 10**400}, "give 1 to 10000 frames"),
        ({"target_mode": "nonsense"}, "not one of dataset, per-video"),
        ({"timeout": 2e9}, "give a number above 0, at most 1000000000 seconds"),
    ],
)
def test_formerly_accepted_invalid_values_are_refused(keywords, said):
    with pytest.raises(SettingsError, match=said):
        build_settings(keywords, VideoOutput)


def test_defaults_may_be_said(tmp_path):
    build_settings({"fit": "pad", "short_side": 240, "target_psnr": None, "target_mode": "dataset"}, VideoOutput)
    with pytest.raises(SettingsError, match=r"limit=0: give 1 or more"):
        validate(tmp_path, limit=0)
    with pytest.raises(SettingsError, match="not one of whole, consecutive, strided, single"):
        bench(tmp_path, pattern="singel")
    with pytest.raises(SettingsError, match=r"^crf='h264=a,b': give whole numbers separated by commas$"):
        sweep(tmp_path, tmp_path / "x", crf=("h264=a,b",))


def test_a_row_that_cannot_be_written_keeps_neither_warnings_nor_codes():
    row = ManifestRow("a", "a.mp4", "/a", status="ok")
    row.warn(Remark("damaged", "damaged: \udcff"))
    made = check_row(row)
    assert (made.ok, made.warnings, made.warning_codes) == (False, [], [])
