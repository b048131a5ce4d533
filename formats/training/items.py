"""Contents of items besides frames: labels, class numbers, audio, and the random numbers that decide them."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from multiprocessing import context
from multiprocessing.sharedctypes import RawValue
from typing import Any, Literal, TypeAlias, TypedDict, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from vidprep.formats.errors import SettingsError, StoreError
from vidprep.formats.manifest.labels import CLASS_LABEL, LABELS, SPLIT_LABEL, Labels, values_of
from vidprep.formats.option import whole
from vidprep.formats.stores.base import MAX_RATE, FrameStore, StoredVideo
from vidprep.formats.training._transform import column
from vidprep.formats.training.samplers import ClipSampler

LOOKED_AT, LEAST_RATE = 1000, 100


@dataclass(frozen=True)
class Audio:
    """Audio of items, of equal length so that they form a batch.

    Attributes:
        rate: Sample rate in Hz
        num_channels: 1 or 2
        clips: Sampler whose clips the audio is as long as; None if a length was given
    """

    rate: int
    num_channels: Literal[1, 2]
    num_samples: int
    clips: ClipSampler | None

    @classmethod
    def build(
        cls,
        rate: int,
        num_channels: Literal[1, 2],
        seconds: float | None,
        clips: ClipSampler,
        ids: Sequence[str],
        video: Callable[[str], StoredVideo],
    ) -> Audio:
        """Create from options.

        Args:
            rate: Sample rate in Hz.
            num_channels: 1 or 2.
            seconds: Length; None means as long as the clips.
            clips: Sampler of the dataset.
            ids: Ids of the videos that have items.
            video: Returns the video of an id.

        Raises:
            SettingsError: The clips have no common length.
            StoreError: A video cannot be read.
        """
        if whole("audio_rate", rate, LEAST_RATE) > MAX_RATE:
            raise SettingsError(f"audio_rate is {rate}; give samples per second, at most {MAX_RATE}")
        if num_channels not in (1, 2):
            raise SettingsError(f"audio_channels is {num_channels!r}; give 1 or 2")
        if seconds is not None and not (isinstance(seconds, int | float) and 1 / rate <= seconds < math.inf):
            raise SettingsError(f"audio_seconds is {seconds!r}; give seconds, at least one sample")
        some = dict.fromkeys(np.linspace(0, len(ids) - 1, LOOKED_AT).round().astype(int).tolist())
        heard = next((each for each in (video(ids[place]) for place in some) if each.sample_rate), None)
        if heard is None:
            raise SettingsError(
                f"{ids[0]!r} and {len(some) - 1} others have no audio; vidprep transcode --audio copy keeps it"
            )
        due = clips.seconds(heard.frame_rate) if seconds is None else Fraction(seconds)
        if due is None:
            raise SettingsError("audio_seconds is needed: clips are not all of one length, or not known to be")
        return cls(rate, num_channels, round(due * rate), clips if seconds is None else None)

    @property
    def num_bytes(self) -> int:
        return 4 * self.num_channels * self.num_samples

    def item(self, video: StoredVideo, start_seconds: float) -> dict[str, Any]:
        """Return `audio`, (C, num_samples) float32 from the start of a frame, and `has_audio`; silence if the video has
        none.

        Raises:
            StoreError: The audio cannot be read.
        """
        if video.sample_rate is None:
            return {"audio": np.zeros((self.num_channels, self.num_samples), np.float32), "has_audio": False}
        due = None if self.clips is None else self.clips.seconds(video.frame_rate)
        if self.clips is not None and (due is None or round(due * self.rate) != self.num_samples):
            raise StoreError(
                f"{video.id}: its clips do not last {self.num_samples / self.rate:.3f} s, as those of others do; give audio_seconds",
                path=video.store.path,
            )
        begin = Fraction(round(start_seconds * self.rate), self.rate)
        span = begin, begin + Fraction(self.num_samples, self.rate)
        return {"audio": video.store.samples(video.id, span, self.rate, self.num_channels), "has_audio": True}


class Item(dict[str, Any]):
    """An item of a dataset, or a batch of items: `frames` and what belongs to them, by name."""

    def __missing__(self, name: str) -> Any:
        """Raise KeyError with the names that there are, and why a class is not among them."""
        why = "; classes are the label `label`, which no video of this dataset has" if name == "class_id" else ""
        raise KeyError(f"{name}{why}: there are {', '.join(self)}")


Values: TypeAlias = Any  # a NumPy array, or a torch tensor of a dataset with tensors=True


class ItemFields(TypedDict, total=False):
    """An item as type checkers see it; see ``VideoDataset.__getitem__``."""

    frames: Values
    id: str
    indexes: Values
    timestamps: Values
    source_frames: Values
    source_timestamps: Values
    labels: dict[str, Any]
    clip: int
    crop: int
    class_id: int
    frame_mask: Values
    item_mask: bool
    audio: Values
    has_audio: bool
    rows: dict[str, Any]


class BatchFields(TypedDict, total=False):
    """A batch as type checkers see it; a `collate_fn` may make another one."""

    frames: Values
    id: list[str]
    indexes: Values
    timestamps: Values
    source_frames: Values
    source_timestamps: Values
    labels: dict[str, Any]
    clip: Values
    crop: Values
    class_id: Values
    frame_mask: Values
    item_mask: Values
    audio: Values
    has_audio: Values
    rows: dict[str, Any]
    frames_shape: Values


def check_one_shape(shapes: Iterable[tuple[str, tuple[int, ...]]], remedy: str) -> None:
    """Raise SettingsError if the frames of items have different shapes, so that they cannot be stacked.

    Args:
        shapes: Ids of videos with their shapes.
        remedy: What to do, besides giving one size.
    """
    ids: dict[tuple[int, ...], str] = {}
    for id_, shape in shapes:
        ids.setdefault(shape, id_)
    if len(ids) > 1:
        (shape, id_), (other_shape, other) = list(ids.items())[:2]
        raise SettingsError(
            f"frames of {id_!r} have the shape {shape}, those of {other!r} {other_shape}, and cannot be stacked to one "
            f"batch; give size or crop as (height, width), or {remedy}"
        )


def pad_collate(items: Sequence[Item]) -> Item:
    """Make a batch of items of different sizes: a `collate_fn` for torch's DataLoader.

    Frames are padded with zeros at the end of each axis, which is right and below, to the largest of the batch.

    Args:
        items: Items of a dataset.

    Returns:
        The batch, with `frames` (B, ...) and `frames_shape` (B, ...), the shape of the frames of each item before
        padding; tensors if torch is imported.
    """
    frames, shapes = pad([np.asarray(item["frames"]) for item in items])
    whole_items = [
        Item({**item, "frames": place, "frames_shape": shape})
        for item, place, shape in zip(items, frames, shapes, strict=True)
    ]
    if (data := sys.modules.get("torch.utils.data")) is not None:
        return Item(data.default_collate(whole_items))
    return Item(frames=frames, **stack(whole_items))


def pad(arrays: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return arrays as one, padded with zeros at the end of each axis to the largest, and their shapes before that."""
    shapes = np.asarray([array.shape for array in arrays], np.int64)
    made = np.zeros((len(arrays), *shapes.max(0).tolist()), arrays[0].dtype)
    for place, array in zip(made, arrays, strict=True):
        place[tuple(map(slice, array.shape))] = array
    return made, shapes


