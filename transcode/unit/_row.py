"""Fill the row of a unit from its header, its pictures and frames, and its output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

from vidprep.formats.errors import count_of
from vidprep.formats.manifest.remarks import Remark
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.model import FrameSize, OutputFormat, VideoInfo
from vidprep.formats.moments import is_variable
from vidprep.formats.storage.local import sha256_of
from vidprep.transcode.media.frames import SourceFacts
from vidprep.transcode.media.stream import FrameStream
from vidprep.transcode.media.verify import Measurements
from vidprep.transcode.unit._engines import Outcome

NUMBERED = {"avi"}  # containers in which a packet's number is its time: B-frames are always out of order
GAP_STEPS = Fraction(5, 2)
MIN_STEP_SECONDS = Fraction(1, 1000)
SAME_RATE = Fraction(2, 100)


def describe_header(row: ManifestRow, info: VideoInfo, *, is_chosen: bool) -> None:
    """Fill the columns that the header tells; `is_chosen`: a video stream was asked for."""
    row.source_codec = info.codec
    row.source_width, row.source_height = info.width, info.height
    if info.num_video_streams > 1 and not is_chosen:
        row.warn(
            Remark(
                "several_streams",
                f"holds {info.num_video_streams} video streams; stream {info.stream_index} was taken (--video-stream takes another)",
            )
        )


def describe_picture(row: ManifestRow, stream: FrameStream, coded: FrameSize | None) -> None:
    """Fill the columns about pictures.

    Args:
        row: The row.
        stream: The frames.
        coded: Coded size of the first frame before cropping; None if the decoder does not tell.
    """
    picture_filter, output = stream.picture_filter, stream.output
    row.source_width, row.source_height = picture_filter.source.size
    row.source_coded_width, row.source_coded_height = coded or picture_filter.source.stored
    row.source_rotation = picture_filter.source.rotation_degrees
    light = picture_filter.source.light
    row.mastering_display = light.mastering.in_units if light.mastering else None
    row.content_light = str(light.content) if light.content else None
    row.width, row.height = output.size
    row.pixel_format = output.pixel_format
    row.warn(*picture_filter.picture.warnings)


def describe_frames(row: ManifestRow, made: Outcome, stream: FrameStream) -> None:
    facts, indexes, info, output = made.facts, made.source_indexes, stream.info, stream.output
    row.verified_in = made.verified_in
    duration = facts.duration * info.time_base
    row.source_num_frames = facts.num_frames
    row.source_duration_seconds = float(duration)
    begin, end = facts.span  # of whole frames: a cut may begin and end inside one
    row.source_frame_rate = float(facts.num_frames / ((end - begin) * info.time_base)) if end > begin else None
    row.source_is_vfr = facts.is_vfr
    row.source_is_interlaced = facts.is_interlaced or facts.num_fields > 0
    distinct = len(set(indexes))
    row.duplicated_frames = len(indexes) - distinct
    row.dropped_frames = facts.num_frames - distinct
    if indexes != list(range(facts.num_frames)):
        row.source_frames = indexes
    row.source_start_seconds = float(facts.opening * info.time_base)
    row.tolerance_seconds = float(stream.window.tolerance * info.time_base)
    base = info.time_base
    row.source_time_base_num, row.source_time_base_den = base.numerator, base.denominator
    if output.frame_rate or facts.opening or facts.stamps_nudged or facts.stamps_spaced or facts.stamps_crowded:
        row.source_pts = made.source_pts
    is_sampled = len(indexes) < facts.num_frames and output.frame_rate is None
    rate = output.frame_rate or (None if is_sampled else _constant_rate(facts, info))
    if rate is not None:
        row.frame_rate_num, row.frame_rate_den = rate.numerator, rate.denominator
    row.duration_seconds = float(len(indexes) / output.frame_rate) if output.frame_rate else float(duration)


def _constant_rate(facts: SourceFacts, info: VideoInfo) -> Fraction | None:
    """Return the rate of the source if its steps are constant to within one tick."""
    if len(facts.steps) == 1:
        return 1 / (next(iter(facts.steps)) * info.time_base)
    rate = info.frame_rate
    if rate and all(abs(step * info.time_base - 1 / rate) <= info.time_base for step in facts.steps):
        return rate
    return None


def _gap(facts: SourceFacts, time_base: Fraction) -> str | None:
    """Return a message if constant-rate frames stop for longer than one dropped frame. Doubled timestamps are ignored."""
    steps = facts.steps
    usual = min(steps, default=0)
    if facts.stamps_nudged or facts.stamps_crowded or usual * time_base < MIN_STEP_SECONDS:
        return None
    short = {step for step in steps if step <= GAP_STEPS * usual}
    gap = max(steps, default=0) * time_base
    if not steps - short or is_variable(short, time_base):
        return None
    return f"no frame for up to {float(gap):.2f} s where one comes every {float(usual * time_base):.3f} s"


def _uneven(indexes: Sequence[int], rate: Fraction, mean_rate: Fraction) -> tuple[int, int]:
    """Return how many pictures an output repeats and leaves out although its rate is that of its source.

    (0, 0) if it differs by more than 2 % from the mean rate of the source, from a fraction and from a multiple of it.

    Args:
        indexes: Number of the source frame that each output frame shows, ascending.
        rate: Output frames per second.
        mean_rate: Source frames per second.
    """
    ratio = mean_rate / rate
    every, times = max(1, round(ratio)), max(1, round(1 / ratio))
    if abs(ratio * times / every - 1) > SAME_RATE:
        return 0, 0
    repeated = sum(max(0, count - times) for count in Counter(indexes).values())
    left_out = sum((other - one) // every - 1 for one, other in pairwise(indexes) if other - one > every)
    return repeated, left_out


def _describe_repeats(made: Outcome, stream: FrameStream) -> str | None:
    """Return a message if pictures are repeated or left out at the source's own rate."""
    rate, facts = stream.output.frame_rate, made.facts
    if rate is None or facts.duration <= 0:
        return None
    mean_rate = facts.num_frames / (facts.duration * stream.info.time_base)
    repeated, left_out = _uneven(made.source_indexes, rate, mean_rate)
    if not repeated and not left_out:
        return None
    irregular = ", irregularly" if facts.is_vfr else ""
    return (
        f"{count_of(repeated, 'picture')} repeated and {left_out} left out at {rate} a second: the source has "
        f"{float(mean_rate):.3f}{irregular}; leave out --fps to keep each picture once"
    )


