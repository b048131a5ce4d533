"""What is measured of each frame, and what of a clip follows from it.

Luma Y and chroma Cb, Cr are the source's own, at full range, of a copy of 64 x 36 pixels (Y from 0 to 1). What needs more pixels is
measured twice a second: sharpness and spatial information of a grey copy of 320 x 180 pixels, and borders. Hashes are of four frames a
second and of those whose middle is the brightest or darkest within 0.16 seconds, which a copy that begins elsewhere has, too.

    motion                 sum of the mean absolute differences of luma between frames, per second of the clip
    frozen                 share of frames that differ from the one before by less than 0.001 in the mean (-60 dB, as freezedetect)
    black                  share of frames with 98 % of their pixels below 0.1 (as blackdetect)
    brightness, contrast   mean and standard deviation of luma, means over the frames
    saturation             distance of (Cb, Cr) from grey, 1 for 128 levels, mean over pixels and frames (as signalstats' SATAVG)
    sharpness              variance of the Laplacian, in levels of 0 to 255
    spatial_information    standard deviation of the Sobel gradient, in levels of 0 to 255 (ITU-T P.910, 7.7); mean over frames
    temporal_information   standard deviation of the difference to the frame before, likewise (P.910, 7.8); mean over frames
    borders                WIDTHxHEIGHT+LEFT+TOP of the picture inside black bars, in pixels as it is shown; empty without bars
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation, VideoReformatter

from vidprep.transcode.clips._shots import HEIGHT, WIDTH, Small
from vidprep.transcode.media.frames import SourceFrame

LOOKED_WIDTH, LOOKED_HEIGHT = 320, 180
BATCH = 32
LOOK_SECONDS, HASH_SECONDS, NEAR_SECONDS = Fraction(1, 2), Fraction(1, 4), Fraction(16, 100)
MIDDLE = (0, slice(HEIGHT // 8, -HEIGHT // 8), slice(WIDTH // 8, -WIDTH // 8))  # of the luma of a small copy
MOST_HELD = 12  # decoded frames
FROZEN, DARK, DARK_SHARE = 0.001 * 255, 0.1 * 255, 0.98
BAR_LEVEL, BAR_SHARE = 24, 0.02  # of 255: the brightest part of a line of a bar; of width or height: bars that count
HASHED_SIDE, CROPPED = 96, 5  # the second hash leaves out so many pixels at each side, 5 %
LEAST_QUALITY = 50  # PDQ's own threshold

Grey = npt.NDArray[np.uint8]
Box = tuple[int, int, int, int]  # left, top, right, bottom
# Means over frames, of which the last three need the frame before.
MEANS = ("black", "brightness", "contrast", "saturation", "moved", "frozen", "temporal_information")
NUM_OF_CHANGE = 3
NOTHING = np.zeros(len(MEANS))
LOOKS = ("sharpness", "spatial_information")


class Look(NamedTuple):
    """Measurements of some frames only.

    Attributes:
        values: (2,) as in LOOKS
        borders: The picture inside black bars; None in a black frame
        size: (width, height) of the frame as it is shown
    """

    values: npt.NDArray[np.float64]
    borders: Box | None
    size: tuple[int, int]


class Held(NamedTuple):
    """A frame of which the ones after it decide whether it is hashed."""

    picture: VideoFrame
    frame: Frame
    level: float
    look: Look | None


@dataclass(slots=True)
class Frame:
    """Measurements of one frame.

    Attributes:
        index: Number of the frame in its source
        tick: Its start, in ticks from the first frame
        end_tick: Its end
        small: A copy of 64 x 36 pixels
        values: (7,) as in MEANS
        change: Mean absolute difference of `small` to that of the frame before
        picture: (H, W, 3) RGB of the size that was asked for
        hashes: PDQ hashes of the picture inside the bars, and of its middle; empty if too little is in it to be told from others
    """

    index: int
    tick: int
    end_tick: int
    small: Small
    values: npt.NDArray[np.float64]
    change: float = 0.0
    look: Look | None = None
    picture: Grey | None = None
    hashes: tuple[bytes, ...] = ()


class Measurer:
    """Measures the frames of one video, in order."""

    def __init__(self, time_base: Fraction, *, with_hashes: bool, picture_size: tuple[int, int] | None) -> None:
        self._look_ticks, self._hash_ticks = ceil(LOOK_SECONDS / time_base), ceil(HASH_SECONDS / time_base)
        self._near_ticks = floor(NEAR_SECONDS / time_base)
        self._with_hashes, self._size = with_hashes, picture_size
        self._before: Small | None = None
        self._look: Look | None = None
        self._next_look = self._next_hash = -1
        self._scalers: dict[
            tuple[int, int], VideoReformatter
        ] = {}  # one that changes sizes sets up its filters each time

    def measure(self, frames: Iterable[SourceFrame]) -> Iterator[Frame]:
        """Yield a measurement of each frame, some frames later."""
        batch = list[Frame]()
        held = map(self._held, frames)
        for each in self._hashed(held) if self._with_hashes else (each.frame for each in held):
            batch.append(each)
            if len(batch) == BATCH:
                yield from self._compared(batch)
                batch = []
        yield from self._compared(batch)

    def _held(self, source: SourceFrame) -> Held:
        small = self._scaled(source.frame, WIDTH, HEIGHT, "yuvj444p").astype(np.int16)
        made = Frame(source.index, source.pts, source.end_pts, small, NOTHING)
        if self._size is not None:
            made.picture = self._scaled(source.frame, *self._size, "rgb24")
        if source.pts >= self._next_look:
            self._next_look = source.pts + self._look_ticks
            made.look = self._look = self._looked(source.frame)
        return Held(source.frame, made, float(small[MIDDLE].mean()), self._look)

    def _hashed(self, held: Iterable[Held]) -> Iterator[Frame]:
        """Yield frames, once the ones after them tell whether they are hashed."""
        before, after = deque[tuple[int, float]](maxlen=MOST_HELD), deque[Held]()
        for last in held:
            after.append(last)
            while self._is_far(after[0], last) or len(after) > MOST_HELD:
                yield self._first_hashed(before, after)
        while after:
            yield self._first_hashed(before, after)

    def _first_hashed(self, before: deque[tuple[int, float]], after: deque[Held]) -> Frame:
        first = after.popleft()
        made = first.frame
        earlier = [level for tick, level in before if made.tick - tick <= self._near_ticks]
        later = [other.level for other in after if not self._is_far(first, other)]
        is_next = made.tick >= self._next_hash
        if is_next or _is_extreme(first.level, earlier, later):
            made.hashes = self._hashes(first.picture, first.look)
        if is_next:
            self._next_hash = made.tick + self._hash_ticks
        before.append((made.tick, first.level))
        return made

    def _is_far(self, one: Held, later: Held) -> bool:
        return later.frame.tick - one.frame.tick > self._near_ticks

    def _compared(self, batch: list[Frame]) -> list[Frame]:
        """Measure the small copies of a batch: numpy takes as long for one frame as for several."""
        if not batch:
            return batch
        before = batch[0].small if self._before is None else self._before
        pictures = np.stack([before, *(each.small for each in batch)])
        self._before = batch[-1].small
        steps = np.diff(pictures, axis=0)
        luma, cb, cr = np.moveaxis(pictures[1:].reshape(len(batch), 3, -1).astype(np.float32), 1, 0)
        luma_steps = steps[:, 0].reshape(len(batch), -1).astype(np.float32)
        moved = np.abs(luma_steps).mean(1)
        values = [
            (luma < DARK).mean(1) >= DARK_SHARE,
            luma.mean(1) / 255,
            luma.std(1) / 255,
            np.sqrt((cb - 128) ** 2 + (cr - 128) ** 2).mean(1) / 128,
            moved / 255,
            moved < FROZEN,
            luma_steps.std(1),
        ]
        changes = np.abs(steps).mean((1, 2, 3)).tolist()
        for each, row, change in zip(batch, np.stack(values, 1).astype(np.float64), changes, strict=True):
            each.values, each.change = row, change
        return batch

    def _looked(self, frame: VideoFrame) -> Look:
        width, height = (frame.height, frame.width) if frame.rotation % 180 else (frame.width, frame.height)
        rows = np.flatnonzero(self._grey(frame, WIDTH, height).max(1) > BAR_LEVEL)
        columns = np.flatnonzero(self._grey(frame, width, HEIGHT).max(0) > BAR_LEVEL)
        is_seen = len(rows) and len(columns)
        box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1) if is_seen else None
        details = _details(self._grey(frame, LOOKED_WIDTH, LOOKED_HEIGHT).astype(np.float32))
        return Look(details, box, (width, height))

    def _hashes(self, frame: VideoFrame, look: Look | None) -> tuple[bytes, ...]:
        import pdqhash

        if look is None or look.borders is None:
            return ()
        grey = self._grey(frame, HASHED_SIDE, HASHED_SIDE)
        sides = np.array(look.borders) / (*look.size, *look.size) * HASHED_SIDE
        left, top, right, bottom = np.round(sides).astype(int)
        made = list[bytes]()
        for cropped in (0, CROPPED):
            part = grey[top + cropped : bottom - cropped, left + cropped : right - cropped]
            if part.size:
                bits, quality = pdqhash.compute(np.repeat(part[..., None], 3, 2))
                made += [np.packbits(bits).tobytes()] if quality >= LEAST_QUALITY else []
        return tuple(made)

    def _grey(self, frame: VideoFrame, width: int, height: int) -> Grey:
        """Return a grey copy of a frame, as it is shown."""
        width, height = (height, width) if frame.rotation % 180 else (width, height)
        return np.rot90(self._scaled(frame, width, height, "gray"), round(frame.rotation / 90))

    def _scaled(self, frame: VideoFrame, width: int, height: int, form: str) -> Grey:
        scaler = self._scalers.setdefault((width, height), VideoReformatter())
        scaled = scaler.reformat(frame, width, height, form, interpolation=Interpolation.AREA, threads=1).to_ndarray()
        return np.asarray(scaled, np.uint8)


def _is_extreme(level: float, earlier: list[float], later: list[float]) -> bool:
    if not earlier or not later:
        return False
    return max(earlier) < level >= max(later) or min(earlier) > level <= min(later)


def _details(y: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return (2,) sharpness and spatial information of a grey picture."""
    laplacian = y[:-2, 1:-1] + y[2:, 1:-1] + y[1:-1, :-2] + y[1:-1, 2:] - 4 * y[1:-1, 1:-1]
    rows, columns = y[:-2] + 2 * y[1:-1] + y[2:], y[:, :-2] + 2 * y[:, 1:-1] + y[:, 2:]
    across, down = rows[:, 2:] - rows[:, :-2], columns[2:] - columns[:-2]
    return np.array([laplacian.var(), np.sqrt(across * across + down * down).std()])


