"""Several stores as one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.labels import Labels, classes_of, concatenate
from vidprep.formats.stores.base import ComingClip, Frames, FrameStore, Samples, SourceMap, StorageOrder, VideoFacts
from vidprep.formats.stores.ids import Ids


class JoinedStores(FrameStore):
    """The videos of several stores.

    Args:
        stores: A dict from a name, which becomes a prefix `name/id`, to a store; or a list of stores whose ids stay
            unchanged.

    Raises:
        StoreError: Two stores have the same id.
    """

    kind = "joined"

    def __init__(self, stores: Mapping[str, FrameStore] | Sequence[FrameStore]) -> None:
        if not stores:
            raise StoreError("no stores were given")
        named = stores.items() if isinstance(stores, Mapping) else [("", store) for store in stores]
        self._stores = [(f"{name}/" if name else "", store) for name, store in named]
        super().__init__(_common_place([store.path for _, store in self._stores]))
        self.reads_uint16 = all(store.reads_uint16 for _, store in self._stores)  # type: ignore[misc]
        ids = self._all_ids()
        self._order = np.argsort(np.asarray(ids, object), kind="stable")
        if twins := [ids[one] for one, other in pairwise(self._order.tolist()) if ids[one] == ids[other]]:
            first, second, *_ = (store.path for name, store in self._stores if self._own_id(twins[0], name, store))
            raise StoreError(f"{twins[0]!r} is in {first} too; give the stores names: {{'a': …, 'b': …}}", path=second)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_labels"}

    def _all_ids(self) -> list[str]:
        """Return the ids of one store after the other."""
        return [name + own for name, store in self._stores for own in store.ids]

    @staticmethod
    def _own_id(id_: str, name: str, store: FrameStore) -> str | None:
        """Return the id of a video in one of the stores; None if it is not there."""
        own = id_.removeprefix(name)
        return own if id_.startswith(name) and own in store.ids else None

    def __repr__(self) -> str:
        return f"<{len(self._stores)} stores below {self.path}: {len(self)} videos>"

    def _ids(self) -> Ids:
        ids = self._all_ids()
        return Ids(ids[place] for place in self._order.tolist())

    def _home(self, id_: str) -> tuple[FrameStore, str]:
        for name, store in self._stores:
            own = self._own_id(id_, name, store)
            if own is not None:
                return store, own
        raise KeyError(f"{id_!r} is in none of the {len(self._stores)} stores")

    @cached_property
    def _labels(self) -> Labels:
        labels = [(name, store.label_columns()) for name, store in self._stores]
        return concatenate([Labels([name + own for own in each.ids], each.columns) for name, each in labels]).select(
            self.ids
        )

    def labels(self, id_: str) -> dict[str, Any]:
        """Return the labels of a video, including names that only other stores have (as None)."""
        self._home(id_)
        return self._labels.values_of(id_)

    def label_columns(self) -> Labels:
        return self._labels

    @cached_property
    def classes(self) -> list[str] | None:
        classes = classes_of(self._labels)
        return classes and sorted({*classes, *(name for _, store in self._stores for name in store.classes or ())})

    def facts(self, id_: str) -> VideoFacts:
        store, own = self._home(id_)
        return store.facts(own)

    def source_map(self, id_: str) -> SourceMap | None:
        store, own = self._home(id_)
        return store.source_map(own)

    def storage(self) -> StorageOrder:
        orders, before = list[StorageOrder](), 0
        for _, store in self._stores:
            orders.append(one := store.storage())
            orders[-1] = one._replace(files=one.files + before)
            before += int(np.max(one.files, initial=-1)) + 1
        return StorageOrder(*(np.concatenate(columns)[self._order] for columns in zip(*orders, strict=True)))

    def version(self) -> str:
        versions = [store.version() for _, store in self._stores]
        return " ".join(versions) if all(versions) else ""

    def content_digest(self, places: npt.NDArray[np.int64]) -> str:
        own, digests = self._order[places], []
        ends = np.cumsum([len(store.ids) for _, store in self._stores])
        for end, (_, store) in zip(ends.tolist(), self._stores, strict=True):
            start = end - len(store.ids)
            digests.append(store.content_digest(own[(start <= own) & (own < end)] - start))
        return " ".join(digests)

    def sizes(self) -> npt.NDArray[np.int64]:
        return np.concatenate([store.sizes() for _, store in self._stores])[self._order]

    def fill(self, id_: str, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
        store, own = self._home(id_)
        store.fill(own, numbers, rows)

    @property
    def is_remote(self) -> bool:
        return any(store.is_remote for _, store in self._stores)

    @property
    def keeps_read(self) -> bool:
        return any(store.keeps_read for _, store in self._stores)

    def announce(self, done: int, clips: Sequence[ComingClip]) -> list[int]:
        homes = [self._home(clip.id) for clip in clips]
        sizes = [0] * len(clips)
        for _, store in self._stores:
            own = [number for number, (home, _) in enumerate(homes) if home is store]
            announced = store.announce(done, [clips[number]._replace(id=homes[number][1]) for number in own])
            for number, size in zip(own, announced, strict=True):
                sizes[number] = size
        return sizes

    def sample_rate(self, id_: str) -> int | None:
        store, own = self._home(id_)
        return store.sample_rate(own)

    def samples(self, id_: str, span: tuple[Fraction, Fraction], rate: int | None, num_channels: int | None) -> Samples:
        store, own = self._home(id_)
        return store.samples(own, span, rate, num_channels)

    def stored_jpegs(self, id_: str) -> list[memoryview] | None:
        store, own = self._home(id_)
        return store.stored_jpegs(own)


def _common_place(places: Sequence[str | os.PathLike[str]]) -> str:
    """Return the folder or URL above all of several, for messages."""
    if any("://" in str(place) for place in places):
        return ", ".join(dict.fromkeys(map(str, places)))
    return os.path.commonpath([os.path.abspath(place) for place in places])  # noqa: PTH100
