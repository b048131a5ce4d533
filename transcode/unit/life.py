"""The life of one unit, top to bottom: open, decode, cut, retime, scale, encode, measure, close, check, row.

`run_job` is the one place that catches all exceptions: every failure of a unit becomes its row. The output keeps its
partial name; the pool's owner renames it after the row is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from vidprep.formats.errors import DamagedError, GateError, PictureError, ReadError, VerifyError, VidprepError
from vidprep.formats.manifest.remarks import Remark
from vidprep.formats.manifest.row import ManifestRow, check_row
from vidprep.formats.model import OutputFormat, SourceState, VideoInfo
from vidprep.formats.moments import MILLISECOND
from vidprep.formats.storage.local import cpu_seconds, digest_samples
from vidprep.formats.video.source import RAW_STREAMS, Source
from vidprep.transcode.media.audio import AudioTrack
from vidprep.transcode.media.encode import encode_and_measure
from vidprep.transcode.media.ffmpeg_program import encoder_version
from vidprep.transcode.media.metrics import not_scored
from vidprep.transcode.media.stream import FrameStream, choose_sampled, open_source, timing_of
from vidprep.transcode.settings.options import Target
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.unit._copies import copy_frames
from vidprep.transcode.unit._engines import Outcome, engine_of
from vidprep.transcode.unit._row import describe_frames, describe_header, describe_output, describe_picture, remarks
from vidprep.transcode.unit._segments import segments_of
from vidprep.transcode.unit.job import (
    NO_CALLBACKS,
    Context,
    Job,
    JobResult,
    JoinJob,
    MadeSegment,
    SegmentJob,
    Split,
    WholeJob,
    discard,
    fail,
    new_row,
)
from vidprep.transcode.unit.target_search import CLOSE_DB, CLOSE_ENOUGH_DB, Search, score_of_target

# Coded audio begins with encoder delay: 21 to 46 ms for AAC.
PRIMING_SECONDS = Fraction(5, 100)


def run_job(job: Job, context: Context = NO_CALLBACKS) -> JobResult:
    """Do one job: make an output or a segment, or return the segments to make.

    Never raises: a failure is a row with status "failed", and its files are removed.
    """
    row = new_row(job)
    segments = job.segments if isinstance(job, JoinJob) else ()
    started, cpu_started = time.perf_counter(), cpu_seconds()
    try:
        if isinstance(job, SegmentJob):
            return _make_segment(job, context)
        if job.unit.selected is not None:
            row = copy_frames(job, job.unit.selected, context)
        elif (split := _make(job, row, context)) is not None:
            if split.segments:
                return split
            assert isinstance(job, WholeJob)
            job = job.unsplit(split.why_not)
            _make(job, row, context)
        if job.settings.target is not None and job.unit.selected is None:
            row = _until_target(job, row, job.settings.target, context)
        if job.unit.selected is None:
            _check_floor(row, job.settings)
        row.status = "ok"
    except Exception as error:  # noqa: BLE001 (the one place: a failed unit becomes a row and the run goes on)
        discard(job)
        fail(row, error)
    row.encode_seconds = time.perf_counter() - started + sum(made.seconds for made in segments)
    row.cpu_seconds = cpu_seconds() - cpu_started + sum(made.cpu_seconds for made in segments)
    fitting = check_row(row)
    if fitting is not row:
        discard(job)
    return fitting


def _make(job: Job, row: ManifestRow, context: Context) -> Split | None:
    """Open, plan the picture, encode, verify, and fill the row. The output keeps its partial name.

    Return the segments instead, without making anything, for a video that is longer than a segment; otherwise None.
    """
    unit, settings = job.unit, job.settings.for_video(job.unit.id)
    before = row.source_size_bytes, row.source_mtime_ns = _state_of(unit.path)
    begun = job.segments[0].source_state if isinstance(job, JoinJob) else before
    row.source_digest = digest_samples(Path(unit.path))
    with open_source(unit.path, settings, unit.cut) as source:
        context.on_progress()
        if (seconds := _segment_seconds(job, source.info)) is not None:
            return _split(job, source, seconds)
        is_chosen = (unit.cut.video_stream, settings.retime.video_stream) != (None, None)
        describe_header(row, source.info, is_chosen=is_chosen)
        only = choose_sampled(source, settings, unit.cut, context.on_progress)
        timing = timing_of(source, settings, unit.cut)
        stream = FrameStream(source, settings, timing, only=only, on_progress=context.on_progress)
        describe_picture(row, stream, source.coded_size)
        row.warn(*_remark_unscored(settings, stream.output))
        row.encoder_version = encoder_version(settings, job.ffmpeg)
        made = engine_of(job)(job, stream, context)
        to_end = made.facts.read_to_end
        is_read = not isinstance(job, JoinJob)  # for a joined video its segments tell
        damage = source.damage(read_to_end=to_end) if is_read else []
        contradictions = source.contradictions(read_to_end=to_end) if is_read else []
        missing = source.missing_frames(read_to_end=to_end) if is_read else None
        has_sound = source.has_sound
    describe_frames(row, made, stream)
    row.warn(
        *made.warnings,
        *remarks(made, stream),
        *_not_split(job, made, stream),
        *_cut_short(made, stream),
        *_picture_late(settings, stream),
    )
    if contradictions:
        row.warn(
            Remark(
                "inconsistent_headers", "headers contradict each other, no loss is known: " + "; ".join(contradictions)
            )
        )
    if missing:
        row.warn(Remark("frame_missing", missing))
    if damage := [*damage, *made.damage]:
        remark = Remark("damaged", "damaged: " + "; ".join(damage))
        if settings.on_damage == "fail":
            raise DamagedError(str(remark), path=unit.path)
        row.warn(remark)
    if not begun == before == _state_of(unit.path):
        raise ReadError("changed while it was being read; run again when it is complete", path=unit.path)
    describe_output(row, made, stream.output, Path(job.partial), in_buckets=settings.scale.buckets is not None)
    row.settings_digest = job.settings.digest_of({*_find_unused(job, row, stream, has_sound=has_sound)})
    if settings.output.replaces_source and not unit.cut and (row.size_bytes or 0) > row.source_size_bytes:
        row.warn(
            Remark("larger_than_source", f"larger than its source: {row.size_bytes} bytes from {row.source_size_bytes}")
        )
    return None


def _find_unused(job: Job, row: ManifestRow, stream: FrameStream, *, has_sound: bool) -> Iterator[str]:
    """Yield the settings that this output does not depend on; see RunSettings.digest_of."""
    cut, info = job.unit.cut, stream.info
    if info.format_name not in RAW_STREAMS and not job.unit.is_series:
        yield "source_fps"
    if cut.video_stream is not None or info.num_video_streams == 1:
        yield "video_stream"
    if (cut.start_seconds, cut.end_seconds) == (None, None):
        yield "cut_origin"
    if not {"tone_mapped", "hdr_kept", "picture_changed"} & {*row.warning_codes}:
        yield "hdr"
    if not has_sound:
        yield "audio"
    if "damaged" not in row.warning_codes:
        yield "on_damage"


def _segment_seconds(job: Job, info: VideoInfo) -> float | None:
    """Return the length of segments, from the duration that the source claims; None if the job is not split."""
    if not isinstance(job, WholeJob) or not job.may_split:
        return None
    cut, rate = job.unit.cut, info.frame_rate
    length = info.duration_seconds if cut.end_seconds is None else cut.end_seconds
    if cut.end_frame is not None and rate:
        length = float((cut.end_frame - (cut.start_frame or 0)) / rate)
    return job.settings.segment_seconds(None if length is None else length - (cut.start_seconds or 0))


def _split(job: Job, source: Source, seconds: float) -> Split:
    """Return the segments of about this length. Reads the source to its end."""
    try:
        return segments_of(source, job.settings, job.unit.cut, seconds)
    except VidprepError:
        return Split()  # making the whole will tell


def _not_split(job: Job, made: Outcome, stream: FrameStream) -> Iterator[Remark]:
    segment = job.settings.output.segment
    why = job.why_not_split if isinstance(job, WholeJob) else None
    if why is not None and not isinstance(segment, str) and made.facts.duration * stream.info.time_base > segment:
        yield Remark("not_split", f"not split: {why}")


def _cut_short(made: Outcome, stream: FrameStream) -> Iterator[Remark]:
    """Yield a remark if a cut ends after the source, by at least a frame: containers round their ends, and audio may
    outlast the pictures.
    """
    facts, base, window = made.facts, stream.info.time_base, stream.window
    if not facts.read_to_end or facts.is_trimmed:
        return
    if window.end_frame is not None and (count := facts.num_frames + (window.start_frame or 0)) < window.end_frame:
        yield Remark("cut_short", f"the cut asks for frames up to {window.end_frame}; the source has {count}")
    if window.end is not None:
        wanted, shown = window.end * base, facts.end_tick * base
        if wanted - shown >= max(MILLISECOND, min(facts.steps) * base):
            yield Remark("cut_short", f"the cut asks for {float(wanted):g} s; the source ends at {float(shown):.3f} s")


def _picture_late(settings: RunSettings, stream: FrameStream) -> Iterator[Remark]:
    """Yield a remark if the times of a cut do not count from where players count."""
    info, begin = stream.info, stream.info.start_seconds
    if (stream.window.start is None and stream.window.end is None) or begin is None:
        return
    late = stream.facts.origin_pts * info.time_base - begin
    if settings.retime.cut_origin == "picture" and late > max(
        PRIMING_SECONDS, stream.window.interval * info.time_base / 2
    ):
        yield Remark(
            "picture_late",
            f"the picture begins {float(late):.3f} s after the container, and the cut counts from the picture; --cut-origin container "
            "counts from the container, as players do",
        )


def _make_segment(job: SegmentJob, context: Context) -> MadeSegment:
    """Encode and verify a segment like a whole video, except for its file, which is checked after joining. Raises like a
    whole video.
    """
    unit, segment = job.unit, job.segment
    output = replace(job.settings.video, encoder=replace(job.settings.video.encoder, container="mp4"), audio="drop")
    settings = replace(job.settings.for_video(unit.id), output=output)
    before = _state_of(unit.path)
    started, cpu_started = time.perf_counter(), cpu_seconds()
    with open_source(unit.path, settings, unit.cut) as source:
        context.on_progress()
        stream = FrameStream(
            source,
            settings,
            segment.timing,
            entry=segment.entry(source),
            opening=segment.opening,
            first=segment.first,
            first_pts=segment.first_pts,
            num_frames=segment.num_frames,
            on_progress=context.on_progress,
        )
        if stream.first_tick != segment.tick:
            raise VerifyError(f"segment {segment.index + 1} begins at another frame than its packets say")
        silence = AudioTrack(unit.path, "drop", "mp4", origin=Fraction(0))
        measured = encode_and_measure(settings, Path(job.partial), stream, silence, context.cores)
        damage = source.damage(read_to_end=False)
    picture_filter = stream.picture_filter
    return MadeSegment(
        segment=segment,
        path=job.partial,
        measured=measured,
        source_indexes=stream.source_indexes,
        source_pts=stream.source_pts,
        source_state=before,
        facts=stream.facts,
        output=stream.output,
        picture=picture_filter.picture,
        num_changes=picture_filter.num_changes,
        shows_through=picture_filter.shows_through,
        damage=damage,
        seconds=time.perf_counter() - started,
        cpu_seconds=cpu_seconds() - cpu_started,
    )


def _until_target(job: Job, row: ManifestRow, target: Target, context: Context) -> ManifestRow:
    """Make the output again, finer, until its 1st percentile reaches the target; coarser too where each video has its own
    value, or where the finer one is far above the target.

    Returns the row of the one that stays, which stands under the partial name. Raises GateError when none reaches it.
    """
    search = Search(job.settings.output.quality_scale, target)
    best_row = row
    tried: list[float] = []
    reached: list[float] = []
    value = job.settings.output.quality_value
    while True:
        score = score_of_target(row, target)
        assert score is not None
        tried.append(value)
        reached.append(score)
        search.record(search.scale.step_of(value), score)
        if not target.per_video and reached[0] >= target.floor:  # the value of all videos is enough
            break
        step = search.next(CLOSE_DB if target.per_video else CLOSE_ENOUGH_DB * target.per_db)
        if step is None:
            break
        if search.scale.step_of(value) == search.best:
            best_row = row
            os.replace(job.partial, job.best)  # noqa: PTH105
        value = search.scale.values[step]
        again = replace(job, settings=job.settings.replace_quality(value))
        row = new_row(again)
        _make(again, row, context)
        row.settings_digest = best_row.settings_digest
    if search.best is None:
        raise GateError(
            f"the 1st percentile of {'PSNR-Y' if target.vmaf is None else 'VMAF'} is {max(reached):.2f} at best, at "
            f"{search.scale.option} {tried[reached.index(max(reached))]:g}; {target.flag} asks for {target.floor:g}",
            path=job.unit.path,
        )
    if search.scale.step_of(value) != search.best:
        row = best_row
        os.replace(job.best, job.partial)  # noqa: PTH105
    Path(job.best).unlink(missing_ok=True)
    row.target_tried = tried
    if target.vmaf is None:
        row.target_psnr_y_p1_db, row.target_reached_db = target.psnr_db, reached
    else:
        row.target_vmaf_p1, row.target_reached_vmaf = target.vmaf, reached
    return row


def _remark_unscored(settings: RunSettings, output: OutputFormat) -> list[Remark]:
    """Return a remark for each score that such pictures do not get. Raises PictureError if a target is set for one."""
    reasons = not_scored(output.size, output.pixel_format, settings.gate)
    if settings.target is not None and settings.target.vmaf is not None and "vmaf" in reasons:
        raise PictureError(f"{reasons['vmaf']}; --target-psnr takes them")
    return [Remark("not_scored", why) for why in reasons.values()]


def _check_floor(row: ManifestRow, settings: RunSettings) -> None:
    floor = settings.gate.min_psnr_db
    if floor is not None and row.psnr_y_db is not None and row.psnr_y_db < floor:
        scale = settings.output.quality_scale
        change = f"{'lower' if scale.values[0] < scale.values[-1] else 'raise'} {scale.option}"
        if settings.target is not None:
            change = f"raise {settings.target.flag}"
        raise GateError(f"PSNR-Y {row.psnr_y_db:.2f} dB is below --min-psnr {floor:g}; {change}", path=row.source)


def _state_of(path: str) -> SourceState:
    """Return the state of a source. Raises ReadError."""
    try:
        return SourceState.build(os.stat(path))  # noqa: PTH116
    except OSError as error:
        raise ReadError(f"cannot be read: {error.strerror}", path=path) from error