def _time_remarks(facts: SourceFacts, info: VideoInfo) -> list[Remark]:
    """Return the remarks about timestamps that were corrected."""
    listed: list[Remark] = []
    base = info.time_base
    if facts.stamps_sorted and info.format_name not in NUMBERED:
        how = "; sorted with their pictures"
        if facts.stamps_replaced:
            away = float(facts.most_replaced * base)
            how = f"; sorted, so that {count_of(facts.stamps_replaced, 'picture')} have the time of another, up to {away:.3f} s away"
        listed.append(Remark("timestamps_sorted", f"{count_of(facts.stamps_sorted, 'timestamp')} ran backwards{how}"))
    if facts.stamps_joined:
        times = count_of(facts.stamps_joined, "time")
        jump = f"by up to {float(facts.most_joined * base):.2f} s"
        listed.append(Remark("timestamps_joined", f"time jumped back {times}, {jump}; joined where it left off"))
    if info.rate_origin == "guessed":
        listed.append(
            Remark(
                "rate_guessed",
                f"a raw stream that tells no frame rate; {info.frame_rate} a second were assumed (--source-fps gives another)",
            )
        )
    elif facts.stamps_guessed and info.rate_origin != "given":
        listed.append(
            Remark(
                "timestamps_guessed",
                f"{count_of(facts.stamps_guessed, 'frame')} had no timestamp; set from the frame rate",
            )
        )
    if facts.stamps_nudged:
        listed.append(
            Remark(
                "timestamps_moved", f"{count_of(facts.stamps_nudged, 'frame')} shared a timestamp; moved one tick on"
            )
        )
    if facts.stamps_crowded:
        listed.append(
            Remark(
                "frames_left_out",
                f"{count_of(facts.stamps_crowded, 'frame')} shared a timestamp with the next one; left out",
            )
        )
    if facts.stamps_spaced:
        listed.append(
            Remark(
                "timestamps_moved",
                f"{count_of(facts.stamps_spaced, 'frame')} closer than a tick of the container; moved apart by one",
            )
        )
    return listed


