"""vidprep bench: what is asked for, what is measured, what lies where."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.helpers import Ran, make_clip, make_clips, transcode
from tests.transcode.choose.benching import CONSECUTIVE, GOP, SEQUENCE, SINGLE, place_of, rows_of, run
from vidprep.transcode.choose.bench._measure import BenchCell, measure
from vidprep.transcode.choose.bench.bench import BenchOptions, add_speed_ups, survey
from vidprep.transcode.choose.bench.places import Access, Video, find_place, packets_needed, rounds, survey_videos

pytestmark = pytest.mark.xdist_group("bench")  # what its fixtures make is made once


@pytest.fixture(scope="module")
def measured(stores, tmp_path_factory) -> tuple[Ran, Path]:
    out = tmp_path_factory.mktemp("out") / "page"
    named = [part for name in ("vidprep", "PyAV", "Pillow") for part in ("--loader", name)]
    paths = [stores / name for name in ("h264", "raw", "burst", "jpg")]
    ran = run(*paths, *named, "--seconds", 0.05, "--json", "--out", out)
    assert ran.code == 0, ran.err
    return ran, out


def test_every_round_asks_once_for_each_video_and_never_past_its_end():
    videos = [Video(str(n), 3 + 7 * n, 4, 4, None, ("f",)) for n in range(5)]
    for access in (CONSECUTIVE, SINGLE, Access("strided", 4, 3), Access("whole", 8, 1)):
        asked = rounds(videos, access, 0, 1, 2)
        for _ in range(50):
            found = next(asked)
            assert sorted(video.id for video, _ in found) == sorted(video.id for video in videos)
            for video, numbers in found:
                due = video.num_frames if access.pattern == "whole" else access.length
                step = access.step
                assert len(numbers) == min(due, -(-video.num_frames // step)) and numbers.step == step
                assert 0 <= numbers[0] <= numbers[-1] < video.num_frames


def test_loaders_are_asked_the_same_and_workers_are_not():
    videos = [Video(str(n), 100, 4, 4, None, ("f",)) for n in range(4)]
    first, again, other = (next(rounds(videos, CONSECUTIVE, 7, worker, 2)) for worker in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize("seed", range(10))
def test_packets_needed_are_those_that_a_walk_through_the_video_meets(seed):
    rng = random.Random(seed)
    count = 60
    keyframes = tuple(sorted({0, *rng.sample(range(count), 9)}))
    start, step = rng.randrange(30), rng.choice([1, 2, 5])
    numbers = range(start, min(count, start + 8 * step), step)
    met, waiting = 0, 0
    for number in range(count):  # packets of a GOP count when a wanted frame comes at or behind them
        waiting = 1 if number in keyframes else waiting + 1
        if number in numbers:
            met, waiting = met + waiting, 0
    assert packets_needed(Video("v", count, 4, 4, keyframes, ("f",)), numbers) == met
    assert packets_needed(Video("v", count, 4, 4, None, ("f",)), numbers) == len(numbers)


@pytest.mark.long
def test_figures_follow_from_the_request(measured):
    rows = rows_of(measured[0])
    assert all(row["refused"] is None for row in rows)
    seen = {(Path(row["store"]).name, row["loader"], row["pattern"]) for row in rows}
    assert seen == {
        (store, loader, pattern)
        for store, names in {
            "raw": ("vidprep", "PyAV"),
            "h264": ("vidprep", "PyAV"),
            "burst": ("vidprep",),
            "jpg": ("Pillow",),
        }.items()
        for loader in names
        for pattern in ("consecutive", "single")
    }
    for row in rows:
        length = SEQUENCE if row["pattern"] == "consecutive" else 1
        assert row["frames"] == row["sequences"] * length and row["sequences"] % 3 == 0 and row["sequences"] >= 5
        assert row["frames_per_second"] == pytest.approx(row["frames"] / row["seconds"])
        assert row["seconds"] >= 0.05
        assert 0 < row["ms_p25"] <= row["ms_median"] <= row["ms_p75"]
        assert row["peak_memory_bytes"] > 10_000_000 and row["cpu_seconds_per_1000_frames"] > 0
        assert row["lowest_psnr_db"] == "inf" and row["videos"] == 3 and row["frame_size"] == "96x64"
        packets = row["packets_per_frame"]
        if Path(row["store"]).name in ("burst", "jpg"):
            assert packets == 1
        elif Path(row["store"]).name == "h264":
            assert 1 <= packets <= (GOP if length == 1 else (SEQUENCE + GOP - 1) / SEQUENCE)
        else:
            assert 1 < packets <= 26


@pytest.mark.long
def test_the_speed_up_is_that_over_the_same_loader_on_raw_files(measured):
    rows = rows_of(measured[0])
    rate = {(Path(row["store"]).name, row["loader"], row["pattern"]): row["frames_per_second"] for row in rows}
    for row in rows:
        store, loader, pattern = Path(row["store"]).name, row["loader"], row["pattern"]
        if store == "raw" or loader == "Pillow":
            assert row["speed_up"] is None
        else:
            assert row["speed_up"] == pytest.approx(rate[store, loader, pattern] / rate["raw", loader, pattern])


def test_two_raw_stores_and_a_refused_one_make_no_false_speed_up():
    same = {"loader": "x", "access": "a", "cache": "warm", "workers": 1}
    raw = {**same, "kind": "raw", "refused": None, "frames_per_second": 2.0}
    rows = [
        raw,
        {**raw, "frames_per_second": 9.0},
        {**same, "kind": "burst", "refused": None, "frames_per_second": 8.0},
    ]
    rows.append({"loader": "y", "kind": "burst", "refused": "no"})
    add_speed_ups(rows)
    assert [row["speed_up"] for row in rows] == [None, None, 4.0, None]


@pytest.mark.long
def test_the_table_contains_the_printed_rows(measured):
    ran, out = measured
    table = pq.read_table(out / "bench.parquet").to_pylist()
    for row in table:
        row["lowest_psnr_db"] = "inf" if row["lowest_psnr_db"] == math.inf else row["lowest_psnr_db"]
    printed = rows_of(ran)
    assert [row["store"] for row in table] == [row["store"] for row in printed]
    assert all({**row, **line} == row for row, line in zip(table, printed, strict=True) if line["speed_up"])
    assert json.loads((out / "bench.json").read_text(), parse_constant=pytest.fail)["cell"][0]["loader"] == "vidprep"
    page = (out / "bench.md").read_text()
    assert "| h264 (h264 GOP 4) | 96x64 |" in page and "8 consecutive, warm cache, 1 worker" in page


@pytest.mark.long
def test_a_browser_draws_the_page(measured, browser):
    browser.open(measured[1] / "bench.html")
    assert browser.run("return document.querySelectorAll('[data-figure].js-plotly-plot').length") == 2
    assert len(browser.column(0)) == 12


@pytest.mark.slow
def test_two_workers_read_whole_videos_from_a_cold_cache(stores):
    ran = run(
        stores / "burst",
        "--loader",
        "vidprep",
        "--pattern",
        "whole",
        "--cache",
        "both",
        "--workers",
        2,
        "--seconds",
        0.01,
        "--json",
    )
    warm, cold = rows_of(ran)
    assert (warm["cache"], cold["cache"]) == ("warm", "cold")
    for row in (warm, cold):
        # Two processes, each two rounds at least of three videos with 24, 25 and 26 frames.
        assert row["workers"] == 2 and row["sequences"] >= 12 and row["frames"] == 75 * row["sequences"] // 3
    (one,) = rows_of(run(stores / "burst", "--loader", "vidprep", "--pattern", "whole", "--seconds", 0.01, "--json"))
    assert warm["peak_memory_bytes"] > 1.5 * one["peak_memory_bytes"]
    assert cold["read_bytes_per_frame"] > 0


def test_a_cold_read_comes_from_storage(tmp_path):
    make_clips(tmp_path, 2, 24, size=(256, 192), noise=True)
    place = place_of(tmp_path)
    warm, cold = (
        measure(BenchCell(place, "vidprep", SINGLE, is_cold, 0, 1, 0.0, 0), lambda: None) for is_cold in (False, True)
    )
    if warm.storage_bytes is None or not cold.storage_bytes:
        pytest.skip("the page cache cannot be emptied here")
    assert warm.read_bytes and cold.storage_bytes > warm.storage_bytes + cold.read_bytes / 2


@pytest.mark.long
def test_stores_without_a_common_id_are_read_each_by_itself(stores, tmp_path):
    make_clips(tmp_path / "other", 1, 12)
    (tmp_path / "other" / "c00.mp4").rename(tmp_path / "other" / "strange.mp4")
    found = survey([stores / "burst", tmp_path / "other"], BenchOptions())
    assert [place.kind for place in found.places] == ["raw", "burst"]
    assert [len(place.videos) for place in found.places] == [1, 3]
    assert "the stores share no id" in found.notes[0]


@pytest.mark.long
def test_videos_are_matched_by_id_and_unreadable_ones_are_skipped(stores, tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "c00.mp4").write_bytes(b"no video at all")
    for name in ("c01.mp4", "c02.mp4"):
        (tmp_path / "raw" / name).symlink_to(stores / "raw" / name)
    found = survey([stores / "burst", tmp_path / "raw"], BenchOptions())
    assert [[video.id for video in place.videos] for place in found.places] == [["c01", "c02"]] * 2
    assert any(note.startswith("left out: c00: ") for note in found.notes)
    sampled = survey([stores / "burst", stores / "h264"], BenchOptions(sample=2))
    assert [video.id for video in sampled.places[0].videos] == [video.id for video in sampled.places[1].videos]
    assert len(sampled.places[0].videos) == 2 and "2 of 3 videos" in sampled.notes[0]


@pytest.mark.long
def test_videos_whose_ids_kept_the_suffix_are_matched_too(tmp_path):
    make_clips(tmp_path / "raw", 2)
    make_clip(tmp_path / "raw" / "c00.mkv")
    assert transcode(tmp_path / "raw", tmp_path / "ready", "--keep-source-suffix", "--codec", "h264").code == 0
    for names in (["c00.mkv", "c00.mp4", "c01.mp4"], ["c00.mp4", "c01.mp4"]):
        found = survey([tmp_path / "ready", tmp_path / "raw"], BenchOptions())
        assert [[video.id for video in place.videos] for place in found.places] == [names] * 2
        (tmp_path / "raw" / "c00.mkv").unlink(missing_ok=True)
    told = run(tmp_path / "ready", tmp_path / "raw", "--loader", "PyAV", "--seconds", 0.01, "--json")
    assert all(row["refused"] is None for row in rows_of(told)), told.out


@pytest.mark.long
def test_a_video_whose_colours_loaders_guess_is_left_out(tmp_path):
    make_clip(tmp_path / "hd.mp4", 8, (1280, 720))
    alone = survey([tmp_path], BenchOptions())
    assert [len(alone.places[0].videos), *alone.notes] == [
        1,
        f"{tmp_path}: its colour matrix is not tagged, and loaders take it for BT.601 or for BT.709; all its videos are "
        "such, so loaders may be refused",
    ]
    make_clip(tmp_path / "sd.mp4", 8)
    found = survey([tmp_path], BenchOptions())
    assert [video.id for video in found.places[0].videos] == ["sd"]
    assert found.notes[0].startswith("left out: hd: its colour matrix is not tagged")


def test_pictures_are_read_in_the_order_of_their_numbers(tmp_path):
    (tmp_path / "v").mkdir()
    for number in range(12):
        Image.new("RGB", (8, 6), (number, 0, 0)).save(tmp_path / "v" / f"f{number}.png")
    place = place_of(tmp_path)
    [video] = place.videos
    assert [Path(file).name for file in video.files] == [f"f{number}.png" for number in range(12)]
    assert (place.kind, video.num_frames, video.width, video.height) == ("png", 12, 8, 6)
    (tmp_path / "v" / "cover.png").write_bytes((tmp_path / "v" / "f0.png").read_bytes())
    assert "no number" in survey_videos(find_place(tmp_path), ["v"])[1]["v"]


@pytest.mark.long
def test_hostile_names_are_text(stores, tmp_path):
    root = tmp_path / "<img src=x onerror=alert(1)>\x1b[31m"
    make_clips(root, 1, 12)
    (root / "c00.mp4").rename(root / "<script>alert(2)<∕script>.mp4")
    ran = run(root, "--loader", "vidprep", "--pattern", "single", "--seconds", 0.01, "--out", tmp_path / "out")
    assert ran.code == 0, ran.err
    assert "\x1b" not in ran.out + ran.err
    page = (tmp_path / "out" / "bench.html").read_text()
    assert "<img src=x" not in page and "<script>alert" not in page
    assert "&lt;img src=x" in page


@pytest.mark.parametrize(
    ("make", "more", "said"),
    [
        (lambda root: root.mkdir(), (), "holds nothing that can be read"),
        (lambda root: None, (), "is not a folder"),
        (lambda root: make_clips(root, 1), ("--loader", "divx"), "--loader divx: not one of"),
        (
            lambda root: [make_clips(root, 1), Image.new("RGB", (8, 8)).save(root / "a.png")],
            (),
            "videos (c00.mp4 …) and pictures",
        ),
    ],
)
def test_untimable_loaders_are_reported(tmp_path, make, more, said):
    make(tmp_path / "store")
    ran = run(tmp_path / "store", *more)
    assert ran.code == 2 and said in ran.err, ran.err


def test_a_store_given_twice_is_refused(stores):
    ran = run(stores / "burst", stores / "raw" / ".." / "burst")
    assert ran.code == 2 and "given twice" in ran.err
