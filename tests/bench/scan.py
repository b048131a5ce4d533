"""`vidprep scan` beside others, on the clips of shared media (BENCH_SRC=folder) and on films that are joined from them. Never a test.

python -m tests.bench.scan shots        cuts of 60 films, beside PySceneDetect and TransNetV2
python -m tests.bench.scan windows      clips of exactly N frames of 200 odd sources, counted by foreign readers
python -m tests.bench.scan facts        defects that are put into 20 clips each, and how many are found by a condition
python -m tests.bench.scan duplicates   copies of 100 clips, beside hashes per second; leaks between splits; 10^6 hashes
python -m tests.bench.scan cost         CPU time beside ffmpeg's decoding, and memory
"""

from __future__ import annotations

import csv
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any

import av
import imagehash
import numpy as np
import pdqhash
import psutil
from PIL import Image

from tests.films import RATES, Film, Pictures, join, write as write_film
from tests.numbered_pictures import constant, write
from vidprep.transcode import scan, transcode
from vidprep.transcode.sources.table_rows import rows_left_out
from vidprep.transcode.sources.tables import read_source_table

SRC = Path(os.environ.get("BENCH_SRC", "../shared/media"))
SEED = 87
# Clips of one shot each, which were looked at. Left out: those with cuts, jumps or fades of their own (counting, fragmented, clock,
# kinetics, gulpio, webcam_640, both bunnies with a fade) and those that are black (editlist, red_ball).
ONE_SHOT = (
    "bunny_1080p_60fps_vp8", "bunny_1280x720_25fps", "camera", "carphone", "concert", "gopro", "hdr10", "ladybug", "landscape",
    "lego_352", "lego_pal", "motion_photo", "newtons", "pattern_480i", "pattern_640x360", "pattern_720p", "phone_hlg",
    "phone_rotated_90", "tractor", "traffic", "ucf", "webcam_1080",
)  # fmt: skip
TOLERANCES = (0, 2)
VIDPREP = Path(sys.executable).with_name("vidprep")


def pictures_of(path: Path, size: tuple[int, int] = (320, 180), most: int = 150) -> Pictures:
    frames = []
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            frames.append(frame.reformat(*size, "rgb24").to_ndarray())
            if len(frames) == most:
                break
    return np.stack(frames)


def clips() -> dict[str, Path]:
    return {name: next(SRC.glob(f"{name}*")) for name in ONE_SHOT}


# --- shots


def shots() -> None:
    sources = {name: pictures_of(path) for name, path in clips().items()}
    rng = random.Random(SEED)
    with tempfile.TemporaryDirectory() as folder:
        films = []
        for number in range(60):
            is_variable, rate = number % 4 == 3, RATES[number % len(RATES)]
            films.append(join(Path(folder, f"film{number:02d}.mp4"), sources, rng, is_variable=is_variable, rate=rate))
        print(
            f"60 films, seed {SEED}: {sum(len(film.cuts) for film in films)} hard cuts, {sum(len(film.mixes) for film in films)} dissolves "
            f"and fades, {sum(len(film.flashes) for film in films)} frames of flashes\n"
        )
        print("| detector | precision, recall, F1 at 0 | at 2 | dissolves and fades | clips across a hard cut | s |")
        print("| --- | --- | --- | --- | --- | --- |")
        detectors: dict[str, Callable[[Film], tuple[list[int], set[int]]]] = {
            "vidprep, pixels": lambda film: by_scan(film, "pixels"),
            **{
                f"PySceneDetect, detect-{name}": lambda film, name=name: by_pyscenedetect(film, name)
                for name in ("adaptive", "content", "hash", "hist", "threshold")
            },
            "libavfilter's scdet": by_scdet,
            "vidprep, transnetv2": lambda film: by_scan(film, "transnetv2"),
        }
        for name, detect in detectors.items():
            score(name, films, detect)


def by_scan(film: Film, detector: str) -> tuple[list[int], set[int]]:
    table = film.path.with_suffix(".csv")
    scan(film.path, table, shots=True, detector=detector, overwrite=True)
    with table.open() as file:
        rows = [(int(row["start_frame"]), int(row["end_frame"])) for row in csv.DictReader(file)]
    inside = {number for begin, end in rows for number in range(begin, end)}
    cuts = [begin for begin, _ in rows if begin - 1 in inside]
    return cuts, set(range(rows[-1][1])) - inside


