"""Colours come out as they went in, and tags say what they are; high dynamic range."""

from __future__ import annotations

import re
from fractions import Fraction

import cv2
import numpy as np
import pytest

from tests.sampling import in_turn
from tests.transcode.media.patches import FINE, made, planes, psnr
from vidprep.formats.stores.raw_files import VideoFiles
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.settings.options import Scale
from vidprep.transcode.settings.output import FrameOutput, VideoOutput
from vidprep.transcode.settings.run import RunSettings

# What each source means, told to ffmpeg in so many words: matrix, range.
MEANING = {
    "colour_709.mp4": ("bt709", "limited"),
    "colour_601.mp4": ("bt601", "limited"),
    "colour_pal.mp4": ("bt601", "limited"),
    "colour_full.mp4": ("bt709", "full"),
    "colour_untagged.mp4": ("bt601", "limited"),
    "colour_deep.mp4": ("bt709", "limited"),
    "colour_2020.mp4": ("bt2020", "limited"),
    "colour_240.mp4": ("smpte240m", "limited"),
    "colour_444_full.mp4": ("bt601", "full"),
    "colour_limited.avi": ("bt601", "limited"),
}


# The matrix of the output is the source's, its range limited.
TAGS = {
    "colour_709.mp4": "tv, bt709",
    "colour_601.mp4": "tv, smpte170m",
    "colour_pal.mp4": "tv, bt470bg",
    "colour_full.mp4": "tv, bt709",
    "colour_untagged.mp4": "tv, smpte170m",
    "colour_deep.mp4": "tv, bt709",
    "colour_2020.mp4": "tv, bt2020nc/bt2020/bt2020-10",
    "colour_240.mp4": "tv, smpte240m",
    "colour_444_full.mp4": "tv, smpte170m",
    "colour_limited.avi": "tv, bt470bg",
}


TO_RGB = (
    "scale=in_color_matrix={}:in_range={}:out_range=full:flags=bicubic+accurate_rnd+full_chroma_int+full_chroma_inp"
)


@pytest.mark.parametrize(
    ("pixel_format", "engine"), [("yuv420p", "av"), ("yuv420p10le", "av"), ("yuv444p", "av"), ("yuv420p", "ffmpeg")]
)
@pytest.mark.parametrize("name", in_turn(MEANING, 2))
def test_colours_come_out_as_they_went_in(name, pixel_format, engine, media, cli, tmp_path):
    settings = RunSettings(VideoOutput(EncoderOptions(crf=10, pixel_format=pixel_format), engine=engine))
    row, path = made(media[name], settings, tmp_path)
    matrix, range_ = MEANING[name]
    source = cli.raw(media[name], TO_RGB.format(matrix, range_), 128, 96)
    ours = cli.raw(path, TO_RGB.format(matrix, "limited"), 128, 96)
    assert source.shape == ours.shape
    assert psnr(source, ours) > 35
    # And a reader that goes by the tags alone sees the same.
    assert psnr(source, cli.raw(path, TO_RGB.format("auto", "auto"), 128, 96)) > 35
    guessed = any("not tagged" in said for said in row.warnings)
    assert guessed == (name == "colour_untagged.mp4")


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
def test_an_untagged_source_of_many_lines_is_taken_for_bt709_and_tagged(engine, media, cli, tmp_path):
    row, path = made(media["colour_untagged_hd.mp4"], RunSettings(VideoOutput(FINE, engine=engine)), tmp_path)
    assert any("not tagged; taken for BT.709 by its 720 lines" in said for said in row.warnings)
    assert "yuv420p(tv, bt709" in cli.says("-i", path)
    source = cli.raw(media["colour_untagged_hd.mp4"], TO_RGB.format("bt709", "limited"), 128, 720)
    assert psnr(source, cli.raw(path, TO_RGB.format("auto", "auto"), 128, 720)) > 35


