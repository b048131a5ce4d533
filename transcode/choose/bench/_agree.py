"""Test before timing whether a loader returns the requested frames.

Our own reader identifies a frame by its timestamp, and loaders of videos are compared with it; in folders of pictures,
with the first loader. A picture is correct if its PSNR is SAME_DB or more. On real clips correct loaders were mostly
equal, and down to 39.5 dB (odd sizes, where chroma is interpolated differently), 49 dB (ProRes) and 55 dB (10 bits);
the next frame of a moving scene is at 15 to 35 dB. In a still scene neighbours are as similar, so a picture must not be
closer to a neighbour than to its own frame, by more than CLOSER_DB.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vidprep.formats import open_store
from vidprep.formats.stores.encoded import VideoStore
from vidprep.formats.stores.raw_files import VideoFiles
from vidprep.transcode.check.other_readers import RgbArray
from vidprep.transcode.choose.bench._measure import OwnReader, Reader, Ready, reader_of
from vidprep.transcode.choose.bench.places import ONLY_IN_ORDER, OURS, Access, Place, Video

SAME_DB, CLOSER_DB = 36.0, 1.0
NEIGHBOURS = (-3, -2, -1, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class PictureRequest:
    """Pictures to compare.

    Attributes:
        accesses: Access patterns that will be timed
    """

    place: Place
    loader: str
    reference: str
    accesses: tuple[Access, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a loader is correct.

    Attributes:
        fault: First wrong frame, and by how much it differs; None if all are correct
        lowest_db: Lowest PSNR of the compared pictures; inf if all are equal
    """

    fault: str | None
    lowest_db: float
    compared: int


def agrees(question: PictureRequest, _ready: Ready) -> Verdict:
    """Compare a loader on every video, up to the first fault. Raises what the loader raises."""
    place = question.place
    reader, reference = reader_of(place, question.loader), _reference(question)
    rng, lowest, compared = random.Random(question.seed), math.inf, 0
    for video in place.videos:
        ranges = _choose_frames(video, question.accesses, rng)
        truth = _TrueFrames(reference, video, ranges)
        for number, picture in _pictures(reader, question, video, ranges):
            fault, db = truth.judge(number, picture)
            lowest, compared = min(lowest, db), compared + 1
            if fault is not None:
                return Verdict(fault, lowest, compared)
    return Verdict(None, lowest, compared)


def _reference(question: PictureRequest) -> Reader:
    """Return the reader to compare with.

    Others use libjpeg's fast DCT and upsampling (GulpIO2) or libswscale's fast conversion (loaders of videos), which
    differ much where colours are saturated: they are compared with the same.
    """
    store = question.place.store
    is_video = question.reference == OURS != question.loader
    if question.loader == "GulpIO2" or (is_video and isinstance(store, VideoStore)):
        return OwnReader(open_store(question.place.path, fast=True))
    if is_video and isinstance(store, VideoFiles):
        files = [store.file(id_) for id_ in store.ids]
        return OwnReader(VideoFiles(files, keep_source_suffix=store.keep_source_suffix, fast=True))
    return reader_of(question.place, question.reference)


def _choose_frames(video: Video, accesses: tuple[Access, ...], rng: random.Random) -> list[range]:
    """Return frame numbers: the first, the last, those around a keyframe, two random ones, and a sequence of each access
    pattern, unsorted.
    """
    count = video.num_frames
    keyframe = rng.choice(video.keyframes or range(count))
    singles = [0, count - 1, keyframe - 1, keyframe, keyframe + 1, *(rng.randrange(count) for _ in range(2))]
    ranges = [range(number, number + 1) for number in dict.fromkeys(singles) if 0 <= number < count]
    ranges += [access.numbers(video, rng) for access in accesses if access.pattern in ("consecutive", "strided")]
    rng.shuffle(ranges)
    return ranges


def _pictures(
    reader: Reader, question: PictureRequest, video: Video, asked: list[range]
) -> Iterator[tuple[int, RgbArray | None]]:
    """Yield pictures by number; None for missing and for additional ones."""
    in_order_only = question.loader in ONLY_IN_ORDER
    if not in_order_only:
        for numbers in asked:
            pictures = list(reader.read(video.id, numbers))
            yield from zip(numbers, pictures + [None] * (len(numbers) - len(pictures)), strict=True)
    if in_order_only or any(access.pattern == "whole" for access in question.accesses):
        wanted = {number for numbers in asked for number in numbers}
        count = 0
        for number, picture in enumerate(reader.whole(video.id)):
            count = number + 1
            if number in wanted or count > video.num_frames:
                yield number, picture if number in wanted else None
        if count < video.num_frames:
            yield count, None


class _TrueFrames:
    """The requested frames and their neighbours."""

    def __init__(self, reference: Reader, video: Video, asked: list[range]) -> None:
        self._reference, self._video = reference, video
        self._frames: dict[int, RgbArray] = {}
        # A few ranges instead of many frames: videos without keyframes are decoded once for each.
        for numbers in asked:
            around = range(max(0, numbers.start - 1), min(video.num_frames, numbers.stop + 1))
            self._frames |= zip(around, reference.read(video.id, around), strict=True)

    def _frame(self, number: int) -> RgbArray:
        if number not in self._frames:
            self._frames[number] = self._reference.read(self._video.id, range(number, number + 1))[0]
        return self._frames[number]

    def judge(self, number: int, picture: RgbArray | None) -> tuple[str | None, float]:
        """Return what is wrong with a picture that should be this frame, and its PSNR."""
        named, count = f"frame {number} of {self._video.id}", self._video.num_frames
        if picture is None:
            return f"{named}, which has {count}, is {'given' if number >= count else 'not given'}", 0.0
        own = self._frame(number)
        if picture.shape != own.shape:
            (height, width), (true_height, true_width) = picture.shape[:2], own.shape[:2]
            lying = " (rotated)" if (height, width) == (true_width, true_height) else ""
            return f"{named} is {width}x{height}, {true_width}x{true_height} is there{lying}", 0.0
        db = _psnr_db(picture, own)
        around = [self._frame(n) for n in (number - 1, number + 1) if 0 <= n < count]
        nearest = max((_psnr_db(picture, frame) for frame in around), default=0.0)
        if db >= SAME_DB and nearest <= db + CLOSER_DB:
            return None, db
        return f"{named} is {db:.1f} dB from the reference{self._looks_like(number, picture)}", db

    def _looks_like(self, number: int, picture: RgbArray) -> str:
        others = [number + step for step in NEIGHBOURS if 0 <= number + step < self._video.num_frames]
        scored = [(_psnr_db(picture, self._frame(other)), other) for other in others]
        best = max(scored, default=(0.0, 0))
        if best[0] >= SAME_DB:
            return f" (looks like frame {best[1]})"
        if _psnr_db(picture[::-1, ::-1], self._frame(number)) >= SAME_DB:
            return " (upside down)"
        return ""


def _psnr_db(one: RgbArray, other: RgbArray) -> float:
    """Return the PSNR over three channels; inf if equal."""
    difference = one.astype(np.int32) - other
    error = float(np.mean(difference * difference))
    return 10 * math.log10(255**2 / error) if error else math.inf
