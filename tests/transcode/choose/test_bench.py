"""`vidprep bench`: figures that follow from what was asked, and no time for a loader that gives other pictures."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import signal
import subprocess
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.helpers import Ran, command, environment, make_clips, no_processes_left, transcode
from vidprep.transcode.check import peers as loaders
from vidprep.transcode.choose.bench.agree import Answer, Question, agrees
from vidprep.transcode.choose.bench.bench import BenchOptions, add_speed_ups, survey
from vidprep.transcode.choose.bench.measure import Cell, measure
from vidprep.transcode.choose.bench.patterns import Access, packets_needed, rounds
from vidprep.transcode.choose.bench.places import Place, Video, find_place, surveyed
from vidprep.transcode.choose.bench.train import Trained, Training, Tried, advised, train

pytestmark = pytest.mark.xdist_group("bench")  # what its fixtures make is made once
GOP, SEQUENCE = 4, 8
CONSECUTIVE, SINGLE = Access("consecutive", SEQUENCE, 1), Access("single", SEQUENCE, 1)
# A decord that is not decord: frames of another number, or none.
SHIFTED_DECORD = """
import av, numpy as np
class Frame:
    def __init__(self, picture): self.picture = picture
    def asnumpy(self): return self.picture
class VideoReader:
    def __init__(self, path, num_threads):
        with av.open(path) as container:
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        self.frames = frames[1:] + frames[-1:]
    def __len__(self): return len(self.frames)
    def __getitem__(self, number): return Frame(self.frames[number])
    def get_batch(self, numbers): return Frame(np.stack([self.frames[number] for number in numbers]))