@pytest.mark.parametrize("name", MEANING)
def test_colours_survive_scaling(name, media, cli, tmp_path):
    _, path = made(media[name], RunSettings(VideoOutput(FINE), scale=Scale(short_side=48)), tmp_path)
    matrix, range_ = MEANING[name]
    source = cli.raw(media[name], TO_RGB.format(matrix, range_) + ",scale=64:48:flags=bicubic", 64, 48)
    assert psnr(source, cli.raw(path, TO_RGB.format(matrix, "limited"), 64, 48)) > 34


@pytest.mark.parametrize(
    ("codec", "container", "engine"),
    [
        ("h264", "mp4", "av"),
        ("h264", "mkv", "av"),
        ("hevc", "mp4", "av"),
        ("vp9", "mp4", "av"),
        ("vp9", "webm", "av"),
        ("av1", "mp4", "av"),
        ("av1", "mkv", "av"),
        ("h264", "mp4", "ffmpeg"),
    ],
)
@pytest.mark.parametrize("name", in_turn(TAGS, 2))
def test_tags_are_written_and_true(name, codec, container, engine, media, cli, tmp_path):
    settings = RunSettings(VideoOutput(EncoderOptions(codec=codec, container=container), engine=engine))
    _, path = made(media[name], settings, tmp_path)
    said = re.search(r"Video: .*", cli.says("-i", path))
    assert said
    told = re.search(r"yuv420p\(([^)]*)\)", said[0])
    assert told, said[0]
    assert told[1].startswith(TAGS[name]), said[0]


RESERVED = {  # primaries, transfer, matrix: reserved, log (which libswscale refuses too); and what the output says
    "reserved": (3, 3, 3, "smpte170m/smpte170m/smpte170m", "BT.601 by its 64 lines"),
    "beyond": (200, 201, 202, "smpte170m/smpte170m/smpte170m", "BT.601 by its 64 lines"),
    "primaries": (3, 1, 1, "bt709/bt709/bt709", "those of its matrix"),
    "log": (1, 9, 1, "bt709/bt709/log100", ""),
}


@pytest.mark.parametrize("case", RESERVED)
def test_reserved_colours_count_as_untagged_with_one_note(case, media, cli, tmp_path):
    *codes, tags, note = RESERVED[case]
    bsf = "mpeg2_metadata=colour_primaries={}:transfer_characteristics={}:matrix_coefficients={}".format(*codes)
    source = tmp_path / "source.m2v"
    cli.run("-i", media["cfr.mp4"], "-frames:v", 3, "-c:v", "mpeg2video", "-q:v", 2, "-bsf:v", bsf, source)
    settings = {
        "plain": RunSettings(),
        "444": RunSettings(VideoOutput(EncoderOptions(pixel_format="yuv444p"))),
        "short": RunSettings(scale=Scale(short_side=32)),
        "burst": RunSettings(FrameOutput("burst", subsampling="444")),
        "grey": RunSettings(FrameOutput("burst", subsampling="gray")),
        "tensor": RunSettings(FrameOutput("tensor")),
        "ffmpeg": RunSettings(VideoOutput(engine="ffmpeg"), scale=Scale(short_side=32)),
    }
    for name, each in settings.items():
        if name == "ffmpeg" and codes[2] > 1:
            with pytest.raises(
                AssertionError, match="has a reserved code, and --engine ffmpeg takes none; take --engine av"
            ):
                made(source, each, tmp_path)
            continue
        row, path = made(source, each, tmp_path)
        notes = [said for said in row.warnings if "colour" in said]
        assert len(notes) == bool(note)
        assert note in "".join(notes)
        if not each.output.is_full_range:
            assert re.search(rf"\(tv, ({tags}|{tags.split('/')[0]}[,)])", cli.says("-i", path)), cli.says("-i", path)
        elif name == "tensor":
            matrix = "bt709" if codes[2] == 1 else "bt601"
            plain = tmp_path / "plain.m2v"  # the same pictures, and nothing said of their colours
            cli.run(
                "-i",
                source,
                "-c",
                "copy",
                "-bsf:v",
                "mpeg2_metadata=colour_primaries=2:transfer_characteristics=2:matrix_coefficients=2",
                plain,
            )
            want = cli.raw(plain, TO_RGB.format(matrix, "limited"), 96, 64)
            assert np.abs(np.fromfile(path, np.uint8).reshape(want.shape).astype(int) - want).max() <= 1


