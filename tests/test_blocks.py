"""Every block of the documents is run as a reader would: in order, in one folder."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cluster import daemon, free_port, needs_modules
from tests.films import RATES, join, scene
from tests.helpers import make_clip, make_clips, transcode
from tests.robots import make_robot_dataset
from tests.s3 import bucket
from tests.samples import DOCUMENTS, SAMPLE, sampled
from vidprep.formats import VideoDataset

ROOT = Path(__file__).parents[1]
# What another test runs: a real Slurm and a real Ray stand behind tests/transcode/workers/test_cluster.py.
LEFT_OUT = ("pip ", "sbatch ", "id=", "ray ", "export ", "git ", "make ")


def documented(document: str) -> list[tuple[str, str]]:
    """Return the language and text of each fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def blocks(document: str) -> list[tuple[str, str]]:
    """Return the language and text of each fenced block that is run: bash or python."""
    return [(language, block) for language, block in documented(document) if language != "text"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """raw/ with a/b and c, and the examples."""
    folder = tmp_path_factory.mktemp("reader")
    made = make_clips(folder / "raw", 2, 90, size=(320, 256))
    (made / "a").mkdir()
    (made / "c00.mp4").rename(made / "a" / "b.mp4")
    (made / "c01.mp4").rename(made / "c.mp4")
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


def run(command: list[str], folder: Path, **more: str) -> None:
    env = os.environ | more | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, f"{command[-1]}\n{ran.stdout}{ran.stderr}"


def run_blocks(document: str, folder: Path, changes: dict[str, str], **env: str) -> None:
    with ExitStack() as running:
        for number, (language, block) in enumerate(blocks(document)):
            for before, after in changes.items():
                block = block.replace(before, after)
            if language == "python":
                script = folder / f"{Path(document).parent.name}{number}.py"
                script.write_text(block)
                run([sys.executable, str(script)], folder, **env)
                continue
            for line in filter(None, (line.partition("  #")[0].strip() for line in block.splitlines())):
                if line.startswith(("dask scheduler", "DASK_CONFIG=")):
                    log = folder / f"daemon{number}{line.count('worker')}.log"
                    running.enter_context(
                        daemon(
                            ["bash", "-c", f"PATH={Path(sys.executable).parent}:$PATH; cd {folder}; exec env {line}"],
                            log,
                        )
                    )
                elif not line.startswith(LEFT_OUT) and "--backend ray" not in line:
                    run(["bash", "-c", line], folder, **env)


@pytest.mark.long
def test_the_readme_from_top_to_bottom(tmp_path: Path) -> None:
    """On what `make demo` left in VIDPREP_DEMO, as .ci/run does; else on clips of the same names and of its smallest size."""
    folder = Path(os.environ.get("VIDPREP_DEMO") or tmp_path)
    if folder == tmp_path:
        for name, size in (("bigbuckbunny", (1280, 720)), ("bikes", (640, 272)), ("carphone_pristine", (176, 144))):
            make_clip(folder / "raw" / f"{name}.mp4", 90, size)
        run(["vidprep", "transcode", "raw", "ready", "--fps", "15", "--short-side", "240", "--gop", "5"], folder)
    run_blocks("README.md", folder, {})
    run_blocks("docs/tour.md", folder, {})


def words_and_numbers(text: str) -> tuple[list[str], list[float]]:
    """What stands in the samples of a document, without the times."""
    sample = re.sub(r"in [\d.]+ s\b", "", "".join(SAMPLE.findall(text)))
    return re.split(r"[\d.]+|\s+", sample), [float(number) for number in re.findall(r"\d+(?:\.\d+)?", sample)]


@pytest.mark.skipif("VIDPREP_DEMO" not in os.environ, reason="VIDPREP_DEMO=folder that `make demo` filled")
def test_the_readme_shows_what_the_demo_prints() -> None:
    """To within 2 %: encoders may differ in the last bits between processors."""
    folder = Path(os.environ["VIDPREP_DEMO"])
    for document in DOCUMENTS:
        written = document.read_text()
        words, numbers = words_and_numbers(sampled(written, folder / "raw"))
        assert (words, pytest.approx(numbers, rel=0.02)) == words_and_numbers(written)
        assert len(numbers) > 20
    dataset = VideoDataset(folder / "ready", sequence_length=8, stride=2)
    assert f"every window: {len(dataset)} items" in (ROOT / "README.md").read_text()


@pytest.mark.long
def test_the_page_about_training(folder: Path) -> None:
    """With stores as the README leaves them, whose videos are all of one split."""
    run(
        [
            "vidprep",
            "transcode",
            "raw",
            "ready",
            "--fps",
            "15",
            "--short-side",
            "240",
            "--gop",
            "5",
            "--split-by",
            "train=1",
        ],
        folder,
    )
    run(["vidprep", "burst", "raw", "frames", "--fps", "15", "--short-side", "240"], folder)
    changes = {"demo-out/ready": "ready"}
    if importlib.util.find_spec("torch") is None:
        changes["python examples/train_super_resolution.py"] = "pip install torch #"
    if importlib.util.find_spec("torchcodec") is None:
        changes["from torchcodec.decoders import VideoDecoder"] = "VideoDecoder = lambda *_, **_more: None"
    run_blocks("docs/training.md", folder, changes)


@pytest.mark.long
def test_from_raw_videos_to_a_loop_that_reads_from_a_bucket(folder: Path, tmp_path: Path) -> None:
    needs_modules(["obstore"], "pip install '.[s3]'")
    with bucket(tmp_path) as s3:
        environment = s3.environment | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        run_blocks("docs/object-storage.md", folder, {"s3://bucket": f"s3://{s3.name}"}, **environment)


@pytest.mark.long
def test_the_page_about_robot_datasets(tmp_path: Path) -> None:
    make_robot_dataset(tmp_path / "robot")
    (tmp_path / "raw").mkdir()
    rows = {"time": [number / 50 for number in range(60)], "action": [[float(number)] * 2 for number in range(60)]}
    pq.write_table(pa.table(rows), tmp_path / "raw" / "0.parquet")
    lines = next(block for language, block in documented("docs/robots.md") if language == "text")
    (tmp_path / "episodes.csv").write_text(lines)
    for camera in ("front", "wrist"):
        make_clip(tmp_path / "raw" / f"0-{camera}.mp4", 30, (320, 256))
    run_blocks("docs/robots.md", tmp_path, {})


@pytest.mark.long
def test_the_page_about_vision_language_models(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "raw").symlink_to(folder / "raw")
    run_blocks("docs/vision-language.md", tmp_path, {})
    lines = [json.loads(line) for line in (tmp_path / "frames" / "videos.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == ["a/b", "c"]
    assert all((tmp_path / "frames" / name).exists() for line in lines for name in line["video"])


@pytest.mark.long
def test_the_page_about_clips(tmp_path: Path) -> None:
    needs_modules(["faiss", "pdqhash"], "pip install '.[scan]'")
    rng = random.Random(1)
    scenes = {str(seed): scene(seed, 80) for seed in range(6)}
    for number in range(4):
        film = tmp_path / "films" / f"{number}.mp4"
        film.parent.mkdir(exist_ok=True)
        join(film, scenes, rng, is_variable=number == 3, rate=RATES[number])
    (tmp_path / "new").mkdir()
    join(tmp_path / "new" / "0.mp4", {"a": scenes["0"], "b": scene(9, 80)}, rng, is_variable=False, rate=RATES[0])
    run_blocks("docs/raw-videos-to-clips.md", tmp_path, {})
    rows = pq.read_table(tmp_path / "ready" / "manifest.parquet").to_pylist()
    assert len(rows) > 5 and {row["num_frames"] for row in rows} == {17}
    assert {row["status"] for row in rows} == {"ok"}
    of_test = pq.read_table(tmp_path / "test.parquet").to_pylist()
    assert 0 < sum(row["duplicate_of"] is not None for row in of_test) < len(of_test)


@pytest.mark.long
def test_the_page_about_video_generators(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for number, (width, height, frames) in enumerate(((640, 360, 60), (360, 640, 70), (400, 400, 20), (640, 480, 64))):
        clip = make_clip(tmp_path / "raw" / f"c{number}.mp4", frames, size=(width, height), seed=number)
        clip.with_suffix(".txt").write_text(f"clip {number}")
    run_blocks("docs/video-generators.md", tmp_path, {})
    lines = [json.loads(line) for line in (tmp_path / "clips/metadata.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == ["clip 0", "clip 1", "clip 3"]
    for line in lines:
        assert line["frames"] % 4 == 1 and line["width"] % 16 == line["height"] % 16 == 0
        assert line["file_name"].startswith(f"{line['width']}x{line['height']}x{line['frames']}/")


@pytest.mark.long
def test_the_page_about_pretraining(tmp_path: Path) -> None:
    for number in range(4):
        make_clip(
            tmp_path / "raw" / ("run" if number % 2 else "jump") / f"c{number}.mp4", 24, size=(160, 128), seed=number
        )
    run_blocks("docs/pretraining.md", tmp_path, {})
    classes = (tmp_path / "vjepa/labels.txt").read_text().split()
    lists = [(tmp_path / f"vjepa/videos_{split}.csv").read_text().splitlines() for split in ("train", "val")]
    rows = [line.split(" ") for lines in lists for line in lines]
    assert [len(lines) for lines in lists] == [2, 2]
    assert all(Path(path).is_file() and Path(path).parent.name == classes[int(label)] for path, label in rows)
    assert (tmp_path / "videomae/videos_train.txt").read_text() == (tmp_path / "vjepa/videos_train.csv").read_text()


@pytest.mark.long
def test_the_page_about_selecting(tmp_path: Path) -> None:
    make_clips(tmp_path / "raw", 3, 40)
    make_clips(tmp_path / "raw2" / "more", 2, 40)
    (tmp_path / "splits.csv").write_text("id,split\nc00,train\nc01,train\nc02,val\n")
    for source, made in (("raw", "ready"), ("raw2", "more")):
        assert transcode(tmp_path / source, tmp_path / made).code == 0
    assert transcode(tmp_path / "ready", tmp_path / "splits.csv", verb="label").code == 0
    (tmp_path / "trims.csv").write_text("id,start_frame,end_frame\nc00,5,37\nc02,0,16\n")
    run_blocks("docs/selecting.md", tmp_path, {})
    made = {name: len(pq.read_table(tmp_path / name / "manifest.parquet")) for name in ("train", "grasps", "all")}
    assert made == {"train": 2, "grasps": 2, "all": 5}


@pytest.mark.long
def test_dask_and_s3_as_on_the_page_about_clusters(folder: Path, tmp_path: Path) -> None:
    needs_modules(["distributed"], "pip install '.[dask]'")
    port = free_port()
    with bucket(tmp_path) as s3:
        for path in sorted((folder / "raw").rglob("*.mp4")):
            s3.put(path, f"raw/{path.relative_to(folder / 'raw')}")
        changes = {"host:8786": f"127.0.0.1:{port}", "--port 8786": f"--port {port}", "--nworkers 16": "--nworkers 1"}
        run_blocks(
            "docs/cluster.md",
            folder,
            changes | {"ready/": "by-dask/", "s3://bucket": f"s3://{s3.name}"},
            **s3.environment,
        )
        assert {"manifest.parquet", "a/b.mp4", "c.mp4"} <= s3.objects("ready/").keys()
