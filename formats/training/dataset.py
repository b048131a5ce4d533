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

import hashlib
import math
import operator
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vidprep.formats.errors import SettingsError, StoreError, TransformError, count_of
from vidprep.formats.manifest.labels import LABELS, value_of
from vidprep.formats.manifest.table import manifest_paths
from vidprep.formats.option import suggesting, whole
from vidprep.formats.storage.base import is_url
from vidprep.formats.storage.shared import SharedTable
from vidprep.formats.storage.untrusted import cache_method
from vidprep.formats.stores.base import ComingClip, FrameStore, StoredVideo
from vidprep.formats.stores.ids import Ids
from vidprep.formats.stores.joined import JoinedStores
from vidprep.formats.stores.raw_files import VideoFiles
from vidprep.formats.stores.registry import open_store
from vidprep.formats.training._transform import DType, Layout, MeanStd, Range, Size, Transform
from vidprep.formats.training._with_torch import convert_to_tensors, import_torch, register_torch_collate, seed_block
from vidprep.formats.training.items import (
    Audio,
    Item,
    ItemFields,
    ItemLabels,
    ItemRandomness,
    RandomKey,
    Where,
    array_labels,
    check_one_shape,
    choose_videos,
    class_ids,
    stack,
    stream,
)
from vidprep.formats.training.rows import FrameRows, RowsGap, RowSource
from vidprep.formats.training.samplers import (
    SHORTS,
    ClipSampler,
    Mask,
    Numbers,
    Short,
    Timing,
    Windows,
    counts,
    timing_of,
)

KEPT_VIDEOS, CLIPS_OF_BLOCK = 128, 16
UNUSED = np.random.default_rng(0)  # making one takes as long as fetching a frame that is kept
Store: TypeAlias = "str | os.PathLike[str] | FrameStore"
Source: TypeAlias = "Store | Sequence[Store] | Mapping[str, Store]"
Tail = Literal["drop", "pad"]
ID, SIZES, END, CLASS = "id", ("num_frames", "height", "width"), "end", "class_id"
NOT_PICKLED = ("_video", "ids", "sizes", "_ends")


class Clip(NamedTuple):
    """The frames of an item.

    Attributes:
        numbers: (T,) numbers of its frames; with clips_per_video=K, (K * T,) those of all clips of the item
        mask: Which of them are not padding; None if the dataset never pads
        number: Number of the clip in its video, from 0
        crop: Number of the crop of this clip, from 0
    """

    id: str
    numbers: Numbers
    mask: Mask | None
    number: int = 0
    crop: int = 0


@dataclass(frozen=True, slots=True)
class _Video:
    """Properties of a video that all its items share.

    Attributes:
        timing: Times of its frames
        timestamps: (N,) start of each frame in seconds
        source_frames: (N,) number of the source frame of each frame
        source_timestamps: (N,) start of those in seconds
        class_id: Number of its class; None if the store has no classes
        number: Its number among the videos of the dataset
        rows: (N,) place of the row of each frame
    """

    stored: StoredVideo
    timing: Timing
    timestamps: npt.NDArray[np.float64]
    source_frames: npt.NDArray[np.int64]
    source_timestamps: npt.NDArray[np.float64]
    labels: ItemLabels
    class_id: int | None
    number: int
    rows: Numbers


