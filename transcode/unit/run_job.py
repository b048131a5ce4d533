"""The story of one unit, top to bottom: open, decode, cut, retime, scale, encode, measure, close, check, row.

`run_job` is the one place that catches broadly: whatever happens to a unit becomes its row. The output is left under
its partial name; whoever runs the job gives it its final one when the row is safe.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from vidprep.formats.errors import (
    DamagedError,
    FfmpegError,
    GateError,
    LimitError,
    PictureError,
    ReadError,
    VerifyError,
    VidprepError,
)
from vidprep.formats.files.local import cpu_seconds
from vidprep.formats.manifest.row import checked
from vidprep.formats.manifest.table import ManifestRow
from vidprep.formats.model import OutputFormat, VideoInfo
from vidprep.formats.video.entry import Entry
from vidprep.formats.video.source import Source
from vidprep.formats.video.ticks import file_time_base
from vidprep.transcode.media.audio_output import AudioTrack
from vidprep.transcode.media.bounds import check_claims
from vidprep.transcode.media.encode import encode_and_measure
from vidprep.transcode.media.ffmpeg import beyond_ffmpeg, build_command, measure_file, run_ffmpeg
from vidprep.transcode.media.painter import Painter
from vidprep.transcode.media.timeline import OutputFrame, SourceFacts, retimed, source_frames
from vidprep.transcode.media.verify import FileTimes, Measured, check_file
from vidprep.transcode.media.versions import encoder_version
from vidprep.transcode.settings.options import Target
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.unit.job import Job, Made, MadePiece, Piece, discard, fail, new_row
from vidprep.transcode.unit.join import join
from vidprep.transcode.unit.row import describe_frames, describe_header, describe_output, describe_picture, remarks
from vidprep.transcode.unit.segments import facts_of, pieces_of
from vidprep.transcode.unit.target_search import Search

if TYPE_CHECKING:
    from vidprep.transcode.media.jpeg_frames import StoredFrames

MAX_NOMINAL_RATE = Fraction(240)
HALF = Fraction(1, 2)
LOOKED_AT = 300


def run_job(job: Job, worked: Callable[[], None] = lambda: None) -> Made:
    """Make one output and say what it is, or a piece of it, or say which pieces it has. Never raises: a failure is a row with
    status "failed" and nothing on disk.

    worked: called when the source is open, and for each frame that is decoded or made from then on.
    """
    row = new_row(job)
    started, cpu_started = time.perf_counter(), cpu_seconds()
    try:
        if job.piece is not None:
            return _make_piece(job, job.piece, worked)
        if job.settings.split_seconds is not None and not job.pieces and job.not_split is None:
            found = _pieces(job, worked)
            if isinstance(found, str):
                job = replace(job, not_split=found)
            elif found:
                return found
        _transcode(job, row, worked)
        if job.settings.target is not None:
            row = _until_target(job, row, job.settings.target, worked)
        _check_floor(row, job.settings)
        row.status = "ok"
    except Exception as error:  # noqa: BLE001 (the one place: a failed unit becomes a row and the run goes on)
        discard(job)
        fail(row, error)
    row.encode_seconds = time.perf_counter() - started + sum(made.seconds for made in job.pieces)
    row.cpu_seconds = cpu_seconds() - cpu_started + sum(made.cpu_seconds for made in job.pieces)
    fitting = checked(row)
    if fitting is not row:
        discard(job)
    return fitting


def _transcode(job: Job, row: ManifestRow, worked: Callable[[], None]) -> None:
    unit, settings = job.unit, job.settings
    before = row.source_size_bytes, row.source_mtime_ns = _state(unit.path)
    partial = Path(job.partial)
    facts = SourceFacts()

    with Source(unit.path, max_pixels=settings.limits.max_pixels) as source:
        info = source.info
        worked()
        describe_header(row, info)
        start, end = _cut(unit)
        painter, output, timed = output_frames(source, unit, settings, facts, worked=worked)
        describe_picture(row, painter, output, source.coded_size)
        row.warnings.extend(painter.picture.said)

        source_indexes: list[int] = [index for made in job.pieces for index in made.source_indexes]
        lost_sound: list[str] = []
        row.encoder_version = encoder_version(settings, job.ffmpeg)
        measured: Measured | StoredFrames
        if settings.frames is not None:
            # Late, as most children never need what it loads.
            from vidprep.transcode.media.jpeg_frames import store_frames

            measured = store_frames(settings, partial, output, painter, timed, source_indexes)
            times = FileTimes(output.time_base, list(measured.pts))
            row.verified_in = "same pass"
        elif settings.engine == "ffmpeg":
            check_claims(unit.path, settings, start, end, worked)
            command = build_command(job.ffmpeg, unit.path, partial, painter.picture, output, info, settings, start, end)
            try:
                run_ffmpeg(command, unit.path)
                measured = measure_file(settings, partial, output, painter, timed, source_indexes)
                times = check_file(partial, measured, settings.encoder.codec, output.time_base)
                # Its fps filter may have picked other frames, at the right times.
                if painter.is_reshaped or (facts.stamps_sorted and output.frame_rate):
                    raise VerifyError("the pictures may be others than those that were asked")
            except (FfmpegError, VerifyError) as error:
                looked = chain([None], islice(timed, LOOKED_AT))  # an ffmpeg that failed at once left the source unread
                reason = next(filter(None, (beyond_ffmpeg(facts, painter) for _ in looked)), None)
                if reason is None and output.frame_rate and facts.duration * info.time_base * output.frame_rate < HALF:
                    reason = (
                        f"it is shown for less than half a frame at {output.frame_rate}/s, of which ffmpeg makes none"
                    )
                if reason is None:
                    raise
                raise VerifyError(f"{reason}; take --engine av ({error.message})") from error
            row.verified_in = "second pass"
        else:
            opening = facts.origin_pts * info.time_base
            seconds = None if end is None else end - facts.first_pts * info.time_base
            box = settings.encoder.container_name
            with closing(AudioTrack(unit.path, settings.audio, box, origin=opening, seconds=seconds)) as sound:
                if job.pieces:
                    facts = facts_of(job.pieces, info.time_base)
                    painter.shows_through = any(made.shows_through for made in job.pieces)
                    last = 0 if output.frame_rate else facts.duration
                    measured = join(settings, partial, output, job.pieces, last, sound)
                else:
                    measured = encode_and_measure(settings, partial, output, painter, timed, source_indexes, sound)
            times = check_file(partial, measured, settings.encoder.codec, output.time_base)
            row.warnings.extend(sound.warnings)
            lost_sound = sound.damage
            row.verified_in = "same pass"
        describe_frames(row, facts, source_indexes, info, output)
        row.warnings.extend(remarks(facts, painter, info.time_base))
        split = settings.split_seconds
        if job.not_split is not None and (split is None or facts.duration * info.time_base > split):
            row.warnings.append(f"not split: {job.not_split}")
        damage = ([] if job.pieces else source.damage(read_to_end=facts.read_to_end)) + lost_sound
    if unit.end_seconds is not None and facts.read_to_end:
        shown = float((facts.first_pts + facts.duration) * info.time_base)
        a_frame = float(min(facts.steps) * info.time_base)  # containers round their ends, and sound outlasts pictures
        if unit.end_seconds - shown >= max(0.001, a_frame):
            row.warnings.append(f"the cut asks for {unit.end_seconds:g} s; the source ends at {shown:.3f} s")
    if damage:
        row.warnings.append("damaged: " + "; ".join(damage))
        if settings.on_damage == "fail":
            raise DamagedError(row.warnings.pop(), path=unit.path)
    begun = job.pieces[0].source_state if job.pieces else before
    if not begun == before == _state(unit.path):
        raise ReadError("changed while it was being read; run again when it is complete", path=unit.path)

    describe_output(row, measured, times, output, partial)
    is_whole_video = settings.frames is None and unit.start_seconds is None and unit.end_seconds is None
    if is_whole_video and (row.size_bytes or 0) > row.source_size_bytes:
        row.warnings.append(f"larger than its source: {row.size_bytes} bytes from {row.source_size_bytes}")


def _pieces(job: Job, worked: Callable[[], None]) -> tuple[Piece, ...] | str:
    """Or why it is not split. None of what is not split, and of what cannot be opened: making it will tell why."""
    try:
        with Source(job.unit.path, max_pixels=job.settings.limits.max_pixels) as source:
            worked()
            return pieces_of(source, job.settings, *_cut(job.unit))
    except VidprepError:
        return ()


def _make_piece(job: Job, piece: Piece, worked: Callable[[], None]) -> MadePiece:
    """Encode a piece and prove it, as the whole would be, but for its file: that is read to join it, and what is joined is
    held against what was measured here. Raises what making the whole would.
    """
    unit = job.unit
    settings = replace(job.settings, encoder=replace(job.settings.encoder, container="mp4"), audio="drop")
    before = _state(unit.path)
    started, cpu_started = time.perf_counter(), cpu_seconds()
    facts = SourceFacts()
    indexes: list[int] = []
    with Source(unit.path, max_pixels=settings.limits.max_pixels) as source:
        worked()
        painter, output, timed = output_frames(source, unit, settings, facts, piece, worked=worked)
        if facts.first_pts * source.info.time_base != piece.start_seconds:
            raise VerifyError(f"piece {piece.index + 1} begins at another frame than its packets told")
        silence = AudioTrack(unit.path, "drop", "mp4", origin=Fraction(0))
        measured = encode_and_measure(settings, Path(job.partial), output, painter, piece.own(timed), indexes, silence)
        damage = source.damage(read_to_end=False)
    return MadePiece(
        piece=piece, path=job.partial, measured=measured, source_indexes=indexes, source_state=before, facts=facts,
        output=output, picture=painter.picture, num_changes=painter.num_changes, shows_through=painter.shows_through,
        damage=damage, seconds=time.perf_counter() - started, cpu_seconds=cpu_seconds() - cpu_started,
    )  # fmt: skip


def _until_target(job: Job, row: ManifestRow, target: Target, worked: Callable[[], None]) -> ManifestRow:
    """Make the output again, finer, until its 1st percentile reaches the target; coarser too where each video has its own.

    Returns the row of the one that stays, which stands under the partial name. Raises GateError when none reaches it.
    """
    search = Search(job.settings.quality_scale, target.psnr_db)
    best_row = row
    tried: list[float] = []
    reached: list[float] = []
    value = job.settings.quality_value
    while True:
        assert row.psnr_y_p1_db is not None
        tried.append(value)
        reached.append(row.psnr_y_p1_db)
        search.tell(search.scale.step_of(value), row.psnr_y_p1_db)
        step = search.next(any_that_reaches=not target.per_video)
        if step is None:
            break
        if search.scale.step_of(value) == search.best:
            best_row = row
            os.replace(job.partial, job.best)  # noqa: PTH105
        value = search.scale.values[step]
        again = replace(job, settings=job.settings.at(value))
        row = new_row(again)
        row.settings_digest = job.settings.digest
        _transcode(again, row, worked)
    if search.best is None:
        raise GateError(
            f"the 1st percentile of PSNR-Y is {max(reached):.2f} dB at best, at {search.scale.option} "
            f"{tried[reached.index(max(reached))]:g}; --target-psnr asks for {target.psnr_db:g}",
            path=job.unit.path,
        )
    if search.scale.step_of(value) != search.best:
        row = best_row
        os.replace(job.best, job.partial)  # noqa: PTH105
    Path(job.best).unlink(missing_ok=True)
    row.target_psnr_y_p1_db, row.target_tried, row.target_reached_db = target.psnr_db, tried, reached
    return row


def _check_floor(row: ManifestRow, settings: RunSettings) -> None:
    floor = settings.gate.min_psnr_db
    if floor is not None and row.psnr_y_db is not None and row.psnr_y_db < floor:
        scale = settings.quality_scale
        change = "lower" if scale.values[0] < scale.values[-1] else "raise"
        raise GateError(
            f"PSNR-Y {row.psnr_y_db:.2f} dB is below --min-psnr {floor:g}; {change} {scale.option}",
            path=row.source,
        )


def output_frames(
    source: Source, unit: Unit, settings: RunSettings, facts: SourceFacts, piece: Piece | None = None, *,
    entry: Entry | None = None, worked: Callable[[], None] = lambda: None,
) -> tuple[Painter, OutputFormat, Iterator[OutputFrame]]:  # fmt: skip
    """What makes the pictures of a unit, what its output is, and its frames before they are painted, as they come; those of
    a piece and all that follow. entry: where decoding begins, when that is known. worked: called for each frame that was
    decoded, and for each that is given out.
    """
    info = source.info
    start, end = _cut(unit)
    decoded = source_frames(
        source, facts, start=piece.start_seconds if piece else start, end=end, max_frames=settings.limits.max_frames,
        entry=piece.entry(source) if piece else entry, worked=worked,
    )  # fmt: skip
    first = next(decoded)
    facts.first_pts = first.pts
    painter = Painter(first.frame, info, settings, settings.pixel_format)
    opening, number = (piece.opening_ticks, piece.first) if piece else (None, 0)
    output = _output_format(painter, info, settings)
    file_base = None
    if settings.frames is None:
        is_constant = output.frame_rate is not None
        file_base = file_time_base(settings.encoder.container_name, output.time_base, is_constant=is_constant)
    timed = retimed(
        chain([first], decoded), settings.retime.frame_rate, info.time_base, facts, opening, number, file_base,
        max_frames=settings.limits.max_frames,
    )  # fmt: skip
    return painter, output, _counted(timed, worked)


def _counted(frames: Iterator[OutputFrame], worked: Callable[[], None]) -> Iterator[OutputFrame]:
    for frame in frames:
        worked()
        yield frame


def _state(path: str) -> tuple[int, int]:
    """Size and time of change of a source."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError as error:
        raise ReadError(f"cannot be read: {error.strerror}", path=path) from error
    return found.st_size, found.st_mtime_ns