def by_pyscenedetect(film: Film, name: str) -> tuple[list[int], set[int]]:
    program = Path(sys.executable).with_name("scenedetect")
    command = [
        program,
        "-q",
        "-i",
        film.path,
        "-o",
        film.path.parent,
        f"detect-{name}",
        "list-scenes",
        "-q",
        "-f",
        "scenes.csv",
    ]
    subprocess.run(command, check=True, capture_output=True)
    with Path(film.path.parent, "scenes.csv").open() as file:
        next(file)
        return [int(row["Start Frame"]) - 1 for row in csv.DictReader(file)][1:], set()


def by_scdet(film: Film) -> tuple[list[int], set[int]]:
    """Frames of score 10 and more, its own threshold."""
    graph = av.filter.Graph()
    found = []
    with av.open(str(film.path)) as container:
        stream = container.streams.video[0]
        nodes = [graph.add_buffer(template=stream), graph.add("scdet", "threshold=10"), graph.add("buffersink")]
        graph.link_nodes(*nodes).configure()
        for number, frame in enumerate(container.decode(stream)):
            graph.push(frame)
            if "lavfi.scd.time" in graph.pull().metadata:
                found.append(number)
    return found, set()


def score(name: str, films: list[Film], detect: Callable[[Film], tuple[list[int], set[int]]]) -> None:
    right, found, true, leaks, mixes, begin = Counter[int](), 0, 0, 0, 0, time.perf_counter()
    for film in films:
        cuts, dropped = detect(film)
        near = {number for first, past in film.mixes for number in range(first - 2, past + 3)}
        counted = [cut for cut in cuts if cut not in near or cut in film.cuts]
        found, true = found + len(counted), true + len(film.cuts)
        for tolerance in TOLERANCES:
            right[tolerance] += sum(any(abs(cut - each) <= tolerance for each in counted) for cut in film.cuts)
        ends = {*cuts, *dropped}
        leaks += sum(not ends & {cut} for cut in film.cuts)
        mixes += sum(bool(ends & set(range(first, past + 1))) for first, past in film.mixes)
    cells = []
    for tolerance in TOLERANCES:
        precision, recall = right[tolerance] / max(1, found), right[tolerance] / true
        cells.append(f"{precision:.3f}, {recall:.3f}, {2 * precision * recall / max(1e-9, precision + recall):.3f}")
    of = sum(len(film.mixes) for film in films)
    print(
        f"| {name} | {' | '.join(cells)} | {mixes} of {of} | {leaks} | {time.perf_counter() - begin:.0f} |", flush=True
    )


# --- windows

ODD = {  # times of the pictures of a source, in seconds
    "25": lambda _rng: constant(150, 25),
    "29.97": lambda _rng: constant(150, Fraction(30000, 1001)),
    "23.976": lambda _rng: constant(150, Fraction(24000, 1001)),
    "60": lambda _rng: constant(200, 60),
    "variable": lambda rng: list(accumulate(rng.choices((Fraction(1, 30), Fraction(1, 24), Fraction(1, 15)), k=120))),
    "late": lambda rng: constant(150, 30, lambda: Fraction(rng.randint(7, 7), 10)),
    "jitter": lambda rng: constant(150, 30, lambda: Fraction(rng.randint(0, 9), 1000)),
    "gap": lambda _rng: [
        time + (Fraction(1, 2) if number > 70 else 0) for number, time in enumerate(constant(140, 30))
    ],
}
READERS = """
import sys, json
from pathlib import Path
counts = {}
for path in map(Path, sys.argv[2:]):
    if sys.argv[1] == "OpenCV":
        import cv2
        video, count = cv2.VideoCapture(str(path)), 0
        while video.read()[0]:
            count += 1
    elif sys.argv[1] == "imageio":
        import imageio_ffmpeg
        frames = imageio_ffmpeg.read_frames(str(path), output_params=["-fps_mode", "passthrough"])
        count = sum(1 for _ in frames) - 1
    elif sys.argv[1] == "decord":
        import decord
        count = len(decord.VideoReader(str(path)))
    counts[path.name] = count
print(json.dumps(counts))
"""


