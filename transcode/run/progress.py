"""Report a run to people: a progress bar, a line for each failure, the summary; and events for `vidprep monitor`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vidprep.formats.errors import count_of, format_bytes, printable
from vidprep.formats.manifest.remarks import NOTES
from vidprep.formats.manifest.row import ManifestRow
from vidprep.transcode.destination.array_plan import TaskShare
from vidprep.transcode.destination.partition import Partition
from vidprep.transcode.run.events import Events
from vidprep.transcode.run.plan import Plan, describe_ignored
from vidprep.transcode.run.run import Summary
from vidprep.transcode.unit.job import Job

if TYPE_CHECKING:
    from tqdm import tqdm


SHOWN = 5
LONGEST_EXAMPLE = 160
LINE_SECONDS = 30.0  # between lines where there is no terminal for a bar


def bar(*, is_shown: bool, total: int | None = None) -> tqdm[Any]:
    """Return a progress bar on stderr, shown only on a terminal."""
    from tqdm import tqdm

    return tqdm(total=total, unit="video", disable=None if is_shown else True, file=sys.stderr, smoothing=0.1)


class Progress:
    """Receives everything that happens in a run.

    Args:
        is_shown: Print to stderr; otherwise print nothing.
        has_bar: Show a bar on a terminal.
        on_row: Called with every row.

    Attributes:
        events: Writes the events of the run; None without `--events`
    """

    def __init__(
        self, *, is_shown: bool, has_bar: bool = True, on_row: Callable[[ManifestRow], object] | None = None
    ) -> None:
        self._is_shown, self._has_bar, self._on_row = is_shown, has_bar, on_row
        self.events: Events | None = None
        self._bar: Any = None
        self._failed = 0
        self._saved = self._done = 0
        self._said = time.monotonic()

    def message(self, text: str) -> None:
        """Print a message."""
        if not self._is_shown:
            return
        if (shown := self._bar) is not None:  # another thread may close it meanwhile
            shown.write(f"vidprep: {text}", file=sys.stderr)
        else:
            sys.stderr.write(f"vidprep: {text}\n")
            sys.stderr.flush()

    def show_found(self, count: int) -> None:
        """Show how many files or rows have been examined."""
        if self._has_bar:
            self.message(f"{count_of(count, 'file')} found so far")

    def share(self, part: Partition, share: TaskShare) -> None:
        """Print what this task of an array run takes, and how its sources differ from the plan."""
        self.message(f"part {part.index} of {part.count}: {count_of(len(share.sources.units), 'video')}")
        if share.absent:
            self.message(f"{len(share.absent)} videos planned for it are not among the sources: {_few(share.absent)}")
        if share.unplanned:
            self.message(
                f"{len(share.unplanned)} videos came after this array run was planned and are left out: "
                f"{_few(share.unplanned)}; run again after `vidprep merge` to make them"
            )

    def start(self, plan: Plan, destination: str, backend: str) -> None:
        self._plan = plan
        if self.events:
            self.events.write_begun(plan, destination, backend)
        self._bar = bar(is_shown=self._is_shown and self._has_bar, total=len(plan.jobs) + len(plan.rejected))

    def job(self, job: Job) -> None:
        if self.events:
            self.events.write_started(job)

    def segment(self, job: Job, made: int, count: int) -> None:
        if self.events:
            self.events.segment(job, made, count)
        self._bar.set_postfix_str(f"{printable(job.unit.id)}: {made} of {count} segments")

    def row(self, row: ManifestRow) -> None:
        """Report a finished or failed video, whose row has been written."""
        if self.events:
            self.events.row(row)
        if self._on_row:
            self._on_row(row)
        is_left_out = self._plan.leaves_out(row)
        self._failed += not row.ok and not is_left_out
        if row.ok:
            self._saved += self._plan.source_bytes(row) - (row.size_bytes or 0)
        elif not is_left_out:
            self.message(f"failed: {printable(row.source)}: {row.stage}: {printable(row.message or '')}")
        so_far = f"{self._failed} failed, {format_bytes(self._saved)} saved"
        self._bar.set_postfix_str(so_far, refresh=False)
        self._bar.update()
        self._done += 1
        if self._bar.disable and self._has_bar and time.monotonic() - self._said > LINE_SECONDS:
            self._said = time.monotonic()
            self.message(f"{self._done} of {self._bar.total} videos, {so_far}")

    def stopping(self) -> None:
        """Report that a signal is stopping the run."""
        self.message("stopping: running videos may finish within a few seconds; press Ctrl-C again to stop immediately")

    def broken(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Record an exception that ends the run; the signature is that of `__exit__`."""
        if error is not None and self.events:
            self.events.broken(error)

    def finish(self, summary: Summary) -> None:
        self._bar.close()
        self._bar = None
        if self.events:
            self.events.write_ended(summary)
        by_number = sorted(summary.warnings.items(), key=lambda pair: (pair[0] in NOTES, -pair[1]))
        for code, count in by_number:
            what = "note" if code in NOTES else "warning"
            self.message(
                f"{what}: {code}: {count_of(count, 'video')}, such as {_short(printable(summary.examples[code]))}"
            )
        if summary.ignored:
            self.message(describe_ignored(summary.ignored_reasons))
        parts = [f"{summary.ok} ok", f"{summary.failed} failed"]
        parts += [f"{summary.done_before} done before"] if summary.done_before else []
        parts += [f"{summary.moved} of them moved or renamed with their sources"] if summary.moved else []
        parts += [f"{summary.relabelled} relabelled"] if summary.relabelled else []
        parts += [f"{count_of(summary.removed, 'old row')} removed"] if summary.removed else []
        parts += [f"{summary.skipped_failed} failed before and skipped"] if summary.skipped_failed else []
        parts += [f"{summary.short} too short and left out"] if summary.short else []
        parts += [f"{summary.not_started} not started"] if summary.not_started else []
        parts += [f"{summary.warned} with warnings"] if summary.warned else []
        sizes = f"{format_bytes(summary.bytes_before)} -> {format_bytes(summary.bytes_after)}"
        self.message(f"{', '.join(parts)}; {sizes} in {summary.seconds:.1f} s")
        if summary.disk_full:
            self.message(summary.disk_full)
        if summary.stopped:
            self.message(f"stopped: {summary.stopped}")
        if summary.interrupted_by is not None:
            self.message("interrupted; run the same command again to go on")


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_EXAMPLE else f"{text[:LONGEST_EXAMPLE]}…"


def _few(names: Sequence[str]) -> str:
    return ", ".join(map(printable, names[:SHOWN])) + " …" * (len(names) > SHOWN)
