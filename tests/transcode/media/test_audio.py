"""Audio beside the pictures: a white picture and a beep begin at the same instants, and must do so in every output.

Outputs are measured by PyAV's timestamps and by ffmpeg's `blackdetect` and `silencedetect`; none of our code is in either.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.sampling import pairs
from vidprep.formats.errors import SettingsError
from vidprep.formats.profiles import CONTAINERS
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.media.audio_output import AudioTrack
from vidprep.transcode.settings.options import Retime
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.unit.job import Job
from vidprep.transcode.unit.run_job import run_job

KINDS = [
    ("aac", "mp4"),
    ("opus", "mp4"),
    ("copy", "mp4"),
    ("aac", "mkv"),
    ("opus", "mkv"),
    ("copy", "mkv"),
    ("opus", "webm"),
    ("copy", "webm"),
]
NAMES = ["-".join(kind) for kind in KINDS]
CUTS = [None, (0.6, 2.52)]
OFFSET = 0.44
BROKEN = b"\x2a"  # of no meaning to an AAC decoder, and no sync word to a muxer
FLASHES = [1.0, 2.0]

PICTURES = {"mp4": "libx264", "mkv": "libx264", "ts": "libx264", "webm": "libvpx", "avi": "mpeg4"}
CODERS = {"mp4": "aac", "mkv": "pcm_s16le", "ts": "mp2", "webm": "libopus", "avi": "pcm_s16le"}


def beeps(shift: float, seconds: float, rate: int = 44100) -> str:
    """0.1 s of 1 kHz at each flash, where sample 0 is heard at `shift` seconds of the pictures; else digital silence."""
    time = f"(t+{shift}+0.0000001)"
    on = f"gte({time}\\,0.5)*lt({time}\\,2.5)*lt(mod({time}\\,1)\\,0.1)"
    return f"aevalsrc='if({on}\\,0.8*sin(2*PI*1000*{time})\\,0)':s={rate}:d={seconds}"


class Clips:
    """Sources with flashes and beeps, each made once. offset: how much later than the pictures the audio begins."""

    def __init__(self, folder: Path, ffmpeg: Any) -> None:
        self.folder, self.ffmpeg = folder, ffmpeg
        self.get = cache(self.make)

    def make(
        self,
        ext: str,
        offset: float = 0.0,
        coder: str | None = None,
        rate: int = 44100,
        layout: str = "mono",
        seconds: float = 3.0,
    ) -> Path:
        coder = coder or CODERS[ext]
        path = self.folder / f"{ext}{offset}{coder.split()[0]}{rate}{layout}{seconds}.{ext}"
        drawn = "color=black:size=96x64:rate=25:duration=3,drawbox=t=fill:color=white:enable='gt(n\\,0)*eq(mod(n\\,25)\\,0)'"
        pictures = ("-itsoffset", max(0.0, -offset), "-f", "lavfi", "-i", drawn)
        audio = ("-itsoffset", max(0.0, offset), "-f", "lavfi", "-i", beeps(offset, seconds, rate))
        options = {
            "libx264": ("-preset", "ultrafast", "-bf", 2, "-g", 25),
            "libvpx": ("-deadline", "realtime", "-g", 25),
        }
        self.ffmpeg.run(
            *pictures, *audio, "-map", 0, "-map", 1, "-c:v", PICTURES[ext], *options.get(PICTURES[ext], ()), "-threads", 1,
            "-pix_fmt", "yuv420p", "-colorspace", "bt709", "-color_range", "tv", "-b:a", "128k", "-c:a", *coder.split(),
            "-af", f"aformat=channel_layouts={layout}", "-fflags", "+bitexact", path,
        )  # fmt: skip
        return path


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory, cli: Any) -> Clips:
    return Clips(tmp_path_factory.mktemp("clips"), cli)


def settings(mode: str, container: str, **more: Any) -> RunSettings:
    encoder = (
        EncoderOptions(codec="vp9", container="webm", preset="8")
        if container == "webm"
        else EncoderOptions(container=container, preset="ultrafast")
    )
    return RunSettings(encoder=encoder, audio=mode, **more)


def made(source: Path, asked: RunSettings, folder: Path, cut: tuple[float, float] | None = None) -> tuple[Any, Path]:
    start, end = cut or (None, None)
    name = f"out.{asked.encoder.container_name}"
    stat = source.stat()
    row = run_job(
        Job(Unit("out", str(source), stat.st_size, stat.st_mtime_ns, start, end), asked, name, str(folder / name))
    )
    return row, folder / name


def good(source: Path, asked: RunSettings, folder: Path, cut: tuple[float, float] | None = None) -> tuple[Any, Path]:
    row, path = made(source, asked, folder, cut)
    assert row.ok, f"{row.stage}: {row.message}"
    return row, path


def flashes(path: Path) -> list[float]:
    with av.open(str(path)) as container:
        white = [
            (float(f.pts * f.time_base), f.to_ndarray(format="gray").mean() > 128) for f in container.decode(video=0)
        ]
    return [time for (time, now), (_, before) in zip(white[1:], white, strict=False) if now and not before]


def heard(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Time of every decoded sample, and its loudness over the channels."""
    times, levels = [], []
    with av.open(str(path)) as container:
        for frame in container.decode(audio=0):
            block = frame.to_ndarray().astype(float)
            block = block if frame.format.is_planar else block.reshape(frame.samples, -1).T
            times.append(float(frame.pts * frame.time_base) + np.arange(frame.samples) / frame.sample_rate)
            levels.append(np.abs(block).max(0) / (32768 if frame.format.name.startswith("s16") else 1))
    return np.concatenate(times), np.concatenate(levels)


