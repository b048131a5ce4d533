"""Several VideoDatasets one after another, as torch's ConcatDataset has them; each keeps its own clips, transforms and store."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import SettingsError
from vidprep.formats.training.dataset import VideoDataset
from vidprep.formats.training.items import check_one_shape
from vidprep.formats.training.samplers import Numbers


class JoinedDatasets:
    """Several datasets as a loader sees them. Their items are those of all processes.

    Raises:
        SettingsError: Their items do not fit into one batch.
    """

    def __init__(self, parts: Sequence[VideoDataset | JoinedDatasets]) -> None:
        whole = chain.from_iterable(each.parts if isinstance(each, JoinedDatasets) else [each] for each in parts)
        divided = [*whole]
        self.rank, self.world_size = divided[0].rank, divided[0].world_size
        self.parts: list[VideoDataset] = [each.undivide() for each in divided]
        self.ends = np.cumsum([each.num_items for each in self.parts])
        self.num_items = int(self.ends[-1])
        first, *others = self.parts
        self.tensors, self.tail, self.frames_dtype = first.tensors, first.tail, first.frames_dtype
        for each in self.parts:
            each.has_mask = any(part.clips.pads for part in self.parts)
        if any((each.rank, each.world_size) != (self.rank, self.world_size) for each in divided):
            raise SettingsError("datasets that are joined have different rank or world_size; give all of them the same")
        for other in others:
            for name, own, there in zip(_ASPECTS, _aspects(first), _aspects(other), strict=True):
                if own != there:
                    raise SettingsError(
                        f"datasets that are joined have items of different {name}: {own} of {first.path}, {there} of {other.path}; give "
                        "them the same options, and the same labels with `vidprep label`"
                    )

    def __len__(self) -> int:
        return -(-self.num_items // self.world_size) if self.tail == "pad" else self.num_items // self.world_size

    def __repr__(self) -> str:
        return f"<{' + '.join(map(repr, self.parts))}>"

    @property
    def path(self) -> str:
        return ", ".join(each.path for each in self.parts)

    @property
    def epoch(self) -> int | None:
        """Epoch that was set for a dataset; None if none was."""
        return next((each.epoch for each in self.parts if each.epoch is not None), None)

    @property
    def times_epoch_was_set(self) -> int:
        return sum(each.times_epoch_was_set for each in self.parts)

    @property
    def max_item_bytes(self) -> int:
        return max(each.max_item_bytes for each in self.parts)

    @property
    def max_decoded_bytes(self) -> int:
        return max(each.max_decoded_bytes for each in self.parts)

    @property
    def audio_bytes(self) -> int:
        return max(each.audio_bytes for each in self.parts)

    @cached_property
    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        return [*chain.from_iterable(each.shapes for each in self.parts)]

    def check_one_shape(self, remedy: str) -> None:
        check_one_shape(self.shapes, remedy)

    def check_one_length(self) -> None:
        """Raise SettingsError if clips have different numbers of frames."""
        lengths = {(each.clips_per_video, each.clips.num_frames) for each in self.parts}
        if len(lengths) > 1:
            raise SettingsError(
                "datasets that are joined have clips of different numbers of frames; collate='pad' pads pictures alone"
            )

    @property
    def pack_kind(self) -> str:
        return self.parts[0].pack_kind

    def undivide(self) -> JoinedDatasets:
        made = copy.copy(self)
        made.rank, made.world_size = 0, 1
        return made

    def identity(self) -> dict[str, Any]:
        identities = [each.identity() for each in self.parts]
        return {name: [each[name] for each in identities] for name in identities[0]}

    def place(self, item: int) -> tuple[int, int]:
        """Return the number of the dataset of an item, and the item's number there."""
        part = int(np.searchsorted(self.ends, item, side="right"))
        return part, item - (int(self.ends[part - 1]) if part else 0)

    def describe_item(self, item: int, epoch: int) -> tuple[str, str]:
        part, own = self.place(item)
        return self.parts[part].describe_item(own, epoch)

    def finish(self, item: int, epoch: int, raw: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        part, own = self.place(item)
        self.parts[part].finish(own, epoch, raw, out)

    def classes_of(self, items: Numbers) -> Numbers | None:
        if any(each.classes_of(items[:0]) is None for each in self.parts):
            return None
        return self._map_parts(items, lambda part, own: part.classes_of(own), apart=False)

    def buckets_of(self, items: Numbers) -> Numbers:
        distinct = list(dict.fromkeys(shape for _, shape in self.shapes))

        def of_part(part: VideoDataset, own: Numbers) -> Numbers:
            shapes = dict.fromkeys(shape for _, shape in part.shapes)
            return np.array([distinct.index(shape) for shape in shapes])[part.buckets_of(own)]

        return self._map_parts(items, of_part, apart=False)

    def blocks(self, items: Numbers, num_frames: int) -> Numbers:
        return self._map_parts(items, lambda part, own: part.blocks(own, num_frames))

    def runs(self, items: Numbers, run_bytes: int) -> tuple[Numbers, float]:
        sizes = list[float]()

        def of_part(part: VideoDataset, own: Numbers) -> Numbers:
            runs, size = part.runs(own, run_bytes)
            sizes.append(size)
            return runs

        return self._map_parts(items, of_part), sum(sizes)

    def _map_parts(
        self, items: Numbers, of_part: Callable[[VideoDataset, Numbers], Any], *, apart: bool = True
    ) -> Numbers:
        """Return a number for each item from a function of a dataset and its items; `apart`: other ones in each dataset."""
        made, after = np.empty(len(items), np.int64), 0
        for part, end in zip(self.parts, self.ends.tolist(), strict=True):
            chosen = (items >= end - part.num_items) & (items < end)
            own = of_part(part, items[chosen] - (end - part.num_items))
            made[chosen] = own + after
            after = after + int(own.max(initial=-1)) + 1 if apart else 0
        return made


_ASPECTS = "dtype", "tail", "tensors", "classes", "labels", "numeric labels", "fields"


def _aspects(dataset: VideoDataset) -> tuple[Any, ...]:
    item = dataset.describe(dataset.clip(0, dataset.key(0, 0)))
    labels, classes = item["labels"], dict(dataset.class_to_idx)
    return (
        dataset.frames_dtype,
        dataset.tail,
        dataset.tensors,
        classes,
        sorted(labels),
        sorted(labels.arrays),
        sorted(item),
    )
