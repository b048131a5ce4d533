"""Pictures whose bottom line is stored first, as some decoders and every vertical flip leave them, are upright in every store."""

from __future__ import annotations

import subprocess
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers import transcode
from vidprep.formats import open_store

FFMPEG = imageio_ffmpeg.get_ffmpeg_exe()
# Brighter towards the bottom, and nowhere the same upside down.
PICTURE = ("-f", "lavfi", "-i", "nullsrc=s=160x112:r=25:d=0.2,format=gray,geq=lum=40+Y*3/2")
SOURCES = {
    "amv.amv": (
        "-f",
        "lavfi",
        "-i",
        "sine=r=22050:d=0.2",
        "-map",
        0,
        "-map",
        1,
        "-c:v",
        "amv",
        "-ac",
        1,
        "-ar",
        22050,
        "-block_size",
        882,
    ),
    "raw.avi": ("-c:v", "rawvideo", "-pix_fmt", "bgr24"),
    "turned.mov": ("-c:v", "mjpeg", "-q:v", 2, "-pix_fmt", "yuvj420p"),
    "turned rgb.mov": ("-c:v", "qtrle", "-pix_fmt", "rgb24"),
}


def lay_upside_down(path: Path) -> None:
    """A half turn in the matrix of the first track (ISO/IEC 14496-12, 8.3.2, version 0)."""
    data = bytearray(path.read_bytes())
    matrix = data.index(b"tkhd") + 4 + 40
    one = 1 << 16
    values = (-one, 0, 0, 0, -one, 0, 160 * one, 112 * one, 1 << 30)
    data[matrix : matrix + 36] = b"".join(value.to_bytes(4, "big", signed=True) for value in values)
    path.write_bytes(data)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bottom_up")
    for name, words in SOURCES.items():
        command = [FFMPEG, "-nostdin", "-v", "error", *PICTURE, *map(str, words), str(folder / name)]
        subprocess.run(command, check=True, timeout=300)
        if name.startswith("turned"):
            lay_upside_down(folder / name)
    return folder


def witness(path: Path) -> npt.NDArray[np.uint8]:
    """The first picture as the ffmpeg program shows it, (112, 160)."""
    command = [
        FFMPEG,
        "-nostdin",
        "-v",
        "error",
        "-i",
        str(path),
        "-frames:v",
        "1",
        "-f",
        "rawvideo",
        "-pix_fmt",
        "gray",
        "-",
    ]
    shown = subprocess.run(command, check=True, capture_output=True, timeout=300).stdout
    return np.frombuffer(shown, np.uint8).reshape(112, 160)


@pytest.mark.parametrize(
    "store", ["burst", "burst --subsampling 444", "burst --subsampling gray", "burst --format tensor", "transcode"]
)
def test_pictures_stored_bottom_up_are_upright(store: str, sources: Path, tmp_path: Path) -> None:
    verb, *options = store.split()
    ran = transcode(sources, tmp_path / "dst", *options, "--json", verb=verb)
    assert ran.code == 0, ran.err
    made = open_store(tmp_path / "dst")
    for name in SOURCES:
        row, wanted = ran.rows[Path(name).stem], witness(sources / name).astype(float)
        picture = made[row["id"]].frames([0])[0].mean(-1)
        assert np.abs(picture - wanted).mean() < 6, (name, picture[0, 0], picture[-1, 0])
        assert float(row["psnr_y_db"]) > 35, name
