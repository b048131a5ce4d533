"""Find clips that show the same: copies that were encoded again, scaled, cropped a little, given bars, or cut shorter.

Each clip has PDQ hashes (256 bits, ThreatExchange) of some frames (`_measure`), two of each: of the picture inside black bars, and of its
middle. Two frames match if a hash of one differs from a hash of the other by at most `DISTANCE` bits. Two clips match if, at one offset
in time, `MATCHES_PER_SECOND` frames match in the time that they have in common, and five at least, or `SHARE` of the shorter clip. Only
clips of which one of every `ASKED` frames matches a frame of the other are compared so.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

DISTANCE = 72  # of 256 bits; two pictures that have nothing in common differ by 128, with a standard deviation of 8
MATCHES_PER_SECOND = 1.2
SHARE, LEAST_MATCHES = 0.3, 5
OFFSET_SECONDS = 0.2  # offsets of the matches of two clips differ by at most this
NEAREST = 4  # the offset is that of the frames that match to within so many bits as well as the best
BYTES = 32
ASKED = 3  # a hash of every third frame is compared with all hashes, in turn the first and the second
MIRRORED = np.packbits(np.tile([0, 1], 128))  # a mirrored picture has other signs of the odd columns of PDQ's DCT
NUM_BITS = np.array([number.bit_count() for number in range(256)], np.uint8)
QUERIES_AT_ONCE = 16_384

Numbers = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]


def hashes_text(hashes: Iterable[tuple[float, tuple[bytes, ...]]]) -> str | None:
    """Return hashes as text: `SECONDS:HASH,HASH SECONDS:HASH …`, in base 64."""

    def text(seconds: float, each: tuple[bytes, ...]) -> str:
        return f"{seconds:.3f}:" + ",".join(base64.b64encode(hash_).decode().rstrip("=") for hash_ in each)

    return " ".join(text(*each) for each in hashes) or None


class Match(NamedTuple):
    """Two clips that show the same.

    Attributes:
        one: Number of a clip
        other: Number of another clip, which is larger
        seconds: Time in the other one of what the first one shows at 0
        num_frames: How many of its frames match
        distance: Mean number of bits by which matching hashes differ
    """

    one: int
    other: int
    seconds: float
    num_frames: int
    distance: float


@dataclass(frozen=True, slots=True)
class Hashes:
    """Hashes of all clips.

    Attributes:
        bits: (N, 32) the hashes, in the order of clips and times
        seconds: (N,) its time in its clip
        asked: (Q,) numbers of the hashes that are compared with all others
        starts: (C + 1,) number of the first hash of each clip
        lengths: (C,) number of frames with hashes of each clip
        durations: (C,) seconds of each clip
    """

    bits: Bits
    seconds: npt.NDArray[np.float64]
    asked: Numbers
    starts: Numbers
    lengths: Sequence[int]
    durations: Sequence[float]

    @classmethod
    def parse(cls, texts: Sequence[str | None], durations: Sequence[float]) -> Hashes:
        """Return the hashes of a column of the table. Raises ValueError for anything else."""
        seconds, asked, starts, lengths, bits = list[float](), list[int](), [0], list[int](), list[bytes]()
        for text in texts:
            frames = (text or "").split()
            for number, each in enumerate(frames):
                time, _, joined = each.partition(":")
                hashes = joined.split(",")
                asked += [len(bits) + number // ASKED % len(hashes)] if number % ASKED == 0 else []
                for hash_ in hashes:
                    seconds.append(float(time))
                    bits.append(base64.b64decode(hash_ + "="))
            starts.append(len(bits))
            lengths.append(len(frames))
        array = np.frombuffer(b"".join(bits), np.uint8).reshape(len(bits), BYTES)
        return cls(array, np.array(seconds), np.array(asked, int), np.array(starts, int), lengths, durations)

    def matches(self, *, mirrored: bool = False) -> list[Match]:
        """Return all pairs of clips that match.

        Args:
            mirrored: Pictures that are mirrored match, too.
        """
        kinds = [np.zeros(BYTES, np.uint8), MIRRORED] if mirrored else [np.zeros(BYTES, np.uint8)]
        found = (self._compare(*pair, other) for other in kinds for pair in self._similar(other))
        return [match for match in found if match is not None]

    def _similar(self, turned: Bits) -> Iterator[tuple[int, int]]:
        """Yield pairs of clips of which a hash that is asked is near one of the other."""
        import faiss

        index = faiss.IndexBinaryFlat(8 * BYTES)
        index.add(np.ascontiguousarray(self.bits))
        clips = np.repeat(np.arange(len(self.lengths)), np.diff(self.starts))
        found = [np.empty((0, 2), int)]
        for begin in range(0, len(self.asked), QUERIES_AT_ONCE):
            asked = self.asked[begin : begin + QUERIES_AT_ONCE]
            limits, _, places = index.range_search(np.ascontiguousarray(self.bits[asked] ^ turned), DISTANCE + 1)
            pairs = np.stack([np.repeat(clips[asked], np.diff(limits.astype(int))), clips[places]], 1)
            found.append(np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]]), axis=0))
        yield from np.unique(np.concatenate(found), axis=0).tolist()

    def _compare(self, one: int, other: int, turned: Bits) -> Match | None:
        """Return how two clips match, by all their hashes; None if too few do at one offset."""
        mine, others = (slice(*self.starts[number : number + 2]) for number in (one, other))
        distances = NUM_BITS[(self.bits[mine] ^ turned)[:, None] ^ self.bits[others]].sum(-1, dtype=int)
        rows, columns = np.nonzero(distances <= DISTANCE)
        if not len(rows):
            return None
        offsets = np.round(self.seconds[others][columns] - self.seconds[mine][rows], 3)
        order = np.argsort(offsets, kind="stable")
        rows, columns, offsets = rows[order], columns[order], offsets[order]
        in_common = np.concatenate([[0], np.cumsum(4 * BYTES - distances[rows, columns])])
        past = np.searchsorted(offsets, offsets + OFFSET_SECONDS, "right")
        best = int(np.argmax(in_common[past] - in_common[:-1]))
        window = slice(best, past[best])
        near = distances[rows[window], columns[window]]
        seconds = float(np.median(offsets[window][near <= near.min() + NEAREST]))
        num_frames = len(np.unique(self.seconds[mine][rows[window]]))
        if num_frames < self._least(one, other, seconds):
            return None
        return Match(one, other, seconds, num_frames, float(np.mean(near)))

    def _least(self, one: int, other: int, seconds: float) -> float:
        """Return how many frames of two clips at an offset have to match."""
        common = min(self.durations[one], self.durations[other] - seconds) - max(0.0, -seconds)
        least = min(LEAST_MATCHES, SHARE * min(self.lengths[one], self.lengths[other]))
        return max(1.0, least, MATCHES_PER_SECOND * common)


def group(num_clips: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Return for each clip the least number of its group: clips that pairs join."""
    above = list(range(num_clips))

    def top(number: int) -> int:
        while above[number] != number:
            above[number] = number = above[above[number]]
        return number

    for pair in pairs:
        first, second = sorted(map(top, pair))
        above[second] = first
    return [top(number) for number in range(num_clips)]


def duplicates(order: Iterable[int], matches: Iterable[Match], others: Iterable[int] = ()) -> dict[int, Match]:
    """Return the clips that show the same as one that is none of these, with the one with which it has most bits in common as `other`.

    Args:
        order: Numbers of the clips. The first of clips that show the same is no duplicate.
        matches: Pairs of clips.
        others: Clips that are no duplicates.
    """
    near = defaultdict[int, list[Match]](list)
    for match in matches:
        near[match.other].append(match._replace(one=match.other, other=match.one, seconds=-match.seconds))
        near[match.one].append(match)
    kept, found = set(others), dict[int, Match]()
    for number in order:
        of_kept = (each for each in near[number] if each.other in kept)
        if (most := max(of_kept, key=lambda each: each.num_frames * (4 * BYTES - each.distance), default=None)) is None:
            kept.add(number)
        else:
            found[number] = most
    return found
