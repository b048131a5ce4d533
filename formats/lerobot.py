"""LeRobot datasets: which episodes they declare, and where the rows and videos of each are. Versions 2.1 and 3.0.

v3.0    meta/info.json, meta/tasks.parquet, meta/episodes/*/*.parquet (a row for each episode, with the part of each shared video that it
        takes), data/*/*.parquet, videos/CAMERA/*/*.mp4
v2.1    meta/info.json, meta/tasks.jsonl, meta/episodes.jsonl, and a parquet file and a video per camera for each episode

Names and templates come from files of others, so each path is checked to stay in the dataset.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vidprep.formats.errors import StoreError
from vidprep.formats.storage import read_json

INFO_NAME, TASKS_NAME = "meta/info.json", "meta/tasks.parquet"
VERSIONS = ("v2.0", "v2.1", "v3.0")
OLD_DATA = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
OLD_VIDEO = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
CHUNK = 1000
TEMPLATE_FIELD = re.compile(r"\{(\w+)(?::0?(\d*)d)?\}")
LINE_BYTES_MAX, RATE_MAX = 64 << 20, 1e6
ROW_COLUMNS = ("episode_index", "frame_index", "timestamp", "index", "task_index")
STATES = ("observation.state", "action")


@dataclass(frozen=True, slots=True)
class VideoPart:
    """The part of a video file that shows an episode.

    Attributes:
        path: The file, relative to the dataset
        start: Start in seconds
        end: End in seconds
    """

    path: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode, as the metadata declares it.

    Attributes:
        number: Its number
        length: Number of rows, and of frames of each camera
        first: Number of its first row in the dataset; None in version 2
        last: Number of the row after its last one; None in version 2
        data: File of its rows, relative to the dataset
        videos: Its part of the videos, by camera
        tasks: Text of its tasks
    """

    number: int
    length: int
    first: int | None
    last: int | None
    data: str
    videos: dict[str, VideoPart]
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EpisodeRows:
    """Rows of an episode.

    Attributes:
        times: (L,) timestamps in seconds from the start of the episode
        frame_indexes: (L,) number of each row in the episode
        indexes: (L,) number of each row in the dataset
        tasks: (L,) number of the task of each row
    """

    times: npt.NDArray[np.float64]
    frame_indexes: npt.NDArray[np.int64]
    indexes: npt.NDArray[np.int64]
    tasks: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LeRobotDataset:
    """The metadata of a dataset.

    Attributes:
        root: The folder
        version: v2.0, v2.1 or v3.0
        rate: Rows and frames per second
        info: Content of info.json
        episodes: The episodes, by number
        tasks: Text of each task, by its number
    """

    root: Path
    version: str
    rate: float
    info: dict[str, Any]
    episodes: list[Episode]
    tasks: dict[int, str]

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """Type and shape of each column, by name."""
        return {str(name): dict(about) for name, about in self.info["features"].items()}

    @property
    def cameras(self) -> list[str]:
        """Names of the columns that are videos."""
        return [name for name, about in self.features.items() if about.get("dtype") == "video"]

    @property
    def depth_cameras(self) -> list[str]:
        """Cameras whose videos are maps of depth, which are not pictures."""

        def is_depth(about: Mapping[str, Any]) -> bool:
            known = [about, about.get("info"), about.get("video_info")]
            return any(
                each.get(f"{prefix}is_depth_map")
                for each in known
                if isinstance(each, Mapping)
                for prefix in ("", "video.")
            )

        return [name for name in self.cameras if is_depth(self.features[name])]

    @classmethod
    def read(cls, root: Path) -> LeRobotDataset:
        """Read the metadata of a folder. Raises StoreError."""
        path = root / INFO_NAME
        try:
            info = read_json(path)
            version = str(info["codebase_version"])
            if version not in VERSIONS:
                raise StoreError(f"is of version {version}; {', '.join(VERSIONS)} are known", path=path)
            found = cls(root, version, float(info["fps"]), info, [], _tasks(root, version))
            if not 0 < found.rate < RATE_MAX:
                raise StoreError(f"declares {found.rate:g} frames per second", path=path)
            of_version = _episodes if version == "v3.0" else _old_episodes
            found.episodes.extend(of_version(root, info, found.cameras))
            found.episodes.sort(key=lambda episode: episode.number)
            if min(int(info["total_episodes"]), int(info["total_frames"])) < 0:
                raise StoreError("declares a negative number of episodes or rows", path=path)
            return found
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            ArithmeticError,
            MemoryError,
            RecursionError,
            pa.ArrowException,
        ) as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"cannot be read as that of a LeRobot dataset: {_reason(error)}", path=path) from error

    def data_files(self) -> list[str]:
        """Return all files of rows, in the order in which LeRobot reads them: whether an episode names them or not."""
        return sorted(path.relative_to(self.root).as_posix() for path in (self.root / "data").glob("*/*.parquet"))

    def indexes_of(self, name: str) -> npt.NDArray[np.int64]:
        """Return the column `index` of a data file, in the order of its rows. Raises StoreError."""
        path = self.root / name
        try:
            return np.asarray(
                flat(pq.read_table(path, columns=["index"], partitioning=None)["index"]).to_numpy(), np.int64
            )
        except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
            raise StoreError(f"cannot be read: {_reason(error)}", path=path) from error

    def wrong_columns(self, name: str) -> list[str]:
        """Return what the columns of a data file contradict of the declared features. Raises StoreError."""
        path, found = self.root / name, list[str]()
        try:
            schema = pq.read_schema(path)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise StoreError(f"cannot be read: {_reason(error)}", path=path) from error
        for feature, about in self.features.items():
            if about.get("dtype") == "video":
                continue
            if feature not in schema.names:
                found.append(f"has no column {feature}, which is declared")
            elif pa.types.is_fixed_size_list(kind := schema.field(feature).type) and [kind.list_size] != list(
                about.get("shape") or []
            ):
                found.append(f"{feature} has {kind.list_size} values in each row, {about.get('shape')} is declared")
        return found

    def rows_of(self, name: str) -> dict[int, EpisodeRows]:
        """Return the rows of each episode in a data file. Raises StoreError, FileNotFoundError."""
        path = self.root / name
        try:
            there = pq.read_schema(path).names
            if lacking := [column for column in ROW_COLUMNS if column not in there]:
                raise StoreError(f"has no column {lacking[0]}", path=path)
            table = pq.read_table(path, columns=list(ROW_COLUMNS), partitioning=None)
            of = {column: np.asarray(flat(table[column]).to_numpy(), np.float64) for column in ROW_COLUMNS}
            if any(np.isnan(values).any() for values in of.values()):
                raise StoreError("has rows without a time or a number", path=path)
        except FileNotFoundError:
            raise
        except (OSError, ValueError, TypeError, pa.ArrowException) as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"cannot be read: {_reason(error)}", path=path) from error
        order = np.argsort(of["episode_index"], kind="stable")
        numbers, firsts = np.unique(of["episode_index"][order], return_index=True)
        found = {}
        for number, rows in zip(numbers.tolist(), np.split(order, firsts[1:]), strict=True):
            columns = (of[column][rows].astype(np.int64) for column in ("frame_index", "index", "task_index"))
            found[int(number)] = EpisodeRows(of["timestamp"][rows], *columns)
        return found

    def tables_of(self, name: str) -> dict[int, pa.Table]:
        """Return all columns of the rows of each episode in a data file. Raises StoreError."""
        path = self.root / name
        try:
            table = pq.read_table(path, partitioning=None)
            if lacking := [column for column in ROW_COLUMNS if column not in table.column_names]:
                raise StoreError(f"has rows without a column {lacking[0]}")
            table = table.take(pc.sort_indices(flat(table["episode_index"])))
            numbers = np.asarray(flat(table["episode_index"]).to_numpy())
        except FileNotFoundError:
            raise StoreError(f"has no rows: {name} is not there") from None
        except (OSError, ValueError, TypeError, pa.ArrowException) as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"has rows that cannot be read: {_reason(error)}", path=path) from error
        firsts = np.append(np.unique(numbers, return_index=True)[1], len(numbers))
        return {int(numbers[at]): table.slice(at, end - at) for at, end in pairwise(firsts.tolist())}

    def states_of(self, episode: Episode) -> npt.NDArray[np.float64]:
        """Return (L, D) states and actions of an episode; D is 0 if it has none. Raises StoreError, FileNotFoundError."""
        path = self.root / episode.data
        columns = [name for name in STATES if name in self.features]
        try:
            own = [("episode_index", "==", episode.number)]
            rows = pq.read_table(path, columns=["episode_index", *columns], partitioning=None, filters=own)
            found = [np.asarray(rows[name].to_pylist(), np.float64).reshape(len(rows), -1) for name in columns]
        except FileNotFoundError:
            raise
        except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
            raise StoreError(f"cannot be read: {_reason(error)}", path=path) from error
        return np.concatenate([np.zeros((len(rows), 0)), *found], axis=1)


