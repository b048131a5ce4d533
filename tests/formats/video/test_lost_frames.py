"""Frames that a container lost, or that decode to nothing, are told, whatever the container; whole recordings stay clean."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import av
import imageio_ffmpeg
import pytest

from tests.formats.video.flips import read

FFMPEG = (imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y")
FRAMES = 48
TS_PACKET = 188


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """48 frames at 24 a second, a keyframe every 12."""
    folder = tmp_path_factory.mktemp("made")

    def made(name: str, *how: str) -> Path:
        path = folder / name
        source = ("-f", "lavfi", "-i", "testsrc2=s=96x64:r=24:d=2", "-pix_fmt", "yuv420p")
        subprocess.run([*FFMPEG, *source, *how, "-g", "12", path], check=True)
        whole = read(path)
        assert (len(whole.frames), whole.told) == (FRAMES, None)
        return path

    return made


def properties_of(path: Path, data: bytes | bytearray) -> str:
    changed = path.with_stem("changed")
    changed.write_bytes(data)
    reading = read(changed)
    assert len(reading.frames) < FRAMES, "nothing was lost"
    return reading.told or "nothing"


def places(path: Path) -> list[int]:
    with av.open(str(path)) as container:
        return [packet.pos for packet in container.demux(video=0) if packet.size and packet.pos is not None]


@pytest.mark.long
def test_slices_in_an_avi_that_are_none(make: Callable[..., Path]) -> None:
    path = make("a.avi", "-c:v", "libx264", "-bf", "2")
    data, changed, counted = path.read_bytes(), path.with_stem("changed"), 0
    for begin in places(path)[4:8]:
        for bit in range(8 * 8, 8 * 24):
            flipped = bytearray(data)
            flipped[begin + bit // 8] ^= 1 << bit % 8
            changed.write_bytes(flipped)
            reading = read(changed)
            assert len(reading.frames) == FRAMES or reading.told, (begin, bit)
            counted += "1 of 48 frames could not be decoded" in (reading.told or "")
    assert counted


@pytest.mark.parametrize("codec", ["libx264", "libx265", "mpeg2video"])
def test_packets_that_a_transport_stream_lost(make: Callable[..., Path], codec: str) -> None:
    """A small frame is one packet of it; libavformat passes over a missing one."""
    path = make("a.ts", "-c:v", codec)
    data, begins = path.read_bytes(), places(path)
    single = [at for at, after in zip(begins, begins[1:], strict=False) if after - at == TS_PACKET]
    for at in single[:3]:
        assert "packets are missing" in properties_of(path, data[:at] + data[at + TS_PACKET :])
    sync = bytearray(data)
    sync[begins[20]] ^= 1
    assert "do not begin where they should" in properties_of(path, sync)
    start = bytearray(data)
    start[data.index(b"\0\0\1\xe0", begins[20]) + 1] ^= 4
    assert "do not begin a frame" in properties_of(path, start)


def test_joined_segments_are_whole(make: Callable[..., Path], tmp_path: Path) -> None:
    """Each counts its packets anew."""
    path = make("whole.ts", "-c:v", "libx264")
    asked = (
        "-c",
        "copy",
        "-f",
        "hls",
        "-hls_time",
        "0.5",
        "-hls_segment_filename",
        tmp_path / "%d.ts",
        tmp_path / "list.m3u8",
    )
    subprocess.run([*FFMPEG, "-i", path, *asked], check=True)
    segments = sorted(tmp_path.glob("*.ts"))
    assert len(segments) == 4
    joined = tmp_path / "joined.ts"
    joined.write_bytes(b"".join(segment.read_bytes() for segment in segments))
    reading = read(joined)
    assert (len(reading.frames), reading.told) == (FRAMES, None)


@pytest.mark.parametrize(("name", "codec"), [("a.hevc", "libx265"), ("a.h264", "libx264"), ("b.ts", "libx264")])
def test_a_tail_of_zeros(make: Callable[..., Path], name: str, codec: str) -> None:
    """What a download leaves that reserved its room and stopped."""
    path = make(name, "-c:v", codec, "-b:v", "2M")
    data = path.read_bytes()
    for part in (0.3, 0.6, 0.9):
        have = int(len(data) * part)
        assert "are zeros" in properties_of(path, data[:have] + bytes(len(data) - have))


def test_a_start_code_that_was_overwritten(make: Callable[..., Path]) -> None:
    path = make("b.h264", "-c:v", "libx264", "-bf", "2")
    data = path.read_bytes()
    starts = [at for at in range(len(data)) if data[at : at + 4] == b"\0\0\1\x01"]
    for at in starts[:3]:
        assert "bytes that no encoder writes" in properties_of(path, data[:at] + bytes(8) + data[at + 8 :])


@pytest.mark.parametrize("name", ["a.webm", "a.mkv"])
def test_elements_of_matroska_that_are_none(make: Callable[..., Path], name: str) -> None:
    path = make(name, *(("-c:v", "libvpx") if name == "a.webm" else ("-c:v", "libx264")))
    data = path.read_bytes()
    cluster = data.rfind(b"\x1f\x43\xb6\x75")
    assert "is not defined by Matroska" in properties_of(
        path, data[:cluster] + b"\x1f\x43\xb6\x74" + data[cluster + 4 :]
    )
    block = data.index(b"\xa3", data.index(b"\x1f\x43\xb6\x75") + 5)
    assert properties_of(path, data[:block] + b"\xec" + data[block + 1 :]) != "nothing"


def test_boxes_of_fragments(make: Callable[..., Path]) -> None:
    path = make("a.mp4", "-c:v", "libx264", "-movflags", "frag_keyframe+empty_moov")
    data = path.read_bytes()
    at = data.rindex(b"trun")
    assert "which is not a box" in properties_of(path, data[:at] + b"none" + data[at + 4 :])
    later = bytearray(data)
    later[data.index(b"tfdt", data.index(b"tfdt") + 4) + 13] ^= 8
    assert "earlier than the fragment before" in properties_of(path, later)
    fewer = bytearray(data)
    fewer[data.rindex(b"trun") + 11] ^= 4
    assert "a trun box that claims" in properties_of(path, fewer)


CASES = {
    "a.avi": ("-c:v", "libx264", "-bf", "0"),
    "b.avi": ("-c:v", "libx264"),
    "a.ts": ("-c:v", "libx264"),
    "b.ts": ("-c:v", "libx265"),
    "c.ts": ("-c:v", "mpeg2video"),
    "a.mkv": ("-c:v", "libx264"),
    "a.webm": ("-c:v", "libvpx"),
    "a.flv": ("-c:v", "libx264"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_random_damage_loses_no_frame_in_silence(make: Callable[..., Path], name: str) -> None:
    """Three bits in a hundred may hide a frame: where only the order of pictures would tell."""
    path = make(name, *CASES[name])
    data, begins, chance, silent = path.read_bytes(), places(path), random.Random(5), 0
    for _ in range(100):
        changed, at = bytearray(data), chance.choice(begins) + chance.randrange(24)
        changed[at] ^= 1 << chance.randrange(8)
        path.with_stem("changed").write_bytes(changed)
        reading = read(path.with_stem("changed"))
        silent += len(reading.frames) < FRAMES and reading.told is None
    assert silent <= 3
