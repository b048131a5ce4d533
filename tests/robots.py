"""LeRobot datasets made here after their specification: the number of the row is drawn in each picture, and stands in the row."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from av.video.frame import PictureType

from tests.numbered_pictures import picture

CAMERAS = ("observation.images.front", "observation.images.wrist")
TASKS = ("pick the cube", "put it back")
LENGTHS = (37, 41, 23)
OTHER_CAMERA = 1000  # what the second camera's numbers begin with
SIZE = 64


def write_video(
    path: Path,
    numbers: Sequence[int | None],
    rate: int,
    starts: Sequence[int] = (0,),
    *,
    codec: str = "libx264",
    gop: int = 2,
) -> None:
    """A video of numbered pictures, with keyframes at `starts`. None is a black picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"libx264": {"preset": "ultrafast", "qp": "20", "bf": "0"}, "libsvtav1": {"preset": "12", "crf": "20"}}
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.width = stream.height = SIZE
        stream.pix_fmt = "yuv420p"
        stream.codec_context.options = options[codec]
        stream.codec_context.gop_size = gop
        stream.codec_context.thread_count = 1
        for at, number in enumerate(numbers):
            drawn = np.repeat(
                (picture(number) if number is not None else np.zeros((SIZE, SIZE), np.uint8))[..., None], 3, 2
            )
            frame = av.VideoFrame.from_ndarray(drawn, format="rgb24").reformat(format="yuv420p")
            frame.pts = at
            if at in starts:
                frame.pict_type = PictureType.I
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def row_table(root_numbers: Sequence[int], lengths: Sequence[int], rate: int) -> pa.Table:
    """The rows of episodes: state and action are functions of the number of the row."""
    episode = np.repeat(np.arange(len(lengths)), lengths)
    frame = np.concatenate([np.arange(length) for length in lengths])
    number = np.asarray(root_numbers)
    return pa.table(
        {
            "observation.state": pa.FixedSizeListArray.from_arrays(
                pa.array(np.stack([number, np.sin(number / 5.0)], 1).astype(np.float32).reshape(-1)), 2
            ),
            "action": pa.FixedSizeListArray.from_arrays(
                pa.array(np.stack([number * 10.0, -number], 1).astype(np.float32).reshape(-1)), 2
            ),
            "timestamp": pa.array((frame / rate).astype(np.float32)),
            "frame_index": pa.array(frame, pa.int64()),
            "episode_index": pa.array(episode, pa.int64()),
            "index": pa.array(number, pa.int64()),
            "task_index": pa.array(episode % len(TASKS), pa.int64()),
        }
    )


def features(rate: int, codec: str = "h264") -> dict[str, Any]:
    vector = {"dtype": "float32", "shape": [2], "names": ["a", "b"]}
    number: dict[str, Any] = {"dtype": "int64", "shape": [1], "names": None}
    info = {
        "video.height": SIZE,
        "video.width": SIZE,
        "video.codec": codec,
        "video.pix_fmt": "yuv420p",
        "video.is_depth_map": False,
        "video.fps": rate,
        "video.channels": 3,
        "has_audio": False,
    }
    video = {"dtype": "video", "shape": [SIZE, SIZE, 3], "names": ["height", "width", "channels"], "info": info}
    return {
        "observation.state": vector,
        "action": vector,
        **dict.fromkeys(CAMERAS, video),
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
        **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), number),
    }


def write_info(root: Path, version: str, rate: int, lengths: Sequence[int], **more: Any) -> None:
    info = {
        "codebase_version": version,
        "robot_type": "made here",
        "total_episodes": len(lengths),
        "total_frames": sum(lengths),
        "total_tasks": len(TASKS),
        "chunks_size": 1000,
        "fps": rate,
        "splits": {"train": f"0:{len(lengths)}"},
        "features": features(rate),
        **more,
    }
    (root / "meta").mkdir(parents=True, exist_ok=True)
    (root / "meta" / "info.json").write_text(json.dumps(info, indent=4))


def statistics(rows: pa.Table, numbers: dict[str, Sequence[int]]) -> dict[str, dict[str, Any]]:
    """What LeRobot's writer notes of rows, and of the pictures of each camera."""
    found: dict[str, dict[str, Any]] = {}
    for name in ("observation.state", "action"):
        values = np.asarray(rows[name].to_pylist(), np.float64)
        found[name] = {kind: getattr(values, kind)(0).tolist() for kind in ("min", "max", "mean", "std")}
        found[name]["count"] = [len(values)]
    for camera, shown in numbers.items():
        pictures = np.stack([picture(number) for number in shown]) / 255
        found[camera] = {kind: [[[float(getattr(pictures, kind)())]]] * 3 for kind in ("min", "max", "mean", "std")}
        found[camera]["count"] = [len(shown)]
    return found


