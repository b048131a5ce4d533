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
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from vidprep.formats.errors import StoreError, count_of
from vidprep.formats.storage.untrusted import is_lfs_pointer, open_regular, read_json, read_parquet, use_plain_types

INFO_NAME, TASKS_NAME, STATS_NAME = "meta/info.json", "meta/tasks.parquet", "meta/stats.json"
MOMENTS = ("min", "max", "mean", "std")
OTHER_STATISTICS = ("count", "q01", "q10", "q50", "q90", "q99")
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
    """

    path: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode, as the metadata declares it.

    Attributes:
        length: Number of rows, and of frames of each camera
        first: Number of its first row in the dataset; None in version 2
        last: Number of the row after its last one; None in version 2
        data: File of its rows, relative to the dataset
        videos: Its part of the videos, by camera
        rows_of: Number that its rows have; None for its own
    """

    number: int
    length: int
    first: int | None
    last: int | None
    data: str
    videos: dict[str, VideoPart]
    tasks: tuple[str, ...] = ()
    rows_of: int | None = None

    @property
    def declared_number(self) -> int:
        """Its number in the dataset."""
        return self.number if self.rows_of is None else self.rows_of


@dataclass(frozen=True, slots=True)
class LeRobotDataset:
    """The metadata of a dataset.

    Attributes:
        version: v2.0, v2.1 or v3.0
        rate: Rows and frames per second
        info: Content of info.json
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
        return {str(name): dict(feature) for name, feature in self.info["features"].items()}

    @property
    def cameras(self) -> list[str]:
        """Names of the columns that are videos."""
        return [name for name, feature in self.features.items() if feature.get("dtype") == "video"]

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

    def rate_of(self, camera: str) -> float:
        """Return the frames per second of a camera: those of the rows, unless its depth was copied beside fewer of them."""
        rate = video_info_of(self.features[camera]).get("video.fps")
        return float(rate) if camera in self.depth_cameras and isinstance(rate, int | float) else self.rate

    @classmethod
    def read(cls, root: Path) -> LeRobotDataset:
        """Read the metadata of a folder. Raises StoreError."""
        path = root / INFO_NAME
        with _reading(path, "a damaged LeRobot dataset, download or record it again"):
            info = read_json(path)
        with _reading(path, "cannot be read as that of a LeRobot dataset"):
            version = str(info["codebase_version"])
            if version not in VERSIONS:
                raise StoreError(f"is of version {version}; {', '.join(VERSIONS)} are known", path=path)
            if not 0 < (rate := float(info["fps"])) < RATE_MAX:
                raise StoreError(f"declares {rate:g} frames per second", path=path)
            if min(int(info["total_episodes"]), int(info["total_frames"])) < 0:
                raise StoreError("declares a negative number of episodes or rows", path=path)
            dataset = cls(root, version, rate, info, [], {})
            of_version = _episodes if version == "v3.0" else _old_episodes
            dataset.episodes.extend(sorted(of_version(root, info, dataset.cameras), key=lambda episode: episode.number))
        dataset.tasks.update(_tasks(root, version))
        return dataset

    def data_files(self) -> list[str]:
        """Return all files of rows, in the order in which LeRobot reads them: whether an episode names them or not."""
        return sorted(path.relative_to(self.root).as_posix() for path in (self.root / "data").glob("*/*.parquet"))

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a data file, or some of its columns, with one number in each row of those that number it. Raises StoreError."""
        path = self.root / name
        with _reading(path):
            table = use_plain_types(read_parquet(path, None if columns is None else [*ROW_COLUMNS, *columns]))
            if lacking := [column for column in ROW_COLUMNS if column not in table.column_names]:
                raise StoreError(f"has no column {lacking[0]}", path=path)
            for column in ROW_COLUMNS:
                values = flat(table[column]).cast(pa.float64())
                if values.null_count or pc.any(pc.is_nan(values)).as_py():
                    raise StoreError(f"has rows without a {column}", path=path)
                exact = values if column == "timestamp" else values.cast(pa.int64())
                table = table.set_column(table.column_names.index(column), column, exact)
        return table

    def split(self, table: pa.Table) -> dict[int, pa.Table]:
        """Return the rows of each episode."""
        table = table.take(pc.sort_indices(table["episode_index"]))
        numbers = table["episode_index"].to_numpy()
        firsts = np.append(np.unique(numbers, return_index=True)[1], len(numbers))
        return {int(numbers[at]): table.slice(at, end - at) for at, end in pairwise(firsts.tolist())}

    def tables_of(self, name: str) -> dict[int, pa.Table]:
        """Return the rows of each episode in a data file. Raises StoreError."""
        return self.split(self.table(name))

    def statistics(self) -> dict[str, Any]:
        """Return stats.json: the declared statistics by feature. Raises StoreError."""
        with _reading(self.root / STATS_NAME):
            return read_json(self.root / STATS_NAME)

    def episode_statistics(self) -> dict[int, dict[str, Any]]:
        """Return the declared statistics of each episode, by feature. Raises StoreError."""
        statistics = dict[int, dict[str, Any]]()
        if self.version != "v3.0":
            path = self.root / "meta/episodes_stats.jsonl"
            with _reading(path):
                return {int(line["episode_index"]): dict(line["stats"]) for line in _lines(path)}
        names = [f"stats/{feature}/{kind}" for feature in self.features for kind in (*MOMENTS, *OTHER_STATISTICS)]
        for path in sorted((self.root / "meta" / "episodes").glob("*/*.parquet")):
            with _reading(path):
                for row in read_parquet(path, ["episode_index", *names]).to_pylist():
                    own = statistics.setdefault(int(row.pop("episode_index")), {})
                    for name, values in row.items():
                        feature, _, kind = name.removeprefix("stats/").rpartition("/")
                        own.setdefault(feature, {})[kind] = values
        return statistics

    def states_of(self, episode: Episode) -> npt.NDArray[np.float64]:
        """Return (L, D) states and actions of an episode; D is 0 if it has none. Raises StoreError."""
        columns = [name for name in STATES if name in self.features]
        table = self.table(episode.data, columns)
        rows = table.filter(pc.equal(table["episode_index"], episode.number))
        with _reading(self.root / episode.data):
            arrays = [np.asarray(rows[name].to_pylist(), np.float64).reshape(len(rows), -1) for name in columns]
        return np.concatenate([np.zeros((len(rows), 0)), *arrays], axis=1)