"""
CRASHING_DECORD = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"


def run(*args: object, **more: object) -> Ran:
    return transcode(*args, verb="bench", **more)


def rows_of(ran: Ran) -> list[dict[str, object]]:
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert {row.pop("what") for row in found} == {"cell"}
    return found


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> Path:
    """raw, h264, burst, gulp, webdataset and jpg: the same three videos of 24 to 26 frames."""
    root = tmp_path_factory.mktemp("bench")
    make_clips(root / "raw", 3, 24, size=(96, 64), options={"g": "250", "bf": "2", "preset": "veryfast"})
    assert transcode(root / "raw", root / "h264", "--gop", GOP).code == 0
    for store in ("burst", "gulp", "webdataset"):
        assert transcode(root / "raw", root / store, "--format", store, verb="burst").code == 0
    assert transcode(root / "burst", root / "jpg", "--to", "frames", verb="pack").code == 0
    return root


@pytest.fixture(scope="module")
def measured(stores, tmp_path_factory) -> tuple[Ran, Path]:
    out = tmp_path_factory.mktemp("out") / "page"
    named = [part for name in ("vidprep", "PyAV", "Pillow") for part in ("--loader", name)]
    paths = [stores / name for name in ("h264", "raw", "burst", "jpg")]
    ran = run(*paths, *named, "--seconds", 0.05, "--json", "--out", out)
    assert ran.code == 0, ran.err
    return ran, out


def place_of(path: Path) -> Place:
    found = find_place(path)
    place, unread = surveyed(found, found.ids)
    assert not unread
    return place


# ------------------------------------------------------------------------------------------------ what is asked for


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


# ------------------------------------------------------------------------------------------------ what is measured


def test_figures_follow_from_what_was_asked(measured):
    rows = rows_of(measured[0])
    assert all(row["refused"] is None for row in rows)
    seen = {(Path(row["store"]).name, row["loader"], row["pattern"]) for row in rows}
    assert seen == {
        (store, loader, pattern)
        for store, names in {"raw": ("vidprep", "PyAV"), "h264": ("vidprep", "PyAV"), "burst": ("vidprep",), "jpg": ("Pillow",)}.items()
        for loader in names for pattern in ("consecutive", "single")
    }  # fmt: skip
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


def test_the_table_holds_what_was_printed(measured):
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


def test_a_browser_draws_the_page(measured, browser):
    browser.open(measured[1] / "bench.html")
    assert browser.run("return document.querySelectorAll('[data-figure].js-plotly-plot').length") == 2
    assert len(browser.column(0)) == 12


@pytest.mark.slow
def test_two_workers_read_whole_videos_from_a_cold_cache(stores):
    ran = run(stores / "burst", "--loader", "vidprep", "--pattern", "whole", "--cache", "both", "--workers", 2, "--seconds", 0.01, "--json")  # fmt: skip
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
        measure(Cell(place, "vidprep", SINGLE, is_cold, 0, 1, 0.0, 0), lambda: None) for is_cold in (False, True)
    )
    if warm.storage_bytes is None or not cold.storage_bytes:
        pytest.skip("the page cache cannot be emptied here")
    assert warm.read_bytes and cold.storage_bytes > warm.storage_bytes + cold.read_bytes / 2


# ------------------------------------------------------------------------------------------------ pixels first


def answer(path: Path, loader: str, *accesses: Access) -> Answer:
    place = place_of(path)
    return agrees(Question(place, loader, "vidprep", accesses or (CONSECUTIVE, SINGLE), 0), lambda: None)


def test_honest_loaders_agree(stores):
    for access in (CONSECUTIVE, Access("strided", 4, 3), Access("whole", 8, 1)):
        found = answer(stores / "raw", "PyAV", access)
        assert found.fault is None and found.lowest_db == math.inf and found.compared > 3 * 5


class _Late(loaders.PyAvLoader):
    """Off by one."""

    def several(self, numbers):
        return super().several([min(number + 1, len(self._pts) - 1) for number in numbers])


class _UpsideDown(loaders.PyAvLoader):
    def several(self, numbers):
        return [picture[::-1, ::-1] for picture in super().several(numbers)]


class _OnItsSide(loaders.PyAvLoader):
    def several(self, numbers):
        return [picture.swapaxes(0, 1) for picture in super().several(numbers)]


class _Short(loaders.PyAvLoader):
    def several(self, numbers):
        return super().several(numbers)[: max(1, len(numbers) - 1)]


class _Red(loaders.PyAvLoader):
    def several(self, numbers):
        return [picture[..., ::-1] for picture in super().several(numbers)]


class _StopsEarly(loaders.PyAvLoader):
    def in_order(self):
        yield from list(super().in_order())[:-1]


@pytest.mark.parametrize(
    ("liar", "said"),
    [
        (_Late, "(looks like frame "), (_UpsideDown, "(upside down)"), (_OnItsSide, "is 64x96, 96x64 is there (lies on its side)"),
        (_Short, "is not given"), (_Red, " dB from what is there"), (_StopsEarly, "is not given"),
    ],
)  # fmt: skip
def test_a_loader_that_lies_is_refused_with_the_frame_and_the_figure(stores, monkeypatch, liar, said):
    monkeypatch.setitem(loaders.LOADERS, "PyAV", liar)
    found = answer(stores / "h264", "PyAV", CONSECUTIVE, Access("whole", 8, 1))
    assert found.fault is not None and said in found.fault and found.fault.startswith("frame "), found


def test_a_still_scene_does_not_hide_a_wrong_frame(tmp_path, monkeypatch):
    """Frames that differ in one small block are 36 dB and more from one another; the neighbour is nearer all the same."""
    import av

    noise = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)
    with av.open(str(tmp_path / "still.mkv"), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "bgr0"
        for number in range(12):
            picture = noise.copy()
            picture[8 : 8 + number % 5, 8:12] ^= 64
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="bgr0")))
        container.mux(stream.encode(None))
    assert answer(tmp_path, "PyAV").fault is None
    monkeypatch.setitem(loaders.LOADERS, "PyAV", _Late)
    found = answer(tmp_path, "PyAV")
    assert found.fault is not None and found.lowest_db > 36, found


def fake_decord(folder: Path, text: str) -> dict[str, str]:
    folder.mkdir()
    (folder / "decord.py").write_text(text)
    return found_first(folder)


def found_first(folder: Path) -> dict[str, str]:
    """The environment of a process that imports what is in this folder, whatever is installed."""
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return environment(PYTHONPATH=path)


def test_the_command_goes_on_without_the_loader_that_is_wrong(stores, tmp_path):
    env = fake_decord(tmp_path / "fake", SHIFTED_DECORD)
    ran = run(stores / "h264", "--loader", "vidprep", "--loader", "decord", "--pattern", "single", "--seconds", 0.01, env=env)  # fmt: skip
    assert ran.code == 0, ran.err
    ours, theirs = sorted(ran.out.splitlines()[1:], key=lambda line: "decord" in line)
    assert "refused: frame " in theirs and "looks like frame" in theirs
    assert "refused" not in ours and "1 random" in ours


def test_a_loader_that_crashes_costs_its_cells_and_nothing_timed_on_a_store_is_a_failure(stores, tmp_path):
    env = fake_decord(tmp_path / "fake", CRASHING_DECORD)
    ran = run(stores / "h264", "--loader", "decord", "--pattern", "single", "--seconds", 0.01, env=env)
    assert ran.code == 1 and "no loader could be timed" in ran.err and "refused: its process died" in ran.out


def test_a_torchcodec_that_does_not_load_says_what_to_install(stores, tmp_path):
    """Without CUDA pip installs one that ends in "libnvrtc.so.13: cannot open shared object file"."""
    (tmp_path / "fake" / "torchcodec" / "decoders").mkdir(parents=True)
    (tmp_path / "fake" / "torchcodec" / "__init__.py").write_text("")
    (tmp_path / "fake" / "torchcodec" / "decoders" / "__init__.py").write_text(
        "raise RuntimeError('Could not load libtorchcodec.\\nlibnvrtc.so.13: cannot open shared object file')"
    )
    env = found_first(tmp_path / "fake")
    ran = run(stores / "h264", "--loader", "vidprep", "--loader", "torchcodec", "--pattern", "single", "--seconds", 0.01, env=env)  # fmt: skip
    assert ran.code == 0, ran.err
    assert "torchcodec does not load (Could not load libtorchcodec.); without CUDA: pip install torch==" in ran.out, (
        ran.out
    )


@pytest.mark.skipif(importlib.util.find_spec("decord") is None, reason="decord is not installed")
def test_decord_on_rotated_and_uneven_files_is_right_or_refused(media, tmp_path):
    (tmp_path / "raw").mkdir()
    for name in ("turned_90.mp4", "vfr.mp4"):
        (tmp_path / "raw" / name).symlink_to(media[name])
    ran = run(tmp_path / "raw", "--loader", "vidprep", "--loader", "decord", "--pattern", "single", "--seconds", 0.01, "--json")  # fmt: skip
    ours, theirs = sorted(rows_of(ran), key=lambda row: row["loader"] == "decord")
    assert ours["refused"] is None
    assert theirs["refused"] or theirs["lowest_psnr_db"] == "inf" or theirs["lowest_psnr_db"] >= 36


@pytest.mark.parametrize(("store", "loader"), [("gulp", "GulpIO2"), ("webdataset", "webdataset")])
def test_other_readers_of_their_own_formats(stores, store, loader):
    if importlib.util.find_spec(loader.lower()) is None:
        pytest.skip(f"{loader} is not installed")
    ran = run(stores / store, "--loader", loader, "--pattern", "whole", "--seconds", 0.01, "--json")
    [row] = rows_of(ran)
    assert row["refused"] is None and row["frames"] == 75 * row["sequences"] // 3, row


# ------------------------------------------------------------------------------------------------ what lies where


def test_stores_without_a_common_id_are_read_each_by_itself(stores, tmp_path):
    make_clips(tmp_path / "other", 1, 12)
    (tmp_path / "other" / "c00.mp4").rename(tmp_path / "other" / "strange.mp4")
    found = survey([stores / "burst", tmp_path / "other"], BenchOptions())
    assert [place.kind for place in found.places] == ["raw", "burst"]
    assert [len(place.videos) for place in found.places] == [1, 3]
    assert "no id is in all" in found.notes[0]


def test_videos_are_matched_by_id_and_what_cannot_be_read_is_left_out_everywhere(stores, tmp_path):
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


def test_pictures_are_read_in_the_order_of_their_numbers(tmp_path):
    (tmp_path / "v").mkdir()
    for number in range(12):
        Image.new("RGB", (8, 6), (number, 0, 0)).save(tmp_path / "v" / f"f{number}.png")
    place = place_of(tmp_path)
    [video] = place.videos
    assert [Path(file).name for file in video.files] == [f"f{number}.png" for number in range(12)]
    assert (place.kind, video.num_frames, video.width, video.height) == ("png", 12, 8, 6)
    (tmp_path / "v" / "cover.png").write_bytes((tmp_path / "v" / "f0.png").read_bytes())
    assert "no number" in surveyed(find_place(tmp_path), ["v"])[1]["v"]


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
        (lambda root: None, (), "is no folder"),
        (lambda root: make_clips(root, 1), ("--loader", "divx"), "--loader divx: not one of"),
        (lambda root: [make_clips(root, 1), Image.new("RGB", (8, 8)).save(root / "a.png")], (), "videos (c00.mp4 …) and pictures"),
    ],
)  # fmt: skip
def test_what_cannot_be_timed_is_said(tmp_path, make, more, said):
    make(tmp_path / "store")
    ran = run(tmp_path / "store", *more)
    assert ran.code == 2 and said in ran.err, ran.err


def test_a_store_given_twice_is_refused(stores):
    ran = run(stores / "burst", stores / "raw" / ".." / "burst")
    assert ran.code == 2 and "given twice" in ran.err


# ------------------------------------------------------------------------------------------------ training


def test_a_training_loop_over_the_loader(stores):
    training = Training(place_of(stores / "burst"), "PrefetchLoader", 4, 2, 1, 0.005, 0.1, 0)
    found = train(training, lambda: None)
    assert len(found.iteration_seconds) >= 10 and found.frame_size == "96x64"
    assert min(found.iteration_seconds) >= 0.005 and found.synthetic_seconds >= 0.005
    assert 0 < found.of_synthetic <= 1 and found.peak_bytes > 10_000_000


def test_overhead_and_stragglers_follow_from_the_series():
    found = Trained([0.010] * 8 + [0.040, 0.030], 0.010, 0.5, 1.0, 1, "1x1")
    assert found.overhead_seconds == pytest.approx(0.005)
    assert found.of_synthetic == pytest.approx(10 / 15)
    assert found.stragglers == [8]  # exactly three times the median is none


def test_the_advice_is_the_least_that_is_good_enough():
    tried = [Tried(1, 8, 50.0), Tried(2, 4, 90.0), Tried(2, 8, 96.0), Tried(2, 16, 100.0), Tried(4, 4, 99.0)]
    assert advised(tried) == Tried(2, 8, 96.0)


def test_ctrl_c_ends_it_and_leaves_neither_process_nor_file(stores, tmp_path):
    group = subprocess.Popen(
        command(stores / "h264", "--loader", "vidprep", "--seconds", 60, "--out", tmp_path / "page", verb="bench"),
        env=environment() | {"PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        # A shell's background jobs, which the tests may be, ignore SIGINT, and what they start inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert group.stdout is not None
    assert group.stdout.readline().startswith("store ")
    os.killpg(group.pid, signal.SIGINT)
    _, err = group.communicate(timeout=60)
    assert group.returncode == 130
    assert "vidprep: interrupted; nothing was written" in err and "Traceback" not in err
    assert not list((tmp_path / "page").iterdir())
    no_processes_left(group.pid, seconds=5)
