"""Every store, one interface: the contract, and the right frames as others see them."""

from __future__ import annotations

import io
import math
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from tests.formats.conftest import ENCODED, STORED, burst
from tests.helpers import LARGE_MEDIA, transcode, with_peers
from tests.sampling import in_turn
from vidprep.formats import FrameStore, open_store
from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.table import read_manifest
from vidprep.formats.stores._index import FrameIndex


def test_ids_labels_and_lengths_are_those_of_the_manifest(store, folder):
    rows = {row.id: row for row in read_manifest(folder)}
    assert list(store.ids) == sorted(rows)
    assert len(store) == 4
    assert "sub/c00" in store
    assert "sub/c99" not in store
    for name, row in rows.items():
        video = store[name]
        assert len(video) == row.num_frames
        assert store.labels(name) == {"label": "sub"}
        assert video.frames([0]).shape == (1, row.height, row.width, 3)
        rate = Fraction(row.frame_rate_num, row.frame_rate_den)
        np.testing.assert_allclose(video.timestamps, [float(n / rate) for n in range(len(video))], atol=0.001)


def test_any_order_gives_the_frames_of_sequential_reading(store):
    for name in store.ids:
        video = store[name]
        count = len(video)
        every = video.frames()
        assert len({frame.tobytes() for frame in every}) > 20, "no two frames of these clips are equal"
        choices = random.Random(name)
        for wanted in (
            range(count),
            range(count - 1, -1, -1),
            [-1, 0, -count],
            [3] * 4,
            [7, 2, 7, -1, 2],
            [],
            range(2, 20, 6),
            choices.sample(range(count), count),
            [choices.randrange(-count, count) for _ in range(30)],
            [np.int64(5), np.uint8(6)],
        ):
            assert np.array_equal(video.frames(wanted), every[[int(n) for n in wanted]] if len(wanted) else every[:0])
        for cut in (slice(None, None, -1), slice(4, 9), slice(-3, None), slice(1, None, 5), slice(9, 4)):
            assert np.array_equal(video.frames(cut), every[cut])
        for single in choices.sample(range(count), 5):
            assert np.array_equal(video.frames([single])[0], every[single])


def test_several_videos_in_one_call(store):
    names = list(store.ids)
    read = store.read([(names[2], [5, 1]), (names[0], slice(0, 3)), (names[2], [0])])
    assert [len(frames) for frames in read] == [2, 3, 1]
    assert np.array_equal(read[0][1], store[names[2]].frames([1])[0])


def test_a_video_is_indexed_and_iterated_like_a_list_of_frames(store):
    video = store[store.ids[1]]
    every = video.frames()
    assert np.array_equal(video[5], every[5])
    assert np.array_equal(video[np.int64(-1)], every[-1])
    assert np.array_equal(video[2:9:3], every[2:9:3])
    assert np.array_equal(video[[4, 4, 0]], every[[4, 4, 0]])
    together = list(video)
    assert len(together) == len(video)
    assert np.array_equal(np.stack(together), every)
    with pytest.raises(IndexError, match="frame 99 of"):
        _ = video[99]
    with pytest.raises(TypeError):
        _ = video[1.5]


def test_frames_go_into_an_array_of_the_caller(store):
    video = store["sub/c01"]
    out = np.zeros((3, video.facts.height, video.facts.width, 3), np.uint8)
    assert video.frames([1, 4, 1], out=out) is out
    assert np.array_equal(out, video.frames([1, 4, 1]))
    with pytest.raises(ValueError, match=r"\(2, .*expected"):
        video.frames([1, 2], out=out)
    with pytest.raises(ValueError, match="float32"):
        video.frames([1, 4, 1], out=out.astype(np.float32))
    with pytest.raises(ValueError, match="not C-contiguous"):
        video.frames([1, 4, 1], out=out[:, ::-1])


