"""The section of a report about classes and splits: how many videos, and how long they are."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from vidprep.transcode.pages.page import Column, Section, Table, decimals

ROWS_MAX = 500
ALL = "all"
NO_NAME = "none"


def class_sections(behind: str, figure: dict[str, Any]) -> list[Section]:
    """Empty where the videos have neither classes nor splits."""
    found = figure["classes"]
    if found is None:
        return []
    splits: list[str] = found["splits"]
    unsplit = any(cell["split"] is None for cell in found["cells"])
    names = [*splits, *([NO_NAME] if unsplit and splits else [])]
    counts: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0, 0.0]))
    for cell in found["cells"]:
        for row in {ALL, NO_NAME if cell["class"] is None else cell["class"]} if found["has_classes"] else {ALL}:
            for column in (ALL, cell["split"] or NO_NAME):
                counts[row][column][0] += cell["videos"]
                counts[row][column][1] += cell["seconds"]
    columns = [Column("class"), Column("videos", decimals(0)), Column("minutes", decimals(1))]
    for name in names:
        columns += [Column(name, decimals(0)), Column(f"{name}, minutes", decimals(1))]
    classes = sorted(counts.keys() - {ALL})
    rows = [_row(name, counts[name], names) for name in [ALL, *classes[:ROWS_MAX]]]
    parts = [f"{len(classes):,} class{'es' * (len(classes) != 1)}"] if found["has_classes"] else []
    parts += [f"{len(splits)} split{'s' * (len(splits) != 1)}"] if splits else []
    text = f"{' in '.join(parts)}." + (f" Shown: {ROWS_MAX}." if len(classes) > ROWS_MAX else "")
    if lacking := [name for name in classes if any(not counts[name][split][0] for split in splits)]:
        text += f" {len(lacking):,} class{'es lack' if len(lacking) > 1 else ' lacks'} a split, such as {lacking[0]}."
    return [Section(f"Classes and splits{behind}", text, tables=[Table(columns, rows)])]


def _row(name: str, counts: dict[str, list[float]], splits: list[str]) -> tuple[Any, ...]:
    return name, *(value / unit for split in (ALL, *splits) for value, unit in zip(counts[split], (1, 60), strict=True))
