"""`pack --to clips` and `--to list`: what trainers of video generators and pretraining recipes read, by their own ways."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import time
from pathlib import Path

import av
import numpy as np
import pandas as pd
import pytest

from tests.helpers import make_clips, transcode
from tests.witness import Ffmpeg
from vidprep.formats import open_store
from vidprep.formats.errors import DestinationError, StoreError
from vidprep.transcode import pack, transcode as encode


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trainers")
    raw = make_clips(root / "raw", 4, 21)
    for number in (0, 1, 3):
        (raw / f"c0{number}.txt").write_text(f"caption {number}, \u00fc")
    (raw / "c02.mp4").write_bytes(b"no video")
    assert encode(raw, root / "ready", captions=True, frames="8n+1", fps=16).ok == 3
    return root


def test_clips_and_their_captions(made: Path, tmp_path: Path) -> None:
    assert pack(made / "ready", tmp_path / "out", to="clips").num_videos == 3
    names = sorted(path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith("."))
    assert names == sorted(
        [f"c0{n}.{kind}" for n in (0, 1, 3) for kind in ("mp4", "txt")] + ["metadata.csv", "metadata.jsonl"]
    )
    for number in (0, 1, 3):
        assert (tmp_path / "out" / f"c0{number}.txt").read_text().strip() == f"caption {number}, \u00fc"
        copied, own = (
            hashlib.sha256((folder / f"c0{number}.mp4").read_bytes()).digest()
            for folder in (tmp_path / "out", made / "ready")
        )
        assert copied == own
    lines = [json.loads(line) for line in (tmp_path / "out/metadata.jsonl").read_text().splitlines()]
    with (tmp_path / "out/metadata.csv").open() as file:
        rows = list(csv.DictReader(file))
    for line, row in zip(lines, rows, strict=True):
        with av.open(str(tmp_path / "out" / line["file_name"])) as container:
            frames = list(container.decode(video=0))
        assert (line["frames"], line["width"], line["height"]) == (len(frames), frames[0].width, frames[0].height)
        assert (line["fps"], line["video"], line["text"]) == (16, line["file_name"], line["caption"])
        assert line["caption"] == f"caption {line['file_name'][2]}, \u00fc"
        assert {name: str(value) for name, value in line.items()} == row


def test_a_folder_for_each_bucket(made: Path, tmp_path: Path) -> None:
    pack(made / "ready", tmp_path / "out", to="clips", by_bucket=True)
    store = open_store(made / "ready")
    for id_ in store.ids:
        video = store[id_]
        folder = tmp_path / "out" / f"{video.width}x{video.height}x{len(video)}"
        assert {f"{id_}.mp4", f"{id_}.txt"} <= {path.name for path in folder.iterdir()}
    first = json.loads((tmp_path / "out/metadata.jsonl").read_text().splitlines()[0])
    assert (tmp_path / "out" / first["file_name"]).is_file()


def test_several_captions(tmp_path: Path) -> None:
    raw = make_clips(tmp_path / "raw", 2)
    (raw / "c00.json").write_text(json.dumps(["one", "two"]))
    assert transcode(raw, tmp_path / "ready", "--captions", "--codec", "vp9", "--container", "webm").code == 0
    pack(tmp_path / "ready", tmp_path / "out", to="clips")
    first, second = (json.loads(line) for line in (tmp_path / "out/metadata.jsonl").read_text().splitlines())
    assert (first["caption"], first["captions"], second["caption"]) == ("one", ["one", "two"], None)
    assert (tmp_path / "out/c00.txt").read_text() == "one\n"
    assert not (tmp_path / "out/c01.txt").exists()
    assert (tmp_path / "out/c00.mp4").is_file()


def test_what_was_added_to_a_packed_folder_is_not_removed(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(made / "ready", out, to="clips", by_bucket=True)
    pack(made / "ready", out, to="clips", by_bucket=True, overwrite=True)
    cache = next(out.glob("*x*")) / "c00_latents.safetensors"
    cache.write_bytes(b"latents")
    later = time.time_ns() + 10**9
    os.utime(cache, ns=(later, later))
    with pytest.raises(DestinationError, match=r"latents\.safetensors was added or changed"):
        pack(made / "ready", out, to="clips", overwrite=True)
    assert cache.is_file()
    cache.unlink()
    pack(made / "ready", out, to="clips", overwrite=True)
    assert not cache.parent.exists()


@pytest.mark.parametrize("target", ["clips", "hf"])
@pytest.mark.parametrize("container", ["webm", "shards"])
def test_the_audio_of_webm_stays(tmp_path: Path, cli: Ffmpeg, target: str, container: str) -> None:
    (tmp_path / "raw").mkdir()
    sources = (
        "-f",
        "lavfi",
        "-i",
        "testsrc2=size=96x64:rate=25:duration=2",
        "-f",
        "lavfi",
        "-i",
        "sine=500:duration=2",
    )
    cli.run(*sources, "-pix_fmt", "yuv420p", "-c:a", "aac", tmp_path / "raw" / "a.mp4")
    options = ("--codec", "vp9", "--container", "webm", "--audio", "opus")
    store = ("--shards",) if container == "shards" else ()
    assert transcode(tmp_path / "raw", tmp_path / "ready", *options).code == 0
    if store:
        pack(tmp_path / "ready", tmp_path / "shards", to="shards")
    pack(tmp_path / ("shards" if store else "ready"), tmp_path / "out", to=target)
    made, kept = (
        levels(next(path.rglob(name))) for path, name in ((tmp_path / "out", "a.mp4"), (tmp_path / "ready", "a.webm"))
    )
    assert len(made) == pytest.approx(len(kept), abs=1000)
    assert abs(made[:90000] - kept[:90000]).max() < 0.01


def levels(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        return np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])


def test_ids_in_folders_become_names_that_trainers_find(tmp_path: Path) -> None:
    make_clips(tmp_path / "raw" / "a", 1)
    make_clips(tmp_path / "raw" / "b", 1)
    (tmp_path / "raw" / "a" / "c00.txt").write_text("of a")
    assert transcode(tmp_path / "raw", tmp_path / "ready", "--captions").code == 0
    ran = transcode(tmp_path / "ready", tmp_path / "out", "--to", "clips", verb="pack")
    assert "without a text file: 1 clip" in ran.err
    assert {path.name for path in (tmp_path / "out").glob("*.mp4")} == {"a_c00.mp4", "b_c00.mp4"}
    assert (tmp_path / "out/a_c00.txt").read_text() == "of a\n"
    lines = [json.loads(line) for line in (tmp_path / "out/metadata.jsonl").read_text().splitlines()]
    assert {line["id"]: line["file_name"] for line in lines} == {"a/c00": "a_c00.mp4", "b/c00": "b_c00.mp4"}
    make_clips(tmp_path / "raw", 1)
    (tmp_path / "raw" / "c00.mp4").rename(tmp_path / "raw" / "a_c00.mp4")
    assert transcode(tmp_path / "raw", tmp_path / "ready", "--captions").code == 0
    with pytest.raises(StoreError, match=r"another video is a_c00\.mp4 already"):
        pack(tmp_path / "ready", tmp_path / "two", to="clips")
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize(("separator", "letter"), [("space", " "), ("comma", ","), ("tab", "\t")])
def test_a_list_as_pandas_reads_it(made: Path, tmp_path: Path, separator: str, letter: str) -> None:
    pack(made / "ready", tmp_path / "out", to="list", separator=separator, suffix=".csv")
    table = pd.read_csv(tmp_path / "out/videos.csv", header=None, delimiter=letter)  # as V-JEPA 2 does
    assert [Path(path).name for path in table[0]] == ["c00.mp4", "c01.mp4", "c03.mp4"]
    assert all(Path(path).is_file() for path in table[0])
    assert [*table[1]] == [0, 0, 0]


def test_a_list_has_the_classes_and_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    make_clips(tmp_path / "raw" / "run fast", 1)
    make_clips(tmp_path / "raw" / "jump", 1)
    assert encode(tmp_path / "raw", tmp_path / "ready", label_from_folder=True).ok == 2
    with pytest.raises(StoreError, match="separated by a space"):
        pack(tmp_path / "ready", tmp_path / "no", to="list")
    pack(tmp_path / "ready", tmp_path / "out", to="list", separator="tab")
    lines = [line.split("\t") for line in (tmp_path / "out/videos.txt").read_text().splitlines()]
    assert [label for _, label in lines] == ["0", "1"]
    assert (tmp_path / "out/labels.txt").read_text() == "jump\nrun fast\n"
