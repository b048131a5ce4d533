"""The episodes of a LeRobot dataset as sources: a cut of each camera's video, named as the video that its output becomes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vidprep.formats.errors import SourceError, StoreError
from vidprep.formats.storage.untrusted import read_json

if TYPE_CHECKING:
    import pyarrow as pa

EPISODES_PER_CHUNK = 1000
INFO_NAME, OTHER_NAMES = (
    "meta/info.json",
    ("meta/episodes", "meta/episodes.jsonl", "meta/tasks.parquet", "meta/tasks.jsonl"),
)


def is_robot_dataset(source: object) -> bool:
    """Return whether a source is the folder of a LeRobot dataset, whole or damaged."""
    if not isinstance(source, Path):
        return False
    if not (source / INFO_NAME).exists():  # what a partial download leaves
        return (source / "data").is_dir() and any((source / name).exists() for name in OTHER_NAMES)
    try:
        return "codebase_version" in read_json(source / INFO_NAME)
    except (OSError, ValueError, TypeError):
        return True


def episode_video(camera: str, episode: int) -> str:
    """Return the id of an episode's video: its path in a LeRobot dataset of one video for each episode, without extension."""
    chunk, number = divmod(episode, EPISODES_PER_CHUNK)
    return f"videos/{camera}/chunk-{chunk:03d}/file-{number:03d}"


def episode_table(root: Path) -> tuple[pa.Table, list[str]]:
    """Return the episodes as a table of cuts, with the labels `episode_index`, `camera` and `task`, and the videos that are maps of depth,
    which are no pictures. Raises SourceError.
    """
    import pyarrow as pa

    from vidprep.formats.lerobot import LeRobotDataset

    try:
        dataset = LeRobotDataset.read(root)
    except StoreError as error:
        raise SourceError(error.message, path=error.path) from error
    rows = [
        {
            "path": str(root / part.path),
            "id": episode_video(camera, episode.number),
            "start": part.start,
            "end": part.end,
            "episode_index": episode.number,
            "camera": camera,
            "task": "; ".join(episode.tasks),
        }
        for episode in dataset.episodes
        for camera, part in episode.videos.items()
        if camera not in dataset.depth_cameras
    ]
    if not rows:
        pictures = any(feature.get("dtype") == "image" for feature in dataset.features.values())
        hint = "; --images-to-video makes videos of its columns of pictures" if pictures else ""
        raise SourceError(f"declares no episode with a video of pictures{hint}", path=root)
    depth = {
        str(root / episode.videos[camera].path) for episode in dataset.episodes for camera in dataset.depth_cameras
    }
    return pa.Table.from_pylist(rows), sorted(depth)