def onsets(path: Path) -> list[float]:
    """Where audio gets loud after 0.3 s of silence."""
    time, level = heard(path)
    loud = time[level > 0.3]
    return [float(now) for now, before in zip(loud, [-1.0, *loud], strict=False) if now - before > 0.3]


def packets(path: Path, kind: str) -> list[tuple[int, int, bytes]]:
    with av.open(str(path)) as container:
        stream = getattr(container.streams, kind)[0]
        return [(p.pts, p.dts, bytes(p)) for p in container.demux(stream) if p.size]


def holds(path: Path) -> list[str]:
    with av.open(str(path)) as container:
        return sorted(stream.type for stream in container.streams)


def remuxed(source: Path, path: Path, change: Any) -> Path:
    """The same packets, but audio is what `change(seconds, bytes)` makes of it: None leaves a packet out."""
    with av.open(str(source)) as old, av.open(str(path), "w") as new:
        streams = {s.index: new.add_stream_from_template(s) for s in old.streams}
        for packet in old.demux():
            if packet.dts is None:
                continue
            kept = packet
            if packet.stream.type == "audio":
                content = change(float(packet.pts * packet.time_base), bytes(packet))
                if content is None:
                    continue
                kept = av.Packet(content)
                kept.pts, kept.dts, kept.time_base, kept.duration = (
                    packet.pts,
                    packet.dts,
                    packet.time_base,
                    packet.duration,
                )
            kept.stream = streams[packet.stream_index]
            new.mux(kept)
    return path


def in_sync(path: Path, within: float = 0.002) -> list[float]:
    white, loud = flashes(path), onsets(path)
    assert len(white) == len(loud) == len(FLASHES), (white, loud)
    apart = [b - a for a, b in zip(white, loud, strict=True)]
    assert max(map(abs, apart)) < within, apart
    return white


# ---------------------------------------------------------------------------------------------------- one clock


TIMINGS = [(cut, offset) for cut in CUTS for offset in (0.0, OFFSET, -OFFSET)]


