"""Frames of finished destinations, copied: the same pictures by a foreign decoder, at the same times, with their rows."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from tests.helpers import command, environment, identities, leftovers, make_clips, manifest, outputs, transcode
from tests.numbered_pictures import constant, numbers_in, write
from tests.s3 import bucket
from tests.witness import Ffmpeg
from vidprep import VideoDataset
from vidprep.formats import open_store
from vidprep.formats.errors import DestinationError, SourceError, StoreError
from vidprep.formats.stores.gops import GopsFile
from vidprep.formats.video.packets import PacketIndex
from vidprep.transcode import select, validate
from vidprep.transcode.unit._copies import Part, parts_of

FORMATS = [
    *(("h264", "mp4"), ("h264", "mkv"), ("hevc", "mp4"), ("hevc", "mkv")),
    *(("vp9", "mp4"), ("vp9", "webm"), ("av1", "mp4"), ("av1", "mkv")),
]


def make_sources(folder: Path, cli: Ffmpeg) -> Path:
    rng, times, at = random.Random(8), [], Fraction(0)
    for _ in range(70):
        times.append(at)
        at += rng.choice((Fraction(1, 30), Fraction(1, 24), Fraction(1, 15)))
    write(folder / "constant.mp4", constant(61, 25))
    write(folder / "variable.mkv", times)
    write(folder / "late.mkv", [time + Fraction(7, 10) for time in constant(40, 30)])
    sound = ("-f", "lavfi", "-i", "testsrc2=size=96x64:rate=25:duration=3", "-f", "lavfi", "-i", "sine=500:duration=3")
    cli.run(*sound, "-pix_fmt", "yuv420p", "-c:a", "aac", folder / "sound.mp4")
    return folder


def pictures(cli: Ffmpeg, path: Path) -> list[tuple[Fraction, str]]:
    """Time and checksum of each decoded frame, by the ffmpeg program."""
    text = cli.run(
        "-i", path, "-map", "0:v:0", "-fps_mode", "passthrough", "-enc_time_base", "1:90000", "-f", "framemd5", "-"
    ).decode()
    base = Fraction(next(line for line in text.splitlines() if line.startswith("#tb")).split()[-1])
    cells = [line.split(",") for line in text.splitlines() if not line.startswith("#")]
    return [(int(each[2]) * base, each[5].strip()) for each in cells]


def write_trims(path: Path, store: Path, seed: int) -> Path:
    """Two random spans of each video, about a third of which begin at a keyframe."""
    rng, lines = random.Random(seed), ["id,start_frame,end_frame"]
    for id_, row in manifest(store).items():
        spans = set()
        while len(spans) < 3:
            begin, end = sorted(rng.sample(range(row["num_frames"] + 1), 2))
            begin -= begin % 8 if rng.random() < 0.3 else 0
            spans.add((begin, end))
        lines += [f"{id_},{begin},{end}" for begin, end in sorted(spans)]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("rate", [(), ("--fps", "24000/1001")])
@pytest.mark.parametrize(("codec", "container"), FORMATS)
def test_kept_frames_are_the_same(
    tmp_path: Path, cli: Ffmpeg, codec: str, container: str, rate: tuple[str, ...]
) -> None:
    raw, ready, out = make_sources(tmp_path / "raw", cli), tmp_path / "ready", tmp_path / "out"
    audio = "opus" if container == "webm" else "aac"
    options = ("--codec", codec, "--container", container, "--gop", "8", "--audio", audio)
    assert transcode(raw, ready, *options, *rate).code == 0
    before = identities(ready)
    table = write_trims(tmp_path / "trims.csv", ready, seed=FORMATS.index((codec, container)))
    assert transcode(ready, out, "--table", table, verb="select").code == 0
    assert identities(ready) == before
    known, shown, all_shown = manifest(ready), numbers_in(out), numbers_in(ready)
    for id_, row in manifest(out).items():
        begin, end, of = row["selected_start_frame"], row["selected_end_frame"], known[row["selected_id"]]
        due = pictures(cli, ready / of["file_name"])[begin:end]
        made = pictures(cli, out / row["file_name"])
        remark = next((w for w in row["warnings"] if "encoded again" in w), "0")
        assert sum(one[1] != other[1] for one, other in zip(made, due, strict=True)) <= int(remark.split()[0])
        tolerance = Fraction(1, 1000) if container in ("mkv", "webm") else Fraction(2, 90000)
        assert all(
            abs((one[0] - made[0][0]) - (other[0] - due[0][0])) <= tolerance
            for one, other in zip(made, due, strict=True)
        )
        if not id_.startswith("sound"):
            assert shown[id_] == all_shown[row["selected_id"]][begin:end]
        assert row["source_frames"] == (of["source_frames"] or list(range(of["num_frames"])))[begin:end]
        assert row["psnr_y_db"] is None or (begin, end) == (0, of["num_frames"])
    assert not validate(out).faults
    one, other = open_store(ready), open_store(out)
    for id_, row in manifest(out).items():
        inside = slice(row["selected_start_frame"], row["selected_end_frame"])
        times = [float(time) for time in one[row["selected_id"]].source_timestamps][inside]
        assert [float(time) for time in other[id_].source_timestamps] == pytest.approx(times, abs=0.0011)
    for path in out.glob(f"sound*.{container}"):
        ends = [end_of(path, kind) for kind in ("video", "audio")]
        assert abs(ends[0] - ends[1]) < 0.06, path


def end_of(path: Path, kind: str) -> float:
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(**{kind: 0}) if packet.size and packet.pts is not None]
        return max(float((packet.pts + (packet.duration or 0)) * packet.time_base) for packet in packets)


@pytest.mark.parametrize("form", ["burst", "gulp", "webdataset", "tensor"])
def test_stored_frames_are_copied(tmp_path: Path, form: str) -> None:
    raw = make_clips(tmp_path / "raw", 4, 20)
    assert (
        transcode(raw, tmp_path / "frames", "--format", form, "--size", "32x24", "--fps", "20", verb="burst").code == 0
    )
    table = write_trims(tmp_path / "trims.csv", tmp_path / "frames", seed=5)
    assert transcode(tmp_path / "frames", tmp_path / "out", "--table", table, verb="select").code == 0
    one, other = open_store(tmp_path / "frames"), open_store(tmp_path / "out")
    for id_, row in manifest(tmp_path / "out").items():
        inside = slice(row["selected_start_frame"], row["selected_end_frame"])
        coded, kept = one.stored_jpegs(row["selected_id"]), other.stored_jpegs(id_)
        if coded is not None and kept is not None:
            assert [bytes(each) for each in kept] == [bytes(each) for each in coded][inside]
        assert np.array_equal(other[id_].frames(), np.asarray(one[row["selected_id"]].frames())[inside])
        assert [*other[id_].source_frames] == [*one[row["selected_id"]].source_frames[inside]]
    assert not validate(tmp_path / "out").faults


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two destinations, whose videos have keyframes at 0, 8 and 16, with labels and splits; and a failed one."""
    root = tmp_path_factory.mktemp("select")
    for name in ("a", "b"):
        raw = make_clips(root / name / name, 3, 21)
        (raw / "broken.mp4").write_bytes(b"no video")
        options = ("--gop", "8", "--label-from-folder", "--split-by", "train=0.5,val=0.5")
        assert transcode(root / name, root / f"ready_{name}", *options).code == 1
    return root


