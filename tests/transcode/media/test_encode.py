"""Outputs read back by readers that are not ours: keyframes, times, boxes, bytes, and the quality that the row tells."""

from __future__ import annotations

import functools
import math
import os
import re
import struct
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

from tests.helpers import environment, make_clip, transcode
from tests.sampling import pairs
from vidprep.formats.errors import SettingsError
from vidprep.formats.model import FrameSize
from vidprep.formats.profiles import CODECS, CONTAINERS, DEFAULT_ENCODER, ENCODERS, TUNES
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.media.ffmpeg import run_ffmpeg
from vidprep.transcode.settings.options import QualityGate, Retime, Scale
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.unit.job import Job
from vidprep.transcode.unit.run_job import run_job

SUITED = [(codec, box.name) for box in CONTAINERS.values() for codec in box.codecs]
IN_PROCESS = [row for row in ENCODERS.values() if row.in_process]
NTSC = Fraction(30000, 1001)


class Outputs:
    """Outputs by source and settings, each made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self.of = functools.cache(self.fresh)

    def fresh(self, path: Path, settings: RunSettings) -> tuple[Any, Path]:
        self.count += 1
        name = f"{self.count}.{settings.encoder.container_name}"
        stat = path.stat()
        unit = Unit(name, str(path), stat.st_size, stat.st_mtime_ns)
        row = run_job(Job(unit, settings, name, str(self.folder / name)))
        return row, self.folder / name


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Outputs:
    return Outputs(tmp_path_factory.mktemp("outputs"))


def encoded(
    codec: str, container: str | None = None, *, fps: Fraction | None = None, engine: str = "av", **options: Any
) -> RunSettings:
    encoder = EncoderOptions(codec=codec, container=container, **options)
    return RunSettings(encoder=encoder, retime=Retime(fps), engine=engine)


def good(made: tuple[Any, Path]) -> tuple[Any, Path]:
    row, path = made
    assert row.ok, f"{row.stage}: {row.message}"
    return row, path


# ------------------------------------------------------------------------------------------------ keyframes


@pytest.mark.parametrize("gop", [1, 5, 16])
@pytest.mark.parametrize(("codec", "container"), SUITED)
def test_a_keyframe_stands_exactly_every_n_frames_across_scene_cuts(codec, container, gop, media, outputs, cli):
    row, path = good(outputs.of(media["scenes.mp4"], encoded(codec, container, gop=gop)))
    with av.open(str(path)) as file:
        packets = sorted((p.pts, p.is_keyframe) for p in file.demux(video=0) if p.size)
    assert len(packets) == 40
    found = [n for n, (_, key) in enumerate(packets) if key]
    assert found == list(range(0, 40, gop)) == row.keyframes
    told = cli.run("-i", path, "-map", "0:v", "-c", "copy", "-bsf:v", "noise=drop=not(key)", "-f", "framecrc", "-")
    assert sum(line[:1] != b"#" for line in told.splitlines()) == len(found)
    assert row.keyframe_interval_max == min(gop, 40)


@pytest.mark.parametrize(("codec", "container"), SUITED)
def test_every_gop_decodes_by_itself_to_the_frames_of_the_whole(codec, container, media, outputs, cli):
    row, path = good(outputs.of(media["scenes.mp4"], encoded(codec, container, gop=5)))
    whole = cli.frames(path)
    for number in row.keyframes:
        jump = cli.frames(path, reading=("-ss", float(whole[number].time)), writing=("-frames:v", 5))
        assert [f.md5 for f in jump] == [f.md5 for f in whole[number : number + 5]]


# ------------------------------------------------------------------------------------------------ containers


def boxes(data: bytes, start: int = 0, end: int | None = None) -> list[tuple[str, int, int]]:
    """(type, begin of content, end) of the boxes of an MP4 file or of one box (ISO/IEC 14496-12)."""
    found, end = [], len(data) if end is None else end
    while start + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, start)
        head = 8
        if size == 1:
            (size,), head = struct.unpack_from(">Q", data, start + 8), 16
        found.append((kind.decode("latin-1"), start + head, start + size))
        start += size
    return found


def box(data: bytes, *path: str) -> bytes:
    start, end = 0, len(data)
    for name in path:
        start, end = next((a, b) for kind, a, b in boxes(data, start, end) if kind == name)
    return data[start:end]


@pytest.mark.parametrize("fps", [None, NTSC, Fraction(12)], ids=str)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", ["cfr.mp4", "slows_down.mp4"])
def test_mp4_starts_at_0_without_edit_list_and_its_header_is_right(name, codec, fps, media, outputs):
    row, path = good(outputs.of(media[name], encoded(codec, "mp4", fps=fps)))
    data = path.read_bytes()
    order = [kind for kind, _, _ in boxes(data)]
    assert order.index("moov") < order.index("mdat")
    assert b"elst" not in box(data, "moov")
    assert struct.unpack_from(">I", box(data, "moov", "trak", "mdia", "minf", "stbl", "stsz"), 8)[0] == row.num_frames
    head = box(data, "moov", "trak", "mdia", "mdhd")
    timescale, duration = struct.unpack_from(">II", head, 12) if head[0] == 0 else struct.unpack_from(">IQ", head, 20)
    with av.open(str(media[name])) as source:
        frames = list(source.decode(video=0))
        length = (frames[-1].pts + frames[-1].duration - frames[0].pts) * source.streams.video[0].time_base
    exact = row.num_frames / fps if fps else length
    assert Fraction(duration, timescale) == exact
    assert row.duration_seconds == pytest.approx(float(exact), abs=1e-9)
    kind = box(data, "moov", "trak", "mdia", "minf", "stbl", "stsd")[12:16]
    assert kind == {"h264": b"avc1", "hevc": b"hvc1", "vp9": b"vp09", "av1": b"av01"}[codec]
    with av.open(str(path)) as file:
        assert min(p.pts for p in file.demux(video=0) if p.size) == 0
        assert file.streams.video[0].frames == row.num_frames
        assert len(file.streams) == 1


def number(data: bytes, at: int, keep_marker: bool) -> tuple[int, int]:
    """A variable-length number of EBML (RFC 8794) and the bytes it takes."""
    length = 9 - data[at].bit_length()
    value = int.from_bytes(data[at : at + length], "big")
    return (value if keep_marker else value & ((1 << (7 * length)) - 1)), length


def elements(data: bytes, start: int, end: int) -> list[tuple[int, int, int]]:
    found = []
    while start < end:
        id_, a = number(data, start, True)
        size, b = number(data, start + a, False)
        found.append((id_, start + a + b, start + a + b + size))
        start += a + b + size
    return found


SEGMENT, INFO, DURATION, TICK, CUES, CLUSTER = 0x18538067, 0x1549A966, 0x4489, 0x2AD7B1, 0x1C53BB6B, 0x1F43B675


@pytest.mark.parametrize("fps", [None, NTSC, Fraction(12)], ids=str)
@pytest.mark.parametrize(("codec", "container"), [pair for pair in SUITED if pair[1] != "mp4"])
def test_matroska_has_cues_in_front_and_tells_its_exact_length(codec, container, fps, media, outputs):
    row, path = good(outputs.of(media["cfr.mp4"], encoded(codec, container, fps=fps)))
    data = path.read_bytes()
    _, start, end = next(e for e in elements(data, 0, len(data)) if e[0] == SEGMENT)
    top = elements(data, start, end)
    ids = [id_ for id_, _, _ in top]
    assert CUES in ids
    assert ids.index(CUES) < ids.index(CLUSTER)
    _, start, end = next(e for e in top if e[0] == INFO)
    info = {id_: data[a:b] for id_, a, b in elements(data, start, end)}
    tick = int.from_bytes(info[TICK], "big") / 1e9
    (length,) = struct.unpack(">d", info[DURATION])
    exact = row.num_frames / (fps or 30)
    assert length * tick == pytest.approx(float(exact), abs=0.001)
    # A reader that goes by the length finds the last frame inside it.
    with av.open(str(path)) as file:
        last = max(p.pts for p in file.demux(video=0) if p.size) * tick
    assert last < length * tick


@pytest.mark.parametrize(
    ("suited", "name"), pairs(SUITED, ["vfr.mp4", "slows_down.mp4", "vfr.webm", "ntsc.mkv"], each=1)
)
def test_times_of_the_source_are_kept_exactly(name, suited, media, outputs, cli):
    codec, container = suited
    _, path = good(outputs.of(media[name], encoded(codec, container, gop=5)))
    want = [f.time for f in cli.frames(media[name], "setpts=PTS-STARTPTS")]
    got = [f.time for f in cli.frames(path, reading=("-copyts",))]
    assert len(got) == len(want)
    allowed = Fraction(1, 2000) if CONTAINERS[container].milliseconds else 0
    assert max(abs(a - b) for a, b in zip(got, want, strict=True)) <= allowed


@pytest.mark.parametrize(("codec", "container"), SUITED)
def test_a_constant_rate_is_exact(codec, container, media, outputs, cli):
    _, path = good(outputs.of(media["cfr.mp4"], encoded(codec, container, fps=NTSC)))
    got = [f.time for f in cli.frames(path, reading=("-copyts",))]
    allowed = Fraction(1, 2000) if CONTAINERS[container].milliseconds else 0
    assert max(abs(time - n / NTSC) for n, time in enumerate(got)) <= allowed


@pytest.mark.parametrize("codec", ["h264", "hevc", "vp9"])
@pytest.mark.parametrize("name", ["cfr.mp4", "slows_down.mp4"])
def test_opencv_reads_every_frame(name, codec, media, outputs, cli):
    row, path = good(outputs.of(media[name], encoded(codec)))
    capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    grey = []
    while True:
        more, picture = capture.read()
        if not more:
            break
        grey.append(picture)
    assert len(grey) == row.num_frames
    rgb = cli.raw(path, "null", row.width, row.height)
    assert np.abs(rgb[-1].astype(int) - grey[-1][..., ::-1]).mean() < 3


@pytest.mark.parametrize(("codec", "container"), SUITED)
def test_the_same_settings_give_the_same_bytes(codec, container, media, outputs):
    settings = encoded(codec, container, gop=5)
    first, path = good(outputs.of(media["scenes.mp4"], settings))
    second, again = good(outputs.fresh(media["scenes.mp4"], settings))
    assert path != again
    assert path.read_bytes() == again.read_bytes()
    assert first.sha256 == second.sha256
    assert first.size_bytes == path.stat().st_size


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="asks Linux for the policy of every thread")
@pytest.mark.parametrize("codec", CODECS)
def test_no_encoder_leaves_the_process_at_another_priority(codec, media, outputs):
    """SVT-AV1 run by root took SCHED_FIFO 99 for this process, and the children it had starved the machine for minutes."""
    good(outputs.fresh(media["few.mkv"], encoded(codec, "mkv")))
    policies = {os.sched_getscheduler(int(task.name)) for task in Path("/proc/self/task").iterdir()}
    assert policies == {os.SCHED_OTHER}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="asks Linux for the policy of a process")
def test_the_ffmpeg_engine_runs_at_ordinary_priority(tmp_path):
    policy = tmp_path / "policy"
    take = "import os\ntry: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(99))\nexcept PermissionError: pass\n"
    tell = f"open({str(policy)!r}, 'w').write(str(os.sched_getscheduler(0)))"
    run_ffmpeg([sys.executable, "-c", take + tell], "x")
    assert int(policy.read_text()) == os.SCHED_OTHER


# ------------------------------------------------------------------------------------------------ quality


def measured_by_ffmpeg(
    cli: Any, path: Path, reference: Path, raw: tuple[object, ...], tmp_path: Path
) -> dict[str, Any]:
    """psnr and ssim of ffmpeg's own filters on frames of `path` and of a raw file, n-th with n-th."""
    psnr, ssim = tmp_path / "psnr.log", tmp_path / "ssim.log"
    graph = (
        "[0:v]settb=1/1000,setpts=N,split[a][b];[1:v]settb=1/1000,setpts=N,split[c][d];"
        f"[a][c]psnr=stats_file={psnr}[x];[b][d]ssim=stats_file={ssim}[y]"
    )
    said = cli.log(
        "-y", "-i", path, *raw, "-i", reference, "-filter_complex", graph,
        "-map", "[x]", "-fps_mode", "passthrough", "-f", "null", "-", "-map", "[y]", "-fps_mode", "passthrough", "-f", "null", "-",
    )  # fmt: skip
    told = re.search(r"PSNR y:(\S+) .*average:(\S+)", said)
    assert told, said
    frames = [float(m) for m in re.findall(r"mse_y:(\S+)", psnr.read_text())]
    all_ = re.search(r"SSIM .*All:(\S+)", said)
    assert all_, said
    return {"y": float(told[1]), "yuv": float(told[2]), "mse": frames, "ssim": float(all_[1])}


