"""What a source of high dynamic range says of its screen: believed where it can be so, used, carried into the output, and no further."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest

from tests.pipeline import source_frames
from tests.sampling import in_turn
from vidprep.formats.video.options import EncoderOptions
from vidprep.formats.video.source import Source
from vidprep.transcode.media._source_picture import describe
from vidprep.transcode.media.picture import plan_picture
from vidprep.transcode.media.picture_filter import PictureFilter
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.unit.job import WholeJob
from vidprep.transcode.unit.life import run_job

P3 = "G(13250,34500)B(7500,3000)R(34000,16000)WP(15635,16450)"
BT2020 = "G(8500,39850)B(6550,2300)R(35400,14600)WP(15635,16450)"
BT709 = "G(15000,30000)B(7500,3000)R(32000,16500)WP(15635,16450)"
PERMUTED = "G(34000,16000)B(13250,34500)R(7500,3000)WP(15635,16450)"  # as a phone writes them
SWAPPED = "G(7500,3000)B(13250,34500)R(34000,16000)WP(15635,16450)"
INVISIBLE = "G(3000,45000)B(7500,3000)R(34000,16000)WP(15635,16450)"
WHITE_OUTSIDE = "G(13250,34500)B(7500,3000)R(34000,16000)WP(30000,25000)"
KEPT = EncoderOptions(pixel_format="yuv420p10le")
TAGS = ("-colorspace", "bt2020nc", "-color_primaries", "bt2020", "-color_trc", "smpte2084", "-color_range", "tv")


def graded(cli: Any, path: Path, display: str | None, light: str | None = None) -> Path:
    """Two frames of PQ: a blue sky of 60 to 260 cd/m² over grey, with what x265 writes of them."""
    luma = np.full((64, 64), 450, "<u2")
    u, v = np.full((32, 32), 512, "<u2"), np.full((32, 32), 512, "<u2")
    luma[:40] = np.linspace(510, 450, 40, dtype="<u2")[:, None]
    u[:20], v[:20] = 590, 455
    params = "log-level=error:pools=none:frame-threads=1"
    params += f":master-display={display}" if display else ""
    params += f":max-cll={light}" if light else ""
    cli.run(
        "-f",
        "rawvideo",
        "-pix_fmt",
        "yuv420p10le",
        "-s",
        "64x64",
        "-r",
        25,
        *TAGS,
        "-i",
        "-",
        "-c:v",
        "libx265",
        "-crf",
        4,
        "-x265-params",
        params,
        *TAGS,
        path,
        stdin=b"".join(p.tobytes() for p in (luma, u, v)) * 2,
    )
    return path


def made(path: Path, settings: RunSettings, folder: Path) -> tuple[Any, Path]:
    stat = path.stat()
    name = f"out.{settings.output.extension}"
    unit = Unit("x", str(path), stat.st_size, stat.st_mtime_ns)
    row = run_job(WholeJob(unit, settings, name, str(folder / name), ffmpeg=imageio_ffmpeg.get_ffmpeg_exe()))
    assert row.ok, f"{row.stage}: {row.message}"
    return row, folder / name


@pytest.mark.long
def test_a_sky_stays_blue_whatever_a_phone_says_of_its_screen(cli, pipeline, tmp_path):
    """The screen of a phone that swaps its primaries, and ends at 0.1 cd/m², made it magenta."""
    pictures = {}
    for name, display in (("silent", None), ("permuted", f"{PERMUTED}L(1000,1)")):
        ours = pipeline(graded(cli, tmp_path / f"{name}.mp4", display), keep=True)
        pictures[name] = ours.pictures[0]
        doubts = [said for said in ours.picture_filter.source.warnings if "implausible" in said]
        assert len(doubts) == (name == "permuted")
    u, v = (np.frombuffer(pictures["permuted"], np.uint8)[64 * 64 :].reshape(2, 32, 32)[n, :18].mean() for n in (0, 1))
    assert u > 140
    assert v < 118  # magenta is above 128
    assert pictures["permuted"] == pictures["silent"]


@pytest.mark.parametrize(
    ("display", "light", "believed"),
    [
        (f"{P3}L(10000000,1)", "800,300", (True, True)),
        (f"{P3}L(10000000,1)", "0,0", (True, False)),
        (f"{BT2020}L(100000000,50)", "10000,0", (True, True)),
        (f"{BT709}L(500000,0)", None, (True, False)),
        (f"{P3}L(490000,1)", None, (False, False)),
        (f"{P3}L(100010000,1)", None, (False, False)),
        (f"{PERMUTED}L(10000000,1)", "800,300", (False, True)),
        (f"{SWAPPED}L(10000000,1)", None, (False, False)),
        (f"{INVISIBLE}L(10000000,1)", None, (False, False)),
        (f"{WHITE_OUTSIDE}L(10000000,1)", None, (False, False)),
        (f"{P3}L(10000000,1)", "1001,300", (True, False)),
        (f"{P3}L(10000000,1)", "200,300", (True, False)),
        (None, "10001,300", (False, False)),
        (None, None, (False, False)),
    ],
)
def test_implausible_hdr_metadata_is_dropped_with_a_remark(display, light, believed, cli, tmp_path):
    path = graded(cli, tmp_path / "source.mp4", display, light)
    row, _ = made(path, RunSettings(VideoOutput(KEPT)), tmp_path)
    assert row.mastering_display == (display if believed[0] else None)
    assert row.content_light == (light if believed[1] else None)
    for what, told, is_believed in zip(("mastering", "content"), (display, light), believed, strict=True):
        doubts = [said for said in row.warnings if f"its {what}" in said and "implausible" in said]
        assert len(doubts) == (told not in (None, "0,0") and not is_believed), row.warnings


@pytest.mark.parametrize(
    ("codec", "container", "engine"),
    [
        *(
            (codec, box, engine)
            for codec in ("hevc", "h264", "av1")
            for box in ("mp4", "mkv")
            for engine in ("av", "ffmpeg")
        ),
        ("av1", "webm", "av"),
        ("vp9", "webm", "ffmpeg"),
        ("vp9", "mkv", "ffmpeg"),
        ("vp9", "mp4", "ffmpeg"),
    ],
)
def test_kept_high_dynamic_range_says_on_which_screen_it_was_graded(codec, container, engine, cli, tmp_path):
    path = graded(cli, tmp_path / "source.mp4", f"{P3}L(10000000,1)", "800,300")
    options = EncoderOptions(codec=codec, container=container, pixel_format="yuv420p10le")
    _, out = made(path, RunSettings(VideoOutput(options, engine=engine)), tmp_path)
    by_container, _, by_frames = cli.log("-i", out, "-vf", "showinfo", "-f", "null", "-").partition("Stream mapping:")
    for told in (by_container, by_frames):
        primaries, high = (
            r"r\(0.6800,0.3200\) g\(0.26[45]\d,0.6[89]\d\d\) b\(0.1[45]\d\d 0.0600\)",
            r"max_luminance=1000.00",
        )
        assert re.search(f"(?i)mastering display metadata.* {primaries} .*{high}", told), told
        assert re.search("(?i)content light level metadata.*MaxCLL=800, MaxFALL=300", told), told


@pytest.mark.parametrize(
    ("source", "pixels", "engine"),
    in_turn(
        [
            ("permuted", "yuv420p10le", "av"),
            ("whole", "yuv420p", "av"),
            ("whole", "yuv420p", "ffmpeg"),
            ("permuted", "yuv420p10le", "ffmpeg"),
        ],
        4,
    ),
)
def test_dropped_or_tone_mapped_hdr_metadata_is_not_written(source, pixels, engine, cli, tmp_path):
    display = f"{PERMUTED if source == 'permuted' else P3}L(10000000,1)"
    path = graded(cli, tmp_path / "source.mp4", display, "20000,300" if source == "permuted" else "800,300")
    options = EncoderOptions(codec="hevc", pixel_format=pixels)
    _, out = made(path, RunSettings(VideoOutput(options, engine=engine)), tmp_path)
    told = cli.log("-i", out, "-vf", "showinfo", "-f", "null", "-")
    assert not re.search("(?i)mastering display|light level", told), told


def test_a_tone_map_heeds_no_metadata_that_comes_with_keyframes_alone(cli, tmp_path):
    """As in H.264: each keyframe was eight levels darker than the frames after it, and the tone map was set up anew before and
    after it, which takes seconds.
    """
    path = tmp_path / "h264.mp4"
    grey = np.full(64 * 64 * 3 // 2, 512, "<u2")
    grey[: 64 * 64] = 500
    params = f"mastering-display={P3}L(10000000,1):cll=800,300:keyint=4"
    cli.run(
        "-f",
        "rawvideo",
        "-pix_fmt",
        "yuv420p10le",
        "-s",
        "64x64",
        "-r",
        25,
        *TAGS,
        "-i",
        "-",
        "-c:v",
        "libx264",
        "-qp",
        1,
        "-x264-params",
        params,
        *TAGS,
        path,
        stdin=grey.tobytes() * 9,
    )
    told = cli.log("-i", path, "-vf", "showinfo", "-f", "null", "-")
    assert len(re.findall("side data - Mastering display", told)) == 3
    with Source(path, max_pixels=10_000) as source:
        frames = [each.frame for each in source_frames(source, max_frames=9)]
        picture = plan_picture(describe(frames[0], source.info), RunSettings(), "yuv420p")
        kept = PictureFilter(frames[0], source.info, RunSettings(VideoOutput(KEPT)), "yuv420p10le")
    first = ",".join(part for part in picture.chain.partition(",scale")[0].split(",") if part.startswith("sidedata"))
    assert "Mastering display" not in cli.log("-i", path, "-vf", f"{first},showinfo", "-f", "null", "-")
    for frame in frames:
        kept.apply(frame)
    assert kept.changes == []


@pytest.mark.parametrize("displays", [(None, P3), (P3, BT2020), (P3, PERMUTED)], ids=["later", "other", "impossible"])
def test_metadata_that_changes_half_way_is_judged_again_and_the_row_says_where(displays, cli, tmp_path):
    """What is kept says what its first frame said."""
    joined = tmp_path / "joined.ts"
    parts = [
        graded(cli, tmp_path / f"{n}.ts", display and f"{display}L(10000000,1)") for n, display in enumerate(displays)
    ]
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    row, out = made(joined, RunSettings(VideoOutput(KEPT)), tmp_path)
    assert "the picture changed to other HDR metadata at output frame 2; fitted into 64x64" in row.warnings
    assert row.mastering_display == (displays[0] and f"{displays[0]}L(10000000,1)")
    told = cli.log("-i", out, "-vf", "showinfo", "-f", "null", "-")
    assert ("max_luminance=1000.00" in told) == (displays[0] is not None)