@dataclass(slots=True)
class Clip:
    """Facts of the frames that were added.

    Attributes:
        opening: Time 0 of its output, in ticks
        shot: Number of its shot in the source
        first: Number of its first frame in the source
        end: Number after its last frame
        hashes: Ticks and hashes of its frames that have some
    """

    opening: Fraction
    shot: int
    first: int = 0
    start_tick: int = 0
    end: int = 0
    end_tick: int = 0
    confidence: float = 1.0
    count: int = 0
    sums: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(MEANS)))
    looks: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(LOOKS)))
    num_looks: int = 0
    box: Box | None = None
    size: tuple[int, int] = (0, 0)
    hashes: list[tuple[int, tuple[bytes, ...]]] = field(default_factory=list)

    def add(self, frame: Frame) -> None:
        if not self.count:
            self.first, self.start_tick = frame.index, frame.tick
        self.sums[:-NUM_OF_CHANGE] += frame.values[:-NUM_OF_CHANGE]
        if self.count:  # else it differs from a frame of another clip
            self.sums[-NUM_OF_CHANGE:] += frame.values[-NUM_OF_CHANGE:]
        self.count += 1
        self.end, self.end_tick = frame.index + 1, frame.end_tick
        if frame.hashes:
            self.hashes.append((frame.tick, frame.hashes))
        if frame.look is None:
            return
        self.looks += frame.look.values
        self.num_looks += 1
        self.size = frame.look.size
        if (box := frame.look.borders) is not None:
            old = self.box or box
            self.box = min(box[0], old[0]), min(box[1], old[1]), max(box[2], old[2]), max(box[3], old[3])

    def facts(self, time_base: Fraction) -> dict[str, object]:
        """Return the columns of the table that describe the pictures."""
        changes = max(1, self.count - 1)
        counts = np.array([self.count] * (len(MEANS) - NUM_OF_CHANGE) + [changes] * NUM_OF_CHANGE)
        means = dict(zip(MEANS, (self.sums / counts).tolist(), strict=True))
        seconds = float((self.end_tick - self.start_tick) * time_base)
        moved = means.pop("moved") * changes
        looks = (self.looks / self.num_looks).tolist() if self.num_looks else [None] * len(LOOKS)
        return {
            "seconds": seconds,
            "motion": moved / seconds if seconds else 0.0,
            **means,
            **dict(zip(LOOKS, looks, strict=True)),
            "borders": self._borders(),
        }

    def _borders(self) -> str | None:
        if self.box is None:
            return None
        left, top, right, bottom = self.box
        width, height = right - left, bottom - top
        is_small = self.size[0] - width < BAR_SHARE * self.size[0] and self.size[1] - height < BAR_SHARE * self.size[1]
        return None if is_small else f"{width}x{height}+{left}+{top}"