def windows() -> None:
    rng, wanted = random.Random(SEED), 17
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "raw")
        for number in range(200):
            name, suffix = list(ODD)[number % len(ODD)], (".mp4", ".mkv", ".mov", ".webm", ".ts")[number % 5]
            write(raw / f"{number:03d}_{name}{suffix}", ODD[name](rng))
        for number in range(0, 200, 7):  # an edit list: the first frames are not shown
            path = raw / f"edit_{number}.mp4"
            source = next(raw.glob(f"{number:03d}_*"))
            subprocess.run(["ffmpeg", "-v", "error", "-ss", "0.7", "-i", source, "-c", "copy", path], check=True)
        for fps in ("12", "10", "24000/1001"):
            table, out = Path(folder, f"{fps[:2]}.parquet"), Path(folder, fps[:2])
            done = scan(raw, table, clip_frames=wanted, clip_step=11, fps=fps, jobs=2)
            summary = transcode(table, out, fps=fps, jobs=2)
            files = sorted(out.rglob("*.mp4"))
            print(f"--fps {fps}: {done.clips} clips of {done.sources} sources, {len(files)} made\n{summary}")
            for reader in ("OpenCV", "imageio", "decord"):
                command = [sys.executable, "-c", READERS, reader, *files]
                counts = json.loads(
                    subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
                )
                print(f"  {reader}: {sum(count == wanted for count in counts.values())} have {wanted} frames")
            probed = 0
            for path in files:
                asked = [
                    "ffprobe",
                    "-v",
                    "error",
                    "-count_frames",
                    "-show_entries",
                    "stream=nb_read_frames",
                    "-of",
                    "csv=p=0",
                    path,
                ]
                probed += (
                    int(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip(",\n")) == wanted
                )
            print(f"  ffprobe: {probed} have {wanted} frames")


# --- facts


def _scaled(picture: Pictures, factor: float, middle: float = 0.0) -> Pictures:
    return np.clip((picture.astype(float) - middle) * factor + middle, 0, 255).astype(np.uint8)


def _barred(clip: Pictures, rows: int, columns: int) -> Pictures:
    clip = clip.copy()
    clip[:, :rows] = clip[:, clip.shape[1] - rows :] = 0
    clip[:, :, :columns] = clip[:, :, clip.shape[2] - columns :] = 0
    return clip


def _resampled(clip: Pictures, size: tuple[int, int]) -> Pictures:
    return np.stack(
        [
            np.asarray(
                Image.fromarray(each).resize(size, Image.Resampling.BOX).resize((320, 180), Image.Resampling.BICUBIC)
            )
            for each in clip
        ]
    )


def _noisy(clip: Pictures, sigma: float) -> Pictures:
    rng = np.random.default_rng(SEED)
    return np.clip(clip + rng.normal(0, sigma, clip.shape), 0, 255).astype(np.uint8)


# A defect, how it is put into a clip, and the condition that finds it.
DEFECTS: dict[str, tuple[Callable[[Pictures], Pictures], str]] = {
    "black": (lambda clip: clip * 0, "black > 0.9"),
    "black with noise": (lambda clip: _noisy(clip * 0, 6), "black > 0.9"),
    "half of it black": (lambda clip: np.concatenate([clip[:24], clip[24:] * 0]), "black > 0.4"),
    "frozen": (lambda clip: clip[:1].repeat(48, 0), "frozen > 0.9"),
    "half of it frozen": (lambda clip: np.concatenate([clip[:24], clip[24:25].repeat(24, 0)]), "frozen > 0.4"),
    "blurred": (lambda clip: _resampled(clip, (32, 18)), "sharpness < 40"),
    "enlarged from 40x22": (lambda clip: _resampled(clip, (40, 22)), "sharpness < 40"),
    "noise": (lambda clip: _noisy(clip, 60), "sharpness > 9000"),
    "only noise": (lambda clip: _noisy(clip * 0 + 128, 90), "sharpness > 9000"),
    "bars above and below": (lambda clip: _barred(clip, 22, 0), "borders != None"),
    "bars at the sides": (lambda clip: _barred(clip, 0, 40), "borders != None"),
    "bars on all sides": (lambda clip: _barred(clip, 16, 30), "borders != None"),
    "too dark": (lambda clip: _scaled(clip, 0.12), "brightness < 0.11"),
    "blown out": (lambda clip: _scaled(clip.astype(float) + 220, 1), "brightness > 0.85"),
    "washed out": (lambda clip: _scaled(clip, 0.12, 128), "contrast < 0.04"),
    "without colour": (lambda clip: clip.mean(-1, keepdims=True).astype(np.uint8).repeat(3, -1), "saturation < 0.015"),
    "flicker": (
        lambda clip: np.stack([each if n % 2 else _scaled(each, 0.3) for n, each in enumerate(clip)]),
        "temporal_information > 25 or motion > 4",
    ),
    "frames in random order": (
        lambda clip: np.concatenate(
            [clip[np.random.default_rng(n).permutation(48)][:1] if n % 2 else clip[:1] * 0 + 255 for n in range(48)]
        ),
        "motion > 4",
    ),
    "silent": (lambda clip: clip, "silence > 0.9"),
    "luma upside down": (lambda clip: 255 - clip, ""),
}