@suggesting(
    num_workers="it belongs to PrefetchLoader, or to torch's DataLoader",
    batch_size="it belongs to PrefetchLoader, or to torch's DataLoader",
    train="give split='train', of a dataset made with --split-by or --split-from-folder",
    classes="give where=lambda video: video['labels']['label'] in (…)",
    num_frames="give sequence_length, or a sampler as clips",
    frames_per_clip="give sequence_length, or a sampler as clips",
    frame_rate="give a sampler by times as clips, such as clips_at_random_timestamps",
    crop_size="give crop",
    image_size="give size, crop, or both",
)
class VideoDataset:
    """Clips of the videos of a store, by number: a map-style dataset for torch's DataLoader and for PrefetchLoader.

    ``len(dataset)`` counts all clips, and ``dataset[i]`` returns one as a dict (see ``__getitem__``). The dataset can
    be pickled, and works the same in forked and spawned processes.

    Examples:
        Every clip of eight frames, two apart, and a random clip of each video:

        >>> from vidprep.formats import VideoDataset, clips_at_random_indices
        >>> dataset = VideoDataset("ready/", sequence_length=8, stride=2, step=4, crop=112)
        >>> dataset[0]["frames"].shape, dataset[0]["indexes"].tolist()
        ((8, 112, 112, 3), [0, 2, 4, 6, 8, 10, 12, 14])
        >>> clips = clips_at_random_indices(num_frames_per_clip=16)
        >>> train = VideoDataset("ready/", clips=clips, size=112, random_resized_crop=True, layout="CTHW")
        >>> train[0]["frames"].shape
        (3, 16, 112, 112)

    Args:
        source: The path or URL of a store, a store, a list of video files, or several stores: a list of them, or a dict
            whose keys are put in front of their ids.
        sequence_length: Frames of a clip.
        stride: Distance between two frames of a clip, in frames.
        step: Distance between the beginnings of two clips, in frames.
        short: What happens to a video that is shorter than a clip: "drop" leaves it out, "pad" repeats the clip's last frame,
            "repeat" shows it again from its first frame, "error" refuses it. None is "drop" with a warning.
        cover_end: Add a clip that ends at the last frame of the video, where the others leave frames out.
        clips: A sampler in place of sequence_length, stride, step, short and cover_end, such as
            ``clips_at_random_indices(...)``.
        clips_per_video: K above 1 makes each item K clips of its video: the sampler and all transforms draw K times, for repeated
            augmentation and contrastive pairs, and frames that clips share are decoded once. `frames`, `indexes` and other arrays have an
            axis of K in front. The first of them is the clip that the item has with 1.
        size: (height, width) that frames are scaled to; one number is the shorter side.
        crop: (height, width) that is cut out after scaling; one number is a square. Cut from the middle unless
            random_crop.
        random_crop: Cut out at a random place, the same for all frames of a clip.
        flip: Probability of flipping left and right; True is 0.5.
        dtype: "uint8", "uint16" (all bits of a store of 10 bits), "float16" or "float32".
        normalize: For float dtypes: True gives 0..1; "imagenet" or (mean, std), three values each, gives ((0..1) -
            mean) / std.
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
        rows: Values of each frame, such as states and actions of a robot: a Parquet or CSV file, or a table, with the columns `id`,
            and `frame` (from 0) or `time` (s) of the source; or the folder of a LeRobot dataset with these videos. Adds `rows`, a dict of
            (T, …) arrays, and lists of texts; by time, a frame has the row that is nearest to its `source_timestamps`.
        rows_gap: What happens to a frame in a hole of the times of rows (1.5 times their usual distance), or past their end:
            "error", or "hold", which gives it the row before.
        delta_rows: For columns of rows, which rows an item has instead of those of its frames, counted from the row of its first frame, as
            LeRobot's delta_timestamps in steps: ``{"action": range(50), "state": [-1, 0]}``. Past the first and last row of the video
            that one is repeated, where NAME_is_pad, (K,) bool, is True. No more frames are decoded.
        tensors: Return torch tensors, which share the memory of the arrays.
        seed: Seed of everything random.
        rank: Number of this process: it takes every world_size-th clip, starting with this one.
        world_size: Number of processes.
        tail: What happens to the last few clips if they do not divide evenly among the processes: "drop" leaves them
            out, "pad" adds the first clips once more; then each item has `item_mask`, which is False for these.

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
        short: Short | None = None,
        cover_end: bool = False,
        clips: ClipSampler | None = None,
        clips_per_video: int = 1,
        size: Size | None = None,
        crop: Size | None = None,
        random_crop: bool = False,
        flip: bool | float = False,
        dtype: DType = "uint8",
        normalize: bool | Literal["imagenet"] | MeanStd = False,
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
        rows: RowSource | None = None,
        rows_gap: RowsGap = "error",
        delta_rows: Mapping[str, Sequence[int]] | None = None,
        tensors: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        tail: Tail = "drop",
    ) -> None:
        self.clips = _sampler(clips, sequence_length, stride, step, short, cover_end=cover_end)
        rank, world_size = _share(rank, world_size, tail)
        self.picture = Transform(
            size, crop, random_crop, flip, dtype, normalize, random_resized_crop, num_crops, layout
        )
        self.has_mask = self.clips.pads
        self.clips_per_video = whole("clips_per_video", clips_per_video, 1)
        if self.clips.is_random and num_crops > 1:
            raise SettingsError("num_crops is for clips at regular places: each crop would be of another random clip")
        if clips_per_video > 1 and num_crops > 1:
            raise SettingsError("num_crops is for tests, clips_per_video for random clips and crops; give one of them")
        _check_transform(transform, tensors=tensors)
        self.transform = transform
        self.store = _store(source)
        if dtype == "uint16" and not self.store.reads_uint16:
            raise SettingsError(f"dtype is 'uint16'; a store of {self.store.kind} has 8 bits", path=self.store.path)
        self.tensors, self._chance = tensors, ItemRandomness(seed)
        self.rank, self.world_size, self.tail, self._is_warned = rank, world_size, tail, False
        labels, sizes = self.store.label_columns(), self.store.sizes()
        chosen = choose_videos(self.store, labels, sizes, split=split, ids=ids, where=where)
        ids_here, sizes = self.store.ids.select(chosen), sizes[chosen]
        own_labels = labels.select_places(chosen, ids_here)
        self.class_to_idx, classes = class_ids(self.store, own_labels)
        self._has_classes, self._has_labels = classes is not None, bool(labels.columns)
        self._array_labels = array_labels(labels)
        clips_of_videos = counts(self.clips, ids_here, sizes[:, 0], self.store.__getitem__)
        columns: dict[str, Any] = {
            ID: ids_here.array,
            **{name: sizes[:, number].astype(np.int32) for number, name in enumerate(SIZES)},
            END: np.cumsum(clips_of_videos * num_crops),
        }
        if classes is not None:
            columns[CLASS] = classes
        if self._has_labels:
            columns[LABELS] = own_labels.struct()
        self._videos = SharedTable(pa.table(columns))
        self._check_sizes()
        self.content, self._version = self.store.content_digest(chosen), self.store.version()
        self._check_not_empty(int(clips_of_videos.sum()))
        self._warn_of_short(clips_of_videos, is_chosen=short is not None)
        self.audio = self._audio_of(clips_of_videos, audio_rate, audio_channels, audio_seconds)
        if rows is None and delta_rows is not None:
            raise SettingsError("delta_rows needs rows")
        self._rows = None if rows is None else FrameRows(rows, self.ids, rows_gap, delta_rows)
        self._open()
        if self._rows is not None:
            for number, id_ in enumerate(self.ids):
                self._rows_of(number, self.store[id_])

    def _check_not_empty(self, num_clips: int) -> None:
        """Raise SettingsError if there are fewer items than ranks."""
        if self._ends.size and self._ends[-1] >= self.world_size:
            return
        if not len(self.store):
            raise SettingsError("has no videos; `vidprep show` lists the failures", path=self.store.path)
        remedy = f"give shorter ones{', or short=' + repr('pad') if isinstance(self.clips, Windows) else ''}"
        if self.world_size > 1:
            remedy = f"world_size is {self.world_size}: give fewer ranks, or shorter ones"
        longest = max(self.sizes[:, 0].tolist(), default=0)
        text = f"{len(self.ids)} videos of at most {longest} frames hold {num_clips} {self.clips}; {remedy}"
        raise SettingsError(text, path=self.store.path)

    def _audio_of(
        self, clips_of_videos: Numbers, rate: int | None, channels: Literal[1, 2], seconds: float | None
    ) -> Audio | None:
        if rate is not None:
            used = [id_ for id_, count in zip(self.ids, clips_of_videos.tolist(), strict=True) if count]
            return Audio.build(rate, channels, seconds, self.clips, used, self.store.__getitem__)
        if seconds is not None or channels != 1:
            raise SettingsError("audio_seconds and audio_channels need audio_rate")
        return None

    def _warn_of_short(self, clips_of_videos: Numbers, *, is_chosen: bool) -> None:
        """Warn about videos without a clip, unless the user chose that."""
        count = int((clips_of_videos == 0).sum())
        if count and isinstance(self.clips, Windows) and not is_chosen:
            warnings.warn(
                f"{self.store.path}: {count} of {len(self.ids)} videos have fewer than {self.clips.span} frames, such as "
                f"{self.ids[int(np.argmin(clips_of_videos))]!r}, and no {self.clips}; short='pad' or 'repeat' fills them up, "
                "short='drop' leaves them out without this warning",
                stacklevel=4,
            )

    def _open(self) -> None:
        self._video = cache_method(self._load_video, KEPT_VIDEOS)
        self._num_asked = 0  # clips that were announced to the store

    def _column(self, name: str) -> pa.ChunkedArray:
        assert self._videos.table is not None
        return self._videos.table[name]

    @cached_property
    def ids(self) -> Ids:
        """Ids of the videos, ascending."""
        return Ids.build(self._column(ID))

    @cached_property
    def sizes(self) -> npt.NDArray[np.int32]:
        """(V, 3): number of frames, height and width of each video, in the order of `ids`."""
        return np.stack([self._column(name).to_numpy() for name in SIZES], 1)

    @cached_property
    def _ends(self) -> npt.NDArray[np.int64]:
        """(V,) number of the item after the last one of each video."""
        return np.asarray(self._column(END).to_numpy())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in NOT_PICKLED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()
        self._check_unchanged()

    def _check_unchanged(self) -> None:
        """Raise StoreError if a run removed videos of this dataset, or made them again, since it was created."""
        version = self.store.version()
        if version and version == self._version:
            return
        places = self.store.ids.places(self.ids)
        if (gone := places < 0).any():
            raise StoreError(
                f"{gone.sum()} of the {len(places)} videos of this dataset, such as {self.ids[int(np.argmax(gone))]!r}, are not "
                "there any more; create the dataset again",
                path=self.store.path,
            )
        if self.store.content_digest(places) != self.content:
            raise StoreError(
                "its videos were made again after this dataset was created; create the dataset again",
                path=self.store.path,
            )
        self._version = version

    def __len__(self) -> int:
        if self.world_size > 1:  # a sampler tells the dataset nothing of itself but that it asks for the length
            self._check_not_divided_again(sys._getframe(1).f_locals.get("self"))
        count = self.num_items
        return -(-count // self.world_size) if self.tail == "pad" else count // self.world_size

    @cached_property
    def num_items(self) -> int:
        """Number of items of all processes."""
        return int(self._ends[-1])

    def _check_not_divided_again(self, caller: object) -> None:
        """Raise SettingsError if a sampler that divides items among processes is made for this dataset, whose items are
        divided already; warn if accelerate may do it, which asks the dataset nothing.
        """
        if hasattr(caller, "set_epoch") and getattr(caller, "num_replicas", 1) != 1:
            raise SettingsError(why_divided_twice(type(caller).__name__))
        distributed = sys.modules.get("torch.distributed")
        if self._is_warned or "accelerate" not in sys.modules or distributed is None:
            return
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            self._is_warned = True
            warnings.warn(why_divided_twice("accelerate's prepare"), stacklevel=3)

    def undivide(self) -> VideoDataset:
        """Return the same dataset with the items of all processes."""
        made = VideoDataset.__new__(VideoDataset)
        made.__dict__.update(self.__dict__)
        made.rank, made.world_size = 0, 1
        made._open()
        return made

    def __repr__(self) -> str:
        times = f" x {self.clips_per_video}" if self.clips_per_video > 1 else ""
        short = int((np.diff(self._ends, prepend=0) == 0).sum())
        return f"<VideoDataset {self.store.path}: {len(self)}{times} {self.clips} from {len(self._ends)} videos" + (
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

    @property
    def times_epoch_was_set(self) -> int:
        """Number of calls of `set_epoch`."""
        return self._chance.times_set

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch: random choices become a function of seed, epoch and index, also in running workers of torch's
        DataLoader.

        Without it, items still differ from one epoch to the next; then `torch.manual_seed` and the number of workers
        decide.
        """
        self._chance.set_epoch(epoch)

    def follow_epoch(self, epoch: int) -> None:
        """Set the epoch as a sampler counts it, unless `set_epoch` was ever called. An ElasticDistributedSampler does."""
        self._chance.follow_epoch(epoch)

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
        """(height, width) of all items before `transform`. Raises SettingsError if items have different shapes."""
        self.check_one_shape("take one item at a time")
        return next(iter(self._results))

    @cached_property
    def _shapes(self) -> tuple[dict[tuple[int, int], tuple[int, ...]], np.dtype[Any]]:
        """Shape of the frames of items by (height, width) before layout and `transform`; and their dtype."""
        shapes, dtype = {}, np.dtype(self.picture.dtype)
        for size in self._results:
            made: Any = np.zeros(self.picture.shape(self.clips.num_frames, *size), dtype)
            if self.transform is not None:
                made = self._transform_item(made, "an array of zeros, by which the shape of items is found", (0,))
            several = (self.clips_per_video,) if self.clips_per_video > 1 else ()
            shapes[size], made_dtype = (*several, *made.shape), np.asarray(made).dtype
        return shapes, made_dtype

    @property
    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Shapes of the frames of items, each with the id of a video that has it."""
        return [(self._results[size], shape) for size, shape in self._shapes[0].items()]

    def check_one_shape(self, remedy: str) -> None:
        """Raise SettingsError if the frames of items have different shapes, with what to do about it."""
        check_one_shape(self.shapes, remedy)

    @property
    def frames_shape(self) -> tuple[int, ...]:
        """Shape of the frames of every item, in the order of the layout; with `transform`, of its result for zeros.

        Raises:
            SettingsError: Items have different shapes.
        """
        self.check_one_shape("take one item at a time")
        return next(iter(self._shapes[0].values()))

    @property
    def frames_dtype(self) -> np.dtype[Any]:
        """Dtype of the frames of every item; see `frames_shape`."""
        return self._shapes[1]

    @property
    def max_item_bytes(self) -> int:
        """Size of the largest frames of an item in bytes."""
        return max(map(math.prod, self._shapes[0].values())) * self.frames_dtype.itemsize

    @property
    def max_decoded_bytes(self) -> int:
        """Size of the largest stored frames of an item in bytes."""
        depth = np.dtype(self.picture.stored_dtype).itemsize
        frame = int(np.max(self.sizes[:, 1:].astype(np.int64).prod(1))) * 3 * depth
        return frame * self.clips.num_frames * self.clips_per_video

    @property
    def audio_bytes(self) -> int:
        """Size of the audio of an item in bytes."""
        return 0 if self.audio is None else self.audio.num_bytes * self.clips_per_video

    @property
    def path(self) -> str:
        """Path of the store."""
        return str(self.store.path)

    @property
    def pack_kind(self) -> str:
        """The value of `pack --to` that makes the same kind of store in shards."""
        return self.store.kind if self.store.kind in ("burst", "tensor", "gulp", "webdataset") else "shards"

    def identity(self) -> dict[str, Any]:
        """Return what determines the items, as text and numbers."""
        videos = hashlib.sha256("\0".join(self.ids).encode("utf-8", "surrogateescape"))
        videos.update(np.ascontiguousarray(self.sizes).tobytes())
        clips = repr(self.clips) if is_dataclass(self.clips) else type(self.clips).__qualname__
        return {
            "items": self.num_items,
            "videos": videos.hexdigest()[:16],
            "content": self.content,
            "clips": clips + (f" x {self.clips_per_video}" if self.clips_per_video > 1 else ""),
            "transform": repr(self.picture),
            "dataset_seed": self.seed,
        }

    def describe_item(self, item: int, epoch: int) -> tuple[str, str]:
        """Return the path of the store, and the frames of an item in words.

        Args:
            item: Number of the item.
            epoch: Epoch of random clips.
        """
        id_, numbers = self.locate(item, epoch)
        return self.path, f"frames {numbers.flat[0]} to {numbers.flat[-1]} of {id_}"

    def shape_of(self, id_: str) -> tuple[int, ...]:
        """Return the shape of the frames of a video's items."""
        video = self.video(id_)
        return self._shapes[0][self.picture.result(*self.picture.scale(video.height, video.width))]

    def blocks(self, indexes: npt.NDArray[np.int64], num_frames: int) -> npt.NDArray[np.int64]:
        """Return (N,) numbers that are equal for clips in the same `num_frames` frames of a video, so that one worker
        decodes them.

        If the start of clips is unknown in advance, or random, clips of a video that follow one another are equal.

        Args:
            indexes: (N,) numbers of items.
            num_frames: Length of a block of frames.
        """
        numbers = indexes * self.world_size + self.rank
        videos = np.searchsorted(self._ends, numbers, side="right")
        clips = (numbers - np.concatenate([[0], self._ends])[videos]) // self.picture.num_crops
        starts = self.clips.starts(clips)
        if starts is None:
            parts = clips // CLIPS_OF_BLOCK
            return np.unique(np.stack([videos, parts]), axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)
        lengths = self.sizes[:, 0].astype(np.int64)
        before = np.concatenate([[0], np.cumsum(lengths // num_frames + 1)])
        blocks: npt.NDArray[np.int64] = before[videos] + np.minimum(starts, lengths[videos]) // num_frames
        return blocks

    def classes_of(self, items: npt.NDArray[np.int64]) -> Numbers | None:
        """Return (N,) the class numbers of items of all processes; None if the store has no classes."""
        if not self._has_classes:
            return None
        return np.asarray(self._column(CLASS).to_numpy()[np.searchsorted(self._ends, items, side="right")])

    def buckets_of(self, items: npt.NDArray[np.int64]) -> Numbers:
        """Return (N,) numbers that are equal for items of all processes whose frames have one shape."""
        shapes = self._shapes[0]
        distinct = list(dict.fromkeys(shapes.values()))
        videos = np.searchsorted(self._ends, items, side="right")
        sizes, inverse = np.unique(self.sizes[videos, 1:], axis=0, return_inverse=True)
        numbers = [distinct.index(shapes[self.picture.result(*size)]) for size in sizes.tolist()]
        return np.array(numbers, np.int64)[inverse.reshape(-1)]

    def runs(self, items: npt.NDArray[np.int64], run_bytes: int) -> tuple[npt.NDArray[np.int64], float]:
        """Return (N,) numbers that are equal for items that follow one another in storage, in up to about `run_bytes` bytes; and the
        estimated size of all items in bytes.

        Args:
            items: (N,) numbers of items of all processes.
            run_bytes: Size of what is stored together.
        """
        places = self.store.ids.places(self.ids)
        storage = self.store.storage()
        files, offsets, sizes = storage.files[places], storage.offsets[places], storage.sizes[places]
        num_items = np.diff(self._ends, prepend=0)
        videos = np.searchsorted(self._ends, items, side="right")
        of_video = items - np.concatenate([[0], self._ends])[videos]
        order = np.lexsort((of_video, offsets[videos], files[videos]))
        each = (sizes[videos] / np.maximum(1, num_items[videos]))[order]
        made = np.empty(len(items), np.int64)
        made[order] = np.unique((np.cumsum(each) - each) // run_bytes, return_inverse=True)[1]
        return made, float(each.sum())

    def locate(self, index: SupportsIndex, epoch: int | None = None) -> tuple[str, npt.NDArray[np.int64]]:
        """Return the video id of an item and its frame numbers, (T,), or (K, T) with clips_per_video=K.

        Args:
            index: Number of the item.
            epoch: Epoch of random clips; None means that of `set_epoch`, or 0.

        Raises:
            IndexError: There is no such item.
        """
        clip = self.clip(index, self.key(index, self.epoch or 0 if epoch is None else epoch))
        return clip.id, self._split_by_clip(clip.numbers)

    def clip(self, index: SupportsIndex, key: RandomKey) -> Clip:
        """Return the frames of an item. Raises IndexError.

        Args:
            index: Number of the item.
            key: Key of its random numbers.
        """
        number = self._number(index) % self.num_items
        video = int(np.searchsorted(self._ends, number, side="right"))
        of_video = number - (int(self._ends[video - 1]) if video else 0)
        clip, crop = divmod(of_video, self.picture.num_crops)
        id_ = self.ids[video]
        timing = self._video(id_).timing if self.clips.needs_times else Timing(int(self.sizes[video, 0]))
        rngs = [stream(each, "clip") if self.clips.is_random else UNUSED for each in self._keys(key)]
        if self.has_mask:
            drawn, masks = zip(*(self.clips.masked_item(timing, clip, rng) for rng in rngs), strict=True)
            return Clip(id_, np.concatenate(drawn), np.concatenate(masks), clip, crop)
        return Clip(id_, np.concatenate([self.clips.item(timing, clip, rng) for rng in rngs]), None, clip, crop)

    def _keys(self, key: RandomKey) -> list[RandomKey]:
        """Return the key of each clip of an item."""
        return [key, *((*key, number) for number in range(1, self.clips_per_video))]

    def _split_by_clip(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return (K * T, ...) values of the frames of an item as (K, T, ...); unchanged if it is one clip."""
        return values if self.clips_per_video == 1 else values.reshape(self.clips_per_video, -1, *values.shape[1:])

    def key(self, index: SupportsIndex, epoch: int | None) -> RandomKey:
        """Return the key of the random numbers of an item in an epoch.

        Args:
            index: Number of the item.
            epoch: Number of the epoch; None means that of `set_epoch`.
        """
        return self._chance.key(self._number(index) % self.num_items, epoch)

    def _number(self, index: SupportsIndex) -> int:
        """Return the number of an item among the items of all ranks. Items that fill up the last ranks have numbers from
        `num_items` on, which stand for those from 0 on.
        """
        number, count = operator.index(index), len(self)
        if not -count <= number < count:
            raise IndexError(f"item {number} of {count}")
        return number % count * self.world_size + self.rank

    def __getitem__(self, index: SupportsIndex) -> ItemFields:
        """Return one clip.

        Returns:
            A dict with `frames` (T, H, W, 3), or as layout and transform make them; `id`; `indexes` (T,) int64; `timestamps` (T,) float64,
            seconds from the first stored frame; `source_frames` (T,) int64 and `source_timestamps` (T,) float64, the numbers and seconds of
            these frames in the source, -1 and NaN where the store does not say; `labels`, a dict; `clip`, the number of the clip in its
            video, and with num_crops `crop`, that of the crop, both from 0; and, where the label `label` holds texts
            or whole numbers, `class_id`, its number in `class_to_idx`, or -100 where the video has none. `frame_mask` (T,) bool is False
            for frames in place of those past the end of the video, where the dataset has such clips; `item_mask` is False for an
            item that was added by tail="pad". With clips_per_video=K arrays of a clip have the shape (K, ...).

        Raises:
            IndexError: There is no such clip.
            StoreError: The store is damaged.
            TransformError: `transform` failed.
        """
        key = self.key(index, None)
        return cast("ItemFields", self._item(index, key, self.clip(index, key)))

    def __getitems__(self, indexes: Sequence[SupportsIndex]) -> list[Item]:
        """Return several clips, as torch's DataLoader asks for a batch. A store behind a URL fetches them at the same time.

        Raises:
            IndexError: There is no such clip.
            StoreError: The store is damaged.
            TransformError: `transform` failed.
        """
        keys = [self.key(index, None) for index in indexes]
        clips = [self.clip(index, key) for index, key in zip(indexes, keys, strict=True)]
        first, self._num_asked = self._num_asked, self._num_asked + len(clips)
        coming = [ComingClip(first + n, clip.id, clip.numbers.tolist(), fetch=True) for n, clip in enumerate(clips)]
        self.store.announce(first - 1, coming)
        return [self._item(*each) for each in zip(indexes, keys, clips, strict=True)]

    def _item(self, index: SupportsIndex, key: RandomKey, clip: Clip) -> Item:
        stored = self._video(clip.id).stored
        frames = stored.frames(
            clip.numbers, size=self.picture.scale(stored.height, stored.width), dtype=self.picture.stored_dtype
        )
        item = Item(frames=self.apply_transforms(frames, clip, index, key), **self.describe(clip))
        if self.tail == "pad":
            item["item_mask"] = self._number(index) < self.num_items
        register_torch_collate()
        return convert_to_tensors(item) if self.tensors else item

    def video(self, id_: str) -> StoredVideo:
        """Return one video of the store. Raises KeyError."""
        return self._video(id_).stored

    def apply_transforms(
        self,
        frames: npt.NDArray[Any],
        clip: Clip,
        index: SupportsIndex,
        key: RandomKey,
        out: npt.NDArray[Any] | None = None,
    ) -> Any:
        """Apply the transforms that follow scaling, then the user's function, to each clip; return the frames of the item.

        Args:
            frames: Scaled frames of all its clips.
            clip: What they are.
            index: Number of the item.
            key: Key of its random numbers.
            out: Array to write into; may be `frames` itself if `picture` is the identity.

        Raises:
            TransformError: The user's function failed.
        """
        if self.clips_per_video == 1:
            return self._finish_clip(frames, clip, index, key, out)
        parts = zip(self._split_by_clip(frames), self._split_by_clip(clip.numbers), self._keys(key), strict=True)
        made = [
            self._finish_clip(part, clip._replace(numbers=own), index, own_key, None if out is None else out[number])
            for number, (part, own, own_key) in enumerate(parts)
        ]
        if out is not None:
            return out
        arrays = [np.asarray(each) for each in made]
        if len(shapes := {each.shape for each in arrays}) > 1:
            raise TransformError(f"{_span(clip)}: gives {sorted(shapes)} for clips of one item", path=self.store.path)
        return np.stack(arrays)

    def _finish_clip(
        self, frames: npt.NDArray[Any], clip: Clip, index: SupportsIndex, key: RandomKey, out: npt.NDArray[Any] | None
    ) -> Any:
        made, picture = frames, self.picture
        if not picture.is_identity:
            height, width = picture.result(*frames.shape[1:3])
            made = np.empty(picture.shape(len(frames), height, width), picture.dtype)
            if out is not None and self.transform is None:
                made = out
            rng = stream(key, "picture") if picture.is_random else UNUSED
            picture.apply(frames, made, rng, self._number(index) % self.num_items % picture.num_crops)
        if self.transform is not None:
            made = self._transform_item(made, _span(clip), key)
        if out is not None and made is not out:
            if tuple(made.shape) != out.shape or (array := np.asarray(made)).dtype != out.dtype:
                raise TransformError(
                    f"{_span(clip)}: gives {tuple(made.shape)} {made.dtype}, and {out.shape} {out.dtype} for others",
                    path=self.store.path,
                )
            out[...] = array
        return made

    def _transform_item(self, frames: npt.NDArray[Any], what: str, key: RandomKey) -> Any:
        """Call the user's function with the random numbers of Python, NumPy and torch seeded by `key`."""
        assert self.transform is not None
        try:
            with seed_block(key):
                made = self.transform(import_torch().from_numpy(frames) if self.tensors else frames)
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

    def finish(self, item: int, epoch: int, raw: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Apply all transforms to the scaled frames of an item. Raises TransformError.

        Args:
            item: Number of the item.
            epoch: Epoch of its random numbers.
            raw: Scaled frames of all its clips.
            out: Array to write into.
        """
        key = self.key(item, epoch)
        self.apply_transforms(raw, self.clip(item, key), item, key, out)

    def describe(self, clip: Clip) -> dict[str, Any]:
        """Return everything of an item except its frames."""
        video, numbers = self._video(clip.id), self._split_by_clip(clip.numbers)
        item: dict[str, Any] = {
            "id": clip.id,
            "indexes": numbers,
            "timestamps": video.timestamps[numbers],
            "source_frames": video.source_frames[numbers],
            "source_timestamps": video.source_timestamps[numbers],
            "labels": video.labels,
            "clip": clip.number,
        }
        if self.picture.num_crops > 1:
            item["crop"] = clip.crop
        if clip.mask is not None:
            item["frame_mask"] = self._split_by_clip(clip.mask)
        if video.class_id is not None:
            item["class_id"] = video.class_id
        each = [self._beside(video, own) for own in numbers.reshape(self.clips_per_video, -1)]
        return item | (each[0] if self.clips_per_video == 1 else stack(each))

    def _beside(self, video: _Video, numbers: Numbers) -> dict[str, Any]:
        """Return the rows and the audio of a clip."""
        item = dict[str, Any]()
        if self._rows is not None:
            item["rows"] = self._rows.values_in_clip(video.number, video.rows[numbers])
        if self.audio is not None:
            item.update(self.audio.item(video.stored, float(video.timestamps[numbers[0]])))
        return item

    def _load_video(self, id_: str) -> _Video:
        if self._version:
            self._check_unchanged()
        stored = self.store[id_]
        try:
            timestamps, timing, sources = stored.timestamps, timing_of(stored), stored.source_timestamps
        except StoreError:
            timestamps = sources = np.full(len(stored), np.nan)
            timing = Timing(len(stored))
        row = self.ids.index(id_)
        labels = ItemLabels(value_of(self._column(LABELS)[row]) if self._has_labels else {})
        labels.arrays = self._array_labels
        class_id = self._column(CLASS)[row].as_py() if self._has_classes else None
        rows = self._rows_of(row, stored)
        return _Video(stored, timing, timestamps, stored.source_frames, sources, labels, class_id, row, rows)

    def _rows_of(self, number: int, stored: StoredVideo) -> Numbers:
        """Return the row of each frame of a video. A store that does not know its source is its own."""
        if self._rows is None:
            return np.zeros(0, np.int64)
        times = stored.source_timestamps
        return self._rows.places_in_video(
            number, stored.id, stored.source_frames, stored.timestamps if np.isnan(times).any() else times
        )


def _span(clip: Clip) -> str:
    return f"{clip.id!r}, frames {clip.numbers[0]} to {clip.numbers[-1]}"


def why_divided_twice(other: str) -> str:
    """Return the message for items that are divided among processes twice."""
    return (
        f"rank= and world_size= of the dataset divide its items among processes, and {other} divides them again, so that most "
        "are never seen; leave out one of the two"
    )


def _sampler(
    clips: ClipSampler | None, sequence_length: int, stride: int, step: int, short: Short | None, *, cover_end: bool
) -> ClipSampler:
    values = {"sequence_length": sequence_length, "stride": stride, "step": step}
    if short is not None and short not in SHORTS:
        raise SettingsError(f"short is {short!r}; give {', '.join(SHORTS[:-1])} or {SHORTS[-1]}")
    if clips is None:
        length, distance, between = (whole(name, value, 1) for name, value in values.items())
        return Windows(length, distance, between, short or "drop", bool(cover_end))
    if not isinstance(clips, ClipSampler):
        raise SettingsError(
            f"clips is {clips!r}; give a sampler, such as clips_at_random_indices(num_frames_per_clip=16)"
        )
    if tuple(values.values()) != (8, 1, 1):
        raise SettingsError("clips says which frames; leave out sequence_length, stride and step")
    if short is not None or cover_end:
        raise SettingsError("short and cover_end are for sequences; give the sampler its own policy and cover_end")
    return clips


def _share(rank: int, world_size: int, tail: str) -> tuple[int, int]:
    """Return rank and world_size as whole numbers. Raises SettingsError."""
    if tail not in get_args(Tail):
        raise SettingsError(f"tail is {tail!r}; give drop or pad")
    rank, world_size = whole("rank", rank, 0), whole("world_size", world_size, 1)
    if rank >= world_size:
        raise SettingsError(f"rank is {rank}; with world_size {world_size} it is 0 to {world_size - 1}")
    return rank, world_size


def _check_transform(transform: object, *, tensors: bool) -> None:
    """Raise SettingsError for a transform that cannot be called, or leaves arrays as they are; MissingError without torch."""
    if transform is not None and not callable(transform):
        raise SettingsError(f"transform is {transform!r}; give a function of frames")
    if type(transform).__module__.startswith("torchvision.") and not tensors:
        raise SettingsError("torchvision's transforms leave arrays as they are; give tensors=True, and layout='TCHW'")
    if tensors:
        import_torch()


def _warn_of_parts(source: str | os.PathLike[str]) -> None:
    """Warn if a folder has the manifests of an array run that was not merged."""
    names = [re.fullmatch(r"manifest-\d+-of-(\d+)", each.stem) for each in manifest_paths(Path(source))]
    if counts := [int(name[1]) for name in names if name is not None]:
        text = f"{count_of(len(counts), 'part')} of {max(counts)} of an array run: `vidprep merge {source}` joins them at the end"
        warnings.warn(f"{source}: {text}", stacklevel=5)


def _store(source: Source) -> FrameStore:
    if isinstance(source, FrameStore):
        return source
    if isinstance(source, str | os.PathLike):
        if Path(source).is_file():
            return VideoFiles([source])
        store = open_store(source)
        _warn_of_parts(source)
        return store
    if isinstance(source, Mapping):
        return JoinedStores({name: _store(each) for name, each in source.items()})
    if not isinstance(source, Iterable):
        raise SettingsError(
            f"source is {source!r}; give the path of a store, a store, several of them, or a list of video files"
        )
    several = list(source)
    if wrong := [each for each in several if not isinstance(each, str | os.PathLike | FrameStore)]:
        raise SettingsError(f"source has {wrong[0]!r}; give paths or stores")
    if any(isinstance(each, FrameStore) or is_url(str(each)) or Path(each).is_dir() for each in several):
        return JoinedStores([_store(each) for each in several])
    return VideoFiles([each for each in several if not isinstance(each, FrameStore)])