def trims(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(("id,start_frame,end_frame,what", *rows)))
    return path


def test_whole_videos_by_a_condition(ready: Path, tmp_path: Path) -> None:
    ran = transcode(ready / "ready_a", tmp_path / "out", "--keep", "num_frames > 21", verb="select")
    assert ran.code == 0 and "2 videos not selected" in ran.err, ran.err
    known, made = manifest(ready / "ready_a"), manifest(tmp_path / "out")
    assert {*made} == {"a/c01", "a/c02"}
    for id_, row in made.items():
        assert row["psnr_y_db"] == known[id_]["psnr_y_db"] and row["labels"] == known[id_]["labels"]
        assert row["source"] == known[id_]["source"] and row["selected_id"] == id_
        assert row["selected_from"] == str(ready / "ready_a")
    kept = outputs(ready / "ready_a")
    assert all(kept[name] == data for name, data in outputs(tmp_path / "out").items() if name.endswith(".mp4"))
    before = identities(tmp_path / "out")
    assert (
        "2 done before"
        in transcode(ready / "ready_a", tmp_path / "out", "--keep", "num_frames > 21", verb="select").err
    )
    assert identities(tmp_path / "out") == before
    assert len(VideoDataset(tmp_path / "out", 4)) > 0


def test_what_a_run_would_make_is_done(ready: Path, tmp_path: Path) -> None:
    select(ready / "ready_a", tmp_path / "out")
    ran = transcode(
        ready / "a", tmp_path / "out", "--gop", "8", "--label-from-folder", "--split-by", "train=0.5,val=0.5"
    )
    assert "0 ok, 1 failed, 3 done before" in ran.err
    assert not validate(tmp_path / "out", source=ready / "a").faults


