"""What a user does, with the vidprep that is installed for the Python that runs this file: `session.py CLIPS OUT [OTHER …]`.

Every codec, every store, both engines, validate, report, reading back, a dask cluster. OUT keeps what was made. OTHER is the OUT
of a session under other versions: its stores are read, validated and gone on with here. Uses nothing of the tests' own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq

from vidprep.formats import PrefetchLoader, VideoDataset, open_store

CODECS = ("h264", "hevc", "vp9", "av1")
STORES = ("burst", "gulp", "webdataset", "tensor")
SHAPE = ("--fps", "15", "--short-side", "96", "--jobs", "2", "--quiet")
H264 = ("--gop", "5", "--audio", "aac", *SHAPE)
# What may differ between two versions of the encoders, and of libswscale's conversion to RGB.
NEARLY_DB, NEARLY_SIZE, NEARLY_LEVELS = 0.1, 0.02, 1
# SVT-AV1 4.1 (PyAV 18.1) and 4.2 (PyAV 19.0) decide otherwise: 0.13 dB at 1.6 % on these clips.
NEARLY_DB_AV1 = 0.3
EQUAL_COLUMNS = (
    "width",
    "height",
    "num_frames",
    "keyframes",
    "frame_rate_num",
    "frame_rate_den",
    "duration_seconds",
    "source_frames",
    "source_num_frames",
    "source_rotation",
)
# Of what other versions made: where decoders, the scaler and JPEG could round otherwise.
VALIDATED = ("h264", "av1", "burst", "tensor")
DASK = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


def vidprep(*words: object) -> str:
    """What the command, which must succeed, prints on stderr."""
    command = [str(Path(sys.executable).with_name("vidprep")), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr[-3000:]}"
    return done.stderr


def rows(store: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in pq.read_table(store / "manifest.parquet").to_pylist()}


def sample(store: Path) -> dict[str, Any]:
    """The first, a middle and the last frame of each video."""
    opened = open_store(store)
    return {id_: opened[id_].frames([0, len(opened[id_]) // 2, -1]) for id_ in opened.ids}


def make(clips: Path, out: Path) -> list[str]:
    """The names of the stores that were made in `out`."""
    for codec in CODECS:
        audio = "opus" if codec == "vp9" else "aac"
        vidprep("transcode", clips, out / codec, "--codec", codec, "--gop", 5, "--audio", audio, *SHAPE)
    vidprep("transcode", clips, out / "ffmpeg", "--engine", "ffmpeg", "--gop", 5, *SHAPE)
    for store in STORES:
        vidprep("burst", clips, out / store, "--format", store, *SHAPE)
    vidprep("transcode", clips, out / "begun", *H264, "--limit", 1)
    return [*CODECS, "ffmpeg", *STORES]


def by_python(clips: Path, out: Path) -> None:
    """Without a terminal, a script or a guard; the same bytes as the command makes."""
    call = "import sys; from vidprep.transcode import transcode; transcode(*sys.argv[1:3], gop=5, fps=15, short_side=96, audio='aac')"
    done = subprocess.run(
        [sys.executable, "-c", call, str(clips), str(out / "by_python")],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stderr
    made, due = rows(out / "by_python"), rows(out / "h264")
    assert {id_: row["sha256"] for id_, row in made.items()} == {id_: row["sha256"] for id_, row in due.items()}


def check(clips: Path, store: Path) -> None:
    """Every row is ok, `validate` finds nothing against the sources, a loader gives every sequence, rotation is applied."""
    failed = {id_: row["message"] for id_, row in rows(store).items() if row["status"] != "ok"}
    assert not failed, failed
    vidprep("validate", clips, store, "--jobs", 2, "--quiet")
    dataset = VideoDataset(store, sequence_length=4, step=4, size=(64, 64))
    with PrefetchLoader(dataset, batch_size=4, workers=1, processes=False, cache_bytes=32 << 20) as loader:
        assert sum(len(batch["frames"]) for batch in loader) == len(dataset) > 0
    pictures = sample(store)
    assert pictures["rotated"].shape == (3, 128, 96, 3), pictures["rotated"].shape
    np.savez(store.with_suffix(".npz"), **pictures)


def by_dask(clips: Path, out: Path) -> None:
    """Two workers of a real scheduler make the same bytes as this machine alone."""
    command = [sys.executable, "-c", DASK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=out) as cluster:
        assert cluster.stdout is not None
        assert cluster.stdin is not None
        address = cluster.stdout.readline().strip()
        try:
            vidprep("transcode", clips, out / "dask", *H264, "--backend", "dask", "--cluster-address", address)
        finally:
            cluster.stdin.close()
    local, far = rows(out / "h264"), rows(out / "dask")
    assert {id_: row["sha256"] for id_, row in local.items()} == {id_: row["sha256"] for id_, row in far.items()}


def compare(ours: Path, theirs: Path) -> dict[str, float]:
    """A store that other versions made, read here, and its rows beside ours. Returns what differed most."""
    most = {"levels": 0.0, "db": 0.0, "size": 0.0}
    with np.load(theirs.with_suffix(".npz")) as kept:
        for id_, frames in sample(theirs).items():
            most["levels"] = max(most["levels"], float(np.abs(frames.astype(int) - kept[id_]).max()))
    mine, other = rows(ours), rows(theirs)
    assert mine.keys() == other.keys()
    for id_, row in mine.items():
        for name in EQUAL_COLUMNS:
            assert row[name] == other[id_][name], f"{ours.name}, {id_}: {name} is {row[name]}, was {other[id_][name]}"
        if np.isfinite(row["psnr_y_db"]):
            most["db"] = max(most["db"], abs(row["psnr_y_db"] - other[id_]["psnr_y_db"]))
            most["size"] = max(most["size"], abs(row["size_bytes"] / other[id_]["size_bytes"] - 1))
    assert most["levels"] <= NEARLY_LEVELS, f"{theirs}: {most}"
    assert most["db"] <= (NEARLY_DB_AV1 if ours.name == "av1" else NEARLY_DB), f"{theirs}: {most}"
    assert most["size"] <= NEARLY_SIZE, f"{theirs}: {most}"
    return most


def go_on(clips: Path, out: Path, other: Path) -> None:
    """A destination that other versions began: it is said in a line, rows keep their versions, `validate` finds nothing."""
    mixed = out / f"begun-by-{other.name}"
    shutil.copytree(other / "begun", mixed)
    told = vidprep("transcode", clips, mixed, *H264)
    versions = {row["encoder_version"] for row in rows(mixed).values()}
    lines = [line for line in told.splitlines() if "made by a version other than" in line]
    assert len(lines) == len(versions) - 1, told
    vidprep("validate", clips, mixed, "--quiet")


def main(clips: Path, out: Path, others: list[Path]) -> None:
    vidprep("doctor")
    made = make(clips, out)
    for name in made:
        check(clips, out / name)
    assert "done before" in vidprep("transcode", clips, out / "h264", *H264)
    vidprep("report", out / "h264", out / "burst", "--out", out / "report", "--quiet")
    by_python(clips, out)
    by_dask(clips, out)
    differences = {}
    for other in others:
        for name in made:
            differences[f"{other.name} {name}"] = compare(out / name, other / name)
        for name in VALIDATED:
            vidprep("validate", clips, other / name, "--quiet")
        go_on(clips, out, other)
    print(json.dumps({"python": sys.version.split()[0], "PyAV": av.__version__, "differences": differences}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), [Path(word) for word in sys.argv[3:]])
