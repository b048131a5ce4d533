"""VMAF and XPSNR, against ffmpeg's filters on the same frames."""

from __future__ import annotations

import json
import math
import re
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.filter
import imageio_ffmpeg
import pyarrow.parquet as pq
import pytest

import vidprep
from tests.helpers import make_clip, manifest, transcode
from tests.numbered_pictures import constant, write
from vidprep.formats.model import FrameSize
from vidprep.transcode.media.metrics import QualitySums, not_scored
from vidprep.transcode.settings.options import QualityGate

HAS_VMAF = "libvmaf" in av.filter.filters_available
needs_vmaf = pytest.mark.skipif(not HAS_VMAF, reason=f"PyAV {av.__version__} was built without libvmaf")
FFMPEG = imageio_ffmpeg.get_ffmpeg_exe()


def by_ffmpeg(source: Path, made: Path, before: str, pixel_format: str, rate: Fraction) -> dict[str, Any]:
    """VMAF and XPSNR of a file against its source, which the filters `before` turn into what went into the encoder."""
    log = made.with_suffix(".vmaf.json")
    both = f"setpts=N/({rate})/TB,settb=1/1000000,fps={rate},format={pixel_format},setparams=range=tv:colorspace=bt709"
    graph = (
        f"[0:v]{both}[made];[1:v]{before}{both},split=2[due][again];"
        f"[made]split=2[one][two];[one][due]xpsnr=shortest=1[x];[two][again]libvmaf=log_fmt=json:log_path={log}[v]"
    )
    command = [
        FFMPEG,
        "-hide_banner",
        "-i",
        made,
        "-i",
        source,
        "-lavfi",
        graph,
        "-map",
        "[x]",
        "-map",
        "[v]",
        "-f",
        "null",
        "-",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(log.read_bytes())
    found = re.search(r"XPSNR +y: (\S+) +u: (\S+) +v: (\S+) +\(minimum: (\S+)\)", ran.stderr)
    assert found is not None
    return {
        "vmaf": told["pooled_metrics"]["vmaf"]["mean"],
        "vmaf_harmonic_mean": told["pooled_metrics"]["vmaf"]["harmonic_mean"],
        "frames": [each["metrics"]["vmaf"] for each in told["frames"]],
        "xpsnr_db": float(found[4]),
    }


@needs_vmaf
@pytest.mark.parametrize(
    ("size", "frames", "options", "before", "pixel_format", "rate"),
    [
        ((320, 240), 40, (), "", "yuv420p", 25),
        ((320, 240), 40, ("--pixel-format", "yuv420p10le"), "format=yuv420p10le,", "yuv420p10le", 25),
        ((178, 100), 30, (), "", "yuv420p", 25),
        ((320, 240), 1, (), "", "yuv420p", 25),
        ((320, 240), 60, ("--fps", "12.5"), "select=not(mod(n\\,2)),", "yuv420p", Fraction(25, 2)),
        ((128, 96), 40, ("--codec", "vp9"), "", "yuv420p", 25),
    ],
)
def test_vmaf_and_xpsnr_are_those_of_ffmpeg(
    tmp_path: Path,
    size: tuple[int, int],
    frames: int,
    options: tuple[str, ...],
    before: str,
    pixel_format: str,
    rate: Fraction | int,
) -> None:
    source = make_clip(tmp_path / "src" / "a.mp4", frames, size=size)
    ran = transcode(tmp_path / "src", tmp_path / "out", "--score", "vmaf,xpsnr", "--crf", 40, *options)
    assert ran.code == 0, ran.err
    row = manifest(tmp_path / "out")["a"]
    theirs = by_ffmpeg(source, tmp_path / "out" / row["file_name"], before, pixel_format, Fraction(rate))
    assert len(theirs["frames"]) == row["num_frames"]
    assert row["vmaf"] == pytest.approx(theirs["vmaf"], abs=0.01)
    assert row["vmaf_harmonic_mean"] == pytest.approx(theirs["vmaf_harmonic_mean"], abs=0.01)
    assert row["vmaf_p1"] == pytest.approx(sorted(theirs["frames"])[math.ceil(row["num_frames"] / 100) - 1], abs=0.01)
    assert row["xpsnr_db"] == pytest.approx(theirs["xpsnr_db"], abs=0.01)
    assert row["xpsnr_p1_db"] <= row["xpsnr_db"] + 1e-9
    assert row["vmaf_model"].startswith("vmaf_v0.6.1 (libvmaf ")
    assert transcode(tmp_path / "src", tmp_path / "out", verb="validate").code == 0


def test_xpsnr_needs_no_libvmaf(tmp_path: Path) -> None:
    make_clip(tmp_path / "src" / "a.mp4", 10, size=(320, 240))
    assert transcode(tmp_path / "src", tmp_path / "out", "--score", "xpsnr").code == 0
    row = manifest(tmp_path / "out")["a"]
    assert 20 < row["xpsnr_db"] < 60
    assert (row["vmaf"], row["vmaf_model"]) == (None, None)


@pytest.mark.skipif(HAS_VMAF, reason="this PyAV has libvmaf")
def test_without_libvmaf_it_is_refused_before_any_work(tmp_path: Path) -> None:
    make_clip(tmp_path / "src" / "a.mp4", 10)
    ran = transcode(tmp_path / "src", tmp_path / "out", "--score", "vmaf")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "built without libvmaf" in ran.err
    assert not (tmp_path / "out").exists()


def test_what_scores_frames_in_order_excludes_scoring_some_of_them(tmp_path: Path) -> None:
    make_clip(tmp_path / "src" / "a.mp4", 10)
    for options, said in (
        (("--score", "xpsnr", "--verify-every", 2), "see all frames in order"),
        (("--score", "xpsnr", "--segment", 60), "exclude each other"),
        (("--score", "xpsnr", "--format", "tensor"), "has no loss"),
        (("--score", "mos"), "give some of psnr, ssim, vmaf, xpsnr"),
        (("--vmaf-model", "vmaf_v1.0.16_3d0h"), "needs --score vmaf"),
    ):
        verb = "burst" if "tensor" in options else "transcode"
        ran = transcode(tmp_path / "src", tmp_path / "out", *options, verb=verb)
        assert (ran.code, said in ran.err) == (2, True), ran.err


@needs_vmaf
@pytest.mark.parametrize("verb", ["transcode", "burst"])
def test_pictures_too_small_for_a_score_are_made_without_it(tmp_path: Path, verb: str) -> None:
    make_clip(tmp_path / "src" / "a.mp4", 20, size=(320, 240))
    make_clip(tmp_path / "src" / "tiny.mp4", 5, size=(64, 16))
    out, value = tmp_path / "out", {"transcode": "--crf", "burst": "--quality"}[verb]
    ran = transcode(tmp_path / "src", out, "--score", "vmaf,xpsnr", value, 30, verb=verb)
    assert (ran.code, "not_scored" in ran.err) == (0, True), ran.err
    rows = manifest(out)
    assert 30 < rows["a"]["vmaf_p1"] <= rows["a"]["vmaf"] <= 100
    assert {id_: "not_scored" in row["warning_codes"] for id_, row in rows.items()} == {"a": False, "tiny": True}
    assert rows["tiny"]["vmaf"] is rows["tiny"]["vmaf_p1"] is rows["tiny"]["vmaf_model"] is None
    assert rows["tiny"]["xpsnr_db"] > 20
    ran = transcode(tmp_path / "src", out, "--score", "vmaf,xpsnr", verb="validate")
    assert (ran.code, "tiny: no VMAF: pictures of 64x16 are too small" in ran.err) == (0, True), ran.err
    assert {row["id"]: row["xpsnr_db"] for row in pq.read_table(out / "validation.parquet").to_pylist()} == {
        id_: pytest.approx(row["xpsnr_db"]) for id_, row in rows.items()
    }


@pytest.mark.parametrize("verb", ["transcode", "burst"])
def test_validate_compares_scores_with_the_manifest(tmp_path: Path, verb: str) -> None:
    scores = "vmaf,xpsnr" if HAS_VMAF else "xpsnr"
    make_clip(tmp_path / "src" / "a.mp4", 10, size=(320, 240))
    out = tmp_path / "out"
    assert transcode(tmp_path / "src", out, "--score", scores, verb=verb).code == 0
    assert transcode(tmp_path / "src", out, "--score", scores, verb="validate").code == 0
    (found,) = pq.read_table(out / "validation.parquet").to_pylist()
    row = manifest(out)["a"]
    for name in ("vmaf", "vmaf_harmonic_mean", "vmaf_p1", "vmaf_model", "xpsnr_db", "xpsnr_p1_db"):
        assert found[name] == (pytest.approx(row[name]) if isinstance(row[name], float) else row[name])
    table = pq.read_table(out / "manifest.parquet")
    place = table.column_names.index("xpsnr_db")
    pq.write_table(table.set_column(place, "xpsnr_db", [[row["xpsnr_db"] + 1]]), out / "manifest.parquet")
    ran = transcode(tmp_path / "src", out, "--score", scores, verb="validate")
    assert (ran.code, "XPSNR against its source is" in ran.out) == (1, True)
    assert transcode(tmp_path / "src", out, verb="validate").code == 0


def test_validate_scores_what_has_scores(tmp_path: Path) -> None:
    make_clip(tmp_path / "deep" / "a.mp4", 6, size=(96, 64))
    assert transcode(tmp_path / "deep", tmp_path / "out", "--pixel-format", "yuv420p10le").code == 0
    ran = transcode(tmp_path / "deep", tmp_path / "out", "--score", "xpsnr", verb="validate")
    assert (ran.code, "a: no XPSNR: that of 10-bit pictures" in ran.err) == (0, True)
    make_clip(tmp_path / "src" / "a.mp4", 6)
    for options, said in (
        (("--verify-every", 2), "not some"),
        (("--format", "tensor", "--size", "32x32"), "has no loss"),
    ):
        verb, out = "burst" if "tensor" in options else "transcode", tmp_path / f"{options[1]}"
        assert transcode(tmp_path / "src", out, *options, verb=verb).code == 0
        ran = transcode(tmp_path / "src", out, "--score", "xpsnr", verb="validate")
        assert (ran.code, said in ran.err) == (2, True), ran.err


@needs_vmaf
def test_other_models(tmp_path: Path) -> None:
    make_clip(tmp_path / "src" / "a.mp4", 6, size=(96, 64))
    ran = transcode(tmp_path / "src", tmp_path / "out", "--score", "vmaf", "--vmaf-model", "vmaf_v9")
    assert (ran.code, "libvmaf has no such model" in ran.err) == (2, True)
    model = ("--score", "vmaf", "--vmaf-model", "vmaf_4k_v0.6.1")
    assert transcode(tmp_path / "src", tmp_path / "out", *model).code == 0
    for asked in ((), model, ("--score", "vmaf")):
        assert transcode(tmp_path / "src", tmp_path / "out", *asked, verb="validate").code == 0


@pytest.mark.long
@needs_vmaf
def test_tune_reaches_a_vmaf(tmp_path: Path) -> None:
    make_clip(tmp_path / "src" / "a.mp4", 24, size=(128, 96))
    options = ("--target-vmaf", 80, "--codec", "h264,jpeg", "--score", "xpsnr", "--sample", 1)
    ran = transcode(tmp_path / "src", *options, verb="tune")
    assert ran.code == 0, ran.err
    assert "XPSNR" in ran.out
    assert "--target-vmaf 80" in ran.out
    tuned = vidprep.transcode.tune(tmp_path / "src", target_vmaf=80, codec=["h264"], sample=1)
    assert all(80 <= each.vmaf_p1 <= each.vmaf for each in tuned.choices)


@pytest.mark.long
@needs_vmaf
def test_searches_and_sweeps_say_what_gets_no_score(tmp_path: Path) -> None:
    make_clip(tmp_path / "src" / "a.mp4", 6, size=(64, 16))
    why = "a: no VMAF: pictures of 64x16 are too small for the model vmaf_v0.6.1"
    ran = transcode(tmp_path / "src", tmp_path / "out", "--target-vmaf", 80)
    assert (ran.code, why in ran.err) == (2, True), ran.err
    per_video = ("--target-vmaf", 80, "--target-mode", "per-video")
    ran = transcode(tmp_path / "src", tmp_path / "each", *per_video)
    message = manifest(tmp_path / "each")["a"]["message"]
    assert (ran.code, message) == (1, f"{why.removeprefix('a: ')}; --target-psnr takes them")
    make_clip(tmp_path / "src" / "b.mp4", 6, size=(96, 64))
    codecs = ("--score", "vmaf,xpsnr", "--codec", "h264,jpeg")
    ran = transcode(tmp_path / "src", tmp_path / "sweep", *codecs, verb="sweep")
    assert (ran.code, ran.err.count(why)) == (0, 1), ran.err
    summary = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert summary["compared_videos"] == ["a", "b"]
    rows = pq.read_table(tmp_path / "sweep" / "sweep.parquet").to_pylist()
    assert {cell["cell"]: cell["vmaf"] for cell in summary["cells"]} == {
        row["cell"]: row["vmaf"] for row in rows if row["id"] == "b"
    }
    assert {cell["codec"]: "xpsnr_db" in cell for cell in summary["cells"]} == {"h264": True, "jpeg": False}
    ran = transcode(tmp_path / "src", "--target-psnr", 30, *codecs, verb="tune")
    assert (ran.code, ran.out.count(why)) == (0, 1), ran.err


@needs_vmaf
def test_flat_pictures_are_scored_in_silence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    black = ("-f", "lavfi", "-i", "color=black:size=256x192:duration=0.2", tmp_path / "a.mp4")
    subprocess.run([FFMPEG, "-loglevel", "error", *black], check=True)
    model = ("--score", "vmaf", "--vmaf-model", "vmaf_v1.0.16_3d0h")
    assert transcode(tmp_path / "a.mp4", tmp_path / "out", *model).code == 0
    assert "est_params" not in capfd.readouterr().err


def test_sizes_that_models_take() -> None:
    usual, newer = (QualityGate(score=("vmaf",), vmaf_model=name) for name in ("vmaf_v0.6.1", "vmaf_v1.0.16_3d0h"))
    assert not not_scored(FrameSize(18, 18), "yuv420p", usual)
    assert not_scored(FrameSize(64, 16), "yuv420p", usual)
    assert not not_scored(FrameSize(240, 180), "yuv420p", newer)
    assert not_scored(FrameSize(256, 144), "yuv420p", newer)


@pytest.mark.long
@needs_vmaf
def test_the_target_is_reached_by_the_coarsest_crf_that_does(tmp_path: Path) -> None:
    """By brute force: every CRF beside the one that was found."""
    write(tmp_path / "src" / "b.mp4", constant(30, 30))
    for number in range(3):
        make_clip(tmp_path / "src" / f"a{number}.mp4", 24, size=(128, 96), seed=number)
    options = ("--preset", "ultrafast", "--target-mode", "per-video")
    assert transcode(tmp_path / "src", tmp_path / "out", "--target-vmaf", 85, *options).code == 0
    for id_, row in manifest(tmp_path / "out").items():
        assert row["vmaf_p1"] >= 85
        assert row["target_vmaf_p1"] == 85
        assert row["target_reached_vmaf"][row["target_tried"].index(row["crf"])] == pytest.approx(row["vmaf_p1"])
        if row["vmaf_p1"] > 85.25 and row["crf"] < 51:
            coarser = row["crf"] + 1
            ran = transcode(
                tmp_path / "src" / f"{id_}.mp4",
                tmp_path / id_,
                *("--crf", coarser, "--score", "vmaf", "--preset", "ultrafast"),
            )
            assert ran.code == 0
            assert manifest(tmp_path / id_)[id_]["vmaf_p1"] < 85


def test_frames_without_a_score_are_an_error() -> None:
    with pytest.raises(Exception, match="no frame was scored"):
        QualitySums().report(255)


@pytest.mark.long
@needs_vmaf
def test_a_sweep_compares_by_vmaf_too(tmp_path: Path) -> None:
    make_clip(tmp_path / "src" / "a.mp4", 30, size=(128, 96))
    crfs = ("--crf", "h264=20,28,36,44", "--crf", "hevc=20,28,36,44")
    ran = transcode(
        tmp_path / "src", tmp_path / "out", "--codec", "h264,hevc", *crfs, "--score", "vmaf,xpsnr", verb="sweep"
    )
    assert ran.code == 0, ran.err
    told = json.loads((tmp_path / "out" / "sweep.json").read_text())
    by_vmaf = [cell["vmaf"] for cell in told["cells"] if cell["codec"] == "h264"]
    assert by_vmaf == sorted(by_vmaf, reverse=True)
    assert by_vmaf[0] > 80
    assert told["bd_rate"]["by_score"].keys() == {"vmaf", "xpsnr_db"}
