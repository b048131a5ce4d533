"""`vidprep sweep` and `vidprep tune`: figures that other tools agree with, made once, and advice that holds."""

from __future__ import annotations

import io
import json
import math
import shlex
import subprocess
from pathlib import Path

import bjontegaard
import imageio_ffmpeg
import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from PIL import Image

from tests import points
from tests.helpers import KILL_ALL, Ran, command, environment, fault, identities, make_clips, manifest, transcode
from vidprep.formats import open_store
from vidprep.transcode.choose.sweep_tables import LUMA_GAIN_DB, bd_rate, curves_of, scale_to_limited, size_at
from vidprep.transcode.cli.main import main

pytestmark = pytest.mark.xdist_group("pages")  # what its fixtures start is started once
QUICK = ("--codec", "h264,jpeg,png", "--crf", "h264=18,24,30,36", "--quality", "40,60,80,95", "--gop", 4)


def run(verb: str, *args: object) -> Ran:
    return transcode(*args, verb=verb)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = make_clips(tmp_path_factory.mktemp("sources"), 3, 14, size=(128, 96))
    (folder / "torn.mp4").write_bytes(b"no video at all")
    return folder


@pytest.fixture(scope="module")
def swept(sources, tmp_path_factory):
    out = tmp_path_factory.mktemp("swept") / "out"
    ran = run("sweep", sources, out, "--short-side", 64, *QUICK)
    assert ran.code == 0, ran.err
    assert "left out: torn" in ran.err
    return out


def rows_of(out: Path) -> dict[tuple[str, str], dict[str, object]]:
    return {(row["cell"], row["id"]): row for row in pq.read_table(out / "sweep.parquet").to_pylist()}


# ------------------------------------------------------------------------------------------------ formulas


@pytest.mark.parametrize("points", [4, 6])
@pytest.mark.parametrize("seed", range(5))
def test_delta_rates_are_those_of_a_kept_library(points, seed):
    rng = np.random.default_rng(seed)
    curves = []
    for _ in range(2):
        db = np.sort(rng.uniform(30, 34, points) + np.linspace(0, 12, points))
        rate = 1000 * 10 ** ((db - 35) / rng.uniform(12, 20)) * rng.uniform(0.9, 1.1)
        curves.append((rate, db))
    (rate_a, db_a), (rate_b, db_b) = curves
    theirs = bjontegaard.bd_rate(rate_a, db_a, rate_b, db_b, method="cubic", min_overlap=0) / 100
    ours = bd_rate(list(zip(rate_a, db_a, strict=True)), list(zip(rate_b, db_b, strict=True))[::-1])
    assert ours == pytest.approx(theirs, abs=1e-6)


def test_a_delta_rate_needs_four_points_and_something_in_common():
    curve = [(100.0 * 2**n, 30.0 + 3 * n) for n in range(4)]
    assert bd_rate(curve, [(size / 2, db) for size, db in curve]) == pytest.approx(-0.5)
    assert bd_rate(curve, curve[:3]) is None
    assert bd_rate(curve, [*curve[:3], (900.0, math.inf)]) is None
    assert bd_rate(curve, [(size, db + 40) for size, db in curve]) is None


def test_sizes_between_two_points():
    curve = [(400.0, 40.0), (100.0, 36.0), (1600.0, math.inf)]
    assert size_at(curve, 38) == pytest.approx(200)
    assert size_at(curve, 40) == pytest.approx(400)
    assert size_at(curve, 35.9) is None
    assert size_at(curve, 41) is None


def test_full_range_scores_come_onto_the_limited_scale():
    """Against the same pictures, quantised to 219 and 224 steps."""
    rng = np.random.default_rng(0)
    planes = [rng.integers(0, 256, (256 >> shift, 256 >> shift)).astype(float) for shift in (0, 1, 1)]
    coded = [np.clip(plane + rng.normal(0, 9, plane.shape), 0, 255) for plane in planes]

    def scores(one, other):
        errors = [((a - b) ** 2) for a, b in zip(one, other, strict=True)]
        everything = np.concatenate([error.ravel() for error in errors])
        return [10 * math.log10(255**2 / found.mean()) for found in (errors[0], everything)]

    def limited(pictures):
        return [np.round(p * steps / 255 + 16) for p, steps in zip(pictures, (219, 224, 224), strict=True)]

    assert scale_to_limited(*scores(planes, coded)) == pytest.approx(scores(limited(planes), limited(coded)), abs=0.02)
    assert abs(LUMA_GAIN_DB - 1.32) < 0.005
    assert scale_to_limited(math.inf, math.inf) == (math.inf, math.inf)


