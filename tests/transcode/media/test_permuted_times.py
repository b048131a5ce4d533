"""Timestamps that are not in the order of the frames: sorted as far as decoders reorder, whoever reads; a jump stays a jump."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import imageio_ffmpeg
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from vidprep.formats.model import Cut
from vidprep.formats.stores.raw_files import VideoFiles
from vidprep.formats.video.timestamps import NEIGHBOURS, REORDER_FRAMES, PacketsAhead, StampCounts, add_timestamps
from vidprep.transcode.settings.options import Retime
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.unit.job import WholeJob
from vidprep.transcode.unit.life import run_job

FRAMES = 120
COPIES = ((3, "avi"), (8, "avi"), (16, "avi"), (3, "mp4"), (16, "mp4"), (8, "mkv"))


def encoded(cli: Any, path: Path, b_frames: int, *more: object) -> Path:
    """120 frames at 30/s, no two alike, with B-pyramids."""
    params = f"bframes={b_frames}:b-pyramid=normal:b-adapt=0:ref=5:keyint=50:threads=1"
    cli.run(
        "-f",
        "lavfi",
        "-i",
        f"testsrc2=size=96x64:rate=30,trim=end_frame={FRAMES}",
        "-c:v",
        "libx264",
        "-preset",
        "veryfast",
        "-pix_fmt",
        "yuv420p",
        "-x264-params",
        params,
        *more,
        path,
    )
    return path


def counted_copy(source: Path, target: Path, audio: Path | None = None) -> Path:
    """The packets of a video with their numbers for timestamps; audio: to stand beside it."""
    with av.open(str(source)) as read, av.open(str(target), "w") as written:
        out = written.add_stream_from_template(read.streams.video[0])
        out.time_base = Fraction(1, 30)
        if audio is not None:
            with av.open(str(audio)) as heard:
                beside = written.add_stream_from_template(heard.streams.audio[0])
                packets = [packet for packet in heard.demux() if packet.size]
        for number, packet in enumerate(packet for packet in read.demux(video=0) if packet.size):
            packet.stream, packet.time_base = out, Fraction(1, 30)
            packet.pts, packet.dts, packet.duration = number, number, 1
            written.mux(packet)
        if audio is not None:
            for packet in packets:
                packet.stream = beside
                written.mux(packet)
    return target


@pytest.fixture(scope="module")
def counted(cli, tmp_path_factory):
    """For a number of B-frames and a container: the clip, and what it should look like."""
    folder = tmp_path_factory.mktemp("counted")
    made: dict[tuple[int, str], tuple[Path, Path]] = {}
    for b_frames, box in COPIES:
        boxed = folder / f"{b_frames}.mp4"
        if not boxed.exists():
            encoded(cli, boxed, b_frames)
        source = boxed if box != "avi" else encoded(cli, folder / f"{b_frames}.h264", b_frames)
        made[b_frames, box] = counted_copy(source, folder / f"{b_frames}.copy.{box}"), boxed
    return made


every_copy = pytest.mark.parametrize(("b_frames", "box"), COPIES)


def row_of(path: Path, folder: Path, settings: RunSettings, **cut: float) -> tuple[Any, Path]:
    stat = path.stat()
    out = folder / f"out.{settings.output.extension}"
    unit = Unit("x", str(path), stat.st_size, stat.st_mtime_ns, Cut(**cut))
    return run_job(WholeJob(unit, settings, out.name, str(out), ffmpeg=imageio_ffmpeg.get_ffmpeg_exe())), out


@every_copy
def test_b_frames_numbered_in_decode_order_keep_their_order_and_their_length(b_frames, box, counted, pipeline, cli):
    path, due = counted[b_frames, box]
    ours = pipeline(path, apply=False)
    assert [f.md5 for f in ours.frames] == [f.md5 for f in cli.frames(due)]
    off = [abs(f.pts * ours.time_base - Fraction(n, 30)) for n, f in enumerate(ours.frames)]
    assert max(off) <= ours.time_base / 2
    assert abs(ours.facts.duration * ours.time_base - 4) <= ours.time_base
    assert ours.facts.stamps_joined == ours.facts.stamps_nudged == 0 < ours.facts.stamps_sorted
    if box == "mkv":  # its milliseconds are too coarse to tell a frame that is half way from the one before it
        return
    slower = pipeline(path, RunSettings(retime=Retime(Fraction(15))), apply=False)
    assert [f.source_index for f in slower.frames] == list(range(0, FRAMES, 2))


@every_copy
def test_a_cut_of_them_holds_the_frames_that_lie_in_it(b_frames, box, counted, pipeline, cli):
    path, due = counted[b_frames, box]
    whole = [f.md5 for f in cli.frames(due)]
    for start, first in ((Fraction(1), 30), (Fraction(26, 10), 78)):
        cut = pipeline(path, start=start, end=start + Fraction(1, 2), apply=False)
        assert [f.source_index for f in cut.frames] == list(range(first, first + 15))
        assert [f.md5 for f in cut.frames] == whole[first : first + 15]


@every_copy
def test_they_are_read_by_number_as_they_are_converted(b_frames, box, counted):
    path, due = counted[b_frames, box]
    ours, theirs = VideoFiles([path]), VideoFiles([due])
    numbers = [0, 1, 2, 3, 17, 18, 31, 50, 77, 119]
    assert ours.facts(ours.ids[0]).num_frames == FRAMES
    assert np.array_equal(ours[ours.ids[0]].frames(numbers), theirs[theirs.ids[0]].frames(numbers))


def test_packets_that_tell_their_order_are_trusted(counted):
    """Reading by number begins at a keyframe where timestamps are right, and only there."""
    path, due = counted[3, "mp4"]
    keyframes = [store.facts(store.ids[0]).keyframes for store in (VideoFiles([due]), VideoFiles([path]))]
    assert [len(found) for found in keyframes] == [3, 1]


@pytest.mark.parametrize("name", [(8, "avi"), (16, "mp4")])
def test_their_row_says_that_they_were_sorted_and_of_no_jump(name, counted, tmp_path):
    row, _ = row_of(counted[name][0], tmp_path, RunSettings())
    assert (row.status, row.num_frames, row.duration_seconds) == ("ok", FRAMES, 4.0)
    said = " ".join(row.warnings)
    assert ("ran backwards; sorted" in said) == (name[1] != "avi")  # there they always do, and nobody could act on it
    assert "jumped" not in said
    assert "damaged" not in said


@pytest.mark.parametrize("b_frames", [3, 16])
def test_the_ffmpeg_engine_says_that_the_source_is_why_it_cannot_change_the_rate(b_frames, counted, tmp_path):
    row, _ = row_of(
        counted[b_frames, "avi"][0], tmp_path, RunSettings(VideoOutput(engine="ffmpeg"), retime=Retime(Fraction(15)))
    )
    assert row.status == "failed"
    assert row.message.startswith("the timestamps of the source are out of order")
    assert "take --engine av" in row.message


@pytest.mark.parametrize("b_frames", [3, 16])
def test_the_ffmpeg_engine_keeps_their_order_where_each_frame_is_kept(b_frames, counted, cli, tmp_path):
    path, due = counted[b_frames, "avi"]
    row, made = row_of(path, tmp_path, RunSettings(VideoOutput(engine="ffmpeg")))
    assert row.ok, row.message
    told = cli.log("-i", due, "-i", made, "-filter_complex", "[0][1]psnr=shortest=1", "-f", "null", "-")
    assert row.psnr_y_db == pytest.approx(float(re.search(r"PSNR y:(\S+)", told)[1]), abs=0.01)


def test_sound_ends_where_the_pictures_do(cli, tmp_path):
    audio = tmp_path / "tone.wav"
    cli.run("-f", "lavfi", "-i", "sine=440:sample_rate=48000:duration=4", audio)
    path = counted_copy(encoded(cli, tmp_path / "bare.h264", 8), tmp_path / "both.avi", audio)
    row, made = row_of(path, tmp_path, RunSettings(VideoOutput(audio="aac")))
    assert row.ok, row.message
    with av.open(str(made)) as file:
        video, audio = file.streams.video[0], file.streams.audio[0]
        assert float(video.duration * video.time_base) == pytest.approx(4, abs=0.001)
        assert float(audio.duration * audio.time_base) == pytest.approx(4, abs=0.1)


@pytest.mark.parametrize(
    ("codec", "box"), [("mjpeg", "mkv"), ("ffv1", "mkv"), ("libx264", "mkv"), ("mjpeg", "mov"), ("libx264", "mov")]
)
def test_stamps_from_2_to_59_in_any_order_are_1_93_seconds(codec, box, pipeline, cli, tmp_path):
    path = tmp_path / f"shuffled.{box}"
    numbers = np.random.default_rng(len(codec + box))
    stamps = [int(at) + 2 for at in np.argsort(np.arange(58) + numbers.uniform(0, REORDER_FRAMES, 58))]
    later = 20 if box == "mov" else 0  # its muxer writes no time before 0
    with av.open(str(path), "w", container_options={"use_editlist": "0"} if later else {}) as container:
        stream = container.add_stream(codec, rate=30)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.options = {"x264-params": "bframes=0:keyint=20"} if codec == "libx264" else {}
        packets = []
        for number in range(58):
            picture = av.VideoFrame.from_ndarray(np.full((48, 64, 3), number * 4, np.uint8), format="rgb24")
            packets += stream.encode(picture.reformat(format=stream.pix_fmt))
        for number, packet in enumerate(packets + stream.encode(None)):
            packet.time_base, packet.duration = Fraction(1, 30), 1
            packet.pts, packet.dts = stamps[number] + later, number + later - REORDER_FRAMES - 2
            container.mux(packet)
    ours = pipeline(path, apply=False)
    assert len(ours.frames) == len(cli.frames(path)) == 58
    off = [abs(f.pts * ours.time_base - Fraction(n, 30)) for n, f in enumerate(ours.frames)]
    assert max(off) <= ours.time_base
    assert float(ours.facts.duration * ours.time_base) == pytest.approx(58 / 30, abs=0.002)
    assert ours.facts.stamps_joined == 0
    luma = [frame.to_ndarray(format="gray").mean() for frame in decoded(path)]
    assert luma == sorted(luma), "the decoder's order was lost"
    cut = pipeline(path, start=Fraction(1), end=Fraction(3, 2), apply=False)
    assert [f.source_index for f in cut.frames] == list(range(30, 45))


def decoded(path: Path) -> list[av.VideoFrame]:
    with av.open(str(path)) as container:
        return list(container.decode(video=0))


# ---------------------------------------------------------------------------------------------- the line by itself


def lined(stamps: list[int | None], step: int = 1, ahead: Any = None, frames: Any = None) -> tuple[list[int], Any]:
    """What becomes of these timestamps; the frames must come out as they went in."""
    counts = StampCounts()
    source = frames or [SimpleNamespace(pts=pts, duration=0, number=n, key_frame=False) for n, pts in enumerate(stamps)]
    timed = list(add_timestamps(source, step, counts, ahead))
    assert [each.frame.number for each in timed] == list(range(len(stamps)))
    return [each.pts for each in timed], counts


def shuffled(values: list[int], moves: list[int]) -> list[int]:
    """No value further from its place than the largest of these moves."""
    return [values[at] for at in sorted(range(len(values)), key=lambda at: at + moves[at % len(moves)])]


rising = st.lists(st.integers(1, 5000), min_size=1, max_size=120).map(
    lambda steps: [int(n) for n in np.cumsum(steps) - 7]
)
moves = st.lists(st.floats(0, REORDER_FRAMES), min_size=1, max_size=40)


@settings(max_examples=100, deadline=None)
@given(rising, moves)
def test_any_permutation_within_16_frames_is_sorted(stamps, by):
    found, counts = lined(shuffled(stamps, by))
    assert found == stamps
    assert counts.stamps_joined == 0


class Decoder:
    """Gives frames in an order of its own: number n when the packets that `delay` tells more have been taken."""

    def __init__(self, packets: list[Any], order: list[int], delay: int) -> None:
        self.packets, self.order, self.delay = packets, order, delay
        self.most_out = self.num_out = 0
        self.taken = 0

    def ahead(self, delays: bool) -> PacketsAhead:
        return PacketsAhead(iter(self.packets), delays=delays)

    def frames(self, ahead: PacketsAhead) -> Any:
        fed, given = list[Any](), 0
        for packet in ahead:
            fed.append(packet)
            while given < len(self.order) and self.order[given] < len(fed) - self.delay:
                yield self._frame(given)
                given += 1
        for number in range(given, len(self.order)):
            yield self._frame(number)

    def _frame(self, number: int) -> Any:
        self.num_out += 1
        return SimpleNamespace(pts=self.packets[self.order[number]].pts, duration=0, number=number, key_frame=False)


def packets_of(stamps: list[int], size: int = 10) -> list[Any]:
    return [SimpleNamespace(pts=pts, size=size, is_discard=False) for pts in stamps]


@settings(max_examples=60, deadline=None)
@given(rising, moves, st.booleans())
def test_packets_tell_how_long_to_wait_when_frames_come_at_once(stamps, by, delays):
    mixed = shuffled(stamps, by)
    decoder = Decoder(packets_of(mixed), list(range(len(mixed))), 0)
    ahead = decoder.ahead(delays)
    found, counts = lined(mixed, 1, ahead, decoder.frames(ahead))
    assert found == stamps
    assert counts.stamps_joined == 0


@settings(max_examples=60, deadline=None)
@given(rising, moves, st.integers(0, 4))
def test_packets_tell_how_long_to_wait_when_they_count_themselves(stamps, by, delay):
    """As in AVI: packets in decode order with rising timestamps, frames in another order."""
    order = shuffled(list(range(len(stamps))), by)
    decoder = Decoder(packets_of(stamps), order, delay)
    ahead = decoder.ahead(True)
    found, counts = lined([stamps[at] for at in order], 1, ahead, decoder.frames(ahead))
    assert found == stamps
    assert counts.stamps_joined == 0


@settings(max_examples=60, deadline=None)
@given(rising, moves, st.integers(0, 16), st.sampled_from([10, 20 << 20]))
def test_no_more_frames_than_two_are_held_where_timestamps_are_right(stamps, by, delay, size):
    order = shuffled(list(range(len(stamps))), by)
    told = [0] * len(stamps)
    for shown, at in enumerate(order):
        told[at] = stamps[shown]
    decoder = Decoder(packets_of(told, size), order, delay)
    ahead = decoder.ahead(True)
    for number, timed in enumerate(add_timestamps(decoder.frames(ahead), 1, StampCounts(), ahead)):
        assert timed.pts == stamps[number]
        assert decoder.num_out - number <= NEIGHBOURS + 1


@settings(max_examples=60, deadline=None)
@given(st.integers(REORDER_FRAMES + 1, 90), st.integers(2, 90), st.integers(1, 1000), st.booleans())
def test_a_clock_that_is_set_back_goes_on_where_it_left_off(first, second, step, by_packets):
    stamps = [n * step for n in range(first)] + [n * step for n in range(second)]
    decoder = Decoder(packets_of(stamps), list(range(len(stamps))), 0)
    ahead = decoder.ahead(True) if by_packets else None
    found, counts = lined(stamps, step, ahead, decoder.frames(ahead) if ahead else None)
    assert found == [n * step for n in range(first + second)]
    assert (counts.stamps_joined, counts.stamps_sorted) == (1, 0)


@settings(max_examples=60, deadline=None)
@given(st.integers(4, 60), st.integers(3, 20), st.integers(2, 60), st.booleans())
def test_a_clock_that_repeats_times_was_set_back(first, back, second, by_packets):
    """By two frames or more: a permutation never tells a time twice, so what follows shows which it is."""
    back = min(back, first - 1)
    stamps = list(range(first)) + list(range(first - back, first - back + second))
    decoder = Decoder(packets_of(stamps), list(range(len(stamps))), 0)
    ahead = decoder.ahead(True) if by_packets else None
    found, counts = lined(stamps, 1, ahead, decoder.frames(ahead) if ahead else None)
    assert found == list(range(first + second))
    assert counts.stamps_joined == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.none() | st.integers(-(2**62), 2**62), min_size=1, max_size=80), st.booleans())
def test_whatever_timestamps_are_frames_come_out_in_order_at_times_that_do_not_fall(stamps, by_packets):
    decoder = Decoder(packets_of(stamps), list(range(len(stamps))), 0)
    ahead = decoder.ahead(True) if by_packets else None
    found, counts = lined(stamps, 1, ahead, decoder.frames(ahead) if ahead else None)
    assert found == sorted(found)
    assert counts.stamps_guessed == stamps.count(None)


def test_frames_that_a_cut_cannot_decode_are_not_waited_for():
    """Those that an open GOP shows before its keyframe."""
    packets = packets_of([10, 7, 8, 9, *range(11, 60)])
    order = [0, *range(4, len(packets))]
    decoder = Decoder(packets, order, 2)
    ahead = PacketsAhead(iter(packets), delays=True, from_middle=True)
    for number, timed in enumerate(add_timestamps(decoder.frames(ahead), 1, StampCounts(), ahead)):
        assert timed.pts == 10 + number
        assert decoder.num_out - number <= NEIGHBOURS + 1
