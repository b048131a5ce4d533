"""One flipped bit in the tables of an MP4 is told, and a whole file of any container is not called damaged."""

from __future__ import annotations

import subprocess
from fractions import Fraction
from itertools import product
from pathlib import Path

import imageio_ffmpeg
import pytest

from tests.formats.video.flips import flips, read
from tests.sampling import in_turn

# What stands in a file once: an edit that hides frames is told by nothing from one that was meant so.
WITHOUT_WITNESS = {"movie timescale", "media timescale", "media time", "version of edits", "stss"}


@pytest.mark.long
def test_flipped_bits_are_reported(tmp_path: Path) -> None:
    """Before, 142 of these changed frames or their times without a word."""
    tried = list(flips(tmp_path, every=41))
    assert len(tried) > 500 and len({flip.box for flip in tried}) == 10
    assert [flip for flip in tried if flip.made == "silent" and flip.field not in WITHOUT_WITNESS] == []
    assert [flip for flip in tried if flip.made in ("lost", "disordered")] == []


@pytest.mark.long
def test_many_flipped_bits_are_reported(tmp_path: Path) -> None:
    tried = list(flips(tmp_path, every=9))
    silent = [flip for flip in tried if flip.made == "silent"]
    assert len(tried) > 2000
    assert len([flip for flip in silent if flip.field not in WITHOUT_WITNESS]) <= len(tried) // 1000
    assert len(silent) <= len(tried) // 100
    assert [flip for flip in tried if flip.made in ("lost", "disordered")] == []


CODECS = {
    "mp4": "libx264",
    "mov": "prores_ks",
    "3gp": "mpeg4",
    "m4v": "libx264",
    "mkv": "libx265",
    "webm": "libvpx",
    "avi": "mpeg4",
    "ts": "libx264",
    "flv": "libx264",
    "wmv": "wmv2",
    "nut": "ffv1",
    "mpg": "mpeg2video",
}
MPEG2_RATES = {"24000/1001", "24", "25", "30000/1001", "30", "50", "60000/1001", "60"}
RATES = ("1", "2", "3.3", "5", "10", "12.5", "15", *sorted(MPEG2_RATES - {"50"}))


def whole_files() -> list[tuple[str, str, str]]:
    """(extension, frames a second, how it is made)."""
    found = [
        case for case in product(CODECS, RATES, ("made", "cut by copy")) if case[0] != "mpg" or case[1] in MPEG2_RATES
    ]
    return [case for case in found if case[0] != "flv" or case[2] == "made"]


@pytest.mark.parametrize(("extension", "rate", "way"), in_turn(whole_files(), 19))
def test_whole_files_are_clean(extension: str, rate: str, way: str, tmp_path: Path) -> None:
    ffmpeg = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error"]
    clip = tmp_path / f"made.{extension}"
    source = ("-f", "lavfi", "-i", f"testsrc2=s=176x144:r={rate}:d=3", "-f", "lavfi", "-i", "sine=d=3:r=44100")
    reordered = ("-bf", "2") if "x26" in CODECS[extension] else ()
    sound = () if extension in ("3gp", "webm") else ("-ac", "2")
    made = (
        "-c:v",
        CODECS[extension],
        *reordered,
        "-g",
        f"{max(1, round(Fraction(rate) / 2))}",
        "-strict",
        "-2",
        *sound,
    )
    subprocess.run([*ffmpeg, *source, *made, clip], check=True)
    if way == "cut by copy":
        whole, clip = clip, tmp_path / f"cut.{extension}"
        subprocess.run([*ffmpeg, "-ss", "1.1", "-i", whole, "-t", "1.5", "-c", "copy", clip], check=True)
    assert read(clip).told is None