# ------------------------------------------------------------------------------------------------ sweep


@pytest.mark.long
def test_a_cell_equals_an_ordinary_run(swept, sources, tmp_path):
    """Sources were decoded and scaled once, into copies that lose nothing."""
    assert all(row["psnr_y_db"] == math.inf for row in manifest(swept / "prepared").values() if row["status"] == "ok")
    found = rows_of(swept)
    transcode(sources, tmp_path / "h264", "--short-side", 64, "--gop", 4, "--crf", 24)
    transcode(sources, tmp_path / "jpeg", "--short-side", 64, "--quality", 80, verb="burst")
    for id_ in ("c00", "c01", "c02"):
        theirs, ours = manifest(tmp_path / "h264")[id_], found["h264_gop_4_preset_medium_crf_24", id_]
        assert all(
            ours[name] == theirs[name] for name in ("size_bytes", "psnr_y_db", "psnr_yuv_db", "ssim", "num_frames")
        )
        theirs, ours = manifest(tmp_path / "jpeg")[id_], found["jpeg_quality_80", id_]
        assert ours["size_bytes"] == theirs["size_bytes"]
        assert ours["psnr_y_db"] == pytest.approx(theirs["psnr_y_db"] + 20 * math.log10(255 / 219))
        assert ours["psnr_yuv_db"] > theirs["psnr_yuv_db"] + 1


def test_the_summary_follows_from_the_table(swept):
    told = json.loads((swept / "sweep.json").read_text(), parse_constant=pytest.fail)
    found = rows_of(swept)
    assert told["compared_videos"] == ["c00", "c01", "c02"]
    assert [each["id"] for each in told["left_out"]] == ["torn"]
    assert len(told["cells"]) == 8
    for cell in told["cells"]:
        rows = [found[cell["cell"], id_] for id_ in told["compared_videos"]]
        assert cell["size_bytes"] == sum(row["size_bytes"] for row in rows)
        assert cell["psnr_y_db"] == pytest.approx(np.mean([row["psnr_y_db"] for row in rows]))
        assert cell["ms_per_sequence"] > 0 and cell["frames_per_cpu_second"] > 0
    per_video = [
        bjontegaard.bd_rate(
            *(
                [found[cell["cell"], id_][key] for cell in told["cells"] if cell["curve"] == curve]
                for curve in ("h264 gop 4 preset medium", "jpeg")
                for key in ("size_bytes", "psnr_y_db")
            ),
            method="cubic",
            min_overlap=0,
        )
        / 100
        for id_ in told["compared_videos"]
    ]
    delta = told["bd_rate"]["curves"]["jpeg"]["h264 gop 4 preset medium"]
    assert delta == {"mean": pytest.approx(np.mean(per_video), abs=1e-5), "videos": 3}


def test_png_sizes_are_those_of_pillow(swept):
    told = json.loads((swept / "sweep.json").read_text())
    store = open_store(swept / "prepared")
    total = 0
    for id_ in told["compared_videos"]:
        for frame in store[id_].frames():
            Image.fromarray(frame).save(file := io.BytesIO(), "PNG")
            total += file.tell()
    assert told["png"]["size_bytes"] == pytest.approx(total, rel=0.02)  # by eight frames of each


