"""Burst stores put together by hand: bounds, damage, and files that close."""

from __future__ import annotations

import gc
import io
import json
import subprocess
import sys
import tarfile
import threading
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from vidprep.formats import open_store
from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.labels import Labels
from vidprep.formats.stores._index import IndexedVideo, write_index

PICTURES = np.random.default_rng(0).integers(0, 255, (5, 6, 8, 3), np.uint8).repeat(8, 1).repeat(8, 2)
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")


def write_burst(
    folder: Path,
    frames: Sequence[bytes],
    *,
    offsets: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
    size: tuple[int, int] = (48, 64),
) -> Path:
    """A store of one video, `v`. offsets, sizes, size (height, width): what the index claims."""
    (folder / "data-00000.bin").write_bytes(b"".join(frames))
    lengths = [len(frame) for frame in frames]
    video = IndexedVideo(
        "v",
        "data-00000.bin",
        size[1],
        size[0],
        Fraction(25),
        np.arange(len(frames)),
        Fraction(1, 25),
        np.array(offsets or np.cumsum([0, *lengths[:-1]]), np.int64),
        np.array(sizes or lengths, np.int32),
        np.array([zlib.crc32(frame) for frame in frames], np.uint32),
        None,
    )
    list(write_index(folder, "burst", [video], labels=Labels(()), about={}))
    return folder


@pytest.fixture
def jpegs() -> list[bytes]:
    return [bytes(simplejpeg.encode_jpeg(picture, 90)) for picture in PICTURES]


@pytest.mark.parametrize(("mode", "subsampling"), [("RGB", 0), ("RGB", 1), ("RGB", 2), ("L", 0)])
def test_jpegs_of_others_are_read(mode, subsampling, tmp_path):
    """4:4:4, 4:2:2, 4:2:0 and grey, by Pillow."""
    frames = []
    for picture in PICTURES:
        data = io.BytesIO()
        Image.fromarray(picture).convert(mode).save(data, "jpeg", quality=95, subsampling=subsampling)
        frames.append(data.getvalue())
    ours = open_store(write_burst(tmp_path, frames))["v"].frames()
    theirs = np.stack([np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in frames])
    assert np.abs(ours.astype(int) - theirs).mean() < 1


def test_the_properties_of_a_video(tmp_path, jpegs):
    video = open_store(write_burst(tmp_path, jpegs))["v"]
    assert (video.height, video.width, video.frame_rate, video.keyframes) == (48, 64, 25, None)
    assert video.timestamps.tolist() == [0, 0.04, 0.08, 0.12, 0.16]


@pytest.mark.parametrize(
    ("offsets", "sizes"),
    [([-7, 0, 0, 0, 0], None), ([2**40] * 5, None), ([2**62] * 5, None), (None, [-1] * 5), (None, [2**31 - 1] * 5)],
)
def test_a_hostile_index_is_refused_before_anything_is_read(offsets, sizes, tmp_path, jpegs):
    store = open_store(write_burst(tmp_path, jpegs, offsets=offsets, sizes=sizes))
    with pytest.raises(
        StoreError, match=r"data-00000\.bin: (frame 0 of v: .* at offset|ends at byte .*, and was .* long)"
    ):
        store["v"].frames([0])


def test_a_flipped_byte_of_a_shard_is_named_by_video_frame_and_offset(tmp_path, jpegs):
    store, path = open_store(write_burst(tmp_path, jpegs)), tmp_path / "data-00000.bin"
    data = path.read_bytes()
    starts = np.cumsum([0, *map(len, jpegs)])
    for place in range(0, len(data), 13):
        broken = bytearray(data)
        broken[place] ^= 1 << place % 8
        path.write_bytes(broken)
        frame = int(np.searchsorted(starts, place, "right")) - 1
        with pytest.raises(StoreError, match=rf"data-00000\.bin: frame {frame} of v at offset {starts[frame]} "):
            store["v"].frames()