def remarks(made: Outcome, stream: FrameStream) -> list[Remark]:
    """Return the remarks about the frames for the row."""
    facts, picture_filter = made.facts, stream.picture_filter
    warnings: list[Remark] = []
    if gap := _gap(facts, stream.info.time_base):
        warnings.append(Remark("gap", gap))
    if repeated := _describe_repeats(made, stream):
        warnings.append(Remark("pictures_repeated", repeated))
    if facts.num_deinterlaced:
        warnings.append(
            Remark("deinterlaced", f"{count_of(facts.num_deinterlaced, 'interlaced frame')} deinterlaced (bwdif)")
        )
    if facts.num_fields:
        warnings.append(
            Remark("fields_kept", f"{count_of(facts.num_fields, 'single field')} (HEVC), each kept as a frame")
        )
    warnings += _time_remarks(facts, stream.info)
    if made.shows_through:
        warnings.append(Remark("alpha_composited", "alpha composited over black"))
    if stream.info.has_alpha_track:
        warnings.append(Remark("alpha_ignored", "its alpha is a track of its own, and was not composited"))
    if picture_filter.ignored_alpha:
        warnings.append(Remark("alpha_ignored", "its alpha would make every frame black; shown without it"))
    if picture_filter.num_changes:
        more = picture_filter.num_changes - len(picture_filter.changes)
        changes = [*picture_filter.changes, *([f"{count_of(more, 'time')} more"] if more else [])]
        warnings.append(
            Remark(
                "picture_changed",
                f"the picture changed {', '.join(changes)}; fitted into {picture_filter.picture.size}",
            )
        )
    return warnings + list(picture_filter.source.warnings)


def describe_output(row: ManifestRow, made: Outcome, output: OutputFormat, partial: Path, *, in_buckets: bool) -> None:
    measured, times = made.measured, made.times
    quality = measured.quality
    row.time_base_num, row.time_base_den = times.time_base.numerator, times.time_base.denominator
    if output.frame_rate is None:
        row.pts = times.pts
    row.num_frames, row.packets = measured.num_frames, times.packets
    row.bucket = f"{output.size}x{measured.num_frames}" if in_buckets else None
    if isinstance(measured, Measurements):
        row.keyframe_interval_max = measured.keyframe_interval_max
        row.keyframes = list(measured.keyframes)
    else:
        row.frame_sizes, row.frame_crc32 = list(measured.sizes), list(measured.crc32)
        if measured.num_kept == measured.num_frames:
            row.encoder, row.jpeg_quality, row.subsampling = "copy", None, None
    row.psnr_y_db, row.psnr_yuv_db = quality.psnr_y_db, quality.psnr_yuv_db
    row.psnr_y_p1_db, row.psnr_y_min_db = quality.psnr_y_p1_db, quality.psnr_y_min_db
    row.worst_frame, row.ssim = quality.worst_frame, quality.ssim
    row.vmaf, row.vmaf_harmonic_mean, row.vmaf_p1 = quality.vmaf, quality.vmaf_harmonic_mean, quality.vmaf_p1
    row.vmaf_model = quality.vmaf_model
    row.xpsnr_db, row.xpsnr_p1_db = quality.xpsnr_db, quality.xpsnr_p1_db
    row.size_bytes = partial.stat().st_size
    row.sha256 = sha256_of(partial)
