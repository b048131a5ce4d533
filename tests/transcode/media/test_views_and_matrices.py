"""Display matrices that no rotation is, and streams that hold more views than one."""

from __future__ import annotations

import re
import shutil
import struct
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from tests.helpers import make_clip, transcode
from tests.sampling import in_turn
from vidprep.formats.model import Orientation
from vidprep.formats.stores.raw_files import VideoFiles
from vidprep.formats.video.picture_facts import Turn, turn_by
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.unit.job import WholeJob
from vidprep.transcode.unit.life import run_job

ONE = 1 << 16


def row_of(path: Path, tmp_path: Path, engine: str = "av", ffmpeg: str = "") -> tuple[Any, Path]:
    stat = path.stat()
    unit = Unit("x", str(path), stat.st_size, stat.st_mtime_ns)
    out = tmp_path / f"{engine}.mp4"
    job = WholeJob(
        unit,
        RunSettings(VideoOutput(engine=engine)),
        out.name,
        str(out),
        ffmpeg=ffmpeg or imageio_ffmpeg.get_ffmpeg_exe(),
    )
    return run_job(job), out


# ------------------------------------------------------------------------------------------------ display matrices


def with_matrix(path: Path, folder: Path, a: float, b: float, c: float, d: float) -> Path:
    """A copy of an MP4 whose track has this matrix (ISO/IEC 14496-12, 8.3.2)."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 40
    fixed = [round(value * ONE) for value in (a, b, c, d)]
    data[at : at + 36] = struct.pack(">9i", fixed[0], fixed[1], 0, fixed[2], fixed[3], 0, 0, 0, 1 << 30)
    made = folder / "matrix.mp4"
    made.write_bytes(data)
    return made


TURNED = [
    "turned_90.mp4",
    "turned_180.mp4",
    "mirrored.mp4",
    "upside_down.mp4",
    "turned_90_mirrored.mp4",
    "turned_270_mirrored.mp4",
]


@pytest.mark.parametrize("name", in_turn(TURNED, 2))
@pytest.mark.parametrize("program", [imageio_ffmpeg.get_ffmpeg_exe(), shutil.which("ffmpeg")])
def test_players_turn_no_output_of_ffmpeg_again(name, program, media, cli, tmp_path):
    """ffmpeg 5.1 copied the source's matrix onto the upright picture."""
    if program is None:
        pytest.skip("needs an ffmpeg of the system")
    row, made = row_of(media[name], tmp_path, "ffmpeg", program)
    assert row.ok, row.message
    assert "rotation of" not in cli.says("-i", made)


def test_validate_says_that_players_would_turn_an_output(media, tmp_path):
    made = transcode(make_clip(tmp_path / "src" / "a.mp4").parent, tmp_path / "dst")
    assert made.code == 0, made.err
    with_matrix(tmp_path / "dst" / "a.mp4", tmp_path, 0, 1, -1, 0).replace(tmp_path / "dst" / "a.mp4")
    assert "by which players turn" in transcode(tmp_path / "dst", verb="validate").out


SHEARED = {
    "to the right": (1, 0, 3, 1),
    "to the left": (1, 0, -3, 1),
    "downwards": (1, 3, 0, 1),
    "a little": (1, 0, 0.1, 1),
    "and turned": (0, 1, -1, 0.5),
    "and mirrored": (-1, 0, 0.6, 1),
}


@pytest.mark.parametrize("name", SHEARED)
def test_a_sheared_picture_is_turned_as_ffmpeg_turns_it_and_its_row_says_so(name, media, cli, tmp_path):
    path = with_matrix(media["cfr.mp4"], tmp_path, *SHEARED[name])
    row, made = row_of(path, tmp_path)
    assert row.ok, row.message
    by_ffmpeg = re.search(r"rotation of (-?[\d.]+) degrees", cli.says("-i", path))
    assert by_ffmpeg is not None
    assert row.source_rotation == round(float(by_ffmpeg[1]))
    turned = round(row.source_rotation / 90) % 2 == 1
    shape = (row.source_height, row.source_width) if turned else (row.source_width, row.source_height)
    assert row.width / row.height == pytest.approx(shape[0] / shape[1] * sar_of(cli, path, turned), rel=0.05)
    assert any("shears" in said or "nearest right angle" in said for said in row.warnings), row.warnings
    assert "rotation of" not in cli.says("-i", made)


def sar_of(cli: Any, path: Path, turned: bool) -> float:
    """The shape of a pixel that is shown, which FFmpeg takes from the matrix too."""
    found = re.search(r"SAR (\d+):(\d+)", cli.says("-i", path))
    shape = int(found[1]) / int(found[2]) if found else 1.0
    return 1 / shape if turned else shape


@pytest.mark.parametrize("matrix", [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 1), (1, 1, 1, 1), (1, 2, -2, -4)])
@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
def test_a_matrix_without_area_is_not_followed_and_its_row_says_so(matrix, engine, media, cli, tmp_path):
    path = with_matrix(media["cfr.mp4"], tmp_path, *matrix)
    row, made = row_of(path, tmp_path, engine)
    assert row.ok, row.message
    assert row.source_rotation == 0
    assert row.width >= row.height
    assert any("no area" in said for said in row.warnings), row.warnings
    assert len(cli.frames(made)) == len(cli.frames(path))


def test_a_video_file_with_a_matrix_without_area_is_read_as_it_is_stored(media, tmp_path):
    path = with_matrix(media["cfr.mp4"], tmp_path, 0, 1, 0, 1)
    turned, plain = VideoFiles([path]), VideoFiles([media["cfr.mp4"]])
    assert np.array_equal(turned["matrix"].frames([0, 3]), plain["cfr"].frames([0, 3]))


