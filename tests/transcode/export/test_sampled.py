"""Frames sampled for vision-language models: which ones, in which size, and the list of them that trainers read."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import manifest, transcode
from tests.numbered_pictures import constant, number_on, numbers_in, write
from tests.real_media import SHARED_MEDIA
from vidprep.formats import VideoDataset, VideoFiles, open_store, sample_fps
from vidprep.formats.spread import smart_resize

QWEN = Path(os.environ.get("VIDPREP_LEROBOT", Path(__file__).parents[3] / ".venv-lerobot" / "bin" / "python"))
TEN_CLIPS = (
    "one_frame_64x64_mpeg4.mp4",
    "nonzero_start_200x112.mp4",
    "newtons_cradle.mp4",
    "phone_rotated_90_640x480_vfr.mp4",
    "phone_rotated_180_1280x720_vfr.mp4",
    "bunny_320x240_60fps_two_audio.mp4",
    "carphone_176x144_2997fps_sar.mp4",
    "fragmented_320x240.mp4",
    "kinetics_arm_wrestling_340x256_28fps.mp4",
    "webcam_640x480_vfr.webm",
)


def qwen(script: str, *arguments: object, given: str = "") -> Any:
    """What a script prints as JSON where qwen_vl_utils is installed."""
    probe = [QWEN, "-c", "import qwen_vl_utils"]
    if not QWEN.exists() or subprocess.run(probe, capture_output=True, check=False).returncode:
        say = pytest.fail if os.environ.get("VIDPREP_REQUIRE") else pytest.skip
        say("qwen_vl_utils is not installed: .ci/run shows how")
    command = [QWEN, "-c", script, *map(str, arguments)]
    ran = subprocess.run(command, input=given, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.strip().splitlines()[-1])


def lines(folder: Path) -> dict[str, dict[str, Any]]:
    return {line["id"]: line for line in map(json.loads, (folder / "videos.jsonl").read_text().splitlines())}


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips with numbered pictures: short, long, VFR, 23.976, 29.97 and 60 fps."""
    folder = tmp_path_factory.mktemp("clips")
    write(folder / "short.mp4", constant(9, 30))
    write(folder / "long.mp4", constant(900, 10), rate=Fraction(10))
    write(folder / "film.mkv", constant(240, Fraction(24000, 1001)), rate=Fraction(24000, 1001), tick=Fraction(1, 1000))
    write(folder / "cinema.mkv", constant(240, 24), rate=Fraction(24), tick=Fraction(1, 1000))
    write(folder / "ntsc.mp4", constant(300, Fraction(30000, 1001)), rate=Fraction(30000, 1001))
    write(folder / "sixty.mp4", constant(301, 60), rate=Fraction(60))
    write(folder / "vfr.mp4", [Fraction(number * number, 400) for number in range(70)])
    write(folder / "film.avi", constant(50, 25), rate=Fraction(25))
    return folder


OPTIONS = ("--sample-fps", 2, "--sample-max", 32, "--multiple-of", 28)