def test_missing_names_are_reported(store):
    with pytest.raises(KeyError, match="nothing"):
        store["nothing"]
    with pytest.raises(KeyError, match="nothing"):
        store.labels("nothing")
    video = store["sub/c00"]
    for number in (len(video), -len(video) - 1):
        with pytest.raises(IndexError, match=f"frame {number} of sub/c00, which has {len(video)}"):
            video.frames([number])
    for wrong in ([1.5], "3", 3):
        with pytest.raises(TypeError, match="give a list of frame numbers"):
            video.frames(wrong)
    with pytest.raises(ValueError, match=r"size is 112; give \(height, width\)"):
        video.frames([0], size=112)
    for like in ("sub/c0", "sub/c00.mp4"):
        with pytest.raises(KeyError, match="did you mean 'sub/c0"):
            store[like]
    assert list(store) == list(store.ids)


def digest(store: FrameStore, name: str) -> bytes:
    return store[name].frames([3, 9, -1]).tobytes()


WITHOUT_PANDAS = """
import sys
from vidprep.formats.training.dataset import VideoDataset
from vidprep.formats import open_store
from vidprep.transcode.cli.main import main
store = open_store(sys.argv[1])
assert len(store.sizes()) == len(store.ids) == len([store[id_].frames([0]) for id_ in store.ids])
VideoDataset(sys.argv[1], sequence_length=2)[0]
try:
    main(["validate", sys.argv[1]])
except SystemExit as ended:
    print(ended.code, "pandas" in sys.modules)
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", in_turn(["burst", "h264"], 2))
def test_reading_a_store_imports_no_pandas(kind, store_of):
    """pyarrow looks for it with its first array, and each worker of a loader would pay two seconds of CPU time."""
    pytest.importorskip("pandas")
    command = [sys.executable, "-c", WITHOUT_PANDAS, store_of(kind)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["0", "False"], done.stderr


IN_ANOTHER = "import pickle, sys; store = pickle.load(sys.stdin.buffer); sys.stdout.buffer.write(store['sub/c02'].frames([3, 9, -1]).tobytes())"


@pytest.mark.parametrize("folder", in_turn([*STORED, *ENCODED], 5), indirect=True)
def test_a_store_goes_to_other_processes_as_a_pickle(store):
    expected = digest(store, "sub/c02")
    done = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER], input=pickle.dumps(store), capture_output=True, check=False, timeout=300
    )
    assert done.stdout == expected, done.stderr
    again = pickle.loads(pickle.dumps(store))
    assert list(again.ids) == list(store.ids)
    assert digest(again, "sub/c02") == expected


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_store_that_was_read_from_is_read_from_in_a_fork(store, tmp_path):
    expected = digest(store, "sub/c02")
    child = os.fork()
    if not child:
        signal.alarm(30)
        (tmp_path / "read").write_bytes(digest(store, "sub/c02"))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert (tmp_path / "read").read_bytes() == expected
    assert digest(store, "sub/c02") == expected


@pytest.mark.long
def test_few_files_stay_open(store_of, tmp_path):
    for number in range(12):
        for each in store_of("h264").rglob("*.mp4"):
            copy = tmp_path / f"{number:02d}" / each.name
            copy.parent.mkdir(exist_ok=True)
            shutil.copy(each, copy)
    src = tmp_path
    assert transcode(src, tmp_path.parent / f"{tmp_path.name}-dst", "--gop", 5).code == 0
    store = open_store(tmp_path.parent / f"{tmp_path.name}-dst")
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
    for name in store.ids:
        store[name].frames([2])
    if before:
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 16
    assert len(store.ids) == 48


@pytest.mark.long
@pytest.mark.media
@pytest.mark.parametrize(
    ("left_out", "count"),
    [pytest.param(["bad"], 40, marks=pytest.mark.slow), (["bad", *LARGE_MEDIA], 29)],
    ids=["all", "small"],
)
def test_every_real_clip_reads_the_same_in_any_order(left_out, count, shared_media, tmp_path):
    """Encoded and in every store; the order is forwards, backwards, shuffled, and shuffled in another process."""
    small = ["--short-side", 64, "--fps", 5, "--quiet", *(part for glob in left_out for part in ("--exclude", glob))]
    assert transcode(shared_media, tmp_path / "h264", *small, "--gop", 5).code == 0
    assert burst(shared_media, tmp_path / "burst", *small).code == 0
    for kind in ("gulp", "webdataset", "tensor"):
        assert transcode(tmp_path / "burst", tmp_path / kind, "--to", kind, verb="pack").code == 0
    for kind in ("h264", "burst", "gulp", "webdataset", "tensor"):
        store = open_store(tmp_path / kind)
        assert len(store) == count
        for id_ in store.ids:
            video = store[id_]
            every = video.frames()
            order = random.Random(id_).sample(range(len(video)), min(12, len(video)))
            assert np.array_equal(video.frames(slice(None, None, -1)), every[::-1]), id_
            assert np.array_equal(video.frames(order), every[order]), id_
            assert np.array_equal(np.concatenate([video.frames([number]) for number in order]), every[order]), id_
        program = IN_ANOTHER.replace("sub/c02", store.ids[0]).replace("[3, 9, -1]", "[-1, 0]")
        done = subprocess.run(
            [sys.executable, "-c", program], input=pickle.dumps(store), capture_output=True, check=True, timeout=300
        )
        assert done.stdout == store[store.ids[0]].frames([-1, 0]).tobytes()


@pytest.mark.parametrize("kind", [*STORED, *ENCODED])
def test_frames_are_those_of_the_source(kind, store_of, cli):
    """Coarse blocks of random colour: a frame too early, a wrong matrix or swapped channels would be far off."""
    store = open_store(store_of(kind))
    source = store_of("h264").parent / "src" / "sub" / "c01.mp4"
    reference = cli.raw(source, "scale=in_color_matrix=bt601:out_range=full", 96, 64, "rgb24").reshape(-1, 64, 96, 3)
    ours = store["sub/c01"].frames()
    if kind == "burst gray":
        reference = (reference @ [0.299, 0.587, 0.114]).round().astype(np.uint8)[..., None].repeat(3, -1)
    if kind == "slow":
        assert len(ours) > len(reference)
        reference = reference[[min(int(n * 25 * 1001 / 30000 + 0.49999), 21) for n in range(len(ours))]][:2]
        ours = ours[:2]
    error = np.abs(ours.astype(int) - reference).mean((1, 2, 3))
    assert error.max() < 12, error
    assert np.abs(ours.mean((0, 1, 2)) - reference.mean((0, 1, 2))).max() < 4


def test_pillow_reads_a_picture_cut_out_with_the_index(store_of):
    folder = store_of("burst")
    store, index = open_store(folder), FrameIndex(folder, "burst")
    places = index.places("sub/c03")
    for number in (0, 7, len(places.sizes) - 1):
        data = (folder / places.shard).read_bytes()[
            places.offsets[number] : places.offsets[number] + places.sizes[number]
        ]
        theirs = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        ours = store["sub/c03"].frames([number])[0]
        assert np.abs(theirs.astype(int) - ours).max() <= 4  # Pillow's libjpeg may upsample another way
    index.close()


def test_jpegs_are_decoded_smaller_when_asked(store_of):
    for kind in ("burst", "gulp", "webdataset"):
        full = open_store(store_of(kind))["sub/c00"]
        small = open_store(store_of(kind), short_side=30)["sub/c00"]
        assert small.frames([0]).shape == (1, 32, 48, 3)
        shrunk = full.frames([0])[0].reshape(32, 2, 48, 2, 3).mean((1, 3))
        assert np.abs(small.frames([0])[0] - shrunk).mean() < 8
        assert open_store(store_of(kind), short_side=64)["sub/c00"].frames([0]).shape == (1, 64, 96, 3)


class GulpAdapter:
    """What GulpIO2's ingestor asks of a dataset; it is pickled to its workers."""

    pictures = np.random.default_rng(3).integers(0, 255, (2, 5, 6, 8, 3), np.uint8).repeat(8, 2).repeat(8, 3)

    def __len__(self) -> int:
        return len(self.pictures)

    def iter_data(self, slice_element=None):
        for number in range(len(self))[slice_element or slice(None)]:
            yield {"id": f"v{number}", "frames": list(self.pictures[number]), "meta": {"label": number}}