@pytest.mark.parametrize(("kind", "timing"), pairs(KINDS, TIMINGS, each=2))
def test_every_beep_stays_with_its_flash(kind, timing, clips, tmp_path):
    (mode, container), (cut, offset) = kind, timing
    ext = {0.0: "mp4", OFFSET: "mkv", -OFFSET: "ts"}[offset]
    source = (
        clips.get(container, offset, "aac" if container == "mp4" else None)
        if mode == "copy"
        else clips.get(ext, offset)
    )
    _, path = good(source, settings(mode, container), tmp_path, cut)
    assert in_sync(path) == pytest.approx([t - (cut[0] if cut else 0) for t in FLASHES], abs=0.001)
    assert holds(path) == ["audio", "video"]
    assert min(pts for pts, _, _ in packets(path, "video")) == 0
    if container == "mp4":
        assert b"elst" not in path.read_bytes()
        assert packets(path, "audio")[0][0] == 0
    time, level = heard(path)
    assert time[0] > -0.001 and time[-1] < (1.92 if cut else 3.44) + 0.05
    assert level[(time > 0.02) & (time < 0.35)].max(initial=0) < 0.05, "heard before the first beep"


@pytest.mark.parametrize(("mode", "container"), KINDS, ids=NAMES)
def test_ffmpeg_hears_and_sees_them_together_too(mode, container, clips, cli, tmp_path):
    _, path = good(
        clips.get(container, coder="aac" if container == "mp4" else None), settings(mode, container), tmp_path, CUTS[1]
    )
    told = cli.log(
        "-i", path, "-af", "silencedetect=n=-20dB:d=0.2", "-vf", "blackdetect=d=0.02:pic_th=0.9", "-f", "null", "-"
    )
    seen = [float(t) for t in re.findall(r"black_end:([\d.]+)", told)][:2]
    found = [float(t) for t in re.findall(r"silence_end: ([\d.]+)", told)][:2]
    assert seen == pytest.approx([0.4, 1.4], abs=0.001)
    assert found == pytest.approx(seen, abs=0.002)


@pytest.mark.parametrize(
    ("codec", "mode", "container"),
    [("hevc", "aac", "mp4"), ("vp9", "aac", "mkv"), ("av1", "opus", "mp4"), ("av1", "opus", "webm")],
)
def test_with_other_codecs_and_another_rate(codec, mode, container, clips, tmp_path):
    asked = RunSettings(
        encoder=EncoderOptions(codec=codec, container=container), audio=mode, retime=Retime(Fraction(50))
    )
    _, path = good(clips.get("mp4"), asked, tmp_path)
    assert in_sync(path) == FLASHES


@pytest.mark.parametrize(
    ("ext", "coder"),
    [("ts", "aac"), ("mkv", "libmp3lame"), ("mkv", "libvorbis"), ("mkv", "flac"), ("avi", "pcm_s16le"), ("mkv", "ac3")],
)
def test_what_codecs_keep_to_themselves_at_the_start_is_not_heard(ext, coder, clips, tmp_path):
    source = clips.get(ext, 0.0, coder)
    _, path = good(source, settings("opus", "mp4"), tmp_path, CUTS[1])
    apart = [b - a for a, b in zip(flashes(source), onsets(source), strict=True)]
    assert [b - a for a, b in zip(flashes(path), onsets(path), strict=True)] == pytest.approx(apart, abs=0.002)


def test_dts_of_the_pictures_still_lead_readers_to_every_keyframe(clips, tmp_path):
    _, path = good(clips.get("mp4"), settings("aac", "mp4"), tmp_path)
    pictures = packets(path, "video")
    assert sorted(pts for pts, _, _ in pictures) == [dts for _, dts, _ in pictures]
    _, silent = good(clips.get("mp4"), settings("drop", "mp4"), tmp_path)
    assert holds(silent) == ["video"]
    assert packets(silent, "video") == pictures


