"""Audio and pictures on one clock."""

from __future__ import annotations

import re
from fractions import Fraction

import av
import numpy as np
import pytest

from tests.sampling import pairs
from tests.transcode.media.beeps import (
    CUTS,
    FLASHES,
    OFFSET,
    flashes,
    good,
    heard,
    holds,
    in_sync,
    onsets,
    packets,
    remuxed,
    settings,
)
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.settings.options import Retime
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings

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
def test_ffmpeg_plays_audio_and_pictures_in_sync(mode, container, clips, cli, tmp_path):
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
        VideoOutput(EncoderOptions(codec=codec, container=container), audio=mode), retime=Retime(Fraction(50))
    )
    _, path = good(clips.get("mp4"), asked, tmp_path)
    assert in_sync(path) == FLASHES


@pytest.mark.parametrize(
    ("ext", "coder"),
    [("ts", "aac"), ("mkv", "libmp3lame"), ("mkv", "libvorbis"), ("mkv", "flac"), ("avi", "pcm_s16le"), ("mkv", "ac3")],
)
def test_encoder_delay_is_not_audible(ext, coder, clips, tmp_path):
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
def test_audio_is_in_sync_with_its_pictures(mode, container, clips, tmp_path):
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
def test_a_hole_does_not_shift_later_audio(mode, container, clips, tmp_path):
    source = remuxed(clips.get("mp4"), tmp_path / "hole.mkv", lambda t, audio: None if 1.3 < t < 1.7 else audio)
    row, path = good(source, settings(mode, container), tmp_path)
    in_sync(path)
    if mode != "copy":
        assert "the audio has gaps (1), filled with silence" in row.warnings
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
