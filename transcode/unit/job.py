"""Jobs sent to a worker, and the results that a worker can return: a manifest row, an encoded segment, or segments to
encode.

Nothing here needs a decoder: the process that distributes jobs starts without one.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vidprep.formats.errors import DiskFullError, ReadError, VidprepError
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.model import Selected, SourceState
from vidprep.formats.storage.local import is_disk_full, is_out_of_memory
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit

if TYPE_CHECKING:
    from vidprep.formats.model import OutputFormat
    from vidprep.formats.video.seek import SeekPoint
    from vidprep.formats.video.source import Source
    from vidprep.transcode.media.frames import SourceFacts
    from vidprep.transcode.media.picture import Picture
    from vidprep.transcode.media.stream import OutputTiming
    from vidprep.transcode.media.verify import Measurements


ATTEMPTS_MAX = 2**15 - 1  # the largest value of its column


@dataclass(frozen=True, slots=True)
class Context:
    """Callbacks of a running job to its host.

    Attributes:
        worked: Called when the source is open, and for each frame decoded or made from then on
        cores: Returns how many cores the job may use now; more than one if there are fewer videos than cores
    """

    on_progress: Callable[[], None] = lambda: None
    cores: Callable[[], int] = lambda: 1


NO_CALLBACKS = Context()


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of an output that is encoded separately. Ticks of the source count from the first frame displayed.

    Attributes:
        index: Number of the segment, from 0
        first: Number of its first output frame in the whole
        first_pts: Tick of that frame in the whole
        num_frames: Number of its output frames; None to the end
        source_index: Number of the source frame that it shows first
        timing: Which source frames it shows, and when
        tick: Tick of the source frame `source_index`
        keyframe: Tick of a keyframe of the source before it; None if decoding begins at the start
        origin_pts: PTS of the first frame displayed
        opening_index: Number of the source frame that the whole shows first
        opening: Time 0 of the whole, in ticks of the source
    """

    index: int
    first: int
    first_pts: int
    num_frames: int | None
    source_index: int
    timing: OutputTiming
    tick: int
    keyframe: int | None
    origin_pts: int
    opening_index: int
    opening: Fraction

    @property
    def suffix(self) -> str:
        """Suffix of the segment's partial file."""
        return f".{self.index:05d}.mp4"

    def entry(self, source: Source) -> SeekPoint | None:
        """Return where decoding begins; None if it begins at the start. Raises ReadError."""
        from vidprep.formats.video.seek import jump_to

        if self.keyframe is None:
            return None
        return jump_to(source, self.keyframe, self.origin_pts, self.source_index, self.tick)


@dataclass(frozen=True, slots=True)
class MadeSegment:
    """A segment that was encoded and verified.

    Attributes:
        measured: Measurements of its frames
        source_indexes: Number of the source frame that each output frame shows
        source_pts: Start of those source frames in ticks
        source_state: Size and time of the source when it was read
        facts: Facts about the source
        num_changes: Number of times that the picture changed in the middle
        shows_through: Whether a pixel of the source was not opaque
        seconds: Time that encoding it took, in seconds
    """

    segment: Segment
    path: str
    measured: Measurements
    source_indexes: list[int]
    source_pts: list[int]
    source_state: SourceState
    facts: SourceFacts
    output: OutputFormat
    picture: Picture
    num_changes: int
    shows_through: bool
    damage: list[str]
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class JobNotDone:
    """The job failed, and nothing proves that its source is at fault (full disk, lost worker). Unless the machine that
    started the run blames the source, it gets no manifest row, and the next run retries it.

    Attributes:
        fault: What failed. "source" means that one host saw another source than planned; the machine that started the
            run decides
        error: Name of the error's class
        stops: Whether other jobs would fail too
        row: Failed row to write if the source is at fault after all; None for other faults
        deaths: Number of workers that died with this job, possibly because of another job
    """

    fault: Literal["source", "destination", "worker", "cluster"]
    error: str
    message: str
    stops: bool = True
    row: ManifestRow | None = None
    deaths: int = 0


@dataclass(frozen=True, slots=True)
class Split:
    """Segments of a video that have to be made; empty if it is made as a whole.

    Attributes:
        why_not: Why it is not split; None if that is not worth reporting
    """

    segments: tuple[Segment, ...] = ()
    why_not: str | None = None


# The row of a video, an encoded segment, the segments to encode; or why the job failed.
JobResult = ManifestRow | MadeSegment | Split | JobNotDone


@dataclass(frozen=True, slots=True)
class Upload:
    """Target of an upload. It is valid while the lease in `lease` of `destination` has this token."""

    url: str
    destination: str
    lease: str
    token: str