@pytest.mark.parametrize(("mode", "container"), KINDS, ids=NAMES)
def test_sound_lies_beside_its_pictures(mode, container, clips, tmp_path):
    _, path = good(
        clips.get(container, coder="aac" if container == "mp4" else None), settings(mode, container), tmp_path
    )
    reached = {"audio": 0.0, "video": 0.0}
    with av.open(str(path)) as opened:
        inside = sorted((p.pos, p.stream.type, float(p.pts * p.time_base)) for p in opened.demux() if p.size)
    for _, kind, time in inside:
        reached[kind] = max(reached[kind], time)
        assert abs(reached["audio"] - reached["video"]) < 1.1 or min(reached.values()) > 2.9


@pytest.mark.parametrize(("mode", "container"), KINDS, ids=NAMES)
def test_two_runs_give_the_same_bytes(mode, container, clips, tmp_path):
    source = clips.get(container, coder="aac" if container == "mp4" else None)
    contents = [good(source, settings(mode, container), tmp_path)[1].read_bytes() for _ in range(2)]
    assert contents[0] == contents[1]


# ---------------------------------------------------------------------------------------------------- where audio is not


@pytest.mark.parametrize("mode", ["copy", "aac", "opus"])
def test_a_source_without_sound_gives_an_output_without(mode, cli, tmp_path):
    source = tmp_path / "silent.mp4"
    cli.run(
        "-f",
        "lavfi",
        "-i",
        "testsrc2=size=96x64:rate=25:duration=0.4",
        "-c:v",
        "libx264",
        "-colorspace",
        "bt709",
        source,
    )
    row, path = good(source, settings(mode, "mp4"), tmp_path)
    assert holds(path) == ["video"]
    assert not [said for said in row.warnings if "audio" in said]


def test_a_cut_before_the_sound_begins_has_none(clips, tmp_path):
    row, path = good(clips.get("mkv", OFFSET), settings("aac", "mp4"), tmp_path, (0.0, 0.3))
    assert holds(path) == ["video"]
    assert "no audio in the range of the pictures" in row.warnings


@pytest.mark.parametrize("mode", ["aac", "opus", "copy"])
def test_the_sound_of_a_cut_ends_with_it(mode, clips, tmp_path):
    _, path = good(clips.get("mp4"), settings(mode, "mp4"), tmp_path, (0.5, 1.1))
    time, _ = heard(path)
    assert 0.6 - 0.03 < time[-1] < 0.6 + 0.03


def test_sound_may_outlast_the_pictures(clips, tmp_path):
    _, path = good(clips.get("mkv", seconds=4.0), settings("aac", "mp4"), tmp_path)
    assert heard(path)[0][-1] == pytest.approx(4.0, abs=0.03)
    in_sync(path)


@pytest.mark.parametrize(("mode", "container"), [("aac", "mp4"), ("opus", "webm"), ("copy", "mkv")])
def test_sound_that_resumes_long_after_the_pictures_is_left_out(mode, container, clips, tmp_path):
    source = remuxed(
        clips.get("mp4", seconds=9.0), tmp_path / "hole.mkv", lambda t, audio: audio if t < 3.2 or t > 8 else None
    )
    row, path = good(source, settings(mode, container), tmp_path)
    assert heard(path)[0][-1] < 8
    assert "audio that begins long after the pictures have ended is left out" in row.warnings
    in_sync(path)


@pytest.mark.parametrize(("mode", "container"), KINDS[:6], ids=NAMES[:6])
def test_a_hole_does_not_move_what_follows(mode, container, clips, tmp_path):
    source = remuxed(clips.get("mp4"), tmp_path / "hole.mkv", lambda t, audio: None if 1.3 < t < 1.7 else audio)
    row, path = good(source, settings(mode, container), tmp_path)
    in_sync(path)
    if mode != "copy":
        assert "the audio has holes (1), which are silent" in row.warnings
        time, _ = heard(path)
        assert np.diff(time).max() < 0.002, "encoded audio has no gap"


