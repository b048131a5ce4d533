"""The README's loader table: stores made of raw clips, and `vidprep bench` over all of them. Never a test.

    python tests/bench/loaders.py WORK [--cache both …]      WORK keeps the stores, and the pages in WORK/page and WORK/page-hd

Prints the README's two tables: median ms for a sequence, warm / cold, and times the frames a second of raw files, warm.

The action clips of ../shared/media (BENCH_SRC=folder names others) at 15 frames a second and 240 lines: H.264, HEVC,
VP9 and AV1 at GOP 5 and 16, burst, tensor, and folders of .jpg and .png; then again H.264 against those raw files that are 720p
and 1080p. What is given after WORK goes to `vidprep bench`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import av
from bench import ENVIRONMENT, clips
from PIL import Image

ACTION = (
    "kinetics_arm_wrestling_340x256_28fps.mp4",
    "gulpio_matchbox_256x144_vp8.webm",
    "bunny_1280x720_25fps_h264_aac.mp4",
    "concert_1080p50_h264_pcm.mov",
    "bunny_1080p_60fps_vp8.webm",
    "gopro_848x480_gpmf.mp4",
)
ENCODED = {f"{codec}-gop{gop}": (codec, gop) for codec in ("h264", "hevc", "vp9", "av1") for gop in (5, 16)}
SHAPE = ["--fps", "15", "--short-side", "240", "--quiet"]


def vidprep(*args: object) -> None:
    subprocess.run([sys.executable, "-m", "vidprep.transcode", *map(str, args)], check=True, env=ENVIRONMENT)


def links(folder: Path, names: Iterable[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not (folder / name).exists():
            (folder / name).symlink_to(clips().resolve() / name)
    return folder


def is_large(path: Path) -> bool:
    """720 lines or more."""
    with av.open(str(path)) as container:
        return min(container.streams.video[0].width, container.streams.video[0].height) >= 720


def as_png(jpegs: Path, folder: Path) -> None:
    for path in sorted(jpegs.rglob("*.jpg")):
        target = folder / path.relative_to(jpegs).with_suffix(".png")
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.open(path).save(target)


def print_table(told: Path) -> None:
    cells = [row for row in json.loads(told.read_bytes())["cell"] if row["refused"] or row["pattern"] == "consecutive"]
    loaders = list(dict.fromkeys(row["loader"] for row in cells))
    print(f"\n| | {' | '.join(loaders)} |\n|{' --- |' * (len(loaders) + 1)}")
    for store in dict.fromkeys(row["store"] for row in cells):
        shown = []
        for loader in loaders:
            mine = [row for row in cells if (row["store"], row["loader"]) == (store, loader)]
            if not mine or any(row["refused"] for row in mine):
                shown.append("refused" if mine else "–")
                continue
            faster = f" ({mine[0]['speed_up']:.0f} ×)" if mine[0]["speed_up"] else ""
            shown.append(" / ".join(f"{row['ms_median']:,.1f}" for row in mine) + faster)
        print(f"| {Path(store).name} | {' | '.join(shown)} |")


def main(work: Path, options: list[str]) -> None:
    names = ACTION if "BENCH_SRC" not in os.environ else [path.name for path in clips().iterdir() if path.is_file()]
    raw = links(work / "raw", names)
    large = links(work / "raw-hd", [path.name for path in sorted(raw.iterdir()) if is_large(path)])
    for name, (codec, gop) in ENCODED.items():
        vidprep("transcode", raw, work / name, "--codec", codec, "--gop", gop, *SHAPE)
    for name in ("burst", "tensor"):
        vidprep("burst", raw, work / name, "--format", name, *SHAPE)
    if not (work / "jpg").exists():
        vidprep("pack", work / "burst", work / "jpg", "--to", "frames")
    as_png(work / "jpg", work / "png")
    stores = [work / name for name in ("raw", *ENCODED, "burst", "tensor", "jpg", "png")]
    given = options or ["--cache", "both"]
    vidprep("bench", *stores, "--out", work / "page", *given)
    vidprep("bench", large, work / "h264-gop5", work / "h264-gop16", "--out", work / "page-hd", *given)
    for page in ("page", "page-hd"):
        print_table(work / page / "bench.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
