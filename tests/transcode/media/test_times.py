"""What a row says of times and counts, held against ffprobe's and ffmpeg's own; none of our code is in either."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest

from tests.recipes import H264, moving
from vidprep.formats.manifest.table import ManifestRow
from vidprep.formats.model import Cut
from vidprep.formats.stores.raw_files import VideoFiles
from vidprep.formats.video.options import EncoderOptions
from vidprep.formats.video.seek import SeekPoint
from vidprep.formats.video.source import Source
from vidprep.transcode.check._unit import Check, check_unit
from vidprep.transcode.media import frames
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.unit.job import WholeJob
from vidprep.transcode.unit.life import run_job

FAST = EncoderOptions(preset="ultrafast")


def made_of(
    path: Path, tmp_path: Path, cli: Any, settings: RunSettings | None = None, **cut: float
) -> tuple[ManifestRow, Path]:
    settings = settings or RunSettings(VideoOutput(FAST))
    info = path.stat()
    unit = Unit("x", str(path), info.st_size, info.st_mtime_ns, Cut(cut.get("start"), cut.get("end")))
    partial = tmp_path / f"made-{path.name}.{settings.output.extension}"
    row = run_job(WholeJob(unit, settings, partial.name, str(partial), ffmpeg=cli.exe))
    assert isinstance(row, ManifestRow)
    return row, partial


def ffprobe(path: Path, *entries: str) -> dict[str, Any]:
    program = shutil.which("ffprobe")
    if program is None:
        pytest.skip("no ffprobe here")
    command = [
        program,
        "-v",
        "error",
        "-of",
        "json",
        "-select_streams",
        "v:0",
        "-show_entries",
        ":".join(entries),
        path,
    ]
    return dict(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))


@pytest.mark.parametrize("engine", ["av", "ffmpeg"])
@pytest.mark.parametrize(("name", "box"), [("vfr.mp4", "mkv"), ("sorenson.flv", "mp4"), ("sorenson.flv", "mkv")])
def test_the_row_has_the_times_of_the_closed_file_in_its_own_time_base(name, box, engine, media, cli, tmp_path):
    encoder = EncoderOptions(preset="ultrafast", container=box)
    row, made = made_of(media[name], tmp_path, cli, RunSettings(VideoOutput(encoder, engine=engine)))
    assert row.ok, row.message
    told = ffprobe(made, "packet=pts", "stream=time_base", "format=duration")
    assert f"{row.time_base_num}/{row.time_base_den}" == told["streams"][0]["time_base"]
    assert row.pts == sorted(packet["pts"] for packet in told["packets"])
    if name == "sorenson.flv":  # whose packets have no duration
        *_, before, last = cli.frames(media[name])
        shown = float(2 * last.time - before.time)
        assert [row.duration_seconds, float(told["format"]["duration"])] == pytest.approx([shown] * 2, abs=0.002)


# ------------------------------------------------------------------------------------------------ packets that are no frames

FRAMES, GOP = 40, 10


class Bits:
    """A NAL unit of H.264 as it is written (ITU-T H.264, 7.3 and 9.1)."""

    def __init__(self) -> None:
        self.bits = ""

    def u(self, value: int, bits: int) -> Bits:
        self.bits += f"{value:0{bits}b}"
        return self

    def ue(self, *values: int) -> Bits:
        for value in values:
            code = f"{value + 1:b}"
            self.bits += "0" * (len(code) - 1) + code
        return self

    def aligned(self, stop: str = "") -> bytes:
        bits = self.bits + stop
        bits += "0" * (-len(bits) % 8)
        return int(bits, 2).to_bytes(len(bits) // 8, "big")


def field_coded(size: int = 64) -> bytes:
    """A video whose fields are pictures of their own, as camcorders code them; no encoder at hand does. Samples are written as
    they are (I_PCM); each frame has a grey of its own.
    """
    blocks = size // 16
    sequence = Bits().u(77, 8).u(0, 8).u(30, 8).ue(0, 0, 0, 4, 1).u(0, 1).ue(blocks - 1, blocks // 2 - 1).u(0b00100, 5)
    picture = Bits().ue(0, 0).u(0, 2).ue(0, 0, 0).u(0, 3).ue(0, 0, 0).u(0, 3)
    units = [b"\x67" + sequence.aligned("1"), b"\x68" + picture.aligned("1")]
    for number in range(FRAMES):
        for bottom in (0, 1):
            at = number % GOP
            is_idr = at == bottom == 0
            head = Bits().ue(0, 7, 0).u(at % 16, 4).u(1, 1).u(bottom, 1)
            if is_idr:
                head.ue(number % 2)
            head.u(2 * at + bottom, 8).u(0, 2 if is_idr else 1).ue(0)
            block = bytes([16 + 5 * number]) * 256 + bytes([128]) * 128
            data = (
                head.ue(25).aligned() + block + (Bits().ue(25).aligned() + block) * (blocks * blocks // 2 - 1) + b"\x80"
            )
            units.append((b"\x65" if is_idr else b"\x61") + data)
    return b"".join(b"\0\0\0\1" + unit for unit in units)


def write_fields(path: Path) -> Path:
    """One field a packet."""
    raw = path.with_suffix(".h264")
    raw.write_bytes(field_coded())
    with av.open(str(raw)) as given, av.open(str(path), "w") as made:
        stream = made.add_stream_from_template(given.streams.video[0])
        for number, packet in enumerate(packet for packet in given.demux() if packet.size):
            packet.stream, packet.time_base = stream, Fraction(1, 50)
            packet.pts, packet.dts, packet.duration = number, number, 1
            made.mux_one(packet)
    return path


def write_hidden(path: Path, media: Any, cli: Any) -> Path:
    """VP9 whose hidden frames have packets of their own."""
    log = path.parent / "pass"
    for number in (1, 2):
        cli.run(
            *moving(frames=72),
            "-c:v",
            "libvpx-vp9",
            "-deadline",
            "good",
            "-cpu-used",
            4,
            "-b:v",
            "200k",
            "-g",
            40,
            "-auto-alt-ref",
            1,
            "-lag-in-frames",
            25,
            "-pass",
            number,
            "-passlogfile",
            log,
            path.with_name("whole.webm"),
        )
    cli.run(
        "-i", path.with_name("whole.webm"), "-c", "copy", "-bsf:v", "vp9_superframe_split", "-fflags", "-autobsf", path
    )
    return path


@pytest.fixture(scope="module")
def odd_packets(media, cli, tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    made = {name: write_fields(folder / name) for name in ("fields.mkv", "fields.mp4")}
    return made | {"hidden.webm": write_hidden(folder / "hidden.webm", media, cli)}


@pytest.mark.parametrize("cut", [{}, {"start": 0.5, "end": 1.3}, {"start": 1.2}])
@pytest.mark.parametrize("name", ["fields.mkv", "fields.mp4", "hidden.webm"])
def test_frames_are_counted_not_packets(name, cut, odd_packets, cli, tmp_path):
    path = odd_packets[name]
    times = [frame.time for frame in cli.frames(path)]
    packets = ffprobe(path, "packet=pts")["packets"]
    assert len(packets) > len(times), "the clip lost what is special about it"
    row, _ = made_of(path, tmp_path, cli, **cut)
    start, end = (Fraction(str(cut.get(name, usual))) for name, usual in (("start", 0), ("end", 9)))
    due = [n for n, t in enumerate(times) if start <= t - times[0] < end]
    assert (row.status, row.num_frames, row.source_num_frames) == ("ok", len(due), len(due))
    assert (row.source_frames or list(range(len(times)))) == due
    assert not [text for text in row.warnings if "damaged" in text or "ends at" in text]
    assert not row.source_is_vfr
    shown = len(due) / (25 if "fields" in name else 30)
    if "end" in cut:  # where the last frame ends too
        shown = min(shown, cut["end"] - float(times[due[0]] - times[0]))
    assert row.duration_seconds == pytest.approx(shown, abs=0.0015)


def test_validate_counts_the_frames_before_a_cut_by_decoding_them(media, cli, tmp_path, monkeypatch):
    path = media["cfr.mp4"]
    row, made = made_of(path, tmp_path, cli, start=0.6)
    assert row.source_frames == list(range(18, 36))
    row.status, row.file_name = "ok", made.name
    info = path.stat()
    unit = Unit("x", str(path), info.st_size, info.st_mtime_ns, Cut(0.6))
    check = Check(tmp_path, row, RunSettings(VideoOutput(FAST)), unit, opens=False)
    assert check_unit(check).faults == []
    miscounted = frames.seek_to

    def seek_to(source: Source, start: Fraction | None) -> SeekPoint:
        entry = miscounted(source, start)
        return SeekPoint(
            entry.packets, entry.origin_pts, None if entry.frames_before is None else entry.frames_before + 2
        )

    monkeypatch.setattr(frames, "seek_to", seek_to)
    row.source_frames = list(range(20, 38))
    (fault,) = check_unit(check).faults
    assert "from frame 0 on, its source frames are not those" in fault


def test_a_folder_with_packets_that_are_no_frames_is_read_by_number(odd_packets, cli):
    paths = {name.partition(".")[0]: odd_packets[name] for name in ("fields.mkv", "hidden.webm")}
    store = VideoFiles(list(paths.values()))
    for name, path in paths.items():
        whole = cli.raw(path, "null", 64 if name == "fields" else 96, 64, "gray")
        video = store[name]
        assert len(video) == len(whole)
        for number in (0, 17, len(whole) - 1):
            assert abs(video.frames([number])[0].mean() - whole[number].mean()) < 20


# ------------------------------------------------------------------------------------------------ false warnings, and one that was missing


def with_duration(path: Path, seconds: float) -> Path:
    """A copy of a Matroska file with another Duration in its header."""
    data = bytearray(path.read_bytes())
    at = data.index(b"\x44\x89\x88") + 3
    data[at : at + 8] = struct.pack(">d", 1000 * seconds)
    changed = path.with_name(f"{seconds}-{path.name}")
    changed.write_bytes(data)
    return changed


def test_a_file_that_starts_late_is_whole_whether_its_length_is_counted_from_zero_or_from_its_start(cli, tmp_path):
    path = tmp_path / "late.mkv"
    cli.run(*moving(frames=60), *H264, "-output_ts_offset", 3.7, path)
    assert float(ffprobe(path, "format=start_time,duration")["format"]["duration"]) == pytest.approx(5.7, abs=0.01)
    for whole in (path, with_duration(path, 2.0)):
        row, _ = made_of(whole, tmp_path, cli)
        assert not [text for text in row.warnings if "damaged" in text]
    for claimed, end in ((7.7, "5.70"), (4.7, "2.00")):
        row, _ = made_of(with_duration(path, claimed), tmp_path, cli)
        assert any(
            f"cut short: the header says {claimed:.2f} s, the data ends at {end} s" in text for text in row.warnings
        )


def test_a_cut_to_the_end_from_between_two_frames_is_whole(media, cli, tmp_path):
    """36 frames at 30 a second."""
    for start, end in ((0.55, 1.2), (0.0, 1.2), (0.55, 1.22)):
        row, _ = made_of(media["cfr.mp4"], tmp_path, cli, start=start, end=end)
        assert not [text for text in row.warnings if "ends at" in text], row.warnings
    row, _ = made_of(media["cfr.mp4"], tmp_path, cli, start=0.55, end=1.4)
    assert "the cut asks for 1.4 s; the source ends at 1.200 s" in row.warnings


def test_short_videos_get_no_remark_about_splitting(cli, tmp_path):
    path = tmp_path / "told-by-decoding.avi"
    cli.run(*moving(rate="15", frames=20), "-c:v", "mjpeg", path)
    for seconds, is_said in ((60.0, False), (1.0, True)):
        settings = RunSettings(VideoOutput(FAST, segment=seconds))
        row, _ = made_of(path, tmp_path, cli, settings)
        assert row.ok and any(text.startswith("not split") for text in row.warnings) == is_said, row.warnings


@pytest.mark.parametrize(("layout", "channels"), [("5.1", 6), ("quad", 4), ("stereo", 2)])
def test_sound_of_more_than_two_channels_is_said_to_become_stereo(layout, channels, cli, tmp_path):
    path = tmp_path / "many.mkv"
    cli.run(
        *moving(frames=10), "-f", "lavfi", "-i", f"anullsrc=channel_layout={layout}:d=0.3", *H264, "-c:a", "flac", path
    )
    row, made = made_of(path, tmp_path, cli, RunSettings(VideoOutput(FAST, audio="aac")))
    said = [text for text in row.warnings if "become stereo" in text]
    assert said == ([f"the audio's {channels} channels ({layout}) become stereo"] if channels > 2 else [])
    with av.open(str(made)) as opened:
        assert opened.streams.audio[0].codec_context.layout.name == "stereo"


# ------------------------------------------------------------------------------------------------ timestamps that come twice


def restamped(path: Path, stamps: list[int], cli: Any) -> Path:
    """Pictures at these times, in ticks that are whole frames, as those of Ogg are."""
    plain = path.with_suffix(".avi")
    cli.run(*moving(rate="25", frames=len(stamps)), "-c:v", "mjpeg", plain)
    with (
        av.open(str(plain)) as given,
        av.open(str(path), "w", container_options={"video_track_timescale": "25"}) as made,
    ):
        stream = made.add_stream_from_template(given.streams.video[0])
        stream.time_base = Fraction(1, 25)
        packets = (packet for packet in given.demux(video=0) if packet.size)
        for number, (packet, stamp) in enumerate(zip(packets, stamps, strict=True)):
            packet.stream, packet.time_base, packet.pts, packet.dts = stream, Fraction(1, 25), stamp, number - 9
            made.mux_one(packet)
    return path


@pytest.mark.parametrize(
    ("stamps", "due", "said"),
    [
        ([0, 1, 2, 2, 3, 4, 5], [0, 1, 3, 4, 5, 6], "1 frame shared a timestamp with the next one; left out"),
        ([0, 1, 2, 2, 4, 5], [0, 1, 2, 3, 4, 5], "1 frame shared a timestamp; moved one tick on"),
        ([0, 1, 1, 1, 4, 5], [0, 2, 3, 4, 5], "1 frame shared a timestamp; moved one tick on"),
    ],
)
def test_a_timestamp_that_comes_twice_moves_no_later_frame(stamps, due, said, cli, tmp_path):
    """One tick is 40 ms: each frame after it was late by as much."""
    path = restamped(tmp_path / "twice.mov", stamps, cli)
    assert [frame["pts"] for frame in ffprobe(path, "frame=pts")["frames"]] == stamps
    row, made = made_of(path, tmp_path, cli)
    assert row.ok, row.message
    assert (row.source_frames or list(range(len(stamps)))) == due
    assert said in row.warnings
    kept = {stamps[number] for number in due}
    times = [frame.time * 25 for frame in cli.frames(made)]
    assert kept <= set(times) and times[-1] == stamps[-1]