def stack(items: Sequence[dict[str, Any]]) -> Item:
    """Return everything of several items except `frames`: arrays are stacked, numbers become arrays, other values
    lists.
    """
    batch = Item()
    for name in items[0]:
        values = [item[name] for item in items]
        if name in ("labels", "rows"):
            batch[name] = batch_of(values)
        elif name != "frames":
            batch[name] = column(values)
    return batch


UNSET = -1
RandomKey = tuple[int, ...]
RandomStream = Literal["picture", "clip", "transform"]
STREAMS: tuple[RandomStream, ...] = get_args(RandomStream)


class ItemRandomness:
    """Random numbers of items.

    After `set_epoch` they are a function of seed, epoch and item, in whichever process. Before, the start of an epoch
    is unknown: then they depend on the seed, the item, the number of items made before, and torch's seed in this
    process, which DataLoader sets per worker and `torch.manual_seed` decides. So the same program has the same items,
    and the next epoch has others.

    Attributes:
        times_set: How often `set_epoch` was called
    """

    def __init__(self, seed: int) -> None:
        self.seed = whole("seed", seed, 0)
        self._epoch = RawValue("q", UNSET)  # in memory shared with workers, including running ones
        self._made = self.times_set = 0

    @property
    def epoch(self) -> int | None:
        return None if self._epoch.value == UNSET else int(self._epoch.value)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. Raises SettingsError."""
        self._epoch.value = whole("epoch", epoch, 0)
        self.times_set += 1

    def follow_epoch(self, epoch: int) -> None:
        """Set the epoch that a sampler counts, unless `set_epoch` was ever called."""
        if not self.times_set:
            self._epoch.value = epoch

    def key(self, item: int, epoch: int | None = None) -> RandomKey:
        """Return the key of an item's random numbers.

        Args:
            item: Number of the item.
            epoch: Epoch; None means the one of `set_epoch`.
        """
        epoch = self.epoch if epoch is None else epoch
        if epoch is not None:
            return self.seed, epoch, item
        self._made += 1
        torch = sys.modules.get("torch")
        return self.seed, 0 if torch is None else torch.initial_seed(), item, self._made

    def __getstate__(self) -> dict[str, Any]:
        """Share the epoch with processes that are being spawned; any other copy gets its own."""
        shared = self._epoch if context.get_spawning_popen() is not None else self._epoch.value
        return self.__dict__ | {"_epoch": shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self._epoch, int):
            self._epoch = RawValue("q", self._epoch)


def stream(key: RandomKey, name: RandomStream) -> np.random.Generator:
    """Return a random generator for one purpose, independent of those for other purposes."""
    return np.random.default_rng(
        (*key, STREAMS.index(name) + 1)
    )  # not 0, with which NumPy's seed equals the shorter key


class ItemLabels(dict[str, Any]):
    """Labels of a video, or values of the rows of a clip, by name.

    Attributes:
        arrays: Names of those that become arrays in batches. Others become lists
    """

    arrays: frozenset[str] = frozenset()


def array_labels(labels: Labels) -> frozenset[str]:
    """Return the names of numeric and boolean labels that no video lacks."""
    return frozenset(
        name
        for name, array in labels.columns.items()
        if not array.null_count
        and any(test(array.type) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean))
    )


def batch_of(items: Sequence[ItemLabels]) -> ItemLabels:
    """Return the labels or rows of several items: arrays for `ItemLabels.arrays`, lists for others."""
    made = ItemLabels(
        (name, np.stack([item[name] for item in items]) if name in items[0].arrays else [item[name] for item in items])
        for name in items[0]
    )
    made.arrays = items[0].arrays
    return made


NO_CLASS = -100  # torch's losses ignore this class
Where: TypeAlias = "Callable[[dict[str, Any]], bool] | pc.Expression"


def choose_videos(
    store: FrameStore,
    labels: Labels,
    sizes: npt.NDArray[np.int64],
    *,
    split: str | None,
    ids: Sequence[str] | None,
    where: Where | None,
) -> npt.NDArray[np.int64]:
    """Return the positions of videos in `store.ids`, ascending. Raises SettingsError if nothing is left, or a name is
    unknown.
    """
    chosen = np.ones(len(store.ids), np.bool_)
    if ids is not None:
        if isinstance(ids, str):
            raise SettingsError(f"ids is {ids!r}; give a list of ids")
        wanted = set(ids)
        chosen = np.asarray([id_ in wanted for id_ in store.ids], np.bool_)
        if chosen.sum() < len(wanted):
            missing = sorted(wanted.difference(store.ids))
            near = get_close_matches(missing[0], store.ids, 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise SettingsError(f"{len(missing)} ids are not there, such as {missing[0]!r}{meant}", path=store.path)
    if split is not None:
        split_column = labels.columns.get(SPLIT_LABEL)
        if split_column is None:
            raise SettingsError(
                "has no label `split`; a run with --split-by or --split-from-folder, or `vidprep label`, gives one",
                path=store.path,
            )
        splits = values_of(split_column)
        if split not in splits:
            there = ", ".join(sorted({str(value) for value in splits if value is not None})) or "none"
            raise SettingsError(f"has no split {split!r}; splits: {there}", path=store.path)
        chosen &= np.asarray([value == split for value in splits])
    if where is not None:
        chosen[np.setdiff1d(np.arange(len(chosen)), list(_select(labels, sizes, where)))] = False
    places = np.flatnonzero(chosen)
    if not len(places) and len(store.ids):
        has = ", ".join([*labels.columns, "num_frames", "height", "width"])
        raise SettingsError(f"no video is left by ids, split and where; labels and sizes: {has}", path=store.path)
    return places


def _select(labels: Labels, sizes: npt.NDArray[np.int64], where: Where) -> set[int]:
    """Return the positions for which a condition holds. Raises SettingsError for an invalid expression."""
    table = labels.table()
    for number, name in enumerate(("num_frames", "height", "width")):
        table = table.append_column(name, pa.array(sizes[:, number]))
    if isinstance(where, pc.Expression):
        try:
            rows = table.append_column("place", pa.array(range(len(sizes)), pa.int64())).filter(where)["place"]
        except (pa.ArrowException, ValueError, TypeError) as error:
            like = "pc.field('num_frames') > 20, or for labels pc.field('labels', 'label') == 'cat'"
            first = str(error).partition("\n")[0]
            raise SettingsError(f"where: {first}; an expression is such as {like}") from error
        return set(rows.to_pylist())
    if not callable(where):
        raise SettingsError(
            f"where is {where!r}; give an Arrow expression, such as pc.field('num_frames') > 20, or a function"
        )
    facts = table.drop_columns([LABELS]) if LABELS in table.column_names else table
    held = set()
    for place, row in enumerate(facts.to_pylist()):
        try:
            if where(row | {"labels": labels.values_of(row["id"])}):
                held.add(place)
        except Exception as error:
            raise SettingsError(f"where: {type(error).__name__} for {row['id']!r}: {error}") from error
    return held


def class_ids(store: FrameStore, labels: Labels) -> tuple[Mapping[str | int, int], npt.NDArray[np.int64] | None]:
    """Return the class numbers of the whole store and of each video; None if the store has no classes.

    Whole numbers are used unchanged. Warns about videos without a class.
    """
    column = labels.columns.get(CLASS_LABEL)
    if column is None:
        return {}, None
    numbers = store.class_to_idx
    if not numbers:
        return {}, None
    numbers_of_values = np.asarray(
        [NO_CLASS if value is None else numbers[value] for value in column.to_pylist()], np.int64
    )
    if column.null_count:
        warnings.warn(
            f"{store.path}: {column.null_count} of {len(column)} videos have no label; their class_id is {NO_CLASS}, which torch's "
            "losses ignore, and where= leaves them out",
            stacklevel=4,
        )
    return numbers, numbers_of_values
