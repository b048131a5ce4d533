"""What differs between PyAV versions, on whichever is installed; `make compat` runs the others."""

from __future__ import annotations

import ast
import struct
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
import simplejpeg

from vidprep.formats.model import Orientation
from vidprep.formats.video.picture_facts import turn_of
from vidprep.formats.video.pyav import fraction, open_input, open_output, time_base_of
from vidprep.formats.video.source import READ_OPTIONS, Source, file_url

PACKAGES = Path(__file__).parents[3]
UNSET = [
    None,
    SimpleNamespace(numerator=0, denominator=1),
    SimpleNamespace(numerator=0, denominator=0),
    SimpleNamespace(numerator=1, denominator=0),
]


@pytest.mark.parametrize("unset", UNSET)
def test_an_unset_rational_is_none_whatever_pyav_calls_it(unset):
    assert fraction(unset) is None
    with pytest.raises(ValueError, match="no time base"):
        time_base_of(SimpleNamespace(time_base=unset))


def test_rationals_of_pyav_become_fractions(tmp_path):
    path = tmp_path / "a.mp4"
    with open_output(file_url(path), format="mp4", options={}) as made:
        stream = made.add_stream("mpeg4", rate=Fraction(30000, 1001))
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for number in range(3):
            frame = av.VideoFrame.from_ndarray(np.zeros((48, 32), np.uint8), format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1001, 30000)
            made.mux(stream.encode(frame))
        made.mux(stream.encode(None))
    with open_input(file_url(path), READ_OPTIONS) as read:
        stream = read.streams.video[0]
        assert type(fraction(stream.average_rate)) is Fraction
        assert fraction(stream.average_rate) == Fraction(30000, 1001)
        assert type(time_base_of(stream)) is Fraction
        assert {time_base_of(packet) for packet in read.demux(stream)} == {time_base_of(stream)}


def test_metadata_that_is_no_utf_8_does_not_keep_a_file_from_being_read(tmp_path, cli):
    path = tmp_path / "a.mkv"
    cli.run(
        "-f", "lavfi", "-i", "testsrc=size=32x32:rate=5:duration=1", "-metadata", "title=QQQQ", "-c:v", "mpeg4", path
    )
    path.write_bytes(path.read_bytes().replace(b"QQQQ", b"\xff\xfe\xe9\x80"))
    with Source(path, max_pixels=1_000_000) as source:
        assert len(list(source.decode(source.packets()))) == 5


def exif(orientation: int) -> bytes:
    """APP1 with one tag (EXIF 2.3, 4.6)."""
    body = b"Exif\0\0II*\0" + struct.pack("<IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)
    return b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body


def test_side_data_that_pyav_does_not_know_are_passed_over(tmp_path):
    """FFmpeg 8 gives frames of a JPEG their EXIF, a kind that PyAV 18.1 has no name for: reading any side data raised."""
    jpeg = simplejpeg.encode_jpeg(np.zeros((48, 64, 3), np.uint8))
    path = tmp_path / "a.mjpeg"
    path.write_bytes(2 * (jpeg[:2] + exif(6) + jpeg[2:]))
    with Source(path, max_pixels=1_000_000) as source:
        frame = next(source.decode(source.packets()))
        assert len(frame.side_data) == 2
        assert turn_of(frame) == (Orientation(True, flip_horizontal=True), -90, None)


@pytest.mark.parametrize("package", ["formats", "transcode"])
def test_no_other_module_opens_by_pyav_or_asks_for_its_version(package):
    """Differences between versions stand in one place; what is only shown to people may name a version."""
    for path in (PACKAGES / package).rglob("*.py"):
        if path.name == "pyav.py":
            continue
        names = {ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        assert "av.open" not in names, path
        assert not any(name.endswith(".side_data") for name in names), path