def _cut(unit: Unit) -> tuple[Fraction | None, Fraction | None]:
    return exact_seconds(unit.start_seconds), exact_seconds(unit.end_seconds)


def exact_seconds(seconds: float | None) -> Fraction | None:
    """The decimal that was written: 0.04 means 1/25, not the float below it."""
    return None if seconds is None else Fraction(repr(float(seconds)))


def _output_format(painter: Painter, info: VideoInfo, settings: RunSettings) -> OutputFormat:
    rate = settings.retime.frame_rate
    profile = settings.encoder.profile
    size = painter.picture.size
    if settings.frames is None and (size.width < profile.smallest[0] or size.height < profile.smallest[1]):
        low = "x".join(str(n) for n in profile.smallest)
        raise PictureError(
            f"{size} is below the smallest picture of {profile.name} ({low}); allow --upscale or take another --codec"
        )
    if size.width * size.height > settings.limits.max_pixels:
        raise LimitError(f"the output would be {size}, over --max-pixels {settings.limits.max_pixels}")
    nominal = rate or info.frame_rate or Fraction(25)
    return OutputFormat(
        size=size,
        pixel_format=painter.picture.pixel_format,
        colour=painter.picture.colour,
        time_base=1 / rate if rate else info.time_base,
        frame_rate=rate,
        nominal_rate=min(max(nominal, Fraction(1)), MAX_NOMINAL_RATE),
        light=painter.picture.light,
    )
