"""What `--dry-run` says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

from vidprep.formats.manifest import CLASS_LABEL, SPLIT_LABEL, Labels, values_of
from vidprep.formats.text import for_json, megabytes, printable
from vidprep.transcode.destination import Destination, disk_of, free_bytes
from vidprep.transcode.run import Plan
from vidprep.transcode.sources import SourceList

SHOWN = 20


def print_dry_run(
    place: Destination, todo: Plan, sources: SourceList, labels: Labels, *, as_json: bool = False
) -> None:
    if as_json:
        for line in _lines(place, todo, sources, labels):
            click.echo(json.dumps(line, ensure_ascii=False, default=str))
        return
    for job in todo.jobs:
        said = ", ".join(f"{name}={value}" for name, value in labels.of(job.unit.id).items() if value is not None)
        click.echo(printable(f"{job.unit.path} -> {job.file_name}{f'  [{said}]' if said else ''}"))
    for row in todo.rejected:
        click.echo(f"cannot be started: {printable(row.source)}: {printable(row.message or '')}", err=True)
    for path, reason in sources.ignored:
        click.echo(f"ignored: {printable(path)}: {printable(reason)}", err=True)
    for before, unit in todo.moved.items():
        click.echo(f"moved: {printable(before)} -> {printable(unit.id if unit.id != before else unit.path)}")
    for id_ in todo.removed:
        click.echo(f"removed: {printable(id_)}")
    if left := set(todo.gone) - set(todo.removed):
        rows, them = ("rows have", "them") if len(left) > 1 else ("row has", "it")
        text = f"{len(left)} {rows} no source any more, such as {printable(min(left))} (--prune removes {them})"
        click.echo(text, err=True)
    for note in (*(f"note: {each}" for each in sources.notes), *_counts(labels)):
        click.echo(printable(note), err=True)
    total = sum(job.unit.share_bytes for job in todo.jobs)
    ratio = todo.bytes_after / todo.bytes_before if todo.bytes_before else None
    guess = f"about {megabytes(total * ratio)} judging by what is done" if ratio is not None else "usually no larger"
    click.echo(
        f"{len(todo.jobs)} to do, {todo.done} done, {todo.skipped} failed before and skipped, {len(todo.rejected)} cannot be "
        f"started, {len(sources.ignored)} ignored. Sources to do: {megabytes(total)}; outputs: {guess}; "
        f"free in {printable(disk_of(place.storage))}: {megabytes(free_bytes(place.storage))}.",
        err=True,
    )


def _counts(labels: Labels) -> Iterator[str]:
    """Yield how many videos each class has, and each split of each class."""
    of = {
        name: list(map(str, values_of(labels.columns[name])))
        for name in (CLASS_LABEL, SPLIT_LABEL)
        if name in labels.columns
    }
    classes, splits = of.get(CLASS_LABEL, []), of.get(SPLIT_LABEL, [])
    if classes:
        yield f"label: {_counted(classes)}"
    for split in sorted(set(splits)):
        inside = [one for one, other in zip(classes, splits, strict=True) if other == split] if classes else []
        yield f"split {split}: {splits.count(split)}{f' ({_counted(inside)})' if inside else ''}"


def _counted(values: list[str]) -> str:
    counts = Counter(values)
    more = f", and {len(counts) - SHOWN} more" if len(counts) > SHOWN else ""
    return ", ".join(f"{value} {count}" for value, count in counts.most_common(SHOWN)) + more


def _lines(place: Destination, todo: Plan, sources: SourceList, labels: Labels) -> Iterator[dict[str, Any]]:
    """The same for machines, the summary last."""
    for job in todo.jobs:
        yield {
            "what": "to do",
            "id": job.unit.id,
            "source": job.unit.path,
            "file_name": job.file_name,
            "labels": for_json(labels.of(job.unit.id)),
        }
    for row in todo.rejected:
        yield {"what": "cannot be started", "id": row.id, "source": row.source, "message": row.message}
    for path, reason in sources.ignored:
        yield {"what": "ignored", "source": path, "reason": reason}
    for before, unit in todo.moved.items():
        yield {"what": "moved", "before": before, "id": unit.id, "source": unit.path}
    for id_ in todo.removed:
        yield {"what": "removed", "id": id_}
    counts = {
        "to_do": len(todo.jobs),
        "done": todo.done,
        "skipped_failed": todo.skipped,
        "cannot_be_started": len(todo.rejected),
        "gone": len(set(todo.gone) - set(todo.removed)),
    }
    source_bytes = sum(job.unit.share_bytes for job in todo.jobs)
    yield {
        "summary": counts
        | {"ignored": len(sources.ignored), "source_bytes": source_bytes, "free_bytes": free_bytes(place.storage)}
    }