def test_values_above_white_are_clipped_in_jpegs_and_kept_in_videos(cli, tmp_path):
    """By hand: of Y 250, Cb 100, Cr 150 in limited range a JPEG has 255 for 272, and the chroma times 255/224."""
    source = tmp_path / "source.mkv"
    levels = b"".join(bytes([level]) * 64 * 64 for level in (250, 100, 150))
    tags = "setparams=range=tv:colorspace=smpte170m:color_primaries=smpte170m:color_trc=smpte170m"
    raw = ("-f", "rawvideo", "-pix_fmt", "yuv444p", "-s", "64x64", "-r", 25, "-i", "-")
    cli.run(*raw, "-vf", tags, "-c:v", "ffv1", source, stdin=levels * 2)
    for settings, due in (
        (
            RunSettings(FrameOutput("burst", quality=100, subsampling="444")),
            (255, 128 - 28 * 255 / 224, 128 + 22 * 255 / 224),
        ),
        (RunSettings(VideoOutput(EncoderOptions(crf=1, pixel_format="yuv444p"))), (250, 100, 150)),
    ):
        _, path = made(source, settings, tmp_path)
        reading = ("-f", "mjpeg") if settings.output.is_jpeg else ()
        pixel_format = "yuvj444p" if settings.output.is_jpeg else "yuv444p"
        found = cli.raw(path, "null", 64, 64, pixel_format, reading=reading)[: 3 * 64 * 64].reshape(3, -1)
        assert np.abs(found.mean(1) - due).max() < 0.6


def test_opencv_sees_the_colours_of_the_source(media, cli, tmp_path):
    """OpenCV knows BT.601 alone, so that is what it can witness."""
    _, path = made(media["colour_601.mp4"], RunSettings(VideoOutput(FINE)), tmp_path)
    more, picture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG).read()
    assert more
    source = cli.raw(media["colour_601.mp4"], TO_RGB.format("bt601", "limited"), 128, 96)[0]
    assert psnr(picture[..., ::-1], source) > 32


@pytest.mark.parametrize("name", ["grey.mp4", "grey16.mkv", "rgb.mkv", "palette.gif"])
def test_grey_and_rgb_sources_keep_their_colours(name, media, cli, tmp_path):
    row, path = made(media[name], RunSettings(VideoOutput(EncoderOptions(crf=4, pixel_format="yuv444p"))), tmp_path)
    source = cli.raw(
        media[name], "scale=in_range=full:out_range=full,format=rgb24" if "grey" in name else "format=rgb24", 96, 64
    )
    ours = cli.raw(path, TO_RGB.format("auto", "auto"), 96, 64)
    assert psnr(source, ours) > 35


@pytest.mark.parametrize(("pixel_format", "white"), [("monob", b"\xff"), ("monow", b"\0")])
def test_black_and_white_without_grey_keep_within_limited_range(pixel_format, white, cli, pipeline, tmp_path):
    path = tmp_path / "mono.nut"
    raw = ("-f", "rawvideo", "-pix_fmt", pixel_format, "-s", "64x64", "-r", 25, "-i", "-")
    cli.run(*raw, "-c:v", "rawvideo", path, stdin=white * 8 * 32 + bytes([255 - white[0]]) * 8 * 32)
    luma = planes(pipeline(path, keep=True))[0]
    assert (luma[:32] == 235).all() and (luma[32:] == 16).all()


