"""Edit lists of MP4 are followed as ISO/IEC 14496-12, 8.6.6 has them, or the file is refused."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import transcode
from tests.numbered_pictures import constant, number_on, numbers_in, write
from tests.pipeline import source_frames
from vidprep.formats import VideoFiles, open_store
from vidprep.formats.errors import RefusedError, StoreError
from vidprep.formats.video.source import Source

RATE, TICKS, MOVIE = 25, 3600, 1000  # frames a second; ticks of the media a frame; ticks of the movie a second
FRAME = MOVIE // RATE


def boxed(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), kind) + content


def edited(path: Path, edits: Sequence[tuple[int, int, float]], **options: str) -> Path:
    """60 pictures at 25 a second with these edits: duration in 1/1000 s, start in 1/90000 s of the media, rate."""
    write(path, constant(60, RATE), rate=Fraction(RATE), **options)
    data = path.read_bytes()
    at = data.rindex(b"moov") - 4
    assert at + int.from_bytes(data[at : at + 4], "big") == len(data), "the index is not last"
    moov = bytearray(data[at:])
    begin = moov.index(b"mvhd") - 4
    scale = int.from_bytes(moov[begin + 20 : begin + 24], "big") // MOVIE
    rows = b"".join(struct.pack(">IiI", duration * scale, at, round(rate * 65536)) for duration, at, rate in edits)
    edts = boxed(b"edts", boxed(b"elst", struct.pack(">II", 0, len(edits)) + rows))
    total = struct.pack(">I", sum(duration for duration, _, _ in edits) * scale)
    head = moov.index(b"tkhd") - 4
    moov[head + 28 : head + 32] = total
    moov[begin + 24 : begin + 28] = total
    there = moov.find(b"edts") - 4
    if there > 0:
        old = int.from_bytes(moov[there : there + 4], "big")
        moov[there : there + old] = edts
        grown = len(edts) - old
    else:
        there = head + int.from_bytes(moov[head : head + 4], "big")
        moov[there:there] = edts
        grown = len(edts)
    for name in (b"moov", b"trak"):
        place = moov.index(name) - 4
        moov[place : place + 4] = (int.from_bytes(moov[place : place + 4], "big") + grown).to_bytes(4, "big")
    path.write_bytes(data[:at] + moov)
    return path


def shown(path: Path) -> list[tuple[int | None, float]]:
    """The number of each picture, and when it is shown, in frames."""
    with Source(path, max_pixels=10**6) as source:
        base = source.info.time_base
        found = [
            (number_on(f.frame.to_ndarray(format="gray")), round(float(f.pts * base * RATE), 3))
            for f in source_frames(source)
        ]
        assert source.damage(read_to_end=True) == []
    return found


@pytest.mark.parametrize("b_frames", [0, 2])
def test_parts_of_the_media_are_shown_one_after_the_other(b_frames: int, tmp_path: Path) -> None:
    """With B-frames all parts but the first were 40 ms late."""
    first = 2 * TICKS if b_frames else 0  # when the first picture is shown in the media
    parts = [(5, 15), (27, 37), (50, 55), (5, 9)]
    edits = [((end - begin) * FRAME, first + begin * TICKS, 1.0) for begin, end in parts]
    path = edited(tmp_path / "a.mp4", edits, bf=str(b_frames), g="12", b_pyramid="none", preset="veryfast")
    numbers = [number for begin, end in parts for number in range(begin, end)]
    assert shown(path) == [(number, place) for place, number in enumerate(numbers)]


def test_an_edit_that_begins_inside_the_first_frame_shows_it(tmp_path: Path) -> None:
    """7 ms into frame 0: frame 0 was dropped."""
    path = edited(tmp_path / "src" / "a.mp4", [(2393, 630, 1.0)], bf="0")
    assert [number for number, _ in shown(path)] == list(range(60))
    for name, options in {"av": (), "ffmpeg": ("--engine", "ffmpeg"), "burst": ()}.items():
        verb = "burst" if name == "burst" else "transcode"
        ran = transcode(tmp_path / "src", tmp_path / name, *options, verb=verb)
        assert ran.code == 0, ran.err
        assert numbers_in(tmp_path / name) == {"a": list(range(60))}
    video = VideoFiles([path])
    pictures = video[video.ids[0]].frames([0, 1, 30, 59])
    assert [number_on(np.asarray(picture)) for picture in pictures] == [0, 1, 30, 59]
    (tmp_path / "cut.csv").write_text("path,id,start,end\nsrc/a.mp4,x,0,0.4\n")
    assert transcode(tmp_path / "cut.csv", tmp_path / "cut").code == 0
    assert numbers_in(tmp_path / "cut") == {"x": list(range(10))}
    assert len(open_store(tmp_path / "cut")["x"]) == 10


@pytest.mark.parametrize(
    ("edits", "what"),
    [
        ([(400, 0, 1.0), (1000, -1, 1.0), (400, 10 * TICKS, 1.0)], "pauses"),
        ([(400, 0, 1.0), (1000, 10 * TICKS, 0.0), (400, 10 * TICKS, 1.0)], "holds a picture"),
        ([(400, 0, 1.0), (1600, 10 * TICKS, 0.5), (400, 30 * TICKS, 1.0)], "changes speed"),
    ],
)
def test_a_list_that_nobody_shows_is_refused(edits: list[tuple[int, int, float]], what: str, tmp_path: Path) -> None:
    """Of 20 pictures 45 came out, others among them, and nothing said so."""
    path = edited(tmp_path / "src" / "a.mp4", edits, bf="0")
    with pytest.raises(RefusedError, match=f"its edit list {what}"):
        Source(path, max_pixels=10**6)
    for verb in ("transcode", "burst"):
        ran = transcode(tmp_path / "src", tmp_path / verb, "--json", verb=verb)
        assert ran.code == 1 and f"its edit list {what}" in ran.rows["a"]["message"]
    with pytest.raises(StoreError, match=what):
        files = VideoFiles([path])
        files[files.ids[0]].frames([0])


def test_pauses_around_what_is_shown_are_none(tmp_path: Path) -> None:
    path = edited(tmp_path / "a.mp4", [(500, -1, 1.0), (400, 0, 1.0)], bf="0")
    assert [number for number, _ in shown(path)] == list(range(10))


def test_a_pause_before_an_edit_that_begins_inside_the_first_frame_hides_it_neither(tmp_path: Path) -> None:
    path = edited(tmp_path / "a.mp4", [(500, -1, 1.0), (2393, 630, 1.0)], bf="0")
    assert [number for number, _ in shown(path)] == list(range(60))