def video_info_of(about: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a feature says of its video."""
    known = [about.get("info"), about.get("video_info")]
    return next((each for each in known if isinstance(each, Mapping)), {})


@contextmanager
def _reading(path: Path, what: str = "cannot be read") -> Iterator[None]:
    """Turn whatever is wrong with a file into StoreError."""
    try:
        yield
    except StoreError:
        raise
    except FileNotFoundError as error:
        raise StoreError("is not there" + f": {what}" * (what != "cannot be read"), path=path) from error
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
        why = "it is a pointer of Git LFS, run `git lfs pull`" if is_lfs_pointer(path) else _reason(error)
        raise StoreError(f"{what}: {why}", path=path) from error


def _episodes(root: Path, info: Mapping[str, Any], cameras: list[str]) -> Iterator[Episode]:
    """Yield the episodes of version 3.0."""
    files = sorted((root / "meta" / "episodes").glob("*/*.parquet"))
    if not files:
        raise StoreError(_describe_recording(root), path=root)
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
        with _reading(file):
            table = read_parquet(file, [*columns, "tasks"])
            if lacking := [column for column in columns if column not in table.column_names]:
                raise StoreError(f"has no column {lacking[0]}", path=file)
            for row in table.to_pylist():
                if lacking := [name for name in columns if row[name] is None or row[name] != row[name]]:
                    raise StoreError(f"has no {lacking[0]} of episode {row['episode_index']}", path=file)
                yield _episode(row, info, cameras)


def _episode(row: Mapping[str, Any], info: Mapping[str, Any], cameras: list[str]) -> Episode:
    """Return the episode of a row of the table of episodes."""
    videos = {}
    for camera in cameras:
        at = {name: row[f"videos/{camera}/{name}"] for name in ("chunk_index", "file_index")}
        path = _fill(str(info.get("video_path") or VIDEO), {**at, "video_key": camera})
        start, end = (float(row[f"videos/{camera}/{name}_timestamp"]) for name in ("from", "to"))
        videos[camera] = VideoPart(path, start, end)
    at = {"chunk_index": row["data/chunk_index"], "file_index": row["data/file_index"]}
    data = _fill(str(info.get("data_path") or DATA), at)
    number, length, first, last = (
        int(row[name]) for name in ("episode_index", "length", "dataset_from_index", "dataset_to_index")
    )
    return Episode(number, length, first, last, data, videos, tuple(map(str, row.get("tasks") or ())))


def _describe_recording(root: Path) -> str:
    """Say what a recording left that was not ended."""
    rows, videos = len([*root.glob("data/*/*.parquet")]), len([*root.glob("videos/*/*/*.mp4")])
    if not rows and not videos:
        return "has no meta/episodes/*/*.parquet: a damaged LeRobot dataset, download or record it again"
    return (
        f"has no meta/episodes/*/*.parquet, and {count_of(rows, 'file')} of rows and {count_of(videos, 'video')}: its recording was not "
        "ended (`finalize()` was not called), or its download"
    )


def _old_episodes(root: Path, info: Mapping[str, Any], cameras: list[str]) -> Iterator[Episode]:
    """Yield the episodes of versions 2.0 and 2.1."""
    chunk, rate = int(info.get("chunks_size") or CHUNK), float(info["fps"])
    for line in _lines(root / "meta" / "episodes.jsonl"):
        number, length = int(line["episode_index"]), int(line["length"])
        at = {"episode_chunk": number // chunk, "episode_index": number}
        videos = {
            camera: VideoPart(
                _fill(str(info.get("video_path") or OLD_VIDEO), {**at, "video_key": camera}), 0.0, length / rate
            )
            for camera in cameras
        }
        tasks = line.get("tasks") or ()
        data, tasks = _fill(str(info.get("data_path") or OLD_DATA), at), (tasks,) if isinstance(tasks, str) else tasks
        yield Episode(number, length, None, None, data, videos, tuple(map(str, tasks)))


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
    """Return the text of each task. In version 3.0 it is the index of a pandas table, which may have any name. Raises StoreError."""
    path = root / (TASKS_NAME if version == "v3.0" else "meta/tasks.jsonl")
    with _reading(path):
        if version != "v3.0":
            return {int(line["task_index"]): str(line["task"]) for line in _lines(path)}
        if not path.exists():
            return {}
        table = read_parquet(path)
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
    with open_regular(path) as file:
        while line := file.readline(LINE_BYTES_MAX):
            if line.strip():
                yield json.loads(line)


def _fill(template: str, values: Mapping[str, Any]) -> str:
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
