"""The index of a million videos: its size, opening it, and a random sequence by it. Never a test.

    python tests/bench/index.py [VIDEOS] [FRAMES]       a million videos of 300 frames by default: 2 GB on the disk, 6 GB of memory

Most rows are made up: sizes of packets are drawn from those of clips (BENCH_SRC=folder names them) at 240 lines, H.264 at GOP 5. Every
thousandth is one of these clips, of which sequences of 8 frames are read, by this index and by the small one of the clips alone, each
in a process of its own that has opened nothing before.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from bench import clips
from feeding import vidprep
from history import keep

from vidprep.formats import open_store
from vidprep.formats.stores.encoded import VideoStore
from vidprep.formats.stores.gops import FACTS, GOPS_NAME, KNOWN, facts_in, read_known, write_gops
from vidprep.formats.video.packets import PacketIndex

REAL, FRAMES, SEQUENCES, GOP, DISTINCT = 1000, 8, 300, 5, 20_000


def packets(rng: np.random.Generator, sizes: np.ndarray, frames: int) -> bytes:
    count = frames // GOP * GOP
    drawn = rng.choice(sizes, count).tolist()
    offsets = (np.cumsum(drawn) - drawn + 48).tolist()
    order = [first + place for first in range(0, count, GOP) for place in (0, 4, 2, 1, 3)]
    needed = [place not in (1, 3) for place in order]
    crc32 = rng.integers(0, 2**32, count // GOP).tolist()
    return PacketIndex(range(0, count, GOP), offsets, drawn, order, needed, crc32).to_bytes()


def make(small: Path, large: Path, videos: int, frames: int) -> None:
    """Write an index in which every thousandth video is a real one."""
    shutil.copytree(small, large)
    facts, known = facts_in(small), read_known(small / GOPS_NAME)
    assert facts is not None
    store, rng = open_store(small), np.random.default_rng(0)
    assert isinstance(store, VideoStore)
    sizes = np.concatenate(
        [np.asarray(entry.packets.sizes) for id_ in store.ids if (entry := store.entry(id_)).packets]
    )
    sha256 = [hashlib.sha256(bytes([number % 256, number // 256])).hexdigest() for number in range(DISTINCT)]
    made = [packets(rng, sizes, frames) for _ in sha256]
    extradata = [known["extradata"][0].as_py()] * DISTINCT
    of_made = pa.table(
        [
            pa.array(sha256),
            pa.array(extradata, pa.binary()),
            pa.array(made, pa.binary()),
            pa.nulls(DISTINCT, pa.string()),
        ],
        KNOWN,
    )
    places = rng.integers(0, DISTINCT, videos)
    columns = {
        "id": pa.array([f"class_{number // 1000:05d}/video_{number:08d}" for number in range(videos)]),
        "file_name": pa.array([f"class_{number // 1000:05d}/video_{number:08d}.mp4" for number in range(videos)]),
        "offset": pa.array(np.zeros(videos, np.int64)),
        "size_bytes": pa.array(rng.integers(10**6, 2 * 10**6, videos)),
        "sha256": pa.array(sha256).take(pa.array(places)),
        "num_frames": pa.array(np.full(videos, frames // GOP * GOP)),
        "pts": pa.nulls(videos, FACTS.field("pts").type),
        "keyframes": pa.nulls(videos, FACTS.field("keyframes").type),
    }
    first = facts.slice(0, 1)
    for field in FACTS:
        if field.name not in columns:
            columns[field.name] = (
                pa.array([first[field.name][0].as_py()]).cast(field.type).take(pa.array(np.zeros(videos, np.int64)))
            )
    table = pa.table([columns[name].cast(FACTS.field(name).type) for name in FACTS.names], schema=FACTS)
    real = facts.filter(pa.array([len(store[id_]) >= FRAMES for id_ in facts["id"].to_pylist()]))
    real = real.take(pa.array([number % len(real) for number in range(videos // REAL)]))
    ids = pa.array([f"class_{number:05d}/real" for number in range(len(real))])
    whole = pa.concat_tables([table, real.set_column(0, "id", ids)]).sort_by("id")
    started = time.perf_counter()
    write_gops(large / GOPS_NAME, whole, pa.concat_tables([known, of_made]))
    size = (large / GOPS_NAME).stat().st_size
    print(
        f"written in {time.perf_counter() - started:.1f} s; {size / len(whole):.0f} bytes a video, {size / len(whole) / (frames // GOP * GOP):.2f} a frame"
    )
    keep("index of a million: bytes a frame", size / len(whole) / (frames // GOP * GOP))


def peak_mib() -> float:
    """Return the largest resident memory of this process so far."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def read(folder: Path, is_large: str, clips_of_large: int) -> None:
    """Print seconds of opening, its memory, and milliseconds a sequence."""
    before = peak_mib()
    started = time.perf_counter()
    store = open_store(folder)
    count = len(store.ids)
    opened, memory = time.perf_counter() - started, peak_mib() - before
    if is_large == "large":
        ids = [f"class_{number:05d}/real" for number in range(count // REAL)]
    else:  # the same clips in the same order
        ids = [id_ for id_ in store.ids if len(store[id_]) >= FRAMES]
    rng, times = random.Random(0), []
    for number in range(SEQUENCES):
        id_, place = ids[int(rng.random() * clips_of_large) % len(ids)], rng.random()
        started = time.perf_counter()
        video = store[id_]
        first = int(place * (len(video) - FRAMES + 1))
        video.frames(range(first, first + FRAMES))
        times += [time.perf_counter() - started] if number > SEQUENCES // 10 else []
    print(count, opened, memory, statistics.fmean(times) * 1000)


def main() -> None:
    if sys.argv[1:2] == ["read"]:
        read(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
        return
    videos, frames = (int(text) for text in [*sys.argv[1:], "1000000", "300"][:2])
    with tempfile.TemporaryDirectory() as scratch:
        small, large = Path(scratch) / "small", Path(scratch) / "large"
        vidprep("transcode", clips(), small, "--exclude", "bad/*", "--short-side", 240, "--gop", GOP, "--quiet")
        make(small, large, videos, frames)
        found: dict[str, float] = {}
        for name, folder in (("small", small), ("large", large)):
            told = subprocess.run(
                [sys.executable, __file__, "read", folder, name, str(videos // REAL)],
                check=True,
                capture_output=True,
                text=True,
            ).stdout.split()
            found[name] = float(told[3])
            print(
                f"{name}: {told[0]} videos opened in {float(told[1]):.2f} s and {float(told[2]):.0f} MiB; {float(told[3]):.2f} ms a sequence"
            )
        keep("index of a million: ms a sequence more than of a small one", found["large"] - found["small"])


if __name__ == "__main__":
    main()
