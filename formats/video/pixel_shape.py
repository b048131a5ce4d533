"""The shape of pixels where a stream changes it half way, as broadcasts do between 4:3 and 16:9.

Only the decoder tells, from the keyframe on where it changes; frames that are shown before that may come out after it. Where the
container says something else from the beginning, it has the last word.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import cast

from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from vidprep.formats.video.pyav import fraction


def new_shape_of(frame: VideoFrame) -> Fraction | None:
    """The sample aspect ratio of a frame of `Source.decode`; None as long as it is what the header says."""
    carried = cast("list[Fraction] | None", frame.opaque)
    return None if carried is None else carried[0]


class PixelShapes:
    """Marks frames whose pixels have another shape than the first. told: by the header."""

    def __init__(self, declared: Fraction) -> None:
        self._declared = self._last = declared
        self._is_followed: bool | None = None
        self._waiting: list[tuple[int | None, Fraction]] = []  # PTS of the keyframe that brought it
        self._now: Fraction | None = None

    def see(self, keyframe: Packet[VideoStream], decoder: VideoCodecContext) -> None:
        """A keyframe that the decoder has taken."""
        found = fraction(decoder.sample_aspect_ratio)
        if self._is_followed is None:
            self._is_followed = found in (None, self._declared)
        if self._is_followed and found is not None and found != self._last:
            self._waiting.append((keyframe.pts, found))
            self._last = found

    def mark(self, frames: Iterable[VideoFrame]) -> None:
        """Frames of the decoder, in order."""
        if not self._waiting and self._now is None:
            return
        for frame in frames:
            if self._waiting and (frame.key_frame or frame.pts == self._waiting[0][0]):
                _, self._now = self._waiting.pop(0)
            if self._now is not None:
                frame.opaque = [self._now]  # an object of its own, by which PyAV 18 finds it
