"""Several stores as one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest import Labels, classes_of, joined
from vidprep.formats.stores.base import Frames, FrameStore, Samples, SourceMap, VideoFacts


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
        super().__init__(os.path.commonpath([os.path.abspath(store.path) for _, store in self._stores]))  # noqa: PTH100
        self.reads_uint16 = all(store.reads_uint16 for _, store in self._stores)  # type: ignore[misc]
        self._homes: dict[str, tuple[FrameStore, str]] = {}
        for name, store in self._stores:
            for own in store.ids:
                if (id_ := name + own) in self._homes:
                    first = self._homes[id_][0].path
                    raise StoreError(
                        f"{id_!r} is in {first} too; give the stores names: {{'a': …, 'b': …}}", path=store.path
                    )
                self._homes[id_] = store, own

    def __repr__(self) -> str:
        return f"<{len(self._stores)} stores below {self.path}: {len(self)} videos>"

    def _ids(self) -> Sequence[str]:
        return sorted(self._homes)

    def _home(self, id_: str) -> tuple[FrameStore, str]:
        if id_ not in self._homes:
            raise KeyError(f"{id_!r} is in none of the {len(self._stores)} stores")
        return self._homes[id_]

    @cached_property
    def _labels(self) -> Labels:
        found = [(name, store.label_columns()) for name, store in self._stores]
        return joined([Labels([name + own for own in each.ids], each.columns) for name, each in found]).taken(self.ids)

    def labels(self, id_: str) -> dict[str, Any]:
        """Return the labels of a video, including names that only other stores have (as None)."""
        self._home(id_)
        return self._labels.of(id_)

    def label_columns(self) -> Labels:
        return self._labels

    @cached_property
    def classes(self) -> list[str] | None:
        found = classes_of(self._labels)
        return found and sorted({*found, *(name for _, store in self._stores for name in store.classes or ())})

    def facts(self, id_: str) -> VideoFacts:
        store, own = self._home(id_)
        return store.facts(own)

    def source_map(self, id_: str) -> SourceMap | None:
        store, own = self._home(id_)
        return store.source_map(own)

    def sizes(self) -> npt.NDArray[np.int64]:
        of_ids = {
            name + own: size for name, store in self._stores for own, size in zip(store.ids, store.sizes(), strict=True)
        }
        return np.asarray([of_ids[id_] for id_ in self.ids], np.int64).reshape(-1, 3)

    def fill(self, id_: str, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
        store, own = self._home(id_)
        store.fill(own, numbers, rows)

    def sample_rate(self, id_: str) -> int | None:
        store, own = self._home(id_)
        return store.sample_rate(own)

    def samples(self, id_: str, span: tuple[Fraction, Fraction], rate: int | None, num_channels: int | None) -> Samples:
        store, own = self._home(id_)
        return store.samples(own, span, rate, num_channels)

    def coded(self, id_: str) -> list[memoryview] | None:
        store, own = self._home(id_)
        return store.coded(own)