@pytest.mark.parametrize(
    ("codec", "pixel_format"),
    [
        (codec, bits)
        for bits in ("yuv420p", "yuv420p10le")
        for codec in CODECS
        if (codec, bits) != ("vp9", "yuv420p10le")
    ],
)
@pytest.mark.parametrize("name", ["cfr.mp4", "sar_wide.mp4", "deep.mp4"])
def test_the_scores_of_the_row_are_those_of_ffmpegs_filters(
    name, codec, pixel_format, media, outputs, pipeline, cli, tmp_path
):
    settings = replace(
        encoded(codec, pixel_format=pixel_format, fps=Fraction(20), gop=5), scale=Scale(short_side=64, scaler="area")
    )
    row, path = good(outputs.of(media[name], settings))
    ours = pipeline(media[name], settings, keep=True)
    reference = tmp_path / "reference.yuv"
    reference.write_bytes(b"".join(ours.pictures))
    raw = ("-f", "rawvideo", "-pix_fmt", pixel_format, "-s", f"{row.width}x{row.height}", "-r", 20)
    told = measured_by_ffmpeg(cli, path, reference, raw, tmp_path)
    peak = 1023 if "10" in pixel_format else 255
    assert row.num_frames == len(told["mse"]) == len(ours.frames)
    assert row.psnr_y_db == pytest.approx(told["y"], abs=0.01)
    assert row.psnr_yuv_db == pytest.approx(told["yuv"], abs=0.01)
    assert row.ssim == pytest.approx(told["ssim"], abs=1e-4)
    worst = max(told["mse"])
    assert row.psnr_y_min_db == pytest.approx(10 * math.log10(peak**2 / worst), abs=0.01)
    assert told["mse"][row.worst_frame] == worst
    assert 25 < row.psnr_y_db < 60