def test_several_become_one(ready: Path, tmp_path: Path) -> None:
    assert select([ready / "ready_a", ready / "ready_b"], tmp_path / "out").ok == 6
    assert {*manifest(tmp_path / "out")} == {f"{name}/c{n:02d}" for name in "ab" for n in range(3)}
    assert {row["labels"]["label"] for row in manifest(tmp_path / "out").values()} == {"a", "b"}
    assert not validate(tmp_path / "out").faults


def test_rows_of_the_table_are_videos_with_labels(ready: Path, tmp_path: Path) -> None:
    table = trims(tmp_path / "t.csv", "a/c00,3,13,grasp", "a/c00,8,16,lift", "a/c01,,4,")
    assert select(ready / "ready_a", tmp_path / "out", table=table).ok == 3
    rows = manifest(tmp_path / "out")
    assert {id_: (row["num_frames"], row["labels"]["what"]) for id_, row in rows.items()} == {
        "a/c00_f00000003_f00000013": (10, "grasp"),
        "a/c00_f00000008_f00000016": (8, "lift"),
        "a/c01_f00000000_f00000004": (4, None),
    }
    assert {row["labels"]["label"] for row in rows.values()} == {"a"}
    assert "encoded_again" not in rows["a/c00_f00000008_f00000016"]["warning_codes"]
    with pytest.raises(StoreError, match="has frames that `select` took"):
        validate(tmp_path / "out", source=ready / "a")


def test_keyframes_encode_nothing(ready: Path, tmp_path: Path, cli: Ffmpeg) -> None:
    table = trims(tmp_path / "t.csv", "a/c00,3,13,", "a/c01,17,18,", "a/c02,9,10,")
    assert transcode(ready / "ready_a", tmp_path / "out", "--table", table, "--on-keyframes", verb="select").code == 0
    rows = manifest(tmp_path / "out")
    spans = {row["selected_id"]: (row["selected_start_frame"], row["selected_end_frame"]) for row in rows.values()}
    assert spans == {"a/c00": (0, 16), "a/c01": (16, 22), "a/c02": (8, 16)}
    for row in rows.values():
        assert "encoded_again" not in row["warning_codes"]
        begin, end = spans[row["selected_id"]]
        due = pictures(cli, ready / "ready_a" / f"{row['selected_id']}.mp4")[begin:end]
        assert [each for _, each in pictures(cli, tmp_path / "out" / row["file_name"])] == [each for _, each in due]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (["a/c00,3,99,"], r"row 1: a/c00 has 21 frames, not \[3, 99\)"),
        (["a/c00,3,4,", "a/x,0,1,"], "row 2: there is no video a/x"),
        (["a/c00,5,5,"], "start_frame 5 is not before end_frame 5"),
        (["a/c00,1,3,", "a/c00,1,3,"], "rows 1 and 2 are the same frames"),
        (["a/c00,x,3,"], "give the number of a frame"),
    ],
)
def test_frames_that_do_not_exist(ready: Path, tmp_path: Path, rows: Sequence[str], why: str) -> None:
    with pytest.raises(SourceError, match=why):
        select(ready / "ready_a", tmp_path / "out", table=trims(tmp_path / "t.csv", *rows))
    assert not (tmp_path / "out").exists()


