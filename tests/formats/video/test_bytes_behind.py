"""Bytes behind a whole video are not damage, and a part that is missing is."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.numbered_pictures import constant, number_on, picture, write
from tests.witness import Ffmpeg
from vidprep.formats.video.source import Source

COUNT = 50
JUNK = random.Random(7).randbytes(3001)


def shown(path: Path) -> tuple[list[int | None], list[str], list[str]]:
    """The numbers on the pictures, what is damaged, and what contradicts itself."""
    with Source(path, max_pixels=10**6) as source:
        numbers = [number_on(frame.to_ndarray(format="gray")) for frame in source.decode(source.packets())]
        return numbers, source.damage(read_to_end=True), source.contradictions(read_to_end=True)


def mpg(path: Path, cli: Ffmpeg) -> Path:
    source = write(path.with_suffix(".ts"), constant(COUNT, 25), rate=Fraction(25))
    cli.run("-i", source, "-c:v", "mpeg2video", "-q:v", 2, "-f", "vob", path)
    return path


def made(path: Path, cli: Ffmpeg) -> Path:
    if path.suffix == ".mpg":
        return mpg(path, cli)
    return write(path, constant(COUNT, 25), rate=Fraction(25), codec="libx264", bf="0")


@pytest.mark.parametrize("suffix", [".ts", ".flv"])
@pytest.mark.parametrize("count", [700, 200_000])
def test_zeros_behind_hide_no_picture(suffix: str, count: int, cli: Ffmpeg, tmp_path: Path) -> None:
    """Of a transport stream the last picture was lost, and the file was called damaged."""
    path = made(tmp_path / f"a{suffix}", cli)
    path.write_bytes(path.read_bytes() + bytes(count))
    numbers, damage, _ = shown(path)
    assert numbers == list(range(COUNT)) and damage == []


def test_a_message_of_another_opening_that_was_held_back_is_no_damage(cli: Ffmpeg, tmp_path: Path) -> None:
    """PyAV holds back what is repeated, and hands it to whoever listens when the next message comes."""
    path = made(tmp_path / "a.flv", cli)
    path.write_bytes(path.read_bytes() + bytes(700))
    level = av.logging.get_level()
    av.logging.set_level(av.logging.WARNING)
    av.logging.set_skip_repeated(True)
    with av.logging.Capture():
        for _ in range(2):
            av.logging.log(av.logging.ERROR, "h264", "Codec (h264) not on whitelist 'none'")
    av.logging.set_level(level)
    with av.logging.Capture(local=False):
        assert shown(path)[1] == []


@pytest.mark.parametrize("suffix", [".ts", ".flv", ".mpg", ".mkv"])
def test_other_bytes_behind_are_a_contradiction(suffix: str, cli: Ffmpeg, tmp_path: Path) -> None:
    path = made(tmp_path / f"a{suffix}", cli)
    whole = path.read_bytes()
    path.write_bytes(whole + JUNK)
    numbers, damage, contradictions = shown(path)
    assert numbers == list(range(COUNT)) and damage == []
    assert any("follow its end, and were not read" in line for line in contradictions)


@pytest.mark.parametrize("suffix", [".ts", ".mpg", ".mkv"])
def test_a_missing_end_is_still_damage(suffix: str, cli: Ffmpeg, tmp_path: Path) -> None:
    path = made(tmp_path / f"a{suffix}", cli)
    whole = path.read_bytes()
    for length in (1, 187, 1000):
        path.write_bytes(whole[:-length])
        assert shown(path)[1] != [], length


def test_packets_behind_a_hole_are_read_and_the_hole_is_damage(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ts", constant(200, 25), rate=Fraction(25), qp="2")
    data = path.read_bytes()
    middle = len(data) // 2 // 188 * 188
    path.write_bytes(data[:middle] + bytes(188 * 1000) + data[middle:])
    numbers, damage, _ = shown(path)
    assert len(numbers) > 190 and damage != []


def test_an_avi_whose_header_claims_an_unknown_length_is_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "a.avi", constant(20, 25), rate=Fraction(25))
    data = bytearray(path.read_bytes())
    at = data.index(b"strh") + 8 + 32
    assert int.from_bytes(data[at : at + 4], "little") == 20
    data[at : at + 4] = b"\xff" * 4
    path.write_bytes(data)
    assert shown(path)[:2] == (list(range(20)), [])


def dhav(path: Path, units: list[bytes], rate: int) -> Path:
    """A file of a Dahua recorder: each frame between DHAV with its length and dhav."""
    out = b""
    for number, unit in enumerate(units):
        extension = bytes([0x80, 0, 8, 8, 0x81, 0, 2, rate])
        length = 24 + len(extension) + len(unit) + 8
        seconds = number // rate
        date = seconds | 10 << 12 | 5 << 17 | 6 << 22 | 24 << 26
        kind = 0xFD if b"\0\0\1\x67" in unit else 0xFC
        head = b"DHAV" + bytes([kind, 0, 0, 0]) + struct.pack("<IIIH", number, length, date, number * 1000 // rate)
        head += bytes([len(extension)])
        out += head + bytes([sum(head) & 255]) + extension + unit + b"dhav" + struct.pack("<I", length)
    path.write_bytes(out)
    return path


def test_files_of_dahua_recorders_are_read(tmp_path: Path) -> None:
    """They were no videos for vidprep, though libavformat reads them."""
    source = write(tmp_path / "a.mkv", constant(COUNT, 25), rate=Fraction(25), bf="0")
    with av.open(str(source)) as container:
        stream: Any = container.streams.video[0]
        packets = av.BitStreamFilterContext("h264_mp4toannexb", stream)
        units = [bytes(out) for packet in container.demux(stream) if packet.size for out in packets.filter(packet)]
    numbers, damage, _ = shown(dhav(tmp_path / "a.dav", units, 25))
    assert numbers == list(range(COUNT)) and damage == []


def test_hevc_with_an_alpha_layer_decodes_without_errors(cli: Ffmpeg, tmp_path: Path) -> None:
    """20 of 20 pictures were right, and four errors about the layer made the file damaged."""
    opaque = np.full((64, 64, 1), 255, np.uint8)
    data = b"".join(np.dstack([picture(n)] * 3 + [opaque]).tobytes() for n in range(20))
    x265 = ("-c:v", "libx265", "-x265-params", "log-level=error", "-pix_fmt", "yuva420p", "-tag:v", "hvc1")
    cli.run(
        "-f", "rawvideo", "-pix_fmt", "rgba", "-s", "64x64", "-r", 25, "-i", "-", *x265, tmp_path / "a.mov", stdin=data
    )
    numbers, damage, _ = shown(tmp_path / "a.mov")
    assert numbers == list(range(20)) and damage == []


def boxes(data: bytes) -> list[tuple[bytes, int, int]]:
    """(kind, begin, end) of the boxes of a file."""
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append((data[at + 4 : at + 8], at, at + size))
        at += size
    return found


LOST: dict[str, Callable[[list[tuple[bytes, int, int]]], tuple[int, int]]] = {
    "the last": lambda moofs: (moofs[-1][1], moofs[-1][2]),
    "one in the middle": lambda moofs: (moofs[2][1], moofs[2][2]),
}


@pytest.mark.parametrize("which", LOST)
def test_a_fragment_that_the_index_names_and_the_file_lacks_is_damage(which: str, cli: Ffmpeg, tmp_path: Path) -> None:
    """50 of 60 pictures came out, and nothing said so."""
    source = write(tmp_path / "a.mkv", constant(60, 25), rate=Fraction(25), g="10", bf="0")
    cli.run("-i", source, "-c", "copy", "-movflags", "frag_keyframe+empty_moov+default_base_moof", tmp_path / "a.mp4")
    assert shown(tmp_path / "a.mp4")[1] == []
    data = (tmp_path / "a.mp4").read_bytes()
    found = boxes(data)
    moofs = [(kind, begin, found[n + 1][2]) for n, (kind, begin, _) in enumerate(found) if kind == b"moof"]
    begin, end = LOST[which](moofs)
    (tmp_path / "a.mp4").write_bytes(data[:begin] + data[end:])
    numbers, damage, _ = shown(tmp_path / "a.mp4")
    assert len(numbers) == 50
    assert any("1 of the 6 fragments in its index are missing" in line for line in damage)