def _episodes(root: Path, info: Mapping[str, Any], cameras: list[str]) -> Iterator[Episode]:
    """Yield the episodes of version 3.0."""
    files = sorted((root / "meta" / "episodes").glob("*/*.parquet"))
    if not files:
        raise StoreError("has no meta/episodes/*/*.parquet", path=root)
    places = [
        f"videos/{camera}/{name}"
        for camera in cameras
        for name in ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
    ]
    columns = [
        "episode_index",
        "length",
        "dataset_from_index",
        "dataset_to_index",
        "data/chunk_index",
        "data/file_index",
        *places,
    ]
    for file in files:
        there = pq.read_schema(file).names
        if lacking := [column for column in columns if column not in there]:
            raise StoreError(f"has no column {lacking[0]}", path=file)
        also = [name for name in ("tasks",) if name in there]
        for row in pq.read_table(file, columns=[*columns, *also], partitioning=None).to_pylist():
            videos = {}
            for camera in cameras:
                at = {name: row[f"videos/{camera}/{name}"] for name in ("chunk_index", "file_index")}
                path = _filled(str(info.get("video_path") or VIDEO), {**at, "video_key": camera})
                start, end = (float(row[f"videos/{camera}/{name}_timestamp"]) for name in ("from", "to"))
                videos[camera] = VideoPart(path, start, end)
            at = {"chunk_index": row["data/chunk_index"], "file_index": row["data/file_index"]}
            data = _filled(str(info.get("data_path") or DATA), at)
            number, length, first, last = (int(row[name]) for name in columns[:4])
            yield Episode(number, length, first, last, data, videos, tuple(map(str, row.get("tasks") or ())))


