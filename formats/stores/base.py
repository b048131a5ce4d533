"""One interface to read frames from any store.

    store = open_store("frames/")
    store.ids, len(store), store.labels("a/b")
    store["a/b"].frames([3, 7, -1])        (T, H, W, 3) uint8 RGB
    store["a/b"].frames(range(40, 48), out=array)
    store.read([("a/b", [0, 1]), ("c", slice(0, 8))])

A store consists of its path and options: it can be pickled, and used after fork and spawn. Each thread opens files when
it first needs them, and keeps at most 16 open, and 16 for audio.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, SupportsIndex, cast, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.labels import CLASS_LABEL, Labels, classes_of, labels_of_dicts
from vidprep.formats.manifest.row import ManifestRow, json_value
from vidprep.formats.manifest.table import add_columns, class_names, manifest_paths, read_table
from vidprep.formats.model import SourceMap as SourceMap, VideoFacts as VideoFacts
from vidprep.formats.moments import Pace, Tolerance, exact_seconds
from vidprep.formats.storage.ranges import Run, Wanted
from vidprep.formats.stores.data_files import DataFiles, Handles, LocalFiles
from vidprep.formats.stores.ids import Ids

LABELS_KEY = "vidprep_labels"
FACTS = frozenset(["id", "frame_rate", "num_frames", "width", "height", "gop", "pts", "time_base"])
RESERVED = FACTS | {LABELS_KEY}


def facts_of(row: ManifestRow) -> dict[str, Any]:
    """Return the JSON object stored beside the frames of a unit, without labels."""
    rate = None if row.frame_rate_num is None else [row.frame_rate_num, row.frame_rate_den]
    size = {"num_frames": row.num_frames, "width": row.width, "height": row.height}
    return {"id": row.id, "frame_rate": rate, **size}


def describe_unit(row: ManifestRow) -> dict[str, Any]:
    """Return the facts and labels of a unit as one JSON object, as other tools expect them.

    A label with the name of a fact is left out; then all labels are also stored under LABELS_KEY, and read from there.
    """
    labels = {name: json_value(value) for name, value in row.labels.items() if value is not None}
    apart = {LABELS_KEY: labels} if RESERVED.intersection(labels) else {}
    return facts_of(row) | {name: value for name, value in labels.items() if name not in RESERVED} | apart


def labels_in(content: Mapping[str, Any], facts: Collection[str] = FACTS) -> dict[str, Any]:
    """Return the labels in such a JSON object.

    Args:
        content: The object, possibly written by another tool.
        facts: Names that are not labels.
    """
    apart = content.get(LABELS_KEY)
    if isinstance(apart, dict):
        return dict(apart)
    return {name: value for name, value in content.items() if name not in facts}


FRAMES_AT_A_TIME = 16
SEARCHED_IDS = 20_000  # in a search for ids similar to an unknown one
MAX_RATE = 1_000_000
SOURCE_COLUMNS = ["source_frames", "source_pts", "source_time_base_num", "source_time_base_den"]
Frames = npt.NDArray[np.uint8]
Samples = npt.NDArray[np.float32]
Indexes = Sequence[SupportsIndex] | slice | range | npt.NDArray[Any]


class ComingClip(NamedTuple):
    """Frames that will be read.

    Attributes:
        position: Position in the order in which clips are read
        fetch: Whether to fetch them now; otherwise they are only announced to the cache
    """

    position: int
    id: str
    numbers: Sequence[int]
    fetch: bool


class StorageOrder(NamedTuple):
    """Positions of videos in the files of a store.

    Attributes:
        files: (V,) number of the file of each video
        offsets: (V,) its position in that file
        sizes: (V,) its size in bytes
    """

    files: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]

    @classmethod
    def build(cls, names: pa.ChunkedArray | pa.Array, offsets: Any, sizes: Any) -> StorageOrder:
        """Create from columns: names of files, which are numbered in the order of names, positions and sizes."""
        unique, files = np.unique(np.asarray(names.to_pylist(), str), return_inverse=True)
        assert len(unique) <= len(files)
        columns = (
            np.asarray(pc.fill_null(each, 0).to_numpy(zero_copy_only=False), np.int64) for each in (offsets, sizes)
        )
        return cls(files.astype(np.int64).reshape(-1), *columns)


class FrameStore(ABC):
    """A store of videos that are looked up by id: ``store[id]`` is a StoredVideo, and iterating gives the ids.

    Args:
        place: The folder, or files behind a URL.

    Attributes:
        path: The folder, or its URL
        folder: Local folder with manifest and index: the same, or one with copies of them
        files: Its other files
        kind: Name of the kind of store, as the registry has it
        reads_uint16: Whether its frames can have more than 8 bits
    """

    kind: ClassVar[str]
    reads_uint16: ClassVar[bool] = False

    def __init__(self, place: str | os.PathLike[str] | DataFiles) -> None:
        self.files: DataFiles = LocalFiles(place) if isinstance(place, str | os.PathLike) else place

    @property
    def path(self) -> Path | str:
        return self.files.path

    @property
    def folder(self) -> Path:
        return self.files.folder

    @property
    def is_remote(self) -> bool:
        """Whether it is behind a URL."""
        return self.files.is_remote

    @property
    def keeps_read(self) -> bool:
        """Whether what is read is kept for later, in a cache that evicts what is announced for last."""
        return self.files.keeps_read

    @cached_property
    def ids(self) -> Ids:
        """Ids of the videos, ascending: names of outputs without extension, or ids of the source table."""
        ids = self._ids()
        return ids if isinstance(ids, Ids) else Ids(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<{self.kind} store {self.path}: {len(self)} videos>"

    def __contains__(self, id_: object) -> bool:
        try:
            return isinstance(id_, str) and bool(self.facts(id_))
        except KeyError:
            return False

    def __getitem__(self, id_: str) -> StoredVideo:
        """Return a video. Raises KeyError for an unknown id, TypeError for a value that is no id."""
        if not isinstance(id_, str):
            raise TypeError(f"store[{id_!r}]: videos are looked up by id; use store[store.ids[{id_!r}]]")
        try:
            return StoredVideo(self, id_, self.facts(id_))
        except KeyError as error:
            near = get_close_matches(id_, islice(self.ids, SEARCHED_IDS), 1)
            raise KeyError(f"{error.args[0]}{f'; did you mean {near[0]!r}?' if near else ''}") from None

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids, like a dict."""
        return iter(self.ids)

    def read(self, wanted: Iterable[tuple[str, Indexes]]) -> list[Frames]:
        """Return an array of frames for each of several videos."""
        return [self[id_].frames(indexes) for id_, indexes in wanted]

    @abstractmethod
    def labels(self, id_: str) -> dict[str, Any]:
        """Return the labels of a video by name, None for missing values. Raises KeyError."""

    def label_columns(self) -> Labels:
        """Return the labels of all videos as Arrow columns, in the order of `ids`."""
        return labels_of_dicts(self.ids, [self.labels(id_) for id_ in self.ids])

    @cached_property
    def classes(self) -> list[str] | None:
        """Text values of the label `label` in the order of their class numbers; None if they are numbers, or missing.

        A store that was split by `pack` has the classes of all splits.
        """
        classes = classes_of(self.label_columns())
        whole = classes and class_names(self.folder)
        return whole if whole and set(whole) >= set(classes or ()) else classes

    @cached_property
    def class_to_idx(self) -> Mapping[str | int, int]:
        """Number of each value of the label `label`: the value for whole numbers, its position in `classes` for text; else
        empty.
        """
        column = self.label_columns().columns.get(CLASS_LABEL)
        if column is not None and pa.types.is_integer(column.type):
            return {value: value for value in sorted(pc.unique(column.drop_null()).to_pylist())}
        return {name: number for number, name in enumerate(self.classes or ())}

    @abstractmethod
    def facts(self, id_: str) -> VideoFacts:
        """Return the properties of a video. Raises KeyError."""

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return (V, 3): number of frames, height and width of each video, in the order of `ids`."""
        facts = map(self.facts, self.ids)
        sizes = [(each.num_frames, each.height, each.width) for each in facts]
        return np.asarray(sizes, np.int64).reshape(-1, 3)

    def storage(self) -> StorageOrder:
        """Return where the videos are stored, in the order of `ids`. By default each is in a file of its own."""
        count = len(self.ids)
        return StorageOrder(np.arange(count), np.zeros(count, np.int64), np.ones(count, np.int64))

    def version(self) -> str:
        """Return a text that differs if anything of the store may have changed; "" if only `content_digest` can tell."""
        return ""

    def content_digest(self, places: npt.NDArray[np.int64]) -> str:
        """Return a digest of the bytes of videos, which differs if any was made again with another result; "" without a
        manifest.

        Args:
            places: Positions in `ids`.
        """
        table = read_table(self.folder, ["id", "sha256"]) if manifest_paths(self.folder) else None
        if table is None or "sha256" not in table.column_names:
            return ""
        wanted = self.ids.array.take(pa.array(places)).cast(pa.large_string())
        rows = pc.index_in(wanted, table["id"].cast(pa.large_string()))
        return digest_of(table["sha256"].take(rows))

    def source_map(self, id_: str) -> SourceMap | None:
        """Return the source frames that a video shows; None if the store does not know. Raises KeyError, StoreError."""
        self.facts(id_)
        return None

    @abstractmethod
    def _ids(self) -> Sequence[str]: ...

    @abstractmethod
    def fill(self, id_: str, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
        """Read frames into arrays of (h, w, 3), scaled to their size; uint8, or uint16 if `reads_uint16`. Raises
        StoreError.

        Args:
            id_: Id of the video.
            numbers: Frame numbers, ascending and distinct.
            rows: The arrays.
        """

    def runs(self, id_: str, numbers: Sequence[int]) -> tuple[str, list[Run]]:  # noqa: ARG002
        """Return which bytes of which file `fill` reads for frames; none if it reads them otherwise. Raises KeyError,
        StoreError.

        Args:
            id_: Id of the video.
            numbers: Frame numbers, ascending and distinct.
        """
        self.facts(id_)
        return "", []

    def announce(self, done: int, clips: Sequence[ComingClip]) -> list[int]:
        """Announce clips that this thread will read, positions ascending, so that a store behind a URL fetches them ahead.

        Args:
            done: All clips up to this position have been read.
            clips: Later ones. One that cannot be read is passed over: reading it raises the error.

        Returns:
            The number of bytes that are fetched for each clip.
        """
        if not self.is_remote:
            return [0] * len(clips)
        wanted, sizes = list[Wanted](), list[int]()
        for clip in clips:
            try:
                name, runs = self.runs(clip.id, sorted({*clip.numbers}))
            except (StoreError, KeyError):
                name, runs = "", []
            if runs:
                wanted.append(Wanted(clip.position, name, tuple(runs), clip.fetch))
            sizes.append(sum(run.size for run in runs) if clip.fetch else 0)
        self.files.announce(done, wanted)
        return sizes

    def sample_rate(self, id_: str) -> int | None:
        """Return the sample rate of a video's audio in Hz; None if it has none. Raises KeyError, StoreError."""
        self.facts(id_)
        return None

    def samples(self, id_: str, span: tuple[Fraction, Fraction], rate: int | None, num_channels: int | None) -> Samples:  # noqa: ARG002
        """Return (C, N) audio samples of a video; see `StoredVideo.samples`. Raises KeyError, StoreError.

        Args:
            id_: Id of the video.
            span: Start and end in seconds from the first frame.
            rate: Sample rate of the result in Hz; None keeps the stored rate.
            num_channels: 1 or 2; None keeps the stored channels.
        """
        raise StoreError(
            f"{id_}: has no audio: its source has none, or the run dropped it (`vidprep transcode --audio copy` keeps it)",
            path=self.path,
        )

    def stored_jpegs(self, id_: str) -> list[memoryview] | None:
        """Return the stored JPEG of every frame; None if the store holds no JPEGs. Raises KeyError, StoreError."""
        self.facts(id_)
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if not isinstance(value, Handles) and name != "ids"
        }


