"""What trainers take of a video: worked numbers of their threads, and the readers themselves where they are installed."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import cv2
import imageio_ffmpeg
import pytest

from tests.helpers import transcode
from tests.numbered_pictures import constant, write
from vidprep.formats import open_store
from vidprep.formats.errors import StoreError
from vidprep.transcode import pack, validate
from vidprep.transcode.check.trainers import READERS, Header, difference, differences


def header(frames: int, rate: int) -> Header:
    return Header(frames, Fraction(rate), Fraction(frames, rate))


def test_a_duration_of_10_ms_loses_a_frame() -> None:
    """The counts 4n+1 up to 161: at 16 fps all of them but 1, at 24 and 30 fps one of three."""
    counts = range(5, 162, 4)
    old = READERS["old-diffusion-pipe-wan"]
    assert old.taken(header(49, 16)) == 45
    assert sum(old.count(header(count, 16)) < count for count in counts) == len(counts)
    assert all(old.taken(header(count + 1, 16)) == count for count in counts)
    assert sum(math.floor(24 * header(count, 24).printed_seconds) < count for count in counts) == 13
    assert sum(math.floor(30 * header(count, 30).printed_seconds) < count for count in counts) == 13


@pytest.mark.parametrize(
    ("name", "frames", "rate", "counted", "taken"),
    [
        ("musubi-tuner", 49, 24, 49, 49),
        ("musubi-tuner", 50, 24, 50, 49),
        ("diffusion-pipe-wan", 49, 16, 49, 49),
        ("diffusion-pipe-wan", 77, 24, 51, 49),
        ("diffusion-pipe-ltx", 49, 25, 49, 49),
        ("diffusion-pipe-ltx2", 50, 24, 50, 49),
        ("ltx-video-trainer", 90, 24, 90, 89),
        ("cosmos-predict2", 93, 16, 92, 89),
        ("cosmos-predict2", 94, 16, 93, 93),
        ("vjepa2-4fps", 64, 16, 16, 16),
        ("vjepa2-4fps", 64, 30, 9, 9),
        ("vjepa2-4fps", 64, 3, 0, 0),
    ],
)
def test_what_is_counted_and_taken(name: str, frames: int, rate: int, counted: int, taken: int) -> None:
    reader = READERS[name]
    assert (reader.count(header(frames, rate)), reader.taken(header(frames, rate))) == (counted, taken)


@pytest.mark.parametrize(
    ("frames", "rate", "says"),
    [
        (120, 16, ""),
        (
            60,
            16,
            "60 frames, of which it takes 15: fewer than a clip of 16, so the last one repeats, or the video is left out",
        ),
        (60, 3, "60 frames, counted as 0: dropped"),
    ],
)
def test_clips_of_16_frames(frames: int, rate: int, says: str) -> None:
    assert difference("vjepa2-4fps", header(frames, rate), (128, 96)) == says


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trainers")
    for frames in (49, 50, 53, 81):
        write(root / "raw" / f"{frames}.mp4", constant(frames, 16))
    assert transcode(root / "raw", root / "ready", "--fps", "16").code == 0
    return root / "ready"


def test_durations_are_those_that_imageio_reads(store: Path) -> None:
    for id_ in open_store(store).ids:
        path = store / f"{id_}.mp4"
        video = cv2.VideoCapture(str(path))
        frames = int(video.get(cv2.CAP_PROP_FRAME_COUNT))
        read = imageio_ffmpeg.read_frames(str(path))
        assert next(read)["duration"] == header(frames, 16).printed_seconds
        read.close()


def test_validate_names_the_videos(store: Path, tmp_path: Path) -> None:
    report = validate(store, trainer="old-diffusion-pipe-wan")
    assert {line.partition(":")[0] for line in report.trainer} >= {"49", "53", "81"}
    assert "49: 49 frames, counted as 48: shortened to 45; one more frame makes up for it" in report.trainer
    ran = transcode(store, "--trainer", "musubi-tuner", verb="validate")
    assert ran.code == 0
    assert "musubi-tuner: 50: 50 frames, counted as 50: shortened to 49" in ran.out
    assert "musubi-tuner drops, repeats or crops something of 1 video" in ran.err
    assert [*differences(open_store(store), "ltx-video-trainer")]
    pack(store, tmp_path / "shards", to="shards")
    with pytest.raises(StoreError, match="pack --to clips"):
        validate(tmp_path / "shards", trainer="musubi-tuner")
    pack(tmp_path / "shards", tmp_path / "clips", to="clips")
    report = validate(tmp_path / "clips", trainer="musubi-tuner")
    assert report.trainer == ["50.mp4: 50 frames, counted as 50: shortened to 49"]
    assert transcode(store.parent / "raw", tmp_path / "frames", verb="burst").code == 0
    with pytest.raises(StoreError, match="files of encoded videos"):
        validate(tmp_path / "frames", trainer="musubi-tuner")
