"""Check whether the sample tables of an MP4 or MOV file agree (ISO/IEC 14496-12, 8).

One flipped bit in them moves, hides or drops frames, while the result looks complete. But they store the same facts
more than once: the number of samples (stts, ctts, stsc, stsz), their durations (stts, mdhd, tkhd, elst), and display
times (ctts, as regular as stts).
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, chain, islice, repeat
from operator import add
from pathlib import Path
from typing import NamedTuple

from vidprep.formats.storage.untrusted import open_regular

Rows = list[tuple[int, ...]]

NOT_UNDERSTOOD = OSError, struct.error, LookupError, ValueError, ArithmeticError
MAX_INDEX_BYTES = 1 << 30
UNKNOWN = {0, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF}
VISUAL_ENTRY_BYTES = 78  # size of the fields before its boxes (ISO/IEC 14496-12, 12.1.3)
ALPHA = b":auxiliary:alpha\0"  # end of the URN in `auxi`
NOTHING = -1  # the media time of an edit that shows nothing
# Position of a table's rows, and size of a row.
ROWS = {b"stts": (8, 8), b"ctts": (8, 8), b"stsc": (8, 12), b"stco": (8, 4), b"co64": (8, 8), b"stss": (8, 4)}
# If more than one sample in so many differs from the others, the writer meant it.
ONE_IN = 10
# Frames that a decoder may hold back (max_dec_frame_buffering of H.264 and HEVC), and the one that is shown.
MOST_REORDERED = 17
MAX_SAMPLES = 1 << 24
FIRST_FRAMES, HALF = 64, Fraction(1, 2)


def contradictions(path: str | Path, track_id: int) -> list[str]:
    """Return a line for each contradiction between the tables of a track; nothing for fragments, which have no tables.

    What is not understood is ignored. `lost_samples` tells whether a frame is lost.
    """
    with suppress(*NOT_UNDERSTOOD):
        movie = index_of(Path(path))
        if movie.has(b"mvex"):
            return []
        track = track_of(movie, track_id)
        overfull = [*_overfull(track.one(b"mdia", b"minf", b"stbl")), *_overfull_edits(track)]
        return overfull or list(_disagreeing(Track(movie, track)))
    return []


def is_fragmented(path: str | Path) -> bool:
    """Return whether a file may have fragments, each with its own samples."""
    with suppress(*NOT_UNDERSTOOD):
        return index_of(Path(path)).has(b"mvex")
    return False


def lost_samples(path: str | Path, track_id: int, num_read: int, num_discarded: int) -> list[str]:
    """Return the frames of a track that libavformat does not deliver although no edit hides them, in a line.

    Args:
        path: The file.
        track_id: Id of the video track.
        num_read: Packets that were read, with those that are marked to be discarded.
        num_discarded: The latter. Edits hide no frames of fragments: libavformat discards those earlier than the
            fragment before.
    """
    with suppress(*NOT_UNDERSTOOD):
        movie = index_of(Path(path))
        if movie.has(b"mvex"):
            return [f"{num_discarded} of its frames are earlier than the fragment before them"] if num_discarded else []
        track = Track(movie, track_of(movie, track_id))
        num_read += track.num_empty
        if num_read >= track.num_samples or track.num_samples > MAX_SAMPLES or _counts(track) is not None:
            return []  # the last: what tables claim that contradict each other may not fit into memory
        if track.shows_all or not track.is_edited_throughout:
            return [f"{track.num_samples - num_read} of the {track.num_samples} frames in its index cannot be read"]
    return []


def frames_left_out(path: str | Path, track_id: int, num_shown: int) -> list[str]:
    """Return the frames of a track that are in the file and are not shown because of a table that is wrong, in a line.

    A consistent edit list hides frames on purpose.

    Args:
        path: The file, which was read to its end.
        track_id: Id of the video track.
        num_shown: Packets that were read and are displayed.
    """
    with suppress(*NOT_UNDERSTOOD):
        movie = index_of(Path(path))
        if movie.has(b"mvex"):
            return []
        box = track_of(movie, track_id)
        track = Track(movie, box)
        if num_shown < track.num_samples - track.num_empty and (why := _why_left_out(track, box, num_shown)):
            return [f"{num_shown} of the {track.num_samples} frames in its index are shown, because {why}"]
    return []


def _why_left_out(track: Track, box: Box, num_shown: int) -> str | None:
    """Return which table is wrong, if fewer frames are shown than the edits ask for because of it."""
    if why := next(_overfull(box.one(b"mdia", b"minf", b"stbl")), None) or _counts(track):
        return why  # others may be shown than those that the edits ask for
    if num_shown >= track.num_due - HALF or not 0 < track.num_samples <= MAX_SAMPLES:
        return None
    order = _order(track) if track.delays is not None else ()
    return next(chain(order, _durations(track)), None)


def last_sample_end(path: str | Path) -> int | None:
    """Return the end of the last sample of all tracks, by the sample tables; None if they are not understood."""
    with suppress(*NOT_UNDERSTOOD):
        return max(map(_sample_end, index_of(Path(path)).all(b"trak")), default=0)
    return None


def _sample_end(track: Box) -> int:
    tables = track.one(b"mdia", b"minf", b"stbl")
    offsets = [
        at for (at,) in (tables.one(b"stco").rows("I") if tables.has(b"stco") else tables.one(b"co64").rows("Q"))
    ]
    if not offsets:
        return 0
    last = max(range(len(offsets)), key=offsets.__getitem__)
    before = count = 0
    runs = tables.one(b"stsc").rows("III")
    for (first, samples, _), after in zip(runs, [row[0] for row in runs[1:]] + [len(offsets) + 1], strict=True):
        if first - 1 <= last < after - 1:
            before, count = before + (last - first + 1) * samples, samples
            break
        before += (after - first) * samples
    sizes = tables.one(b"stsz")
    each = sizes.numbers("I", 4)[0]
    length = each * count if each else sum(sizes.numbers(f"{count}I", 12 + 4 * before))
    return offsets[last] + length


def num_empty_samples(path: str | Path, track_id: int) -> int:
    """Return the number of samples without bytes in a track; each repeats the previous picture."""
    with suppress(*NOT_UNDERSTOOD):
        tables = track_of(index_of(Path(path)), track_id).one(b"mdia", b"minf", b"stbl")
        return _num_empty(tables)
    return 0


def _num_empty(tables: Box) -> int:
    sizes = tables.one(b"stsz")
    each, count = sizes.numbers("II", 4)
    if each or count > MAX_SAMPLES:
        return 0
    return sizes.numbers(f"{count}I", 12).count(0)


def num_video_frames(path: str | Path, begin: int) -> int:
    """Return the number of video frames in the first index after a position; 0 if it is not understood."""
    with suppress(*NOT_UNDERSTOOD):
        media = [track.one(b"mdia") for track in index_of(Path(path), begin).all(b"trak")]
        shown = [each for each in media if bytes(each.one(b"hdlr").data[8:12]) == b"vide"]
        return sum(each.one(b"minf", b"stbl", b"stsz").numbers("I", 8)[0] for each in shown)
    return 0


def num_edits(path: str | Path, track_id: int) -> int:
    """Return the number of media spans that a track displays; 0 if it displays everything."""
    with suppress(*NOT_UNDERSTOOD):
        return sum(edit.begin != NOTHING for edit in edits_of(track_of(index_of(Path(path)), track_id)))
    return 0


def has_alpha_track(path: str | Path) -> bool:
    """Return whether a track holds the alpha of another, as in animated AVIF (ISO/IEC 23008-12, 7.5.3.1)."""
    with suppress(*NOT_UNDERSTOOD):
        media = [track.one(b"mdia") for track in index_of(Path(path)).all(b"trak")]
        return any(bytes(each.one(b"hdlr").data[8:12]) == b"auxv" and ALPHA in bytes(each.data) for each in media)
    return False


def has_dolby_colours(path: str | Path, track_id: int) -> bool:
    """Return whether a file is Dolby Vision whose base layer only Dolby decoders display correctly.

    That is if dv_bl_signal_compatibility_id is 0, as in profile 5 (Dolby Vision Streams Within the ISO Base Media File
    Format, 3.1).
    """
    with suppress(*NOT_UNDERSTOOD):
        described = track_of(index_of(Path(path)), track_id).one(b"mdia", b"minf", b"stbl", b"stsd").data
        entry = Box(described[8 + 8 + VISUAL_ENTRY_BYTES :])
        return any(record.data[4] >> 4 == 0 for kind in (b"dvcC", b"dvvC") for record in entry.all(kind))
    return False


class Box(NamedTuple):
    """Content of a box."""

    data: memoryview

    def all(self, kind: bytes) -> Iterator[Box]:
        at = 0
        while at + 8 <= len(self.data):
            size, name = struct.unpack_from(">I4s", self.data, at)
            if size < 8:
                return
            if name == kind:
                yield Box(self.data[at + 8 : at + size])
            at += size

    def one(self, *path: bytes) -> Box:
        """Return the first box of a kind. Raises LookupError if it is missing."""
        box = self
        for kind in path:
            inner = next(box.all(kind), None)
            if inner is None:
                raise LookupError(kind)
            box = inner
        return box

    def has(self, kind: bytes) -> bool:
        return any(True for _ in self.all(kind))

    def numbers(self, kinds: str, at: int) -> tuple[int, ...]:
        """Unpack numbers. Raises struct.error past the end of the box."""
        return struct.unpack_from(">" + kinds, self.data, at)

    @property
    def version(self) -> int:
        return self.data[0]

    def rows(self, kinds: str) -> Rows:
        row = struct.Struct(">" + kinds)
        return list(row.iter_unpack(self.data[8 : 8 + row.size * self.numbers("I", 4)[0]]))


def index_of(path: Path, begin: int = 0) -> Box:
    """Return the first moov box at or after the box at `begin`. Raises LookupError if there is none."""
    with open_regular(path) as file:
        file.seek(begin)
        while len(header := file.read(8)) == 8:
            size, kind = struct.unpack(">I4s", header)
            head = 8
            if size == 1:
                size, head = struct.unpack(">Q", file.read(8))[0], 16
            if kind == b"moov" and size <= MAX_INDEX_BYTES:
                return Box(memoryview(file.read(size - head if size else MAX_INDEX_BYTES)))
            if size < head:
                break
            file.seek(size - head, 1)
    raise LookupError("moov")


def track_of(movie: Box, track_id: int) -> Box:
    """Return the track with this id. Raises LookupError."""
    for track in movie.all(b"trak"):
        head = track.one(b"tkhd")
        if head.numbers("I", 20 if head.version else 12)[0] == track_id:
            return track
    raise LookupError(track_id)


def _overfull(tables: Box) -> Iterator[str]:
    for kind, (begin, size) in ROWS.items():
        for table in tables.all(kind):
            count = table.numbers("I", 4)[0]
            if begin + size * count > len(table.data):
                yield f"its {kind.decode()} table claims {count} rows and has room for {(len(table.data) - begin) // size}"


def _overfull_edits(track: Box) -> Iterator[str]:
    for box in (box for lists in track.all(b"edts") for box in lists.all(b"elst")):
        count, room = box.numbers("I", 4)[0], (len(box.data) - 8) // (20 if box.version else 12)
        if count > room or box.version > 1:
            yield f"its elst table claims {count} rows of version {box.version} and has room for {room}"


class Track:
    """Sample tables of a track. Durations and times are in ticks of the media; durations of edits in ticks of the movie."""

    def __init__(self, movie: Box, track: Box) -> None:
        head = track.one(b"tkhd")
        self.duration = head.numbers("Q", 28)[0] if head.version else head.numbers("I", 20)[0]
        head = movie.one(b"mvhd")
        self.movie_rate = head.numbers("I", 20 if head.version else 12)[0]
        head = track.one(b"mdia", b"mdhd")
        self.rate, self.media_duration = head.numbers("IQ", 20) if head.version else head.numbers("II", 12)
        self.edits = [(edit.duration, edit.begin) for edit in edits_of(track)]
        tables = track.one(b"mdia", b"minf", b"stbl")
        self.steps = tables.one(b"stts").rows("II")
        self.delays = tables.one(b"ctts").rows("Ii") if tables.has(b"ctts") else None
        self._tables = tables
        self.chunks = tables.one(b"stsc").rows("III")
        self.num_chunks = tables.one(b"stco" if tables.has(b"stco") else b"co64").numbers("I", 4)[0]
        self.num_samples = tables.one(b"stsz").numbers("I", 8)[0]
        self.num_empty = _num_empty(tables)
        self.num_descriptions = tables.one(b"stsd").numbers("I", 4)[0]

    @property
    def offsets(self) -> Iterator[int]:
        """Yield the position of each sample in the file, in decode order. Raises struct.error, LookupError."""
        tables = self._tables
        chunks = [
            at for (at,) in (tables.one(b"stco").rows("I") if tables.has(b"stco") else tables.one(b"co64").rows("Q"))
        ]
        box = tables.one(b"stsz")
        each = box.numbers("I", 4)[0]
        sizes = iter([each] * self.num_samples if each else box.numbers(f"{self.num_samples}I", 12))
        ends = [row[0] for row in self.chunks[1:]] + [len(chunks) + 1]
        for (first, count, _), after in zip(self.chunks, ends, strict=True):
            for at in chunks[first - 1 : after - 1]:
                place = at
                for size in islice(sizes, count):
                    yield place
                    place += size

    @property
    def is_edited_throughout(self) -> bool:
        """Return whether the edits last as long as the track claims; otherwise what they hide was not hidden on purpose."""
        return abs(sum(length for length, _ in self.edits) - self.duration) <= 1 + len(self.edits)

    @property
    def shows_all(self) -> bool:
        """Whether edits hide no frame."""
        spans = [
            (begin, begin + Fraction(length * self.rate, self.movie_rate or 1))
            for length, begin in self.edits
            if begin != NOTHING
        ]
        if len(spans) != 1 or not self.shown:
            return not self.edits
        ((begin, end),) = spans
        return begin <= min(self.shown) and (end >= max(self.shown) or not end - begin)

    @property
    def num_due(self) -> Fraction:
        """Number of frames that are shown in the time that headers claim, if they are equally far apart."""
        empty = sum(length for length, begin in self.edits if begin == NOTHING)
        edited = sum(length for length, begin in self.edits if begin != NOTHING)
        claimed = max(0 if self.duration in UNKNOWN else self.duration - empty, edited)
        total = sum(count * step for count, step in self.steps)
        media = min(total, self.media_duration) if self.media_duration not in UNKNOWN else total
        if not claimed or not media or not self.movie_rate:
            return Fraction(self.num_samples)
        return min(
            Fraction(self.num_samples), Fraction(claimed * self.rate * self.num_samples, self.movie_rate * media)
        )

    @cached_property
    def step(self) -> int:
        """Most common duration of a sample."""
        lasting = Counter[int]()
        for count, step in self.steps:
            lasting[step] += count
        return max(lasting, key=lasting.__getitem__, default=0)

    @cached_property
    def longest(self) -> int:
        return max((step for _, step in self.steps), default=0)

    @cached_property
    def num_irregular(self) -> int:
        """Number of samples with another duration than most."""
        return sum(count for count, step in self.steps if step != self.step)

    @cached_property
    def delay(self) -> list[int]:
        """Time from decoding a sample to displaying it."""
        return [0] * self.num_samples if self.delays is None else _spread(self.delays)

    @cached_property
    def shown(self) -> list[int]:
        """Return the display time of each frame, in decode order."""
        begins = accumulate(_spread(self.steps), initial=0)
        return [begin + delay for begin, delay in zip(begins, self.delay, strict=False)]

    @property
    def first_shown(self) -> list[int]:
        """Return the display times of the first frames, ascending."""
        begins = accumulate(_values(self.steps), initial=0)
        delays = repeat(0, self.num_samples) if self.delays is None else _values(self.delays)
        return sorted(islice(map(add, begins, delays), FIRST_FRAMES))


def _values(runs: Rows) -> Iterator[int]:
    """Expand (count, value) pairs to values."""
    return chain.from_iterable(repeat(value, count) for count, value in runs)


def _spread(runs: Rows) -> list[int]:
    return list(_values(runs))


class Edit(NamedTuple):
    """An edit as it is stored: duration in ticks of the movie, start in ticks of the media, rate in 1/65536."""

    duration: int
    begin: int
    rate: int


def edits_of(track: Box) -> Iterator[Edit]:
    """Yield the edits of a track."""
    for box in (box for lists in track.all(b"edts") for box in lists.all(b"elst")):
        kinds, size = ("Qqi", 20) if box.version else ("Iii", 12)
        for number in range(box.numbers("I", 4)[0]):
            yield Edit(*box.numbers(kinds, 8 + size * number))


def _disagreeing(track: Track) -> Iterator[str]:
    if differing := _counts(track):
        yield differing
    elif 0 < track.num_samples <= MAX_SAMPLES:
        yield from _durations(track)
        if track.delays is not None:
            yield from _order(track)


def _counts(track: Track) -> str | None:
    counts = {"stsz": track.num_samples, "stts": sum(count for count, _ in track.steps)}
    if track.delays is not None:
        counts["ctts"] = sum(count for count, _ in track.delays)
    firsts = [first for first, _, _ in track.chunks] + [track.num_chunks + 1]
    counts["stsc"] = sum(
        (after - first) * samples for (first, samples, _), after in zip(track.chunks, firsts[1:], strict=True)
    )
    if len(set(counts.values())) > 1:
        return "its tables differ in the number of frames: " + ", ".join(f"{n} in {kind}" for kind, n in counts.items())
    for _, _, description in track.chunks:
        if not 1 <= description <= track.num_descriptions:
            return f"its stsc table names description {description} of {track.num_descriptions}"
    return None


def _durations(track: Track) -> Iterator[str]:
    known = track.media_duration not in UNKNOWN
    grid = track.step if track.num_irregular <= 1 else math.gcd(*(step for _, step in track.steps))
    total = sum(count * step for count, step in track.steps)
    left = abs(total - track.media_duration)
    # Some writers do not count the last frame, or count when it is shown.
    if known and left not in (0, track.steps[-1][1]) and (left > 2 * track.step or left % max(1, grid)):
        yield f"its frames last {total} ticks by stts, {track.media_duration} by mdhd"
    if track.duration in UNKNOWN or not known or not track.movie_rate or not track.rate:
        return
    edited = sum(duration for duration, _ in track.edits)
    if edited and not track.is_edited_throughout:
        yield f"its edits last {edited} ticks, its track {track.duration}"
    elif not track.edits:
        media = Fraction(track.media_duration, track.rate)
        if abs(Fraction(track.duration, track.movie_rate) - media) > 2 * Fraction(1, track.movie_rate):
            yield f"its track lasts {track.duration / track.movie_rate:.3f} s, its media {float(media):.3f} s"
    end = max(track.shown) + track.longest
    for duration, begin in track.edits:
        last = begin + Fraction(duration * track.rate, track.movie_rate)
        latest = end + track.longest + 2 * Fraction(track.rate, track.movie_rate)
        if begin != NOTHING and not 0 <= begin <= last <= latest:
            yield f"an edit shows ticks {begin} to {float(last):.0f} of a media of {end}"


def _order(track: Track) -> Iterator[str]:
    """Yield a line if a few display times are irregular while the others are regular."""
    count, shown, delays = track.num_samples, set(track.shown), sorted(track.delay)
    most = count // ONE_IN

    if 0 < (doubled := count - len(shown)) <= most:
        yield f"{doubled} of its frames are shown at the time of another"

    far, usual = MOST_REORDERED * track.longest, delays[count // 2]
    if 0 < (late := sum(abs(delay - usual) > far for delay in delays)) <= most:
        yield f"{late} of its frames are shown long before or after they are decoded"

    is_regular = track.num_irregular == 0 or (track.num_irregular == 1 and track.steps[-1][1] != track.step)
    if track.step and is_regular:
        phases = Counter(ticks % track.step for ticks in track.shown)
        if 0 < (off := count - max(phases.values())) <= most:
            yield f"{off} of its frames are shown between the times of all others"
        slots = sorted({ticks // track.step for ticks in shown})
        # No frame is displayed before it is decoded, so frames displayed before this were decoded before the end.
        begin, end = slots[len(slots) // ONE_IN], count + delays[count // ONE_IN] // track.step
        if 0 < (holes := end - begin - sum(begin <= slot < end for slot in slots)) <= most:
            yield f"{holes} of its frames are missing where they should be shown"
