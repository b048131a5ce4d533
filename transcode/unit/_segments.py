"""Split a long video into segments, and join encoded segments packet by packet, with the measurements of the whole.

Segments depend only on the source and the settings. Each begins at a keyframe of the output, with the source frame that
the whole output would show there, so together they contain the same frames.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import cast

from av.error import FFmpegError as AvError
from av.packet import Packet
from av.video.stream import VideoStream

from vidprep.formats.errors import VerifyError
from vidprep.formats.model import Cut, OutputFormat, rescale
from vidprep.formats.moments import MAX_OFFSET_TICKS, OutputClock, Window, file_time_base, is_variable
from vidprep.formats.profiles import CODECS
from vidprep.formats.video.seek import survey_of
from vidprep.formats.video.source import Source, open_video
from vidprep.formats.video.writer import VideoWriter, add_start_codes
from vidprep.transcode.media.audio import AudioTrack
from vidprep.transcode.media.bounds import most_repeats
from vidprep.transcode.media.frames import SourceFacts
from vidprep.transcode.media.metrics import QualitySums
from vidprep.transcode.media.stream import OutputTiming, timing_of
from vidprep.transcode.media.verify import Measurements, peak_of
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.unit.job import MadeSegment, Segment, Split

USUAL_RATE = Fraction(25)


def _ticks_of(window: Window, shown: Sequence[int]) -> tuple[int, Sequence[int]]:
    """Return the number of the first frame that a window needs, and the times of those that it shows."""
    before = 0 if window.is_whole else bisect_left(shown, window.first_needed(shown))
    end = next((n for n in range(before, len(shown)) if window.is_past(shown[n], n)), len(shown))
    return before, shown[before:end]


def _why_whole(
    source: Source, settings: RunSettings, clock: OutputClock | None, ticks: Sequence[int], *, is_held: bool
) -> str | None:
    """Return why frames at these times cannot be made in segments; None if they can."""
    if any(one == other for one, other in pairwise(ticks)):
        return "frames share a timestamp"
    if clock is not None:
        return None
    if is_held:
        return "its first picture is on screen before it begins"
    return _unfit(ticks, source.info.time_base, settings.video.encoder.container_name)


def segments_of(source: Source, settings: RunSettings, cut: Cut, seconds: float) -> Split:
    """Return the segments of a cut in order, of about this length; empty for a short video, or one that cannot be split.

    Reads the source to its end without decoding.
    """
    window, clock = timing_of(source, settings, cut)
    survey = survey_of(source)
    to_end = survey is not None
    if source.damage(read_to_end=to_end) or source.missing_frames(read_to_end=to_end):
        return Split(why_not="it is damaged")
    if survey is None:
        where = f"{source.info.codec} in {source.info.format_name}"
        return Split(why_not=f"where frames begin in {where} shows only when it is decoded")
    shown = survey.shown
    if not shown or len(shown) > settings.limits.max_frames:
        return Split()
    window = window.count_from(survey.origin_pts)
    before, ticks = _ticks_of(window, shown)
    if not ticks:
        return Split()
    is_held = window.is_before(ticks[0], before)
    if why := _why_whole(source, settings, clock, ticks, is_held=is_held):
        return Split(why_not=why)
    opening = window.opening(ticks[0], is_held=is_held)
    rate = clock.rate if clock else source.info.frame_rate or USUAL_RATE
    length = _segment_frames(seconds, rate, settings.video.encoder.gop)
    starts = _starts(ticks, survey.keyframes, source.info.time_base, opening, clock, settings, length)
    if starts is None or len(starts[0]) == 1:  # None: making the whole refuses it
        return Split()
    firsts, sources = starts
    last = len(firsts) - 1
    segments = (
        Segment(
            index=index,
            first=first,
            first_pts=first if clock else ticks[at] - ticks[0],
            num_frames=None if index == last else firsts[index + 1] - first,
            source_index=before + at,
            timing=OutputTiming(window.start_at(ticks[at if index else 0]), clock),
            tick=ticks[at if index else 0],
            keyframe=_last_before(ticks[at], survey.keyframes) if index else None,
            origin_pts=survey.origin_pts,
            opening_index=before,
            opening=opening,
        )
        for index, (first, at) in enumerate(zip(firsts, sources, strict=True))
    )
    return Split(tuple(segments))


def _starts(
    ticks: Sequence[int],
    keyframes: Sequence[int],
    base: Fraction,
    opening: Fraction,
    clock: OutputClock | None,
    settings: RunSettings,
    length: int,
) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return where segments of about `length` frames begin: numbers of output frames, and of the source frames (indexes of
    `ticks`) that they show first.

    Return None if there are more frames than allowed.
    """
    gop = settings.video.encoder.gop
    inside = [tick for tick in keyframes if ticks[0] <= tick <= ticks[-1]]
    if clock is None:
        firsts = _cuts(len(ticks), length, gop, [bisect_left(ticks, tick) for tick in inside])
        return firsts, firsts

    def due(tick: int) -> int:
        """Return the output frame at which retiming shows the source frame of this tick."""
        return clock.first_output((tick - opening) * base)

    limit = settings.limits.max_frames
    longest = max((other - one for one, other in pairwise(ticks)), default=0)
    if due(ticks[-1]) > limit or longest * base * clock.rate > most_repeats(limit):
        return None
    # The last frame may end before its output frame is displayed: its end decides.
    firsts = _cuts(max(1, due(ticks[-1])), length, gop, [due(tick) for tick in inside])
    return firsts, [bisect_right(ticks, first, key=due) - 1 for first in firsts]


