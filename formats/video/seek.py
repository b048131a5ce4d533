"""Where decoding begins, and what packets tell of a video without decoding it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, islice, pairwise

from av.packet import Packet
from av.video.stream import VideoStream

from vidprep.formats.errors import ReadError
from vidprep.formats.video.shown_frames import shown_by
from vidprep.formats.video.source import Source
from vidprep.formats.video.timestamps import REORDER_FRAMES

HEAD_PACKETS = 64
FEW_FRAMES = 6


@dataclass(frozen=True, slots=True)
class SeekPoint:
    """Where decoding begins. origin_pts and frames_before: PTS of the first frame shown in the source, and how many
    shown frames lie before the start that was asked; None when decoding begins at the beginning and so counts itself.
    """

    packets: Iterator[Packet[VideoStream]]
    origin_pts: int | None = None
    frames_before: int | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """What packets tell of a video. origin_pts: PTS of the first frame shown. shown: ticks from there, of each frame, in order;
    keyframes: the same of those."""

    origin_pts: int
    shown: array[int]
    keyframes: list[int]


def survey_of(source: Source) -> Survey | None:
    """When each frame is shown, by its packet; None where a packet is not always one frame, or does not tell. Reads to the
    end, decodes nothing.
    """
    packets, origin = _with_origin(source)
    if origin is None:
        return None
    shown, keyframes, one_by_one = array("q"), [], True
    for packet in packets:
        if packet.pts is None:
            return None
        one_by_one &= shown_by(packet).frames == 1
        if _is_entry(packet):
            keyframes.append(packet.pts - origin)
        if not packet.is_discard and packet.pts >= origin:
            shown.append(packet.pts - origin)
    return Survey(origin, array("q", sorted(shown)), sorted(keyframes)) if one_by_one else None


def _is_entry(packet: Packet[VideoStream]) -> bool:
    """Not where pictures become whole only some frames later, as with intra refresh."""
    return packet.is_keyframe and shown_by(packet).is_entry is not False


def jump_to(source: Source, keyframe: int, origin_pts: int, frames_before: int) -> SeekPoint:
    """Packets from a keyframe that `survey_of` told. frames_before: shown frames before the one that is wanted.

    Raises ReadError when a seek does not land there.
    """
    wanted = keyframe + origin_pts
    source.seek(wanted)
    packets = source.packets()
    # A seek may land on a keyframe before, as containers that are seeked by DTS do.
    first = next((packet for packet in packets if _is_entry(packet) and (packet.pts or 0) >= wanted), None)
    if first is None or first.pts != wanted:
        raise ReadError(f"a seek to tick {keyframe} does not find the keyframe there", path=source.path)
    return SeekPoint(chain([first], packets), origin_pts, frames_before)


def _with_origin(source: Source) -> tuple[Iterator[Packet[VideoStream]], int | None]:
    """All packets, and the PTS of the first frame shown; None where packets do not tell which frames they show."""
    packets = source.packets()
    if not source.tells_shown_frames:
        return packets, None
    head = list(islice(packets, HEAD_PACKETS))
    opening = head[0].pts if head and _is_entry(head[0]) else None
    if opening is None or head[-1].dts is None or any(p.pts is None and shown_by(p).frames for p in head):
        return chain(head, packets), None
    if not _shows_in_order(source, head):
        return chain(head, packets), None
    shown = (p.pts for p in head if not p.is_discard and shown_by(p).frames and p.pts is not None)
    origin = min((pts for pts in shown if pts >= opening), default=None)
    return chain(head, packets), origin


def _shows_in_order(source: Source, head: list[Packet[VideoStream]]) -> bool:
    """Whether the frames of the first packets come out of the decoder in the order of their timestamps.

    A few are decoded to tell; more where packets are reordered otherwise than the stream says of itself, as when
    timestamps only count them.
    """
    stamps = [packet.pts or 0 for packet in head if shown_by(packet).frames]
    depth = max(sum(one > stamp for one in stamps[:number]) for number, stamp in enumerate(stamps))
    due = source.reorder_depth
    if depth == due == 0:
        return True
    few = head[: FEW_FRAMES if 0 < depth <= due else 2 * REORDER_FRAMES]
    shown = source.glimpse((*few, None))
    return all(one is not None and other is not None and one < other for one, other in pairwise(shown))


def seek_to(source: Source, start_seconds: Fraction | None) -> SeekPoint:
    """Packets from the last keyframe at or before `start_seconds` (from the first frame shown).

    Nothing is seeked: what packets before that keyframe show is counted, and they are thrown away undecoded. Where packets do
    not tell, and without a start, the entry is the beginning. Behind the first packet whose DTS reaches the start come no more
    frames from before it than decoders reorder; fields in Matroska have DTS that are out of order.
    """
    if not start_seconds:
        return SeekPoint(source.packets())
    following, origin = _with_origin(source)
    if origin is None:
        return SeekPoint(following)
    start = origin + start_seconds / source.info.time_base
    waiting: list[Packet[VideoStream]] = []
    before = num_past = 0
    for packet in following:
        if packet.pts is None:
            if shown_by(packet).frames:
                raise ReadError("a packet on the way to the cut has no timestamp", path=source.path)
        elif _is_entry(packet) and packet.pts <= start:
            waiting.clear()
        waiting.append(packet)
        if packet.pts is not None and not packet.is_discard and origin <= packet.pts < start:
            before += shown_by(packet).frames
        num_past += packet.dts is not None and packet.dts >= start  # Matroska gives the first packets none
        if num_past > REORDER_FRAMES:
            break
    source.begins_inside = before > 0
    return SeekPoint(chain(waiting, following), origin_pts=origin, frames_before=before)
