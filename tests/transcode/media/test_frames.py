"""Frames on their time line: which ones, in which order, when, held against ffmpeg's fps filter and its whole decode."""

from __future__ import annotations

import csv
import functools
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.numbered_pictures import number_on, write
from tests.pipeline import source_frames
from tests.real_media import SHARED_MEDIA, real_clips
from tests.sampling import in_turn
from tests.time_rules import in_cut, lead_of, on_screen, tolerance_of
from vidprep.formats.errors import LimitError, NoVideoError
from vidprep.formats.model import Cut
from vidprep.formats.moments import OutputClock, exact_seconds
from vidprep.formats.video.seek import seek_to
from vidprep.formats.video.source import Source
from vidprep.transcode.media.frames import SourceFacts, SourceFrame, retime
from vidprep.transcode.media.stream import timing_of
from vidprep.transcode.settings.options import Retime
from vidprep.transcode.settings.run import RunSettings

RATES = ("15", "30000/1001", "60")
# A transport stream says nowhere how long it is, so one that is cut short at the end of a packet is whole to anyone.
DAMAGED = ("cut_short.mp4", "cut_short.mkv", "flipped.mp4")
FAST_CUTS = (
    "open_gop.mp4",
    "open_gop.mkv",
    "closed.mkv",
    "hevc.mp4",
    "vp9.webm",
    "altref.webm",
    "av1.mkv",
    "vfr.mp4",
    "edit_list.mp4",
    "edit_list_late.mp4",
)
SLOW_CUTS = (
    "ts_late.ts",
    "program.mpg",
    "mjpeg.avi",
    "raw.y4m",
    "alpha.gif",
    "vfr.webm",
    "sorenson.flv",
    "annexb.h264",
)


def reading(info: Any) -> tuple[object, ...]:
    return ("-c:v", info.decoder) if info.has_alpha_layer else ()


def stream_of(info: Any) -> str:
    return f"0:{info.stream_index}"


@pytest.fixture(scope="module")
def decoded(pipeline):
    """The frames of a real clip at their own times, decoded once."""
    return functools.cache(lambda path: pipeline(path, apply=False))


def picked(ours: Any, rate: str | None) -> list[tuple[str, int]]:
    """(MD5, tick) of the frames that `retime` picks; ours: a pipeline at the source's own times, so decoded once."""
    base = ours.time_base

    def again() -> Iterator[SourceFrame]:
        for frame in ours.frames:
            yield SourceFrame(frame.md5, frame.pts, frame.pts + frame.duration, frame.source_index)

    clock = OutputClock.build(Fraction(rate), ours.pace) if rate else None
    return [(f.frame, f.pts) for f in retime(again(), clock, base, SourceFacts(), Fraction(0))]


def near_of(ours: Any) -> Fraction:
    """The tolerance of a clip, in seconds."""
    return Fraction(ours.stream.window.tolerance * ours.time_base)


def expected_near(ours: Any) -> Fraction:
    """The same by the times of all frames."""
    return tolerance_of([f.pts * ours.time_base for f in ours.frames], ours.time_base, ours.info.frame_rate)


def leads_of(ours: Any) -> list[Fraction]:
    """How early each of RATES may show a frame, by the times of the first frames."""
    times = [f.pts * ours.time_base for f in ours.frames][: len(ours.pace.starts) or 1]
    return [lead_of(times, Fraction(rate), ours.info.frame_rate, ours.time_base) for rate in RATES]


def fps_filter(cli: Any, path: Path, info: Any, leads: list[Fraction], tmp_path: Path) -> list[list[str]]:
    """MD5 of the frames that ffmpeg's fps filter gives at each of RATES; decoded once."""
    ends = "".join(f"[s{n}]" for n in range(len(RATES)))
    fine = "settb=1/10000000"  # setpts keeps whole ticks
    graph = f"[{stream_of(info)}]{fine},split={len(RATES)}{ends}"
    args: list[object] = []
    for n, (rate, lead) in enumerate(zip(RATES, leads, strict=True)):
        graph += f";[s{n}]setpts=PTS-STARTPTS-{float(lead)}/TB,fps={rate}:round=up[o{n}]"
        args += ["-map", f"[o{n}]", "-fps_mode", "passthrough", "-f", "framemd5", tmp_path / f"{n}.md5"]
    cli.run("-noautorotate", "-threads", 1, *reading(info), "-i", path, "-filter_complex", graph, *args)
    return [
        [line.rsplit(",", 1)[1].strip() for line in (tmp_path / f"{n}.md5").read_text().splitlines() if line[0] != "#"]
        for n in range(len(RATES))
    ]