@pytest.mark.parametrize("name", ["alpha.webm", "alpha.mov", "alpha.gif"])
def test_transparent_pixels_become_black_and_opaque_ones_keep_their_colour(name, media, cli, tmp_path):
    row, path = made(media[name], RunSettings(VideoOutput(EncoderOptions(crf=4, pixel_format="yuv444p"))), tmp_path)
    assert any("alpha composited over black" in said for said in row.warnings)
    decoder = ("-c:v", "libvpx-vp9") if name.endswith("webm") else ()
    rgba = cli.raw(media[name], "format=rgba", 96, 64, "rgba", reading=decoder).reshape(-1, 64, 96, 4).astype(float)
    over_black = rgba[..., :3] * rgba[..., 3:] / 255
    ours = cli.raw(path, TO_RGB.format("auto", "auto"), 96, 64)
    assert psnr(over_black, ours) > (28 if name.endswith("webm") else 35)
    clear = rgba[..., 3] == 0
    assert clear.mean() > 0.3
    assert ours[clear].mean() < 4


@pytest.mark.parametrize("name", ["palette.gif", "argb.mov"])
def test_opaque_alpha_gets_no_warning(name, media, cli, tmp_path):
    path = media["palette.gif"]
    if name == "argb.mov":
        path = tmp_path / name
        cli.run("-i", media["raw.y4m"], "-pix_fmt", "argb", "-c:v", "qtrle", path)
    assert cli.raw(path, "format=rgba", 96, 64, "rgba")[3::4].min() == 255
    row, _ = made(path, RunSettings(), tmp_path)
    assert not any("alpha" in said for said in row.warnings), row.warnings


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
@pytest.mark.parametrize("pixel_format", ["ayuv", "uyva", "vuya", "ya8", "yuva444p10le", "rgba64le"])
def test_every_format_with_alpha_goes_over_black(pixel_format, engine, cli, tmp_path):
    """Half of a grey of 200 is 100, whatever holds it."""
    path = tmp_path / "alpha.nut"
    grey = b"\xc8\xc8\xc8\x80" * 96 * 64 * 2
    raw = ("-f", "rawvideo", "-s", "96x64", "-r", 25)
    cli.run(*raw, "-pix_fmt", "rgba", "-i", "-", "-c:v", "rawvideo", "-pix_fmt", pixel_format, path, stdin=grey)
    row, out = made(path, RunSettings(VideoOutput(FINE, engine=engine)), tmp_path)
    assert any("alpha composited over black" in said for said in row.warnings)
    assert np.abs(cli.raw(out, TO_RGB.format("auto", "auto"), 96, 64).mean() - 200 * 128 / 255) < 1.5


@pytest.mark.long
@pytest.mark.parametrize(("name", "bars", "white"), in_turn([("hlg.mp4", 6, 4), ("pq.mp4", 7, 5)], 2))
def test_high_dynamic_range_is_tone_mapped_to_a_plausible_picture(name, bars, white, media, cli, pipeline):
    ours = pipeline(media[name], keep=True)
    luma, u, v = planes(ours)
    levels = [int(np.median(luma[:, n * 16 + 4 : n * 16 + 12])) for n in range(bars)]
    assert levels == sorted(levels)
    assert levels[0] <= 20
    assert 140 <= levels[white] <= 235  # reference white; Hable's curve in zscale and tonemap gives 165 to 181
    assert 60 < levels[white - 2] < levels[white]
    assert max(levels) <= 240
    for n in range(bars):  # greys stay grey
        assert abs(int(np.median(u[:, n * 8 + 2 : n * 8 + 6])) - 128) <= 2
        assert abs(int(np.median(v[:, n * 8 + 2 : n * 8 + 6])) - 128) <= 2
    assert np.median(v[:, -6:-2]) > 140  # red stays red
    assert any("tone-mapped" in said for said in ours.picture_filter.picture.warnings)


