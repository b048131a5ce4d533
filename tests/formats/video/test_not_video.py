"""What stands where a video should is named, with what to do; nothing of libav's own words alone."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from tests.fuzz.numbered_clips import Kind, clip
from tests.helpers import manifest, transcode
from tests.witness import Ffmpeg
from vidprep.formats.errors import ReadError
from vidprep.formats.video.damage._log import DamageLog
from vidprep.formats.video.source import Source


def uncompressed_avi(tag: bytes, bits: int) -> bytes:
    """One picture of 16 x 16 in an AVI with this compression."""
    picture = bytes(16 * 16 * bits // 8)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack("<4sI", name, len(data)) + data + bytes(len(data) % 2)

    def listed(name: bytes, data: bytes) -> bytes:
        return chunk(b"LIST", name + data)

    header = struct.pack("<14I", 40000, 0, 0, 0, 1, 0, 1, len(picture), 16, 16, 0, 0, 0, 0)
    stream = struct.pack("<4s4sI2H8I4h", b"vids", tag, 0, 0, 0, 0, 1, 25, 0, 1, len(picture), 0, 0, 0, 0, 16, 16)
    picture_format = struct.pack("<IiiHH4sIiiII", 40, 16, 16, 1, bits, tag, len(picture), 0, 0, 0, 0)
    headers = listed(
        b"hdrl", chunk(b"avih", header) + listed(b"strl", chunk(b"strh", stream) + chunk(b"strf", picture_format))
    )
    body = headers + listed(b"movi", chunk(b"00db", picture))
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"AVI " + body


def encoded(kind: str) -> bytes:
    data = io.BytesIO()
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(data, kind)
    return data.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("bayer.avi", uncompressed_avi(b"BA81", 8), "no decoder for its video (codec tag 'BA81')"),
        ("grey16.avi", uncompressed_avi(b"Y16 ", 16), "no decoder for its video (codec tag 'Y16 ')"),
        ("0001.png", encoded("PNG"), "is a picture (png), not a video"),
        ("0001.bmp", encoded("BMP"), "is a picture (bmp), not a video"),
        ("0001.tif", encoded("TIFF"), "is a picture (tiff), not a video"),
        ("list.json", b'[{"path": "a.mp4"}]', "it is text; a list of videos is a .csv"),
        ("list.mp4", b"path\na.mp4\n", "it is text; a list of videos is a .csv"),
        ("list.csv", "path\na.mp4\n".encode("utf-16"), "it is text in UTF-16; a list of videos is a .csv"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value and " " not in value else "",
)
def test_files_without_video_are_described(name: str, data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ReadError) as error:
        Source(tmp_path / name, max_pixels=1 << 20)
    assert said in error.value.message
    assert "playlist" not in error.value.message and "unknown" not in error.value.message


def test_a_picture_that_libav_would_take_as_one_frame_is_a_video_of_one_frame(tmp_path: Path) -> None:
    (tmp_path / "0001.jpg").write_bytes(encoded("JPEG"))
    with Source(tmp_path / "0001.jpg", max_pixels=1 << 20) as source:
        assert len(list(source.decode(source.packets()))) == 1


def test_a_pixel_format_that_cannot_be_converted_is_named(cli: Ffmpeg, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    kind = Kind(("-c:v", "rawvideo"), "bgr4", intra=True)
    clip(cli, tmp_path / "src" / "few.nut", [1, 2], kind)
    transcode(tmp_path / "src", tmp_path / "dst")
    (row,) = manifest(tmp_path / "dst").values()
    assert row["message"].startswith("pictures of the format bgr4 cannot be converted here; convert the source")


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
def test_animated_webp_is_read_or_named(engine: str, cli: Ffmpeg, tmp_path: Path) -> None:
    """FFmpeg 9 reads it; a program that does not is named with its version."""
    (tmp_path / "src").mkdir()
    frames = [Image.fromarray(np.full((32, 32, 3), level, np.uint8)) for level in (0, 90, 200)]
    frames[0].save(tmp_path / "src" / "a.webp", save_all=True, append_images=frames[1:], duration=40, lossless=True)
    table = tmp_path / "t.csv"
    table.write_text("path\nsrc/a.webp\n")
    transcode(table, tmp_path / "dst", "--engine", engine)
    (row,) = manifest(tmp_path / "dst").values()
    if row["status"] == "ok":
        assert row["num_frames"] == 3
    else:
        said = (
            "is a WebP picture, and animated ones are read with FFmpeg 9",
            "does not read this source, which --engine av does",
        )
        assert any(text in row["message"] for text in said), row["message"]


def test_a_folder_of_pictures_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "0001.jpg").write_bytes(encoded("JPEG"))
    said = transcode(tmp_path / "src", tmp_path / "dst").err
    assert "numbered pictures in 1 folder; --source-fps R makes a video of each folder" in said


@pytest.mark.parametrize(
    "line",
    [
        "ignoring invalid SAR: 1/0",
        "Upscaling",
        "The tags at index 1 refer to a non-existent track 7.",
        "File extends beyond end of segment.",
    ],
)
def test_a_line_that_tells_of_no_lost_frame_is_not_counted(line: str) -> None:
    log = DamageLog()
    log.add_lines([(av.logging.WARNING, "ffv1", line)])
    assert log.findings() == []