@dataclass(frozen=True, slots=True)
class Job:
    """Work for one unit: a WholeJob, a SegmentJob or a JoinJob.

    Attributes:
        unit: The source, or a cut of it
        file_name: Name of the output, relative to the destination
        partial: Absolute path of the file to write
        attempt: Number of this attempt, from 1
        ffmpeg: ffmpeg program of the second engine
        upload: Where a verified output is uploaded; None for a local destination
    """

    unit: Unit
    settings: RunSettings
    file_name: str
    partial: str
    attempt: int = 1
    ffmpeg: str = "ffmpeg"
    upload: Upload | None = None

    @property
    def best(self) -> str:
        """Path of the best output so far in a search for a target."""
        return f"{self.partial}.best"

    @property
    def whole_partial(self) -> str:
        """Partial file of the whole video."""
        return self.partial

    @property
    def copied_source(self) -> str:
        """Local path of the copy of a source that is not a local file. All segments share one copy."""
        return f"{self.whole_partial}.source{self.unit.copy_suffix}"

    def for_segment(self, segment: Segment) -> SegmentJob:
        """Return the job for a segment of this video."""
        return SegmentJob(**_shared_attributes(self, partial=f"{self.partial}{segment.suffix}"), segment=segment)

    def unsplit(self, why_not: str | None) -> WholeJob:
        """Return the job for this video without segments."""
        return WholeJob(**_shared_attributes(self, partial=self.whole_partial), may_split=False, why_not_split=why_not)

    def join_job(self, segments: tuple[MadeSegment, ...]) -> JoinJob:
        """Return the job that joins the segments of this video."""
        return JoinJob(**_shared_attributes(self), segments=segments)


@dataclass(frozen=True, slots=True)
class WholeJob(Job):
    """Job to make a video as a whole, or to split it.

    Attributes:
        may_split: Whether it may be split into segments
        why_not_split: Why it was not split; None if that is not worth reporting
    """

    may_split: bool = True
    why_not_split: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentJob(Job):
    """Job to make one segment of a video, in `partial`."""

    segment: Segment

    @property
    def whole_partial(self) -> str:
        """Partial file of the whole video."""
        return self.partial.removesuffix(self.segment.suffix)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinJob(Job):
    """Job to join the segments of a video."""

    segments: tuple[MadeSegment, ...]


def _shared_attributes(job: Job, **other: Any) -> dict[str, Any]:
    """Return the attributes that all jobs of a unit share."""
    return {each.name: getattr(job, each.name) for each in fields(Job)} | other


def new_row(job: Job) -> ManifestRow:
    """Return a row with the request, without results."""
    unit = job.unit
    return ManifestRow(
        id=unit.id,
        file_name=job.file_name,
        source=unit.path,
        start_seconds=unit.cut.start_seconds,
        end_seconds=unit.cut.end_seconds,
        start_frame=unit.cut.start_frame,
        end_frame=unit.cut.end_frame,
        video_stream=unit.cut.video_stream,
        attempts=min(job.attempt, ATTEMPTS_MAX),
        source_size_bytes=unit.size_bytes,
        source_mtime_ns=unit.mtime_ns,
        settings_digest=job.settings.digest,
        engine=job.settings.output.engine,
        pixel_format=job.settings.output.pixel_format,
        **job.settings.output.row_values(),
        **({} if unit.selected is None else columns_of(unit.selected)),
    )


def columns_of(selected: Selected) -> dict[str, Any]:
    """Return the columns of a row that say of which frames it is a copy."""
    place, id_, start, end, sha256 = selected
    columns = {"selected_from": place, "selected_id": id_, "selected_sha256": sha256}
    return columns | {"selected_start_frame": start, "selected_end_frame": end}


def discard(job: Job) -> None:
    """Remove the files of a job, including segments that it should join."""
    copied = [job.copied_source] if job.unit.is_copied and not isinstance(job, SegmentJob) else []
    segments = [made.path for made in job.segments] if isinstance(job, JoinJob) else []
    for path in (job.partial, job.best, *copied, *segments):
        Path(path).unlink(missing_ok=True)


def fail(row: ManifestRow, error: Exception) -> None:
    """Write a failure to its row: stage, class and message; for a bug of vidprep also its place in the code."""
    if is_disk_full(error) and not isinstance(error, DiskFullError):
        error = DiskFullError(f"no room left on the device or under the file size limit for {row.file_name}")
    elif is_out_of_memory(error):
        error = ReadError("ran out of memory; give more by --max-memory, or lower --max-pixels", stage="memory")
    row.status = "failed"
    row.error = type(error).__name__
    if isinstance(error, VidprepError):
        row.stage, row.message = error.stage, error.message
    else:
        where = traceback.extract_tb(error.__traceback__)[-3:]
        trail = " < ".join(f"{Path(step.filename).name}:{step.lineno} {step.name}" for step in reversed(where))
        row.stage, row.message = "run", f"{error} ({trail})"


def why_not_joined(made: Sequence[MadeSegment]) -> str | None:
    """Return why these segments do not form the whole; None if they do."""
    first = made[0]
    for each in made:
        name = f"segment {each.segment.index + 1} of {len(made)}"
        facts = each.facts
        if each.damage:
            return f"{name} is damaged"
        if (
            facts.stamps_sorted
            or facts.stamps_joined
            or facts.stamps_guessed
            or facts.stamps_nudged
            or facts.stamps_crowded
        ):
            return f"{name} has timestamps that are missing, doubled or run backwards"
        if each.num_changes or each.output != first.output or each.picture != first.picture:
            return f"the picture changes in {name}"
        if each.source_state != first.source_state:
            return f"the source changed before {name}"
        due = each.segment.num_frames
        if due not in (None, each.measured.num_frames) or each.source_indexes[0] != each.segment.source_index:
            return f"{name} holds other frames than its packets say"
    return None