@pytest.mark.parametrize("codec", CODECS)
def test_a_lower_crf_is_better_and_larger(codec, media, outputs):
    profile = ENCODERS[DEFAULT_ENCODER[codec]]
    fine, _ = good(outputs.of(media["cfr.mp4"], encoded(codec, crf=profile.crf_default - 10)))
    coarse, _ = good(outputs.of(media["cfr.mp4"], encoded(codec, crf=profile.crf_default + 10)))
    assert fine.psnr_y_db > coarse.psnr_y_db + 3
    assert fine.size_bytes > coarse.size_bytes


def test_a_lossless_output_scores_infinity_and_says_so_in_json(media, outputs):
    row, _ = good(outputs.of(media["cfr.mp4"], encoded("h264", crf=0, tune="visual")))
    assert row.psnr_y_db == row.psnr_y_min_db == row.psnr_yuv_db == math.inf
    assert row.ssim == 1
    assert '"psnr_y_db": "inf"' in row.as_json()


def test_an_output_below_the_gate_fails_with_what_it_reached(media, outputs):
    settings = replace(encoded("h264", crf=45), gate=QualityGate(min_psnr_db=45))
    row, _ = outputs.of(media["cfr.mp4"], settings)
    assert (row.status, row.error, row.stage) == ("failed", "GateError", "gate")
    assert "45" in row.message


