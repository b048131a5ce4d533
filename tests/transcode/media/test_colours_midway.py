"""Colours that change in the middle of a stream, and alpha that is not in the pictures."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fuzz.numbered_clips import COLOURS, HEIGHT, KINDS, SIDE, clip, number_on, picture
from tests.helpers import manifest, transcode
from tests.numbered_pictures import constant, write
from tests.witness import Ffmpeg
from vidprep.formats import VideoFiles, open_store
from vidprep.formats.video.source import Source
from vidprep.transcode.media._source_picture import describe

COUNT = 12
NO_B = ("-bf", 0)


def joined(folder: Path, cli: Ffmpeg, name: str, *hows: dict[str, Any]) -> Path:
    """Pictures in Matroska; each part is coded in another way."""
    parts = [
        clip(
            cli, folder / f"{n}{Path(name).suffix}", range(n * COUNT, (n + 1) * COUNT), KINDS[name], writing=NO_B, **how
        )
        for n, how in enumerate(hows)
    ]
    stream = folder / f"stream{Path(name).suffix}"
    stream.write_bytes(b"".join(part.read_bytes() for part in parts))
    (folder / "src").mkdir()
    stamps = "setts=pts=N:dts=N:time_base=1/25"
    cli.run("-r", 25, "-i", stream, "-c", "copy", "-bsf:v", stamps, folder / "src" / "a.mkv")
    return folder / "src"


def colours(shown: np.ndarray) -> np.ndarray:
    """The mean of each patch of a picture."""
    step = HEIGHT // len(COLOURS)
    return np.array([shown[n * step + 4 : (n + 1) * step - 4, SIDE + 6 : -6].mean((0, 1)) for n in range(len(COLOURS))])


@pytest.mark.parametrize("name", ["h264.h264", "hevc.hevc"])
@pytest.mark.parametrize("first", [True, False], ids=["full to limited", "limited to full"])
def test_a_range_that_changes_midway_keeps_the_colours(first: bool, name: str, cli: Ffmpeg, tmp_path: Path) -> None:
    """H.264 from full to limited range was 11 levels off from there on: its decoder keeps the pixel format of full range."""
    source = joined(tmp_path, cli, name, {"full_range": first}, {"full_range": not first})
    assert transcode(source, tmp_path / "video", "--crf", 4, "--gop", 4).code == 0
    assert transcode(source, tmp_path / "burst", "--quality", 98, "--subsampling", 444, verb="burst").code == 0
    files = VideoFiles([source / "a.mkv"])
    for frames in (
        open_store(tmp_path / "video")["a"].frames(),
        open_store(tmp_path / "burst")["a"].frames(),
        files[files.ids[0]].frames(range(2 * COUNT)),
    ):
        assert [number_on(frame) for frame in frames] == list(range(2 * COUNT))
        for number in (0, COUNT - 1, COUNT, 2 * COUNT - 1):
            assert np.abs(colours(frames[number]) - colours(picture(number))).max() < 4, number


@pytest.mark.long
@pytest.mark.parametrize("is_first", [True, False])
def test_hdr_that_begins_or_ends_midway_is_converted_at_10_bits(is_first: bool, cli: Ffmpeg, tmp_path: Path) -> None:
    """It failed with "Invalid argument ... [colorspace]"."""
    source = tmp_path / "src"
    source.mkdir()
    parts = []
    for n, is_hdr in enumerate((is_first, not is_first)):
        tags = ("bt2020nc", "bt2020", "arib-std-b67") if is_hdr else ("bt709", "bt709", "bt709")
        x265 = f"log-level=error:keyint=12:bframes=0:colormatrix={tags[0]}:colorprim={tags[1]}:transfer={tags[2]}"
        plain = write(tmp_path / f"{n}.mp4", constant(COUNT, 25), rate=Fraction(25))
        cli.run("-i", plain, "-c:v", "libx265", "-pix_fmt", "yuv420p10le", "-x265-params", x265, tmp_path / f"{n}.hevc")
        parts.append((tmp_path / f"{n}.hevc").read_bytes())
    (tmp_path / "joined.hevc").write_bytes(b"".join(parts))
    stamps = "setts=pts=N:dts=N:time_base=1/25"
    cli.run("-r", 25, "-i", tmp_path / "joined.hevc", "-c", "copy", "-bsf:v", stamps, source / "a.mkv")
    options = ("--codec", "hevc", "--pixel-format", "yuv420p10le", "--preset", "ultrafast")
    ran = transcode(source, tmp_path / "made", *options)
    assert ran.code == 0, ran.err
    row = manifest(tmp_path / "made")["a"]
    assert row["num_frames"] == 2 * COUNT and "picture_changed" in row["warning_codes"]


def test_alpha_in_a_track_of_its_own_is_said_to_be_ignored(cli: Ffmpeg, tmp_path: Path) -> None:
    """An animated AVIF was not found in a folder, and came out with the colours below its alpha without a word."""
    (tmp_path / "src").mkdir()
    drawn = b"".join(
        np.dstack([picture(n), np.full((*picture(n).shape[:2], 1), 255, np.uint8)]).tobytes() for n in range(8)
    )
    size = f"{picture(0).shape[1]}x{HEIGHT}"
    raw = ("-f", "rawvideo", "-pix_fmt", "rgba", "-s", size, "-r", 25, "-i", "-")
    av1 = ("-c:v", "libaom-av1", "-cpu-used", 8, "-crf", 10)
    split = "[0]format=yuva420p,split[a][b];[b]alphaextract,format=gray[c];[a]format=yuv420p[d]"
    cli.run(
        *raw, "-filter_complex", split, "-map", "[d]", "-map", "[c]", *av1, tmp_path / "src" / "alpha.avif", stdin=drawn
    )
    cli.run(*raw, *av1, "-pix_fmt", "yuv420p", tmp_path / "src" / "plain.avif", stdin=drawn)
    cli.run(*raw, "-frames:v", 1, *av1, "-still-picture", 1, tmp_path / "src" / "still.avif", stdin=drawn)
    assert transcode(tmp_path / "src", tmp_path / "made").code == 0
    rows = manifest(tmp_path / "made")
    assert rows.keys() == {"alpha", "plain"}
    assert {id_: "alpha_ignored" in row["warning_codes"] for id_, row in rows.items()} == {
        "alpha": True,
        "plain": False,
    }


@pytest.mark.parametrize(("left", "said"), [(20, False), (21, True)])
def test_a_crop_that_begins_on_an_odd_column_is_told(left: int, said: bool, media: Any, tmp_path: Path) -> None:
    from tests.transcode.media.test_cropping import Cropping, clip as cropped_clip

    path = cropped_clip("clap", media, tmp_path, Cropping(top=4, bottom=4, left=left, right=6))
    with Source(path, max_pixels=10**6) as source:
        found = describe(next(source.decode(source.packets())), source.info)
    assert (
        any("crops 21 columns on the left and 4 lines at the top, 20 and 4 were" in text for text in found.warnings)
        == said
    )