@pytest.mark.parametrize(("name", "transfer"), [("pq.mp4", "smpte2084"), ("hlg.mp4", "arib-std-b67")])
def test_ten_bits_keep_high_dynamic_range_untouched_and_tagged(name, transfer, media, cli, tmp_path):
    _, path = made(media[name], RunSettings(VideoOutput(EncoderOptions(crf=1, pixel_format="yuv420p10le"))), tmp_path)
    assert f"(tv, bt2020nc/bt2020/{transfer}" in cli.says("-i", path)
    source, ours = (
        np.frombuffer(cli.run("-i", p, "-pix_fmt", "yuv420p10le", "-f", "rawvideo", "-"), np.uint16).astype(int)
        for p in (media[name], path)
    )
    assert np.abs(source - ours).mean() < 2


@pytest.mark.long
def test_tone_mapped_output_is_tagged_bt709(media, cli, tmp_path):
    _, path = made(media["pq.mp4"], RunSettings(), tmp_path)
    assert "yuv420p(tv, bt709" in cli.says("-i", path)


def test_an_absurd_pixel_shape_is_ignored(media, cli, tmp_path, pipeline):
    path = tmp_path / "absurd.mp4"
    cli.run("-i", media["cfr.mp4"], "-c", "copy", "-aspect", "100:1", path)
    ours = pipeline(path)
    assert ours.info.sample_aspect_ratio > Fraction(20)
    assert tuple(ours.picture_filter.picture.size) == (96, 64)
    assert any("implausible" in said for said in ours.picture_filter.picture.warnings)


@pytest.mark.parametrize("pixel_format", ["rgb565le", "rgb555le", "rgb8", "bgr8"])
def test_few_bits_of_rgb_are_stretched_to_eight_and_not_shifted(pixel_format, cli, tmp_path):
    """White, and a red of half the levels: by hand, a level n of b bits is 255 n / (2^b - 1)."""
    white, red, due = {
        "rgb565le": (b"\xff\xff", (16 << 11).to_bytes(2, "little"), 255 * 16 / 31),
        "rgb555le": (b"\xff\x7f", (16 << 10).to_bytes(2, "little"), 255 * 16 / 31),
        "rgb8": (b"\xff", b"\x80", 255 * 4 / 7),
        "bgr8": (b"\xff", b"\x04", 255 * 4 / 7),
    }[pixel_format]
    raw, source = tmp_path / "raw", tmp_path / "source.nut"
    raw.write_bytes((white * 32 + red * 32) * 64)
    cli.run("-f", "rawvideo", "-pix_fmt", pixel_format, "-s", "64x64", "-r", 25, "-i", raw, "-c:v", "rawvideo", source)
    for settings in (
        RunSettings(FrameOutput("burst", quality=100, subsampling="444")),
        RunSettings(FrameOutput("tensor")),
        RunSettings(VideoOutput(EncoderOptions(crf=1, pixel_format="yuv444p"))),
        RunSettings(
            VideoOutput(EncoderOptions(crf=1, pixel_format="yuv444p"), engine="ffmpeg"), scale=Scale(short_side=48)
        ),
    ):
        _, path = made(source, settings, tmp_path)
        if not settings.output.has_loss:
            ours = np.fromfile(path, np.uint8).reshape(64, 64, 3)
        else:
            reading = ("-f", "mjpeg") if settings.output.is_jpeg else ()
            side = settings.scale.short_side or 64
            ours = cli.raw(path, TO_RGB.format("auto", "auto"), side, side, reading=reading)[0]
        half = ours.shape[1] // 2
        assert np.abs(ours[8:-8, 8 : half - 8].mean((0, 1)) - 255).max() < 1.5
        assert np.abs(ours[8:-8, half + 8 : -8].mean((0, 1)) - (due, 0, 0)).max() < 2
    assert np.abs(VideoFiles([source])["source"].frames([0])[0, 8, 8].astype(int) - 255).max() == 0