def test_a_clock_that_jumps_back_is_joined(clips, tmp_path):
    source = tmp_path / "twice.ts"
    source.write_bytes(clips.get("ts").read_bytes() * 2)
    row, path = good(source, settings("aac", "mp4"), tmp_path)
    assert any("jumped back" in said for said in row.warnings)
    white, loud = flashes(path), onsets(path)
    assert len(white) == len(loud) == 4
    assert max(abs(b - a) for a, b in zip(white, loud, strict=True)) < 0.06


# ---------------------------------------------------------------------------------------------------- what audio is


def test_copied_packets_are_those_of_the_source(clips, tmp_path):
    source = clips.get("mp4")
    theirs = [(pts / 44100, content) for pts, _, content in packets(source, "audio")]
    for container, scale in (("mp4", 44100), ("mkv", 1000)):
        for cut in CUTS:
            start, end = cut or (0.0, 9.0)
            _, path = good(source, settings("copy", container), tmp_path, cut)
            ours = [(pts / scale, content) for pts, _, content in packets(path, "audio")]
            due = [(time - start, content) for time, content in theirs if start <= time < end]
            assert [content for _, content in ours] == [content for _, content in due]
            # the first packet of a track in mp4 always begins at 0
            assert [time for time, _ in ours[1:]] == pytest.approx([time for time, _ in due[1:]], abs=0.001)


def restamped(source: Path, path: Path, stamp: Any) -> Path:
    """The same packets, but audio is where `stamp(number, seconds)` says, in seconds; None leaves a packet out."""
    with av.open(str(source)) as old, av.open(str(path), "w") as new:
        streams = {s.index: new.add_stream_from_template(s) for s in old.streams}
        number = 0
        for packet in old.demux():
            if packet.dts is None:
                continue
            if packet.stream.type == "audio":
                at = stamp(number, float(packet.pts * packet.time_base))
                number += 1
                if at is None:
                    continue
                packet.pts = packet.dts = round(at / packet.time_base)
            packet.stream = streams[packet.stream_index]
            new.mux(packet)
    return path


@pytest.mark.parametrize(("mode", "container"), [("aac", "mp4"), ("opus", "webm"), ("opus", "mp4")])
@pytest.mark.parametrize("coder", ["aac", "libopus -frame_duration 20"])
def test_no_hole_is_too_short_to_be_followed(coder, mode, container, clips, tmp_path):
    """A packet of 20 or 23 ms is lost before each beep; the samples after it are where their timestamps say."""
    plain = clips.get("mp4", coder=coder)
    lost: list[float] = []

    def stamp(_: int, at: float) -> float | None:
        if len(lost) < 2 and at > (0.4, 1.6)[len(lost)]:
            lost.append(at)
            return None
        return at

    source = restamped(plain, tmp_path / "holes.mkv", stamp)
    row, path = good(source, settings(mode, container), tmp_path)
    reference = [b - a for a, b in zip(flashes(source), onsets(source), strict=True)]
    _, whole = good(plain, settings(mode, container), tmp_path)
    late = [b - a for a, b in zip(onsets(whole), flashes(whole), strict=True)]
    apart = [b - a + c for a, b, c in zip(flashes(path), onsets(path), late, strict=True)]
    assert apart == pytest.approx(reference, abs=0.001)
    assert not [text for text in row.warnings if "audio" in text]


@pytest.mark.parametrize("jitter", [0.003, 0.009])
def test_timestamps_that_only_jitter_tear_no_hole(jitter, clips, tmp_path):
    source = restamped(
        clips.get("mp4"), tmp_path / "jitter.mkv", lambda n, at: at + (jitter if n % 2 else -jitter) if n else at
    )
    row, path = good(source, settings("aac", "mp4"), tmp_path)
    assert not [text for text in row.warnings if "holes" in text]
    in_sync(path, within=0.002 + 2 * jitter)
    time, level = heard(path)
    beep = level[(time > 1.02) & (time < 1.08)]
    assert np.diff(np.flatnonzero(beep > 0.1)).max() < 20  # of 1 kHz, half a period is 22 samples