def of_size(jpeg: bytes, width: int, height: int) -> bytes:
    """With another size in its header."""
    at = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + jpeg[at + 4 :]


def of_scans(count: int) -> bytes:
    """A progressive picture whose last scan stands there again and again."""
    data = io.BytesIO()
    Image.fromarray(PICTURES[0]).save(data, "jpeg", progressive=True)
    whole = data.getvalue()
    last = whole[whole.rindex(b"\xff\xda") : -2]
    return whole[:-2] + last * (count - whole.count(b"\xff\xda")) + whole[-2:]


# Reads the frames of a store with little memory to be had, and tells what it is refused with.
READ_WITHIN = """
import resource, sys, time
import vidprep.formats.stores.burst
from vidprep.formats.errors import StoreError
from vidprep.formats import open_store
began = time.process_time()
size = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (size + 300_000_000, size + 300_000_000))
try:
    open_store(sys.argv[1])["v"].frames()
except StoreError as error:
    print(error)
print(time.process_time() - began)
"""


@needs_proc
@pytest.mark.parametrize("kind", ["burst", "gulp", "webdataset"])
@pytest.mark.parametrize(
    ("what", "said"), [("65500x65500", "limit of 268435456 pixels"), ("1000 scans", "1000 scans, over")]
)
def test_a_jpeg_that_is_a_bomb_is_refused_within_little_memory(kind, what, said, tmp_path, jpegs):
    bomb = of_scans(1000) if "scans" in what else of_size(jpegs[0], 65500, 65500)
    size = (48, 64) if "scans" in what else (65500, 65500)
    if kind == "burst":
        write_burst(tmp_path, [bomb], size=size)
    elif kind == "gulp":
        (tmp_path / "data_0.gulp").write_bytes(bomb)
        entry = {"frame_info": [[0, 0, len(bomb)]], "meta_data": [{}]}
        (tmp_path / "meta_0.gmeta").write_text(json.dumps({"v": entry}))
    else:
        with tarfile.open(tmp_path / "x.tar", "w") as tar:
            member = tarfile.TarInfo("v.0.jpg")
            member.size = len(bomb)
            tar.addfile(member, io.BytesIO(bomb))
    command = [sys.executable, "-c", READ_WITHIN, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    told, seconds = done.stdout.splitlines()
    assert said in told
    assert float(seconds) < 5


def test_as_many_scans_as_encoders_make_are_read(tmp_path):
    video = open_store(write_burst(tmp_path, [of_scans(10), of_scans(100)]))["v"]
    assert np.abs(video.frames([0])[0].astype(int) - PICTURES[0]).mean() < 12
    with pytest.raises(
        StoreError, match="does not decode"
    ):  # its scans contradict each other, and are few enough to be told
        video.frames([1])


def test_an_array_that_cannot_be_written_to_is_refused(tmp_path, jpegs):
    video = open_store(write_burst(tmp_path, jpegs))["v"]
    out = np.zeros((1, 48, 64, 3), np.uint8)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only") as caught:
        video.frames([0], out=out)
    assert not isinstance(caught.value, StoreError)


@needs_proc
def test_files_close_with_their_store_and_with_their_thread(tmp_path, jpegs):
    """A number from os.open closes nothing when it is forgotten: a loop over stores ran out of files."""
    folder = write_burst(tmp_path, jpegs)
    store = open_store(folder)
    store["v"].frames([0])
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        open_store(folder)["v"].frames([0])
        thread = threading.Thread(target=lambda: store["v"].frames([1]))
        thread.start()
        thread.join()
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_threads_share_a_store(tmp_path, jpegs):
    video = open_store(write_burst(tmp_path, jpegs))["v"]
    every = video.frames()
    with ThreadPoolExecutor(4) as pool:
        for number, frames in enumerate(pool.map(lambda n: video.frames([n % 5]), range(200))):
            assert np.array_equal(frames[0], every[number % 5])