def test_what_is_refused(ready: Path, tmp_path: Path) -> None:
    assert transcode(ready / "a", tmp_path / "other", "--crf", "30", "--gop", "4", "--short-side", "32").code == 1
    with pytest.raises(DestinationError, match=r"other settings than .*: --crf 20 -> 30; --gop 8 -> 4; --short-side"):
        select([ready / "ready_a", tmp_path / "other"], tmp_path / "out")
    with pytest.raises(SourceError, match="3 ids in more than one destination, such as a/c00"):
        select([ready / "ready_a", ready / "ready_a"], tmp_path / "out")
    for out in (ready / "ready_a", ready / "ready_a" / "sub", ready):
        with pytest.raises(DestinationError, match="overlaps with"):
            select(ready / "ready_a", out)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    with pytest.raises(DestinationError, match="exists, and was not made by `select`"):
        select(ready / "ready_a", tmp_path / "full")
    select(ready / "ready_a", tmp_path / "out")
    with pytest.raises(DestinationError, match="holds 1 video that this selection does not give, such as a/c00"):
        select(ready / "ready_a", tmp_path / "out", keep="num_frames > 21")
    assert select(ready / "ready_a", tmp_path / "out", keep="num_frames > 21", overwrite=True).ok == 2
    assert {*manifest(tmp_path / "out")} == {"a/c01", "a/c02"}
    with pytest.raises(StoreError, match="was not made by vidprep"):
        select(ready / "a", tmp_path / "x")


@pytest.mark.long
def test_killed_again_and_again_it_ends_as_if_it_was_not(ready: Path, tmp_path: Path) -> None:
    rng = random.Random(4)
    rows = [f"a/c{number:02d},{begin},{begin + 9}," for number in range(3) for begin in range(12)]
    options = ("--table", trims(tmp_path / "t.csv", *rows), "--jobs", 1)
    before = identities(ready / "ready_a")
    started = time.monotonic()
    assert transcode(ready / "ready_a", tmp_path / "whole", *options, env=environment(), verb="select").code == 0
    seconds = time.monotonic() - started
    for _ in range(8):
        run = subprocess.Popen(
            command(ready / "ready_a", tmp_path / "out", *options, verb="select"), stderr=subprocess.DEVNULL
        )
        time.sleep(rng.uniform(0.2, 1.0) * seconds)
        run.kill()
        run.wait()
    assert transcode(ready / "ready_a", tmp_path / "out", *options, verb="select").code == 0
    assert outputs(tmp_path / "out").keys() == outputs(tmp_path / "whole").keys()
    for name, data in outputs(tmp_path / "whole").items():
        assert name == "gops.parquet" or outputs(tmp_path / "out")[name] == data, name
    assert not leftovers(tmp_path / "out") and not validate(tmp_path / "out").faults
    assert identities(ready / "ready_a") == before


