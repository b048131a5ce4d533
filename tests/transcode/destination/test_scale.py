"""Large destinations and long-lived children: time and memory stay within bounds."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import points
from tests.helpers import command, environment, make_clip, manifest, transcode
from vidprep.formats import open_store
from vidprep.formats.manifest.table import ManifestRow, read_manifest, write_rows
from vidprep.formats.storage.local import sha256_of
from vidprep.formats.stores.registry import layout_of
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.media.ffmpeg_program import encoder_version
from vidprep.transcode.settings.output import FrameOutput
from vidprep.transcode.settings.run import RunSettings

UNITS = 100_000
PER_FOLDER = 1000
OUTPUT_BYTES = 40_000
# Not ru_maxrss: it begins at the size of the process that forked this one.
TELL_PEAK = """
import atexit, pathlib, sys
atexit.register(lambda: print(pathlib.Path("/proc/self/status").read_text(), file=sys.stderr))
from vidprep.transcode.cli.main import main
main()
"""


def finished_destination(src: Path, dst: Path) -> None:
    """UNITS sources and outputs, and the manifest that says they are done. Links to sparse files: one call makes one."""
    settings = RunSettings()
    options, made_by = EncoderOptions().resolved, encoder_version(settings, "")
    gc.disable()
    rows = []
    for number in range(UNITS):
        folder = f"{number // PER_FOLDER:03d}"
        if number % PER_FOLDER == 0:
            for root, size in ((src, 0), (dst, OUTPUT_BYTES)):
                (root / folder).mkdir(parents=True)
                (root / folder / "base").touch()
                os.truncate(root / folder / "base", size)
            os.utime(src / folder / "base", ns=(number, number))
            mtime = number
        name = f"{folder}/clip_{number:07d}"
        os.link(f"{src}/{folder}/base", f"{src}/{name}.mp4")
        os.link(f"{dst}/{folder}/base", f"{dst}/{name}.mp4")
        row = ManifestRow(
            id=name,
            file_name=f"{name}.mp4",
            source=f"{src}/{name}.mp4",
            status="ok",
            source_size_bytes=0,
            source_mtime_ns=mtime,
            settings_digest=settings.digest,
            encoder_version=made_by,
            encoder=options.encoder,
            size_bytes=OUTPUT_BYTES,
            num_frames=250,
            keyframes=list(range(0, 250, 16)),
            source_frames=list(range(0, 500, 2)),
            sha256=f"{number:064x}",
            psnr_y_db=40.0 + number % 7,
            width=320,
            height=240,
            container="mp4",
            time_base_num=1,
            time_base_den=25,
            frame_rate_num=25,
            frame_rate_den=1,
        )
        rows.append(row)

    (dst / ".vidprep").mkdir(parents=True)
    (dst / ".vidprep" / "run.json").write_text(json.dumps({"settings": settings.as_dict()}))
    write_rows(dst / "manifest.parquet", None, rows)


def finished_store(dst: Path) -> None:
    """UNITS videos of ten frames in one sparse shard, a class each of four hundred."""
    settings = RunSettings(FrameOutput("burst", 90, "420"))
    rows = []
    for number in range(UNITS):
        row = ManifestRow(
            id=f"clip_{number:07d}",
            file_name="data-00001-00000.bin",
            source=f"/gone/{number}.mp4",
            status="ok",
            container="burst",
            settings_digest=settings.digest,
            num_frames=10,
            width=320,
            height=240,
            frame_rate_num=25,
            frame_rate_den=1,
            time_base_num=1,
            time_base_den=25,
            offset=number * 10_000,
            stored_bytes=10_000,
            size_bytes=10_000,
            run=100_000,
            frame_sizes=[1000] * 10,
            frame_crc32=[(number * 10 + n) % 2**32 for n in range(10)],
        )
        rows.append(row)
    (dst / ".vidprep" / "partial").mkdir(parents=True)
    content = {"settings": settings.as_dict(), "digest": settings.digest, "versions": {}}
    (dst / ".vidprep" / "run.json").write_text(json.dumps(content))
    (dst / "data-00001-00000.bin").touch()
    os.truncate(dst / "data-00001-00000.bin", UNITS * 10_000)
    write_rows(dst / "manifest.parquet", None, rows)
    for _ in layout_of("burst").write_index(dst, read_manifest(dst), content):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "burst"])
def test_a_hundred_thousand_rows_are_relabelled_within_seconds(kind: str, tmp_path: Path) -> None:
    """No source is there to be opened, and outputs stay as they are."""
    dst = tmp_path / "dst"
    if kind == "files":
        finished_destination(tmp_path / "src", dst)
        shutil.rmtree(tmp_path / "src")
        ids = [f"{number // PER_FOLDER:03d}/clip_{number:07d}" for number in range(UNITS)]
        watched = [dst / f"{id_}.mp4" for id_ in ids[:: UNITS // 50]]
    else:
        finished_store(dst)
        ids = [f"clip_{number:07d}" for number in range(UNITS)]
        watched = [dst / "data-00001-00000.bin"]
    labels = [f"class {number % 400}" for number in range(UNITS)]
    pq.write_table(
        pa.table({"id": ids, "label": labels, "score": [[n / 7, 1.0] for n in range(UNITS)]}), tmp_path / "t.parquet"
    )
    before = [(path.stat().st_mtime_ns, sha256_of(path)) for path in watched]
    started = time.monotonic()
    ran = transcode(dst, tmp_path / "t.parquet", verb="label", env=environment())
    seconds = time.monotonic() - started
    assert ran.code == 0 and f"{UNITS} videos relabelled" in ran.err, ran.err
    print(f"{UNITS} rows of {kind} relabelled in {seconds:.1f} s")
    store = open_store(dst)
    assert store.labels(ids[-1]) == {"label": labels[-1], "score": [(UNITS - 1) / 7, 1.0]}
    assert [(path.stat().st_mtime_ns, sha256_of(path)) for path in watched] == before
    assert seconds < 300


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_hundred_thousand_finished_units_are_found_done_in_bounded_time_and_memory(tmp_path: Path) -> None:
    src, dst = tmp_path / "src", tmp_path / "dst"
    made = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(Path(__file__).parents[3])!r})\n"
            "from pathlib import Path\nfrom tests.transcode.destination.test_scale import finished_destination\n"
            f"finished_destination(Path({str(src)!r}), Path({str(dst)!r}))",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert made.returncode == 0, made.stderr
    before = (dst / "manifest.parquet").stat().st_mtime_ns
    started = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-c", TELL_PEAK, *command(src, dst, "--json", "--quiet")[3:]],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    seconds = time.monotonic() - started
    assert ran.returncode == 0, ran.stderr
    peak = int(ran.stderr.split("VmHWM:")[1].split()[0]) * 1024
    print(f"{UNITS} finished units: {seconds:.1f} s, peak {peak / 1e6:.0f} MB")
    assert json.loads(ran.stdout)["summary"]["done_before"] == UNITS
    assert (dst / "manifest.parquet").stat().st_mtime_ns == before
    assert peak < 1e9
    assert seconds < 300


# The resident size that a child settles at, after so many units: what grows with every unit grows without end.
GROWTH = """
import ctypes, gc, json, sys
from pathlib import Path
import imageio_ffmpeg
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.unit.life import run_job
from vidprep.transcode.unit.job import WholeJob
from vidprep.transcode.settings.options import Scale
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit
source, folder, codec, engine, count, warm = sys.argv[1:]
settings = RunSettings(VideoOutput(EncoderOptions(codec=codec, preset={"h264": "ultrafast", "av1": "12"}[codec]), engine=engine))
status = Path(source).stat()
unit = Unit("a", source, status.st_size, status.st_mtime_ns)
job = WholeJob(unit, settings, "a.mp4", folder + "/partial.mp4", ffmpeg=imageio_ffmpeg.get_ffmpeg_exe())
class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Heap
def held():
    gc.collect()
    libc.malloc_trim(0)  # what is free and kept for the next video is none of it
    heap = libc.mallinfo2()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096, heap.uordblks + heap.hblkhd
