"""A frame behind one damaged header is missing in silence, for libavformat passes over it: `damaged` says so."""

from __future__ import annotations

from pathlib import Path

import imageio_ffmpeg
import pytest

from tests.fuzz.mutants import FIELDS, Field
from tests.fuzz.numbered_clips import KINDS, clip, number_on, seen
from tests.helpers import manifest, transcode
from tests.witness import Ffmpeg

COUNT = 30


@pytest.fixture(scope="module")
def cli() -> Ffmpeg:
    return Ffmpeg(imageio_ffmpeg.get_ffmpeg_exe())


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory, cli: Ffmpeg) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("clips")
    names = ("fragments.mp4", "h264.ts", "h264.flv", "h264.mkv")
    return {name: clip(cli, folder / name, range(COUNT), KINDS[name]).read_bytes() for name in names}


def fields(name: str, data: bytes, what: str) -> list[Field]:
    return [field for field in FIELDS[name.rpartition(".")[2]](data) if field.what == what]


def set_to(data: bytes, field: Field, value: int) -> bytes:
    hurt = bytearray(data)
    hurt[field.at : field.at + field.size] = value.to_bytes(field.size, field.order)
    return bytes(hurt)


def flv_tag(data: bytes, kind: int) -> bytes:
    """The tenth tag of video."""
    videos = [field for field in fields("h264.flv", data, "tag type") if data[field.at] == 9]
    return set_to(data, videos[10], kind)


def matroska_block(data: bytes, kind: int) -> bytes:
    blocks = [field for field in fields("h264.mkv", data, "id") if data[field.at] == 0xA3]
    return set_to(data, blocks[10], kind)


def long_movie(data: bytes) -> bytes:
    """Its index claims the first fragment, and the beginning of the media behind it."""
    (index,) = fields("fragments.mp4", data, "size of moov")
    first = fields("fragments.mp4", data, "size of moof")[0]
    size = int.from_bytes(data[first.at : first.at + 4], "big")
    return set_to(data, index, first.at + size + 6 - index.at)


def long_media(data: bytes) -> bytes:
    """0: to the end of the file."""
    return set_to(data, fields("fragments.mp4", data, "size of mdat")[1], 0)


def other_stream(data: bytes) -> bytes:
    """The packet in which the frame behind the first keyframe begins."""
    starts = [
        at
        for at in range(0, len(data), 188)
        if data[at + 1] & 0x40 and int.from_bytes(data[at + 1 : at + 3], "big") & 0x1FFF == 0x100
    ]
    at = starts[1]
    return data[: at + 1] + bytes([0x40, 0xFF]) + data[at + 3 :]


HURT = {
    "flv, no such tag": ("h264.flv", lambda data: flv_tag(data, 4)),
    "flv, audio": ("h264.flv", lambda data: flv_tag(data, 8)),
    "flv, script": ("h264.flv", lambda data: flv_tag(data, 18)),
    "matroska, size of the cluster before": ("h264.mkv", lambda data: matroska_block(data, 0xAB)),
    "matroska, no such element": ("h264.mkv", lambda data: matroska_block(data, 0x9F)),
    "mp4, an index that is too long": ("fragments.mp4", long_movie),
    "mp4, media that goes on to the end": ("fragments.mp4", long_media),
    "ts, a packet of another stream": ("h264.ts", other_stream),
}


@pytest.mark.parametrize("what", HURT)
def test_parts_that_libavformat_skips_are_damage(
    what: str, clips: dict[str, bytes], cli: Ffmpeg, tmp_path: Path
) -> None:
    name, hurt = HURT[what]
    src, dst = tmp_path / "src", tmp_path / "dst"
    src.mkdir()
    (src / f"whole.{name}").write_bytes(clips[name])
    (src / f"hurt.{name}").write_bytes(hurt(clips[name]))
    assert transcode(src, dst, "--crf", 8).code in (0, 1)
    rows = manifest(dst)
    whole, other = rows[f"whole.{name.partition('.')[0]}"], rows[f"hurt.{name.partition('.')[0]}"]
    assert whole["status"] == "ok" and "damaged" not in whole["warning_codes"], whole["warnings"]
    if other["status"] == "ok":
        shown = [number_on(picture) for picture in seen(cli, dst / other["file_name"], other["width"], other["height"])]
        assert len(set(shown)) < COUNT, "a frame is missing"
        assert "damaged" in other["warning_codes"], other["warnings"]
