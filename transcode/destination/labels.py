"""Labels given by a run, until they are in the manifest.

DST/.vidprep/labels.parquet   labels that the manifest gets when it is written next
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vidprep.formats.errors import SourceError
from vidprep.formats.manifest.table import label_columns, read_rows
from vidprep.formats.storage.base import Storage

if TYPE_CHECKING:
    from vidprep.formats.manifest.labels import Labels
    from vidprep.transcode.sources.unit import SplitDrawing

GIVEN_LABELS_NAME = "labels.parquet"


@dataclass(frozen=True, slots=True)
class PlannedLabels:
    """Labels that a run gives its units.

    Attributes:
        given: Labels of all listed units
        changed: Existing units whose labels change
        stay: Existing columns that these sources do not give
        num_without: Number of new videos that have none of these columns
        splits: Previous and new split of each unit whose split changes
        is_new: Whether the manifest has to be written because of them
    """

    given: Labels
    changed: Sequence[str] = ()
    stay: Sequence[str] = ()
    num_without: int = 0
    splits: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    is_new: bool = False


class GivenLabels:
    """Labels on their way to the manifest.

    Args:
        folder: Folder that contains them.
        write: Writes a file of that folder.
    """

    def __init__(self, storage: Storage, folder: str, write: Callable[[str, bytes], object]) -> None:
        self._storage, self._name, self._write = storage, f"{folder}/{GIVEN_LABELS_NAME}", write
        self._given: Labels | None = None
        self._planned: Labels | None = None

    def read_given(self) -> Labels | None:
        """Return the labels that the next manifest needs and the current one may lack."""
        if self._given is None and (path := self._storage.root / self._name).exists():
            from vidprep.formats.manifest.labels import read_labels

            self._given = read_labels(path)
        return self._given

    def values_of(self, id_: str) -> dict[str, Any]:
        """Return the labels of one unit: those of this run, else those stored for the next manifest; empty if there are
        none.
        """
        labels = self._planned or self.read_given()
        return {} if labels is None else labels.values_of(id_)

    def plan(self, labels: Labels) -> None:
        """Set the labels of all units; some may have them already."""
        self._planned = labels

    def give(self, labels: Labels | None) -> None:
        """Store labels for the next manifest; None deletes stored ones. Raises OSError."""
        if labels is None:
            self._storage.remove(self._name)
        else:
            self._write(GIVEN_LABELS_NAME, labels.as_bytes())
        self._given = self._planned = labels

    def forget(self, *, stay: bool) -> None:
        """Record that the manifest has the labels.

        Args:
            stay: Keep them for units in another manifest.
        """
        if not stay:
            self._storage.remove(self._name)
        self._given = None


class _Source(NamedTuple):
    """Columns of a row with its source."""

    id: str
    source: str


def plan_labels(
    root: Path,
    labels: Labels,
    moved: Mapping[str, str],
    removed: Sequence[str],
    drawing: SplitDrawing | None,
    drawn: Labels | None = None,
    *,
    are_all: bool,
    is_part: bool = False,
    starts_over: bool = False,
) -> PlannedLabels:
    """Return the labels that units will have, and the changes. Columns that are not given are kept: forgetting an option
    must not remove labels (`vidprep label --remove` does).

    Args:
        root: The destination.
        labels: Labels of all listed units.
        moved: Previous id of units that were renamed.
        removed: Units that are removed.
        drawing: How splits are drawn.
        drawn: Splits that the first task of an array has drawn for all of them.
        are_all: Whether these are all sources.
        is_part: Whether they go into the manifest of a partition, which starts empty.
        starts_over: Keep no other columns.

    Raises:
        SourceError: Labels of units that are not listed would have to change too.
    """
    kept = label_columns(root)
    if not kept.columns and not labels.columns and drawing is None:
        return PlannedLabels(labels)
    before = replace(kept.select([moved.get(id_, id_) for id_ in labels.ids]), ids=labels.ids)
    listed = {*labels.ids, *moved.values(), *removed}
    others = kept.select([id_ for id_ in kept.ids if id_ not in listed])
    given = labels
    if drawing is not None:
        drawing = drawing if starts_over else _add_classes(drawing, labels, before)
        given = drawing.fill(labels, before, others, _sources_of(root, others.ids), drawn)
    stay = [] if starts_over else sorted(kept.columns.keys() - given.columns.keys())
    given = _merge(kept, before, given, others, stay)
    if not are_all and others.ids and drawing and kept.split_rule not in ("", given.split_rule):
        raise SourceError(
            "--split-by would draw other splits than before; give all sources, so that all are drawn again"
        )
    there = before.select([id_ for id_ in labels.ids if moved.get(id_, id_) in kept.places])
    planned = _changes(kept, there, given, is_drawn=drawing is not None)
    return replace(planned, stay=stay, is_new=planned.is_new or bool(moved) or is_part)


def _sources_of(root: Path, ids: Sequence[str]) -> list[str]:
    """Return the sources of units that have a row; "" for others."""
    sources = {row.id: row.source for row in read_rows(root, _Source)} if ids else {}
    return [sources.get(id_, "") for id_ in ids]


def _add_classes(drawing: SplitDrawing, labels: Labels, before: Labels) -> SplitDrawing:
    """Return how splits are drawn: by the classes of before where a run gives none."""
    from vidprep.formats.manifest.labels import CLASS_LABEL, values_of

    if CLASS_LABEL in labels.columns or CLASS_LABEL not in before.columns:
        return drawing
    return replace(drawing, classes=values_of(before.columns[CLASS_LABEL]))


def _merge(kept: Labels, before: Labels, given: Labels, others: Labels, stay: list[str]) -> Labels:
    """Return the given labels with the columns that stay, in the types of those of other units."""
    from vidprep.formats.manifest.labels import SPLIT_LABEL, fit

    rule = kept.split_rule if SPLIT_LABEL in stay else given.split_rule
    merged = replace(given, columns={**given.columns, **before.select_columns(stay).columns}, split_rule=rule)
    return fit(merged, others) if others.ids else merged


def _changes(kept: Labels, there: Labels, given: Labels, *, is_drawn: bool) -> PlannedLabels:
    """Return what changes: `there` are the labels of the given units that have a row."""
    from vidprep.formats.manifest.labels import SPLIT_LABEL, differing

    changed, without = differing(there, given), len(given.ids) - len(there.ids)
    types = ({name: array.type for name, array in each.columns.items()} for each in (kept, given))
    is_new = bool(changed) or without > 0 or operator.ne(*types) or kept.split_rule != given.split_rule
    splits = differing(there.select_columns([SPLIT_LABEL]), given.select_columns([SPLIT_LABEL])) if is_drawn else []
    other = {id_: (there.values_of(id_).get(SPLIT_LABEL), given.values_of(id_)[SPLIT_LABEL]) for id_ in sorted(splits)}
    moves = {id_: (old, new) for id_, (old, new) in other.items() if old is not None}
    return PlannedLabels(given, changed, [], without, moves, is_new)