def assert_picks_like_ffmpeg(ours: Any, expected: list[list[str]]) -> None:
    for rate, theirs in zip(RATES, expected, strict=True):
        found = picked(ours, rate)
        assert [tick for _, tick in found] == list(range(len(found)))
        assert [md5 for md5, _ in found] == (theirs or [ours.frames[0].md5]), rate


def test_constant_rate_picks_the_frames_of_ffmpegs_fps_filter(plain_clip, pipeline, cli, tmp_path):
    ours = pipeline(plain_clip, apply=False)
    assert near_of(ours) == expected_near(ours)
    assert_picks_like_ffmpeg(ours, fps_filter(cli, plain_clip, ours.info, leads_of(ours), tmp_path))


@pytest.mark.parametrize("name", in_turn(real_clips(), 6))
def test_constant_rate_picks_the_frames_of_ffmpegs_fps_filter_on_real_clips(name, decoded, cli, tmp_path):
    real_clip = SHARED_MEDIA / name
    ours = decoded(real_clip)
    leads = leads_of(ours)
    if ours.facts.stamps_sorted or ours.facts.stamps_joined:
        expected = fps_filter(cli, *sorted_copy(real_clip, ours.info, tmp_path), leads, tmp_path)
    elif ours.facts.is_interlaced:  # the first deinterlaced frame differs between versions of bwdif: compare indexes
        ours = indexed(ours, real_clip, cli)
        expected = fps_filter(cli, real_clip, ours.info, leads, tmp_path)
    else:
        expected = fps_filter(cli, real_clip, ours.info, leads, tmp_path)
    assert_picks_like_ffmpeg(ours, expected)


def indexed(ours: Any, path: Path, cli: Any) -> Any:
    """The same time line with the MD5 of the interlaced pictures."""
    whole = cli.frames(path, stream=stream_of(ours.info))
    assert len(whole) == len(ours.frames)
    frames = [replace(frame, md5=theirs.md5) for frame, theirs in zip(ours.frames, whole, strict=True)]
    return replace(ours, frames=frames)


def sorted_copy(path: Path, info: Any, tmp_path: Path) -> tuple[Path, Any]:
    """A lossless copy whose timestamps were sorted by numpy, frames in the order of the decoder."""
    copy = tmp_path / "sorted.nut"
    with av.open(str(path)) as source:
        stream = source.streams[info.stream_index]
        frames = list(source.decode(stream))
        base = stream.time_base
    stamps = np.sort([f.pts for f in frames])
    with av.open(str(copy), "w") as target:
        out = target.add_stream("ffv1", rate=info.frame_rate or 25)
        out.width, out.height, out.pix_fmt = frames[0].width, frames[0].height, frames[0].format.name
        out.time_base = out.codec_context.time_base = base
        for frame, stamp in zip(frames, stamps, strict=True):
            frame.pts, frame.time_base, frame.pict_type = int(stamp), base, 0
            for packet in out.encode(frame):
                packet.duration = frames[-1].duration
                target.mux(packet)
        target.mux(out.encode(None))
    with Source(copy, max_pixels=36_000_000) as again:
        return copy, again.info


def test_times_that_run_backwards_are_sorted_and_the_decoders_order_kept(media, pipeline, cli):
    path = media["swapped.mkv"]
    ours, whole = pipeline(path, apply=False), cli.frames(path)
    with av.open(str(path)) as container:
        stamps = [frame.pts for frame in container.decode(video=0)]
    assert stamps != sorted(stamps), "the clip lost what is special about it"
    assert [f.md5 for f in ours.frames] == [f.md5 for f in whole]
    assert [f.pts for f in ours.frames] == [n * 40 for n in range(len(whole))]
    assert ours.facts.stamps_sorted == sum(b < a for a, b in zip(stamps, stamps[1:], strict=False))
    assert not ours.facts.is_vfr


