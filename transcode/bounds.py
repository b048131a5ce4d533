"""How many frames --fps may make of a source: a few bytes can claim that one is shown for days."""

from __future__ import annotations

from fractions import Fraction

from vidprep.formats.errors import LimitError

MAX_REPEATS = 10_000


def most_repeats(max_frames: int) -> int:
    """How often one source frame may stand in a row: 5½ minutes at 30/s, longer with a larger --max-frames."""
    return max(MAX_REPEATS, max_frames // 100)


def check_repeats(count: int, due: int, rate: Fraction, max_frames: int) -> None:
    """Whether one source frame may become the output frames [count, due). Raises LimitError past max_frames, and for more
    repeats than real footage has.
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
