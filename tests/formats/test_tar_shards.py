"""Tar shards put together by hand: numbered pictures in any order, and videos read where they lie."""

from __future__ import annotations

import io
import json
import tarfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from tests.formats.test_video_store import write_video
from vidprep.formats import open_store
from vidprep.formats.errors import StoreError

PICTURES = np.random.default_rng(0).integers(0, 255, (12, 6, 8, 3), np.uint8).repeat(8, 1).repeat(8, 2)
JPEGS = [bytes(simplejpeg.encode_jpeg(picture, 95)) for picture in PICTURES]


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def test_pictures_are_in_the_order_of_their_numbers(tmp_path):
    """`tar --sort=name` puts 10 before 2."""
    names = sorted(f"a/b.{number}.jpg" for number in range(12))
    write_tar(tmp_path / "x.tar", {name: JPEGS[int(name.split(".")[1])] for name in names})
    frames = open_store(tmp_path)["a/b"].frames()
    assert all(np.array_equal(frame, simplejpeg.decode_jpeg(jpeg)) for frame, jpeg in zip(frames, JPEGS, strict=True))


def test_the_json_says_id_rate_and_labels(tmp_path):
    about = {"id": "a.b", "frame_rate": [30000, 1001], "label": "walk"}
    write_tar(
        tmp_path / "x.tar", {"a%2Eb.json": json.dumps(about).encode(), "a%2Eb.0.jpg": JPEGS[0], "c.0.jpeg": JPEGS[1]}
    )
    store = open_store(tmp_path)
    assert list(store.ids) == ["a.b", "c"]
    assert store.labels("a.b") == {"label": "walk"}
    assert store["a.b"].frame_rate == Fraction(30000, 1001)


def test_an_id_that_stands_in_two_shards_is_refused(tmp_path):
    for name in ("x.tar", "y.tar"):
        write_tar(tmp_path / name, {"a.0.jpg": JPEGS[0]})
    with pytest.raises(StoreError, match=r"y\.tar.*a stands there twice"):
        open_store(tmp_path)


@pytest.mark.parametrize("suffix", ["mp4", "webm"])
def test_a_video_is_read_where_it_lies_among_others(suffix, tmp_path):
    path = tmp_path / f"v.{suffix}"
    write_video(path, codec="libx264" if suffix == "mp4" else "libvpx-vp9")
    about = {"id": "v", "frame_rate": [25, 1], "num_frames": 12, "width": 96, "height": 64, "gop": 4}
    (tmp_path / "tar").mkdir()
    write_tar(
        tmp_path / "tar" / "x.tar",
        {
            "a.0.jpg": JPEGS[0],
            "v.json": json.dumps(about).encode(),
            f"v.{suffix}": path.read_bytes(),
            "w.0.jpg": JPEGS[1],
        },
    )
    (tmp_path / "v.json").write_text("")
    store = open_store(tmp_path / "tar")
    encoded = open_store(tmp_path)["v"].frames()
    assert np.array_equal(store["v"].frames(), encoded)
    assert np.array_equal(store["v"].frames([9, -1, 2]), encoded[[9, -1, 2]])
    assert store["v"].keyframes == range(0, 12, 4)
