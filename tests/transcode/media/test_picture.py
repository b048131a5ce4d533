"""Pictures: upright, and of the size that was asked."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import av
import imageio_ffmpeg
import numpy as np
import pytest

from tests.helpers import transcode
from tests.recipes import moving
from tests.sampling import in_turn
from tests.transcode.media.patches import FINE, made, planes, psnr
from vidprep.formats.errors import PictureError
from vidprep.formats.model import FrameSize
from vidprep.transcode.settings.options import Scale
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings


def luma_of(cli: Any, path: Path, filters: str, width: int, height: int) -> np.ndarray:
    """(T, H, W): the luma samples as they are stored, after these filters of ffmpeg's."""
    area = width * height
    frame = area + 2 * ((width + 1) // 2) * ((height + 1) // 2)
    data = cli.raw(path, filters, width, height, "yuv420p")
    return data.reshape(-1, frame)[:, :area].reshape(-1, height, width)


# numpy on the picture as it is stored; -display_rotation is counter-clockwise, flips come after it.
UPRIGHT = {
    "cfr.mp4": lambda p: p,
    "turned_90.mp4": lambda p: np.rot90(p, 1),
    "turned_180.mp4": lambda p: np.rot90(p, 2),
    "turned_270.mp4": lambda p: np.rot90(p, 3),
    "mirrored.mp4": lambda p: p[:, ::-1],
    "upside_down.mp4": lambda p: p[::-1],
}


# What the row says: degrees counter-clockwise, as the display matrix has them.
TURNED = {"cfr.mp4": 0, "turned_90.mp4": 90, "turned_180.mp4": -180, "turned_270.mp4": -90}


@pytest.mark.parametrize("name", UPRIGHT)
def test_a_turned_source_comes_out_upright(name, media, pipeline):
    plain, ours = pipeline(media["cfr.mp4"], keep=True), pipeline(media[name], keep=True)
    for stored, upright in zip(planes(plain, 5), planes(ours, 5), strict=True):
        assert np.array_equal(UPRIGHT[name](stored), upright)


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
@pytest.mark.parametrize("name", in_turn([*UPRIGHT, "turned_90_mirrored.mp4", "turned_270_mirrored.mp4"], 2))
def test_a_turned_source_looks_as_ffmpeg_shows_it_and_carries_no_matrix(name, engine, media, cli, tmp_path):
    row, path = made(media[name], RunSettings(VideoOutput(FINE, engine=engine)), tmp_path)
    if name in TURNED:
        assert row.source_rotation == TURNED[name]
    shown = cli.raw(media[name], "format=gray", row.width, row.height, "gray", reading=())
    ours = cli.raw(path, "format=gray", row.width, row.height, "gray")
    assert shown.shape == ours.shape
    assert psnr(shown, ours) > 38
    assert "rotation of" not in cli.says("-i", path)


def size_of(pipeline: Any, path: Path, **scale: Any) -> tuple[int, int]:
    return tuple(pipeline(path, RunSettings(scale=Scale(**scale))).picture_filter.picture.size)


@pytest.mark.parametrize(
    ("name", "scale", "expected"),
    [
        ("cfr.mp4", {}, (96, 64)),
        ("sar_wide.mp4", {}, (128, 64)),
        ("sar_tall.mp4", {}, (72, 64)),
        ("turned_90_sar.mp4", {}, (64, 128)),
        ("odd_444.mp4", {}, (96, 62)),
        ("odd_420.webm", {}, (96, 62)),
        ("cfr.mp4", {"short_side": 32}, (48, 32)),
        ("turned_90.mp4", {"short_side": 32}, (32, 48)),
        ("sar_wide.mp4", {"short_side": 48}, (96, 48)),
        ("cfr.mp4", {"short_side": 240}, (96, 64)),
        ("cfr.mp4", {"short_side": 128, "upscale": True}, (192, 128)),
        ("odd_444.mp4", {"short_side": 40}, (62, 40)),
        ("cfr.mp4", {"size": FrameSize(64, 64), "fit": "pad"}, (64, 64)),
        ("cfr.mp4", {"size": FrameSize(200, 200), "fit": "pad"}, (200, 200)),
        ("cfr.mp4", {"size": FrameSize(32, 50), "fit": "crop"}, (32, 50)),
        ("cfr.mp4", {"size": FrameSize(90, 20), "fit": "stretch"}, (90, 20)),
    ],
    ids=str,
)
def test_the_size_is_the_one_that_was_asked_and_never_larger(name, scale, expected, media, pipeline):
    assert size_of(pipeline, media[name], **scale) == expected


@pytest.mark.parametrize("fit", ["crop", "stretch"])
def test_a_picture_that_would_have_to_grow_is_refused_by_name(fit, media, pipeline):
    with pytest.raises(PictureError, match=r"96x64 .* --upscale"):
        size_of(pipeline, media["cfr.mp4"], size=FrameSize(120, 80), fit=fit)
    assert size_of(pipeline, media["cfr.mp4"], size=FrameSize(120, 80), fit=fit, upscale=True) == (120, 80)


def test_padding_is_black_all_around_and_the_picture_in_the_middle(media, pipeline, cli):
    settings = RunSettings(scale=Scale(size=FrameSize(64, 64), fit="pad"))
    luma, u, v = planes(pipeline(media["cfr.mp4"], settings, keep=True))
    top = (64 - 42) // 4 * 2
    assert (luma[:top] == 16).all()
    assert (luma[top + 42 :] == 16).all()
    for chroma in (u, v):
        assert (chroma[: top // 2] == 128).all()
        assert (chroma[top // 2 + 21 :] == 128).all()
    want = luma_of(cli, media["cfr.mp4"], "scale=64:42:flags=bicubic+accurate_rnd", 64, 42)[0]
    assert psnr(luma[top : top + 42], want) > 45


@pytest.mark.parametrize("name", ["sar_wide.mp4", "cfr.mp4", "turned_90.mp4"])
def test_a_larger_pad_leaves_the_picture_as_it_is(name, media, pipeline):
    plain = pipeline(media[name], keep=True)
    padded = pipeline(media[name], RunSettings(scale=Scale(size=FrameSize(160, 160), fit="pad")), keep=True)
    inner, luma = planes(plain)[0], planes(padded)[0]
    height, width = inner.shape
    top, left = (160 - height) // 4 * 2, (160 - width) // 4 * 2
    assert np.array_equal(luma[top : top + height, left : left + width], inner)
    luma = luma.copy()
    luma[top : top + height, left : left + width] = 16
    assert (luma == 16).all()


def test_crop_keeps_the_middle(media, pipeline, cli):
    settings = RunSettings(scale=Scale(size=FrameSize(40, 40), fit="crop", scaler="area"))
    ours = planes(pipeline(media["cfr.mp4"], settings, keep=True))[0]
    want = luma_of(cli, media["cfr.mp4"], "scale=60:40:flags=area+accurate_rnd,crop=40:40:10:0", 40, 40)
    assert psnr(ours, want[0]) > 45


def test_an_odd_picture_loses_its_last_line_and_column_and_nothing_else(media, pipeline, cli):
    ours = planes(pipeline(media["odd_420.webm"], keep=True))[0]
    stored = luma_of(cli, media["odd_420.webm"], "null", 97, 63)[0]
    assert np.array_equal(ours, stored[:62, :96])


def test_non_square_pixels_are_made_square_not_dropped(media, cli, tmp_path):
    row, path = made(media["sar_wide.mp4"], RunSettings(VideoOutput(FINE)), tmp_path)
    ours = cli.raw(path, "format=gray", 128, 64, "gray")
    want = cli.raw(media["sar_wide.mp4"], "scale=128:64:flags=bicubic,format=gray", 128, 64, "gray")
    assert psnr(ours, want) > 38
    with av.open(str(path)) as file:
        assert file.streams.video[0].sample_aspect_ratio in (None, 1)


@pytest.mark.parametrize("name", ["size_changes.ts"])
def test_a_size_that_changes_half_way_is_fitted_into_the_first(name, media, pipeline, cli):
    ours = pipeline(media[name], keep=True)
    assert tuple(ours.picture_filter.picture.size) == (96, 64)
    assert ours.picture_filter.num_changes == 1
    assert len(ours.frames) == 24
    luma = planes(ours, 20)[0]
    assert (luma[:6] == 16).all()  # 120x64 becomes 96x52
    assert (luma[-6:] == 16).all()
    want = luma_of(cli, media["part_wide.ts"], "scale=96:52:flags=bicubic+accurate_rnd", 96, 52)
    assert psnr(luma[6:58], want[20 - 12]) > 45


@pytest.mark.parametrize(
    ("part", "scale", "box", "witness"),
    [
        ("half", {}, (0, 0, 96, 64), "scale=96:64:{}"),
        ("half", {"short_side": 48}, (0, 0, 72, 48), "scale=72:48:{}"),
        ("half", {"size": FrameSize(160, 160)}, (32, 48, 96, 64), "scale=96:64:{}"),
        ("half", {"size": FrameSize(32, 50), "fit": "crop"}, (0, 0, 32, 50), "scale=76:50:{},crop=32:50:22:0"),
        ("half", {"size": FrameSize(90, 20), "fit": "stretch"}, (0, 0, 90, 20), "scale=90:20:{}"),
        ("narrow", {}, (8, 0, 80, 64), "scale=80:64:{}"),
    ],
    ids=str,
)
def test_a_picture_that_shrinks_midway_fills_the_frame_at_its_aspect(part, scale, box, witness, media, pipeline, cli):
    """The same place as the first, larger or not; bars only for the aspect. Not one black pixel beyond them."""
    name = {"half": "size_halves.ts", "narrow": "size_narrows.ts"}[part]
    ours = pipeline(media[name], RunSettings(scale=Scale(**scale)), keep=True)
    left, top, width, height = box
    luma = planes(ours, 20)[0].copy()
    want = luma_of(cli, media[f"part_{part}.ts"], witness.format("flags=bicubic+accurate_rnd"), width, height)
    assert psnr(luma[top : top + height, left : left + width], want[20 - 12]) > 45
    luma[top : top + height, left : left + width] = 16
    assert (luma == 16).all()


def test_pixels_that_change_their_shape_half_way_are_square_before_and_after(media, pipeline, cli, tmp_path):
    """As where a broadcast goes from 4:3 to 16:9: the size stays, and the picture is wider."""
    ours = pipeline(media["pixels_change.ts"], keep=True)
    assert ours.picture_filter.changes == ["to pixels of 4/3 at output frame 12"]
    first = luma_of(cli, media["part_pixels_1.ts"], "null", 96, 64)
    assert np.array_equal(planes(ours, 11)[0], first[11])
    luma = planes(ours, 12)[0]
    want = luma_of(cli, media["part_pixels_4.ts"], "scale=96:48:flags=bicubic+accurate_rnd", 96, 48)
    assert psnr(luma[8:56], want[0]) > 45
    assert (luma[:8] == 16).all() and (luma[56:] == 16).all()
    row, _ = made(media["pixels_change.ts"], RunSettings(), tmp_path)
    assert "the picture changed to pixels of 4/3 at output frame 12; fitted into 96x64" in row.warnings
    with pytest.raises(
        AssertionError, match="the pixel shape of its pictures changes midway, and --engine ffmpeg keeps to the first"
    ):
        made(media["pixels_change.ts"], RunSettings(VideoOutput(engine="ffmpeg")), tmp_path)


def test_the_containers_pixel_shape_wins_over_the_streams(media, cli, pipeline, tmp_path):
    cli.run("-i", media["pixels_change.ts"], "-c", "copy", "-aspect", "3:1", tmp_path / "aspect.mkv")
    ours = pipeline(tmp_path / "aspect.mkv")
    assert tuple(ours.picture_filter.picture.size) == (192, 64)
    assert ours.picture_filter.changes == []


def test_a_row_says_at_which_frame_the_size_changed_and_names_the_first_few(media, tmp_path):
    many = tmp_path / "many.ts"
    many.write_bytes(b"".join(media[f"part_{which}.ts"].read_bytes() for which in ("small", "wide") * 4))
    for name, said in {
        media["size_halves.ts"]: "changed to 48x32 at output frame 12; fitted into 96x64",
        many: "to 96x64 at output frame 24, to 120x64 at output frame 36, to 96x64 at output frame 48, "
        "to 120x64 at output frame 60, 2 times more; fitted into 96x64",
    }.items():
        row, _ = made(name, RunSettings(), tmp_path)
        assert any(said in warning for warning in row.warnings), row.warnings


@pytest.mark.parametrize("program", [imageio_ffmpeg.get_ffmpeg_exe(), shutil.which("ffmpeg")])
def test_ffmpeg_is_not_trusted_with_colours_that_change_midway(program, cli, tmp_path):
    """5.1 took all for the first, 20 levels off; newer ones failed for another reason than was told."""
    if program is None:
        pytest.skip("needs an ffmpeg of the system")
    clip, parts = tmp_path / "src" / "two.ts", b""
    clip.parent.mkdir()
    for at, matrix in enumerate(("bt709", "bt470bg")):
        tags = f"scale=out_color_matrix={matrix},format=yuv420p,setparams=colorspace={matrix}"
        part = tmp_path / f"{matrix}.ts"
        cli.run(*moving(frames=12), "-vf", tags, "-c:v", "mpeg2video", "-q:v", 1, "-output_ts_offset", at * 0.5, part)
        parts += part.read_bytes()
    clip.write_bytes(parts)
    ran = transcode(clip.parent, tmp_path / "dst", "--engine", "ffmpeg", "--ffmpeg", program)
    assert ran.code == 1
    assert (
        "the colour of its pictures changes midway, and --engine ffmpeg keeps to the first; take --engine av" in ran.err
    )
    assert transcode(clip.parent, tmp_path / "av").code == 0
