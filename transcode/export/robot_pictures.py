"""Pictures that stand in the rows of a LeRobot dataset, as videos: a dataset beside the destination that a run takes as its source.

PNGs and JPEGs are not decoded: each becomes a frame of a video as it is.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av.error
import pyarrow as pa
from av.packet import Packet

from vidprep.formats.errors import SettingsError, StoreError
from vidprep.formats.lerobot import DATA, INFO_NAME, TASKS_NAME, VIDEO, Episode, LeRobotDataset, task_table
from vidprep.formats.storage.local import replacing
from vidprep.formats.video.pyav import open_input, open_output
from vidprep.transcode.export._robot_files import flat_statistics, write_json, write_table
from vidprep.transcode.sources.robot import EPISODES_PER_CHUNK, episode_video

CODECS = {"png": "rgb24", "mjpeg": "yuvj420p"}  # and a pixel format with which the stream can be written


def pictures_folder(destination: Path) -> Path:
    """Return where the dataset with videos lies while a run makes a destination."""
    return destination.parent / f".{destination.name}.pictures"


def convert_pictures(source: Path, folder: Path) -> Path:
    """Write a LeRobot dataset of version 3.0 in which columns of pictures are videos. What is there already is not written again.

    Raises:
        SettingsError: The dataset has no such columns.
        StoreError: It cannot be read, or a picture is not in its row.
        OSError: A file cannot be written.
    """
    dataset = LeRobotDataset.read(source)
    columns = [name for name, feature in dataset.features.items() if feature.get("dtype") == "image"]
    if not columns:
        raise SettingsError(f"{source}: has no column of pictures; leave out <images_to_video>", images_to_video=True)
    episodes = list(_write(dataset, columns, folder))
    write_table(folder / "meta/episodes/chunk-000/file-000.parquet", pa.Table.from_pylist(episodes))
    for path in (source / "meta").glob("*"):
        if path.is_file() and path.name != Path(INFO_NAME).name:
            shutil.copyfile(path, folder / "meta" / path.name)
    features = {
        name: feature | ({"dtype": "video"} if name in columns else {}) for name, feature in dataset.features.items()
    }
    places = {"codebase_version": "v3.0", "data_path": DATA, "video_path": VIDEO, "features": features}
    _write_tasks(dataset, folder)
    write_json(folder / INFO_NAME, {**dataset.info, **places})
    return folder


def _write(found: LeRobotDataset, columns: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    """Write videos and rows, and yield the rows of the table of episodes."""
    links = dict[tuple[str, str], int]()
    declared = found.episode_statistics() if found.depth_cameras and found.version != "v2.0" else {}
    for number, name in enumerate(sorted({episode.data for episode in found.episodes})):
        tables: dict[int, pa.Table] = {}
        with suppress(StoreError):  # its episodes have no videos then, and are left out with that reason
            tables = found.tables_of(name)
        changed_ns = (found.root / name).stat().st_mtime_ns if tables else 0
        chunk, file = divmod(number, EPISODES_PER_CHUNK)
        for episode in (episode for episode in found.episodes if episode.data == name):
            row = _describe(found, episode, folder, links) | {"data/chunk_index": chunk, "data/file_index": file}
            known = declared.get(episode.number, {})
            row |= flat_statistics({camera: known[camera] for camera in found.depth_cameras if camera in known})
            for column in columns:
                video = folder / f"{episode_video(column, episode.number)}.mp4"
                is_there = video.exists() and video.stat().st_mtime_ns == changed_ns
                if not is_there and column in (table := tables.get(episode.number, pa.table({}))).column_names:
                    _write_video(table[column], video, found.rate, f"{column} of episode {episode.number}")
                    os.utime(video, ns=(changed_ns, changed_ns))
                row |= _place(column, *divmod(episode.number, EPISODES_PER_CHUNK), 0.0, episode.length / found.rate)
            yield row
        if tables:
            rows, kept = folder / DATA.format(chunk_index=chunk, file_index=file), pa.concat_tables(tables.values())
            write_table(rows, kept.drop([column for column in columns if column in kept.column_names]))
            os.utime(rows, ns=(changed_ns, changed_ns))


def _place(camera: str, chunk: int, file: int, start: float, end: float) -> dict[str, Any]:
    names = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
    return {f"videos/{camera}/{name}": value for name, value in zip(names, (chunk, file, start, end), strict=True)}


def _describe(
    found: LeRobotDataset, episode: Episode, folder: Path, links: dict[tuple[str, str], int]
) -> dict[str, Any]:
    """Return the row of an episode, and link the videos that it has.

    Args:
        found: The source.
        episode: The episode.
        folder: The dataset that is written.
        links: Numbers of the videos that are linked, by camera and path.
    """
    row: dict[str, Any] = {"episode_index": episode.number, "length": episode.length, "tasks": list(episode.tasks)}
    first = episode.first or 0
    row |= {"dataset_from_index": first, "dataset_to_index": first + episode.length}
    for camera, part in episode.videos.items():
        if (camera, part.path) not in links:
            links[camera, part.path] = sum(name == camera for name, _ in links)
            link = folder / f"{episode_video(camera, links[camera, part.path])}.mp4"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to((found.root / part.path).resolve())
        row |= _place(camera, *divmod(links[camera, part.path], EPISODES_PER_CHUNK), part.start, part.end)
    return row


def _write_tasks(found: LeRobotDataset, folder: Path) -> None:
    texts = [found.tasks[number] for number in sorted(found.tasks)]
    if sorted(found.tasks) == list(range(len(texts))):
        write_table(folder / TASKS_NAME, task_table(texts))


def _write_video(pictures: pa.ChunkedArray, path: Path, rate: float, what: str) -> None:
    """Write pictures as the frames of a video. Raises StoreError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = pictures.to_pylist()
    data: Sequence[Any] = [cell.get("bytes") if isinstance(cell, dict) else cell for cell in cells]
    if not all(isinstance(each, bytes) for each in data):
        raise StoreError(f"{what}: has pictures beside its rows, and not in them", path=path)
    try:
        with open_input(io.BytesIO(data[0]), {}) as first:
            seen = first.streams.video[0].codec_context
            codec, width, height = seen.name, seen.width, seen.height
        if codec not in CODECS:
            raise StoreError(f"{what}: has pictures in {codec}; PNG and JPEG are taken", path=path)
        with replacing(path) as file, open_output(file, format="mov", options={}) as made:
            exact = Fraction(rate).limit_denominator(100_000)
            stream: Any = made.add_stream(codec, rate=exact)
            stream.width, stream.height, stream.pix_fmt = width, height, CODECS[codec]
            for number, each in enumerate(data):
                packet = Packet(each)
                packet.stream, packet.time_base, packet.is_keyframe = stream, 1 / exact, True
                packet.pts = packet.dts = number
                packet.duration = 1
                made.mux(packet)
    except (av.error.FFmpegError, ValueError, LookupError) as error:
        raise StoreError(f"{what}: its pictures cannot be read: {error}", path=path) from error
