"""Sequences of frames by number, over any store or over video files: what a training loop indexes.

    dataset = VideoDataset("ready/", sequence_length=8, stride=2, step=4, crop=224, random_crop=True)
    dataset[0]["frames"]        (8, 224, 224, 3) uint8 RGB
    VideoDataset("ready/", split="train").class_to_idx
    DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)      torch's, by fork or spawn
    PrefetchLoader(dataset, batch_size=8, shuffle=True, workers=2)      vidprep.formats.training.loader

A sequence is `sequence_length` frames, `stride` apart; sequences of a video begin `step` frames apart, and none goes past
its end. Numbers run through the videos in the order of their ids.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import MissingError, SettingsError, StoreError
from vidprep.formats.files.weak_cache import kept
from vidprep.formats.stores.base import Frames, FrameStore, StoredVideo
from vidprep.formats.stores.raw_files import VideoFiles
from vidprep.formats.stores.registry import open_store
from vidprep.formats.training.choice import Where, chosen_videos, class_ids
from vidprep.formats.training.item_labels import ItemLabels, array_labels, teach_torch
from vidprep.formats.training.transform import ColourModel, DType, Transform
from vidprep.formats.validation import whole

KEPT_VIDEOS = 128
Source = str | os.PathLike[str] | FrameStore | Sequence[str | os.PathLike[str]]
Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Video:
    """What every item of a video shares. class_id: None where the store has no classes."""

    stored: StoredVideo
    timestamps: npt.NDArray[np.float64]
    labels: ItemLabels
    class_id: int | None


class VideoDataset:
    """`len` and `[i]` over every sequence. Map-style, picklable, the same in forked and spawned processes.

    source: the path of a store, a store, or video files. split: only videos whose label `split` is this. ids: only these videos. where:
    only those of which it holds: an Arrow expression on `id`, `num_frames`, `height`, `width` and `labels` (a struct), such as
    pc.field("labels", "score") > 0.5, or a function of a dict of these. The transform (size, crop, random_crop, flip, dtype, normalize,
    colour) is that of `Transform`; what is random in it is a function of seed, epoch and index. tensors: items hold torch
    tensors, which share the memory of the arrays. rank, world_size: only every world_size-th sequence, from rank on; the last
    few are left out so that all ranks have equally many. Raises SettingsError, StoreError, MissingError.
    """

    def __init__(
        self, source: Source, sequence_length: int = 8, stride: int = 1, step: int = 1, *,
        size: int | tuple[int, int] | None = None, crop: int | tuple[int, int] | None = None, random_crop: bool = False,
        flip: bool = False, dtype: DType = "uint8",
        normalize: bool | tuple[tuple[float, float, float], tuple[float, float, float]] = False, colour: ColourModel = "rgb",
        split: str | None = None, ids: Sequence[str] | None = None, where: Where | None = None, tensors: bool = False, seed: int = 0,
        rank: int = 0, world_size: int = 1,
    ) -> None:  # fmt: skip
        sequence_length, stride, step = (
            whole(name, value, 1)
            for name, value in (("sequence_length", sequence_length), ("stride", stride), ("step", step))
        )
        seed, rank, world_size = whole("seed", seed, 0), whole("rank", rank, 0), whole("world_size", world_size, 1)
        if rank >= world_size:
            raise SettingsError(f"rank is {rank}; with world_size {world_size} it is 0 to {world_size - 1}")
        self.transform = Transform(size, crop, random_crop, flip, dtype, normalize, colour)
        if tensors:
            _torch()
        self.store = _store(source)
        self.sequence_length, self.stride, self.step = sequence_length, stride, step
        self.tensors, self.seed, self.epoch = tensors, seed, 0
        self._rank, self._world_size = rank, world_size
        labels, sizes = self.store.label_columns(), self.store.sizes()
        chosen = chosen_videos(self.store, labels, sizes, split=split, ids=ids, where=where)
        self.ids = [self.store.ids[place] for place in chosen]
        self._sizes = sizes[chosen]
        self.class_to_idx, self._class_ids = class_ids(self.store, labels.taken(self.ids))
        self._array_labels = array_labels(labels)
        span = (sequence_length - 1) * stride + 1
        counts = np.maximum(0, (self._sizes[:, 0] - span) // step + 1)
        self._ends = np.cumsum(counts)
        if not self._ends.size or self._ends[-1] < world_size:
            longest = max(self._sizes[:, 0].tolist(), default=0)
            raise SettingsError(
                f"{len(counts)} videos of at most {longest} frames hold {counts.sum()} sequences of {span} frames; "
                f"{world_size} are needed: give a shorter sequence_length or stride",
                path=self.store.path,
            )
        self._open()

    def _open(self) -> None:
        self._video = kept(self._load_video, KEPT_VIDEOS)
        self._places = {id_: place for place, id_ in enumerate(self.ids)}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_video", "_places")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return int(self._ends[-1]) // self._world_size

    def __repr__(self) -> str:
        short = int((np.diff(self._ends, prepend=0) == 0).sum())
        return (
            f"<VideoDataset {self.store.path}: {len(self)} sequences of {self.sequence_length} frames from {len(self._ends)} videos"
            + (f", {short} of them too short>" if short else ">")
        )

    def blocks(self, indexes: npt.NDArray[np.int64], num_frames: int) -> npt.NDArray[np.int64]:
        """(N,) numbers that are equal where sequences begin in the same video and the same `num_frames` frames of it."""
        numbers = indexes * self._world_size + self._rank
        videos = np.searchsorted(self._ends, numbers, side="right")
        starts = (numbers - np.concatenate([[0], self._ends])[videos]) * self.step
        before = np.concatenate([[0], np.cumsum(self._sizes[:, 0] // num_frames + 1)])
        blocks: npt.NDArray[np.int64] = before[videos] + starts // num_frames
        return blocks

    @property
    def frame_size(self) -> tuple[int, int]:
        """(height, width) of every item. Raises SettingsError when items differ, and so make no batch."""
        used = np.flatnonzero(np.diff(self._ends, prepend=0))
        sizes, first = np.unique(self._sizes[used, 1:], axis=0, return_index=True)
        results = {
            self.transform.result(*size): self.ids[used[at]] for size, at in zip(sizes.tolist(), first, strict=True)
        }
        if len(results) > 1:
            (a, b), *_ = ((one, other) for one in results.items() for other in results.items() if one < other)
            raise SettingsError(
                f"frames of {a[1]!r} are {a[0][1]}x{a[0][0]}, those of {b[1]!r} {b[0][1]}x{b[0][0]}, "
                "and make no batch together; give size or crop",
                path=self.store.path,
            )
        return next(iter(results))

    def set_epoch(self, epoch: int) -> None:
        """What is random differs from epoch to epoch. Processes that are already running keep the epoch they began with."""
        self.epoch = whole("epoch", epoch, 0)

    def locate(self, index: SupportsIndex) -> tuple[str, npt.NDArray[np.int64]]:
        """The id of the video of a sequence, and the numbers of its frames, (T,). Raises IndexError."""
        number = self._number(index)
        video = int(np.searchsorted(self._ends, number, side="right"))
        start = (number - (int(self._ends[video - 1]) if video else 0)) * self.step
        return self.ids[video], start + self.stride * np.arange(self.sequence_length, dtype=np.int64)

    def _number(self, index: SupportsIndex) -> int:
        """Among the sequences of all ranks."""
        number, count = operator.index(index), len(self)
        if not -count <= number < count:
            raise IndexError(f"sequence {number} of {count}")
        return number % count * self._world_size + self._rank

    def __getitem__(self, index: SupportsIndex) -> Item:
        """frames (T, H, W, 3), id, indexes (T,) int64, timestamps (T,) float64 seconds, labels (a dict), and class_id, where the store
        has a label `label` of texts or whole numbers: its place in `class_to_idx`, or NO_CLASS where the video has none.

        A timestamp is NaN where the store does not say. Raises IndexError, StoreError.
        """
        id_, numbers = self.locate(index)
        stored = self._video(id_).stored
        frames = stored.frames(numbers, size=self.transform.scaled(stored.height, stored.width))
        if not self.transform.is_identity:
            out = np.empty((len(numbers), *self.transform.result(stored.height, stored.width), 3), self.transform.dtype)
            self.finish(frames, out, index, self.epoch)
            frames = out
        item = {"frames": frames, **self.describe(id_, numbers)}
        teach_torch()
        return as_tensors(item) if self.tensors else item

    def video(self, id_: str) -> StoredVideo:
        """One video of the dataset, as its store has it. Raises KeyError."""
        return self._video(id_).stored

    def finish(self, frames: Frames, out: npt.NDArray[Any], index: SupportsIndex, epoch: int) -> None:
        """Transform the scaled frames of a sequence into `out`."""
        rng = None
        if self.transform.is_random:
            rng = np.random.default_rng((self.seed, epoch, self._number(index)))
        self.transform.apply(frames, out, rng)

    def describe(self, id_: str, numbers: npt.NDArray[np.int64]) -> Item:
        """All of an item but its frames."""
        video = self._video(id_)
        item = {"id": id_, "indexes": numbers, "timestamps": video.timestamps[numbers], "labels": video.labels}
        return item if video.class_id is None else item | {"class_id": video.class_id}

    def _load_video(self, id_: str) -> _Video:
        stored = self.store[id_]
        try:
            timestamps = stored.timestamps
        except StoreError:
            timestamps = np.full(len(stored), np.nan)
        labels = ItemLabels(self.store.labels(id_))
        labels.arrays = self._array_labels
        class_id = None if self._class_ids is None else int(self._class_ids[self._places[id_]])
        return _Video(stored, timestamps, labels, class_id)


def as_tensors(item: Item) -> Item:
    """Arrays as torch tensors of the same memory."""
    torch = _torch()
    made = {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in item.items()}
    if type(labels := made.get("labels")) is dict:
        made["labels"] = as_tensors(labels)
    return made


def found_device(name: str) -> Any:
    """A torch device that works. Raises MissingError."""
    torch = _torch()
    try:
        torch.empty(1, device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        raise MissingError(f"torch finds no device {name!r} here: {str(error).splitlines()[0]}") from error


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingError("tensors need torch: pip install torch") from error
    return torch


def _store(source: Source) -> FrameStore:
    if isinstance(source, FrameStore):
        return source
    if isinstance(source, str | os.PathLike):
        return VideoFiles([source]) if Path(source).is_file() else open_store(source)
    if not isinstance(source, Iterable):
        raise SettingsError(f"source is {source!r}; give the path of a store, a store, or a list of video files")
    return VideoFiles(list(source))