@pytest.mark.parametrize("container", ["webm", "mkv"])
def test_the_lead_in_of_opus_is_copied_where_it_can_be_declared(container, clips, tmp_path):
    source = clips.get("webm")
    _, path = good(source, settings("copy", container), tmp_path)
    theirs = packets(source, "audio")
    assert theirs[0][0] == -7
    assert [(pts, content) for pts, _, content in packets(path, "audio")] == [
        (pts, content) for pts, _, content in theirs
    ]


def test_a_late_copy_in_mp4_is_said_and_keeps_its_times(clips, tmp_path):
    row, path = good(clips.get("mp4", OFFSET), settings("copy", "mp4"), tmp_path)
    assert any(re.search(r"copied audio begins 0\.4\d\d s late.*--audio aac", said) for said in row.warnings)
    times = [pts / 44100 for pts, _, _ in packets(path, "audio")]
    assert times[0] == 0
    assert times[1] == pytest.approx(OFFSET, abs=0.024)


@pytest.mark.parametrize(
    ("ext", "coder", "container", "said"),
    [
        ("mp4", "aac", "webm", "webm cannot hold aac; --audio opus"),
        ("mkv", "libvorbis", "mp4", "mp4 cannot hold vorbis; --audio aac"),
        ("mkv", "pcm_s16le", "mp4", "mp4 cannot hold pcm_s16le; --audio aac"),
    ],
)
def test_a_copy_that_does_not_fit_names_codec_and_remedy(ext, coder, container, said, clips, tmp_path):
    row, path = made(clips.get(ext, 0.0, coder), settings("copy", container), tmp_path)
    assert (row.status, row.stage, row.error, row.message) == ("failed", "encode", "EncodeError", said)
    assert not path.exists()


def test_what_the_muxer_itself_refuses_is_told_the_same_way(cli, clips, tmp_path):
    source = clips.get("mkv", 0.0, "libmp3lame", 8000)  # mp3 below 16 kHz has no place in mp4
    row, _ = made(source, settings("copy", "mp4"), tmp_path)
    assert (row.status, row.message) == ("failed", "mp4 cannot hold mp3; --audio aac")


@pytest.mark.parametrize("container", list(CONTAINERS))
def test_every_codec_in_the_table_can_be_copied(container, clips, tmp_path):
    coders = {"mp3": "libmp3lame", "opus": "libopus", "vorbis": "libvorbis", "dts": "dca -strict -2 -b:a 768k"}
    read_as = {"mp2": "mp3"} if container == "mp4" else {}  # one object type stands for both layers
    for codec in CONTAINERS[container].copied_audio or ("aac", "vorbis", "pcm_s16le"):
        source = clips.get("mkv", 0.0, coders.get(codec, codec), 48000, "stereo")
        _, path = good(source, settings("copy", container), tmp_path)
        with av.open(str(path)) as opened:
            assert opened.streams.audio[0].codec_context.codec.canonical_name == read_as.get(codec, codec)
        apart = [b - a for a, b in zip(flashes(source), onsets(source), strict=True)]
        assert [b - a for a, b in zip(flashes(path), onsets(path), strict=True)] == pytest.approx(apart, abs=0.002)


