"""What the audio of an output is: codecs, rates, channels, damage."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.helpers import transcode
from tests.recipes import moving
from tests.transcode.media.beeps import (
    CUTS,
    OFFSET,
    flashes,
    good,
    heard,
    holds,
    in_sync,
    made,
    onsets,
    packets,
    remuxed,
    settings,
)
from vidprep.formats.errors import SettingsError
from vidprep.formats.profiles import CONTAINERS
from vidprep.transcode.media.audio import AudioTrack
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings

BROKEN = b"\x2a"  # of no meaning to an AAC decoder, and no sync word to a muxer


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
    assert not [text for text in row.warnings if "gaps" in text]
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


def test_errors_of_the_muxer_are_reported_the_same_way(cli, clips, tmp_path):
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


def test_damaged_sound_is_silent_and_said_and_the_pictures_convert(clips, tmp_path):
    source = remuxed(
        clips.get("mp4"), tmp_path / "bad.mkv", lambda t, audio: BROKEN * len(audio) if 1.3 < t < 1.7 else audio
    )
    row, path = good(source, settings("aac", "mp4"), tmp_path)
    assert any(re.search(r"damaged: \d+ audio packets? could not be decoded \(", said) for said in row.warnings), (
        row.warnings
    )
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
    assert any("could not be decoded (" in said for said in row.warnings)


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


def test_its_own_handle_follows_no_playlist(clips, tmp_path):
    shutil.copy(clips.get("ts"), tmp_path / "part.ts")
    playlist = tmp_path / "list.m3u8"
    playlist.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\npart.ts\n#EXT-X-ENDLIST\n")
    track = AudioTrack(playlist, "aac", "mp4", origin=Fraction(0))
    assert track.damage and "cannot be read" in track.damage[0]
    track.finish(Fraction(1))
    track.close()


def test_sound_goes_with_one_engine_and_into_some_containers():
    plain = RunSettings(VideoOutput(audio="aac"))
    with pytest.raises(SettingsError, match="audio='aac' needs engine='av'"):
        replace(plain, output=replace(plain.video, engine="ffmpeg"))
    with pytest.raises(SettingsError, match="webm takes drop, copy, opus"):
        settings("aac", "webm")
    assert VideoOutput(engine="ffmpeg").audio == "drop"


@pytest.mark.parametrize("codec", ["aac", "ac3", "libmp3lame", "libopus", "flac"])
def test_copied_audio_of_a_trimmed_mp4_is_whole_in_mkv(codec, cli, tmp_path):
    """The edit list's preroll became the codec's delay, and readers skipped as much: up to a second."""
    whole, folder = tmp_path / "whole.mp4", tmp_path / "src"
    folder.mkdir()
    cli.run(
        *moving(frames=96),
        "-f",
        "lavfi",
        "-i",
        "sine=d=4:r=48000",
        "-c:v",
        "libx264",
        "-g",
        24,
        "-c:a",
        codec,
        "-strict",
        "-2",
        whole,
    )
    cli.run("-ss", "1.7", "-i", whole, "-c", "copy", "-strict", "-2", folder / "cut.mp4")
    ran = transcode(folder, tmp_path / "dst", "--audio", "copy", "--container", "mkv")
    assert ran.code == 0, ran.err

    def seconds(path: Path) -> float:
        return len(cli.run("-i", path, "-map", "0:a", "-f", "f32le", "-")) / 4 / 48000

    assert seconds(tmp_path / "dst" / "cut.mkv") == pytest.approx(2.3, abs=0.05)
