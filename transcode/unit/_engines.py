"""The four ways to make a unit. Each writes the partial file of a job, verifies it, and returns an `Outcome`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from vidprep.formats.errors import FfmpegError, VerifyError
from vidprep.formats.manifest.remarks import Remark
from vidprep.transcode.media.audio import AudioTrack
from vidprep.transcode.media.bounds import check_claims
from vidprep.transcode.media.encode import encode_and_measure
from vidprep.transcode.media.ffmpeg import build_command, measure_file, run_ffmpeg, why_not_ffmpeg
from vidprep.transcode.media.ffmpeg_program import ffmpeg_version
from vidprep.transcode.media.frames import SourceFacts
from vidprep.transcode.media.stream import FrameStream, open_source, timing_of
from vidprep.transcode.media.verify import FileTimes, Measurements, check_file
from vidprep.transcode.settings.output import FrameOutput
from vidprep.transcode.unit._segments import facts_of, join
from vidprep.transcode.unit.job import Context, Job, JoinJob

if TYPE_CHECKING:
    from vidprep.transcode.media.jpeg_frames import StoredFrames

LOOKED_AT = 300
DOES_NOT_READ = re.compile(
    r"not on whitelist|Unknown codec tag|Decoder \(codec \w+\) not found|Error opening input|Invalid data found"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of an engine: a verified output.

    Attributes:
        measured: Measurements of the output
        times: Times of the frames in the file
        facts: Facts about the source
        source_indexes: Number of the source frame that each output frame shows
        source_pts: Start of those source frames, in ticks from the first frame displayed
        shows_through: Whether a pixel of the source was not opaque
        warnings: Remarks about the audio
    """

    measured: Measurements | StoredFrames
    times: FileTimes
    verified_in: str
    facts: SourceFacts
    source_indexes: list[int]
    source_pts: list[int]
    shows_through: bool
    warnings: tuple[Remark, ...] = ()
    damage: tuple[str, ...] = ()


Engine = Callable[[Job, FrameStream, Context], Outcome]


def engine_of(job: Job) -> Engine:
    if isinstance(job.settings.output, FrameOutput):
        return store_frame_by_frame
    if job.settings.output.engine == "ffmpeg":
        return encode_by_ffmpeg
    return join_segments if isinstance(job, JoinJob) else encode_in_process


def store_frame_by_frame(job: Job, stream: FrameStream, context: Context) -> Outcome:
    from vidprep.transcode.media.jpeg_frames import own_jpegs, store_frames

    own = own_jpegs(job.settings, stream, job.unit.path, is_series=job.unit.is_series)
    stored = store_frames(job.settings, Path(job.partial), stream, context.cores, own)
    times = FileTimes(stream.output.time_base, list(stored.pts))
    return _outcome(stream, stored, times, "same pass")


def encode_in_process(job: Job, stream: FrameStream, context: Context) -> Outcome:
    with closing(_audio(job, stream)) as audio:
        measured = encode_and_measure(job.settings, Path(job.partial), stream, audio, context.cores)
    made = _outcome(stream, measured, _read_back(job, stream, measured, context), "same pass")
    return replace(made, warnings=tuple(audio.warnings), damage=tuple(audio.damage))


def join_segments(job: Job, stream: FrameStream, context: Context) -> Outcome:
    """Join encoded segments. Only the first frame of the stream is decoded, which describes the pictures."""
    assert isinstance(job, JoinJob)
    segments, output = job.segments, stream.output
    with closing(_audio(job, stream)) as audio:
        facts = facts_of(segments, stream.info.time_base)
        end_pts = 0 if output.frame_rate else int(facts.duration)
        measured = join(job.settings, Path(job.partial), output, segments, end_pts, audio)
    return Outcome(
        measured,
        _read_back(job, stream, measured, context),
        "same pass",
        facts,
        source_indexes=[index for each in segments for index in each.source_indexes],
        source_pts=[pts for each in segments for pts in each.source_pts],
        shows_through=any(each.shows_through for each in segments),
        warnings=tuple(audio.warnings),
        damage=tuple(audio.damage),
    )