@dataclass(frozen=True, slots=True, repr=False)
class StoredVideo:
    """One video of a store, as ``store[id]`` returns it.

    Attributes:
        store: The store
        id: Id of the video
        facts: Number of frames, size, times and keyframes
    """

    store: FrameStore
    id: str
    facts: VideoFacts

    def __repr__(self) -> str:
        rate = "" if self.frame_rate is None else f" at {float(self.frame_rate):.5g} a second"
        return f"<video {self.id!r}: {len(self)} frames of {self.width}x{self.height}{rate}>"

    def __len__(self) -> int:
        return self.facts.num_frames

    @overload
    def __getitem__(self, index: SupportsIndex) -> Frames: ...
    @overload
    def __getitem__(self, index: Indexes) -> Frames: ...
    def __getitem__(self, index: SupportsIndex | Indexes) -> Frames:
        """Return one frame, (H, W, 3), or several as `frames` does. Raises IndexError, TypeError, StoreError."""
        if isinstance(index, slice) or hasattr(index, "__len__"):
            return self.frames(cast("Indexes", index))
        frame: Frames = self.frames([index])[0]
        return frame

    def __iter__(self) -> Iterator[Frames]:
        """Iterate over the frames, (H, W, 3), of which a GOP at a time is in memory. Raises StoreError."""
        starts = range(0, len(self), FRAMES_AT_A_TIME) if self.keyframes is None else self.keyframes
        for start, end in pairwise([*starts, len(self)]):
            yield from self.frames(range(start, end))

    @property
    def height(self) -> int:
        """Height in pixels."""
        return self.facts.height

    @property
    def width(self) -> int:
        """Width in pixels."""
        return self.facts.width

    @property
    def frame_rate(self) -> Fraction | None:
        """Exact rate of a constant-rate video; None if each frame has its own time."""
        return self.facts.frame_rate

    @property
    def keyframes(self) -> Sequence[int] | None:
        """Numbers of frames that are decoded independently; None means all."""
        return self.facts.keyframes

    @property
    def timestamps(self) -> npt.NDArray[np.float64]:
        """(N,) start of each frame in seconds from the first one. Raises StoreError if the store does not know."""
        facts = self.facts
        if facts.pts is not None and facts.time_base is not None:
            return np.asarray(facts.pts, np.float64) * facts.time_base.numerator / facts.time_base.denominator
        if facts.frame_rate is None:
            raise StoreError(f"has no times of {self.id}", path=self.store.path)
        return np.arange(len(self), dtype=np.float64) * facts.frame_rate.denominator / facts.frame_rate.numerator

    @property
    def source_frames(self) -> npt.NDArray[np.int64]:
        """(N,) number of the source frame of each frame, from the first one displayed; -1 if unknown."""
        mapping = self.store.source_map(self.id)
        if mapping is None:
            return np.full(len(self), -1, np.int64)
        return (
            np.arange(len(self)) if mapping.frames is None else self._check_count(np.asarray(mapping.frames, np.int64))
        )

    @property
    def source_timestamps(self) -> npt.NDArray[np.float64]:
        """(N,) when those frames begin, in seconds from the first frame shown in the source; NaN where the store does not say.

        By these, audio, sensors and labels of the source are looked up; `timestamps` count from the first frame that is stored.
        """
        mapping = self.store.source_map(self.id)
        if mapping is None:
            return np.full(len(self), np.nan)
        if mapping.pts is None:
            return self.timestamps
        pts = self._check_count(np.asarray(mapping.pts, np.float64))
        return pts * mapping.time_base.numerator / mapping.time_base.denominator

    def _check_count(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return values, one per frame. Raises StoreError for another number of values."""
        if len(values) != len(self):
            raise StoreError(
                f"{self.id}: has {len(self)} frames and lists {len(values)} frames of its source; make it again",
                path=self.store.path,
            )
        return values

    @property
    def end_seconds(self) -> float:
        """End of the last frame. At a variable rate it is displayed for the average frame duration.

        Raises:
            StoreError: The store does not know.
        """
        count, rate = len(self), self.frame_rate
        if self.facts.duration is not None:
            return float(self.facts.duration)
        if rate is not None:
            return float(count / rate) if self.facts.pts is None else float(self.timestamps[-1]) + float(1 / rate)
        if count == 1:  # whose duration is unknown
            return float(self.facts.time_base or 1)
        return float(self.timestamps[-1]) * count / (count - 1)

    @property
    def sample_rate(self) -> int | None:
        """Sample rate of the audio in Hz; None without one. Raises StoreError."""
        return self.store.sample_rate(self.id)

    def samples(
        self,
        start_seconds: float = 0.0,
        end_seconds: float | None = None,
        *,
        rate: int | None = None,
        num_channels: Literal[1, 2] | None = None,
    ) -> Samples:
        """Return audio samples of [start_seconds, end_seconds), counted from the first frame.

        The sample at a time is heard while the frame at that time is displayed. Parts without audio are zeros.

        Args:
            start_seconds: Start time.
            end_seconds: End time; None means the end of the video.
            rate: Sample rate of the result in Hz; None keeps the stored rate.
            num_channels: 1 or 2; None keeps the stored channels.

        Returns:
            Array of shape (C, N), float32, normally in -1 to 1, with N = round(end * rate) - round(start * rate).

        Raises:
            StoreError: The video has no audio.
            ValueError: An argument is out of range.
        """
        end = self.end_seconds if end_seconds is None else end_seconds
        if not -math.inf < start_seconds <= end < math.inf:
            raise ValueError(f"[{start_seconds}, {end}) s; give a start that is not after the end")
        if num_channels not in (None, 1, 2) or (rate is not None and not 0 < rate <= MAX_RATE):
            raise ValueError(f"rate={rate}, num_channels={num_channels}; give samples per second, and 1 or 2 channels")
        return self.store.samples(self.id, (Fraction(start_seconds), Fraction(end)), rate, num_channels)

    def frames(
        self,
        indexes: Indexes = slice(None),
        out: Frames | None = None,
        *,
        size: tuple[int, int] | None = None,
        dtype: Literal["uint8", "uint16"] = "uint8",
    ) -> Frames:
        """Return frames as RGB, in the order asked.

        Args:
            indexes: Numbers of frames from 0, or a slice. They may be negative, which counts from the end, and may repeat.
            out: A C-contiguous array of the result's shape and dtype to decode into.
            size: (height, width) that frames are scaled to, bicubic and antialiased.
            dtype: "uint8", or "uint16", 0..65535, with all bits of coded video of 10 bits.

        Returns:
            An array of shape (T, H, W, 3).

        Raises:
            IndexError: There is no such frame.
            TypeError: `indexes` is no list of whole numbers.
            ValueError: `out`, `size` or `dtype` is not as described.
            StoreError: The store is damaged.
        """
        if dtype != "uint8" and not (dtype == "uint16" and self.store.reads_uint16):
            known = "uint8 or uint16" if self.store.reads_uint16 else "uint8"
            raise ValueError(f"dtype is {dtype!r}; a store of {self.store.kind} has {known}")
        numbers = self._numbers(indexes)
        _check_size(size)
        shape = (len(numbers), *(size or (self.facts.height, self.facts.width)), 3)
        if out is None:
            out = self._room_for(shape, dtype)
        else:
            _check_out(out, shape, dtype)
        first: dict[int, int] = {}
        for row, number in enumerate(numbers):
            first.setdefault(number, row)
        ordered = sorted(first)
        if ordered:
            self.store.fill(self.id, ordered, [out[first[number]] for number in ordered])
        for row, number in enumerate(numbers):
            if first[number] != row:
                out[row] = out[first[number]]
        return out

    @property
    def tolerance(self) -> Tolerance:
        """Largest time by which another may fall short of the frame that it means. Raises StoreError if no times are known."""
        interval = exact_seconds(self.end_seconds / max(1, len(self)))
        return Pace.build(interval, is_variable=self.frame_rate is None).tolerance

    def frames_at(self, seconds: Sequence[float]) -> Frames:
        """Return the frames that are shown at some times, in the order asked.

        They are those of torchcodec's `get_frames_played_at`, except that a time which falls short of a frame by at most a
        quarter of the frame interval (5 ms at most at a variable rate) means that frame, as everywhere in vidprep.

        Args:
            seconds: Times from the first frame, below `end_seconds`.

        Returns:
            An array of shape (T, H, W, 3).

        Raises:
            IndexError: No frame is shown at a time.
            StoreError: The store is damaged, or does not know times.
        """
        times = np.asarray(seconds, np.float64).reshape(-1)
        if outside := [time for time in times.tolist() if not 0 <= time < self.end_seconds]:
            raise IndexError(
                f"{self.id} shows no frame at {outside[0]:g} s; its frames are shown from 0 to {self.end_seconds:g} s"
            )
        return self.frames(self.tolerance.frames_at(self.timestamps, times).tolist())

    def _room_for(self, shape: tuple[int, int, int, int], dtype: str) -> Frames:
        try:
            return np.empty(shape, dtype)
        except (MemoryError, ValueError) as error:
            count, height, width, _ = shape
            raise StoreError(
                f"{self.id}: {count} frames of {width}x{height} do not fit into memory; ask for fewer at a time",
                path=self.store.path,
            ) from error

    def _numbers(self, indexes: Indexes) -> list[int]:
        count = len(self)
        if isinstance(indexes, slice):
            return list(range(*indexes.indices(count)))
        if isinstance(indexes, SupportsIndex) and not hasattr(indexes, "__len__"):
            raise TypeError(f"frames({indexes!r}): give a list of frame numbers, as in frames([{indexes!r}])")
        try:
            numbers = [operator.index(index) for index in indexes]
        except TypeError:
            raise TypeError(f"frames({indexes!r}): give a list of frame numbers, which are whole numbers") from None
        for number in numbers:
            if not -count <= number < count:
                raise IndexError(f"frame {number} of {self.id}, which has {count}")
        return [number % count for number in numbers]


def digest_of(checksums: pa.ChunkedArray) -> str:
    """Return a digest of the checksums of some videos."""
    return hashlib.sha256(json.dumps(checksums.to_pylist()).encode()).hexdigest()[:16]


def _check_size(size: tuple[int, int] | None) -> None:
    if size is None or (
        isinstance(size, Sequence) and len(size) == 2 and all(operator.index(side) > 0 for side in size)
    ):
        return
    raise ValueError(f"size is {size!r}; give (height, width) in pixels")


def _check_out(out: Frames, shape: tuple[int, ...], dtype: str) -> None:
    if out.shape != shape or out.dtype != dtype or not (out.flags.c_contiguous and out.flags.writeable):
        kind = "C-contiguous" if out.flags.c_contiguous else "not C-contiguous"
        kind += "" if out.flags.writeable else ", read-only"
        raise ValueError(f"out is {out.shape} {out.dtype}, {kind}; {shape} {dtype}, C-contiguous was expected")


class ManifestSources:
    """Source frames that the videos of a folder show, from its manifest, which is read at the first request."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._table: pa.Table | None = None
        self._rows: dict[str, int] = {}

    def source_map(self, id_: str) -> SourceMap | None:
        """Return the source map of a video; None without a manifest, or with one of a version before 0.2."""
        if self._table is None:
            table = read_table(self._folder, ["id", *SOURCE_COLUMNS]) if manifest_paths(self._folder) else None
            if table is None:
                return None
            self._table = add_columns(table, SOURCE_COLUMNS).combine_chunks()
            self._rows = {each: number for number, each in enumerate(self._table["id"].to_pylist())}
        if id_ not in self._rows:
            return None
        return source_map_of({name: self._table[name][self._rows[id_]].as_py() for name in SOURCE_COLUMNS})


def source_map_of(row: Mapping[str, Any]) -> SourceMap | None:
    """Return the source map of a manifest row, from SOURCE_COLUMNS; None for a row of version 0.1."""
    num, den = row["source_time_base_num"], row["source_time_base_den"]
    return SourceMap(row["source_frames"], row["source_pts"], Fraction(num, den)) if num and den else None