def _cuts(total: int, length: int, gop: int, keyframes: Sequence[int]) -> list[int]:
    """Return output frames at which segments begin, about `length` apart.

    Segments are whole GOPs. If possible they begin right after a keyframe of the source, because everything from that
    keyframe on is decoded for the segment.

    Args:
        total: Number of output frames.
        length: Wanted length.
        gop: Keyframe interval.
        keyframes: Output frames that show keyframes of the source.
    """
    step = _step(gop)
    cheap = [(number // step + 1) * step for number in keyframes]
    cuts = [0]
    while total - cuts[-1] >= length * 3 / 2:
        due = cuts[-1] + length
        last = min(due + length // 2, total - length // 2)
        near = cheap[bisect_left(cheap, due - length // 2) : bisect_right(cheap, last)]
        cuts.append(min(near, key=lambda cut: abs(cut - due), default=due))
    return cuts


def _unfit(ticks: Sequence[int], base: Fraction, container: str) -> str | None:
    """Return why frames with their own times cannot be split into segments, which are mp4 files, for this container."""
    file_base, piece_base = (file_time_base(name, base, is_constant=False) for name in (container, "mp4"))
    if max((other - one for one, other in pairwise(ticks)), default=0) * base > MAX_OFFSET_TICKS * piece_base:
        return "frames lie too far apart for the files of its segments"
    coarser = max(file_base, piece_base)
    if coarser > base:
        shown = (rescale(tick - ticks[0], base, coarser) for tick in ticks)
        if any(one == other for one, other in pairwise(shown)):
            return "frames lie closer than a tick of the container"
    return None


def _last_before(tick: int, keyframes: Sequence[int]) -> int | None:
    """Return the last keyframe before a tick; None without one, since the first frame may be displayed for longer than a
    segment.
    """
    number = bisect_left(keyframes, tick)
    return keyframes[number - 1] if number else None


def _segment_frames(seconds: float, rate: Fraction, gop: int) -> int:
    """Return the number of output frames of a segment: whole GOPs."""
    step = _step(gop)
    return math.ceil(Fraction(repr(seconds)) * rate / step) * step


def _step(gop: int) -> int:
    """Return the unit of a segment's length: a GOP, or two frames if every frame is a keyframe.

    An encoder numbers IDR pictures 0, 1, 0, 1, and two adjacent ones must differ.
    """
    return max(2, gop)


def facts_of(made: Sequence[MadeSegment], time_base: Fraction) -> SourceFacts:
    """Return what reading the whole source would have shown."""
    first, last = made[0], made[-1]
    num_frames = last.segment.source_index + last.facts.num_frames - first.segment.opening_index
    steps = set[int]().union(*(each.facts.steps for each in made))
    return SourceFacts(
        num_frames=num_frames,
        origin_pts=first.facts.origin_pts,
        opening=first.segment.opening,
        last_end=last.facts.last_end,
        end_tick=last.facts.end_tick,
        span=(first.facts.span[0], last.facts.span[1]),
        is_vfr=is_variable(steps, time_base),
        is_interlaced=any(each.facts.is_interlaced for each in made),
        num_fields=min(num_frames, sum(each.facts.num_fields for each in made)),
        num_deinterlaced=min(num_frames, sum(each.facts.num_deinterlaced for each in made)),
        read_to_end=last.facts.read_to_end,
        steps=steps,
    )


def combine_measurements(made: Sequence[MadeSegment]) -> Measurements:
    """Return the measurements of the whole."""
    pts, is_keyframe, checksums = array("q"), bytearray(), array("L")
    scores = QualitySums()
    keyframes: list[int] = []
    gops: list[tuple[int, list[int]]] = []
    samples: dict[int, int] = {}
    for each in made:
        measured, first = each.measured, each.segment.first
        pts.extend(tick + each.segment.first_pts for tick in measured.pts)
        is_keyframe += measured.is_keyframe
        checksums.extend(measured.checksums)
        scores.extend(measured.scores, first)
        keyframes.extend(first + number for number in measured.keyframes)
        gops.extend((first + number, frames) for number, frames in measured.gops)
        samples |= {first + number: checksum for number, checksum in measured.samples.items()}
    return Measurements(
        scores=scores,
        quality=scores.report(peak_of(made[0].output.pixel_format)),
        num_frames=len(pts),
        pts=pts,
        is_keyframe=is_keyframe,
        checksums=checksums,
        gops=tuple(gops),
        samples=samples,
        keyframes=tuple(keyframes),
        keyframe_interval_max=max(each.measured.keyframe_interval_max for each in made),
    )


def join(
    settings: RunSettings,
    partial: Path,
    output: OutputFormat,
    made: Sequence[MadeSegment],
    end_pts: int,
    audio: AudioTrack,
) -> Measurements:
    """Write `partial`. Its measurements include the GOPs on both sides of each joint.

    Args:
        end_pts: Output tick at which the last frame ends, if known.
        partial: The file to write.
        made: The segments, in order.
        output: Format of the output.
        settings: Settings of the run.
        audio: Audio of the output.

    Raises:
        EncodeError: A packet cannot be muxed.
        VerifyError: A segment differs from its measurements.
        OSError: The file cannot be written.
    """
    measured = combine_measurements(made)
    order = sorted(measured.pts)
    ends = dict(zip(order, [*order[1:], max(end_pts, order[-1] + 1)], strict=True))
    writer = VideoWriter(partial, settings.video.encoder, output)
    try:
        audio.add_to(writer)
        writer.take_order(measured.pts)
        for each in made:
            for packet in _packets(each, settings.video.encoder.codec, output.time_base):
                assert packet.pts is not None
                audio.mux_until(packet.pts * output.time_base)
                writer.mux(packet, ends[packet.pts] - packet.pts)
        audio.finish(max(ends.values()) * output.time_base)
    finally:
        writer.close()
    return measured


def _packets(made: MadeSegment, codec: str, time_base: Fraction) -> Iterator[Packet[VideoStream]]:
    """Yield the segment's packets as they left the encoder, with timestamps of the whole video. Raises VerifyError."""
    try:
        with open_video(made.path) as container:
            packets = (packet for packet in container.demux(container.streams.video[0]) if packet.size)
            for packet, pts in zip(packets, made.measured.pts, strict=True):
                given = Packet(add_start_codes(bytes(packet))) if CODECS[codec].has_units else packet
                given.is_keyframe = packet.is_keyframe
                given.pts = pts + made.segment.first_pts
                given.time_base = time_base
                yield cast("Packet[VideoStream]", given)
    except (AvError, ValueError) as error:
        raise VerifyError(f"segment {made.segment.index + 1} does not read back ({error}); run again") from error
