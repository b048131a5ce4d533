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

from tests.formats.stores.test_video_store import write_video
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


def test_an_id_in_two_shards_is_refused(tmp_path):
    for name in ("x.tar", "y.tar"):
        write_tar(tmp_path / name, {"a.0.jpg": JPEGS[0]})
    with pytest.raises(StoreError, match=r"y\.tar.*a appears twice"):
        open_store(tmp_path)


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size
    return made


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (member("../up.0.jpg"), "../up.0.jpg (leads out"),
        (member("a/../../up.0.jpg"), "a/../../up.0.jpg (leads out"),
        (member("/etc/abs.0.jpg"), "/etc/abs.0.jpg (leads out"),
        (member("link.0.jpg", tarfile.SYMTYPE, "/etc/passwd"), "link.0.jpg (no plain file"),
        (member("hard.0.jpg", tarfile.LNKTYPE, "a.0.jpg"), "hard.0.jpg (no plain file"),
        (member("device.0.jpg", tarfile.CHRTYPE), "device.0.jpg (no plain file"),
        (member("fifo.0.jpg", tarfile.FIFOTYPE), "fifo.0.jpg (no plain file"),
        (member("a.0.jpg"), "a.0.jpg (there twice"),
        (member("huge.json", size=2**40), f"the header of huge.json says {2**40} bytes"),
    ],
    ids=lambda value: value.name if isinstance(value, tarfile.TarInfo) else "",
)
def test_a_tar_with_names_outside_is_refused_and_they_are_listed(odd, said, tmp_path):
    """The first member is good and the last is not, so all of it is looked at; nothing is ever unpacked."""
    write_tar(tmp_path / "x.tar", {"a.0.jpg": JPEGS[0], "b.0.jpg": JPEGS[1]})
    assert list(open_store(tmp_path).ids) == ["a", "b"]
    with tarfile.open(tmp_path / "x.tar", "a") as tar:
        header = odd.tobuf(tar.format, tar.encoding, tar.errors)  # addfile wants as many bytes as it says
        tar.fileobj.write(header)
        tar.offset += len(header)
    with pytest.raises(StoreError) as error:
        open_store(tmp_path)
    assert said in str(error.value) and str(tmp_path / "x.tar") in str(error.value)


def test_members_of_a_tar_that_are_refused_are_counted_beyond_the_first_five(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for number in range(8):
            tar.addfile(member(f"../{number}.0.jpg"))
    with pytest.raises(StoreError, match=r"\.\./0\.0\.jpg .*\.\./4\.0\.jpg .* and 3 more"):
        open_store(tmp_path)


@pytest.mark.parametrize(
    "about",
    [
        {"frame_rate": [25, 0]},
        {"frame_rate": 25},
        {"frame_rate": ["x", 1]},
        {"time_base": [1, 0]},
        {"num_frames": "12"},
        {"gop": "4"},
        {"num_frames": None},
        {"gop": float("nan")},
    ],
)
def test_a_json_that_makes_no_sense_is_an_error_that_names_the_tar(about, tmp_path):
    path = tmp_path / "v.mp4"
    write_video(path, codec="libx264")
    good = {"id": "v", "frame_rate": [25, 1], "num_frames": 12, "width": 96, "height": 64, "gop": 4}
    (tmp_path / "tar").mkdir()
    for extra in ({}, about):
        members = {"v.json": json.dumps(good | extra).encode(), "v.mp4": path.read_bytes()}
        write_tar(tmp_path / "tar" / "x.tar", members)
        if not extra:
            assert len(open_store(tmp_path / "tar")["v"]) == 12
            continue
        with pytest.raises(StoreError, match=r"x\.tar: v: its \.json is not valid"):
            open_store(tmp_path / "tar")["v"]


def test_sizes_in_a_json_that_are_none_give_way_to_those_of_the_picture(tmp_path):
    for size in ("48", None, [48]):
        about = json.dumps({"width": size, "height": size}).encode()
        write_tar(tmp_path / "x.tar", {"a.0.jpg": JPEGS[0], "a.json": about})
        assert np.array_equal(open_store(tmp_path)["a"].frames()[0], simplejpeg.decode_jpeg(JPEGS[0]))
    write_tar(tmp_path / "x.tar", {"a.0.jpg": JPEGS[0], "a.json": json.dumps({"width": -1, "height": 9**99}).encode()})
    with pytest.raises(StoreError, match="pixels"):
        open_store(tmp_path)["a"]


@pytest.mark.parametrize("suffix", ["mp4", "webm"])
def test_a_video_inside_a_shard_is_read_in_place(suffix, tmp_path):
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
