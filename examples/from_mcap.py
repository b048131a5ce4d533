"""Recordings of ROS 2 in MCAP as videos, rows and a table: python examples/from_mcap.py FOLDER OUT

Each file is an episode: topics of sensor_msgs/CompressedImage become videos with the times of their messages, and numbers of
sensor_msgs/JointState rows at their own times. Other bags become MCAP with `ros2 bag convert` or `mcap convert`. Then:

    vidprep transcode OUT/episodes.csv store --fps 15 --gop 5
    vidprep pack store robot --to lerobot
"""

from __future__ import annotations

import csv
import io
import sys
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import av
import pyarrow as pa
import pyarrow.parquet as pq
from mcap_ros2.reader import read_ros2_messages

TICKS = 90_000  # a second


def main(source: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / "episodes.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "id", "episode_index", "camera", "rows"])
        for number, path in enumerate(sorted(source.glob("*.mcap"))):
            pictures, joints = (
                defaultdict[str, list[tuple[int, bytes]]](list),
                defaultdict[str, list[tuple[int, list[float]]]](list),
            )
            for message in read_ros2_messages(path):
                stamp = message.ros_msg.header.stamp
                at = stamp.sec * 1_000_000_000 + stamp.nanosec
                if message.schema.name.endswith("/CompressedImage"):
                    pictures[message.channel.topic].append((at, bytes(message.ros_msg.data)))
                elif message.schema.name.endswith("/JointState"):
                    joints[message.channel.topic].append((at, list(message.ros_msg.position)))
            if not pictures or len(joints) != 1:
                sys.exit(
                    f"{path}: has {len(pictures)} topics of pictures and {len(joints)} of joints; choose one of these here"
                )
            # Cameras and rows count from the same moment: the first at which every camera has a picture.
            begin = max(found[0][0] for found in pictures.values())
            (states,) = joints.values()
            rows = {
                "time": [(at - begin) / 1e9 for at, _ in states],
                "observation.state": [values for _, values in states],
            }
            pq.write_table(pa.table(rows), out / f"{path.stem}.parquet")
            for topic, found in pictures.items():
                camera = topic.strip("/").replace("/", "_")
                name = f"{path.stem}-{camera}"
                write_video([each for each in found if each[0] >= begin], begin, out / f"{name}.mkv")
                table.writerow([f"{name}.mkv", name, number, camera, f"{path.stem}.parquet"])


def write_video(pictures: list[tuple[int, bytes]], begin: int, path: Path) -> None:
    """Write pictures with their times and without a loss."""
    with av.open(path, "w") as container:
        stream = container.add_stream("ffv1", rate=30)
        stream.pix_fmt, stream.codec_context.time_base = "bgr0", Fraction(1, TICKS)
        for number, (at, data) in enumerate(pictures):
            with av.open(io.BytesIO(data)) as picture:
                frame = next(picture.decode(video=0)).reformat(format="bgr0")
            if number == 0:
                stream.height, stream.width = frame.height, frame.width
            frame.pts, frame.time_base = round((at - begin) * TICKS / 1e9), Fraction(1, TICKS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
