"""Rules that compare the frames of a video with what a dataset declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from vidprep.formats.errors import count_of
from vidprep.transcode.audit._video import Span, VideoFacts
from vidprep.transcode.audit.dataset import ERROR, WARNING, Clip, Finding, Level, VideoFile
from vidprep.transcode.audit.robot import TOLERANCE_SECONDS

REPEATED_SHARE = 0.2  # of the frames of a clip
MIN_REPEATED = 5
SHORTEST_SECONDS = 1.0  # of a stretch
Moves = Callable[[Clip, float, float], bool | None]


def findings_of(video: VideoFile, facts: VideoFacts, moves: Moves) -> Iterator[Finding]:
    """Yield what is wrong with a video, or may be.

    Args:
        video: The video, as declared.
        facts: What was read.
        moves: Returns whether states or actions of a clip move between two times, in seconds of the file; None if it has none.
    """

    def found(level: Level, kind: str, text: str, clip: Clip | None = None, seconds: float | None = None) -> Finding:
        return Finding(level, kind, video.name, clip.name if clip is not None else "", seconds, text)

    for level, kind, text in _faults_of_file(video, facts):
        yield found(level, kind, text)
    if facts.error is not None:
        return
    num_timed = int((~np.isnan(facts.times)).sum())
    order = np.argsort(facts.times, kind="stable")[:num_timed]  # frames without a time (NaN) are sorted to the end
    facts = replace(facts, times=facts.times[order], keyframes=facts.keyframes[order], repeats=facts.repeats[order])
    times, distance = facts.times, _usual_distance(facts.times)
    frame = 1 / video.rate if video.rate else distance or 0.04
    if video.rate and len(times) > 1 and abs(distance - frame) > TOLERANCE_SECONDS:
        rate = f"{1 / distance:.6g} frames per second" if distance else "frames that begin at the same time"
        yield found(ERROR, "rate", f"has {rate}, {video.rate:g} per second are declared")
    behind = 0
    for clip in video.clips:
        origin = times[0] if clip.episode is None and len(times) else 0.0  # times of a table count from the first frame
        start, end = clip.start + origin, np.inf if clip.end is None else clip.end + origin
        part = _part_of(clip, times, start, end, frame)
        behind = part.stop
        for level, kind, text, seconds in _faults_of_clip(clip, facts, times, part, frame):
            yield found(level, kind, text, clip, seconds)
        for kind, text, seconds in _odd_pictures(clip, facts, start, end, moves):
            yield found(WARNING, kind, text, clip, seconds)
    if video.clips[-1].episode is not None and behind < len(times):
        text = f"{count_of(len(times) - behind, 'frame')} from {times[behind]:.6g} s on belong to no episode"
        yield found(WARNING, "frames", text, None, float(times[behind]))


def _faults_of_file(video: VideoFile, facts: VideoFacts) -> Iterator[tuple[Level, str, str]]:
    """Yield what is wrong with a file as a whole."""
    if facts.error is not None:
        which = [clip.name for clip in video.clips if clip.name]
        clips = f" ({which[0]} to {which[-1].rpartition(' ')[2]} are in it)" if len(which) > 1 else ""
        yield ERROR, "missing" if facts.error == "is not there" else "unreadable", facts.error + clips
        return
    for text in facts.damage:
        yield ERROR, "damaged", text
    if video.size is not None and facts.size != video.size:
        declared = "x".join(map(str, video.size))
        yield ERROR, "size", f"is {facts.size[0]}x{facts.size[1]}, {declared} is declared"
    for text in facts.contradictions:
        yield WARNING, "header", text


def _odd_pictures(
    clip: Clip, facts: VideoFacts, start: float, end: float, moves: Moves
) -> Iterator[tuple[str, str, float]]:
    """Yield where the picture of a clip is black, or does not change."""
    black = [*_spans_in(facts.black, start, end)]
    for span in black:
        yield "black", f"the picture is black, {_format_span(span)}", span[0]
    for begin, stop in _spans_in(facts.frozen, start, end):
        is_black = any(first <= begin and stop <= last for first, last in black)
        moving = None if is_black else moves(clip, begin, stop)
        if not is_black and moving is not False:  # a robot at rest shows the same, and its rows are the same
            how = " while its rows change" if moving else ""
            yield "frozen", f"the picture stays as it is{how}, {_format_span((begin, stop))}", begin


def _part_of(clip: Clip, times: npt.NDArray[np.float64], start: float, end: float, frame: float) -> slice:
    """Return the frames of a clip."""
    first, behind = (int(np.searchsorted(times, at - frame / 2)) for at in (start, end))
    if clip.first_frame is not None:
        first, behind = clip.first_frame, len(times) if clip.end_frame is None else min(clip.end_frame, len(times))
    return slice(min(first, behind), behind)


def _faults_of_clip(
    clip: Clip, facts: VideoFacts, times: npt.NDArray[np.float64], part: slice, frame: float
) -> Iterator[tuple[Level, str, str, float | None]]:
    count = part.stop - part.start
    if clip.num_frames is not None and count != clip.num_frames:
        text = f"has {count_of(count, 'frame')}, {clip.num_frames} are declared"
        yield (ERROR if count < clip.num_frames else WARNING), "frames", text, clip.start
    elif count == 0:
        yield (
            ERROR,
            "range",
            f"has no frame: it starts at {clip.start:.6g} s, and the video ends at {times[-1] if len(times) else 0.0:.6g} s",
            clip.start,
        )
    elif clip.end_frame is not None and clip.end_frame > len(times):
        yield (
            ERROR,
            "range",
            f"ends before frame {clip.end_frame}, and the video has {count_of(len(times), 'frame')}",
            None,
        )
    elif clip.end is not None and clip.num_frames is None and clip.end - (times[-1] - times[0]) > 2 * frame:
        yield (
            ERROR,
            "range",
            f"ends at {clip.end:.6g} s, and the video at {times[-1] - times[0] + frame:.6g} s",
            clip.end,
        )
    if clip.times is not None and len(clip.times) and len(times):
        yield from _faults_of_times(clip, times)
    if clip.episode is not None and count and not facts.keyframes[part.start]:
        yield WARNING, "keyframe", "starts on no keyframe, so that frames before it are decoded to reach it", clip.start
    repeated, moving = facts.repeats[part].copy(), np.ones(max(count, 0), np.bool_)
    for begin, end in facts.frozen:
        moving &= ~((times[part] >= begin) & (times[part] <= end))
    num_repeated = int((repeated & moving)[1:].sum())
    if num_repeated >= MIN_REPEATED and num_repeated > REPEATED_SHARE * moving.sum():
        text = f"{num_repeated} of {count_of(int(moving.sum()), 'frame')} show the same as the one before: was it made from a lower rate?"
        yield WARNING, "repeated", text, float(times[part.start + 1 + int(np.argmax((repeated & moving)[1:]))])


def _faults_of_times(clip: Clip, times: npt.NDArray[np.float64]) -> Iterator[tuple[Level, str, str, float | None]]:
    """Yield whether rows have a frame at their time. LeRobot's reader compares float32, which is too coarse from 1024 s on."""
    assert clip.times is not None
    due = (clip.start + clip.times).astype(np.float32)
    times = times.astype(np.float32).astype(np.float64)
    after = np.clip(np.searchsorted(times, due), 0, len(times) - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(np.abs(times[before] - due) < np.abs(times[after] - due), times[before], times[after])
    off = np.abs(nearest - due)
    wrong = np.flatnonzero(off > TOLERANCE_SECONDS)
    if len(wrong):
        row = int(wrong[0])
        text = (
            f"{len(wrong)} of {count_of(len(due), 'row')} have no frame within {TOLERANCE_SECONDS * 1e3:g} ms: the first is row {row} at "
            f"{due[row]:.6g} s, and the nearest frame is {off[row] * 1e3:.3g} ms away"
        )
        yield ERROR, "times", text, float(due[row])


def _usual_distance(times: npt.NDArray[np.float64]) -> float:
    return float(np.median(np.diff(times))) if len(times) > 1 else 0.04


def _spans_in(spans: list[Span], start: float, end: float) -> Iterator[Span]:
    """Yield the parts of stretches in [start, end) that last SHORTEST_SECONDS or longer."""
    for begin, stop in spans:
        inside = max(begin, start), min(stop, end)
        if inside[1] - inside[0] >= SHORTEST_SECONDS - 1e-9:
            yield inside


def _format_span(span: Span) -> str:
    return f"{span[0]:.2f} to {span[1]:.2f} s"