# Whole clips that have it, as was looked at.
BARS = ("bars above and below", "bars at the sides", "bars on all sides")
HAVE = {
    "concert": ("black", "black with noise", "half of it black", "too dark", "washed out", "without colour", *BARS),
    "pattern_480i": ("too dark", "flicker", *BARS),
    "lego_pal": ("frozen", "half of it frozen"),
    "motion_photo": ("frozen", "half of it frozen"),
    "newtons": ("without colour",),
}


def facts() -> None:
    names = list(clips())[:20]
    with tempfile.TemporaryDirectory() as folder:
        print("| defect | condition | found | whole clips that it names |\n| --- | --- | --- | --- |")
        pictures = {name: pictures_of(clips()[name], most=48) for name in names}
        pictures = {
            name: np.concatenate([each] * 3)[:48] if len(each) < 48 else each for name, each in pictures.items()
        }
        for kind, (damage, _) in {"whole": (lambda clip: clip, ""), **DEFECTS}.items():
            for name, each in pictures.items():
                path = Path(folder, kind, f"{name}.mp4")
                path.parent.mkdir(exist_ok=True)
                with_sound(path, list(damage(each)), is_silent=kind == "silent")
        tables = {}
        for kind in ("whole", *DEFECTS):
            table = Path(folder, f"{kind}.parquet")
            scan(Path(folder, kind), table, jobs=2)
            tables[kind] = read_source_table(table)
        found = wrong = checked = 0
        for kind, (_, condition) in DEFECTS.items():
            if not condition:
                print(f"| {kind} | none | 0 of 20 | |")
                continue
            hits = tables[kind].num_rows - len(rows_left_out(condition, tables[kind], kind))
            out = rows_left_out(condition, tables["whole"], kind)
            rows = [row["id"].split("_f0")[0] for n, row in enumerate(tables["whole"].rows()) if n not in out]
            false = [name for name in rows if kind not in HAVE.get(name, "")]
            print(f"| {kind} | `{condition}` | {hits} of 20 | {', '.join(false) or 'none'} |")
            found, wrong, checked = found + hits, wrong + len(false), checked + len(names)
        print(
            f"\nfound {found} of {20 * len(DEFECTS)}; {wrong} of {checked} checks of whole clips are wrong, {wrong / checked:.1%}"
        )


def with_sound(path: Path, frames: list[Pictures], *, is_silent: bool) -> None:
    write_film(path.with_suffix(".mkv"), frames, random.Random(0), is_variable=False, rate=Fraction(24))
    level = 0 if is_silent else 0.2
    sound = ["-f", "lavfi", "-i", f"sine=440:duration=2,volume={level}"]
    command = [
        "ffmpeg",
        "-v",
        "error",
        "-y",
        "-i",
        path.with_suffix(".mkv"),
        *sound,
        "-c:v",
        "copy",
        "-c:a",
        "aac",
        path,
    ]
    subprocess.run(command, check=True)
    path.with_suffix(".mkv").unlink()


# --- duplicates


def _cropped(clip: Pictures) -> Pictures:
    return _resized(clip[:, 9:171, 16:304])


def _resized(clip: Pictures, size: tuple[int, int] = (320, 180)) -> Pictures:
    return np.stack([np.asarray(Image.fromarray(each).resize(size)) for each in clip])


def _with_logo(clip: Pictures) -> Pictures:
    clip = clip.copy()
    clip[:, 10:40, 250:310] = (230, 40, 40)
    clip[:, 18:32, 258:302] = 255
    return clip


def _in_bars(clip: Pictures) -> Pictures:
    return np.pad(clip, ((0, 0), (24, 24), (0, 0), (0, 0)))


# A copy: its pictures, its rate, its CRF.
COPIES: dict[str, Callable[[Pictures], tuple[Pictures, int, int]]] = {
    "CRF 40": lambda clip: (clip, 25, 40),
    "half rate": lambda clip: (clip[::2], 12, 23),
    "half size": lambda clip: (_resized(clip, (160, 90)), 25, 23),
    "10 % crop": lambda clip: (_cropped(clip), 25, 23),
    "bars": lambda clip: (_in_bars(clip), 25, 23),
    "logo": lambda clip: (_with_logo(clip), 25, 23),
    "mirrored": lambda clip: (np.ascontiguousarray(clip[:, :, ::-1]), 25, 23),
    "2 s cut out": lambda clip: (clip[17:67], 25, 23),
}
LENGTH = 100


