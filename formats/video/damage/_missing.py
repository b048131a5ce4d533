"""Find packets that are missing from a stream with regular times.

The time of the lost frame is empty: one step between frames is two or more usual ones. Cameras that drop frames and screen recorders
do that often, so it counts only if nearly all steps are the same to the tick. If the headers of a packet near the gap refer to a
frame that was never read (`PacketInfo.follows_loss`), the frames up to the next keyframe show wrong pictures.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vidprep.formats.errors import count_of

# Decoders put frames in order within so many packets. More frames in a row than that are not lost, but a pause.
REORDER_FRAMES = 16
# Times that are rounded give two steps next to each other; more distinct ones are not regular.
ROUNDING_TICKS, MOST_STEPS = 1, 16
# Of so many frames at most one may be missing, and a few more; of more, a camera left them out.
ONE_IN, FEW = 20, 2
KEPT_PLACES, SHOWN_PLACES = 64, 3
# Codecs of which a lost reference shows: by frame numbers, or by errors of the decoder.
TELL_LOSSES = {"h264", "hevc"}


@dataclass(slots=True)
class _Place:
    """A step between two frames.

    Attributes:
        keyframe: Number of the next keyframe from there on; None if none was read
        is_loss: Whether a header near it refers to a frame that was never read
    """

    frame: int
    keyframe: int | None = None
    is_loss: bool = False


class _Packet(NamedTuple):
    pts: int
    is_keyframe: bool
    follows_loss: bool


class MissingPackets:
    """Observes the times of the packets of one stream. Not thread-safe."""

    def __init__(self, codec: str) -> None:
        """Prepare for the packets of a stream, of libavcodec's codec name."""
        self._tells_losses = codec in TELL_LOSSES
        self._waiting: list[_Packet] = []  # a heap
        self._places: dict[int, list[_Place]] = defaultdict(list)  # the first ones of each step in ticks
        self._counts = Counter[int]()  # of these steps
        self._last: int | None = None
        self._last_dts: int | None = None
        self._num_frames = 0
        self._losses: list[int] = []  # numbers of the first packets that follow a loss
        self._loss_at = -2 * REORDER_FRAMES  # that of the last one
        self._is_timed = self._is_in_order = True

    def see(self, pts: int | None, dts: int | None, *, is_keyframe: bool, follows_loss: bool) -> None:
        """Record a packet that displays a frame, in decode order."""
        self._is_timed &= pts is not None
        self._is_in_order &= dts is None or self._last_dts is None or dts >= self._last_dts
        self._last_dts = dts
        if pts is None or not self._is_timed or len(self._places) > MOST_STEPS:
            return
        heapq.heappush(self._waiting, _Packet(pts, is_keyframe, follows_loss))
        if len(self._waiting) > REORDER_FRAMES:
            self._show(heapq.heappop(self._waiting))

    def restart(self) -> None:
        """Forget the last time: a seek follows."""
        self._waiting.clear()
        self._last = self._last_dts = None

    def _show(self, packet: _Packet) -> None:
        number, self._num_frames = self._num_frames, self._num_frames + 1
        step = 0 if self._last is None else packet.pts - self._last
        self._last = packet.pts
        if packet.follows_loss:
            self._loss_at = number
            self._losses += [number] if len(self._losses) < KEPT_PLACES else []
        if step > 0:
            self._counts[step] += 1
            if len(self._places[step]) < KEPT_PLACES:
                self._places[step].append(_Place(number))
        for place in (places[-1] for places in self._places.values() if places):
            place.is_loss |= abs(self._loss_at - place.frame) <= REORDER_FRAMES
            if packet.is_keyframe and place.keyframe is None:
                place.keyframe = number

    def _steps(self) -> tuple[float, list[int], dict[int, int]]:
        """Return the mean step between frames, the steps near it, and how many packets are missing in each longer step."""
        usual = max(self._counts, key=self._counts.__getitem__)
        regular = [step for step in self._counts if abs(step - usual) <= ROUNDING_TICKS]
        mean = sum(step * self._counts[step] for step in regular) / sum(map(self._counts.__getitem__, regular))
        return (
            mean,
            regular,
            {
                step: round(step / mean) - 1
                for step in self._counts
                if 3 * usual < 2 * step <= 2 * REORDER_FRAMES * usual
            },
        )

    def describe(self, *, read_to_end: bool) -> tuple[str | None, str | None]:
        """Return what is damaged by missing packets, and what else is missing; None for nothing. Call it when reading ends.

        Args:
            read_to_end: False if reading stopped on purpose. Then packets that are shown between the last ones may follow: all that are
                shown before the last decoding time were read.
        """
        known_until = math.inf if read_to_end else -math.inf if self._last_dts is None else self._last_dts
        while self._waiting and self._waiting[0].pts <= known_until:
            self._show(heapq.heappop(self._waiting))
        if not self._counts or not self._is_timed or len(self._places) > MOST_STEPS:
            return self._lost_elsewhere([]), None
        mean, regular, longer = self._steps()
        gaps = [(longer[step], place) for step in longer for place in self._places[step]]
        lost = [gap for gap in gaps if gap[1].is_loss]
        others = [gap for gap in gaps if not gap[1].is_loss] if self._is_regular(mean, regular, list(longer)) else []
        missing = _describe(others, self._num_frames, None if self._tells_losses else "may be")
        return _describe(lost, self._num_frames, "are") or self._lost_elsewhere(longer), missing

    def _lost_elsewhere(self, longer: Collection[int]) -> str | None:
        """Return where a reference is missing although no time is empty: at the end, or because packets are out of order."""
        places = [place.frame for step in longer for place in self._places[step]]
        others = [n for n in self._losses if all(abs(n - place) > REORDER_FRAMES for place in places)]
        if not self._is_in_order and others:
            return f"packets are out of order near frame {others[0]}, so that it and others are wrong"
        others = [n for n in others if n >= self._num_frames - REORDER_FRAMES]
        return f"a packet is missing near frame {others[0]}, so that it and others are wrong" if others else None

    def _is_regular(self, mean: float, regular: Sequence[int], longer: Sequence[int]) -> bool:
        """Return whether steps are equal to the tick, but for a few that are multiples."""
        is_known = all(step in regular or step in longer or step > REORDER_FRAMES * mean for step in self._counts)
        are_multiples = all(abs(step - round(step / mean) * mean) <= ROUNDING_TICKS + 1 for step in longer)
        num_longer = sum(self._counts[step] for step in longer)
        return is_known and are_multiples and num_longer * ONE_IN <= self._num_frames + FEW * ONE_IN


def _describe(places: Sequence[tuple[int, _Place]], num_frames: int, verb: str | None) -> str | None:
    """Return the number of lost packets and where they are missing.

    Args:
        places: Number of packets and place, each.
        num_frames: Number of frames that were read.
        verb: "are" or "may be" wrong: the frames up to the next keyframe; None if they are not.
    """
    if not places:
        return None
    total = sum(number for number, _ in places)
    ordered = sorted((place for _, place in places), key=lambda place: place.frame)
    shown = ", ".join(_where(place, num_frames, verb) for place in ordered[:SHOWN_PLACES])
    more = f" and at {len(places) - SHOWN_PLACES} more places" if len(places) > SHOWN_PLACES else ""
    return f"{count_of(total, 'packet')} missing {shown}{more}"


def _where(place: _Place, num_frames: int, verb: str | None) -> str:
    last = (num_frames if place.keyframe is None else place.keyframe) - 1
    wrong = f" (frames {place.frame} to {last} {verb} wrong)" if verb and last >= place.frame else ""
    return f"before frame {place.frame}{wrong}"