@pytest.mark.long
def test_a_killed_sweep_resumes_and_adds_new_settings(sources, swept, tmp_path):
    out = tmp_path / "out"
    kill = fault(*points.SWEEP_RUN_TRIAL, at=5, code=KILL_ALL)
    arguments = command(sources, out, "--short-side", 64, *QUICK, verb="sweep")
    broken = subprocess.run(
        arguments, env=environment(tmp_path / "hook", kill), capture_output=True, check=False, start_new_session=True
    )
    assert broken.returncode == -9
    cells = sorted(out.glob("cells/*"))
    before = {cell.name: identities(cell) for cell in cells[:-1]}
    assert before
    assert run("sweep", sources, out, "--short-side", 64, *QUICK).code == 0
    for name, files in before.items():
        assert identities(out / "cells" / name) == files
    same = ("size_bytes", "psnr_y_db", "ssim")
    assert {key: [row[n] for n in same] for key, row in rows_of(out).items()} == {
        key: [row[n] for n in same] for key, row in rows_of(swept).items()
    }
    before = {cell.name: identities(cell) for cell in out.glob("cells/*")}
    more = ("--codec", "h264,jpeg", "--crf", "h264=18,24,30,36,40", "--quality", "40,60,80,95", "--gop", 4)
    assert run("sweep", sources, out, "--short-side", 64, *more).code == 0
    assert {name: identities(out / "cells" / name) for name in before} == before
    assert ("h264_gop_4_preset_medium_crf_40", "c00") in rows_of(out)


@pytest.mark.long
def test_a_browser_draws_the_curves(swept, browser):
    browser.open(swept / "report.html")
    assert browser.run("return document.querySelectorAll('[data-figure].js-plotly-plot').length") == 4
    assert (
        browser.run("return document.querySelector('[data-figure] .scatterlayer').querySelectorAll('.js-line').length")
        == 2
    )
    text = browser.run("return document.body.innerText")
    assert "Bjøntegaard delta rate" in text and "against h264 gop 4\t" in text and "PNG takes" in text
    assert "preset medium" not in text, "there is one preset, which the table of all settings names"
    assert len(browser.column(0)) == 8


def test_a_report_takes_runs_and_sweeps_together(swept, sources, tmp_path):
    transcode(sources, tmp_path / "made")
    ran = run("report", swept, tmp_path / "made", "--out", tmp_path / "page")
    assert ran.code == 0
    told = json.loads((tmp_path / "page" / "report.json").read_text())
    assert len(told["destinations"]) == len(told["sweeps"]) == 1
    (swept_copy := tmp_path / "torn").mkdir()
    (swept_copy / "sweep.json").write_text('{"format": "vidprep sweep 9"}')
    ran = run("report", swept_copy)
    assert ran.code == 2 and "vidprep sweep 9" in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--codec", "h264,divx"), "divx: not one of h264"),
        (("--crf", "h264=20,70"), "--crf 70: libx264 takes"),
        (("--crf", "20,30"), "give CODEC=VALUE"),
        (("--crf", "h264=a,b"), "whole numbers"),
        (("--preset", "h264=warp"), "--preset warp: libx264 has"),
        (("--quality", "101"), "--quality 101"),
        (("--gop", "0"), "--gop 0"),
        (("--codec", "png"), "makes no curve"),
        (("--codec", "h264", "--anchor", "av1"), "--anchor av1: not one of h264"),
        (("--hdr", "keep"), "--hdr keep"),
    ],
)
def test_invalid_sweeps_are_refused_before_any_work(sources, tmp_path, arguments, said):
    given = ["sweep", str(sources), str(tmp_path / "out"), *arguments]
    ran = CliRunner().invoke(main, given)
    assert (ran.exit_code, said in ran.stderr, (tmp_path / "out").exists()) == (2, True, False), ran.output


def test_the_first_codec_is_the_anchor_where_h264_is_not_tried(sources, tmp_path):
    ran = run("sweep", sources, tmp_path / "out", "--codec", "vp9", "--sample", 1, "--seconds", 0.2)
    assert ran.code == 0, ran.err
    assert json.loads((tmp_path / "out" / "sweep.json").read_text())["bd_rate"]["anchor"].startswith("vp9")