def originals() -> dict[str, Pictures]:
    """100 clips of 4 s: 20 clips, and the four quarters of their pictures."""
    found = {}
    for name in [*clips(), "kinetics", "gulpio", "webcam_640"]:
        if name in (
            "concert",
            "pattern_480i",
            "landscape",
            "newtons",
            "motion_photo",
        ):  # dark, or too small for quarters
            continue
        clip = pictures_of(next(SRC.glob(f"{name}*")), (640, 360), LENGTH)
        clip = np.concatenate([clip, clip[::-1]] * 5)[:LENGTH]
        found[name] = _resized(clip)
        for number, (top, left) in enumerate(((0, 0), (0, 320), (180, 0), (180, 320))):
            found[f"{name}_{number}"] = clip[:, top : top + 180, left : left + 320]
    return dict(list(found.items())[:100])


def save(path: Path, copy: tuple[Pictures, int, int]) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    write_film(path, list(copy[0]), random.Random(0), is_variable=False, rate=Fraction(copy[1]), crf=copy[2])


def duplicates() -> None:
    clips_there = originals()
    with tempfile.TemporaryDirectory() as folder:
        for name, clip in clips_there.items():
            save(Path(folder, "train", f"{name}.mp4"), (clip, 25, 20))
        table = Path(folder, "train.parquet")
        scan(Path(folder, "train"), table, duplicates=True, jobs=2)
        among = sum(value is not None for value in read_source_table(table).values("duplicate_of"))
        print(f"{len(clips_there)} clips, of which {among} are called duplicates of each other\n")
        print(
            "| copy | vidprep: recall, precision | PDQ per second as vpdq compares | imagehash.phash per second |\n| --- | --- | --- | --- |"
        )
        known = {name: hashed(Path(folder, "train", f"{name}.mp4")) for name in clips_there}
        for kind, copy in COPIES.items():
            for name, clip in clips_there.items():
                save(Path(folder, kind, f"{name}.mp4"), copy(clip))
            copies = Path(folder, f"{kind}.parquet")
            scan(Path(folder, kind), copies, against=[table], mirrored=kind == "mirrored", jobs=2)
            rows = list(read_source_table(copies).rows())
            named = {name_of(row["id"]): name_of(row["duplicate_of"]) for row in rows if row["duplicate_of"]}
            cells = [recall_and_precision({name: {value} for name, value in named.items()})]
            hashes = {name: hashed(Path(folder, kind, f"{name}.mp4")) for name in clips_there}
            for number, most in ((0, 31), (1, 10)):
                cells.append(
                    recall_and_precision(
                        {name: alike(each[number], known, number, most) for name, each in hashes.items()}
                    )
                )
            print(f"| {kind} | {' | '.join(cells)} |", flush=True)
        rng, seen, wrong = random.Random(SEED), 0, 0
        for trial in range(50):
            name, kind = rng.choice(list(clips_there)), rng.choice(list(COPIES))
            fresh = Path(folder, f"test{trial}")
            save(fresh / "planted.mp4", COPIES[kind](clips_there[name]))
            for number in range(2):
                noise = np.random.default_rng(trial * 2 + number).integers(0, 255, (9, 16, 3)).astype(np.uint8)
                save(fresh / f"{number}.mp4", (_resized(noise[None].repeat(60, 0)), 25, 23))
            scan(fresh, fresh / "test.csv", against=[table], mirrored=True, jobs=2)
            found = {name_of(row["id"]): row["duplicate_of"] for row in read_source_table(fresh / "test.csv").rows()}
            seen += name_of(found.pop("planted") or "") == name
            wrong += sum(value is not None for value in found.values())
        print(f"\nplanted leaks found: {seen} of 50; other clips called duplicates: {wrong} of 100")
    measure_grouping()


def name_of(id_: str) -> str:
    return id_.rpartition("/")[2].split("_f0")[0]


def recall_and_precision(named: dict[str, set[str]]) -> str:
    right, all_named = sum(name in others for name, others in named.items()), sum(map(len, named.values()))
    return f"{right / 100:.2f}, {right / max(1, all_named):.2f}"


