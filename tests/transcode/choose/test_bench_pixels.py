"""vidprep bench: pixels first; training."""

from __future__ import annotations

import importlib.util
import math
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import command, environment, no_processes_left
from tests.transcode.choose.benching import CONSECUTIVE, SINGLE, place_of, rows_of, run
from vidprep.transcode.check import other_readers as loaders
from vidprep.transcode.choose.bench._agree import PictureRequest, Verdict, agrees
from vidprep.transcode.choose.bench.places import Access
from vidprep.transcode.choose.bench.train import Training, TrainingPoint, TrainingTimes, advise, train

pytestmark = pytest.mark.xdist_group("bench")  # what its fixtures make is made once


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


def answer(path: Path, loader: str, *accesses: Access) -> Verdict:
    place = place_of(path)
    return agrees(PictureRequest(place, loader, "vidprep", accesses or (CONSECUTIVE, SINGLE), 0), lambda: None)


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
    def iterate(self):
        yield from list(super().iterate())[:-1]


@pytest.mark.parametrize(
    ("liar", "said"),
    [
        (_Late, "(looks like frame "),
        (_UpsideDown, "(upside down)"),
        (_OnItsSide, "is 64x96, 96x64 is there (rotated)"),
        (_Short, "is not given"),
        (_Red, " dB from the reference"),
        (_StopsEarly, "is not given"),
    ],
)
def test_a_wrong_loader_is_refused_with_the_frame_and_the_psnr(stores, monkeypatch, liar, said):
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


@pytest.mark.long
def test_the_command_goes_on_without_the_loader_that_is_wrong(stores, tmp_path):
    env = fake_decord(tmp_path / "fake", SHIFTED_DECORD)
    ran = run(
        stores / "h264", "--loader", "vidprep", "--loader", "decord", "--pattern", "single", "--seconds", 0.01, env=env
    )
    assert ran.code == 0, ran.err
    ours, theirs = sorted(ran.out.splitlines()[1:], key=lambda line: "decord" in line)
    assert "refused: frame " in theirs and "looks like frame" in theirs
    assert "refused" not in ours and "1 random" in ours


@pytest.mark.long
def test_a_loader_that_crashes_costs_its_cells_and_nothing_timed_on_a_store_is_a_failure(stores, tmp_path):
    env = fake_decord(tmp_path / "fake", CRASHING_DECORD)
    ran = run(stores / "h264", "--loader", "decord", "--pattern", "single", "--seconds", 0.01, env=env)
    assert ran.code == 1 and "no loader could be timed" in ran.err and "refused: its process died" in ran.out


@pytest.mark.long
def test_a_broken_torchcodec_names_the_remedy(stores, tmp_path):
    """Without CUDA pip installs one that ends in "libnvrtc.so.13: cannot open shared object file"."""
    (tmp_path / "fake" / "torchcodec" / "decoders").mkdir(parents=True)
    (tmp_path / "fake" / "torchcodec" / "__init__.py").write_text("")
    (tmp_path / "fake" / "torchcodec" / "decoders" / "__init__.py").write_text(
        "raise RuntimeError('Could not load libtorchcodec.\\nlibnvrtc.so.13: cannot open shared object file')"
    )
    env = found_first(tmp_path / "fake")
    ran = run(
        stores / "h264",
        "--loader",
        "vidprep",
        "--loader",
        "torchcodec",
        "--pattern",
        "single",
        "--seconds",
        0.01,
        env=env,
    )
    assert ran.code == 0, ran.err
    assert "torchcodec does not load (Could not load libtorchcodec.); without CUDA: pip install torch==" in ran.out, (
        ran.out
    )


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("decord") is None, reason="decord is not installed")
def test_decord_on_rotated_and_uneven_files_is_right_or_refused(media, tmp_path):
    (tmp_path / "raw").mkdir()
    for name in ("turned_90.mp4", "vfr.mp4"):
        (tmp_path / "raw" / name).symlink_to(media[name])
    ran = run(
        tmp_path / "raw",
        "--loader",
        "vidprep",
        "--loader",
        "decord",
        "--pattern",
        "single",
        "--seconds",
        0.01,
        "--json",
    )
    ours, theirs = sorted(rows_of(ran), key=lambda row: row["loader"] == "decord")
    assert ours["refused"] is None
    assert theirs["refused"] or theirs["lowest_psnr_db"] == "inf" or theirs["lowest_psnr_db"] >= 36


@pytest.mark.long
@pytest.mark.parametrize(("store", "loader"), [("gulp", "GulpIO2"), ("webdataset", "webdataset")])
def test_other_readers_of_their_own_formats(stores, store, loader):
    if importlib.util.find_spec(loader.lower()) is None:
        pytest.skip(f"{loader} is not installed")
    ran = run(stores / store, "--loader", loader, "--pattern", "whole", "--seconds", 0.01, "--json")
    [row] = rows_of(ran)
    assert row["refused"] is None and row["frames"] == 75 * row["sequences"] // 3, row


def test_a_training_loop_over_the_loader(stores):
    training = Training(place_of(stores / "burst"), "PrefetchLoader", 4, 2, 1, 0.005, 0.1, 0)
    found = train(training, lambda: None)
    assert len(found.iteration_seconds) >= 10 and found.frame_size == "96x64"
    assert min(found.iteration_seconds) >= 0.005 and found.synthetic_seconds >= 0.005
    assert 0 < found.of_synthetic <= 1 and found.peak_bytes > 10_000_000


def test_overhead_and_stragglers_follow_from_the_series():
    found = TrainingTimes([0.010] * 8 + [0.040, 0.030], 0.010, 0.5, 1.0, 1, "1x1")
    assert found.overhead_seconds == pytest.approx(0.005)
    assert found.of_synthetic == pytest.approx(10 / 15)
    assert found.stragglers == [8]  # exactly three times the median is none


def test_the_advice_is_the_least_that_is_good_enough():
    tried = [
        TrainingPoint(1, 8, 50.0),
        TrainingPoint(2, 4, 90.0),
        TrainingPoint(2, 8, 96.0),
        TrainingPoint(2, 16, 100.0),
        TrainingPoint(4, 4, 99.0),
    ]
    assert advise(tried) == TrainingPoint(2, 8, 96.0)


@pytest.mark.long
def test_ctrl_c_ends_it_and_leaves_neither_process_nor_file(stores, tmp_path):
    group = subprocess.Popen(
        command(stores / "h264", "--loader", "vidprep", "--seconds", 60, "--out", tmp_path / "page", verb="bench"),
        # Interrupted while it reads a module, the interpreter leaves a file of its own open.
        env=environment() | {"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "error,ignore::ResourceWarning"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell's background jobs, which the tests may be, ignore SIGINT, and what they start inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert group.stdout is not None
    assert group.stdout.readline().startswith("store ")
    os.killpg(group.pid, signal.SIGINT)
    _, err = group.communicate(timeout=300)
    assert group.returncode == 130
    assert "vidprep: interrupted; nothing was written" in err and "Traceback" not in err
    assert not list((tmp_path / "page").iterdir())
    no_processes_left(group.pid, seconds=5)
