"""What `pack` makes of the labels `split` and `label`: a place for each split, and the number of each class."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.labels import CLASS_LABEL, SPLIT_LABEL, values_of
from vidprep.formats.manifest.table import CLASSES_NAME
from vidprep.formats.stores.base import FrameStore


def ids_of_splits(store: FrameStore) -> Mapping[str, Sequence[str]]:
    """The videos of each split; all under "" where the store has no splits. Raises StoreError where a video has none."""
    column = store.label_columns().columns.get(SPLIT_LABEL)
    if column is None or not pa.types.is_string(column.type):
        return {"": store.ids}
    found: dict[str, list[str]] = defaultdict(list)
    for id_, split in zip(store.ids, values_of(column), strict=True):
        if not split or Path(split).name != split:
            raise StoreError(
                f"{id_} has the split {split!r}; give every video one, a plain name, by `vidprep label`",
                path=store.path,
            )
        found[split].append(id_)
    return dict(sorted(found.items()))


def numbered_classes(store: FrameStore, out: Path) -> dict[str, int]:
    """Return the number of the class of each video, and write the classes of text to labels.txt, one per line. Raises StoreError."""
    column = store.label_columns().columns.get(CLASS_LABEL)
    if column is None or column.null_count:
        raise StoreError("has videos without a `label`; give them one with `vidprep label`", path=store.path)
    if not store.class_to_idx:
        raise StoreError(f"its labels are {column.type}; this format wants text or whole numbers", path=store.path)
    if store.classes is not None:
        (out / "labels.txt").write_text("".join(f"{name}\n" for name in store.classes))
    return {id_: store.class_to_idx[value] for id_, value in zip(store.ids, values_of(column), strict=True)}


def write_class_numbers(store: FrameStore, out: Path) -> None:
    """Write class_to_idx.json where the store has classes of text."""
    if store.classes:
        (out / CLASSES_NAME).write_text(json.dumps(dict(store.class_to_idx), ensure_ascii=False, indent=1))
