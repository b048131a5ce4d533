"""What stands beside the frames of a unit in JSON: facts and labels, as other people's readers expect them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vidprep.formats.manifest.row import json_value
from vidprep.formats.manifest.table import ManifestRow

LABELS_KEY = "vidprep_labels"
FACTS = frozenset(["id", "frame_rate", "num_frames", "width", "height", "gop", "pts", "time_base"])
RESERVED = FACTS | {LABELS_KEY}


def facts_of(row: ManifestRow) -> dict[str, Any]:
    """What goes beside the frames of a unit, but for its labels."""
    rate = None if row.frame_rate_num is None else [row.frame_rate_num, row.frame_rate_den]
    size = {"num_frames": row.num_frames, "width": row.width, "height": row.height}
    return {"id": row.id, "frame_rate": rate, **size}


def described(row: ManifestRow) -> dict[str, Any]:
    """Facts and labels of a unit in one JSON object, as other people's readers expect them.

    A label with the name of a fact is not among them: then all labels stand under LABELS_KEY too, and are read from there.
    """
    labels = {name: json_value(value) for name, value in row.labels.items() if value is not None}
    apart = {LABELS_KEY: labels} if RESERVED.intersection(labels) else {}
    return facts_of(row) | {name: value for name, value in labels.items() if name not in RESERVED} | apart


def labels_in(content: Mapping[str, Any], facts: Collection[str] = FACTS) -> dict[str, Any]:
    """The labels in such a JSON object, whoever wrote it. facts: the names that are none."""
    apart = content.get(LABELS_KEY)
    if isinstance(apart, dict):
        return dict(apart)
    return {name: value for name, value in content.items() if name not in facts}