# ------------------------------------------------------------------------------------------------ the rows of profiles


@pytest.mark.parametrize("row", IN_PROCESS, ids=lambda row: row.name)
def test_every_pixel_format_preset_and_tune_of_a_row_encodes(row, media, outputs):
    picks = [{"pixel_format": name} for name in row.pixel_formats if name not in row.only_ffmpeg]
    picks += [{"preset": name} for name in row.presets]
    picks += [{"tune": name} for name in TUNES]
    picks += [{"crf": crf} for crf in row.crf_range]
    for pick in picks:
        made, path = outputs.of(media["few.mkv"], encoded(row.codec, "mkv", **pick))
        assert made.ok, f"{pick}: {made.message}"
        with av.open(str(path)) as file:
            pictures = list(file.decode(video=0))
            assert len(pictures) == 6, pick
            assert pictures[0].format.name == pick.get("pixel_format", row.pixel_formats[0]), pick


@pytest.mark.parametrize("pixel_format", ENCODERS["libvpx-vp9"].only_ffmpeg)
def test_a_pixel_format_that_only_ffmpeg_has_is_refused_before_work_and_made_there(
    pixel_format, media, outputs, cli, tmp_path
):
    settings = encoded("vp9", engine="ffmpeg", pixel_format=pixel_format)
    with pytest.raises(SettingsError, match="yuv420p, yuv422p, yuv444p in PyAV; take --engine ffmpeg"):
        replace(settings, engine="av")
    source, partial = media["few.mkv"], tmp_path / "x.webm"
    stat = source.stat()
    unit = Unit("x", str(source), stat.st_size, stat.st_mtime_ns)
    row = run_job(Job(unit, settings, partial.name, str(partial), ffmpeg=cli.exe))
    assert row.ok, row.message
    with av.open(str(partial)) as file:
        assert next(file.decode(video=0)).format.name == pixel_format


