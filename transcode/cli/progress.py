"""What a run tells people: a bar, a line for each failure, the summary; and what `--dry-run` says instead."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from vidprep.formats.manifest.table import ManifestRow
from vidprep.transcode.destination.array_plan import Share
from vidprep.transcode.destination.folder import Destination
from vidprep.transcode.destination.partition import Part
from vidprep.transcode.run.events import Events
from vidprep.transcode.run.ignored import in_words
from vidprep.transcode.run.plan import Plan
from vidprep.transcode.run.run import Summary
from vidprep.transcode.run.text import megabytes, printable
from vidprep.transcode.sources.unit import SourceList
from vidprep.transcode.unit.job import Job

SHOWN = 5


def print_dry_run(todo: Plan, sources: SourceList, place: Destination) -> None:
    for job in todo.jobs:
        click.echo(f"{printable(job.unit.path)} -> {printable(job.file_name)}")
    for row in todo.rejected:
        click.echo(f"cannot be started: {printable(row.source)}: {printable(row.message or '')}", err=True)
    for path, reason in sources.ignored:
        click.echo(f"ignored: {printable(path)}: {printable(reason)}", err=True)
    total = sum(job.unit.size_bytes for job in todo.jobs)
    ratio = todo.bytes_after / todo.bytes_before if todo.bytes_before else None
    guess = (
        f"about {megabytes(total * ratio)} by the ratio of what is done"
        if ratio is not None
        else "at most about as much, as a rule"
    )
    click.echo(
        f"{len(todo.jobs)} to do, {todo.done} done, {todo.skipped} failed before and skipped, {len(todo.rejected)} cannot be "
        f"started, {len(sources.ignored)} ignored. Sources to do: {megabytes(total)}; outputs: {guess}; "
        f"free in {printable(place.disk)}: {megabytes(place.free_bytes())}.",
        err=True,
    )


class Progress:
    """People read stderr: a bar on a terminal, a line per failure, the summary. Machines read stdout."""

    def __init__(self, *, quiet: bool, as_json: bool, events: Events | None = None) -> None:
        self._quiet, self._as_json, self._events = quiet, as_json, events
        self._bar: Any = None
        self._failed = 0
        self._saved = 0

    def say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(f"vidprep: {text}", file=sys.stderr)
        else:
            click.echo(f"vidprep: {text}", err=True)

    def found(self, count: int) -> None:
        if not self._quiet:
            click.echo(f"vidprep: {count} files found so far", err=True)

    def share(self, part: Part, share: Share) -> None:
        """What this task of an array run takes, and in what its sources differ from the plan."""
        self.say(f"part {part.index} of {part.count}: {len(share.sources.units)} videos")
        if share.absent:
            self.say(f"{len(share.absent)} videos planned for it are not among the sources: {_few(share.absent)}")
        if share.unplanned:
            self.say(
                f"{len(share.unplanned)} videos came after this array run was planned and are left out: "
                f"{_few(share.unplanned)}; run again after `vidprep merge` to make them"
            )

    def start(self, plan: Plan, destination: str, backend: str) -> None:
        from tqdm import tqdm

        if self._events:
            self._events.begun(plan, destination, backend)
        self._bar = tqdm(
            total=len(plan.jobs) + len(plan.rejected),
            unit="video",
            disable=True if self._quiet else None,
            file=sys.stderr,
            smoothing=0.1,
        )

    def job(self, job: Job) -> None:
        """It was handed to a worker."""
        if self._events:
            self._events.started(job)

    def row(self, row: ManifestRow) -> None:
        if self._events:
            self._events.row(row)
        if self._as_json:
            click.echo(row.as_json())
        self._failed += not row.ok
        if row.ok:
            self._saved += (row.source_size_bytes or 0) - (row.size_bytes or 0)
        else:
            self.say(f"failed: {printable(row.source)}: {row.stage}: {printable(row.message or '')}")
        self._bar.set_postfix_str(f"{self._failed} failed, {megabytes(self._saved)} saved", refresh=False)
        self._bar.update()

    def finish(self, summary: Summary) -> None:
        self._bar.close()
        self._bar = None
        if self._events:
            self._events.ended(summary)
        if self._as_json:
            click.echo(summary.as_json())
        if summary.ignored:
            self.say(in_words(summary.ignored_reasons))
        parts = [f"{summary.ok} ok", f"{summary.failed} failed"]
        parts += [f"{summary.done_before} done before"] if summary.done_before else []
        parts += [f"{summary.skipped_failed} failed before and skipped"] if summary.skipped_failed else []
        parts += [f"{summary.not_started} not started"] if summary.not_started else []
        parts += [f"{summary.warned} with warnings in the manifest"] if summary.warned else []
        parts += [f"{summary.larger_than_source} larger than their source"] if summary.larger_than_source else []
        self.say(
            f"{', '.join(parts)}; {megabytes(summary.bytes_before)} -> {megabytes(summary.bytes_after)} in {summary.seconds:.1f} s"
        )
        if summary.disk_full:
            self.say(summary.disk_full)
        if summary.stopped:
            self.say(f"stopped: {summary.stopped}")
        if summary.interrupted_by is not None:
            self.say("interrupted; run the same command again to go on")


def _few(names: Sequence[str]) -> str:
    return ", ".join(map(printable, names[:SHOWN])) + " …" * (len(names) > SHOWN)