@pytest.mark.long
def test_behind_urls(ready: Path, tmp_path: Path) -> None:
    table = trims(tmp_path / "t.csv", "a/c00,3,13,", "a/c01,8,16,")
    ids = ("a/c00_f00000003_f00000013", "a/c01_f00000008_f00000016")
    again = trims(tmp_path / "u.csv", *(f"{id_},2,8," for id_ in ids))
    with bucket(tmp_path) as s3:
        url, env = f"s3://{s3.name}/clips", {**environment(), **s3.environment}
        for verb, *arguments in (
            ("select", ready / "ready_a", url, "--table", table),
            ("validate", url),
            ("select", url, tmp_path / "back", "--table", again),
            ("select", url, f"s3://{s3.name}/again", "--keep", "num_frames > 8"),
            ("validate", f"s3://{s3.name}/again"),
        ):
            ran = transcode(*arguments, env=env, verb=verb)
            assert ran.code == 0, (verb, ran.err)
    assert {row["num_frames"] for row in manifest(tmp_path / "back").values()} == {6}
    assert not validate(tmp_path / "back").faults


def test_damaged_bytes_are_not_copied(ready: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    assert transcode(ready / "a", made, "--gop", "8").code == 1
    data = bytearray((made / "a/c00.mp4").read_bytes())
    data[len(data) // 2] ^= 1
    (made / "a/c00.mp4").write_bytes(data)
    assert select(made, tmp_path / "whole").failed == 1
    rows = [f"a/c00,{begin},{end}," for begin, end in ((0, 16), (8, 21), (1, 7), (9, 12), (10, 15), (1, 12), (17, 20))]
    ran = transcode(made, tmp_path / "cut", "--table", trims(tmp_path / "t.csv", *rows), verb="select")
    failed = {
        (row["selected_start_frame"], row["selected_end_frame"])
        for row in manifest(tmp_path / "cut").values()
        if row["status"] == "failed"
    }
    whole = GopsFile(made).entry("a/c00").packets
    assert whole is not None
    at = len(data) // 2
    bad = next(n for n in range(3) if whole.span(n).offset <= at < whole.span(n).offset + whole.span(n).size)
    first, end = whole.keyframes[bad], whole.gop_end(bad)
    assert failed == {
        (one, other)
        for one, other in ((0, 16), (8, 21), (1, 7), (9, 12), (10, 15), (1, 12), (17, 20))
        if one < end and other > first
    }
    assert ran.code == 1 and "its bytes are damaged" in ran.err
    # The same command tries them again when the video is whole.
    data[at] ^= 1
    (made / "a/c00.mp4").write_bytes(data)
    assert select(made, tmp_path / "cut", table=tmp_path / "t.csv").ok == len(failed)
    assert not validate(tmp_path / "cut").faults


@pytest.mark.parametrize("gop", [1, 2, 3, 4])
def test_short_gops(tmp_path: Path, cli: Ffmpeg, gop: int) -> None:
    write(tmp_path / "raw" / "a.mp4", constant(16, 25))
    assert transcode(tmp_path / "raw", tmp_path / "ready", "--gop", gop).code == 0
    spans = [(begin, end) for begin in range(6) for end in range(begin + 1, 16)]
    table = trims(tmp_path / "t.csv", *(f"a,{begin},{end}," for begin, end in spans))
    assert select(tmp_path / "ready", tmp_path / "out", table=table).ok == len(spans)
    assert not validate(tmp_path / "out").faults
    for id_, shown in numbers_in(tmp_path / "out").items():
        row = manifest(tmp_path / "out")[id_]
        assert shown == [*range(row["selected_start_frame"], row["selected_end_frame"])]


def test_a_searched_value_is_that_of_the_destination(ready: Path, tmp_path: Path) -> None:
    assert (
        transcode(ready / "a", tmp_path / "made", "--gop", "8", "--target-psnr", "40", "--exclude", "*broken*").code
        == 0
    )
    ran = transcode(tmp_path / "made", tmp_path / "out", verb="select")
    assert ran.code == 0 and "trying" not in ran.err
    assert not validate(tmp_path / "out").faults
    assert {row["crf"] for row in manifest(tmp_path / "out").values()} == {
        row["crf"] for row in manifest(tmp_path / "made").values()
    }


def test_a_selection_is_replaced_only_when_that_is_asked_for(ready: Path, tmp_path: Path) -> None:
    table = trims(tmp_path / "t.csv", "a/c00,3,13,", "a/c01,2,9,")
    select(ready / "ready_a", tmp_path / "out", table=table)
    with pytest.raises(DestinationError, match="that this selection does not give"):
        select(ready / "ready_a", tmp_path / "out", table=table, on_keyframes=True)
    kept = {name: data for name, data in outputs(tmp_path / "out").items() if name.endswith(".mp4")}
    assert transcode(ready / "a", tmp_path / "out", "--gop", "8").code == 1
    assert kept.items() <= outputs(tmp_path / "out").items()


def test_an_empty_cell_keeps_a_label(ready: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,start_frame,end_frame,label\na/c00,0,5,\na/c01,0,5,new\n")
    select(ready / "ready_a", tmp_path / "out", table=tmp_path / "t.csv")
    assert [row["labels"]["label"] for row in manifest(tmp_path / "out").values()] == ["a", "new"]


def test_nothing_is_selected(ready: Path, tmp_path: Path) -> None:
    for keep in ("num_frames > 1000", "split == 'nope'"):
        with pytest.raises(SourceError, match="nothing is selected"):
            select(ready / "ready_a", tmp_path / "out", keep=keep)
    with pytest.raises(SourceError, match="nothing is selected"):
        select(ready / "ready_a", tmp_path / "out", table=trims(tmp_path / "t.csv"))


def index_of(frames: Sequence[int], keyframes: Sequence[int]) -> PacketIndex:
    count = len(frames)
    return PacketIndex(keyframes, range(count), [1] * count, frames, [True] * count, [0] * len(keyframes))


@pytest.mark.parametrize(
    ("begin", "end", "parts"),
    [
        (0, 12, [Part(0, 12, True)]),
        (4, 8, [Part(4, 8, True)]),
        (2, 12, [Part(2, 4, False), Part(4, 12, True)]),
        (3, 12, [Part(3, 8, False), Part(8, 12, True)]),  # no keyframe alone before another one
        (3, 8, [Part(3, 8, False)]),
        (3, 6, [Part(3, 6, False)]),
        (3, 4, [Part(3, 4, False)]),
        (4, 6, [Part(4, 6, False)]),
        (4, 5, [Part(4, 5, True)]),
        (0, 7, [Part(0, 7, True)]),
        (5, 7, [Part(5, 7, False)]),
        (2, 6, [Part(2, 4, False), Part(4, 6, False)]),  # a keyframe alone is not copied before another one
        (0, 10, [Part(0, 8, True), Part(8, 10, False)]),
        (0, 3, [Part(0, 3, True)]),
    ],
)
def test_parts(begin: int, end: int, parts: list[Part]) -> None:
    index = index_of([0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11], [0, 4, 8])
    assert parts_of(index, begin, end, "h264") == parts


@pytest.mark.parametrize(
    ("begin", "end", "parts"),
    [
        (0, 7, [Part(0, 5, True), Part(5, 7, False)]),
        (2, 16, [Part(2, 8, False), Part(8, 16, True)]),
        (0, 15, [Part(0, 13, True), Part(13, 15, False)]),
        (0, 3, [Part(0, 1, True), Part(1, 3, False)]),
    ],
)
def test_parts_of_gops_of_eight(begin: int, end: int, parts: list[Part]) -> None:
    """Of which the first frames that need only each other are 1, 5 and 8."""
    index = index_of([0, 4, 2, 1, 3, 7, 6, 5, 8, 12, 10, 9, 11, 15, 14, 13], [0, 8])
    assert parts_of(index, begin, end, "hevc") == parts
