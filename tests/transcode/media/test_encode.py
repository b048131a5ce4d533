"""The encoded file: keyframes, containers, times."""

from __future__ import annotations

import os
import struct
import sys
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from tests.sampling import in_turn, pairs
from tests.transcode.media.encoded import encoded, good
from vidprep.formats.profiles import CODECS, CONTAINERS
from vidprep.transcode.media.ffmpeg import run_ffmpeg

SUITED = [(codec, box.name) for box in CONTAINERS.values() for codec in box.codecs or CODECS]


NTSC = Fraction(30000, 1001)


@pytest.mark.parametrize("gop", [1, 5, 16])
@pytest.mark.parametrize(("codec", "container"), in_turn(SUITED, 2))
def test_keyframes_are_exactly_every_n_frames_across_scene_cuts(codec, container, gop, media, outputs, cli):
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