def test_fast_decoding_is_that_of_gulpio2(store_of):
    for kind in ("burst", "gulp", "webdataset"):
        store = open_store(store_of(kind), fast=True)
        data = store.stored_jpegs("sub/c01")[4]
        assert np.array_equal(
            store["sub/c01"].frames([4])[0], simplejpeg.decode_jpeg(data, fastdct=True, fastupsample=True)
        )
    with pytest.raises(StoreError, match="JPEGs"):
        open_store(store_of("tensor"), fast=True)


def test_gulpio2s_own_ingestor_is_read(tmp_path):
    gulpio2 = pytest.importorskip("gulpio2")
    pictures = GulpAdapter.pictures
    gulpio2.GulpIngestor(GulpAdapter(), str(tmp_path / "gulp"), videos_per_chunk=1, num_workers=1)()
    store = open_store(tmp_path / "gulp")
    assert list(store.ids) == ["v0", "v1"]
    assert store.labels("v1") == {"label": 1}
    read = gulpio2.GulpDirectory(str(tmp_path / "gulp"))
    for number, name in enumerate(store.ids):
        ours = store[name].frames()
        assert np.abs(ours.astype(int) - pictures[number]).mean() < 12
        assert len(read[name][0]) == len(ours)


def test_tar_shards_of_others_are_read(tmp_path):
    pictures = np.random.default_rng(3).integers(0, 255, (3, 6, 8, 3), np.uint8).repeat(8, 1).repeat(8, 2)
    with tarfile.open(tmp_path / "x-0.tar", "w") as tar:
        for number, picture in enumerate(pictures):
            data = simplejpeg.encode_jpeg(picture, 100)
            member = tarfile.TarInfo(f"a/b.{number:03d}.jpg")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    store = open_store(tmp_path)
    assert list(store.ids) == ["a/b"]
    assert np.array_equal(store["a/b"].frames([2]), store["a/b"].frames()[2:])
    assert np.abs(store["a/b"].frames().astype(int) - pictures).mean() < 12