@pytest.fixture(scope="module")
def sampled(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sampled") / "ready"
    ran = transcode(clips, out, *OPTIONS, "--keep-source-suffix", verb="burst")
    assert ran.code == 0, ran.err
    return out


def test_a_burst_holds_the_frames_that_the_sampler_takes_of_the_sources(clips: Path, sampled: Path) -> None:
    shown = numbers_in(sampled)
    store = VideoFiles(sorted(clips.iterdir()), keep_source_suffix=True)
    dataset = VideoDataset(store, clips=sample_fps(2, max_frames=32))
    for item in dataset:
        due = item["indexes"][item["frame_mask"]].tolist()
        assert shown[item["id"]] == due
        assert manifest(sampled)[item["id"]]["source_frames"] == due
        seconds = store[item["id"]].timestamps[due]
        assert open_store(sampled)[item["id"]].source_timestamps == pytest.approx(seconds, abs=1e-6)
        assert open_store(sampled)[item["id"]].timestamps == pytest.approx(seconds, abs=1e-6)
    assert len(shown["long.mp4"]) == 32
    assert len(shown["short.mp4"]) == 4


def test_it_is_validated_against_its_sources_and_done_when_run_again(clips: Path, sampled: Path) -> None:
    assert transcode(clips, sampled, "--keep-source-suffix", verb="validate").code == 0
    again = transcode(clips, sampled, *OPTIONS, "--keep-source-suffix", verb="burst")
    assert "8 done before" in again.err
    other = transcode(clips, sampled, "--sample-fps", 1, "--keep-source-suffix", verb="burst")
    assert (other.code, "different settings" in other.err) == (2, True), other.err


def test_sizes_are_multiples(sampled: Path) -> None:
    for row in manifest(sampled).values():
        assert (row["width"], row["height"]) == smart_resize(64, 64, 28, min_area=128 * 784, max_area=768 * 784)
        assert (row["width"] % 28, row["height"] % 28) == (0, 0)


def test_frames_packed_of_a_sampled_burst_and_of_encoded_videos_are_the_same_frames(
    clips: Path, sampled: Path, tmp_path: Path
) -> None:
    assert transcode(sampled, tmp_path / "one", "--to", "frames", verb="pack").code == 0
    assert transcode(clips, tmp_path / "encoded", "--keep-source-suffix", "--crf", 10).code == 0
    assert transcode(tmp_path / "encoded", tmp_path / "other", "--to", "frames", *OPTIONS, verb="pack").code == 0
    one, other = lines(tmp_path / "one"), lines(tmp_path / "other")
    assert one.keys() == other.keys() == numbers_in(sampled).keys()
    for id_, line in one.items():
        assert line == other[id_]
        assert line["type"] == "video"
        assert line["videos"] == [line["video"]]
        assert line["fps"] == line["sample_fps"] == pytest.approx(len(line["video"]) / seconds_of(sampled, id_))
        for root in ("one", "other"):
            found = VideoFiles([tmp_path / root / id_], source_fps=1)[id_].frames()
            assert found.shape[1:3] == (336, 336)
            assert [number_on(frame) for frame in found] == line["frame_numbers"]
        assert line["timestamps"] == pytest.approx(open_store(sampled)[id_].source_timestamps, abs=1e-6)
        own = open_store(sampled).stored_jpegs(id_)
        assert own is not None
        assert [(tmp_path / "one" / name).read_bytes() for name in line["video"]] == list(own)


def seconds_of(destination: Path, id_: str) -> float:
    return float(manifest(destination)[id_]["duration_seconds"])


def test_conversations_and_labels_of_the_table_are_carried_through(clips: Path, tmp_path: Path) -> None:
    talk = [{"from": "human", "value": "<video>What is shown?"}, {"from": "gpt", "value": "A number — 数字."}]
    rows: Sequence[Mapping[str, object]] = [
        {"path": str(clips / "short.mp4"), "id": "a/b", "conversations": talk, "fps": 7, "note": None},
        {"path": str(clips / "sixty.mp4"), "id": "c", "conversations": talk[:1], "fps": 8, "note": "x"},
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert transcode(tmp_path / "t.jsonl", tmp_path / "ready", *OPTIONS, verb="burst").code == 0
    assert transcode(tmp_path / "ready", tmp_path / "frames", "--to", "frames", verb="pack").code == 0
    found = lines(tmp_path / "frames")
    assert found["a/b"]["conversations"] == talk
    assert (found["c"]["label_fps"], found["c"]["note"], found["a/b"]["note"]) == (8, "x", None)
    assert found["c"]["fps"] == pytest.approx(len(found["c"]["video"]) / (301 / 60))


def test_a_damaged_video_is_sampled_by_the_frames_that_decode(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    write(tmp_path / "src" / "a.mkv", constant(200, 20), rate=Fraction(20), g="10")
    data = (tmp_path / "src" / "a.mkv").read_bytes()
    (tmp_path / "src" / "a.mkv").write_bytes(data[: len(data) * 6 // 10])
    assert transcode(tmp_path / "src", tmp_path / "out", *OPTIONS, verb="burst").code == 0
    row = manifest(tmp_path / "out")["a"]
    count = row["source_num_frames"]
    assert 80 < count < 160
    assert row["source_frames"][0] == 0
    assert row["source_frames"][-1] == count - 1
    assert transcode(tmp_path / "src", tmp_path / "out", verb="validate").code == 0


def test_a_cut_is_sampled_from_its_first_to_its_last_frame(clips: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"path,id,start,end\n{clips}/long.mp4,x,10,20\n{clips}/film.avi,y,0.5,1.5\n")
    assert transcode(tmp_path / "t.csv", tmp_path / "out", *OPTIONS, verb="burst").code == 0
    shown = numbers_in(tmp_path / "out")
    assert (len(shown["x"]), shown["x"][0], shown["x"][-1]) == (20, 100, 199)
    assert shown["y"] == pytest.approx([13, 21, 29, 37], abs=1)


@pytest.mark.parametrize(
    ("verb", "options", "said"),
    [
        ("burst", ("--sample-max", 8), "needs --sample-fps"),
        ("burst", ("--sample-fps", 2, "--fps", 10), "exclude each other"),
        ("burst", ("--sample-fps", 2, "--sample-max", 3), "below --sample-min"),
        ("burst", ("--multiple-of", 28, "--size", "224x224"), "exclude each other"),
        ("burst", ("--max-area", 1000), "needs --multiple-of"),
        ("pack", ("--to", "gulp", "--sample-fps", 2), "needs --to frames"),
        ("pack", ("--to", "hf", "--multiple-of", 28), "needs --to frames"),
        ("pack", ("--to", "frames", "--multiple-of", 27), "even"),
    ],
)
def test_what_does_not_go_together_is_refused(
    sampled: Path, clips: Path, tmp_path: Path, verb: str, options: tuple[object, ...], said: str
) -> None:
    ran = transcode(clips if verb == "burst" else sampled, tmp_path / "out", *options, verb=verb)
    assert (ran.code, said in ran.err) == (2, True), ran.err


NUMBERS = """
import json, sys
from qwen_vl_utils import vision_process
found = {}
for path in sys.argv[1:]:
    try:
        _, about, rate = vision_process._read_video_torchcodec({"video": path, "fps": 2.0, "max_frames": 32})
        found[path] = [about["frames_indices"], rate]
    except ValueError as error:
        found[path] = str(error)
print(json.dumps(found))
"""


@pytest.mark.long
def test_the_numbers_are_those_of_qwens_own_reader(clips: Path, sampled: Path, tmp_path: Path) -> None:
    real = [path for name in TEN_CLIPS if (path := SHARED_MEDIA / name).exists()]
    ours = dict(numbers_in(sampled))
    rates = {id_: len(numbers) / seconds_of(sampled, id_) for id_, numbers in ours.items()}
    paths = {str(path): path.name for path in sorted(clips.iterdir())}
    if real:
        table = "".join(f"{path},{path.name}\n" for path in real)
        (tmp_path / "t.csv").write_text(f"path,id\n{table}")
        assert transcode(tmp_path / "t.csv", tmp_path / "out", *OPTIONS, verb="burst").code == 0
        for id_, row in manifest(tmp_path / "out").items():
            ours[id_] = row["source_frames"] or list(range(row["num_frames"]))
            rates[id_] = row["num_frames"] / row["duration_seconds"]
        paths |= {str(path): path.name for path in real}
    for path, theirs in qwen(NUMBERS, *paths).items():
        id_ = paths[path]
        if len(ours[id_]) == 1:
            assert "nframes should in interval" in theirs  # a video of one frame, which it does not take
            continue
        assert theirs[0] == ours[id_], id_
        assert theirs[1] == pytest.approx(rates[id_], rel=0.02), id_


SIZES = """
import json, random
from qwen_vl_utils.vision_process import smart_resize
chance, found = random.Random(0), []
for _ in range(1000):
    width, height, multiple = chance.randint(2, 5000), chance.randint(2, 5000), chance.choice([14, 28, 32])
    tile = multiple * multiple
    least, most = chance.choice([4, 128]) * tile, chance.choice([256, 768, 16384]) * tile
    try:
        size = smart_resize(height, width, multiple, least, most)[::-1]
    except ValueError:
        size = None
    found.append([width, height, multiple, least, most, size])
print(json.dumps(found))
"""


@pytest.mark.long
def test_the_sizes_are_those_of_qwens_smart_resize() -> None:
    found = qwen(SIZES)
    assert len(found) == 1000
    for width, height, multiple, least, most, theirs in found:
        if theirs is None:
            with pytest.raises(ValueError, match="times as long"):
                smart_resize(width, height, multiple, min_area=least, max_area=most)
        else:
            assert smart_resize(width, height, multiple, min_area=least, max_area=most) == tuple(theirs)


LOADED = """
import json, os, sys
os.chdir(sys.argv[1])
from qwen_vl_utils import process_vision_info
found = {}
for line in map(json.loads, open("videos.jsonl")):
    talk = [{"role": "user", "content": [line, {"type": "text", "text": "?"}]}]
    _, (video,), told = process_vision_info(talk, return_video_kwargs=True)
    found[line["id"]] = [list(video.shape), told["fps"], video[:, :, ::48, ::48].mean(1).tolist()]
print(json.dumps(found))
"""


@pytest.mark.long
def test_the_list_is_read_by_qwens_loader(clips: Path, tmp_path: Path) -> None:
    """It rounds sizes of pictures in a list to multiples of 56."""
    out = tmp_path / "ready"
    options = (*OPTIONS[:4], "--multiple-of", 56, "--exclude", "*.avi")
    ran = transcode(clips, out, *options, verb="burst")
    assert ran.code == 0, ran.err
    assert transcode(out, tmp_path / "frames", "--to", "frames", verb="pack").code == 0
    store, due = open_store(out), lines(tmp_path / "frames")
    found = qwen(LOADED, tmp_path / "frames")
    assert found.keys() == due.keys()
    for id_, (shape, rates, corners) in found.items():
        frames = store[id_].frames()
        assert shape == [len(frames), 3, *frames.shape[1:3]]
        assert rates == [due[id_]["sample_fps"]]
        for theirs, ours in zip(corners, frames[:, ::48, ::48].mean(-1), strict=True):
            assert theirs == pytest.approx(ours, abs=6)


@pytest.mark.parametrize("store", ["gulp", "webdataset", "tensor"])
def test_every_store_of_frames_is_packed_with_its_times(clips: Path, tmp_path: Path, store: str) -> None:
    ran = transcode(clips / "vfr.mp4", tmp_path / "ready", *OPTIONS, "--format", store, verb="burst")
    assert ran.code == 0, ran.err
    assert transcode(tmp_path / "ready", tmp_path / "frames", "--to", "frames", verb="pack").code == 0
    (line,) = lines(tmp_path / "frames").values()
    assert line["timestamps"] == pytest.approx([number * number / 400 for number in line["frame_numbers"]], abs=1e-4)
    assert line["fps"] == pytest.approx(len(line["video"]) / seconds_of(tmp_path / "ready", line["id"]))
