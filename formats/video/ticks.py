"""What a file counts time in, and how far apart its frames may lie."""

from __future__ import annotations

from fractions import Fraction

from vidprep.formats.profiles import CONTAINERS

# libavformat's mp4 demuxer drops all composition offsets of a file when one is larger, in ticks of the file.
MAX_OFFSET_TICKS = 1 << 28
# Its mp4 muxer aborts the process where a sample and the lead of its DTS together pass 2^31.
MAX_STEP_TICKS = 3 << 29
# Later than this, nanoseconds no longer fit into the 64 bits that readers of mkv count them in.
MAX_SECONDS = 1 << 32
REORDERED_FRAMES = 16
MIN_MP4_TIMESCALE = 10_000
EXACT_MP4_TIMESCALE, COARSE_MP4_TIMESCALE = 10_000_000, 1_000_000
MILLISECOND = Fraction(1, 1000)


def file_time_base(container: str, time_base: Fraction, *, is_constant: bool) -> Fraction:
    """Seconds per tick of the file that frames with this time base are muxed into; their PTS are rounded to it.

    mkv and webm count milliseconds. mp4 holds the time base exactly, but where its 32-bit distances would be too short: for
    frames that all last one tick (is_constant) they must hold 16 of them, for others some minutes.
    """
    if CONTAINERS[container].milliseconds:
        return MILLISECOND
    exact = time_base.denominator
    while exact < MIN_MP4_TIMESCALE:
        exact *= 2
    most = max(1, int(MAX_OFFSET_TICKS / (REORDERED_FRAMES * time_base)))
    if not is_constant and exact > EXACT_MP4_TIMESCALE:
        most = min(most, COARSE_MP4_TIMESCALE)
    if exact <= most:
        return Fraction(1, exact)
    return Fraction(1, most - most % time_base.denominator or most)