@pytest.mark.parametrize(
    ("mode", "rate", "layout", "kept", "channels"),
    [
        ("aac", 22050, "mono", 22050, 1),
        ("aac", 96000, "stereo", 96000, 2),
        ("aac", 37800, "stereo", 48000, 2),
        ("aac", 48000, "5.1", 48000, 2),
        ("opus", 44100, "mono", 48000, 1),
        ("opus", 16000, "5.1", 48000, 2),
    ],
)
def test_rate_and_channels(mode, rate, layout, kept, channels, clips, tmp_path):
    _, path = good(clips.get("mkv", 0.0, None, rate, layout), settings(mode, "mp4"), tmp_path)
    with av.open(str(path)) as opened:
        context = opened.streams.audio[0].codec_context
        assert (context.sample_rate, context.channels) == (kept, channels)
    in_sync(path)


# ---------------------------------------------------------------------------------------------------- damage


def test_damaged_sound_is_silent_and_said_and_the_pictures_convert(clips, tmp_path):
    source = remuxed(
        clips.get("mp4"), tmp_path / "bad.mkv", lambda t, audio: BROKEN * len(audio) if 1.3 < t < 1.7 else audio
    )
    row, path = good(source, settings("aac", "mp4"), tmp_path)
    assert any(re.search(r"damaged: \d+ packets of audio are damaged \(", said) for said in row.warnings), row.warnings
    in_sync(path)
    assert np.diff(heard(path)[0]).max() < 0.002
    failed, path = made(source, settings("aac", "mp4", on_damage="fail"), tmp_path)
    assert (failed.status, failed.error) == ("failed", "DamagedError")
    clean, _ = good(clips.get("mp4"), settings("aac", "mp4", on_damage="fail"), tmp_path)
    assert not [said for said in clean.warnings if "damaged" in said]


@pytest.mark.parametrize("mode", ["aac", "opus"])
def test_sound_that_cannot_be_decoded_at_all_is_left_out(mode, clips, tmp_path):
    source = remuxed(clips.get("mp4"), tmp_path / "bad.mkv", lambda t, audio: BROKEN * len(audio))
    row, path = good(source, settings(mode, "mp4"), tmp_path)
    assert holds(path) == ["video"]
    assert row.num_frames == 75
    assert any("packets of audio are damaged" in said for said in row.warnings)


def test_damage_before_the_cut_is_none(clips, tmp_path):
    source = remuxed(
        clips.get("mp4"), tmp_path / "bad.mkv", lambda t, audio: BROKEN * len(audio) if 0.1 < t < 0.4 else audio
    )
    row, _ = good(source, settings("aac", "mp4"), tmp_path, (1.5, 2.5))
    assert not [said for said in row.warnings if "damaged" in said]


def test_copied_packets_that_a_muxer_refuses_cost_only_themselves(clips, tmp_path):
    data = bytearray(clips.get("ts", 0.0, "aac").read_bytes())
    source = tmp_path / "bad.ts"
    frames = [found.start() for found in re.finditer(rb"\xff\xf1", data)]
    for place in frames[30:40]:
        data[place : place + 2] = b"\0\0"
    source.write_bytes(data)
    row, path = good(source, settings("copy", "mp4"), tmp_path)
    assert holds(path) == ["audio", "video"]
    assert row.num_frames == 75
    assert any("damaged" in said for said in row.warnings)


# ---------------------------------------------------------------------------------------------------- doors


def test_its_own_handle_follows_no_playlist(clips, tmp_path):
    shutil.copy(clips.get("ts"), tmp_path / "part.ts")
    playlist = tmp_path / "list.m3u8"
    playlist.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\npart.ts\n#EXT-X-ENDLIST\n")
    track = AudioTrack(playlist, "aac", "mp4", origin=Fraction(0))
    assert track.damage and "cannot be read" in track.damage[0]
    track.finish()
    track.close()


def test_sound_goes_with_one_engine_and_into_some_containers():
    plain = RunSettings(audio="aac")
    with pytest.raises(SettingsError, match="--audio goes with --engine av"):
        replace(plain, engine="ffmpeg")
    with pytest.raises(SettingsError, match="webm takes drop, copy, opus"):
        settings("aac", "webm")
    assert RunSettings(engine="ffmpeg").audio == "drop"
