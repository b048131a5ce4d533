"""Clips of frames by number, over any store or over video files: what a training loop indexes.

    dataset = VideoDataset("ready/", sequence_length=8, stride=2, step=4, crop=224, random_crop=True)
    dataset[0]["frames"]        (8, 224, 224, 3) uint8 RGB
    VideoDataset("ready/", split="train", clips=clips_at_random_indices(num_frames_per_clip=16))
    DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)      torch's, by fork or spawn
    PrefetchLoader(dataset, batch_size=8, shuffle=True, workers=2)      vidprep.formats.training.loader

Without `clips` an item is a sequence: `sequence_length` frames, `stride` apart; sequences of a video begin `step` frames apart, and none
goes past its end. Numbers run through the videos in the order of their ids.
"""

from __future__ import annotations

import operator
import os
import random
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import MissingError, SettingsError, StoreError, TransformError
from vidprep.formats.option import whole
from vidprep.formats.storage import cached_method
from vidprep.formats.stores import FrameStore, JoinedStores, StoredVideo, VideoFiles, open_store
from vidprep.formats.training.items import (
    Audio,
    ItemLabels,
    ItemRandomness,
    RandomKey,
    Where,
    array_labels,
    chosen_videos,
    class_ids,
    register_torch_collate,
    stream,
)
from vidprep.formats.training.samplers import ClipSampler, Timing, Windows, counts, timing_of
from vidprep.formats.training.transform import ColourModel, DType, Layout, MeanStd, Range, Size, Transform

KEPT_VIDEOS, CLIPS_OF_BLOCK = 128, 16
UNUSED = np.random.default_rng(0)  # making one takes as long as fetching a frame that is kept
Store: TypeAlias = "str | os.PathLike[str] | FrameStore"
Source: TypeAlias = "Store | Sequence[Store] | Mapping[str, Store]"
Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Video:
    """Properties of a video that all its items share.

    Attributes:
        stored: The video
        timing: Times of its frames
        timestamps: (N,) start of each frame in seconds
        source_frames: (N,) number of the source frame of each frame
        source_timestamps: (N,) start of those in seconds
        labels: Labels of the video
        class_id: Number of its class; None if the store has no classes
    """

    stored: StoredVideo
    timing: Timing
    timestamps: npt.NDArray[np.float64]
    source_frames: npt.NDArray[np.int64]
    source_timestamps: npt.NDArray[np.float64]
    labels: ItemLabels
    class_id: int | None


