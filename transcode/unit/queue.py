"""What is to be done next: videos, and the segments of those that were split, which go before other videos."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from vidprep.formats.errors import CrashedError, DeadlineError
from vidprep.formats.manifest.table import ManifestRow
from vidprep.transcode.unit.job import (
    Job,
    JobResult,
    JoinJob,
    MadeSegment,
    SegmentJob,
    Split,
    WholeJob,
    discard,
    why_not_joined,
)

FINAL_ERRORS = {CrashedError.__name__, DeadlineError.__name__}


@dataclass(slots=True)
class _SplitVideo:
    """A video in segments. count: how many. waiting: how many of them are not made yet."""

    job: WholeJob
    count: int
    waiting: int
    made: list[MadeSegment] = field(default_factory=list)
    failed: ManifestRow | None = None


class JobQueue:
    """Hands out jobs, and takes what came of them. It may be empty while segments are being made, and not later."""

    def __init__(
        self, jobs: Iterable[Job], on_segment: Callable[[Job, int, int], object] = lambda _job, _made, _count: None
    ) -> None:
        """on_segment: told of a video, how many of its segments are made, of how many; first of none."""
        self._jobs = iter(jobs)
        self._on_segment = on_segment
        self._first: deque[Job] = deque()
        self._split: dict[str, _SplitVideo] = {}

    def __iter__(self) -> Iterator[Job]:
        return self

    def __next__(self) -> Job:
        if self._first:
            return self._first.popleft()
        return next(self._jobs)

    def settle(self, job: Job, made: JobResult) -> ManifestRow | None:
        """Take what came of a job that was done. Returns the row of the video when that is finished."""
        if isinstance(made, Split):
            assert isinstance(job, WholeJob)
            count = len(made.segments)
            self._split[job.unit.id] = _SplitVideo(job, count, count)
            self._on_segment(job, 0, count)
            self._first.extend(map(job.for_segment, made.segments))
            return None
        if not isinstance(job, SegmentJob):
            for each in job.segments if isinstance(job, JoinJob) else ():
                Path(each.path).unlink(missing_ok=True)
            assert isinstance(made, ManifestRow)
            return made
        split = self._split.get(job.unit.id)
        if split is None:  # it was given up
            discard(job)
            return None
        split.waiting -= 1
        if isinstance(made, MadeSegment):
            split.made.append(replace(made, path=job.partial))
            self._on_segment(split.job, len(split.made), split.count)
        elif split.failed is None:
            assert isinstance(made, ManifestRow)
            split.failed = made
            for other in [other for other in self._first if other.unit.id == job.unit.id]:
                self._first.remove(other)
                split.waiting -= 1
            if made.error in FINAL_ERRORS:
                del self._split[job.unit.id]
                discard(split.job.to_join(tuple(split.made)))
                return made
        if not split.waiting:
            self._go_on_with(split)
        return None

    def give_up(self) -> None:
        """Remove the segments that were made for what will not be joined."""
        for job in (*self._first, *(split.job.to_join(tuple(split.made)) for split in self._split.values())):
            discard(job)

    def _go_on_with(self, split: _SplitVideo) -> None:
        """All segments are there, or one has failed: join them, or make the video in one segment."""
        job, failed = split.job, split.failed
        del self._split[job.unit.id]
        made = sorted(split.made, key=lambda each: each.segment.index)
        why = f"{failed.stage}: {failed.message}" if failed else why_not_joined(made)
        joining = job.to_join(tuple(made))
        if why is None:
            self._first.appendleft(joining)
            return
        discard(joining)
        self._first.appendleft(job.unsplit(why))
