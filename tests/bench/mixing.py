"""How well shuffle="runs" mixes classes, with shards in the order of ids, which are sorted by class, and in shuffled order.

    python -m tests.bench.mixing WORK

makes 2,000 videos of 100 classes, about 150 kB each, packs them in both orders, and prints for batches of 64 sequences how many classes
they have on average, and how much the classes of a batch tell about those of the next one (correlation of their counts).
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.helpers import make_clip
from vidprep.formats import PrefetchLoader, VideoDataset
from vidprep.transcode import burst, pack

CLASSES, EACH, FRAMES, BATCH = 100, 20, 12, 64


def made(work: Path) -> Path:
    if not (work / "made").exists():
        numbers = range(CLASSES * EACH)
        clip = make_clip(work / "long.mp4", 50 * FRAMES, (320, 240), options={"g": str(FRAMES)})
        begins = [number % 50 * FRAMES for number in numbers]
        classes = [f"class{number // EACH:03d}" for number in numbers]
        ids = [f"{name}/{number:04d}" for name, number in zip(classes, numbers, strict=True)]
        ends = [begin + FRAMES for begin in begins]
        table = {"path": [str(clip)] * len(ids), "id": ids, "label": classes, "start_frame": begins, "end_frame": ends}
        burst(pa.table(table), work / "made")
        pack(work / "made", work / "id", to="burst", order="id")
        pack(work / "made", work / "shuffled", to="burst")
    return work


def told(store: Path, shuffle: bool | str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = VideoDataset(store, 4, 2)
        loader = PrefetchLoader(dataset, BATCH, shuffle=shuffle, drop_last=True, workers=2)
    with loader:
        batches = [batch["class_id"] for batch in loader]
    distinct = np.mean([len(np.unique(batch)) for batch in batches])
    counts = np.stack([np.bincount(batch, minlength=CLASSES) for batch in batches]).astype(float)
    counts -= counts.mean(0)
    correlation = (counts[1:] * counts[:-1]).sum() / (counts * counts).sum()
    return f"| {shuffle!r} | {store.name} | {distinct:.1f} | {correlation:+.2f} |"


if __name__ == "__main__":
    work = made(Path(sys.argv[1]))
    print("| shuffle | order of the shards | classes in a batch of 64 | correlation with the next batch |")
    print("| --- | --- | ---: | ---: |")
    for name, shuffle in (("id", "runs"), ("shuffled", "runs"), ("shuffled", True)):
        print(told(work / name, shuffle))