def test_a_clip_with_swapped_times_is_retimed_as_if_they_had_been_right(media, pipeline, cli, tmp_path):
    path = media["swapped.mkv"]
    ours = pipeline(path, apply=False)
    assert_picks_like_ffmpeg(ours, fps_filter(cli, *sorted_copy(path, ours.info, tmp_path), leads_of(ours), tmp_path))


def test_time_that_jumps_back_is_joined_where_it_left_off(media, pipeline, cli):
    path = media["jumps_back.ts"]
    ours = pipeline(path, apply=False)
    parts = cli.frames(media["part_small.ts"])
    assert [f.md5 for f in ours.frames] == [f.md5 for f in parts] * 3
    assert [f.pts for f in ours.frames] == [n * 3600 for n in range(36)]
    assert ours.facts.stamps_joined == 2


def test_frames_that_share_a_timestamp_are_kept_one_tick_apart(media, pipeline, cli):
    path = media["doubled.mkv"]
    ours, whole = pipeline(path, apply=False), cli.frames(path)
    assert [f.md5 for f in ours.frames] == [f.md5 for f in whole]
    stamps = [f.pts for f in ours.frames]
    expected = [n * 40 if n % 4 != 3 else (n - 1) * 40 + 1 for n in range(len(whole))]
    assert stamps == expected
    assert ours.facts.stamps_nudged == sum(n % 4 == 3 for n in range(len(whole)))


def test_without_a_rate_the_times_of_the_source_are_kept(plain_clip, pipeline, cli):
    ours = pipeline(plain_clip, apply=False)
    whole = cli.frames(plain_clip, "setpts=PTS-STARTPTS", stream=stream_of(ours.info), reading=reading(ours.info))
    assert [f.md5 for f in ours.frames] == [f.md5 for f in whole]
    off = [abs(f.pts * ours.time_base - theirs.time) for f, theirs in zip(ours.frames, whole, strict=True)]
    assert max(off) <= ours.time_base
    ends = [f.pts + f.duration for f in ours.frames]
    assert ends[:-1] == [f.pts for f in ours.frames][1:]
    assert [f.source_index for f in ours.frames] == list(range(len(whole)))


@pytest.mark.parametrize("name", in_turn(real_clips(), 3))
def test_the_frames_of_real_clips_are_those_their_manifest_counts(name, shared_media, decoded):
    with (shared_media / "MANIFEST.csv").open() as file:
        row = next(row for row in csv.DictReader(file) if row["file"] == name)
    facts = decoded(shared_media / name).facts
    assert facts.num_frames == int(row["nb_frames"])
    if row["vfr"]:
        assert ("yes" if facts.is_vfr else "no") == row["vfr"] or row["pts_in_order"] == "no"
    if row["pts_in_order"]:
        assert (facts.stamps_sorted > 0) == (row["pts_in_order"] == "no")
    if row["interlaced"]:
        assert facts.is_interlaced == (row["interlaced"] == "yes")


@pytest.mark.parametrize("name", FAST_CUTS + SLOW_CUTS)
def test_a_cut_holds_exactly_the_frames_that_lie_in_it(name, media, pipeline, cli):
    path = media[name]
    whole = cli.frames(path, "setpts=PTS-STARTPTS")
    time_base = pipeline(path, apply=False).time_base
    last = whole[-1].time
    half = Fraction(1, 5000)
    starts = sorted({frame.time for frame in whole[::3]} | {frame.time + half for frame in whole[1::5]})
    cuts = [(start, None) for start in starts]
    cuts += [
        (None, last / 3),
        (Fraction(1, 10), Fraction(7, 20)),
        (last / 2, last / 2 + Fraction(1, 20)),
        (last, last * 2),
    ]
    whole_run = pipeline(path, apply=False)
    ours_times, near = [f.pts * time_base for f in whole_run.frames], near_of(whole_run)
    for given in cuts:
        start, end = (None if time is None else exact_seconds(float(time)) for time in given)
        wanted = in_cut(ours_times, start, end, near)
        first = ours_times[wanted[0]] if wanted else None
        is_held = (
            start is not None
            and start <= ours_times[-1] + near
            and (first is None or first - start > whole_run.stream.window.interval * time_base)
        )
        if is_held:
            wanted = [on_screen(ours_times, start, near), *wanted]
        if not wanted:
            with pytest.raises(NoVideoError):
                pipeline(path, start=start, end=end, apply=False)
            continue
        ours = pipeline(path, start=start, end=end, apply=False)
        assert [f.source_index for f in ours.frames] == wanted, (start, end)
        assert [f.md5 for f in ours.frames] == [whole[n].md5 for n in wanted], (start, end)
        assert ours.frames[0].pts == 0
        origin = round(start / time_base) * time_base if is_held else ours_times[wanted[0]]
        assert [f.pts * time_base for f in ours.frames] == [max(0, ours_times[n] - origin) for n in wanted]


