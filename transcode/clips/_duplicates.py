"""Find clips that show the same: copies that were encoded again, scaled, cropped a little, given bars, or cut shorter.

Each clip has PDQ hashes (256 bits, ThreatExchange) of a frame every half second, two of each: of the picture inside black bars, and of
its middle. Two frames match if a hash of one differs from a hash of the other by at most `DISTANCE` bits. Two clips match if, at one
offset in time, `SHARE` of the frames that they have in common match, and these are three at least, or `SHARE` of the shorter clip.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vidprep.transcode.clips._measure import LOOK_SECONDS

DISTANCE = 64  # of 256 bits; two pictures that have nothing in common differ by 128, with a standard deviation of 8
SHARE, LEAST_MATCHES = 0.5, 3
OFFSET_SECONDS = 0.3  # offsets of the matches of two clips differ by at most this; less than LOOK_SECONDS
BYTES = 32
MIRRORED = np.packbits(np.tile([0, 1], 128))  # a mirrored picture has other signs of the odd columns of PDQ's DCT
EXACT_SEARCH = 100_000  # hashes that are compared with all others; more are looked up by parts of their bits
NUM_PARTS, PART_BITS, PART_FLIPS = 16, 16, 1
QUERIES_AT_ONCE = 65_536

Numbers = npt.NDArray[np.int64]


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
        distance: Mean number of bits by which matching hashes differ
    """

    one: int
    other: int
    seconds: float
    distance: float


@dataclass(frozen=True, slots=True)
class Hashes:
    """Hashes of all clips.

    Attributes:
        bits: (N, 32) the hashes
        clips: (N,) number of the clip of each
        seconds: (N,) its time in its clip
        lengths: (C,) number of frames with hashes of each clip
        durations: (C,) seconds of each clip
    """

    bits: npt.NDArray[np.uint8]
    clips: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    durations: npt.NDArray[np.float64]

    @classmethod
    def parse(cls, texts: Sequence[str | None], durations: Sequence[float]) -> Hashes:
        """Return the hashes of a column of the table. Raises ValueError for anything else."""
        clips, seconds, bits = list[int](), list[float](), list[bytes]()
        for number, text in enumerate(texts):
            for each in (text or "").split():
                time, _, hashes = each.partition(":")
                for hash_ in hashes.split(","):
                    clips.append(number)
                    seconds.append(float(time))
                    bits.append(base64.b64decode(hash_ + "="))
        lengths = [len((text or "").split()) for text in texts]
        array = np.frombuffer(b"".join(bits), np.uint8).reshape(len(clips), BYTES)
        return cls(array, np.array(clips, int), np.array(seconds), np.array(lengths, int), np.array(durations, float))

    def matches(self, *, mirrored: bool = False) -> list[Match]:
        """Return all pairs of clips that match.

        Args:
            mirrored: Pictures that are mirrored match, too.
        """
        found = [self._similar(self.bits)]
        if mirrored:
            found.append(self._similar(self.bits ^ MIRRORED))
        return [match for similar in found for match in self._vote(*similar)]

    def _similar(self, queries: npt.NDArray[np.uint8]) -> tuple[Numbers, Numbers, Numbers]:
        """Return numbers of hashes of two clips that are similar, (M,) and (M,), and how many bits differ, (M,)."""
        import faiss

        index: Any = faiss.IndexBinaryFlat(8 * BYTES)
        if len(queries) > EXACT_SEARCH:
            index = faiss.IndexBinaryMultiHash(8 * BYTES, NUM_PARTS, PART_BITS)
            index.nflip = PART_FLIPS
        index.add(np.ascontiguousarray(self.bits))
        found = [(np.empty(0, int), np.empty(0, int), np.empty(0, int))]
        for begin in range(0, len(queries), QUERIES_AT_ONCE):
            block = np.ascontiguousarray(queries[begin : begin + QUERIES_AT_ONCE])
            limits, distances, places = index.range_search(block, DISTANCE + 1)
            mine = np.repeat(np.arange(begin, begin + len(block)), np.diff(limits.astype(int)))
            taken = self.clips[mine] < self.clips[places]
            found.append((mine[taken], places[taken], distances[taken]))
        mine, places, distances = map(np.concatenate, zip(*found, strict=True))
        return mine, places, distances

    def _vote(self, mine: Numbers, others: Numbers, distances: Numbers) -> Iterator[Match]:
        """Yield the pairs of clips of which enough hashes match at one offset."""
        if not len(mine):
            return
        names = ("one", "other", "begin", "end", "distance")
        times = self.seconds[mine], self.seconds[others]
        table = pa.table([self.clips[mine], self.clips[others], *times, distances], names=names)
        frames = table.group_by(names[:-1]).aggregate([("distance", "min")])  # a frame has two hashes
        offset = np.round(frames["end"].to_numpy() - frames["begin"].to_numpy(), 6)
        one, other, distance = (frames[name].to_numpy() for name in ("one", "other", "distance_min"))
        order = np.lexsort((offset, other, one))
        one, other, distance, offset = one[order], other[order], distance[order], offset[order]
        firsts = np.flatnonzero(np.r_[True, (np.diff(one) != 0) | (np.diff(other) != 0)]).tolist()
        for first, past in zip(firsts, [*firsts[1:], len(one)], strict=True):
            offsets = offset[first:past]
            counts = np.searchsorted(offsets, offsets + OFFSET_SECONDS, "right") - np.arange(len(offsets))
            best = int(np.argmax(counts))
            pair, count = (int(one[first]), int(other[first])), int(counts[best])
            inside = slice(first + best, first + best + count)
            seconds = float(np.median(offset[inside]))
            if count >= self._least(*pair, seconds):
                yield Match(*pair, seconds, float(np.mean(distance[inside])))

    def _least(self, one: int, other: int, seconds: float) -> float:
        """Return how many frames of two clips at an offset have to match."""
        common = min(float(self.durations[one]), float(self.durations[other]) - seconds) - max(0.0, -seconds)
        least = min(LEAST_MATCHES, SHARE * min(self.lengths[one], self.lengths[other]))
        return float(max(1.0, least, SHARE * common / float(LOOK_SECONDS)))


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


def duplicates(order: Iterable[int], matches: Iterable[Match]) -> dict[int, Match]:
    """Return the clips that show the same as one that is none of these, with the nearest of those as `other`.

    Args:
        order: Numbers of the clips. The first of clips that show the same is no duplicate.
        matches: Pairs of clips.
    """
    near = defaultdict[int, list[Match]](list)
    for match in matches:
        near[match.other].append(Match(match.other, match.one, -match.seconds, match.distance))
        near[match.one].append(match)
    kept, found = set[int](), dict[int, Match]()
    for number in order:
        nearest = min(
            (each for each in near[number] if each.other in kept), key=lambda each: each.distance, default=None
        )
        if nearest is None:
            kept.add(number)
        else:
            found[number] = nearest
    return found