def _old_episodes(root: Path, info: Mapping[str, Any], cameras: list[str]) -> Iterator[Episode]:
    """Yield the episodes of versions 2.0 and 2.1."""
    chunk, rate = int(info.get("chunks_size") or CHUNK), float(info["fps"])
    for about in _lines(root / "meta" / "episodes.jsonl"):
        number, length = int(about["episode_index"]), int(about["length"])
        at = {"episode_chunk": number // chunk, "episode_index": number}
        videos = {
            camera: VideoPart(
                _filled(str(info.get("video_path") or OLD_VIDEO), {**at, "video_key": camera}), 0.0, length / rate
            )
            for camera in cameras
        }
        data, tasks = _filled(str(info.get("data_path") or OLD_DATA), at), tuple(map(str, about.get("tasks") or ()))
        yield Episode(number, length, None, None, data, videos, tasks)


def flat(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values, which may be stored as lists of one. Raises ValueError for other lists."""
    if not (
        pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or pa.types.is_fixed_size_list(column.type)
    ):
        return column
    values = pc.list_flatten(column)
    if len(values) != len(column):
        raise ValueError("has lists where a row needs one number")
    return values


def _tasks(root: Path, version: str) -> dict[int, str]:
    """Return the text of each task. In version 3.0 it is the index of a pandas table, which may have any name."""
    if version != "v3.0":
        return {int(line["task_index"]): str(line["task"]) for line in _lines(root / "meta" / "tasks.jsonl")}
    path = root / TASKS_NAME
    if not path.exists():
        return {}
    table = pq.read_table(path, partitioning=None)
    texts = [name for name in table.column_names if name != "task_index"]
    if "task_index" not in table.column_names or len(texts) != 1:
        raise StoreError("has not one column beside task_index, the text", path=path)
    return dict(zip(table["task_index"].to_pylist(), map(str, table[texts[0]].to_pylist()), strict=True))


def task_table(tasks: Sequence[str]) -> pa.Table:
    """Return tasks as pandas stores a frame whose index is their text, which is how LeRobot reads them."""
    index = "__index_level_0__"
    described = [
        {"name": name, "field_name": field, "pandas_type": kind, "numpy_type": stored, "metadata": None}
        for name, field, kind, stored in (
            ("task_index", "task_index", "int64", "int64"),
            (None, index, "unicode", "object"),
        )
    ]
    pandas = {
        "index_columns": [index],
        "column_indexes": [],
        "columns": described,
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.3",
    }
    columns = {"task_index": pa.array(range(len(tasks)), pa.int64()), index: pa.array(tasks, pa.string())}
    return pa.table(columns).replace_schema_metadata({"pandas": json.dumps(pandas)})


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        while line := file.readline(LINE_BYTES_MAX):
            if line.strip():
                yield json.loads(line)


def _filled(template: str, values: Mapping[str, Any]) -> str:
    """Return a template's path. Raises StoreError if it asks for something unknown, or leads out of the dataset."""

    def value(match: re.Match[str]) -> str:
        name, width = match.groups()
        if name not in values:
            raise StoreError(f"the path {template!r} of meta/info.json has an unknown field {name}")
        if width is None:
            return str(values[name])
        if len(width) > 2:
            raise StoreError(f"the path {template[:100]!r} of meta/info.json has a field that is too wide")
        return f"{int(values[name]):0{int(width or 0)}d}"

    path = TEMPLATE_FIELD.sub(value, template)
    if path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise StoreError(f"{path!r} leads out of the dataset")
    return path


def _reason(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0][:200]
    return f"{type(error).__name__} {text}" if isinstance(error, KeyError | TypeError | AttributeError) else text