class VideoDataset:
    """Clips of the videos of a store, by number: a map-style dataset for torch's DataLoader and for PrefetchLoader.

    ``len(dataset)`` counts all clips, and ``dataset[i]`` returns one as a dict (see ``__getitem__``). The dataset can
    be pickled, and works the same in forked and spawned processes.

    Args:
        source: The path of a store, a store, a list of video files, or several stores: a list of them, or a dict whose
            keys are put in front of their ids.
        sequence_length: Frames of a clip. Videos that are too short have no clip.
        stride: Distance between two frames of a clip, in frames.
        step: Distance between the beginnings of two clips, in frames.
        clips: A sampler in place of sequence_length, stride and step, such as ``clips_at_random_indices(...)``.
        size: (height, width) that frames are scaled to; one number is the shorter side.
        crop: (height, width) that is cut out after scaling; one number is a square. Cut from the middle unless
            random_crop.
        random_crop: Cut out at a random place, the same for all frames of a clip.
        flip: Probability of flipping left and right; True is 0.5.
        dtype: "uint8", "uint16" (all bits of a store of 10 bits), "float16" or "float32".
        normalize: For float dtypes: True gives 0..1; "imagenet" or (mean, std), three values each, gives ((0..1) -
            mean) / std.
        colour: "rgb", or "ycbcr" as in JPEG (JFIF).
        random_resized_crop: Cut out a random part and scale it to `size`: True, or ((least, most) share of the area,
            (least, most) width / height).
        num_crops: 3 makes three items of each clip: crops at both ends and the middle of the side of which the crop
            leaves more.
        layout: Order of the axes of frames: "THWC", "TCHW" or "CTHW".
        transform: A function of the frames of a clip, applied last, such as one of torchvision.transforms.v2. It gets
            an array, or a tensor with tensors=True, and must return the same shape for all clips.
        split: Take only videos whose label `split` is this.
        ids: Take only these videos.
        where: Take only videos for which this holds: an Arrow expression on `id`, `num_frames`, `height`, `width` and
            `labels`, such as ``pc.field("labels", "score") > 0.5``, or a function of a dict of these.
        audio_rate: Add `audio`, (audio_channels, N) float32 at this sample rate, from the time of the first frame on,
            and `has_audio`; for stores made with `--audio`.
        audio_channels: 1 or 2.
        audio_seconds: Length of `audio`; None is as long as the clip.
        tensors: Return torch tensors, which share the memory of the arrays.
        seed: Seed of everything random.
        rank: Number of this process: it takes every world_size-th clip, starting with this one.
        world_size: Number of processes. The last few clips are left out so that all have equally many.

    Raises:
        SettingsError: An argument is not allowed, or no clip is left.
        StoreError: The store cannot be read.
        MissingError: torch is needed and not installed.
    """

    def __init__(
        self,
        source: Source,
        sequence_length: int = 8,
        stride: int = 1,
        step: int = 1,
        *,
        clips: ClipSampler | None = None,
        size: Size | None = None,
        crop: Size | None = None,
        random_crop: bool = False,
        flip: bool | float = False,
        dtype: DType = "uint8",
        normalize: bool | Literal["imagenet"] | MeanStd = False,
        colour: ColourModel = "rgb",
        random_resized_crop: bool | tuple[Range, Range] = False,
        num_crops: Literal[1, 3] = 1,
        layout: Layout = "THWC",
        transform: Callable[[Any], Any] | None = None,
        split: str | None = None,
        ids: Sequence[str] | None = None,
        where: Where | None = None,
        audio_rate: int | None = None,
        audio_channels: Literal[1, 2] = 1,
        audio_seconds: float | None = None,
        tensors: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.clips = _sampler(clips, sequence_length, stride, step)
        rank, world_size = whole("rank", rank, 0), whole("world_size", world_size, 1)
        if rank >= world_size:
            raise SettingsError(f"rank is {rank}; with world_size {world_size} it is 0 to {world_size - 1}")
        self.picture = Transform(
            size, crop, random_crop, flip, dtype, normalize, colour, random_resized_crop, num_crops, layout
        )
        if self.clips.is_random and num_crops > 1:
            raise SettingsError("num_crops is for clips at regular places: each crop would be of another random clip")
        if transform is not None and not callable(transform):
            raise SettingsError(f"transform is {transform!r}; give a function of frames")
        self.transform = transform
        if tensors:
            _torch()
        self.store = _store(source)
        if dtype == "uint16" and not self.store.reads_uint16:
            raise SettingsError(f"dtype is 'uint16'; a store of {self.store.kind} has 8 bits", path=self.store.path)
        self.tensors, self._chance = tensors, ItemRandomness(seed)
        self.rank, self.world_size = rank, world_size
        labels, sizes = self.store.label_columns(), self.store.sizes()
        chosen = chosen_videos(self.store, labels, sizes, split=split, ids=ids, where=where)
        self.ids = [self.store.ids[place] for place in chosen]
        self.sizes = sizes[chosen]
        self.class_to_idx, self._class_ids = class_ids(self.store, labels.taken(self.ids))
        self._array_labels = array_labels(labels)
        clips_of_videos = counts(self.clips, self.ids, self.sizes[:, 0], self.store.__getitem__)
        self._ends = np.cumsum(clips_of_videos * num_crops)
        self._check_sizes()
        if not self._ends.size or self._ends[-1] < world_size:
            if not len(self.store):
                raise SettingsError("has no videos; `vidprep show` lists the failures", path=self.store.path)
            longest = max(self.sizes[:, 0].tolist(), default=0)
            raise SettingsError(
                f"{len(self.ids)} videos of at most {longest} frames hold {clips_of_videos.sum()} {self.clips}; "
                + (
                    "give shorter ones"
                    if world_size == 1
                    else f"world_size is {world_size}: give fewer ranks, or shorter ones"
                ),
                path=self.store.path,
            )
        self.audio = None
        if audio_rate is not None:
            used = [id_ for id_, count in zip(self.ids, clips_of_videos.tolist(), strict=True) if count]
            self.audio = Audio.of(audio_rate, audio_channels, audio_seconds, self.clips, used, self.store.__getitem__)
        elif audio_seconds is not None or audio_channels != 1:
            raise SettingsError("audio_seconds and audio_channels need audio_rate")
        self._open()

    def _open(self) -> None:
        self._video = cached_method(self._load_video, KEPT_VIDEOS)
        self._places = {id_: place for place, id_ in enumerate(self.ids)}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_video", "_places")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return int(self._ends[-1]) // self.world_size

    def __repr__(self) -> str:
        short = int((np.diff(self._ends, prepend=0) == 0).sum())
        return f"<VideoDataset {self.store.path}: {len(self)} {self.clips} from {len(self._ends)} videos" + (
            f", {short} of them too short>" if short else ">"
        )

    @property
    def seed(self) -> int:
        """Seed of all random choices."""
        return self._chance.seed

    @property
    def epoch(self) -> int | None:
        """Epoch of `set_epoch`; None before it was called."""
        return self._chance.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch: random choices become a function of seed, epoch and index, also in running workers of torch's
        DataLoader.

        Without it, items still differ from one epoch to the next; then `torch.manual_seed` and the number of workers
        decide.
        """
        self._chance.set_epoch(epoch)

    def _check_sizes(self) -> None:
        """Raise SettingsError for a video that is smaller than the crop."""
        used = np.flatnonzero(np.diff(self._ends, prepend=0))
        sizes, first = np.unique(self.sizes[used, 1:], axis=0, return_index=True)
        self._results: dict[tuple[int, int], str] = {}
        for size, at in zip(sizes.tolist(), first.tolist(), strict=True):
            id_ = self.ids[used[at]]
            try:
                self._results.setdefault(self.picture.result(*size), id_)
            except SettingsError as error:
                raise SettingsError(f"{id_!r}: {error}", path=self.store.path) from error

    @property
    def frame_size(self) -> tuple[int, int]:
        """(height, width) of all items. Raises SettingsError if items differ, because they cannot form a batch."""
        if len(self._results) > 1:
            (a, one), (b, other) = sorted(self._results.items())[:2]
            raise SettingsError(
                f"frames of {one!r} have {a[0]} lines of {a[1]} pixels, those of {other!r} {b[0]} of {b[1]}, "
                "and cannot form one batch; give size or crop",
                path=self.store.path,
            )
        return next(iter(self._results))

    @cached_property
    def _shape_and_dtype(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        made: Any = np.zeros(self.picture.shape(self.clips.num_frames, *self.frame_size), self.picture.dtype)
        if self.transform is not None:
            made = self._transformed(made, "zeros, which tell the shape of items", (0,))
        return tuple(made.shape), np.asarray(made).dtype

    @property
    def frames_shape(self) -> tuple[int, ...]:
        """Shape of the frames of every item, in the order of the layout; with `transform`, of its result for zeros.

        Raises:
            SettingsError: Items have different shapes.
        """
        return self._shape_and_dtype[0]

    @property
    def frames_dtype(self) -> np.dtype[Any]:
        """Dtype of the frames of every item; see `frames_shape`."""
        return self._shape_and_dtype[1]

    def blocks(self, indexes: npt.NDArray[np.int64], num_frames: int) -> npt.NDArray[np.int64]:
        """Return (N,) numbers that are equal for clips in the same `num_frames` frames of a video, so that one worker
        decodes them.

        If the start of clips is unknown in advance, clips that follow one another are equal; random clips stay alone.

        Args:
            indexes: (N,) numbers of items.
            num_frames: Length of a block of frames.
        """
        numbers = indexes * self.world_size + self.rank
        videos = np.searchsorted(self._ends, numbers, side="right")
        clips = (numbers - np.concatenate([[0], self._ends])[videos]) // self.picture.num_crops
        starts = self.clips.starts(clips)
        if starts is None:
            parts = numbers // self.picture.num_crops // (1 if self.clips.is_random else CLIPS_OF_BLOCK)
            return np.unique(np.stack([videos, parts]), axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)
        before = np.concatenate([[0], np.cumsum(self.sizes[:, 0] // num_frames + 1)])
        blocks: npt.NDArray[np.int64] = before[videos] + starts // num_frames
        return blocks

    def locate(self, index: SupportsIndex, epoch: int | None = None) -> tuple[str, npt.NDArray[np.int64]]:
        """Return the video id of an item and its frame numbers, (T,).

        Args:
            index: Number of the item.
            epoch: Epoch of random clips; None means that of `set_epoch`, or 0.

        Raises:
            IndexError: There is no such item.
        """
        epoch = self.epoch or 0 if epoch is None else epoch
        return self._located(self._number(index), self.key(index, epoch))

    def _located(self, number: int, key: RandomKey) -> tuple[str, npt.NDArray[np.int64]]:
        video = int(np.searchsorted(self._ends, number, side="right"))
        clip = (number - (int(self._ends[video - 1]) if video else 0)) // self.picture.num_crops
        id_ = self.ids[video]
        timing = self._video(id_).timing if self.clips.needs_times else Timing(int(self.sizes[video, 0]))
        rng = stream(key, "clip") if self.clips.is_random else UNUSED
        return id_, self.clips.item(timing, clip, rng)

    def key(self, index: SupportsIndex, epoch: int) -> RandomKey:
        """Return the key of the random numbers of an item in an epoch.

        Args:
            index: Number of the item.
            epoch: Number of the epoch.
        """
        return self._chance.key(self._number(index), epoch)

    def _number(self, index: SupportsIndex) -> int:
        """Return the number of an item among the items of all ranks."""
        number, count = operator.index(index), len(self)
        if not -count <= number < count:
            raise IndexError(f"item {number} of {count}")
        return number % count * self.world_size + self.rank

    def __getitem__(self, index: SupportsIndex) -> Item:
        """Return one clip.

        Returns:
            A dict with `frames` (T, H, W, 3), or as layout and transform make them; `id`; `indexes` (T,) int64; `timestamps` (T,) float64,
            seconds from the first stored frame; `source_frames` (T,) int64 and `source_timestamps` (T,) float64, the numbers and seconds of
            these frames in the source, -1 and NaN where the store does not say; `labels`, a dict; and, where the label `label` holds texts
            or whole numbers, `class_id`, its number in `class_to_idx`, or -100 where the video has none.

        Raises:
            IndexError: There is no such clip.
            StoreError: The store is damaged.
            TransformError: `transform` failed.
        """
        number = self._number(index)
        key = self._chance.key(number)
        id_, numbers = self._located(number, key)
        stored = self._video(id_).stored
        frames = stored.frames(
            numbers, size=self.picture.scaled(stored.height, stored.width), dtype=self.picture.stored_dtype
        )
        item = {"frames": self.finished(frames, id_, numbers, index, key), **self.describe(id_, numbers)}
        register_torch_collate()
        return as_tensors(item) if self.tensors else item

    def video(self, id_: str) -> StoredVideo:
        """Return one video of the store. Raises KeyError."""
        return self._video(id_).stored

    def finished(
        self,
        frames: npt.NDArray[Any],
        id_: str,
        numbers: npt.NDArray[np.int64],
        index: SupportsIndex,
        key: RandomKey,
        out: npt.NDArray[Any] | None = None,
    ) -> Any:
        """Apply the transforms that follow scaling, then the user's function, and return the frames of the item.

        Args:
            frames: Scaled frames.
            id_: Id of the video.
            numbers: Numbers of the frames.
            index: Number of the item.
            key: Key of its random numbers.
            out: Array of `frames_shape` to write into; may be `frames` itself if `picture` is the identity.

        Raises:
            TransformError: The user's function failed.
        """
        made, picture = frames, self.picture
        if not picture.is_identity:
            height, width = picture.result(*frames.shape[1:3])
            made = np.empty(picture.shape(len(frames), height, width), picture.dtype)
            if out is not None and self.transform is None:
                made = out
            rng = stream(key, "picture") if picture.is_random else UNUSED
            picture.apply(frames, made, rng, self._number(index) % picture.num_crops)
        if self.transform is not None:
            made = self._transformed(made, _span(id_, numbers), key)
        if out is not None and made is not out:
            if tuple(made.shape) != out.shape or (found := np.asarray(made)).dtype != out.dtype:
                raise TransformError(
                    f"{_span(id_, numbers)}: gives {tuple(made.shape)} {made.dtype}, and {out.shape} {out.dtype} for others",
                    path=self.store.path,
                )
            out[...] = found
        return made

    def _transformed(self, frames: npt.NDArray[Any], what: str, key: RandomKey) -> Any:
        """Call the user's function with the random numbers of Python, NumPy and torch seeded by `key`."""
        assert self.transform is not None
        try:
            with _seeded(key):
                made = self.transform(_torch().from_numpy(frames) if self.tensors else frames)
            if not hasattr(made, "shape") or not hasattr(made, "dtype"):
                raise TypeError(f"it returns {type(made).__name__}; return an array or a tensor")
            if hasattr(made, "detach"):
                made = made.detach().cpu()
            if np.asarray(made).dtype.hasobject:
                raise TypeError("it returns an array of objects; return numbers")
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            raise TransformError(
                f"{what}: {type(error).__name__} at {at.filename}:{at.lineno}: {error}", path=self.store.path
            ) from error
        return made

    def describe(self, id_: str, numbers: npt.NDArray[np.int64]) -> Item:
        """Return everything of an item except its frames.

        Args:
            id_: Id of the video.
            numbers: (T,) numbers of its frames.
        """
        video = self._video(id_)
        item: Item = {
            "id": id_,
            "indexes": numbers,
            "timestamps": video.timestamps[numbers],
            "source_frames": video.source_frames[numbers],
            "source_timestamps": video.source_timestamps[numbers],
            "labels": video.labels,
        }
        if video.class_id is not None:
            item["class_id"] = video.class_id
        return item if self.audio is None else item | self.audio.item(video.stored, float(video.timestamps[numbers[0]]))

    def _load_video(self, id_: str) -> _Video:
        stored = self.store[id_]
        try:
            timestamps, timing, sources = stored.timestamps, timing_of(stored), stored.source_timestamps
        except StoreError:
            timestamps = sources = np.full(len(stored), np.nan)
            timing = Timing(len(stored))
        labels = ItemLabels(self.store.labels(id_))
        labels.arrays = self._array_labels
        class_id = None if self._class_ids is None else int(self._class_ids[self._places[id_]])
        return _Video(stored, timing, timestamps, stored.source_frames, sources, labels, class_id)


def as_tensors(item: Item) -> Item:
    """Return arrays as torch tensors that share their memory."""
    torch = _torch()
    made = {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in item.items()}
    if type(labels := made.get("labels")) is dict:
        made["labels"] = as_tensors(labels)
    return made


def found_device(name: str) -> Any:
    """Return a torch device that works. Raises MissingError."""
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


_one_at_a_time = threading.Lock()  # each of them has one generator for all threads


@contextmanager
def _seeded(key: RandomKey) -> Iterator[None]:
    """Seed Python, NumPy and (if imported) torch on the CPU from `key` within the block, and restore their states after
    it.
    """
    seed = int(stream(key, "transform").integers(1 << 32))
    with _one_at_a_time, ExitStack() as after:
        after.callback(random.setstate, random.getstate())
        after.callback(np.random.set_state, np.random.get_state())
        random.seed(seed)
        np.random.seed(seed)
        if (torch := sys.modules.get("torch")) is not None:
            after.enter_context(torch.random.fork_rng(devices=[]))
            torch.default_generator.manual_seed(seed)
        yield


def _span(id_: str, numbers: npt.NDArray[np.int64]) -> str:
    return f"{id_!r}, frames {numbers[0]} to {numbers[-1]}"


def _sampler(clips: ClipSampler | None, sequence_length: int, stride: int, step: int) -> ClipSampler:
    values = {"sequence_length": sequence_length, "stride": stride, "step": step}
    if clips is None:
        return Windows(*(whole(name, value, 1) for name, value in values.items()))
    if not isinstance(clips, ClipSampler):
        raise SettingsError(
            f"clips is {clips!r}; give a sampler, such as clips_at_random_indices(num_frames_per_clip=16)"
        )
    if tuple(values.values()) != (8, 1, 1):
        raise SettingsError("clips says which frames; leave out sequence_length, stride and step")
    return clips


def _store(source: Source) -> FrameStore:
    if isinstance(source, FrameStore):
        return source
    if isinstance(source, str | os.PathLike):
        return VideoFiles([source]) if Path(source).is_file() else open_store(source)
    if isinstance(source, Mapping):
        return JoinedStores({name: _store(each) for name, each in source.items()})
    if not isinstance(source, Iterable):
        raise SettingsError(
            f"source is {source!r}; give the path of a store, a store, several of them, or a list of video files"
        )
    several = list(source)
    if wrong := [each for each in several if not isinstance(each, str | os.PathLike | FrameStore)]:
        raise SettingsError(f"source has {wrong[0]!r}; give paths or stores")
    if any(isinstance(each, FrameStore) or Path(each).is_dir() for each in several):
        return JoinedStores([_store(each) for each in several])
    return VideoFiles([each for each in several if not isinstance(each, FrameStore)])
