"""Edit lists of MP4 and MOV where libavformat does not follow them (ISO/IEC 14496-12, 8.6.6).

It ignores pauses between edits and the rate of an edit, drops the first frame if an edit begins inside it, and gives reordered frames
(B-frames) of all edits but the first a time that is off by their composition offset.
"""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

from av.packet import Packet

from vidprep.formats.video.damage._mp4_tables import (
    MAX_SAMPLES,
    NOT_UNDERSTOOD,
    NOTHING,
    Box,
    Track,
    edits_of,
    index_of,
    track_of,
)

NORMAL_RATE = 1 << 16


def demuxer_options(path: str | Path) -> dict[str, str]:
    """Return options with which libavformat shows the first frame of a file although its edit begins inside that frame.

    Empty for other files, as with these options it follows no list of several edits.
    """
    with suppress(*NOT_UNDERSTOOD):
        movie = index_of(Path(path))
        tracks = [Track(movie, track) for track in movie.all(b"trak") if _is_video(track)]
        if all(map(_has_one_edit, movie.all(b"trak"))) and any(map(_begins_inside_first_frame, tracks)):
            return {"advanced_editlist": "0"}
    return {}


def _is_video(track: Box) -> bool:
    return bytes(track.one(b"mdia", b"hdlr").data[8:12]) == b"vide"


def _has_one_edit(track: Box) -> bool:
    """Return whether a track has at most one edit, and a pause at most before it."""
    return [edit.begin != NOTHING for edit in edits_of(track)] in ([], [True], [False, True])


def _begins_inside_first_frame(track: Track) -> bool:
    edits = [(duration, begin) for duration, begin in track.edits if begin != NOTHING]
    if len(edits) != 1 or not 1 < track.num_samples <= MAX_SAMPLES:
        return False
    ((duration, begin),) = edits
    first, second, *_ = track.first_shown
    return first < begin < second and begin + Fraction(duration * track.rate, track.movie_rate or 1) > max(track.shown)


def why_not_followed(path: str | Path, track_id: int) -> str | None:
    """Return what an edit list asks for that no reader here shows; None if it is followed."""
    with suppress(*NOT_UNDERSTOOD):
        edits = list(edits_of(track_of(index_of(Path(path)), track_id)))
        shown = [number for number, edit in enumerate(edits) if edit.begin != NOTHING]
        if any(edits[number].begin == NOTHING for number in range(shown[0] if shown else 0, shown[-1] if shown else 0)):
            return "pauses"
        rates = {edits[number].rate for number in shown}
        if len(shown) > 1 and 0 in rates:
            return "holds a picture"
        if rates - {0, NORMAL_RATE}:
            return "changes speed"
    return None


class EditedTimes:
    """Times of the frames of a track with several edits and reordered frames, in the order of its packets. Not thread-safe."""

    def __init__(self, track: Track) -> None:
        self._shown = track.shown
        self._numbers = {offset: number for number, offset in enumerate(track.offsets)}
        self._spans: list[tuple[int, int, int]] = []  # of each edit: start on the time line, begin and end in the media
        start = Fraction(0)
        for duration, begin in track.edits:
            ticks = Fraction(duration * track.rate, track.movie_rate)
            if begin != NOTHING:
                self._spans.append((round(start), begin, round(begin + ticks)))
            start += ticks
        self._edit = 0
        self._last: int | None = None

    @classmethod
    def read(cls, path: str | Path, track_id: int) -> EditedTimes | None:
        """Return the times of a track; None if libavformat's own are right, or its tables are not understood."""
        with suppress(*NOT_UNDERSTOOD):
            movie = index_of(Path(path))
            track = Track(movie, track_of(movie, track_id))
            num_shown = sum(begin != NOTHING for _, begin in track.edits)
            if num_shown > 1 and track.delays is not None and track.num_samples <= MAX_SAMPLES:
                return cls(track)
        return None

    def pts_of(self, packet: Packet[Any]) -> int | None:
        """Return the right PTS of a packet; None if it is not displayed, or unknown. Call it for each packet in order."""
        number = None if packet.pos is None else self._numbers.get(packet.pos)
        if number is None:
            return None
        if self._last is not None and number != self._last + 1:
            self._edit += 1
        self._last = number
        shown = self._shown[number]
        for place in range(self._edit, len(self._spans)) if not packet.is_discard else ():
            start, begin, end = self._spans[place]
            if begin <= shown < end:
                self._edit = place
                return start + shown - begin
        return None
