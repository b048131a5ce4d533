"""Two engines, one picture: what enters the encoder is the same bytes at the same ticks in PyAV and in ffmpeg."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.helpers import leftovers, make_clip, manifest, outputs, transcode
from tests.real_media import SHARED_MEDIA, real_clips
from tests.recipes import PLAIN, moving
from tests.sampling import in_turn, pairs
from vidprep.formats.model import Cut, FrameSize
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.media.ffmpeg import build_command
from vidprep.transcode.settings.options import Retime, Scale
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.unit.job import WholeJob
from vidprep.transcode.unit.life import run_job

SETTINGS = {
    "as it is": RunSettings(),
    "15 a second": RunSettings(retime=Retime(Fraction(15))),
    "short side 48, ntsc": RunSettings(retime=Retime(Fraction(30000, 1001)), scale=Scale(short_side=48)),
    "padded": RunSettings(scale=Scale(size=FrameSize(80, 80), fit="pad", scaler="lanczos")),
    "cropped, area": RunSettings(scale=Scale(size=FrameSize(40, 44), fit="crop", scaler="area")),
    "stretched, larger": RunSettings(
        scale=Scale(size=FrameSize(132, 70), fit="stretch", scaler="bilinear", upscale=True)
    ),
    "10 bit, 4:4:4": RunSettings(VideoOutput(EncoderOptions(pixel_format="yuv444p10le")), scale=Scale(short_side=40)),
}
CUT = (Fraction(1, 10), Fraction(1, 2))


def command_of(
    cli: Any, path: Path, ours: Any, settings: RunSettings, start: Any, end: Any, tmp_path: Path
) -> list[str]:
    return build_command(cli.exe, str(path), tmp_path / "x.mp4", ours.stream, settings)


def before_the_encoder(
    cli: Any, path: Path, ours: Any, settings: RunSettings, start: Any, end: Any, tmp_path: Path
) -> tuple[list[str], list[str]]:
    """The part of our ffmpeg command that reads, and the part that makes pictures."""
    command = command_of(cli, path, ours, settings, start, end, tmp_path)
    inputs = command[1 : command.index("-i") + 2]
    value = {
        name: command[command.index(name) + 1] for name in ("-filter_complex", "-map", "-fps_mode", "-enc_time_base")
    }
    return inputs, [part for pair in value.items() for part in pair]


def told_by_ffmpeg(cli: Any, inputs: list[str], outputs: list[str]) -> list[tuple[str, int]]:
    told = cli.run("-filter_complex_threads", 1, *inputs, *outputs, "-f", "framemd5", "-").decode().splitlines()
    rows = [[part.strip() for part in line.split(",")] for line in told if not line.startswith("#")]
    return [(row[5], int(row[2])) for row in rows]


def both(
    pipeline: Any, cli: Any, path: Path, settings: RunSettings, tmp_path: Path, start: Any = None, end: Any = None
) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    ours = pipeline(path, settings, start=start, end=end)
    inputs, outputs = before_the_encoder(cli, path, ours, settings, start, end, tmp_path)
    return [(f.md5, f.pts) for f in ours.frames], told_by_ffmpeg(cli, inputs, outputs)


PLAIN_SDR = [name for name in PLAIN if name not in ("pq.mp4", "hlg.mp4")]
HDR_PAIRS = in_turn(
    [("hlg.mp4", "10 bit, 4:4:4"), ("pq.mp4", "15 a second")], 2
)  # building a tone mapping takes seconds


@pytest.mark.parametrize(("name", "kind"), pairs(PLAIN_SDR, list(SETTINGS), each=2) + HDR_PAIRS)
def test_both_engines_give_the_encoder_the_same_frames(name, kind, media, pipeline, cli, tmp_path):
    mine, theirs = both(pipeline, cli, media[name], SETTINGS[kind], tmp_path)
    if len(mine) == 1 and not theirs:
        pytest.skip("one frame shorter than half a period: ffmpeg gives none, we give one")
    assert [pts for _, pts in mine] == [pts for _, pts in theirs]
    assert mine == theirs


@pytest.mark.parametrize("pixel_format", ["gray9le", "gray10le", "gray12le", "gray14le", "ya8"])
def test_grey_that_bwdif_does_not_take_is_the_same_in_both_engines(pixel_format, pipeline, cli, tmp_path):
    """ffmpeg made RGB of it, and took its range for another."""
    path = tmp_path / "grey.nut"
    cli.run(*moving(frames=3), "-c:v", "rawvideo", "-pix_fmt", pixel_format, path)
    mine, theirs = both(pipeline, cli, path, RunSettings(), tmp_path)
    assert mine == theirs


@pytest.mark.parametrize("kind", ["as it is", "15 a second"])
@pytest.mark.parametrize(
    "name",
    ["cfr.mp4", "open_gop.mp4", "open_gop.mkv", "vfr.mp4", "edit_list.mp4", "ts_late.ts", "vfr.webm", "vp9.webm"],
)
def test_both_engines_cut_the_same_frames(name, kind, media, pipeline, cli, tmp_path):
    for start, end in (CUT, (CUT[0], None), (None, CUT[1]), (Fraction(1, 3), Fraction(2, 3))):
        mine, theirs = both(pipeline, cli, media[name], SETTINGS[kind], tmp_path, start, end)
        assert mine == theirs, (start, end)
        assert len(mine) > 2


@pytest.mark.parametrize("name", in_turn(real_clips(), 2))
def test_both_engines_give_the_same_frames_of_real_clips(name, pipeline, cli, tmp_path):
    real_clip, kind = SHARED_MEDIA / name, "short side 48, ntsc"
    settings, end = SETTINGS[kind], Fraction(1)
    ours = pipeline(real_clip, settings, end=end)
    if ours.facts.stamps_sorted:
        pytest.skip("timestamps out of order have a test of their own")
    inputs, outputs = before_the_encoder(cli, real_clip, ours, settings, None, end, tmp_path)
    mine, theirs = [(f.md5, f.pts) for f in ours.frames], told_by_ffmpeg(cli, inputs, outputs)
    assert [pts for _, pts in mine] == [pts for _, pts in theirs]
    differ = [n for n, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b]
    if ours.facts.is_interlaced:
        assert differ in ([], [0], [0, 1]), differ
    else:
        assert differ == []


@pytest.mark.parametrize("kind", ["as it is", "short side 48, ntsc"])
def test_deinterlaced_frames_are_the_same_but_for_the_first(interlaced_clip, kind, pipeline, cli, tmp_path):
    settings = SETTINGS[kind]
    ours = pipeline(interlaced_clip, settings, keep=True)
    inputs, outputs = before_the_encoder(cli, interlaced_clip, ours, settings, None, None, tmp_path)
    theirs = told_by_ffmpeg(cli, inputs, outputs)
    assert [f.pts for f in ours.frames] == [pts for _, pts in theirs]
    differ = [n for n, (a, b) in enumerate(zip(ours.frames, theirs, strict=True)) if a.md5 != b[0]]
    raw = cli.run("-filter_complex_threads", 1, *inputs, *outputs, "-f", "rawvideo", "-")
    pictures = np.frombuffer(raw, np.uint8).reshape(len(theirs), -1).astype(float)
    first_interlaced = {0} if "mixed.ts" not in interlaced_clip.name else {16}
    assert {ours.frames[n].source_index for n in differ} <= first_interlaced
    for n in differ:
        mse = np.mean((pictures[n] - np.frombuffer(ours.pictures[n], np.uint8)) ** 2)
        assert 10 * np.log10(255**2 / mse) >= 30  # a hard test pattern; real clips stay above 40


@pytest.mark.parametrize("rate", [None, Fraction(15)])
def test_time_that_jumps_back_is_joined_alike_in_both_engines(rate, media, pipeline, cli, tmp_path):
    settings = replace(SETTINGS["as it is"], retime=Retime(rate))
    mine, theirs = both(pipeline, cli, media["jumps_back.ts"], settings, tmp_path)
    assert mine == theirs


def finished(path: Path, settings: RunSettings, tmp_path: Path, cli: Any, **cut: float) -> Any:
    info = path.stat()
    unit = Unit("x", str(path), info.st_size, info.st_mtime_ns, Cut(cut.get("start"), cut.get("end")))
    partial = tmp_path / f"{settings.output.engine}.{settings.output.extension}"
    return run_job(WholeJob(unit, settings, partial.name, str(partial), ffmpeg=cli.exe)), partial


@pytest.mark.parametrize("codec", in_turn(["h264", "hevc", "vp9", "av1"], 3))
@pytest.mark.parametrize("name", ["cfr.mp4", "vfr.mp4", "turned_90.mp4"])
def test_the_files_of_both_engines_have_the_same_frames_times_and_keyframes(name, codec, media, cli, tmp_path):
    rows = {}
    for engine in ("av", "ffmpeg"):
        settings = RunSettings(
            VideoOutput(EncoderOptions(codec=codec, gop=5), engine=engine), scale=Scale(short_side=64)
        )
        rows[engine], path = finished(media[name], settings, tmp_path, cli)
        assert rows[engine].ok, rows[engine].message
        rows[engine, "times"] = [f.time for f in cli.frames(path)]
    mine, theirs = rows["av"], rows["ffmpeg"]
    assert rows["av", "times"] == rows["ffmpeg", "times"]
    for column in ("num_frames", "keyframes", "source_frames", "width", "height", "duration_seconds", "frame_rate_num"):
        assert getattr(mine, column) == getattr(theirs, column), column
    assert abs(mine.psnr_y_db - theirs.psnr_y_db) < 0.7
    assert (mine.verified_in, theirs.verified_in) == ("same pass", "second pass")


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("swapped.mkv", None),
        ("swapped.mkv", "15"),
        ("doubled.mkv", None),
        ("size_changes.ts", None),
        ("size_changes.ts", "15"),
    ],
)
def test_changes_that_ffmpegs_filters_cannot_handle_name_the_other_engine(name, rate, media, cli, tmp_path):
    """At a constant rate its fps filter picks other frames at the right times: scored, that would be a silent lie."""
    settings = RunSettings(retime=Retime(Fraction(rate) if rate else None))
    row, _ = finished(media[name], settings, tmp_path, cli)
    assert row.ok
    row, partial = finished(
        media[name], replace(settings, output=replace(settings.video, engine="ffmpeg")), tmp_path, cli
    )
    assert (row.status, row.error, row.stage) == ("failed", "VerifyError", "verify")
    assert "--engine av" in row.message
    assert not partial.exists()


# ------------------------------------------------------------------------------------------------ whatever the source is

ENGINES = ("av", "ffmpeg")


@pytest.fixture(scope="module")
def run_of(media, cli, tmp_path_factory):
    """Rows and destination of a run over these clips and a good one, once for each engine."""
    done: dict[tuple[str, tuple[str, ...]], tuple[dict[str, dict[str, Any]], Path]] = {}

    def of(engine: str, names: tuple[str, ...]) -> tuple[dict[str, dict[str, Any]], Path]:
        if (engine, names) not in done:
            root = tmp_path_factory.mktemp(engine)
            make_clip(root / "src" / "good.mp4", 5)
            for name in names:
                (root / "src" / name).symlink_to(media[name])
            options = ("--ffmpeg", cli.exe) if engine == "ffmpeg" else ()
            ran = transcode(
                root / "src", root / "dst", "--engine", engine, *options, "--keep-source-suffix", "--gop", 8
            )
            rows = manifest(root / "dst")
            assert rows["good.mp4"]["status"] == "ok"
            assert set(rows) == {"good.mp4", *names}
            assert ran.code == any(row["status"] == "failed" for row in rows.values()), ran.err
            assert set(outputs(root / "dst")) == {row["file_name"] for row in rows.values() if row["status"] == "ok"}
            assert leftovers(root / "dst") == []
            done[engine, names] = rows, root / "dst"
        return done[engine, names]

    return of


# What the header says of frames; None where it says nothing.
MISCOUNTED = {"closed.mkv": 0, "edit_list.mp4": 26, "below_zero.mp4": 36, "claims_431.avi": 431, "ts_late.ts": 0}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MISCOUNTED)
def test_frames_are_counted_by_decoding_whatever_the_header_says(name, engine, run_of, media, cli):
    with av.open(str(media[name])) as container:
        assert container.streams.video[0].frames == MISCOUNTED[name]
    rows, dst = run_of(engine, tuple(MISCOUNTED))
    row, due = rows[name], len(cli.frames(media[name]))
    assert due not in (0, MISCOUNTED[name])
    assert row["source_num_frames"] == row["num_frames"] == len(cli.frames(dst / row["file_name"])) == due


STAMPED = (
    "swapped.mkv",
    "doubled.mkv",
    "jumps_back.ts",
    "ts_late.ts",
    "edit_list_late.mp4",
    "below_zero.mp4",
    "below_zero.mkv",
    "annexb.h264",
)
NOT_BY_FFMPEG = {"swapped.mkv", "doubled.mkv", "below_zero.mkv"}
REMARKS = {
    "swapped.mkv": "timestamps ran backwards; sorted",
    "doubled.mkv": "6 frames shared a timestamp",
    "jumps_back.ts": "time jumped back 2 times",
    "below_zero.mkv": "9 frames had no timestamp",
    "annexb.h264": "20 frames had no timestamp",
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", STAMPED)
def test_whatever_the_timestamps_are_those_of_the_output_rise_from_0_and_are_in_its_row(
    name, engine, run_of, media, cli
):
    rows, dst = run_of(engine, STAMPED)
    row = rows[name]
    if engine == "ffmpeg" and name in NOT_BY_FFMPEG:
        assert (row["status"], row["error"]) == ("failed", "VerifyError")
        assert "--engine av" in row["message"]
        return
    assert row["status"] == "ok", row["message"]
    times = [frame.time for frame in cli.frames(dst / row["file_name"])]
    assert times[0] == 0 and all(earlier < later for earlier, later in pairwise(times))
    assert times == [pts * Fraction(row["time_base_num"], row["time_base_den"]) for pts in row["pts"]]
    assert len(times) == row["source_num_frames"] == len(cli.frames(media[name]))
    assert REMARKS.get(name, "") in " ".join(row["warnings"])


# Size of the output, and what its row says of it.
ODD = {
    "odd_444.mp4": (96, 62, "odd size 97x63 cropped to 96x62"),
    "odd_420.webm": (96, 62, "odd size 97x63 cropped to 96x62"),
    "sar_wide.mp4": (128, 64, ""),
    "sar_tall.mp4": (72, 64, ""),
    "deep.mp4": (96, 64, ""),
    "deep_422.mkv": (96, 64, ""),
    "grey.mp4": (96, 64, ""),
    "grey16.mkv": (96, 64, ""),
    "rgb.mkv": (96, 64, ""),
    "alpha.mov": (96, 64, "alpha composited over black"),
    "alpha.webm": (96, 64, "alpha composited over black"),
    "interlaced_top.mkv": (96, 64, "20 interlaced frames deinterlaced"),
    "size_changes.ts": (96, 64, "the picture changed to 120x64 at output frame 12; fitted into 96x64"),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ODD)
def test_an_odd_picture_has_a_defined_result_that_its_row_tells(name, engine, run_of, media, cli):
    rows, dst = run_of(engine, tuple(ODD))
    row = rows[name]
    if engine == "ffmpeg" and name == "size_changes.ts":
        assert (row["status"], row["error"]) == ("failed", "VerifyError")
        assert (
            "the size of its pictures changes midway, and --engine ffmpeg keeps to the first; take --engine av"
            in row["message"]
        )
        return
    width, height, said = ODD[name]
    assert row["status"] == "ok", row["message"]
    assert (row["width"], row["height"], row["pixel_format"]) == (width, height, "yuv420p")
    assert said in " ".join(row["warnings"])
    with av.open(str(dst / row["file_name"])) as made:
        frames = [
            (frame.width, frame.height, frame.format.name, frame.interlaced_frame) for frame in made.decode(video=0)
        ]
        assert made.streams.video[0].sample_aspect_ratio in (None, 1)
    assert frames == [(width, height, "yuv420p", False)] * len(cli.frames(media[name]))


@pytest.mark.parametrize("way", ["av", "ffmpeg", "burst"])
def test_a_varying_rate_keeps_its_frames_and_times_and_a_constant_one_only_comes_when_asked(way, media, cli, tmp_path):
    """30 frames a second, then 10."""
    source = media["slows_down.mp4"]
    options = {"av": (), "ffmpeg": ("--engine", "ffmpeg", "--ffmpeg", cli.exe), "burst": ()}[way]
    verb = "burst" if way == "burst" else "transcode"
    due = [frame.time for frame in cli.frames(source)]
    assert len({later - earlier for earlier, later in pairwise(due)}) == 2, "the clip lost what is special about it"
    assert transcode(source, tmp_path / "own", *options, verb=verb).code == 0
    (row,) = manifest(tmp_path / "own").values()
    tick = Fraction(row["time_base_num"], row["time_base_den"])
    assert row["source_is_vfr"] and (row["duplicated_frames"], row["dropped_frames"]) == (0, 0)
    assert len(row["pts"]) == row["num_frames"] == len(due)
    assert max(abs(pts * tick - time) for pts, time in zip(row["pts"], due, strict=True)) <= tick
    if way != "burst":
        told = [frame.time for frame in cli.frames(tmp_path / "own" / row["file_name"])]
        assert told == [pts * tick for pts in row["pts"]]

    assert transcode(source, tmp_path / "constant", "--fps", 20, *options, verb=verb).code == 0
    (row,) = manifest(tmp_path / "constant").values()
    whole = [frame.md5 for frame in cli.frames(source)]
    picked = [
        whole.index(frame.md5)
        for frame in cli.frames(source, "settb=1/1000000,setpts=PTS-STARTPTS-1/60/TB,fps=20:round=up")
    ]
    assert row["source_frames"] == picked and row["pts"] is None
    assert row["duplicated_frames"] == len(picked) - len(set(picked)) > 0
    assert row["dropped_frames"] == len(whole) - len(set(picked)) > 0


def test_one_frame_at_a_low_rate_is_one_frame_in_both_engines(tmp_path):
    make_clip(tmp_path / "src" / "one.mp4", 1)
    options = ("--fps", 12, "--preset", "ultrafast")
    for engine in ("av", "ffmpeg"):
        ran = transcode(tmp_path / "src", tmp_path / engine, *options, "--engine", engine, "--json")
        assert ran.rows["one"]["num_frames"] == 1, ran.err
