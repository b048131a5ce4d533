"""What `--dry-run` says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from vidprep.formats.text import megabytes, printable
from vidprep.transcode.destination.folder import Destination
from vidprep.transcode.run.plan import Plan
from vidprep.transcode.sources.unit import SourceList


def print_dry_run(todo: Plan, sources: SourceList, place: Destination, *, as_json: bool = False) -> None:
    if as_json:
        for line in _lines(todo, sources, place):
            click.echo(json.dumps(line, ensure_ascii=False))
        return
    for job in todo.jobs:
        click.echo(f"{printable(job.unit.path)} -> {printable(job.file_name)}")
    for row in todo.rejected:
        click.echo(f"cannot be started: {printable(row.source)}: {printable(row.message or '')}", err=True)
    for path, reason in sources.ignored:
        click.echo(f"ignored: {printable(path)}: {printable(reason)}", err=True)
    for before, unit in todo.moved.items():
        click.echo(f"moved: {printable(before)} -> {printable(unit.id if unit.id != before else unit.path)}")
    for id_ in todo.removed:
        click.echo(f"removed, as its source is gone: {printable(id_)}")
    if left := set(todo.gone) - set(todo.removed):
        rows, them = ("rows have", "them") if len(left) > 1 else ("row has", "it")
        text = f"{len(left)} {rows} no source any more, such as {printable(min(left))} (--prune removes {them})"
        click.echo(text, err=True)
    total = sum(job.unit.share_bytes for job in todo.jobs)
    ratio = todo.bytes_after / todo.bytes_before if todo.bytes_before else None
    guess = f"about {megabytes(total * ratio)} judging by what is done" if ratio is not None else "usually no larger"
    click.echo(
        f"{len(todo.jobs)} to do, {todo.done} done, {todo.skipped} failed before and skipped, {len(todo.rejected)} cannot be "
        f"started, {len(sources.ignored)} ignored. Sources to do: {megabytes(total)}; outputs: {guess}; "
        f"free in {printable(place.disk)}: {megabytes(place.free_bytes())}.",
        err=True,
    )


def _lines(todo: Plan, sources: SourceList, place: Destination) -> Iterator[dict[str, Any]]:
    """The same for machines, the summary last."""
    for job in todo.jobs:
        yield {"what": "to do", "id": job.unit.id, "source": job.unit.path, "file_name": job.file_name}
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
        | {"ignored": len(sources.ignored), "source_bytes": source_bytes, "free_bytes": place.free_bytes()}
    }