_INT32 = st.integers(-(2**31), 2**31 - 1)


@settings(max_examples=300, deadline=None)
@given(_INT32, _INT32, _INT32, _INT32)
@example(-(2**31), 0, 0, -(2**31))
@example(0, 2**31 - 1, 0, 1)
def test_any_matrix_is_rounded_to_right_angles_with_a_warning(a, b, c, d):
    turn = turn_by(a, b, c, d)
    assert -180 <= turn.degrees <= 180
    if a * d == b * c:
        assert turn[:2] == (Orientation(), 0)
    upright = {(a, d): b == c == 0, (b, c): a == d == 0}
    assert turn.warning is not None or max(map(abs, min(upright, key=lambda pair: abs(pair[0]) + abs(pair[1])))) <= (
        0.02 * max(map(abs, (a, b, c, d)))
    )


RIGHT = {
    (1, 0, 0, 1): Turn(),
    (-1, 0, 0, 1): Turn(Orientation(False, True, False), -180),
    (1, 0, 0, -1): Turn(Orientation(False, False, True)),
    (-1, 0, 0, -1): Turn(Orientation(False, True, True), -180),
    (0, 1, 1, 0): Turn(Orientation(True), -90),
    (0, 1, -1, 0): Turn(Orientation(True, True, False), -90),
    (0, -1, 1, 0): Turn(Orientation(True, False, True), 90),
    (0, -1, -1, 0): Turn(Orientation(True, True, True), 90),
}


@pytest.mark.parametrize("scale", [(ONE, ONE), (2 * ONE, ONE // 3), (1, 1), (2**31 - 1, 7)])
def test_the_eight_upright_matrices_are_followed_in_silence_at_any_scale(scale):
    for (a, b, c, d), due in RIGHT.items():
        assert turn_by(a * scale[0], b * scale[0], c * scale[1], d * scale[1]) == due


# ------------------------------------------------------------------------------------------------ several views


class Bits(list[int]):
    def u(self, count: int, value: int) -> None:
        self += [value >> at & 1 for at in reversed(range(count))]

    def ue(self, *values: int) -> None:
        for value in values:
            self.u(2 * (value + 1).bit_length() - 1, value + 1)

    def align(self, bit: int) -> None:
        self += [bit] * (-len(self) % 8)

    def __bytes__(self) -> bytes:
        return b"".join(bytes([int("".join(map(str, self[at : at + 8])), 2)]) for at in range(0, len(self), 8))


def parameters_of_two_views(profile: int, width: int, height: int) -> bytes:
    """A video parameter set with the extension of MV-HEVC (ITU-T H.265, F.7.3.2.1 and G.8): layer 1 is a second view."""
    bits = Bits()
    for count, value in ((4, 0), (2, 3), (6, 1), (3, 0), (1, 1), (16, 0xFFFF), (96, profile), (1, 1)):
        bits.u(count, value)
    bits.ue(4, 2, 0)
    bits.u(6, 1)
    bits.ue(1)
    bits.u(4, 0b1101)  # both layers in the set, no timing, an extension
    bits.align(1)
    for count, value in ((8, profile & 255), (1, 0), (16, 1 << 14), (3, 0), (1, 0), (1, 1)):
        bits.u(count, value)
    bits.u(4, 1)
    bits.u(2, 0b01)  # view ids
    bits.u(4, 0b1001)  # depends on the base layer
    bits.ue(1, 0)
    bits.u(4, 0b0001)
    bits.ue(0)
    for count, value in ((16, width), (16, height), (3, 0b101), (8, 0), (1, 0), (3, 0b100)):
        bits.u(count, value)
    bits.ue(4, 4, 2, 0, 0)
    bits.u(3, 0b100)
    bits.ue(0)
    bits.u(2, 0b01)
    bits.align(0)
    return b"\x40\x01" + re.sub(rb"\0\0(?=[\0-\3])", b"\0\0\3", bytes(bits))


@pytest.fixture(scope="module")
def two_views(media, cli, tmp_path_factory):
    """A stream that says it is MV-HEVC, and the same pictures in one that says nothing."""
    folder = tmp_path_factory.mktemp("views")
    plain, spatial, boxed = folder / "plain.hevc", folder / "spatial.hevc", folder / "spatial.mov"
    cli.run("-i", media["cfr.mp4"], "-c:v", "libx265", "-x265-params", "log-level=error:pools=1:frame-threads=1", plain)
    units = plain.read_bytes().split(b"\0\0\1")
    for number, unit in enumerate(units):
        if unit.startswith(b"\x40\x01"):
            profile = int.from_bytes(unit.replace(b"\0\0\3", b"\0\0")[6:18], "big")
            units[number] = parameters_of_two_views(profile, 96, 64)
    spatial.write_bytes(b"\0\0\1".join(units))
    cli.run("-i", spatial, "-c", "copy", "-tag:v", "hvc1", boxed)
    return plain, spatial, boxed


@pytest.mark.parametrize("kind", [1, 2])
def test_of_several_views_the_base_is_taken_and_the_row_says_so(kind, two_views, cli, tmp_path):
    row, made = row_of(two_views[kind], tmp_path)
    assert row.ok, row.message
    assert any("several views" in said for said in row.warnings), row.warnings
    assert len(cli.frames(made)) == row.num_frames == len(cli.frames(two_views[kind])) > 20


def test_one_view_gets_no_remark_and_equals_the_base_view(two_views, pipeline, tmp_path):
    row, _ = row_of(two_views[0], tmp_path)
    assert row.ok, row.message
    assert not any("views" in said for said in row.warnings)
    assert [f.md5 for f in pipeline(two_views[0]).frames] == [f.md5 for f in pipeline(two_views[1]).frames]
