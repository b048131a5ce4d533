"""Find where to begin decoding, and read what packets tell about a video without decoding it."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice, pairwise

from av.packet import Packet
from av.video.stream import VideoStream

from vidprep.formats.errors import ReadError
from vidprep.formats.moments import Window
from vidprep.formats.video._shown_frames import displayed_by
from vidprep.formats.video.source import Source
from vidprep.formats.video.timestamps import REORDER_FRAMES

HEAD_PACKETS = 64
FEW_FRAMES = 6


@dataclass(frozen=True, slots=True)
class SeekPoint:
    """Place where decoding begins.

    Attributes:
        packets: Packets from a keyframe on
        origin_pts: PTS of the first frame displayed in the source; None if decoding begins there
        frames_before: Number of displayed frames before `first_tick`; None if decoding begins with the first frame
        first_tick: Start of the frame with that number, in ticks from the first frame displayed
    """

    packets: Iterator[Packet[VideoStream]]
    origin_pts: int | None = None
    frames_before: int | None = None
    first_tick: int = 0


@dataclass(frozen=True, slots=True)
class Survey:
    """Times that the packets of a video tell.

    Attributes:
        origin_pts: PTS of the first frame displayed
        shown: Start of each frame in display order, in ticks from there
        end: End of the last frame
    """

    origin_pts: int
    shown: array[int]
    keyframes: list[int]
    end: int


def survey_of(source: Source) -> Survey | None:
    """Read all packets without decoding. Return the start of each frame.

    Return None if a packet is not always one frame, has no timestamp, or changes parameters of later ones.
    """
    packets, origin = _find_origin(source)
    if origin is None:
        return None
    shown, keyframes, one_by_one = array("q"), [], True
    last, duration = -1, 0
    for packet in packets:
        if packet.pts is None:
            return None
        one_by_one &= displayed_by(packet).frames == 1 and not displayed_by(packet).needed_later
        if _is_entry(packet):
            keyframes.append(packet.pts - origin)
        if not packet.is_discard and packet.pts >= origin:
            shown.append(packet.pts - origin)
            if shown[-1] > last:
                last, duration = shown[-1], packet.duration or 0
    end = last + (duration if duration > 1 else source.info.usual_step) + source.empty_ticks_at_end
    return Survey(origin, array("q", sorted(shown)), sorted(keyframes), end) if one_by_one else None


def _is_entry(packet: Packet[VideoStream]) -> bool:
    """Return whether decoding can begin at a packet. Not with intra refresh, where pictures are complete only some frames
    later.
    """
    return packet.is_keyframe and displayed_by(packet).is_entry is not False


def jump_to(source: Source, keyframe: int, origin_pts: int, frames_before: int, first_tick: int) -> SeekPoint:
    """Seek to a keyframe that `survey_of` found.

    Args:
        source: The source.
        keyframe: Start of the keyframe, in ticks from the first frame displayed.
        origin_pts: PTS of the first frame displayed.
        frames_before: Number of displayed frames before the one at `first_tick`.
        first_tick: Start of the first frame to show.

    Raises:
        ReadError: The seek ends elsewhere.
    """
    wanted = keyframe + origin_pts
    source.seek(wanted)
    packets = source.packets()
    # A seek may land on an earlier keyframe, in containers that seek by DTS.
    first = next((packet for packet in packets if _is_entry(packet) and (packet.pts or 0) >= wanted), None)
    if first is None or first.pts != wanted:
        raise ReadError(f"a seek to tick {keyframe} does not find the keyframe there", path=source.path)
    return SeekPoint(chain([first], packets), origin_pts, frames_before, first_tick)


def _find_origin(source: Source) -> tuple[Iterator[Packet[VideoStream]], int | None]:
    """Return all packets, and the PTS of the first frame displayed; None if packets do not tell which frames they display."""
    packets = source.packets()
    if not source.tells_shown_frames:
        return packets, None
    head = list(islice(packets, HEAD_PACKETS))
    opening = head[0].pts if head and _is_entry(head[0]) else None
    if opening is None or head[-1].dts is None or any(p.pts is None and displayed_by(p).frames for p in head):
        return chain(head, packets), None
    if not _shows_in_order(source, head):
        return chain(head, packets), None
    shown = (p.pts for p in head if not p.is_discard and displayed_by(p).frames and p.pts is not None)
    origin = min((pts for pts in shown if pts >= opening), default=None)
    return chain(head, packets), origin


def _shows_in_order(source: Source, head: list[Packet[VideoStream]]) -> bool:
    """Return whether the frames of the first packets come out of the decoder in the order of their timestamps.

    A few are decoded to find out; more if packets are reordered in another way than the stream declares, for example if
    timestamps merely number the packets.
    """
    stamps = [packet.pts or 0 for packet in head if displayed_by(packet).frames]
    depth = max(sum(one > stamp for one in stamps[:number]) for number, stamp in enumerate(stamps))
    due = source.reorder_depth
    if depth == due == 0:
        return True
    few = head[: FEW_FRAMES if 0 < depth <= due else 2 * REORDER_FRAMES]
    shown = source.peek_timestamps((*few, None))
    return all(one is not None and other is not None and one < other for one, other in pairwise(shown))


def seek_to(source: Source, window: Window) -> SeekPoint:
    """Return the packets from the last keyframe at or before the first frame that a window needs.

    Nothing is seeked: what packets before that keyframe show is counted, and they are dropped undecoded. Where packets do not tell
    which frames they show, decoding begins at the beginning. Decoders reorder at most REORDER_FRAMES frames, so reading goes on for
    as many packets behind the one that settles the first frame; fields in Matroska have DTS that are out of order.
    """
    if window.is_whole:
        return SeekPoint(source.packets())
    following, origin = _find_origin(source)
    if origin is None:
        return SeekPoint(following)
    window = window.count_from(origin)
    waiting: list[Packet[VideoStream]] = []
    entries: list[tuple[int, int]] = []  # place in `waiting` and tick of each keyframe
    stamps: list[int] = []
    num_past = 0
    needs_all = False  # from the first packet on that later ones need
    for packet in following:
        needs_all |= displayed_by(packet).needed_later
        if packet.pts is None:
            if displayed_by(packet).frames:
                raise ReadError("a packet on the way to the cut has no timestamp", path=source.path)
        else:
            tick = packet.pts - origin
            if _is_entry(packet):
                if not needs_all:
                    waiting, entries = _drop_early(waiting, entries, window, stamps)
                entries.append((len(waiting), tick))
            if not packet.is_discard and tick >= 0:
                for _ in range(displayed_by(packet).frames):
                    insort(stamps, tick)
        waiting.append(packet)
        num_past += window.is_settled(None if packet.dts is None else packet.dts - origin, stamps, REORDER_FRAMES)
        if num_past > REORDER_FRAMES:
            break
    if not stamps:
        return SeekPoint(chain(waiting, following))
    needed = window.first_needed(stamps)
    sure = [] if needs_all else [entry for entry in entries if entry[1] <= needed]
    place, tick = sure[-1] if sure else entries[0]
    source.begins_inside = tick > 0
    before = bisect_left(stamps, needed)
    return SeekPoint(chain(waiting[place:], following), origin, before, needed)


def _drop_early(
    waiting: list[Packet[VideoStream]], entries: list[tuple[int, int]], window: Window, stamps: list[int]
) -> tuple[list[Packet[VideoStream]], list[tuple[int, int]]]:
    """Drop packets before the last keyframe that is certainly not after the first needed frame."""
    number = next((n for n in reversed(range(len(entries))) if window.may_begin_at(entries[n][1], stamps)), 0)
    if not number:
        return waiting, entries
    begin = entries[number][0]
    return waiting[begin:], [(place - begin, tick) for place, tick in entries[number:]]
