"""`vidprep pack`: bytes that can be copied are copied, and what others read holds the frames and labels of the store."""

from __future__ import annotations

import csv
import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from shutil import copytree, ignore_patterns

import av
import numpy as np
import pytest
import simplejpeg

from tests.helpers import Ran, make_clips, manifest, transcode, with_peers
from tests.sampling import in_turn
from vidprep.formats import open_store

burst = partial(transcode, verb="burst")
pack = partial(transcode, verb="pack")
JPEG_STORES = ("burst", "gulp", "webdataset")
MADE = {
    "burst": (burst, []),
    "gulp": (burst, ["--format", "gulp"]),
    "webdataset": (burst, ["--format", "webdataset"]),
    "tensor": (burst, ["--format", "tensor"]),
    "h264": (transcode, ["--gop", 4]),
    "vp9": (transcode, ["--codec", "vp9", "--gop", 4]),
    "av1": (transcode, ["--codec", "av1", "--gop", 4, "--container", "webm"]),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    for part in ("jump", "run"):
        make_clips(root / "src" / part, 2, 11, size=(96, 64))

    def of(kind: str) -> Path:
        folder = root / kind
        if not folder.exists():
            run, options = MADE[kind]
            assert run(root / "src", folder, *options, "--label-from-folder").code == 0
        return folder

    return of


def check(ran: Ran) -> None:
    assert ran.code == 0, ran.err
    assert "4 videos packed" in ran.err


@pytest.mark.parametrize("kind", ["h264", "burst"])
@pytest.mark.parametrize("to", ["webdataset", "burst", "gulp"])
def test_as_many_shards_as_asked(kind, to, made, tmp_path):
    before = open_store(made(kind))
    for count, found in ((1, 1), (2, 2), (3, 3), (4, 4), (9, 4)):
        out = tmp_path / f"out{count}"
        check(pack(made(kind), out, "--to", to, "--shards", count))
        shards = [path for path in out.iterdir() if path.suffix in (".tar", ".bin", ".gulp")]
        assert len(shards) == found
        after = open_store(out)
        assert list(after.ids) == list(before.ids)
        for id_ in after.ids:
            assert len(after[id_].frames()) == len(before[id_])
    ran = pack(made(kind), tmp_path / "frames", "--to", "frames", "--shards", 2)
    assert ran.code == 2
    assert "frames has no shards" in ran.err


OF_WEBDATASET = """
import sys, warnings
from torch.utils.data import DataLoader
import webdataset as wds
shards = sorted(__import__("pathlib").Path(sys.argv[1]).glob("*.tar"))
dataset = wds.WebDataset([str(each) for each in shards], shardshuffle=False)
print(*sorted(sample["__key__"] for sample in DataLoader(dataset, num_workers=2, batch_size=None)))
"""


@pytest.mark.long
def test_two_workers_of_webdataset_read_two_shards(made, tmp_path):
    check(pack(made("h264"), tmp_path / "out", "--to", "webdataset", "--shards", 2))
    assert with_peers(OF_WEBDATASET, tmp_path / "out", needs=["torch", "webdataset"]).split() == list(
        open_store(made("h264")).ids
    )


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("to", ["burst", "gulp", "webdataset", "tensor"])
def test_a_store_made_of_another_has_its_frames_labels_and_times(kind, to, made, tmp_path):
    out = tmp_path / "out"
    check(pack(made(kind), out, "--to", to, "--quality", 97, "--subsampling", "444"))
    before, after = open_store(made(kind)), open_store(out)
    assert list(after.ids) == list(before.ids)
    copied = (
        to == "tensor"
        or (kind in JPEG_STORES and to in JPEG_STORES)
        or (to == "webdataset" and kind in ("h264", "vp9", "av1"))
    )
    for id_ in before.ids:
        assert after.labels(id_) == before.labels(id_)
        assert np.allclose(after[id_].timestamps, before[id_].timestamps, atol=1e-3)
        ours, theirs = after[id_].frames(), before[id_].frames()
        if copied:
            assert np.array_equal(ours, theirs)
        else:
            assert np.abs(ours.astype(int) - theirs).mean() < 4
        if kind in JPEG_STORES and to in JPEG_STORES:
            assert list(map(bytes, after.stored_jpegs(id_))) == list(map(bytes, before.stored_jpegs(id_)))
    if not (to == "webdataset" and copied and kind not in JPEG_STORES):
        ran = transcode(out, verb="validate")
        assert ran.code == 0, ran.out


def test_packing_twice_gives_the_same_bytes(made, tmp_path):
    for to in ("burst", "gulp", "webdataset", "tensor"):
        folders = [tmp_path / f"{to}{number}" for number in (1, 2)]
        for folder in folders:
            check(pack(made("burst"), folder, "--to", to))
        first, second = ({p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} for folder in folders)
        assert first.keys() == second.keys()
        assert [name for name in first if first[name] != second[name]] == []


def test_a_folder_of_pictures_for_each_video(made, tmp_path):
    check(pack(made("gulp"), tmp_path / "out", "--to", "frames"))
    store = open_store(made("gulp"))
    for id_ in store.ids:
        files = sorted((tmp_path / "out" / id_).iterdir())
        assert [f.name for f in files] == [f"img_{n:05d}.jpg" for n in range(1, len(store[id_]) + 1)]
        assert [f.read_bytes() for f in files] == list(map(bytes, store.stored_jpegs(id_)))
        assert np.array_equal(simplejpeg.decode_jpeg(files[3].read_bytes()), store[id_].frames([3])[0])


@pytest.mark.parametrize("kind", ["h264", "vp9", "av1"])
def test_a_folder_for_hugging_face_has_its_videos_in_mp4_and_its_labels(kind, made, tmp_path):
    out = tmp_path / "out"
    check(pack(made(kind), out, "--to", "hf"))
    with (out / "metadata.csv").open() as file:
        rows = list(csv.DictReader(file))
    store = open_store(made(kind), fast=True)  # as PyAV converts
    assert [row["file_name"] for row in rows] == [f"{id_}.mp4" for id_ in store.ids]
    assert [row["label"] for row in rows] == [id_.split("/")[0] for id_ in store.ids]
    for row, id_ in zip(rows, store.ids, strict=True):
        with av.open(out / row["file_name"]) as container:
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert np.array_equal(frames, store[id_].frames())


def test_frame_mappings_name_every_frame_in_the_ticks_of_the_stream(made, tmp_path):
    check(pack(made("h264"), tmp_path / "out", "--to", "torchcodec"))
    store = open_store(made("h264"))
    for id_ in store.ids:
        frames = json.loads((tmp_path / "out" / f"{id_}.json").read_text())["frames"]
        with av.open(made("h264") / f"{id_}.mp4") as container:
            decoded = [(frame.pts, int(frame.key_frame)) for frame in container.decode(video=0)]
        assert [(frame["pts"], frame["key_frame"]) for frame in frames] == decoded
        assert all(a["pts"] + a["duration"] == b["pts"] for a, b in pairwise(frames))


MAPPED = """
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns
from torchcodec.decoders import VideoDecoder
videos, mappings = map(Path, sys.argv[1:])
for path in sorted(mappings.rglob("*.json")):
    video = str(videos / path.relative_to(mappings).with_suffix(".mp4"))
    mapped = VideoDecoder(video, custom_frame_mappings=path.read_text())
    exact = VideoDecoder(video, seek_mode="exact")
    wanted = [*range(len(exact))[::-3], 0, -1]
    same = len(mapped) == len(exact) and mapped.get_frames_at(wanted).data.equal(exact.get_frames_at(wanted).data)
    print(path.stem, "same" if same else "other")
"""


@pytest.mark.long
@pytest.mark.parametrize("options", in_turn([["--fps", "7", "--codec", "hevc", "--size", "96x64"], []], 2))
def test_torchcodec_reads_the_frames_of_its_own_exact_mode_by_our_mappings(options, made, tmp_path):
    store = tmp_path / "store" if options else made("h264")
    if options:
        sources = copytree(made("h264"), tmp_path / "sources", ignore=ignore_patterns(".vidprep"))
        assert transcode(sources, store, *options).code == 0
    check(pack(store, tmp_path / "out", "--to", "torchcodec"))
    told = with_peers(MAPPED, store, tmp_path / "out", needs=["torch", "torchcodec"]).splitlines()
    assert [line.split()[1] for line in told] == ["same"] * 4


LOADED = """
import sys
from datasets import Video, load_dataset
rows = load_dataset("videofolder", data_dir=sys.argv[1], cache_dir=sys.argv[2], split="train").cast_column("video", Video(decode=False))
for row in rows:
    print(row["video"]["path"].rpartition("/")[2], row["label"])
decoded = load_dataset("videofolder", data_dir=sys.argv[1], cache_dir=sys.argv[2], split="train")
print(sum(len(row["video"]) for row in decoded))
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", in_turn(["h264", "vp9"], 2))
def test_hugging_face_loads_the_folder_with_its_labels(kind, made, tmp_path):
    check(pack(made(kind), tmp_path / "out", "--to", "hf"))
    store = open_store(made(kind))
    *rows, frames = with_peers(
        LOADED, tmp_path / "out", tmp_path / "cache", needs=["datasets", "torch", "torchcodec"]
    ).splitlines()
    assert sorted(rows) == sorted(f"{id_.split('/')[1]}.mp4 {id_.split('/')[0]}" for id_ in store.ids)
    assert int(frames) == sum(len(store[id_]) for id_ in store.ids)


def test_lists_for_dali_and_mmaction(made, tmp_path):
    check(pack(made("h264"), tmp_path / "dali", "--to", "dali"))
    store = open_store(made("h264"))
    lines = [line.rsplit(" ", 1) for line in (tmp_path / "dali" / "file_list.txt").read_text().splitlines()]
    assert [Path(path) for path, _ in lines] == [made("h264") / f"{id_}.mp4" for id_ in store.ids]
    assert (tmp_path / "dali" / "labels.txt").read_text() == "jump\nrun\n"
    assert [label for _, label in lines] == ["0", "0", "1", "1"]
    check(pack(made("h264"), tmp_path / "videos", "--to", "mmaction"))
    assert (tmp_path / "videos" / "videos.txt").read_text() == (tmp_path / "dali" / "file_list.txt").read_text()
    check(pack(made("burst"), tmp_path / "raw", "--to", "mmaction"))
    for line in (tmp_path / "raw" / "rawframes.txt").read_text().splitlines():
        folder, count, label = line.split()
        assert len(list((tmp_path / "raw" / folder).iterdir())) == int(count)
        assert label == {"jump": "0", "run": "1"}[folder.split("/")[0]]


def test_impossible_packing_is_refused_and_writes_nothing(made, tmp_path):
    out = tmp_path / "out"
    for store, to, said in (
        (made("burst"), "hf", "encoded videos"),
        (made("tensor"), "torchcodec", "encoded videos"),
        (tmp_path, "burst", "is not a store"),
        (tmp_path / "none", "frames", "not a folder"),
    ):
        ran = pack(store, out, "--to", to)
        assert ran.code == 2
        assert said in ran.err
        assert not out.exists()
    out.mkdir()
    (out / "mine").touch()
    assert "not empty" in pack(made("burst"), out, "--to", "gulp").err
    assert [p.name for p in out.iterdir()] == ["mine"]


@pytest.mark.parametrize("to", ["frames", "burst", "webdataset", "mmaction"])
@pytest.mark.parametrize("id_", ["../evil", "a/../../evil", "{root}/evil", "a//b", "."])
def test_ids_that_lead_out_of_the_folder_are_refused_and_nothing_is_written(id_, to, tmp_path):
    """A store of other people's may call its videos anything, and `frames` makes folders of that."""
    id_ = id_.format(root=tmp_path)
    jpeg = bytes(simplejpeg.encode_jpeg(np.zeros((16, 16, 3), np.uint8)))
    (tmp_path / "gulp").mkdir()
    (tmp_path / "gulp" / "data_0.gulp").write_bytes(jpeg)
    entry = {"frame_info": [[0, 0, len(jpeg)]], "meta_data": [{"label": "x"}]}
    (tmp_path / "gulp" / "meta_0.gmeta").write_text(json.dumps({"good": entry, id_: entry}))
    before = sorted(tmp_path.rglob("*"))
    ran = pack(tmp_path / "gulp", tmp_path / "deep" / "out", "--to", to)
    assert ran.code == 2
    assert repr(id_) in ran.err and "good" not in ran.err
    assert sorted(tmp_path.rglob("*")) == before


def test_labels_on_frames_and_seconds_follow_a_change_of_rate_and_cuts(tmp_path):
    """By hand: the source has 25 frames a second; cuts and rates pick from it what ffmpeg's fps filter would."""
    src = make_clips(tmp_path / "src", 1, 50)
    (tmp_path / "cuts.csv").write_text("path,id,start,end\nsrc/c00.mp4,whole,,\nsrc/c00.mp4,late,1.0,2.0\n")
    dst = tmp_path / "dst"
    assert burst(tmp_path / "cuts.csv", dst, "--fps", 5).code == 0
    (tmp_path / "labels.csv").write_text(
        "path,id,start_frame,end_frame,start,end,what\n"
        "src/c00.mp4,,0,50,,,all\n"
        "src/c00.mp4,,,,0.5,1.5,middle\n"
        ",late,30,35,,,few\n"
        ",whole,1,2,,,between\n"
        ",late,,,0,0.5,before\n"
    )
    ran = pack(dst, tmp_path / "out", "--to", "frames", "--labels", tmp_path / "labels.csv")
    assert ran.code == 0, ran.err
    assert "5 labels" in ran.err
    with (tmp_path / "out" / "labels.csv").open() as file:
        rows = [
            (row["what"], row["id"], int(row["first_frame"]), int(row["end_frame"])) for row in csv.DictReader(file)
        ]
    shown = {row["id"]: row["source_frames"] for row in manifest(dst).values()}
    assert shown == {"whole": list(range(0, 50, 5)), "late": list(range(25, 50, 5))}
    few = [number for number, frame in enumerate(shown["late"]) if 30 <= frame < 35]
    assert rows == [
        ("all", "late", 0, 5),
        ("all", "whole", 0, 10),
        ("middle", "late", 0, 3),
        ("middle", "whole", 3, 8),
        ("few", "late", few[0], few[-1] + 1),
    ]
    assert "2 lie where no output has a frame" in ran.err
    for text, said in (
        ("id,start_frame\nnobody,1\n", "nobody"),
        ("id,start_frame\nlate,x\n", "start_frame"),
        ("what\n1\n", "does not say where its labels hold"),
        ("id,time\nlate,1.0\n", "does not say where its labels hold"),
    ):
        (tmp_path / "bad.csv").write_text(text)
        bad = pack(dst, tmp_path / f"out {said}", "--to", "gulp", "--labels", tmp_path / "bad.csv")
        assert bad.code == 2
        assert said in bad.err
    assert src.exists()


def test_labels_in_seconds_find_their_frames_in_files_whose_times_are_whole_milliseconds(cli, tmp_path):
    """30 frames a second: frame 10 is shown at 1/3 s, which Matroska rounds to 0.333, before the 0.333333 of a table."""
    make_clips(tmp_path / "src", 1, 30, rate=30)
    times = [float(frame.time) for frame in cli.frames(tmp_path / "src" / "c00.mp4")]
    assert transcode(tmp_path / "src", tmp_path / "dst", "--container", "mkv").code == 0
    ends = [*times[1:], times[-1] + 1 / 30]
    lines = [f"c00,{start:.6f},{end:.6f},{n}\n" for n, (start, end) in enumerate(zip(times, ends, strict=True))]
    (tmp_path / "labels.csv").write_text("id,start,end,frame\n" + "".join(lines))
    ran = pack(tmp_path / "dst", tmp_path / "out", "--to", "webdataset", "--labels", tmp_path / "labels.csv")
    assert ran.code == 0, ran.err
    with (tmp_path / "out" / "labels.csv").open() as file:
        found = [(int(row["frame"]), int(row["first_frame"]), int(row["end_frame"])) for row in csv.DictReader(file)]
    assert found == [(n, n, n + 1) for n in range(len(times))]
