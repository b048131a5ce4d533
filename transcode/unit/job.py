"""What is asked for one video, and what comes of it: a row from the beginning, which a failure ends too; or segments.

Nothing here needs a decoder: the process that hands out work and gathers what comes of it starts without one.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vidprep.formats.errors import DiskFullError, ReadError, VidprepError
from vidprep.formats.manifest import ManifestRow
from vidprep.formats.model import SourceState
from vidprep.formats.storage import is_disk_full, is_out_of_memory, is_url
from vidprep.transcode.settings import RunSettings
from vidprep.transcode.sources import Unit

if TYPE_CHECKING:
    from vidprep.formats.model import OutputFormat
    from vidprep.formats.video import SeekPoint, Source
    from vidprep.transcode.media import Measured, Picture, SourceFacts, Timing


ATTEMPTS_MAX = 2**15 - 1  # what its column holds


@dataclass(frozen=True, slots=True)
class Context:
    """What a job tells whoever does it, and asks. worked: to be called when the source is open, and for each frame that is decoded
    or made from then on. cores: how many may work on it now; more than one when there are fewer videos than cores.
    """

    worked: Callable[[], None] = lambda: None
    cores: Callable[[], int] = lambda: 1


UNTOLD = Context()


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of an output that is encoded by itself. Ticks of the source count from the first frame shown.

    Attributes:
        index: Number of the segment, from 0.
        first: Number of its first output frame in the whole.
        first_pts: Tick of that frame in the whole.
        num_frames: Number of its output frames; None to the end.
        source_index: Number of the source frame that it shows first.
        timing: Its frames.
        tick: Of the source frame that it shows first.
        keyframe: Tick of a keyframe of the source before that; None where decoding begins at the beginning.
        origin_pts: PTS of the first frame shown.
        opening_index: Number of the source frame that the whole shows first.
        opening: Tick of the source that is time 0 of the whole.
    """

    index: int
    first: int
    first_pts: int
    num_frames: int | None
    source_index: int
    timing: Timing
    tick: int
    keyframe: int | None
    origin_pts: int
    opening_index: int
    opening: Fraction

    @property
    def suffix(self) -> str:
        """Of the file that it is made as, behind the name of the whole."""
        return f".{self.index:05d}.mp4"

    def entry(self, source: Source) -> SeekPoint | None:
        """Where decoding begins; None where the start says it. Raises ReadError."""
        from vidprep.formats.video import jump_to

        if self.keyframe is None:
            return None
        return jump_to(source, self.keyframe, self.origin_pts, self.source_index, self.tick)


@dataclass(frozen=True, slots=True)
class MadeSegment:
    """A segment that was encoded and proven. path: where it stands. source_state: of the source when it was read."""

    segment: Segment
    path: str
    measured: Measured
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
    """Why a job was not done, though nothing says that its source is to blame: it has no row, and the next run does it again.

    fault: whose it is; "source" is a guess of one host that sees another source than was planned, which the machine that
    started the run must judge. error: class name. stops: whether other jobs would end the same way. row: of a job whose source it is.
    deaths: how many workers died that had it, perhaps of another job.
    """

    fault: Literal["source", "destination", "worker", "cluster"]
    error: str
    message: str
    stops: bool = True
    row: ManifestRow | None = None
    deaths: int = 0


@dataclass(frozen=True, slots=True)
class Split:
    """The segments that a video is to be made in; none where it is made whole. why_not: for what reason, where that is worth a word."""

    segments: tuple[Segment, ...] = ()
    why_not: str | None = None


# The row of a video, a segment of one, the segments that it is to be made in; or why it is none of these.
JobResult = ManifestRow | MadeSegment | Split | JobNotDone


@dataclass(frozen=True, slots=True)
class Upload:
    """url: that an output goes to, while the lease that counts in the folder `lease` of `destination` has this token."""

    url: str
    destination: str
    lease: str
    token: str


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done for one unit: a WholeJob, a SegmentJob or a JoinJob.

    Attributes:
        unit: The source, or a cut of it.
        settings: What is to be made.
        file_name: Name of the output, relative to the destination.
        partial: Absolute path of the file to write.
        attempt: How many times the unit has been tried, with this one.
        ffmpeg: The program of the second engine.
        upload: Where a proven output goes; None for a destination in a folder.
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
        """Where an output waits that reaches a target, while a coarser one is tried."""
        return f"{self.partial}.best"

    @property
    def whole_partial(self) -> str:
        """The partial file of the whole video."""
        return self.partial

    @property
    def copied_source(self) -> str:
        """Where a source behind a URL is copied to. All segments have one copy."""
        return f"{self.whole_partial}.source{Path(self.unit.path).suffix}"

    def for_segment(self, segment: Segment) -> SegmentJob:
        """Return the job that makes a segment of this video."""
        return SegmentJob(**_shared(self, partial=f"{self.partial}{segment.suffix}"), segment=segment)

    def unsplit(self, why_not: str | None) -> WholeJob:
        """Return the job that makes this video without segments."""
        return WholeJob(**_shared(self, partial=self.whole_partial), may_split=False, why_not_split=why_not)

    def to_join(self, segments: tuple[MadeSegment, ...]) -> JoinJob:
        """Return the job that joins the segments of this video."""
        return JoinJob(**_shared(self), segments=segments)


@dataclass(frozen=True, slots=True)
class WholeJob(Job):
    """Make a video whole. may_split: it may be split into segments. why_not_split: why it was not, where that is worth a word."""

    may_split: bool = True
    why_not_split: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentJob(Job):
    """Make one segment of a video, into `partial`."""

    segment: Segment

    @property
    def whole_partial(self) -> str:
        """The partial file of the whole video."""
        return self.partial.removesuffix(self.segment.suffix)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinJob(Job):
    """Join the segments of a video."""

    segments: tuple[MadeSegment, ...]


def _shared(job: Job, **other: Any) -> dict[str, Any]:
    """What all jobs of a unit share."""
    return {each.name: getattr(job, each.name) for each in fields(Job)} | other


def new_row(job: Job) -> ManifestRow:
    """Return a row that knows what was asked, and nothing yet of what came out."""
    unit = job.unit
    return ManifestRow(
        id=unit.id,
        file_name=job.file_name,
        source=unit.path,
        start_seconds=unit.cut.start_seconds,
        end_seconds=unit.cut.end_seconds,
        start_frame=unit.cut.start_frame,
        end_frame=unit.cut.end_frame,
        attempts=min(job.attempt, ATTEMPTS_MAX),
        source_size_bytes=unit.size_bytes,
        source_mtime_ns=unit.mtime_ns,
        settings_digest=job.settings.digest,
        engine=job.settings.output.engine,
        pixel_format=job.settings.output.pixel_format,
        **job.settings.output.row_values(),
    )


def discard(job: Job) -> None:
    """Remove what a job has written so far, and segments that it was to join."""
    copied = [job.copied_source] if is_url(job.unit.path) and not isinstance(job, SegmentJob) else []
    segments = [made.path for made in job.segments] if isinstance(job, JoinJob) else []
    for path in (job.partial, job.best, *copied, *segments):
        Path(path).unlink(missing_ok=True)


def fail(row: ManifestRow, error: Exception) -> None:
    """Write a failure into its row: stage, class and message; a bug of ours with the place where it happened."""
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
    """Why these segments are not what the whole would be, or None."""
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
