"""`--segment`: segments of a long video, encoded side by side and joined, are the video that one segment would be."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests import points
from tests.helpers import (
    LARGE_MEDIA,
    environment,
    fault,
    identities,
    leftovers,
    make_clip,
    manifest,
    outputs,
    table,
    transcode,
    with_peers,
)
from tests.recipes import moving
from tests.sampling import in_turn, pairs
from vidprep.formats.manifest.table import ManifestRow
from vidprep.formats.video.options import EncoderOptions
from vidprep.formats.video.source import Source
from vidprep.transcode.media.stream import timing_of
from vidprep.transcode.settings.options import Retime
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.parse import parse_rate
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.unit.job import Segment, WholeJob
from vidprep.transcode.unit.life import run_job

BOXES = [
    ("h264", "mp4"),
    ("h264", "mkv"),
    ("hevc", "mp4"),
    ("hevc", "mkv"),
    ("vp9", "webm"),
    ("vp9", "mp4"),
    ("av1", "mp4"),
    ("av1", "webm"),
]
SAME = (
    "num_frames",
    "keyframes",
    "source_frames",
    "pts",
    "frame_rate_num",
    "frame_rate_den",
    "time_base_num",
    "duration_seconds",
    "source_num_frames",
    "source_duration_seconds",
    "source_is_vfr",
    "source_frame_rate",
    "duplicated_frames",
    "dropped_frames",
    "keyframe_interval_max",
    "width",
    "height",
    "source_is_interlaced",
)


@pytest.fixture(scope="module")
def long(tmp_path_factory) -> Path:
    """Ten seconds with a keyframe every 12 frames and B-frames."""
    path = tmp_path_factory.mktemp("long") / "long.mp4"
    return make_clip(path, 250, (96, 64), options={"preset": "fast", "g": "12", "bf": "3"})


def decoded(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray() for frame in container.decode(video=0)]


def check_like(split: dict[str, Any], whole: dict[str, Any], *, db: float = 0.3) -> None:
    assert split["status"] == whole["status"] == "ok"
    assert [name for name in SAME if split[name] != whole[name]] == []
    assert split["psnr_y_db"] > min(whole["psnr_y_db"], 90) - db


@pytest.mark.parametrize(
    ("codec", "box", "rate"),
    in_turn([(*box, []) for box in BOXES] + [("vp9", "webm", ["--fps", "29.97"]), ("h264", "mp4", ["--fps", "15"])], 3),
)
def test_segments_make_the_video_that_the_whole_would(codec, box, rate, long, tmp_path):
    options = ("--codec", codec, "--container", box, "--gop", 8, *rate)
    assert transcode(long, tmp_path / "whole", *options).code == 0
    ran = transcode(long, tmp_path / "split", *options, "--segment", 2, "--jobs", 3)
    assert ran.code == 0, ran.err
    whole, split = (manifest(tmp_path / name)["long"] for name in ("whole", "split"))
    check_like(split, whole)
    assert not any("split" in text for text in split["warnings"])
    ours, theirs = (decoded(tmp_path / name / f"long.{box}") for name in ("split", "whole"))
    assert len(ours) == len(theirs)
    worst = max(np.square(one.astype(float) - other).mean() for one, other in zip(ours, theirs, strict=True))
    assert worst < 60  # a frame that is another than in the whole differs by thousands
    checked = transcode(long, tmp_path / "split", verb="validate")
    assert checked.code == 0, checked.out
    assert leftovers(tmp_path / "split") == []


def packets(path: Path, kind: str = "video") -> list[tuple[Any, ...]]:
    with av.open(str(path)) as container:
        found = container.demux(**{kind: 0})
        return [(p.pts, p.dts, p.duration, p.is_keyframe, bytes(p)) for p in found if p.size]


@pytest.mark.parametrize(("codec", "box"), in_turn(BOXES, 4))
def test_one_piece_joined_is_the_file_that_was_never_split(codec, box, long, tmp_path):
    """Headers, packets, times and index: the same bytes. HEVC and AV1 in mp4 lose a box: what frames could be left out."""
    encoder = EncoderOptions(codec=codec, container=box, gop=8)
    settings = RunSettings(VideoOutput(encoder), retime=Retime(parse_rate("25")))
    state = long.stat()
    unit = Unit("long", str(long), state.st_size, state.st_mtime_ns)
    job = WholeJob(unit, settings, f"long.{box}", str(tmp_path / f"whole.{box}"))
    assert isinstance(row := run_job(job), ManifestRow) and row.ok, row
    with Source(long, max_pixels=10**6) as source:
        timing = timing_of(source, settings, unit.cut)
    whole = Segment(0, 0, 0, None, 0, timing, 0, None, 0, 0, Fraction(0))
    made = run_job(replace(job, partial=str(tmp_path / "segment")).for_segment(whole))
    joined = run_job(replace(job, partial=str(tmp_path / f"joined.{box}")).join_job((made,)))
    assert isinstance(joined, ManifestRow) and joined.ok, joined
    ours, theirs = (tmp_path / f"{name}.{box}" for name in ("joined", "whole"))
    if box == "mp4" and codec in ("hevc", "av1"):
        assert packets(ours) == packets(theirs)
        assert theirs.stat().st_size - ours.stat().st_size == 12 + 250
    else:
        assert ours.read_bytes() == theirs.read_bytes()
    measured = {"encode_seconds": 0, "cpu_seconds": 0, "size_bytes": 0, "sha256": ""}
    assert replace(joined, **measured) == replace(row, **measured)


def test_a_segment_in_which_alpha_begins_has_it_said(cli, tmp_path):
    frames = b"".join(b"\xc8\xc8\xc8" + alpha for alpha in (b"\xff", b"\x80") for _ in range(64 * 64 * 25))
    raw = ("-f", "rawvideo", "-pix_fmt", "rgba", "-s", "64x64", "-r", 25, "-i", "-")
    vp9 = ("-c:v", "libvpx-vp9", "-pix_fmt", "yuva420p", "-deadline", "realtime", "-cpu-used", 8, "-auto-alt-ref", 0)
    cli.run(*raw, *vp9, tmp_path / "late.webm", stdin=frames)
    assert transcode(tmp_path / "late.webm", tmp_path / "made", "--segment", 1).code == 0
    assert "alpha composited over black" in manifest(tmp_path / "made")["late"]["warnings"]


def test_as_many_workers_as_there_are_make_the_same_bytes(long, tmp_path):
    for jobs in (1, 4):
        assert transcode(long, tmp_path / str(jobs), "--segment", 1, "--jobs", jobs).code == 0
    assert outputs(tmp_path / "1") == outputs(tmp_path / "4")


def test_segments_are_whole_gops_and_the_length_is_a_setting(long, tmp_path):
    """1 s of 25 frames is rounded up to 3 GOPs of 10."""
    ran = transcode(long, tmp_path / "out", "--gop", 10, "--segment", 1, "--events", tmp_path / "events")
    assert ran.code == 0
    assert manifest(tmp_path / "out")["long"]["keyframes"] == list(range(0, 250, 10))
    settings = json.loads((tmp_path / "out" / ".vidprep" / "run.json").read_text())["settings"]
    assert settings["split"] == 1
    again = transcode(long, tmp_path / "out", "--gop", 10, "--segment", 2)
    assert again.code == 2
    assert "--segment 1 -> 2" in again.err
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    kinds = [event["event"] for event in events if event["event"] not in ("progress", "segment")]
    assert kinds == ["begun", "started", "finished", "ended"]
    made = [(event["id"], event["made"], event["count"]) for event in events if event["event"] == "segment"]
    assert made == [("long", number, 8) for number in range(9)]


@pytest.mark.long
def test_videos_over_two_minutes_are_split_by_default(tmp_path):
    """In the same way whatever else there is to do and whoever does it; never what is shorter."""
    sources = tmp_path / "src"
    make_clip(sources / "long.mp4", 5 * 125, (64, 48), rate=5)
    make_clip(sources / "short.mp4", 5 * 119, (64, 48), rate=5)
    for name, options in (("one", ["--jobs", 1]), ("three", ["--jobs", 3]), ("off", ["--segment", "off"])):
        assert transcode(sources, tmp_path / name, "--events", tmp_path / f"{name}.events", *options).code == 0
    assert transcode(sources / "long.mp4", tmp_path / "alone").code == 0
    files = {name: outputs(tmp_path / name) for name in ("one", "three", "off", "alone")}
    assert files["one"] == files["three"]
    assert files["alone"]["long.mp4"] == files["one"]["long.mp4"] != files["off"]["long.mp4"]
    assert files["off"]["short.mp4"] == files["one"]["short.mp4"]
    lines = [json.loads(line) for line in (tmp_path / "three.events").read_text().splitlines()]
    segments = [(line["id"], line["count"]) for line in lines if line["event"] == "segment"]
    assert segments == [("long", 5)] * 6
    assert '"segment"' not in (tmp_path / "off.events").read_text()
    split, whole = (manifest(tmp_path / name)["long"] for name in ("one", "off"))
    check_like(split, whole)
    assert split["warnings"] == whole["warnings"]


@pytest.mark.parametrize("options", [("--engine", "ffmpeg"), ("--target-psnr", 30)])
def test_by_itself_nothing_is_split_that_cannot_be_and_no_word_is_said(options, tmp_path):
    clip = make_clip(tmp_path / "long.mp4", 125, (64, 48), rate=1)
    ran = transcode(clip, tmp_path / "made", "--events", tmp_path / "events", *options)
    assert ran.code == 0, ran.err
    assert '"segment"' not in (tmp_path / "events").read_text()
    assert not [text for text in manifest(tmp_path / "made")["long"]["warnings"] if "split" in text]


def test_keyframes_alone(long, tmp_path):
    assert transcode(long, tmp_path / "out", "--gop", 1, "--segment", 1).code == 0
    assert manifest(tmp_path / "out")["long"]["keyframes"] == list(range(250))


@pytest.mark.long
def test_cuts_of_a_long_video_are_split_too(long, tmp_path):
    rows = [{"path": long, "id": "a", "start": 1.03, "end": 8.9}, {"path": long, "id": "b", "start": 4}]
    cuts = table(tmp_path / "cuts.csv", rows)
    for name, options in (("whole", ()), ("split", ("--segment", 1))):
        for rate in ((), ("--fps", 12)):
            assert transcode(cuts, tmp_path / f"{name}{len(rate)}", "--gop", 4, *rate, *options).code == 0
    for length in (0, 2):
        whole, split = (manifest(tmp_path / f"{name}{length}") for name in ("whole", "split"))
        for id_ in ("a", "b"):
            check_like(split[id_], whole[id_])


@pytest.mark.parametrize("audio", ["aac", "copy", "opus"])
def test_sound_goes_in_once_and_whole(audio, long, cli, tmp_path):
    source = tmp_path / "heard.mp4"
    tone = (
        "-f",
        "lavfi",
        "-i",
        "sine=frequency=300:duration=10",
        "-f",
        "lavfi",
        "-i",
        "testsrc=size=96x64:rate=25:duration=10",
    )
    cli.run(*tone, "-c:a", "aac", "-c:v", "libx264", "-g", "20", source)
    for name, options in (("whole", ()), ("split", ("--segment", 2, "--jobs", 2))):
        assert transcode(source, tmp_path / name, "--audio", audio, *options).code == 0
    ours, theirs = (packets(tmp_path / name / "heard.mp4", "audio") for name in ("split", "whole"))
    assert len(ours) > 400
    assert ours == theirs


TOO_LARGE = [part for glob in ("bad", *LARGE_MEDIA) for part in ("--exclude", glob)]


@pytest.mark.long
@pytest.mark.media
def test_real_clips_in_segments_equal_whole_encodes(shared_media, tmp_path):
    """Those that cannot be split are made in one segment, byte for byte, and it is said."""
    options = ("--short-side", 64, "--gop", 4)
    for name, more in (("whole", ()), ("split", ("--segment", 1))):
        ran = transcode(shared_media, tmp_path / name, *options, *more, *TOO_LARGE)
        assert ran.code == 0, ran.err
    whole, split = manifest(tmp_path / "whole"), manifest(tmp_path / "split")
    assert whole.keys() == split.keys()
    joined = 0
    for id_, row in split.items():
        check_like(row, whole[id_])
        said = [text for text in row["warnings"] if text.startswith("not split")]
        same = row["sha256"] == whole[id_]["sha256"]
        assert same or not said
        joined += not same
        warnings = [[w for w in r["warnings"] if not w.startswith(("not split", "larger"))] for r in (row, whole[id_])]
        assert warnings[0] == warnings[1], id_
    assert joined > 10


def test_unsplittable_videos_are_encoded_whole_with_a_remark(media, cli, tmp_path):
    long, doubled = tmp_path / "long.avi", tmp_path / "doubled.mkv"
    cli.run(*moving(rate="15", frames=20), "-c:v", "mjpeg", long)
    cli.run("-itsscale", 2, "-i", media["doubled.mkv"], "-c", "copy", doubled)
    for source, why in ((long, "mjpeg in avi shows only when it is decoded"), (doubled, "timestamp")):
        assert transcode(source, tmp_path / "whole").code == 0
        assert transcode(source, tmp_path / "split", "--segment", 1).code == 0
        whole, split = (manifest(tmp_path / folder)[source.stem] for folder in ("whole", "split"))
        assert whole["sha256"] == split["sha256"]
        assert any(text.startswith("not split: ") and why in text for text in split["warnings"])


def test_a_damaged_video_is_made_in_one_piece(long, tmp_path):
    data = bytearray(long.read_bytes())
    for place in range(len(data) // 2, len(data) // 2 + 3000, 7):
        data[place] ^= 0x55
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "torn.mp4").write_bytes(data)
    assert transcode(tmp_path / "src", tmp_path / "whole").code == 0
    assert transcode(tmp_path / "src", tmp_path / "split", "--segment", 1, "--jobs", 2).code == 0
    whole, split = (manifest(tmp_path / name)["torn"] for name in ("whole", "split"))
    assert whole["sha256"] == split["sha256"]
    assert any("is damaged" in text for text in split["warnings"] if text.startswith("not split: "))
    assert leftovers(tmp_path / "split") == []


SEGMENT_3 = "args[0].segment and args[0].segment.index == 3"


@pytest.mark.long
@pytest.mark.parametrize(
    ("breaks", "code"), in_turn([("os.kill(os.getpid(), signal.SIGSEGV)", 1), ("raise OSError(28, 'full')", 3)], 2)
)
def test_a_segment_that_fails_fails_its_video_alone_and_one_without_room_fails_none(breaks, code, long, tmp_path):
    src = tmp_path / "src"
    src.mkdir()
    shutil.copy(long, src / "long.mp4")
    make_clip(src / "short.mp4", 10)
    breaking = fault(*points.MAKE_SEGMENT, at=-1, code=f"if {SEGMENT_3}: {breaks}", only="child")
    ran = transcode(src, tmp_path / "out", "--segment", 1, "--jobs", 2, env=environment(tmp_path / "hook", breaking))
    assert ran.code == code
    rows = manifest(tmp_path / "out")
    if code == 1:
        assert rows["long"]["status"] == "failed" and "SIGSEGV" in rows["long"]["message"]
    else:
        assert "long" not in rows and "no room left in" in ran.err
    assert not (tmp_path / "out" / "long.mp4").exists()
    assert leftovers(tmp_path / "out") == []
    assert transcode(src, tmp_path / "out", "--segment", 1).code == 0
    assert {row["status"] for row in manifest(tmp_path / "out").values()} == {"ok"}


@pytest.mark.long
def test_a_segment_that_cannot_be_proven_leads_to_one_piece(long, tmp_path):
    breaking = fault(
        *points.MAKE_SEGMENT,
        at=-1,
        only="child",
        code=f"if {SEGMENT_3}: raise importlib.import_module('vidprep.formats.errors').VerifyError('other frames')",
    )
    env = environment(tmp_path / "hook", breaking)
    assert transcode(long, tmp_path / "split", "--segment", 1, "--jobs", 2, env=env).code == 0
    assert transcode(long, tmp_path / "whole").code == 0
    assert outputs(tmp_path / "split") == outputs(tmp_path / "whole")
    assert any("not split: verify: other frames" in text for text in manifest(tmp_path / "split")["long"]["warnings"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("damage", "said"),
    in_turn(
        [
            ("d = bytearray(p.read_bytes()); d[d.index(b'mdat') + 60] ^= 0x55; p.write_bytes(d)", "has other bytes"),
            ("p.write_bytes(p.read_bytes()[:3000])", "segment 2 does not read back"),
            ("p.unlink()", "segment 2 does not read back"),
        ],
        3,
    ),
)
def test_a_segment_that_is_damaged_before_it_is_joined_fails_its_video(damage, said, long, tmp_path):
    """Segments are not read between their encoding and their joining."""
    breaking = fault(*points.JOIN, only="child", code=f"from pathlib import Path; p = Path(args[3][1].path); {damage}")
    ran = transcode(long, tmp_path / "out", "--segment", 1, env=environment(tmp_path / "hook", breaking))
    row = manifest(tmp_path / "out")["long"]
    assert (ran.code, row["error"], said in row["message"]) == (1, "VerifyError", True), row["message"]
    assert leftovers(tmp_path / "out") == [] and outputs(tmp_path / "out") == {}
    assert transcode(long, tmp_path / "out", "--segment", 1).code == 0


@pytest.mark.long
@pytest.mark.parametrize("at", in_turn([1, 3, 6], 2))
def test_a_run_that_is_killed_between_segments_goes_on(at, long, tmp_path):
    killed = environment(tmp_path / "hook", fault(*points.JOB_QUEUE_TAKE_RESULT, at=at, only="parent"))
    assert transcode(long, tmp_path / "out", "--segment", 2, env=killed).code == -9
    assert transcode(long, tmp_path / "out", "--segment", 2).code == 0
    assert transcode(long, tmp_path / "one", "--segment", 2).code == 0
    assert outputs(tmp_path / "out") == outputs(tmp_path / "one")
    assert leftovers(tmp_path / "out") == []


def test_segments_go_as_soon_as_they_are_joined(long, tmp_path):
    code = "args[1] and print('LEFT', len(os.listdir(os.path.dirname(args[1].partial))), file=sys.stderr)"
    look = fault(*points.COMMIT_ROW, at=-1, code=code, only="parent")
    ran = transcode(long, tmp_path / "out", "--segment", 2, env=environment(tmp_path / "hook", look))
    assert ran.code == 0
    assert "LEFT 1\n" in ran.err


def test_a_split_video_that_is_done_is_not_made_again(long, tmp_path):
    assert transcode(long, tmp_path / "out", "--segment", 2).code == 0
    before = identities(tmp_path / "out")
    assert transcode(long, tmp_path / "out", "--segment", 2, "--json").summary["done_before"] == 1
    assert identities(tmp_path / "out") == before


def test_a_frame_that_is_shown_for_longer_than_a_segment(cli, tmp_path):
    """Segments that begin with the very first frame, or with the same one as the segment before."""
    source = tmp_path / "slow.mp4"
    still = ("-f", "lavfi", "-i", "testsrc=size=96x64:rate=10:duration=6")
    stretched = "setpts=PTS+4/TB*gt(N\\,0)+3/TB*gt(N\\,20)"
    cli.run(*still, "-vf", stretched, "-fps_mode", "passthrough", "-c:v", "libx264", "-g", "7", source)
    for rate in ((), ("--fps", 10)):
        for name, options in (("whole", ()), ("split", ("--segment", 1))):
            assert transcode(source, tmp_path / f"{name}{len(rate)}", "--gop", 5, *rate, *options).code == 0
        whole, split = (manifest(tmp_path / f"{name}{len(rate)}")["slow"] for name in ("whole", "split"))
        check_like(split, whole, db=0.5)  # the look-ahead of a segment ends with it
        assert not any("not split" in text for text in split["warnings"])
        ours, theirs = (decoded(tmp_path / f"{name}{len(rate)}" / "slow.mp4") for name in ("split", "whole"))
        assert max(np.square(a.astype(float) - b).mean() for a, b in zip(ours, theirs, strict=True)) < 60


def test_usage(long, tmp_path):
    for options, said in (
        (("--segment", 0.5), "give auto, off, or seconds from 1"),
        (("--segment", "nan"), "give auto, off, or seconds from 1"),
        (("--segment", 5, "--engine", "ffmpeg"), "--segment 5 needs --engine av"),
        (("--segment", 5, "--target-psnr", 40), "exclude each other"),
    ):
        ran = transcode(long, tmp_path / "out", *options)
        assert ran.code == 2
        assert said in ran.err


SEEKS = """
import sys
import numpy as np
path, joints = sys.argv[1], [int(n) for n in sys.argv[2].split(",")]
if sys.argv[3] == "torchcodec":
    from torchcodec.decoders import VideoDecoder
    reader = VideoDecoder(path, seek_mode="exact")
    get = lambda n: reader[n].numpy()
    count = len(reader)
else:
    import decord
    reader = decord.VideoReader(path)
    get = lambda n: reader[n].asnumpy()
    count = len(reader)
wanted = [n for joint in joints for n in range(joint - 2, joint + 3)]
alone = {n: get(n) for n in reversed(wanted)}
reader = type(reader)(path)
print(count, *(n for n, frame in ((n, get(n)) for n in range(count)) if n in alone and not np.array_equal(frame, alone[n])))
"""


@pytest.mark.long
@pytest.mark.parametrize(("codec", "peer"), pairs(["h264", "hevc", "vp9"], ["torchcodec", "decord"], each=1))
def test_other_readers_seek_across_joints(peer, codec, long, tmp_path):
    options = ("--codec", codec, "--container", "mp4", "--gop", 5, "--segment", 2)
    assert transcode(long, tmp_path / "out", *options).code == 0
    joints = ",".join(map(str, range(50, 250, 50)))
    told = with_peers(SEEKS, tmp_path / "out" / "long.mp4", joints, peer, needs=["torch", peer])
    assert told.split() == ["250"]