def make_robot_dataset(root: Path, *, rate: int = 30, lengths: Sequence[int] = LENGTHS, **how: Any) -> Path:
    """Version 3.0: all episodes in one file of rows, and one video for each camera."""
    starts = [0, *accumulate(lengths)]
    numbers = list(range(starts[-1]))
    write_info(
        root,
        "v3.0",
        rate,
        lengths,
        data_path="data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        video_path="videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        data_files_size_in_mb=100,
        video_files_size_in_mb=200,
    )
    rows = row_table(numbers, lengths, rate)
    (root / "data" / "chunk-000").mkdir(parents=True)
    with pq.ParquetWriter(root / "data" / "chunk-000" / "file-000.parquet", rows.schema) as file:
        for first, length in zip(starts, lengths, strict=False):
            file.write_table(rows.slice(first, length))
    for at, camera in enumerate(CAMERAS):
        shown = [number + at * OTHER_CAMERA for number in numbers]
        write_video(root / "videos" / camera / "chunk-000" / "file-000.mp4", shown, rate, starts, **how)
    episodes = []
    for number, length in enumerate(lengths):
        first, last = starts[number], starts[number + 1]
        about: dict[str, Any] = {
            "episode_index": number,
            "tasks": [TASKS[number % len(TASKS)]],
            "length": length,
            "data/chunk_index": 0,
            "data/file_index": 0,
            "dataset_from_index": first,
            "dataset_to_index": last,
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }
        for camera in CAMERAS:
            about |= {f"videos/{camera}/{name}": 0 for name in ("chunk_index", "file_index")}
            about |= {f"videos/{camera}/from_timestamp": first / rate, f"videos/{camera}/to_timestamp": last / rate}
        shown = {
            camera: range(first + at * OTHER_CAMERA, last + at * OTHER_CAMERA) for at, camera in enumerate(CAMERAS)
        }
        for name, own in statistics(rows.slice(first, length), shown).items():
            about |= {f"stats/{name}/{kind}": values for kind, values in own.items()}
        episodes.append(about)
    (root / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(episodes), root / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    pq.write_table(pandas_table({"task_index": list(range(len(TASKS)))}, list(TASKS)), root / "meta" / "tasks.parquet")
    shown = {camera: [number + at * OTHER_CAMERA for number in numbers] for at, camera in enumerate(CAMERAS)}
    (root / "meta" / "stats.json").write_text(json.dumps(statistics(rows, shown)))
    return root


STILL = "observation.images.still"


def with_pictures(root: Path, *, codec: str = "png") -> Path:
    """Add a column of numbered pictures to the rows."""
    for path in (root / "data").rglob("*.parquet"):
        table = pq.read_table(path, partitioning=None)
        drawn = [np.repeat(picture(number)[:48, :, None], 3, 2) for number in table["index"].to_pylist()]
        cells = [{"bytes": encoded(each, codec), "path": None} for each in drawn]
        pq.write_table(table.append_column(STILL, pa.array(cells)), path)
    about = json.loads((root / "meta/info.json").read_text())
    about["features"][STILL] = {"dtype": "image", "shape": [48, SIZE, 3], "names": ["height", "width", "channels"]}
    (root / "meta/info.json").write_text(json.dumps(about))
    return root


def encoded(drawn: np.ndarray, codec: str) -> bytes:
    """A picture as PNG or JPEG."""
    with av.open(buffer := io.BytesIO(), "w", format="image2pipe") as file:
        stream: Any = file.add_stream(codec)
        stream.height, stream.width, stream.pix_fmt = *drawn.shape[:2], {"png": "rgb24", "mjpeg": "yuvj420p"}[codec]
        file.mux([*stream.encode(av.VideoFrame.from_ndarray(drawn, "rgb24")), *stream.encode(None)])
    return buffer.getvalue()


def pandas_table(columns: dict[str, list[int]], index: list[str]) -> pa.Table:
    """A table that pandas reads with this index."""
    described = [
        {"name": name, "field_name": name, "pandas_type": "int64", "numpy_type": "int64", "metadata": None}
        for name in columns
    ]
    index_about = {
        "name": None,
        "field_name": "__index_level_0__",
        "pandas_type": "unicode",
        "numpy_type": "object",
        "metadata": None,
    }
    pandas = {
        "index_columns": ["__index_level_0__"],
        "column_indexes": [],
        "columns": [*described, index_about],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.3",
    }
    table = pa.table(
        {**{name: pa.array(values, pa.int64()) for name, values in columns.items()}, "__index_level_0__": index}
    )
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})


def make_old_dataset(root: Path, *, rate: int = 30, lengths: Sequence[int] = LENGTHS) -> Path:
    """Version 2.1: a file of rows and a video per camera for each episode."""
    write_info(
        root,
        "v2.1",
        rate,
        lengths,
        data_path="data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        video_path="videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    )
    starts = [0, *accumulate(lengths)]
    rows = row_table(list(range(starts[-1])), lengths, rate)
    (root / "data" / "chunk-000").mkdir(parents=True)
    stats = []
    listed, tasks = [], [{"task_index": number, "task": task} for number, task in enumerate(TASKS)]
    for number, length in enumerate(lengths):
        own = range(starts[number], starts[number + 1])
        pq.write_table(rows.slice(own.start, length), root / "data" / "chunk-000" / f"episode_{number:06d}.parquet")
        for at, camera in enumerate(CAMERAS):
            video = root / "videos" / "chunk-000" / camera / f"episode_{number:06d}.mp4"
            write_video(video, [each + at * OTHER_CAMERA for each in own], rate)
        shown = {camera: [each + at * OTHER_CAMERA for each in own] for at, camera in enumerate(CAMERAS)}
        stats.append({"episode_index": number, "stats": statistics(rows.slice(own.start, length), shown)})
        listed.append({"episode_index": number, "tasks": [TASKS[number % len(TASKS)]], "length": length})
    for name, lines in (("episodes", listed), ("tasks", tasks), ("episodes_stats", stats)):
        (root / "meta" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root