def encode_by_ffmpeg(job: Job, stream: FrameStream, context: Context) -> Outcome:
    """Encode by an ffmpeg command. Frames are decoded a second time here, to measure the result."""
    unit, settings = job.unit, job.settings
    with open_source(unit.path, settings, unit.cut) as again:
        check_claims(again, settings, stream.window, stream.clock, context.on_progress)
    if settings.count is not None:
        return _encode_counted(job, stream, context)
    try:
        return _encode_by_ffmpeg(job, stream, context, None)
    except VerifyError:
        if stream.clock is None or _why_not_by_ffmpeg(stream) is not None:
            raise
    with _open_again(job, context) as frames:  # it may have left out the last frame
        return _encode_counted(job, frames, context)


@contextmanager
def _open_again(job: Job, context: Context) -> Iterator[FrameStream]:
    unit, settings = job.unit, job.settings
    with open_source(unit.path, settings, unit.cut) as source:
        yield FrameStream(source, settings, timing_of(source, settings, unit.cut), on_progress=context.on_progress)


def _encode_counted(job: Job, stream: FrameStream, context: Context) -> Outcome:
    with _open_again(job, context) as frames:
        num_frames = sum(1 for _ in frames)
    return _encode_by_ffmpeg(job, stream, context, num_frames)


def _encode_by_ffmpeg(job: Job, stream: FrameStream, context: Context, num_frames: int | None) -> Outcome:
    settings, output, facts = job.settings, stream.output, stream.facts
    partial = Path(job.partial)
    command = build_command(job.ffmpeg, job.unit.path, partial, stream, settings, num_frames)
    try:
        run_ffmpeg(command, job.unit.path)
        measured = measure_file(settings, partial, stream, context.cores)
        times = _read_back(job, stream, measured, context)
        # Its fps filter may have picked other frames, at the right times.
        if stream.picture_filter.changed or (facts.stamps_sorted and output.frame_rate):
            raise VerifyError("the output may contain wrong frames")
    except (FfmpegError, VerifyError) as error:
        reason = _why_not_by_ffmpeg(stream)
        if reason is None and isinstance(error, FfmpegError) and DOES_NOT_READ.search(error.stderr_tail):
            reason = f"ffmpeg {ffmpeg_version(job.ffmpeg)} does not read this source, which --engine av does"
        if reason is None:
            raise
        raise VerifyError(f"{reason}; take --engine av ({error.message})") from error
    return _outcome(stream, measured, times, "second pass")


def _why_not_by_ffmpeg(stream: FrameStream) -> str | None:
    """Return why an ffmpeg command does not suit this source. If the command failed at once, part of the source is read
    for this.
    """
    looked = chain([None], islice(stream.filter(), LOOKED_AT))
    return next(filter(None, (why_not_ffmpeg(stream.facts, stream.picture_filter) for _ in looked)), None)


def _audio(job: Job, stream: FrameStream) -> AudioTrack:
    settings, window, base = job.settings, stream.window, stream.info.time_base
    seconds = None if window.end is None else (window.end - stream.opening) * base
    box = settings.video.encoder.container_name
    return AudioTrack(
        job.unit.path,
        settings.output.audio,
        box,
        origin=(stream.facts.origin_pts + stream.opening) * base,
        seconds=seconds,
        ends_with_pictures=window.end_frame is not None or settings.count is not None,
    )


def _read_back(job: Job, stream: FrameStream, measured: Measurements, context: Context) -> FileTimes:
    return check_file(
        Path(job.partial), measured, job.settings.video.encoder.codec, stream.output.time_base, context.cores()
    )


def _outcome(stream: FrameStream, measured: Measurements | StoredFrames, times: FileTimes, verified_in: str) -> Outcome:
    shows_through = stream.picture_filter.shows_through
    return Outcome(measured, times, verified_in, stream.facts, stream.source_indexes, stream.source_pts, shows_through)
