"""`--target-psnr`: every output reaches it, nothing is much finer than it must be, and probing stays cheap."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests import points
from tests.helpers import environment, fault, leftovers, make_clip, manifest, outputs, start, transcode
from vidprep.transcode.run.target import sample_size
from vidprep.transcode.sources.unit import Unit, choose

burst = partial(transcode, verb="burst")
FLOOR = 40.0
SMALL = ("--preset", "ultrafast", "--gop", 4)


@pytest.fixture(scope="module")
def src(tmp_path_factory) -> Path:
    """Three easy clips, and one that is hard."""
    root = tmp_path_factory.mktemp("src")
    for number in range(3):
        make_clip(root / f"easy{number}.mp4", 8 + number, seed=number)
    make_clip(root / "hard.mp4", 8, seed=7, noise=True)
    return root


def p1_db(destination: Path) -> dict[str, float]:
    return {id_: row["psnr_y_p1_db"] for id_, row in manifest(destination).items()}


def probes(err: str) -> int:
    """Videos that were encoded to find the value."""
    return sum(int(line.split(" on ")[1].split()[0]) for line in err.splitlines() if ": trying --" in line)


@pytest.mark.parametrize(
    ("run", "option", "options", "column"),
    [(transcode, "--crf", SMALL, "crf"), (burst, "--quality", (), "jpeg_quality")],
)
def test_one_value_for_all_as_coarse_as_trying_each_would_find(run, option, options, column, src, tmp_path):
    ran = run(src, tmp_path / "out", "--target-psnr", FLOOR, *options)
    assert ran.code == 0, ran.err
    assert min(p1_db(tmp_path / "out").values()) >= FLOOR
    rows = manifest(tmp_path / "out").values()
    assert {row["target_psnr_y_p1_db"] for row in rows} == {FLOOR}
    first = {row["target_tried"][0] for row in rows}
    assert len(first) == 1
    (value,) = (int(value) for value in first)
    assert f"{option} {value} for all" in ran.err
    for row in rows:  # what the one value is enough for keeps it, however far above
        assert row["target_reached_db"][0] < FLOOR or row["target_tried"] == [value]
    finer, coarser = (value - 1, value + 2) if column == "crf" else (value + 1, value - 2)
    for near, reaches in ((finer, True), (coarser, False)):
        assert run(src, tmp_path / str(near), option, near, *options).code == 0
        assert (min(p1_db(tmp_path / str(near)).values()) >= FLOOR) == reaches


def test_a_second_run_takes_the_value_that_was_found_and_new_videos_are_held_to_the_target(src, tmp_path):
    copy = tmp_path / "src"
    make_clip(copy / "easy.mp4", 8, seed=1)
    assert transcode(copy, tmp_path / "out", "--target-psnr", FLOOR, *SMALL).code == 0
    value = manifest(tmp_path / "out")["easy"]["crf"]
    make_clip(copy / "hard.mp4", 8, seed=7, noise=True)
    ran = transcode(copy, tmp_path / "out", "--target-psnr", FLOOR, *SMALL)
    assert ran.code == 0
    assert probes(ran.err) == 0
    assert "1 ok, 0 failed, 1 done before" in ran.err
    rows = manifest(tmp_path / "out")
    assert rows["easy"]["crf"] == value
    assert rows["hard"]["crf"] < value
    assert rows["hard"]["target_tried"][0] == value
    assert rows["hard"]["target_tried"][-1] == rows["hard"]["crf"]
    assert rows["hard"]["target_reached_db"][0] < FLOOR <= rows["hard"]["target_reached_db"][-1]
    assert rows["hard"]["settings_digest"] == rows["easy"]["settings_digest"]
    assert not leftovers(tmp_path / "out")
    other = transcode(copy, tmp_path / "out", "--target-psnr", FLOOR + 1, *SMALL)
    assert other.code == 2
    assert "--target-psnr 40 -> 41" in other.err


def test_each_video_with_its_own_value(src, tmp_path):
    assert (
        transcode(src, tmp_path / "out", "--target-psnr", FLOOR, "--target-mode", "per-video", *SMALL, "--jobs", 2).code
        == 0
    )
    rows = manifest(tmp_path / "out")
    assert rows["hard"]["crf"] < rows["easy0"]["crf"]
    for id_, row in rows.items():
        assert row["psnr_y_p1_db"] >= FLOOR
        assert row["psnr_y_p1_db"] == row["target_reached_db"][row["target_tried"].index(row["crf"])]
        coarser = [crf for crf in row["target_tried"] if crf > row["crf"]]
        assert row["psnr_y_p1_db"] < FLOOR + 0.25 or row["crf"] + 1 in coarser, id_
    assert not leftovers(tmp_path / "out")
    alone = tmp_path / "alone"
    assert transcode(src / "hard.mp4", alone, "--crf", rows["hard"]["crf"], *SMALL).code == 0
    assert outputs(alone)["hard.mp4"] == outputs(tmp_path / "out")["hard.mp4"]


def test_a_video_that_cannot_reach_the_target_does_not_decide_for_the_others(src, tmp_path):
    ran = burst(src, tmp_path / "out", "--target-psnr", 60)
    rows = manifest(tmp_path / "out")
    assert (ran.code, rows["hard"]["error"]) == (1, "GateError")
    easy = [row for id_, row in rows.items() if id_ != "hard"]
    assert all(row["psnr_y_p1_db"] >= 60 and row["target_tried"][0] < 100 for row in easy), easy


def test_a_search_without_a_video_says_why(tmp_path):
    for name in ("a.mp4", "a.mkv"):
        make_clip(tmp_path / "src" / name, 4)
    ran = transcode(tmp_path / "src", tmp_path / "out", "--target-psnr", 40)
    assert ran.code == 2
    assert "--target-psnr 40: there is no video to try it on: its output a.mp4 is wanted by" in ran.err


def test_an_unreachable_target_fails_with_the_best_value_and_leaves_nothing(src, tmp_path):
    ran = transcode(
        src / "hard.mp4",
        tmp_path / "out",
        "--target-psnr",
        79,
        "--target-mode",
        "per-video",
        "--codec",
        "av1",
        "--size",
        "96x64",
        "--upscale",
        "--jobs",
        1,
    )
    assert ran.code == 1
    row = manifest(tmp_path / "out")["hard"]
    assert row["error"] == "GateError"
    assert "at --crf 1" in row["message"]
    assert "--target-psnr asks for 79" in row["message"]
    assert not outputs(tmp_path / "out")
    assert not leftovers(tmp_path / "out")


def test_probing_a_large_set_costs_less_than_a_third(tmp_path):
    """Counted in encodes; excerpts make it less in seconds."""
    for number in range(60):
        make_clip(tmp_path / "src" / f"c{number}.mp4", 4, (32, 32), seed=number, noise=number % 7 == 0)
    ran = transcode(tmp_path / "src", tmp_path / "out", "--target-psnr", 35, *SMALL)
    assert ran.code == 0, ran.err
    assert 0 < probes(ran.err) < 0.3 * 60
    assert min(p1_db(tmp_path / "out").values()) >= 35


@pytest.mark.long
def test_a_stop_while_probing_is_taken_up_again(src, tmp_path):
    hook = tmp_path / "hook"
    kill = fault(*points.TARGET_RUN_TRIAL, at=2)
    broken = start(src, tmp_path / "out", "--target-psnr", FLOOR, *SMALL, env=environment(hook, kill))
    broken.communicate(timeout=300)
    assert broken.returncode == -9
    ran = transcode(src, tmp_path / "out", "--target-psnr", FLOOR, *SMALL)
    assert ran.code == 0, ran.err
    whole = transcode(src, tmp_path / "whole", "--target-psnr", FLOOR, *SMALL)
    assert whole.code == 0
    assert outputs(tmp_path / "out") == outputs(tmp_path / "whole")
    assert not (tmp_path / "out" / ".vidprep" / "probes").exists()


def test_a_broken_source_does_not_spoil_the_search(src, tmp_path):
    make_clip(tmp_path / "src" / "good.mp4", 8)
    (tmp_path / "src" / "bad.mp4").write_bytes(b"no video at all")
    ran = transcode(tmp_path / "src", tmp_path / "out", "--target-psnr", FLOOR, *SMALL)
    assert ran.code == 1
    assert {id_: row["status"] for id_, row in manifest(tmp_path / "out").items()} == {"good": "ok", "bad": "failed"}


@pytest.mark.parametrize(
    ("verb", "options", "told"),
    [
        ("transcode", ("--crf", 20), "--crf 20 and --target-psnr 40 exclude each other"),
        ("burst", ("--quality", 80), "--quality 80 and --target-psnr 40 exclude each other"),
        ("burst", ("--format", "tensor"), "has no loss"),
        ("transcode", ("--target-psnr", 200), "give 10 to 80 dB"),
    ],
)
def test_invalid_values_are_refused_before_any_work(verb, options, told, src, tmp_path):
    ran = transcode(src, tmp_path / "out", "--target-psnr", FLOOR, *options, verb=verb)
    assert ran.code == 2
    assert told in ran.err
    assert not (tmp_path / "out").exists()


def test_a_sample_has_every_folder_and_the_small_and_the_large():
    units = tuple(
        Unit(id=f"{folder}/{number}", path="", size_bytes=number, mtime_ns=0)
        for folder in "abcd"
        for number in range(100)
    )
    chosen = choose(units, 40)
    assert len(set(chosen)) == 40
    for folder in "abcd":
        sizes = [unit.size_bytes for unit in chosen if unit.id[0] == folder]
        assert len(sizes) == 10
        assert min(sizes) < 10
        assert max(sizes) >= 90
    assert choose(units[:3], 5) == tuple(sorted(units[:3], key=lambda unit: unit.id))
    assert [sample_size(count) for count in (1, 50, 51, 1000, 10**6)] == [1, 50, 8, 150, 300]
