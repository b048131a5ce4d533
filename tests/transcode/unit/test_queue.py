"""The queue of a run: segments before other videos, each video told once, nothing left of what is given up."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.model import SourceState
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.unit import queue
from vidprep.transcode.unit.job import Job, JobNotDone, JoinJob, MadeSegment, Segment, SegmentJob, Split, WholeJob
from vidprep.transcode.unit.queue import JobQueue


def job_of(name: str, folder: Path) -> Job:
    return WholeJob(Unit(name, f"/{name}.mp4", 1, 1), RunSettings(), f"{name}.mp4", str(folder / f"{name}.partial"))


def in_segments(count: int) -> Split:
    timing: Any = None
    segments = (Segment(n, n * 10, n * 10, 10, n * 10, timing, n, None, 0, 0, Fraction(0)) for n in range(count))
    return Split(tuple(segments))


def made(job: Job) -> MadeSegment:
    """What a worker gives back, and the file that it leaves."""
    Path(job.partial).write_text("coded")
    nothing: Any = SimpleNamespace()
    assert isinstance(job, SegmentJob)
    return MadeSegment(
        job.segment, "", nothing, [], [], SourceState(1, 1), nothing, nothing, nothing, 0, False, [], 0.0, 0.0
    )


def row(job: Job, **more: Any) -> ManifestRow:
    return replace(ManifestRow(id=job.unit.id, source=job.unit.path, file_name=job.file_name, status="ok"), **more)


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    return [job_of(name, tmp_path) for name in ("long", "a", "b")]


@pytest.fixture(autouse=True)
def joinable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "why_not_joined", lambda _made: None)


def split(jobs: list[Job], count: int = 3) -> tuple[JobQueue, list[Job]]:
    """A queue whose first video was split, and the jobs of its segments."""
    waiting = JobQueue(jobs)
    first = next(waiting)
    assert waiting.take_result(first, in_segments(count)) is None
    return waiting, [next(waiting) for _ in range(count)]


def test_videos_come_in_order(jobs: list[Job]) -> None:
    waiting = JobQueue(jobs)
    assert [job.unit.id for job in waiting] == ["long", "a", "b"]
    assert waiting.take_result(jobs[1], row(jobs[1])) == row(jobs[1])


def test_segments_go_before_other_videos_and_are_joined_in_their_order(jobs: list[Job], tmp_path: Path) -> None:
    waiting, parts = split(jobs)
    assert [part.segment.index for part in parts if isinstance(part, SegmentJob)] == [0, 1, 2]
    assert len({part.partial for part in parts}) == 3
    for part in (parts[2], parts[0], parts[1]):
        assert waiting.take_result(part, made(part)) is None
    joining = next(waiting)
    assert isinstance(joining, JoinJob)
    assert [each.segment.index for each in joining.segments] == [0, 1, 2]
    assert [each.path for each in joining.segments] == [part.partial for part in parts]
    assert waiting.take_result(joining, row(joining)) is not None
    assert list(tmp_path.iterdir()) == [], "segments are removed when they are joined"
    assert next(waiting).unit.id == "a"


def test_a_segment_that_has_failed_leaves_those_of_other_videos_where_they_are(tmp_path: Path) -> None:
    waiting = JobQueue([job_of(name, tmp_path) for name in ("b", "a", "c")])
    for job in [next(waiting) for _ in range(3)]:
        waiting.take_result(job, in_segments(2))
    part = next(waiting)
    waiting.take_result(part, row(part, status="failed", error="ReadError", stage="read", message="torn"))
    left = [(job.unit.id, job.segment.index if isinstance(job, SegmentJob) else None) for job in waiting]
    assert left == [("b", None), ("a", 0), ("a", 1), ("c", 0), ("c", 1)]


def test_segments_that_cannot_be_joined_make_the_video_whole(
    jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "why_not_joined", lambda _made: "they differ")
    waiting, parts = split(jobs)
    for part in parts:
        waiting.take_result(part, made(part))
    again = next(waiting)
    assert isinstance(again, WholeJob)
    assert (again.why_not_split, again.may_split) == ("they differ", False)
    assert list(tmp_path.iterdir()) == []


def test_after_a_segment_has_failed_the_others_are_not_begun(jobs: list[Job], tmp_path: Path) -> None:
    waiting = JobQueue(jobs)
    waiting.take_result(next(waiting), in_segments(4))
    parts = [next(waiting), next(waiting)]
    assert (
        waiting.take_result(parts[0], row(parts[0], status="failed", error="ReadError", stage="read", message="torn"))
        is None
    )
    assert waiting.take_result(parts[1], made(parts[1])) is None
    again = next(waiting)
    assert isinstance(again, WholeJob)
    assert (again.unit.id, again.why_not_split, again.may_split) == ("long", "read: torn", False)
    assert next(waiting).unit.id == "a"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", ["CrashedError", "DeadlineError"])
def test_a_segment_that_kills_its_process_fails_the_video_and_what_comes_later_of_it_is_removed(
    error: str, jobs: list[Job], tmp_path: Path
) -> None:
    waiting, parts = split(jobs)
    assert waiting.take_result(parts[0], made(parts[0])) is None
    failed = row(parts[1], status="failed", error=error)
    assert waiting.take_result(parts[1], failed) == failed
    assert waiting.take_result(parts[2], made(parts[2])) is None
    assert list(tmp_path.iterdir()) == []
    assert [job.unit.id for job in waiting] == ["a", "b"]


def test_discarded_videos_leave_no_segment(jobs: list[Job], tmp_path: Path) -> None:
    waiting = JobQueue(jobs)
    waiting.take_result(next(waiting), in_segments(3))
    part = next(waiting)
    waiting.take_result(part, made(part))
    waiting.discard_unfinished()
    assert list(tmp_path.iterdir()) == []


def died(times: int) -> JobNotDone:
    return JobNotDone("worker", "KilledWorker", "its worker died", stops=False, deaths=times)


def test_a_job_whose_workers_died_is_done_again_and_at_last_alone(jobs: list[Job]) -> None:
    waiting = JobQueue(jobs)
    first, *others = (next(waiting) for _ in jobs)
    for _ in range(2):
        assert waiting.take_back(first, died(1), is_elsewhere=True)
        assert next(waiting) is first
    assert waiting.take_back(first, died(1), is_elsewhere=True)
    assert next(waiting, None) is None, "others are still being done"
    for other in others:
        assert not waiting.take_back(other, row(other), is_elsewhere=True)
    assert next(waiting) is first
    assert next(waiting, None) is None
    assert not waiting.take_back(first, died(1), is_elsewhere=True), "it was alone with them"


def test_a_job_that_the_cluster_has_tried_again_is_a_suspect_at_once_and_one_lost_host_is_no_proof(
    jobs: list[Job],
) -> None:
    waiting = JobQueue(jobs[:1])
    assert waiting.take_back(next(waiting), died(3), is_elsewhere=True)
    assert waiting.take_back(next(waiting), died(1), is_elsewhere=True)
    assert waiting.take_back(next(waiting), None, is_elsewhere=True)
    assert not waiting.take_back(next(waiting), row(jobs[0]), is_elsewhere=True)
    assert next(waiting, None) is None and not waiting.discard_unfinished()


def test_failed_jobs_are_tried_elsewhere_a_few_times(jobs: list[Job]) -> None:
    undone = JobNotDone("worker", "WorkerError", "no room")
    assert not JobQueue(jobs).take_back(jobs[0], undone, is_elsewhere=False)
    waiting = JobQueue(jobs[:1])
    assert [waiting.take_back(next(waiting), undone, is_elsewhere=True) for _ in range(3)] == [True, True, False]
    lost = JobNotDone("cluster", "ClusterError", "is lost")
    assert not JobQueue(jobs).take_back(jobs[0], lost, is_elsewhere=True)


def test_segments_of_a_suspect_that_is_given_up_are_removed(jobs: list[Job], tmp_path: Path) -> None:
    waiting, parts = split(jobs)
    for part in parts:
        waiting.take_result(part, made(part))
    joining = next(waiting)
    waiting.retry_alone(joining)
    assert waiting.discard_unfinished()
    assert list(tmp_path.iterdir()) == []
