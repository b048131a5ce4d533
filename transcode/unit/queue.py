"""Decide which job runs next, and which runs again.

Segments of a split video run before other videos. A job whose workers died may have killed them, or another job may
have: it is a suspect, and runs once more alone, so that only a job that kills workers fails.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from vidprep.formats.errors import CrashedError, DeadlineError
from vidprep.formats.manifest.row import ManifestRow
from vidprep.transcode.unit.job import (
    Job,
    JobNotDone,
    JobResult,
    JoinJob,
    MadeSegment,
    SegmentJob,
    Split,
    WholeJob,
    discard,
    why_not_joined,
)

TRIES = 3
FINAL_ERRORS = {CrashedError.__name__, DeadlineError.__name__}


@dataclass(slots=True)
class _SplitVideo:
    """A video in segments.

    Attributes:
        waiting: Number of segments that are not made yet
        failed: Row of a failed segment
    """

    job: WholeJob
    count: int
    waiting: int
    made: list[MadeSegment] = field(default_factory=list)
    failed: ManifestRow | None = None


class JobQueue:
    """Queue of jobs that takes back results. It may be empty while jobs are running, and get new jobs afterwards."""

    def __init__(
        self, jobs: Iterable[Job], on_segment: Callable[[Job, int, int], object] = lambda _job, _made, _count: None
    ) -> None:
        """Create a queue.

        Args:
            jobs: Jobs of all videos.
            on_segment: Called with a job, the number of its finished segments, and the number of all; the first time
                with 0.
        """
        self._jobs = iter(jobs)
        self._on_segment = on_segment
        self._first: deque[Job] = deque()
        self._suspects: deque[Job] = deque()
        self._num_out, self._is_alone = 0, False  # jobs that were handed out; whether the one of them is a suspect
        self._failures: Counter[tuple[str, int | None]] = Counter()
        self._deaths: Counter[tuple[str, int | None]] = Counter()
        self._split: dict[str, _SplitVideo] = {}

    def __iter__(self) -> Iterator[Job]:
        return self

    def __next__(self) -> Job:
        job: Job | None = None
        if not self._is_alone:
            job = self._first.popleft() if self._first else next(self._jobs, None)
            if job is None and self._suspects and not self._num_out:
                job, self._is_alone = self._suspects.popleft(), True
        if job is None:
            raise StopIteration
        self._num_out += 1
        return job

    def retry_alone(self, job: Job) -> None:
        """Run a job again after all others have finished, alone."""
        self._suspects.append(job)

    def take_back(self, job: Job, made: JobResult | None, *, is_elsewhere: bool) -> bool:
        """Take back a job from a pool. Return whether it will run again.

        Args:
            job: The job.
            made: Its result; None if it was not started, or was lost.
            is_elsewhere: Whether other workers may succeed if one failed.
        """
        was_alone, self._is_alone = self._is_alone, False
        self._num_out -= 1
        key = job.unit.id, job.segment.index if isinstance(job, SegmentJob) else None
        if made is None:
            self._first.append(job)
            return True
        if not isinstance(made, JobNotDone):
            return False
        if made.deaths:
            if made.deaths < TRIES:  # unless the cluster itself has retried it often enough
                self._deaths[key] += made.deaths
                if self._deaths[key] < TRIES:
                    self._first.append(job)
                    return True
            if not was_alone:
                self._suspects.append(job)
            return not was_alone
        is_of_all = made.fault == "cluster" or (made.fault == "destination" and made.stops)
        if is_of_all or not is_elsewhere:
            return False
        self._failures[key] += 1
        if self._failures[key] < TRIES:
            self._first.append(job)
        return self._failures[key] < TRIES

    def take_result(self, job: Job, made: JobResult) -> ManifestRow | None:
        """Take the result of a finished job. Return the row of its video if that is finished."""
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
        if split is None:  # the video was abandoned
            discard(job)
            return None
        split.waiting -= 1
        if isinstance(made, MadeSegment):
            split.made.append(replace(made, path=job.partial))
            self._on_segment(split.job, len(split.made), split.count)
        elif split.failed is None:
            assert isinstance(made, ManifestRow)
            split.failed = made
            for waiting in (self._first, self._suspects):
                for other in [other for other in waiting if other.unit.id == job.unit.id]:
                    waiting.remove(other)
                    split.waiting -= 1
            if made.error in FINAL_ERRORS:
                del self._split[job.unit.id]
                discard(split.job.join_job(tuple(split.made)))
                return made
        if not split.waiting:
            self._continue_video(split)
        return None

    def discard_unfinished(self) -> bool:
        """Remove files of unfinished jobs. Return whether a job was not done."""
        left = [
            *self._first,
            *self._suspects,
            *(split.job.join_job(tuple(split.made)) for split in self._split.values()),
        ]
        for job in left:
            discard(job)
        return bool(left)

    def _continue_video(self, split: _SplitVideo) -> None:
        """Join the segments if all succeeded, or make the video as a whole."""
        job, failed = split.job, split.failed
        del self._split[job.unit.id]
        made = sorted(split.made, key=lambda each: each.segment.index)
        why = f"{failed.stage}: {failed.message}" if failed else why_not_joined(made)
        joining = job.join_job(tuple(made))
        if why is None:
            self._first.appendleft(joining)
            return
        discard(joining)
        self._first.appendleft(job.unsplit(why))