def hashed(path: Path) -> tuple[list[Any], list[Any]]:
    """PDQ and phash of a frame every second."""
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    seconds = frames[-1].time + 0.04
    chosen = [min(frames, key=lambda frame: abs(frame.time - second)) for second in range(int(seconds))]
    pdq = [pdqhash.compute(frame.to_ndarray(format="rgb24")) for frame in chosen]
    return [bits.astype(bool) for bits, quality in pdq if quality >= 50], [
        imagehash.phash(frame.to_image()).hash.ravel() for frame in chosen
    ]


def alike(hashes: list[Any], known: dict[str, tuple[list[Any], list[Any]]], number: int, most: int) -> set[str]:
    """The clips of which a hash is near for at least half of some hashes."""
    found = set()
    for name, each in known.items():
        near = sum(any(int((one != other).sum()) <= most for other in each[number]) for one in hashes)
        if hashes and 2 * near >= len(hashes):
            found.add(name)
    return found


def measure_grouping(count: int = 1_000_000) -> None:
    """Group clips of five frames with two hashes each, a tenth of which are copies with about 20 bits that differ, in a process of its own."""
    code = f"""
import re, time
from pathlib import Path
import numpy as np
from vidprep.transcode.clips._duplicates import Hashes, group, hashes_text
rng = np.random.default_rng(0)
num = {count} // 10
bits = rng.integers(0, 256, (num, 10, 32), dtype=np.uint8)
copies = rng.permutation(num)[: num // 5].reshape(2, -1)
bits[copies[1]] = bits[copies[0]] ^ np.packbits(rng.random((num // 10, 10, 256)) < 20 / 256, axis=-1)
texts = [hashes_text((n / 4, (clip[2 * n].tobytes(), clip[2 * n + 1].tobytes())) for n in range(5)) for clip in bits]
begin = time.perf_counter()
found = {{match[:2] for match in Hashes.parse(texts, [1.25] * num).matches()}}
group(num, found)
true = {{tuple(sorted(pair)) for pair in copies.T.tolist()}}
seconds, memory = time.perf_counter() - begin, int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1e6
print(f"{count:,} hashes of {{num:,}} clips: {{seconds:.0f}} s, {{memory:.2f}} GB, ", end="")
print(f"recall {{len(found & true) / len(true):.4f}}, precision {{len(found & true) / len(found):.4f}}")
"""
    print(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


# --- cost


def cost() -> None:
    print("| clip | ffmpeg, s | scan, s | ratio |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        nothing = cpu_seconds([VIDPREP, "scan", SRC / "one_frame_64x64_mpeg4.mp4", Path(folder, "0.csv"), "--quiet"])
        sums = [0.0, 0.0]
        for path in sorted({*clips().values(), *SRC.glob("clock*"), *SRC.glob("kinetics*")}):
            decoded = cpu_seconds(
                ["ffmpeg", "-v", "error", "-i", path, "-map", "0:v:0", "-map", "0:a:0?", "-f", "null", "-"]
            )
            command = [VIDPREP, "scan", path, Path(folder, f"{path.name}.csv"), "--quiet", "--shots", "--duplicates"]
            scanned = cpu_seconds(command) - nothing
            sums = [sums[0] + decoded, sums[1] + scanned]
            print(f"| {path.name} | {decoded:.2f} | {scanned:.2f} | {scanned / decoded:.2f} |")
        print(f"\nall: {sums[1] / sums[0]:.2f}; starting, of which each row is free: {nothing:.2f} s")
        for seconds in (60, 600):
            film = Path(folder, f"{seconds}.mp4")
            source = ["-f", "lavfi", "-i", f"testsrc2=size=640x360:rate=25:duration={seconds}"]
            subprocess.run(["ffmpeg", "-v", "error", *source, "-preset", "ultrafast", film], check=True)
            peak = max_memory(
                [VIDPREP, "scan", film, Path(folder, f"{seconds}.csv"), "--quiet", "--shots", "--duplicates"]
            )
            print(f"memory of the largest process, {seconds} s of video: {peak / 1e6:.0f} MB")


def cpu_seconds(command: list[Any]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([str(each) for each in command], check=False, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def max_memory(command: list[Any]) -> int:
    peak = 0
    with subprocess.Popen([str(each) for each in command]) as process:
        while process.poll() is None:
            for each in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
                with suppress(psutil.Error):
                    peak = max(peak, each.memory_full_info().uss)
            time.sleep(0.1)
    return peak


PARTS = {"shots": shots, "windows": windows, "facts": facts, "duplicates": duplicates, "cost": cost}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        print(f"\n## {part}\n")
        PARTS[part]()
