"""Which videos of a store a dataset has, and the numbers of their classes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from vidprep.formats.errors import SettingsError
from vidprep.formats.manifest.labels import CLASS_LABEL, LABELS, SPLIT_LABEL, Labels, values_of
from vidprep.formats.stores.base import FrameStore

NO_CLASS = -100  # what torch's losses ignore
Where: TypeAlias = "Callable[[dict[str, Any]], bool] | pc.Expression"


def chosen_videos(
    store: FrameStore,
    labels: Labels,
    sizes: npt.NDArray[np.int64],
    *,
    split: str | None,
    ids: Sequence[str] | None,
    where: Where | None,
) -> list[int]:
    """The places of videos among `store.ids`, ascending. Raises SettingsError for what chooses none, or names what is not there."""
    places = list(range(len(store.ids)))
    if ids is not None:
        if isinstance(ids, str):
            raise SettingsError(f"ids is {ids!r}; give a list of ids")
        wanted = set(ids)
        if missing := sorted(wanted.difference(store.ids)):
            raise SettingsError(f"{len(missing)} ids are not there, such as {missing[0]!r}", path=store.path)
        places = [place for place in places if store.ids[place] in wanted]
    if split is not None:
        column = labels.columns.get(SPLIT_LABEL)
        if column is None:
            raise SettingsError("has no label `split`; make it with --split-by, or vidprep label", path=store.path)
        splits = values_of(column)
        if split not in splits:
            there = ", ".join(sorted({str(value) for value in splits if value is not None})) or "none"
            raise SettingsError(f"has no split {split!r}; splits: {there}", path=store.path)
        places = [place for place in places if splits[place] == split]
    if where is not None:
        held = _held(labels, sizes, where)
        places = [place for place in places if place in held]
    if not places and len(store.ids):
        raise SettingsError("no video is left by ids, split and where", path=store.path)
    return places


def _held(labels: Labels, sizes: npt.NDArray[np.int64], where: Where) -> set[int]:
    """The places of which it holds. Raises SettingsError for an expression that makes no sense here."""
    table = labels.table()
    for number, name in enumerate(("num_frames", "height", "width")):
        table = table.append_column(name, pa.array(sizes[:, number]))
    if isinstance(where, pc.Expression):
        try:
            found = table.append_column("place", pa.array(range(len(sizes)), pa.int64())).filter(where)["place"]
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise SettingsError(f"where: {error}") from error
        return set(found.to_pylist())
    if not callable(where):
        raise SettingsError(
            f"where is {where!r}; give an Arrow expression, such as pc.field('num_frames') > 20, or a function"
        )
    facts = table.drop_columns([LABELS]) if LABELS in table.column_names else table
    held = set()
    for place, row in enumerate(facts.to_pylist()):
        try:
            if where(row | {"labels": labels.of(row["id"])}):
                held.add(place)
        except Exception as error:
            raise SettingsError(f"where: {type(error).__name__} for {row['id']!r}: {error}") from error
    return held


def class_ids(store: FrameStore, labels: Labels) -> tuple[Mapping[str | int, int], npt.NDArray[np.int64] | None]:
    """The number of each class of the whole store, and of each of these videos; whole numbers are kept as they are. None where the
    store has no classes. Warns of videos that have none.
    """
    column = labels.columns.get(CLASS_LABEL)
    if column is None:
        return {}, None
    numbers = store.class_to_idx
    if not numbers:
        return {}, None
    found = np.asarray([NO_CLASS if value is None else numbers[value] for value in column.to_pylist()], np.int64)
    if column.null_count:
        warnings.warn(
            f"{store.path}: {column.null_count} of {len(column)} videos have no label; their class_id is {NO_CLASS}, which torch's "
            "losses ignore, and where= leaves them out",
            stacklevel=4,
        )
    return numbers, found