def test_a_clock_of_10_ms_does_not_end_a_sweep_of_short_clips(swept):
    """Where a kernel counts CPU time in ticks, clips may have taken none."""
    rows = [dict(row) | {"cpu_seconds": 0.0} for row in rows_of(swept).values()]
    timed = [{"cell": name, "ms_per_frame": 1.0, "ms_per_sequence": 8.0} for name in {row["cell"] for row in rows}]
    told = curves_of(rows, timed, {}, at_db=35, anchor=rows[0]["curve"])
    assert len(told["cells"]) == len(timed) and all(cell["frames_per_cpu_second"] > 0 for cell in told["cells"])


def test_cpu_time_is_finer_than_a_tick_of_10_ms(swept):
    taken = [row["cpu_seconds"] for row in rows_of(swept).values()]
    assert min(taken) > 0 and any(abs(100 * seconds - round(100 * seconds)) > 0.001 for seconds in taken)


def test_nothing_readable_is_said(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "torn.mp4").write_bytes(b"no video at all")
    for verb, more in (("sweep", (tmp_path / "out",)), ("tune", ())):
        ran = run(verb, tmp_path / "src", *more)
        assert ran.code == 2 and "none of the 1 sampled sources can be read" in ran.err, ran.err


# ------------------------------------------------------------------------------------------------ tune


@pytest.mark.long
def test_tunes_recommendation_holds_and_its_choices_are_pareto_optimal(sources, tmp_path):
    ran = run(
        "tune",
        sources,
        "--codec",
        "h264,jpeg",
        "--target-psnr",
        35,
        "--sequence-length",
        4,
        "--short-side",
        64,
        "--exclude",
        "c02*",
        "--scaler",
        "area",
    )
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    table = [
        line.rsplit(maxsplit=7)
        for line in lines[1 : next(n for n, line in enumerate(lines) if line.startswith("Measured"))]
    ]
    assert table
    points = [(float(row[2].replace(",", "")), float(row[5])) for row in table]
    assert not any(a != b and a[0] <= b[0] and a[1] <= b[1] for a in points for b in points)
    assert all(float(row[1]) >= 35 for row in table)
    recommended = shlex.split(next(line for line in lines if line.startswith("vidprep ")))
    assert "left out: torn" in ran.out
    assert any(line.startswith("because: ") for line in lines)
    verb, source, _, *options = recommended[1:]
    made = transcode(source, tmp_path / "made", *options, verb=verb)
    assert made.code == 1  # the torn one
    good = [row for row in manifest(tmp_path / "made").values() if row["status"] == "ok"]
    assert len(good) == 2 and all(row["psnr_y_p1_db"] >= 35 for row in good)
    assert options[options.index("--exclude") + 1] == "c02*" and options[options.index("--scaler") + 1] == "area"
    assert all(min(row["width"], row["height"]) == 64 for row in good)


@pytest.mark.long
def test_slow_storage_makes_small_files_worth_their_decoding(tmp_path):
    (tmp_path / "src").mkdir()
    clip = "testsrc2=size=256x192:rate=25:duration=2,format=yuv420p"
    ffmpeg = [
        imageio_ffmpeg.get_ffmpeg_exe(),
        "-v",
        "error",
        "-f",
        "lavfi",
        "-i",
        clip,
        str(tmp_path / "src" / "c.mp4"),
    ]
    subprocess.run(ffmpeg, check=True)
    arguments = (tmp_path / "src", "--codec", "h264,jpeg", "--target-psnr", 35, "--work", tmp_path / "work")
    slow = run("tune", *arguments, "--storage", 0.05)
    fast = run("tune", *arguments, "--storage", 10000)
    assert (slow.code, fast.code) == (0, 0), (slow.err, fast.err)
    verbs = [
        next(line for line in ran.out.splitlines() if line.startswith("vidprep ")).split()[1] for ran in (slow, fast)
    ]
    assert verbs == ["transcode", "burst"], (slow.out, fast.out)
    assert "storage included" in slow.out


def test_a_target_out_of_reach_is_said(sources):
    ran = run("tune", sources, "--codec", "jpeg", "--target-psnr", 79)
    assert ran.code == 2 and "nothing reaches --target-psnr 79" in ran.err