@pytest.mark.parametrize("name", FAST_CUTS)
def test_nothing_before_the_keyframe_of_a_cut_is_decoded(name, media):
    """Fed to the decoder are only packets from the keyframe at or before the start, which the demuxer alone proves."""
    path = media[name]
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        packets = [p for p in container.demux(stream) if p.size]
        shown = sorted(p.pts for p in packets if not p.is_discard)
        base = stream.time_base
        keys = [p.pts for p in packets if p.is_keyframe]
    start = Fraction(repr(float((shown[-1] - shown[0]) * base * Fraction(4, 5))))
    with Source(path, max_pixels=10**6) as source:
        window = timing_of(source, RunSettings(), Cut(float(start))).window
        earliest = shown[0] + window.begin
        needed = next(pts for pts in shown if pts >= earliest)
        if needed - shown[0] - start / base > window.interval:
            needed = shown[shown.index(needed) - 1]
        due = [key for key in keys if key <= needed][-1]
        entry = seek_to(source, window)
        first = next(entry.packets)
        assert first.is_keyframe
        assert first.pts == due
        assert len(keys) == 1 or first.pts > shown[0]
        assert entry.frames_before == shown.index(needed)


@pytest.mark.parametrize("rate", ["1", "15", "60"])
@pytest.mark.parametrize("name", ["cfr.mp4", "vfr.mp4", "ts_late.ts"])
def test_a_cut_at_a_constant_rate_equals_ffmpegs_fps_filter(name, rate, media, pipeline, cli):
    path = media[name]
    start, end = Fraction(3, 10), Fraction(13, 20)
    whole_run = pipeline(path, apply=False)
    near = near_of(whole_run) if near_of(whole_run) * int(rate) < 1 else Fraction(1, 4 * int(rate))
    count = math.ceil((end - start - near) * int(rate))
    lead = lead_of([f.pts * whole_run.time_base for f in whole_run.frames], Fraction(rate), whole_run.info.frame_rate)
    # What begins after the cut only ends its last frame.
    late = f"gte(PTS-STARTPTS,{float(end - near)}/TB)*{float(lead)}/TB"
    shifted = f"settb={whole_run.time_base / 1000},setpts='PTS-STARTPTS-{float(start + lead)}/TB+{late}'"
    theirs = cli.frames(path, f"{shifted},fps={rate}:round=up:start_time=0,trim=end_frame={count}")
    settings = RunSettings(retime=Retime(Fraction(rate)))
    ours = pipeline(path, settings, start=start, end=end, apply=False)
    whole = [f.md5 for f in cli.frames(path)]
    assert [f.md5 for f in ours.frames] == ([f.md5 for f in theirs] or [whole[ours.frames[0].source_index]])
    assert [whole[f.source_index] for f in ours.frames] == [f.md5 for f in ours.frames]


@pytest.mark.parametrize("rate", ["0.001", "1", "7", None])
@pytest.mark.parametrize("name", ["one.mp4", "one_short.mp4", "two.mkv"])
def test_at_least_one_frame_comes_out(name, rate, media, pipeline, cli):
    ours = pipeline(media[name], RunSettings(retime=Retime(Fraction(rate) if rate else None)), apply=False)
    assert len(ours.frames) >= 1
    whole = [f.md5 for f in cli.frames(media[name])]
    assert ours.frames[0].md5 == whole[ours.frames[0].source_index]
    assert ours.frames[0].pts == 0
    assert all(f.duration >= 1 for f in ours.frames)


