"""Limits on frames repeated by --fps: a tiny file can claim that one frame lasts for days."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from fractions import Fraction

from vidprep.formats.errors import LimitError
from vidprep.formats.moments import OutputClock, Window
from vidprep.formats.video.source import Source
from vidprep.transcode.settings.run import RunSettings

MAX_REPEATS = 10_000
ANY_FRAMES = 2**31 - 1  # if the run that made an output had its own limit


def most_repeats(max_frames: int) -> int:
    """Return how often one source frame may be repeated: 5½ minutes at 30 fps, longer with a larger --max-frames."""
    return max(MAX_REPEATS, max_frames // 100)


def check_repeats(count: int, due: int, rate: Fraction, max_frames: int) -> None:
    """Raise LimitError if one source frame may not become the output frames [count, due): beyond max_frames, or more than
    real footage has.
    """
    repeats = due - count
    allowed = most_repeats(max_frames)
    if due <= max_frames and repeats <= allowed:
        return
    needed = due if repeats <= allowed else max(due, 100 * repeats)
    raise LimitError(
        f"one frame is shown for {float(repeats / rate):.1f} s and would become {repeats} frames at {rate}/s, up to frame "
        f"{due} (allowed are {allowed} of one, {max_frames} in all); --max-frames {needed} if it is meant to"
    )


def check_claims(
    source: Source, settings: RunSettings, window: Window, clock: OutputClock | None, on_progress: Callable[[], None]
) -> None:
    """Raise LimitError if `retime` would refuse the frames that ffmpeg is about to make, by the times of packets. Decodes
    nothing.

    Args:
        source: The source, just opened. It is read to its end.
        settings: Settings of the run.
        window: Frames of the output, counted from the first frame displayed.
        clock: Constant rate of the output.
        on_progress: Called for each frame that ffmpeg has to decode or make.

    Raises:
        LimitError: Too many frames.
        ReadError: The source cannot be read.
    """
    ticks, end_tick = array("q"), 0
    for packet in source.packets():
        on_progress()
        if packet.pts is not None and not packet.is_discard:
            ticks.append(packet.pts)
            end_tick = max(end_tick, packet.pts + (packet.duration or 0))
    if clock is None or not ticks:
        return
    origin, count = min(ticks), 0
    opening = window.start
    for index, tick in enumerate((*sorted(ticks), end_tick)):
        shown = tick - origin
        if not window.is_before(shown, index):
            opening = window.opening(shown, is_held=False) if opening is None else opening
            due = window.first_output(shown, opening)
            check_repeats(count, due, clock.rate, settings.limits.max_frames)
            count = due
        if window.is_past(shown, index):
            break
    for _ in range(count):
        on_progress()