@pytest.mark.parametrize("row", IN_PROCESS, ids=lambda row: row.name)
def test_the_smallest_picture_of_a_row_encodes_and_one_below_is_refused(row, media, outputs, cli):
    def scaled(width: int, height: int) -> RunSettings:
        scale = Scale(size=FrameSize(width, height), fit="stretch", upscale=True)
        return replace(encoded(row.codec, gop=5), scale=scale)

    width, height = row.smallest
    made, path = good(outputs.of(media["cfr.mp4"], scaled(width, height)))
    assert made.num_frames == len(cli.frames(path)) == 36
    assert made.psnr_y_db > 20
    for below in ((width - 2, height), (width, height - 2)):
        if min(below) < 2:
            with pytest.raises(SettingsError, match="from 2 to"):
                scaled(*below)
            continue
        refused, path = outputs.of(media["cfr.mp4"], scaled(*below))
        assert (refused.status, refused.error) == ("failed", "PictureError")
        assert f"{width}x{height}" in refused.message
        assert not path.exists()


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"codec": "mpeg2"}, ["h264", "hevc", "vp9", "av1"]),
        ({"encoder": "libfoo"}, ["libx264"]),
        ({"encoder": "libx265"}, ["--codec hevc"]),
        ({"container": "avi"}, ["mp4", "mkv", "webm"]),
        ({"container": "webm"}, ["vp9", "av1"]),
        ({"gop": 0}, ["1 to 10000"]),
        ({"crf": 52}, ["0 to 51"]),
        ({"crf": -1}, ["0 to 51"]),
        ({"codec": "vp9", "crf": 20.5}, ["whole", "0 to 63"]),
        ({"preset": "8"}, ["ultrafast", "veryslow"]),
        ({"codec": "av1", "preset": "medium"}, ["0", "13"]),
        ({"tune": "film"}, list(TUNES)),
        ({"pixel_format": "rgb24"}, ["yuv420p", "yuv444p10le"]),
        ({"codec": "av1", "pixel_format": "yuv444p"}, ["yuv420p", "yuv420p10le"]),
        ({"threads": 0}, ["1 to 256"]),
    ],
    ids=str,
)
def test_a_bad_encoder_value_is_refused_with_what_is_allowed(bad, named):
    with pytest.raises(SettingsError) as caught:
        EncoderOptions(**bad)
    for text in named:
        assert text in str(caught.value)


@pytest.mark.parametrize(("codec", "times"), [("h264", 2), ("hevc", 2), ("vp9", 2), ("av1", 4)])
def test_the_same_settings_give_the_same_bytes_each_time(codec, times, tmp_path):
    """SVT-AV1 decides some pictures by what its threads have done by then when it looks ahead too little."""
    source = make_clip(tmp_path / "a.mp4", 250, (96, 64), options={"preset": "fast", "g": "12", "bf": "3"})
    state = source.stat()
    settings = RunSettings(encoder=EncoderOptions(codec=codec, gop=8))
    job = Job(Unit("a", str(source), state.st_size, state.st_mtime_ns), settings, "a", str(tmp_path / "made"))
    assert len({run_job(job).sha256 for _ in range(times)}) == 1


@pytest.mark.parametrize("count", [1, 2])
def test_hevc_of_fewer_frames_than_it_reorders_has_dts(count, tmp_path):
    """libx265 took them from memory that nobody had set, which malloc fills with the complement of 85 here."""
    make_clip(tmp_path / "src" / "short.mp4", count, (96, 64))
    env = environment() | {"MALLOC_PERTURB_": "85"}
    ran = transcode(tmp_path / "src", tmp_path / "made", "--codec", "hevc", "--container", "mkv", env=env)
    assert ran.code == 0, ran.err