def test_raising_the_rate_repeats_frames_and_keeps_the_map(media, pipeline):
    ours = pipeline(media["cfr.mp4"], RunSettings(retime=Retime(Fraction(60))))
    assert [f.source_index for f in ours.frames] == [n // 2 for n in range(72)]
    assert [f.pts for f in ours.frames] == list(range(72))


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_source_decodes_as_in_ffmpeg_and_is_reported(name, media, cli):
    facts = SourceFacts()
    with Source(media[name], max_pixels=10**6) as source:
        count = sum(1 for _ in source_frames(source, facts, max_frames=1000))
        damage = source.damage(read_to_end=facts.read_to_end)
    theirs = cli.frames(media[name], check=False)
    assert count == len(theirs)
    assert damage, "damage was not reported"


def test_a_whole_source_is_not_reported_damaged(plain_clip):
    facts = SourceFacts()
    with Source(plain_clip, max_pixels=10**6) as source:
        for _ in source_frames(source, facts, max_frames=1000):
            pass
        assert facts.read_to_end
        assert source.damage(read_to_end=True) == []


def test_an_interlaced_clip_keeps_its_count_and_its_progressive_frames(interlaced_clip, pipeline, cli):
    ours, whole = pipeline(interlaced_clip, apply=False), cli.frames(interlaced_clip)
    assert ours.facts.is_interlaced
    assert len(ours.frames) == len(whole)
    off = [abs(f.pts * ours.time_base - (t.time - whole[0].time)) for f, t in zip(ours.frames, whole, strict=True)]
    assert max(off) <= ours.time_base
    with av.open(str(interlaced_clip)) as container:
        interlaced = [frame.interlaced_frame for frame in container.decode(video=0)]
    assert ours.facts.num_deinterlaced == sum(interlaced)
    same = [f.md5 == t.md5 for f, t in zip(ours.frames, whole, strict=True)]
    assert same == [not flag for flag in interlaced]


@pytest.mark.logs_errors
def test_a_source_with_more_frames_than_the_limit_is_stopped(media):
    with Source(media["cfr.mp4"], max_pixels=10**6) as source, pytest.raises(LimitError, match="max-frames"):
        list(source_frames(source, max_frames=35))


def test_a_source_without_pictures_names_its_streams(media):
    with pytest.raises(NoVideoError, match="audio"):
        Source(media["sound_only.mp4"], max_pixels=10**6)


def test_a_cut_past_the_end_names_the_length_of_the_source(media):
    with Source(media["cfr.mp4"], max_pixels=10**6) as source, pytest.raises(NoVideoError, match=r"1\.200 s long"):
        list(source_frames(source, cut=Cut(5.0, 6.0)))


def varying(seed: int, path: Path) -> Path:
    """Numbered pictures 8 to 120 ms apart, in a drawn container."""
    rng = random.Random(seed)
    times = [Fraction(0)]
    while len(times) < 60:
        times.append(times[-1] + Fraction(rng.randint(8_000, 120_000), 10**6))
    return write(path / f"a{rng.choice(('.mp4', '.mkv', '.webm'))}", times, last=Fraction(1, 25))


def shown_by_ffmpeg(cli: Any, path: Path, rate: Fraction, lead: Fraction) -> list[int | None]:
    fine = f"settb=1/1000000,setpts=PTS-STARTPTS-{float(lead)}/TB"
    frames = cli.raw(path, f"{fine},fps={rate}:round=up", 64, 64, "gray")
    return [number_on(frame.reshape(64, 64)) for frame in frames]


@pytest.mark.parametrize("seed", in_turn(range(100), 10))
def test_a_varying_rate_is_retimed_as_ffmpegs_filter_does_it(seed: int, cli, pipeline, tmp_path: Path) -> None:
    path = varying(seed, tmp_path)
    for rate in (Fraction(10), Fraction(30), Fraction(25), Fraction(30000, 1001)):
        ours = pipeline(path, RunSettings(retime=Retime(rate)), apply=False)
        lead = lead_of(ours.pace.starts, rate, None, ours.info.time_base)
        assert [f.source_index for f in ours.frames] == shown_by_ffmpeg(cli, path, rate, lead), rate