seen = []
for number in range(int(count)):
    if number in (int(warm), (int(warm) + int(count)) // 2):
        seen.append(held())
    row = run_job(job)
    assert row.ok, row.message
print(json.dumps([*seen, held()]))
"""


def growth(tmp_path: Path, codec: str, count: int, warm: int, engine: str = "av") -> tuple[int, float]:
    """Bytes that the resident size grew by from the warm-th to the last unit, and that each left behind on the heap.

    Of the two halves the one that left less: a table of the interpreter that doubles does so once, a leak goes on.
    """
    if sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("reads /proc, and asks glibc 2.33")
    clip = make_clip(tmp_path / "a.mp4", 5, (64, 64))
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, str(clip), str(tmp_path), codec, engine, str(count), str(warm)],
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    (before, first), (_, second), (after, third) = json.loads(done.stdout)
    each = min(second - first, third - second) / ((count - warm) // 2)
    print(
        f"{codec}, {engine}: {before / 1e6:.1f} MB after {warm}, {(after - before) / 1e6:+.2f} MB after {count}; {each:.0f} bytes each"
    )
    return after - before, each


@pytest.mark.long
def test_memory_does_not_grow_from_one_video_to_the_next(tmp_path: Path) -> None:
    resident, each = growth(tmp_path, "h264", 300, 50)
    assert resident < 4e6 and each < 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "engine", "limit"), [("h264", "av", 6e6), ("h264", "ffmpeg", 6e6), ("av1", "av", 8e6)]
)
def test_memory_does_not_grow_over_thousands_of_videos(tmp_path: Path, codec: str, engine: str, limit: float) -> None:
    """limit: on the resident size, which grows as the heap is cut to pieces, until its process is replaced."""
    resident, each = growth(tmp_path, codec, 3000, 500, engine)
    assert resident < limit and each < 1000


@pytest.mark.long
def test_children_are_replaced_after_so_many_videos_and_none_is_lost(tmp_path: Path) -> None:
    """What a library leaks all the same ends with its process."""
    from tests.helpers import fault, make_clips, transcode

    src = make_clips(tmp_path / "src", 7)
    # The row says which child made it.
    env = environment(
        tmp_path / "hook",
        fault(
            *points.CHILD_INIT,
            code="sys.modules['vidprep.transcode.workers.child'].VIDEOS_PER_CHILD = 3",
            only="parent",
        ),
        fault(
            *points.ENCODER_VERSION,
            at=-1,
            when="after",
            code="print('CHILD', os.getpid(), file=sys.stderr)",
            only="child",
        ),
    )
    ran = transcode(src, tmp_path / "dst", "--jobs", 1, env=env)
    assert ran.code == 0, ran.err
    told = [line.split()[1] for line in ran.err.splitlines() if line.startswith("CHILD")]
    assert sorted(told.count(child) for child in set(told)) == [1, 3, 3]
    assert len(manifest(tmp_path / "dst")) == 7


# The parent tells what it and its children hold at every 1,000th row.
TELL_GROWTH = """
import os, sys
from pathlib import Path
from vidprep.transcode.cli import main as cli
from vidprep.transcode.run import progress

def tree(process):
    yield process
    for task in (process / "task").iterdir():
        for child in (task / "children").read_text().split():
            yield from tree(Path("/proc") / child)

def tell(self, row, real=progress.Progress.row):
    real(self, row)
    tell.rows += 1
    if tell.rows % 1000 == 500:  # children are replaced after some thousands of videos, as a rule not just here
        held = [(int((p / "statm").read_text().split()[1]) * 4096, len(os.listdir(p / "fd"))) for p in tree(Path("/proc/self"))]
        print("HELD", tell.rows, *(f"{size}/{files}" for size, files in held), file=sys.stderr, flush=True)

tell.rows = 0
progress.Progress.row = tell
cli.main()
"""
CLIPS, WARM, LAST = 20_000, 2_500, 19_500


@pytest.mark.slow
def test_twenty_thousand_clips_in_one_run_hold_no_more_than_two_thousand(tmp_path: Path) -> None:
    """Memory and open files of each process, and what a clip costs beside the work that is done on it."""
    src = tmp_path / "src"
    first = make_clip(src / "base.mp4", 5, (64, 64))
    for number in range(CLIPS - 1):
        os.link(first, src / f"c{number:05d}.mp4")
    began = time.monotonic()
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            TELL_GROWTH,
            *command(src, tmp_path / "dst", "--preset", "ultrafast", "--jobs", 2, "--quiet", "--json")[3:],
        ],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
    )
    wall = time.monotonic() - began
    assert done.returncode == 0, done.stderr[-2000:]
    told = {
        int(line.split()[1]): [tuple(map(int, pair.split("/"))) for pair in line.split()[2:]]
        for line in done.stderr.splitlines()
        if line.startswith("HELD")
    }
    seconds = json.loads(done.stdout.splitlines()[-1])["summary"]["seconds"]
    working = sum(json.loads(line)["encode_seconds"] for line in done.stdout.splitlines()[:-1])
    overhead = (seconds * 2 - working) / CLIPS
    print(
        f"{CLIPS} clips in {wall:.0f} s; {1000 * overhead:.2f} ms a clip beside {1000 * working / CLIPS:.2f} ms of work"
    )
    for count in (WARM, LAST):
        print(count, " ".join(f"{size / 1e6:.1f} MB, {files} files;" for size, files in told[count]))
    parents, *children = zip(told[WARM], told[LAST], strict=True)
    assert len(children) >= 2
    assert parents[1][0] - parents[0][0] < 8e6
    assert max(after for _, (after, _) in children) - max(before for (before, _), _ in children) < 8e6
    assert all(abs(after - before) <= 1 for (_, before), (_, after) in (parents, *children))
    assert overhead < 0.003


MILLION = 1_000_000


@pytest.mark.slow
def test_a_million_sources_are_planned_within_a_minute_and_two_gigabytes(tmp_path: Path) -> None:
    src = tmp_path / "src"
    for folder in range(MILLION // PER_FOLDER):
        place = src / f"{folder:04d}"
        place.mkdir(parents=True)
        (place / "base.mp4").touch()
        for number in range(PER_FOLDER - 1):
            os.link(place / "base.mp4", place / f"clip_{number:04d}.mp4")
    began = time.monotonic()
    with (tmp_path / "plan").open("wb") as out:
        ran = subprocess.run(
            [sys.executable, "-c", TELL_PEAK, *command(src, tmp_path / "dst", "--dry-run")[3:]],
            env=environment(),
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=600,
        )
    seconds = time.monotonic() - began
    assert ran.returncode == 0, ran.stderr
    peak = int(ran.stderr.split("VmHWM:")[1].split()[0]) * 1024
    print(f"{MILLION} sources: {seconds:.1f} s, peak {peak / 1e6:.0f} MB")
    assert f"{MILLION} to do" in ran.stderr
    assert "500,000 files found so far" in ran.stderr
    assert peak < 2e9
    assert seconds < 300
