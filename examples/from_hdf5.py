"""Episodes in HDF5 as videos, rows and a table: python examples/from_hdf5.py FOLDER OUT FPS

Each file is an episode as ACT and ALOHA store it: pictures in observations/images/CAMERA, (T, H, W, 3) uint8 or (T, bytes) JPEGs, and
(T, …) numbers in action and in what else is under observations. Then:

    vidprep transcode OUT/episodes.csv store --gop 5
    vidprep pack store robot --to lerobot
"""

from __future__ import annotations

import csv
import io
import sys
from fractions import Fraction
from pathlib import Path

import av
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def main(source: Path, out: Path, rate: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / "episodes.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "id", "episode_index", "camera", "task", "rows"])
        for number, path in enumerate(sorted(source.glob("*.h*5"))):
            with h5py.File(path) as episode:
                columns: dict[str, object] = {}
                episode.visititems(lambda name, item, found=columns: add_column(found, name, item))
                rows = pa.table({"frame": np.arange(len(episode["action"])), **columns})
                pq.write_table(rows, out / f"{path.stem}.parquet")
                task = episode.attrs.get("language_instruction", "")
                task = task.decode() if isinstance(task, bytes) else str(task)
                for camera, pictures in episode["observations/images"].items():
                    name = f"{path.stem}-{camera}"
                    write_video(pictures, out / f"{name}.avi", rate)
                    table.writerow([f"{name}.avi", name, number, camera, task, f"{path.stem}.parquet"])


def add_column(found: dict[str, object], name: str, item: object) -> None:
    """Add an array of numbers as a column of the rows."""
    is_numbers = isinstance(item, h5py.Dataset) and item.dtype.kind in "fiub" and item.ndim in (1, 2)
    if is_numbers and "images" not in name and (name == "action" or name.startswith("observations/")):
        key = (
            name.replace("observations/", "observation.")
            .replace("observation.qpos", "observation.state")
            .replace("/", ".")
        )
        found[key] = item[:] if item.ndim == 1 else list(item[:])


def write_video(pictures: h5py.Dataset, path: Path, rate: int) -> None:
    """Write pictures without a loss."""
    with av.open(path, "w") as container:
        stream = container.add_stream("ffv1", rate=Fraction(rate))
        stream.pix_fmt = "bgr0"
        for number, picture in enumerate(pictures):
            if picture.ndim == 1:  # a JPEG, padded with zeros
                with av.open(io.BytesIO(picture.tobytes())) as jpeg:
                    picture = next(jpeg.decode(video=0)).to_ndarray(format="rgb24")
            if number == 0:
                stream.height, stream.width = picture.shape[:2]
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        container.mux(stream.encode(None))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