def test_frames_at_times_are_those_that_are_shown_then(store):
    video = store[store.ids[1]]
    begins, end = video.timestamps, video.end_seconds
    times = [
        float(begins[5]),
        float(begins[0]),
        float(begins[3] + begins[4]) / 2,
        float(begins[-1]),
        (float(begins[-1]) + end) / 2,
    ]
    assert np.array_equal(video.frames_at(times), video.frames([5, 0, 3, -1, -1]))
    assert video.frames_at([]).shape == video.frames([]).shape
    for wrong in (-0.1, end, end + 5, math.nan):
        with pytest.raises(IndexError, match=re.escape(f"{video.id} shows no frame at {wrong:g} s")):
            video.frames_at([0, wrong])


PLAYED_AT = """
import sys
import numpy as np
from torchcodec.decoders import VideoDecoder
from vidprep.formats import open_store
for folder in sys.argv[1:]:
    store = open_store(folder)
    for id_ in store.ids:
        video, decoder = store[id_], VideoDecoder(str(store.file(id_)), seek_mode="exact")
        first = float(decoder.get_frame_at(0).pts_seconds)
        times = np.random.default_rng(0).uniform(0, float(video.timestamps[-1]), 60)
        short = video.timestamps.searchsorted(times + float(video.tolerance.seconds), "right")
        times = times[short == video.timestamps.searchsorted(times, "right")]  # others mean the next frame, with us
        shown = decoder.get_frames_played_at((times + first).tolist()).pts_seconds.numpy() - first
        numbers = [int(np.argmin(np.abs(video.timestamps - time))) for time in shown]
        print(np.array_equal(video.frames_at(times.tolist()), video.frames(numbers)))
"""


@pytest.mark.long
def test_frames_at_times_are_those_of_torchcodec(store_of):
    told = with_peers(PLAYED_AT, store_of("h264"), store_of("h264 own times"), needs=["torch", "torchcodec"])
    assert {*told.splitlines()} == {"True"}
